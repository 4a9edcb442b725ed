"""Tensors that a network has under several names: an embedding that is also the layer which gives logits.

Files hold one of the names, or all. Who writes them knows that they are one, and may leave the others out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import nn

from ..checkpoints.tensors import LazyTensors, plan_of
from ..errors import CheckpointError
from ..spec.spec import FittedSpec
from ..types import Tensors


def tied(network: nn.Module) -> dict[str, tuple[str, ...]]:
    """Of each name of a tensor that has several, all of them."""
    names: dict[int, list[str]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return {name: tuple(group) for group in names.values() if len(group) > 1 for name in group}


def groups(network: nn.Module) -> list[tuple[str, ...]]:
    """The names of each tensor that has several."""
    return [*dict.fromkeys(tied(network).values())]


def absent(network: nn.Module, there: Collection[str]) -> dict[str, str]:
    """Names of the network's that are not `there`, each with another one of the same tensor that is."""
    pairs = {
        name: next((other for other in group if other in there), None)
        for name, group in tied(network).items()
        if name not in there
    }
    return {name: other for name, other in pairs.items() if other is not None}


def state_of(network: nn.Module, there: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values that are `there` under all names of the network's; what it has as one tensor is one."""
    groups, found = tied(network), dict[str, torch.Tensor]()
    for name, own in network.state_dict().items():
        group = groups.get(name, (name,))
        known = next((other for other in group if other in found), None)
        if known is not None:
            found[name] = found[known]
        else:
            found[name] = there[next((other for other in group if other in there), name)].to(own)
    return found


def under_all_names(network: nn.Module, model: Tensors) -> Tensors:
    """The same tensors, read when asked for, and of a tied one all names that the network has."""
    if not (missing := absent(network, model)):
        return model
    of, plan = {**{name: name for name in model}, **missing}, plan_of(model)
    return LazyTensors(
        {name: plan[other][1] for name, other in of.items()},
        {name: plan[other][0] for name, other in of.items()},
        lambda name: model[of[name]],
    )


def completed(network: nn.Module, fitted: FittedSpec) -> FittedSpec:
    """The spec for all names of the network's tensors, where it speaks of one name of each."""
    missing = absent(network, fitted.shapes)
    if not missing:
        return fitted
    tensors = {name: fitted.tensors[other] for name, other in missing.items() if other in fitted.tensors}
    shapes = {name: fitted.shapes[other] for name, other in missing.items()}
    ignored = {name for name, other in missing.items() if other in fitted.ignored}
    return replace(
        fitted,
        tensors=fitted.tensors | tensors,
        shapes=fitted.shapes | shapes,
        ignored=fitted.ignored | ignored,
    )


def check_equal(network: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise CheckpointError where tensors differ that the network has as one."""
    for group in groups(network):
        first, *others = [name for name in group if name in tensors] or [""]
        for other in others:
            if not torch.equal(tensors[first], tensors[other]):
                raise CheckpointError(
                    f"{first} and {other} are one tensor in the network, and differ in the checkpoint",
                    hint="Give a network that has both, such as with tie_word_embeddings=False",
                )
