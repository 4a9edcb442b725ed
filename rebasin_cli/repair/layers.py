"""Which tensors of a network act linearly, and up to where their effect can be followed.

Read off the exported graph. A layer is one weight with all of its uses: a linear layer or a convolution, with
the norm with running statistics that follows it, or such a norm alone; or what multiplies every channel by a
number of its own, as LayerNorm and RMSNorm do in the end. Its effect is looked at behind the
norm, and behind the sum that it is the last one to be added to: there, all else is known when it is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from ..graph.nodes import arguments, name_of, operand, operation
from ..graph.program import Program, placeholders
from ..graph.tracing import needed_for
from .producers import sources
from .products import factors, scales

SAME = ("same", "dropout")  # in evaluation: what comes out is what went in
MOVED = ("reshape", "permute")  # the same values in another shape or order


@dataclass(frozen=True)
class Norm:
    """A norm with running statistics: its tensors by name, `node` its output. `weight` None: no scale."""

    node: str
    weight: str | None
    bias: str | None
    mean: str
    variance: str
    eps: float


@dataclass(frozen=True)
class Use:
    """One place where a layer works: what it reads, its own output, and where its effect is compared.

    `target` is the node whose values are fitted; `moves` lie between, to be undone from the last on.
    """

    input: str
    output: str
    target: str
    moves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layer:
    """One linear map of the network: a product, a norm alone, or what multiplies each channel by a number.

    `bias` is None where there is none, or it is not the layer's alone. `columns` is the number of inputs of
    one output, without the constant, `outputs` that of the outputs of one group.
    """

    name: str
    kind: Literal["product", "norm", "scale"]
    weight: str | None
    bias: str | None
    uses: tuple[Use, ...]
    norm: Norm | None = None
    groups: int = 1
    columns: int = 1
    outputs: int = 1
    transposed: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """Of the layer and of its norm, by name."""
        norm = self.norm
        of_norm = (norm.weight, norm.bias, norm.mean, norm.variance) if norm else ()
        return tuple(name for name in (self.weight, self.bias, *of_norm) if name is not None)

    @property
    def constant(self) -> bool:
        """Whether something can be added to every output."""
        return self.bias is not None or (self.norm is not None and self.norm.bias is not None)

    @property
    def single(self) -> bool:
        """Whether each channel is a map of one number."""
        return self.kind != "product"

    @property
    def gram_bytes(self) -> int:
        """Of its Gram matrices, in float64; there are as many as groups, or channels of a norm alone."""
        return 8 * self.groups * (self.columns + self.constant) ** 2


def layers_of(program: Program, shared: set[str]) -> tuple[list[Layer], list[tuple[str, str]]]:
    """The layers in the order of the network, and (name, why) of the parameters that stay as they are.

    `shared` are tensors that are not alone in their memory. Embeddings and what only adds to values, such as
    positions, are told like all else that no layer here is.
    """
    return _Reader(program, shared).read()


class _Reader:
    def __init__(self, program: Program, shared: set[str]):
        self.nodes = list(program.graph.nodes)
        specs = dict(zip(placeholders(program), program.inputs, strict=True))
        self.parameters = {n: s.target or "" for n, s in specs.items() if s.kind == InputKind.PARAMETER}
        self.buffers = {n: s.target or "" for n, s in specs.items() if s.kind == InputKind.BUFFER}
        self.shared = shared
        fitted = [n for n in self.nodes if operation(n).layer or operation(n).kind == "batch_norm"]
        self.effects = Effects(self.nodes, fitted)

    def read(self) -> tuple[list[Layer], list[tuple[str, str]]]:
        found: dict[str, Layer] = {}
        left: dict[str, str] = {}
        followed: set[str] = set()
        for node in self.nodes:
            known = operation(node)
            if known.layer:
                weight = arguments(node)["weight"]
                label = self.parameters.get(weight)
                if label in found or label in left:
                    continue
                if label is None:
                    why = "its weight is computed from other parameters"
                    left |= {name: why for name in sources(weight, self.parameters)}
                elif why := self._why_not(weight, name_of(node)):
                    left[label] = why
                else:
                    found[label] = self._layer(label, weight)
                    if (norm := found[label].norm) is not None:
                        followed.add(norm.node)
            elif known.kind == "batch_norm":
                if (norm := self._norm(node)) is not None and norm.node not in followed:
                    found[norm.weight or norm.mean] = self._alone(node, norm)
            elif (label := self._scale(node)) is not None:
                found[label] = self._scaling(node, label)
        mine = {name for layer in found.values() for name in layer.tensors}
        for node, name in self.parameters.items():
            idle = not node.users and name in self.shared  # another name of what is told of already
            if name not in mine and name not in left and not idle:
                left[name] = self._told(node)
        return list(found.values()), [(name, why) for name, why in left.items()]

    def _told(self, node: fx.Node) -> str:
        users = sorted({name_of(user) for user in node.users})
        reads = ", ".join(users) or "nothing"
        if any(operation(user).layer for user in node.users):
            return "it is not the bias of one layer alone"
        return f"{reads} reads it, no linear layer or convolution"

    def _why_not(self, weight: fx.Node, name: str) -> str:
        for user in weight.users:
            if name_of(user) != name or arguments(user)["weight"] is not weight:
                return f"{name_of(user)} reads its weight, too"
            alone = list(user.all_input_nodes).count(weight) == 1
            if not (alone and isinstance(arguments(user)["input"], fx.Node)):
                return "it is used on itself"
        first, *others = (_settings(user) for user in weight.users)
        if any(other != first for other in others):
            return "its weight is used in different ways"
        return ""

    def _layer(self, label: str, weight: fx.Node) -> Layer:
        users = sorted(weight.users, key=self.effects.order.__getitem__)
        biases = {arguments(user).get("bias") for user in users}
        bias: Any = biases.pop() if len(biases) == 1 else None
        name = self.parameters.get(bias)
        if name is None or name in self.shared or set(bias.users) != set(users):
            name = None
        norm = None
        if len(users) == 1 and label not in self.shared:
            norm = self._following(users[0])
        uses = tuple(self._use(user, norm, alone=len(users) == 1) for user in users)
        shape, groups = weight.meta["val"].shape, arguments(users[0]).get("groups", 1)
        transposed = operation(users[0]).transposed
        inputs = shape[0] // groups if transposed else shape[1]
        columns = inputs * math.prod(shape[2:])
        width = (shape[1] * groups if transposed else shape[0]) // groups
        own = label.removesuffix(".weight")
        return Layer(own, "product", label, name, uses, norm, groups, columns, width, transposed)

    def _following(self, node: fx.Node) -> Norm | None:
        """The norm that alone reads this layer, and can scale and shift what it reads."""
        readers = list(node.users)
        if len(readers) != 1 or operation(readers[0]).kind != "batch_norm":
            return None
        norm = self._norm(readers[0])
        whole = norm is not None and norm.weight is not None and norm.bias is not None
        return norm if whole and arguments(readers[0])["input"] is node else None

    def _norm(self, node: fx.Node) -> Norm | None:
        """None where its tensors are not its alone, or nobody reads it."""
        given = arguments(node)
        if given.get("training") or not isinstance(given["input"], fx.Node):
            return None
        tensors: list[Any] = [given.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
        if any(tensor is not None and len(tensor.users) > 1 for tensor in tensors):
            return None
        scale, shift = (self.parameters.get(tensor) for tensor in tensors[:2])
        mean, variance = (self.buffers.get(tensor) for tensor in tensors[2:])
        unknown = (scale is None) != (tensors[0] is None) or (shift is None) != (tensors[1] is None)
        if unknown or mean is None or variance is None or {scale, shift, mean, variance} & self.shared:
            return None
        output = node
        if isinstance(node.meta["val"], (tuple, list)):
            outputs = [user for user in node.users if name_of(user) == "getitem" and user.args[1] == 0]
            if len(outputs) != 1:
                return None
            output = outputs[0]
        return Norm(output.name, scale, shift, mean, variance, given["eps"])

    def _alone(self, node: fx.Node, norm: Norm) -> Layer:
        """A norm that follows no layer: each channel is a map of one number."""
        output = next(n for n in self.nodes if n.name == norm.node)
        target, moves = self.effects.target(node, output)
        use = Use(arguments(node)["input"].name, node.name, target, moves)
        channels = operand(node).meta["val"].shape[1]
        name = (norm.weight or norm.mean).rpartition(".")[0]
        return Layer(name, "norm", None, None, (use,), norm, channels, 1)

    def _scale(self, node: fx.Node) -> str | None:
        """The parameter that this operation, and nothing else, multiplies each channel by in the end."""
        if not scales(node):
            return None
        factor: Any
        values: Any
        factor, values = factors(node) if name_of(node) == "mul" else (arguments(node).get("weight"), None)
        label = self.parameters.get(factor)
        if label is None or label in self.shared or len(factor.users) > 1:
            return None
        if values is None:
            return label
        shape = factor.meta["val"].shape
        return label if len(shape) == 1 and values.meta["val"].shape[-1:] == shape else None

    def _scaling(self, node: fx.Node, label: str) -> Layer:
        factor = next(n for n, name in self.parameters.items() if name == label)
        product, its = name_of(node) == "mul", arguments(node)
        given: Any = factors(node)[1] if product else its["input"]
        bias: Any = None if product else its.get("bias")
        shift = self.parameters.get(bias)
        if shift is None or shift in self.shared or len(bias.users) > 1:
            shift = None
        use = Use(given.name, node.name, *self.effects.target(node, node))
        count = factor.meta["val"].numel()
        return Layer(label.removesuffix(".weight"), "scale", label, shift, (use,), None, count, 1)

    def _use(self, node: fx.Node, norm: Norm | None, *, alone: bool) -> Use:
        output = node if norm is None else next(n for n in self.nodes if n.name == norm.node)
        target, moves = self.effects.target(node, output) if alone else (output.name, ())
        return Use(arguments(node)["input"].name, node.name, target, moves)


def _settings(node: fx.Node) -> Mapping[str, object]:
    """How a weight is used, beside on what."""
    return {key: value for key, value in arguments(node).items() if key not in ("input", "bias", "weight")}


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
            if operation(user).kind in SAME:
                pass
            elif operation(user).kind in MOVED:
                moves.append(user.name)
            elif self._adds(user, node) and not self._later(user, node, layer):
                best = (user.name, tuple(moves))
            else:
                break
            node = user
        return best

    def _adds(self, user: fx.Node, node: fx.Node) -> bool:
        if name_of(user) != "add" or arguments(user).get("alpha", 1) != 1:
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
        before = move.all_input_nodes[0].meta["val"].shape
        if operation(move).kind == "permute":
            target: Any = move.target
            sizes = torch.empty(*range(len(before)), device="meta")  # of different ones, to see them move
            moved = list(target(sizes, *move.args[1:], **move.kwargs).shape)
            value = value.permute([moved.index(k) for k in range(len(before))])
        else:
            value = value.reshape(before)
    return value
