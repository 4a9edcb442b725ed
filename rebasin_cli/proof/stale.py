"""Attributes that a network computes with in place of its weights: from an earlier call, and never emptied.

Its weights have no effect then, and any order of theirs would seem right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from ..errors import NotProven
from ..networks import caches
from ..spec.spec import FittedSpec
from .distance import difference
from .runs import Runs
from .visibility import NOTHING

FRESH = "Give a network that was not run before, or have it drop them when it goes to training"


def names(network: nn.Module) -> dict[int, tuple[str, bool]]:
    """By where they lie in memory: the names of kept tensors, and whether weights were in their making."""
    return {
        tensor.untyped_storage().data_ptr(): (name, tensor.grad_fn is not None)
        for name, tensor in caches.kept(network)
        if tensor.device.type != "meta"
    }


def check(runs: Runs, batch: Any, fitted: FittedSpec, without_effect: Sequence[str]) -> None:
    """Raise NotProven where tensors may have no effect only because something else is computed with."""
    if without_effect and (found := list(dict.fromkeys(_instead(runs, batch, without_effect)))):
        raise NotProven(
            f"{fitted.spec.source} is not proven: the network computes with what an earlier call left",
            problems=[
                f"{', '.join(found)}  counts, and these have no effect: {', '.join(without_effect[:3])}"
            ],
            hint=FRESH,
        )


def _instead(runs: Runs, batch: Any, without_effect: Sequence[str]) -> Iterator[str]:
    """They were made from weights, or are as large as one without effect; and the outputs depend on them."""
    own = runs.network.state_dict()
    sizes = {own[name].numel() for name in without_effect if own[name].ndim > 1}
    before = runs.outputs(batch)
    for name, tensor in caches.kept(runs.network):
        made = tensor.grad_fn is not None or tensor.numel() in sizes
        if made and tensor.is_floating_point() and tensor.numel():
            held = tensor.detach().clone()
            tensor.detach().add_(held.abs().max())
            if difference(before, runs.outputs(batch)) > NOTHING:
                yield name
            tensor.detach().copy_(held)
