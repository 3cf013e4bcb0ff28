"""Temperature, top-k and top-p against the same in plain Python; random numbers wherever they are asked for."""

import hashlib
import itertools

import pytest
import torch

from hdlm.config.sampling import DrawSettings
from hdlm.sampling.rng import EVENT, TOKEN, SampleRNG, row_keys
from hdlm.sampling.warping import is_plain, warp

LAWS = [[0.5, 0.25, 0.125, 0.125], [0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0]]


def warped(law, temperature, top_k, top_p):
    """Temperature, then the k likeliest (all of those that tie with the last), then the fewest that make up p."""
    if temperature == 0:
        return [float(i == law.index(max(law))) for i in range(len(law))]
    law = [p ** (1 / temperature) for p in law]
    law = [p / sum(law) for p in law]
    if top_k is not None:
        law = [p if p >= sorted(law)[-min(top_k, len(law))] else 0.0 for p in law]
        law = [p / sum(law) for p in law]
    order, mass = sorted(range(len(law)), key=lambda i: (-law[i], i)), 0.0
    for i in order:
        if top_p is not None and mass >= top_p:
            law = [*law[:i], 0.0, *law[i + 1 :]]
        mass += law[i]
    return [p / sum(law) for p in law]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_warped_as_in_plain_python(law, temperature):
    log_p0 = torch.tensor(law, dtype=torch.float64).log()
    for top_k, top_p in itertools.product((None, 1, 2, 3, 4, 9), (None, 0.05, 0.5, 0.75, 0.99, 1.0)):
        settings = DrawSettings(temperature=temperature, top_k=top_k, top_p=top_p)
        found = warp(log_p0.expand(2, -1), settings).exp()
        expected = torch.tensor(warped(law, temperature, top_k, top_p), dtype=torch.float64)
        torch.testing.assert_close(found, expected.expand(2, -1), msg=lambda text, how=settings: f"{how}: {text}")


def test_a_law_that_nothing_warps_is_left_as_it_is():
    """Not even normalised: the network's own numbers."""
    law = torch.zeros(1, 3)
    for settings in (DrawSettings(), DrawSettings(temperature=1.0, top_p=1.0), DrawSettings(temperature=1)):
        assert is_plain(settings)
        assert warp(law, settings) is law
    for settings in (DrawSettings(temperature=0.9), DrawSettings(top_k=5), DrawSettings(top_p=0.9)):
        assert not is_plain(settings)


@pytest.mark.parametrize("purpose", [EVENT, TOKEN])
def test_numbers_are_the_same_wherever_they_are_asked_for(purpose):
    """By step and window, several steps at once, or one by one; another purpose, seed, row or step has others."""
    rng, positions = SampleRNG(3, torch.tensor([7, 8])), torch.arange(4, 9)
    whole = rng.uniform(purpose, 5, positions)
    step = rng.step(5, positions)
    assert torch.equal({EVENT: step.event, TOKEN: step.token}[purpose], whole)
    assert torch.equal(rng.uniform(purpose, torch.tensor([4, 5]).view(2, 1, 1), positions)[1], whole)
    row, column = torch.tensor([1, 0, 1]), torch.tensor([0, 3, 4])
    found = rng.uniform_at(purpose, row, torch.tensor([5, 5, 5]), positions[column])
    assert torch.equal(found, whole[row, column])
    others = [rng.uniform(TOKEN + EVENT - purpose, 5, positions), rng.uniform(purpose, 6, positions), whole.flip(0)]
    others += [SampleRNG(4, torch.tensor([7, 8])).uniform(purpose, 5, positions)]
    assert not any((whole == other).any() for other in others)
    assert step.gumbel is None


def test_flawed_draws_have_a_number_for_every_state():
    """Which depends on the row, the step, the position and the state."""
    rng = SampleRNG(3, torch.tensor([7, 8]), flawed=True)
    found = rng.step(5, torch.arange(4, 9)).gumbel(6)
    assert found.shape == (2, 5, 6)
    assert len(found.unique()) == 60
    assert torch.equal(rng.step(5, torch.arange(5, 7)).gumbel(4), found[:, 1:3, :4])
    assert not (rng.step(6, torch.arange(4, 9)).gumbel(6) == found).any()
    assert not (SampleRNG(4, torch.tensor([7, 8]), flawed=True).step(5, torch.arange(4, 9)).gumbel(6) == found).any()


def test_a_rows_key_is_its_prompts_fingerprint_and_the_next_for_the_next():
    """Seven bytes of SHA-256 over the tokens, eight bytes each: what one seed means does not change."""
    first, empty = (
        int.from_bytes(hashlib.sha256(b"".join(n.to_bytes(8, "big") for n in prompt)).digest()[:7], "big")
        for prompt in ([1, 300], [])
    )
    assert row_keys([[1, 300], [], [1, 300], [1, 300]]) == [first, empty, first + 1, first + 2]
