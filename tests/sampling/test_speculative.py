"""Speculation writes autoregression's own text, whatever was drafted, in fewer calls."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from support.bundles import bundle
from support.networks import BOS_ID, VOCAB, batch, network

import hdlm
from hdlm.config.sampling import DrawSettings
from hdlm.sampling.generate import exhaust, generate
from hdlm.sampling.pace import Pace, Plan
from hdlm.sampling.request import prompt_request
from hdlm.sampling.results import Stats
from hdlm.sampling.rng import StepRandom
from hdlm.sampling.speculative import Drafter
from hdlm.theory.layout import build_layout, stack_layouts
from hdlm.theory.random import race
from hdlm.theory.reading import CleanReading

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")
WAYS = [*itertools.product((1, 3, 8), ("every", "full", "apart")), (0, None), (None, None), (None, "full"), (2, None)]
PROMPTS = ["abc", "a", "jihgfe dcba", ""]


def drafted(draft_width=0, **changes):
    """A small network, with a draft head of its own where it has a width."""
    return bundle(model={"draft_width": draft_width}, **changes)


@pytest.mark.parametrize("head", [0, 8], ids=["windows", "draft head"])
@pytest.mark.parametrize(("draft", "ahead"), WAYS)
def test_the_text_is_that_of_autoregression(draft, ahead, head):
    """1,144 texts: processes, temperatures, truncations, ends, prompts of several lengths, with and without cache."""
    ways = [
        ("absorbing", {"temperature": 1.0}),
        ("gamma", {"temperature": 0.6, "top_k": 4}),
        ("epsilon", {"temperature": 0.0}),
        ("absorbing", {"temperature": 3.0, "top_p": 0.7, "cache": False}),
    ]
    for number, (process, how) in enumerate(ways):
        model = drafted(head, process=process, eos_id=5)
        how |= {"num_samples": 3 if number else 2, "length": 17, "seed": number}
        plain = model.generate(PROMPTS, sampler="ar", **how)
        found = model.generate(PROMPTS, sampler="speculative", draft=draft, ahead=ahead, **how)
        assert found.tokens == plain.tokens
        assert found.ended == plain.ended
        plainly = {"backend": "reference", "draft": draft, "ahead": ahead} | how
        assert found.tokens == model.generate(PROMPTS, sampler="speculative", **plainly).tokens


def test_it_takes_fewer_calls_where_drafts_are_good():
    """A network that repeats itself is drafted to the end, whatever the pass; one draft is one call."""
    model = bundle(process="absorbing", model={"head_bias": True})
    with torch.no_grad():  # whatever it sees, the same token, surely
        model.model.head.weight.zero_()
        model.model.head.bias[4] = 100.0
    calls = {
        ahead: model.generate(sampler="speculative", draft=3, ahead=ahead, length=20, seed=0).stats
        for ahead in ("every", "full", "apart")
    }
    plain = model.generate(sampler="ar", length=20, seed=0).stats
    assert plain.network_calls == 20
    # One token, then four a verdict, of the last three; drafts apart take a call each.
    assert {ahead: stats.network_calls for ahead, stats in calls.items()} == {"every": 6, "full": 6, "apart": 11}
    assert {stats.accepted for stats in calls.values()} == {15}
    assert {stats.drafted for stats in calls.values()} == {15}
    # The first call feeds BOS and one window of four masks; those after it a token, three drafts and four windows.
    assert calls["every"].slots == (1 + 5) + 5 * (4 + 4 * 5)
    assert calls["full"].slots == (1 + 5) + 5 * (4 + 5)
    assert calls["apart"].slots == 1 + 5 * (4 + 4)
    none = model.generate(sampler="speculative", draft=0, length=20, seed=0, backend="reference").stats
    assert (none.network_calls, none.slots, none.drafted) == (20, 20, 0)


def test_the_law_is_autoregressions_by_enumeration():
    """Every text of two tokens, as often as the network's own next-token law has it."""
    model = drafted(process="absorbing")
    rows = 3000
    found = model.generate(
        num_samples=rows, sampler="speculative", draft=2, ahead="every", length=2, seed=1, batch_size=rows
    )
    pairs = torch.cartesian_prod(torch.arange(VOCAB), torch.arange(VOCAB))
    logprob = torch.tensor([sum(model.logprobs(pair).logprobs) for pair in pairs.tolist()])
    expected = rows * logprob.exp()
    assert expected.sum() == pytest.approx(rows)
    counts = torch.bincount(torch.tensor([a * VOCAB + b for a, b in found.tokens]), minlength=VOCAB**2)
    many = expected >= 5
    seen = torch.cat([counts[many].double(), counts[~many].sum().view(1)])
    law = torch.cat([expected[many], expected[~many].sum().view(1)])
    chi2 = ((seen - law) ** 2 / law.clamp(min=1e-9)).sum()
    assert chi2 < len(law) + 5 * (2 * len(law)) ** 0.5


