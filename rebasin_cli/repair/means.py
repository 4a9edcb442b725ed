"""Where merges of models in one basin end: their mean, repaired."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from ..averages import mixing
from ..averages.combining import finite_only
from ..averages.mixing import JOINS
from ..checkpoints.tensors import LazyTensors
from ..spec.spec import FittedSpec
from ..types import Tensors
from .repairing import Outcome, Repairs, repair_merged


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
    """The mean of the models with these `weights` (equal ones), and what became of it by its repair.

    `repairs` (None: no repair) run `network` as `repair_merged` does. `done` is what a search has repaired
    already, of the mean with equal weights. Raises CheckpointError where the mean would be no numbers.
    """
    equal = [1 / len(models)] * len(models)
    weights = equal if weights is None else weights
    if interpolation == "linear":
        tensors = mixing.average(models, weights, keep=fitted.ignored)
    else:
        mixing.average(models, weights)  # the same checks
        join = JOINS[interpolation]
        tensors = join(*models, weights[1], keep=fitted.ignored, straight=fitted.statistics)
    kinds = tensors.dtypes.items()
    averaged = {n for n, dtype in kinds if dtype.is_floating_point and n not in fitted.ignored}
    tensors = finite_only(tensors, averaged, models, [f"model {k}" for k in range(1, len(models) + 1)])
    if repairs is None:
        return tensors, Outcome()
    if done is not None and [*weights] == equal and interpolation == "linear":
        return tensors, done
    if network is None:
        raise TypeError("a repair runs the network")
    network = network.to(repairs.device)
    return tensors, repair_merged(network, tensors, repairs, weights, held=held, unseen=unseen, output=output)
