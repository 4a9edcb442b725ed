"""Seeds for every purpose, the same in every process and on every machine."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose, by a stable digest."""
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:7], "big")


def generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, purpose))
