"""How alike two models are in what no matching looked at: ρ.

What training makes alike in strangers lies in the few large singular directions of their matrices, and there
units can be matched by chance, too. Matched by the top quarter of these directions alone, what lies outside
is correlated in copies, which keep their first values, and hardly in strangers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...matchers import Problem, wm
from ...runtime.seeds import generator
from ...spec.notation import words_of
from ...spec.spec import FittedSpec
from ...symmetry import permutation
from ...types import Permutations, Tensors

TOP = 0.25  # of the singular directions
POSITIONS, MOST = 64, 512  # that stay, of which inner products are taken: so many at least, and at most
DIRECTION = 1e-3  # of the largest one: a direction below it is rounding
ROUNDING = 1e-10  # of a tensor's square: what lies outside its directions is nothing
# Copies that are tuned, rounded, half of a merge have 0.5–1; strangers 0.04–0.25, aligned ones up to 0.28
COPIES, STRANGERS = 0.4, 0.1  # benchmarks/results.md


def correlation(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    names: Sequence[str],
    fitted: FittedSpec,
    *,
    match: bool,
    seed: int = 0,
) -> float:
    """ρ: the mean cosine of matrices outside the top quarter of each one's own singular directions.

    `match`: units are matched by the top quarters; else they are compared where they stand. Of pruned
    matrices what both keep is compared, both without the top quarter of A: 1 − ‖difference‖² / ‖the
    smaller‖², at least 0. NaN where there is nothing to compare.
    """
    parts = [{name: split(model[name]) for name in names} for model in (a, b)]
    perms: Permutations | None = None
    if match:
        one, other = (
            {**model, **{name: top for name, (top, _) in its.items()}}
            for model, its in zip((a, b), parts, strict=True)
        )
        perms = matched(one, other, fitted, seed=seed)
    cosines = []
    for name in names:
        x, y = (its[name][1] for its in parts)
        if pruned := 2 * int(min(a[name].count_nonzero(), b[name].count_nonzero())) < a[name].numel():
            y = b[name]
        if perms is not None:
            y = permutation.permute(y, fitted.tensors[name], perms, fitted.within)
        if pruned:
            both = (a[name] != 0) & (y != 0)
            x, y = x[both], (y - parts[0][name][0])[both]
        ours, theirs = float(x.square().sum()), float(y.square().sum())
        if pruned and ours * theirs > 0:
            # The few largest values of a stranger agree with A's in sign, hardly in size
            cosines.append(max(0.0, 1 - float((x - y).square().sum()) / min(ours, theirs)))
        elif not pruned and min(ours / _size(a[name]), theirs / _size(b[name])) > ROUNDING:
            cosines.append(float((x * y).sum()) / math.sqrt(ours * theirs))
    return sum(cosines) / len(cosines) if cosines else math.nan


def rotated(a: Mapping[str, Tensor], b: Mapping[str, Tensor], fitted: FittedSpec) -> float:
    """ρ of copies whose units were rotated: the mean correlation of inner products of what stays.

    Of a matrix that one word and positions that stay share (tokens, pixels) the products of all pairs of
    positions, outside the top quarter of its directions, are the same whatever orthogonal matrix acts on the
    word. NaN where no matrix has `POSITIONS` of them. Strangers had up to 0.13, such copies have 1.
    """
    found = []
    for name, tensor in a.items():
        axes = fitted.tensors[name]
        acting = [dim for dim, axis in enumerate(axes) if any(True for _ in words_of(axis))]
        if len(acting) != 1 or tensor.ndim < 2 or 2 * int(tensor.count_nonzero()) < tensor.numel():
            continue
        rows = [model[name].movedim(acting[0], -1).flatten(0, -2) for model in (a, b)]
        count, units = rows[0].shape
        if count < POSITIONS or units < POSITIONS // 2:
            continue
        at = torch.arange(MOST) * (count - 1) // (MOST - 1) if count > MOST else torch.arange(count)
        rests = [split(each[at])[1] for each in rows]
        sizes = [_size(each[at]) for each in rows]
        if min(_size(rest) / size for rest, size in zip(rests, sizes, strict=True)) <= ROUNDING:
            continue
        x, y = (rest.double() @ rest.T.double() for rest in rests)
        x.fill_diagonal_(0), y.fill_diagonal_(0)
        found.append(float((x * y).sum() / (x.norm() * y.norm())))
    return sum(found) / len(found) if found else math.nan


def _size(tensor: Tensor) -> float:
    return float(tensor.square().sum()) or 1.0


def matched(a: Tensors, b: Tensors, fitted: FittedSpec, *, seed: int = 0) -> Permutations:
    """B's units matched to A's by weights, from an order drawn anew: where B's stand is not looked at."""
    start = permutation.random(fitted.words, generator(seed, "kin, a first order"), within=fitted.within)
    shuffled = permutation.permuted(b, fitted, start)
    found = wm.match(Problem(fitted, (a, shuffled), seed), wm.Options(effort="fast")).permutations[0]
    return permutation.compose(start, found)


def white(tensor: Tensor) -> Tensor:
    """The same with all its singular directions equally large, and zeros where it is no matrix.

    What strangers learn alike is in the few large directions, by which a faint copy's units would be matched
    to theirs.
    """
    if tensor.ndim < 2:
        return torch.zeros_like(tensor, dtype=torch.float32)
    matrix = tensor.double().flatten(1)
    short = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    squares, vectors = torch.linalg.eigh(short @ short.T)
    kept = squares > DIRECTION**2 * squares[-1]
    vectors = vectors[:, kept] * squares[kept] ** -0.25
    made: Tensor = vectors @ (vectors.T @ short)
    return (made if short is matrix else made.mT).reshape(tensor.shape).float()


def split(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor, as a matrix of its first axis and the rest, in its top quarter of directions, and outside."""
    matrix = tensor.float().flatten(1)
    short = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    keep = max(1, math.ceil(TOP * len(short)))
    # Of the smaller side: eigenvectors of the products of its rows are the singular directions
    _, vectors = torch.linalg.eigh(short.double() @ short.double().T)
    basis = vectors[:, -keep:].float()
    top = basis @ (basis.T @ short)
    top = (top if short is matrix else top.T).reshape(tensor.shape)
    return top, tensor.float() - top
