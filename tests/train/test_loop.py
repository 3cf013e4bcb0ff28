"""The loop alone, its parts replaced: what it does at which step, when it ends, and what it says of its end."""

import json
import math
import signal
from types import SimpleNamespace

import pytest
import torch
from support.bundles import letters
from support.runs import tiny_recipe

from hdlm.errors import NotFiniteError
from hdlm.processes import World
from hdlm.train import loop
from hdlm.train.log import Console, Log
from hdlm.train.loop import Result
from hdlm.train.step import StepResult

OFTEN = {"steps": 6, "log_every": 2, "eval_every": 3, "save_every": 4}


class Deaf(World):
    """Of two processes, the other of which is told to stop at a step."""

    told = False

    def any(self, flag):
        return flag or self.told

    def barrier(self):
        """Nobody is waited for."""


class Saver:
    """Saves nothing, and says when it would have; `error`: what went wrong with a checkpoint that was begun."""

    def __init__(self, run):
        self.run, self.error = run, None

    @property
    def failed(self):
        return self.error is not None

    def save(self, state):
        if self.error is not None:
            raise self.error
        self.run.done.append("save")

    def wait(self):
        self.run.done.append("wait")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that steps, and writes down what else it is told to do."""
    done = []
    average = SimpleNamespace(swap=lambda model: done.append("swap"))
    state = SimpleNamespace(step=0, updates=0, model="whole network", average=average)

    def step():
        state.step += 1
        done.append(state.step)
        return StepResult(1.0, 6, 4, skipped=False)

    stepper = SimpleNamespace(state=state, world=Deaf(0, 2, torch.device("cpu")), step=step)
    job = SimpleNamespace(recipe=tiny_recipe("x", **OFTEN))
    log = SimpleNamespace(say=done.append)
    run = loop._Trainer(job, tmp_path, stepper, log)
    run._report = lambda loss, *rates: done.append("report")
    run._validate = lambda: done.append("validate") or f"bound {state.step}"
    run.saver = Saver(run)
    run.done, run.step = done, step
    monkeypatch.setattr(loop, "finish", lambda *what: done.append(("finish", what)))
    return run


def end(run, bound):
    return ["wait", "swap", ("finish", (run.job, "whole network", run.out, bound, run.log))]


def test_reports_validations_and_checkpoints_come_when_they_are_due(run):
    """And at the last step."""
    assert run._run() == Result(run.out, 6, "bound 6", finished=True)
    expected = [1, 2, "report", 3, "validate", 4, "report", "save", 5, 6, "report", "validate", "save"]
    assert run.done == expected + end(run, "bound 6")


def test_a_finished_run_is_known_by_its_last_step_and_its_model(run):
    run.state.step = 6
    (run.out / "model.safetensors").touch()
    assert run._run() == Result(run.out, 6, None, finished=True)
    assert run.done == [f"{run.out} is finished: its model is there"]


def test_a_run_whose_model_is_not_there_is_finished_now(run):
    run.state.step = 6
    assert run._run() == Result(run.out, 6, "bound 6", finished=True)
    assert run.done == ["validate", *end(run, "bound 6")]


def test_a_run_that_is_not_at_its_end_goes_on_beside_an_older_model(run):
    run.state.step = 5
    (run.out / "model.safetensors").touch()
    assert run._run().finished
    assert run.done == [6, "report", "validate", "save", *end(run, "bound 6")]


@pytest.mark.parametrize(("by", "told"), [(signal.SIGINT, signal.SIGINT), (None, signal.SIGTERM)])
def test_a_run_that_is_stopped_saves_and_says_where_it_is(by, told, run):
    """A process that was told nothing itself says what processes are told."""

    def step():
        if run.state.step == 2:
            run.stopped_by, run.world.__class__.told = by, by is None
        return run.step()

    run.stepper.step = step
    try:
        assert run._run() == Result(run.out, 3, "bound 3", finished=False, stopped_by=told)
    finally:
        Deaf.told = False
    assert run.done[-4:] == [
        "validate",
        "save",
        "wait",
        f"stopped at step 3; go on with: hdlm train --resume {run.out}",
    ]


def test_a_checkpoint_that_could_not_be_written_ends_the_run_on_all_processes(run):
    """Here, and where only another process knows of it yet."""
    for here in (True, False):
        run.done.clear()
        run.state.step, run.saver.error = 0, OSError(28, "No space left on device")
        run.saver.__class__.failed, before = here, run.saver.__class__.failed
        Deaf.told = not here
        try:
            with pytest.raises(OSError, match="No space left"):
                run._run()
        finally:
            Deaf.told, run.saver.__class__.failed = False, before
        assert run.done == [1]


def test_a_run_that_is_stopped_at_its_last_step_is_finished(run):
    run.state.step, run.stopped_by = 5, signal.SIGINT
    assert run._run() == Result(run.out, 6, "bound 6", finished=True)
    assert run.done[-3:] == end(run, "bound 6")


def test_other_processes_finish_nothing(run):
    run.world, run.state.step = Deaf(1, 2, torch.device("cpu")), 6
    assert run._run() == Result(run.out, 6, "bound 6", finished=True)
    assert run.done == ["validate", "wait"]


def test_ten_steps_without_a_loss_end_a_run_from_its_first_on(run):
    bad, good = StepResult(math.nan, 6, 4, skipped=True), StepResult(1.0, 6, 4, skipped=False)
    run.stepper.step = iter([bad] * 9 + [good] + [bad] * 10).__next__
    for _ in range(19):
        run._step()
    assert run.done[8].endswith("loss nan or its gradient is no number; skipped (9 in a row)")
    with pytest.raises(NotFiniteError, match="10 steps in a row had no finite loss"):
        run._step()


def test_what_a_resume_reads_is_written_where_it_is_new(tmp_path, monkeypatch):
    """And else left alone."""
    recipe, written = tiny_recipe("x"), []
    job = SimpleNamespace(data_record=lambda: {"content": 1}, tokenizer=SimpleNamespace(tokenizer=letters()))
    place, aside = tmp_path / "trainer", loop.written_aside
    place.mkdir()
    monkeypatch.setattr(loop, "written_aside", lambda path: written.append(path.name) or aside(path))
    loop._write_run(tmp_path, job, recipe)
    assert written == ["data.json", "tokenizer.json", "recipe.json"]
    contents = {name: (place / name).read_text(encoding="utf-8") for name in written}
    assert json.loads(contents["data.json"]) == {"content": 1}
    assert json.loads(contents["recipe.json"]) == json.loads(json.dumps(recipe.to_json()))
    (place / "data.json").write_text("{}")
    (place / "recipe.json").write_text("{}")
    loop._write_run(tmp_path, job, recipe)
    assert written[3:] == ["data.json", "recipe.json"]
    assert {name: (place / name).read_text(encoding="utf-8") for name in contents} == contents


def test_metrics_that_cannot_be_written_are_named_with_the_reason(tmp_path):
    log = Log(tmp_path, Console(quiet=True), is_main=True, first_step=0, wandb=False)
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(IsADirectoryError) as error:
        log.metrics(1, {"loss": 1.0})
    log.close()
    assert (error.value.strerror, error.value.filename) == ("Is a directory", str(tmp_path / "metrics.jsonl"))