def test_many_texts_at_once_are_written_plainly_unless_drafts_are_asked_for():
    model, how = drafted(process="absorbing"), {"sampler": "speculative", "length": 12, "seed": 1}
    calls = [model.generate(num_samples=count, **how).stats for count in (1, 2, 3)]
    assert [stats.drafted > 0 for stats in calls] == [True, True, False]
    assert model.generate(num_samples=3, draft=2, **how).stats.drafted > 0


def test_a_text_does_not_depend_on_its_company():
    model, how = drafted(process="absorbing"), {"sampler": "speculative", "length": 15, "seed": 4}
    together = model.generate(["abc", "b"], num_samples=2, **how)
    assert together.tokens[2:] == model.generate("b", num_samples=2, **how).tokens


def test_frames_show_drafts_and_settle_for_good():
    model = drafted(process="absorbing")
    how = {"draft": 3, "ahead": "every", "length": 16, "seed": 2}
    frames = list(model.stream(["ab", "abcde"], sampler="speculative", **how))
    tokens = model.generate(["ab", "abcde"], sampler="ar", length=16, seed=2).tokens
    assert {frame.tokens.shape for frame in frames} == {(2, 5 + 16)}
    for row, text in enumerate(tokens):
        counts = [int(frame.settled[row, : len(text)].sum()) for frame in frames]
        assert counts == sorted(counts)
        assert counts[-1] == len(text)
        for frame, count in zip(frames, counts, strict=True):
            assert frame.tokens[row, :count].tolist() == text[:count]
            assert frame.settled[row, :count].all()
    behind = [~frame.settled & (frame.tokens != model.process.mask_id) for frame in frames[:-1]]
    assert all(3 * 2 >= int(draft.sum()) > 0 for draft in behind[:2])
    refused = [frame for frame in frames if (frame.window_changed & (frame.before != model.process.mask_id)).any()]
    assert refused
    for frame in refused:  # what was taken back, and what came in its place, as autoregression has them
        taken = frame.window_changed & (frame.before != model.process.mask_id) & (frame.window_levels == 0)
        assert (frame.confidence[taken] > 0).all()
        assert (frame.doubt[taken] < 1).all()


def test_logprobs_are_those_of_autoregression():
    model = drafted(process="absorbing")
    how = {"length": 12, "seed": 2, "logprobs": True, "num_samples": 3}
    found = model.generate("ab", sampler="speculative", draft=4, **how).logprobs
    plain = model.generate("ab", sampler="ar", **how).logprobs
    torch.testing.assert_close(torch.tensor(found), torch.tensor(plain))


def test_settings_and_steps_are_told():
    model, told = drafted(process="absorbing"), []
    found = model.generate("ab", sampler="speculative", draft=4, ahead="full", length=9, seed=2)
    assert found.settings[0]["sampler"] == "speculative"
    assert (found.settings[0]["draft"], found.settings[0]["ahead"]) == (4, "full")
    assert found.settings[0]["hyperschedule"]["kind"] == "quench"
    assert "drafted tokens kept" in str(found.stats)
    request = prompt_request(model, ["ab", "a"], length=9, settings=DrawSettings(sampler="speculative", seed=1))
    exhaust(generate(model, request, watched=False, progress=told.append))
    assert sum(told) == 9


@pytest.mark.parametrize(
    ("changes", "how", "words"),
    [
        ({"shifted": False}, {}, "aligned"),
        ({"process": "uniform"}, {}, "needs a process that masks"),
        ({}, {"precision": "float32"}, "float64 only"),
        ({}, {"draft": 9}, "draft = 9 is not accepted: it must be an integer in 0..8"),
        ({}, {"draft": 2.5}, "draft = 2.5"),
        ({}, {"ahead": "never"}, "ahead = 'never' is not accepted: it must be one of every, full, apart"),
        ({}, {"kind": "block"}, "sampler 'speculative' does not fit"),
        (
            {},
            {"sampler": "ar", "draft": 2},
            "draft = 2 is not accepted for sampler 'ar': it is a setting of speculative",
        ),
        ({}, {"eta": 0.5}, "eta = 0.5 is not accepted for sampler 'speculative'"),
    ],
)
def test_what_cannot_be_is_refused(changes, how, words):
    model = bundle(**{"process": "absorbing"} | changes)
    with pytest.raises(ValueError, match=words):
        model.generate(**{"sampler": "speculative", "length": 5} | how)


