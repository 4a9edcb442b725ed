"""Training samples that a model has not learnt by heart: the same ones, corrupted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..runtime.seeds import generator
from ._batches import checked, map_tensors, tensors_in


@dataclass(frozen=True)
class Corrupted:
    """Batches with normal noise on their floating-point inputs, `strength` times what these vary by.

    What they vary by is the standard deviation of all numbers of the first batch. The noise is drawn by the
    seed, the same every time that one goes through them. Whole numbers stay as they are.
    """

    batches: Iterable[Any]
    strength: float
    seed: int = 0

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        rng, spread = generator(self.seed, "corruption of held-out samples"), None
        for inputs, targets in checked(self.batches):
            if spread is None:
                spread = _spread(inputs)

            def noisy(tensor: Tensor, std: float = spread) -> Tensor:
                if not tensor.is_floating_point():
                    return tensor
                noise = torch.randn(tensor.shape, generator=rng, dtype=torch.float32)
                return tensor + (self.strength * std * noise).to(tensor)

            yield map_tensors(noisy, inputs), targets


def _spread(inputs: Any) -> float:
    floats = [tensor.float().flatten() for tensor in tensors_in(inputs) if tensor.is_floating_point()]
    return torch.cat(floats).std().item() if sum(map(len, floats)) > 1 else 0.0


def corruptible(inputs: Any) -> bool:
    """Whether noise can be put on these inputs: some are floating-point numbers."""
    return any(tensor.is_floating_point() for tensor in tensors_in(inputs))
