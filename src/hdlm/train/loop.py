"""The training loop, top to bottom: batch, loss, backward, step, and now and then a validation and a save.

A run is a folder: `trainer/` holds recipe, tokenizer and checkpoints, `metrics.jsonl` the numbers, and at the end the
model lies in the folder itself. Killed at any moment, `resume` goes on as if nothing had happened.
"""

import dataclasses
import json
import math
import signal
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdlm import backend as floors
from hdlm import processes, weights
from hdlm.config.recipe import Recipe
from hdlm.data.corpus import is_read, locate
from hdlm.errors import NotFiniteError
from hdlm.evaluate.bound import Bound
from hdlm.evaluate.likelihood import estimate
from hdlm.files import entries, written_aside
from hdlm.folders import as_path
from hdlm.nn.transformer import Denoiser
from hdlm.theory import numbers
from hdlm.train.batch import Batches
from hdlm.train.consolidate import read_average
from hdlm.train.distributed import full_tensor
from hdlm.train.finish import finish, preview
from hdlm.train.folder import check_same, held, is_restarted, recipe_of, told_of_the_disk
from hdlm.train.log import Console, Log, wandb_module
from hdlm.train.saver import Saver
from hdlm.train.setup import Job, anchored, check_folder, prepare
from hdlm.train.state import checkpoints
from hdlm.train.step import Stepper, StepResult, learning_rate

_VALIDATION_SEED = 977
_BEGINNING = ("lock", "data.json", "tokenizer.json")  # what a run that ended before it began may have left
MAX_BAD_STEPS = 10


@dataclass(frozen=True)
class Result:
    """What a run came to. `stopped_by`: the signal that ended it, where it is not finished."""

    folder: Path
    step: int
    bound: Bound | None
    finished: bool
    stopped_by: int | None = None


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    go_on: bool = False,
    device: str | None = None,
    backend: str | None = None,
    wandb: bool = False,
    quiet: bool = False,
) -> Result:
    """A new run in the folder `out`. `backend`: "fast" (the default) or "reference", which learn the same.

    `go_on`: where the folder holds a run of this recipe, that is gone on with; so it is when torchrun starts anew.
    """
    out = as_path("out", out)
    numbers.instance("recipe", recipe, Recipe)
    if (go_on or is_restarted()) and (out / "trainer" / "recipe.json").exists():
        check_same(anchored(recipe), out)
        return resume(out, data=recipe.data, device=device, backend=backend, wandb=wandb, quiet=quiet)
    if checkpoints(out) or (out / "trainer" / "recipe.json").exists():
        raise ValueError(f"out = {str(out)!r} is not accepted: it holds a run; go on with --resume {out}")
    if entries(out) - {"trainer", "tensorboard"} or entries(out / "trainer") - set(_BEGINNING):
        raise ValueError(f"out = {str(out)!r} is not accepted: the folder is not empty; a run needs one of its own")
    if recipe.goes_on_from is not None and recipe.init_from is None:
        raise ValueError(
            f"init_from = None is not accepted: {recipe.name} goes on from a model of {recipe.goes_on_from}, so say "
            f"where one is (--init-from DIR), or --goes-on-from none to train from nothing"
        )
    recipe = anchored(recipe)
    if is_read(out, recipe.data):
        raise ValueError(
            f"out = {str(out)!r} is not accepted: it is inside of data = {recipe.data!r}, and would be read"
        )
    return _run(recipe, out, resume=False, device=device, backend=backend, wandb=wandb, quiet=quiet)


def resume(
    out: str | Path,
    *,
    data: str | None = None,
    device: str | None = None,
    backend: str | None = None,
    wandb: bool = False,
    quiet: bool = False,
) -> Result:
    """Go on with the run in `out` from its last checkpoint. `data`: where its data is now, if that has moved."""
    out = as_path("out", out)
    recipe = recipe_of(out)
    try:
        recipe = dataclasses.replace(recipe, data=locate(recipe.data if data is None else data))
    except ValueError as error:
        hint = f"; if it has moved: hdlm train --resume {out} --data NEWPLACE" if data is None else ""
        raise ValueError(f"{out} cannot go on: {error}{hint}") from None
    return _run(recipe, out, resume=True, device=device, backend=backend, wandb=wandb, quiet=quiet)


