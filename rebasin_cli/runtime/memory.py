"""How much memory this machine has, asked before something is made that it cannot hold; and its upkeep."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..errors import ResourceError

TRIM, MMAP, ARENAS = -1, -3, -8  # glibc's numbers for what `mallopt` sets
RETAINED, BLOCK = 512 << 20, 32 << 20  # bytes: what each heap keeps of what is freed, its largest block
TUNING = ("MALLOC_", "GLIBC_TUNABLES")  # how variables begin that tell the C library what to do
STARTING, COLLECT = 400_000, 20_000  # new objects before garbage is looked for: torch brings 200,000
UNLIMITED = 1 << 60  # bytes: what a cgroup says that has no limit is near 2**63
HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # PyTorch's own switch, which it reads with its first large tensor


def keep_freed() -> bool:
    """Keep freed memory for the next tensor, for as long as this process lives; say whether it is kept.

    glibc gives every tensor of a few MB back to the system when it is freed, and the next one pays for each
    of its pages: of a small convolutional network's forward pass that is two fifths. Blocks above `BLOCK`
    come and go as before, so that what large checkpoints take at most hardly changes. All threads share one
    heap: what one of them frees, such as who digests what is read, would be kept from the others. Nothing
    happens where the C library knows no such thing, or where the user has said in the environment what it
    should do.
    Tensors of 2 MB and more lie in huge pages, unless the environment says 0: a fault brings 512 pages then.
    """
    os.environ.setdefault(HUGE_PAGES, "1")
    if any(name.startswith(TUNING) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(TRIM, RETAINED) and mallopt(MMAP, BLOCK) and mallopt(ARENAS, 1))


def check_memory(what: str, needed: int) -> None:
    """Raise ResourceError where `what` ("100 images take") needs more bytes than there are (`limit`).

    Where that is not known, let it be.
    """
    there = limit()
    if there is not None and needed > there[0]:
        raise ResourceError(f"{what} {needed:,} bytes of memory, and {there[1]} has {there[0]:,}")


def limit() -> tuple[int, str] | None:
    """How many bytes this process may ever hold, and what says so; None where that is not known.

    That is the machine, or a group of processes that has less: a container, or what a scheduler made for a
    job (`memory.max` of Linux's cgroups, `memory.limit_in_bytes` of their first version). Swap does not
    count: no search comes to an end on it.
    """
    found = [(most, "this machine's group of processes (cgroup)") for most, _ in _groups()]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        found.append((os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "this machine"))
    return min((one for one in found if one[0] > 0), default=None)


def free() -> int | None:
    """How many bytes this process can hold now, beside what others hold; None where that is not known."""
    found = [most - used for most, used in _groups()]
    with contextlib.suppress(OSError, ValueError, IndexError):
        told = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2]
        found.append(int(told.split()[0]) << 10)
    return max(0, min(found)) if found else None


def _groups(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[tuple[int, int]]:
    """(bytes at most, bytes in use) of every cgroup around this process that has a limit.

    In use is what cannot be given back: without the files that are only remembered.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers == "":
            top, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for part in (inside, *inside.parents):  # in a container the path may be one that only the host has
            with contextlib.suppress(OSError, ValueError, IndexError):
                most, used = (int((top / part / name).read_text()) for name in names[:2])
                told = (top / part / "memory.stat").read_text().split(f"{names[2]} ")[-1].split()[0]
                if most < UNLIMITED:
                    yield most, used - int(told)


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