@pytest.mark.parametrize("shifted", [False, True])
def test_windows_through_the_cache_see_what_they_see_without(shifted):
    """Overlapping windows after settled slots that continue the cache, rows apart; then after some are forgotten."""
    model, length = network("paper"), 14
    x0, xt, t, process = batch(length)
    cache = model.new_cache(2, length + 2)
    held, kept, ends, shift = [4, 2], [6, 7], [9, 8], int(shifted)

    def of(row, skip, settled):
        spans = [(settled - shift - 1, settled - shift + 3), (settled - shift, settled - shift + 4)]
        return build_layout(length, spans, shifted=shifted, settled=settled, skip=skip)

    for skips, stops in (([0, 0], held), (held, ends), (kept, ends)):
        layouts = [of(row, skips[row], stops[row]) for row in range(2)]
        whole = [of(row, 0, stops[row]) for row in range(2)]
        out, truth = (
            model(stack_layouts(rows).fill(x0, xt, t, process, bos_id=BOS_ID), cache=where)
            for rows, where in ((layouts, cache), (whole, None))
        )
        for row in range(2):
            count = len(layouts[row])
            expected = truth[row, skips[row] : len(whole[row])]
            torch.testing.assert_close(out[row, :count], expected)
        if stops is ends and skips is held:
            cache.keep(kept)
    with pytest.raises(ValueError, match="the cache holds"):
        cache.keep([99, 1])


def test_a_race_draws_by_its_weights():
    u = torch.rand(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.tensor([0.1, 0.0, 3.0, 0.9], dtype=torch.float64)
    counts = torch.bincount(race(weights.expand(len(u), 4), u), minlength=4).double()
    expected = weights / weights.sum() * len(u)
    assert counts[1] == 0
    assert (((counts - expected) ** 2)[[0, 2, 3]] / expected[[0, 2, 3]]).sum() < 17  # 3 degrees less 1: p = 0.0002
    assert race(weights, u[0]) == race(weights * 5, u[0])
    several = race(weights.expand(2, 3, 4), u[:6].view(2, 3))
    assert several.flatten().tolist() == [race(weights, one).item() for one in u[:6]]
    assert race(torch.ones(1), torch.tensor(0.0)) == 0


def test_laws_that_are_alike_win_alike():
    """Two laws at total variation d agree with probability (1 - d) / (1 + d) or more; far from what chance would do."""
    generator = torch.Generator().manual_seed(1)
    p = torch.rand(50, generator=generator, dtype=torch.float64)
    q = p + 0.3 * torch.rand(50, generator=generator, dtype=torch.float64)
    p, q = p / p.sum(), q / q.sum()
    u = torch.rand(50_000, generator=generator, dtype=torch.float64)
    agree = (race(p.expand(len(u), -1), u) == race(q.expand(len(u), -1), u)).double().mean()
    d = (p - q).abs().sum() / 2
    exact = (1 / torch.maximum(p / p[:, None], q / q[:, None]).sum(1)).sum()  # docs/theory.md, section 9
    assert agree == pytest.approx(exact.item(), abs=0.005)
    assert 1 - d > exact > (1 - d) / (1 + d)


def paced(fixed, each, kept, **asked):
    """The plan of a pace that has seen what calls take, by pass and slot, and how many tokens of a draft are kept."""
    pace, made = Pace(**asked), Plan(0)
    for _ in range(6000):
        plan = pace.plan()
        drafted = made.count if made.ahead != "full" or made.count <= kept else 0
        slots = drafted + 1 + len(plan.windows(drafted)) * (plan.width + 1) + plan.apart * (plan.count + 1)
        seconds = (1 + plan.apart) * fixed + each * slots
        pace.learn(plan, [drafted], [min(kept, drafted)], [1], seconds=seconds)
        made = plan
    return pace._best()


def test_the_pace_follows_what_was_measured():
    assert paced(1.0, 10.0, kept=0).count == 0  # slots cost, and drafts are refused: plain autoregression
    assert paced(1.0, 1e-6, kept=8).count >= 6  # slots cost nothing, and all are kept
    assert paced(1.0, 0.3, kept=3) == Plan(3, "full")  # drafts that are kept whole need one window
    assert paced(1e-6, 1.0, kept=8).count == 0  # passes cost nothing: no slot is to be wasted
    assert paced(1.0, 0.1, kept=2, count=5).count == 5
    assert paced(1.0, 0.1, kept=2, ahead="apart") == Plan(2, "apart")


def test_trials_take_a_small_share_of_the_time():
    """Where drafts are dear, few calls draft; where they pay, the rest of the ways is still tried now and then."""
    for each, share in ((0.3, 0.06), (1e-3, 1.0)):
        pace, made, seconds = Pace(), Plan(0), {True: 0.0, False: 0.0}
        for _ in range(2000):
            plan = pace.plan()
            took = 1 + plan.apart + each * (1 + 8 * plan.count)
            pace.learn(plan, [made.count], [min(2, made.count)], [1], seconds=took)
            made, seconds[plan.count > 0] = plan, seconds[plan.count > 0] + took
        assert 0 < seconds[True] / sum(seconds.values()) < share


@pytest.mark.parametrize(("head", "skip"), [(8, 0), (8, 1), (8, 2), (0, 0), (0, 1)])
def test_drafts_are_drawn_one_after_the_other_knowing_those_before(head, skip):
    """Against a plain loop: a draft head walks over a window from its first slot, what is settled of it included."""
    model, count = drafted(head, process="absorbing"), 3
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCAB, (2, 12), generator=generator)
    seen = torch.randn(2, skip + count, 32, generator=generator, dtype=torch.float64)
    uniform = torch.rand(2, count, generator=generator, dtype=torch.float64)
    drafter = object.__new__(Drafter)
    drafter.known, drafter.mask_id, drafter.drafts = [4, 1], VOCAB, CleanReading(model.process)
    drafter._row = torch.arange(2).unsqueeze(1)
    shared = {"settings": DrawSettings(), "witness": None, "stats": Stats()}
    drafter.run = SimpleNamespace(network=model.model, tokens=tokens, bos_id=BOS_ID, **shared)
    found = drafter.walk(seen, StepRandom(uniform, uniform, races=True), skip)
    network = model.model
    for row, known in enumerate(drafter.known):
        before = [BOS_ID] * 3 + tokens[row, :known].tolist()
        before, drawn = before[len(before) - skip - 1 :], []
        state = torch.zeros(1, 8, dtype=torch.float64)
        for at in range(skip + count):
            features, token = seen[row, at][None], (before + drawn)[at]
            if head:
                walked, state = network.draft(features, network.embedding[token][None], state)
                features = walked if at else features
            if at >= skip:
                law = network.head(features)[0, :VOCAB].softmax(-1)
                drawn.append(int(race(law[None], uniform[row, at - skip][None])))
        assert found[row].tolist() == drawn
    assert drafter.run.stats.head_slots == 2 * count


