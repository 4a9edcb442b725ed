"""`rebasin merge-driver`: git's three-way merge of a checkpoint (docs/git.md)."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..averages.threeway import WEIGHTS, ThreeWay, merged_text, mixed, three_way
from ..averages.untrained import check_untrained
from ..checkpoints.checkpoint import open_checkpoint
from ..checkpoints.writer import write_safetensors
from ..errors import CheckpointError, MergeConflict, OutputExists, RebasinError, UsageError
from ..registry.options import PLAIN, READS, REPLACES, WRITES, argument, option
from ..registry.results import UNSET, Result, Unset
from ..runtime import files
from ..runtime.files import Inputs
from ..session.listener import SILENT, Listener
from ..session.models import naming
from ..session.outcomes import Answer, Screen
from .merging import declared
from .verbs import provenance

POINTER = b"version https://git-lfs"
ONE_SIDE = "Take one side: git checkout --ours|--theirs"
NO_ANCESTOR: Mapping[str, Tensor] = {}


PANEL = "Align and merge"
HIDDEN = True  # git calls it
STEP = False
_NUMBER = re.compile("[0-9]+")


@dataclass(frozen=True, kw_only=True)
class MergeDriver(Screen):
    """Three-way merge of a checkpoint in git: what one side changed is taken, what both changed is mixed.

    Exits with 1 where there is a conflict, and leaves OURS as it is. docs/git.md tells how to set it up.

    Example: rebasin merge-driver base.safetensors ours.safetensors theirs.safetensors -o merged.safetensors
    """

    base: Path = argument("BASE", "%O: the common ancestor; empty for none.", role=READS)
    ours: Path = argument("OURS", "%A: ours, which becomes the result.", role=REPLACES)
    theirs: Path = argument("THEIRS", "%B: theirs.", role=READS)
    marker: str | None = argument(
        "MARKER", "%L: the size of conflict markers; not used.", default=None, role=PLAIN
    )
    path: str | None = argument("PATH", "%P: the file's name in git.", default=None, role=PLAIN)
    both: str | None = option(
        None,
        "What both changed: average, sum (both changes in full), ours, theirs or conflict; average "
        "if left out, conflict without an ancestor.",
        metavar="HOW",
        role=PLAIN,
    )
    repair: str = option(
        "auto",
        "none mixes running statistics; else that is a conflict.",
        metavar="auto|none",
        role=PLAIN,
    )
    out: Path | None = option(
        None,
        "Write here, where nothing is, instead of to OURS; without PATH.",
        also=("-o",),
        metavar="FILE",
        role=WRITES,
    )
    json: bool = Answer.json


@dataclass(frozen=True)
class MergeDriverResult(Result):
    """What was `written`, as git calls it; of how many `tensors` whose was taken; which were `removed`."""

    written: str
    tensors: Mapping[str, int]
    removed: list[str] | Unset = UNSET


def run(asked: MergeDriver, listener: Listener = SILENT) -> MergeDriverResult:
    """Merge `theirs` into `ours` by their ancestor `base`; the result replaces `ours`, or is `out`.

    `path` is what git calls the file, and nothing is written there. An empty `base` is no ancestor. Raises
    MergeConflict, and what keeps the files from being read; `ours` is then as it was.
    """
    path, both = asked.path, asked.both
    if asked.repair not in ("auto", "none"):
        raise UsageError(f"--repair {asked.repair}: a merge in git has no data", hint="Choose auto or none")
    if path is None and asked.marker is not None and not _NUMBER.fullmatch(asked.marker):
        path = asked.marker  # a line without %L
    name = str(asked.ours) if path is None else path
    versions = {"the ancestor": asked.base, "ours": asked.ours, "theirs": asked.theirs}
    written = _written(versions, path, asked.out)
    with _called(path, versions):
        empty = _check_kind(name, versions)
        models = {role: open_checkpoint(file) for role, file in versions.items() if role not in empty}
        for role in ("ours", "theirs"):
            if role not in models:
                raise CheckpointError(f"{versions[role]} is empty (0 bytes)")
        if models["ours"].format == "torch":
            raise UsageError(
                f"{name} is a file of torch.save, and merges are written as safetensors",
                hint="Keep safetensors in git, or settle it by hand: git checkout --ours|--theirs "
                f"-- {shlex.quote(name)}",
            )
        one, other = models["ours"], models["theirs"]
        ancestor = models.get("the ancestor", NO_ANCESTOR)
        found = three_way(ancestor, one, other, both=both, statistics=asked.repair == "none")
        if found.conflicts:
            raise _conflict(name, found, bool(len(ancestor)))
        averaged = {tensor for tensor, side in found.taken.items() if side in WEIGHTS}
        if averaged:
            taken = [tensor for tensor in found.taken if tensor in one and tensor in other]
            whole = [tensor for tensor in taken if not one.dtypes[tensor].is_floating_point]
            tables = [tensor for tensor in taken if tensor not in {*whole}]
            with naming([versions["ours"], versions["theirs"]]):
                check_untrained([one, other], tables, whole, ONE_SIDE)
                declared.check([one, other], averaged, listener.say, hint=ONE_SIDE)
        called = [str(one.path), str(other.path)]
        tensors = mixed(ancestor, one, other, found, called, listener.step)
        text = merged_text(getattr(ancestor, "metadata", {}), one.metadata, other.metadata)
        options = {"both": both or "average"} if averaged else {}
        both_of = [one, other]
        meta = {key: value for key, value in text.items() if not key.startswith("rebasin.")}
        meta |= provenance.describe(
            "merge-driver", both_of, None, method="none", seed=0, options=options, like=both_of
        )
        write_safetensors(written, tensors, metadata=meta, force=True, any_name=True)
    counts = Counter(found.taken.values())
    listener.say(f"{name}: {_in_words(counts, found)}")
    removed = list(found.removed) if found.removed else UNSET
    return MergeDriverResult(str(written) if path is None else path, dict(sorted(counts.items())), removed)


def _written(versions: Mapping[str, Path], path: str | None, output: Path | None) -> Path:
    """The file that becomes the result: ours, or an `output` of somebody who merges by hand.

    Raises UsageError for a `path` that leads out of the repository, and where nothing may be written.
    """
    if path is not None and (not path or os.path.isabs(path) or ".." in re.split(r"[/\\]", path)):
        raise UsageError(
            f"{path!r} is no path in a repository", hint="git writes it for %P (docs/git.md); leave it out"
        )
    if output is None:
        files.check_output(versions["ours"], Inputs((versions["the ancestor"], versions["theirs"])))
        return versions["ours"]
    if path is not None:
        raise UsageError(
            f"--out {output}: where git names the file ({path}), the result is to be where ours is",
            hint="Leave --out or PATH out",
        )
    files.check_output(output, Inputs(tuple(versions.values())))
    if output.exists() and output.stat().st_size:  # Git LFS gives an empty one
        raise OutputExists(f"{output} exists", hint="Name another file")
    return output


def _check_kind(name: str, versions: Mapping[str, Path]) -> set[str]:
    """Which are empty. Raises UsageError for pointers of Git LFS, and for an index of shards."""
    empty = set()
    for role, file in versions.items():
        try:
            with files.opened(file) as opened:
                head = opened.read(64)
        except OSError as cause:
            raise CheckpointError(f"{file} cannot be read: {cause.strerror}") from cause
        if head.startswith(POINTER):
            raise UsageError(
                f"{name}: git gives pointers of Git LFS to merge, not the weights",
                problems=[str(file)],
                hint='Let Git LFS fetch them for the driver (docs/git.md, "Git LFS"): git config '
                "merge.rebasin.driver 'git lfs merge-driver …'",
            )
        if head.lstrip().startswith(b"{"):
            raise UsageError(
                f"{name} is JSON: an index of shards is text, which git merges itself",
                hint="Name the driver for *.safetensors alone in .gitattributes",
            )
        if not head:
            empty.add(role)
    return empty


@contextmanager
def _called(path: str | None, versions: Mapping[str, Path]) -> Iterator[None]:
    """Put git's name of the file, and whose version it is, for the temporary names that git gives.

    Files that git does not name are called as they are.
    """
    called = {} if path is None else {str(file): f"{path} ({role})" for role, file in versions.items()}
    names = re.compile("|".join(rf"(?<![\w./\\]){re.escape(name)}(?!\w)" for name in called) or r"(?!)")

    def told(text: str) -> str:
        return names.sub(lambda found: called[found.group()], text)

    try:
        yield
    except RebasinError as error:
        error.message, error.problems = told(error.message), tuple(map(told, error.problems))
        error.hint = error.hint and told(error.hint)
        raise


def _conflict(name: str, found: ThreeWay, ancestor: bool) -> MergeConflict:
    file = f"-- {shlex.quote(name)}"
    hint = f"Take one side: git checkout --ours|--theirs {file}; or choose for all with --both ours|theirs"
    if not ancestor:
        hint = (
            "There is no common ancestor, so nothing says that they share a basin: take one side (git "
            f"checkout --ours|--theirs {file}), or merge the two with: rebasin merge"
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
