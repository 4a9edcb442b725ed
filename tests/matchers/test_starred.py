"""Blocks and the units within them are assigned together, as well as by trying all orders."""

from itertools import permutations as orders
from itertools import product

import pytest
import torch

from rebasin_cli.matchers.descent import starred
from rebasin_cli.matchers.descent.exact import enumerate_all
from rebasin_cli.matchers.descent.pair import Pair
from rebasin_cli.matchers.descent.similarity import Similarities
from rebasin_cli.matchers.wm import kicked
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import Block
from rebasin_cli.symmetry import index_maps, permutation


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def every_order(count, size):
    """All consistent pairs (order of blocks, permutation of all units)."""
    inner = list(orders(range(size)))
    for order in orders(range(count)):
        for within in product(inner, repeat=count):
            order_ = torch.tensor(order)
            yield order_, index_maps.join(order_, torch.tensor(within))


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
    found = starred.together("heads", {"heads": c, "x": a, "y": b}, within)
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
    found = starred.together(None, {"x": similarity}, {"x": Block(None, 3, 2)})
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
    planted = index_maps.join(order, inner)
    similarity = torch.eye(3 * size)[:, planted.argsort()] + 0.1 * rand(3 * size, 3 * size).float()
    found = starred.together("h", {"x": similarity}, {"x": Block("h", 3, size)})
    unsorted = index_maps.join(order, torch.arange(size).expand(3, size))
    assert torch.equal(found["x"], planted) and torch.equal(found["h"], order)
    assert torch.equal(starred.inside(similarity, unsorted, Block("h", 3, size)), planted)


# Tensors that carry two words of a group -------------------------------------------------------------------

GROUPED = """
tensors:
  q: "(kv rep* d*) ."
  k: "(kv d*) ."
  v: "(kv e*) ."
  o: ". (kv rep* e*)"
"""


@pytest.fixture
def grouped():
    """Query heads that share keys, B a permuted A: its spec, its pair, and what brings B back."""
    shapes = {"q": (24, 9), "k": (12, 9), "v": (12, 9), "o": (9, 24)}
    text = GROUPED + "sizes:\n  kv: 3\n  rep: 2\n"
    fitted = fit(parse(text, name="grouped"), shapes)
    a = {name: rand(*shape, seed=k) for k, (name, shape) in enumerate(shapes.items())}
    planted = permutation.random(fitted.words, torch.Generator().manual_seed(5), within=fitted.within)
    b = dict(permutation.permuted(a, fitted, planted))
    pair = Pair(a, b, fitted)
    with pair.computing():
        yield fitted, pair, permutation.invert(planted)


def test_a_step_finds_heads_first_and_then_hears_what_ties_their_words(grouped):
    fitted, pair, back = grouped
    (group,) = starred.groups(fitted.within).values()
    found, _ = starred.step(pair, Similarities(pair), group, permutation.identity(fitted.words))
    assert found.keys() == back.keys() and all(torch.equal(found[word], back[word]) for word in back)


def test_orders_within_are_mended_where_heads_lie_right(grouped):
    fitted, pair, back = grouped
    (group,) = starred.groups(fitted.within).values()
    heads = permutation.carried(permutation.identity(fitted.words) | {"kv": back["kv"]}, fitted.within)
    found = heads
    for _ in range(3):
        found = starred.reordered(pair, group, found)
    assert starred.gain(pair, heads, found) > 0 and torch.equal(found["kv"], back["kv"])
    assert pair.objective(found) == pytest.approx(pair.objective(back))


def test_starred_words_are_not_enumerated_and_kicks_keep_their_blocks(grouped):
    fitted, pair, _ = grouped
    assert enumerate_all(pair, 10**30) is None
    moved = kicked({"kv": torch.arange(40), "d": torch.arange(80)}, torch.Generator().manual_seed(0),
                   {"d": Block("kv", 40, 2)})  # fmt: skip
    permutation.check(moved, {"kv": 40, "d": 80}, within={"d": Block("kv", 40, 2)})
    assert not permutation.is_identity(moved)
