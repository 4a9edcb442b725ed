"""Whether a spec holds in training mode, too: heads that only training runs may tell units apart.

What is drawn at random there, as dropout's masks are, is replaced by its mean: it tells units apart for one
step only. Statistics of a batch stay what they are. What is random all the same is not judged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..datasets.batches import map_tensors
from ..errors import RebasinError
from ..runtime.seeds import generator
from ..spec.spec import FittedSpec
from .distance import MARGIN
from .means import Means
from .permuted import Changed, draw
from .runs import Runs, Series

CLEAR = 1e-6  # relative: statistics of few samples amplify rounding


def torn(runs: Runs, batch: Any, fitted: FittedSpec, before: list[Tensor], seed: int) -> tuple[str, ...]:
    """The outputs that permuting changes in training; none where the network fails there, or is random.

    `before` is what the network returns for the batch in evaluation.
    """
    batch = batch.batches[0] if isinstance(batch, Series) else batch
    with contextlib.suppress(RebasinError), training(runs):
        try:
            own = runs.outputs(batch)
        except RebasinError:  # norms that measure a batch take no single sample
            batch = map_tensors(_twice, batch)
            own = runs.outputs(batch)
        if len(own) == len(before) and all(map(torch.equal, own, before)):
            return ()  # nothing else is computed
        names, changed = runs.last.names, Changed(runs, fitted, batch, own)
        order = draw(fitted, fitted.words, generator(seed, "prove training"))
        try:
            changed(order)
            if not any(changed.outputs(names, CLEAR).values()):
                return ()
            rounding = changed.rounding()
            changed(order)
            found = changed.outputs(names, max(CLEAR, MARGIN * rounding))
        finally:
            changed.undo()
        runs.seed += 1
        again = runs.outputs(batch)
        runs.seed -= 1
        if all(map(torch.equal, own, again)):
            return tuple(name for name, changes in found.items() if changes)
    return ()


def _twice(tensor: Tensor) -> Tensor:
    """Of one sample two, which differ."""
    single = tensor.dim() > 1 and len(tensor) == 1
    return torch.cat([tensor, tensor.flip(-1)]) if single else tensor


@contextlib.contextmanager
def training(runs: Runs) -> Iterator[None]:
    """The network's runs are in training mode, each with the means of what it draws."""
    before = runs.around
    runs.around = lambda: _in_training(runs.network)
    try:
        yield
    finally:
        runs.around = before


@contextlib.contextmanager
def _in_training(network: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in network.modules()}
    try:
        with contextlib.suppress(Exception):  # some graphs know no training
            network.train()
        with Means():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
