"""What a comparison found: rows and paired differences as numbers, as tables, as report.md and as one picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdlm.evaluate.figure import bound_name
from hdlm.evaluate.forest import draw_forest
from hdlm.evaluate.paired import SEEN, Difference, Measure
from hdlm.evaluate.pieces import Pieces
from hdlm.evaluate.report import block, code, markdown_table, plain
from hdlm.files import json_text, written_aside

Cell = tuple[str, ...]  # a value or a word, its error, and words on it, as far as there are such

# Columns of each part's table: what the rows hold, and digits behind the point.
_COLUMNS = {
    "text": {"nats_per_byte": 4, "bits_per_byte": 4, "nats_per_token": 3, "above_source": 4},
    "samples": {"gen_ppl": 1, "entropy": 3, "tokens_per_second": 0, "calls_per_token": 3},
}
_HEADS = {
    "nats_per_byte": "nats/byte",
    "bits_per_byte": "bits/byte",
    "nats_per_token": "nats/token",
    "above_source": "above source",
    "gen_ppl": "gen. ppl",
    "tokens_per_second": "tokens/s",
    "calls_per_token": "calls/token",
}
_COMPARED = {
    "text": {"nats_per_byte": "difference"},
    "samples": {"judge_nats": "difference of log gen. ppl", "entropy": "difference of entropy"},
}
_MAIN = {"text": "nats_per_byte", "samples": "judge_nats"}  # by which measure the best is known


@dataclass(frozen=True)
class Comparison:
    """Models in the order given, each compared with the first.

    `rows`: one a model, its numbers with their errors, under "text" and "samples". `measures`: by name, of which each
    gives paired differences of any two models; the first is what `best` goes by. `notes`: what must be known to read
    the numbers.
    """

    models: list[str]
    rows: list[dict[str, Any]]
    measures: dict[str, Measure]
    notes: list[str]
    pieces: dict[str, Any] | None = None

    @classmethod
    def of(
        cls,
        models: list[str],
        pieces: Pieces | None,
        scored: Sequence[dict[str, Any]],
        drawn: Sequence[dict[str, Any]],
        *,
        one_tokenizer: bool,
    ) -> "Comparison":
        """From the results of all models on the pieces, or of their samples; either may be missing."""
        rows: list[dict[str, Any]] = [{"model": name} for name in models]
        measures: dict[str, Measure] = {}
        notes, about = [], None
        if pieces is not None:
            measures |= _text_measures(models, pieces, scored, per_token=one_tokenizer)
            notes += _text_notes(pieces, scored)
            about = {"count": len(pieces.texts), "bytes": sum(pieces.sizes), "share": pieces.share}
            for number, found in enumerate(scored):
                rows[number]["text"] = _text_row(number, found, measures)
        if drawn:
            measures |= _sample_measures(models, drawn)
            notes += _sample_notes(drawn, one_tokenizer=one_tokenizer)
            for number, found in enumerate(drawn):
                rows[number]["samples"] = _sample_row(number, found, measures)
        return cls(models, rows, measures, notes, about)

    @property
    def differences(self) -> list[Difference]:
        """Every other model minus the first, in every measure."""
        others = range(1, len(self.models))
        return [measure.difference(number) for measure in self.measures.values() for number in others]

    @property
    def best(self) -> str | None:
        """The model of the lowest nats per byte, else of the lowest generative perplexity; None: by neither."""
        found = next((self._best(part) for part in _MAIN if _MAIN[part] in self.measures), None)
        return None if found is None else self.models[found]

    def to_json(self) -> dict[str, Any]:
        """All of it; the measures hold the full matrices of differences."""
        return {
            "rows": self.rows,
            "best": self.best,
            "differences": [one.to_json() for one in self.differences],
            "measures": {name: measure.to_json() for name, measure in self.measures.items()},
            "pieces": self.pieces,
            "notes": self.notes,
        }

    def table(self) -> str:
        """The tables in Markdown."""
        found = []
        for part in self.parts:
            head, rows = self.cells(part)
            found.append(markdown_table(head, [[plain(_line(cell)) for cell in row] for row in rows]))
        return "\n".join(found)

    @property
    def parts(self) -> list[str]:
        """What was compared: "text", "samples" or both."""
        return [part for part in _MAIN if part in self.rows[0]]

    def cells(self, part: str) -> tuple[list[str], list[list[Cell]]]:
        """The head and the rows of a part's table: the name first, for text which bound it is, then numbers."""
        shown, best = [row[part] for row in self.rows], self._best(part)
        names: list[Cell] = [(f"{name} *" if n == best else name,) for n, name in enumerate(self.models)]
        columns = [("model", names)]
        if "bound" in shown[0]:
            columns.append(("bound", [(row["bound"],) for row in shown]))
        for name, digits in _COLUMNS[part].items():
            if name in shown[0]:
                columns.append((_HEADS.get(name, name), [_number(row[name], digits) for row in shown]))
        for name, head in _COMPARED[part].items():
            if name in self.measures:
                found = [self.measures[name].difference(number) for number in range(1, len(self.models))]
                columns.append((head, [(), *map(_compared, found)]))
        return [head for head, _ in columns], [list(row) for row in zip(*(cells for _, cells in columns), strict=True)]

    def _best(self, part: str) -> int | None:
        """The number of the model of the lowest value, where lower is better."""
        measure = self.measures.get(_MAIN[part])
        return None if measure is None else measure.values.index(min(measure.values))


def _line(cell: Cell) -> str:
    """A value with its error, and after a comma the words on it."""
    return ", ".join(filter(None, (" ".join(filter(None, cell[:2])), *cell[2:])))


