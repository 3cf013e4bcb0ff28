"""Runs from start to end: resumed, killed, split, spread over processes; each must be the run it would have been."""

import dataclasses
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from support.runs import text_folder, tiny_recipe

import hdlm
from hdlm.config.process import ProcessConfig
from hdlm.config.recipe import LossSettings, MixtureMember, ModelSettings
from hdlm.evaluate.bound import Bound
from hdlm.processes import World
from hdlm.train import loop
from hdlm.train.finish import unigram_entropy
from hdlm.train.log import Console, Log, _step_of
from hdlm.train.loop import resume, train
from hdlm.train.setup import prepare
from hdlm.train.state import checkpoints
from hdlm.train.step import Stepper, learning_rate

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    os.environ["HDLM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    return text_folder(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    result = train(tiny_recipe(data), out, quiet=True)
    assert result.finished
    return out


def weights_of(out):
    return load_file(out / "model.safetensors")


def losses_of(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def assert_same(one, other):
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert losses_of(one) == losses_of(other)


def test_a_run_leaves_a_model_and_its_story(data, finished):
    bundle = hdlm.load(finished)
    assert isinstance(bundle.process, hdlm.GammaHybrid)
    assert bundle.tokenizer is not None
    card = (finished / "README.md").read_text()
    name, *_ = json.loads((finished / "trainer" / "recipe.json").read_text())["data"].split("/")[::-1]
    assert f"12 steps of 8 x 24 tokens of `{name}`" in card, "where it lies is nobody's business"
    assert (finished / "loss.png").exists()
    assert any((finished / "tensorboard").iterdir())
    assert sorted(losses_of(finished)) == list(range(1, 13))
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    told = {"step", "loss", "lr", "tokens_per_s", "active_tokens_per_s", "skipped"}
    assert all(row.keys() == told for row in rows if "loss" in row)
    looks = [row for row in rows if "bound" in row]
    assert [row["step"] for row in looks] == [6, 12]
    assert all(len(row["samples"]) == 2 for row in looks)
    assert all(row["perplexity"] == pytest.approx(math.exp(row["bound"])) for row in looks)
    entropy = unigram_entropy(prepare(tiny_recipe(data)).validation_rows(), len(bundle.tokenizer.get_vocab()))
    assert f"| {looks[-1]['bound']:.4f} ± {looks[-1]['bound_error']:.4f} |" in card
    assert f"| unigram entropy of the same tokens | {entropy:.4f} | {math.exp(entropy):.2f} |" in card
    assert [path.name for path in checkpoints(finished)] == ["step-00000008", "step-00000012"]
    assert hdlm.load(finished / "best").config == bundle.config


def test_stopped_and_resumed_is_never_stopped(data, finished, tmp_path, monkeypatch):
    """A signal after step 5: saved, left cleanly, resumed; weights and every logged loss bit for bit the same."""
    original = loop._Trainer._step

    def step_and_signal(self):
        result = original(self)
        if self.state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    monkeypatch.setattr(loop._Trainer, "_step", step_and_signal)
    result = train(tiny_recipe(data), tmp_path / "run", quiet=True)
    assert (result.finished, result.step) == (False, 5)
    assert resume(tmp_path / "run", quiet=True).finished
    assert_same(tmp_path / "run", finished)


def test_killed_at_any_moment_and_resumed_is_never_killed(data, finished, tmp_path):
    """kill -9 while it runs: the resumed run starts from the last checkpoint and ends in the same weights."""
    out = tmp_path / "run"
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(tiny_recipe(data).to_json()))
    code = (
        "import json, sys; from pathlib import Path; from hdlm.train.loop import train;"
        "from hdlm.config.recipe import Recipe;"
        "import torch; torch.set_num_threads(1);"
        f"train(Recipe.from_json(json.loads(Path({str(recipe)!r}).read_text())), Path({str(out)!r}), quiet=True)"
    )
    run = subprocess.Popen([sys.executable, "-c", code])
    while run.poll() is None and not (out / "trainer" / "step-00000004").exists():
        time.sleep(0.02)
    run.kill()
    run.wait()
    assert not (out / "model.safetensors").exists()
    assert resume(out, quiet=True).finished
    assert_same(out, finished)


def test_micro_batches_make_one_batch(data, tmp_path):
    """Without dropout, whose draws depend on the split, 8 = 4 + 4 = 3 + 3 + 2."""
    plain = dataclasses.replace(tiny_recipe(data).model, dropout=0.0)
    found = []
    for micro in (8, 4, 3):
        out = tmp_path / str(micro)
        train(tiny_recipe(data, model=plain, micro_batch=micro, steps=6), out, quiet=True)
        found.append(losses_of(out))
    for other in found[1:]:
        assert list(other.values()) == pytest.approx(list(found[0].values()), abs=1e-5)


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["ddp", "fsdp2"])
def test_two_processes_are_one(data, tmp_path, sharded):
    """The same losses over 20 steps on one process and on two, and a run saved on two resumes on one."""
    plain = dataclasses.replace(tiny_recipe(data).model, dropout=0.0)
    recipe = tiny_recipe(data, model=plain, steps=20, save_every=10, eval_every=10, eval_rows=9, sharded=sharded)
    train(recipe, tmp_path / "one", quiet=True)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe.to_json()))
    script = tmp_path / "run.py"
    script.write_text(
        "import json, torch\nfrom pathlib import Path\nfrom hdlm.config.recipe import Recipe\n"
        "from hdlm.train.loop import train\ntorch.set_num_threads(1)\n"
        f"train(Recipe.from_json(json.loads(Path({str(path)!r}).read_text())), Path({str(tmp_path / 'two')!r}), "
        "quiet=True, device='cpu')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = losses_of(tmp_path / "one"), losses_of(tmp_path / "two")
    assert list(two.values()) == pytest.approx(list(one.values()), abs=1e-5)
    assert (tmp_path / "two" / "best" / "model.safetensors").exists()
    # Forget the second half, and go on alone.
    for last in (tmp_path / "two" / "trainer" / "step-00000020", tmp_path / "two" / "model.safetensors"):
        last.rename(last.with_name("." + last.name))
    assert resume(tmp_path / "two", quiet=True).finished
    again = losses_of(tmp_path / "two")
    assert list(again.values()) == pytest.approx(list(one.values()), abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"schedules": (MixtureMember("quench"),), "process": ProcessConfig("absorbing"), "loss": LossSettings()},
        {"process": ProcessConfig("epsilon", epsilon=0.1), "loss": LossSettings(beta1=1.0, reweighted=True)},
        {"process": ProcessConfig("absorbing"), "shifted": False, "loss": LossSettings()},
        {"parameterization": "score"},
        {"process": ProcessConfig("uniform"), "model": ModelSettings(layers=1, width=32, heads=2)},
    ],
    ids=["autoregressive", "epsilon", "mdlm", "score", "uniform"],
)
def test_every_kind_of_model_trains(data, tmp_path, changes):
    result = train(tiny_recipe(data, steps=4, eval_every=4, **changes), tmp_path / "run", quiet=True)
    assert result.finished
    assert result.bound.value > 0
    hdlm.load(tmp_path / "run")


