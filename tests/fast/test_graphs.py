"""Calls that are laid out to be recorded write what plain calls write. (Replayed: gpu_check.py.)"""

import dataclasses

import pytest
import torch
from support.bundles import bundle

import hdlm
from hdlm.config.sampling import DrawSettings
from hdlm.fast import graphs
from hdlm.fast.engine import PlannedRun, sample
from hdlm.sampling.generate import start_run
from hdlm.sampling.request import prompt_request
from hdlm.weights import contents

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")
SCHEDULES = [hdlm.Block(21, 4), hdlm.Block(21, 5, 2), hdlm.Slide(21, 6, 0.5), hdlm.Quench(21), hdlm.Flat(20, 0.5)]


def start(model, prompts, *, seed=0, hyperschedule, **settings):
    """The first batch of a request, at its beginning."""
    asked = DrawSettings(**settings)
    request = prompt_request(model, prompts, hyperschedule=hyperschedule, settings=asked)
    return start_run(model, request.batches[0], request, seed, list(range(len(prompts))))


def finished(run, **how):
    for _ in sample(run, watched=False, **how):
        raise AssertionError("an unwatched run gives no frame")
    return run


def compared(model, prompts, **settings):
    """Tokens of plain calls and of those laid out for graphs; both are what they should be."""
    plain, laid_out = (start(model, prompts, **settings) for _ in range(2))
    assert graphs.can_record(laid_out)
    finished(plain, graphs=False)
    finished(laid_out, graphs=True)
    assert torch.equal(plain.tokens, laid_out.tokens)
    return plain, laid_out


@pytest.mark.parametrize("shifted", [False, True], ids=["aligned", "shifted"])
@pytest.mark.parametrize("process", ["absorbing", "gamma", "epsilon"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_laid_out_calls_write_the_same(schedule, process, shifted):
    model = bundle(process=process, shifted=shifted)
    prompts = [[], [5], [1, 2, 4]] if schedule.has_prefix else [[], []]
    for seed in range(2):  # the second run has the first one's memory
        plain, other = compared(model, prompts, hyperschedule=schedule, seed=seed)
        assert plain.stats == other.stats
    assert len(graphs._kept[model.model]) == 1


@pytest.mark.parametrize("sampler", ["original", "acs", "posterior"])
def test_every_rule_that_foresees_can_be_laid_out(sampler):
    model = bundle(process="epsilon")
    settings = {"hyperschedule": hdlm.Block(16, 4, 0.5), "seed": 1, "sampler": sampler}
    for shape in ({}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"temperature": 0}):
        compared(model, [[5], [6, 7]], **settings, **shape)


def test_uncached_windows_can_be_laid_out_while_they_are_few():
    model = bundle(process="gamma")
    compared(model, [[5], [6, 7]], hyperschedule=hdlm.Block(16, 4), seed=1, cache=False)
    for schedule in (hdlm.Block(80, 4), hdlm.Slide(20, 4), hdlm.Quench(20), hdlm.Custom([[1, 1], [0, 0]])):
        assert not graphs.can_record(start(model, [[]], hyperschedule=schedule, cache=False))


def test_more_positions_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(graphs, "MAX_POSITIONS", 5)
    compared(bundle(process="gamma"), [[], []], hyperschedule=hdlm.Block(12, 4), seed=1)


def test_many_positions_are_scored_in_parts(monkeypatch):
    monkeypatch.setattr(graphs, "HEAD_ROWS", 3)
    compared(bundle(process="epsilon"), [[], []], hyperschedule=hdlm.Block(12, 6), seed=1)


def test_a_chunk_may_need_no_call_at_all():
    model = bundle(process="absorbing")
    for seed in range(3):
        compared(model, [[]], hyperschedule=hdlm.Slide(8, 4, 0.01), seed=seed)


def test_runs_of_a_kind_do_not_share_memory_while_they_run():
    model = bundle(process="absorbing")
    settings = {"hyperschedule": hdlm.Block(80, 4), "seed": 1}
    alone = finished(start(model, [[], []], **settings), graphs=True)
    outer = start(model, [[], []], **settings)
    finished(outer, graphs=True, progress=lambda steps: finished(start(model, [[], []], **settings), graphs=True))
    assert torch.equal(outer.tokens, alone.tokens)
    runs = [start(model, [[], []], **settings) for _ in range(2)]
    planned = [PlannedRun(run, run.rule, graphs=True) for run in runs]
    assert planned[0]._graphs is not planned[1]._graphs
    planned[0].finish()
    kept = planned[0]._graphs
    assert kept in graphs._kept[model.model].values()
    assert runs[0].tokens.data_ptr() != kept.tokens.data_ptr()


def test_memory_is_for_weights_rules_and_modes_as_they_are():
    model = bundle(process="gamma")
    settings = {"hyperschedule": hdlm.Block(12, 4), "seed": 1}
    with torch.inference_mode():
        finished(start(model, [[]], **settings), graphs=True)
    weight = model.model.head.weight
    for change in (lambda: None, lambda: weight.fill_(0.2), lambda: weight.fill_(0.1)):
        with torch.no_grad():
            change()
        compared(model, [[]], **settings)
    run = start(model, [[]], **settings)
    key = graphs.run_key(run)
    model.model.train()
    assert graphs.run_key(run) != key
    model.model.eval()
    assert graphs.run_key(run) == key
    run.rule.words = ["a"]
    assert graphs.run_key(run) != key
    warmer = start(model, [[]], temperature=0.5, **settings)
    assert graphs.run_key(warmer) != graphs.run_key(start(model, [[]], **settings))


def test_pairs_are_those_that_layouts_allow():
    """Counted call by call, and by the masks of the layouts that were fed."""
    for schedule in (hdlm.Block(12, 4), hdlm.Quench(9), hdlm.Slide(9, 3)):
        model, seen = bundle(process="absorbing"), []
        run = start(model, [[5, 6]], hyperschedule=schedule, cache=False)
        original = type(model.model).run

        def counting(self, token, sigma, weight, rope, runs, attend, seen=seen, original=original):
            seen.append(token.shape[1] ** 2 if attend.mask is None else int(attend.mask.sum()))
            if attend.causal:
                seen[-1] = token.shape[1] * (token.shape[1] + 1) // 2
            return original(self, token, sigma, weight, rope, runs, attend)

        model.model.run = counting.__get__(model.model)
        finished(run, graphs=False)
        assert run.stats.pairs == sum(seen)
        assert run.stats.keys == 0


def test_stats_of_both_ways_are_the_same_but_for_time():
    model = bundle(process="absorbing")
    plain, other = compared(model, [[5], [6, 7]], hyperschedule=hdlm.Block(20, 4), seed=3)
    assert dataclasses.asdict(plain.stats) == dataclasses.asdict(other.stats)
    assert plain.stats.network_calls + plain.stats.skipped_calls == 20


def test_outputs_that_are_not_finite_are_noticed():
    """And leave nothing of it to the next run in the same memory."""
    model, name = bundle(process="absorbing"), "blocks.1.mlp.inner.weight"
    weight = contents(model.model)[name]
    kept = weight.clone()

    def run():
        return finished(start(model, ["ab", "c"], hyperschedule=hdlm.Block(8, 4)), graphs=True).witness

    assert run().isfinite()
    weight[3, 4] = torch.nan
    assert run().isnan()
    weight.copy_(kept)
    assert run().isfinite()
