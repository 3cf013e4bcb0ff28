"""The network asked only where its answer can matter: for the reference loop, step by step.

A rule's `needs` says where that is. Nowhere: no call at all. Else the trunk reads the window and the head scores the
needed positions alone.
"""

import math
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from hdlm.fast import onednn
from hdlm.fast.trunk import fast_head, fast_trunk
from hdlm.sampling.loop import Predictor, Run
from hdlm.sampling.rng import StepRandom
from hdlm.sampling.rule import Prediction, State, Thinned, Times
from hdlm.sampling.speculative import Drafter
from hdlm.theory.hyperschedule import Step
from hdlm.theory.layout import Slots
from hdlm.theory.random import waiting_times


class SparsePrediction(Prediction):
    """The network's view of the `needed` positions of a window [batch, W]; of the others nothing that is heard."""

    def __init__(self, run: Run, outputs: Tensor | None, needed: Tensor, state: State, t: Tensor) -> None:
        self.reading, self._needed, self._tokens, self._size = (
            run.reading,
            needed,
            state.tokens,
            run.reading.process.vocab_size,
        )
        self._view = None
        if outputs is not None:
            self._view = Prediction(outputs, state.tokens[needed], t[needed], run.reading, run.settings, run.witness)

    def _spread(self, values: Tensor | None, base: Tensor) -> Tensor:
        if values is not None:
            base[self._needed] = values.to(base.dtype)
        return base

    def _spread_laws(self, name: str) -> Tensor:
        laws = None if self._view is None else getattr(self._view, name)
        dtype = torch.float32 if laws is None else laws.dtype
        return self._spread(laws, torch.zeros(*self._tokens.shape, self._size, dtype=dtype, device=self._tokens.device))

    @cached_property
    def p0(self) -> Tensor:
        return self._spread_laws("p0")

    @cached_property
    def own_p0(self) -> Tensor:
        return self._spread_laws("own_p0")

    @cached_property
    def score(self) -> Tensor:
        return self._spread_laws("score")

    def draw(self, random: StepRandom, *, as_trained: bool = False) -> Tensor:
        if self._view is None:
            return self._tokens
        drawn = self._view.draw(random.at(self._needed), as_trained=as_trained)
        return self._spread(drawn, self._tokens.clone())

    def certainty(self) -> Tensor:
        base = torch.full(self._tokens.shape, -math.inf, dtype=torch.float64, device=self._tokens.device)
        return self._spread(None if self._view is None else self._view.certainty(), base)

    def entropy(self) -> Tensor:
        base = torch.full(self._tokens.shape, math.inf, dtype=torch.float64, device=self._tokens.device)
        return self._spread(None if self._view is None else self._view.entropy(), base)

    def probability(self, tokens: Tensor, *, warped: bool = True) -> Tensor:
        base = torch.full(tokens.shape, math.nan, dtype=torch.float64, device=tokens.device)
        if self._view is None:
            return base
        return self._spread(self._view.probability(tokens[self._needed], warped=warped), base)

    def likeliest(self, count: int) -> tuple[Tensor, Tensor]:
        count = min(count, self._size)
        shape, device = (*self._tokens.shape, count), self._tokens.device
        tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        values = torch.full(shape, math.nan, dtype=torch.float64, device=device)
        if self._view is None:
            return tokens, values
        found = self._view.likeliest(count)
        return self._spread(found[0], tokens), self._spread(found[1], values)

    def log_probability(self, tokens: Tensor) -> Tensor:
        base = torch.full(tokens.shape, math.nan, dtype=torch.float64, device=tokens.device)
        return self._spread(None if self._view is None else self._view.log_probability(tokens[self._needed]), base)


class FastPredictor(Predictor):
    """`Predictor` with less work."""

    def __call__(self, step: Step, state: State, times: Times, random: StepRandom) -> Prediction:
        run, t = self.run, times.t.expand_as(state.tokens)
        needed = self._needed(state, times, random)
        if needed is None:
            outputs = fast_head(run.network, self.features(step, t))
            return Prediction(outputs, state.tokens, t, run.reading, run.settings, run.witness)
        count = int(needed.sum())
        if count == 0:
            run.stats.skipped_calls += 1
            return SparsePrediction(run, None, needed, state, t)
        features = self.features(step, t, scored=count)
        return SparsePrediction(run, fast_head(run.network, features[needed]), needed, state, t)

    def _needed(self, state: State, times: Times, random: StepRandom) -> Tensor | None:
        """Where the network must be asked, [batch, W]; None: everywhere."""
        rule = self.run.rule
        if random.gumbel is not None or (isinstance(rule, Thinned) and not rule.foresees(self.run.reading)):
            return None
        needed = rule.needs(state.masked, state.free, times, random.event)
        return None if needed is None else needed & state.free

    def trunk(self, slots: Slots) -> Tensor:
        return fast_trunk(self.run.network, slots, self.cache)


class FastDrafter(Drafter):
    """`Drafter` with less work. Drafts go by scores as they are, for what is drafted decides over no text."""

    def trunk(self, slots: Slots) -> Tensor:
        return fast_trunk(self.run.network, slots, self.cache)

    def head(self, features: Tensor) -> Tensor:
        return fast_head(self.run.network, features)

    def walk(self, seen: Tensor, random: StepRandom, skip: int) -> Tensor:
        network, settings = self.run.network, self.run.settings
        truncated = settings.top_k is not None or settings.top_p not in (None, 1)
        if getattr(network, "draft", None) is None or truncated or self.drafts.gives_scores:
            return super().walk(seen, random, skip)
        size, temperature = (
            self.drafts.process.vocab_size,
            1.0 if settings.temperature is None else settings.temperature,
        )
        handicap = waiting_times(random.token, size).log().mul(temperature).to(seen.dtype)  # [batch, count, N]
        linear = onednn.linear if onednn.fits(network) else F.linear
        known, state = self.tokens_before(skip + 1), network.draft.start(seen)
        token, drawn = known[:, 0], []
        for depth in range(seen.shape[1]):
            features, state = network.draft(seen[:, depth], F.embedding(token, network.embedding), state, linear)
            if depth < skip:
                token = known[:, depth + 1]
                continue
            scores = self.head(features if depth else seen[:, 0])[..., :size]
            token = (scores - handicap[:, depth - skip]).argmax(-1)
            drawn.append(token)
        self.run.stats.head_slots += len(drawn) * len(token)
        return torch.stack(drawn, dim=1)
