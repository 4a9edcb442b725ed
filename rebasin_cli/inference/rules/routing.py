"""Rules for tensors of numbers that name units: which experts a token goes to, and who is whose.

The numbers of a top-k along an axis follow its units: permute these, and the numbers are others, the same
units. So an axis that is only ever looked up by such numbers moves. Where tokens are sorted by their expert,
as products of matrices in groups want them, rows come in an order that depends on data; a position along it
tells which expert the row is with, so that hidden units may have an order of their own in each.

A top-k that is not sorted gives the same units for every row, in an order that nobody promises: one of its
own in each row. Where that order comes to count, the units stay.

A tensor of such numbers that goes where no rule is holds its units in place, as the numbers it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from ...graph.nodes import name_of, operation, schema_of, values_of
from ..axes.axes import Axes, Expr, Fixed, Product, Var, every, variables
from . import rules, shapes
from .rules import Rules
from .walk import Picked, Value, Walk

IDS = "ids"  # numbers of units along `names`
PERM = "perm"  # the order that sorts: each number of a row of `names` once, along the axis of sorted rows
COUNTS, ENDS = "counts", "ends"  # how many rows each unit has, and where they end among sorted rows
LOOKS = "it is looked up by number"
UNSORTED = "a top-k that is not sorted picks of it, in an order that is not understood"

RULES = Rules()
rule = RULES.rule
# They make numbers of what has none:
PICKS = ("topk", "argmax", "argmin", "max", "min", "median", "nanmedian", "kthvalue", "mode", "sort")


def apply(walk: Walk, name: str, arguments: dict[str, Any], read: Sequence[Value]) -> Any:
    """The result, a Value or a list of them; None where no such numbers are made or read, or no rule is."""
    numbered = any(value.role for value in read)
    if not (numbered or name in PICKS or name.endswith(GROUPED)):
        return None
    if numbered and name in PICKS and name != "sort":
        return None
    known = operation(walk.node)
    if known.rearranges and known.kind not in ("repeat", "parts"):
        value = arguments["self"]
        how = rules.RULES.of(walk.node.target, name) or shapes.pointwise
        axes = how(walk, {**arguments, "self": value})
        return None if axes is None else replace(value, axes=axes)
    found = RULES.get("grouped_mm" if name.endswith(GROUPED) else name)
    return None if found is None else found(walk, arguments)


def hold(walk: Walk, read: Sequence[Value]) -> None:
    """What these numbers name stays: somebody looks at the numbers themselves."""
    for value in read:
        if value.names is not None:
            walk.freeze(value.names, LOOKS)


def settle(walk: Walk) -> None:
    """Orders that data decide and that came to count, or that met others: what they are orders of stays."""
    units, resolve = walk.units, walk.units.resolve
    orders = [Picked(rows, names, frozenset(), LOOKS) for rows, names in units.sorted_by] + walk.picked
    while orders:
        held = {var for axes in walk.tensors.values() for axis in axes for var in variables(resolve(axis))}
        met = Counter(resolve(one.order) for one in orders)
        counts = [
            one
            for one in orders
            if not isinstance(here := resolve(one.order), Var)
            or here in held
            or met[here] > 1
            or not one.rows <= units.parents(here)
        ]
        for one in counts:
            units.freeze(one.order, one.told)
            units.freeze(one.names, one.told)
        if not counts:
            return
        orders = [one for one in orders if one not in counts]


@rule("topk")
def topk(walk: Walk, a: dict[str, Any]) -> list[Value] | None:
    value = a["self"]
    at = a["dim"] % len(value.axes)
    axes = list(value.axes)
    axes[at] = Fixed(a["k"])
    if not a["sorted"] and a["k"] > 1:
        _unsorted(walk, axes, at, value.axes[at])
    return [_made(walk, tuple(axes), 0), _made(walk, tuple(axes), 1, role=IDS, names=value.axes[at])]


def _unsorted(walk: Walk, axes: list[Expr], at: int, names: Expr) -> None:
    """The axis of what is picked, in an order of its own in each row, which the other axes tell."""
    told, rows = walk.why(UNSORTED), [d for d, axis in enumerate(axes) if d != at and axis.size > 1]
    if not all(isinstance(walk.units.resolve(axes[d]), Fixed) for d in rows):
        walk.units.freeze(names, told)
        return
    tell = {d: walk.units.variable(axes[d].size) for d in rows}
    for d, var in tell.items():
        walk.units.freeze(var, "")
        axes[d] = walk.units.resolve(var)
    axes[at] = walk.units.variable(axes[at].size, [frozenset(tell.values())])
    walk.picked.append(Picked(axes[at], names, frozenset(tell.values()), told))


@rule("argmax", "argmin")
def argmax(walk: Walk, a: dict[str, Any]) -> Value | None:
    value = a["self"]
    if a["dim"] is None:
        return None
    at = a["dim"] % len(value.axes)
    axes = shapes.reduction(walk, {"self": value, "dim": at, "keepdim": a["keepdim"]})
    return _made(walk, axes, role=IDS, names=value.axes[at])


@rule("max", "min", "median", "nanmedian", "kthvalue", "mode")
def extreme(walk: Walk, a: dict[str, Any]) -> list[Value] | None:
    """One entry along an axis that its order does not decide, and which of its units that is."""
    value, at = a["self"], a.get("dim")
    if at is None or not value.axes:
        return None
    axes = shapes.reduction(walk, {"self": value, "dim": at, "keepdim": a["keepdim"]})
    return [_made(walk, axes, 0), _made(walk, axes, 1, role=IDS, names=value.axes[at])]


@rule("cat")
def cat(walk: Walk, a: dict[str, Any]) -> Value | None:
    """Numbers of the same units side by side."""
    first, *others = a["tensors"]
    if any(value.role != IDS for value in a["tensors"]):
        return None
    axes = shapes.cat(walk, a)
    for value in others:
        walk.unify(first.named, value.named)
    return _made(walk, axes, role=IDS, names=first.names)


@rule("sort")
def sort(walk: Walk, a: dict[str, Any]) -> list[Value] | None:
    value = a["self"]
    if not value.role and value.axes:  # in whichever order they came
        at = a["dim"] % len(value.axes)
        axes = (*value.axes[:at], Fixed(value.shape[at]), *value.axes[at + 1 :])
        return [_made(walk, axes, 0), _made(walk, axes, 1, role=IDS, names=value.axes[at])]
    if value.role == PERM:  # the way back
        numbers = _made(walk, (Fixed(value.shape[0]),), 0)
        return [numbers, _made(walk, (value.named,), 1, role=IDS, names=value.axes[0])]
    if (rows := _sorted(walk, value)) is None:
        return None
    order = _made(walk, (rows,), 1, role=PERM, names=value.axes[0])
    return [_made(walk, (rows,), 0, role=IDS, names=value.names), order]


@rule("argsort")
def argsort(walk: Walk, a: dict[str, Any]) -> Value | None:
    found = sort(walk, a)
    return None if found is None else found[1]


def _sorted(walk: Walk, value: Value) -> Expr | None:
    """A new axis of rows, in an order that what they are sorted by decides."""
    if value.role != IDS or len(value.axes) != 1:
        return None
    known = {walk.units.resolve(one.order) for one in walk.picked}
    if any(var not in known for var in variables(walk.units.resolve(value.axes[0]))):
        return None
    rows = walk.units.new(value.shape[0])
    walk.units.sorted_by.append((rows, value.named))
    return rows


@rule("index_put")
def index_put(walk: Walk, a: dict[str, Any]) -> Value | None:
    """`back[order] = arange(n)`: the way back."""
    (order,), numbers = a["indices"], walk.node.args[2]
    if order is None or order.role != PERM or not _counts_from_zero(numbers) or len(a["self"].axes) != 1:
        return None
    return _made(walk, (order.named,), role=IDS, names=order.axes[0])


@rule("floor_divide", "div")
def floor_divide(walk: Walk, a: dict[str, Any]) -> Value | None:
    """`order // k`: which row of k numbers each of the sorted ones is in; within rows their order is gone."""
    order, by = a["self"], a["other"]
    if order.role != PERM or not isinstance(by, int) or a.get("rounding_mode", "floor") != "floor":
        return None
    whole, inner = walk.units.resolve(order.named), 1
    factors = [*whole.factors] if isinstance(whole, Product) else [whole]
    while factors and inner < by:
        inner *= factors.pop().size
    if inner != by or any(True for factor in factors for _ in variables(factor)):
        return None
    return _made(walk, order.axes)


@rule("histc")
def histc(walk: Walk, a: dict[str, Any]) -> Value | None:
    names = a["self"].names
    if a["self"].role != IDS or (a["bins"], a["min"], a["max"]) != (names.size, 0, names.size - 1):
        return None
    return _made(walk, (names,), role=COUNTS, names=names)


@rule("cumsum")
def cumsum(walk: Walk, a: dict[str, Any]) -> Value | None:
    value = a["self"]
    return (
        _made(walk, (Fixed(value.shape[0]),), role=ENDS, names=value.names) if value.role == COUNTS else None
    )


GROUPED = ("_grouped_mm", "grouped_mm_fallback", "grouped_mm")


@rule("grouped_mm")
def grouped(walk: Walk, a: dict[str, Any]) -> Value | None:
    """Rows of one expert after another, each with its expert's matrix."""
    by_rank = {len(value.axes): value for value in rules.tensors(a)}  # each package has names of its own
    if by_rank.keys() != {1, 2, 3}:
        return None
    ends, x, weight = (by_rank[rank] for rank in (1, 2, 3))
    experts = weight.axes[0]
    if ends.role == ENDS and ends.names is not None and walk.units.tells(x.axes[0], ends.names):
        walk.unify(experts, ends.names)
    else:  # where groups end is a matter of numbers
        hold(walk, [ends])
        walk.freeze((experts, x.axes[0]), LOOKS)
    walk.contract(x.axes[1], weight.axes[1], frozenset(every(walk.units.resolve(experts))))
    return _made(walk, (x.axes[0], weight.axes[2]))


