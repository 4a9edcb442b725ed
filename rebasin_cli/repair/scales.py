"""Operations that multiply every channel by a number of its own in the end, such as LayerNorm and RMSNorm."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from .producers import named, operation

# RMSNorm is a product in a graph
SCALES = ("layer_norm", "group_norm", "instance_norm", "mul")


def factors(node: fx.Node) -> tuple[Any, Any]:
    """Of a product the parameter, and the values that it multiplies; None where there are no two such."""
    both = [named(node)[name] for name in ("self", "other")]
    if not all(isinstance(one, fx.Node) for one in both):
        return None, None
    return tuple(sorted(both, key=lambda one: one.op != "placeholder"))


def normalised(node: fx.Node, value: torch.Tensor) -> torch.Tensor:
    """(channels, rows, 1): what an operation of `SCALES` multiplies, in float64."""
    kind, given, value = operation(node), named(node), value.double()
    if kind == "layer_norm":
        return channels(node, F.layer_norm(value, given["normalized_shape"], eps=given["eps"]))
    if kind == "group_norm":
        return channels(node, F.group_norm(value, given["num_groups"], eps=given["eps"]))
    if kind == "instance_norm":
        return channels(node, F.instance_norm(value, eps=given["eps"]))
    return channels(node, value)


def channels(node: fx.Node, value: torch.Tensor) -> torch.Tensor:
    """(channels, rows, 1): the values of an operation of `SCALES`, or of what it reads."""
    if operation(node) in ("group_norm", "instance_norm"):
        return value.movedim(1, 0).flatten(1)[..., None]
    inner = len(named(node).get("normalized_shape", (0,)))
    return value.flatten(value.ndim - inner).flatten(0, -2).mT[..., None]
