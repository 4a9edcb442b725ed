"""Sums over samples of units and of all their pairs, by each of the ways in which they are added up."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from rebasin_cli.matchers.activations import moments
from rebasin_cli.matchers.activations.moments import Moments

ABSENT = "built without a C compiler, or for another processor"
needs_compiled = pytest.mark.skipif(moments._moments is None, reason=ABSENT)


@pytest.fixture(params=["compiled", "PyTorch, by sample", "PyTorch, by unit"])
def lying(request, monkeypatch):
    """Units × samples as they lie in memory, and what adds them up: the compiled module takes one of both."""
    if request.param == "compiled" and moments._moments is None:
        pytest.skip(ABSENT)
    if request.param != "compiled":
        monkeypatch.setattr(moments, "_moments", None)
    return (lambda x: x.contiguous()) if request.param.endswith("unit") else (lambda x: x.T.contiguous().T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_costs_are_what_numpy_says_and_do_not_depend_on_the_batches(dtype, lying):
    rng = torch.Generator().manual_seed(0)
    a, b = (lying(torch.randn(5, 300, generator=rng, dtype=dtype) + 1) for _ in range(2))
    whole, parts = (Moments.none(5, torch.device("cpu")) for _ in range(2))
    whole.add(a, b)
    for x, y in zip(a.split(70, 1), b.split(70, 1), strict=True):
        parts.add(x, y)
    a, b = a.double(), b.double()
    corr = torch.corrcoef(torch.cat([a, b]))[:5, 5:]
    digits = 1e-7 if dtype == torch.float32 else 1e-12
    for found in (whole, parts):
        assert torch.allclose(found.correlation(), corr, rtol=0, atol=digits)
        assert torch.allclose(found.inner(), a @ b.T / 300, rtol=1e-6)
        assert torch.allclose(found.l2(), -(a[:, None] - b).square().mean(-1), rtol=1e-6)


@pytest.mark.parametrize("far", [0, 5, 1e4])
def test_sums_of_one_pass_agree_with_two_passes_in_float64(far, lying):
    """Also where units are far from 0, and lie in many slabs and batches, the last of them no whole chunk."""
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(7, 120_000, generator=rng) * 3 + far for _ in range(2))
    b += a - far
    found = Moments.none(7, torch.device("cpu"))
    for x, y in zip(a.split(50_001, 1), b.split(50_001, 1), strict=True):
        found.add(lying(x), lying(y))
    both = [x.double() for x in (a, b)]
    means = [x.mean(1) for x in both]
    centred = [x - mean[:, None] for x, mean in zip(both, means, strict=True)]
    stds = [x.square().mean(1).sqrt() for x in centred]
    for total, square, mean, std in zip(found.sums, found.squares, means, stds, strict=True):
        assert torch.allclose(total / found.samples, mean, rtol=0, atol=1e-7 * std.min().item())
        assert torch.allclose(square / found.samples, std.square() + mean.square(), rtol=1e-7, atol=0)
    assert torch.allclose(torch.stack(found.spread()), torch.stack(stds), rtol=1e-7, atol=0)
    corr = centred[0] @ centred[1].T / 120_000 / torch.outer(*stds)
    assert torch.allclose(found.correlation(), corr, rtol=0, atol=1e-7)
    inner = both[0] @ both[1].T / 120_000
    assert torch.allclose(found.inner(), inner, rtol=0, atol=1e-7 * inner.abs().max().item())


def test_units_that_fire_together_are_as_exact(lying):
    """After a ReLU half of the values are one number, whose rounding adds up."""
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(16, 100_000, generator=rng)
    a, b = z.relu(), (z + 0.1 * torch.randn(z.shape, generator=rng)).relu()
    found, same = (Moments.none(16, torch.device("cpu")) for _ in range(2))
    found.add(lying(a), lying(b))
    same.add(lying(a), lying(a))
    corr = torch.corrcoef(torch.cat([a, b]).double())[:16, 16:]
    assert torch.allclose(found.correlation(), corr, rtol=0, atol=2e-6)
    assert torch.allclose(same.correlation().diagonal(), torch.ones(16).double(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("scale", [1e-24, 1e20])
def test_units_of_any_size_that_a_type_holds_are_told_apart(scale, lying):
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randn(6, 700, generator=rng) for _ in range(2))
    a[2], b[2], b[4] = 0.0, 0.0, a[4]
    plain, scaled = (Moments.none(6, torch.device("cpu")) for _ in range(2))
    plain.add(lying(a), lying(b))
    factors = torch.tensor([1.0, scale, 1.0, 1.0, scale, scale])[:, None]
    scaled.add(lying(a * factors), lying(b * factors))
    assert scaled.finite() and torch.allclose(scaled.correlation(), plain.correlation(), atol=1e-6)
    assert plain.correlation()[4, 4] == pytest.approx(1.0)


def test_wide_layers_are_added_up_in_float64(monkeypatch, lying):
    monkeypatch.setattr(moments, "WIDE", 6)
    rng = torch.Generator().manual_seed(0)
    a, b = (lying(torch.randn(7, 3_000, generator=rng)) for _ in range(2))
    found = Moments.none(7, torch.device("cpu"))
    found.add(a, b)
    corr = torch.corrcoef(torch.cat([a, b]).double())[:7, 7:]
    assert torch.allclose(found.correlation(), corr, rtol=0, atol=1e-12)


def test_units_that_never_change_have_no_correlation_and_no_nan(lying):
    found = Moments.none(3, torch.device("cpu"))
    a = torch.stack([torch.zeros(50), torch.full((50,), 0.1), torch.randn(50)])
    found.add(lying(a), lying(a))
    expected = torch.zeros(3, 3, dtype=torch.float64)
    expected[2, 2] = 1
    assert torch.allclose(found.correlation(), expected)


def test_what_comes_in_any_type_is_added_to_what_was_there(lying):
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(4, 900, generator=rng)
    found = Moments.none(4, torch.device("cpu"))
    found.add(lying(values[:, :0]), lying(values[:, :0]))
    for dtype, part in zip((torch.float64, torch.float32, torch.bfloat16), values.split(300, 1), strict=True):
        found.add(*[lying(part.to(dtype))] * 2)
    found.add(*[lying(values.clone().requires_grad_())] * 2)
    found.add(*[lying(torch._neg_view(-values))] * 2)
    assert found.samples == 2_700
    exact = values.double().repeat(1, 3)
    exact[:, 600:900] = exact[:, 600:900].bfloat16().double()
    assert torch.allclose(found.correlation(), torch.corrcoef(exact), rtol=0, atol=2e-6)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_is_told(broken, lying):
    found, a = Moments.none(3, torch.device("cpu")), torch.ones(3, 600)
    found.add(lying(a), lying(a))
    assert found.finite()
    a[1, 599] = broken
    found.add(lying(a), lying(a))
    assert not found.finite()


# ------------------------------------------------------------------------------------- the compiled module


def ready(samples, units, *, beside=0):
    """What its `add` takes, as it lies between columns of NaN, and the sums that it adds to, all of 1."""
    rng = np.random.default_rng(samples * 1000 + units)
    values = []
    for _ in range(2):
        wide = np.full((samples, units + 2 * beside), np.nan, dtype=np.float32)
        wide[:, beside : beside + units] = rng.normal(size=(samples, units)) + 2
        values.append(wide[:, beside : beside + units])
    origins = [rng.normal(size=units).astype(np.float32) for _ in range(2)]
    return *values, *origins, *(np.ones((rows, units)) for rows in (2, 2, units))


@needs_compiled
@pytest.mark.parametrize("samples", [0, 1, 2, 5, 255, 256, 257, 1030])
def test_the_compiled_module_adds_what_numpy_does(samples):
    for units, beside in itertools.product((1, 3, 4, 15, 16, 17, 24, 31, 50, 130), (0, 5)):
        every = ready(samples, units, beside=beside)
        moments._moments.add(*every)
        x, y = (values.astype("f8") - origin for values, origin in zip(every[:2], every[2:4], strict=True))
        sums, squares, products = every[4:]
        size, told = 1e-6 * np.sqrt(samples), f"{units} units, {beside} beside"
        np.testing.assert_allclose(sums - 1, [x.sum(0), y.sum(0)], 1e-6, 4 * size, err_msg=told)
        np.testing.assert_allclose(squares - 1, [(x * x).sum(0), (y * y).sum(0)], 1e-6, 1e-12, err_msg=told)
        np.testing.assert_allclose(products - 1, x.T @ y, 1e-6, 9 * size, err_msg=told)


@needs_compiled
def test_activations_are_added_up_by_the_compiled_module_where_they_lie_by_sample(monkeypatch):
    called = []

    class Counted:
        @staticmethod
        def add(*every):
            called.append(every[0].shape)
            real.add(*every)

    real = moments._moments
    monkeypatch.setattr(moments, "_moments", Counted)
    images = torch.randn(6, 5, 4, 4)
    for values in (images.to(memory_format=torch.channels_last), images, images.double()):
        units = values.movedim(1, 0).flatten(1)
        Moments.none(5, torch.device("cpu")).add(units, units)
    assert called == [(96, 5)]


@needs_compiled
def test_the_compiled_module_refuses_arrays_that_do_not_fit():
    right = ready(9, 3)
    moments._moments.add(*right)
    frozen = np.ones((3, 3))
    frozen.flags.writeable = False
    double, short = right[0].astype("f8"), right[0][:8]
    wrong = {
        0: [double, short, right[0].T, right[0][:, :2], right[0][0], right[0].astype("i4"), None],
        1: [double, short, right[1][:, ::-1]],
        2: [right[2][:2], right[2].astype("f8"), right[0]],
        3: [right[3][::-1], None],
        4: [np.ones((1, 3)), np.ones(3), np.ones((2, 3), dtype="f4"), np.ones((2, 6))[:, ::2]],
        5: [np.ones((3, 3)), np.ones((4, 3))[::2]],
        6: [frozen, np.ones((3, 2)), np.ones((3, 4))[:, :3], np.ones((3, 3), order="F")],
    }
    for at, values in wrong.items():
        for value in values:
            with pytest.raises((ValueError, TypeError, BufferError)):
                moments._moments.add(*right[:at], value, *right[at + 1 :])
