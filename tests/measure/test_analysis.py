"""Simplex, geometry, cycles, sharpness: figures against what can be worked out by hand or in full."""

import math
import statistics
from itertools import combinations, product

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F

from rebasin_cli.errors import DataError, NetworkError, UsageError
from rebasin_cli.measure import simplex
from rebasin_cli.measure.compared import inconsistency
from rebasin_cli.measure.geometry import geometry, independent
from rebasin_cli.measure.sharpness import sharpness
from rebasin_cli.networks.evaluation import Scores
from rebasin_cli.symmetry import permutation

# ------------------------------------------------------------------------------------------- geometry


def points(*coordinates):
    """Models whose first coordinate is one tensor and whose others are another."""
    return [
        {"x": torch.tensor([p[0]]), "y": torch.tensor(p[1:]), "left out": torch.rand(2)} for p in coordinates
    ]


def test_a_triangle_of_three_four_and_five():
    found = geometry(points((0.0, 0.0), (3.0, 0.0), (0.0, 4.0)), ["x", "y"])
    assert found.distances == pytest.approx((3, 4, 5))
    assert found.angles == pytest.approx((90, math.degrees(math.atan2(4, 3)), math.degrees(math.atan2(3, 4))))


def test_every_triplet_has_three_angles_that_add_up():
    rng = torch.Generator().manual_seed(0)
    found = geometry([{"w": torch.randn(4, generator=rng)} for _ in range(5)], ["w"])
    assert len(found.distances) == 10 and len(found.angles) == 30
    for k in range(0, 30, 3):
        assert sum(found.angles[k : k + 3]) == pytest.approx(180)


def test_equal_models_have_no_angle_between_them():
    found = geometry(points((0.0, 0.0), (0.0, 0.0), (1.0, 0.0)), ["x", "y"])
    assert found.distances == (0, 1, 1)
    assert [math.isnan(angle) for angle in found.angles] == [True, True, False]
    assert found.angles[2] == pytest.approx(0)


def test_independent_points_of_many_dimensions_are_a_regular_simplex():
    rng = torch.Generator().manual_seed(0)
    models = [
        {"w": k * torch.ones(200, 100), "b": torch.randn(7, generator=rng), "zero": torch.zeros(3)}
        for k in range(1, 5)
    ]
    drawn = independent(models, ["w", "b"], seed=3)
    for model, other in zip(models, drawn, strict=True):
        for name in ("w", "b"):
            assert other[name].norm().item() == pytest.approx(model[name].norm().item())
    same = [models[0]] * 4
    null = geometry(independent(same, ["w", "b", "zero"], seed=3), ["w", "b", "zero"])
    assert all(abs(angle - 60) < 1.5 for angle in null.angles)
    again = independent(same, ["w", "b", "zero"], seed=3)
    assert geometry(again, ["w", "b", "zero"]) == null
    assert geometry(independent(same, ["w", "b"], seed=4), ["w", "b"]) != null


# --------------------------------------------------------------------------------------------- cycles

WORDS = {"h": 8, "g": 4}


def relative(sets):
    """Pairs that fit together: each model has one order, and pairs are what lies between."""
    return {
        (i, j): permutation.compose(sets[j], permutation.invert(sets[i]))
        for i, j in combinations(range(len(sets)), 2)
    }


def drawn_sets(count):
    rng = torch.Generator().manual_seed(0)
    return [permutation.random(WORDS, rng) for _ in range(count)]


def test_models_with_one_order_each_are_consistent():
    found = inconsistency(relative(drawn_sets(4)))
    assert found.overall == 0 and found.by_word == {"h": 0, "g": 0} and found.by_triplet == (0,) * 4


