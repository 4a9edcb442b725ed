"""`--bake-temperature`: one number fitted on training samples; the layer of the logits is divided by it.

Elsewhere a temperature is measured and told, and weights stay as they are. Here they change, so that logits
are as sure as the samples say, wherever the file is read. Which layer gives them is read off the exported
graph: after it only what moves or averages values may follow, since that commutes with a division.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx, nn

from .. import networks
from ..checkpoints.tensors import over
from ..errors import NetworkError, UsageError
from ..graph.nodes import arguments, name_of, operation
from ..graph.program import placeholders
from ..graph.tracing import measured
from ..networks.evaluation import evaluate
from ..runtime.text import many
from .calibration import best_temperature
from .producers import Producers, Site, find


@dataclass(frozen=True)
class Baked:
    """What was done: `tensors` changed, the `losses` on the `samples` before and after are in nats.

    Where no temperature is best (every sample is right, say) it is 1, nothing changed, and `why` tells.
    """

    temperature: float
    layer: str
    samples: int
    losses: tuple[float, float]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    why: str = ""

    def account(self) -> dict[str, Any]:
        """For provenance and for the result of a command."""
        before, after = self.losses
        told = {"value": self.temperature, "layer": self.layer, "samples": self.samples}
        return told | ({"why": self.why} if self.why else {"loss_before": before, "loss_after": after})

    def in_words(self) -> str:
        if self.why:
            return f"not baked in: {self.why}"
        before, after = self.losses
        return (
            f"logits divided by {self.temperature:.4f}, in {self.layer}: loss {before:.4f} → {after:.4f} on "
            f"{many(self.samples, 'training sample')}"
        )


def logits_layer(network: nn.Module, inputs: Any, output: str | int | None = None) -> Site:
    """The linear layer or convolution whose weight, and bias if any, alone scale the logits.

    `inputs` is one batch, of which only the shape counts. Raises UsageError where there is none: a head tied
    to other weights, operations after it that do not commute with a division; NetworkError where the network
    has no such output.
    """
    try:
        graph = find(network, inputs)
    except NetworkError as error:
        raise _refused(error.message, *error.problems) from error.__cause__
    returned = {*measured(graph.program, output)}
    if len(returned) != 1:
        raise _refused(f"the network returns {len(returned)} tensors (choose the logits with --output)")
    node = returned.pop()
    while operation(node).linear and len(node.all_input_nodes) == 1:  # a division commutes with it
        node = node.all_input_nodes[0]
    site = next((site for site in graph.sites.values() if site.node == node.name), None)
    if site is None or site.norm:
        raise _refused(_why_not(graph, node))
    if not site.output:
        raise _refused(f"what {site.name} gives is read again by the network")
    if site.bias is None and arguments(node).get("bias") is not None:
        raise _refused(f"the bias of {site.name} is not its alone")
    return site


def bake(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    site: Site,
    held: Iterable[Any],
    *,
    output: str | int | None = None,
    device: str = "cpu",
) -> Baked:
    """Fit the temperature of `network` with these `tensors` on `held`, and divide the site's tensors by it.

    `network` is moved to `device` and is overwritten. `held` are batches of training samples that nothing
    else was fitted on. The tensors keep their dtypes. Raises UsageError for outputs that are no logits
    (N, classes), DataError for data without samples.

    Guo et al. 2017, section 4.2, arXiv:1706.04599.
    """
    networks.load(network.to(device), tensors)
    before = evaluate(network, held, output=output, device=device)
    found, why = best_temperature(network, held, output=output, device=device)
    if why:
        return Baked(1.0, site.name, before.samples, (before.loss, before.loss), why=why)
    names = [name for name in (site.weight, site.bias) if name is not None]
    changed = {name: (tensors[name].double() / found).to(tensors[name].dtype) for name in names}
    networks.load(network, over(changed, tensors))
    after = evaluate(network, held, output=output, device=device)
    return Baked(found, site.name, before.samples, (before.loss, after.loss), changed)


def _why_not(graph: Producers, node: fx.Node) -> str:
    """Why this operation, the last one on the way to the logits, has no weights of its own to divide."""
    pairs = zip(placeholders(graph.program), graph.program.inputs, strict=True)
    weights = {n.name: s.target for n, s in pairs if s.target is not None}
    left = dict(graph.left)
    for value in node.all_input_nodes:
        name = weights.get(value.name, "").removesuffix(".weight")
        if name in left:
            return f"{name} gives them, and {left[name]}"
    return f"the last operation on the way to them is {name_of(node) or node.name}"


def _refused(*why: str) -> UsageError:
    return UsageError(
        "--bake-temperature: no single layer gives the logits, so a temperature has no place in the weights",
        problems=why,
        hint="Leave it out, and divide the logits where they are used: rebasin barrier tells the temperature",
    )
