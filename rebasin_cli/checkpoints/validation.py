"""Values looked through once: whether they can be averaged, and the digest of what they are.

A digest takes as long as all else that is done with a large file, so it is computed beside the reading, on
a thread of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError
from ..runtime.threads import on_one_thread
from ..types import Tensors, is_lazy
from .families import families
from .safetensors_format import CODES
from .tensors import blocks, chunks, plan_of

NOT_PLAIN = "a quantised or unknown dtype"
WAITING = 2  # chunks read ahead of the digest
SMALL = 1 << 16  # bytes that are digested sooner than handed over
AHEAD = 1 << 24  # bytes that are written sooner than digested: counters of norms are wider than weights


def digest(tensors: Tensors) -> str:
    """SHA-256 (hexadecimal) of names, dtypes, shapes and values, whatever file they came from.

    Independent of the order of the mapping and of how a tensor lies in memory. Raises CheckpointError
    where a dtype is none that a safetensors file can hold (quantised, complex of double precision).
    """
    with hashing() as (add, total):
        for name, (dtype, shape) in sorted(plan_of(tensors).items()):
            if dtype not in CODES:
                raise CheckpointError(f"{name} is {dtype}: {NOT_PLAIN}")
            add(_line(name, dtype, shape))
            for chunk in _chunks(tensors, name):
                add(chunk.view(torch.uint8).numpy())
    return total.hexdigest()


def validate(tensors: Tensors, *, name: str = "", digested: bool = False) -> str | None:
    """Check that these tensors can be averaged: finite floating point, with integers only as buffers.

    Refused, all of them in one error: NaN and infinity, but in masks of 0 and −∞; complex; torch's quantised
    dtypes; int8 and uint8 of two or more dimensions, and integers of one or more dimensions whose name ends
    in "weight" or in ".bias" (quantised or packed weights). Allowed: every floating-point dtype, bool, and
    other integers (`num_batches_tracked`, `position_ids`). Values are read once, tensor by tensor, in chunks.

    `name` is what messages call the tensors: by default a Checkpoint's own path. Gives their `digest`, if it
    is to be `digested` on the way. Raises CheckpointError.
    """
    plan = plan_of(tensors)
    problems: dict[str, str] = {}
    kind, not_finite = False, False
    for key, (dtype, shape) in plan.items():
        if told := wrong_dtype(key, dtype, shape):
            kind, problems[key] = True, told
    hashed = digested and not kind
    with hashing() as (add, total), on_one_thread():  # the others would wait, spinning, beside the digest
        for key, (dtype, shape) in sorted(plan.items()):
            looked = dtype.is_floating_point and key not in problems
            if not (looked or hashed):
                continue
            if hashed:
                add(_line(key, dtype, shape))
            values = Wrong(shape)
            for chunk in _chunks(tensors, key):
                if hashed:
                    add(chunk.view(torch.uint8).numpy())
                if looked:
                    values.look(chunk)
            if told := str(values):
                not_finite, problems[key] = True, told
    if problems:
        known = dict.fromkeys(f.kind.name for f in families(plan) if problems.keys() & f.members.values())
        hints = [
            "Only floating-point weights can be permuted and averaged: convert them first." if kind else "",
            f"They are {' and '.join(known)} tensors." if kind and known else "",
            "Training diverged or the file is damaged: use an earlier checkpoint." if not_finite else "",
        ]
        raise CheckpointError(
            f"{name or getattr(tensors, 'path', 'these tensors')} cannot be used",
            problems=[f"{key}  {problems[key]}" for key in plan if key in problems],
            hint=" ".join(filter(None, hints)),
        )
    return total.hexdigest() if hashed else None


class WritingDigest:
    """The `digest` of tensors while they are written, in an order that is nearly that of their names.

    What comes too soon waits: as much as `AHEAD` bytes, beyond which there is no `digest`.
    """

    def __init__(self, plan: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], add: Callable[[Any], None]):
        self._plan, self._add = plan, add
        self._due, self._room = deque(sorted(plan)), AHEAD
        self._ahead: dict[str, list[bytes]] = {}

    def begin(self, name: str) -> Callable[[Any], None]:
        """What takes the bytes of this tensor, part by part."""
        self._let_go()
        if self._room < 0:
            return lambda data: None
        if name == self._due[0]:
            self._due.popleft()
            self._add(_line(name, *self._plan[name]))
            return self._add
        parts = self._ahead[name] = []

        def keep(data: Any) -> None:
            self._room -= memoryview(data).nbytes
            if self._room >= 0:
                parts.append(bytes(data))

        return keep

    def whole(self) -> bool:
        """Whether all has been digested, in the order of names."""
        self._let_go()
        return not self._due

    def _let_go(self) -> None:
        while self._due and self._due[0] in self._ahead:
            name = self._due.popleft()
            for part in (_line(name, *self._plan[name]), *self._ahead.pop(name)):
                self._add(part)


@contextlib.contextmanager
def hashing() -> Iterator[tuple[Callable[[Any], None], hashlib._Hash]]:
    """`add` takes bytes in their order; at the end the total is known. What was read meanwhile is kept."""
    total, waiting = hashlib.sha256(), deque[Future[None]]()
    with ThreadPoolExecutor(1) as thread:

        def add(data: Any) -> None:
            while waiting and waiting[0].done():
                waiting.popleft().result()
            if not waiting and memoryview(data).nbytes <= SMALL:
                total.update(data)
                return
            if len(waiting) >= WAITING:
                waiting.popleft().result()
            waiting.append(thread.submit(total.update, data))

        yield add, total
        for each in waiting:
            each.result()


def _line(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """A JSON line a tensor, so that no two sets of tensors can read as the same bytes."""
    return f'[{json.dumps(name)}, "{CODES[dtype]}", {[*shape]}]\n'.encode()


def _chunks(tensors: Tensors, name: str) -> Iterator[Tensor]:
    if is_lazy(tensors) and 0 in tensors.shapes[name]:
        return iter(())  # a file may hold hundreds of thousands of empty ones
    return (chunk for block in blocks(tensors, name) for chunk in chunks(block))


def wrong_dtype(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """What keeps a tensor from being averaged, as far as its name, dtype and shape tell; "" where nothing."""
    what = str(dtype).removeprefix("torch.")
    if dtype.is_complex:
        return f"{what}, complex"
    if dtype not in CODES:
        return f"{what}, {NOT_PLAIN}"
    if dtype.is_floating_point or dtype is torch.bool:
        return ""
    if dtype in (torch.int8, torch.uint8) and len(shape) >= 2:
        return f"{what} of shape {list(shape)}, which looks quantised"
    if len(shape) >= 1 and (name.endswith("weight") or name.rpartition(".")[2] == "bias"):
        return f"{what} of shape {list(shape)}, an integer weight"
    return ""


def finite(values: Tensor) -> bool:
    """Whether all are numbers: by their sum, and one by one only where that is none."""
    if values.is_complex():
        values = torch.view_as_real(values)
    wide = values.float() if values.dtype.itemsize == 1 else values
    if math.isfinite((wide.sum(dtype=torch.float32) if wide.dtype.itemsize == 2 else wide.sum()).item()):
        return True
    return bool(torch.isfinite(wide).all())


def refused(name: str, told: str) -> CheckpointError:
    """What a command says that would have written what is no number; `told` says where and how many."""
    return CheckpointError(
        f"{name} would hold NaN or infinite values",
        problems=[told],
        hint="Nothing was written: numbers that went in are too large or too small for what was asked. "
        "See them with: rebasin inspect FILE",
    )


def _masks(values: Tensor) -> bool:
    wide = values.float() if values.dtype.itemsize == 1 else values
    return bool(((wide == 0) | (wide == -math.inf)).all())


class Wrong:
    """What of a tensor is no number, seen chunk by chunk; "" where nothing is, and of masks of 0 and −∞."""

    def __init__(self, shape: tuple[int, ...]):
        self._shape, self._nan, self._infinite, self._seen = shape, 0, 0, 0
        self._first: int | None = None
        self._mask = True  # as far as was seen

    def look(self, chunk: Tensor) -> None:
        self._mask = self._mask and _masks(chunk[:1]) and _masks(chunk)
        if not finite(chunk):
            values = chunk.float() if chunk.dtype.itemsize == 1 else chunk  # isfinite does not know float8
            wrong = ~torch.isfinite(values)
            if self._first is None:
                self._first = self._seen + int(wrong.to(torch.uint8).argmax())
            nan = int(torch.isnan(values).sum())
            self._nan += nan
            self._infinite += int(wrong.sum()) - nan
        self._seen += chunk.numel()

    def __str__(self) -> str:
        if self._first is None or self._mask:
            return ""
        found = ((self._nan, "NaN"), (self._infinite, "infinite"))
        counts = [f"{count:,} {word}" for count, word in found if count]
        at = [int(position) for position in np.unravel_index(self._first, self._shape)]
        return f"{' and '.join(counts)} of {self._seen:,} values, first at {at}"