def test_two_units_exchanged_in_one_pair_are_seen_by_every_triplet_with_it():
    pairs = relative(drawn_sets(4))
    order = torch.arange(8)
    order[[2, 5]] = order[[5, 2]]
    pairs[0, 2] = {**pairs[0, 2], "h": pairs[0, 2]["h"][order]}
    found = inconsistency(pairs)
    assert found.by_triplet == pytest.approx((2 / 12, 0, 2 / 12, 0))  # 012, 013, 023, 123
    assert found.by_word == pytest.approx({"h": 2 * 2 / (8 * 4), "g": 0})
    assert found.overall == pytest.approx(4 / (12 * 4))


def test_two_models_have_no_cycle():
    assert inconsistency(relative(drawn_sets(2))) is None


# -------------------------------------------------------------------------------------------- simplex


def scored(value):
    return {
        "test": Scores(value, {"accuracy": value / 10}, 7, 0.0),
        "train": Scores(2 * value, {"accuracy": 0.5}, 7, 0.0),
    }


ENDS = [scored(float(k)) for k in (1, 2, 6)]


def bowl(models, weights):
    """A loss of 100 at the models' weighted mean squared."""
    return scored(100 * sum(m * w for m, w in zip(models, weights, strict=True)) ** 2)


def test_the_gap_is_measured_from_the_models_own_losses():
    found = simplex.mean(bowl, [0.1, 0.2, 0.6], ENDS)
    assert found["test"].loss == pytest.approx(9) and found["test"].ends_loss == pytest.approx(3)
    assert found["test"].gap == pytest.approx(6) and found["train"].gap == pytest.approx(18 - 6)
    assert found["test"].metrics["accuracy"] == pytest.approx(0.9) and found["test"].ends_metrics[
        "accuracy"
    ] == pytest.approx(0.3)
    assert found["test"].weights == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_midpoints_mix_two_models_each():
    seen = []

    def measure(models, weights):
        seen.append((tuple(models), tuple(weights)))
        return bowl(models, weights)

    found = simplex.midpoints(measure, [0.1, 0.2, 0.6], ENDS)
    assert seen == [((0.1, 0.2), (0.5, 0.5)), ((0.1, 0.6), (0.5, 0.5)), ((0.2, 0.6), (0.5, 0.5))]
    assert [p["test"].gap for p in found] == pytest.approx([2.25 - 1.5, 12.25 - 3.5, 16 - 4])


def test_at_unequal_weights_the_gap_is_from_the_models_weighted_losses():
    found = simplex.at(bowl, [0.1, 0.2, 0.6], ENDS, [0.5, 0.0, 0.5])
    assert found["test"].loss == pytest.approx(12.25) and found["test"].ends_loss == pytest.approx(3.5)
    found = simplex.at(bowl, [0.1, 0.2, 0.6], ENDS, [0.7, 0.2, 0.1])["test"]
    assert found.ends_loss == pytest.approx(0.7 * 1 + 0.2 * 2 + 0.1 * 6)
    assert found.ends_metrics["accuracy"] == pytest.approx(0.17) and found.gap == pytest.approx(
        100 * 0.17**2 - 1.7
    )


def test_weights_are_uniform_on_the_simplex():
    weights = torch.tensor(simplex.uniform_weights(4, 20_000, seed=1), dtype=torch.float64)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(20_000, dtype=torch.float64))
    torch.testing.assert_close(weights.mean(0), torch.full((4,), 0.25).double(), atol=0.005, rtol=0)
    expected = 3 / (16 * 5)  # the variance of Dirichlet(1, 1, 1, 1)
    torch.testing.assert_close(weights.var(0), torch.full((4,), expected).double(), atol=0.002, rtol=0)


def test_points_come_from_the_seed():
    one, same, other = (
        [p["test"].weights for p in simplex.anywhere(bowl, [0.1, 0.2, 0.6], ENDS, 3, seed=s)]
        for s in (1, 1, 2)
    )
    assert one == same != other and len(one) == 3


def test_spread():
    assert simplex.spread([]) is None
    found = simplex.spread([1.0, 2.0, 6.0])
    assert (found.mean, found.least, found.largest, found.count) == (3.0, 1.0, 6.0, 3)
    assert found.deviation == pytest.approx(statistics.stdev([1, 2, 6]))


