"""The training forward compiles whole: no graph break, and no second compilation from one draw to the next.

Of the network as a user might compile it, and of the pieces that the fast floor does.
"""

import functools

import pytest
import torch
import torch._dynamo
from support.networks import BOS_ID, VOCAB, network

import hdlm
from hdlm.fast.training import FastLossModule
from hdlm.objectives.objective import NextToken
from hdlm.theory.draws import draw_times
from hdlm.theory.layout import training_layout

CASES = {
    "quench": (hdlm.Quench(12), True),
    "flat aligned": (hdlm.Flat(12), False),
    "flat shifted": (hdlm.Flat(12), True),
    "block aligned": (hdlm.Block(12, 4), False),
    "block shifted": (hdlm.Block(12, 4), True),
    "slide aligned": (hdlm.Slide(12, 4), False),
    "slide shifted": (hdlm.Slide(12, 4), True),
}


def passes(schedule, shifted, process):
    """Slots of six training steps, and how many offsets they have seen."""
    for step in range(6):
        indices = torch.arange(step * 4, step * 4 + 4)
        draw = draw_times(schedule, seed=1, indices=indices, global_batch=4, dtype=torch.float64)
        layout = training_layout(schedule, shifted=shifted, offset=draw.offset)
        x0 = torch.randint(VOCAB, (4, 12))
        yield draw.offset, layout.fill(x0, process.corrupt(x0, draw.times), draw.times, process, bos_id=BOS_ID)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.parametrize("case", CASES)
def test_the_network_compiles_once_and_whole(case):
    schedule, shifted = CASES[case]
    model, offsets = network(), set()
    run = torch.compile(model, backend="eager")
    for offset, slots in passes(schedule, shifted, hdlm.GammaHybrid(VOCAB, 0.2)):
        offsets.add(offset)
        torch.testing.assert_close(run(slots), model(slots))
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 1
    assert sum(counters["graph_break"].values()) == 0
    assert len(offsets) > 1 or schedule.draw_offset(0.5) is None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("case", ["quench", "block shifted", "slide aligned"])
def test_the_blocks_share_one_program(case, monkeypatch):
    schedule, shifted = CASES[case]
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager", fullgraph=True))
    model = network(layers=3)
    module = FastLossModule(model, NextToken(), compile=True)
    for _, slots in passes(schedule, shifted, hdlm.GammaHybrid(VOCAB, 0.2)):
        torch.testing.assert_close(module.features(slots), model.trunk(slots))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3  # embedding, block, the head's features
