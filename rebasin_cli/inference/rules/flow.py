"""Walk the graph: every value gets axes, every operation its equations.

What holds all along: permute the parameters by their axes, and every value in the graph is permuted by its
own. Each rule has to keep that for one operation. An operation without a rule freezes what it reads, so
that nothing changes for it; where a rule fails or returns other sizes than the graph says, likewise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from os.path import commonprefix
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind, InputSpec

from ...graph.nodes import by_name, schema_of
from ...graph.operations import operation_of
from ...graph.program import Program, placeholders
from ...graph.tracing import needed_for, outputs_of, written
from ...networks.returned import Kept
from ..axes.axes import Axes, Fixed, Var, variables
from ..axes.stack import Stack
from . import contractions, cuts, routing, rules, shapes, stacks  # noqa: F401 (contractions has rules)
from .walk import CHECKS, INPUT, INSTEAD, KEPT, MAY_READ, OUTPUT, TABLE, UNUSED, WRITTEN, Value, Walk


def follow(
    module: nn.Module,
    program: Program,
    kept: Kept = Kept(),  # noqa: B008 (frozen)
    *,
    whole: bool = False,
    walk: Walk | None = None,
) -> Walk:
    """Walk through an exported program of `module`, as far as its function needs: what is `kept`.

    `whole`: with complex tensors, which otherwise stay. `walk` is one that has not gone anywhere yet. Raises
    as `outputs_of`.
    """
    walk = walk or Walk(module, whole)
    for one in (program, *program.others):
        _through(walk, one, kept)
    shapes.settle(walk)
    routing.settle(walk)
    tied = {id(walk.tensors[name]) for name in walk.used}
    unused = INSTEAD.format(", ".join(dict.fromkeys(walk.stale))) if walk.stale else UNUSED
    for axes in walk.tensors.values():
        if id(axes) not in tied:
            walk.freeze(axes, unused)
    if not program.general and not program.certain:
        _hold_what_others_may_read(walk, [program, *program.others])
    return walk


def _hold_what_others_may_read(walk: Walk, programs: list[Program]) -> None:
    """Values decide what runs, and some tensors did not: units that these may have on other inputs stay.

    They are as many as an axis of such a tensor has, or divide it, and do not stay within a module that the
    tensor is no part of.
    """
    sources = [pair for one in programs for pair in zip(placeholders(one), one.inputs, strict=True)]
    read = {id(walk.tensors.get(spec.target or "")) for node, spec in sources if node.users}
    unread = {
        spec.target: node.meta["val"].shape
        for node, spec in sources
        if spec.target in walk.tensors
        and id(walk.tensors[spec.target]) not in read
        and node.meta["val"].is_floating_point()
    }
    places: dict[Var, list[str]] = {}
    for name in walk.used if unread else ():
        for var in {var for axis in walk.tensors[name] for var in variables(walk.units.resolve(axis))}:
            places.setdefault(var, []).append(name)
    for var, names in places.items():
        within = _module_of(names)
        for name, shape in unread.items():
            if name.startswith(within) and any(size % var.size == 0 for size in shape):
                walk.freeze(var, MAY_READ.format(name))


def _module_of(names: list[str]) -> str:
    """How the names of all in the innermost module begin that has these tensors, but of no single layer."""
    layers = {tuple(name.split(".")[:-1]) for name in names}
    same = commonprefix([*layers])
    return "".join(f"{part}." for part in (same[:-1] if len(layers) == 1 else same))


def _through(walk: Walk, program: Program, kept: Kept) -> None:
    outputs, own = outputs_of(program, kept), written(program)
    needed = needed_for([*outputs, *(node for node, _ in own)])
    values = walk.values
    parameters: dict[fx.Node, str] = {}
    sources = {spec.arg.name: spec for spec in program.inputs if hasattr(spec.arg, "name")}
    for node in program.graph.nodes:
        if node not in needed:
            continue
        walk.here = node
        if node.op == "placeholder":
            values[node] = _source(walk, node, sources.get(node.name), program, parameters)
            continue
        for name in (parameters[n] for n in node.all_input_nodes if n in parameters):
            if name not in walk.used:
                walk.used.append(name)
        if node.op == "call_function":
            values[node] = _call(walk, node, values)
        else:  # get_attr: a submodule of control flow or a constant
            found = node.meta.get("val")
            values[node] = _still(node) if isinstance(found, torch.Tensor) else None
    walk.here = None
    for value in _values([values.get(node) for node in outputs]):
        _freeze(walk, value, OUTPUT)
    for node, name in own:  # the next call reads it in its own order
        value, axes = _joined(walk, values.get(node)), walk.tensors.get(name)
        if axes is None or not isinstance(value, Value) or not value.known:
            walk.freeze(axes or (), WRITTEN)
            for given in _values(value):
                _freeze(walk, given, WRITTEN)
            continue
        rules.unite(walk, [axes, value.axes])


def meeting(walk: Walk, program: Program, tensors: Collection[str]) -> set[Var]:
    """The units of what is computed from these tensors, as far as the first values that have some."""
    left = [
        node
        for one in (program, *program.others)
        for node, spec in zip(placeholders(one), one.inputs, strict=True)
        if spec.target in tensors
    ]
    met: set[Var] = set()
    seen = set(left)
    while left:
        node = left.pop()
        rows = [axes for value in _values(walk.values.get(node)) for axes in _rows(value)]
        own = {var for axes in rows for axis in axes for var in variables(walk.units.resolve(axis))}
        met |= own
        if not own:
            new = [user for user in node.users if user not in seen]
            seen.update(new)
            left += new
    return met


def _rows(value: Value) -> tuple[Axes, ...]:
    return value.stack.pieces if value.stack else (value.axes,)


def _source(
    walk: Walk, node: fx.Node, spec: InputSpec | None, program: Program, parameters: dict[fx.Node, str]
) -> Value | None:
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    kind, target = (None, "") if spec is None else (spec.kind, spec.target or "")
    if kind in (InputKind.PARAMETER, InputKind.BUFFER) and target in walk.tensors:
        parameters[node] = target
        return Value(walk.tensors[target], node.meta["val"].dtype)
    if kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
        constant = walk.constants[node] = program.constants.get(target)
        known = constant is not None and constant.numel() > 0 and not constant.is_meta
        if constant is not None and known and bool((constant == constant.reshape(-1)[0]).all()):
            return Value(tuple(walk.units.free(n) for n in constant.shape), constant.dtype, uniform=True)
        still: Value | None = _still(node, _table(walk, constant))
        return still
    still = _still(node, INPUT)
    return still


def _table(walk: Walk, constant: torch.Tensor | None) -> str:
    """Why nothing moves that meets this constant: a table, or what the network should have computed anew."""
    name, made = "", False
    if constant is not None and constant.device.type != "meta":
        name, made = walk.kept.get(constant.untyped_storage().data_ptr(), (name, made))
    if made:
        walk.stale.append(name)
        return KEPT.format(name)
    return f"{TABLE}, {name}" if name else TABLE


def _still(node: fx.Node, why: str = "") -> Any:
    """The node's value, not permuted."""
    return _like(node.meta.get("val"), why)


