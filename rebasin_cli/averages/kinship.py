"""Kin or strangers, by the tensors alone: no spec, no network, and a few rows of each matrix.

Units of fine-tunes of one model stand where they stood, and of independent seeds they do not. So, matrix by
matrix, what is each model's own is compared: the deviations from what is alike for all units, which are the
means of rows, of columns and of the diagonal. What all models of a kind begin with (ones, the identity, the
rows of a Mamba's `A_log`) has no such deviations, and a table that a formula gives is the same in both, bit
for bit. Neither tells anything. Of pruned matrices only what both have kept tells. The middle matrix decides:
no large one does it alone, and no new head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoints.tensors import blocks, chunks, plan_of, rows
from ..types import Tensors, is_lazy

# Between cases that were tried, in benchmarks/results.md: the middle matrix of two seeds, of fine-tunes, of
# noisy, pruned and merged copies.
KIN, STRANGERS, SMALL = 0.4, 0.05, 0.1
SIGMAS = 3.0  # of a cosine by chance: what strangers of small matrices have, up to `SMALL`
FLAT = 1e-5  # deviations below this, of a matrix's own size, are rounding
UNLIKE = 1 / 3  # of the matrices: so many may have nothing in common in kin, as new heads
LEAST = 32  # free values of a matrix that tells something
MATRICES, VALUES, PARTS = 32, 1 << 15, 4  # that are read: matrices, values of each, from so many places


@dataclass(frozen=True)
class Kinship:
    """`verdict` is "kin", "strangers" or "undecided", `why` a sentence.

    `cosine` is that of the middle matrix, NaN where none tells. `tensors` has a row a matrix that was looked
    at: "tensor", "cosine" and "norm_ratio" ‖A‖/‖B‖, of what was read of it. `same` others are equal, bit for
    bit.
    """

    verdict: str
    why: str
    cosine: float
    tensors: tuple[dict[str, Any], ...] = ()
    same: int = 0


def kinship(a: Tensors, b: Tensors) -> Kinship:
    """Are these two kin? At most some megabytes of each are read.

    Nothing is permuted: whether strangers are the same model in another order is not asked.
    """
    looked, same, chances = [], 0, []
    for name in _spread([*_matrices(a, b)]):
        x, y = (_sample(model, name) for model in (a, b))
        if pruned := _pruned(x[0]) or _pruned(y[0]):
            x, y = _kept_by_both(x[0], y[0])
        own, other = _deviations(*x), _deviations(*y)
        if own is None or other is None:
            continue
        if torch.equal(x[0], y[0]) and not pruned:
            same += 1
            continue
        cosine = (own * other).sum().item() / (own.norm().item() * other.norm().item())
        ratio = _size(x[0]) / _size(y[0])
        looked.append({"tensor": name, "cosine": cosine, "norm_ratio": ratio})
        chances.append(SIGMAS / math.sqrt(_directions(own) * _directions(other)))
    return _judged(looked, chances, same)


def _judged(looked: list[dict[str, Any]], chances: list[float], same: int) -> Kinship:
    """The verdict on matrices that differ, with the cosines that strangers may have, beside equal ones."""
    tensors, count = tuple(looked), len(looked)
    if not count and not same:
        why = "No weight matrix has values enough, other than constant or zero, to tell by."
        return Kinship("undecided", why, math.nan)
    if same > count:
        why = f"{same} of {same + count} weight matrices are equal, bit for bit: of one ancestor."
        return Kinship("kin", why, median(row["cosine"] for row in looked) if looked else 1.0, tensors, same)
    middle, chance = median(row["cosine"] for row in looked), median(chances)
    unlike = sum(row["cosine"] < min(KIN, max(SMALL, chance)) for row in looked)
    which = f"The middle one of {count} weight matrices" if count > 1 else "The one weight matrix that tells"
    found = f"{which} has cosine {middle:.3f}"
    if middle >= max(KIN, chance) and unlike <= UNLIKE * count:
        return Kinship("kin", f"{found}: of one ancestor, or aligned before.", middle, tensors, same)
    if abs(middle) < max(STRANGERS, min(chance, SMALL)) and chance < 1 and 2 * same < count:
        return Kinship("strangers", f"{found}: as of independent seeds.", middle, tensors, same)
    parts = "parts of both are alike, and parts have nothing in common."
    why = parts if middle >= KIN or same else "neither kin nor strangers for certain."
    return Kinship("undecided", f"{found}: {why}", middle, tensors, same)


def same_values(a: Tensors, b: Tensors) -> bool:
    """Whether each tensor of one holds the values of the other's, bit for bit, in whatever order.

    The smallest are looked at first.
    """
    ours, theirs = plan_of(a), plan_of(b)
    if ours != theirs:
        return False
    names = sorted(ours, key=lambda name: math.prod(ours[name][1]))
    return all(np.array_equal(np.sort(_bits(a[name])), np.sort(_bits(b[name]))) for name in names)


def _bits(tensor: Tensor) -> np.ndarray:
    """The values as integers, (n,): torch would also say where each was, in four times the memory."""
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    return tensor.detach().cpu().flatten().view(sizes.get(tensor.dtype.itemsize, torch.int64)).numpy()


def equal(a: Tensors, b: Tensors) -> bool:
    """Whether all tensors of both are equal, bit for bit."""
    return plan_of(a) == plan_of(b) and all(same(a, b, name) for name in a)


def _matrices(a: Tensors, b: Tensors) -> Iterator[str]:
    """Floating tensors of both, of one shape, which have rows and columns enough."""
    ours, theirs = plan_of(a), plan_of(b)
    for name, (dtype, shape) in ours.items():
        other = theirs.get(name)
        if other is None or other[1] != shape or not (dtype.is_floating_point and other[0].is_floating_point):
            continue
        height, width = _form(shape)
        if height > 1 and (height - 1) * (width - 1) >= LEAST:
            yield name


def _form(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix: of its first axis of more than one entry, and all others."""
    sizes = [size for size in shape if size != 1]
    return (sizes[0], math.prod(sizes[1:])) if sizes else (1, 1)