def test_a_second_stage_starts_from_the_first(data, finished, tmp_path):
    """Another hyperschedule and alignment of the windows, the same network and tokenizer."""
    recipe = tiny_recipe(data, init_from=str(finished), schedules=(MixtureMember("block", 3),), steps=1)
    job = prepare(recipe)
    first = dict(hdlm.load(finished).model.named_parameters())
    for name, parameter in job.build_model().named_parameters():
        assert torch.equal(parameter, first[name])
    other = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, layers=3))
    with pytest.raises(ValueError, match=r"init_from = .* is not accepted"):
        prepare(other)


def test_a_second_stage_that_has_saved_nothing_starts_from_the_first_again(data, finished, tmp_path, monkeypatch):
    """By the floor that was asked for."""
    recipe = tiny_recipe(data, init_from=str(finished), schedules=(MixtureMember("block", 3),), steps=1)
    first, seen = hdlm.load(finished).model.state_dict(), []

    class Stopped(Stepper):
        def step(self):
            raise KeyboardInterrupt

    def stopped(recipe, model, *arguments, backend):
        seen.append((backend, all(torch.equal(value, first[name]) for name, value in model.state_dict().items())))
        return Stopped(recipe, model, *arguments, backend=backend)

    monkeypatch.setattr(loop, "Stepper", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run", quiet=True, backend="reference")
    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "run", quiet=True)
    assert seen == [("reference", True), (None, True)]


