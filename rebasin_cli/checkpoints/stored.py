"""The bytes of a file as tensors: read when they are asked for, into memory of their own.

Files are not mapped: one that is cut short while it is mapped ends the process at the next look (SIGBUS),
without a message. What is read can fail, and says so; and it is looked at before and after every reading
whether the file is still the one that was opened.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..runtime import files

STEP = 1 << 30  # bytes asked for at once: systems read at most 2 GB


@dataclass(frozen=True)
class Piece:
    """A tensor in a file: where its first value lies, in bytes, and how the others lie from there."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None  # in values; None: row by row

    @property
    def in_rows(self) -> bool:
        return self.stride is None or self.stride == _in_rows(self.shape)

    def rows(self, start: int, stop: int) -> Piece:
        """A part of the first axis, of a piece that lies row by row."""
        skipped = start * math.prod(self.shape[1:]) * self.dtype.itemsize
        return Piece(self.start + skipped, self.dtype, (stop - start, *self.shape[1:]))


class StoredFile:
    """A file as it was when it was opened. No descriptor is kept: a model may have hundreds of shards.

    `reading` raises CheckpointError where the file is another one by now: replaced, longer or shorter, or
    written to. What was written within one tick of the clock that the system keeps times by is not seen.
    """

    def __init__(self, path: Path):
        self.path, self._place = path, os.path.abspath(path)
        try:
            with files.opened(path) as file:
                self._was = _identity(file)
        except OSError as cause:
            if cause.errno != errno.EINVAL:  # told by who knows which file was meant
                raise
            raise CheckpointError(f"{path} cannot be read: {cause.strerror}") from None

    def tensor(self, piece: Piece) -> Tensor:
        """Its values, in memory that nothing else uses."""
        if math.prod(piece.shape) == 0:
            return torch.empty(piece.shape, dtype=piece.dtype)
        reach = _reach(piece)
        values = torch.empty(reach, dtype=piece.dtype)
        self.reading(lambda file: _fill(file, piece.start, values))
        return values.view(piece.shape) if piece.in_rows else values.as_strided(piece.shape, piece.stride)

    def reading(self, read: Callable[[BinaryIO], bool]) -> None:
        """Let `read` read, which says whether all was there."""
        try:
            with open(self._place, "rb", buffering=0) as file:
                same = _identity(file) == self._was and read(file) and _identity(file) == self._was
        except FileNotFoundError:
            raise self._changed("it is gone") from None
        except OSError as cause:
            raise CheckpointError(f"{self.path} cannot be read: {cause.strerror or cause}") from cause
        if not same:
            raise self._changed("its size, its time or the file itself is another")

    def _changed(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} changed while it was read",
            problems=[f"{how} than when it was opened" if "another" in how else how],
            hint="Nothing was written. Run again once nothing writes to it, or work on a copy.",
        )


def _identity(file: BinaryIO) -> tuple[int, ...]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _fill(file: BinaryIO, start: int, values: Tensor) -> bool:
    """Read the file's bytes from `start` on into all of `values`; whether there were so many."""
    memory = memoryview(values.view(torch.uint8).numpy())
    file.seek(start)
    done = 0
    while done < len(memory):
        got = file.readinto(memory[done : done + STEP])
        if not got:
            return False
        done += got
    return True


def _reach(piece: Piece) -> int:
    """How many values lie between the first and the last, both counted."""
    if piece.stride is None:
        return math.prod(piece.shape)
    return 1 + sum((size - 1) * step for size, step in zip(piece.shape, piece.stride, strict=True))


def _in_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