def test_a_draft_is_read_from_its_own_window():
    """Behind the settled slots, each of so many masks and one slot more; a row without a window drafts nothing."""
    drafter, seen = object.__new__(Drafter), []
    drafter.known, drafter.mask_id, drafter._settled = [4, 1], VOCAB, [3, 2]
    drafter._row, drafter._uniform = torch.arange(2).unsqueeze(1), torch.zeros(2, 9)
    drafter.run = SimpleNamespace(tokens=torch.zeros(2, 9, dtype=torch.long))
    drafter.walk = lambda found, random, skip: seen.append((found[..., 0].tolist(), skip)) or torch.full((2, 2), 7)
    slots = torch.arange(20.0).expand(2, -1).unsqueeze(-1)
    drafter.read_draft(slots, [1, -1], 2, skip=1)
    assert seen == [([[7, 8, 9], [2, 3, 4]], 1)]
    assert drafter.run.tokens.tolist() == [[0] * 4 + [7, 7] + [0] * 3, [0] + [VOCAB] * 2 + [0] * 6]
    assert drafter.drafted == [2, 0]


def test_a_pass_of_its_own_drafts_behind_what_is_known():
    drafter, told = object.__new__(Drafter), []
    drafter.known = [4, 1]
    drafter._pass = lambda *what: told.append(what) or "features"
    drafter.read_draft = lambda *what, **how: told.append((what, how))
    drafter.draft(3)
    assert told == [([-1, -1], [(0,), (0,)], 3), (("features", [0, 0], 3), {"skip": 0})]


def test_a_plan_has_its_windows():
    assert Plan(3).windows(2) == (0, 1, 2)
    assert Plan(3, "full").windows(2) == (2,)
    assert Plan(3, "apart").windows(2) == Plan(0).windows(2) == ()


def test_bundles_with_a_draft_head_are_saved_and_read(tmp_path):
    model = drafted(8, process="absorbing")
    model.save(tmp_path / "model")
    read = hdlm.load(tmp_path / "model", dtype="float64")
    assert read.config.model.draft_width == 8
    how = {"sampler": "speculative", "draft": 3, "ahead": "every", "length": 12, "seed": 1}
    assert read.generate("a", **how).stats.accepted == model.generate("a", **how).stats.accepted