def test_boards_get_every_number_and_text_with_its_step(tmp_path):
    log = Log(tmp_path, Console(quiet=True), is_main=True, first_step=0, wandb=False)
    told = []
    log._board.add_scalar = log._board.add_text = lambda *what: told.append(what)
    log.metrics(7, {"loss": 1.5, "skipped": 2, "samples": ["a", "b"], "name": "x"})
    log.close()
    assert told == [("loss", 1.5, 7), ("skipped", 2, 7), ("samples", "a\n\n---\n\nb", 7)]
    row = {"step": 7, "loss": 1.5, "skipped": 2, "samples": ["a", "b"], "name": "x"}
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [row]


def test_weights_and_biases_get_the_same_numbers(tmp_path, monkeypatch):
    told = []
    run = SimpleNamespace(log=lambda *what, **how: told.append((what, how)), finish=lambda: told.append("finish"))
    fake = SimpleNamespace(init=lambda **how: told.append(how) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = Log(tmp_path, Console(quiet=True), is_main=True, first_step=0, wandb=True)
    log.metrics(7, {"loss": 1.5})
    log.close()
    how = {"project": "hdlm", "dir": str(tmp_path), "resume": "allow"}
    assert told == [how, (({"loss": 1.5},), {"step": 7}), "finish"]


@pytest.mark.parametrize(("first_step", "purged"), [(0, None), (1, 2), (5, 6)])
def test_a_board_forgets_what_comes_again(first_step, purged, tmp_path, monkeypatch):
    """And lies in the run's folder."""
    told = []
    board = SimpleNamespace(SummaryWriter=lambda *what, **how: told.append((what, how)))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    lines = [f'{{"step": {step}, "name": "\u00e9"}}\n'.encode() for step in range(9)]
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0, "name": "\xff"}\n' + b"".join(lines))
    Log(tmp_path, Console(quiet=True), is_main=True, first_step=first_step, wandb=False)
    assert told == [((str(tmp_path / "tensorboard"),), {"purge_step": purged})]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows == [
        {"step": 0, "name": "\ufffd"},
        *({"step": step, "name": "\u00e9"} for step in range(first_step + 1)),
    ]


@pytest.mark.parametrize("line", ['{"step": "3"}', '{"step": 2.5}', "{}", "7", "[1]", '{"step": 3', "[" * 10**5, ""])
def test_a_line_that_names_no_step_is_of_none(line):
    """And comes after all, so that it is dropped."""
    assert _step_of(line) == math.inf
    assert _step_of('{"loss": 1.5, "step": 3}') == 3


def test_shards_are_gathered_into_a_network_of_its_own(monkeypatch):
    """By every process of several; one alone, and copies, are whole."""
    shared, fresh = (torch.nn.Linear(2, 2) for _ in range(2))
    run = SimpleNamespace(state=SimpleNamespace(model=shared), job=SimpleNamespace(build_model=lambda: fresh))
    monkeypatch.setattr(loop, "full_tensor", lambda tensor: 2 * tensor)
    for size, sharded in ((1, True), (2, False), (1, False)):
        run.world, run.recipe = World(0, size, torch.device("cpu")), SimpleNamespace(sharded=sharded)
        run._is_sharded = loop._Trainer._is_sharded.fget(run)
        assert loop._Trainer._unsharded(run) is shared
    run.world, run.recipe = World(1, 2, torch.device("cpu")), SimpleNamespace(sharded=True)
    run._is_sharded = loop._Trainer._is_sharded.fget(run)
    assert loop._Trainer._unsharded(run) is fresh
    assert torch.equal(fresh.weight, 2 * shared.weight)
    assert torch.equal(fresh.bias, 2 * shared.bias)


def test_other_processes_write_nothing(tmp_path):
    log = Log(tmp_path, Console(quiet=True), is_main=False, first_step=0, wandb=True)
    log.metrics(7, {"loss": 1.5})
    log.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("best", "better"), [(None, True), (2.5, True), (2.0, False), (1.5, False)])
