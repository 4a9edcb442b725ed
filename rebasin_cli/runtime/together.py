"""The processes that torchrun started together, for as long as a command runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .devices import own
from .ranks import ALONE, Ranks, several


@contextmanager
def from_environment(device: str = "cpu") -> Iterator[Ranks]:
    """The processes that were started together, as long as the block runs; ALONE where there are no others.

    `device` is where they compute. However the block ends, the others end too: those that have not failed
    themselves with Elsewhere, where the cause is told on another rank, or with Lost.

    Raises UsageError where the environment is incomplete, Lost where a process does not come.
    """
    if not several():
        yield ALONE
        return
    from .processes import joined  # torch.distributed only where it is needed

    with joined(own(device)) as ranks:
        yield ranks
