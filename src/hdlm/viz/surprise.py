"""A text coloured by how surprising each of its tokens is: in a terminal, and as a page of its own.

One scale from expected to surprising, lighter to darker (in the dark: darker to lighter), to be read in grey too; the
page says numbers on hover and needs no script. Knows pieces of text and their log-probabilities, no model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path

from rich.text import Text

from hdlm.files import written_aside

LIMITS = tuple(math.log(odds) for odds in (2, 10, 100, 1000))  # nats; a token as likely as one in so many
_STYLES = (
    "default",
    "black on #feedde",
    "black on #fdbe85",
    "underline black on #fd8d3c",
    "bold underline white on #a63603",
)
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421, 10: "⏎\n"}


@dataclass(frozen=True)
class Span:
    """Part of a text that whole tokens stand for, from token `position` on, and their surprise in nats."""

    position: int
    tokens: int
    text: str
    nats: float

    @property
    def level(self) -> int:
        """Its place on the scale, 0 the least surprising."""
        return sum(self.nats > limit for limit in LIMITS)

    def words(self, *, exact: bool) -> str:
        """What hovering tells; `exact`: nats are those of a probability."""
        chance = f", {probability(self.nats)}" if exact else ""
        several = f", {self.tokens} tokens" if self.tokens > 1 else ""
        return f"{self.text!r}: {self.nats:.2f} nats{chance}{several}"


def spans(pieces: Sequence[str], logprobs: Sequence[float]) -> list[Span]:
    """A text's spans; tokens that are no whole character go with the one that completes it."""
    found, nats, first = [], 0.0, 0
    for position, (piece, logprob) in enumerate(zip(pieces, logprobs, strict=True)):
        nats -= logprob
        if piece or position == len(pieces) - 1:
            found.append(Span(first, position + 1 - first, piece, nats))
            nats, first = 0.0, position + 1
    return found


def most_surprising(found: Sequence[Span], count: int) -> list[Span]:
    """Those with the most nats, the most surprising first."""
    return sorted(found, key=lambda span: -span.nats)[:count]


def probability(nats: float) -> str:
    """The probability that so many nats stand for, in per cent."""
    return f"{100 * math.exp(-nats):.3g}%"


def labels(*, exact: bool) -> list[str]:
    """What the steps of the scale mean: nats and, where they are those of a probability, that."""
    return [f"≤{limit:.1f}" + (f" (1 in {math.exp(limit):.0f})" if exact else "") for limit in LIMITS] + ["more"]


def coloured(found: Sequence[Span]) -> Text:
    """The text for a terminal."""
    return Text.assemble(*((_visible(span.text), _STYLES[span.level]) for span in found))


def legend(*, exact: bool) -> Text:
    """The scale for a terminal."""
    return Text.assemble(
        ("nats: ", "dim"),
        *((f" {label} ", style) for label, style in zip(labels(exact=exact), _STYLES, strict=True)),
    )


def write_page(
    path: str | Path, found: Sequence[Span], *, title: str, facts: Mapping[str, str], exact: bool, top: int
) -> None:
    """Write the page; `facts` stand above the text, and a table of the `top` most surprising spans below."""
    page = resources.files("hdlm.viz").joinpath("surprise.html").read_text(encoding="utf-8")
    heads = ("token", "text", "nats", *(("probability",) if exact else ()))
    rows = [_cells(heads, "th")]
    for span in most_surprising(found, top):
        chance = (probability(span.nats),) if exact else ()
        rows.append(_cells((str(span.position), repr(span.text), f"{span.nats:.2f}", *chance), "td"))
    # What is put in is escaped, so that none of it can be another place's mark.
    parts = {
        "TITLE": escape(title),
        "FACTS": "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(fact)}</dd></div>" for name, fact in facts.items()),
        "TEXT": "".join(_span(span, exact=exact) for span in found),
        "LEGEND": "surprise in nats:"
        + "".join(f'<i class="s{n}">{escape(label)}</i>' for n, label in enumerate(labels(exact=exact))),
        "TABLE": "".join(rows),
    }
    for name, part in parts.items():
        page = page.replace(f"<!--{name}-->", part)
    with written_aside(path) as aside:
        aside.write_text(page, encoding="utf-8")


def _span(span: Span, *, exact: bool) -> str:
    words = escape(_visible(span.words(exact=exact)), quote=True)
    return f'<span class="s{span.level}" title="{words}">{escape(_visible(span.text))}</span>'


def _cells(words: Sequence[str], kind: str) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(word)}</{kind}>" for word in words) + "</tr>"


def _visible(text: str) -> str:
    """A text whose line ends can be seen, and whose control characters are signs."""
    return text.translate(_CONTROLS)
