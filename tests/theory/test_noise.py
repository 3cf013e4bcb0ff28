import math

import pytest
import torch

import hdlm

NOISES = [hdlm.Linear(), hdlm.LogLinear(), hdlm.LogLinear(0.1), hdlm.Cosine(), hdlm.Geometric(1e-3, 20.0)]
ENDS = {
    "Linear": math.inf,
    "LogLinear(eps=0.001)": -math.log(1e-3),
    "LogLinear(eps=0.1)": -math.log(0.1),
    "Cosine": math.inf,
    "Geometric": 20.0,
}


def reference_alpha(noise, t):
    """The formulas of the module's table, in float64 and as they are printed."""
    if isinstance(noise, hdlm.Linear):
        return 1 - t
    if isinstance(noise, hdlm.LogLinear):
        return 1 - (1 - noise.eps) * t
    if isinstance(noise, hdlm.Cosine):
        return torch.cos(t * math.pi / 2)
    ratio = noise.sigma_max / noise.sigma_min
    return torch.exp(-noise.sigma_max * (ratio**t - 1) / (ratio - 1))


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_the_printed_formulas(noise):
    t = torch.linspace(0.001, 0.999, 500, dtype=torch.float64)
    torch.testing.assert_close(noise.alpha(t), reference_alpha(noise, t))
    torch.testing.assert_close(noise.sigma(t), -reference_alpha(noise, t).log())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_both_ends_are_exact(noise, dtype):
    ends = torch.tensor([0.0, 1.0], dtype=dtype)
    start, end = noise.sigma(ends).tolist()
    assert start == 0.0
    assert noise.alpha(ends)[0] == 1.0
    expected = next(value for name, value in ENDS.items() if repr(noise).startswith(name))
    assert end == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_rate_is_the_derivative_of_sigma(noise):
    t = torch.linspace(0.01, 0.99, 99, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(noise.sigma(t).sum(), t)
    torch.testing.assert_close(noise.rate(t), slope)
    (fall,) = torch.autograd.grad(noise.alpha(t).sum(), t)
    torch.testing.assert_close(noise.unmasking(t), -fall / (1 - noise.alpha(t)))


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_float32_keeps_its_digits_at_both_ends(noise):
    near = torch.logspace(-6, -1, 50, dtype=torch.float32)
    for t in (near, 1 - near):
        exact = noise.sigma(t.double())
        assert ((noise.sigma(t).double() - exact).abs() / exact).max() < 1e-6
        exact_alpha = noise.alpha(t.double())
        assert ((noise.alpha(t).double() - exact_alpha).abs() / exact_alpha).max() < 2e-5


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_time_inverts_sigma(noise):
    t = torch.cat([torch.logspace(-6, -1, 30), 1 - torch.logspace(-3, -1, 30)]).double()
    torch.testing.assert_close(noise.time(noise.sigma(t)), t, rtol=1e-9, atol=0)
    t32 = t.float()
    torch.testing.assert_close(noise.time(noise.sigma(t32)), t32, rtol=1e-5, atol=0)


@pytest.mark.parametrize("value", [-1.0, math.nan, 100.0])
def test_noise_that_no_time_has_is_refused(value):
    with pytest.raises(ValueError, match=r"the noise must be in \[0, 6\.90776\]"):
        hdlm.LogLinear().time(torch.tensor([1.0, value]))


def test_linear_weights_are_finite_at_full_noise():
    assert hdlm.Linear().unmasking(torch.tensor(1.0)) == 1.0


@pytest.mark.parametrize(
    "make",
    [lambda: hdlm.LogLinear(0.0), lambda: hdlm.LogLinear(1.5), lambda: hdlm.Geometric(2.0, 1.0)],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(ValueError, match="not accepted"):
        make()


@pytest.mark.parametrize("value", [math.nan, -0.1, 1.1])
@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_bad_times_are_refused(noise, value):
    with pytest.raises(ValueError, match=r"times must be in \[0, 1\]"):
        noise.sigma(torch.tensor([0.5, value]))


@pytest.mark.parametrize("t", [0.5, "0.5", [0.5], None, torch.tensor([1])], ids=repr)
@pytest.mark.parametrize(
    "noise", [hdlm.Linear(), hdlm.LogLinear(), hdlm.Cosine(), hdlm.Geometric(1e-3, 20.0)], ids=repr
)
def test_times_are_tensors_of_floats(noise, t):
    for method in (noise.alpha, noise.sigma, noise.rate, noise.loss_rate, noise.time):
        with pytest.raises(ValueError, match="it must be a floating-point tensor"):
            method(t)


@pytest.mark.parametrize("bad", [[1], None, "1", True, math.nan, math.inf, -1.0, 0.0])
def test_the_ends_of_a_geometric_schedule_are_numbers(bad):
    for ends in ((bad, 20.0), (1e-3, bad)):
        with pytest.raises(ValueError, match="must be finite with 0 < sigma_min < sigma_max"):
            hdlm.Geometric(*ends)


def test_tensors_without_values_have_shapes():
    assert hdlm.Cosine().sigma(torch.ones(2, 3, device="meta")).shape == (2, 3)
