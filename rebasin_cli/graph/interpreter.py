"""A graph run node by node, on the tensors of one model: as it is, or with norms folded into convolutions."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ..networks.folding import fold
from .nodes import arguments, name_of, operand, operation
from .program import Program, placeholders

FLOATS = (torch.float32, torch.float64)  # in narrower types a folded shift would be rounded too much
NEW = ("linear", "convolution", "product", "adding")  # kinds of operations whose values are no views


def given(
    program: Program, tensors: Mapping[str, Any], inputs: Any, needed: Collection[fx.Node] | None = None
) -> Iterator[tuple[fx.Node, Any]]:
    """The values of placeholders: `inputs` (positional, keywords), and tensors by the network's names.

    What `tensors` lacks is the network's own buffer or constant, or None. Only inputs and what is `needed`,
    where that is said.
    """
    leaves = iter(pytree.tree_leaves(inputs))
    own = {**program.buffers, **program.constants}
    for node, spec in zip(placeholders(program), program.inputs, strict=True):
        name = spec.target or ""
        if spec.kind == InputKind.USER_INPUT:
            yield node, next(leaves, None)
        elif needed is None or node in needed:
            yield node, tensors[name] if name in tensors else own.get(name)


class Run(fx.Interpreter):
    """One run: `env` has the values so far, by node. Whether gradients are kept is the caller's to say.

    Where it is said which `nodes` will run, values are let go when none of these is left to read them.
    """

    def __init__(
        self, program: Program, values: Iterable[tuple[fx.Node, Any]], nodes: Iterable[fx.Node] = ()
    ):
        super().__init__(program.graph_module, garbage_collect_values=False)
        self.program, self.env = program, dict(values)
        self.gone: dict[fx.Node, list[fx.Node]] = {}
        last = {read: node for node in nodes for read in (node, *node.all_input_nodes)}
        for read, reader in last.items():
            self.gone.setdefault(reader, []).append(read)

    def each(self, nodes: Iterable[fx.Node]) -> Iterator[tuple[fx.Node, Any]]:
        """These nodes in their order, each with its value, which may be replaced in `env`."""
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                self.env[node] = self.run_node(node)
            if node.op != "output":
                yield node, self.env[node]
            for gone in self.gone.get(node, ()):
                self.env.pop(gone, None)

    def compute(self, nodes: Iterable[fx.Node]) -> Any:
        """The value of the last of these nodes; None where there are none."""
        last = None
        for _, value in self.each(nodes):
            last = value
        return last


class Folded(Run):
    """A run of these `nodes` with norms folded into the convolutions before them.

    As `networks.folding` does it for modules; here the graph says what reads a convolution. A ReLU whose
    input nothing else reads is done in place, which saves fetching new memory. Values that are `shown` are as
    they would be without.
    """

    def __init__(
        self,
        program: Program,
        values: Iterable[tuple[fx.Node, Any]],
        nodes: Collection[fx.Node],
        shown: Collection[fx.Node] = (),
    ):
        super().__init__(program, values, nodes)
        self.folded = foldable(nodes, shown)
        self.norms = {norm: convolution for convolution, norm in self.folded.items()}
        self.over = {node for node in nodes if overwrites(node, shown)}

    def run_node(self, n: fx.Node) -> Any:
        """A norm that was folded hands on what its convolution gave; all else is as the graph has it."""
        if n in self.folded:
            return self._both(n, self.folded[n])
        if n in self.norms:
            value = self.env[self.norms[n]]
            return (value,) if isinstance(n.meta["val"], (tuple, list)) else value
        if n in self.over:
            return torch.relu_(self.env[operand(n)])
        return super().run_node(n)

    def _both(self, convolution: fx.Node, norm: fx.Node) -> torch.Tensor:
        (values, weight, *more), _ = self.fetch_args_kwargs_from_env(convolution)
        bias, how = (more[0], more[1:]) if more else (None, [])
        its = {name: self.env[it] if isinstance(it, fx.Node) else it for name, it in arguments(norm).items()
               if name != "input"}  # fmt: skip
        tensors = (its[name] for name in ("weight", "bias", "running_mean", "running_var"))
        target: Any = convolution.target
        made: torch.Tensor = target(values, *fold(weight, bias, *tensors, eps=its["eps"]), *how)
        return made


def foldable(nodes: Iterable[fx.Node], shown: Collection[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Convolutions whose values nothing but one norm reads, and that norm; none whose values are `shown`.

    The norm has running statistics, and its parameters are the network's.
    """
    found = {}
    for node in nodes:
        known = operation(node)
        if known.kind != "convolution" or not known.layer or known.transposed or node.kwargs:
            continue
        norm = next(iter(node.users), None)
        if norm is None or len(node.users) != 1 or node in shown or node.meta["val"].dtype not in FLOATS:
            continue
        if _is_norm(norm, node):
            found[node] = norm
    return found


def overwrites(node: fx.Node, shown: Collection[fx.Node]) -> bool:
    """Whether it is a ReLU of a newly made value that only it reads, in a graph that writes over nothing."""
    if name_of(node) != "relu":
        return False
    read = operand(node)
    while len(read.users) == 1 and read not in shown:
        known = operation(read)
        if known.kind in NEW or known.norm:
            return True
        if read.target is not operator.getitem or not operation(operand(read)).norm:
            return False
        read = operand(read)
    return False


def _is_norm(node: fx.Node, read: fx.Node) -> bool:
    if operation(node).kind != "batch_norm" or node.kwargs or node.args[0] is not read:
        return False
    its = arguments(node)
    if its.get("training"):
        return False
    statistics = [its["running_mean"], its["running_var"]]
    tensors = [it for it in (its["weight"], its["bias"], *statistics) if it is not None]
    own = all(isinstance(it, fx.Node) and it.op == "placeholder" for it in tensors)
    return own and None not in statistics
