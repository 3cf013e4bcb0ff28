"""The training loop, top to bottom: batch, loss, backward, step, and now and then a look and a save.

A run is a folder: `trainer/` holds recipe, tokenizer and checkpoints, `metrics.jsonl` the numbers, and at the end the
model lies in the folder itself. Killed at any moment, `resume` goes on as if nothing had happened.
"""

import dataclasses
import fcntl
import json
import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdlm import weights
from hdlm.files import written_aside
from hdlm.nn.transformer import Denoiser
from hdlm.objectives.choose import validation_bound
from hdlm.recipe import Recipe
from hdlm.train import distributed
from hdlm.train.batch import Batches
from hdlm.train.distributed import World, whole
from hdlm.train.finish import finish, preview
from hdlm.train.log import Log
from hdlm.train.setup import Job, check_folder, prepare
from hdlm.train.state import checkpoints, keep_last
from hdlm.train.step import Stepped, Stepper, learning_rate
from hdlm.train.validate import Bound, validate

_VALIDATION_SEED = 977
MAX_BAD_STEPS = 10


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    folder: Path
    step: int
    bound: Bound | None
    finished: bool


def train(recipe: Recipe, out: Path, *, device: str | None = None, wandb: bool = False, quiet: bool = False) -> Result:
    """A new run in the folder `out`."""
    if checkpoints(out) or (out / "trainer" / "recipe.json").exists():
        raise ValueError(f"out = {str(out)!r} is not accepted: it holds a run; go on with --resume {out}")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"out = {str(out)!r} is not accepted: the folder is not empty; a run needs one of its own")
    return _run(recipe, out, resume=False, device=device, wandb=wandb, quiet=quiet)


def resume(out: Path, *, device: str | None = None, wandb: bool = False, quiet: bool = False) -> Result:
    """Go on with the run in `out` from its last checkpoint."""
    if not (out / "trainer" / "recipe.json").exists():
        raise ValueError(f"{out} is not accepted: it holds no run to resume (trainer/recipe.json is missing)")
    recipe = Recipe.from_json(weights.read_json(out / "trainer" / "recipe.json"))
    return _run(recipe, out, resume=True, device=device, wandb=wandb, quiet=quiet)


def _run(recipe: Recipe, out: Path, *, resume: bool, device: str | None, wandb: bool, quiet: bool) -> Result:
    world = distributed.join(device)
    try:
        if recipe.global_batch % world.size:
            raise ValueError(
                f"global_batch = {recipe.global_batch} is not accepted: it must divide by {world.size} processes"
            )
        tokenizer_file = out / "trainer" / "tokenizer.json"
        progress = _show_tokenising if world.leads and not quiet and sys.stderr.isatty() else None
        if resume and checkpoints(out):
            recipe = dataclasses.replace(recipe, init_from=None)  # the checkpoint is past its start
        if not world.leads:
            world.wait()  # one process tokenises, the others find it done
        job = prepare(recipe, tokenizer_file=tokenizer_file if resume else None, progress=progress)
        if world.leads:
            check_folder(out, job)
            world.wait()
        with _alone(out, world):
            if resume:
                _check_same_data(out, job)
            trainer = _Trainer(job, out, world, resume=resume, wandb=wandb, quiet=quiet)
            if world.leads and not resume:
                _write_run(out, job)
            return trainer.run()
    finally:
        distributed.leave()


def _show_tokenising(split: str, documents: int) -> None:
    print(f"\rtokenising {split}: {documents:,} documents", end="", file=sys.stderr, flush=True)


