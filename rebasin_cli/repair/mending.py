"""A merged model mended in memory: by the repair that was asked for, or by one only where it helps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import networks, repair
from ..datasets._batches import map_tensors
from ..errors import UsageError
from ..networks.evaluation import evaluate
from . import choosing

Tensors = Mapping[str, torch.Tensor]


def mend_if_better(
    network: nn.Module,
    tensors: Tensors,
    endpoints: Sequence[Tensors],
    *,
    weights: Sequence[float],
    batches: Iterable[Any],
    held: Iterable[Any] | None = None,
    output: str | int | None = None,
    device: str = "cpu",
) -> tuple[choosing.Choice, repair.Repaired | None, dict[str, torch.Tensor]]:
    """`mend` with "repair" where the loss on `held` falls by it; None and no tensors where it does not.

    `held` are batches apart from `batches`, on which the repair is measured; without them every third of
    these. What cannot be measured is not repaired, and the choice says why (`choosing.choose`).
    """
    apart = held is not None and held is not batches
    if held is None:
        mended, held = choosing.parted(batches)
        batches, apart = mended, mended is not batches
    done: list[tuple[repair.Repaired, dict[str, torch.Tensor]]] = []

    def repaired(network: nn.Module) -> None:
        done.append(
            mend(network, tensors, endpoints, "repair", weights=weights, batches=batches, device=device)
        )

    networks.load(network, tensors)
    scores = partial(evaluate, output=output, device=device)
    choice = choosing.choose(
        network, repaired, held, scores=scores, output=output, device=device, apart=apart
    )
    return choice, *(done[0] if choice.chosen != "none" else (None, {}))


def mend(
    network: nn.Module,
    tensors: Tensors,
    endpoints: Sequence[Tensors],
    how: str,
    *,
    weights: Sequence[float],
    new_bias: bool = False,
    batches: Iterable[Any] | None = None,
    inputs: Any = None,
    device: str = "cpu",
) -> tuple[repair.Repaired, dict[str, torch.Tensor]]:
    """Repair a merged model: what was done, and the tensors that are others now, on the CPU.

    `network`, on `device`, is overwritten with the merged `tensors`; `endpoints` are what was merged, in one
    basin, with `weights`. `how` is any of `repair.REPAIRS` but "none". Raises as `api.merge` does.
    """
    networks.load(network, tensors)
    if how == "bias":
        if inputs is None:
            inputs = networks.example_inputs(network, torch.Generator())
        if inputs is None:
            raise UsageError("the network does not say what it takes", hint="Give one batch of `inputs`")
        like = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
        shown = map_tensors(lambda t: t.to(device, like if t.is_floating_point() else None), inputs)
        biases = repair.calibrated_biases(network, endpoints, shown, weights=weights)
        return repair.Repaired("bias", tuple(biases), passes=0, tensors=tuple(biases)), biases
    if how == "reset":
        done = repair.reset_norms(network, batches, device=device)
    else:
        done = repair.renormalize(
            network, endpoints, batches, match=how, weights=weights, new_bias=new_bias, device=device
        )
    state = network.state_dict()
    return done, {name: state[name].to("cpu", copy=True) for name in done.tensors if name in state}
