"""Are two models one, relabelled? By what their data never moved.

A pixel that has one value in all samples, a token that is never there: the weights that read it keep their
first values, up to what is common to all such columns. Units are matched by everything else, from an order
drawn anew; of strangers these columns then have nothing in common, and one order of them is as likely as
another. Copies keep them, whatever order their units are written in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ...checkpoints.tensors import plan_of
from ...errors import DataError
from ...runtime.seeds import generator
from ...spec.notation import Fixed, words_of
from ...spec.spec import FittedSpec
from ...types import Tensors

LEAST = 8  # columns: fewer have too few orders
MOVED = 5.0  # standard deviations: columns whose neighbours are more alike were moved by something
ORDERS = 199  # of columns, by which that is seen
MIXED = 99  # mixtures of values, by which common directions are seen
SOME = 256  # columns that are looked at for them
QUIET = 500_000  # samples in which no further value changed, after which no more are read


@dataclass(frozen=True)
class Still:
    """Columns that the data never move: positions (d,) along `dim` of a tensor, and the `value` of each.

    Inputs that stay at another value than zero move all their columns alike, in proportion to it.
    """

    tensor: str
    dim: int
    positions: Tensor
    value: Tensor


@dataclass(frozen=True)
class Relabelled:
    """What the test found: `statistic` Σ of cosines of the columns of each tensor, once units are matched.

    `z` and `p` are as of `InPlace`, over orders of the columns among themselves. Where there is no exact test
    `why` says it, and all figures are NaN. `columns` are those that were compared. `samples` of the data were
    read: all, but where these left too few columns, or, `quiet`, had changed nothing any more for long.
    """

    statistic: float = math.nan
    z: float = math.nan
    p: float = math.nan
    draws: int = 0
    columns: int = 0
    tensors: tuple[str, ...] = ()
    why: str = ""
    samples: int = 0
    quiet: bool = False


@dataclass(frozen=True)
class Inputs:
    """What is known of inputs: `low` and `high` of every value (n,), or the `tokens` that were there.

    Of `samples` that were read; `quiet` where reading ended since nothing had changed for `QUIET` of them.
    """

    low: Tensor
    high: Tensor
    tokens: frozenset[int]
    samples: int
    quiet: bool = False

    @property
    def still(self) -> Tensor:
        """The positions of values that are the same in all samples."""
        return (self.low == self.high).nonzero().flatten()


def read(data: Iterable[tuple[Any, Any]]) -> Inputs:
    """What the inputs of all batches are, which are read once.

    Reading ends before where fewer than `LEAST` values are left that never change, and where nothing changed
    any more for `QUIET` samples: loaders may have no end. Tokens that are targets count as inputs, which
    training moves as well. Raises DataError for inputs that are no one tensor.
    """
    low = high = torch.empty(0)
    tokens: set[int] = set()
    count = changed = 0
    for batch, targets in data:
        if not isinstance(batch, Tensor):
            raise DataError("which columns never move is seen of inputs that are one tensor")
        count += len(batch)
        if batch.is_floating_point():
            flat = batch.flatten(1)
            least, most = flat.amin(0), flat.amax(0)
            if len(low):
                least, most = torch.minimum(low, least), torch.maximum(high, most)
            new = not (len(low) and torch.equal((low == high), (least == most)))
            low, high = least, most
            if int((low == high).sum()) < LEAST:
                break
        else:
            before = len(tokens)
            tokens |= {*batch.unique().tolist()}
            if (
                isinstance(targets, Tensor)
                and targets.shape == batch.shape
                and not targets.is_floating_point()
            ):
                tokens |= {*targets.unique().tolist()}
            new = len(tokens) > before
        changed = count if new else changed
        if count - changed >= QUIET:
            return Inputs(low, high, frozenset(tokens), count, True)
    return Inputs(low, high, frozenset(tokens), count)


def still(inputs: Inputs, model: Tensors, fitted: FittedSpec) -> list[Still]:
    """What these inputs never move, tensor by tensor: of those with a column a value of a sample, or a token.

    The first axis of a matrix has what it writes: of as many values as the inputs have these may be of
    something else, and training moves them. Nothing where tables of several lengths may be those of the
    tokens.
    """
    found = []
    tokens = inputs.tokens
    for name, (dtype, shape) in plan_of(model).items():
        axes = fitted.tensors.get(name, ())
        if not dtype.is_floating_point or len(shape) < 2 or name in fitted.statistics:
            continue
        for dim, axis in enumerate(axes):
            others = [word for k, other in enumerate(axes) if k != dim for word in words_of(other)]
            if not isinstance(axis, Fixed) or not others:
                continue
            if tokens and shape[dim] > max(tokens):
                rest = torch.tensor(sorted({*range(shape[dim])} - tokens), dtype=torch.int64)
                found.append(Still(name, dim, rest, torch.zeros(len(rest))))
            elif dim and len(inputs.low) == shape[dim]:
                found.append(Still(name, dim, inputs.still, inputs.low[inputs.still]))
    # Another table, of positions or classes, has a number a row, too, and training moved these
    return found if not tokens or len({len(its.positions) for its in found}) == 1 else []


def within(columns: Sequence[Still], taken: Mapping[str, Sequence[Tensor]]) -> list[Still]:
    """The same in tensors of which some positions of every axis are `taken`."""
    return [
        replace(its, positions=torch.searchsorted(taken[its.tensor][its.dim], its.positions))
        for its in columns
        if its.tensor in taken
    ]


def without(model: Tensors, columns: Sequence[Still]) -> dict[str, Tensor]:
    """The tensors of a model that have such columns, these zero: what units are matched by."""
    made: dict[str, Tensor] = {}
    for its in columns:
        tensor = made[its.tensor] if its.tensor in made else model[its.tensor].clone()
        made[its.tensor] = tensor.index_fill(its.dim, its.positions, 0.0)
    return made


def relabelled(
    a: Tensors,
    b: Tensors,
    columns: Sequence[Still],
    stands: Mapping[str, Tensor] = MappingProxyType({}),
    *,
    draws: int = 999,
    seed: int = 0,
) -> Relabelled:
    """Compare the columns that never move, of A and of B with its units matched.

    By tensor `stands` says how likely each unit of A stands for each of B (n, n); else each for its own.
    Columns are drawn in other orders among those whose inputs have the same value. Where they have more in
    common than first values do, in A or in B, something moved them (augmented images, or samples that are not
    among these), and there is no exact test.
    """
    groups: list[tuple[str, Tensor, Tensor]] = []
    for its in columns:
        x, y = (_rows(model[its.tensor], its) for model in (a, b))
        alive = (x.amax(1) != x.amin(1)) & (y.amax(1) != y.amin(1))
        for value in its.value[alive].unique():
            chosen = alive & (its.value == value)
            if int(chosen.sum()) >= LEAST:
                own, other = (v[chosen] - v[chosen].mean(0) for v in (x, y))
                groups.append((its.tensor, own, other))
    count = sum(len(x) for _, x, _ in groups)
    if not groups:
        most = sum(len(its.positions) for its in columns)
        few = (
            f"of {most} columns that the data never move, fewer than {LEAST} have values of their own in both"
        )
        return Relabelled(columns=most, why=few)
    for called, blocks in (("A", [x for _, x, _ in groups]), ("B", [y for _, _, y in groups])):
        if (z := _common(blocks, seed)) >= MOVED:
            return Relabelled(
                columns=count,
                why=f"the {count} columns that these data never move were moved in {called} (they have more "
                f"in common than first values, z {z:.1f}): these are not all the data, or augmented ones",
            )
    names = tuple(dict.fromkeys(name for name, *_ in groups))
    tables = []
    for name in names:
        stand = stands.get(name)
        pairs = [(x if stand is None else x @ stand, y) for called, x, y in groups if called == name]
        ours, theirs = (math.sqrt(sum(float(each[k].square().sum()) for each in pairs)) for k in (0, 1))
        tables += [(x @ y.T) / (ours * theirs) for x, y in pairs]
    statistic = sum(float(table.trace()) for table in tables)
    rng = generator(seed, "kin, columns by chance")
    drawn = torch.empty(draws, dtype=torch.float64)
    for k in range(draws):
        drawn[k] = sum(
            float(table[torch.arange(len(table)), torch.randperm(len(table), generator=rng)].sum())
            for table in tables
        )
    deviation = math.sqrt(sum(float(table.square().sum()) / (len(table) - 1) for table in tables))
    p = (1 + draws - int((drawn < statistic - 1e-9).sum())) / (1 + draws)
    return Relabelled(statistic, statistic / deviation, p, draws, count, names)


def too_few(columns: Sequence[Still], most: int) -> str:
    """Why there is no exact test by so few columns."""
    if not columns:
        return "no tensor reads the inputs value by value or token by token, or several of other lengths may"
    return f"the data leave {most} columns unmoved at most, and {LEAST} that stay at one value are needed"


def _rows(tensor: Tensor, its: Still) -> Tensor:
    """The columns (d, units) in float64."""
    return tensor.index_select(its.dim, its.positions).movedim(its.dim, 0).flatten(1).double()


def _common(groups: Sequence[Tensor], seed: int) -> float:
    """How much more columns have in common than first values do: z, the largest of three.

    These are all inner products, those of neighbours, and how unlike the sizes are. First values are
    drawn one by one, so that each unit's may change places among the columns. What training moves is moved
    along what many samples share, and some columns more than others.
    """
    rng = generator(seed, "kin, values by chance")
    blocks = [x[torch.arange(SOME) * (len(x) - 1) // (SOME - 1)] if len(x) > SOME else x for x in groups]

    def figures(blocks: Sequence[Tensor]) -> Tensor:
        found = torch.zeros(3, dtype=torch.float64)
        for gram in (x @ x.T for x in blocks):
            sizes = gram.diagonal()
            shared = gram.square().sum() - sizes.square().sum()
            found += torch.stack([shared, (sizes - sizes.mean()).square().sum(), gram.diagonal(1).sum()])
        return found

    drawn = torch.stack(
        [
            figures([x.gather(0, torch.rand(x.shape, generator=rng).argsort(0)) for x in blocks])
            for _ in range(MIXED)
        ]
    )
    z = (figures(blocks) - drawn.mean(0)) / drawn.std(0)
    return float(z.nan_to_num(0.0).max())