def _like(value: Any, why: str) -> Any:
    if isinstance(value, torch.Tensor):
        known = all(type(n) is int for n in value.shape)
        axes = tuple(Fixed(n, why) for n in value.shape) if known else ()
        return Value(axes, value.dtype, known=known)
    if isinstance(value, (tuple, list)):
        return [_like(item, why) for item in value]
    return None


def _values(found: Any) -> Iterator[Value]:
    if isinstance(found, Value):
        yield found
    elif isinstance(found, (tuple, list)):
        for item in found:
            yield from _values(item)
    elif isinstance(found, dict):
        yield from _values(list(found.values()))


def _fresh(walk: Walk, value: Any) -> Any:
    """A uniform value for one more reader."""
    if isinstance(value, Value) and value.uniform:
        return Value(tuple(walk.units.free(axis.size) for axis in value.axes), value.dtype, uniform=True)
    return value


def _freeze(walk: Walk, value: Value, told: str) -> None:
    for axes in _rows(value):
        walk.freeze(axes, told)
    routing.hold(walk, [value])


def _call(walk: Walk, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    read_by: Any = (node.args, node.kwargs)
    args, kwargs = fx.node.map_arg(read_by, lambda n: _fresh(walk, values.get(n)))
    if getattr(node.target, "__name__", "") == "getitem":
        return args[0][args[1]] if isinstance(args[0], (list, tuple)) else _still(node)
    read = list(_values([args, kwargs]))
    schema, own = schema_of(node), str(getattr(node.target, "__name__", node.target))
    name = own if schema is None else schema.name.removeprefix("aten::")
    if name in CHECKS:
        return None
    told = f"{name} is not understood"
    if schema is not None and all(value.known for value in read):
        try:
            if (found := _applied(walk, node, name, args, kwargs, read)) is not None:
                return found
        except Exception as cause:  # a rule that fails has understood nothing
            told = f"{name} is not understood: {type(cause).__name__}: {cause}"
    if not all(value.known for value in read):
        told = f"{name} works on a shape that depends on values"
    for value in read:
        _freeze(walk, value, told)
    return _still(node, walk.why(told))


def _applied(walk: Walk, node: fx.Node, name: str, args: Any, kwargs: Any, read: list[Value]) -> Any:
    """What the operation's rule says; None where it has none, or the rule does not understand the case."""
    meta: Any = node.meta.get("val")
    arguments = by_name(schema_of(node), args, kwargs)
    rule = walk.rule(node.target, name) or rules.RULES.of(node.target, name)
    if rule is not None and not any(value.role for value in read):
        stacked = stacks.apply(walk, rule, name, arguments, _is_pointwise(node.target, name))
        if stacked is not None:
            routing.hold(walk, read)
            return _placed(walk, stacked, meta)
    if any(value.stack for value in read):
        arguments = fx.node.map_aggregate(arguments, lambda value: _joined(walk, value))
        read = list(_values(arguments))
    if (routed := routing.apply(walk, name, arguments, read)) is not None:
        for value in _values(routed):
            walk.units.ground(value.axes)
        return routed
    routing.hold(walk, read)
    if rule is None:
        return None
    known = operation_of(node.target, name)
    if known.kind == "reshape" and not read[0].uniform:
        stacked = cuts.reshaped(walk, arguments["self"], meta.shape)
        if stacked is not None:
            return _placed(walk, stacked, meta)
    result = rule(walk, arguments)
    if result is None or not _fits(result, meta):
        return None
    for axes in result if isinstance(result, list) else [result]:
        walk.units.ground(axes)
    uniform = (known.rearranges or known.kind == "constant") and all(value.uniform for value in read)
    return _wrap(result, meta, uniform)


def _placed(walk: Walk, found: Any, meta: Any) -> Any:
    """Values of stacks, axes, or lists of these."""
    if isinstance(found, list):
        return [_placed(walk, part, its) for part, its in zip(found, meta, strict=True)]
    if not isinstance(found, Stack):
        walk.units.ground(found)
        return Value(found, meta.dtype)
    for axes in found.pieces:
        walk.units.ground(axes)
    return Value(tuple(map(Fixed, found.shape)), meta.dtype, stack=found)


def _joined(walk: Walk, value: Any) -> Any:
    """A stack of pieces as one tensor."""
    if isinstance(value, Value) and value.stack:
        return Value(stacks.joined(walk, value.stack), value.dtype)
    return value


def _is_pointwise(target: Any, name: str) -> bool:
    """Whether each entry of the result is made of one entry of each operand."""
    return rules.RULES.of(target, name) is shapes.pointwise


def _fits(result: Any, meta: Any) -> bool:
    """Whether a rule's axes have the sizes that the graph says."""
    if isinstance(meta, (tuple, list)):
        return isinstance(result, list) and len(result) == len(meta) and all(map(_fits, result, meta))
    if not isinstance(meta, torch.Tensor):
        return result is None
    return isinstance(result, tuple) and [axis.size for axis in result] == list(meta.shape)


def _wrap(result: Any, meta: Any, uniform: bool) -> Any:
    if isinstance(meta, (tuple, list)):
        return [_wrap(r, m, uniform) for r, m in zip(result, meta, strict=True)]
    return Value(result, meta.dtype, uniform) if isinstance(meta, torch.Tensor) else None