@pytest.mark.parametrize("is_main", [True, False])
def test_a_validation_is_of_the_averaged_weights_and_keeps_the_best(best, better, is_main, tmp_path, monkeypatch):
    """One draw of noise a row, the same at every validation."""
    shared = {"draw_error": None, "tokens": 10, "rows": 2, "draws": 1, "seconds": 0.0}
    other = Bound("other", "block 6", 3.0, 0.1, **shared)
    found = Bound("upper", "block 6", 2.0, 0.25, beside=(other,), **shared)
    done, world = [], World(int(not is_main), 2, torch.device("cpu"))
    network = torch.nn.Linear(1, 1)
    state = SimpleNamespace(step=1200, best=best, model=network)
    state.average = SimpleNamespace(swap=lambda model: done.append("swap") if model is network else None)
    job = SimpleNamespace(validation_rows=lambda: "rows", bundle=lambda model: model.training or bundle)
    bundle = SimpleNamespace(save=lambda folder: done.append(folder))
    log = SimpleNamespace(metrics=lambda *what: done.append(what), say=done.append)
    monkeypatch.setattr(loop, "estimate", lambda *what, **how: done.append((what, how)) or found)
    monkeypatch.setattr(loop, "preview", lambda job, model: [" a\n b " * 50])
    run = SimpleNamespace(recipe=SimpleNamespace(micro_batch=5), state=state, job=job, world=world, out=tmp_path)
    run.log, run._unsharded = log, lambda: network
    assert loop._Trainer._validate(run) is found
    samples = [" a\n b " * 50] if is_main else []
    values = {"bound": 2.0, "bound_error": 0.25, "perplexity": math.exp(2), "bound: other": 3.0, "samples": samples}
    assert done == [
        "swap",
        ((bundle, "rows"), {"draws": 1, "seed": 977, "batch_size": 5, "world": world}),
        *([tmp_path / "best"] if better and is_main else []),
        "swap",
        (1200, values),
        f"step 1,200: upper 2.0000 ± 0.2500 nats per token, perplexity 7.4{' (best)' if better else ''}",
        *(["  | " + ("a b " * 50)[:150]] if is_main else []),
    ]
    assert state.best == (2.0 if better else best)
    assert network.training


def test_a_report_says_how_it_goes_and_how_long_it_takes():
    told, optimizer = [], dataclasses.replace(tiny_recipe("x").optimizer, lr=1.0, warmup=200)
    log = SimpleNamespace(metrics=lambda *what: told.append(what), line=told.append)
    state = SimpleNamespace(step=100, updates=98, best=2.0)
    run = SimpleNamespace(recipe=SimpleNamespace(steps=300, optimizer=optimizer), state=state, log=log)
    loop._Trainer._report(run, 1.5, 4000.0, 3000.0, 2.0)
    values = {"loss": 1.5, "lr": 0.5, "tokens_per_s": 4000.0, "active_tokens_per_s": 3000.0, "skipped": 2}
    line = "step 100/300  loss 1.5000  bound 2.000 nats, ppl 7.4  4,000 tokens/s  3,000 active/s  1:40 left"
    assert told == [(100, values), line]
    state.best = None
    loop._Trainer._report(run, 1.5, 4000.0, 3000.0, 2.0)
    assert told[-1] == line.replace("  bound 2.000 nats, ppl 7.4", "")


def test_rates_are_of_the_steps_since_the_last_report(data, tmp_path, monkeypatch):
    """Slots a second over steps a second are slots a step, and the times of all reports are within the run's."""
    seen, slots, report, step = [], [], loop._Trainer._report, Stepper.step
    monkeypatch.setattr(loop._Trainer, "_report", lambda self, *rates: seen.append(rates) or report(self, *rates))
    monkeypatch.setattr(Stepper, "step", lambda self: slots.append(done := step(self)) or done)
    began = time.perf_counter()
    train(tiny_recipe(data, steps=6, log_every=2, eval_every=3), tmp_path / "run", quiet=True)
    took = time.perf_counter() - began
    since = [slots[0:2], slots[3:4], slots[4:6]]  # a validation begins the count anew
    for (_, tokens, active, steps), done in zip(seen, since, strict=True):
        assert tokens / steps == pytest.approx(sum(one.slots for one in done) / len(done))
        assert active / steps == pytest.approx(sum(one.active_tokens for one in done) / len(done))
    assert 0 < sum(len(done) / rates[3] for rates, done in zip(seen, since, strict=True)) < took


def test_a_loss_that_is_no_number_is_skipped_and_ten_end_the_run(data, tmp_path, monkeypatch):
    original = Stepper._update
    bad = {3, *range(6, 30)}

    def update(self, found):
        return original(self, found * float("nan") if self.state.step + 1 in bad else found)

    monkeypatch.setattr(Stepper, "_update", update)
    with pytest.raises(ValueError, match=r"by step 15: 10 steps in a row had no finite loss.*step-00000012"):
        train(tiny_recipe(data, steps=40, eval_every=40), tmp_path / "run", quiet=True)


