"""A network that knows the truth: exact p(x0 | what it sees) for a joint law over a few tokens, and the loop on it."""

import torch

from hdlm.config.sampling import DrawSettings
from hdlm.objectives.hdce import HDCE
from hdlm.sampling import loop
from hdlm.sampling.generate import initial_tokens
from hdlm.sampling.loop import Run
from hdlm.sampling.rng import SampleRNG
from hdlm.theory import checks
from hdlm.theory.layout import BOS, NOTHING
from hdlm.theory.parameterization import output_to_clean
from hdlm.theory.process import Process
from hdlm.theory.reading import CleanReading


class PassOn:
    """A head that does nothing."""

    def __call__(self, features):
        return features

    def chunks(self, count):
        return [slice(0, count)]


class Oracle:
    """Outputs whose reading is the exact law of each clean token given the slots, aligned.

    `law` [N ** length] over all clean sequences in order. Features are the outputs, and the head does nothing.
    """

    head = PassOn()

    def __init__(self, reading, law, length, *, shifted=False):
        self.process: Process = reading.process
        self.reading, self.law, self.length, self.shifted = reading, law, length, shifted
        n = self.process.vocab_size
        self.clean = torch.cartesian_prod(*[torch.arange(n)] * length).view(-1, length)

    def new_cache(self, batch, capacity):
        raise AssertionError("the oracle has no cache")

    def trunk(self, slots, cache=None):
        """The few distinct rows are worked out once each."""
        base = self.process.num_states
        codes, row = (slots.token * base ** torch.arange(slots.token.shape[1])).sum(1).unique(return_inverse=True)
        distinct = codes.unsqueeze(1) // base ** torch.arange(slots.token.shape[1]) % base
        return self._answer(slots.layout, distinct, slots.slot_sigma()[0].double())[row]

    def _answer(self, layout, tokens, sigma):
        batch, n = len(tokens), self.process.vocab_size
        likelihood = self.law.expand(batch, -1)
        times = torch.zeros(self.length, dtype=torch.float64)
        seen = {}
        for slot in range(len(layout)):
            place = int(layout.holds[slot])
            if place == BOS:
                continue
            noisy = bool(layout.noisy[slot])
            at = [k for k in range(len(layout)) if int(layout.predicts[k]) == place and bool(layout.window[k] >= 0)]
            time = self.process.noise.time(sigma[at[0]]) if noisy and at else torch.zeros((), dtype=torch.float64)
            if place in seen and not noisy:
                continue
            seen[place], times[place] = tokens[:, slot], time
            likelihood = likelihood * self._forward(time)[tokens[:, slot]][:, self.clean[:, place]]
        outputs = torch.zeros(batch, len(layout), n, dtype=torch.float64)
        for slot in range(len(layout)):
            place = int(layout.predicts[slot])
            if place == NOTHING or (layout.window[slot] < 0 and not self.shifted):
                continue
            p0 = torch.stack([(likelihood * (self.clean[:, place] == z)).sum(1) for z in range(n)], 1)
            p0 = p0 / p0.sum(1, keepdim=True)
            xt = seen.get(place, torch.full((batch,), self.process.mask_id or 0))
            outputs[:, slot] = self._outputs(p0, xt, times[place].expand(batch))
        return outputs

    def _forward(self, time):
        """P[x_t | x_0], [states, N]."""
        return self.process.marginal(torch.eye(self.process.vocab_size, dtype=torch.float64), time).T

    def _outputs(self, p0, xt, t):
        log_p0 = p0.log().clamp(min=-80)
        with checks.trusted():
            if self.reading.gives_scores:
                offset = self.reading._offset(self.process, xt, t).unsqueeze(-1).nan_to_num(neginf=0.0)
                return CleanReading(self.process).log_score(self._plain(log_p0, xt, t), xt, t).clamp(min=-80) - offset
            return self._minimiser(log_p0, xt, t) if self.reading.reweighted else self._plain(log_p0, xt, t)

    def _plain(self, log_p0, xt, t):
        """Logits that `CleanReading` reads as log_p0: less the evidence that it adds."""
        return log_p0 if self.process.masks_only else log_p0 - output_to_clean(self.process, 0 * log_p0, xt, t)

    def _minimiser(self, log_p0, xt, t):
        """What HDCE itself is least at: the law times the weight of each clean token, however it is read."""
        weights = [HDCE(self.process).weights(xt, torch.full_like(xt, z), t) for z in range(log_p0.shape[-1])]
        return log_p0 + torch.stack(weights, -1).log()


def random_law(n, length, *, seed=0):
    """A law over all sequences, far from uniform and from independent."""
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(n**length, generator=generator, dtype=torch.float64)).softmax(0)


def sample(oracle, schedule, rule, *, rows, seed=0, flawed=False, **settings):
    """Tokens [rows, length] by the reference loop."""
    rng = SampleRNG(seed, torch.arange(rows), flawed=flawed)
    tokens, given = initial_tokens([[None] * schedule.length] * rows, [0] * rows, oracle.process, rng)
    run = Run(
        oracle,
        oracle.reading,
        rule,
        schedule,
        rng,
        tokens,
        given,
        (0,) * rows,
        DrawSettings(cache=False, **settings),
        shifted=oracle.shifted,
        bos_id=0,
        dtype=torch.float64,
    )
    for _ in loop.sample(run, loop.Predictor(run)):
        pass
    return run.tokens


def frequencies(tokens, n):
    """How often each sequence came, [N ** length]."""
    length = tokens.shape[1]
    index = (tokens * n ** torch.arange(length - 1, -1, -1)).sum(1)
    return torch.bincount(index, minlength=n**length).double()


def distance(tokens, law, n):
    """Total variation between samples and the law."""
    counts = frequencies(tokens, n)
    return 0.5 * (counts / counts.sum() - law).abs().sum().item()


def chi_square(tokens, law, n):
    """Pearson's statistic, and the value that it exceeds once in about 10^5 for a right sampler."""
    counts = frequencies(tokens, n)
    expected = law * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    freedom = len(law) - 1
    return statistic, freedom * (1 - 2 / (9 * freedom) + 4.3 * (2 / (9 * freedom)) ** 0.5) ** 3
