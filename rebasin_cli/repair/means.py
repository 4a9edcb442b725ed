"""Where merges of models in one basin end: their mean, repaired."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from ..averages.parts import by_spec
from ..averages.tensors import combined
from ..checkpoints.tensors import LazyTensors, replaced
from ..spec.spec import FittedSpec
from ..types import Tensors
from .repair_steps import Outcome, Repairs, repair_merged


def repaired_mean(
    models: Sequence[Tensors],
    fitted: FittedSpec,
    weights: Sequence[float] | None = None,
    *,
    interpolation: str = "linear",
    repairs: Repairs | None = None,
    network: nn.Module | None = None,
    held: Iterable[Any] | None = None,
    unseen: bool = False,
    output: str | int | None = None,
    done: Outcome | None = None,
) -> tuple[LazyTensors, Outcome]:
    """The mean of the models with these `weights` (equal ones), repaired, and the account of its repair.

    `repairs` (None: no repair) run `network` as `repair_merged` does. `done` is what a search has repaired
    already, of the mean with equal weights. Raises CheckpointError where the mean would be no numbers.
    """
    linear, equal = interpolation == "linear", [1 / len(models)] * len(models)
    weights = equal if weights is None else weights
    straight = {*fitted.statistics}
    tensors = combined(
        models, by_spec(models, fitted.ignored), weights, interpolation=interpolation, straight=straight
    )
    if repairs is None:
        return tensors, Outcome()
    if done is None or not linear or [*weights] != equal:
        if network is None:
            raise TypeError("a repair runs the network")
        network = network.to(repairs.device)
        done = repair_merged(network, tensors, repairs, weights, held=held, unseen=unseen, output=output)
    return replaced(tensors, done.tensors), done