def test_one_bad_step_changes_nothing_but_the_count(data, tmp_path, monkeypatch):
    original = Stepper._update
    seen = []

    def update(self, found):
        before = self.state.model.head.weight.detach().clone()
        finite = original(self, found + torch.tensor([0, float("nan")]) if self.state.step == 2 else found)
        seen.append(torch.equal(before, self.state.model.head.weight))
        return finite

    monkeypatch.setattr(Stepper, "_update", update)
    train(tiny_recipe(data, steps=5, eval_every=5), tmp_path / "run", quiet=True)
    assert seen == [False, False, True, False, False]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert next(row for row in rows if row["step"] == 5)["skipped"] == 1


def test_learning_rate_warms_up_and_falls():
    settings = dataclasses.replace(tiny_recipe("x").optimizer, lr=1.0, warmup=10, final_share=0.1)
    rates = [learning_rate(settings, step, 110) for step in range(110)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.55)
    assert min(rates[10:]) >= 0.1


def damage_truncate(out):
    path = next(checkpoints(out)[-1].glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-50])


def damage_foreign(out):
    path = out / "trainer" / "recipe.json"
    data = json.loads(path.read_text())
    data["model"]["layers"] = 3
    path.write_text(json.dumps(data))


def damage_field(out):
    path = out / "trainer" / "recipe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "red"}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_truncate, r"shard-00001.*\.safetensors is damaged: it has [\d,]+ bytes, and had"),
        (damage_foreign, "the checkpoint of another network"),
        (damage_field, "unknown field 'colour'"),
        (lambda out: (out / "trainer" / "recipe.json").unlink(), "it holds no run"),
    ],
    ids=["truncated", "foreign", "unknown field", "no recipe"],
)
def test_a_damaged_run_is_one_clear_line(data, tmp_path, damage, message):
    train(tiny_recipe(data, steps=4), tmp_path / "run", quiet=True)
    damage(tmp_path / "run")
    with pytest.raises(ValueError, match=message) as caught:
        resume(tmp_path / "run", quiet=True)
    assert "\n" not in str(caught.value)


def test_quench_in_a_mixture_learns_the_next_token(data, tmp_path):
    members = (MixtureMember("block", 6), MixtureMember("quench"))
    for process in (ProcessConfig("absorbing"), ProcessConfig("epsilon", epsilon=0.1)):
        out = tmp_path / process.kind
        train(tiny_recipe(data, schedules=members, process=process, loss=LossSettings(), steps=6), out, quiet=True)
        assert min(losses_of(out).values()) > 0.5


def test_a_finished_run_is_left_as_it_is(data, tmp_path):
    train(tiny_recipe(data, steps=4), tmp_path / "run", quiet=True)
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert resume(tmp_path / "run", quiet=True).finished
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_changed_data_and_a_second_trainer_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    text = text_folder(tmp_path / "text")
    train(tiny_recipe(text, steps=4), tmp_path / "run", quiet=True)
    with (tmp_path / "run" / "trainer" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is training there"):
            resume(tmp_path / "run", quiet=True)
    text_folder(tmp_path / "text", 150)
    with pytest.raises(ValueError, match="has changed since the run began"):
        resume(tmp_path / "run", quiet=True)


def test_a_torn_line_of_metrics_is_forgotten(data, tmp_path):
    train(tiny_recipe(data, steps=4), tmp_path / "run", quiet=True)
    (tmp_path / "run" / "model.safetensors").unlink()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    assert resume(tmp_path / "run", quiet=True).finished


def test_other_peoples_folders_are_left_alone(data, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ValueError, match="the folder is not empty"):
        train(tiny_recipe(data), tmp_path, quiet=True)


def test_a_run_is_not_overwritten(data, finished):
    with pytest.raises(ValueError, match="it holds a run; go on with --resume"):
        train(tiny_recipe(data), finished, quiet=True)


def test_folders_are_checked_before_the_first_step(data, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ValueError, match=r"run is not accepted: nothing can be written in .*Not a directory"):
        train(tiny_recipe(data), blocked / "run", quiet=True)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(ValueError, match="MiB free: this run needs"):
        train(tiny_recipe(data), tmp_path / "run", quiet=True)
