"""One model in a graph, node by node, with norms folded into the convolutions before them.

As `networks.folding` does it for modules; here the graph says what reads a convolution. A ReLU whose input
nothing else reads is done in place, which saves fetching new memory.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from ...graph.nodes import operand
from ...networks.folding import fold

aten = torch.ops.aten

CONVOLUTIONS = frozenset((aten.conv1d.default, aten.conv2d.default, aten.conv3d.default))
NORM, EXPORTED = aten._native_batch_norm_legit_no_training.default, aten.batch_norm.default
NEW = CONVOLUTIONS | {NORM, EXPORTED, aten.add.Tensor, aten.linear.default, aten.addmm.default}  # no views
FLOATS = (torch.float32, torch.float64)  # in narrower types a folded shift would be rounded too much


class Run(fx.Interpreter):
    """`nodes` are those that will run, `shown` those whose values somebody looks at."""

    def __init__(self, graph: fx.GraphModule, nodes: Collection[fx.Node], shown: Collection[fx.Node]):
        super().__init__(graph)
        self.folded = foldable(nodes, shown)
        self.norms = {norm: convolution for convolution, norm in self.folded.items()}
        self.over = {node for node in nodes if overwrites(node, shown)}

    def run_node(self, n: fx.Node) -> Any:
        if n in self.folded:
            return self._both(n, self.folded[n])
        if n in self.norms:
            value = self.env[self.norms[n]]
            return value if n.target is EXPORTED else (value,)
        if n in self.over:
            return torch.relu_(self.env[operand(n)])
        return super().run_node(n)

    def _both(self, convolution: fx.Node, norm: fx.Node) -> torch.Tensor:
        (values, weight, *more), _ = self.fetch_args_kwargs_from_env(convolution)
        bias, how = (more[0], more[1:]) if more else (None, [])
        gain, shift = (self.env[it] if isinstance(it, fx.Node) else None for it in norm.args[1:3])
        mean, variance = (self.env[operand(norm, k)] for k in (3, 4))
        folded = fold(weight, bias, gain, shift, mean, variance, eps=_epsilon(norm))
        operation: Any = convolution.target
        made: torch.Tensor = operation(values, *folded, *how)
        return made


def foldable(nodes: Iterable[fx.Node], shown: Collection[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Convolutions whose values nothing but one norm reads, and that norm; none whose values are `shown`.

    The norm has running statistics, and its parameters are the network's.
    """
    found = {}
    for node in nodes:
        if node.op != "call_function" or node.target not in CONVOLUTIONS or node.kwargs or node in shown:
            continue
        norm = next(iter(node.users))
        if len(node.users) == 1 and _is_norm(norm, node) and node.meta["val"].dtype in FLOATS:
            found[node] = norm
    return found


def overwrites(node: fx.Node, shown: Collection[fx.Node]) -> bool:
    """Whether it is a ReLU of a newly made value that only it reads, in a graph that writes over nothing."""
    if node.op != "call_function" or node.target is not aten.relu.default:
        return False
    read = operand(node)
    while len(read.users) == 1 and read not in shown:
        if read.target in NEW:
            return True
        if read.target is not operator.getitem or operand(read).target is not NORM:
            return False
        read = operand(read)
    return False


def _is_norm(node: fx.Node, read: fx.Node) -> bool:
    if node.target not in (NORM, EXPORTED) or node.kwargs or node.args[0] is not read:
        return False
    if node.target is EXPORTED and node.args[5]:  # in training
        return False
    parameters = [it for it in node.args[1:5] if it is not None]
    own = all(isinstance(it, fx.Node) and it.op == "placeholder" for it in parameters)
    return own and None not in node.args[3:5]


def _epsilon(norm: fx.Node) -> float:
    epsilon: Any = norm.args[7] if norm.target is EXPORTED else norm.args[6]
    return float(epsilon)
