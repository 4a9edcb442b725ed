"""Named tensors to safetensors files, and text to text files: completely or not at all.

Files are written beside their names and renamed together, as `staging` says. Tensors are asked for one at
a time, so memory stays bounded by the largest. The same tensors and metadata give the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..errors import OutputExists, UsageError, unknown
from ..runtime.files import TORCH_SUFFIXES
from ..types import Tensors
from . import distributed, distributed_writing, torch_writing
from .checking import WritingDigest, Wrong, digest, hashing, refused
from .destination import SUFFIX, check_output, check_space, earlier, earlier_distributed, index_of
from .disk import disk, resource_error
from .safetensors_format import CODES, SafetensorsFile, encode_header, is_text, nbytes
from .staging import Staging, staged
from .tensors import LazyTensors, blocks, chunks, plan_of

Plan = dict[str, tuple[torch.dtype, tuple[int, ...]]]

DTYPE_NAMES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
_SHORT = {
    **{"f64": "float64", "fp64": "float64", "double": "float64"},
    **{"f32": "float32", "fp32": "float32", "float": "float32", "single": "float32"},
    **{"f16": "float16", "fp16": "float16", "half": "float16"},
    **{"bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"},
}
_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{ending}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for ending, base in (("b", 1000), ("", 1000), ("ib", 1024))
}


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Tensors,
    *,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
    shard_size: int | None = None,
    out_dtype: torch.dtype | None = None,
    layout: Mapping[str, str] | None = None,
    any_name: bool = False,
    finite: Collection[str] = (),
    stage: Staging | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Path]:
    """Write all tensors; return the files written, an index last.

    `tensors` is a dict, a Checkpoint or a LazyTensors. The latter two decide dtypes and shapes before a
    value is read; a floating-point tensor that comes in another precision is converted to its `dtypes`
    entry, or to `out_dtype`, which applies to floating-point tensors only. Tied tensors are written once
    for every name. `metadata` is text to text; `format: pt` is added, as Hugging Face's loaders demand.

    With `shard_size` (bytes of tensors) smaller than the whole: NAME-00001-of-00003.safetensors … and
    NAME.safetensors.index.json; a tensor larger than a shard gets one of its own. Either all of these
    files appear or none. With `force` they take the place of an earlier output, whichever form it had. With
    a `stage` in the same folder they wait there for others. `layout` says of every tensor which file beside
    NAME.safetensors.index.json it is written to instead. With `any_name` the file need not be called so.
    Where it is one file, `tell` may hear its digest, which was computed beside the writing. The tensors that
    `finite` names are looked at while they are written.

    Raises what `check_output` raises; ResourceError where the disk is full or fails; UsageError where a
    value is beyond the range of its output dtype; CheckpointError where one of `finite` holds NaN
    or infinity.
    """
    path = check_output(path, force=force, text=any_name, layout=layout)
    plan = _output_plan(tensors, out_dtype)
    texts = {"format": "pt", **_texts(metadata)}
    total = sum(nbytes(*planned) for planned in plan.values())
    check_space(path.parent, total)
    shards = _shards(plan, shard_size) if layout is None else _shards_by(plan, layout)
    with _in(stage, path) as stage:
        stage.replaces(lambda: _giving_way(earlier(path, layout), force))
        if len(shards) == 1 and layout is None:
            with stage.open(path) as file:
                _write_file(file, path, shards[0], tensors, texts, finite, tell)
            return [path]
        files = _shard_names(path, len(shards)) if layout is None else sorted(set(layout.values()))
        for shard, name in zip(shards, files, strict=True):
            with stage.open(path.with_name(name)) as file:
                _write_file(file, path, shard, tensors, texts, finite)
        weight_map = {name: file for shard, file in zip(shards, files, strict=True) for name in shard}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        with stage.open(index_of(path)) as file, disk(path):
            file.write((json.dumps(index, indent=2, sort_keys=True) + "\n").encode())
    return [*(path.with_name(name) for name in files), index_of(path)]


def write_torch(
    path: str | os.PathLike[str],
    tensors: Tensors,
    envelope: Any,
    *,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
    out_dtype: torch.dtype | None = None,
    finite: Collection[str] = (),
    stage: Staging | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Path]:
    """The same as a file of `torch.save` in this `envelope`, and the metadata in a file beside it.

    Both appear or none. Raises what `write_safetensors` does.
    """
    path = check_output(path, force=force, suffixes=TORCH_SUFFIXES)
    about = check_output(torch_writing.of(path), force=force, text=True)
    plan = _output_plan(tensors, out_dtype, as_torch=True)
    check_space(path.parent, sum(nbytes(*planned) for planned in plan.values()))
    with _in(stage, path) as stage, hashing() as (add, total):
        stage.replaces(lambda: _giving_way([one for one in (path, about) if one.exists()], force))
        written = WritingDigest(plan, add)

        def put(name: str, record: IO[bytes]) -> None:
            also = written.begin(name)
            _write_tensor(record, path, tensors, name, *plan[name], also, look=name in finite)

        with stage.open(path) as file, disk(path):
            records = torch_writing.write(file, envelope, plan, put)
        with stage.open(about) as file, disk(about):
            file.write(torch_writing.encoded(records, _texts(metadata)))
        whole = written.whole()
    if whole and tell is not None:
        tell(total.hexdigest())
    return [path, about]


def write_distributed(
    path: str | os.PathLike[str],
    tensors: Tensors,
    *,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
    out_dtype: torch.dtype | None = None,
    finite: Collection[str] = (),
    stage: Staging | None = None,
    tell: Callable[[str], None] | None = None,
) -> list[Path]:
    """The same as a folder of torch.distributed.checkpoint; `path` is its `.metadata`, as `locate` has it.

    What an earlier run left there, of as many ranks as it had, gives way. Raises what `write_safetensors`
    does.
    """
    path = check_output(path, force=force, text=True)
    about = check_output(torch_writing.of(path), force=force, text=True)
    plan = _output_plan(tensors, out_dtype, as_torch=True)
    check_space(path.parent, sum(nbytes(*planned) for planned in plan.values()))
    with _in(stage, path) as stage:
        stage.replaces(lambda: _giving_way([*earlier_distributed(path), *([about] * about.exists())], force))
        total = hashlib.sha256()  # known before the metadata is written: on no thread of its own
        written = WritingDigest(plan, total.update)

        def made(name: str) -> Tensor:
            dtype, shape = plan[name]
            values = torch.empty(shape, dtype=dtype)
            into = _Memory(values)
            _write_tensor(into, path, tensors, name, dtype, shape, written.begin(name), look=name in finite)
            return values

        with disk(path):
            files = distributed_writing.write(path.parent, stage, plan, made, total.hexdigest)
        listed = distributed.listing(path, {file.name: stage.staged(file) for file in files})
        with stage.open(about) as file, disk(about):
            file.write(torch_writing.encoded(listed, _texts(metadata)))
        whole = written.whole()
    if whole and tell is not None:
        tell(total.hexdigest())
    return [*files, about]


class _Memory:
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


def write_text_atomic(
    path: str | os.PathLike[str],
    content: str | bytes,
    *,
    force: bool = False,
    stage: Staging | None = None,
) -> Path:
    """Write a report or other small artefact completely or not at all. Raises as `check_output` does.

    With a `stage` in the same folder it waits there for others.
    """
    path = check_output(path, force=force, text=True)
    with _in(stage, path) as stage:
        stage.replaces(lambda: _giving_way([path] * path.exists(), force))
        with stage.open(path) as file, disk(path):
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def _texts(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """Text to text in valid Unicode, which a file name in it need not be."""
    texts = metadata or {}
    if not all(isinstance(text, str) for pair in texts.items() for text in pair):
        raise TypeError("metadata maps text to text")
    return {
        key.encode("utf-8", "backslashreplace").decode(): value.encode("utf-8", "backslashreplace").decode()
        for key, value in texts.items()
    }


def _in(stage: Staging | None, path: Path) -> contextlib.AbstractContextManager[Staging]:
    """The stage that is there, where it is in the folder of `path`; else one of its own."""
    if stage is not None and os.path.realpath(stage.folder) == os.path.realpath(path.parent):
        return contextlib.nullcontext(stage)
    return staged(path.parent)


def _giving_way(there: list[Path], force: bool) -> list[Path]:
    """The files whose place the new ones take; without `force` there must be none by now."""
    if there and not force:
        raise OutputExists(
            f"{there[0]} exists by now: another run wrote it meanwhile",
            hint="Overwrite it with --force, or choose another name; this run wrote nothing.",
        )
    return there


def staged_digest(stage: Staging, files: Sequence[Path]) -> str:
    """The digest of weights that wait in a stage, as `Checkpoint.digest` will tell it."""
    shards = [SafetensorsFile(stage.staged(path)) for path in files if path.suffix == SUFFIX]
    entries = {name: (shard, entry) for shard in shards for name, entry in shard.entries.items()}
    return digest(
        LazyTensors(
            {name: entry.shape for name, (_, entry) in entries.items()},
            {name: entry.dtype for name, (_, entry) in entries.items()},
            lambda name: entries[name][0].tensor(name),
            lambda name, start, stop: entries[name][0].rows(name, start, stop),
        )
    )


def _output_plan(tensors: Tensors, out_dtype: torch.dtype | None, *, as_torch: bool = False) -> Plan:
    """What is written. Raises UsageError for what such a file cannot hold: torch's holds any name."""
    plan = plan_of(tensors)
    if out_dtype is not None:
        plan = {
            name: (out_dtype if dtype.is_floating_point else dtype, shape)
            for name, (dtype, shape) in plan.items()
        }
    wrong = [f"{name}  {dtype}" for name, (dtype, _) in plan.items() if dtype not in CODES]
    if not as_torch:
        wrong += [f"{name}  is a reserved name" for name in plan if name == "__metadata__"]
        wrong += [f"{name!a}  is no text: half of a surrogate pair" for name in plan if not is_text(name)]
    if wrong:
        what = (
            "these tensors cannot be written" if as_torch else "a safetensors file cannot hold these tensors"
        )
        names = not as_torch and all(dtype in CODES for dtype, _ in plan.values())
        raise UsageError(
            what, problems=wrong, hint="Write a file of torch.save: -o NAME.pth" if names else None
        )
    return plan


