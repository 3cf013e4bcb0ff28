"""Calls that are laid out to be recorded write what the plain calls write. (Played back, on a GPU: gpu_check.py.)"""

import dataclasses

import pytest
import torch
from test_write import bundle

import hdlm
from hdlm.sampling import recorded
from hdlm.sampling.generate import Run, generate
from hdlm.writing import write as write_module
from hdlm.writing.request import prompt_request
from hdlm.writing.write import exhaust, write

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")
SCHEDULES = [hdlm.Block(21, 4), hdlm.Block(21, 5, 2), hdlm.Slide(21, 6, 0.5), hdlm.Quench(21), hdlm.Flat(20, 0.5)]


def tokens_of(model, monkeypatch, *, laid_out, prompts, **settings):
    start, played = write_module._start, []

    def chosen(*args):
        run = start(*args)
        run = _with(run, laid_out)
        played.append(run._desk is not None)
        return run

    monkeypatch.setattr(write_module, "_start", chosen)
    samples = exhaust(write(model, prompt_request(model, prompts, **settings), watched=False))
    monkeypatch.undo()
    assert all(played) == laid_out
    return samples


def _with(run, laid_out):
    names = [field.name for field in dataclasses.fields(Run)]
    return Run(**{name: getattr(run, name) for name in names} | {"recorded": laid_out})


