"""Commands that write files, and what may be there after they were killed at any moment."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.cli.conftest import fresh, rebasin

from . import crashing
from .crashing import Ended, Fault


@dataclass(frozen=True)
class Case:
    """`arguments` of a command that writes files beginning with "out", over an older output or none.

    `older` are arguments that made what lies there already.
    """

    arguments: tuple[str, ...]
    older: tuple[str, ...] | None = None


KEPT = (".search.safetensors", ".training.pt")  # states of what was interrupted
PAIR = ("a.safetensors", "b.safetensors", "-o", "out.safetensors", "--force", "--no-prove")
TURNED = ("b.safetensors", "a.safetensors", "-o", "out.safetensors", "--no-prove")
SHARDS = ("--out-shard-size", "2kB")
CASES = {
    "align": Case(("align", *PAIR)),
    "align over an older one": Case(("align", *PAIR), ("align", *TURNED)),
    "align to shards over shards": Case(("align", *PAIR, *SHARDS), ("align", *TURNED, *SHARDS)),
    "align to one file over shards": Case(("align", *PAIR), ("align", *TURNED, *SHARDS)),
    "merge": Case(("merge", *PAIR)),
    "merge to shards over one file": Case(("merge", *PAIR, *SHARDS), ("merge", *TURNED)),
    "apply": Case(
        ("apply", "p.perm.safetensors", "b.safetensors", "-o", "out.safetensors", "--force"),
        ("merge", *TURNED),
    ),
    "align that keeps every sweep": Case(("align", *PAIR, "--checkpoint-every", "1")),
}
TRAINED = Case(
    ("train", "mlp", "--data", "digits", "--width", "4", "--depth", "1", "--epochs", "2", "--limit", "64")
    + ("-o", "out.safetensors", "--force")
)


def inputs(folder: Path) -> Path:
    """Two models and a permutation, which no case changes."""
    folder.mkdir(parents=True)
    for k, name in enumerate("ab"):
        fresh(folder / f"{name}.safetensors", seed=k, width=12, depth=2)
    a, b = folder / "a.safetensors", folder / "b.safetensors"
    # In this process, not in a child: what it imports now no child has to.
    for command, out in (("align", "p"), ("merge", "m")):
        done = rebasin(command, a, b, "-o", folder / f"{out}.safetensors", "--no-prove")
        assert done.code == 0, done.err
    return folder


def run(folder: Path, arguments: tuple[str, ...], fault: Fault | None = None) -> Ended:
    """One command in the folder, in a child."""
    import os

    def body() -> int:
        os.chdir(folder)
        return crashing.command(*arguments)()

    return crashing.run(body, fault or Fault(0), str(folder) + ".log")


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("out*"))}


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".rebasin-*"))


def before(case: Case, made: Path, folder: Path) -> Path:
    """A folder of its own in which the command may run."""
    shutil.copytree(made, folder)
    if case.older:
        ended = run(folder, case.older)
        assert ended.code == 0, ended.said
    return folder


@dataclass(frozen=True)
class Known:
    """A case that went well: what was there before and after, and how many operations it took."""

    start: Path
    old: dict[str, bytes]
    new: dict[str, bytes]
    operations: int


def known(case: Case, made: Path, place: Path) -> Known:
    start = before(case, made, place / "start")
    whole = shutil.copytree(start, place / "whole")
    ended = run(whole, case.arguments)
    assert ended.code == 0 and not hidden(whole), ended.said
    return Known(start, outputs(start), outputs(whole), ended.operations)


def problem_after(case: Case, of: Known, folder: Path, fault: Fault) -> str | None:
    """Kill the command, or let its disk fail, then look: None, or what is wrong with what is left."""
    shutil.copytree(of.start, folder)
    ended = run(folder, case.arguments, fault)
    left = outputs(folder)
    for name, content in left.items():
        if name.endswith(KEPT):
            continue
        if content not in (of.old.get(name), of.new.get(name)):
            return f"{name} is neither the old file nor the new one"
    if fault.how in crashing.FAULTS:
        if ended.code not in (0, 5) or "Traceback" in ended.said:
            return f"exit code {ended.code}: {ended.said}"
        kept = {
            name: content
            for name, content in left.items()
            if not name.endswith((".search.safetensors", ".pt"))
        }
        if ended.code and kept != of.old and kept != of.new:
            return "old and new files are mixed"
        if ended.code and hidden(folder) and not fault.lasting:
            return f"left behind: {hidden(folder)}"
    elif ended.code not in (-9, 0):
        return f"exit code {ended.code}: {ended.said}"
    resumed = [name for name in left if name.endswith(KEPT)]
    if resumed and not (of.new.keys() & left.keys()):
        again = run(folder, (*(a for a in case.arguments if a != "--force"), "--resume"))
        if "no search is kept" in again.said:
            return again.said
    else:
        again = run(folder, case.arguments)
    if again.code:
        return f"the next run ends with {again.code}: {again.said}"
    if outputs(folder) != of.new:
        return f"the next run leaves {sorted(outputs(folder))}, or other bytes in them"
    if hidden(folder):
        return f"the next run leaves {hidden(folder)}"
    return None
