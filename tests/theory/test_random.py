import pytest
import torch

import hdlm
from hdlm.theory.random import Keyed, categorical, keyed_uniform, uniform, uniform_token


def reference_uniform(*keys):
    """The same recipe in Python's unlimited integers, modulo 2^64."""
    modulus, golden = 2**64, 0x9E3779B97F4A7C15

    def scramble(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % modulus
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % modulus
        return z ^ (z >> 31)

    bits = 0
    for key in keys:
        bits = scramble(((bits ^ key % modulus) * golden + golden) % modulus)
        bits = scramble((bits + golden) % modulus)
    return (bits >> 11) * 2.0**-53


def test_keyed_uniforms_are_the_same_everywhere():
    rows = torch.tensor([0, 1, 2**40, -3])
    expected = [reference_uniform(1234, int(row), 7) for row in rows]
    assert keyed_uniform(1234, rows, 7).tolist() == expected


def test_keyed_uniforms_look_uniform_and_independent():
    grid = keyed_uniform(3, torch.arange(500).unsqueeze(1), torch.arange(400))
    assert grid.min() >= 0
    assert grid.max() < 1
    counts = torch.histc(grid, 100, 0, 1)
    assert ((counts - 2000) ** 2 / 2000).sum() < 99 + 6 * (2 * 99) ** 0.5
    for neighbour in (grid[1:, :] * grid[:-1, :], grid[:, 1:] * grid[:, :-1]):
        assert abs(neighbour.mean() - 0.25) < 6 * (7 / 144 / neighbour.numel()) ** 0.5
    assert len(grid.unique()) == grid.numel()


def test_keyed_draws_differ_from_one_another_but_not_between_batches():
    source = Keyed(0, torch.tensor([5, 6]))
    first, second = source.uniform((2, 3)), source.uniform((2, 3))
    assert not torch.equal(first, second)
    alone = Keyed(0, torch.tensor([6]))
    assert torch.equal(alone.uniform((1, 3))[0], first[1])
    assert torch.equal(alone.uniform((1, 3))[0], second[1])


def test_keyed_source_refuses_a_batch_of_another_size():
    with pytest.raises(ValueError, match="first axis must be the 2 rows"):
        uniform((3, 4), generator=Keyed(0, torch.arange(2)))


def test_categorical_is_the_inverse_cdf():
    weights = torch.tensor([0.0, 2.0, 0.0, 1.0, 1.0, 0.0])
    u = torch.tensor([0.0, 0.49, 0.5, 0.74, 0.75, 1 - 2**-53], dtype=torch.float64)
    drawn = categorical(weights.expand(6, -1), u, rows_at_once=4)
    assert drawn.tolist() == [1, 1, 3, 3, 4, 4]
    barred = categorical(weights.expand(6, -1), u, exclude=torch.tensor([1, 1, 1, 1, -1, -1]))
    assert barred.tolist() == [3, 3, 4, 4, 4, 4]


def test_categorical_never_returns_an_impossible_token():
    weights = torch.rand(2000, 50) * (torch.rand(2000, 50) < 0.1)
    weights[:, 7] += 1e-3
    u = torch.rand(2000, dtype=torch.float64)
    u[:100] = 0.0
    u[100:200] = 1 - 2**-53
    drawn = categorical(weights, u)
    assert (weights.gather(1, drawn.unsqueeze(1)) > 0).all()


def test_uniform_token_covers_its_range():
    assert uniform_token(torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64), 200_000).tolist() == [0, 199_999]


def test_no_rows_give_no_draws():
    assert categorical(torch.ones(0, 5), torch.ones(0, dtype=torch.float64)).shape == (0,)


@pytest.mark.parametrize("shape", [3, "ab", (2, -1), (2, 1.5), (True, 2), None], ids=repr)
def test_shapes_are_whole_numbers(shape):
    with pytest.raises(ValueError, match="must be a tuple of integers >= 0"):
        hdlm.Uniform(5).prior(shape)


def test_more_than_memory_a_device_that_is_none_and_a_generator_that_is_none():
    with pytest.raises(ValueError, match="GiB of memory"):
        hdlm.Uniform(5).prior((2**40, 2**10))
    with pytest.raises(ValueError, match="there is no such device here"):
        hdlm.Uniform(5).prior((2, 3), device="abacus")
    with pytest.raises(ValueError, match=r"must be a torch\.Generator or None"):
        hdlm.Uniform(5).prior((2, 3), generator=7)
