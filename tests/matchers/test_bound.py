"""What no permutations exceed: against every permutation, looked at one by one."""

from __future__ import annotations

import itertools
import math
from functools import cache

import pytest
import torch

from rebasin_cli import nets
from rebasin_cli.errors import CheckpointError
from rebasin_cli.matchers import Problem, wm
from rebasin_cli.matchers.descent import bound
from rebasin_cli.matchers.descent.bound import upper_bound
from rebasin_cli.matchers.descent.pair import Pair
from rebasin_cli.runtime.ranks import Ranks
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import index_maps, permutation

TINY = {  # name: axes and shape of every tensor
    "one layer": {"u": ("h .", (4, 3)), "v": (". h", (2, 4))},
    "chain": {"u": ("a .", (3, 2)), "v": ("b a", (4, 3)), "w": ("c b", (2, 4)), "x": (". c", (3, 2))},
    "chain of pairs": {
        "u": ("a .", (2, 3)),
        **{p + q: (f"{q} {p}", (2, 2)) for p, q in zip("abcde", "bcdef", strict=True)},
    },
    "chain within": {"u": ("b a", (4, 3)), "v": ("c b", (3, 4))},
    "conv kernels": {"u": ("a . . .", (3, 2, 3, 3)), "v": ("b a . .", (4, 3, 3, 3)), "n": ("b", (4,))},
    "concatenation": {"u": ("a .", (3, 1)), "v": ("b .", (2, 1)), "w": ("c (a + b + 2)", (3, 7))},
    "flattened": {"u": ("a . .", (3, 2, 2)), "v": ("b (a 4)", (3, 12))},
    "three words": {"u": ("a b c", (3, 2, 3)), "v": ("c .", (3, 2))},
    "ring": {"u": ("a b", (3, 2)), "v": ("b c", (2, 4)), "w": ("c a", (4, 3))},
    "recurrent": {"u": ("h .", (4, 2)), "r": ("h h", (4, 4)), "b": ("h", (4,))},
    "recurrent twice": {"u": ("h .", (3, 2)), "r": ("g h h . g", (2, 3, 3, 2, 2)), "v": (". g h", (2, 2, 3))},
    "recurrent thrice": {"r": ("h h h", (4, 4, 4))},
    "a single unit": {"u": ("a b", (1, 3)), "v": ("b .", (3, 2)), "w": ("a .", (1, 2)), "x": ("a a", (1, 1))},
}
KINDS = ["normal", "negative", "offset", "sparse", "float64", "bfloat16", "float8", "huge"]


