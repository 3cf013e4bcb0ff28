"""How much a speculation drafts ahead, and in which pass: what pays most on this machine, for this text.

    every   the pass that verifies drafts too: a window for each number of tokens that may be kept
    full    the same, with one window: for a draft that is kept whole. After any other there is nothing to verify
    apart   a pass of its own drafts, when it is known what was kept

What a pass takes is measured as it goes, as a fixed time and one a slot; so is how often a draft is kept, by its depth.
None of this changes a text. Knows no network and no token.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from hdlm.sampling.rules import AHEAD, MOST_DRAFTED, Speculative

if TYPE_CHECKING:
    from hdlm.sampling.loop import Run

_FADES = 0.98  # of what was measured before, a call
_PRIOR = {"every": (0.5, 0.5), "apart": (0.9, 0.5)}  # a draft's first token is kept so often, and those behind it
_SEEN = 2.0  # calls that these count for
_SLOT = 1 / 30  # of the fixed time of a pass, that of a slot, before it is measured
_FIRST = 3  # tokens that are drafted at first, and one fewer, in turns: two points of a line
_TURNS, _AGAIN = 8, 48  # so many calls at first; and two after so many, since what is not tried is not learned
_CHOICES = [1, 2, 3, 4, 5, 6, 8]


@dataclass(frozen=True)
class Plan:
    """Draft `count` tokens next: `ahead` as of AHEAD."""

    count: int
    ahead: str = "every"

    @property
    def apart(self) -> bool:
        """Whether a pass of its own drafts."""
        return self.ahead == "apart"

    @property
    def width(self) -> int:
        """Masks of a window in the pass that verifies: the first is for the token that the verdict itself gives."""
        return self.count + 1

    def windows(self, drafted: int) -> tuple[int, ...]:
        """After how many tokens of a draft the pass that verifies it drafts anew."""
        if self.count == 0 or self.apart:
            return ()
        return tuple(range(drafted + 1)) if self.ahead == "every" else (drafted,)

    def cost(self) -> tuple[int, int]:
        """Passes and slots of one row in a verdict of such a draft and the next draft."""
        if self.apart:
            return 2, 2 * (self.count + 1)
        return 1, 1 + self.count + len(self.windows(self.count)) * (self.width + 1)


class Acceptance:
    """How often drafted tokens are kept, by their depth, where all before them were."""

    def __init__(self, first: float, later: float) -> None:
        shares = [first] + [later] * (MOST_DRAFTED - 1)
        self._kept, self._tried = [_SEEN * share for share in shares], [_SEEN] * MOST_DRAFTED

    def learn(self, drafted: int, kept: int) -> None:
        """`kept` of `drafted` tokens were."""
        for depth in range(min(drafted, kept + 1)):
            self._kept[depth] = self._kept[depth] * _FADES + (depth < kept)
            self._tried[depth] = self._tried[depth] * _FADES + 1

    def reaches(self, count: int) -> Iterable[float]:
        """The probabilities that the first, the first two, ... of `count` drafted tokens are kept."""
        share = 1.0
        for kept, tried in zip(self._kept[:count], self._tried[:count], strict=True):
            share *= kept / tried
            yield share


class Pace:
    """What was learned with one network, and the plan that follows from it; or the plan that was asked for."""

    _known: ClassVar[WeakKeyDictionary[Any, dict[tuple, "Pace"]]] = WeakKeyDictionary()

    def __init__(self, count: int | None, ahead: str | None, batch: int) -> None:
        self._count, self._ahead, self._batch, self._calls = count, ahead, batch, 0
        self._acceptance = {name: Acceptance(*shares) for name, shares in _PRIOR.items()}
        self._made = Plan(0)  # by which the draft was made that comes next
        self._sums = [0.0] * 5  # of weights, slots, seconds, their squares and products: a line through them

    @classmethod
    def of(cls, run: "Run") -> "Pace":
        """That of a run's network at its settings, which remembers earlier runs."""
        assert isinstance(run.rule, Speculative)
        settings, batch = run.settings, len(run.starts)
        key = (run.rule.draft, run.rule.ahead, batch, settings.temperature, settings.top_k, settings.top_p)
        return cls._known.setdefault(run.network, {}).setdefault(key, cls(run.rule.draft, run.rule.ahead, batch))

    def plan(self) -> Plan:
        """What to draft next."""
        if self._count is not None and (self._ahead is not None or self._count == 0):
            return Plan(self._count, self._ahead or AHEAD[0])
        if self._count is None and (self._calls < _TURNS or self._calls % _AGAIN < 2):
            return Plan(_FIRST - self._calls % 2, self._ahead or AHEAD[0])
        counts = [self._count] if self._count is not None else [0, *_CHOICES]
        plans = [Plan(count, ahead) for count in counts for ahead in ([self._ahead] if self._ahead else AHEAD)]
        return max(plans, key=self._tokens_a_second)

    def learn(
        self, plan: Plan, drafted: list[int], kept: list[int], gained: list[int], *, slots: int, seconds: float
    ) -> None:
        """A call, or two, of so many slots took so long; of the drafts of rows that go on so many tokens were kept."""
        self._calls += 1
        acceptance, self._made = self._acceptance["apart" if self._made.apart else "every"], plan
        for count, found, new in zip(drafted, kept, gained, strict=True):
            if new:
                acceptance.learn(count, found)
        if self._calls <= 2 or plan.apart:  # what is done once, when a network is first used, is no cost of a call
            return
        point = (1.0, slots, seconds, slots * slots, slots * seconds)
        self._sums = [old * _FADES + new for old, new in zip(self._sums, point, strict=True)]

    def _line(self) -> tuple[float, float]:
        """The fixed time of a pass, and that of a slot."""
        n, x, y, xx, xy = self._sums
        spread = n * xx - x * x
        if n == 0:
            return 1.0, _SLOT
        if spread > 1e-9 * xx * n and (each := (n * xy - x * y) / spread) > 0 and (fixed := (y - each * x) / n) > 0:
            return fixed, each
        fixed = y / (n + _SLOT * x)
        return fixed, _SLOT * fixed

    def _tokens_a_second(self, plan: Plan) -> float:
        """Tokens that a row gains, by the time of a verdict and the next draft."""
        (fixed, each), (passes, slots) = self._line(), plan.cost()
        reaches = list(self._acceptance["apart" if plan.apart else "every"].reaches(plan.count))
        gained, share = 1 + sum(reaches), 1.0
        if plan.ahead == "full" and plan.count:  # of calls, those that have something to verify
            share = 1 / (2 - reaches[-1])
            gained, slots = share * gained + (1 - share), slots - (1 - share) * plan.count
        return gained / (passes * fixed + self._batch * slots * each)
