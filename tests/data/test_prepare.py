"""Preparing: the same bytes by any number of processes and after any interruption, and refusals that change nothing."""

import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.crashes import count, die
from support.prepared import make, short_shards, write_text

from hdlm.data import prepare as preparing
from hdlm.data import workers
from hdlm.data.prepare import command_for, prepare
from hdlm.data.shard import Shard, Work
from hdlm.data.tokenizer import CorpusTokenizer, read_tokenizer
from hdlm.data.workers import Told
from hdlm.files import entries


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def inside(monkeypatch):
    """Shards made in this process, one after the other: a crash of it is a crash of all."""

    def encode(works, task, *, workers):
        tokenizer = CorpusTokenizer(read_tokenizer(task.tokenizer_file), task.eos_id, task.eos_id)
        for work in works:
            yield Told(shard=making(task, tokenizer, work.file, work.chunks, lambda *done: None))

    making = workers._make
    monkeypatch.setattr(preparing, "encode", encode)


def test_the_bytes_are_the_same_by_any_number_of_workers(tmp_path, monkeypatch):
    """And what is kept to go on is gone in the end."""
    folders = [make(tmp_path, monkeypatch, name=f"tokens-{number}", workers=number).folder for number in (1, 3)]
    one, three = map(contents, folders)
    assert one == three
    assert {"index.json", "tokenizer.json", "train-00005.bin", "valid-00000.bin", "test-00000.bin"} < set(one)
    assert not any(name.startswith((".", "making")) for name in one)


KILLED = """
import os, signal, sys
from pathlib import Path

from hdlm.data import shard
from hdlm.data.prepare import prepare

shard.SHARD, shard._BATCH = 400, 133
data, out, shards = sys.argv[1:]

def tell(progress):
    if len(list(Path(out, "making").glob("*.bin.json"))) >= int(shards):
        os.killpg(0, signal.SIGKILL)

prepare(data, out, tokenizer="bytes", workers=2, tell=tell)
"""


def test_killed_all_at_once_it_goes_on_with_what_was_whole(tmp_path, monkeypatch):
    whole = contents(make(tmp_path, monkeypatch, name="whole").folder)
    out, script = tmp_path / "tokens", tmp_path / "run.py"
    script.write_text(KILLED)
    before = {}
    for shards in (1, 4):
        run = subprocess.run(
            [sys.executable, script, tmp_path / "text.jsonl", out, str(shards)], start_new_session=True
        )
        assert run.returncode == -signal.SIGKILL
        records = [json.loads(path.read_text()) for path in (out / "making").glob("*.bin.json")]
        assert len(records) >= shards
        made = {record["file"]: (out / record["file"]).stat() for record in records}
        assert all(made[name].st_ino == before[name].st_ino for name in before), "a whole shard was made again"
        before = made
        shards_there = {path.name for path in out.glob("*.bin")}
        assert len(shards_there - set(made)) <= 2, "more than the shards in work are without a record"
    assert contents(make(tmp_path, monkeypatch).folder) == whole
    assert all((out / name).stat().st_ino == found.st_ino for name, found in before.items())


@pytest.mark.usefixtures("inside")
def test_dead_at_any_write_it_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # takes long
    data, out = write_text(tmp_path / "text.jsonl", 30), tmp_path / "tokens"
    short_shards(monkeypatch, 1000)

    def run():
        return prepare(data, out, tokenizer="bytes", workers=1)

    points = count(monkeypatch, out, run, parts=2)
    whole = contents(out)
    assert points > 40
    for point in range(points):
        shutil.rmtree(out, ignore_errors=True)
        die(monkeypatch, out, run, point, parts=2)
        assert not (out / "index.json").exists() or contents_of_files(out).items() >= whole.items()
        run()
        assert contents(out) == whole, point


def contents_of_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def crew(monkeypatch):
    """The processes that are begun."""
    found, popen = [], subprocess.Popen
    monkeypatch.setattr(
        workers.subprocess, "Popen", lambda *what, **how: found.append(popen(*what, **how)) or found[-1]
    )
    return found


def test_a_worker_that_is_gone_is_told_and_its_fellows_end(tmp_path, monkeypatch, crew):
    def tell(progress):
        if progress.tokens:
            crew[0].kill()

    with pytest.raises(ChildProcessError, match=r"has ended \(exit code -9\); finished shards are kept") as caught:
        make(tmp_path, monkeypatch, workers=2, tell=tell)
    assert caught.value.filename == str(tmp_path / "tokens")
    assert len(crew) == 2
    assert all(process.returncode is not None for process in crew)
    assert not list((tmp_path / "tokens").rglob(".aside-*"))
    whole = contents(make(tmp_path, monkeypatch, name="whole").folder)
    assert contents(make(tmp_path, monkeypatch).folder) == whole


