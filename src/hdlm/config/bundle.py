"""What a model folder's config.json says, as a frozen dataclass. Knows no weights."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hdlm.config.fields import plain
from hdlm.config.model import DenoiserConfig
from hdlm.config.parse import parse
from hdlm.config.process import ProcessConfig
from hdlm.config.sampling import DrawSettings
from hdlm.config.schedule import ScheduleConfig
from hdlm.theory import numbers

if TYPE_CHECKING:
    from hdlm.theory.process import Process
    from hdlm.theory.reading import Reading

FORMAT, VERSION = "hdlm", 2
MAX_CONTEXT = 2**24

# What a network's outputs are: logits of the clean token; log scores that get our offsets; log scores that get SEDD's
# one offset for all states, log(e^sigma - 1) + log N; log scores as they are; logits of the clean token as HDCE trains
# them. The first three of OUTPUTS can be trained.
OUTPUTS = ("clean", "score", "hdce")
PARAMETERIZATIONS = (*OUTPUTS, "sedd-scaled", "sedd-plain")


@dataclass(frozen=True)
class BundleConfig:
    """All that config.json holds besides format and version.

    `hyperschedule` is the one to sample with unless told otherwise; `mixture` holds the others that the network was
    trained on. `next_token`: its settled slots learned to predict the next token, as in autoregression.
    `sampling`: how to draw where nothing is asked for.
    """

    model: DenoiserConfig
    process: ProcessConfig
    hyperschedule: ScheduleConfig
    shifted: bool
    parameterization: str = "clean"
    bos_id: int | None = None
    eos_id: int | None = None
    block_causal: bool = False
    mixture: tuple[ScheduleConfig, ...] = ()
    next_token: bool = False
    sampling: DrawSettings = field(default_factory=DrawSettings)

    def __post_init__(self) -> None:
        for name in ("shifted", "block_causal", "next_token"):
            numbers.boolean(name, getattr(self, name))
        numbers.choice("parameterization", self.parameterization, PARAMETERIZATIONS)
        for schedule in self.schedules:
            numbers.integer("hyperschedule.length", schedule.length, low=1, high=MAX_CONTEXT)
        for name in ("bos_id", "eos_id"):
            value = getattr(self, name)
            if value is not None:
                numbers.integer(name, value, low=0, high=self.model.vocab_size - 1)
        self.sampling.check_for_a_model()
        if self.shifted and self.bos_id is None:
            raise ValueError("bos_id = None is not accepted: a shifted model starts from BOS")

    @property
    def digest(self) -> str:
        """A fingerprint of what gives the weights their meaning, by which the files of one save know each other.

        A field that a later version adds (`setting(..., later=True)`) is no part of it at its default: models that were
        saved before keep theirs.
        """
        meaning = {name: plain(getattr(self, name)) for name in ("model", "process", "shifted", "parameterization")}
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    @property
    def context(self) -> int:
        """The number of tokens that the network was trained on at once."""
        return self.hyperschedule.length

    @property
    def schedules(self) -> tuple[ScheduleConfig, ...]:
        """All hyperschedules that the network was trained on, its own first."""
        return (self.hyperschedule, *self.mixture)

    def reading(self, process: "Process") -> "Reading":
        """What the network's outputs mean."""
        from hdlm.config.build import build_reading

        return build_reading(self.parameterization, process)

    @property
    def sees_all(self) -> bool:
        """Whether a window over the whole context was trained."""
        return any(schedule.sees_all for schedule in self.schedules)

    @property
    def widest_window(self) -> int:
        """The most positions of a window that is not the whole context; 0 where there is none."""
        return max((schedule.width or 0 for schedule in self.schedules), default=0)

    def default_length(self, longest_prompt: int) -> int:
        """New tokens where nothing is asked for: what fills the context after the prompt; at least one window."""
        return max(self.context - longest_prompt, self.hyperschedule.width or 1)

    def schedule_for(
        self, length: int, *, kind: str | None = None, width: int | None = None, rate: float | None = None
    ) -> ScheduleConfig:
        """The network's own hyperschedule for `length` tokens, with any of kind, width and rate changed."""
        numbers.integer("length", length, low=1)
        kind = self.hyperschedule.kind if kind is None else kind
        if kind == "custom":
            return self._custom_for(length, width=width, rate=rate)
        if kind == "quench":
            if rate not in (None, 1) or width not in (None, 1):
                raise ValueError("rate and width are not accepted for quench: autoregression gives one token a step")
            return ScheduleConfig(kind, length)
        if kind in ("block", "slide"):
            known = next((schedule.width for schedule in self.schedules if schedule.kind == kind), None)
            width = width if width is not None else known
            if width is None:
                raise ValueError(
                    f"width = None is not accepted: this network was not trained on {kind}, so say a width"
                )
            width = min(numbers.integer("width", width, low=1), length)
        elif width is not None:
            raise ValueError(f"width = {width} is not accepted for {kind}: it has the width of the whole text")
        return ScheduleConfig(kind, length, width=width, rate=1.0 if rate is None else rate)

    def _custom_for(self, length: int, *, width: int | None, rate: float | None) -> ScheduleConfig:
        """The custom hyperschedule that the network was trained on, cut at `length` tokens."""
        if (width, rate) != (None, None):
            raise ValueError("rate and width are not accepted for custom: its levels say how many tokens a step has")
        known = next((schedule for schedule in self.schedules if schedule.kind == "custom"), None)
        if known is None:
            raise ValueError(
                "kind = 'custom' is not accepted: this network was trained on none, so give one of your own, by "
                "hyperschedule=hdlm.Custom(levels) or --custom FILE"
            )
        return replace(known, length=length)

    def was_trained_on(self, schedule: ScheduleConfig, total: int) -> bool:
        """Whether the network saw such windows in training; `total` counts the prompt. What is custom is not judged."""
        kinds, widths = {one.kind for one in self.schedules}, {(one.kind, one.width) for one in self.schedules}
        if schedule.kind == "quench":
            return ("quench" in kinds or self.next_token) if self.shifted else ("block", 1) in widths
        if schedule.kind == "flat":
            return "flat" in kinds
        if schedule.kind == "custom":
            return True
        # A lone block is a trained one cut at the text's end, as the last block of any text may be.
        seen = schedule.length if schedule.kind == "block" and schedule.width == schedule.length else total
        own = [width for kind, width in widths if kind == schedule.kind and width is not None]
        return any(width == schedule.width or width >= seen for width in own)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return {"format": FORMAT, "version": VERSION} | plain(self) | {"sampling": self.sampling.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "BundleConfig":
        """The config of a JSON object; unknown formats, versions and fields are refused by name."""
        if data.get("format") != FORMAT:
            raise ValueError(f"format = {data.get('format')!r} is not accepted: it must be {FORMAT!r}")
        version = data.get("version")
        if version not in (1, VERSION) or version is True:
            raise ValueError(f"version = {version!r} is not accepted: this hdlm reads versions 1 and {VERSION}")
        body = {name: value for name, value in data.items() if name not in ("format", "version")}
        config = parse(cls, body, "config")
        if version == 1 and (config.parameterization == "score" or config.process.kind == "epsilon"):
            raise ValueError(
                "version = 1 is not accepted for networks of scores and of the epsilon process: their outputs meant "
                "something else then; train such a network again"
            )
        return config
