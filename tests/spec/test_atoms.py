"""Atoms add up to the tensors they are cut from, whichever way the units are permuted."""

import math

import pytest
import torch

from rebasin_cli.spec.atoms import atoms
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import length_of, parse_axes
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation

SIZES = {"p": 3, "q": 4, "d": 2, "r": 5, "e": 2, "n": 4, "m": 3, "k": 2}
SAID = {"s": "p", "t": "q", "dr": "(p d* r*)", "e": "(q e*)", "nm": "(3 n* m*)", "k": "(12 k*)"}

AXES = [
    "p q",
    "(p 5) q",
    "(3 p) 2",
    "p + q + 2",
    "(p + q 2) q",
    "(p q) p",
    "(p d*) 2",
    "(p 2 d*)",
    "2 (p (2 d*) + r*)",
    "(p r* d*) q",
    "(p d*) r*",
    "r* (p d*)",
    "(p d*) (p d*)",
    "(p d* d*)",
    "(p d*) d*",
    "p d* + r* + 2",
    "d* 2 p",
    "r* 2 (2 p 2)",
    "((p 2) d*)",
    "(p q e*) d* + 3",
    "(p q e*) (p r*)",
    "(d* q) (e* p)",  # the order of each axis depends on the other
    "(d* e*) q p",
    "(3 n*) q",
    "(3 m* n*) 2",
    "(3 n*) + (12 (2 k*))",
    "(3 2 n*) (3 n*)",
    "(3 p + (2 n*))",
    "(p p d*)",
    "(d* p) p",
    "p d* r* q e*",
]


def lengths(axes: str) -> tuple[int, ...]:
    return tuple(length_of(axis, SIZES) for axis in parse_axes(axes))


def fitted(axes: str):
    lines = [f"  {word}: {size}" for word, size in SIZES.items()]
    text = "\n".join(["sizes:", *lines, "tensors:", *(f"  {n}: '{a}'" for n, a in SAID.items())])
    shapes = {name: lengths(its) for name, its in SAID.items()}
    return fit(parse(f"{text}\n  x: '{axes}'\n", name="test"), shapes | {"x": lengths(axes)})


def random(shape, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("axes", AXES)
def test_inner_products_of_atoms_add_up_to_those_of_tensors(axes):
    spec = fitted(axes)
    perms = permutation.random(spec.words, torch.Generator().manual_seed(1), within=spec.within)
    ours, theirs = random(lengths(axes), 1), random(lengths(axes), 2)
    moved = permutation.permute(theirs, spec.tensors["x"], perms, spec.within)
    assert not torch.equal(moved, theirs)
    total, entries = 0.0, 0
    for atom in (atom for atom in atoms(spec) if atom.tensor == "x"):
        left, right = atom.view(ours), atom.view(theirs)
        for dim, word in enumerate(atom.words):
            if word is not None:
                assert left.shape[dim] == spec.words[word]
                right = right.index_select(dim, perms[word])
        total += (left * right).sum().item()
        entries += left.count_nonzero().item()
    assert entries == ours.numel()
    assert total == pytest.approx((ours * moved).sum().item(), abs=1e-9)


@pytest.mark.parametrize(
    "axes, words, shape",
    [
        ("(p d*) 2", ("d", None), (6, 2)),
        ("(p r* d*) q", ("r", "d", "q"), (15, 6, 4)),
        ("(p d*) r*", ("d", "r"), (6, 15)),
        ("(3 m* n*) 2", ("m", "n", None), (9, 12, 2)),
        ("(p d*) (p r*)", ("d", "r"), (6, 15)),
    ],
)
def test_a_starred_word_permutes_one_axis_of_all_its_units(axes, words, shape):
    (atom,) = (atom for atom in atoms(fitted(axes)) if atom.tensor == "x")
    assert atom.words == words
    assert atom.view(torch.empty(lengths(axes), device="meta")).shape == shape


def test_what_lies_within_the_same_has_zeros_between_its_blocks():
    (atom,) = (atom for atom in atoms(fitted("(p d*) r*")) if atom.tensor == "x")
    tensor = torch.arange(1, 31).reshape(6, 5)
    assert torch.equal(atom.view(tensor), torch.block_diag(*tensor.split(2)))


@pytest.mark.parametrize("axes", ["(p 5) q", "p + q + 2", "(p d*) 2", "(p 2 3) + (p d*)", "2 (3 n*)"])
def test_views_are_not_copies_where_words_stand_behind_what_they_lie_within(axes):
    tensor = torch.randn(lengths(axes))
    for atom in (atom for atom in atoms(fitted(axes)) if atom.tensor == "x"):
        assert atom.view(tensor).untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_atoms_of_every_dtype(dtype):
    tensor = torch.arange(math.prod(lengths("(p d*) r*"))).reshape(lengths("(p d*) r*"))
    (atom,) = (atom for atom in atoms(fitted("(p d*) r*")) if atom.tensor == "x")
    assert torch.equal(atom.view(tensor.to(dtype)).double(), atom.view(tensor.to(dtype).double()))
