"""What steps have made that must not be taken for passed, and where each file of it lies until it has."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...checkpoints import digests
from ...registry.source import constant
from .files import NOT_PASSED, aside_of, index

if TYPE_CHECKING:
    from .running import Outcome
    from .steps import Step

APART = ("card",)  # commands whose output speaks of weights
# Outputs that say how a merge was judged.
REPORTS = ("report", "junit", "html", "json_file", "markdown", "png")
MODELS = ("", "perm")  # what of a step's outputs is weights or goes with them; `attest` speaks of them

_SHARD = re.compile(r"(.*)-.{5}-of-.{5}\.safetensors", re.DOTALL)


@dataclass(frozen=True)
class Made:
    """A file of a step's output: `root` is the output, which is the file itself or a folder that it is in.

    One that `speaks` of weights is a card, a statement or a report: one of an earlier run is put aside before
    anything else, also before a kill -9.
    """

    path: Path
    root: Path
    speaks: bool = False

    @property
    def aside(self) -> Path:
        return aside_of(self.path, self.root)


def of_steps(steps: Iterable[Step]) -> list[Made]:
    """What steps have made that must not pass for what has passed, in its place or aside."""
    shards = functools.cache(_shards_in)  # many outputs lie in one folder
    return [made for step in steps for root, speaks in _roots(step) for made in _below(root, speaks, shards)]


def reports_of(steps: Iterable[Step]) -> list[Made]:
    """The reports of steps, each file by itself: those of an earlier run must not pass for this one's."""
    found = [path for step in steps for key, path in step.writes.items() if key.partition(".")[0] in REPORTS]
    return [Made(path, path, speaks=True) for path in dict.fromkeys(found)]


def of_outcomes(outcomes: Iterable[Outcome]) -> list[Made]:
    """The same of steps that were run, with what only they know: copies beside the weights, other epochs."""
    found = []
    for outcome in outcomes:
        roots = dict(_roots(outcome.step))
        known = {os.path.realpath(path) for path in outcome.step.writes.values() if path not in roots}
        for path in map(Path, outcome.outputs):
            if roots and os.path.realpath(path) not in known:
                root = next((root for root in (path, *path.parents) if root in roots), path)
                found.append(Made(path, root, roots.get(root, False)))
    return found


def _roots(step: Step) -> list[tuple[Path, bool]]:
    weights = step.command.ending is not None and "safetensors" in step.command.ending
    found = [(path, False) for key, path in step.writes.items() if weights and key in MODELS]
    spoken = ("attest", *("",) * (step.command.name in APART))
    return found + [(path, True) for key, path in step.writes.items() if key in spoken]


def _shards_in(folder: Path) -> dict[str, list[Path]]:
    """The shards that lie in a folder, by the stem of the file that was to be written."""
    found: dict[str, list[Path]] = {}
    for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
        if match := _SHARD.fullmatch(name):
            found.setdefault(match[1], []).append(folder / name)
    return found


def _below(root: Path, speaks: bool, shards_in: Callable[[Path], dict[str, list[Path]]]) -> Iterator[Made]:
    """The output itself, all files of a folder, and what the writer of weights puts beside a file."""
    suffix = constant("rebasin_cli.checkpoints.beside", "SUFFIX")
    for folder in (root.parent, root.parent / NOT_PASSED):
        here = folder / root.name
        if here.is_dir() and not here.is_symlink():
            for path in digests.files_below(here):
                yield Made(root / path.relative_to(here), root, speaks)
            continue
        yield Made(root, root, speaks)
        shards = shards_in(folder).get(root.stem, ()) if not speaks else ()
        for path in (*shards, index(here), here.with_name(f"{root.name}{suffix}")):
            if path.is_file() and not speaks:
                yield Made(root.with_name(path.name), root.with_name(path.name))
