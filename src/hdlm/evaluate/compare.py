"""Several models, or several ways of decoding of one: which is better on the same text, and how sure is that?

All are scored on the same pieces of text with the same seed, and write samples from the same seeds: differences are
paired. Which pieces those are is `pieces.py`, what a paired error is `paired.py`, how it is shown `comparison.py`.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from hdlm.bundle import Bundle
from hdlm.config.sampling import DrawSettings
from hdlm.config.way import Way, parse_way
from hdlm.errors import Outputs
from hdlm.evaluate import judge as judges
from hdlm.evaluate.comparison import Comparison, write_comparison
from hdlm.evaluate.diversity import unigram_entropy
from hdlm.evaluate.judge import Judge
from hdlm.evaluate.likelihood import estimate
from hdlm.evaluate.pieces import Pieces, Reader, cut_texts
from hdlm.evaluate.quality import Panel, assess, draw
from hdlm.evaluate.sweep import Results, model_fingerprint
from hdlm.folders import as_path
from hdlm.sampling.request import prompt_request
from hdlm.theory import checks, numbers
from hdlm.theory.hyperschedule import Hyperschedule

Contender = Bundle | tuple[Bundle, str]
Progress = Callable[[str, int, int], None]

_TEXT, _SAMPLES = "compared text", "compared samples"  # kinds of cells
_FEW = 4  # tokens of a rehearsal


def compare(
    models: Mapping[str, Contender] | Sequence[Contender],
    texts: str | Path | Sequence[str] | None = None,
    *,
    draws: int = 4,
    max_tokens: int | None = None,
    encoding: str = "utf-8",
    samples: int = 0,
    length: int | None = None,
    judge: str | None = None,
    seed: int = 0,
    batch_size: int = 8,
    backend: str | None = None,
    folder: str | Path | None = None,
    command: str = "",
    progress: Progress = lambda what, done, total: None,
) -> Comparison:
    """Compare models, by name or in a list, on a text, on samples of their own, or on both.

    A model is a bundle, or a bundle and a way of decoding in a word: `(bundle, "block:16,sampler=certain")`. `texts`: a
    text or several, each on its own; a `Path` of a file or folder, whose text has this `encoding`, or the name of a set
    as one; `max_tokens`: evenly spaced pieces of about so many tokens of the first model. `draws`: noise draws per
    piece. `samples`: texts to write with each, of `length` tokens (default: the smallest context), read by the `judge`,
    where one can be had. `folder`: results, report and picture are written there, and what is there is not computed
    again; what cannot be written after all is an `UnwrittenError` in the end, whose `result` is the comparison.
    """
    entries = _entries(models)
    _check_asked(entries, texts, samples, judge)
    for name, value, low in (("draws", draws, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        checks.integer(name, value, low=low)
    numbers.function("progress", progress)
    numbers.text("command", command)
    folder = None if folder is None else as_path("folder", folder)
    names, outputs = [entry.name for entry in entries], Outputs()
    results = _results(folder, {"models": names, "command": command}, outputs)
    readers = [Reader(entry.name, entry.tokenizer, entry.bundle.config.context) for entry in entries]
    progress("reading", 0, 1)
    pieces = None if texts is None else cut_texts(texts, readers, max_tokens=max_tokens, encoding=encoding)
    length = min(reader.context for reader in readers) if length is None else length
    scoring = {"draws": draws, "seed": seed, "batch_size": batch_size}
    drawing = {"samples": samples, "length": length, "seed": seed, "backend": backend}
    _rehearse(entries, pieces, scoring, drawing)
    panel = _panel(judge, entries[0].bundle.device) if samples else None
    scored = [] if pieces is None else _scored(entries, pieces, scoring, results, progress)
    drawn = [] if panel is None else _drawn(entries, drawing, judge, panel, results, progress)
    one_tokenizer = len({reader.tokenizer.to_str() for reader in readers}) == 1
    found = Comparison.of(names, pieces, scored, drawn, one_tokenizer=one_tokenizer)
    if folder is not None:
        with outputs.writing(folder):
            write_comparison(folder, found, command)
    outputs.tell(found)
    return found


@dataclass(frozen=True)
class _Entry:
    """One of those that are compared."""

    name: str
    bundle: Bundle
    way: Way
    fingerprint: str

    @contextmanager
    def named(self) -> Iterator[None]:
        """What is refused in the block is refused in this name."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    @property
    def tokenizer(self) -> Tokenizer:
        if self.bundle.tokenizer is None:
            raise ValueError(f"{self.name} has no tokenizer: text cannot be scored or written with it")
        return self.bundle.tokenizer

    @property
    def schedule(self) -> Hyperschedule:
        """What its text is scored by."""
        config, way = self.bundle.config, self.way
        if (way.kind, way.width) == (None, None):
            return self.bundle.hyperschedule
        return config.schedule_for(config.context, kind=way.kind, width=way.width).build()


