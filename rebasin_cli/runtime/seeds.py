"""Seeds for every purpose, the same in every process and on every machine."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose, by a stable digest."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:7], "big")


def uniform(seed: int, purpose: str) -> float:
    """One number, evenly from 0–1: a generator for it alone would take ten times as long."""
    return derive(seed, purpose) / 2**56


def generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, purpose))


@contextmanager
def seeded(seed: int, purpose: str, device: str = "cpu") -> Iterator[None]:
    """The randomness of torch, numpy and Python from a derived seed, and as it was afterwards."""
    kind, drawn = torch.device(device), derive(seed, purpose)
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([kind] if kind.type == "cuda" else []):
        torch.manual_seed(drawn)
        random.seed(drawn)
        np.random.seed(drawn % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
