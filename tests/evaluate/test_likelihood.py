"""Bounds against exact references: entropies, enumeration, and independently written likelihoods."""

import math
from types import SimpleNamespace

import pytest
import torch
from support.bundles import bundle
from support.oracle import Oracle, random_law

import hdlm
from hdlm.config.schedule import ScheduleConfig
from hdlm.evaluate.likelihood import estimate
from hdlm.theory.layout import NOTHING, SETTLED, build_layout
from hdlm.theory.reading import CleanReading, ScoreReading

N, LENGTH = 3, 4


class DoubledOracle(Oracle):
    """The exact law of each predicted token given all slots that it may look at, in any aligned layout.

    `power`: the law is raised to it and normalised, for a denoiser that is wrong on purpose.
    """

    power = 1.0

    def trunk(self, slots, cache=None):
        layout, sigma = slots.layout, slots.slot_sigma().double()
        mask = layout.mask()
        outputs = torch.zeros(*slots.token.shape, self.process.vocab_size, dtype=torch.float64)
        for q in range(len(layout)):
            place = int(layout.predicts[q])
            if place == NOTHING or layout.window[q] == SETTLED:
                continue
            likelihood = self.law.expand(len(slots.token), -1)
            for k in mask[q].nonzero().flatten().tolist():
                held, noisy = int(layout.holds[k]), bool(layout.noisy[k])
                if held < 0:
                    continue
                token = slots.token[:, k]
                if not noisy:
                    chance = (token.unsqueeze(1) == self.clean[:, held]).double()
                else:
                    t = self.process.noise.time(sigma[:, k])
                    seen = self.process.marginal(torch.eye(self.process.vocab_size, dtype=torch.float64), t.view(-1, 1))
                    chance = seen[torch.arange(len(token)).unsqueeze(1), self.clean[:, held], token.unsqueeze(1)]
                likelihood = likelihood * chance
            p0 = torch.stack([(likelihood * (self.clean[:, place] == z)).sum(1) for z in range(N)], 1)
            p0 = (p0 / p0.sum(1, keepdim=True)) ** self.power
            p0 = p0 / p0.sum(1, keepdim=True)
            at = [k for k in range(len(layout)) if int(layout.holds[k]) == place and int(layout.window[k]) >= 0]
            at = next(k for k in at if layout.window[k] == layout.window[q])
            outputs[:, q] = self._outputs(p0, slots.token[:, at], self.process.noise.time(sigma[:, q]))
        return outputs


def fake(reading, law, kind, width=None, *, levels=None, reads_noise=True):
    """What `estimate` needs of a bundle, around an oracle."""
    oracle = DoubledOracle(reading, law, LENGTH)
    oracle.embedding = torch.zeros((), dtype=torch.float64)
    own = ScheduleConfig(kind, LENGTH, width=width, levels=levels)
    config = SimpleNamespace(
        hyperschedule=own,
        model=SimpleNamespace(vocab_size=N, reads_noise=reads_noise),
        shifted=False,
        bos_id=None,
        block_causal=False,
        reading=lambda process: reading,
    )
    what = {"process": reading.process, "hyperschedule": own.build(), "device": torch.device("cpu")}
    return SimpleNamespace(model=oracle, config=config, check_masks=lambda what: None, **what)