def _entries(models: Mapping[str, Contender] | Sequence[Contender]) -> list[_Entry]:
    """Those that are compared, by name; in a list they have numbers."""
    if isinstance(models, Mapping):
        named = dict(models)
    elif isinstance(models, Sequence) and not isinstance(models, str):
        named = {f"model {number}": one for number, one in enumerate(models, start=1)}
    else:
        raise ValueError(f"models = {models!r} is not accepted: it must be a list of bundles, or bundles by name")
    if len(named) < 2:
        raise ValueError(f"{len(named)} of two or more models is there: one alone is compared with nothing")
    fingerprint = functools.cache(model_fingerprint)  # one bundle may be there in several ways
    entries = []
    for name, one in named.items():
        bundle, word = one if isinstance(one, tuple) and len(one) == 2 else (one, None)
        checks.instance(f"models[{name!r}]", bundle, Bundle)
        way = Way() if word is None else parse_way(checks.instance("way", word, str))
        entries.append(_Entry(checks.instance("name", name, str), bundle, way, fingerprint(bundle)))
    return entries


def _results(folder: Path | None, about: dict[str, Any], outputs: Outputs) -> Results:
    """What a folder holds of comparisons; one with the report of something else is refused."""
    results = Results(folder, about, outputs)
    if any(cell["spec"]["kind"] not in (_TEXT, _SAMPLES) for cell in results.cells.values()):
        raise ValueError(f"{folder} is not accepted: it holds an evaluation; a comparison needs a folder of its own")
    return results


def _check_asked(entries: Sequence[_Entry], texts: object, samples: int, judge: str | None) -> None:
    """Refuse a comparison of nothing, and what would change nothing."""
    checks.integer("samples", samples, low=0)
    if texts is None and not samples:
        raise ValueError("there is nothing to compare on: give a text (--data), samples to write (--samples), or both")
    if judge is not None and not samples:
        raise ValueError(f"judge = {judge!r} is not accepted without samples to judge: ask for --samples")
    for entry in entries if not samples else ():
        if entry.way.drawn:
            words = ", ".join(f"{name}={value}" for name, value in entry.way.drawn.items())
            raise ValueError(f"{entry.name}: {words} is about samples and changes no likelihood: ask for --samples")


def _rehearse(
    entries: Sequence[_Entry], pieces: Pieces | None, scoring: dict[str, Any], drawing: dict[str, Any]
) -> None:
    """Refuse what could not be scored or drawn before any work begins."""
    for number, entry in enumerate(entries):
        with entry.named():
            if pieces is not None:
                estimate(entry.bundle, [pieces.rows[number][0][:1]], hyperschedule=entry.schedule, **scoring)
            if drawing["samples"]:
                _rehearse_draw(entry, drawing)


