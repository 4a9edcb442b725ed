"""Theorem 3.1's bounds: they hold, alignment lowers them, one network reaches them; what smoothing costs."""

import pytest
import torch

from rebasin_cli import nets
from rebasin_cli.errors import NetworkError
from rebasin_cli.measure import bounds as theorem
from rebasin_cli.symmetry import assignment

RNG = torch.Generator().manual_seed(0)


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layers(seed, sizes=(5, 8, 7, 3)):
    pairs = zip(sizes, sizes[1:], strict=False)
    return [(drawn(m, n, seed=seed + k), drawn(m, seed=seed + 50 + k)) for k, (n, m) in enumerate(pairs)]


def aligned(a, b, inputs):
    """B with its hidden units in the order that is nearest to A's before the activation, layer by layer."""
    moved, before = [], None
    of_a, of_b = theorem.values(a, inputs), theorem.values(b, inputs)
    for k, (weight, bias) in enumerate(b):
        weight = weight if before is None else weight[:, before]
        if k < len(b) - 1:
            before = assignment.solve(-torch.cdist(of_a[k].T, of_b[k].T).square()).perm
            weight, bias = weight[before], bias[before]
        moved.append((weight, bias))
    return moved


@pytest.mark.parametrize("seed", range(0, 2000, 200))
def test_losses_keep_the_bound_and_alignment_lowers_it_at_every_t(seed):
    a, b, inputs = layers(seed), layers(seed + 100), drawn(40, 5, seed=seed + 7)
    targets = drawn(40, 3, seed=seed + 8)
    plain = theorem.bounds(a, b, inputs, targets, points=21)
    moved = aligned(a, b, inputs)
    torch.testing.assert_close(theorem.values(b, inputs)[-1], theorem.values(moved, inputs)[-1])
    better = theorem.bounds(a, moved, inputs, targets, points=21)
    for its in (plain, better):
        assert all(loss <= bound + 1e-9 for loss, bound in zip(its.loss, its.bound, strict=True))
        assert all(row["actual"] <= row["bound"] + 1e-9 for row in its.layers) and len(its.layers) == 2
        assert its.layers[0]["bound"] == pytest.approx(its.layers[0]["actual"])  # the first is exact
    assert all(one <= other + 1e-9 for one, other in zip(better.bound, plain.bound, strict=True))
    assert better.bound[10] < plain.bound[10] and better.integral < plain.integral
    assert better.ends == pytest.approx(plain.ends)
    assert plain.bound[0] == pytest.approx(plain.loss[0]) and plain.bound[-1] == pytest.approx(plain.loss[-1])


def test_the_recursion_over_two_hidden_layers_by_hand():
    """One unit a layer, one sample x = 1, so all norms are plain numbers; t = ¼."""

    one = torch.ones(1, 1, dtype=torch.float64)
    a = [(weight * one, torch.zeros(1).double()) for weight in (1, 2, 3)]  # values 1, 2; output 6
    b = [(weight * one, torch.zeros(1).double()) for weight in (2, 5, 7)]  # 2, 10; 70
    found = theorem.bounds(a, b, one, one * 0, points=5)
    # D = 1, 8; b_1 = (¼, ¾); base = ¾·2·¼ + ¼·5·¾ = 1.3125; b_2 = (1.3125 + ¼·8, 1.3125 + ¾·8)
    # bound = ¾·3·3.3125 + ¼·7·7.3125 + ¾·6 + ¼·70
    assert found.bound[1] == pytest.approx(0.75 * 3 * 3.3125 + 0.25 * 7 * 7.3125 + 0.75 * 6 + 0.25 * 70)
    # at t = ½: b_1 = ½, ½; base = ½·2·½ + ½·5·½ = 1.75
    assert [row["bound"] for row in found.layers] == pytest.approx([0.5, 1.75 + 0.5 * 8])
    assert [row["distance"] for row in found.layers] == [1, 8]