@contextmanager
def _alone(out: Path, world: World) -> Iterator[None]:
    """Hold the run's folder against a second process that would write the same files."""
    if not world.leads:
        yield
        return
    (out / "trainer").mkdir(parents=True, exist_ok=True)
    with (out / "trainer" / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{out} is not accepted: another process is training there") from None
        yield


def _check_same_data(out: Path, job: Job) -> None:
    """A run goes on with the rows that it began with, or not at all."""
    known = weights.read_json(out / "trainer" / "data.json")
    if known != job.data_identity():
        raise ValueError(f"{out} cannot go on: data = {job.recipe.data!r} has changed since the run began")


def _write_run(out: Path, job: Job) -> None:
    with written_aside(out / "trainer" / "data.json") as aside:
        aside.write_text(json.dumps(job.data_identity()))
    with written_aside(out / "trainer" / "tokenizer.json") as aside:
        job.text.tokenizer.save(str(aside))
    with written_aside(out / "trainer" / "recipe.json") as aside:
        aside.write_text(json.dumps(job.recipe.to_json(), indent=2) + "\n")


class _Trainer:
    """The objects of a run and its steps."""

    def __init__(self, job: Job, out: Path, world: World, *, resume: bool, wandb: bool, quiet: bool) -> None:
        recipe = job.recipe
        self.job, self.recipe, self.out, self.world = job, recipe, out, world
        bos = job.config.bos_id
        batches = Batches(recipe, job.train_rows, job.process, bos_id=bos, device=world.device)
        self.stepper = Stepper(recipe, job.build_model(), job.process, batches, world)
        self.state = self.stepper.state
        saved = checkpoints(out)
        if resume and saved:
            self.state.load(saved[-1])
        first_kind = recipe.schedules[0].kind
        clean = recipe.parameterization == "clean"
        self.validation = validation_bound(job.process, clean=clean, autoregressive=first_kind == "quench")
        self.valid_batches = Batches(
            recipe, job.valid_rows, self.validation.process, bos_id=bos, device=world.device, seed=_VALIDATION_SEED
        )
        self.log = Log(out, leads=world.leads, first_step=self.state.step, wandb=wandb, quiet=quiet)
        self.bad_steps = 0
        self.stopping = False

    def run(self) -> Result:
        """All steps that are left, then the model."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.log.close()

    def _stop(self, number: int, frame: Any) -> None:
        """A first signal asks for a clean end; a second one gets its way at once."""
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True

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
            if state.step % recipe.log_every == 0 or state.step == recipe.steps:
                elapsed = time.perf_counter() - clock
                self._report(done.loss, slots / elapsed, active / elapsed, (state.step - since) / elapsed)
                clock, slots, active, since = time.perf_counter(), 0, 0, state.step
            if state.step % recipe.eval_every == 0 or state.step == recipe.steps:
                bound = self._look()
                clock, slots, active, since = time.perf_counter(), 0, 0, state.step
            stopping = self.world.any(self.stopping)
            if state.step % recipe.save_every == 0 or state.step == recipe.steps or stopping:
                self._save()
            if stopping and state.step < recipe.steps:
                self.log.say(f"stopped at step {state.step:,}; go on with: hdlm train --resume {self.out}")
                return Result(self.out, state.step, bound, finished=False)
        if bound is None:
            bound = self._look()
        state.average.swap(state.model)
        model = self._in_one_piece()
        if self.world.leads:
            finish(self.job, model, self.out, bound, self.log)
        self.world.wait()
        return Result(self.out, state.step, bound, finished=True)

    def _in_one_piece(self) -> Denoiser:
        """The network as it is, or gathered from its shards; every process must call this together."""
        if not self.recipe.sharded or self.world.size == 1:
            return self.state.model
        tensors = {name: whole(parameter.detach()) for name, parameter in self.state.model.named_parameters()}
        model = self.job.build_model().to(self.world.device)
        model.load_state_dict(tensors, strict=False)
        return model

    def _step(self) -> Stepped:
        """One optimiser step; too many without a finite loss end the run."""
        done = self.stepper.step()
        self.bad_steps = self.bad_steps + 1 if done.skipped else 0
        if done.skipped:
            step = self.state.step
            self.log.say(
                f"step {step:,}: loss {done.loss} or its gradient is no number; skipped ({self.bad_steps} in a row)"
            )
        if self.bad_steps >= MAX_BAD_STEPS:
            saved = checkpoints(self.out)
            last = f"the last good checkpoint is {saved[-1]}" if saved else "no checkpoint had been saved"
            raise ValueError(f"{MAX_BAD_STEPS} steps in a row had no finite loss: stopped; {last}")
        return done

    def _report(self, loss: float, slots_per_s: float, active_per_s: float, steps_per_s: float) -> None:
        recipe, state = self.recipe, self.state
        left = (recipe.steps - state.step) / steps_per_s
        self.log.metrics(
            state.step,
            {
                "loss": loss,
                "lr": learning_rate(recipe.optimizer, state.step - 1, recipe.steps),
                "tokens_per_s": slots_per_s,
                "active_tokens_per_s": active_per_s,
                "skipped": state.step - state.updates,
            },
        )
        best = (
            f"  bound {state.best:.3f} nats, ppl {math.exp(min(state.best, 50)):.1f}" if state.best is not None else ""
        )
        self.log.line(
            f"step {state.step:,}/{recipe.steps:,}  loss {loss:.4f}{best}  {slots_per_s:,.0f} tokens/s  "
            f"{active_per_s:,.0f} active/s  {int(left // 60)}:{int(left % 60):02d} left"
        )

    def _look(self) -> Bound:
        """Validation bound and two samples, with the averaged weights."""
        recipe, state = self.recipe, self.state
        rows = min(recipe.eval_rows, len(self.job.valid_rows))
        state.average.swap(state.model)
        bound = validate(
            self.stepper.module,
            self.valid_batches,
            self.validation,
            rows=rows,
            micro_batch=recipe.micro_batch,
            world=self.world,
        )
        model = self._in_one_piece()
        samples = preview(self.job, model) if self.world.leads else []
        better = state.best is None or bound.value < state.best
        if better:
            state.best = bound.value
            if self.world.leads:
                self.job.bundle(model).save(self.out / "best")
        state.average.swap(state.model)
        values = {"bound": bound.value, "bound_error": bound.error, "perplexity": math.exp(min(bound.value, 50))}
        self.log.metrics(state.step, values | {"samples": samples})
        perplexity = values["perplexity"]
        self.log.say(
            f"step {state.step:,}: {bound.name} {bound.value:.4f} ± {bound.error:.4f} nats per token, "
            f"perplexity {perplexity:.1f}{' (best)' if better else ''}"
        )
        for sample in samples:
            self.log.say("  | " + " ".join(sample.split())[:150])
        return bound

    def _save(self) -> None:
        self.state.save(self.out / "trainer" / f"step-{self.state.step:08d}", self.world)
        if self.world.leads:
            keep_last(self.out, self.recipe.keep)
        self.world.wait()
