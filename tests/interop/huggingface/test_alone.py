"""Exported folders in a process that cannot import hdlm: the same logits, the same greedy text, pipelines and chat."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.exported import exported

import hdlm
from hdlm.cli.main import build_parser

pytest.importorskip("transformers")
ALONE = Path(__file__).with_name("alone.py")
PAGE = (Path(__file__).parents[3] / "docs" / "huggingface.md").read_text(encoding="utf-8")
FOLDER = "my-stories"
PROMPTS = ["Tom had a", "One day, a little girl named Lily went to the park"]
GAP = "Tom had a{}. He was sad."
TINY = ["adaLN, weighted", "tied, drafts", "no MASK"]
TEMPLATE = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}assistant:"
CHAT = [{"role": "user", "content": "Hello"}]


def blocks_of(page):
    """Its Python."""
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What a process alone makes of stories and of tiny bundles."""
    place = tmp_path_factory.mktemp("alone")
    stories = hdlm.load("stories")
    stories.chat_template = TEMPLATE
    hdlm.export(stories, place / FOLDER)
    card = (place / FOLDER / "README.md").read_text().replace("path/to/this/folder", FOLDER)
    code = [block for block in blocks_of(PAGE) + blocks_of(card) if "import hdlm" not in block]
    gap = GAP.format("<|mask|>" * 4)
    jobs = [{"folder": FOLDER, "tokens": [[0, 909, 381, 259, 5]], "prompts": PROMPTS, "gap": gap}]
    jobs[0] |= {"chat": CHAT, "code": code}
    for number, name in enumerate(TINY):
        hdlm.export(exported(name), place / str(number))
        jobs.append({"folder": str(number), "tokens": [[3, 1, 4, 1, 5], [3, 9, 2, 6, 5]]})
    (place / "jobs.json").write_text(json.dumps(jobs))
    quiet = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(place / "modules"), "HF_HOME": str(place / "home")}
    command = [sys.executable, "-I", str(ALONE), "jobs.json", "answers.json"]
    done = subprocess.run(command, cwd=place, env=os.environ | quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((place / "answers.json").read_text())


def test_stories_writes_what_it_writes_here(answers):
    found, bundle = answers[0], hdlm.load("stories")
    logits = torch.tensor(found["logits"])
    wanted = bundle.logits(torch.tensor([[909, 381, 259, 5]]))
    torch.testing.assert_close(logits[:, 1:], wanted, rtol=0, atol=1e-5)
    how = {"length": 24, "temperature": 0}
    assert found["ar"] == bundle.generate(PROMPTS, kind="quench", **how).text
    assert found["pipeline"] == found["ar"]
    blocks = bundle.generate(PROMPTS, kind="block", width=16, sampler="certain", **how).text
    assert found["block"] == blocks
    assert found["blocks"] == blocks[0]
    assert found["gap"] == bundle.infill(GAP.format("[[gap:4]]"), sampler="certain", temperature=0).text
    assert found["drawn"].startswith(PROMPTS[0])
    assert len(found["drawn"]) > len(PROMPTS[0])


def test_special_tokens_and_conversations_are_there(answers):
    assert answers[0]["special"] == [0, 0, 0, 2047]
    assert answers[0]["chat"] == "user: Hello\nassistant:"


@pytest.mark.parametrize("number", range(len(TINY)))
def test_tiny_networks_give_the_same_logits_and_text(answers, number):
    found, bundle = answers[1 + number], exported(TINY[number])
    tokens = torch.tensor([[1, 4, 1, 5], [9, 2, 6, 5]])
    torch.testing.assert_close(
        torch.tensor(found["logits"], dtype=torch.float64)[:, 1:], bundle.logits(tokens), rtol=0, atol=1e-9
    )
    samples = bundle.generate(tokens, kind="quench", length=8, temperature=0)
    for row, wanted in zip(found["ids"], samples.tokens, strict=True):
        assert row[1 : 1 + len(wanted)] == wanted


def test_the_page_and_the_card_do_what_they_say(answers, tmp_path, monkeypatch):
    """A comment below a `print` of the page is what it prints; of hdlm's own blocks, the page's writes that folder."""
    found = re.findall(r"^print\(.*\n# (.+)$", PAGE, re.MULTILINE)
    said = answers[0]["said"]
    assert len(found) == 3
    assert said[:3] == found
    assert len(said) == 5
    assert all(line.startswith("Once upon a time") for line in said[3:])
    monkeypatch.chdir(tmp_path)
    own = [block for block in blocks_of(PAGE) if "import hdlm" in block]
    assert len(own) == 1
    exec(compile(own[0], "huggingface.md", "exec"), {})
    assert (tmp_path / FOLDER / "config.json").exists()


def test_commands_of_the_page_parse_and_keywords_are_those_of_generate():
    commands = re.findall(r"^hdlm [^#\n]+", PAGE, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        build_parser().parse_args(shlex.split(command)[1:])
    source = (Path(hdlm.__file__).parent / "interop" / "huggingface" / "modeling_hdlm.py").read_text()
    keywords = set(re.findall(r"^        (hdlm_\w+):", source, re.MULTILINE))
    assert keywords == set(re.findall(r"hdlm_\w+", re.search(r"\| keyword.*?\n\n", PAGE, re.DOTALL)[0]))
