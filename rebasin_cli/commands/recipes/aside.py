"""Weights that have not passed lie in `not-passed/`, beside where they would lie, with what belongs to them.

After any end of a run but 0 nobody takes them for passed: they, their permutations, cards and statements are
renamed into that folder; so are reports of an earlier run, as soon as the next one begins, until it comes to
their steps. The next run takes them back first, so that nothing is computed twice. Only files are moved that
the cache knows a step to have made, as they were made, and no link.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...checkpoints import digests
from ...errors import RebasinError
from ...registry.options import constant
from ...runtime import files
from ...runtime.files import Inputs
from .cache import Cache
from .files import NOT_PASSED, aside_of

if TYPE_CHECKING:
    from .running import Outcome
    from .steps import Step

APART = ("card",)  # commands whose output speaks of weights
REPORTS = (
    "report",
    "junit",
    "html",
    "json_file",
    "markdown",
    "png",
)  # outputs that say how a merge was judged
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
        for path in (
            *shards,
            here.with_name(f"{root.name}.index.json"),
            here.with_name(f"{root.name}{suffix}"),
        ):
            if path.is_file() and not speaks:
                yield Made(root.with_name(path.name), root.with_name(path.name))


class Aside:
    """What of a run is put aside and taken back; never one of `inputs`."""

    def __init__(self, cache: Cache, inputs: Inputs):
        self.cache, self.inputs = cache, inputs

    def put(self, made: Sequence[Made]) -> list[str]:
        """Put files of ours aside, but for those that another job is making; what could not be moved."""
        failed = []
        for each in dict.fromkeys(made):
            if not self._ours(each.path) or self.cache.is_busy(each.root):
                continue
            try:
                self._move(each.path, each.aside)
            except (OSError, RebasinError) as error:
                failed.append(f"{each.path}: {getattr(error, 'strerror', None) or error}")
        self._clear(each.path.parent for each in made if each.path != each.root)
        return failed

    def take_back(self, made: Sequence[Made]) -> None:
        """What lies aside goes to its place; where something lies there already, it is left alone."""
        for each in dict.fromkeys(made):
            if not os.path.lexists(each.path) and self._ours(each.aside):
                with contextlib.suppress(OSError):
                    self._move(each.aside, each.path)
        self._clear(each.aside.parent for each in made)

    def drop(self, made: Sequence[Made]) -> None:
        """What lies aside is older than what has passed."""
        for each in dict.fromkeys(made):
            if self._ours(each.aside):
                with contextlib.suppress(OSError):
                    each.aside.unlink()
        self._clear(each.aside.parent for each in made)

    def _ours(self, path: Path) -> bool:
        try:
            files.check_output(path, self.inputs)
            return path.is_file() and self.cache.is_ours(path)
        except (RebasinError, OSError):
            return False

    def _move(self, path: Path, to: Path) -> None:
        """Raises OSError, also where a link is in the way or somebody else's file is."""
        to.parent.mkdir(parents=True, exist_ok=True)
        both = os.path.commonpath([path.absolute(), to.absolute()])
        expected = os.path.join(os.path.realpath(both), os.path.relpath(to.absolute(), both))
        if os.path.realpath(to) != expected:
            raise OSError(None, f"there is a link in {to}")
        if os.path.lexists(to) and not self._ours(to):
            raise OSError(None, f"{to} is in the way, and no recipe made it as it is now")
        self.cache.move(path, to)

    def _clear(self, folders: Iterable[Path]) -> None:
        """Folders that hold nothing any more are gone, up to that of all that is aside."""
        for folder in sorted(dict.fromkeys(folders), key=lambda folder: -len(folder.parts)):
            with contextlib.suppress(OSError):
                folder.rmdir()
                while folder.name != NOT_PASSED and NOT_PASSED in folder.parts:
                    folder = folder.parent
                    folder.rmdir()