def _run(
    recipe: Recipe, out: Path, *, resume: bool, device: str | None, backend: str | None, wandb: bool, quiet: bool
) -> Result:
    floors.choose(backend)  # refused before anything is read or written
    if wandb:
        wandb_module()
    world = processes.init(device)
    try:
        if recipe.global_batch % world.size:
            raise ValueError(
                f"global_batch = {recipe.global_batch} is not accepted: it must divide by {world.size} processes"
            )
        console = Console(quiet=quiet or not world.is_main)
        # Once there is a checkpoint, the model that the run started from is not needed.
        rest = dataclasses.replace(recipe, init_from=None) if resume and checkpoints(out) else recipe
        tokenizer_file = out / "trainer" / "tokenizer.json" if resume else None
        alone = world.size == 1
        job = prepare(rest, tokenizer_file=tokenizer_file, tell=console.line, tokenise=alone)
        for line in job.data_words():
            console.say(line)
        if world.is_main:
            check_folder(out, job)
        world.barrier()
        with told_of_the_disk(out), held(out, world):
            if resume and not job.has_data_of(weights.read_json(out / "trainer" / "data.json")):
                raise ValueError(
                    f"{out} cannot go on: data = {recipe.data!r} has changed since the run began, its content or the "
                    "names of its files"
                )
            batches = Batches(recipe, job.train_rows, job.process, bos_id=job.config.bos_id, device=world.device)
            stepper = Stepper(recipe, job.build_model(), job.process, batches, world, backend=backend)
            last = world.from_main(checkpoints(out)[-1:])
            if resume and last:
                stepper.state.load(last[0])
            log = Log(out, console, is_main=world.is_main, first_step=stepper.state.step, wandb=wandb)
            if world.is_main:
                _write_run(out, job, recipe)
            return _Trainer(job, out, stepper, log).run()
    finally:
        processes.destroy()


def _write_run(out: Path, job: Job, recipe: Recipe) -> None:
    """What a resume reads, as far as it is new; the recipe, by which a run is known, comes last."""
    files = {
        "data.json": json.dumps(job.data_record(), indent=2) + "\n",
        "tokenizer.json": job.tokenizer.tokenizer.to_str(pretty=True),
        "recipe.json": json.dumps(recipe.to_json(), indent=2) + "\n",
    }
    for name, text in files.items():
        path = out / "trainer" / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        with written_aside(path) as aside:
            aside.write_text(text, encoding="utf-8")