@rule("index")
def index(walk: Walk, a: dict[str, Any]) -> Value | None:
    value: Value = a["self"]
    looked = [d for d, lookup in enumerate(a["indices"]) if lookup is not None]
    if len(looked) != 1 or value.role not in ("", IDS):
        return None
    (at,), lookup = looked, a["indices"][looked[0]]
    if lookup.role in (IDS, PERM):
        walk.unify(value.axes[at], lookup.named)
    else:
        walk.freeze(value.axes[at], LOOKS)
    return replace(value, axes=(*value.axes[:at], *lookup.axes, *value.axes[at + 1 :]), uniform=False)


@rule("embedding", "index_select")
def lookup(walk: Walk, a: dict[str, Any]) -> Value | None:
    """Rows of a table, or of what is looked up along one dimension, by such numbers."""
    value, numbers, at = (
        (a["weight"], a["indices"], 0)
        if "weight" in a
        else (a["self"], a["index"], a["dim"] % len(a["self"].axes))
    )
    if value.role or numbers.role != IDS:
        return None
    walk.unify(value.axes[at], numbers.named)
    return _made(walk, (*value.axes[:at], *numbers.axes, *value.axes[at + 1 :]))


@rule("gather")
def gather(walk: Walk, a: dict[str, Any]) -> Value | None:
    value, numbers = a["self"], a["index"]
    if value.role or numbers.role != IDS:
        return None
    return None if _looked_up(walk, value.axes, numbers, a["dim"]) is None else _made(walk, numbers.axes)


