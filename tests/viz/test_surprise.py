"""Text coloured by surprise: one scale, everything escaped, nothing lost."""

import math
from html.parser import HTMLParser

import pytest
from rich.console import Console

from hdlm.viz.surprise import LIMITS, coloured, labels, legend, most_surprising, spans, write_page

PIECES = ["<b>", " &", "", "", "😀", "\"'", "\n", "<!--TABLE-->", "\x00"]
NATS = [0.1, 1.0, 1.0, 2.0, 0.5, 5.0, 9.0, 20.0, -0.5]


class Reader(HTMLParser):
    """The text, class and title of every span, and the names of all tags."""

    def __init__(self):
        super().__init__()
        self.spans, self.tags, self.inside = [], [], False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "span":
            self.inside = True
            self.spans.append({**dict(attrs), "text": ""})

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "span"

    def handle_data(self, data):
        if self.inside:
            self.spans[-1]["text"] += data


def found():
    return spans(PIECES, [-value for value in NATS])


def test_tokens_that_are_no_whole_character_go_with_the_last():
    assert [(one.position, one.tokens, one.text) for one in found()][2] == (2, 3, "😀")
    assert "".join(one.text for one in found()) == "".join(PIECES)
    assert sum(one.nats for one in found()) == pytest.approx(sum(NATS))
    assert [one.level for one in found()] == [0, 1, 2, 3, 4, 4, 0]
    assert spans(["a", ""], [-1.0, -2.0])[-1].nats == 2.0


def test_the_scale_rises():
    assert list(LIMITS) == sorted(LIMITS)
    assert [one.level for one in spans("abc", [-limit for limit in LIMITS[:3]])] == [0, 1, 2]
    assert labels(exact=True) == ["≤0.7 (1 in 2)", "≤2.3 (1 in 10)", "≤4.6 (1 in 100)", "≤6.9 (1 in 1000)", "more"]
    assert labels(exact=False)[0] == "≤0.7"
    assert [one.text for one in most_surprising(found(), 2)] == ["<!--TABLE-->", "\n"]


def test_the_page_is_escaped_and_needs_no_script(tmp_path):
    path = tmp_path / "page.html"
    write_page(path, found(), title="a <model>", facts={"x & y": "<1>"}, exact=True, top=3)
    page = Reader()
    page.feed(path.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert [one["text"] for one in page.spans] == ["<b>", " &", "😀", "\"'", "⏎\n", "<!--TABLE-->", "␀"]
    assert [one["class"] for one in page.spans] == ["s0", "s1", "s2", "s3", "s4", "s4", "s0"]
    assert page.spans[0]["title"] == "'<b>': 0.10 nats, 90.5%"
    assert page.spans[2]["title"] == f"'😀': 3.50 nats, {100 * math.exp(-3.5):.3g}%, 3 tokens"
    assert page.spans[3]["title"].startswith(repr("\"'"))
    text = path.read_text(encoding="utf-8")
    assert "<title>a &lt;model&gt;</title>" in text
    assert "<dt>x &amp; y</dt><dd>&lt;1&gt;</dd>" in text
    assert page.tags.count("tr") == 1 + 3
    assert "prefers-color-scheme: dark" in text
    assert "<!--" not in text


def test_where_nats_are_a_share_no_probability_is_told(tmp_path):
    write_page(tmp_path / "page.html", found(), title="", facts={}, exact=False, top=3)
    page = Reader()
    page.feed((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.spans[0]["title"] == "'<b>': 0.10 nats"
    assert "probability" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_legend_fits_a_terminal():
    assert len(legend(exact=True).plain) <= 80
    console = Console(width=80, force_terminal=True, color_system="truecolor", no_color=True)
    with console.capture() as shown:
        console.print(coloured(found()))
    assert "\x1b[4m" in shown.get(), "what is surprising is underlined where there is no colour"
