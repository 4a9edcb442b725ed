"""The options that several commands share, by subject, as the user wrote them; None is "find out".

A command takes the subjects that it uses; the file of an output and what becomes of it is `outputs.Output`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict


@dataclass(frozen=True)
class Loading:
    """How checkpoints are read, and the spec that says what may be permuted in them."""

    spec: str | None = None
    key: str | None = None
    unsafe_load: bool = False


@dataclass(frozen=True)
class Network:
    """The network to run: whose, on what inputs, where, and from which seed.

    Of its outputs `output` is measured, and `not_kept` are no part of its function.
    """

    net: str | None = None
    trust_code: bool = False
    input: str | None = None
    output: str | None = None
    not_kept: tuple[str, ...] = ()
    device: str = "auto"
    seed: int = 0

    @property
    def outputs(self) -> dict[str, Any]:
        """The two settings of its outputs, as inference, proof and search take them."""
        return {"output": self.output, "not_kept": self.not_kept}


@dataclass(frozen=True)
class Data:
    """The samples to run it on, and how its outputs are scored."""

    data: str | None = None
    data_root: Path | None = None
    normalize: str | None = None
    limit: int | None = None
    batch_size: int = 500
    full: bool = False
    loss: str | None = None
    metric: str | None = None
    skip_checks: bool = False
    bins: int = 15
    held_out: str | None = None


@dataclass(frozen=True)
class Search:
    """The method, its own options as far as they were set, and what is kept of the search meanwhile.

    Where nobody named a method it is `open`, and `auto` takes its place where that has something to run.
    """

    method: str = "wm"
    options: Mapping[str, Any] = field(default_factory=dict)
    prove: bool = True
    polish: str | None = None
    groups: str = "permutations"
    checkpoint_every: int | None = None
    log: Path | None = None
    open: bool = False


@dataclass(frozen=True)
class Repair:
    """What mends a merged model: "auto", or one of `repair.REPAIRS`."""

    repair: str = "auto"
    new_bias: bool = False
    ridge: float | None = None
    bake_temperature: bool = False


@dataclass(frozen=True)
class Asked:
    """All that was asked of a command; the subjects that it does not take have their defaults."""

    loading: Loading = Loading()
    network: Network = Network()
    data: Data = Data()
    search: Search = Search()
    repair: Repair = Repair()


class ForLook(TypedDict, total=False):
    """The subjects of a command that runs models on data."""

    loading: Loading
    network: Network
    data: Data


class ForRepair(ForLook, total=False):
    """The subjects of a command that repairs a merged model."""

    repair: Repair


class ForSearch(ForLook, total=False):
    """The subjects of a command that searches permutations."""

    search: Search


class ForMerge(ForSearch, ForRepair, total=False):
    """The subjects of a command that searches permutations and repairs what is merged by them."""
