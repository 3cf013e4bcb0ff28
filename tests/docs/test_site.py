"""What the site is made of: navigation, pages drawn from the code, plain Markdown, and the check of what came out."""

import json
import re
from pathlib import Path

import pytest
from support.blocks import ROOT

import hdlm
from hdlm.cli.main import build_parser

DOCS = ROOT / "docs"


def test_folders_and_the_rest_find_their_place():
    import navigation

    nav = ["index.md", {"Guide": ["guide/a.md", "deep/"]}, {"More": ["*"]}, {"Commands": "cli/"}]
    pages = ["index.md", "guide/a.md", "guide/b.md", "deep/x.md", "new.md", "cli/one.md", "cli/two.md"]
    assert navigation.complete(nav, pages) == [
        "index.md",
        {"Guide": ["guide/a.md", "deep/x.md"]},
        {"More": ["guide/b.md", "new.md"]},
        {"Commands": ["cli/one.md", "cli/two.md"]},
    ]


def test_every_command_and_flag_has_its_place():
    import reference

    pages = reference.command_pages()
    commands = reference._subcommands(build_parser())
    assert {f"reference/cli/{name}.md" for name in commands} | {"reference/cli/index.md"} == set(pages)
    for name, (parser, _) in commands.items():
        for part in (parser, *(inner for inner, _ in reference._subcommands(parser).values())):
            flags = [flag for action in part._actions for flag in action.option_strings if flag.startswith("--")]
            assert [flag for flag in flags if flag not in pages[f"reference/cli/{name}.md"]] == []
    helps = [text for page in pages.values() for text in re.findall(r"```text\n(.*?)```", page, re.DOTALL)]
    lines = [line for text in helps for line in text.splitlines() if not line.startswith("usage: ")]
    assert max(map(len, lines)) <= reference.WIDTH


def test_every_room_and_file_has_its_place():
    import reference

    named = set(re.findall(r"^::: (\S+)", "".join(reference.room_pages(ROOT / "src").values()), re.MULTILINE))
    files = (ROOT / "src" / "hdlm").rglob("*.py")
    there = {".".join(file.relative_to(ROOT / "src").with_suffix("").parts) for file in files}
    assert named == {name for name in there if not name.split(".")[-1].startswith("__")}


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: hdlm\.([\w.]+)", page, re.MULTILINE)
    assert {name.split(".")[-1] for name in named} == set(dir(hdlm)) - {"__version__"}


def test_docstrings_are_spelled_out_for_those_who_read_markdown():
    pytest.importorskip("griffe", reason="no griffe here: make setup-docs")
    import plain

    text = plain.spelled_out("hdlm.theory.entries.Block")
    assert text.startswith("## `hdlm.theory.entries.Block(length, width, rate=1)`\n\nBlocks of `width` positions")
    assert "`training_windows(offset=None)`" not in text  # without words of its own
    assert "### `generate(prompt=None, *, num_samples=1" in plain.spelled_out("hdlm.bundle.Bundle")


def test_llms_txt_has_a_line_a_page(tmp_path):
    pytest.importorskip("griffe", reason="no griffe here: make setup-docs")
    import plain

    page = "# A page\n\n<!-- slow: x -->\n```\ncode\n```\n\nWhat it *says*, with [a link](b.md). More."
    other = plain.PlainPage("Block", "Reference", "# Block\n\n::: hdlm.theory.entries.Block\n    options: {a: 1}\n")
    plain.write(tmp_path, {"a.md": plain.PlainPage("A page", "Guide", page), "r/b.md": other}, "About.")
    lines = (tmp_path / "llms.txt").read_text().splitlines()
    assert "- [A page](a.md): What it *says*, with a link." in lines
    assert lines[0] == "# hdlm"
    assert "## Reference" in lines
    assert "Blocks of `width` positions" in (tmp_path / "r" / "b.md").read_text()


def test_pages_of_the_root_are_moved_with_their_links():
    pytest.importorskip("griffe", reason="no griffe here: make setup-docs")
    import plain

    text = "[a](docs/theory.md#x) [b](CHANGELOG.md) [c](LICENSE) [d](https://e.org)"
    moved = plain.moved(text, {"CHANGELOG.md": "project/changelog.md"})
    assert moved == "[a](../theory.md#x) [b](changelog.md) c [d](https://e.org)"


WHOLE = '<a href="b.html#here">b</a> <img src="c.png"> <a href="https://elsewhere.org">e</a>'


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        (WHOLE, None),
        ('<a href="gone.html">x</a>', "gone.html"),
        ('<a href="b.html#there">x</a>', "#there"),
        ('<iframe src="gone.html"></iframe>', "gone.html"),
        ('<script src="https://elsewhere.org/a.js"></script>', "https://elsewhere.org/a.js"),
        ('<link rel="stylesheet" href="//elsewhere.org/a.css">', "//elsewhere.org/a.css"),
    ],
)
def test_a_site_that_is_not_whole_is_seen(page, fault, tmp_path):
    import checks_of_site

    (tmp_path / "a.html").write_text(page)
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1>')
    (tmp_path / "c.png").write_bytes(b"")
    found = checks_of_site.faults(tmp_path)
    assert found == [] if fault is None else fault in found[0]


def test_a_replay_of_the_documentation_is_embedded_and_read():
    import replays

    page = '```\nhdlm sample stories --prompt "Tom" --ar --length 4 --seed 1 --replay tom.html\n```\n'
    written = replays.pages(page)["tom.html"]
    assert '<iframe class="replay" src="tom.html"' in replays.embedded(page)
    lane = replays.lane(written)
    text = hdlm.load("stories").generate("Tom", kind="quench", length=4, seed=1).text[0]
    assert "".join(lane["pieces"]) == text
    assert lane["when"] == [0] * (len(lane["when"]) - 4) + [1, 2, 3, 4]


def test_a_draft_stands_when_it_is_verified():
    import replays

    flags = "--speculate --draft 3 --ahead every --length 12 --seed 1"
    page = f'```\nhdlm sample stories --prompt "Tom" {flags} --replay drafts.html\n```\n'
    lane = replays.lane(replays.pages(page)["drafts.html"])
    assert lane["when"] == sorted(lane["when"])  # from the left to the right, unlike drafts
    assert max(lane["when"]) == lane["steps"] < 12


def test_a_command_that_fails_stops_the_build():
    import replays

    with pytest.raises(ValueError, match="exit code 2"):
        replays.pages("```\nhdlm sample nowhere/at/all --replay x.html\n```\n")


def test_the_page_on_choosing_has_the_measured_figures():
    rows = json.loads((ROOT / "benchmarks" / "results" / "stories" / "frontier.json").read_text())
    page = (DOCS / "guide" / "choose.md").read_text(encoding="utf-8")
    for row in rows:
        perplexity = float(f"{row['perplexity']:.3g}")
        speed = f"| {row['way']} | {row['tokens_per_call']:.2f} | {row['tokens_per_s']:.0f} |"
        assert f"{speed} {perplexity:g} (to {100 * row['error']:.0f}%) |" in page


def test_nothing_of_the_site_is_loaded_from_elsewhere():
    """In what is ours; of what is built, `make docs` sees to it."""
    for file in (*(DOCS / "theme").iterdir(), *DOCS.rglob("*.html")):
        assert not re.search(r"(src|href)=.https?:|@import|url\(.?https?:", file.read_text(encoding="utf-8")), Path(
            file
        )
