"""Texts that are written side by side, each at its own step, are those that are written alone."""

import random

import pytest
import torch
from support.bundles import PROCESSES, SAMPLERS, bundle
from support.floors import FLOORS

import hdlm
from hdlm import backend
from hdlm.config.sampling import DrawSettings
from hdlm.sampling.company import seats_of
from hdlm.sampling.request import gap_request, prompt_request

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")


def schedule(lot, shifted):
    length, width = lot.randrange(7, 16), lot.choice([1, 2, 3, 4, 7])
    made = [
        hdlm.Block(length, width, lot.choice([0.5, 1, 2])),
        hdlm.Slide(length, width, lot.choice([0.5, 1])),
        hdlm.Flat(length),
        hdlm.Quench(length),
    ]
    return lot.choice(made if shifted else made[:3])


def request_by_lot(lot, model, samplers):
    """Any request, and what it gives when nobody else is there."""
    asked = {"hyperschedule": schedule(lot, model.config.shifted), "num_samples": lot.choice([1, 2])}
    autoregressive = asked["hyperschedule"].autoregressive
    how = {
        "sampler": lot.choice([None, "speculative"] if autoregressive else [None, *samplers]),
        "seed": lot.randrange(100),
        "temperature": lot.choice([1.0, 0.7, 0.0]),
        "top_k": lot.choice([None, 3]),
        "cache": lot.random() < 0.8,
        "stop_at_eos": lot.random() < 0.8,
    }
    if how["sampler"] == "speculative" and model.process.mask_id is None:
        how["sampler"] = None
    prompt = [[lot.randrange(11) for _ in range(lot.randrange(5))]]
    alone = model.generate(prompt, **asked, **how, backend="reference", logprobs=True)
    return prompt_request(model, prompt, **asked, settings=DrawSettings(**how)), alone


def take_turns(company, waiting, lot):
    """Let seats join now and then until all are done."""
    waiting = list(waiting)
    while waiting or len(company):
        for seat in [waiting.pop(0) for _ in range(lot.randrange(4)) if waiting]:
            company.join(seat)
        company.turn()


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("shifted", [True, False], ids=["shifted", "aligned"])
@pytest.mark.parametrize("process", PROCESSES)
def test_texts_are_those_of_a_request_alone(process, shifted, floor):
    lot = random.Random(f"{process} {shifted}")
    model = bundle(process=process, shifted=shifted, eos_id=2)
    found = [request_by_lot(lot, model, SAMPLERS[process]) for _ in range(10)]
    company, asked = backend.company(backend=floor), []
    for request, alone in found:
        seats = seats_of(model, request, alone.seed, logprobs=lot.random() < 0.5)
        asked += [(seat, alone) for seat in seats]
    lot.shuffle(asked)
    take_turns(company, [seat for seat, _ in asked], lot)
    for seat, alone in asked:
        text = seat.written()
        assert (text.tokens, text.ended) == (alone.tokens[seat.number], alone.ended[seat.number])
        assert text.settings == alone.settings[seat.number]
        if seat.said is not None:
            assert text.logprobs == pytest.approx(alone.logprobs[seat.number], abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("floor", FLOORS)
def test_gaps_beside_continuations(floor):
    model, company = bundle("flat", process="absorbing"), backend.company(backend=floor)
    alone = model.infill("ab[[gap:3]]cd e[[gap:2]]f", num_samples=3, seed=4)
    beside = model.generate([5], length=9, seed=2)
    seats = seats_of(model, gap_request(model, "ab[[gap:3]]cd e[[gap:2]]f", num_samples=3), 4)
    seats += seats_of(model, prompt_request(model, [5], length=9), 2)
    take_turns(company, seats, random.Random(0))
    assert [seat.written().tokens for seat in seats] == [*alone.tokens, *beside.tokens]


@pytest.mark.parametrize("floor", FLOORS)
def test_what_is_settled_never_changes_and_only_grows(floor):
    model, company = bundle(process="epsilon", eos_id=2), backend.company(backend=floor)
    schedules = (hdlm.Block(12, 4), hdlm.Slide(11, 4, 0.5), hdlm.Quench(9))
    requests = [prompt_request(model, [[5], []], hyperschedule=one) for one in schedules]
    seats = [seat for request in requests for seat in seats_of(model, request, 3, watched=True)]
    for seat in seats:
        company.join(seat)
    before = {seat: seat.tokens[: seat.settled] for seat in seats}
    while len(company):
        for seat in company.turn():
            held, before[seat] = before[seat], seat.tokens[: seat.settled]
            assert before[seat][: len(held)] == held
            assert model.process.mask_id not in before[seat]
    for seat in seats:
        assert before[seat] == seat.written().tokens


@pytest.mark.parametrize("floor", FLOORS)
def test_one_who_leaves_makes_room_and_changes_nobody(floor):
    model, company = bundle(process="gamma"), backend.company(backend=floor)
    seats = [seats_of(model, prompt_request(model, [n], length=12), n)[0] for n in range(5)]
    for seat in seats:
        company.join(seat)
    for gone in (seats[0], seats[3], seats[4]):
        company.turn()
        company.leave(gone)
        company.leave(gone)
    assert len(company) == 2
    take_turns(company, [], random.Random(0))
    for n in (1, 2):
        assert seats[n].written().tokens == model.generate([n], length=12, seed=n).tokens[0]
    assert not any(seat.over for seat in (seats[0], seats[3], seats[4]))


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("sampler", ["posterior", "certain"])
def test_frames_are_those_of_a_request_alone(sampler, floor):
    """As far as both floors ask the network: the fast one leaves out steps at which nothing can change."""
    model, company = bundle(process="epsilon"), backend.company(backend=floor)
    how = {"sampler": sampler, "seed": 3}
    alone = list(model.stream([5], length=10, **how, backend="reference"))
    request = prompt_request(model, [5], length=10, settings=DrawSettings(**how))
    [seat] = seats_of(model, request, 3, watched=True, likeliest=3)
    other = seats_of(model, prompt_request(model, [1, 2], length=7, settings=DrawSettings(sampler="acs")), 8)[0]
    company.join(seat)
    company.join(other)
    seen = {}
    while len(company):
        if seat in company.turn():
            for frame in seat.frames:
                seen[frame.step] = frame
    assert [*seen] == [frame.step for frame in alone]
    for frame in alone:
        own = seen[frame.step]
        for part in ("tokens", "window", "before", "levels", "settled", "changed"):
            assert torch.equal(getattr(own, part), getattr(frame, part)), part
        changed = frame.window_changed
        torch.testing.assert_close(own.confidence[changed].double(), frame.confidence[changed].double())
        tokens, logs = own.likeliest
        assert tokens.shape == logs.shape == (*frame.window.shape, 3)
        said = logs.exp().where(tokens == own.tokens.gather(1, own.window).unsqueeze(-1), 0).sum(-1)
        assert (said[changed] <= 1).all()
