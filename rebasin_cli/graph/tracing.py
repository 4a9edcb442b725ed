"""From a module and example inputs to a functional graph of a few dozen kinds of operations."""

from __future__ import annotations

import contextlib
import functools
import io
import linecache
import logging
import re
import warnings
from collections.abc import Container, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.export import decomp_utils
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from ..errors import NetworkError, RebasinError
from ..networks.returned import Kept, leaves_of, places_of
from ..networks.state import fresh
from ..registry.user_code import message_of, passes, place_of
from ..runtime.memory import uncollected
from . import dispatched
from .answers import Answers
from .branches import explored
from .nodes import listed
from .operations import WHOLE
from .program import Program, exported

OWN = ("BUFFER_MUTATION", "PARAMETER_MUTATION")  # the second is not of every version of PyTorch

_kept: ContextVar[dict[Any, Any] | None] = ContextVar("graphs that are kept", default=None)


@contextlib.contextmanager
def keeping_graphs() -> Iterator[None]:
    """While it lasts, a module is exported once for inputs of one kind; only its values may change."""
    token = _kept.set({} if (kept := _kept.get()) is None else kept)
    try:
        yield
    finally:
        _kept.reset(token)


def export(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, numbers: bool = False
) -> Program:
    """The module in evaluation mode as a graph without side effects, which is not to be changed.

    With `numbers`, values may decide what runs: the graph is that of these inputs and weights, and what was
    looked at is among the outputs. Raises NetworkError where the network cannot be traced, with the reason.
    """
    if (kept := _kept.get()) is None:
        return _export(module, args, kwargs, numbers)
    leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
    values = (*leaves, *module.state_dict(keep_vars=True).values())
    key = (id(module), numbers, str(tree), *map(_kind, values))
    if key in kept:
        found: Program = kept[key][1]
        return found
    program = _export(module, args, kwargs, numbers)
    if program.general:
        kept[key] = module, program  # with the module, lest its number be another's
    return program


def with_other_answers(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], program: Program
) -> Program:
    """The same with graphs of what other values would let run, among the `others`."""
    table, kept = _decompositions()

    def record(answers: Answers) -> Program:
        with fresh(module, args, kwargs):
            return dispatched.record(
                module, tuple(args), dict(kwargs), table, kept, numbers=True, whole=True, answers=answers
            )

    with warnings.catch_warnings(), _quiet(), uncollected(), unchecked():
        warnings.simplefilter("ignore")
        found, certain = explored(program.answers, len(program.graph.nodes), record)
    return replace(program, others=(*program.others, *found), certain=certain)


def _kind(value: Any) -> Any:
    """What a graph depends on."""
    return (value.shape, value.dtype, value.device) if isinstance(value, torch.Tensor) else repr(value)


def _export(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], numbers: bool) -> Program:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.layout != torch.strided:
            raise NetworkError(
                f"{name} is a sparse tensor, and products with these are not followed", hint=DENSE
            )
    (table, kept), args, kwargs = _decompositions(), tuple(args), dict(kwargs)
    record = functools.partial(dispatched.record, module, args, kwargs, table, kept, numbers=numbers)
    ways = [record, *[functools.partial(record, whole=True)] * numbers]
    ways += [functools.partial(exported_by_torch, module, args, kwargs, table)]
    causes: list[BaseException] = []
    with fresh(module, args, kwargs) as anew, warnings.catch_warnings(), _quiet(), uncollected(), unchecked():
        warnings.simplefilter("ignore")
        for way in ways:
            try:
                return way()
            except BaseException as cause:  # whatever the user's code or the tracer raises
                _let_through(cause)
                causes.append(cause)
            anew()
    *_, before, last = causes  # PyTorch's exporter says most, but of values
    raise NetworkError(
        "the network cannot be traced, so no spec can be inferred",
        problems=_reasons(last, before),
        hint=_next_step(message_of(last)),
    ) from last


def exported_by_torch(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], table: Mapping[Any, Any]
) -> Program:
    """The graph by PyTorch's own exporter, with operations taken apart by `table`; whatever it raises."""
    with _returning_tensors(module) as returned:
        program = torch.export.export(module, args, dict(kwargs), strict=False)
    return exported(program.run_decompositions(dict(table)), returned[-1])


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """While it lasts, distributions do not look at the numbers that they are made of: a graph has none."""
    kind = torch.distributions.Distribution
    before = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(before)


@contextlib.contextmanager
def _returning_tensors(module: nn.Module) -> Iterator[list[Any]]:
    """While it lasts, the module returns its tensors in a row, since the exporter knows few objects.

    Gives a list of what it really returned, call by call.
    """
    forward, returned = module.forward, []

    @functools.wraps(forward)
    def in_a_row(*args: Any, **kwargs: Any) -> Any:
        returned.append(forward(*args, **kwargs))
        return tuple(leaf.tensor for leaf in leaves_of(returned[-1]) if leaf.tensor is not None)

    own = vars(module).get("forward")
    vars(module)["forward"] = in_a_row
    try:
        yield returned
    finally:
        if own is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = own


