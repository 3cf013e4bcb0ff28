"""The scenes of `hdlm demo`: a text out of noise, a gap filled, corrections, ways of decoding side by side, a bound.

Each takes a stage (a model, a console and the texts to start from) and gives back what it measured.
"""

import math
import random
import warnings
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from hdlm.bundle import Bundle
from hdlm.config.sampling import DrawSettings
from hdlm.sampling.generate import exhaust, generate
from hdlm.sampling.prompts import Pieces
from hdlm.sampling.request import Request, gap_request, prompt_request
from hdlm.sampling.results import Frame, Samples
from hdlm.theory.entries import Block, Quench
from hdlm.viz.history import History
from hdlm.viz.table import formatted, table
from hdlm.viz.watch import watching

MOST_CORRECTIONS = 6


@dataclass(frozen=True)
class Stage:
    """Who plays, before whom, and what they start from. `width`: of the windows that the model decodes by."""

    bundle: Bundle
    console: Console
    prompt: str
    gaps: str
    paragraph: str
    width: int
    seed: int

    def announce(self, title: str, words: str) -> None:
        """A heading and a line of what is to be seen."""
        self.console.print()
        self.console.print(Rule(f"[bold]{title}", align="left", style="bright_black"))
        self.console.print(Text(words, "dim"))


@dataclass(frozen=True)
class Correction:
    """A token that was there and became another: around it, before and after.

    `then`: the probability with which it was written; `now`: the one that the network gave it when it was taken back,
    where it was asked; `new`: that of what it became.
    """

    step: int
    before: str
    after: str
    around: str
    then: float
    now: float
    new: float

    @property
    def why(self) -> str:
        """The three in words."""
        now = "" if math.isnan(self.now) else f", {self.now:.1%} now"
        return f"{self.then:.1%} then{now}; new {self.new:.1%}"


def _play(stage: Stage, request: Request, *viewers) -> Samples:
    """Write it, everybody watching."""
    with watching(stage.bundle, request, console=stage.console) as watch:
        return exhaust(generate(stage.bundle, request), watch.see, *viewers)


def story(stage: Stage, length: int) -> tuple[Samples, History]:
    """A text after a prompt, by blocks."""
    stage.announce(
        "1. Text out of noise",
        f"Blocks of {stage.width} tokens, from MASK to words in any order, one a step on average; the past is cached.",
    )
    settings = DrawSettings(seed=stage.seed)
    how = {"kind": "block", "width": stage.width, "rate": 1.0}
    request = prompt_request(stage.bundle, stage.prompt, length=length, **how, settings=settings)
    history = History(request)
    return _play(stage, request, history.see), history


def gap(stage: Stage) -> Samples | None:
    """Words in the middle of a text, from both sides; None where the model cannot see the right side."""
    stage.announce("2. A gap filled", "The same network, all positions in one window: it reads what is left and right.")
    try:
        request = gap_request(stage.bundle, stage.gaps, settings=DrawSettings(seed=stage.seed))
    except ValueError as error:
        stage.console.print(Text(f"  not by this model: {error}", "yellow"))
        return None
    return _play(stage, request)


