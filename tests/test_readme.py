"""The README: links lead somewhere, the first example prints what it says. Its blocks: tests/docs/test_blocks.py."""

import re

from support.blocks import ROOT, blocks

README = ROOT / "README.md"


def test_the_first_example_prints_what_it_says(capsys):
    first = next(block for block in blocks(README) if block.language == "python")
    exec(compile(first.text, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("1024 16\n")


def test_pictures_and_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README.read_text(encoding="utf-8"))
    assert len(links) > 20
    assert not [link for link in links if not (ROOT / link).exists()]
