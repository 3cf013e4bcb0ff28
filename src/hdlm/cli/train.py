"""`hdlm train`: a recipe run, or a run gone on with."""

import argparse
from pathlib import Path

from hdlm.cli.flags import add_device, add_mixture, changed_recipe, chosen_recipe, seed
from hdlm.files import check_folder, json_text

AUTO = "auto"  # in place of a folder to go on with; one of this name is ./auto
_WIDEST = 18  # characters of a field's value in a list


def add(commands) -> None:
    """Declare it."""
    parser = commands.add_parser(
        "train",
        help="train a model from a recipe, or go on with a run",
        description="Any field of the recipe (--fields) is a flag by its dotted name: --optimizer.lr 1e-3.",
        usage="hdlm train [RECIPE] [options]",
    )
    parser.add_argument("recipe", nargs="?", default="laptop", metavar="RECIPE", help="see --list (laptop)")
    parser.add_argument(
        "--resume",
        metavar="DIR",
        help="go on with the run in DIR (--data: where its data is now); auto: with that in --out, if there is one",
    )
    parser.add_argument("--data", help="a set by name, a file or folder of text, or prepared tokens")
    parser.add_argument("--encoding", metavar="E", help="of text files, or E:replace (utf-8)")
    parser.add_argument("--steps", type=int, help="optimiser steps")
    parser.add_argument("--seed", type=seed, help="seed of weights, order and noise")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the run (runs/RECIPE)")
    parser.add_argument("--save-every", type=int, metavar="N", help="steps between checkpoints")
    parser.add_argument("--init-from", metavar="CKPT", help="start from this model folder's weights and tokenizer")
    add_mixture(parser)
    add_device(parser)
    parser.add_argument("--nodes", metavar="N", help="only print the torchrun line for N (MIN:MAX) machines")
    parser.add_argument("--gpus", type=int, metavar="M", help="and for M processes on each")
    parser.add_argument("--wandb", action="store_true", help="log to Weights & Biases too")
    parser.add_argument("--dry-run", action="store_true", help="build everything at toy size and take one step")
    parser.add_argument("--list", action="store_true", help="show all recipes")
    parser.add_argument("--fields", dest="show_fields", action="store_true", help="show all fields of RECIPE")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    parser.set_defaults(run=_train, together=True, takes_fields=True)


def _train(args: argparse.Namespace) -> None:
    if args.list:
        _list_recipes(args.json)
    elif args.show_fields:
        _list_fields(args)
    elif args.nodes is not None or args.gpus is not None:
        _print_launch(args)
    elif args.dry_run and args.resume is None:
        _dry_run(args)
    else:
        _run(args)


def _run(args: argparse.Namespace) -> None:
    """A new run, or one that goes on."""
    from hdlm.train.loop import resume, train

    how = {"device": args.device, "backend": args.backend, "wandb": args.wandb, "quiet": args.json}
    auto = args.resume == AUTO
    if args.resume is None or auto:
        recipe = chosen_recipe(args)
        out = args.out if args.out is not None else Path("runs") / recipe.name
        check_folder(out)
        result = train(recipe, out, go_on=auto, **how)
    else:
        names = ("encoding", "steps", "seed", "out", "save_every", "init_from", "schedules")
        given = [name for name in names if getattr(args, name) is not None] + [name for name, _ in args.fields]
        if given:
            raise ValueError(f"--resume takes no {', '.join(given)}: a run goes on with the recipe that it began with")
        moved = {} if args.data is None else {"data": args.data}
        result = resume(Path(args.resume), **moved, **how)
    if args.json:
        bound = result.bound.to_json() if result.bound is not None else None
        print(json_text({"out": str(result.folder), "step": result.step, "finished": result.finished, "bound": bound}))
    if not result.finished and result.stopped_by is not None:
        raise SystemExit(128 + result.stopped_by)  # as of a program that the signal ended, so that `&&` goes no further


def _print_launch(args: argparse.Namespace) -> None:
    from hdlm.cli.launch import launch_line

    if args.resume is None or args.resume == AUTO:
        batch = chosen_recipe(args).global_batch
    else:
        from hdlm.train.folder import recipe_of

        batch = recipe_of(Path(args.resume)).global_batch
    line = launch_line(args.words, nodes=args.nodes or "1", gpus=1 if args.gpus is None else args.gpus, batch=batch)
    print(json_text({"command": line}) if args.json else line)


def _dry_run(args: argparse.Namespace) -> None:
    from hdlm.train.dry_run import dry_run

    recipe = chosen_recipe(args)
    done = dry_run(recipe)
    losses = ", ".join(f"{loss:.3f}" for loss in done.losses)
    print(json_text(vars(done)) if args.json else f"{recipe.name}: one toy step, {done.slots} slots, loss {losses}")


def _list_recipes(as_json: bool) -> None:
    from hdlm.config.recipes import all_recipes

    recipes = all_recipes().values()
    if as_json:
        print(json_text([recipe.to_json() for recipe in recipes]))
        return
    for recipe in recipes:
        print(f"{recipe.name:<28} {recipe.about}")


def _list_fields(args: argparse.Namespace) -> None:
    from hdlm.config.fields import describe

    fields = list(describe(changed_recipe(args)))
    if args.json:
        print(json_text([vars(field) for field in fields]))
        return
    longest = max(len(field.name) for field in fields)
    for field in fields:
        value = field.value if len(field.value) <= _WIDEST else f"{field.value[: _WIDEST - 3]}..."
        print(f"--{field.name:<{longest}}  {field.type:<13} {value:<{_WIDEST}}  {field.about}")
