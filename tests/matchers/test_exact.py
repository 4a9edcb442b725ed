"""The best of all permutations: against every one of them, looked at one by one."""

from __future__ import annotations

import itertools
import math
import time

import pytest
import torch

from rebasin_cli.errors import CheckpointError
from rebasin_cli.matchers.descent.exact import enumerate_all, fewer, independent
from rebasin_cli.matchers.descent.pair import Pair
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation
from tests.matchers.test_bound import KINDS, TINY, everything, network, problem, value


def exact(a, b, fitted, **options):
    pair = Pair(a, b, fitted)
    with pair.computing():
        return enumerate_all(pair, **options)


def equal(p, q) -> bool:
    return p.keys() == q.keys() and all(torch.equal(p[word], q[word]) for word in p)


def drawn(axes: dict[str, str], sizes: dict[str, int], seed: int = 0):
    """A spec and two models of tensors whose axes are words or `.`, of size 3."""
    shapes = {n: tuple(sizes.get(word, 3) for word in words.split()) for n, words in axes.items()}
    text = "tensors:\n" + "".join(f'  {n}: "{words}"\n' for n, words in axes.items())
    rng = torch.Generator().manual_seed(seed)
    models = [{n: torch.randn(shape, generator=rng) for n, shape in shapes.items()} for _ in range(2)]
    return fit(parse(text, name="drawn"), shapes), *models


def chain(*sizes: int):
    names = [f"w{k:02}" for k in range(len(sizes))]
    axes = {f"t{p}": f"{p} {q}" for p, q in zip(names, names[1:], strict=False)}
    return drawn({"first": f"{names[0]} .", **axes}, dict(zip(names, sizes, strict=True)))


@pytest.mark.parametrize("name", TINY)
def test_the_best_of_all_permutations_is_found(name):
    for kind, seed in itertools.product(KINDS, range(2)):
        fitted, a, b = problem(name, kind, seed)
        best, _ = max(everything(fitted, a, b), key=lambda found: found[0])
        perms = exact(a, b, fitted)
        permutation.check(perms, fitted.words)
        assert value(fitted, a, b, perms) == pytest.approx(best, rel=1e-12), kind


@pytest.mark.parametrize("name", TINY)
def test_identical_models_get_the_identity(name):
    fitted, a, _ = problem(name, "offset")
    assert permutation.is_identity(exact(a, a, fitted))


@pytest.mark.parametrize("name", TINY)
def test_of_equally_good_permutations_the_first_is_taken(name):
    """Weights of a few whole numbers: many permutations have exactly the same objective."""
    for seed in range(4):
        fitted, a, b = problem(name, "float64", seed)
        a, b = ({n: t.round().clamp(-1, 1) for n, t in model.items()} for model in (a, b))
        kept = everything(fitted, a, b)
        best = max(score for score, _ in kept)
        good = [perms for score, perms in kept if score == best]
        found = exact(a, b, fitted)
        assert any(equal(found, perms) for perms in good)
        if any(map(permutation.is_identity, good)):
            assert permutation.is_identity(found)


def test_the_identity_is_taken_where_nothing_is_better_but_by_rounding():
    """Units of A that are all equal: what a sum is, depends on its order alone."""
    for seed in range(8):
        fitted, a, b = drawn({"u": "a .", "v": "b a", "w": ". b"}, {"a": 4, "b": 4}, seed)
        a = {n: torch.full_like(t, 0.1, dtype=torch.float64) for n, t in a.items()}
        b = {n: t.double() / 3 for n, t in b.items()}
        assert permutation.is_identity(exact(a, b, fitted))


@pytest.mark.parametrize(("axes", "free"), [
    ({"u": "a b", "v": "b c", "w": "c d", "x": "d e"}, "ace"),  # every second one
    ({"u": "a b", "v": "b c"}, "b"),  # 5! is more than 2! · 2!
    ({"u": "a b", "v": "b b"}, "b"),  # two axes of one tensor change nothing
    ({"u": "a b c"}, "b"),
    ({"u": "a .", "v": "b ."}, "ab"),
])  # fmt: skip
def test_words_that_share_no_tensor_are_left_out_of_the_enumeration(axes, free):
    sizes = {"a": 2, "b": 5, "c": 2} if len(axes) < 4 else {}
    fitted, a, b = drawn(axes, sizes)
    pair = Pair(a, b, fitted)
    assert independent(fitted.words, pair.neighbours) == {*free}


def test_the_limit_counts_all_permutations():
    fitted, a, b = chain(3, 2, 4)
    count = math.factorial(3) * 2 * math.factorial(4)
    assert exact(a, b, fitted, limit=count) is None
    assert exact(a, b, fitted, limit=count + 1) is not None
    fitted, a, b = chain(10)
    assert exact(a, b, fitted) is None


def test_counting_stops_at_the_limit():
    began = time.perf_counter()
    assert not fewer([10**12], 10**6) and not fewer([50_000] * 1000, 10**6)
    assert fewer([9, 2], 10**6) and fewer([], 2) and fewer([1] * 9, 2)
    assert time.perf_counter() - began < 0.5
    fitted, a, b = network("mlp", input_shape=(20,), classes=5, width=24)
    assert exact(a, b, fitted) is None


def test_a_spec_that_moves_nothing_keeps_the_identity():
    fitted = fit(parse("tensors:\n  w: '. .'\n  one: 'h'\n", name="t"), {"w": (2, 3), "one": (1,)})
    model = {"w": torch.ones(2, 3), "one": torch.ones(1)}
    assert equal(exact(model, model, fitted), {"h": torch.tensor([0])})


def test_weights_that_are_no_numbers_are_refused():
    fitted, a, b = chain(3, 3)
    with pytest.raises(CheckpointError, match="NaN"):
        exact(a, {**b, "first": b["first"] * torch.nan}, fitted)


@pytest.mark.parametrize("sizes", [(2,) * 19, (9, 2), (6, 6), (3,) * 7, (4, 4, 4)], ids=str)
def test_the_largest_problems_take_no_more_than_seconds(sizes):
    fitted, a, b = chain(*sizes)
    perm = permutation.random(fitted.words, torch.Generator().manual_seed(1))
    hidden = dict(permutation.permuted(a, fitted, perm))
    began = time.perf_counter()
    assert equal(exact(a, hidden, fitted), permutation.invert(perm))
    assert exact(a, b, fitted) is not None
    assert time.perf_counter() - began < 20


def test_every_word_may_touch_every_other():
    names = [f"w{k:02}" for k in range(12)]
    axes = {p + q: f"{p} {q}" for p in names for q in names if p < q}
    fitted, a, b = drawn({"first": f"{names[0]} .", **axes}, dict.fromkeys(names, 2))
    best = max(everything_by_signs(fitted, a, b, names))
    assert value(fitted, a, b, exact(a, b, fitted)) == pytest.approx(best, rel=1e-12)


def everything_by_signs(fitted, a, b, names):
    """All objectives where every word has two units."""
    count = len(names)
    flips = (torch.arange(2**count)[:, None] >> torch.arange(count)) & 1
    total = torch.zeros(2**count, dtype=torch.float64)
    for name in a:
        x, y = a[name].double(), b[name].double()
        words = [names.index(word) for word in (name[:3], name[3:]) if word in names] or [0]
        for k in range(2 ** len(words)):
            bits = [k >> d & 1 for d in range(len(words))]
            moved = y.flip([d for d, bit in enumerate(bits) if bit]) if any(bits) else y
            here = (flips[:, words] == torch.tensor(bits)).all(dim=1)
            total[here] += (x * moved).sum()
    return total.tolist()
