"""What the layout rule says of several candidates for one position, read in one pass (docs/sampling.md, Speculation).

A candidate behind a settled prefix is a clean slot in a window of its own: it sees the prefix and itself, as
autoregression does. Two in a row are not: the first would see the second. They would be if clean slots of a window saw
those before them alone, and no layout that there is would change.
"""

from dataclasses import replace

import pytest
import torch
from support.networks import BOS_ID, STYLES, network

import hdlm
from hdlm.theory.layout import NOTHING, Layout, Pattern, Slots, build_layout, training_layout
from hdlm.theory.levels import levels_of

TEXT, CANDIDATES, BEHIND = [5, 1, 7, 2, 9], [4, 8, 6], 3


def with_candidates(count):
    """Settled BOS and TEXT, and `count` clean slots of one window that go on behind the first BEHIND tokens instead."""
    settled = build_layout(len(TEXT) + 1, [], shifted=True, settled=len(TEXT) + 1)
    position = torch.arange(BEHIND + 1, BEHIND + 1 + count)
    more = {
        "holds": position - 1,
        "predicts": position,
        "position": position,
        "noisy": torch.zeros(count, dtype=torch.bool),
        "window": torch.zeros(count, dtype=torch.long),
        "limit": torch.full((count,), BEHIND),
    }
    columns = {name: torch.cat([getattr(settled, name), column]) for name, column in more.items()}
    slots = len(settled) + count
    level_token, runs = levels_of(torch.full((slots,), NOTHING), slots)
    return replace(settled, **columns, level_token=level_token, runs=runs, pattern=Pattern.GENERAL)


def read(model, layout, tokens):
    """Outputs [slots, N] of clean tokens, BOS first."""
    token = torch.tensor([[BOS_ID, *tokens]])
    nothing = torch.zeros(1, len(layout.level_token), dtype=torch.float64)
    return model(Slots(layout, token, sigma=nothing, weight=torch.ones(token.shape, dtype=torch.float64)))[0].detach()


def alone(model, tokens):
    """The same by autoregression, from a pass of their own."""
    return read(model, build_layout(len(tokens) + 1, [], shifted=True, settled=len(tokens) + 1), tokens)


def difference(model, count):
    """Of the candidates' outputs from those of a pass in which they are the text, and of the text's from its own."""
    out = read(model, with_candidates(count), [*TEXT, *CANDIDATES[:count]])
    own = alone(model, [*TEXT[:BEHIND], *CANDIDATES[:count]])[BEHIND + 1 :]
    settled = (out[: len(TEXT) + 1] - alone(model, TEXT)).abs().max()
    return (out[len(TEXT) + 1 :] - own).abs().amax(-1), settled


def causal(layout):
    """The rule, but for clean slots of a window: they are seen from behind alone."""
    q, k = layout.window.unsqueeze(-1), layout.window.unsqueeze(-2)
    behind = layout.position.unsqueeze(-2) <= layout.position.unsqueeze(-1)
    settled = (k < 0) & (layout.position.unsqueeze(-2) <= layout.limit.unsqueeze(-1))
    return settled | ((q == k) & (q >= 0) & (layout.noisy.unsqueeze(-2) | behind))


@pytest.mark.parametrize("style", STYLES)
def test_one_candidate_in_a_window_of_its_own_is_autoregression(style):
    candidate, settled = difference(network(style, layers=3, seed=1), 1)
    assert candidate.max() < 1e-12
    assert settled < 1e-12


def test_two_in_a_row_are_autoregression_for_one_layer_alone():
    shallow, _ = difference(network("plain", layers=1), 2)
    deep, settled = difference(network("plain", layers=2), 2)
    assert shallow[1] < 1e-12  # reads what the first holds, which saw nothing yet
    assert shallow[0] > 1e-3  # sees the second
    assert deep.min() > 1e-3
    assert settled < 1e-12


def test_they_would_be_if_clean_slots_were_seen_from_behind_alone(monkeypatch):
    monkeypatch.setattr(Layout, "mask", causal)
    candidates, settled = difference(network("plain", layers=3), 3)
    assert candidates.max() < 1e-12
    assert settled < 1e-12


@pytest.mark.parametrize("shifted", [False, True])
def test_and_no_other_layout_would_change(shifted):
    for schedule, offset in (
        (hdlm.Flat(7), None),
        (hdlm.Block(7, 3), None),
        (hdlm.Slide(7, 3), 1),
        (hdlm.Slide(7, 3), 3),
    ):
        layout = training_layout(schedule, shifted=shifted, offset=offset)
        assert torch.equal(causal(layout), layout.mask())
    layout = build_layout(12, [(2, 6), (5, 9), (11, 12)], shifted=shifted)
    assert torch.equal(causal(layout), layout.mask())