def _number(found: dict[str, float] | float, digits: int) -> Cell:
    if not isinstance(found, dict):
        return (f"{found:,.{digits}f}",)
    return f"{found['value']:,.{digits}f}", "" if found["error"] is None else f"± {found['error']:,.{digits}f}"


def _compared(one: Difference) -> Cell:
    error = "" if one.error is None else f"± {one.error:.4f}"
    return f"{one.value:+.4f}", error, one.words + ("" if one.ratio is None else f" ({abs(one.ratio):.1f} errors)")


def _text_measures(
    models: list[str], pieces: Pieces, scored: Sequence[dict[str, Any]], *, per_token: bool
) -> dict[str, Measure]:
    nats = [one["nats"] for one in scored]
    found = [Measure.of("nats_per_byte", "nats per byte", models, nats, pieces.sizes)]
    if per_token:
        found.append(Measure.of("nats_per_token", "nats per token", models, nats, [len(row) for row in pieces.rows[0]]))
    return {measure.name: measure for measure in found}


def _text_row(number: int, found: dict[str, Any], measures: dict[str, Measure]) -> dict[str, Any]:
    row: dict[str, Any] = {"bound": bound_name(found)}
    for name in ("nats_per_byte", "nats_per_token"):
        if name in measures:
            row[name] = {"value": measures[name].values[number], "error": measures[name].errors[number]}
    bits = {side: None if x is None else x / math.log(2) for side, x in row["nats_per_byte"].items()}
    row |= {"bits_per_byte": bits, "tokens": found["tokens"], "draws": found["draws"], "seconds": found["seconds"]}
    if found["above_source"] is not None:
        row["above_source"] = dict(zip(("value", "error"), found["above_source"], strict=True))
    return row


def _text_notes(pieces: Pieces, scored: Sequence[dict[str, Any]]) -> list[str]:
    count, size = len(pieces.texts), sum(pieces.sizes)
    draws = max(found["draws"] for found in scored)
    notes = [
        f"{count:,} piece{'s' if count > 1 else ''} of text, {size:,} bytes, cut at the same bytes for all so that "
        f"each fits every model's context; each is scored alone. Noise draws per piece: {draws}, of the same seed for "
        "all. * is the lowest; ± is the standard error over pieces, of a difference to the first model paired by "
        f"piece; no difference is seen within {SEEN:g} errors."
    ]
    if pieces.share < 1:
        notes.append(f"Evenly spaced pieces only: {pieces.share:.0%} of the text.")
    if pieces.source is not None:
        notes.append(f"The text's own source needs {sum(pieces.source) / size:.4f} nats per byte.")
    if len({bound_name(found) for found in scored}) > 1:
        notes.append(
            "Bounds of different names compare as upper bounds only: each may lie above its model's own likelihood by "
            "an amount of its own."
        )
    return notes


def _sample_measures(models: list[str], drawn: Sequence[dict[str, Any]]) -> dict[str, Measure]:
    """The judge's nats per token, if there is a judge, and entropy, each by sample."""
    found = []
    if "judged" in drawn[0]:
        nats, counts = ([one["judged"][side] for one in drawn] for side in ("nats", "tokens"))
        found.append(Measure.of("judge_nats", "log of generative perplexity", models, nats, counts))
    entropies = [one["entropies"] for one in drawn]
    found.append(Measure.of("entropy", "unigram entropy, nats", models, entropies, [1.0] * len(entropies[0])))
    return {measure.name: measure for measure in found}


def _sample_row(number: int, found: dict[str, Any], measures: dict[str, Measure]) -> dict[str, Any]:
    row: dict[str, Any] = {name: found[name] for name in ("samples", "length", "seed", "repetition", "calls_per_token")}
    row["tokens_per_second"] = found["stats"]["tokens_per_second"]
    entropy = measures["entropy"]
    row["entropy"] = {"value": entropy.values[number], "error": entropy.errors[number]}
    if "judge_nats" in measures:
        nats, error = measures["judge_nats"].values[number], measures["judge_nats"].errors[number]
        value = math.exp(min(nats, 700.0))
        row["gen_ppl"] = {"value": value, "error": None if error is None else value * error}
    return row | {"first": found["first"]}


def _sample_notes(drawn: Sequence[dict[str, Any]], *, one_tokenizer: bool) -> list[str]:
    first = drawn[0]
    notes = [
        f"{first['samples']:,} samples a row of {first['length']:,} tokens, written from nothing and past any end of "
        f"text, all from seed {first['seed']}: sample by sample, differences to the first are paired. Calls are those "
        "of a whole batch for one token of each of its texts; speed was measured once."
    ]
    if not one_tokenizer:
        notes.append("Tokenizers differ: entropy, length and speed count each model's own tokens.")
    if "judged" in first:
        notes.append(
            f"Judge: {first['judged']['judge']}. Low generative perplexity at low entropy is repetition, not quality."
        )
    return notes


def write_comparison(folder: Path, found: Comparison, command: str) -> None:
    """Write comparison.json, report.md and differences.png."""
    shown = [found.measures[name] for part in found.parts for name in _COMPARED[part] if name in found.measures]
    picture = draw_forest(shown, folder / "differences.png")
    parts = ["# " + plain(", ".join(found.models)) + "\n", code(command) + "\n" if command else "", found.table()]
    parts += [plain(note) + "\n" for note in found.notes]
    parts.append(f"![paired differences to the first]({picture.name})\n")
    for row in found.rows:
        if "samples" in row:
            parts.append(f"## The first sample of {plain(row['model'])}\n\n{block(row['samples']['first'][:1500])}\n")
    with written_aside(folder / "report.md") as aside:
        aside.write_text("\n".join(filter(None, parts)), encoding="utf-8")
    with written_aside(folder / "comparison.json") as aside:
        aside.write_text(json_text(found.to_json(), indent=1) + "\n", encoding="utf-8")
