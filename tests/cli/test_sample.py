"""`hdlm sample` as a person meets it."""

import json
import re
from dataclasses import replace

import pytest

from hdlm.bundle import Bundle, load
from hdlm.cli.main import main
from hdlm.config.sampling import DrawSettings
from hdlm.config.schedule import ScheduleConfig


def test_text_goes_out_and_statistics_aside(folder, capsys):
    assert main(["sample", folder, "--prompt", "abc", "--num-samples", "2", "--length", "9", "--seed", "4"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "--- 1 of 2 ---"
    assert lines[1].startswith("abc")
    assert len(lines[1]) == 12
    last = said.err.splitlines()[-1]
    assert re.match(
        r"18 tokens in .* s, .* tokens/s; \d+ network calls \(\d+ spared\); .* slots, cache hits \d+%", last
    )


def test_json_is_all_there_is(folder, capsys, tmp_path):
    out = tmp_path / "deep" / "samples.jsonl"
    words = ["sample", folder, "--num-samples", "3", "--length", "8", "--seed", "1", "--json", "--out", str(out)]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["samples"]) == 3
    assert found["stats"]["tokens"] == 24
    assert [json.loads(line) for line in out.read_text().splitlines()] == found["samples"]
    assert main([*words[:-4], "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == found["samples"]


@pytest.mark.parametrize(
    ("how", "used"),
    [
        ([], {"sampler": "certain", "threshold": 0.3, "temperature": 0.5}),
        (["--sampler", "acs", "--temperature", "2", "--top-k", "3"], {"sampler": "acs", "eta": 0.05, "top_k": 3}),
        (["--ar", "--sampler", "acs"], {"sampler": "ar", "eta": None, "top_p": 0.9}),
        (["--flat", "--rate", "3", "--threshold", "0.6"], {"sampler": "certain", "threshold": 0.6}),
        (["--slide", "4", "--precision", "float32", "--ignore-eos"], {"precision": "float32", "stop_at_eos": False}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*trained on.*")
def test_what_a_text_was_drawn_with_draws_it_again(folder, tmp_path, capsys, how, used):
    """The model's own defaults included: a model without them writes the same."""
    plain = load(folder)
    own = DrawSettings(temperature=0.5, top_p=0.9, sampler="certain", threshold=0.3)
    model = str(Bundle(plain.model, replace(plain.config, sampling=own), plain.tokenizer).save(tmp_path / "m"))
    out = tmp_path / "samples.jsonl"
    asked = ["--prompt", "ab", "--num-samples", "2", "--length", "9", "--seed", "3"]
    assert main(["sample", model, *asked, *how, "--json", "--out", str(out)]) == 0
    rows = json.loads(capsys.readouterr().out)["samples"]
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    settings = rows[0]["settings"]
    assert used.items() <= settings.items()
    schedule = ScheduleConfig(**settings.pop("hyperschedule")).build()
    assert (schedule.length, schedule.steps) == (9, settings.pop("steps"))
    again = plain.generate("ab", num_samples=2, seed=rows[0]["seed"], hyperschedule=schedule, **settings)
    assert again.tokens == [row["tokens"] for row in rows]


@pytest.mark.parametrize("how", [[], ["--flat"]])
def test_a_filled_gap_says_its_steps(folder, capsys, how):
    assert main(["sample", folder, "--prompt", "abc[[gap:5]]def", "--rate", "2.5", "--json", *how]) == 0
    used = json.loads(capsys.readouterr().out)["samples"][0]["settings"]
    assert used["hyperschedule"] == {"kind": "flat", "length": 5, "width": None, "rate": 2.5}
    assert used["steps"] == 2


@pytest.mark.parametrize("how", [["--flat"], ["--ar"], ["--block", "4", "--rate", "2"]])
@pytest.mark.parametrize("sampler", [[], ["--sampler", "acs", "--eta", "0.5"]])
def test_every_schedule_and_sampler(folder, capsys, how, sampler):
    assert main(["sample", folder, "--length", "12", *how, *sampler, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["samples"][0]["text"]) == 12


@pytest.mark.parametrize("how", [["--prompt", "ab", "--length", "12"], ["--prompt", "ab[[gap:3]]c"], ["--ar"]])
def test_either_backend_writes_the_same(folder, capsys, how):
    texts = []
    for backend in ([], ["--backend", "reference"]):
        assert main(["sample", folder, *how, "--seed", "1", *backend]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_gaps_are_filled(folder, capsys):
    assert main(["sample", folder, "--prompt", "abc[[gap:5]]def", "--seed", "0"]) == 0
    assert re.fullmatch(r"abc[a-j ]{5}def\n", capsys.readouterr().out)


def test_counting_needs_no_sampling(folder, capsys):
    assert main(["sample", folder, "--length", "8", "--rate", "2", "--count", "--num-samples", "2"]) == 0
    text = capsys.readouterr().out
    assert "network calls" in text
    assert "paper formula" in text
    assert main(["sample", folder, "--length", "8", "--rate", "2", "--count", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["calls"] == 4
    assert found["slots_cached"] == 5 + 5 + 9 + 5
    assert found["slots_uncached"] == 5 + 5 + 9 + 9


def test_watching_through_a_pipe(folder, capsys):
    assert main(["sample", folder, "--prompt", "ab", "--length", "16", "--watch", "--seed", "0"]) == 0
    shown = capsys.readouterr().out
    assert "step 1/16" in shown
    assert "step 16/16" in shown
    assert "░" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("step ") <= 10


@pytest.mark.parametrize(
    ("how", "named"),
    [
        (["--block", "8"], "--block 8"),
        (["--ar"], "--ar"),
        (["--length", "3", "--ar"], "--length 3 or --ar"),
        (["--prompt", "b"], "other prompts"),
    ],
)
def test_what_does_not_go_with_gaps_is_named(folder, capsys, how, named):
    assert main(["sample", folder, "--prompt", "a[[gap:2]]", *how]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hdlm: a prompt with gaps is not accepted with {named}: ")
    assert said.count("\n") == 1


BAD = {
    "no model": ["sample", "nowhere"],
    "unknown sampler": ["sample", "MODEL", "--sampler", "magic"],
    "eta too large": ["sample", "MODEL", "--sampler", "acs", "--eta", "2"],
    "eta without use": ["sample", "MODEL", "--eta", "0.1"],
    "sampler that does not fit": ["sample", "MODEL", "--sampler", "tau-leaping"],
    "prompt longer than a flat context": ["sample", "MODEL", "--flat", "--length", "8", "--prompt", "a" * 30],
    "a gap too far from the end": ["sample", "MODEL", "--prompt", "a[[gap:3]]" + "b" * 40],
    "unknown characters": ["sample", "MODEL", "--prompt", "XYZ"],
    "two schedules": ["sample", "MODEL", "--flat", "--ar"],
    "no rate": ["sample", "MODEL", "--rate", "0"],
    "replay of another kind": ["sample", "MODEL", "--replay", "out.txt"],
    "watch and json": ["sample", "MODEL", "--watch", "--json"],
    "gap and length": ["sample", "MODEL", "--prompt", "a[[gap:2]]", "--length", "3"],
    "device": ["sample", "MODEL", "--device", "abacus"],
    "precision": ["sample", "MODEL", "--precision", "float16"],
    "backend": ["sample", "MODEL", "--backend", "slow"],
    "no rate for a gap": ["sample", "MODEL", "--prompt", "a[[gap:2]]", "--rate", "0"],
    "a gap beyond all bounds": ["sample", "MODEL", "--prompt", "a[[gap:99999999999]]"],
    "a folder as a file": ["sample", "MODEL", "--out", "."],
    "nowhere to write": ["sample", "MODEL", "--out", "/proc/nope/x.jsonl"],
    "both to one file": ["sample", "MODEL", "--out", "x.html", "--replay", "x.html"],
    "width of slide": ["sample", "MODEL", "--slide", "0"],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(folder, capsys, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main([folder if word == "MODEL" else word for word in BAD[case]])
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("hdlm")
    assert not list(tmp_path.iterdir())
