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


def naive(weights, u, exclude):
    """The inverse CDF by running sums over everything, in float64."""
    weights = weights.double().clone()
    if exclude >= 0:
        weights[exclude] = 0
    running = weights.cumsum(0)
    return int((running <= u * running[-1]).sum())


@pytest.mark.parametrize("size", [1, 2, 7, 255, 256, 257, 600, 1024])
def test_categorical_of_any_size_and_shape(size):
    """Blocks of weights, several axes, an index barred here and there: the naive answer, and nothing is changed."""
    generator = torch.Generator().manual_seed(size)
    weights = torch.rand(2, 5, size, generator=generator, dtype=torch.float64)
    u = torch.rand(2, 5, generator=generator, dtype=torch.float64)
    exclude = torch.randint(-1, size, (2, 5), generator=generator) if size > 1 else None
    before = weights.clone()
    found = categorical(weights, u, exclude=exclude)
    assert torch.equal(weights, before)
    barred = torch.full((2, 5), -1) if exclude is None else exclude
    for row in range(2):
        for column in range(5):
            one = naive(weights[row, column], u[row, column], int(barred[row, column]))
            assert int(found[row, column]) == one


def test_categorical_sums_in_float64():
    """131,072 equal float32 weights: running sums of float32 would be thousands of tokens off."""
    size = 2**17
    u = torch.tensor([0.1, 0.5, 0.9, 1 - 2**-40], dtype=torch.float64)
    found = categorical(torch.full((4, size), 0.1), u)
    assert (found - (u * size).long()).abs().max() <= 1


def test_uniforms_come_from_the_generator_that_is_given():
    draws = [uniform((4,), generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert draws[0].dtype == torch.float64
    torch.manual_seed(0)
    first = uniform((4,))
    torch.manual_seed(0)
    assert torch.equal(first, uniform((4,)))


def test_keys_of_64_bits():
    """A key counts modulo 2^64, as an unsigned or a signed number."""
    for key in (2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1, 2**64 + 3):
        assert keyed_uniform(key, 7).item() == reference_uniform(key, 7)
    assert keyed_uniform(2**64 - 1).item() == keyed_uniform(-1).item()
    assert keyed_uniform(2**64 + 3).item() == keyed_uniform(3).item()
    assert keyed_uniform(2**63).item() != keyed_uniform(0).item()


def test_keyed_draws_are_told_apart_by_row_column_and_number():
    source = Keyed(9, torch.tensor([5, 6, 7]))
    draws = torch.stack([source.uniform((3, 2, 4)) for _ in range(3)])
    assert len(draws.unique()) == draws.numel()
    expected = keyed_uniform(9, torch.tensor([5, 6, 7]).view(-1, 1, 1), 1, torch.arange(8).view(2, 4))
    assert torch.equal(draws[1], expected)
    with pytest.raises(ValueError, match="first axis must be the 3 rows"):
        source.uniform(())
