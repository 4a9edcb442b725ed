"""The options of the commands, as one value that goes through all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """The options that several commands share, as the user wrote them; None is "find out"."""

    spec: str | None = None
    net: str | None = None
    trust_code: bool = False
    key: str | None = None
    unsafe_load: bool = False
    data: str | None = None
    data_root: Path | None = None
    normalize: str | None = None
    limit: int | None = None
    batch_size: int = 500
    loss: str | None = None
    metric: str | None = None
    output: str | None = None
    input: str | None = None
    device: str = "auto"
    seed: int = 0
    method: str = "wm"
    max_sweeps: int | None = None
    effort: str | None = None
    memory: int | None = None
    bound: bool = False
    cost: str | None = None
    at: str | None = None
    sites: str | None = None
    mix: float | None = None
    epochs: int | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    share: float | None = None
    init: str | None = None
    precision: str | None = None
    mixture: str | None = None
    parameter: str | None = None
    weights_prior: str | None = None
    checkpoint_every: int | None = None
    log: Path | None = None
    prove: bool = True
    repair: str = "auto"
    new_bias: bool = False
    bake_temperature: bool = False
    full: bool = False
    skip_checks: bool = False