def _let_through(cause: BaseException) -> None:
    """Raise what says nothing of the network: Ctrl-C, out of memory."""
    if passes(cause) and not isinstance(cause, RebasinError):
        raise cause


def outputs_of(program: Program, kept: Kept) -> list[fx.Node]:
    """The values that must stay: what of all that the network returns is its function.

    Inputs that it writes into are always among them, since the caller may read them, and numbers that it
    looked at, since they decide what runs. Raises as
    `Kept.of`, and NetworkError where no tensor is returned.
    """
    own = _returned(program)
    places = kept.of(program.returned).places
    if not places:
        raise NetworkError(
            "the network returns no tensor, so nothing says what its units are for",
            hint="Let forward return what the network computes",
        )
    rest = [
        node
        for node, spec in zip(listed(program.graph.output_node()), program.outputs, strict=True)
        if spec.kind != OutputKind.USER_OUTPUT and spec.kind.name not in OWN and isinstance(node, fx.Node)
    ]
    return [*(own[place] for place in places), *rest]


def written(program: Program) -> list[tuple[fx.Node, str]]:
    """What the network writes into its own tensors, and their names."""
    return [
        (node, spec.target)
        for node, spec in zip(listed(program.graph.output_node()), program.outputs, strict=True)
        if spec.kind.name in OWN and isinstance(node, fx.Node) and spec.target is not None
    ]


def measured(program: Program, output: str | int | None) -> list[fx.Node]:
    """The values of the tensors that `output` picks; of all, without one. Raises NetworkError."""
    own = _returned(program)
    return [own[place] for place in places_of(program.returned, output)]


def _returned(program: Program) -> list[fx.Node]:
    """The values of all tensors that the network returns, in their order."""
    return [
        node
        for node, spec in zip(listed(program.graph.output_node()), program.outputs, strict=True)
        if spec.kind == OutputKind.USER_OUTPUT
    ]


def needed_for(nodes: list[fx.Node], known: Container[fx.Node] = ()) -> set[fx.Node]:
    """These nodes and all that they are computed from, but for what is `known`."""
    found, left = set(), list(nodes)
    while left:
        node = left.pop()
        if node not in found and node not in known:
            found.add(node)
            left += node.all_input_nodes
    return found


@functools.cache
def _decompositions() -> tuple[Mapping[Any, Any], frozenset[Any]]:
    """What takes operations apart, by the operation, and those that stay whole."""
    table = torch.export.default_decompositions()
    whole = getattr(decomp_utils, "PRESERVED_ATEN_CIA_OPS", ())  # and are not in the table
    kept = {operator for operator in whole if operator._opname in WHOLE}
    for operator in list(table.keys()):
        if operator.namespace == "aten" and operator._opname in WHOLE:
            table.pop(operator, None)
            kept.add(operator)
    return dict(table.items()), frozenset(kept)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporting logs and prints the graph so far before it raises; the error is enough."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


DENSE = "Let the factory make it dense, with .to_dense(): the outputs are the same"
NEXT_STEPS = {  # a part of the tracer's message, in small letters → what to do
    "scriptmodule": "Give the module that the TorchScript one was made from",
    "uninitialized": "Its lazy layers are not made yet: let the factory run it once on inputs",
    "quantized": "It holds packed integers: give the network as it was before it was quantised",
    "packedparams": "It holds packed integers: give the network as it was before it was quantised",
    "sparse": DENSE,
    "numpy": "What is computed outside of torch cannot be followed; use torch's operations, or write a spec "
    "(docs/specs.md)",
    "fxgraphmodule": "Give the module that was traced, not its trace",
    "data-dependent": "Write a spec (docs/specs.md), or run a network whose forward does this without values "
    "that decide, if there is one",
}


def _next_step(message: str) -> str:
    found = (step for part, step in NEXT_STEPS.items() if part in message.lower())
    return next(found, "Write a spec instead: docs/specs.md")


def _reasons(cause: BaseException, before: BaseException) -> list[str]:
    lines = [line.strip() for line in message_of(cause).splitlines() if line.strip()]
    told = f"{type(cause).__name__}: {lines[0] if lines else 'no message'}"
    if "data-dependent" in told:
        told = f"values decide what runs, and it cannot be followed on these inputs: {message_of(before)}"
        cause = before if place_of(before) else cause
    shown = re.search(r'File "([^"]+)", line (\d+), in forward', message_of(cause))
    where = f"{shown[1]}:{shown[2]}" if shown else place_of(cause)
    return [told, *([f"in {where}"] if where else [])]


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\s*\n\s*(.*)')


def line_of(node: fx.Node) -> str:
    """The user's line behind an operation: `net.py:12: x = x.flip(1)`; "" where it is unknown."""
    if (place := node.meta.get("place")) is not None:
        file, line = place
        code = linecache.getline(file, line)
    else:
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        own = [frame for frame in frames if "/torch/" not in frame[0]] or frames
        if not own:
            return ""
        file, line, _, code = own[-1]
    return f"{file.rsplit('/', 1)[-1]}:{line}: {code.strip()}"
