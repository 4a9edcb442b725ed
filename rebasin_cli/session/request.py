"""What a session is asked for: the options of an operation by subject, as they are meant (see `asked`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .search_options import Repair
from .subjects import Bounded, Data, Loading, Network


@dataclass(frozen=True)
class Search:
    """The method, its own options as far as they were set, and what is kept of the search meanwhile.

    Where nobody named a method it is `open`, and `auto` takes its place where that has something to run.
    `real`: a proof that was made on a small twin does not do.
    """

    method: str = "wm"
    options: Mapping[str, Any] = field(default_factory=dict)
    prove: bool = True
    real: bool = False
    polish: str | None = None
    groups: str = "auto"
    checkpoint_every: int | None = None
    log: Path | None = None
    open: bool = False


@dataclass(frozen=True)
class Subjects:
    """All that was asked of a command; the subjects that it does not take have their defaults."""

    loading: Loading = Loading()
    network: Network = Network()
    data: Data = Data()
    search: Search = Search()
    repair: Repair = Repair()
    bounded: Bounded = Bounded()
