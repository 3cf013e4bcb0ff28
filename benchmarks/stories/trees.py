"""What a tree of candidates would add to speculation: drafts with a second branch where they are least sure.

    PYTHONPATH=src python benchmarks/stories/trees.py --out trees.json

Speculation writes autoregression's text, whatever is drafted, so that what any tree would be worth can be replayed on
the text that is there: `accepted` drafts behind each of its tokens, with the draft head, and counts the verdicts that a
chain takes (held to what `sampler="speculative"` takes), and that trees take. A `leaf` is the runner-up of a drafted
token, verified by a slot of its own; a `branch` is a leaf that is drafted on to the depth of the chain. `slots` are
those of the pass that verifies, its windows included. `cost`: seconds of a cached pass by its slots, in turns, over
those of a pass of one.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from speculate import LENGTH, TEMPERATURES, measure, write
from torch import Tensor

from hdlm.bundle import Bundle
from hdlm.fast.trunk import fast_head, fast_trunk
from hdlm.sampling import speculative
from hdlm.theory.layout import build_layout
from hdlm.theory.random import waiting_times

MOST = 8  # tokens that are drafted at most
DRAWN = [(4, "apart"), (6, "apart"), (8, "apart"), (3, "every"), (5, "every"), (8, "every")]
# Of a tree: how many of the drafted tokens have a runner-up, and whether that is drafted on.
TREES = {"chain": (0, False), "2 leaves": (2, False), "a leaf each": (MOST, False)}
TREES |= {"1 branch": (1, True), "2 branches": (2, True), "a branch each": (MOST, True)}
SLOTS = (1, 5, 7, 9, 13, 17, 25, 49, 97)


@dataclass
class Drafts:
    """By prefix: the chain behind it, the runner-up at each depth, how sure the draft is, and the chains from there."""

    chain: list[list[int]]
    runner_up: list[list[int]]
    margin: list[list[float]]  # between the two best
    branch: list[list[list[int]]]  # [depth][prefix]


class Replay:
    """A text of autoregression, and what is drafted behind each of its prefixes."""

    def __init__(self, bundle: Bundle, seed: int, temperature: float) -> None:
        self.bundle, self.temperature = bundle, temperature
        self.drafter, self.tokens, self.start = _written(bundle, seed, temperature)
        self.text = self.tokens[0].tolist()
        self.known = torch.arange(self.start, len(self.text))  # tokens of each prefix
        numbers = self.drafter._uniform[0, : len(self.text)]  # behind the text any will do
        numbers = torch.cat([numbers, numbers.new_full((MOST,), 0.5)])
        self._waits = waiting_times(numbers, bundle.config.model.vocab_size)  # of each position's race
        self._features: dict[int, Tensor] = {}
        self._drafts: dict[tuple[int, int], Drafts] = {}

    def drafts(self, masks: int, skip: int) -> Drafts:
        """By windows of so many masks that begin `skip` tokens before a prefix ends: these are passed over."""
        if (masks, skip) not in self._drafts:
            if masks not in self._features:
                self._features[masks] = self._windows(masks)
            self._drafts[masks, skip] = self._walked(masks, skip)
        return self._drafts[masks, skip]

    @torch.no_grad()
    def _windows(self, masks: int) -> Tensor:
        """Features [windows, masks, width], one window behind each prefix from two tokens before the first on."""
        run, length = self.drafter.run, len(self.text)
        padded = torch.cat([self.tokens, self.tokens.new_zeros(1, masks)], dim=1)
        spans = [(at, at + masks) for at in range(self.start - 2, length)]
        layout = build_layout(length + masks, spans, shifted=True, settled=length + 1, one_level_a_window=True)
        masked, noise = torch.full_like(padded, self.drafter.mask_id), torch.ones(padded.shape, dtype=run.dtype)
        slots = layout.fill(padded, masked, noise, run.reading.process, bos_id=run.bos_id)
        return self.bundle.model.trunk(slots)[0, length + 1 :].unflatten(0, (len(spans), masks + 1))[:, :masks]

    @torch.no_grad()
    def _walked(self, masks: int, skip: int) -> Drafts:
        """The chains of all prefixes, and at each of their depths the runners-up, from which they go on once more."""
        head, known = self.bundle.model.draft, self.known
        assert head is not None
        start, token = self._features[masks][2 - skip :][: len(known)], self.tokens[0, known - skip - 1]
        state = head.start(start)
        for depth in range(skip):
            _, state = head(start[:, depth], self.bundle.model.embedding[token], state)
            token = self.tokens[0, known - skip + depth]
        seen = start[:, skip:]
        chain, state_after, margin, runner_up, branch = [], [], [], [], []
        for depth in range(seen.shape[1]):
            top, state = self._drawn(seen, depth, token, state, first=skip == 0)
            token = top.indices[:, 0]
            chain.append(token)
            state_after.append(state)
            runner_up.append(top.indices[:, 1])
            margin.append((top.values[:, 0] / top.values[:, 1]).log())
        for depth, (other, state) in enumerate(zip(runner_up, state_after, strict=True)):
            on, token = [*chain[:depth], other], other
            for further in range(depth + 1, seen.shape[1]):
                top, state = self._drawn(seen, further, token, state)
                token = top.indices[:, 0]
                on.append(token)
            branch.append(torch.stack(on, dim=1).tolist())
        found = (torch.stack(column, dim=1).tolist() for column in (chain, runner_up, margin))
        return Drafts(*found, branch)

    def _drawn(
        self, seen: Tensor, depth: int, token: Tensor, state: Tensor, *, first: bool = False
    ) -> tuple[Any, Tensor]:
        """The two best tokens of each prefix at a depth, with their scores, and the draft head's next state.

        `first`: the window begins where what is known ends, so that its first position is read as it is.
        """
        assert self.bundle.model.draft is not None
        known, state = self.bundle.model.draft(seen[:, depth], self.bundle.model.embedding[token], state)
        features = seen[:, 0] if first and depth == 0 else known
        view = self.drafter._prediction(features.unsqueeze(1), self.drafter.drafts)
        if self.temperature == 0:  # by the law alone; else by what decides a race
            return view.own_p0[:, 0].topk(2), state
        return (view.p0[:, 0].double() / self._waits[self.known + depth]).topk(2), state

    def verdicts(self, count: int, ahead: str, leaves: int, branched: bool) -> tuple[int, int, int, int]:
        """How many the text takes; the slots of their passes; drafts that were refused, and runners-up that were right.

        `apart`: drafts begin where what is known ends. `every`: at its last token, or the last two where a leaf was
        right, whose window knew neither and so drafts one token less.
        """
        apart = ahead == "apart"
        known, skip, total, slots, refused, right = self.start, None, 0, 0, 0, 0
        while known < len(self.text):
            at, total, next_skip = known - self.start, total + 1, 0 if apart else 1
            drafts = None if skip is None else self.drafts(count + (not apart), skip)
            chain = [] if drafts is None else drafts.chain[at]
            kept, least_sure = self._agreeing(chain, known), []
            gained, more = kept + 1, 0
            if drafts is not None:
                margin = drafts.margin[at]
                least_sure = sorted(range(len(chain)), key=lambda depth: margin[depth])[:leaves]
                more = sum(len(chain) - depth if branched else 1 for depth in least_sure)
            if drafts is not None and kept < len(chain) and known + kept < len(self.text):
                refused += 1
                hit = drafts.runner_up[at][kept] == self.text[known + kept]
                right += hit
                if hit and kept in least_sure:
                    on = drafts.branch[kept][at] if branched else chain[: kept + 1]
                    gained = kept + 2 + self._agreeing(on[kept + 1 :], known + kept + 1)
                    next_skip += not (apart or branched)
            windows = 0 if apart else (count + 2) * (1 + len(chain) + (more if branched else 0))
            slots += 1 + len(chain) + more + windows
            known, skip = known + gained, next_skip
        return total, slots, refused, right

    def _agreeing(self, tokens: list[int], known: int) -> int:
        """How many of some tokens are the text's behind a prefix."""
        pairs = zip(tokens, self.text[known:], strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(self.text) - known))


