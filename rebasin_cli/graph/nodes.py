"""What nodes of a graph are, in types: the operation that one calls, and those whose values it reads."""

from __future__ import annotations

from typing import Any

from torch import fx

from .operations import Operation, operation_of


def name_of(node: Any) -> str:
    """The operation's name without `aten::` and its overload, "addmm"; a function's own; "" of no call."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return ""
    schema = schema_of(node)
    return getattr(node.target, "__name__", "") if schema is None else schema.name.removeprefix("aten::")


def operation(node: Any) -> Operation:
    """What the operation is; OTHER where nobody knows, and of what is no call."""
    return operation_of(getattr(node, "target", None), name_of(node))


def schema_of(node: fx.Node) -> Any:
    """What PyTorch says of the operation's arguments and results; None of what is no operation of its own."""
    return getattr(node.target, "_schema", None)


def values_of(node: fx.Node) -> tuple[Any, ...]:
    """Its arguments: nodes, plain values and lists of them, as the operation's schema has them."""
    return node.args


def operand(node: fx.Node, at: int = 0) -> fx.Node:
    """The node whose value is this argument; raises TypeError where the argument is a number or none."""
    if not isinstance(found := node.args[at], fx.Node):
        raise TypeError(f"argument {at} of {node} is no tensor: {found}")
    return found


def listed(node: fx.Node, at: int = 0) -> tuple[Any, ...]:
    """The entries of this argument: nodes and plain values; raises TypeError where it is no list."""
    if not isinstance(found := node.args[at], (tuple, list)):
        raise TypeError(f"argument {at} of {node} is no list: {found}")
    return tuple(found)


def arguments(node: fx.Node) -> dict[str, Any]:
    """A call's arguments by name, defaults included."""
    return by_name(schema_of(node), node.args, node.kwargs)


def by_name(schema: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by the names and with the defaults of an operation's schema."""
    found = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    found |= {a.name: value for a, value in zip(schema.arguments, args, strict=False)}
    return found | dict(kwargs)
