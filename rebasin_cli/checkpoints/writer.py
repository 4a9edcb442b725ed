"""Named tensors to safetensors files, and text to text files: completely or not at all.

Files are written beside their names and renamed together, as `stages` says. Tensors are asked for one at
a time, so memory stays bounded by the largest. The same tensors and metadata give the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..errors import OutputExists, UsageError
from ..runtime.files import TORCH_SUFFIXES
from ..runtime.ranks import ALONE, Ranks
from ..types import Tensors
from . import dcp_writer, distributed, shards, torch_writer
from .destination import SUFFIX, check_output, check_space, earlier, earlier_distributed, index_of
from .disk import disk
from .safetensors_format import CODES, SafetensorsFile, is_text, nbytes
from .shards import Plan
from .stages import Staging, staged
from .tensor_writer import Memory, write_file, write_tensor, write_together
from .tensors import LazyTensors, plan_of
from .validation import WritingDigest, digest, hashing


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
    ranks: Ranks = ALONE,
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

    Several `ranks` call this alike, with a `stage` that all have. Each makes and writes tensors of its own,
    at the places that the headers say; their number changes no byte (`shards`).

    Raises what `check_output` raises; ResourceError where the disk is full or fails; UsageError where a
    value is beyond the range of its output dtype; CheckpointError where one of `finite` holds NaN
    or infinity.
    """
    path = Path(path)
    ranks.first(check_output, path, force=force, text=any_name, layout=layout)
    plan = _output_plan(tensors, out_dtype)
    texts = ranks.first(lambda: {"format": "pt", **_texts(metadata)})
    total = sum(nbytes(*planned) for planned in plan.values())
    ranks.first(check_space, path.parent, total)
    parts = shards.by_size(plan, shard_size) if layout is None else shards.by_layout(plan, layout)
    whole = len(parts) == 1 and layout is None
    names = shards.names(path, len(parts)) if layout is None else sorted(set(layout.values()))
    files = {path: parts[0]} if whole else dict(zip(map(path.with_name, names), parts, strict=True))
    with _in(stage, path, ranks) as stage:
        stage.replaces(lambda: _giving_way(earlier(path, layout), force))
        if ranks.size > 1:
            write_together(stage, files, tensors, texts, finite, ranks)
        for final, shard in files.items() if ranks.size == 1 else ():
            with stage.open(final) as file:
                write_file(file, path, shard, tensors, texts, finite, tell if whole else None)
        if whole:
            return [path]
        weight_map = {name: file.name for file, shard in files.items() for name in shard}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        with stage.open(index_of(path)) as file, disk(path):
            file.write((json.dumps(index, indent=2, sort_keys=True) + "\n").encode())
    return [*files, index_of(path)]


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
    about, plan = _beside(path, tensors, out_dtype, force)
    with _in(stage, path) as stage, hashing() as (add, total):
        stage.replaces(lambda: _giving_way([one for one in (path, about) if one.exists()], force))
        written = WritingDigest(plan, add)

        def put(name: str, record: IO[bytes]) -> None:
            also = written.begin(name)
            write_tensor(record, path, tensors, name, *plan[name], also, look=name in finite)

        with stage.open(path) as file, disk(path):
            records = torch_writer.write(file, envelope, plan, put)
        with stage.open(about) as file, disk(about):
            file.write(torch_writer.encoded(records, _texts(metadata)))
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
    about, plan = _beside(path, tensors, out_dtype, force)
    with _in(stage, path) as stage:
        stage.replaces(lambda: _giving_way([*earlier_distributed(path), *([about] * about.exists())], force))
        total = hashlib.sha256()  # known before the metadata is written: on no thread of its own
        written = WritingDigest(plan, total.update)

        def made(name: str) -> Tensor:
            dtype, shape = plan[name]
            values = torch.empty(shape, dtype=dtype)
            into = Memory(values)
            write_tensor(into, path, tensors, name, dtype, shape, written.begin(name), look=name in finite)
            return values

        with disk(path):
            files = dcp_writer.write(path.parent, stage, plan, made, total.hexdigest)
        listed = distributed.listing(path, {file.name: stage.staged(file) for file in files})
        with stage.open(about) as file, disk(about):
            file.write(torch_writer.encoded(listed, _texts(metadata)))
        whole = written.whole()
    if whole and tell is not None:
        tell(total.hexdigest())
    return [*files, about]


def _beside(path: Path, tensors: Tensors, out_dtype: torch.dtype | None, force: bool) -> tuple[Path, Plan]:
    """The file beside torch's own that has the metadata, and what is written, once there is room for it."""
    about = check_output(torch_writer.of(path), force=force, text=True)
    plan = _output_plan(tensors, out_dtype, as_torch=True)
    check_space(path.parent, sum(nbytes(*planned) for planned in plan.values()))
    return about, plan


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


def _in(
    stage: Staging | None, path: Path, ranks: Ranks = ALONE
) -> contextlib.AbstractContextManager[Staging]:
    """The stage that is there, where it is in the folder of `path`; else one of its own."""
    if stage is not None and os.path.realpath(stage.folder) == os.path.realpath(path.parent):
        return contextlib.nullcontext(stage)
    return staged(path.parent, ranks)


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
