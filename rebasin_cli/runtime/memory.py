"""How much memory this machine has, asked before something is made that it cannot hold; and its upkeep."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

from ..errors import ResourceError


def check_memory(what: str, needed: int) -> None:
    """Raise ResourceError where `what` ("100 images take") needs more bytes than there are.

    Where that is not known, let it be.
    """
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return
    if needed > there > 0:
        raise ResourceError(f"{what} {needed:,} bytes of memory, and this machine has {there:,}")


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection, for what makes many objects that stay, as imports do.

    It would look through all of them again and again.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
