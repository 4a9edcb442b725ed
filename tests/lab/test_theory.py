"""Counterexample, hardness, statements: numbers that can be checked another way."""

import itertools
import math

import pytest
import torch

from rebasin_cli.datasets import UNIT, Data, Samples
from rebasin_cli.lab import counterexample, failures, hardness, statements


def test_both_networks_compute_the_same_formula():
    points = counterexample.grid(20)
    wanted = -points[:, 0].relu() - (-points[:, 1]).relu()
    for network in counterexample.networks():
        assert torch.equal(counterexample.outputs(network, points), wanted)


def test_permuted_networks_compute_the_same_and_no_path_stays_right():
    points, (a, b) = counterexample.grid(40), counterexample.networks()
    for orders in counterexample.permutations():
        moved = counterexample.permuted(b, orders)
        assert counterexample.accuracy(moved, points) == 1
        middle = tuple(torch.lerp(x, y, 0.5) for x, y in zip(a, moved, strict=True))
        assert counterexample.accuracy(middle, points) < 0.9


def test_a_slope_below_zero_breaks_the_counterexample():
    points = counterexample.grid(400)
    assert counterexample.accuracy(counterexample.networks()[0], points, 0.01) == pytest.approx(
        0.9987, abs=2e-4
    )


def test_the_value_of_a_pair_is_the_inner_product_of_matrices():
    c, d = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    perms = hardness.orders(3)
    found = hardness.values(c, d, perms)
    for (i, p), (j, q) in itertools.product(enumerate(perms), repeat=2):
        one, other = torch.eye(3, dtype=torch.float64)[p], torch.eye(3, dtype=torch.float64)[q]
        assert found[i, j].item() == pytest.approx(((one @ c @ other.T) * d).sum().item())


def test_the_reduction_holds_at_the_bound_and_not_at_zero():
    """At λ = 0 these two want different permutations of rows and columns."""
    c = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    d = torch.tensor([[-1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    perms = hardness.orders(2)
    assert not hardness.equal(hardness.values(c, d, perms))
    bound = 5 * 2 * 1.0
    assert hardness.equal(hardness.values(*hardness.reduced(c, d, bound), perms))
    assert hardness.identity(c, d, bound, perms) < 1e-12
    least = hardness.smallest(c, d, perms, bound)
    assert 0 < least < bound
    assert not hardness.equal(hardness.values(*hardness.reduced(c, d, least * 0.99), perms))


def test_counts_of_symmetries():
    assert statements.symmetries("mlp", (1, 28, 28), 10)[0] == pytest.approx(3499.6, abs=0.1)
    tied, untied = statements.symmetries("resnet50", (3, 224, 224), 1000)
    assert tied == pytest.approx(25638.3, abs=0.1) and untied == pytest.approx(55138.9, abs=0.1)


def test_how_far_weights_vary():
    spread, error = statements.spreads(10, 100_000, torch.Generator().manual_seed(0))
    assert spread == pytest.approx(0.0575, abs=4 * error) and error < 0.001
    drawn = torch.distributions.Dirichlet(torch.ones(10, dtype=torch.float64)).sample((100_000,))
    assert statements.even(10) == pytest.approx(drawn[:, 0].std().item(), rel=0.02)
    assert statements.stretched([1, 2], [2, 4]) == pytest.approx(1)
    assert statements.stretched([1, 2], [2, 1]) == pytest.approx(math.sqrt(18) / (2 * math.sqrt(5)))


@pytest.mark.parametrize("side", [8, 28, 32])
def test_images_for_vgg_are_those_of_the_data_set_made_larger(side):
    inputs = torch.randint(1, 255, (3, 1, side, side), dtype=torch.uint8)
    data = Data("x", "train", Samples(inputs, torch.zeros(3, dtype=torch.int64)), UNIT, 2)
    large = failures._enlarged(data).source.inputs
    assert large.shape == (3, 1, 32, 32) and large.dtype == torch.uint8
    inner = {8: large[..., ::4, ::4], 28: large[..., 2:30, 2:30], 32: large}[side]
    assert torch.equal(inner, inputs)