def _spread(names: list[str]) -> list[str]:
    """At most `MATRICES` of them, from the first to the last."""
    if len(names) <= MATRICES:
        return names
    return [names[k * (len(names) - 1) // (MATRICES - 1)] for k in range(MATRICES)]


def _sample(model: Tensors, name: str) -> tuple[Tensor, Tensor | None]:
    """Some rows of a tensor as a matrix in float64, from several places; of one that lies in one row, all.

    With them, for a tensor of as many rows as columns, where in each row its diagonal is: of a convolution
    (n, n, …) the places of a whole kernel, (rows, kernel).
    """
    _, shape = planned(model, name)
    height, width = _form(shape)
    wanted = min(height, max(2, VALUES // width))
    if shape[0] == 1 or wanted == height:
        matrix, taken = model[name].double().reshape(height, width)[:wanted], torch.arange(wanted)
    else:
        each = max(1, wanted // PARTS)
        starts = [*dict.fromkeys(k * (height - each) // (PARTS - 1) for k in range(PARTS))]
        parts = [rows(model, name, start, start + each) for start in starts]
        matrix = torch.cat([part.double().reshape(len(part), -1) for part in parts])
        taken = torch.cat([torch.arange(start, start + each) for start in starts])
    if len(shape) < 2 or shape[0] != shape[1]:
        return matrix, None
    kernel = width // height
    return matrix, taken[:, None] * kernel + torch.arange(kernel)


def _pruned(matrix: Tensor) -> bool:
    """Whether most of it is zero."""
    return 2 * matrix.count_nonzero().item() < matrix.numel()


def _kept_by_both(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, None], tuple[Tensor, None]]:
    """The values that are zero in neither, as matrices of their own; empty ones where they are too few."""
    both = (x != 0) & (y != 0)
    count = int(both.sum())
    height = math.isqrt(count) if count >= 2 * LEAST else 0
    width = count // height if height else 0
    one, other = (each[both][: height * width].reshape(height, width) for each in (x, y))
    return (one, None), (other, None)


def _deviations(matrix: Tensor, diagonal: Tensor | None) -> Tensor | None:
    """A matrix without what is alike in its rows, its columns and its diagonal; None if nothing is left."""
    if not matrix.numel():
        return None
    largest = matrix.abs().max()
    if not largest.isfinite() or not largest:
        return None
    own = matrix = matrix / largest  # what is squared below stays a number
    size = matrix.norm().item()
    if diagonal is not None:
        its = matrix.gather(1, diagonal)
        rest = (matrix.sum() - its.sum()) / max(1, matrix.numel() - its.numel())
        own = matrix.scatter(1, diagonal, its - its.mean(0, keepdim=True) + rest)
    own = own - own.mean(0, keepdim=True)
    own = own - own.mean(1, keepdim=True)
    return own if own.norm().item() > FLAT * size else None


def _size(matrix: Tensor) -> float:
    """The norm, of the smallest and of the largest numbers, too; of none that is zero."""
    largest = matrix.abs().max()
    return float(largest * (matrix / largest).norm())


def _directions(matrix: Tensor) -> float:
    """How many directions a matrix has, by what lies in them: with fewer, more is alike by chance."""
    gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
    return (gram.trace().square() / gram.square().sum()).item()


def alike(models: Sequence[Tensors], name: str) -> bool:
    """Whether all models that have this tensor have the same one, bit for bit."""
    first, *others = [model for model in models if name in model]
    return all(same(first, other, name) for other in others)


def same(one: Tensors, other: Tensors, name: str) -> bool:
    """Whether both have the same tensor, bit for bit, or neither has it. Read in blocks."""
    if name not in one or name not in other:
        return (name in one) == (name in other)
    if planned(one, name) != planned(other, name):
        return False
    both = zip(blocks(one, name), blocks(other, name), strict=True)
    return all(equal_values(one, other) for one, other in both)


def equal_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one dtype and shape are the same, bit for bit."""
    pairs = zip(chunks(one), chunks(other), strict=True)
    return all(_same_bits(x.view(torch.uint8).numpy(), y.view(torch.uint8).numpy()) for x, y in pairs)


def _same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether bytes are the same: eight at a time, where they are so many, in a fifth of the time."""
    return np.array_equal(x, y) if len(x) % 8 else np.array_equal(x.view(np.int64), y.view(np.int64))


def planned(tensors: Tensors, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
    """Dtype and shape of one tensor, without its values where the mapping knows them."""
    if is_lazy(tensors):
        return tensors.dtypes[name], tuple(tensors.shapes[name])
    return tensors[name].dtype, tuple(tensors[name].shape)
