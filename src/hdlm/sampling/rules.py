"""The step rules, all of them: each goes from one noise level to the next in its own way (see `rule.py`)."""

import math

import torch
from torch import Tensor

from hdlm.sampling.rng import StepRandom
from hdlm.sampling.rule import Prediction, Rule, State, Thinned, Times
from hdlm.theory import checks, numbers
from hdlm.theory.reading import Reading, rate_process

AHEAD = ("every", "full", "apart")  # see pace.py
MOST_DRAFTED = 8


class Posterior(Thinned):
    """The exact law between two times, mixed over p0: for every process. Epsilon redraws tokens when they settle.

    With one uniform u a position, it stays where u is below its probability of staying. For MASK that is known
    beforehand; for a token it is never below what it would be if the network held the token for impossible.
    """

    name = "posterior"

    def needs(self, masked: Tensor, free: Tensor, times: Times, event: Tensor) -> Tensor:
        return times.moves & (event >= torch.where(masked, times.stay_masked, times.stay_token))

    def draw(self, tokens: Tensor, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        if random.gumbel is not None:
            return random.draw(times.process.posterior(tokens, prediction.p0, s=times.s, t=times.t))
        return times.process.draw_posterior(tokens, prediction.p0, random.event, s=times.s, t=times.t)

    def step(self, state: State, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        if random.gumbel is not None:  # such draws do not go by `event`: it says nothing ahead
            return self.draw(state.tokens, prediction, times, random)
        return super().step(state, prediction, times, random)


class Original(Thinned):
    """MDLM's sampler along a hyperschedule (algorithm 3): MASK takes a token from p0 with probability `transfer`.

    A token is never touched again. The exact posterior of the absorbing process; for the others a plain way to use
    them.
    """

    name = "original"

    def check(self, reading: Reading) -> None:
        self._needs_mask(reading)

    def needs(self, masked: Tensor, free: Tensor, times: Times, event: Tensor) -> Tensor:
        return masked & (event >= times.stay_masked)

    def draw(self, tokens: Tensor, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        return prediction.draw(random)


class AdaptiveCorrection(Original):
    """`original` with second thoughts (algorithm 4): a token is drawn anew with probability eta (1 - transfer)."""

    name = "acs"
    settings = ("eta",)

    def __init__(self, eta: float = 0.05) -> None:
        self.eta = checks.fraction("eta", eta)

    def check(self, reading: Reading) -> None:
        super().check(reading)
        if reading.process.masks_only:
            raise ValueError(
                f"sampler {self.name!r} does not fit {reading.process!r}: a network of the absorbing process takes "
                "every token that is not MASK for certain; 'remask' corrects such models"
            )

    def needs(self, masked: Tensor, free: Tensor, times: Times, event: Tensor) -> Tensor:
        corrected = ~masked & (event < self.eta * (1 - times.transfer))
        return super().needs(masked, free, times, event) | corrected


class PublishedCorrection(AdaptiveCorrection):
    """`acs` as published: a token is drawn anew from the network's outputs as they are.

    HDCE has weighted those, so that a token that is drawn again is most often another one: far stronger at equal eta.
    For networks that were trained otherwise the same as `acs`.
    """

    name = "acs-paper"

    def draw(self, tokens: Tensor, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        return prediction.draw(random, as_trained=True)


class Autoregressive(Thinned):
    """One draw from p0 a position. For quench, where a step takes a position from full noise to clean.

    By a race, so that what was drafted from a law like it, with the same random number, is most often the same token:
    speculation (`speculative.py`) writes this text.
    """

    name = "ar"

    def needs(self, masked: Tensor, free: Tensor, times: Times, event: Tensor) -> Tensor:
        return times.moves.expand_as(masked)

    def draw(self, tokens: Tensor, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        return prediction.draw(random.racing())


class TauLeaping(Posterior):
    """A step by scores: the evolution operator inverted, which is exact. Where the network gives p0, the posterior."""

    name = "tau-leaping"

    def check(self, reading: Reading) -> None:
        _check_scores(self, reading, finite=reading.gives_scores)

    def foresees(self, reading: Reading) -> bool:
        """Not with scores, which say whether MASK is left."""
        return not reading.gives_scores

    def step(self, state: State, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        if not prediction.reading.gives_scores:
            return super().step(state, prediction, times, random)
        process = rate_process(times.process)
        drawn = random.draw(process.tau_leap(state.tokens, prediction.score, s=times.s, t=times.t))
        return torch.where(times.moves, drawn, state.tokens)


class Euler(Rule):
    """A step by scores to first order: Euler's, of the reverse rates."""

    name = "euler"

    def check(self, reading: Reading) -> None:
        _check_scores(self, reading, finite=True)

    def step(self, state: State, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        process = rate_process(times.process)
        drawn = random.draw(process.euler(state.tokens, prediction.score, s=times.s, t=times.t))
        return torch.where(times.moves, drawn, state.tokens)


class Certain(Rule):
    """Every masked position draws a token; those are kept where the network's likeliest token has the most probability.

    After a step no more are masked than the schedule expects, rounded. Which positions are settled does not depend on
    what was drawn: where MASK is all the noise and a step settles one, the text follows the network's own law, taken in
    an order that the network chooses. Where it settles several, they are drawn independently.

    `threshold`: positions where the likeliest token has more than that are settled too, and the network is not asked
    again until the schedule has caught up: fewer calls, and little lost, since such draws hardly depend on each other.
    """

    name = "certain"
    settings = ("threshold",)

    def __init__(self, threshold: float = 1.0) -> None:
        self.threshold = checks.fraction("threshold", threshold)

    def check(self, reading: Reading) -> None:
        self._needs_mask(reading)

    def needs(self, masked: Tensor, free: Tensor, times: Times, event: Tensor) -> Tensor | None:
        return self._waiting(masked, free, times)[0]

    def _waiting(self, masked: Tensor, free: Tensor, times: Times) -> tuple[Tensor, Tensor]:
        """The positions [..., W] among which some leave MASK now, and how many [..., 1]."""
        waiting = masked & free & times.moves
        due = self._due(waiting, free, times)
        return waiting & (due > 0), due

    def _due(self, waiting: Tensor, free: Tensor, times: Times) -> Tensor:
        """How many of the `waiting` positions [..., W] must leave MASK now: [..., 1]."""
        full = times.process.channel(torch.ones_like(times.s)).mask
        left = (times.process.channel(times.s).mask / full * (free & times.moves)).sum(-1, keepdim=True)
        count = waiting.sum(-1, keepdim=True) - (left + 0.5).floor().long()
        return count.maximum((waiting & (times.s == 0)).sum(-1, keepdim=True))

    def step(self, state: State, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        waiting, due = self._waiting(state.masked, state.free, times)
        drawn = prediction.draw(random)
        # Positions that the network cannot tell apart (a window of MASK alone) differ by rounding: leftmost first.
        certainty = torch.where(waiting, self.certainty(prediction, drawn).round(decimals=9), -math.inf)
        last = waiting & (times.s == 0)
        order = certainty.masked_fill(last, math.inf).argsort(dim=-1, descending=True, stable=True)
        rank = order.argsort(dim=-1)
        settled = (rank < due) | self.too(certainty.gather(-1, order)).gather(-1, rank)
        return torch.where(waiting & settled, drawn, state.tokens)

    def too(self, certainty: Tensor) -> Tensor:
        """Which positions are settled although none are due, of those in order [..., W]."""
        return certainty > self.threshold

    def certainty(self, prediction: Prediction, drawn: Tensor) -> Tensor:
        """By what positions are ranked, [..., W]."""
        return prediction.certainty()


class Bounded(Certain):
    """As many positions a step as can be drawn independently at a price below `threshold` nats; at least what is due.

    The surest go first, by entropy. What independent draws of a set ignore, the divergence of the joint law from the
    product of its margins, is at most the sum of their entropies less the largest (docs/theory.md): positions join
    while that is within the bound. At 0 a step settles one (and what is certain); where it settles more, the network is
    not asked again until the schedule has caught up.
    """

    name = "bounded"

    def __init__(self, threshold: float = 0.1) -> None:
        super().__init__()
        self.threshold = checks.positive("threshold", threshold, zero=True)

    def certainty(self, prediction: Prediction, drawn: Tensor) -> Tensor:
        return -prediction.entropy()

    def too(self, certainty: Tensor) -> Tensor:
        entropy = torch.where(certainty.isfinite(), -certainty, 0.0)
        return entropy.cumsum(-1) - entropy <= self.threshold  # of all before: of the set, less its largest


class LeftToRight(Certain):
    """As `Certain`, but the leftmost position goes first: autoregression whose window is seen, masked, to its end."""

    name = "left-to-right"
    settings = ()

    def __init__(self) -> None:
        super().__init__()

    def certainty(self, prediction: Prediction, drawn: Tensor) -> Tensor:
        return -torch.arange(drawn.shape[-1], dtype=torch.float64, device=drawn.device).expand(drawn.shape)


class Confidence(Certain):
    """As `Certain`, but a position is ranked by the probability of the token that it drew.

    Not exact, however many steps: unlikely draws are thrown away, as at a lower temperature.
    """

    name = "confidence"

    def certainty(self, prediction: Prediction, drawn: Tensor) -> Tensor:
        return prediction.probability(drawn, warped=False).double()


class Remask(Rule):
    """ReMDM: a token is masked again with probability eta times the most that the level of the next step allows.

    Masked positions leave so much sooner that the noise level is kept.
    """

    name = "remask"
    settings = ("eta",)

    def __init__(self, eta: float = 0.05) -> None:
        self.eta = checks.fraction("eta", eta)

    def check(self, reading: Reading) -> None:
        self._needs_mask(reading)

    def _chances(self, times: Times) -> tuple[Tensor, Tensor]:
        """Probabilities of a token to be masked again, and of MASK to leave."""
        mask_t, mask_s = (times.process.channel(time).mask for time in (times.t, times.s))
        back = self.eta * (mask_s / (1 - mask_t).clamp(min=1e-300)).clamp(max=1)
        leave = (mask_t - mask_s + back * (1 - mask_t)) / mask_t.clamp(min=1e-300)
        return torch.where(times.moves, back, 0.0), torch.where(times.moves, leave.clamp(max=1), 0.0)

    def needs(self, masked: Tensor, free: Tensor, times: Times, event: Tensor) -> Tensor:
        return masked & (event >= 1 - self._chances(times)[1])

    def step(self, state: State, prediction: Prediction, times: Times, random: StepRandom) -> Tensor:
        back, _ = self._chances(times)
        leaves = self.needs(state.masked, state.free, times, random.event)
        forgotten = ~state.masked & (random.event < back)
        tokens = torch.where(leaves, prediction.draw(random), state.tokens)
        assert times.process.mask_id is not None
        return torch.where(forgotten, times.process.mask_id, tokens)


class Speculative(Autoregressive):
    """Autoregression, drafted ahead by windows of MASK: the same text in fewer calls (`speculative.py`).

    `draft`: tokens that are drafted at a time; `ahead`: which windows draft them. None: what pays most.
    """

    name = "speculative"
    settings = ("draft", "ahead")

    def __init__(self, draft: int | None = None, ahead: str | None = None) -> None:
        self.draft = None if draft is None else checks.integer("draft", draft, low=0, high=MOST_DRAFTED)
        self.ahead = None if ahead is None else numbers.choice("ahead", ahead, AHEAD)

    def check(self, reading: Reading) -> None:
        self._needs_mask(reading)


def _check_scores(rule: Rule, reading: Reading, *, finite: bool) -> None:
    process = reading.process
    if not process.has_scores:
        raise ValueError(f"sampler {rule.name!r} does not fit {process!r}: it needs absorbing, uniform or gamma noise")
    if finite and torch.isinf(process.noise.sigma(torch.ones(()))):
        raise ValueError(
            f"sampler {rule.name!r} does not fit {process!r}: a step by scores needs finite noise at t = 1, "
            "such as LogLinear's; 'original' needs none"
        )
