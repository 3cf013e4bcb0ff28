"""What a right answer looks like: strict JSON, no NaN, as many texts as asked for, of tokens that the model has."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.bundles import LETTERS

_ODD = re.compile(r"\ufffd|\bnan\b", re.IGNORECASE)


def strict_json(text: str) -> Any:
    """The value of a JSON text, which may not hold NaN or infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"the JSON holds {word}")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise AssertionError(f"what was printed is not JSON ({error}): {text[:80]!r}") from None


def values_in(data: Any) -> Iterator[Any]:
    """All values inside a JSON value that hold no others."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from values_in(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from values_in(value)
    else:
        yield data


def check_clean(text: str) -> None:
    """Nothing in a text says that something was no number, no character or no token."""
    odd = _ODD.search(text)
    assert odd is None, f"the output holds {odd.group()!r}: {text[max(0, odd.start() - 30) : odd.end() + 30]!r}"


def check_numbers(data: Any) -> None:
    """All numbers inside are finite, and all texts clean."""
    for value in values_in(data):
        assert not isinstance(value, float) or math.isfinite(value), f"the result holds {value}"
        if isinstance(value, str):
            check_clean(value)


def check_samples(
    rows: list[dict[str, Any]],
    *,
    count: int | None,
    length: int | None,
    vocab: int = len(LETTERS),
    letters: bool = True,
) -> None:
    """Samples as `Samples.to_json` gives them: `count` of them, each with `length` new tokens unless it ended.

    `letters`: the tokenizer is that of the templates.
    """
    assert count is None or len(rows) == count, f"{len(rows)} samples instead of {count}"
    for row in rows:
        tokens = row["tokens"]
        assert all(isinstance(token, int) and 0 <= token < vocab for token in tokens), f"tokens {tokens}"
        new = len(tokens) - row["prompt_tokens"]
        assert length is None or new == length or row["ended"], f"{new} new tokens instead of {length}"
        if letters and vocab == len(LETTERS) and "text" in row:
            assert row["text"] == "".join(LETTERS[token] for token in tokens), f"text {row['text']!r} of {tokens}"


def _check_there(path: Path) -> None:
    """A file was written; one that took the place of a file that nobody may read has its mode."""
    assert path.is_file(), f"{str(path)!r} was not written"
    path.chmod(0o644)


def check_page(path: Path) -> None:
    """A page that was written is whole."""
    _check_there(path)
    assert path.read_text().rstrip().endswith("</html>"), "a page that does not end"


def check_lines(path: Path) -> list[Any]:
    """The values of a file of JSON lines, all of them whole."""
    _check_there(path)
    return [strict_json(line) for line in path.read_text().splitlines()]


def check_picture(path: Path) -> None:
    """A picture that was written is whole, as far as its kind can tell."""
    _check_there(path)
    data = path.read_bytes()
    assert data, "an empty picture"
    if path.suffix.lower() == ".png":
        assert data[:8] == b"\x89PNG\r\n\x1a\n", "not a PNG"
        assert data[-8:-4] == b"IEND", "a PNG that does not end"
    elif path.suffix.lower() == ".svg":
        assert data.rstrip().endswith(b"</svg>"), "an SVG that does not end"


def check_prepared(path: Path) -> None:
    """Prepared data that was written is whole."""
    from hdlm.data.prepared import read_prepared, verify

    assert verify(read_prepared(path)) > 0


def check_model(path: Path) -> None:
    """A model folder that was written can be read and used."""
    import hdlm

    bundle = hdlm.load(path)
    check_samples(bundle.generate(length=3, seed=0).to_json(), count=1, length=3, vocab=bundle.process.vocab_size)
