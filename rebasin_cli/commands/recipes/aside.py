"""Weights that have not passed lie in `not-passed/`, beside where they would lie, with what belongs to them.

After any end of a run but 0 nobody takes them for passed: they, their permutations, cards and statements are
renamed into that folder; so are reports of an earlier run, as soon as the next one begins, until it comes to
their steps. The next run takes them back first, so that nothing is computed twice. Only files are moved that
the cache knows a step to have made, as they were made, and no link.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import Interrupted, RebasinError
from ...runtime import files
from ...runtime.files import Inputs
from ...runtime.text import some
from .cache import Cache, of_run
from .files import NOT_PASSED
from .remembered import Made, Remembered, of_outcomes, of_steps, reports_of

if TYPE_CHECKING:
    from .runner import Outcome, Progress
    from .steps import Step


SHOWN = 6  # names of files in a line


class NotPassed:
    """What runs of one recipe have made that has not passed, from before this run to after its end.

    `say` hears of what cannot be put aside.
    """

    def __init__(self, remembered: Remembered, say: Callable[[str], None]):
        self.remembered, self.say = remembered, say
        self.steps: Sequence[Step] = ()  # of the recipe, once it is read
        self._earlier: list[Made] = []  # what runs before this one made

    def forget(self, made: Sequence[Made]) -> None:
        """An earlier run made these: what speaks of weights is put aside, weights at this run's end."""
        self._put_speaking(made)
        self._earlier += made

    def begin(self, *, sound: bool) -> None:
        """The `steps` are known; where the recipe is `sound`, and will be run, weights are taken back."""
        made = [*of_steps(self.steps), *reports_of(self.steps)]
        self._put_speaking(made)
        if sound:
            self._aside().take_back([each for each in (*self._earlier, *made) if not each.speaks])

    def settle(self, error: RebasinError | None, progress: Progress) -> None:
        """After any end but a good one nothing of the run lies where it would be taken for passed.

        What lies aside by then goes to `progress`; what is to be told of it is among the last lines of
        `error`, for a run that is quiet, too.
        """
        made = self._made(progress.outcomes)
        if error is None:
            self._aside().drop([*made.values()])
            return
        ended = [outcome.step for outcome in progress.outcomes if outcome.ended]
        said = {self.remembered.as_kept(each.path) for each in reports_of(ended)}  # by this very run
        anew = [each for kept, each in made.items() if kept in said and each.path.exists()]
        self._aside().drop(anew)  # what lies aside of these is of an earlier run
        left = self._put([each for kept, each in made.items() if kept not in said])
        lying = {each.path: each for each in made.values() if each.aside.is_file() and not each.path.exists()}
        if lying and not progress.not_passed:
            folders = dict.fromkeys(each.root.parent / NOT_PASSED for each in lying.values())
            where = ", ".join(f"{folder}{os.sep}" for folder in folders)
            names = some([path.name for path in lying], SHOWN)
            left.append(f"not passed, and put aside into {where}: {names}; the next run takes them back")
        for told in left:
            if error.kind or isinstance(error, Interrupted):  # another one is raised for it
                self.say(told)
            elif told not in error.closing:
                error.closing = (*error.closing, told)
        progress.not_passed = {path: each.aside for path, each in lying.items()}

    def lying(self, outcomes: Iterable[Outcome]) -> list[Made]:
        """What is there, in its place or aside; a file of a person's is nothing to remember."""
        made, is_ours = self._made(outcomes).values(), self.remembered.cache.is_ours
        return [each for each in made if each.aside.is_file() or (each.path.is_file() and is_ours(each.path))]

    def _made(self, outcomes: Iterable[Outcome]) -> dict[Path, Made]:
        """What this run and those before it made, by the name that a record gives back."""
        own = (*of_steps(self.steps), *reports_of(self.steps), *of_outcomes(outcomes))
        return {self.remembered.as_kept(each.path): each for each in (*self._earlier, *own)}

    def _put(self, made: Sequence[Made]) -> list[str]:
        """Put them aside; a sentence for each where that cannot be done."""
        failed = self._aside().put(made)
        return [f"{told}: it is not put aside, and must not be taken for passed" for told in failed]

    def _put_speaking(self, made: Iterable[Made]) -> None:
        for told in self._put([each for each in made if each.speaks]):
            self.say(told)

    def _aside(self) -> Aside:
        """No input is moved; what a step makes and another one reads is none."""
        own = {os.path.realpath(path) for step in self.steps for path in step.files}
        read = [path for step in self.steps for path in (*step.reads, *step.awaited)]
        read = [path for path in (self.remembered.path, *read) if os.path.realpath(path) not in own]
        return Aside(self.remembered.cache, Inputs(tuple(path for path in read if not path.is_dir())))


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


def forget(arguments: Sequence[str]) -> None:
    """Remove the documents of the recipes that are named, and put aside what they made.

    Records beside a stranger's recipe may be of his making, and are not believed here, either.
    """
    words = [part for word in arguments for part in word.split("=", 1)]
    places = [words[k + 1] for k, word in enumerate(words[:-1]) if word == "--cache"]
    folder = Path(places[-1] if places else ".rebasin")
    with of_run(folder, lambda text: None, stranger="--untrusted" in words) as cache:
        for path in map(Path, words):
            remembered = Remembered(cache, path, ())
            for left in remembered.every(recipe=True):
                remembered.remove_documents(left)
                Aside(cache, Inputs((path,))).put(left.made)
