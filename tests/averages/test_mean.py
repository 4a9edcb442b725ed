"""The weighted mean: exact sums, one rounding, and no trace of the order in which models were named."""

import itertools
from fractions import Fraction

import pytest
import torch

from rebasin_cli.averages import means
from rebasin_cli.averages.means import mean_of

NARROW = [torch.float32, torch.bfloat16, torch.float16]
EVERY = [*NARROW, torch.float64, torch.float8_e5m2, torch.float8_e4m3fn, torch.complex64]


def values(seed, dtype, size=1000):
    drawn = torch.randn(size, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    spread = drawn[:, 0] * 10.0 ** drawn[:, 1].clamp(-2, 2)
    return torch.complex(spread, drawn[:, 1]).to(dtype) if dtype.is_complex else spread.to(dtype)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize("count", [2, 3, 7, 10])
def test_the_mean_of_equal_models_is_the_model_bit_for_bit(dtype, count):
    model = values(0, dtype)
    if not dtype.is_complex:
        model[:2] = torch.tensor([0.0, -0.0]).to(dtype)
    assert torch.equal(bits(mean_of([model] * count, [1 / count] * count, dtype)), bits(model))
    weights = [0.3, 0.2, *[0.5 / (count - 2)] * (count - 2)] if count > 2 else [0.3, 0.7]
    assert torch.equal(bits(mean_of([model] * count, weights, dtype)), bits(model))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_the_order_of_models_leaves_no_trace(dtype, monkeypatch):
    """Among values of which a sum in any order would show it."""
    monkeypatch.setattr(means, "BLOCK", 64)
    models = [values(seed, dtype) for seed in range(4)]
    if dtype == torch.float32:
        models[0][:64:2], models[1][:64:2], models[2][:64:2] = 1e30, -1e30, 1e-7
    models[3] = models[0].clone()  # told apart only where a block is long past its first values
    if dtype == torch.float32:
        for model, value in zip(models, (1e30, -1e30, 0.0, 1.0), strict=True):
            model[500], model[501] = value, -value
            model[448] = {1e30: 1.0, 1.0: 1.0}.get(value, 3.0)  # by their bytes, those two are added last
    for weights in ([0.25] * 4, [0.4, 0.2, 0.2, 0.2]):
        wanted = bits(mean_of(models, weights, dtype))
        for order in itertools.permutations(range(4)):
            found = mean_of([models[k] for k in order], [weights[k] for k in order], dtype)
            assert torch.equal(bits(found), wanted)


def nearest(exact, dtype):
    """The value of `dtype` nearest to a fraction, ties to even, by looking at its neighbours."""
    guess = torch.tensor(float(exact), dtype=torch.float64).to(dtype)
    code = torch.int32 if dtype == torch.float32 else torch.int16
    around = [(guess.view(code) + step).view(dtype) for step in (-1, 0, 1)]
    return min(
        around, key=lambda value: (abs(Fraction(value.item()) - exact), int(value.view(code).item()) & 1)
    )


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_the_mean_is_rounded_once(dtype):
    """A value right beside a tie of the narrow dtype, which float32 would round onto the tie."""
    one = 1 + torch.finfo(dtype).eps  # odd in its last bit: half of it is a tie
    tie = torch.tensor([1.0, one, 2**-36, -(2**-36)], dtype=torch.float64)
    models = [tie[[0, 0]].to(dtype), tie[[1, 1]].to(dtype), tie[[2, 3]].to(dtype), torch.zeros(2).to(dtype)]
    weights = [0.5, 0.5, 1.0, -1.0]
    found = mean_of(models, weights, dtype)
    for k in range(2):
        exact = sum(Fraction(w) * Fraction(m[k].item()) for w, m in zip(weights, models, strict=True))
        assert found[k] == nearest(exact, dtype)
    some = [values(seed, dtype, 300) for seed in range(3)]
    found = mean_of(some, [0.25, 0.25, 0.5], dtype)
    for k in range(300):
        exact = sum(Fraction(w) * Fraction(m[k].item()) for w, m in zip((0.25, 0.25, 0.5), some, strict=True))
        assert found[k] == nearest(exact, dtype)


def test_sums_are_float64_whatever_is_stored():
    many = [
        torch.full((1,), 1.0, dtype=torch.bfloat16),
        *[torch.full((1,), 2**-9, dtype=torch.bfloat16)] * 999,
    ]
    exact = (1 + 999 * 2**-9) / 1000
    assert mean_of(many, [1e-3] * 1000, torch.bfloat16) == torch.tensor(exact).bfloat16()


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_shapes_and_layouts(layout):
    models = [values(seed, torch.float32, 12).view(3, 4) for seed in range(2)]
    models = [model.t() for model in models] if layout == "transposed" else models
    torch.testing.assert_close(mean_of(models, [0.5, 0.5], torch.float32), (models[0] + models[1]) / 2)
    scalar = mean_of([torch.tensor(1.0), torch.tensor(4.0)], [0.5, 0.5], torch.float32)
    assert scalar.shape == () and scalar == 2.5
    assert mean_of([torch.empty(0, 3)] * 2, [0.5, 0.5], torch.float32).shape == (0, 3)


def test_models_of_several_dtypes():
    a, b = values(0, torch.bfloat16), values(1, torch.float32)
    expected = ((a.double() + b.double()) / 2).float()
    assert torch.equal(mean_of([a, b], [0.5, 0.5], torch.float32), expected)
