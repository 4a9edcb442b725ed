"""Refit: every layer of a merged network fitted to what its endpoints compute there, by least squares.

Layer by layer in the order of the network: the inputs are what the refitted network itself computes so far,
the targets the weighted mean of the endpoints' values, behind the norm and behind the sum that the layer is
the last one to be added to. With Z the inputs (and a constant), T the targets and M the averaged weights, the
weights become M + (ZᵀZ + ρ·mean diag·I)⁻¹ Zᵀ(T − ZM). Labels are not looked at.

A sequential form of PLeaS, Nasery et al. 2025, arXiv:2407.02447, with a ridge towards the averaged weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..averages.weights import checked as checked_weights
from ..datasets.batches import tensors_in
from ..errors import CheckpointError
from ..networks.folding import scale_of
from ..networks.forward import evaluating
from ..networks.tied import state_of
from ..runtime.devices import for_search
from ..runtime.ranks import ALONE, Ranks
from ..runtime.threads import WAITING, Beside, beside
from ..types import Batches
from .channels import Repaired
from .layer_by_layer import Advancing
from .layers import Layer, Norm, layers_of, undo
from .least_squares import Sums, change
from .options import RIDGE, check_ridge
from .producers import Graphs, shared_in
from .products import channels, matrix, normalised, outputs, rows, weight_of

MEMORY = 1 << 30  # bytes of values that may be kept between layers
LARGEST = 1 << 31  # bytes of a layer's Gram matrices; what is larger stays as averaged
PIECE = 1 << 22  # numbers of a layer's inputs, unfolded, at once: one is made while another is added up
FAINT = 1e-3  # of a norm's median scale: a channel that is scaled by less gets the median
STILL = 1e-9  # of its largest weight: a change smaller than this is rounding


def refit(
    network: nn.Module,
    endpoints: Sequence[Mapping[str, Tensor]],
    batches: Batches,
    *,
    weights: Sequence[float] | None = None,
    ridge: float = RIDGE,
    memory: int = MEMORY,
    known: dict[Any, Any] | None = None,
    device: str | torch.device = "cpu",
    ranks: Ranks = ALONE,
) -> Repaired:
    """Fit all layers of `network`, which holds the merged weights, to its endpoints' means, in place.

    `endpoints` are the models that were merged, in one basin, `weights` those of the merge (default: equal).
    Linear layers, convolutions of any kind and norms are fitted; running statistics
    become those of a norm's inputs in the refitted network. Embeddings and what cannot be followed
    stay as they are, and `left` says why. `ridge` 0 is plain least squares. Sums are over samples and places,
    in float64; where the device has none, on the CPU. `memory` bounds the values that are kept from layer to
    layer; with less, they are computed again. `known` is empty at first and keeps the graphs for other calls
    with the same network. Several `ranks`, who have the same models and batches, take turns with these; all
    solve the same sums.

    Raises UsageError, DataError, CheckpointError for activations that are no numbers, NetworkError for what
    cannot be traced.
    """
    shares = checked_weights(weights, len(endpoints))
    check_ridge(ridge)
    graphs = Graphs(network, {} if known is None else known.setdefault("graphs", {}))
    there, device = device, for_search(device)
    with ExitStack() as open_, torch.no_grad():
        threads = open_.enter_context(beside(device, most=1))
        open_.callback(network.to, there)
        open_.enter_context(evaluating(network.to(device)))
        own = network.state_dict()
        program = graphs.first(batches, device).program
        layers, left = layers_of(program, shared_in(network))
        states = [own, *(state_of(network, end) for end in endpoints)]
        moving = Advancing(graphs, states, batches, device, memory=memory, ranks=ranks)
        fitted, large = _within(layers)
        dead = 0
        for layer in fitted:
            sums = ranks.each(_seen, moving, layer, shares, own, threads)
            sums.join(ranks, device)
            if not sums.finite():
                raise CheckpointError(
                    f"the activations at {layer.name} hold NaN or infinite values",
                    hint="Check the models' weights; merge them as they are with --repair none",
                )
            dead += sums.dead
            _write(layer, sums, ranks.broadcast(change(sums, ridge), source=0), own)
    changed = _names(fitted, own)
    return Repaired(
        "refit", tuple(layer.name for layer in fitted), (*left, *large), dead, moving.passes, changed
    )


@dataclass(frozen=True)
class Planned:
    """What a refit would do: `layers`; `left`, (name, why) of what would stay; how much it takes.

    `gram_bytes` are of the largest layer's sums, and of what solving takes beside them; `products` are
    multiplications in float64 a sample, all layers together, `forward` those of the layers themselves.
    """

    layers: tuple[str, ...]
    left: tuple[tuple[str, str], ...]
    gram_bytes: int
    products: int
    forward: int

    @property
    def bytes(self) -> int:
        """At most, beside the models and one batch in the network."""
        return MEMORY + self.gram_bytes + 12 * PIECE * (1 + WAITING)


def plan_refit(network: nn.Module, inputs: Any) -> Planned:
    """`inputs` is one batch, of which only the shape counts. Raises NetworkError."""
    program = Graphs(network, {}).of(inputs).program
    layers, left = layers_of(program, shared_in(network))
    fitted, large = _within(layers)
    values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    size = max((len(tensor) for tensor in tensors_in(inputs) if tensor.ndim), default=1)
    products = forward = 0
    for layer in fitted:
        for use in layer.uses:
            value = values[use.output]
            value = value[0] if isinstance(value, (tuple, list)) else value
            width = layer.columns + 1
            forward += value.numel() * layer.columns
            products += value.numel() * width + value.numel() // layer.outputs * width**2
    gram = 3 * max((layer.gram_bytes for layer in fitted), default=0)
    return Planned(
        tuple(layer.name for layer in fitted), (*left, *large), gram, products // size, forward // size
    )


def _within(layers: Iterable[Layer]) -> tuple[list[Layer], list[tuple[str, str]]]:
    """The layers whose Gram matrices are not too large; the others, and why they stay."""
    fitted = [layer for layer in layers if layer.gram_bytes <= LARGEST]
    why = "its Gram matrix would take {:,} bytes".format
    return fitted, [(layer.name, why(layer.gram_bytes)) for layer in layers if layer not in fitted]


def _seen(
    moving: Advancing,
    layer: Layer,
    shares: Sequence[float],
    own: Mapping[str, Tensor],
    threads: Beside,
) -> Sums:
    """The inputs of all uses of a layer, and what its outputs lack of the targets."""
    sums = Sums(constant=layer.constant or layer.norm is not None)
    wanted = dict.fromkeys(name for use in layer.uses for name in (use.input, use.target))
    kernel = () if layer.single or layer.weight is None else own[layer.weight].shape[2:]
    for seen in moving.at(layer.uses[0].output, wanted):
        for use in layer.uses:
            back = [seen.nodes[name] for name in reversed(use.moves)]
            x, node = seen.values[0][use.input], seen.nodes[use.output]
            values = [undo(back, values[use.target]) for values in seen.values]
            for part, here, *there in _pieces(layer, kernel, [x, *values]):
                pairs = zip(shares, there, strict=True)
                lacking = sum(share * value.double() for share, value in pairs) - here
                if layer.kind == "scale":
                    given, lacks = normalised(node, part), channels(node, lacking)
                elif layer.kind == "norm":
                    given, lacks = (v.movedim(1, 0).flatten(1)[..., None] for v in (part, lacking))
                else:
                    given = rows(node, part, kernel)
                    lacks = outputs(lacking, len(kernel), layer.groups)
                threads.later(sums.add, given, lacks, held=given.nbytes + lacks.nbytes)
    threads.settle()
    return sums


def _pieces(layer: Layer, kernel: Sequence[int], values: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """A layer's inputs and its outputs, a few samples at a time: rows of a convolution are many."""
    if not layer.single and not kernel:
        values = [value.reshape(-1, value.shape[-1]) for value in values]
    elif not layer.single and values[0].ndim == len(kernel) + 1:
        values = [value[None] for value in values]
    sample = max(value[:1].numel() for value in values) * math.prod(kernel)
    step = max(1, PIECE // max(1, sample))
    return zip(*(value.split(step) for value in values), strict=True)


def _write(layer: Layer, sums: Sums, found: Tensor, own: Mapping[str, Tensor]) -> None:
    """Put the weights that fit into the network, `found` off; those that fit already stay to the last bit."""
    if layer.weight is None:
        if layer.norm is not None:
            _write_alone(layer.norm, found, sums, own)
        return
    weight = own[layer.weight]
    if layer.kind == "scale":
        _write_scale(weight, layer.bias, found, own)
        return
    before = matrix(weight, layer.groups, layer.transposed).double()
    moved, added = found[:, : layer.columns], found[:, layer.columns :].flatten()
    norm = layer.norm
    if norm is None:
        if not _still(found, before):
            weight.copy_(weight_of(before + moved, weight, layer.transposed))
            if layer.bias is not None:
                own[layer.bias].add_(added.to(own[layer.bias]))
        return
    scale, shift = _affine(norm, own)
    by = scale.reshape(layer.groups, 1, -1)
    if _still(found, before * by):
        return
    bias = own[layer.bias].double() if layer.bias else torch.zeros_like(scale)
    shift = shift + scale * bias + added
    usual = scale.abs().median()
    usual = torch.where(usual > 0, usual, 1.0)
    new = torch.where(scale.abs() > FAINT * usual, scale, usual)  # what scales by nothing hides its weights
    fitted = (before * by + moved) / new.reshape(by.shape)
    weight.copy_(weight_of(fitted, weight, layer.transposed))
    means, squares = sums.gram[:, -1:, :-1] / sums.count, sums.gram[:, :-1, :-1] / sums.count
    mean = (means @ fitted).flatten()
    square = (fitted * (squares @ fitted)).sum(-2).flatten()
    _write_norm(norm, own, new, shift - new * bias, mean + bias, square - mean.square(), square, sums.count)


def _write_alone(norm: Norm, found: Tensor, sums: Sums, own: Mapping[str, Tensor]) -> None:
    """A norm that follows no layer: its statistics are its inputs', its scale and shift are fitted."""
    scale, shift = _affine(norm, own)
    if _still(found, scale):
        return
    mean, square = (sums.gram[:, 0, k] / sums.count for k in (1, 0))
    if norm.weight is not None and norm.bias is not None:
        scale, shift = scale + found[:, 0, 0], shift + found[:, 1, 0]
    _write_norm(norm, own, scale, shift, mean, square - mean.square(), square, sums.count)


def _write_scale(scale: Tensor, bias: str | None, found: Tensor, own: Mapping[str, Tensor]) -> None:
    """What multiplies each channel, and is added to it where the norm adds something."""
    if not _still(found, scale):
        scale.add_(found[:, 0, 0].reshape(scale.shape).to(scale))
        if bias is not None:
            own[bias].add_(found[:, 1, 0].reshape(scale.shape).to(scale))


def _affine(norm: Norm, own: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What the norm multiplies by and adds, as it stands."""
    mean, variance = own[norm.mean].double(), own[norm.variance].double()
    scale = scale_of(own[norm.weight] if norm.weight else None, variance, norm.eps)
    shift = own[norm.bias].double() if norm.bias else torch.zeros_like(scale)
    return scale, shift - scale * mean


def _write_norm(
    norm: Norm,
    own: Mapping[str, Tensor],
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    variance: Tensor,
    square: Tensor,
    count: int,
) -> None:
    """A norm that multiplies by `scale` and adds `shift`, with the statistics of its inputs.

    So that measuring these anew changes nothing. Where inputs do not vary the statistics stay.
    """
    varies = (variance > STILL * square) & (count > 1)
    variance = torch.where(varies, variance * count / max(1, count - 1), own[norm.variance].double())
    mean = torch.where(varies, mean, own[norm.mean].double())
    own[norm.mean].copy_(mean)
    own[norm.variance].copy_(variance)
    if norm.weight is not None:
        own[norm.weight].copy_(scale * (variance + norm.eps).sqrt())
    if norm.bias is not None:
        own[norm.bias].copy_(shift + scale * mean)


def _still(found: Tensor, before: Tensor) -> bool:
    return bool(found.abs().max() <= STILL * before.abs().max())


def _names(layers: Iterable[Layer], own: Mapping[str, Tensor]) -> tuple[str, ...]:
    """All tensors that may have changed, by every name that they have."""
    names = {name for layer in layers for name in layer.tensors}
    places = {own[name].data_ptr() for name in names if own[name].numel()}
    return tuple(name for name, tensor in own.items() if tensor.numel() and tensor.data_ptr() in places)
