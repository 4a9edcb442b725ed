"""A part of two models that is compared in their place: evenly spread units of every word.

Orders of these units alone are a subgroup of a spec's orders, so that a test by them is as exact; and files
of any size are read by the rows that are wanted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ...averages.kinship import planned
from ...checkpoints.tensors import plan_of, rows
from ...checkpoints.validation import wrong_dtype
from ...errors import CheckpointError, SpecError
from ...spec.notation import Axis, Fixed, Product, Sum, Word, factors_of, fitted_length, words_of
from ...spec.spec import FittedSpec
from ...types import Tensors

VALUES = 1 << 21  # of one model that are compared
LEAST = 16  # positions that are taken along an axis, however large the model
EXTREME = 40  # the exponent of values whose products leave the range of float32
WIDEST, ALL = 1 << 14, 1 << 40
MATCHED, BESIDE = 30_000_000, 512  # values of a model that is matched; positions that stay, of a larger one
SHORT = 1024  # the shorter side of a larger one's matrices: directions cost its cube


@dataclasses.dataclass(frozen=True)
class Extent:
    """How many positions of an axis are taken: of `units`, and of `others`, which stay.

    `kept` are positions that are taken of axes of a length that stay, in any case.
    """

    units: int
    others: int
    kept: Mapping[int, Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Sample:
    """`a` and `b`: float32 tensors by name, of the sizes that `fitted` has.

    `matrices` are what the test compares, `vectors` show whether units lie sorted. `left_out` says of every
    other tensor why. `whole`: all units are there. `read` are the bytes of both models that were read.
    `indices` are the positions that were taken, of every axis of a tensor.
    """

    a: Mapping[str, Tensor]
    b: Mapping[str, Tensor]
    fitted: FittedSpec
    matrices: tuple[str, ...]
    vectors: tuple[str, ...]
    left_out: Mapping[str, str]
    whole: bool
    read: int
    indices: Mapping[str, tuple[Tensor, ...]]


def comparable(
    a: Tensors, b: Tensors, fitted: FittedSpec, *, other: str = "B"
) -> tuple[list[str], list[str], dict[str, str]]:
    """Matrices and vectors whose units can be compared, and why each other tensor is left out.

    `other` is what b is called. Where no matrix has units, vectors are what is compared. Raises
    CheckpointError for quantised weights, SpecError where nothing can be compared.
    """
    ours, theirs = plan_of(a), plan_of(b)
    check_plain(a, b)
    matrices: list[str] = []
    vectors: list[str] = []
    left: dict[str, str] = {}
    for name in dict.fromkeys((*ours, *theirs)):
        axes = fitted.tensors.get(name)
        if name not in theirs or name not in ours:
            left[name] = f"only in {'A' if name in ours else other}"
        elif ours[name][1] != theirs[name][1]:
            left[name] = f"{list(ours[name][1])} in A, {list(theirs[name][1])} in {other}"
        elif name in fitted.statistics:
            left[name] = "a running statistic"
        elif not ours[name][0].is_floating_point or 0 in ours[name][1]:
            left[name] = "no weights"
        elif axes is None or not any(True for axis in axes for _ in words_of(axis)):
            left[name] = "has no units that the spec permutes"
        else:
            (matrices if sum(size > 1 for size in ours[name][1]) > 1 else vectors).append(name)
    if not matrices and not vectors:
        raise SpecError(
            f"A and {other} have no tensor in common whose units could be compared",
            problems=[f"{name}  {why}" for name, why in left.items()],
            hint="See what they hold with: rebasin inspect FILE",
        )
    if not matrices:
        return vectors, [], left
    return matrices, vectors, left | {name: "a norm or a bias" for name in vectors}


def check_plain(*models: Tensors) -> None:
    """Raise CheckpointError where a model has quantised or complex weights."""
    wrong = [
        f"{name} in model {k}  {told}"
        for k, model in enumerate(models, start=1)
        for name, (dtype, shape) in plan_of(model).items()
        if (told := wrong_dtype(name, dtype, shape))
    ]
    if wrong:
        raise CheckpointError(
            "weights that are no plain numbers cannot be compared",
            problems=wrong,
            hint="Compare the models that they were made from, or dequantise them",
        )


def sample(a: Tensors, b: Tensors, fitted: FittedSpec, values: int | None = None) -> Sample:
    """What is compared of two models: all of small ones, of large ones at most `values` of each, or `VALUES`.

    Tensors are read one at a time, and of those that begin with units only the rows that are wanted. Raises
    as `comparable`, and CheckpointError for numbers that are none.
    """
    matrices, vectors, left = comparable(a, b, fitted)
    plain = plain_of(fitted)
    extents, most = (Extent(width, width) for width in _widths()), values or VALUES
    extent = next((e for e in extents if _values(plain, matrices, e) <= most), Extent(LEAST, LEAST))
    return _taken(a, b, plain, matrices, vectors, left, extent)


def matchable(
    a: Tensors, b: Tensors, fitted: FittedSpec, kept: Mapping[tuple[str, int], Tensor]
) -> Sample | None:
    """All units of both models, whose order may differ; of large models not those of every word.

    Of models of more than `MATCHED` values the smallest matrices are taken that are no more in all, with
    `BESIDE` positions of every axis that stays: those of a side of at most `SHORT`, where there are any.
    Before them come tensors with positions that are `kept`, by their axis. None where one alone is more.
    """
    matrices, vectors, left = comparable(a, b, fitted)
    plain, extent = plain_of(fitted), Extent(ALL, ALL)
    large = is_large(a, b, fitted)
    if large:
        extent = Extent(ALL, BESIDE, {plain.shapes[name][dim]: its for (name, dim), its in kept.items()})
        first = {name for name, _ in kept}
        room = MATCHED
        chosen: list[str] = []
        order: list[tuple[bool, bool, int, str]] = []
        for name in matrices:
            rows, *rest = (len(index_of(axis, plain, extent)) for axis in plain.tensors[name])
            columns = math.prod(rest)
            order.append((name not in first, min(rows, columns) > SHORT, rows * columns, name))
        for _, costly, size, name in sorted(order):
            if size <= room and not (costly and chosen and name not in first):
                room -= size
                chosen.append(name)
        left |= {name: "too large to be matched" for name in matrices if name not in chosen}
        matrices, vectors = chosen, []
        used = {word for name in chosen for axis in plain.tensors[name] for word in words_of(axis)}
        used |= {outer for word in used if word in plain.within and (outer := plain.within[word].word)}
        words = {word: size for word, size in plain.words.items() if word in used}
        within = {word: block for word, block in plain.within.items() if word in used}
        plain = dataclasses.replace(plain, words=words, within=within)
    if not matrices and not vectors:
        return None
    found = _taken(a, b, plain, matrices, vectors, left, extent)
    return dataclasses.replace(found, whole=found.whole and not large)


def is_large(a: Tensors, b: Tensors, fitted: FittedSpec) -> bool:
    """Whether both have more than `MATCHED` values in common, so that they are not matched whole."""
    return _values(plain_of(fitted), comparable(a, b, fitted)[0], Extent(ALL, ALL)) > MATCHED


def plain_of(fitted: FittedSpec) -> FittedSpec:
    """By orders alone."""
    plain = fitted.ordered.unlisted
    if plain is None:
        raise SpecError("units that several lists of tensors share cannot be compared")
    return plain


def _taken(
    a: Tensors,
    b: Tensors,
    plain: FittedSpec,
    matrices: Collection[str],
    vectors: Collection[str],
    left: Mapping[str, str],
    extent: Extent,
) -> Sample:
    names = (*matrices, *vectors)
    indices = {axis: index_of(axis, plain, extent) for name in names for axis in plain.tensors[name]}
    small = _smaller(plain, indices, {*names}, extent)
    taken: list[dict[str, Tensor]] = []
    size = 0
    for k, model in enumerate((a, b), start=1):
        kept = {}
        for name in names:
            part, read = _read(model, name, [indices[axis] for axis in plain.tensors[name]])
            if not part.isfinite().all():
                raise CheckpointError(
                    "a model holds NaN or infinite values", problems=[f"{name} in model {k}"]
                )
            kept[name], size = _moderate(part), size + read
        taken.append(kept)
    whole = all(len(index) == fitted_length(axis, plain.sizes) for axis, index in indices.items())
    one, other = taken
    positions = {name: tuple(indices[axis] for axis in plain.tensors[name]) for name in names}
    return Sample(one, other, small, tuple(matrices), tuple(vectors), left, whole, size, positions)


def _moderate(tensor: Tensor) -> Tensor:
    """The same by a power of two, where squares would be no numbers or none above 0: tests see no scale."""
    exponent = math.frexp(float(tensor.abs().max()))[1]
    return tensor if abs(exponent) < EXTREME else (tensor.double() * 2.0**-exponent).float()


def _widths() -> list[int]:
    return [WIDEST >> k for k in range(20) if WIDEST >> k >= LEAST]


def _values(fitted: FittedSpec, names: Collection[str], extent: Extent) -> int:
    sizes = {axis: len(index_of(axis, fitted, extent)) for n in names for axis in fitted.tensors[n]}
    return sum(math.prod(sizes[axis] for axis in fitted.tensors[name]) for name in names)


def spread(length: int, most: int, *, together: bool = False) -> Tensor:
    """At most so many positions of an axis, from the first to the last: of equal lengths the same ones.

    Those that stand `together` are in the middle, side by side: what lies so in a file is read at once.
    """
    if length <= most:
        return torch.arange(length)
    if together:
        return torch.arange(most) + (length - most) // 2
    return torch.arange(most) * (length - 1) // max(1, most - 1)


def index_of(axis: Axis, fitted: FittedSpec, extent: Extent, *, inner: bool = False) -> Tensor:
    """The positions along an axis that are taken, ascending; `inner`: within what stands before it."""
    if isinstance(axis, Word):
        return spread(fitted.sizes[axis.name], extent.units, together=axis.each)
    if isinstance(axis, Fixed):
        size = axis.size or 1
        some = spread(size, extent.others, together=inner)
        return torch.cat([some, extent.kept[size]]).unique() if size in extent.kept else some
    if isinstance(axis, Sum):
        parts, offset = [], 0
        for term in axis.terms:
            parts.append(index_of(term, fitted, extent) + offset)
            offset += fitted_length(term, fitted.sizes)
        return torch.cat(parts)
    found = torch.zeros(1, dtype=torch.int64)
    for k, factor in enumerate(factors_of(axis)):
        own = index_of(factor, fitted, extent, inner=k > 0)
        found = (found[:, None] * fitted_length(factor, fitted.sizes) + own).flatten()
    return found


def _smaller(
    fitted: FittedSpec, indices: Mapping[Axis, Tensor], names: set[str], extent: Extent
) -> FittedSpec:
    """The spec of what is taken."""
    most = extent.units
    within = {
        word: dataclasses.replace(block, count=min(block.count, most), size=min(block.size, most))
        for word, block in fitted.within.items()
    }
    words = {
        word: within[word].count * within[word].size if word in within else min(size, most)
        for word, size in fitted.words.items()
    }

    def axis_of(axis: Axis) -> Axis:
        if isinstance(axis, Fixed):
            return Fixed(len(index_of(axis, fitted, extent)))
        if isinstance(axis, Product):
            return Product(tuple(axis_of(factor) for factor in axis.factors))
        return Sum(tuple(axis_of(term) for term in axis.terms)) if isinstance(axis, Sum) else axis

    tensors = {name: tuple(map(axis_of, fitted.tensors[name])) for name in fitted.tensors if name in names}
    shapes = {name: tuple(len(indices[axis]) for axis in fitted.tensors[name]) for name in tensors}
    return dataclasses.replace(
        fitted,
        words=words,
        within=within,
        tensors=tensors,
        shapes=shapes,
        statistics=frozenset(),
        ignored=frozenset(),
        stacks={},
    )


def _read(model: Tensors, name: str, indices: list[Tensor]) -> tuple[Tensor, int]:
    """The positions of a tensor in float32, and how many bytes of it were read."""
    dtype, shape = planned(model, name)
    if not indices:
        return model[name].float(), dtype.itemsize
    first, *others = indices
    a_row = math.prod(shape[1:]) * dtype.itemsize
    if len(first) == shape[0]:
        pieces = [model[name]]
    else:
        breaks = (first.diff() != 1).nonzero().flatten() + 1
        runs = first.tensor_split(breaks)
        pieces = [rows(model, name, int(run[0]), int(run[-1]) + 1) for run in runs]
    parts = []
    for piece in pieces:
        for dim, index in enumerate(others, start=1):
            if len(index) < shape[dim]:
                piece = _selected(piece, dim, index)
        parts.append(piece.float())
    return torch.cat(parts), len(first) * a_row


def _selected(piece: Tensor, dim: int, index: Tensor) -> Tensor:
    wide = piece.float() if piece.dtype.itemsize == 1 else piece  # float8 cannot be indexed
    return wide.index_select(dim, index)