@rule("scatter", "scatter_add")
def scatter(walk: Walk, a: dict[str, Any]) -> Value | None:
    value, numbers, source = a["self"], a["index"], a.get("src")
    if value.role or numbers.role != IDS or getattr(source, "role", ""):
        return None
    if _looked_up(walk, value.axes, numbers, a["dim"]) is None:
        return None
    if source is not None:
        rules.unite(walk, [numbers.axes, source.axes])
    return _made(walk, value.axes)


def _looked_up(walk: Walk, axes: Axes, numbers: Value, dim: int) -> Axes | None:
    """Along `dim` by numbers that follow its units, along the others each by its own."""
    for d, (own, number) in enumerate(zip(axes, numbers.axes, strict=True)):
        if d == dim % len(axes):
            walk.unify(own, numbers.named)
        elif own.size != number.size:
            return None
        else:
            walk.unify(own, number)
    return axes


@rule("eq")
def eq(walk: Walk, a: dict[str, Any]) -> Value | None:
    """`one_hot`: numbers held against all that there are."""
    numbers, other = a["self"], a.get("other")
    if numbers.role != IDS or numbers.axes[-1].size != 1 or not isinstance(other, Value):
        return None
    if not _counts_from_zero(walk.node.args[1]) or other.shape != (numbers.names.size,):
        return None
    return _made(walk, (*numbers.axes[:-1], numbers.names))


def _is(node: fx.Node, name: str) -> bool:
    return name_of(node) == name


def _counts_from_zero(node: Any) -> bool:
    """Whether it is 0, 1, 2, …"""
    if not isinstance(node, fx.Node) or not _is(node, "arange"):
        return False
    names = (argument.name for argument in schema_of(node).arguments)
    given = dict(zip(names, values_of(node), strict=False))
    return bool(given.get("start", 0) == 0 and given.get("step", 1) == 1)


def _made(walk: Walk, axes: Axes, which: int = 0, role: str = "", names: Expr | None = None) -> Value:
    """A result of the operation that is looked at."""
    made = walk.node.meta["val"]
    meta = made[which] if isinstance(made, (tuple, list)) else made
    return Value(axes, meta.dtype, role=role, names=names)
