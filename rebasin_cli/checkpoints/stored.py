"""The bytes of a file as tensors: read when they are asked for, into memory of their own.

Files are not mapped: one that is cut short while it is mapped ends the process at the next look (SIGBUS),
without a message. What is read can fail, and says so; and it is looked at before and after every reading
whether the file is still the one that was opened.
"""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..runtime import files

AHEAD = 1 << 16  # bytes
STEP = 1 << 30  # bytes asked for at once: systems read at most 2 GB


class Piece(NamedTuple):
    """A tensor in a file: where its first value lies, in bytes, and how the others lie from there."""

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None  # in values; None: row by row

    def rows(self, start: int, stop: int) -> Piece:
        """A part of the first axis, of a piece that lies row by row."""
        skipped = start * math.prod(self.shape[1:]) * self.dtype.itemsize
        return Piece(self.start + skipped, self.dtype, (stop - start, *self.shape[1:]))


class StoredFile:
    """A file as it was when it was opened. No descriptor is kept: a model may have hundreds of shards.

    What is asked for is read with what lies behind it, up to `AHEAD` bytes: small tensors lie side by side.
    CheckpointError is raised where the file is another one by now: replaced, longer or shorter, or
    written to. What was written within one tick of the clock that the system keeps times by is not seen.
    """

    def __init__(self, path: Path):
        self.path, self._place = path, os.path.abspath(path)
        self._ahead = 0, memoryview(b"")  # the first byte, and those that were read from there on
        try:
            with files.opened(path) as file:
                self._was = _identity(os.fstat(file.fileno()))
        except OSError as cause:
            if cause.errno != errno.EINVAL:  # told by who knows which file was meant
                raise
            raise CheckpointError(f"{path} cannot be read: {cause.strerror}") from None

    def tensor(self, piece: Piece) -> Tensor:
        """Its values, in memory that nothing else uses."""
        start, dtype, shape, stride = piece
        reach = math.prod(shape) if stride is None else _reach(shape, stride)
        if not reach:
            return torch.empty(shape, dtype=dtype)
        values = torch.empty(reach, dtype=dtype)
        self.fill(values, start)
        return values.view(shape) if stride is None else values.as_strided(shape, stride)

    def fill(self, values: Tensor, start: int) -> None:
        """Read what lies from byte `start` on into a tensor that lies row by row in memory."""
        if values.numel():
            self._fill(values.view(-1).view(torch.uint8).numpy().data, start)

    def _fill(self, memory: memoryview, start: int) -> None:
        """Fill `memory` with the file's bytes from `start` on."""
        first, ahead = self._ahead
        at = start - first
        try:
            same = _identity(os.stat(self._place)) == self._was
            if same and not 0 <= at <= len(ahead) - len(memory):
                at, (same, ahead) = 0, self._read(memory, start)
        except FileNotFoundError:
            raise self._changed("it is gone") from None
        except OSError as cause:
            raise CheckpointError(f"{self.path} cannot be read: {cause.strerror or cause}") from cause
        if not same:
            raise self._changed("its size, its time or the file itself is another")
        if ahead is not memory:
            memory[:] = ahead[at : at + len(memory)]

    def _read(self, memory: memoryview, start: int) -> tuple[bool, memoryview]:
        """Whether all bytes were there, and what they are in: `memory` itself, or more than that."""
        ahead = memory if len(memory) >= AHEAD else memoryview(bytearray(AHEAD))
        with files.opened(self._place) as file:
            file.raw.seek(start, os.SEEK_SET)
            done = 0
            while got := file.raw.readinto(ahead[done : done + STEP]):
                done += got
            same = done >= len(memory) and _identity(os.fstat(file.fileno())) == self._was
        if same and ahead is not memory:
            self._ahead = start, ahead[:done]
        return same, ahead

    def _changed(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} changed while it was read",
            problems=[f"{how} than when it was opened" if "another" in how else how],
            hint="Nothing was written. Run again once nothing writes to it, or work on a copy.",
        )


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _reach(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """How many values lie between the first and the last, both counted; none where there are no values."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) if math.prod(shape) else 0
