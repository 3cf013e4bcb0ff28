"""How runs end before they are finished, and what is seen of them on the way."""

import errno
import hashlib
import json
import math
import os
import resource
import signal
import sys

import pytest
from safetensors.torch import load_file, save_file
from support.runs import text_folder, tiny_recipe

from hdlm.cli.main import main
from hdlm.config import recipes
from hdlm.data.corpus import open_corpus
from hdlm.train import log, loop
from hdlm.train.log import Console
from hdlm.train.loop import resume, train
from hdlm.train.setup import prepare
from hdlm.train.state import checkpoints
from hdlm.weights import read_metadata

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _light(tmp_path, monkeypatch):
    """Runs that neither validate nor draw: their end is a file."""
    monkeypatch.setenv("HDLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loop._Trainer, "_validate", lambda self: None)
    monkeypatch.setattr(loop, "finish", lambda job, model, out, bound, log: (out / "model.safetensors").touch())


@pytest.fixture
def data(tmp_path):
    return text_folder(tmp_path / "text")


def at_step(number, act, monkeypatch):
    """Let `act` happen once, after a step."""
    original, left = loop._Trainer._step, [act]

    def step(self):
        done = original(self)
        if self.state.step == number and left:
            left.pop()()
        return done

    monkeypatch.setattr(loop._Trainer, "_step", step)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_a_signal_ended_is_no_success(number, code, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipes, "get", lambda name: tiny_recipe(data))
    at_step(3, lambda: os.kill(os.getpid(), number), monkeypatch)
    assert main(["train", "--out", str(tmp_path / "run"), "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert (said["finished"], said["step"]) == (False, 3)
    assert main(["train", "--resume", str(tmp_path / "run"), "--json"]) == 0


@pytest.fixture
def largest_file():
    """Sets the size beyond which the system lets no file grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refused(call, *, path, capsys, last):
    """A call of the command line that ends with one line: the path, why, what is safe, how to go on."""
    assert call() == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"hdlm: {path}: File too large; ")
    assert last in said
    return said


def test_a_full_disk_leaves_the_last_checkpoint(data, tmp_path, monkeypatch, capsys, largest_file):
    """Checkpoints are written every 4 steps; from step 5 on the system takes no file of more than 50 kB."""
    out = tmp_path / "run"
    monkeypatch.setattr(recipes, "get", lambda name: tiny_recipe(data))
    at_step(5, lambda: largest_file(50_000), monkeypatch)
    said = refused(
        lambda: main(["train", "--out", str(out)]),
        path=out / "trainer" / "step-00000008",
        capsys=capsys,
        last=f"the last good checkpoint is {out / 'trainer' / 'step-00000004'}; ",
    )
    assert said.endswith(f"go on with: hdlm train --resume {out}")
    assert [path.name for path in checkpoints(out)] == ["step-00000004"]
    assert not [path for path in (out / "trainer").iterdir() if path.name.startswith(".")]
    largest_file(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    assert resume(out, quiet=True).finished


def test_metrics_that_cannot_be_written_end_the_run_as_well(data, tmp_path, monkeypatch, capsys, largest_file):
    out = tmp_path / "run"
    monkeypatch.setattr(recipes, "get", lambda name: tiny_recipe(data, steps=200, save_every=200))
    at_step(5, lambda: largest_file((out / "metrics.jsonl").stat().st_size + 10), monkeypatch)
    path, last = out / "metrics.jsonl", "no checkpoint had been saved; "
    refused(lambda: main(["train", "--out", str(out)]), path=path, capsys=capsys, last=last)


def test_a_full_cache_is_named(data, tmp_path, largest_file):
    largest_file(1000)
    with pytest.raises(OSError, match="set HDLM_CACHE to a folder that has some") as caught:
        prepare(tiny_recipe(data))
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(tmp_path / "cache" / "tokens")


def test_what_a_run_that_never_began_left_is_no_run(data, tmp_path, monkeypatch):
    """A start that fails after the folder was made can be tried again there."""
    monkeypatch.setattr(loop, "Batches", None)
    with pytest.raises(TypeError):
        train(tiny_recipe(data), tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "trainer" / "lock").exists()
    monkeypatch.undo()
    monkeypatch.setattr(loop._Trainer, "run", lambda self: "began")
    assert train(tiny_recipe(data), tmp_path / "run", quiet=True) == "began"
    (tmp_path / "theirs" / "trainer").mkdir(parents=True)
    (tmp_path / "theirs" / "trainer" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="the folder is not empty"):
        train(tiny_recipe(data), tmp_path / "theirs", quiet=True)


class Clock:
    """Time that a test moves."""

    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(log, "time", clock)
    return clock


def test_without_a_terminal_progress_is_a_line_now_and_then(clock, capsys):
    console = Console(quiet=False)
    for second in range(100):
        console.line(f"{second} seconds")
        clock.now += 1
    assert capsys.readouterr().err.splitlines() == [f"{2 + 15 * number} seconds" for number in range(7)]
    console.say("validation")
    console.line("the next step")
    console.line("and another")
    assert capsys.readouterr().err == "validation\nthe next step\n"


def test_on_a_terminal_the_line_is_rewritten(clock, capsys, monkeypatch):
    console = Console(quiet=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2)
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((12, 24)))
    clock.now += 5
    for word in ("one", "too soon"):
        console.line(word)
    clock.now += 1
    console.line("two which is long")
    console.say("done")
    assert capsys.readouterr().err == "\rone        \rtwo which i\ndone\n"


def test_who_is_quiet_says_nothing(clock, capsys):
    console = Console(quiet=True)
    clock.now += 60
    console.line("a line")
    console.say("another")
    console.close_line()
    assert capsys.readouterr() == ("", "")


def test_a_run_without_a_terminal_shows_its_steps_but_not_each(data, tmp_path, capsys):
    train(tiny_recipe(data), tmp_path / "loud")
    said = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in said if line.startswith("step ")] == ["step 1/12"]
    train(tiny_recipe(data), tmp_path / "quiet", quiet=True)
    assert capsys.readouterr() == ("", "")


HOW = ("tokenising", "checking")


def test_tokenizer_and_tokens_say_how_far_they_are(data):
    told = []
    prepare(tiny_recipe(data, tokenizer="bpe-300"), tell=told.append)
    words = {line.split(":")[0] for line in told}
    assert words == {"training the tokenizer", *(f"{how} {split}" for how in HOW for split in ("train", "valid"))}
    for split in ("train", "valid"):
        assert f"tokenising {split}: {len(list(open_corpus(data).documents(split)))} documents" in told
    read = [line for line in told if line.startswith("training")]
    assert read == [f"training the tokenizer: {number} documents" for number in range(1, len(read) + 1)]


@pytest.fixture
def begun(data, tmp_path, monkeypatch):
    """A run that was stopped after its third step."""
    with monkeypatch.context() as patch:
        at_step(3, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
        assert not train(tiny_recipe(data), tmp_path / "run", quiet=True).finished
    return tmp_path / "run"


def files_of(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("change", [{"step": "3"}, {"updates": None}, {"updates": 2.5}, {"best": "low"}, {"step": -1}])
def test_numbers_of_a_checkpoint_are_numbers(change, begun):
    path = checkpoints(begun)[-1] / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    before = files_of(begun)
    with pytest.raises(ValueError, match=r"state\.json is damaged: it must hold the numbers step, updates, best"):
        resume(begun, quiet=True)
    assert files_of(begun) == before


def rewritten(folder, change):
    """A checkpoint whose record fits what has become of its tensors."""
    path, record = next(folder.glob("*.safetensors")), json.loads((folder / "state.json").read_text())
    tensors, told = load_file(path), read_metadata(path)
    change(tensors)
    save_file(tensors, path, told)
    data = path.read_bytes()
    record["shards"][path.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "state.json").write_text(json.dumps(record))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["weights", "average", "exp_avg_sq"])
def test_tensors_of_a_checkpoint_are_finite(part, value, begun):
    def change(tensors):
        tensors[f"{part}/embedding"][1, 2] = value

    rewritten(checkpoints(begun)[-1], change)
    before = files_of(begun)
    with pytest.raises(ValueError, match=rf"is damaged: {part}/embedding holds {value}"):
        resume(begun, quiet=True)
    assert files_of(begun) == before


@pytest.mark.parametrize("name", ["trainer/lock", "metrics.jsonl"])
def test_a_pipe_in_a_run_is_not_waited_for(name, begun):
    (begun / name).unlink()
    os.mkfifo(begun / name)
    with pytest.raises(ValueError, match=f"{name} is not accepted: it is no regular file"):
        resume(begun, quiet=True)


def test_a_folder_in_the_place_of_the_model_is_noticed_before_training(begun):
    (begun / "config.json").mkdir()
    before = files_of(begun)
    with pytest.raises(ValueError, match=r"config\.json is not accepted: it is a folder"):
        resume(begun, quiet=True)
    assert files_of(begun) == before


def test_lines_of_metrics_that_are_none_are_dropped(begun):
    with (begun / "metrics.jsonl").open("a") as file:
        file.write('{"step": "x"}\n{"step": [1]}\n7\n{"step": 2, "lo')
    assert resume(begun, quiet=True).finished
    rows = [json.loads(line) for line in (begun / "metrics.jsonl").read_text().splitlines()]
    assert all(isinstance(row["step"], int) for row in rows)


@pytest.mark.parametrize("how", ["no wandb", "no room"])
def test_a_refusal_leaves_no_folder(how, data, tmp_path, monkeypatch):
    if how == "no wandb":
        monkeypatch.setitem(sys.modules, "wandb", None)
    else:
        monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(ValueError, match=r"--wandb needs|MiB free"):
        train(tiny_recipe(data), tmp_path / "run", quiet=True, wandb=how == "no wandb")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("recipe", "out"), [("laptop", "run"), (None, "run"), (recipes.get("laptop"), 7)])
def test_what_is_no_recipe_or_no_path_is_refused(recipe, out):
    with pytest.raises(ValueError, match=r"(recipe|out) = .* is not accepted: it must be a"):
        train(recipe, out)


def test_a_tokenizer_that_no_model_could_have_is_refused_first(begun):
    path = begun / "trainer" / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["vocab"]["R"] = 256
    path.write_text(json.dumps(data))
    before = files_of(begun)
    with pytest.raises(ValueError, match="the tokenizer has no token with the id"):
        resume(begun, quiet=True)
    assert files_of(begun) == before
