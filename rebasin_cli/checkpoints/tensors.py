"""Named tensors, wherever they come from: read in chunks, checked, digested. Nothing here opens a file.

Every function takes a mapping from names to tensors. One that also has `shapes` and `dtypes` (a
`Checkpoint`, a `LazyTensors`) is asked for a tensor only when its values are needed, one at a time.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError, UsageError
from .safetensors_format import CODES

CHUNK = 1 << 22  # bytes worked on at once: small enough for the allocator to give them back
NOT_PLAIN = "a quantised or unknown dtype"


def in_memory(tensor: Tensor) -> list[int]:
    """The axes as they lie in memory, outermost first."""
    return sorted(range(tensor.ndim), key=tensor.stride, reverse=True)


def plain(models: Iterable[Mapping[str, Tensor]]) -> list[Mapping[str, Tensor]]:
    """The models, without their gradients' history. Raises UsageError for what is no mapping to tensors."""
    if isinstance(models, Mapping):
        raise UsageError("the models are one mapping", hint="Give a list of state dicts: [a, b]")
    return [_plain(k, model) for k, model in enumerate(models, start=1)]


def _plain(number: int, model: Any) -> Mapping[str, Tensor]:
    if not isinstance(model, Mapping):
        raise UsageError(
            f"model {number} is of type {type(model).__name__}, not a mapping of names to tensors",
            hint="Give a state dict: network.state_dict(), or rebasin_cli.open_checkpoint(path)",
        )
    if hasattr(model, "shapes") and hasattr(model, "dtypes"):  # read when asked for
        return model
    wrong = [f"{name!r}  is no name" for name in model if not isinstance(name, str)]
    wrong += [
        f"{name}  is of type {type(value).__name__}"
        for name, value in model.items()
        if not isinstance(value, Tensor)
    ]
    if wrong:
        raise UsageError(f"model {number} is not a mapping of names to tensors", problems=wrong)
    if not any(value.requires_grad for value in model.values()):
        return model
    return {name: value.detach() for name, value in model.items()}


class LazyTensors(Mapping[str, Tensor]):
    """Tensors that are computed when asked for: `shapes` and `dtypes` are known, `get(name)` makes one.

    `rows(name, start, stop)`, where given, makes a part of the first axis without making the whole.

    >>> doubled = LazyTensors({"w": (2,)}, {"w": torch.float32}, lambda name: 2 * torch.ones(2))
    >>> doubled["w"]
    tensor([2., 2.])
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtypes: Mapping[str, torch.dtype],
        get: Callable[[str], Tensor],
        rows: Callable[[str, int, int], Tensor] | None = None,
    ):
        self.shapes, self.dtypes, self._get, self._rows = dict(shapes), dict(dtypes), get, rows
        self._whole: tuple[str, Tensor] | None = None  # the tensor that `rows` is asked for in parts

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        if self._rows is not None:
            return self._rows(name, start, stop)
        if self._whole is None or self._whole[0] != name:  # made once, not again for every part
            self._whole = None
            self._whole = name, self[name]
        return self._whole[1][start:stop]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes  # the inherited one would compute the tensor


class _Held(LazyTensors):
    """A checkpoint's tensors, each read once."""

    def __init__(self, model: Mapping[str, Tensor]):
        kept: dict[str, Tensor] = {}

        def get(name: str) -> Tensor:
            if name not in kept:
                kept[name] = model[name]
            return kept[name]

        super().__init__(model.shapes, model.dtypes, get)


