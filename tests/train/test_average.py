"""The average of a run's weights: what it forgets, and when."""

import pytest
import torch

from hdlm.train.state import EMA


class OneWeight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))


def averaged(values, decay, where=None):
    """The average after each of some values of a weight that began at 0."""
    model, found = OneWeight(), []
    average = EMA(model, decay)
    for step, value in enumerate(values, start=1):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update(model, step, where=torch.tensor(where is None or where[step - 1]))
        found.append(average.values["weight"].item())
    return found


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.9999])
def test_early_on_it_forgets_faster(decay):
    """After step n a share of min(decay, n / (n + 10)) of the old average is kept."""
    values, expected, wanted = [3.0, -1.0, 7.0, 2.0] * 60, 0.0, []
    for step, value in enumerate(values, start=1):
        kept = min(decay, step / (step + 10))
        expected = kept * expected + (1 - kept) * value
        wanted.append(expected)
    assert averaged(values, decay) == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_a_weight_that_stands_still_is_soon_its_own_average():
    """A plain decay of 0.9999 would be at 0.03 of it after 300 steps."""
    assert averaged([1.0] * 300, 0.9999)[-1] == pytest.approx(1.0, abs=1e-5)


def test_steps_that_are_skipped_change_nothing():
    first, second, third = averaged([1.0, 100.0, 1.0], 0.9, where=[True, False, True])
    assert second == first < third < 1


def test_it_takes_the_place_of_the_weights_and_gives_it_back():
    model = OneWeight()
    average = EMA(model, 0.5)
    with torch.no_grad():
        model.weight.fill_(4.0)
    average.swap(model)
    assert (model.weight.item(), average.values["weight"].item()) == (0.0, 4.0)
    average.swap(model)
    assert (model.weight.item(), average.values["weight"].item()) == (4.0, 0.0)
