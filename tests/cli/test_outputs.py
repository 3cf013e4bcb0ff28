"""What commands write: refused before any work begins, or told after the result, and never in the way of it."""

import errno
import io
import json
import os
import resource
import stat
import sys
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from hdlm import bundle as bundles
from hdlm import files
from hdlm.bench import roofline
from hdlm.cli import bench, demo
from hdlm.cli import evaluate as evaluate_command
from hdlm.cli.main import main
from hdlm.errors import Outputs, UnwrittenError
from hdlm.evaluate.report import write_report
from hdlm.train import loop

FULL = OSError(errno.ENOSPC, "No space left on device")
ENTROPY = ["--metrics", "entropy", "--samples", "1", "--length", "4"]


def folder_with(path, **named):
    path.mkdir()
    for name, text in named.items():
        (path / name.replace("_", ".")).write_text(text)


TAKEN = {
    "a file": lambda path: path.write_text("mine"),
    "a folder": lambda path: folder_with(path),
    "below a file": lambda path: path.parent.write_text("mine"),
    "a link into nowhere": lambda path: path.symlink_to("nowhere/at/all"),
    "a report of one's own": lambda path: folder_with(path, report_md="mine"),
    "results of something else": lambda path: folder_with(path, results_json='{"about": "me", "cells": []}'),
    "results that are broken": lambda path: folder_with(path, results_json="{"),
    "a replay of one's own": lambda path: folder_with(path, replay_html="mine", notes_txt="mine"),
}
REFUSED = [
    (["sample", "MODEL", "--out"], "a folder"),
    (["sample", "MODEL", "--out"], "below a file"),
    (["sample", "MODEL", "--out"], "a link into nowhere"),
    (["sample", "MODEL", "--replay"], "a folder"),
    (["sample", "MODEL", "--replay"], "below a file"),
    (["evaluate", "MODEL", *ENTROPY, "--out"], "a file"),
    (["evaluate", "MODEL", *ENTROPY, "--out"], "below a file"),
    (["evaluate", "MODEL", *ENTROPY, "--out"], "a report of one's own"),
    (["evaluate", "MODEL", *ENTROPY, "--out"], "results of something else"),
    (["evaluate", "MODEL", *ENTROPY, "--out"], "results that are broken"),
    (["plot", "layout", "--out"], "a folder"),
    (["plot", "hyperschedule", "--out"], "below a file"),
    (["bench", "train", "--out"], "a folder"),
    (["bench", "sample", "--out"], "below a file"),
    (["demo", "--model", "MODEL", "--out"], "a file"),
    (["demo", "--model", "MODEL", "--out"], "a replay of one's own"),
    (["train", "--out"], "a file"),
    (["train", "--out"], "below a file"),
]
SUFFIX = {"--replay": ".html", "layout": ".png", "hyperschedule": ".png"}


def seen(folder):
    """All that a folder holds, with what is in the files."""
    return {path: path.read_text() if path.is_file() else path.is_symlink() for path in folder.rglob("*")}