def test_the_fall_that_a_round_has_to_reach_by_hand():
    """Two hidden layers of 1 and 2 units; weights behind the first of norm 5 at most: 2·√(2·2)·½·(5 + 25)."""
    one, zero = torch.ones(1, 1).double(), torch.zeros(1).double()
    wide = torch.tensor([[3.0], [4.0]]).double()
    points = [[(one * w, zero), (wide, zero), (wide.T * 0.1, zero)] for w in (100.0, 1.0)]
    assert theorem.least_fall(points, 1.0) == pytest.approx(2 * 2 * 0.5 * (5 + 25))
    assert theorem.least_fall(points[:1] + points, 1e-3) == pytest.approx(0.06)


def tight(last):
    """Units that all rise by the same from A to B and stay above 0, read by rows of opposite signs."""
    row = torch.tensor([1.0, -1, 2], dtype=torch.float64)
    weight = torch.stack([row, -last[0, 0] / last[0, 1] * row])  # so outputs are the same for all samples
    ones = torch.ones(2, dtype=torch.float64)
    a = [(weight, 20 * ones), (last, torch.zeros(1, dtype=torch.float64))]
    b = [(weight, 23 * ones), (-last, 200 * torch.ones(1, dtype=torch.float64))]
    inputs = drawn(30, 3, seed=3).clamp(-2, 2)
    return theorem.bounds(a, b, inputs, torch.full((30, 1), -500.0, dtype=torch.float64), points=11)


def test_one_network_reaches_the_bound():
    found = tight(torch.tensor([[1.5, 1.5]], dtype=torch.float64))
    assert found.loss == pytest.approx(found.bound, rel=1e-12)
    assert found.bound[5] > found.ends[5] + 1


def test_equal_signs_are_not_enough_to_reach_it():
    """(1, 2) is not parallel to the units' change (1, 1): the triangle inequality is strict."""
    found = tight(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    inner = zip(found.loss[1:-1], found.bound[1:-1], strict=True)
    assert all(loss < bound - 1e-3 for loss, bound in inner)


@pytest.mark.parametrize("delta", theorem.DELTAS)
def test_a_huberised_relu_is_smooth_and_half_of_delta_away_at_most(delta):
    x = torch.linspace(-2, 3, 50_001, dtype=torch.float64)
    off = (torch.relu(x) - theorem.huberised(x, delta)).abs()
    assert off.max().item() == pytest.approx(delta / 2) and off[x <= 0].max() == 0
    for corner in (0.0, delta):
        at = torch.tensor([corner - 1e-6, corner, corner + 1e-6], dtype=torch.float64)
        before, here, after = theorem.huberised(at, delta)
        slopes = [float(its) / 1e-6 for its in (here - before, after - here)]
        assert slopes[0] == pytest.approx(slopes[1], abs=2e-6 / delta)
    a, inputs, targets = layers(4), drawn(40, 5, seed=1), drawn(40, 3, seed=2)
    change, bound = theorem.smoothing(a, inputs, targets, delta)
    assert 0 < change <= bound


def test_the_account_is_of_plain_networks_alone():
    made = [nets.build("mlp", input_shape=(4,), classes=3, width=5, depth=2) for _ in range(2)]
    a, b = (network.state_dict() for network in made)
    inputs, targets = torch.randn(20, 4, generator=RNG), torch.arange(20) % 3
    found = theorem.account(made[0], a, {"naive": b, "itself": a}, inputs, targets)
    assert found["samples"] == 20 and [row["delta"] for row in found["huber"]] == [1.0, 0.1, 0.01]
    assert all(row["fall"] == 2 * row["bound"] > 2 * row["change"] for row in found["huber"])
    assert found["itself"]["bound"] == pytest.approx(found["itself"]["loss"])
    assert found["naive"]["bound"] > found["naive"]["loss"] and len(found["naive"]["layers"]) == 2
    outputs = made[0].double()(inputs.double())
    wanted = torch.nn.functional.one_hot(targets, 3)
    assert found["itself"]["loss"] == pytest.approx((outputs - wanted).square().mean().sqrt().item())
    for other in ({"norm": "layer"}, {"activation": "tanh"}):
        network = nets.build("mlp", input_shape=(4,), classes=3, width=5, depth=2, **other)
        with pytest.raises(NetworkError, match="plain feed-forward networks with ReLU"):
            theorem.account(network, a, {"naive": b}, inputs, targets)