# ------------------------------------------------------------------------------------------ sharpness


def tiny(norm=False):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 4), *[nn.BatchNorm1d(4)] * norm, nn.Tanh(), nn.Linear(4, 2)]
    network = nn.Sequential(*layers).double()
    if norm:
        nn.init.uniform_(network[1].running_mean)
        nn.init.uniform_(network[1].running_var, 0.5, 2)
    return network


def batches(sizes=(5, 3)):
    rng = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 3, generator=rng, dtype=torch.float64), torch.randint(0, 2, (n,), generator=rng))
        for n in sizes
    ]


def in_full(network, data):
    """Σ_i H_ii θ_i² with the whole Hessian."""
    names = [name for name, _ in network.named_parameters()]
    shapes = [p.shape for p in network.parameters()]
    theta = torch.cat([p.detach().flatten() for p in network.parameters()])
    inputs, targets = (torch.cat(parts) for parts in zip(*data, strict=True))

    def loss(flat):
        parts = flat.split([shape.numel() for shape in shapes])
        own = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return F.cross_entropy(functional_call(network, own, (inputs,)), targets)

    network.eval()
    return (jacrev(jacrev(loss))(theta).diagonal() * theta.square()).sum().item()


@pytest.mark.parametrize("norm", [False, True])
def test_probes_come_to_what_the_whole_hessian_says(norm):
    network, data = tiny(norm), batches()
    expected = in_full(network, data)
    found = sharpness(network, data, probes=400, seed=0)
    assert found.probes == 400 and found.samples == 8
    assert abs(found.value - expected) < 4 * found.error
    assert found.error < 0.1


def test_all_signs_together_are_exact(monkeypatch):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 2, bias=False)).double()
    data = [(inputs[:, :2], targets) for inputs, targets in batches()]
    every = iter([bit for signs in product((0, 1), repeat=8) for bit in signs])
    monkeypatch.setattr(
        torch,
        "randint",
        lambda low, high, shape, **_: torch.tensor([next(every) for _ in range(math.prod(shape))]).view(
            shape
        ),
    )
    found = sharpness(network, data, probes=2**8)
    monkeypatch.undo()
    assert found.value == pytest.approx(in_full(network, data), rel=1e-9)


def test_how_the_samples_are_batched_does_not_matter():
    whole = [tuple(torch.cat(parts) for parts in zip(*batches(), strict=True))]
    one, other = sharpness(tiny(), batches(), probes=4), sharpness(tiny(), whole, probes=4)
    assert one.value == pytest.approx(other.value) and one.error == pytest.approx(other.error)


def test_the_scale_of_a_unit_does_not_matter():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    before = sharpness(network, batches(), probes=6).value
    with torch.no_grad():
        network[0].weight[1] *= 7
        network[0].bias[1] *= 7
        network[2].weight[:, 1] /= 7
    assert sharpness(network, batches(), probes=6).value == pytest.approx(before)


def test_a_loss_of_ones_own():
    torch.manual_seed(0)
    network = nn.Linear(3, 2, bias=False).double()
    (inputs, targets), *_ = batches()
    found = sharpness(
        network, [(inputs, targets)], probes=500, loss=lambda outputs, _: outputs.square().mean()
    )
    expected = (2 * inputs.square().mean(0) / 2 * network.weight.square()).sum().item()
    assert abs(found.value - expected) < 4 * found.error


def test_the_network_is_left_as_it_was():
    network = tiny(norm=True).train()
    network[3].bias.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    sharpness(network, batches(), probes=2)
    assert network.training and not network[3].bias.requires_grad and network[0].bias.requires_grad
    assert all(p.grad is None for p in network.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(UsageError, match="no standard error"):
        sharpness(tiny(), batches(), probes=1)
    with pytest.raises(DataError, match="no samples"):
        sharpness(tiny(), [])
    with pytest.raises(NetworkError, match="cannot be derived twice"):
        sharpness(tiny(), batches(), loss=lambda outputs, _: outputs.detach().mean())
