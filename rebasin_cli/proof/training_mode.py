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
from ..graph.float64 import Uncompiled
from ..runtime.seeds import generator
from ..spec.spec import FittedSpec
from .distance import MARGIN
from .permuted import Changed, draw
from .runs import Runs, Series

CLEAR = 1e-6  # relative: statistics of few samples amplify rounding
DRAWN = {"rand": 0.5, "rand_like": 0.5, "randn": 0.0, "randn_like": 0.0}  # operations, and their mean
DRAWN |= {"uniform_": 0.5, "normal_": 0.0, "bernoulli_": 0.5}


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
        torch.manual_seed(seed + 1)
        again = runs.outputs(batch)
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
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        runs.around = before


@contextlib.contextmanager
def _in_training(network: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in network.modules()}
    try:
        with contextlib.suppress(Exception):  # some graphs know no training
            network.train()
        with _Means():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


class _Means(Uncompiled):
    """While it lasts, numbers that are drawn are their mean."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result, name = func(*args, **(kwargs or {})), func._opname
        if name in DRAWN and isinstance(result, Tensor) and result.is_floating_point():
            mean: Any = DRAWN[name]
            if name == "uniform_" and len(args) > 2:
                mean = (args[1] + args[2]) / 2
            elif name in ("normal_", "bernoulli_") and len(args) > 1:
                mean = args[1]
            result.copy_(mean if isinstance(mean, Tensor) else torch.full_like(result, mean))
        elif name == "bernoulli" and result.is_floating_point():
            result.copy_(args[0] if len(args) < 2 else torch.full_like(result, args[1]))
        return result
