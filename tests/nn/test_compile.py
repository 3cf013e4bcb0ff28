"""The training forward compiles whole: no graph break, and no second compilation from one draw to the next."""

import pytest
import torch
import torch._dynamo
from networks import BOS_ID, VOCAB, network

import hdlm
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


@pytest.mark.parametrize("case", CASES)
def test_compiles_once_and_whole(case):
    schedule, shifted = CASES[case]
    process, model = hdlm.GammaHybrid(VOCAB, 0.2), network()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    run = torch.compile(model, backend="eager")
    offsets = set()
    for step in range(6):
        indices = torch.arange(step * 4, step * 4 + 4)
        draw = draw_times(schedule, seed=1, indices=indices, global_batch=4, dtype=torch.float64)
        offsets.add(draw.offset)
        layout = training_layout(schedule, shifted=shifted, offset=draw.offset)
        x0 = torch.randint(VOCAB, (4, 12))
        slots = layout.fill(x0, process.corrupt(x0, draw.times), draw.times, process, bos_id=BOS_ID)
        torch.testing.assert_close(run(slots), model(slots))
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 1
    assert sum(counters["graph_break"].values()) == 0
    assert len(offsets) > 1 or not isinstance(schedule, hdlm.Slide)
