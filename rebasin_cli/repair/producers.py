"""Which operations of a network produce channels that its weights can rescale and shift.

Read off the exported graph, never off modules: a hook on `MultiheadAttention.out_proj` does not fire, and a
module may run twice. Here a parameter is an input of the graph, and what it does is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind

from ..datasets.batches import checked, map_tensors
from ..errors import NetworkError
from ..graph.interpreter import Run, given
from ..graph.nodes import arguments, name_of, operation
from ..graph.program import Program
from ..graph.tracing import export, line_of
from ..networks.forward import arguments_of, check_runs, fed
from ..types import Batches


@dataclass(frozen=True)
class Site:
    """An operation whose channels, along axis `channel` of its value, its own `weight` and `bias` can move.

    `bias` is None where there is none, or it is not the site's alone. `level` counts the sites on the longest
    way here: sites of one level do not feed each other. `depth` counts the weights on any way here, this one
    too; None where the ways differ.
    """

    weight: str
    bias: str | None
    node: str
    channel: int
    groups: int = 0  # of a transposed convolution, whose output channels lie along axis 1; else 0
    norm: bool = False
    output: bool = False  # no product reads it: the network's output
    normed: bool = False  # a norm that can shift follows at once
    level: int = 0
    depth: int | None = None

    @property
    def name(self) -> str:
        return self.weight.removesuffix(".weight")

    def scale(self, weight: torch.Tensor, by: torch.Tensor) -> None:
        """Multiply the weights of each channel, in place."""
        if not self.groups:
            weight.mul_(by.reshape(-1, *[1] * (weight.ndim - 1)))
            return
        parts = weight.view(self.groups, -1, *weight.shape[1:])  # (groups, inputs, outputs, *kernel)
        parts.mul_(by.reshape(self.groups, 1, -1, *[1] * (weight.ndim - 2)))


@dataclass(frozen=True)
class Producers:
    """A network for inputs of one shape, as a graph: its `sites` by weight; `left`: (name, why) of the rest.

    `others` are parameters that belong to no linear layer or convolution; `uneven` is the first operation
    that joins values of different depth, "" where there is none.
    """

    program: Program
    sites: Mapping[str, Site]
    left: tuple[tuple[str, str], ...]
    others: tuple[str, ...]
    uneven: str

    def run(self, state: Mapping[str, torch.Tensor], inputs: Any, nodes: Iterable[fx.Node] = ()) -> Run:
        """A run of the graph on these parameters and inputs, that has not begun; `nodes` as of `Run`."""
        return Run(self.program, given(self.program, state, arguments_of(inputs)), nodes)


def find(network: nn.Module, inputs: Any) -> Producers:
    """Trace the network, as it stands on its device, for inputs of this shape. Raises NetworkError."""
    try:
        program = export(network, *arguments_of(inputs))
    except NetworkError as error:
        check_runs(network, inputs)
        raise NetworkError(
            "the network cannot be traced, so its channels are not known",
            problems=error.problems,
            hint="Merge it all the same with --repair none, or a BatchNorm network with --repair reset",
        ) from error.__cause__
    return _read(program, shared_in(network))


class Graphs:
    """The network's graph for every shape of inputs, since graphs fix it."""

    def __init__(self, network: nn.Module, known: dict[Any, Producers]):
        self.network, self.known = network, known

    def of(self, inputs: Any) -> Producers:
        key = shape_of(inputs)
        if key not in self.known:
            self.known[key] = find(self.network, inputs)
        return self.known[key]

    def first(self, batches: Batches, device: str | torch.device) -> Producers:
        """For inputs as the first batch has them."""
        inputs, _ = next(checked(batches))
        return self.of(fed(self.network, inputs, device))


def shape_of(inputs: Any) -> str:
    """What a graph depends on of its inputs: structure, shapes, types and the kind of device."""
    return repr(map_tensors(_Shape, inputs))


class _Shape:
    """What a graph fixes of a tensor."""

    def __init__(self, tensor: torch.Tensor):
        self.text = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.device.type}"

    def __repr__(self) -> str:
        return self.text


