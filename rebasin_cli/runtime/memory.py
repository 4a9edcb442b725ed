"""How much memory this machine has, asked before something is made that it cannot hold; and its upkeep."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator

from ..errors import ResourceError

TRIM, MMAP = -1, -3  # glibc's numbers for what `mallopt` sets
RETAINED, BLOCK = 512 << 20, 32 << 20  # bytes: what each heap keeps of what is freed, its largest block
TUNING = ("MALLOC_", "GLIBC_TUNABLES")  # how variables begin that tell the C library what to do
STARTING, COLLECT = 400_000, 20_000  # new objects before garbage is looked for: torch brings 200,000
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # PyTorch's own switch, which it reads with its first large tensor


def keep_freed() -> bool:
    """Keep freed memory for the next tensor, for as long as this process lives; say whether it is kept.

    glibc gives every tensor of a few MB back to the system when it is freed, and the next one pays for each
    of its pages: of a small convolutional network's forward pass that is two fifths. Blocks above `BLOCK`
    come and go as before, so that what large checkpoints take at most hardly changes. Nothing happens where
    the C library knows no such thing, or where the user has said in the environment what it should do.
    Tensors of 2 MB and more lie in huge pages, unless the environment says 0: a fault brings 512 pages then.
    """
    os.environ.setdefault(HUGE_PAGES, "1")
    if any(name.startswith(TUNING) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(TRIM, RETAINED) and mallopt(MMAP, BLOCK))


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


def collect_later() -> None:
    """Look for no garbage while a command is imported: what that makes stays."""
    gc.set_threshold(STARTING)


def collect() -> None:
    """Look for garbage from now on, and never among what the command was imported with."""
    if gc.get_threshold()[0] == STARTING:  # else this process is not the command's own
        gc.freeze()
        gc.set_threshold(COLLECT)


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