def _written(bundle: Bundle, seed: int, temperature: float) -> tuple[speculative.Drafter, Tensor, int]:
    """A text by speculation on the ground floor: its drafter, its tokens [1, length], and where what is new begins."""
    made: list[speculative.Drafter] = []
    initial = speculative.Drafter.__init__

    def noted(drafter: speculative.Drafter, run) -> None:
        initial(drafter, run)
        made.append(drafter)

    speculative.Drafter.__init__ = noted
    try:
        samples = write(bundle, seed, sampler="speculative", draft=6, ahead="apart", temperature=temperature)
    finally:
        speculative.Drafter.__init__ = initial
    (drafter,) = made
    start = drafter.run.starts[0]
    tokens = drafter.run.tokens[:, : start + LENGTH]
    assert tokens[0, start:].tolist() == samples.tokens[0][-LENGTH:]
    return drafter, tokens, start


def accepted(bundle: Bundle, texts: int) -> list[dict]:
    """Tokens a verdict of chains and trees; of refused tokens, how many runners-up were right."""
    rows = []
    for temperature in TEMPERATURES:
        replays = [Replay(bundle, seed, temperature) for seed in range(texts)]
        _hold_to_the_sampler(bundle, replays[0], temperature)
        for count, ahead in DRAWN:
            for name, (leaves, branched) in TREES.items():
                found = [replay.verdicts(count, ahead, leaves, branched) for replay in replays]
                tokens = [LENGTH / verdicts for verdicts, *_ in found]
                rows.append({"temperature": temperature, "draft": count, "ahead": ahead, "tree": name, "texts": texts})
                rows[-1] |= {
                    "tokens_per_verdict": statistics.mean(tokens),
                    "error": statistics.stdev(tokens) / texts**0.5 if texts > 1 else None,
                    "slots": sum(slots for _, slots, *_ in found) / sum(verdicts for verdicts, *_ in found),
                    "runner_up_right": sum(right for *_, right in found) / sum(refused for *_, refused, _ in found),
                }
                print(rows[-1], flush=True)
    return rows


