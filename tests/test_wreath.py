"""Blocks and the units within them are assigned together, as well as by trying all orders."""

from itertools import permutations as orders
from itertools import product

import pytest
import torch

from rebasin_cli import permutation
from rebasin_cli.matchers import _wreath
from rebasin_cli.spec.spec import Block


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def every_order(count, size):
    """All consistent pairs (order of blocks, permutation of all units)."""
    inner = list(orders(range(size)))
    for order in orders(range(count)):
        for within in product(inner, repeat=count):
            order_ = torch.tensor(order)
            yield order_, permutation.join(order_, torch.tensor(within))


@pytest.mark.parametrize(("count", "size"), [(3, 2), (2, 3), (4, 1)])
def test_together_is_the_best_of_all_orders(count, size):
    a, b, c = (
        rand(count * size, count * size),
        rand(count * size, count * size, seed=1),
        rand(count, count, seed=2),
    )

    def value(order, x, y):
        rows = torch.arange(count * size)
        return (a[rows, x].sum() + b[rows, y].sum() + c[torch.arange(count), order].sum()).item()

    within = {word: Block("heads", count, size) for word in ("x", "y")}
    found = _wreath.together("heads", {"heads": c, "x": a, "y": b}, within)
    permutation.check(found, {"heads": count, "x": count * size, "y": count * size}, within=within)
    by_order = {}
    for order, x in every_order(count, size):
        by_order.setdefault(tuple(order.tolist()), []).append(x)
    best = max(
        value(torch.tensor(order), x, y) for order, xs in by_order.items() for x, y in product(xs, repeat=2)
    )
    assert value(found["heads"], found["x"], found["y"]) == pytest.approx(best, abs=1e-12)


def test_blocks_that_stay_are_ordered_within():
    similarity = rand(6, 6)
    found = _wreath.together(None, {"x": similarity}, {"x": Block(None, 3, 2)})
    best = max(
        (
            similarity[torch.arange(6), x].sum().item()
            for order, x in every_order(3, 2)
            if order.tolist() == [0, 1, 2]
        )
    )
    assert similarity[torch.arange(6), found["x"]].sum().item() == pytest.approx(best)


@pytest.mark.parametrize("size", [3, 7])
def test_large_and_small_blocks_find_a_planted_order(size):
    order = torch.tensor([2, 0, 1])
    inner = torch.stack([torch.randperm(size, generator=torch.Generator().manual_seed(k)) for k in range(3)])
    planted = permutation.join(order, inner)
    similarity = torch.eye(3 * size)[:, planted.argsort()] + 0.1 * rand(3 * size, 3 * size).float()
    found = _wreath.together("h", {"x": similarity}, {"x": Block("h", 3, size)})
    unsorted = permutation.join(order, torch.arange(size).expand(3, size))
    assert torch.equal(found["x"], planted) and torch.equal(found["h"], order)
    assert torch.equal(_wreath.inside(similarity, unsorted, Block("h", 3, size)), planted)
