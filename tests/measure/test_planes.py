"""The plane through three models, and figures over it."""

import math

import pytest
import torch
from torch import nn

from rebasin_cli.errors import UsageError
from rebasin_cli.learning.curves.curve import Curve
from rebasin_cli.measure import planes
from rebasin_cli.measure.planes import Plane
from rebasin_cli.networks.evaluation import Scores
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse

SPEC = """
tensors:
  0.weight: "h ."
  0.bias: "h"
  1.weight: "h"
  1.bias: "h"
  1.num_batches_tracked: ""
  3.weight: ". h"
  3.bias: "."
statistics:
  1.running_mean: "h"
  1.running_var: "h"
"""


def network(seed):
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()
    made[1].running_mean.normal_()
    return made


def models(*seeds):
    return [{name: tensor.clone() for name, tensor in network(seed).state_dict().items()} for seed in seeds]


@pytest.fixture
def fitted():
    return fit(parse(SPEC, name="tiny"), {name: tuple(t.shape) for name, t in models(0)[0].items()})


def parameters(model):
    return torch.cat([t.flatten() for n, t in model.items() if "running" not in n and "num" not in n])


def close(one, other):
    return all(torch.allclose(one[n], other[n]) for n in one if "running" not in n and "num" not in n)


def test_the_models_are_where_they_are_said_to_be(fitted):
    three = models(1, 2, 3)
    plane = Plane.through(three, fitted)
    for model, (x, y) in zip(three, plane.places, strict=True):
        assert close(plane.at(x, y), model)
        place, away = plane.place(model)
        assert place == pytest.approx((x, y), abs=1e-12) and away == pytest.approx(0, abs=1e-12)


def test_distances_in_the_plane_are_distances_between_parameters(fitted):
    """Running statistics have no part in it, whatever they are."""
    plane = Plane.through(models(1, 2, 3), fitted)
    one, other = plane.at(0.3, -1.0), plane.at(-0.5, 2.0)
    assert (parameters(one) - parameters(other)).norm().item() == pytest.approx(math.hypot(0.8, 3.0))
    a, b, _ = plane.models
    assert plane.length == pytest.approx((parameters(b) - parameters(a)).norm().item())


def test_a_quadratic_curve_lies_in_the_plane_of_its_control_point(fitted):
    a, b, bend = models(1, 2, 3)
    plane = Plane.through((a, b, bend), fitted)
    curve = Curve("bezier", a, b, [{n: bend[n] for n in plane.names}])
    for t in (0.0, 0.2, 0.5, 0.9):
        (x, y), away = plane.place(curve.at(t))
        assert away < 1e-6 * plane.length and close(plane.at(x, y), curve.at(t))
    (other,) = models(4)
    assert plane.place(other)[1] > 0.1 * plane.length


def test_three_models_on_a_line_span_no_plane(fitted):
    a, b, _ = models(1, 2, 3)
    middle = {n: (a[n] + b[n]) / 2 if a[n].is_floating_point() else a[n] for n in a}
    for three in ((a, b, middle), (a, b, b), (a, a, b)):
        with pytest.raises(UsageError, match="lie on one line"):
            Plane.through(three, fitted)


def test_the_grid_goes_a_fifth_of_the_box_beyond_the_models(fitted):
    plane = Plane.through(models(1, 2, 3), fitted)
    xs, ys = plane.axes(7)
    low, high = min(0, plane.along), max(plane.length, plane.along)
    assert xs[0] == pytest.approx(low - 0.2 * (high - low)) and xs[-1] == pytest.approx(
        high + 0.2 * (high - low)
    )
    assert ys[0] == pytest.approx(-0.2 * plane.height) and ys[-1] == pytest.approx(1.2 * plane.height)
    assert len(xs) == len(ys) == 7


def test_every_point_is_measured_once_with_statistics_of_its_own_and_known_ones_are_not(fitted):
    plane = Plane.through(models(1, 2, 3), fitted)
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batches, seen = [(inputs, torch.zeros(32, dtype=torch.long))], []

    def scores(network, data):
        seen.append(network[1].running_mean.clone())
        assert torch.allclose(seen[-1], network[0](inputs).mean(0))
        return Scores(float(len(seen)), {"accuracy": 0.5}, 32, 0.1)

    told = []
    run = {"reset_batches": batches, "scores": scores}
    axes = plane.axes(3)
    reached = lambda figures, done: told.append((done, figures.clone()))  # noqa: E731
    whole = planes.measure(plane, network(0), batches, axes, reached=reached, **run)
    assert whole[0].flatten().tolist() == list(range(1, 10)) and [done for done, _ in told] == list(
        range(1, 10)
    )
    seen.clear()
    known = told[3][1]
    rest = planes.measure(plane, network(0), batches, axes, known=known, **run)
    assert len(seen) == 5 and torch.equal(rest[0].flatten()[:4], known[0].flatten()[:4])
