"""Tensors that were computed from settings and that no training moved, told by their numbers.

Grids, frequencies, schedules of noise, sines of positions are smooth functions of an index: a short linear
recurrence gives them, and the Hankel matrix of such a sequence has few directions. What was learnt has noise
in all of them. Masks have two different numbers. Models that differ in such a tensor have other settings.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..checkpoints.tensors import Plan, plan_of, rows
from ..types import Tensors

ALIKE = 3
TERMS, LINES = 32, 3  # of a sequence, and sequences of a tensor, that are looked at
VALUES = 1 << 16  # that are read of a tensor, where these are rows enough
LEAST = 8  # numbers of a mask
NEIGHBOURS = 0.25  # of the larger: numbers of a mask are further apart; gains in bfloat16 were rounded to two
NOISE, ROUNDED = 2e-3, 4e-3  # of a sequence, from which on it was learnt, and of one in bfloat16
EXACT = 1e-5  # the same of a matrix: what was learnt of smooth inputs is nearly a formula along an axis, too
APART = 2e-2  # of a sequence, by which two of them differ by more than such noise
RATIOS = 4  # of one noise: that of two numbers over that of two others
SPREAD = 1.5  # from the smallest to the largest of a geometric sequence; less is one number, and noise
_NUMBERS = re.compile("[0-9]+")
ORDERS = ((16, 4), (6, 2))  # the terms that tell a recurrence of this order, beside a constant


def tables(models: Sequence[Tensors], names: Iterable[str]) -> list[str]:
    """Those of the `names` where all models have a formula's values, or a mask's, and not the same ones.

    None where nothing was learnt: weights that are made up look like that. Some rows of the first model are
    read, and more only of what may be such a tensor. Of those of one shape that are called alike but for
    numbers, `ALIKE` that are none tell of all.
    """
    plans = [plan_of(model) for model in models]
    found, others = [], Counter[object]()
    for name in names:
        kind = _NUMBERS.sub("#", name), plans[0].get(name)
        if others[kind] < ALIKE:
            differ = _differ(name, models, plans)
            found += [name] * differ
            others[kind] += not differ
    first = models[0], plans[0]
    return found if found and any(_learnt(name, *first) for name in plans[0] if name not in found) else []


def _differ(name: str, models: Sequence[Tensors], plans: Sequence[Plan]) -> bool:
    having = [(model, plan[name]) for model, plan in zip(models, plans, strict=True) if name in plan]
    shapes = {shape for _, (_, shape) in having}
    if len(having) < 2 or len(shapes) > 1 or math.prod(shapes.pop()) < 4:
        return False
    first = _sample(name, *having[0])
    if _two(first):
        return _masks_differ([model[name] for model, _ in having])
    noise = ROUNDED if any(dtype == torch.bfloat16 for _, (dtype, _) in having) else NOISE
    if not _computed(first, noise):
        return False
    others = [_sample(name, *each) for each in having[1:]]
    return any(_apart(first, other) for other in others) and all(_computed(other, noise) for other in others)


def _learnt(name: str, model: Tensors, plan: Plan) -> bool:
    """Whether there are weights of more than one number, which no formula gives."""
    if not plan[name][0].is_floating_point:
        return False
    part = _sample(name, model, plan[name])
    return part.size > 1 and not _two(part) and not _computed(part, NOISE)


def _sample(name: str, model: Tensors, planned: tuple[torch.dtype, tuple[int, ...]]) -> np.ndarray:
    """The first rows of a tensor as a matrix (rows, …) in float64; of one that lies in one row, its own."""
    _, shape = planned
    wanted = min(TERMS, max(TERMS // 2, VALUES // max(1, math.prod(shape[1:]))))
    part = rows(model, name, 0, min(wanted, shape[0])) if shape else model[name]
    part = _real(part)
    sizes = [size for size in part.shape if size > 1]
    matrix: np.ndarray = part.reshape(sizes[0] if sizes else 1, -1)[:wanted].numpy()
    return matrix


def _real(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def _computed(matrix: np.ndarray, noise: float) -> bool:
    """Whether a formula gives all lines that are looked at, along one of the axes."""
    noise = noise if 1 in matrix.shape else EXACT
    return any(
        bool(lines) and all(_is_formula(line, noise) for line in lines)
        for lines in (_lines(matrix.T), _lines(matrix))
    )


def _lines(matrix: np.ndarray) -> list[np.ndarray]:
    """Some rows that are no constants, but for one; of a matrix two at least, or none."""
    some = matrix[:: max(1, len(matrix) // LINES), :TERMS]
    lines = [line for line in some if 2 * len(np.unique(line)) > len(line) > 3][:LINES]
    return lines if len(lines) > 1 or len(matrix) == 1 else []


def _is_formula(line: np.ndarray, noise: float) -> bool:
    """Whether a short recurrence gives this sequence: one ratio, or a few terms beside a constant."""
    smallest, largest = np.abs(line).min(), np.abs(line).max()
    if not np.isfinite(largest) or not largest:
        return False
    if largest > SPREAD * smallest > 0:
        ratios = line[1:] / line[:-1]
        if np.ptp(ratios) < RATIOS * noise * abs(ratios[0]):
            return True
    order = next((order for terms, order in ORDERS if len(line) >= terms), None)
    return order is not None and _beyond(line - line.mean(), order) < noise


def _beyond(line: np.ndarray, order: int) -> float:
    """The first direction of a sequence's Hankel matrix beyond so many, as a share of the largest."""
    hankel = np.lib.stride_tricks.sliding_window_view(line / np.abs(line).max(), len(line) // 2)
    sizes = np.linalg.svd(hankel, compute_uv=False)
    return float(sizes[order] / sizes[0])


def _apart(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.linalg.norm(one - other) > APART * np.linalg.norm(one - one.mean()))


def _two(values: np.ndarray) -> bool:
    return values.size >= LEAST and len(np.unique(values.flat[:TERMS])) <= 2 and len(np.unique(values)) <= 2


def _masks_differ(tensors: Sequence[Tensor]) -> bool:
    """Whether all have two different numbers at most, each at several places, and not all the same.

    Two that are neighbours are what training moved a little from one number, and a small dtype rounded.
    """
    if all(torch.equal(tensors[0], other) for other in tensors[1:]):
        return False
    found = [_real(tensor).flatten().unique(return_counts=True) for tensor in tensors]
    if max(len(values) for values, _ in found) != 2:
        return False
    near = any(0 < v.max() - v.min() < NEIGHBOURS * v.abs().max() for v, _ in found)
    return not near and all(int(count.min()) > 1 for _, count in found)