class _Trainer:
    """The objects of a run and its steps."""

    def __init__(self, job: Job, out: Path, stepper: Stepper, log: Log) -> None:
        self.job, self.out, self.stepper, self.log = job, out, stepper, log
        self.recipe, self.state, self.world = job.recipe, stepper.state, stepper.world
        self.saver = Saver(out, self.world, keep=self.recipe.keep)
        self.bad_steps = 0
        self.stopped_by: int | None = None

    def run(self) -> Result:
        """All steps that are left, then the model."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with closing(self.saver), closing(self.log):
                return self._run()
        except NotFiniteError as error:
            saved = checkpoints(self.out)
            last = f"the last good checkpoint is {saved[-1]}" if saved else "no checkpoint had been saved"
            raise NotFiniteError(f"training has diverged by step {self.state.step:,}: {error}; {last}") from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: Any) -> None:
        """A first signal asks for a clean end; a second one gets its way at once."""
        if self.stopped_by is not None:
            raise KeyboardInterrupt
        self.stopped_by = number

    def _run(self) -> Result:
        recipe, state = self.recipe, self.state
        bound = None
        if state.step >= recipe.steps and (self.out / "model.safetensors").exists():
            self.log.say(f"{self.out} is finished: its model is there")
            return Result(self.out, state.step, None, finished=True)
        clock, slots, active, since = time.perf_counter(), 0, 0, state.step
        while state.step < recipe.steps:
            done = self._step()
            slots, active = slots + done.slots, active + done.active_tokens
            if self._due(recipe.log_every):
                elapsed = time.perf_counter() - clock
                self._report(done.loss, slots / elapsed, active / elapsed, (state.step - since) / elapsed)
            if self._due(recipe.eval_every):
                bound = self._validate()
            if self._due(recipe.log_every) or self._due(recipe.eval_every):
                clock, slots, active, since = time.perf_counter(), 0, 0, state.step
            # A checkpoint that could not be written ends the run as a signal does: on all processes, by `save`.
            stopping = self.world.any(self.stopped_by is not None or self.saver.failed)
            if self._due(recipe.save_every) or stopping:
                self.saver.save(state)
            if stopping and state.step < recipe.steps:
                self.saver.wait()
                self.log.say(f"stopped at step {state.step:,}; go on with: hdlm train --resume {self.out}")
                by = signal.SIGTERM if self.stopped_by is None else self.stopped_by  # another process was told
                return Result(self.out, state.step, bound, finished=False, stopped_by=by)
        if bound is None:
            bound = self._validate()
        self.saver.wait()
        if self.world.is_main:
            finish(self.job, self._averaged(), self.out, bound, self.log)
        self.world.barrier()
        return Result(self.out, state.step, bound, finished=True)

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.recipe.steps

    @property
    def _is_sharded(self) -> bool:
        return self.recipe.sharded and self.world.size > 1

    def _averaged(self) -> Denoiser:
        """The network with its averaged weights; of shards, from the last checkpoint, so that one process is enough."""
        if self._is_sharded:
            return read_average(checkpoints(self.out)[-1], self.job.build_model())
        self.state.average.swap(self.state.model)
        return self.state.model

    def _unsharded(self) -> Denoiser:
        """The network as it is, or gathered from its shards; every process must call this together."""
        if not self._is_sharded:
            return self.state.model
        tensors = {name: full_tensor(parameter.detach()) for name, parameter in self.state.model.named_parameters()}
        model = self.job.build_model().to(self.world.device)
        model.load_state_dict(tensors, strict=False)
        return model

    def _step(self) -> StepResult:
        """One optimiser step; too many without a finite loss end the run."""
        done = self.stepper.step()
        self.bad_steps = self.bad_steps + 1 if done.skipped else 0
        if done.skipped:
            problem = f"loss {done.loss} or its gradient is no number"
            self.log.say(f"step {self.state.step:,}: {problem}; skipped ({self.bad_steps} in a row)")
        if self.bad_steps >= MAX_BAD_STEPS:
            raise NotFiniteError(f"{MAX_BAD_STEPS} steps in a row had no finite loss")
        return done

    def _report(self, loss: float, slots_per_s: float, active_per_s: float, steps_per_s: float) -> None:
        recipe, state = self.recipe, self.state
        left = (recipe.steps - state.step) / steps_per_s
        values = {
            "loss": loss,
            "lr": learning_rate(recipe.optimizer, state.step - 1, recipe.steps),
            "tokens_per_s": slots_per_s,
            "active_tokens_per_s": active_per_s,
            "skipped": state.step - state.updates,
        }
        self.log.metrics(state.step, values)
        best = ""
        if state.best is not None:
            best = f"  bound {state.best:.3f} nats, ppl {math.exp(min(state.best, 50)):.1f}"
        self.log.line(
            f"step {state.step:,}/{recipe.steps:,}  loss {loss:.4f}{best}  {slots_per_s:,.0f} tokens/s  "
            f"{active_per_s:,.0f} active/s  {int(left // 60)}:{int(left % 60):02d} left"
        )

    def _validate(self) -> Bound:
        """Validation bound and two samples, with the averaged weights."""
        recipe, state = self.recipe, self.state
        state.average.swap(state.model)
        model = self._unsharded().eval()
        bundle, rows = self.job.bundle(model), self.job.validation_rows()
        batch_size = recipe.micro_batch
        bound = estimate(bundle, rows, draws=1, seed=_VALIDATION_SEED, batch_size=batch_size, world=self.world)
        samples = preview(self.job, model) if self.world.is_main else []
        better = state.best is None or bound.value < state.best
        if better:
            state.best = bound.value
            if self.world.is_main:
                bundle.save(self.out / "best")
        model.train()
        state.average.swap(state.model)
        values = {"bound": bound.value, "bound_error": bound.error, "perplexity": bound.perplexity}
        values |= {f"bound: {other.name}": other.value for other in bound.beside}
        self.log.metrics(state.step, values | {"samples": samples})
        self.log.say(
            f"step {state.step:,}: {bound.name} {bound.value:.4f} ± {bound.error or 0.0:.4f} nats per token, "
            f"perplexity {bound.perplexity:.1f}{' (best)' if better else ''}"
        )
        for sample in samples:
            self.log.say("  | " + " ".join(sample.split())[:150])
        return bound