def _hold_to_the_sampler(bundle: Bundle, replay: Replay, temperature: float) -> None:
    """A chain's verdicts are those that the sampler takes, for the text of seed 0.

    All tokens that were not drafted came of a verdict each; of the last one none may have.
    """
    for count, ahead in DRAWN:
        stats = write(bundle, 0, sampler="speculative", draft=count, ahead=ahead, temperature=temperature).stats
        own, replayed = LENGTH - stats.accepted, replay.verdicts(count, ahead, 0, False)[0]
        if replayed not in (own, own + 1):
            raise ValueError(f"{count} {ahead} took {own} verdicts, and the replay {replayed}")


@torch.no_grad()
def cost(bundle: Bundle, turns: int, known: int = 100) -> list[dict]:
    """Seconds of a pass of so many settled slots behind `known` cached ones, head included, over those of one slot."""
    x, times = torch.zeros(1, known + max(SLOTS) + 1, dtype=torch.long), {slots: [] for slots in SLOTS}
    cache = bundle.model.new_cache(1, x.shape[1] + 1)
    for _ in range(turns + 1):
        for slots in SLOTS:
            layout = build_layout(known + slots, [], shifted=True, settled=known + slots, skip=known)
            cache.settled = [known]
            began = time.perf_counter()
            filled = layout.fill(x, x, torch.zeros(x.shape), bundle.process, bos_id=bundle.config.bos_id)
            fast_head(bundle.model, fast_trunk(bundle.model, filled, cache))
            times[slots].append(time.perf_counter() - began)
    one = times[SLOTS[0]][1:]
    rows = []
    for slots, values in times.items():
        ratio = statistics.median(a / b for a, b in zip(values[1:], one, strict=True))
        rows.append({"slots": slots, "ratio": ratio, "least_ratio": min(values[1:]) / min(one)})
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    measure(__doc__, {"accepted": accepted}, {"cost": cost}, threads=1)
