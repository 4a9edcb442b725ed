"""Points of curves, and figures along them."""

import math

import pytest
import torch

from rebasin_cli.averages.means import interpolate
from rebasin_cli.errors import SpecError, UsageError
from rebasin_cli.learning.curves.curve import KINDS, Curve, along, check_kind, shares, slopes


def models(count, *, seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    return [
        {"w": torch.randn(3, 4, generator=rng, dtype=dtype), "n": torch.tensor([k])} for k in range(count)
    ]


def controls_of(points):
    return [{"w": model["w"]} for model in points]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("points", [3, 4, 6])
def test_shares_are_of_a_whole_and_slopes_are_their_derivatives(kind, points):
    for t in (0.0, 0.11, 0.37, 0.5 + 1e-3, 0.9, 1.0):
        here = shares(kind, t, points)
        assert math.isclose(sum(here), 1) and min(here) >= 0
        assert abs(sum(slopes(kind, t, points))) < 1e-12
        if 0 < t < 1:
            step = 1e-7
            moved = zip(shares(kind, t + step, points), shares(kind, t - step, points), strict=True)
            found = [(after - before) / (2 * step) for after, before in moved]
            assert found == pytest.approx(slopes(kind, t, points), abs=1e-5)


def test_the_quadratic_curve_is_the_papers():
    a, b, c = models(3)
    curve = Curve("bezier", a, b, controls_of([c]))
    t = 0.3
    expected = (1 - t) ** 2 * a["w"] + 2 * t * (1 - t) * c["w"] + t**2 * b["w"]
    torch.testing.assert_close(curve.at(t)["w"], expected)
    derivative = 2 * (1 - t) * (c["w"] - a["w"]) + 2 * t * (b["w"] - c["w"])
    assert curve.speed(t) == pytest.approx(derivative.norm().item())


def test_a_chain_goes_straight_from_bend_to_bend():
    a, b, c = models(3)
    curve = Curve("chain", a, b, controls_of([c]))
    assert torch.equal(curve.at(0.5)["w"], c["w"])
    torch.testing.assert_close(curve.at(0.25)["w"], (a["w"] + c["w"]) / 2)
    assert curve.speed(0.25) == pytest.approx(2 * (c["w"] - a["w"]).norm().item())


@pytest.mark.parametrize("kind", KINDS)
def test_ends_are_the_models_bit_for_bit_and_what_is_no_parameter_goes_straight(kind):
    a, b, c = models(3, dtype=torch.float32)
    a["s"], b["s"] = torch.tensor([1.0]), torch.tensor([3.0])
    a["w"][0, 0] = b["w"][0, 0] = -0.0  # a sum would forget its sign
    curve = Curve(kind, a, b, controls_of([c]))
    assert curve.at(0.0)["w"][0, 0].signbit() and curve.at(1.0)["w"][0, 0].signbit()
    assert all(torch.equal(curve.at(0.0)[name], a[name]) for name in a)
    assert all(torch.equal(curve.at(1.0)[name], b[name]) for name in b)
    half = curve.at(0.5)
    assert half["s"].item() == 2 and half["n"].item() == a["n"].item() and half["w"].dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bends", [1, 3])
def test_with_control_points_on_the_line_it_is_the_line(kind, bends):
    a, b = models(2)
    between = [interpolate(a, b, k / (bends + 1)) for k in range(1, bends + 1)]
    curve = Curve(kind, a, b, controls_of(between))
    for t in (0.1, 0.5, 0.77):
        torch.testing.assert_close(curve.at(t)["w"], interpolate(a, b, t)["w"])
        assert curve.speed(t) == pytest.approx((b["w"] - a["w"]).norm().item())


def test_what_the_spec_ignores_is_the_first_models():
    a, b, c = models(3)
    a["k"], b["k"] = torch.zeros(2), torch.ones(2)
    assert torch.equal(Curve("bezier", a, b, controls_of([c]), {"k"}).at(0.5)["k"], a["k"])


def test_figures_along_a_curve():
    found = along([5.0, 1.0, 2.0, 6.0], [1.0, 1.0, 1.0, 1.0])
    assert found["mean"] == 3.5 and found["highest"] == 6 and found["interior"] == {"lowest": 1, "highest": 2}
    assert found["mean_over_length"] == pytest.approx((3 + 1.5 + 4) / 3)
    fast = along([0.0, 0.0, 1.0, 1.0], [3.0, 3.0, 1.0, 1.0])
    assert fast["mean"] == 0.5 and fast["mean_over_length"] == pytest.approx((0.5 + 1) / (3 + 2 + 1))


def test_a_kind_that_there_is_not():
    with pytest.raises(UsageError, match="unknown kind of curve 'bezir'"):
        check_kind("bezir")


def test_a_spectral_norm_has_no_curve_and_a_weight_norm_has():
    spectral = torch.nn.utils.spectral_norm(torch.nn.Linear(3, 2)).state_dict()
    a, b = ({n: t + k for n, t in spectral.items()} for k in (0, 1))
    controls = [{"weight_orig": a["weight_orig"], "bias": a["bias"]}]
    with pytest.raises(SpecError, match="weight .spectral norm. has no curve: weight_u, weight_v are no"):
        Curve("bezier", a, b, controls)
    Curve("bezier", a, a | {"weight_orig": b["weight_orig"]}, controls)
    Curve("bezier", a, b, controls, keep={"weight_orig", "weight_u", "weight_v"})
    normed = [{"weight_g": torch.ones(2, 1) + k, "weight_v": torch.ones(2, 3) * (k + 1)} for k in range(2)]
    assert Curve("chain", *normed, [normed[0]]).at(0.75)["weight_g"].unique().tolist() == [1.5]
