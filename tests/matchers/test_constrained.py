"""The best assignment after the activation within a constraint before it, against all orders."""

from itertools import permutations as orders

import pytest
import torch

from rebasin_cli.matchers.activations.constrained import within
from rebasin_cli.matchers.activations.options import Looking
from rebasin_cli.matchers.activations.similarities import best
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import assignment


def drawn(n, seed):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(n, n, generator=rng, dtype=torch.float64) for _ in range(2)]


def solve(similar):
    return {word: assignment.solve(matrix).perm for word, matrix in similar.items()}


def solved(post, pre):
    return within({"h": post}, {"h": pre}, solve, {"h": torch.arange(len(post))})


def by_trying(post, pre):
    """The optimum, and that without the constraint."""
    tried = [torch.tensor(order) for order in orders(range(len(post)))]
    worth = [(assignment.total(post, perm), assignment.total(pre, perm)) for perm in tried]
    allowed = worth[0][1]
    return max(after for after, before in worth if before >= allowed), max(after for after, _ in worth)


@pytest.mark.parametrize("n", [3, 5, 6])
def test_it_keeps_the_constraint_and_the_optimum_lies_between_what_it_reaches_and_the_bound(n):
    free = exact = tight = 0
    for seed in range(24):
        post, pre = drawn(n, seed)
        pre = pre + (seed % 3) * torch.eye(
            n
        )  # the constraint bites the more, the better units are as they are
        found, (optimum, without) = solved(post, pre), by_trying(post, pre)
        assert found.before == pytest.approx(assignment.total(pre, found.perms["h"]))
        assert found.before >= found.allowed == pytest.approx(float(pre.trace()))
        assert found.reached <= optimum + 1e-9 and optimum <= found.bound + 1e-9
        assert found.free == (without == pytest.approx(optimum)) or not found.free
        free += found.free
        exact += found.reached == pytest.approx(optimum)
        tight += not found.free and found.bound < without - 1e-9
        if found.free:
            assert found.gap == 0 and found.reached == pytest.approx(without)
    assert 0 < free < 24 and exact > free and tight > 0


def test_a_constraint_that_leaves_one_order_gets_it():
    post = torch.tensor([[0.0, 5.0], [5.0, 0.0]], dtype=torch.float64)
    found = solved(post, torch.eye(2, dtype=torch.float64))
    assert found.perms["h"].tolist() == [0, 1] and not found.free
    assert found.reached == 0 and found.bound == pytest.approx(0) and found.gap == pytest.approx(0)


def test_units_left_where_they_are_keep_it_when_nothing_better_does():
    """Those best before are worse after than no move at all."""
    post = torch.tensor([[1.0, 0, 9], [0, 1, 0], [0, 9, 1]], dtype=torch.float64)
    pre = torch.tensor([[1.0, 2, -9], [2, 1, -9], [-9, -9, 1]], dtype=torch.float64)
    found = solved(post, pre)
    assert found.perms["h"].tolist() == [0, 1, 2] and found.reached == 3


SPEC = """
tensors:
  in.weight: "(heads d*) ."
  out.weight: ". (heads d*)"
  more.weight: "h ."
  last.weight: ". h"
sizes:
  heads: 2
"""


def test_heads_and_their_units_share_one_constraint_and_other_words_have_their_own():
    shapes = {"in.weight": (6, 2), "out.weight": (2, 6), "more.weight": (4, 2), "last.weight": (2, 4)}
    fitted = fit(parse(SPEC, name="heads"), shapes)
    sizes = {word: n for word, n in fitted.words.items() if word != "heads"}
    post, pre = ({word: drawn(n, seed)[0] for word, n in sizes.items()} for seed in (1, 2))
    found = best({"post": post, "pre": pre}, Looking(at="constrained"), fitted)
    assert {frozenset(words) for words in found.within} == {frozenset({"d"}), frozenset({"h"})}
    for words, one in found.within.items():
        before = sum(assignment.total(pre[word], found.permutations[word]) for word in words)
        assert one.before == pytest.approx(before) and one.before >= one.allowed
    assert found.permutations["heads"].tolist() in ([0, 1], [1, 0])
