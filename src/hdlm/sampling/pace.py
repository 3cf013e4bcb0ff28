"""How much a speculation drafts ahead, and in which pass: what pays most on this machine, for this text.

    every   the pass that verifies drafts too: a window for each number of tokens that may be kept
    full    the same, with one window: for a draft that is kept whole. After any other there is nothing to verify
    apart   a pass of its own drafts, when it is known what was kept

What a verdict and the next draft take is measured, and so is how often a draft is kept, by its depth; now and then
another way is tried. None of this changes a text. Knows no network and no token.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from hdlm.sampling.rules import AHEAD, MOST_DRAFTED, Speculative

if TYPE_CHECKING:
    from hdlm.sampling.loop import Run

_FADES = 0.98  # of how often drafts were kept before, a call
_PRIOR, _SEEN = 0.5, 2.0  # a drafted token is kept so often, by so many calls, before any is seen
_NEW = 0.3  # of a new measurement of time, in the mean of all
_TRIES = 3  # calls that try a way, the first of which is not timed
_SPENT = 0.04  # of all time, on such trials


@dataclass(frozen=True)
class Plan:
    """Draft `count` tokens next: `ahead` as of AHEAD."""

    count: int
    ahead: str = AHEAD[0]

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


PLAIN = Plan(0)  # autoregression
_FIRST = (PLAIN, Plan(4, "apart"), Plan(6, "apart"), Plan(4, "full"), Plan(3, "every"))  # ways to begin with
_ALL = [Plan(count, ahead) for count in range(MOST_DRAFTED + 1) for ahead in AHEAD]


class Acceptance:
    """How often drafted tokens are kept, by their depth, where all before them were."""

    def __init__(self) -> None:
        self._kept, self._tried = [_SEEN * _PRIOR] * MOST_DRAFTED, [_SEEN] * MOST_DRAFTED

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
    """What was learned with one network at some settings, and the plan that follows; or the plan that was asked for."""

    _known: ClassVar[WeakKeyDictionary[Any, dict[tuple, "Pace"]]] = WeakKeyDictionary()

    def __init__(self, count: int | None = None, ahead: str | None = None) -> None:
        self._count, self._ahead = count, ahead
        self._acceptance = {True: Acceptance(), False: Acceptance()}  # of drafts apart, and of the others
        self._seconds: dict[Plan, float] = {}
        self._measured: dict[Plan, float] = {}  # when each was measured last
        self._made = PLAIN  # the plan by which the draft was made that comes next
        self._trials = [plan for plan in dict.fromkeys(map(self._asked, _FIRST)) for _ in range(_TRIES)]
        self._clock, self._tried = 0.0, 0.0  # seconds in all, and those of trials

    @classmethod
    def of(cls, run: "Run") -> "Pace":
        """That of a run's network at its settings, which remembers earlier runs."""
        assert isinstance(run.rule, Speculative)
        settings, rule = run.settings, run.rule
        key = (rule.draft, rule.ahead, len(run.starts), settings.temperature, settings.top_k, settings.top_p)
        return cls._known.setdefault(run.network, {}).setdefault(key, cls(rule.draft, rule.ahead))

    def plan(self) -> Plan:
        """What to draft next."""
        if not self._trials and self._seconds and self._tried < _SPENT * self._clock:
            self._trials = [self._other(self._best())] * _TRIES
        return self._trials[0] if self._trials else self._best()

    def learn(self, plan: Plan, drafted: list[int], kept: list[int], gained: list[int], *, seconds: float) -> None:
        """A verdict on rows' drafts, and the next draft, took so long; of rows that gained so many tokens were kept."""
        self._clock += seconds
        self._tried += seconds if self._trials else 0.0
        self._trials = self._trials[1:]
        for count, found, new in zip(drafted, kept, gained, strict=True):
            if new:
                self._acceptance[self._made.apart].learn(count, found)
        if plan == self._made:  # else what was verified is another's draft
            self._seconds[plan] = _NEW * seconds + (1 - _NEW) * self._seconds.get(plan, seconds)
            self._measured[plan] = self._clock
        self._made = plan

    def _asked(self, plan: Plan) -> Plan:
        """The plan with what was asked for in place of its own; one that drafts nothing is the same in all ways."""
        count = plan.count if self._count is None else self._count
        return Plan(count, (plan.ahead if self._ahead is None else self._ahead) if count else AHEAD[0])

    def _best(self) -> Plan:
        return max(self._seconds, key=self._speed, default=self._asked(_FIRST[1]))

    def _speed(self, plan: Plan) -> float:
        """Tokens of a row a second."""
        return self._tokens(plan) / self._seconds[plan]

    def _other(self, best: Plan) -> Plan:
        """The plan that was not measured for the longest time, or never; those beside the best first."""
        counts = {min(max(1, best.count + more), MOST_DRAFTED) for more in (-2, -1, 1, 2)} | {0}
        near = [Plan(count, best.ahead) for count in sorted(counts)] + [Plan(max(best.count, 1), way) for way in AHEAD]
        near = [plan for plan in dict.fromkeys(map(self._asked, [*near, *_ALL])) if plan != best]
        return min(near, key=lambda plan: self._measured.get(plan, 0), default=best)

    def _tokens(self, plan: Plan) -> float:
        """Tokens that a row gains by a verdict, on average."""
        reaches = list(self._acceptance[plan.apart].reaches(plan.count))
        share = 1.0 if plan.ahead != "full" or not reaches else 1 / (2 - reaches[-1])  # of verdicts that have a draft
        return 1 + share * sum(reaches)
