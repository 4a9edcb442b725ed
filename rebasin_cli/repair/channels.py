"""REPAIR: give every channel of a merged network the mean and spread that its endpoints have.

Where the channels of two networks are not perfectly correlated, their mean varies less than either: layer by
layer, activations collapse. So channel by channel the target is the weighted mean of the endpoints' means and
of their standard deviations, and what moves the merged channel there is folded into the weight and bias that
make it (or into a norm's that directly follows). Layers are measured in order, earlier corrections in force.

Jordan et al. 2023, section 4, arXiv:2211.08403; sequential as in Qu and Horváth 2025, arXiv:2402.05966.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

from .. import networks
from ..averages.weights import checked as checked_weights
from ..datasets.batches import checked
from ..errors import NetworkError, UsageError, unknown
from ..graph.nodes import listed
from ..networks.forward import evaluating, fed, forward
from ..networks.tied import state_of
from ..runtime.ranks import ALONE, Ranks
from ..types import Batches
from .batchnorm import reset
from .moments import Measured, Moments, extras
from .producers import Producers, Site, find

MATCHES = ("repair", "rescale", "reshift")
DEAD = 1e-6  # of the layer's median: a channel that varies less is left alone


@dataclass(frozen=True)
class Repaired:
    """What was done: `corrected` layers; `left`, those that were not or only in part, as (name, why).

    `method` is "reset" where a network with running statistics had those measured instead. `dead` counts
    channels left alone, `passes` readings of the data, endpoints included. `tensors` names those that
    changed, `added` those among them that the network did not have before; `samples` is how many a search
    took by itself, `share` the part of its training that a distillation did.
    """

    method: str
    corrected: tuple[str, ...]
    left: tuple[tuple[str, str], ...] = ()
    dead: int = 0
    passes: int = 1
    tensors: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    samples: int | None = None
    share: float = 1.0


def renormalize(
    network: nn.Module,
    endpoints: Sequence[Mapping[str, Tensor]],
    batches: Batches,
    *,
    match: str = "repair",
    weights: Sequence[float] | None = None,
    new_bias: bool = False,
    known: dict[Any, Any] | None = None,
    device: str | torch.device = "cpu",
    ranks: Ranks = ALONE,
) -> Repaired:
    """Match the channels of `network`, which holds the merged weights, to those of its endpoints, in place.

    `endpoints` are the models that were merged, in one basin, `weights` those of the merge (default: equal).
    `match`: "repair" is both moments, "rescale" multiplies until the standard deviations agree, "reshift"
    adds until the means do. A layer without a bias is only scaled, unless `new_bias` may give it one; the
    network's output is left as it is, and so is what no weight of its own makes. Sums of branches are not
    corrected, each branch is. Networks with running statistics get a `reset` instead of "repair". `known` is
    empty at first and keeps what the endpoints say, for other `weights` with the same endpoints and data.

    The data are read once an endpoint and once a level (layers in a row), each time up to there: about
    L/2 + n full passes for L levels and n endpoints. Several `ranks`, who have the same models and batches,
    take turns with these. Raises UsageError, DataError, NetworkError for what cannot be traced.
    """
    if match not in MATCHES:
        raise unknown("match", match, MATCHES)
    if networks.has_running_statistics(network):
        if match != "repair":
            raise UsageError(
                f"{match} is for networks without BatchNorm, and this one has its statistics",
                hint='Re-estimate its statistics: "reset"',
            )
        return reset_norms(network, batches, device=device)
    shares = checked_weights(weights, len(endpoints))
    with evaluating(network), torch.no_grad():
        measured = Measured(network, batches, device, {} if known is None else known, ranks)
        return _renormalize(measured, endpoints, match, shares, new_bias)


def reset_norms(network: nn.Module, batches: Batches, *, device: str | torch.device) -> Repaired:
    """`reset`, and its account."""
    reset(network, batches, device=device)
    norms = networks.running_norms(network)
    buffers = (f"{norm}.{name}" for norm, module in norms.items() for name, _ in module.named_buffers())
    return Repaired("reset", tuple(norms), tensors=tuple(name.lstrip(".") for name in buffers))


def _renormalize(
    measured: Measured,
    endpoints: Sequence[Mapping[str, Tensor]],
    match: str,
    shares: Sequence[float],
    new_bias: bool,
) -> Repaired:
    network, first = measured.network, measured.graphs.first(measured.batches, measured.device)
    merged = dict(network.state_dict())
    sites, left, lacking = _touched(network, first, match, new_bias)
    added = {w: torch.zeros(_channels(merged, first.sites[w])).to(merged[w]) for w in lacking}
    if not sites:
        return Repaired(match, (), tuple(left), passes=0)
    target = _targets(measured, endpoints, shares, [site.weight for site in sites])
    dead = 0
    for level in sorted({site.level for site in sites}):
        here = [site for site in sites if site.level == level]
        found = measured.moments(merged, [site.weight for site in here], added)
        for site in here:
            dead += _correct(site, match, found[site.weight], target[site.weight], merged, added)
    _install(measured, added, first)
    names = tuple(site.name for site in sites)
    biases = tuple(f"{weight.removesuffix('weight')}bias" for weight in added)
    touched = [(None if match == "reshift" else site.weight, site.bias) for site in sites]
    changed = (*(name for pair in touched for name in pair if name), *biases)
    return Repaired(match, names, tuple(left), dead, measured.passes, changed, biases)


def layers_touched(
    network: nn.Module, inputs: Any, *, match: str = "repair", new_bias: bool = False
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The layers that a repair would correct; (name, why) of those that it would leave, wholly or in part.

    `inputs` is one batch, of which only the shape counts. `match` may be "bias". Raises NetworkError.
    """
    graph = find(network, inputs)
    if match == "bias":
        return tuple(site.bias for site in graph.sites.values() if site.bias and site.depth), graph.left
    sites, left, _ = _touched(network, graph, match, new_bias)
    return tuple(site.name for site in sites), tuple(left)


