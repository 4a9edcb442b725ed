"""The weights that a command writes, with what belongs beside them: a permutation, copies, provenance.

Whether they can be written is asked before any work; they are written completely or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...checkpoints import destination, units, writer
from ...checkpoints import torch_writer as provenance_beside
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.locate import TORCH_SUFFIXES
from ...checkpoints.pieces import METADATA
from ...checkpoints.stages import Staging, staged
from ...checkpoints.tensors import LazyTensors, rows
from ...errors import CheckpointError, OutputExists, UsageError
from ...runtime import files
from ...runtime.files import Inputs, check_distinct
from ...runtime.ranks import ALONE, Ranks
from ...runtime.sizes import parse_size
from ...runtime.text import some
from ...session.listener import SILENT
from ...symmetry import stored
from .report_files import check_files, removed_on_failure

SHOWN = 3  # tensors that a line names


@dataclass(frozen=True)
class Output:
    """Where and how weights are written.

    `layout` says of tensors which file of several they go to; `folder` is one that may have to be made, and
    `copies` are files that belong beside the weights in it: their names and contents (`folders.inside`).
    `attest` is a file for the statement on where the weights come from. `distributed`: it is a folder of DCP,
    and `path` its metadata.
    """

    path: Path
    force: bool = False
    shard_size: int | None = None
    dtype: Any = None
    resume: bool = False
    dry_run: bool = False
    layout: Mapping[str, str] | None = None
    folder: Path | None = None
    copies: Mapping[str, bytes] = field(default_factory=dict)
    attest: Path | None = None
    distributed: bool = False


def output_of(asked: Any, otherwise: Path | None = None) -> Output:
    """The output that an operation asks for, in a folder where a text names one; `otherwise` for none."""
    named: str | Path = asked.out or otherwise or ""
    path, size, dtype = Path(named), asked.out_shard_size, asked.out_dtype
    if distributed := asked.out_format is not None:
        path, named = _as_folder(path, given=asked.out is not None), f"{path}/"
        if size is not None:
            raise UsageError("--out-shard-size: a folder of DCP has no such shards", hint="Drop it")
    inside = isinstance(named, str) and path.name not in ("", "..")  # nobody means a model by "." or "/"
    return Output(
        path / METADATA if distributed else path,
        asked.force,
        parse_size(size, "--out-shard-size") if size else None,
        units.parse_dtype(dtype) if dtype else None,
        getattr(asked, "resume", False),
        getattr(asked, "dry_run", False),
        folder=path if inside and (str(named).endswith("/") or path.is_dir()) else None,
        attest=asked.attest,
        distributed=distributed,
    )


def _as_folder(path: Path, *, given: bool) -> Path:
    """The folder that is written: where a command would write a file, that without its suffix."""
    if path.name.endswith(files.WEIGHTS):
        if given:
            raise UsageError(f"{path}: --out-format dcp writes a folder", hint=f"Use {path.with_suffix('')}/")
        return path.with_suffix("")
    return path


def default_path(model: Path, what: str) -> Path:
    """`b_aligned.safetensors` in the working directory, for a model `elsewhere/b.pt`."""
    name = model.name or model.resolve().name
    suffix = next((suffix for suffix in files.WEIGHTS if name.endswith(suffix)), "")
    return Path(f"{name.removesuffix(suffix)}_{what}.safetensors")


def check_outputs(
    output: Output, inputs: Inputs, *, permutation_beside: bool = False, as_torch: bool = False
) -> None:
    """Whether everything can be written by a command that reads `inputs`, before any work.

    `as_torch`: weights may also be written as torch.save does, by the name of the output.
    """
    attest = [] if output.attest is None else [("statement", output.attest)]
    check_distinct([("weights", output.path), *attest])
    check_files(attest, inputs, force=output.force)
    if output.folder is not None and not output.folder.exists():
        destination.check_report_folder(output.folder)
        files.check_output(output.path, inputs, weights=True)  # a new folder may lie in one that is read
        return
    if output.distributed:
        destination.check_distributed(output.path, force=output.force, inputs=inputs)
        for path in map(output.path.with_name, output.copies):
            destination.check_output(path, force=output.force, text=True, inputs=inputs)
        return
    suffixes = (destination.SUFFIX, *TORCH_SUFFIXES) if as_torch else (destination.SUFFIX,)
    destination.check_output(
        output.path, force=output.force, layout=output.layout, inputs=inputs, suffixes=suffixes
    )
    if output.path.suffix in TORCH_SUFFIXES:
        if output.shard_size is not None:
            raise UsageError(f"{output.path}: shards are safetensors", hint="Drop --out-shard-size")
        about = provenance_beside.of(output.path)
        check_distinct([("provenance", about), *attest])
        destination.check_output(about, force=output.force, text=True, inputs=inputs)
    if permutation_beside:
        beside = stored.beside(output.path)
        check_distinct([("permutation", beside), *attest])
        destination.check_output(beside, force=output.force, inputs=inputs)
    for path in map(output.path.with_name, output.copies):
        destination.check_output(path, force=output.force, text=True, inputs=inputs)


def check_state(path: Path, what: str, inputs: Inputs, *, again: bool) -> None:
    """Whether something ("training") may keep its state here; one that is there is gone on with, or not.

    Raises UsageError and OutputExists.
    """
    files.check_output(path, inputs)
    article = "an" if what[0] in "aeiou" else "a"
    if path.exists() and not again:
        raise OutputExists(
            f"{path} exists: {article} {what} was interrupted",
            hint="Go on with --resume, or start anew with --force",
        )


def write(
    output: Output,
    tensors: Mapping[str, Any],
    like: Checkpoint,
    metadata: dict[str, str],
    *,
    added: Sequence[str] = (),
    around: Checkpoint | None = None,
    stage: Staging | None = None,
    tell: Callable[[str], None] | None = None,
    say: Callable[[str], None] = SILENT.say,
    ranks: Ranks = ALONE,
) -> list[str]:
    """Write with the names, order and dtypes of the reference, `added` names last; the files written.

    `around` is whose envelope a torch file gets (the reference's). `tell` is as in `write_safetensors`,
    `say` and `ranks` as in `write_as_planned`.
    Raises CheckpointError for integers that the reference's dtype does not hold.
    """
    shapes = {**like.shapes} | {name: tuple(tensors[name].shape) for name in added}
    dtypes = {**like.dtypes} | {name: tensors[name].dtype for name in added}
    named = LazyTensors(
        shapes,
        dtypes,
        lambda name: _counted(name, tensors[name], dtypes[name]),
        lambda name, *part: _counted(name, rows(tensors, name, *part), dtypes[name]),
    )
    how: dict[str, Any] = {"stage": stage, "tell": tell, "say": say, "ranks": ranks}
    return write_as_planned(output, named, metadata, around=around or like, **how)


def _counted(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Integers in the reference's dtype: one model may count its batches in another than the next."""
    if tensor.dtype == dtype or (tensor.is_floating_point() and dtype.is_floating_point):
        return tensor  # floating point is rounded where it is written
    found = tensor.to(dtype)
    if not torch.equal(found.double(), tensor.double()):
        own, other = (str(d).removeprefix("torch.") for d in (tensor.dtype, dtype))
        raise CheckpointError(
            f"{name} is {own} in one model and {other} in the reference, which cannot hold its values",
            hint="Save both in one dtype. Nothing was written",
        )
    return found


def write_as_planned(
    output: Output,
    tensors: LazyTensors,
    metadata: dict[str, str],
    *,
    around: Checkpoint,
    looked: Collection[str] = (),
    stage: Staging | None = None,
    tell: Callable[[str], None] | None = None,
    say: Callable[[str], None] = SILENT.say,
    ranks: Ranks = ALONE,
) -> list[str]:
    """Write with the names, order and dtypes that these tensors have; the files written.

    `say` hears in a line where a torch file cannot be as the one that it is written like.

    They appear together with what belongs beside them, or nothing does. Raises CheckpointError where a tensor
    holds NaN or infinity, but for those that were `looked` at, or are copied as they are. Several `ranks`,
    which have the same tensors, write safetensors together, and the first one all else.
    """
    copies = {output.path.with_name(name): content for name, content in output.copies.items()}
    with ExitStack() as whole:
        ranks.first(_make, output, whole)
        if copies and stage is None:
            stage = whole.enter_context(staged(output.path.parent, ranks))
        for path, content in copies.items():
            ranks.first(writer.write_text_atomic, path, content, force=output.force, stage=stage)
        layout = output.layout
        if layout is not None:  # tensors that it does not know go to its last file
            last = max(layout.values())
            layout = {name: layout.get(name, last) for name in tensors}
        how: dict[str, Any] = {
            "metadata": metadata,
            "force": output.force,
            "out_dtype": output.dtype,
            "stage": stage,
            "finite": tensors.keys() - {*looked},
            "tell": tell,
        }
        if output.distributed:
            written = ranks.first(writer.write_distributed, output.path, tensors, **how)
        elif output.path.suffix in TORCH_SUFFIXES:
            envelope, homeless = around.envelope_of(tensors)
            if homeless:
                say(
                    f"{output.path} holds tensors under their names alone: what lies around them in "
                    f"{around.path} has no place for {some(homeless, SHOWN)}"
                )
            written = ranks.first(writer.write_torch, output.path, tensors, envelope, **how)
        else:
            written = writer.write_safetensors(
                output.path, tensors, shard_size=output.shard_size, layout=layout, ranks=ranks, **how
            )
    return [str(path) for path in (*written, *copies)]


def _make(output: Output, whole: ExitStack) -> None:
    """Make the folder of an output that names one; where it is new it is gone again if `whole` fails."""
    if output.folder is not None:
        whole.enter_context(removed_on_failure(output.path))
        destination.make_folder(output.folder)


def write_with_permutation(
    output: Output,
    tensors: Mapping[str, Any],
    like: Checkpoint,
    save: Callable[..., None],
    metadata: dict[str, str],
    around: Checkpoint,
) -> list[str]:
    """Weights and the permutation beside them, both or neither; the latter says whose it is.

    `save` writes it to a path, as `symmetry.stored.save` does.
    """
    beside = stored.beside(output.path)
    with ExitStack() as whole:
        _make(output, whole)
        stage = whole.enter_context(staged(output.path.parent))
        told: list[str] = []
        written = write(output, tensors, like, metadata, around=around, stage=stage, tell=told.append)
        (digest,) = told or [writer.staged_digest(stage, [Path(file) for file in written])]
        whose = {stored.WEIGHTS: digest}
        save(beside, metadata=metadata | whose, force=output.force, stage=stage)
    return [*written, str(beside)]
