"""`hdlm train` and `hdlm plan`: recipes, run or priced."""

import argparse
import json
from pathlib import Path

from hdlm.commands.words import seed


def add(commands) -> None:
    """Declare both."""
    _add_train(commands)
    _add_plan(commands)


def _add_train(commands) -> None:
    parser = commands.add_parser(
        "train",
        help="train a model from a recipe, or go on with a run",
        description="Train a model. Any field of the recipe is a flag by its dotted name: --optimizer.lr 1e-3.",
    )
    parser.add_argument("recipe", nargs="?", default="laptop", metavar="RECIPE", help="see --list (laptop)")
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on with the run in this folder; needs nothing else"
    )
    parser.add_argument("--data", help="a corpus by name, or a file or folder of text, or a matrix of tokens")
    parser.add_argument("--steps", type=int, help="optimiser steps")
    parser.add_argument("--seed", type=seed, help="seed of weights, order and noise")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the run (runs/RECIPE)")
    parser.add_argument("--save-every", type=int, metavar="N", help="steps between checkpoints")
    parser.add_argument("--init-from", metavar="CKPT", help="start from this model folder's weights and tokenizer")
    parser.add_argument("--device", help="cpu or cuda (cuda where there is one)")
    parser.add_argument("--wandb", action="store_true", help="log to Weights & Biases too")
    parser.add_argument("--dry-run", action="store_true", help="build everything at toy size and take one step")
    parser.add_argument("--list", action="store_true", help="show all recipes")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    parser.set_defaults(run=_train, takes_fields=True)


def _add_plan(commands) -> None:
    parser = commands.add_parser("plan", help="what a recipe will cost: parameters, FLOPs, memory, hours")
    parser.add_argument("recipe", metavar="RECIPE", help="see hdlm train --list")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (1)")
    parser.add_argument("--gpu", default="h200", help="kind of GPU (h200)")
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the peak that is reached (0.4)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(run=_plan, takes_fields=True)


def _chosen_recipe(args: argparse.Namespace):
    """The named recipe with the flags' changes."""
    from hdlm import recipes
    from hdlm.recipe import override

    recipe = recipes.get(args.recipe)
    for name in ("data", "steps", "seed", "save_every", "init_from"):
        value = getattr(args, name, None)
        if value is not None:
            recipe = override(recipe, name, str(value))
    for name, word in args.fields:
        recipe = override(recipe, name, word)
    return recipe


def _train(args: argparse.Namespace) -> None:
    if args.list:
        _list_recipes(args.json)
        return
    if args.resume is not None:
        from hdlm.train.loop import resume

        given = [
            name
            for name in ("data", "steps", "seed", "out", "save_every", "init_from")
            if getattr(args, name) is not None
        ]
        given += [name for name, _ in args.fields]
        if given:
            raise ValueError(f"--resume takes no {', '.join(given)}: a run goes on with the recipe that it began with")
        result = resume(args.resume, device=args.device, wandb=args.wandb, quiet=args.json)
    elif args.dry_run:
        from hdlm.train.dry_run import dry_run

        recipe, done = _chosen_recipe(args), dry_run(_chosen_recipe(args))
        losses = ", ".join(f"{loss:.3f}" for loss in done.losses)
        print(
            json.dumps(vars(done)) if args.json else f"{recipe.name}: one toy step, {done.slots} slots, loss {losses}"
        )
        return
    else:
        from hdlm.train.loop import train

        recipe = _chosen_recipe(args)
        out = args.out if args.out is not None else Path("runs") / recipe.name
        result = train(recipe, out, device=args.device, wandb=args.wandb, quiet=args.json)
    if args.json:
        bound = vars(result.bound) if result.bound is not None else None
        print(json.dumps({"out": str(result.folder), "step": result.step, "finished": result.finished, "bound": bound}))


def _list_recipes(as_json: bool) -> None:
    from hdlm.recipes import all_recipes

    recipes = all_recipes().values()
    if as_json:
        print(json.dumps([recipe.to_json() for recipe in recipes]))
        return
    for recipe in recipes:
        print(f"{recipe.name:<28} {recipe.about}")


def _plan(args: argparse.Namespace) -> None:
    from hdlm.plan import plan

    found = plan(_chosen_recipe(args), gpus=args.gpus, gpu=args.gpu, mfu=args.mfu)
    if args.json:
        print(json.dumps(found.to_json()))
        return
    print(f"{found.recipe} on {found.gpus} x {found.gpu}")
    rows = {
        "parameters": f"{found.parameters / 1e6:,.1f} M, vocabulary {found.vocab_size:,}",
        "tokens": f"{found.tokens / 1e9:,.1f} G in {found.steps:,} steps",
        "slots a row": f"{found.slots:,} for {found.active:,} active tokens",
        "FLOPs": f"{found.flops:.2e}",
        "memory": f"about {found.memory_gib:.0f} GiB a GPU",
        "time": f"{found.hours:,.0f} hours at {found.mfu:.0%} of the peak",
    }
    for name, value in rows.items():
        print(f"  {name:<12} {value}")