def _touched(
    network: nn.Module, graph: Producers, match: str, new_bias: bool
) -> tuple[list[Site], list[tuple[str, str]], list[str]]:
    """The sites to correct, what is left, wholly or in part, and the weights whose layers get a bias."""
    left = [*graph.left, *((site.name, OUTPUT) for site in graph.sites.values() if site.output)]
    state = network.state_dict()
    sites = [site for site in graph.sites.values() if not site.output and _channels(state, site)]
    added = []
    for site in sites:
        if site.bias is None and not site.normed and match != "rescale":
            if new_bias and _biasless(network, site) is not None:
                added.append(site.weight)
            else:
                left.append((site.name, "it has no bias of its own: " + _WITHOUT_BIAS[match]))
    if match == "reshift":
        sites = [site for site in sites if site.bias or site.weight in added]
    return sites, left, added


OUTPUT = "it is the network's output"
_WITHOUT_BIAS = {"repair": "only scaled", "reshift": "not shifted"}


def _channels(state: Mapping[str, Tensor], site: Site) -> int:
    shape = state[site.weight].shape
    return shape[1] * site.groups if site.groups else shape[0]


def _targets(
    measured: Measured,
    endpoints: Sequence[Mapping[str, Tensor]],
    shares: Sequence[float],
    wanted: Sequence[str],
) -> dict[str, tuple[Tensor, Tensor]]:
    """The endpoints' means and standard deviations, mixed; one endpoint at a time is held."""
    mixed: dict[str, list[Tensor]] = {}
    for k, (endpoint, share) in enumerate(zip(endpoints, shares, strict=True)):
        if (k, *wanted) not in measured.known:
            state = state_of(measured.network, endpoint)
            measured.known[(k, *wanted)] = measured.moments(state, wanted, {})
        for weight, moments in measured.known[(k, *wanted)].items():
            parts = mixed.setdefault(weight, [torch.zeros(()), torch.zeros(())])
            parts[0] = parts[0] + share * moments.mean
            parts[1] = parts[1] + share * moments.std
    return {weight: (mean, std) for weight, (mean, std) in mixed.items()}


def _correct(
    site: Site,
    match: str,
    found: Moments,
    target: tuple[Tensor, Tensor],
    state: Mapping[str, Tensor],
    added: dict[str, Tensor],
) -> int:
    """Fold scale and shift of one layer into its tensors, in place; how many channels were left alone."""
    mean, std = target
    alive = found.std > DEAD * found.std.median()
    scale = torch.ones_like(std) if match == "reshift" else torch.where(alive, std / found.std, 1.0)
    site.scale(weight := state[site.weight], scale.to(weight))
    bias = state[site.bias] if site.bias else added.get(site.weight)
    if bias is not None:
        old = bias.cpu().double()
        new = scale * old  # y' = s·(y − b) + b'
        if match != "rescale":
            new = torch.where(alive, mean - scale * (found.mean - old), old)
        bias.copy_(new)
    return int((~alive).sum())


def _biasless(network: nn.Module, site: Site) -> nn.Linear | _ConvNd | None:
    """The module that would add a bias if it had one; None where nobody knows that it would."""
    try:
        module = network.get_submodule(site.name)
    except AttributeError:
        return None
    if not isinstance(module, (nn.Linear, _ConvNd)) or module.bias is not None:
        return None
    return module if module.weight.shape[0] else None


def _install(
    measured: Measured,
    added: Mapping[str, Tensor],
    graph: Producers,
) -> None:
    """Give modules their new biases, and see that the network now computes what was measured."""
    if not added:
        return
    network = measured.network
    for weight, bias in added.items():
        if (module := _biasless(network, graph.sites[weight])) is not None:
            module.bias = nn.Parameter(bias, requires_grad=False)
    inputs = next(fed(network, inputs, measured.device) for inputs, _ in checked(measured.batches))
    extra, run = extras(graph, added), graph.run(network.state_dict(), inputs)
    for node, value in run.each(graph.program.graph.nodes):
        if node.name in extra:
            run.env[node] = value + extra[node.name]
    wanted = [run.env.get(node) for node in listed(graph.program.graph.output_node())]
    ours = [x for x in pytree.tree_leaves(forward(network, inputs)) if isinstance(x, Tensor)]
    theirs = [x for x in wanted if isinstance(x, Tensor)][-len(ours) :]
    if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(ours, theirs, strict=True)):
        raise NetworkError("the network does not use the biases that it was given")