def rows_of(law, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    index = torch.multinomial(law, count, replacement=True, generator=generator)
    return torch.cartesian_prod(*[torch.arange(N)] * LENGTH)[index].tolist()


READINGS = {
    "absorbing": CleanReading(hdlm.Absorbing(N)),
    "absorbing, loglinear": CleanReading(hdlm.Absorbing(N, hdlm.LogLinear(1e-4))),
    "absorbing, score": ScoreReading(hdlm.Absorbing(N, hdlm.LogLinear(1e-4))),
    "uniform": CleanReading(hdlm.Uniform(N, hdlm.LogLinear(1e-4))),
    "gamma": CleanReading(hdlm.GammaHybrid(N, 0.2, hdlm.LogLinear(1e-4))),
    "gamma, score": ScoreReading(hdlm.GammaHybrid(N, 0.2, hdlm.LogLinear(1e-4))),
}
KINDS = [("flat", None), ("block", 2), ("block", 3), ("slide", 2)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("reading", READINGS)
def test_the_bound_of_an_exact_denoiser_is_the_entropy(reading, kind):
    """Whatever the schedule and the process: the whole path tells exactly what there is to tell."""
    law = random_law(N, LENGTH)
    entropy = -(law * law.log()).sum().item() / LENGTH
    found = estimate(fake(READINGS[reading], law, *kind), rows_of(law, 1500), draws=2, batch_size=1000)
    assert found.error < 0.06
    assert abs(found.value - entropy) < 3.2 * found.error + 2e-3
    assert found.draw_error is not None
    assert found.draw_error < 1.2 * found.error


LEVELS = {
    "scrambled": [[3, 3, 3, 3], [3, 1, 2, 3], [2, 0, 2, 1], [2, 0, 2, 1], [0, 0, 1, 1], [0, 0, 0, 0]],
    "overlapping windows": [[4, 4, 4, 4], [2, 3, 4, 4], [0, 3, 3, 4], [0, 1, 2, 4], [0, 0, 0, 4], [0, 0, 0, 0]],
}


@pytest.mark.parametrize("reading", ["absorbing", "absorbing, score", "gamma"])
@pytest.mark.parametrize("levels", LEVELS)
def test_so_it_is_by_any_matrix_of_levels(levels, reading):
    """Whether its one window holds all, or windows come after what is settled, some of which share a pass."""
    law = random_law(N, LENGTH)
    entropy = -(law * law.log()).sum().item() / LENGTH
    model = fake(READINGS[reading], law, "custom", levels=LEVELS[levels], reads_noise=reading != "absorbing")
    found = estimate(model, rows_of(law, 1500), draws=2, batch_size=1000)
    assert found.error < 0.06
    assert abs(found.value - entropy) < 3.2 * found.error + 2e-3
    assert found.schedule == "custom"
    assert len(found.positions) == LENGTH


def test_custom_levels_cut_where_a_text_ends_and_after_what_is_given():
    law, scrambled = random_law(N, LENGTH), [[2, 2, 2, 2], [2, 1, 2, 1], [1, 0, 2, 0], [0, 0, 0, 0]]
    for levels in (scrambled, hdlm.Block(4, 2).levels.tolist()):
        model = fake(READINGS["absorbing"], law, "custom", levels=levels)
        rows, how = rows_of(law, 1000), {"draws": 4, "batch_size": 1000}
        whole, given = estimate(model, rows, **how), estimate(model, rows, prefix=2, **how)
        shorter = estimate(model, [row[:2] for row in rows], **how)
        assert abs(whole.nats - given.nats - shorter.nats) / len(rows) < 0.08, "the chain rule"
        with pytest.raises(ValueError, match=r"length = 5 is not accepted: .* has 4 positions"):
            estimate(model, [[0] * 5])
    few = estimate(model, rows, prefix=2, hyperschedule=hdlm.Custom([[2, 2], [2, 0], [0, 0]]), **how)
    assert abs(few.nats - given.nats) / len(rows) < 0.08, "its columns are those of what is not given"
    epsilon = estimate(fake(CleanReading(hdlm.EpsilonHybrid(N, 0.1)), law, "custom", levels=scrambled), rows[:4])
    assert (epsilon.name, epsilon.beside) == ("masked bound of the absorbing process", ())


@pytest.mark.parametrize("seed", range(5))
def test_a_slide_is_scored_over_all_its_offsets(seed):
    """Tokens that are mostly equal: any one offset alone is off by many standard errors, low or high."""
    clean = torch.cartesian_prod(*[torch.arange(N)] * LENGTH)
    law = torch.where((clean == clean[:, :1]).all(1), 1.0, 0.003).double()
    law = law / law.sum()
    entropy = -(law * law.log()).sum().item() / LENGTH
    rows = rows_of(law, 1500, seed=seed)
    found = estimate(fake(READINGS["gamma"], law, "slide", 2), rows, draws=2, batch_size=1000, seed=seed)
    assert abs(found.value - entropy) < 3.5 * found.error + 2e-3


def test_block_causal_blocks_keep_their_width_after_a_prefix():
    model = bundle("block", 4, process="absorbing", shifted=False, block_causal=True)
    row = [1, 2, 3, 4, 5, 6]
    whole = estimate(model, [row], prefix=4, draws=64)
    last = estimate(model, [row], prefix=5, draws=64)
    assert whole.tokens == 2
    assert last.tokens == 1
    with pytest.raises(ValueError, match="see whole blocks of 4"):
        estimate(model, [row], hyperschedule=hdlm.Slide(6, 2))


def test_a_wrong_denoiser_pays_and_the_estimate_is_the_enumerated_bound():
    """Flat, absorbing: the integral over t by quadrature, the expectation over masks by enumeration."""
    law = random_law(N, LENGTH)
    model = fake(READINGS["absorbing"], law, "flat")
    model.model.power = 0.3
    x0 = rows_of(law, 1)[0]
    found = estimate(model, [x0], draws=4000, batch_size=2000)
    exact, process = 0.0, model.process
    nodes = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
    layout = build_layout(LENGTH, [(0, LENGTH)], shifted=False, settled=0, one_level_a_window=True)
    for pattern in range(1, 2**LENGTH):
        hidden = torch.tensor([bool(pattern >> i & 1) for i in range(LENGTH)])
        xt = torch.where(hidden, process.mask_id, torch.tensor(x0)).unsqueeze(0)
        slots = layout.fill(torch.tensor([x0]), xt, torch.full((1, LENGTH), 0.5, dtype=torch.float64), process)
        log_p = model.model.trunk(slots).log_softmax(-1)[0, torch.arange(LENGTH), torch.tensor(x0)]
        # P[pattern | t] = t^k (1 - t)^(L - k), loss 1 / t a hidden token.
        k = int(hidden.sum())
        weight = (nodes ** (k - 1) * (1 - nodes) ** (LENGTH - k)).mean().item()
        exact -= weight * log_p[hidden].sum().item()
    assert abs(found.value * LENGTH - exact) < 3.2 * found.error * LENGTH + 1e-3
    everywhere = estimate(model, rows_of(law, 1500), draws=2, batch_size=1000)
    entropy = -(law * law.log()).sum().item() / LENGTH
    assert everywhere.value > entropy + 3 * everywhere.error, "no model of a law does better than the law"


@pytest.mark.parametrize("kind", [("flat", None), ("slide", 2)], ids=str)
def test_the_epsilon_bound_is_one(kind):
    """Never below the entropy; the same network as a masked denoiser stands beside it."""
    law = random_law(N, LENGTH)
    entropy = -(law * law.log()).sum().item() / LENGTH
    reading = CleanReading(hdlm.EpsilonHybrid(N, 0.1))
    found = estimate(fake(reading, law, *kind), rows_of(law, 1500), draws=2, batch_size=1000)
    assert found.name == "epsilon-hybrid bound"
    assert found.value > entropy - 3 * found.error
    assert found.value < entropy + 0.35
    assert found.beside[0].name == "masked bound of the absorbing process"


def test_quench_is_the_causal_likelihood():
    model = bundle("quench", process="absorbing")
    rows = [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [7, 7, 7]]
    found = estimate(model, rows)
    nats = 0.0
    for row in rows:
        x = torch.tensor([row])
        layout = build_layout(len(row), [], shifted=True)
        slots = layout.fill(x, x, torch.zeros(x.shape), model.process, bos_id=3)
        log_p = model.model(slots)[0, : len(row), :11].log_softmax(-1)
        nats -= log_p[torch.arange(len(row)), x[0]].sum().item()
    assert found.name == "exact negative log-likelihood"
    assert found.value == pytest.approx(nats / 13, abs=1e-6)
    assert found.tokens == 13
    given = estimate(model, rows[:2], prefix=2)
    whole, first = estimate(model, rows[:2]), estimate(model, [row[:2] for row in rows[:2]])
    assert given.nats == pytest.approx(whole.nats - first.nats, abs=1e-6), "the chain rule"


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("kind", [("flat", None), ("block", 4), ("slide", 4)], ids=str)
@pytest.mark.parametrize("process", ["absorbing", "gamma", "epsilon", "uniform"])
def test_given_text_is_never_scored_nor_noised(process, kind, shifted):
    """Changing a given token changes the bound (it is seen); rows and batches do not change it."""
    model = bundle(kind[0], kind[1], process=process, shifted=shifted)
    rows = [[1, 2, 3, 4, 5, 6, 7], [9, 8, 7, 6, 5, 4, 3]]
    found = estimate(model, rows, prefix=3, draws=6)
    assert found.tokens == 8
    assert len(found.positions) == 4
    again = estimate(model, rows, prefix=3, draws=6, batch_size=1)
    assert again.value == pytest.approx(found.value, rel=1e-9)
    other = estimate(model, [[0, *row[1:]] for row in rows], prefix=3, draws=6)
    assert other.value != pytest.approx(found.value, rel=1e-6)
    assert math.isfinite(found.value)


def test_per_position_means_make_up_the_whole():
    model = bundle("block", 4, process="absorbing")
    found = estimate(model, [[1, 2, 3, 4, 5, 6]] * 3, draws=5)
    assert sum(found.positions) / 6 == pytest.approx(found.value)
    with pytest.raises(ValueError, match="no text to score"):
        estimate(model, [])
    with pytest.raises(ValueError, match="holds the id 99"):
        estimate(model, [[99]])


@pytest.mark.parametrize(("kind", "width"), [("flat", None), ("block", 2), ("slide", 2), ("slide", 3)])
@pytest.mark.parametrize("power", [1.0, 0.6])
def test_averaged_weights_give_the_same_bound_with_less_noise(kind, width, power):
    law = random_law(N, LENGTH, seed=1)
    reading = CleanReading(hdlm.Absorbing(N))
    rows = torch.cartesian_prod(*[torch.arange(N)] * LENGTH)
    picked = rows[torch.multinomial(law.float(), 200, replacement=True, generator=torch.Generator().manual_seed(0))]
    found = []
    for reads_noise in (True, False):
        bundle = fake(reading, law, kind, width, reads_noise=reads_noise)
        bundle.model.power = power
        found.append(estimate(bundle, picked.tolist(), draws=64, batch_size=512))
    plain, averaged = found
    assert abs(plain.value - averaged.value) < 4 * (plain.draw_error**2 + averaged.draw_error**2) ** 0.5
    assert averaged.draw_error < 0.9 * plain.draw_error


@pytest.mark.parametrize("prefix", [0, 2, 3, 4])
def test_given_tokens_inside_a_block_are_no_chance(prefix):
    """A network that says nothing is off by log N everywhere, whatever is given."""
    plain = bundle("block", 4, process="absorbing", shifted=False, block_causal=True, dtype=torch.float64)
    torch.nn.init.zeros_(plain.model.head.weight)
    rows = torch.randint(11, (40, 12), generator=torch.Generator().manual_seed(0)).tolist()
    found = estimate(plain, rows, prefix=prefix, draws=32)
    assert abs(found.value - math.log(11)) < 5 * found.draw_error


@pytest.mark.parametrize(("kind", "width"), [("block", 4), ("slide", 4)])
def test_processes_that_share_the_rows_find_together_what_one_finds(kind, width):
    model, given = bundle(kind, width, process="absorbing"), []
    rows = torch.randint(11, (7, 10), generator=torch.Generator().manual_seed(0)).tolist()
    alone = estimate(model, rows, draws=3)
    for rank in range(3):
        tables = []
        world = SimpleNamespace(rank=rank, size=3, sum=lambda value, tables=tables: tables.append(value) or value)
        estimate(model, rows, draws=3, world=world)
        given.append(tables)
    table, curve, seen = (sum(parts) for parts in zip(*given, strict=True))
    torch.testing.assert_close(table.mean(0), torch.tensor(alone.row_nats, dtype=torch.float64))
    torch.testing.assert_close(curve / seen, torch.tensor(alone.positions, dtype=torch.float64))
    assert seen.tolist() == [21.0] * 10


def test_more_draws_than_memory_holds_are_refused():
    with pytest.raises(ValueError, match=r"draws = 9223372036854775807 of 1 rows would take .* GiB of memory"):
        bundle("flat", process="absorbing", shifted=False).perplexity("abc", samples=2**63 - 1)
