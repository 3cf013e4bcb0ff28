"""What a noising process is, and everything about it that follows from two small tables.

A process acts on every position on its own. Given a clean token it says what has become of it by time t
(`channel`), and given the noisy token and a guess of the clean one it says what it was a little earlier
(`reverse`). Corruption, marginals, posteriors, priors and exact draws are written here once, from those
two. Knows no network and no schedule of positions: a time comes with each token.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from hdlm.theory import checks
from hdlm.theory.noise import Noise
from hdlm.theory.random import Source, categorical, uniform, uniform_token


@dataclass(frozen=True)
class Channel:
    """What has become of a clean token by some time: three probabilities that sum to 1, per position.

    A replaced token is uniform over the N real tokens, the original included.
    """

    keep: Tensor
    replace: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Reverse:
    """The law of x_s given x_t = xt: `stay` at xt, and `scale * p0[z] + floor` at every other real token z.

    One number each per position, whatever the vocabulary: the law over N tokens need not be built.
    """

    stay: Tensor
    scale: Tensor
    floor: Tensor


class Process(ABC):
    """A noising process over `vocab_size` real tokens and, for most, one MASK state.

    Arguments that recur: `xt` [...] noisy tokens, `x0` [...] clean tokens, `s` and `t` times that
    broadcast to them, `p0` [..., N] the law of the clean token given the noisy one.
    """

    vocab_size: int
    noise: Noise
    has_scores: ClassVar[bool] = False  # whether rates, and so ratios of probabilities, exist

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Process):
            return NotImplemented
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self).__name__, *vars(self).values()))

    @property
    def masks_only(self) -> bool:
        """Whether MASK is all the noise there is, so that any other token is the clean one."""
        return False

    @property
    def mask_id(self) -> int | None:
        """The id of MASK, one past the real tokens; None for a process that never masks."""
        return self.vocab_size

    @property
    def num_states(self) -> int:
        """Real tokens plus MASK if there is one."""
        return self.vocab_size + (self.mask_id is not None)

    @property
    def starts_masked(self) -> bool:
        """Whether generation starts from MASK everywhere.

        MASK says nothing of the clean token, so that starting there is exact even where alpha(1) > 0. A process that
        never masks starts from its prior.
        """
        return self.mask_id is not None and self.channel(torch.ones((), dtype=torch.float64)).mask.item() > 0

    @abstractmethod
    def channel(self, t: Tensor) -> Channel:
        """What has become of a clean token by time t."""

    @abstractmethod
    def reverse(self, xt: Tensor, p_own: Tensor, *, s: Tensor, t: Tensor) -> Reverse:
        """The law of x_s given xt, mixed over p0, where `p_own` = p0[xt] (anything where xt is MASK)."""

    def embedding_weight(self, t: Tensor) -> Tensor:
        """Share of a token's own embedding at time t; the rest is MASK's (eq. weightedtokenembedding)."""
        return torch.ones_like(t)

    def evidence(self, t: Tensor) -> Tensor:
        """By how much seeing a token at time t speaks for its being the clean one: log P[x | x] / P[x | y], y != x.

        Infinite where no token is ever replaced.
        """
        channel = self.channel(t)
        return torch.log1p(self.vocab_size * channel.keep / channel.replace)

    def is_mask(self, xt: Tensor) -> Tensor:
        """Where the state is MASK."""
        return torch.zeros_like(xt, dtype=torch.bool) if self.mask_id is None else xt == self.mask_id

    def certain_stay(self, masked: Tensor, *, s: Tensor, t: Tensor) -> Tensor:
        """The least probability of staying from t to s whatever p0 says, [...]; `masked` says where the state is MASK.

        There it is exactly the probability of staying: when a position leaves MASK does not depend on p0. With u as in
        `draw_posterior`, a position where u is below this stays, and nobody needs to know p0 there.
        """
        state = torch.where(masked, self.mask_id if self.mask_id is not None else 0, 0)
        return self.reverse(state, torch.zeros_like(s + t), s=s, t=t).stay.expand(masked.shape)

    def corrupt(self, x0: Tensor, t: Tensor, *, generator: Source = None) -> Tensor:
        """Noisy tokens at the times t, drawn from two uniforms a position: no [..., N] tensor is built."""
        checks.tokens("x0", x0, self.vocab_size)
        checks.times("t", t)
        shape = checks.together(x0=x0.shape, t=t.shape)
        x0, t = x0.expand(shape), t.expand(shape)
        channel = self.channel(t)
        event = uniform(x0.shape, generator=generator, device=x0.device)
        other = uniform_token(uniform(x0.shape, generator=generator, device=x0.device), self.vocab_size)
        masked = event < channel.mask
        replaced = ~masked & (event < channel.mask.double() + channel.replace.double())
        xt = torch.where(replaced, other.to(x0.dtype), x0)
        return xt if self.mask_id is None else torch.where(masked, self.mask_id, xt)

    def marginal(self, p0: Tensor, t: Tensor) -> Tensor:
        """The law of the noisy token at time t when the clean one follows p0: [..., num_states]."""
        checks.probabilities("p0", p0, self.vocab_size)
        checks.times("t", t)
        channel = self.channel(widen(t, p0))
        shape = checks.together(p0=p0.shape[:-1], t=t.shape)
        law = self._pad(p0.expand(*shape, -1))
        law.mul_(channel.keep.unsqueeze(-1)).add_((channel.replace / self.vocab_size).unsqueeze(-1))
        if self.mask_id is not None:
            law[..., self.mask_id] = channel.mask.to(law.dtype)
        return law

    def posterior(self, xt: Tensor, p0: Tensor, *, s: Tensor, t: Tensor) -> Tensor:
        """The law of x_s given x_t = xt, mixed over p0: [..., num_states], s <= t."""
        xt, p0, reverse = self._reverse(xt, p0, s=s, t=t)
        return self._law(p0, xt, reverse)

    def sample_posterior(self, xt: Tensor, p0: Tensor, *, s: Tensor, t: Tensor, generator: Source = None) -> Tensor:
        """Draws from `posterior` without building it: one uniform a position."""
        shape = checks.together(xt=xt.shape, p0=p0.shape[:-1], s=s.shape, t=t.shape)
        u = uniform(shape, generator=generator, device=xt.device)
        return self.draw_posterior(xt, p0, u, s=s, t=t)

    def draw_posterior(self, xt: Tensor, p0: Tensor, u: Tensor, *, s: Tensor, t: Tensor) -> Tensor:
        """The state at time s that the uniform u [...] stands for: it stays at xt where u is below `reverse(...).stay`.

        Above that, u chooses between a token from p0 and a uniform token, and what is left of it within the chosen
        interval chooses the token. Exact to float64.
        """
        xt, p0, reverse = self._reverse(xt, p0, s=s, t=t)
        is_mask = self.is_mask(xt)
        others = self.vocab_size - (~is_mask).long()
        p_own = torch.where(is_mask, 0.0, own_entry(p0, xt, self.vocab_size)).double()
        stay, floor = reverse.stay.double(), reverse.floor.double()
        total = p0.sum(-1, dtype=torch.promote_types(p0.dtype, torch.float32))
        from_p0 = reverse.scale.double() * (total.double() - p_own).clamp(min=0)
        from_floor = floor * others
        point = u * (stay + from_p0 + from_floor)
        # Out of MASK the step is decided by u and the times alone; rounding in p0 must not change that.
        moves = torch.where(is_mask, u >= stay, point >= stay)
        to_floor = moves & (from_floor > 0) & (point >= stay + from_p0)
        to_p0 = moves & (from_p0 > 0) & ~to_floor
        index = uniform_token(((point - stay - from_p0) / from_floor).nan_to_num(0.0).clamp(0, 1), others)
        index = index + (~is_mask & (index >= xt)).long()
        result = torch.where(to_floor, index.to(xt.dtype), xt)
        u = ((point - stay) / from_p0).nan_to_num(0.0).clamp(0, 1 - 2.0**-53)
        token = categorical(p0, u, exclude=torch.where(is_mask, -1, xt).long())
        return torch.where(to_p0, token.to(xt.dtype), result)

    def prior(
        self, shape: Sequence[int], *, generator: Source = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Tokens at t = 1: MASK, or a uniform real token with the probability that MASK has not come."""
        masked = self.channel(torch.ones((), dtype=torch.float64)).mask.item()
        event = uniform(shape, generator=generator, device=device)
        token = uniform_token(uniform(shape, generator=generator, device=device), self.vocab_size)
        return token if self.mask_id is None else torch.where(event < masked, self.mask_id, token)

    def prior_kl(self) -> float:
        """KL divergence in nats per token of the law at t = 1, given the clean token, from the prior.

        What a likelihood bound adds for the information that the last level of noise leaves.
        """
        end = self.channel(torch.ones((), dtype=torch.float64))
        alive = end.keep.item() + end.replace.item()
        other = end.replace.item() / self.vocab_size
        own = end.keep.item() + other
        if alive == 0:
            return 0.0
        average = alive / self.vocab_size
        changed = (self.vocab_size - 1) * other * math.log(other / average) if other > 0 else 0.0
        return own * math.log(own / average) + changed

    def _reverse(self, xt: Tensor, p0: Tensor, *, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Reverse]:
        """Checked arguments, broadcast together, and the reverse law at each position."""
        checks.tokens("xt", xt, self.num_states)
        checks.probabilities("p0", p0, self.vocab_size)
        checks.times("s", s)
        checks.times("t", t)
        checks.ordered(s, t)
        shape = checks.together(xt=xt.shape, p0=p0.shape[:-1], s=s.shape, t=t.shape)
        xt, p0 = xt.expand(shape), p0.expand(*shape, -1)
        s, t = widen(s, p0), widen(t, p0)
        return xt, p0, self.reverse(xt, own_entry(p0, xt, self.vocab_size), s=s, t=t)

    def _pad(self, p: Tensor) -> Tensor:
        """A fresh copy of p [..., N] with a zero column for MASK where the process has one."""
        return p.clone() if self.mask_id is None else F.pad(p, (0, 1))

    def _law(self, p: Tensor, xt: Tensor, reverse: Reverse) -> Tensor:
        """`reverse` spelled out over all states, in one buffer: [..., num_states]."""
        law = self._pad(p).mul_(reverse.scale.unsqueeze(-1)).add_(reverse.floor.unsqueeze(-1))
        if self.mask_id is not None:
            law[..., self.mask_id] = 0
        stay = reverse.stay.expand(xt.shape).to(law.dtype)
        return law.scatter_(-1, xt.long().unsqueeze(-1), stay.unsqueeze(-1))


def widen(t: Tensor, p: Tensor) -> Tensor:
    """Times in the precision of p, and never below float32."""
    return t.to(torch.promote_types(torch.promote_types(t.dtype, p.dtype), torch.float32))


def own_entry(p0: Tensor, xt: Tensor, vocab_size: int) -> Tensor:
    """p0[xt] [...], in at least float32; where xt is MASK some finite number that nobody reads."""
    index = xt.long().clamp(max=vocab_size - 1).unsqueeze(-1)
    own = p0.gather(-1, index).squeeze(-1)
    return own.to(torch.promote_types(own.dtype, torch.float32))
