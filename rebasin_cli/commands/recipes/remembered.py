"""What the last run of a recipe left of itself, as the cache remembers it: documents, and what steps made.

One record for a recipe with its assignments (`documents/ID.json`). Files are known by their place beside
the cache, so that both may move together. Nothing is removed that is not as a run wrote it. Anybody may have
written a record: a file that lies elsewhere, or that does not begin as a document does, stays.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checkpoints import digests
from ...errors import RebasinError, ResourceError
from ...registry.source import constant
from ...runtime import files
from ...runtime.files import Inputs
from .cache import Cache
from .files import NOT_PASSED, aside_of, index
from .records import digest_of

if TYPE_CHECKING:
    from .runner import Outcome
    from .steps import Step


APART = ("card",)  # commands whose output speaks of weights
# Outputs that say how a merge was judged.
REPORTS = ("report", "junit", "html", "json_file", "markdown", "png")
MODELS = ("", "perm")  # what of a step's outputs is weights or goes with them; `attest` speaks of them

_SHARD = re.compile(r"(.*)-.{5}-of-.{5}\.safetensors", re.DOTALL)
KIND = "documents"
# How a document begins. To a summary of somebody else's a run has added: that one is not ours to remove.
BEGINNINGS = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="rebasin"',
    b'{\n  "recipe": ',
    b'{\n  "_type": "https://in-toto.io/Statement/',
    b"## rebasin run ",
)


@dataclass(frozen=True)
class Left:
    """`documents` with their digests, "" where the cache knows it, and what steps `made`."""

    documents: Mapping[Path, str]
    made: Sequence[Made]


class Remembered:
    """Of the recipe in `path` with these `assignments`."""

    def __init__(self, cache: Cache, path: Path, assignments: Sequence[str]):
        self.cache, self.path = cache, path
        self.recipe = cache.name_of(path)
        self.name = digest_of([self.recipe, list(assignments)])[:32]

    def last(self) -> Left:
        """Of the last run with the same assignments."""
        return self._left(self.cache.record(KIND, self.name) or {})

    def every(self, *, recipe: bool) -> list[Left]:
        """Of runs with any assignments, of this `recipe` or of all that the cache knows."""
        records = self.cache.records(KIND)
        return [self._left(one) for one in records if not recipe or one.get("recipe") == self.recipe]

    def keep(self, left: Left) -> None:
        documents = {
            self._place(path): digest for path, digest in left.documents.items() if self._is_near(path)
        }
        made = [[self._place(one.path), self._place(one.root), one.speaks] for one in left.made]
        if documents or made or self.cache.record(KIND, self.name):
            content = {"recipe": self.recipe, "documents": documents, "made": made}
            self.cache.put(KIND, self.name, content)

    def remove_documents(self, left: Left) -> None:
        """Those that a run left; each as `remove` does."""
        for path, digest in left.documents.items():
            self.remove(path, digest)

    def remove(self, path: Path, digest: str = "") -> None:
        """Remove a document that is as a run wrote it: no link, no input, nothing that was changed since.

        Raises ResourceError where that cannot be done.
        """
        try:
            files.check_output(path, Inputs((self.path,)))
            if not path.is_file() or not is_document(path):
                return
            ours = digests.of_file(path) == digest if digest else self.cache.is_ours(path)
        except (RebasinError, OSError):
            return
        if not ours:
            return
        try:
            path.unlink()
        except OSError as error:
            raise ResourceError(
                f"{path} of an earlier run cannot be removed: {error.strerror}",
                hint="It must not pass for what this run says: remove it, then run again",
            ) from None

    def as_kept(self, path: Path) -> Path:
        """A file by the name that a record gives back."""
        return self._found(self._place(path))

    def _left(self, record: Mapping[str, Any]) -> Left:
        """What a record says. Anybody may have written it: what is of no use is passed over."""
        documents, made = record.get("documents"), record.get("made")
        listed = documents.items() if isinstance(documents, dict) else ()
        found = {self._found(name): text for name, text in listed if isinstance(text, str)}
        found = {path: text for path, text in found.items() if self._is_near(path)}
        outputs = [
            Made(self._found(each[0]), self._found(each[1]), each[2])
            for each in (made if isinstance(made, list) else ())
            if isinstance(each, list) and list(map(type, each)) == [str, str, bool]
        ]
        near = [each for each in outputs if self._is_near(each.path) and each.path.is_relative_to(each.root)]
        return Left(found, near)

    def _is_near(self, path: Path) -> bool:
        """Whether it lies beside the cache: in a folder of another job it is not for us to remove."""
        real = os.path.join(os.path.realpath(path.absolute().parent), path.name)
        return Path(real).is_relative_to(self._home())

    def _home(self) -> str:
        return os.path.realpath(self.cache.folder.absolute().parent)

    def _place(self, path: Path) -> str:
        """A file by its place beside the cache; it is no link itself."""
        real = os.path.join(os.path.realpath(path.absolute().parent), path.name)
        try:
            return os.path.relpath(real, self._home())
        except ValueError:  # another drive
            return real

    def _found(self, place: str) -> Path:
        """As a person would name it from here."""
        whole = os.path.normpath(os.path.join(self._home(), place))
        here = os.path.realpath(os.getcwd()) + os.sep
        return Path(whole.removeprefix(here))


def is_document(path: Path) -> bool:
    """Whether a file begins as those that a run writes. Raises OSError."""
    with files.opened(path) as file:
        return file.read(max(map(len, BEGINNINGS))).startswith(BEGINNINGS)


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
    suffix = constant("rebasin_cli.checkpoints.torch_writer", "SUFFIX")
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