def shared_in(network: nn.Module) -> set[str]:
    """Tensors that are not alone in their memory."""
    by: dict[Any, list[str]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        by.setdefault(tensor.untyped_storage().data_ptr() if tensor.numel() else name, []).append(name)
    return {name for names in by.values() if len(names) > 1 for name in names}


def _read(program: Program, shared: set[str]) -> Producers:
    nodes = [node for node in program.graph.nodes if node.op in ("placeholder", "call_function")]
    placeholders = [node for node in nodes if node.op == "placeholder"]
    kinds = dict(zip(placeholders, program.inputs, strict=True))
    parameters = {n: spec.target or "" for n, spec in kinds.items() if spec.kind == InputKind.PARAMETER}
    inputs = {n for n, spec in kinds.items() if spec.kind == InputKind.USER_INPUT}
    found: dict[fx.Node, Site] = {}
    left: dict[str, str] = {}
    read: set[str] = set()
    feeding = _feeding(nodes)
    for node in nodes:
        known = operation(node)
        normed = known.norm and isinstance(node.meta["val"], torch.Tensor)
        if not (known.layer or normed):
            continue
        its = arguments(node)
        weight: Any = its.get("weight")
        bias: Any = its.get("bias")
        owned = {parameters[value] for value in (weight, bias) if value in parameters}
        if normed:
            directly = its["input"] in found or operation(its["input"]).layer
            if weight not in parameters or not directly:
                continue
        read |= owned if known.layer else set()
        label = parameters.get(weight, "")
        if weight not in parameters:
            for told in sources(weight, parameters):
                left[told] = "its weight is computed from other parameters"
        elif len(weight.users) > 1 or list(node.all_input_nodes).count(weight) > 1:
            left[label] = "its weight is used more than once"
        elif label in shared:
            left[label] = "its weight shares memory with another tensor"
        elif len(its.get("normalized_shape", ())) > 1:
            left[label] = "the norm has no parameter a channel"
        else:
            alone = bias in parameters and len(bias.users) == 1 and parameters[bias] not in shared
            found[node] = Site(
                label,
                parameters[bias] if alone else None,
                node.name,
                channel_of(node),
                its.get("groups", 1) if known.transposed else 0,
                norm=normed,
                output=node not in feeding,
            )
    for node, target in parameters.items():
        value = node.meta["val"]
        idle = not node.users and target in shared  # another name of what is told of already
        if value.ndim > 1 and value.is_floating_point() and target not in left and not idle:
            if target not in {site.weight for site in found.values()}:
                users = sorted({name_of(user) for user in node.users})
                left[target] = f"{', '.join(users) or 'nothing'} reads it, no linear layer or convolution"
    others = tuple(target for node, target in parameters.items() if target not in read)
    found, uneven = _placed(nodes, found, inputs)
    places = tuple((name.removesuffix(".weight"), why) for name, why in left.items())
    return Producers(program, {site.weight: site for site in found.values()}, places, others, uneven)


def channel_of(node: fx.Node) -> int:
    """The channels' axis of a layer's or a norm's value, from the end."""
    known, rank = operation(node), node.meta["val"].ndim
    if known.norm:
        return -1 if known.kind == "layer_norm" else 1 - rank
    return -(known.space or 0) - 1


def _feeding(nodes: list[fx.Node]) -> set[fx.Node]:
    """What some product of matrices or convolution is computed from; the rest is the output."""
    found: set[fx.Node] = set()
    for node in reversed(nodes):
        if any(u in found or operation(u).reads_units for u in node.users):
            found.add(node)
    return found


def sources(node: Any, parameters: Mapping[fx.Node, str]) -> Iterator[str]:
    """The parameters that a value is computed from."""
    left, seen = [node], set()
    while left:
        at = left.pop()
        if isinstance(at, fx.Node) and at not in seen:
            seen.add(at)
            if at in parameters:
                yield parameters[at]
            left += at.all_input_nodes


def _placed(
    nodes: list[fx.Node], found: Mapping[fx.Node, Site], given: set[fx.Node]
) -> tuple[dict[fx.Node, Site], str]:
    """The sites with their level and depth, and the first operation that joins different depths."""
    level: dict[fx.Node, int] = {}
    depths: dict[fx.Node, set[int]] = {}
    placed, uneven = {}, ""
    for node in nodes:
        level[node] = max((level[n] for n in node.all_input_nodes), default=0) + (node in found)
        depths[node] = {depth for n in node.all_input_nodes for depth in depths[n]}
        if node.op == "placeholder":
            depths[node] = {0} if node in given else set()
        if len(depths[node]) > 1 and not uneven:
            uneven = line_of(node) or name_of(node)
        if operation(node).layer:
            depths[node] = {depth + 1 for depth in depths[node]}
        if node in found:
            follows = (found[user] for user in node.users if user in found)
            placed[node] = replace(
                found[node],
                level=level[node],
                depth=max(depths[node]) if len(depths[node]) == 1 else None,
                normed=any(site.norm and site.bias for site in follows),
            )
    return placed, uneven