def _rehearse_draw(entry: _Entry, drawing: dict[str, Any]) -> None:
    """Refuse samples that could not be drawn; a few tokens are, so that no clock measures a beginning."""
    said = entry.way.said
    schedule = {name: said[name] for name in ("kind", "width", "rate") if name in said}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are for the draw itself
        prompt_request(entry.bundle, length=drawing["length"], **schedule)
        few: dict[str, Any] = drawing | {"samples": 1, "length": min(_FEW, drawing["length"])}
        draw(entry.bundle, said, **few)


def _panel(name: str | None, device: torch.device) -> Callable[[], Judge | None]:
    """Gives the judge, who is loaded when first asked for, or if named at once, to be refused at once; None: no one."""
    found = functools.cache(lambda: judges.load_judge(name, device=device))
    if name is None:
        return found if judges.has_judge() else lambda: None
    found()
    return found


def _scored(
    entries: Sequence[_Entry], pieces: Pieces, scoring: dict[str, Any], results: Results, tell: Progress
) -> list[dict[str, Any]]:
    """What each finds of the pieces."""
    found = []
    for entry, rows in zip(entries, pieces.rows, strict=True):
        spec = {"kind": _TEXT, "model": entry.fingerprint, "schedule": entry.schedule.name}
        spec |= {"text": pieces.fingerprint, "draws": scoring["draws"], "seed": scoring["seed"]}
        with entry.named():
            cell = results.cell(spec, functools.partial(_score, entry, rows, pieces, scoring, tell))
        found.append(cell["result"])
    return found


def _drawn(
    entries: Sequence[_Entry],
    drawing: dict[str, Any],
    judge: str | None,
    panel: Callable[[], Judge | None],
    results: Results,
    tell: Progress,
) -> list[dict[str, Any]]:
    """What is found of the samples of each."""
    found, judged = [], judge is not None or judges.has_judge()
    for entry in entries:
        spec = {"kind": _SAMPLES, "model": entry.fingerprint, "way": entry.way.said, "judge": judge, "judged": judged}
        with entry.named():
            cell = results.cell(spec | drawing, functools.partial(_write, entry, drawing, panel, tell))
        found.append(cell["result"])
    return found


def _score(
    entry: _Entry, rows: list[list[int]], pieces: Pieces, scoring: dict[str, Any], tell: Progress
) -> dict[str, Any]:
    """The bound on the pieces, with each piece's nats."""
    found = estimate(
        entry.bundle,
        rows,
        hyperschedule=entry.schedule,
        progress=lambda done, total: tell(f"{entry.name}: text", done, total),
        **scoring,
    )
    above = None if pieces.source is None else found.above(pieces.source, sum(pieces.sizes))
    kept = {name: value for name, value in found.to_json().items() if name != "positions"}
    return kept | {"nats": found.row_nats, "row_tokens": [len(row) for row in rows], "above_source": above}


def _write(entry: _Entry, drawing: dict[str, Any], panel: Callable[[], Judge | None], tell: Progress) -> dict[str, Any]:
    """Samples and what is said of each of them: its entropy, and the judge's nats and tokens."""
    judge = panel()
    samples = draw(
        entry.bundle,
        entry.way.said,
        progress=lambda done, total: tell(f"{entry.name}: samples", done, total),
        **drawing,
    )
    texts = samples.text
    found = assess(samples, Panel(), tell) | {"first": texts[0], "length": drawing["length"]}
    found["entropies"] = [unigram_entropy([row])[0] for row in samples.tokens]
    batches = -(-len(texts) // DrawSettings().batch_size)
    found["calls_per_token"] = samples.stats.network_calls / (batches * drawing["length"])
    if judge is not None:
        read = judge.read(texts, progress=lambda done: tell(f"{entry.name}: judging", done, len(texts)))
        if not sum(count for _, count in read):
            raise ValueError("there is no text to judge: all samples are empty")
        found["judged"] = {"judge": judge.name, "nats": [n for n, _ in read], "tokens": [c for _, c in read]}
    return found