def corrections(stage: Stage, length: int, eta: float) -> list[Correction]:
    """What a sampler with second thoughts takes back: adaptive correction, or remasking where MASK is all the noise."""
    bundle = stage.bundle
    name, words = ("remask", "Remasking") if bundle.process.masks_only else ("acs", "Adaptive correction")
    stage.announce(
        "3. Second thoughts",
        f"{words} (eta = {eta:g}) may take back any token of the window at every step; how likely it was, in brackets.",
    )
    if bundle.process.mask_id is None:
        stage.console.print(Text("  not by this model: nothing is ever masked", "yellow"))
        return []
    settings = DrawSettings(sampler=name, eta=eta, seed=stage.seed)
    how = {"kind": "block", "width": stage.width, "rate": 0.5}
    request = prompt_request(bundle, stage.prompt, length=length, **how, settings=settings)
    found: list[Correction] = []
    pieces, mask = Pieces(bundle.tokenizer), bundle.process.mask_id
    taken: dict[int, int] = {}  # by position, what was masked again
    written: dict[int, float] = {}  # by position, the probability of what is there

    def see(frame: Frame) -> None:
        tokens = frame.tokens[0].tolist()
        fields = (frame.window, frame.before, frame.window_changed, frame.confidence, frame.doubt)
        for position, old, moved, said, now in zip(*(field[0].tolist() for field in fields), strict=True):
            new = tokens[position]
            if moved and new == mask:
                taken.setdefault(position, old)
                continue
            old = taken.pop(position, mask) if old == mask else old
            if moved and old not in (mask, new):
                left = "".join(pieces(token) for token in tokens[max(0, position - 6) : position] if token != mask)
                then = written.get(position, math.nan)
                found.append(Correction(frame.step, pieces(old), pieces(new), left, then, now, said))
            if moved:
                written[position] = said

    exhaust(generate(bundle, request), see)
    for one in found[:MOST_CORRECTIONS]:
        line = Text(f"  step {one.step:3d}  …{one.around}".replace("\n", " "))
        line.append(one.before.replace("\n", "⏎"), "red strike").append(" → ", "dim")
        stage.console.print(line.append(one.after.replace("\n", "⏎"), "bold green").append(f"  ({one.why})", "dim"))
    rest = len(found) - MOST_CORRECTIONS
    said = "1 token became another" if len(found) == 1 else f"{len(found)} tokens became others"
    stage.console.print(Text(f"  {said}" + (f", {rest} more than shown" if rest > 0 else ""), "dim"))
    return found


def race(stage: Stage, length: int) -> list[dict[str, Any]]:
    """The same model by several ways of decoding: speed and calls."""
    stage.announce("4. One network, any order", f"{length} tokens after the same prompt, each way with its cache.")
    width = stage.width
    ways = {
        "autoregressive": {"kind": "quench"},
        **(
            {"the same text, drafted and verified": {"sampler": "speculative"}}
            if stage.bundle.process.starts_masked
            else {}
        ),
        f"block {width}, 1 token a step": {"kind": "block", "width": width, "rate": 1.0},
        f"block {width}, 4 tokens a step": {"kind": "block", "width": width, "rate": 4.0},
        f"slide {width}, 1 token a step": {"kind": "slide", "width": width, "rate": 1.0},
        f"block {width}, 4 tokens a step, no cache": {"kind": "block", "width": width, "rate": 4.0, "cache": False},
    }
    rows = []
    for name, settings in ways.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*trained on.*", UserWarning)  # the table is about speed
            found = stage.bundle.generate(stage.prompt, length=length, seed=stage.seed, stop_at_eos=False, **settings)
        rows.append({"way": name, "text": found.new_text[0], **found.stats.to_json()})
    columns = {
        "decoding": "{way}",
        "tokens/s": "{tokens_per_second:,.0f}",
        "network calls": "{network_calls:,}",
        "slots fed": "{slots:,}",
        "seconds": "{seconds:.2f}",
    }
    stage.console.print(formatted(columns, rows, box=box.SIMPLE_HEAD))
    return rows


def likelihood(stage: Stage) -> dict[str, float]:
    """How likely the model holds a paragraph to be, and the same words in any order."""
    stage.announce("5. How likely is a paragraph?", stage.paragraph)
    words = stage.paragraph.split()
    random.Random(stage.seed).shuffle(words)
    found: dict[str, float] = {}
    rows, block = [], Block(stage.width, stage.width)
    for name, text, schedule, draws in (
        ("the paragraph", stage.paragraph, block, 16),
        ("the paragraph", stage.paragraph, Quench(1), 1),
        ("its words, shuffled", " ".join(words), block, 16),
    ):
        bound = stage.bundle.perplexity(text, samples=draws, hyperschedule=schedule, seed=stage.seed)
        how = f"{bound.name}, {'autoregressive' if schedule.autoregressive else f'block {stage.width}'}"
        found[f"{name}, {how}"] = bound.per("bytes")
        error = "" if bound.error is None else f" ± {bound.error * bound.tokens / bound.counts['bytes']:.3f}"
        rows.append((name, how, f"{bound.per('bytes'):.3f}{error}"))
    stage.console.print(table(["", "bound", "nats per byte"], rows, words=2, box=box.SIMPLE_HEAD))
    return found