def tensors(shapes, kind: str, seed: int) -> dict[str, torch.Tensor]:
    rng, drawn = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes.items():
        x = torch.randn(shape, generator=rng, dtype=torch.float64)
        x = {
            "negative": -x.abs() * (1 if seed % 2 else -1),
            "offset": 1000 + x,
            "sparse": x * (x > 1),
            "huge": x * 1e12,
        }.get(kind, x)
        dtypes = {"float64": torch.float64, "bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}
        drawn[name] = x.to(dtypes.get(kind, torch.float32))
    return drawn


def problem(name: str, kind: str, seed: int = 0):
    """A spec and two models."""
    text = "tensors:\n" + "".join(f'  {n}: "{axes}"\n' for n, (axes, _) in TINY[name].items())
    shapes = {n: shape for n, (_, shape) in TINY[name].items()}
    fitted = fit(parse(text, name="tiny"), shapes)
    return fitted, tensors(shapes, kind, 2 * seed), tensors(shapes, kind, 2 * seed + 1)


def value(fitted, a, b, sets) -> float:
    """The objective, with whole tensors in float64 and no cleverness."""
    total = 0.0
    for name, axes in fitted.tensors.items():
        moved = b[name].double()
        for dim, axis in enumerate(axes):
            moved = moved.index_select(dim, index_maps.axis_index(axis, sets))
        total += (a[name].double() * moved).sum().item()
    return total


def everything(fitted, a, b) -> list[tuple[float, dict[str, torch.Tensor]]]:
    """All permutations in lexicographic order, and the objective at each."""
    sizes = tuple(sorted(fitted.words.items()))
    sets = every_set(sizes)
    rows, totals = torch.arange(len(sets))[:, None], torch.zeros(len(sets), dtype=torch.float64)
    for name, axes in fitted.tensors.items():  # as `value`, for all of them at once
        moved = b[name].double().expand(len(sets), *b[name].shape)
        for dim, axis in enumerate(axes, start=1):
            moved = moved.movedim(dim, 1)[rows, orders(axis, sizes)].movedim(1, dim)
        totals += (a[name].double() * moved).flatten(1).sum(1)
    return list(zip(totals.tolist(), sets, strict=True))


@cache
def every_set(sizes) -> list[dict[str, torch.Tensor]]:
    every = itertools.product(*(itertools.permutations(range(size)) for _, size in sizes))
    words = [word for word, _ in sizes]
    return [{word: torch.tensor(perm) for word, perm in zip(words, perms, strict=True)} for perms in every]


@cache
def orders(axis, sizes) -> torch.Tensor:
    """What each of all permutations makes of an axis, (permutations, positions)."""
    return torch.stack([index_maps.axis_index(axis, perms) for perms in every_set(sizes)])


def bound_of(a, b, fitted, **options) -> float:
    pair = Pair(a, b, fitted, **options)
    with pair.computing():
        return upper_bound(pair)


def network(name: str, **options):
    plan = nets.build(name, **options).state_dict()
    fitted = library.find({n: tuple(t.shape) for n, t in plan.items()})

    def drawn(seed: int) -> dict[str, torch.Tensor]:
        rng = torch.Generator().manual_seed(seed)
        return {
            n: torch.randn(t.shape, generator=rng) if t.is_floating_point() else t for n, t in plan.items()
        }

    return fitted, drawn(0), drawn(1)


@pytest.mark.parametrize("name", TINY)
def test_no_permutations_exceed_the_bound(name):
    for kind in KINDS:
        fitted, a, b = problem(name, kind)
        norms = [math.sqrt(sum(t.double().square().sum().item() for t in model.values())) for model in (a, b)]
        every = everything(fitted, a, b)
        some = every[:: len(every) // 5]
        assert [score for score, _ in some] == pytest.approx([value(fitted, a, b, sets) for _, sets in some])
        best = max(score for score, _ in every)
        found = bound_of(a, b, fitted)
        assert found >= best, kind
        assert found <= math.prod(norms) * (1 + 1e-12), kind  # Cauchy–Schwarz


@pytest.mark.parametrize("name", TINY)
def test_the_bound_of_a_permuted_copy_is_its_objective(name):
    for kind in KINDS:
        fitted, a, _ = problem(name, kind)
        perm = permutation.random(fitted.words, torch.Generator().manual_seed(1))
        b = dict(permutation.permuted(a, fitted, perm))
        best = sum(tensor.double().square().sum().item() for tensor in a.values())
        assert best <= bound_of(a, b, fitted) <= best * (1 + 1e-12), kind


def test_the_bound_is_the_optimum_where_every_tensor_has_one_word():
    for seed in range(10):
        fitted, a, b = problem("one layer", "normal", seed)
        best = max(score for score, _ in everything(fitted, a, b))
        assert best <= bound_of(a, b, fitted) <= best + 1e-12


def test_the_bound_sorts_what_another_word_moves():
    """Written out for one matrix: an assignment on the products of sorted rows, or of sorted columns."""
    fitted, a, b = problem("recurrent", "float64")
    fitted = fit(parse("tensors:\n  u: 'a b'\n", name="t"), {"u": (4, 4)})
    a, b = {"u": a["r"]}, {"u": b["r"]}

    def alone(x, y):
        similarity = x.sort(dim=1).values @ y.sort(dim=1).values.T
        return max(sum(similarity[i, p[i]] for i in range(4)) for p in itertools.permutations(range(4)))

    either = min(alone(a["u"], b["u"]), alone(a["u"].T, b["u"].T))
    found, best = bound_of(a, b, fitted), max(score for score, _ in everything(fitted, a, b))
    assert found == pytest.approx(either.item(), rel=1e-12) and found >= best


@pytest.mark.parametrize("scale", [1e-8, 2.0**-20, 3.0, 1e8])
def test_the_bound_scales_with_the_weights(scale):
    fitted, a, b = problem("conv kernels", "float64")
    scaled = {name: scale * tensor for name, tensor in a.items()}
    assert bound_of(scaled, b, fitted) == pytest.approx(scale * bound_of(a, b, fitted), rel=1e-12)


def test_the_bound_does_not_depend_on_how_units_are_numbered():
    fitted, a, b = network("mlp", input_shape=(20,), classes=5, width=24)
    perm = permutation.random(fitted.words, torch.Generator().manual_seed(1))
    moved = dict(permutation.permuted(b, fitted, perm))
    assert bound_of(a, moved, fitted) == pytest.approx(bound_of(a, b, fitted), rel=1e-9)


def test_a_planted_permutation_with_noise_is_proven_nearly_optimal():
    fitted, a, noise = network("resnet20", input_shape=(3, 16, 16), classes=5, width=1 / 2)
    b = {n: t + 0.1 * noise[n] if t.is_floating_point() else t for n, t in a.items()}
    b = dict(
        permutation.permuted(b, fitted, permutation.random(fitted.words, torch.Generator().manual_seed(1)))
    )
    found = wm.match(Problem(fitted, (a, b))).objective_after
    assert found <= bound_of(a, b, fitted) <= 1.006 * found


def test_the_models_are_not_touched():
    fitted, a, b = problem("chain", "float64")
    copies = [{name: tensor.clone() for name, tensor in model.items()} for model in (a, b)]
    bound_of(a, b, fitted)
    for model, copy in zip((a, b), copies, strict=True):
        assert all(torch.equal(model[name], copy[name]) for name in model)


def test_large_tensors_are_sorted_in_slabs_without_a_difference(monkeypatch):
    fitted, a, b = network("mlp", input_shape=(20,), classes=5, width=150)
    whole = bound_of(a, b, fitted)
    monkeypatch.setattr(bound, "SLAB", 1000)
    monkeypatch.setattr(bound, "PIECE", 200)
    assert bound_of(a, b, fitted) == pytest.approx(whole, rel=1e-12)


def test_several_ranks_find_the_same_bound():
    """Two ranks one after the other: what the second adds is what the sums lack."""
    import threading

    class Two(Ranks):
        def sum(self, tensor):
            slots[self.rank] = tensor.clone()
            barrier.wait()
            out = slots[0] + slots[1]
            barrier.wait()
            return out

        def sum_float(self, value):
            return self.sum(torch.tensor(value, dtype=torch.float64)).item()

    fitted, a, b = network("mlp", input_shape=(20,), classes=5, width=24)
    slots, barrier, found = [None, None], threading.Barrier(2, timeout=60), {}

    def rank(k: int) -> None:
        found[k] = bound_of(a, b, fitted, ranks=Two(k, 2))

    threads = [threading.Thread(target=rank, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] == pytest.approx(bound_of(a, b, fitted), rel=1e-12)


def test_weights_that_are_no_numbers_have_no_bound():
    fitted, a, b = problem("chain", "normal")
    with pytest.raises(CheckpointError, match="NaN"):
        bound_of(a, {**b, "v": b["v"] * torch.nan}, fitted)


def test_a_spec_that_moves_nothing_is_bounded_by_its_objective():
    fitted = fit(parse("tensors:\n  w: '. .'\n", name="t"), {"w": (2, 3)})
    model = {"w": torch.ones(2, 3)}
    assert bound_of(model, model, fitted) == 0.0