@pytest.mark.parametrize(("words", "taken"), REFUSED, ids=lambda value: value if isinstance(value, str) else value[0])
def test_a_path_that_will_not_do_is_refused_before_any_work(folder, tmp_path, monkeypatch, capsys, words, taken):
    path = tmp_path / "deep" / f"out{next((suffix for word, suffix in SUFFIX.items() if word in words), '')}"
    if taken != "below a file":
        path.parent.mkdir()
    TAKEN[taken](path)
    before = seen(tmp_path)

    def work(*_, **__):
        pytest.fail("work has begun")

    for place, name in ((bundles, "load"), (roofline, "measure_ceiling"), (loop, "prepare")):
        monkeypatch.setattr(place, name, work)
    monkeypatch.setattr("hdlm.viz.layout.build_pictures", work)
    monkeypatch.setattr("hdlm.viz.hyperschedule.build_catalogue", work)
    assert main([folder if word == "MODEL" else word for word in [*words, str(path)]]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert str(path) in said.err
    assert seen(tmp_path) == before


def test_both_outputs_to_one_file_under_two_names(folder, tmp_path, capsys):
    (tmp_path / "link.html").symlink_to("page.html")
    words = ["sample", folder, "--out", str(tmp_path / "page.html"), "--replay", str(tmp_path / "link.html")]
    assert main(words) == 2
    assert "they must differ" in capsys.readouterr().err


@pytest.fixture
def full_disk(monkeypatch):
    def fail(*_):
        raise FULL

    monkeypatch.setattr(files, "_settle", fail)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_samples_are_shown_though_they_cannot_be_written(folder, tmp_path, capsys, as_json):
    out, page = tmp_path / "s.jsonl", tmp_path / "r.html"
    words = ["sample", folder, "--prompt", "abc", "--length", "5", "--out", str(out), "--replay", str(page), *as_json]
    assert main(words) == 1
    said = capsys.readouterr()
    assert "abc" in said.out
    assert not as_json or len(json.loads(said.out)["samples"]) == 1
    last = said.err.splitlines()[-1]
    assert last == f"hdlm: not written: {out}: No space left on device; {page}: No space left on device"
    assert "wrote" not in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_an_evaluation_is_shown_though_it_cannot_be_written(folder, tmp_path, capsys, as_json):
    out = tmp_path / "report"
    assert main(["evaluate", folder, *ENTROPY, "--out", str(out), *as_json]) == 1
    said = capsys.readouterr()
    assert "entropy" in said.out
    assert not as_json or len(json.loads(said.out)["cells"]) == 1
    wanted = f"hdlm: not written: {out / 'results.json'}: No space left on device; {out}: No space left on device"
    assert said.err.splitlines()[-1] == wanted
    assert main(["evaluate", folder, *ENTROPY, "--out", str(out)]) == 1, "the folder is still ours"


@pytest.mark.usefixtures("full_disk")
def test_a_demo_ends_in_a_line_though_its_replay_cannot_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hdlm.folders.SHIPPED", tmp_path / "none")
    for place in ("hyperschedule", "layout"):
        monkeypatch.setattr(f"hdlm.viz.{place}.draw", lambda _: Figure())
    assert main(["demo", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert "▒" in said.out
    assert said.err.startswith(f"hdlm: not written: {tmp_path / 'out' / demo.PICTURES[0]}: No space left on device; ")
    assert said.err.count("\n") == 1


def test_a_path_that_is_written_at_last_is_no_failure(tmp_path):
    outputs = Outputs()
    with outputs.writing(tmp_path):
        raise FULL
    with pytest.raises(UnwrittenError, match="No space left") as caught:
        outputs.tell([1])
    assert caught.value.result == [1]
    with outputs.writing(tmp_path):
        pass
    outputs.tell()


@pytest.fixture
def cases(monkeypatch):
    """Two cases of `hdlm bench`, timed at once."""
    found = [SimpleNamespace(label="a"), SimpleNamespace(label="b")]
    monkeypatch.setattr(bench, "_sampling", lambda args, cuda: (found, lambda case, **_: case))
    monkeypatch.setattr(roofline, "measure_ceiling", lambda device: SimpleNamespace(operations=1.0, bandwidth=1.0))
    return found


@pytest.mark.usefixtures("cases", "full_disk")
def test_figures_are_shown_though_they_cannot_be_written(tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert main(["bench", "sample", "--device", "cpu", "--json", "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert [row["label"] for row in json.loads(said.out)["rows"]] == ["a", "b"]
    assert said.err == f"hdlm: not written: {out}: No space left on device\n"


@pytest.mark.usefixtures("cases")
def test_a_pipe_gets_the_figures_once_and_no_picture_beside_it(tmp_path, monkeypatch, capsys):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr(bench, "_print", lambda args, *_, **__: print(bench._picture(args)))
    assert main(["bench", "sample", "--device", "cpu", "--out", str(path)]) == 0
    assert [row["label"] for row in json.loads(os.read(reader, 2**16))["rows"]] == ["a", "b"]
    os.close(reader)
    assert capsys.readouterr().out == "None\n"


def test_a_picture_does_not_replace_its_figures(tmp_path, capsys):
    assert main(["bench", "growth", "--out", str(tmp_path / "figures.png")]) == 2
    assert "the picture beside it will have that name" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*trained on.*")
def test_all_files_have_the_mode_of_the_umask(folder, tmp_path, capsys):
    before = os.umask(0o022)
    try:
        bundles.load(folder).save(tmp_path / "model")
        places = ["--out", str(tmp_path / "s.jsonl"), "--replay", str(tmp_path / "r.html")]
        assert main(["sample", folder, "--length", "4", *places]) == 0
        assert main(["evaluate", folder, *ENTROPY, "--out", str(tmp_path / "report")]) == 0
        assert main(["plot", "layout", "--out", str(tmp_path / "p.svg")]) == 0
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes.pop("model") == modes.pop("report") == 0o755
    assert len(modes) == 10
    assert set(modes.values()) == {0o644}, modes


@pytest.mark.parametrize("words", [["--json"], ["--json", "--length", "60"], ["--help"]], ids=" ".join)
def test_a_reader_who_has_left_is_no_error(monkeypatch, capsys, words):
    source, target = os.pipe()
    os.close(source)
    with open(target, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        assert main(["plot", "hyperschedule", *words]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("length", ["9", "60"], ids=["at the end", "on the way"])
def test_a_standard_output_that_takes_no_more_is_a_line(tmp_path, monkeypatch, capsys, length):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with (tmp_path / "out").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            assert main(["plot", "hyperschedule", "--json", "--length", length]) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err == "hdlm: standard output: File too large\n"


def test_closed_streams_lead_nowhere(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["plot", "hyperschedule", "--json"]) == 0
    assert main(["plot", "hyperschedule", "--rate", "0"]) == 2
    for name in ("stdin", "stdout", "stderr"):
        assert getattr(sys, name).name == os.devnull
        getattr(sys, name).close()


def test_a_terminal_without_the_letters_gets_them_spelled_out(monkeypatch):
    found = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(found, encoding="ascii"))
    assert main(["plot", "hyperschedule", "--terminal"]) == 0
    assert rb"\u2592" in found.getvalue()


TOO_MUCH = [
    ["sample", "MODEL", "--length", "9" * 21],
    ["sample", "MODEL", "--length", "9" * 12],
    ["sample", "MODEL", "--num-samples", str(10**12)],
    ["sample", "MODEL", "--num-samples", str(10**30)],
    ["sample", "MODEL", "--prompt", "a[[gap:2]]b", "--num-samples", str(10**12)],
    ["evaluate", "MODEL", "--metrics", "entropy", "--samples", str(10**12)],
    ["evaluate", "MODEL", "--metrics", "entropy", "--length", str(10**13)],
    ["plot", "hyperschedule", "--length", str(10**12)],
    ["plot", "hyperschedule", "--length", "40", "--rate", "1e-12"],
    ["plot", "layout", "--length", str(10**9)],
]


@pytest.mark.parametrize("words", TOO_MUCH, ids=lambda words: " ".join(words))
def test_more_than_the_machine_holds_is_refused_with_the_figure(folder, tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert main([folder if word == "MODEL" else word for word in words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "GiB of memory, and this machine has" in said.err or "must be an integer in 1.." in said.err


def test_what_fits_is_written(folder, capsys, monkeypatch):
    """The line between the two is the machine's memory."""
    pages = 16 * 2 * 6  # 16 bytes a token, 2 samples of 6
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": pages}.__getitem__)
    assert main(["sample", folder, "--length", "6", "--num-samples", "2"]) == 0
    assert main(["sample", folder, "--length", "7", "--num-samples", "2"]) == 2


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA out of memory."),
    ],
)
def test_memory_that_runs_out_is_a_line(folder, monkeypatch, capsys, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(bundles, "load", fail)
    assert main(["sample", folder]) == 2
    assert capsys.readouterr().err.startswith("hdlm: not enough memory: ")
    monkeypatch.setattr(bundles, "load", lambda *_, **__: {}["a bug"])
    with pytest.raises(KeyError):
        main(["sample", folder])


def test_a_seed_of_our_own_is_short_and_any_is_shown_as_it_is(folder, tmp_path, capsys):
    assert all(bundles.load(folder).generate(length=1).seed < 2**32 for _ in range(3))
    large = 2**63 - 1
    assert main(["sample", folder, "--length", "2", "--seed", str(large), "--replay", str(tmp_path / "r.html")]) == 0
    assert f'"seed":"{large}"' in (tmp_path / "r.html").read_text()


def test_what_is_no_number_is_null_and_is_shown_as_nothing(folder, tmp_path, capsys):
    text = tmp_path / "t.txt"
    text.write_text("abc " * 30)
    words = ["evaluate", folder, "--data", str(text), "--metrics", "bound", "--draws", "1"]
    assert main([*words, "--json"]) == 0
    [cell] = json.loads(capsys.readouterr().out)["cells"]
    for found in (cell["result"], *cell["result"]["beside"]):
        for name in ("value", "error", "perplexity", "bits_per_byte"):
            found[name] = None
    cell["result"]["positions"] = [None] * len(cell["result"]["positions"])
    source = ("nats_per_byte", "above_per_byte", "above_per_byte_error", "above_per_token")
    cell["result"]["source"] = dict.fromkeys(source, None) | {"nats_per_byte": 1.0}
    evaluate_command._print([cell])
    assert "epsilon-hybrid" in capsys.readouterr().out
    write_report(tmp_path / "out", {"model": "m", "summary": "s", "command": "c"}, [cell])
    assert "epsilon-hybrid" in (tmp_path / "out" / "report.md").read_text()
