"""Biases that fit how weights shrink: no data needed.

In the mean of two networks without biases, what one of them contributes at layer ℓ has been multiplied by its
share ℓ times, once a weight; averaged biases were multiplied once. So deep down the biases drown what came
from the input. With b_ℓ = Σ share_k^ℓ · b_k, all contributions shrink alike.

Qu and Horváth 2025, "bias calibration" (section 4.3), arXiv:2402.05966.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..averages.weights import checked
from ..errors import UsageError
from .producers import find


def calibrated_biases(
    network: nn.Module,
    models: Sequence[Mapping[str, Tensor]],
    inputs: Any,
    *,
    weights: Sequence[float] | None = None,
) -> dict[str, Tensor]:
    """The merged network's biases by name, in float64, to put in the place of averaged ones.

    `models` are those that are merged, in one basin, with these `weights` (default: equal); `inputs` is one
    batch, of which only the shape counts. ℓ is 1 for the first layer. Raises UsageError for networks where a
    layer's depth is not one number (residual ones), that have other parameters than linear layers' and
    convolutions' (norms undo shrinking), or where a bias is shared; NetworkError for what cannot be traced.
    """
    shares = checked(weights, len(models))
    graph = find(network, inputs)
    problems = [f"{name}  belongs to no linear layer or convolution" for name in graph.others]
    problems += [f"{name}  {why}" for name, why in graph.left]
    if graph.uneven:
        problems.append(f"{graph.uneven}  joins values of different depth")
    if problems:
        raise UsageError(
            "biases can be calibrated only where every layer has one depth, and all is linear layers or "
            "convolutions",
            problems=list(dict.fromkeys(problems)),
            hint="Match channels on training data instead: --repair repair",
        )
    pairs = list(zip(shares, models, strict=True))
    return {
        site.bias: torch.stack([share**site.depth * m[site.bias].double() for share, m in pairs]).sum(0)
        for site in graph.sites.values()
        if site.bias is not None and site.depth
    }