def _shards(plan: Plan, size: int | None) -> list[Plan]:
    """The plan cut into pieces of at most `size` bytes, names in sorted order."""
    shards: list[Plan] = [{}]
    filled = 0
    for name in sorted(plan):
        here = nbytes(*plan[name])
        if size is not None and shards[-1] and filled + here > size:
            shards.append({})
            filled = 0
        shards[-1][name] = plan[name]
        filled += here
    return shards


def _shards_by(plan: Plan, layout: Mapping[str, str]) -> list[Plan]:
    """The plan as this layout divides it, by file names in sorted order."""
    shards: dict[str, Plan] = {file: {} for file in sorted(set(layout.values()))}
    for name in sorted(plan):
        shards[layout[name]][name] = plan[name]
    return list(shards.values())


def _shard_names(path: Path, count: int) -> list[str]:
    return [f"{path.stem}-{number:05d}-of-{count:05d}{SUFFIX}" for number in range(1, count + 1)]


def _write_file(
    file: IO[bytes],
    path: Path,
    plan: Plan,
    tensors: Tensors,
    metadata: Mapping[str, str],
    finite: Collection[str],
    tell: Callable[[str], None] | None = None,
) -> None:
    header, order = encode_header(plan, metadata)
    with hashing() as (add, total):
        written = WritingDigest(plan, add)
        with disk(path):
            file.write(header)
        for name in order:
            # In a function of its own, so that one tensor is gone before the next is asked for.
            also = None if tell is None else written.begin(name)
            _write_tensor(file, path, tensors, name, *plan[name], also, look=name in finite)
        whole = written.whole()
    if tell is not None and whole:
        tell(total.hexdigest())


def _write_tensor(
    file: IO[bytes] | _Memory,
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


def parse_size(text: str) -> int:
    """Bytes: "2GB" is 2·10⁹, "2GiB" is 2·2³⁰, "1.5 GB" and a bare number work. Raises UsageError."""
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-z]*)\s*", text.lower())
    size = int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if not 1 <= size < 2**63:
        raise UsageError(
            f"{text!r} is not a size", hint="Expected a number with a unit, such as 500MB, 2GB or 2GiB."
        )
    return size


def parse_dtype(text: str) -> torch.dtype:
    """A floating-point dtype for `out_dtype`: "float32", "bf16", "fp16", "half", … Raises UsageError."""
    name = text.strip().lower().removeprefix("torch.")
    name = _SHORT.get(name, name)
    if name not in DTYPE_NAMES:
        raise unknown("dtype", text, DTYPE_NAMES)
    return DTYPE_NAMES[name]