def test_a_worker_is_one_core_and_ends_with_the_pipe(tmp_path, crew):
    (tmp_path / "tokenizer.json").write_text(preparing.make_tokenizer("bytes", []).tokenizer.to_str())
    (tmp_path / "making").mkdir()
    worker = workers._Worker(workers.Task(tmp_path, tmp_path / "tokenizer.json", 256, "<u2"))
    worker.send(Work("train", 0, [("ab", True)]))
    assert worker.receive() == Told(tokens=3, documents=1, characters=3)
    assert worker.receive().shard.tokens == 3
    assert np.fromfile(tmp_path / "train-00000.bin", "<u2").tolist()[-1] == 256
    [process] = crew
    environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    assert b"TOKENIZERS_PARALLELISM=false" in environment
    os.kill(process.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    worker.connection.close()
    assert process.wait(10) == 0


def test_what_a_worker_refuses_is_refused_here(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"the text holds '.': this tokenizer knows only"):
        make(tmp_path, monkeypatch, tokenizer="chars", workers=2)
    assert not (tmp_path / "tokens").exists()


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(("error", "kept"), [(ValueError, 0), (ConnectionError, 2)])
def test_a_refused_text_leaves_nothing_and_a_lost_one_what_is_done(error, kept, tmp_path, monkeypatch):
    """Mended text is another text; a hub that broke off says the same again."""
    encode = preparing.encode

    def breaks_off(works, task, *, workers):
        yield from itertools.islice(encode(works, task, workers=workers), 2)
        raise error("no more")

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "encode", breaks_off)
        with pytest.raises(error, match="no more"):
            make(tmp_path, monkeypatch)
    assert len(list((tmp_path / "tokens").glob("*.bin"))) == kept
    assert (tmp_path / "tokens").exists() == bool(kept)
    if kept:
        with monkeypatch.context() as patch:
            patch.setattr(preparing, "encode", breaks_off)
            with pytest.raises(error, match="no more"):
                make(tmp_path, monkeypatch)
        assert len(list((tmp_path / "tokens").glob("*.bin"))) == 4
    make(tmp_path, monkeypatch)


def test_workers_load_no_torch():
    code = "import sys, hdlm.data.workers; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("inside")
def test_a_tokenizer_is_trained_once(tmp_path, monkeypatch):
    class PowerCutError(Exception):
        pass

    def crash(works, task, *, workers):
        raise PowerCutError
        yield

    trained, real = [], preparing.make_tokenizer
    monkeypatch.setattr(preparing, "make_tokenizer", lambda word, texts: trained.append(word) or real(word, texts))
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "encode", crash)
        with pytest.raises(PowerCutError):
            make(tmp_path, monkeypatch, tokenizer="bpe-300")
    kept = (tmp_path / "tokens" / "tokenizer.json").read_bytes()
    made = make(tmp_path, monkeypatch, tokenizer="bpe-300")
    assert trained == ["bpe-300", str(tmp_path / "tokens" / "tokenizer.json")]
    assert (tmp_path / "tokens" / "tokenizer.json").read_bytes() == kept
    assert made.vocab_size == made.tokenizer.vocab_size == 300
    with pytest.raises(ValueError, match="by the tokenizer 'bpe-300', not 'bpe-301'"):
        make(tmp_path, monkeypatch, tokenizer="bpe-301")


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_something_else_is_refused_and_stays(finished, tmp_path, monkeypatch):
    def crash(works, task, *, workers):
        yield from ()
        raise KeyboardInterrupt

    if finished:
        make(tmp_path, monkeypatch)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(preparing, "encode", crash)
            with pytest.raises(KeyboardInterrupt):
                make(tmp_path, monkeypatch)
    out, data = tmp_path / "tokens", tmp_path / "text.jsonl"
    before = contents_of_files(out)
    latin = tmp_path / "latin.txt"
    latin.write_text("abc " * 100)
    prepare(str(latin), tmp_path / "other", tokenizer="bytes", workers=1)
    refused = [
        ({"tokenizer": "chars"}, str(data), "by the tokenizer 'bytes', not 'chars'"),
        ({"tokenizer": "bytes"}, str(latin), rf"tokens of the text '{data}', not '{latin}'"),
        ({"tokenizer": "bytes", "encoding": "latin-1"}, str(data), "tokens of the encoding 'utf-8', not 'iso8859-1'"),
    ]
    for how, text, message in refused:
        with pytest.raises(ValueError, match=message):
            prepare(text, out, **how)
        assert contents_of_files(out) == before
    write_text(data, 61)
    with pytest.raises(ValueError, match=rf"tokens of the text '{data}'; its content has changed since"):
        prepare(str(data), out, tokenizer="bytes")
    assert contents_of_files(out) == before


@pytest.mark.usefixtures("inside")
def test_what_is_whole_is_not_made_again_but_looked_at(tmp_path, monkeypatch):
    made, again = (make(tmp_path, monkeypatch) for _ in range(2))
    assert again.to_json() == made.to_json()
    assert entries(made.folder) == {"index.json", "tokenizer.json", *(path.name for path in made.folder.glob("*.bin"))}
    (made.folder / "train-00001.bin").unlink()
    with pytest.raises(ValueError, match=r"train-00001\.bin is missing"):
        make(tmp_path, monkeypatch)
    assert not (made.folder / "train-00001.bin").exists()


