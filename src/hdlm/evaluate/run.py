"""An evaluation from request to report: which cells, in which order, with whom to judge."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdlm.config.sampling import DrawSettings
from hdlm.data.packed import is_matrix
from hdlm.errors import Outputs
from hdlm.evaluate.bound import Bound
from hdlm.evaluate.judge import load_judge
from hdlm.evaluate.likelihood import estimate
from hdlm.evaluate.mauve_score import load_featuriser
from hdlm.evaluate.ordered import ORDERS, ordered_likelihood
from hdlm.evaluate.quality import Panel, assess, draw, features_of, texts_of
from hdlm.evaluate.report import write_report
from hdlm.evaluate.sweep import Results, model_fingerprint
from hdlm.evaluate.texts import fingerprint, rows_of_set
from hdlm.processes import ALONE, World
from hdlm.sampling.prompts import decode
from hdlm.theory import numbers
from hdlm.theory.hyperschedule import Hyperschedule

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

METRICS = ("bound", "gen-ppl", "entropy", "mauve")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """What to find out.

    `hyperschedule`: another than the model's own to score and sample by, of any length. `settings`: how to draw
    samples; `sweep`: changes of them, a cell each. `order`: score by the exact likelihood of decoding in that order.
    `draws`: noise draws per row of text. `backend`: of sampling. `encoding`: of the text of files and folders.
    """

    data: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("bound", "gen-ppl", "entropy")
    samples: int = 32
    length: int | None = None
    sweep: tuple[dict[str, Any], ...] = ({},)
    settings: dict[str, Any] = field(default_factory=dict)
    hyperschedule: Hyperschedule | None = None
    order: str | None = None
    draws: int = 4
    max_tokens: int | None = None
    judge: str | None = None
    seed: int = 0
    batch_size: int = 8
    backend: str | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for name in self.metrics:
            if name not in METRICS:
                raise ValueError(f"metric {name!r} is not accepted: it must be one of {', '.join(METRICS)}")
        if "mauve" in self.metrics and not self.data:
            raise ValueError("MAUVE compares with real text: say which (--data)")
        if self.order is not None:
            numbers.choice("order", self.order, ORDERS)
            if "bound" not in self.metrics or not self.data:
                raise ValueError(f"order = {self.order!r} is not accepted without text to score: --data, metric bound")


def evaluate(
    bundle: "Bundle",
    wanted: Evaluation,
    *,
    name: str,
    command: str,
    folder: Path | None = None,
    progress: Progress = lambda what, done, total: None,
    world: World = ALONE,
) -> list[dict[str, Any]]:
    """All cells of an evaluation, computed or found in `folder`, where results and report are written.

    What cannot be written after all is an `UnwrittenError` in the end, whose `result` is the cells. `world`: this
    process among others, which share the work of every cell; the first one writes.
    """
    _check_has_text(bundle, wanted)
    model, side = model_fingerprint(bundle), "shifted" if bundle.config.shifted else "aligned"
    summary = f"{bundle.model.num_parameters:,} parameters, {side}, `{bundle.process!r}`, `{bundle.hyperschedule!r}`."
    about = {"model": name, "command": command, "fingerprint": model, "summary": summary}
    about["process"] = bundle.config.to_json()["process"]
    outputs = Outputs()
    results = Results(folder, about, outputs, writes=world.is_main)
    said = {data: fingerprint(data, wanted.encoding) for data in wanted.data}
    schedule = None if wanted.hyperschedule is None else wanted.hyperschedule.settings
    cells = []
    for data in wanted.data if "bound" in wanted.metrics else ():
        spec = {"kind": "bound", "model": model, "data": data, "draws": wanted.draws, "max_tokens": wanted.max_tokens}
        spec |= {"text": said[data], "seed": wanted.seed, "schedule": schedule}
        spec |= {} if wanted.order is None else {"order": wanted.order}
        cells.append(results.cell(spec, lambda data=data: _bound(bundle, wanted, data, progress, world)))
    if {"gen-ppl", "entropy", "mauve"} & set(wanted.metrics):
        panel = functools.cache(lambda: _panel(bundle, wanted, progress, world))  # loaded when a cell first needs it
        reference = [wanted.data[0], said[wanted.data[0]]] if "mauve" in wanted.metrics else None
        chosen = {part: value for part in ("kind", "width") if (value := (schedule or {}).get(part)) is not None}
        for point in wanted.sweep:
            settings = chosen | wanted.settings | point
            spec = {"kind": "samples", "model": model, "settings": settings, "samples": wanted.samples}
            spec |= {"model_sampling": _own(bundle, wanted), "backend": wanted.backend}
            spec |= {"length": wanted.length, "seed": wanted.seed, "metrics": sorted(set(wanted.metrics) - {"bound"})}
            spec |= {"judge": wanted.judge, "reference": reference}
            spec |= {part: value for part, value in (schedule or {}).items() if part == "levels"}
            cells.append(
                results.cell(
                    spec, lambda settings=settings: _samples(bundle, wanted, settings, panel(), progress, world)
                )
            )
    if folder is not None and world.is_main:
        with outputs.writing(folder):
            write_report(folder, about, cells)
    outputs.tell(cells)
    return cells


def _check_has_text(bundle: "Bundle", wanted: Evaluation) -> None:
    """Refuse what needs text of a model that has no tokenizer."""
    if bundle.tokenizer is not None:
        return
    for data in wanted.data:
        if not is_matrix(data):
            raise ValueError(
                f"{data} is not accepted: a model without tokenizer scores token rows (.npy, .safetensors)"
            )
    for metric in ("gen-ppl", "mauve"):
        if metric in wanted.metrics:
            raise ValueError(f"metric {metric!r} is not accepted: it judges text, and this model has no tokenizer")


def _bound(bundle: "Bundle", wanted: Evaluation, data: str, tell: Progress, world: World) -> dict[str, Any]:
    tell(f"reading {data}", 0, 1)
    rows = rows_of_set(bundle, data, max_tokens=wanted.max_tokens, encoding=wanted.encoding)
    how = {"hyperschedule": wanted.hyperschedule, "batch_size": wanted.batch_size, "world": world}
    if wanted.order is not None:
        what = f"likelihood of {data}, {wanted.order}"
        progress = functools.partial(tell, what)
        found = ordered_likelihood(bundle, rows.tokens, wanted.order, **how, progress=progress)
    else:
        progress = functools.partial(tell, f"bound of {data}")
        found = estimate(bundle, rows.tokens, **how, draws=wanted.draws, seed=wanted.seed, progress=progress)
    found = found.counted(rows.counts)
    result: dict[str, Any] = found.to_json() | {"share": rows.share}
    if rows.source is not None:
        result |= _above(found, rows.source)
        result["beside"] = [bound.to_json() | _above(bound, rows.source) for bound in found.beside]
    return result


def _above(bound: Bound, source: list[float]) -> dict[str, Any]:
    """What the source of the text needs, and how far above it the bound is."""
    size = bound.counts["bytes"]
    found: dict[str, float | None] = {"nats_per_byte": sum(source) / size}
    for name, count in (("byte", size), ("token", bound.tokens)):
        found[f"above_per_{name}"], found[f"above_per_{name}_error"] = bound.above(source, count)
    return {"source": found}


def _panel(bundle: "Bundle", wanted: Evaluation, tell: Progress, world: World) -> Panel:
    """The judges that the metrics need, and as many real texts of the samples' length as there are samples."""
    device, panel = bundle.model.embedding.device, Panel()
    if "gen-ppl" in wanted.metrics:
        tell("loading the judge", 0, 1)
        panel.judge = load_judge(wanted.judge, device=device)
    if "mauve" in wanted.metrics:
        featuriser, length = load_featuriser(device=device), wanted.length or bundle.config.context
        how = {"max_tokens": wanted.samples * length, "encoding": wanted.encoding}
        rows = rows_of_set(bundle, wanted.data[0], length=length, **how)
        texts = [decode(bundle.tokenizer, row) for row in rows.tokens]
        panel.featuriser = featuriser
        panel.references = features_of(texts, featuriser, "features of real text", tell, world)
    return panel


def _own(bundle: "Bundle", wanted: Evaluation) -> dict[str, Any]:
    """How the model draws where nothing is asked for; autoregression has its own rule."""
    schedule = wanted.hyperschedule if wanted.hyperschedule is not None else bundle.hyperschedule
    return DrawSettings().over(bundle.config.sampling, autoregressive=schedule.autoregressive).to_json()


def _samples(
    bundle: "Bundle", wanted: Evaluation, settings: dict, panel: Panel, tell: Progress, world: World
) -> dict[str, Any]:
    words = ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)
    whole = wanted.hyperschedule if wanted.hyperschedule is not None and not wanted.hyperschedule.even else None
    samples = draw(
        bundle,
        {name: value for name, value in settings.items() if whole is None or name != "kind"},
        hyperschedule=whole,
        samples=wanted.samples,
        length=wanted.length,
        seed=wanted.seed,
        backend=wanted.backend,
        progress=lambda done, total: tell(f"sampling {words}".strip(), done, total),
        world=world,
    )
    return assess(samples, panel, tell, world=world) | {
        "first": texts_of(samples)[:2],
        "model_sampling": _own(bundle, wanted),
    }