def held(model: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same model; what reads a tensor from a file whenever it is asked for reads it once."""
    return _Held(model) if hasattr(model, "read_rows") else model


def plan_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Dtype and shape of every tensor, without reading values where the mapping knows them."""
    if hasattr(tensors, "shapes") and hasattr(tensors, "dtypes"):
        return {name: (tensors.dtypes[name], tuple(tensors.shapes[name])) for name in tensors}
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def rows(tensors: Mapping[str, Tensor], name: str, start: int, stop: int) -> Tensor:
    """Part of one tensor's first axis, made without the rest where the mapping knows how."""
    own = getattr(tensors, "rows", None)
    return tensors[name][start:stop] if own is None else own(name, start, stop)


def replaced(tensors: Mapping[str, Tensor], by: Mapping[str, Tensor]) -> LazyTensors:
    """`tensors` with some replaced, and what is new at the end; names, order and dtypes stay."""
    plan = plan_of(tensors)
    new = {name: tensor for name, tensor in by.items() if name not in plan}
    wide = next((dtype for dtype, _ in plan.values() if dtype.is_floating_point), torch.float32)
    shapes = {name: shape for name, (_, shape) in plan.items()}
    shapes |= {name: tuple(tensor.shape) for name, tensor in new.items()}
    dtypes = {name: dtype for name, (dtype, _) in plan.items()} | {name: wide for name in new}

    def get(name: str) -> Tensor:
        return by[name].to(dtypes[name]) if name in by else tensors[name]

    def part(name: str, start: int, stop: int) -> Tensor:
        return get(name)[start:stop] if name in by else rows(tensors, name, start, stop)

    return LazyTensors(shapes, dtypes, get, part)


def blocks(tensors: Mapping[str, Tensor], name: str, size: int = CHUNK) -> Iterator[Tensor]:
    """One tensor in pieces of its first axis, about `size` bytes each where they are made on demand."""
    if not hasattr(tensors, "rows"):
        yield tensors[name]
        return
    shape, dtype = tensors.shapes[name], tensors.dtypes[name]
    bytes_a_row = math.prod(shape[1:]) * dtype.itemsize
    if not shape or shape[0] * bytes_a_row <= size:
        yield tensors[name]
        return
    step = max(1, size // bytes_a_row)
    for start in range(0, shape[0], step):
        yield tensors.rows(name, start, min(start + step, shape[0]))


def chunks(tensor: Tensor, size: int = CHUNK) -> Iterator[Tensor]:
    """The values in row-major order as contiguous 1-d tensors on the CPU, at most `size` bytes each.

    A view where the memory allows it, else a copy of one chunk at a time.
    """
    tensor = tensor.detach()
    count = max(1, size // tensor.dtype.itemsize)
    if tensor.is_contiguous():
        for chunk in tensor.reshape(-1).split(count):
            yield chunk.cpu()
    elif tensor.numel() <= count:
        yield tensor.contiguous().reshape(-1).cpu()
    else:
        rows = max(1, count // math.prod(tensor.shape[1:]))
        for part in tensor.split(rows) if rows > 1 else tensor:
            yield from chunks(part, size)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 (hexadecimal) of names, dtypes, shapes and values, whatever file they came from.

    Independent of the order of the mapping and of how a tensor lies in memory. Raises CheckpointError
    where a dtype is none that a safetensors file can hold (quantised, complex of double precision).
    """
    total = hashlib.sha256()
    for name, (dtype, shape) in sorted(plan_of(tensors).items()):
        if dtype not in CODES:
            raise CheckpointError(f"{name} is {dtype}: {NOT_PLAIN}")
        # A JSON line a tensor, so that no two sets of tensors can read as the same bytes.
        total.update(json.dumps([name, CODES[dtype], shape]).encode() + b"\n")
        for block in blocks(tensors, name):
            for chunk in chunks(block):
                total.update(chunk.view(torch.uint8).numpy())
    return total.hexdigest()


def validate(tensors: Mapping[str, Tensor], *, name: str = "") -> None:
    """Check that these tensors can be averaged: finite floating point, with integers only as buffers.

    Refused, all of them in one error: NaN and infinity; complex; torch's quantised dtypes; int8 and
    uint8 of two or more dimensions, and integers of one or more dimensions whose name ends in "weight"
    or in ".bias" (quantised or packed weights). Allowed: every floating-point dtype, bool, and other
    integers (`num_batches_tracked`, `position_ids`). Values are read tensor by tensor, in chunks.

    `name` is what messages call the tensors: by default a Checkpoint's own path. Raises CheckpointError.
    """
    problems, not_finite, kind = [], False, False
    for key, (dtype, shape) in plan_of(tensors).items():
        wrong = wrong_dtype(key, dtype, shape)
        if wrong:
            kind = True
            problems.append(f"{key}  {wrong}")
        elif dtype.is_floating_point and (wrong := _wrong_values(blocks(tensors, key), shape)):
            not_finite = True
            problems.append(f"{key}  {wrong}")
    if problems:
        hints = [
            "Only floating-point weights can be permuted and averaged: convert them first." if kind else "",
            "Training diverged or the file is damaged: use an earlier checkpoint." if not_finite else "",
        ]
        raise CheckpointError(
            f"{name or getattr(tensors, 'path', 'these tensors')} cannot be used",
            problems=problems,
            hint=" ".join(filter(None, hints)),
        )


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


def _wrong_values(parts: Iterable[Tensor], shape: tuple[int, ...]) -> str:
    nan = infinite = seen = 0
    first = None
    for chunk in (chunk for part in parts for chunk in chunks(part)):
        values = chunk.float() if chunk.dtype.itemsize == 1 else chunk  # isfinite does not know float8
        finite = torch.isfinite(values)
        if not finite.all():
            if first is None:
                first = seen + int((~finite).to(torch.uint8).argmax())
            chunk_nan = int(torch.isnan(values).sum())
            nan += chunk_nan
            infinite += int((~finite).sum()) - chunk_nan
        seen += chunk.numel()
    if first is None:
        return ""
    counts = [f"{count:,} {word}" for count, word in ((nan, "NaN"), (infinite, "infinite")) if count]
    return f"{' and '.join(counts)} of {seen:,} values, first at {_position(first, shape)}"


def _position(index: int, shape: tuple[int, ...]) -> list[int]:
    position = []
    for size in reversed(shape):
        index, here = divmod(index, size)
        position.append(here)
    return position[::-1]