REFUSED = {
    "a URL": (lambda f: (f("t.txt"), "s3://bucket/tokens", {}), "prepare in a folder here, and copy that there"),
    "a folder of its own": (lambda f: (f("t.txt"), f("mine/notes.txt").parent, {}), "the folder is not empty"),
    "inside of the text": (lambda f: (f("a/t.txt").parent, f("a/t.txt").parent / "out", {}), "it is inside of data ="),
    "a matrix": (lambda f: (f("rows.npy"), "out", {}), "is a matrix of tokens, which needs no preparing"),
    "no text": (lambda f: ("nowhere", "out", {}), "data = 'nowhere' is not accepted"),
    "no workers": (lambda f: (f("t.txt"), "out", {"workers": 0}), "workers = 0 is not accepted"),
    "no such tokenizer": (lambda f: (f("t.txt"), "out", {"tokenizer": "./none.json"}), "there is no such file"),
    "a wrong size": (lambda f: (f("t.txt"), "out", {"tokenizer": "bpe-3"}), r"must be in 300\.\.200000"),
    "a file": (lambda f: (f("t.txt"), f("out.txt"), {}), "it is a file, and a folder is to be written"),
    "prepared data": (lambda f: (f("p/making/plan.json").parents[1], "out", {}), "it is prepared already"),
    "no encoding": (lambda f: (f("t.txt"), "out", {"encoding": "no"}), "encoding = 'no' is not accepted"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_refusals_come_first_and_leave_nothing(how, tmp_path, monkeypatch):
    def file(name):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("some words " * 50)
        return tmp_path / name

    monkeypatch.chdir(tmp_path)
    arguments, message = REFUSED[how]
    data, out, settings = arguments(file)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message) as caught:
        prepare(str(data), out, **({"tokenizer": "bytes"} | settings))
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_second_process_is_refused(tmp_path, monkeypatch):
    (tmp_path / "tokens" / "making").mkdir(parents=True)
    with (tmp_path / "tokens" / "making" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with pytest.raises(ValueError, match="another process is preparing there"):
            make(tmp_path, monkeypatch)
    make(tmp_path, monkeypatch)


def test_it_says_how_far_it_is(tmp_path, monkeypatch):
    told = []
    made = make(tmp_path, monkeypatch, tell=told.append)
    steps = [each for each in told if each.doing == "tokenising"]
    tokens = sum(made.total(split, "tokens") for split in made.splits)
    assert (steps[-1].tokens, steps[-1].documents) == (tokens, 60)
    assert [each.tokens for each in steps] == sorted(each.tokens for each in steps)
    assert steps[-1].share == pytest.approx(1, abs=1e-9)
    assert 0 < steps[0].share < steps[-1].share
    assert steps[-1].seconds_left == pytest.approx(0, abs=1e-6)
    assert steps[0].seconds_left > 0
    assert steps[-1].tokens_per_second > 0


def test_the_rest_is_judged_by_what_is_new(monkeypatch):
    """A third was there; of the rest half takes ten seconds."""
    now, told = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = preparing._Pace({"a": Shard("a", 50, 5, 0, 0, "")}, told.append)
    pace.read(Work("train", 0, None, 300), 0.3)
    now[0] = 200.0
    pace.read(Work("train", 1, [], 600), 0.9)
    now[0] = 210.0
    pace.add(Told(tokens=40, documents=4, characters=300))
    assert told[-1].tokens == 90
    assert told[-1].documents == 9
    assert told[-1].share == pytest.approx(0.6)
    assert told[-1].tokens_per_second == pytest.approx(4)
    assert told[-1].seconds_left == pytest.approx(10 * 0.4 / 0.3)


def test_a_command_is_one_to_be_typed():
    assert command_for("my text.txt", "bytes", "utf-8") == (
        "hdlm data prepare 'my text.txt' --tokenizer bytes --out DIR"
    )
    assert command_for("a.txt", "bytes", "latin-1").endswith(" --encoding latin-1 --out DIR")


def test_a_folder_that_was_there_stays_when_nothing_was_done(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", str(tmp_path / "nothing"))
    text = tmp_path / "text.txt"
    text.write_text("a few words " * 50)
    there, new = tmp_path / "there", tmp_path / "new" / "below"
    there.mkdir()
    for out in (there, new):
        with pytest.raises(OSError, match="nothing"):
            prepare(str(text), out, tokenizer="bytes", workers=1)
    assert list(there.iterdir()) == []
    assert not new.parent.exists()


@pytest.mark.parametrize("name", ["data", "out"])
def test_names_with_zero_bytes_are_refused_as_such(name, tmp_path):
    (tmp_path / "text.txt").write_text("a few words")
    places = {"data": str(tmp_path / "text.txt"), "out": str(tmp_path / "new")} | {name: "a\0b"}
    with pytest.raises(ValueError, match=r"'a\\x00b' is not accepted"):
        prepare(**places, tokenizer="bytes")
