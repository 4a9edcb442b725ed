"""Up to where a layer's effect can be followed in the exported graph, and back from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import fx

from ..graph.tracing import needed_for
from .producers import named, operation

SAME = ("clone", "alias", "detach", "dropout", "contiguous")  # in evaluation: what comes out is what went in
MOVED = (
    "view",
    "reshape",
    "_unsafe_view",
    "permute",
    "transpose",
)  # the same values in another shape or order


class Effects:
    """The nodes of a graph in their order; `fitted` are those of layers that are fitted."""

    def __init__(self, nodes: Sequence[fx.Node], fitted: Sequence[fx.Node]):
        self.order = {node: k for k, node in enumerate(nodes)}
        self.fitted = fitted

    def target(self, layer: fx.Node, node: fx.Node) -> tuple[str, tuple[str, ...]]:
        """The last sum that this layer is the last one to add to, and what lies on the way there."""
        best: tuple[str, tuple[str, ...]] = (node.name, ())
        moves: list[str] = []
        while len(node.users) == 1:
            user = next(iter(node.users))
            if operation(user) in SAME:
                pass
            elif operation(user) in MOVED:
                moves.append(user.name)
            elif self._adds(user, node) and not self._later(user, node, layer):
                best = (user.name, tuple(moves))
            else:
                break
            node = user
        return best

    def _adds(self, user: fx.Node, node: fx.Node) -> bool:
        if operation(user) != "add" or named(user).get("alpha", 1) != 1:
            return False
        both = user.all_input_nodes
        return len(both) == 2 and user.meta["val"].shape == node.meta["val"].shape

    def _later(self, user: fx.Node, node: fx.Node, layer: fx.Node) -> bool:
        """Whether something that is fitted after this layer goes into the sum, too."""
        others = needed_for([n for n in user.all_input_nodes if n is not node])
        after = self.order[layer]
        return any(n in others and self.order[n] >= after for n in self.fitted)


def undo(moves: Iterable[fx.Node], value: torch.Tensor) -> torch.Tensor:
    """The value as it was before these operations of `MOVED`, the last of them first."""
    for move in moves:
        given, before = named(move), move.all_input_nodes[0].meta["val"].shape
        if operation(move) == "transpose":
            value = value.transpose(given["dim0"], given["dim1"])
        elif operation(move) == "permute":
            dims = [dim % len(before) for dim in given["dims"]]
            value = value.permute([dims.index(k) for k in range(len(dims))])
        else:
            value = value.reshape(before)
    return value
