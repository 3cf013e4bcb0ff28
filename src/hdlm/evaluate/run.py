"""An evaluation from request to report: which cells, in which order, with whom to judge."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdlm.config import ScheduleConfig
from hdlm.evaluate.bound import Bound
from hdlm.evaluate.judge import load_judge
from hdlm.evaluate.likelihood import estimate
from hdlm.evaluate.mauve_score import load_featuriser
from hdlm.evaluate.quality import Panel, assess, draw
from hdlm.evaluate.report import write_report
from hdlm.evaluate.sweep import Results, model_fingerprint
from hdlm.evaluate.texts import fingerprint, rows_of_set
from hdlm.writing.prompts import decode

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

METRICS = ("bound", "gen-ppl", "entropy", "mauve")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Plan:
    """What to find out."""

    data: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("bound", "gen-ppl", "entropy")
    samples: int = 32
    length: int | None = None
    sweep: tuple[dict[str, Any], ...] = ({},)
    settings: dict[str, Any] = field(default_factory=dict)
    schedule: ScheduleConfig | None = None
    draws: int = 4
    max_tokens: int | None = None
    judge: str | None = None
    seed: int = 0
    batch_size: int = 8

    def __post_init__(self) -> None:
        for name in self.metrics:
            if name not in METRICS:
                raise ValueError(f"metric {name!r} is not accepted: it must be one of {', '.join(METRICS)}")
        if "mauve" in self.metrics and not self.data:
            raise ValueError("MAUVE compares with real text: say which (--data)")


def evaluate(
    bundle: "Bundle",
    plan: Plan,
    *,
    name: str,
    command: str,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """All cells of a plan, computed or found in `folder`, where results and report are written."""
    tell: Progress = progress if progress is not None else lambda *_: None
    model = model_fingerprint(bundle)
    about = {"model": name, "command": command, "fingerprint": model, "summary": _summary(bundle)}
    results = Results(folder, about)
    said = {data: fingerprint(data) for data in plan.data}
    cells = []
    for data in plan.data if "bound" in plan.metrics else ():
        spec = {"kind": "bound", "model": model, "data": data, "draws": plan.draws, "max_tokens": plan.max_tokens}
        spec["text"] = said[data]
        spec |= {"seed": plan.seed, "schedule": None if plan.schedule is None else vars(plan.schedule)}
        result = results.cell(spec, lambda data=data: _bound(bundle, plan, data, tell))
        cells.append({"spec": spec, "result": result})
    texts: list[str] = []
    if {"gen-ppl", "entropy", "mauve"} & set(plan.metrics):
        panel = _LazyPanel(bundle, plan, tell)
        for point in plan.sweep:
            settings = plan.settings | point
            spec = {"kind": "samples", "model": model, "settings": settings, "samples": plan.samples}
            spec |= {"model_sampling": _own(bundle, plan)}
            spec |= {"length": plan.length, "seed": plan.seed, "metrics": sorted(set(plan.metrics) - {"bound"})}
            spec |= {
                "judge": plan.judge,
                "reference": [plan.data[0], said[plan.data[0]]] if "mauve" in plan.metrics else None,
            }
            result = results.cell(spec, lambda settings=settings: _samples(bundle, plan, settings, panel, tell))
            cells.append({"spec": spec, "result": result})
            texts = texts or result["first"]
    if folder is not None:
        write_report(folder, about, cells, texts)
    return cells


def _summary(bundle: "Bundle") -> str:
    side = "shifted" if bundle.config.shifted else "aligned"
    return f"{bundle.model.num_parameters:,} parameters, {side}, `{bundle.process!r}`, `{bundle.hyperschedule!r}`."


def _bound(bundle: "Bundle", plan: Plan, data: str, tell: Progress) -> dict[str, Any]:
    tell(f"reading {data}", 0, 1)
    rows = rows_of_set(bundle, data, max_tokens=plan.max_tokens)
    found = estimate(
        bundle,
        rows.tokens,
        draws=plan.draws,
        schedule=plan.schedule,
        seed=plan.seed,
        batch_size=plan.batch_size,
        progress=lambda done, total: tell(f"bound of {data}", done, total),
    )
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


class _LazyPanel:
    """Judges are loaded when a cell first needs them."""

    def __init__(self, bundle: "Bundle", plan: Plan, tell: Progress) -> None:
        self._bundle, self._plan, self._tell, self._panel = bundle, plan, tell, None

    def get(self) -> Panel:
        """The panel."""
        if self._panel is None:
            device, panel = self._bundle.model.embedding.device, Panel()
            if "gen-ppl" in self._plan.metrics:
                self._tell("loading the judge", 0, 1)
                panel.judge = load_judge(self._plan.judge, device=device)
            if "mauve" in self._plan.metrics:
                self._tell("features of real text", 0, 1)
                panel.featuriser = load_featuriser(device=device)
                panel.references = panel.featuriser(self._references())
            self._panel = panel
        return self._panel

    def _references(self) -> list[str]:
        """As many real texts of the samples' length as there are samples."""
        plan, length = self._plan, self._plan.length or self._bundle.config.hyperschedule.length
        rows = rows_of_set(self._bundle, plan.data[0], length=length, max_tokens=plan.samples * length)
        return [decode(self._bundle.tokenizer, row) for row in rows.tokens]


def _own(bundle: "Bundle", plan: Plan) -> dict[str, Any]:
    """How the model draws where nothing is asked for; autoregression has its own rule."""
    own = vars(bundle.config.sampling)
    rule = ("sampler", "threshold") if plan.settings.get("kind") == "quench" else ()
    return {name: value for name, value in own.items() if name not in rule}


def _samples(bundle: "Bundle", plan: Plan, settings: dict, panel: _LazyPanel, tell: Progress) -> dict[str, Any]:
    words = ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)
    judges = panel.get()
    samples = draw(
        bundle,
        settings,
        samples=plan.samples,
        length=plan.length,
        seed=plan.seed,
        progress=lambda done, total: tell(f"sampling {words}".strip(), done, total),
    )
    tell("judging", 0, 1)
    return assess(samples, judges) | {"first": samples.text[:2], "model_sampling": _own(bundle, plan)}
