"""How each operation takes both sides of its units: the rules of the second walk.

What an operation does not tell apart is flagged: `ORDER`, unless it is known to let signs, scales or all of
a linear map through.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from ...graph.operations import operation_of
from ...graph.program import Program
from ...networks.returned import Kept
from ..axes.axes import Axes, Expr, Fixed, variables
from ..rules import contractions, rules, shapes
from ..rules.flow import follow
from ..rules.rules import Rules
from ..rules.walk import Walk
from .sides import NORM, ODD, ONES, ORDER, SCALE, SEEN, Attention, Linear, Sides


def look(module: nn.Module, program: Program, first: Walk, kept: Kept) -> Sides:
    """The second walk, done."""
    walk = _Looking(module, program, first)
    follow(module, program, kept, walk=walk)
    return walk


class _Looking(Sides):
    """The walk by these rules, and else by those of the first walk."""

    def rule(self, target: Any, name: str) -> rules.Rule | None:
        if name in RULES:
            return RULES[name]
        known = operation_of(target, name)
        if known.kind == "constant":
            return constant
        if (base := rules.RULES.of(target, name)) is None or known.linear:
            return base
        return _flagged(base, name, ODD if known.odd else SCALE if known.homogeneous else ORDER)


RULES = Rules()
_rule = RULES.rule


def _flagged(base: rules.Rule, name: str, flag: str = ORDER) -> rules.Rule:
    """The rule, and the flag of all units that the operation reads."""

    def rule(walk: Sides, a: dict[str, Any]) -> Any:
        for value in rules.tensors(a):
            walk.flag(value.axes, flag, name)
        return base(walk, a)

    return rule


@_rule("linear")
def linear(walk: Sides, a: dict[str, Any]) -> Axes:
    x, weight = a["input"].axes, a["weight"].axes
    walk.relate("contract", x[-1], weight[-1])
    if a["bias"] is not None:
        walk.unify(weight[0], a["bias"].axes[0])
    _noted(walk, x[-1])
    return (*x[:-1], *weight[:-1])


def _noted(walk: Sides, reads: Expr) -> None:
    given = dict(zip(("input", "weight", "bias"), walk.node.args, strict=False)) | dict(walk.node.kwargs)
    weight, bias = (walk.parameter(given.get(name)) for name in ("weight", "bias"))
    walk.layers.append(Linear(walk.node, reads, weight, bias))


@_rule("conv1d", "conv2d", "conv3d", "convolution")
def convolution(walk: Sides, a: dict[str, Any]) -> Axes | None:
    x, weight = a["input"].axes, a["weight"].axes
    if a["groups"] != 1 or a.get("transposed"):
        walk.flag((*x, *weight), ORDER, "a convolution in groups")
        return contractions.convolution(walk, a)
    space = len(weight) - 2
    walk.relate("contract", x[-space - 1], weight[1])
    if a["bias"] is not None:
        walk.unify(weight[0], a["bias"].axes[0])
    _noted(walk, x[-space - 1])
    shape = walk.node.meta["val"].shape
    return (*x[: -space - 1], weight[0], *(Fixed(n) for n in shape[-space:]))


@_rule("addmm")
def addmm(walk: Sides, a: dict[str, Any]) -> Axes:
    """A linear layer whose weight reads along its first axis."""
    x, weight = a["mat1"].axes, a["mat2"].axes
    walk.relate("contract", x[-1], weight[-2])
    given = walk.node.args
    walk.matrix(x[-1], given[2], -2, walk.parameter(given[0]))
    return rules.broadcast(walk, [(*x[:-1], weight[-1]), a["self"].axes])


@_rule("mm", "bmm", "matmul", "mv", "dot")
def matmul(walk: Sides, a: dict[str, Any]) -> Axes:
    """As of the first walk; what is summed over is a relation."""
    first, second = [value.axes for value in a.values() if hasattr(value, "axes")]
    left = (Fixed(1), *first) if len(first) == 1 else first
    right = (*second, Fixed(1)) if len(second) == 1 else second
    batch = rules.broadcast(walk, [left[:-2], right[:-2]])
    walk.flag(batch, ORDER, "a product for each of them")
    walk.relate("contract", left[-1], right[-2])
    if len(first) > 1 < len(second):
        walk.matrix(left[-1], walk.node.args[1], -2)
    rows = left[-2:-1] if len(first) > 1 else ()
    columns = right[-1:] if len(second) > 1 else ()
    return (*batch, *rows, *columns)


@_rule("scaled_dot_product_attention")
def attention(walk: Sides, a: dict[str, Any]) -> Axes | None:
    query, key, value = a["query"].axes, a["key"].axes, a["value"].axes
    apart = (*query[:-1], walk.copied(query[-1]))  # the first walk's rule, but for the sum
    alike = (*key[:-1], apart[-1])
    given = {"query": replace(a["query"], axes=apart), "key": replace(a["key"], axes=alike)}
    found = contractions.attention(walk, a | given)
    walk.flag((*query[:-2], *key[:-2]), ORDER, "attention of each of them")
    walk.relate("contract", query[-1], key[-1])
    walk.attentions.append(Attention(walk.node, key[-1], value[-1]))
    return found


@_rule("layer_norm")
def layer_norm(walk: Sides, a: dict[str, Any]) -> Axes:
    return _normed(walk, a, ONES, "layer_norm takes off its mean", 1, 2)


@_rule("rms_norm")
def rms_norm(walk: Sides, a: dict[str, Any]) -> Axes:
    return _normed(walk, a, NORM, "rms_norm divides by its length", 1, None)


def _normed(walk: Sides, a: dict[str, Any], flag: str, told: str, *at: int | None) -> Axes:
    """A norm, of one axis as a rule, whose weight and bias are the arguments `at` these places."""
    x = a["input"].axes
    if len(a["normalized_shape"]) != 1:
        walk.flag(x, ORDER, "a norm over several axes")
        plain: Axes = contractions.layer_norm(walk, a)
        return plain
    walk.flag(x[-1], flag, told)
    return _scaled(walk, x, *at)


def _scaled(walk: Sides, x: Axes, *at: int | None) -> Axes:
    """What comes out of a norm with parameters: units of their own, related to those that go in."""
    args, kwargs = walk.node.args, walk.node.kwargs
    nodes = [kwargs.get(name) or (args[k + 1] if k is not None and len(args) > k + 1 else None)
             for name, k in zip(("weight", "bias"), at, strict=True)]  # fmt: skip
    y = walk.copied(x[-1])
    weight, bias = map(walk.parameter, nodes)
    if bias is not None:
        y = walk.unify(y, walk.tensors[bias][0])
    walk.relate("norm", x[-1], y, weight=weight, bias=bias)
    for node, name in zip(nodes, ("weight", "bias"), strict=True):
        if node is not None and walk.parameter(node) is None:
            walk.flag((x[-1], y), ORDER, f"the norm's {name} is computed")
    return (*x[:-1], y)


@_rule("mul")
def mul(walk: Sides, a: dict[str, Any]) -> Axes | None:
    """By what is equal for all units nothing happens to them; else each gets a factor of its own."""
    values = rules.tensors(a)
    if len(values) == 1:
        return values[0].axes
    if walk.node.args[0] is walk.node.args[1]:
        return _squared(walk, values[0].axes)
    rows = _rows(values)
    gain = next((p for node in walk.node.args if (p := walk.parameter(node)) is not None), None)
    result = []
    for left, right in zip(*rows, strict=True):
        if 1 in (left.size, right.size):
            result.append(left if right.size == 1 else right)
        elif walk.units.sorts(left) or not list(variables(walk.units.resolve(left))):
            result.append(walk.unify(left, right))
        else:
            z = walk.copied(left)
            if gain is not None:
                own = left if walk.parameter(walk.node.args[0]) is None else right
                walk.relate("gain", own, z, weight=gain)
            else:
                walk.relate("mul", left, right, z)
            result.append(z)
    return tuple(result)


def _rows(values: list[Any]) -> list[Axes]:
    rank = max(len(value.axes) for value in values)
    return [(Fixed(1),) * (rank - len(value.axes)) + value.axes for value in values]


def _squared(walk: Sides, axes: Axes) -> Axes:
    result = []
    for axis in axes:
        z = axis if walk.units.sorts(axis) else walk.copied(axis)
        if z is not axis and list(variables(walk.units.resolve(axis))):
            walk.relate("square", axis, z)
        result.append(z)
    return tuple(result)


@_rule("pow")
def power(walk: Sides, a: dict[str, Any]) -> Axes | None:
    if a.get("exponent") == 2 and hasattr(a["self"], "axes"):
        return _squared(walk, a["self"].axes)
    found: Axes | None = _flagged(shapes.pointwise, "pow")(walk, a)
    return found


@_rule("square")
def square(walk: Sides, a: dict[str, Any]) -> Axes:
    return _squared(walk, a["self"].axes)


@_rule("div")
def div(walk: Sides, a: dict[str, Any]) -> Axes | None:
    values = rules.tensors(a)
    if not hasattr(a["self"], "axes"):
        found: Axes | None = _flagged(shapes.pointwise, "div")(walk, a)
        return found
    if len(values) == 2:
        for left, right in zip(*_rows(values), strict=True):
            if right.size > 1:
                walk.flag((left, right), ORDER, "div")
    return rules.broadcast(walk, [value.axes for value in values])


@_rule("add", "add_", "sub", "rsub")
def add(walk: Sides, a: dict[str, Any]) -> Axes | None:
    """Sums of units; a number that is added to all alike is one along the vector of ones."""
    values = rules.tensors(a)
    if len(values) == 1:
        if a.get("other") != 0:
            walk.flag(values[0].axes, ONES, "a number is added to all of its units")
        return values[0].axes
    for left, right in zip(*_rows(values), strict=True):
        if left.size != right.size:
            walk.flag((left, right), ONES, "a number is added to all of its units")
    return rules.broadcast(walk, [value.axes for value in values])


@_rule("sum", "mean", "var", "std", "var_mean", "std_mean", "linalg_vector_norm")
def reduction(walk: Sides, a: dict[str, Any]) -> Any:
    value, name = a["self"], walk.operation
    gone = rules.places(a.get("dim"), len(value.axes))
    flag = NORM if name == "linalg_vector_norm" else ONES
    walk.flag(tuple(value.axes[d] for d in gone), flag, f"{name} over its units")
    if name in ("sum", "mean"):
        walk.flag(tuple(value.axes[d] for d in gone), SEEN, f"{name} over its units")
    else:
        walk.flag(tuple(axis for d, axis in enumerate(value.axes) if d not in gone), ORDER, name)
    return shapes.moments(walk, a) if "_mean" in name else shapes.reduction(walk, a)


def constant(walk: Sides, a: dict[str, Any]) -> Axes:
    found = shapes.constant(walk, a)
    walk.flag(found, ONES, "it meets equal numbers")
    walk.flag(found, SEEN, "it meets equal numbers")
    return found
