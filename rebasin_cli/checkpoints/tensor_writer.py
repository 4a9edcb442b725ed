"""Tensors into files that are open: one tensor, a whole safetensors file, several files by several ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..errors import ResourceError, UsageError
from ..runtime.ranks import Ranks
from ..types import Tensors
from . import shards
from .disk import disk, resource_error
from .safetensors_format import encode_header, nbytes
from .shards import Plan
from .stages import Staging, again
from .tensors import blocks, chunks
from .validation import WritingDigest, Wrong, hashing, refused


def write_together(
    stage: Staging,
    files: Mapping[Path, Plan],
    tensors: Tensors,
    texts: Mapping[str, str],
    finite: Collection[str],
    ranks: Ranks,
) -> None:
    """Every file made by the first rank, as long as it will be, and then written by those that see it."""
    total = sum(nbytes(*planned) for plan in files.values() for planned in plan.values())

    def made() -> list[str]:
        for final, plan in files.items():
            header, _ = encode_header(plan, texts)
            with stage.open(final) as file, disk(final):
                file.write(header)
                file.truncate(len(header) + sum(nbytes(*planned) for planned in plan.values()))
        return [stage.staged(final).name for final in files]

    there = [path.with_name(name) for path, name in zip(files, ranks.first(made), strict=True)]
    mine = shards.shares([*files.values()], ranks.machines(all(path.is_file() for path in there)))[ranks.rank]

    def written() -> int:
        size = 0
        for path, (final, plan), own in zip(there, files.items(), mine, strict=True):
            if own:
                with again(path, final) as file:
                    size += write_file(file, final, plan, tensors, texts, finite, own=own)
        return size

    if (found := sum(ranks.shared(written))) != total:
        raise ResourceError(f"{stage.folder}: {found:,} bytes were written, expected {total:,}")


def write_file(
    file: IO[bytes],
    path: Path,
    plan: Plan,
    tensors: Tensors,
    metadata: Mapping[str, str],
    finite: Collection[str],
    tell: Callable[[str], None] | None = None,
    own: Collection[str] | None = None,
) -> int:
    """All of it, in order; or the tensors that are one's `own`, each at its place in a file that is there.

    How many bytes of tensors were written.
    """
    header, order = encode_header(plan, metadata)
    at, size = len(header), 0
    with hashing() as (add, total):
        written = WritingDigest(plan, add)
        if own is None:
            with disk(path):
                file.write(header)
        for name in order:
            if own is not None and name in own:
                with disk(path):  # what waits to be written is written before
                    file.seek(at)
            if own is None or name in own:
                # In a function of its own, so that one tensor is gone before the next is asked for.
                also = None if tell is None else written.begin(name)
                write_tensor(file, path, tensors, name, *plan[name], also, look=name in finite)
                size += nbytes(*plan[name])
            at += nbytes(*plan[name])
        whole = written.whole()
    if tell is not None and whole:
        tell(total.hexdigest())
    return size


def write_tensor(
    file: IO[bytes] | Memory,
    path: Path,
    tensors: Tensors,
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    also: Callable[[Any], None] | None = None,
    *,
    look: bool = False,
) -> None:
    """Into the file; `also` gets the same bytes. Raises CheckpointError for no number, if to `look`."""
    made, wrong = 0, Wrong(shape) if look and (dtype.is_floating_point or dtype.is_complex) else None
    for block in blocks(tensors, name):  # what fails in making a tensor is not the disk
        made += len(block) if shape else 1
        if (*block.shape[1:],) != shape[1:] or block.ndim != len(shape):
            raise ValueError(f"{name} has shape {tuple(block.shape)}, {shape} was announced")
        if block.dtype != dtype and not (block.is_floating_point() and dtype.is_floating_point):
            raise ValueError(f"{name} is {block.dtype}, {dtype} was announced")
        for chunk in chunks(block):
            own = _converted(chunk, dtype, name)
            if wrong is not None:
                wrong.look(own)
            data = own.view(torch.uint8).numpy().data
            if also is not None:
                also(data)
            try:
                file.write(data)
            except OSError as cause:
                raise resource_error(path, cause) from cause
    if made != (shape[0] if shape else 1):
        raise ValueError(f"{name} has {made} rows, {shape} was announced")
    if told := str(wrong or ""):
        raise refused(name, told)


def _converted(chunk: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    if chunk.dtype == dtype:
        return chunk
    largest = torch.finfo(dtype).max
    if torch.finfo(chunk.dtype).max > largest:
        values = chunk.float() if chunk.dtype.itemsize == 1 else chunk  # isfinite does not know float8
        beyond = values[values.isfinite() & (values.abs() > largest)]
        if beyond.numel():
            raise UsageError(
                f"{name} holds {float(beyond[0]):.6g}, beyond {largest:.6g}, where {dtype} ends",
                hint="Use --out-dtype bfloat16 or float32.",
            )
    return chunk.to(dtype)


class Memory:
    """The memory of a tensor as a file that is written from its beginning to its end."""

    def __init__(self, values: Tensor):
        self._memory = (
            values.reshape(-1).view(torch.uint8).numpy().data if values.numel() else memoryview(bytearray())
        )
        self._at = 0

    def write(self, data: Any) -> int:
        part = memoryview(data).cast("B")
        self._memory[self._at : self._at + len(part)] = part
        self._at += len(part)
        return len(part)