@pytest.mark.parametrize("shifted", [False, True], ids=["aligned", "shifted"])
@pytest.mark.parametrize("process", ["absorbing", "gamma", "epsilon"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_laid_out_calls_write_the_same(schedule, process, shifted, monkeypatch):
    model = bundle(process=process, shifted=shifted)
    prompts = [[], [5], [1, 2, 4]] if not isinstance(schedule, hdlm.Flat) else [[], []]
    for seed in range(2):  # the second run sits at the first one's desk
        settings = {"prompts": prompts, "hyperschedule": schedule, "seed": seed}
        plain, other = (tokens_of(model, monkeypatch, laid_out=flag, **settings) for flag in (False, True))
        assert plain.tokens == other.tokens
        counted = [dataclasses.replace(samples.stats, seconds=0.0) for samples in (plain, other)]
        assert counted[0] == counted[1]
    assert len(recorded._desks[model.model]) == 1


@pytest.mark.parametrize("sampler", ["original", "acs", "posterior"])
def test_every_rule_that_foresees_can_be_laid_out(sampler, monkeypatch):
    model = bundle(process="epsilon")
    settings = {"prompts": [[5], [6, 7]], "hyperschedule": hdlm.Block(16, 4, 0.5), "seed": 1, "sampler": sampler}
    for shape in ({}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.5}, {"temperature": 0}):
        plain, other = (tokens_of(model, monkeypatch, laid_out=flag, **settings, **shape) for flag in (False, True))
        assert plain.tokens == other.tokens


def test_uncached_windows_can_be_laid_out(monkeypatch):
    model = bundle(process="gamma")
    settings = {"prompts": [[5], [6, 7]], "hyperschedule": hdlm.Block(16, 4), "seed": 1, "cache": False}
    plain, other = (tokens_of(model, monkeypatch, laid_out=flag, **settings) for flag in (False, True))
    assert plain.tokens == other.tokens


def test_more_places_than_there_is_room_for(monkeypatch):
    model = bundle(process="gamma")
    settings = {"prompts": [[], []], "hyperschedule": hdlm.Block(12, 4), "seed": 1}
    plain = tokens_of(model, monkeypatch, laid_out=False, **settings)
    monkeypatch.setattr(recorded, "_MOST_PLACES", 5)
    recorded._desks.clear()
    assert tokens_of(model, monkeypatch, laid_out=True, **settings).tokens == plain.tokens
    recorded._desks.clear()


def test_many_places_are_scored_in_parts(monkeypatch):
    model = bundle(process="epsilon")
    settings = {"prompts": [[], []], "hyperschedule": hdlm.Block(12, 6), "seed": 1}
    plain = tokens_of(model, monkeypatch, laid_out=False, **settings)
    monkeypatch.setattr(recorded, "_HEAD_ROWS", 3)
    assert tokens_of(model, monkeypatch, laid_out=True, **settings).tokens == plain.tokens


def test_rules_that_foresee_nothing_and_watched_runs_are_called_one_by_one():
    model = bundle(process="absorbing")
    request = prompt_request(model, [[]], hyperschedule=hdlm.Block(8, 4), sampler="confidence", seed=0)
    run = _with(write_module._start(model, request.batches[0], request.options, 0, [0], False), True)
    assert run._desk is None
    *_, last = generate(dataclasses.replace(run, watched=True))
    assert torch.is_tensor(last.tokens)


def test_a_stretch_may_need_no_call_at_all(monkeypatch):
    model = bundle(process="absorbing")
    for seed in range(3):
        settings = {"prompts": [[]], "hyperschedule": hdlm.Slide(8, 4, 0.01), "seed": seed}
        plain, other = (tokens_of(model, monkeypatch, laid_out=flag, **settings) for flag in (False, True))
        assert plain.tokens == other.tokens


def test_runs_of_a_kind_do_not_share_a_desk_while_they_run():
    model = bundle(process="absorbing")
    request = prompt_request(model, [[], []], hyperschedule=hdlm.Block(80, 4), seed=1)

    def start():
        return _with(write_module._start(model, request.batches[0], request.options, 1, [0, 1], False), True)

    alone = start()
    for _ in generate(alone):
        pass
    outer, inner = start(), start()
    assert outer._desk is not inner._desk
    for _ in generate(outer, progress=lambda steps: list(generate(start()))):
        pass
    assert torch.equal(outer.tokens, alone.tokens)
    desk = inner._desk
    for _ in generate(inner):
        pass
    assert desk in recorded._desks[model.model].values()
    assert inner.tokens.data_ptr() != desk.tokens.data_ptr()


def test_a_desk_is_for_weights_rules_and_modes_as_they_are(monkeypatch):
    model = bundle(process="gamma")
    settings = {"prompts": [[]], "hyperschedule": hdlm.Block(12, 4), "seed": 1}
    with torch.inference_mode():
        tokens_of(model, monkeypatch, laid_out=True, **settings)
    weight = model.model.head.weight
    for change in (lambda: None, lambda: weight.data.mul_(float("nan")), lambda: weight.data.fill_(0.1)):
        with torch.no_grad():
            change()
        if weight.isnan().any():
            weight.data.nan_to_num_(0.2)
        plain, other = (tokens_of(model, monkeypatch, laid_out=flag, **settings) for flag in (False, True))
        assert plain.tokens == other.tokens
    run = write_module._start(model, *_request_parts(model), False)
    key = recorded.desk_key(run)
    model.model.train()
    assert recorded.desk_key(run) != key
    model.model.eval()
    assert recorded.desk_key(run) == key
    run.rule.words = ["a"]
    assert recorded.desk_key(run) != key


def _request_parts(model):
    request = prompt_request(model, [[]], hyperschedule=hdlm.Block(8, 4), seed=0)
    return request.batches[0], request.options, 0, [0]


def test_pairs_are_those_that_layouts_allow():
    """Counted by the loop, and by the masks of the layouts that it fed."""
    for schedule, cache in ((hdlm.Block(12, 4), False), (hdlm.Quench(9), False), (hdlm.Slide(9, 3), False)):
        model = bundle(process="absorbing")
        seen, trunk = [], model.model.trunk

        def counting(slots, *, cache=None, seen=seen, trunk=trunk):
            seen.append(int(slots.layout.mask().sum()))
            return trunk(slots, cache=cache)

        model.model.trunk = counting
        stats = model.generate([[5, 6]], hyperschedule=schedule, seed=0, cache=cache).stats
        assert stats.pairs == sum(seen)
        assert stats.keys == 0
