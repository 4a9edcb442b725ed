"""`rebasin merge-driver`: git's three-way merge of a checkpoint (docs/git.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ..averages.threeway import WEIGHTS, ThreeWay, merged_text, mixed, three_way
from ..checkpoints.checkpoint import open_checkpoint
from ..checkpoints.writing import write_safetensors
from ..errors import CheckpointError, MergeConflict, UsageError
from .job import provenance
from .job.listener import SILENT, Listener
from .job.outputs import appearing
from .job.plain import looked_at

POINTER = b"version https://git-lfs"
NO_ANCESTOR: Mapping[str, Tensor] = {}


def merge_driver(
    base: Path,
    ours: Path,
    theirs: Path,
    listener: Listener = SILENT,
    *,
    path: str | None = None,
    both: str | None = None,
    repair: str = "auto",
    output: Path | None = None,
) -> dict[str, Any]:
    """Merge `theirs` into `ours` by their ancestor `base`; the result replaces `ours`, or is `output`.

    `path` is what git calls the file. An empty `base` is no ancestor. Raises MergeConflict, and what keeps
    the files from being read; `ours` is then as it was.
    """
    name = path or str(ours)
    files = {"the ancestor": base, "ours": ours, "theirs": theirs}
    _check_kind(name, files)
    with _called(name, files):
        models = {role: open_checkpoint(file) for role, file in files.items() if file.stat().st_size}
        for role in ("ours", "theirs"):
            if role not in models:
                raise CheckpointError(f"{files[role]} is empty (0 bytes)")
        if models["ours"].format == "torch":
            raise UsageError(
                f"{name} is a file of torch.save, and merges are written as safetensors",
                hint="Keep safetensors in git, or settle it by hand: git checkout --ours|--theirs FILE",
            )
        one, other = models["ours"], models["theirs"]
        ancestor = models.get("the ancestor", NO_ANCESTOR)
        found = three_way(ancestor, one, other, both=both, statistics=repair == "none")
        if found.conflicts:
            raise _conflict(name, found, bool(len(ancestor)))
        averaged = {tensor for tensor, side in found.taken.items() if side in WEIGHTS}
        tensors = looked_at(mixed(ancestor, one, other, found), averaged, [one, other], listener)
        text = merged_text(getattr(ancestor, "metadata", {}), one.metadata, other.metadata)
        options = {"both": both or "average"} if averaged else {}
        about = {"method": "none", "seed": 0, "options": options, "like": [one, other]}
        meta = {key: value for key, value in text.items() if not key.startswith("rebasin.")}
        meta |= provenance.describe("merge-driver", [one, other], None, **about)
        with appearing(output or ours) as temporary:
            write_safetensors(temporary, tensors, metadata=meta)
    counts = Counter(found.taken.values())
    listener.say(f"{name}: {_in_words(counts, found)}")
    return {"written": str(output or ours), "tensors": dict(sorted(counts.items()))} | (
        {"removed": list(found.removed)} if found.removed else {}
    )


def _check_kind(name: str, files: Mapping[str, Path]) -> None:
    """Raise UsageError for what is no checkpoint's own bytes: pointers of Git LFS, an index of shards."""
    for role, file in files.items():
        try:
            with open(file, "rb") as opened:
                head = opened.read(64)
        except OSError as cause:
            raise CheckpointError(f"{name}, {role}: {file} cannot be read: {cause.strerror}") from cause
        if head.startswith(POINTER):
            raise UsageError(
                f"{name}: git gives pointers of Git LFS to merge, not the weights",
                problems=[f"{role}  {file}"],
                hint='Let Git LFS fetch them for the driver (docs/git.md, "Git LFS"): git config '
                "merge.rebasin.driver 'git lfs merge-driver …'",
            )
        if head.lstrip().startswith(b"{"):
            raise UsageError(
                f"{name} is JSON: an index of shards is text, which git merges itself",
                hint="Name the driver for *.safetensors alone in .gitattributes",
            )


@contextmanager
def _called(name: str, files: Mapping[str, Path]) -> Iterator[None]:
    """Put git's name of the file, and whose version it is, for the temporary names that git gives."""

    def told(text: str) -> str:
        for role, file in files.items():
            text = text.replace(str(file), f"{name} ({role})")
        return text

    try:
        yield
    except CheckpointError as error:
        problems = [told(problem) for problem in error.problems]
        raise type(error)(told(error.message), problems=problems, hint=error.hint) from None


def _conflict(name: str, found: ThreeWay, ancestor: bool) -> MergeConflict:
    files = f"-- {name}"
    hint = f"Take one side: git checkout --ours|--theirs {files}; or choose for all with --both ours|theirs"
    if not ancestor:
        hint = (
            "There is no common ancestor, so nothing says that they share a basin: take one side (git "
            f"checkout --ours|--theirs {files}), or merge the two with: rebasin merge"
        )
    return MergeConflict(
        f"{name}: {len(found.conflicts)} of {len(found.conflicts) + len(found.taken)} tensors conflict",
        problems=[f"{tensor}  {why}" for tensor, why in found.conflicts.items()],
        hint=hint,
    )


def _in_words(counts: Mapping[str, int], found: ThreeWay) -> str:
    words = {"ours": "ours", "theirs": "theirs", "average": "averaged", "sum": "with both changes"}
    told = [f"{count} {words[side]}" for side, count in sorted(counts.items())]
    return f"tensors merged: {', '.join(told)}" + f", {len(found.removed)} removed" * bool(found.removed)
