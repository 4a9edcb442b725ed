"""What can go wrong, as one tree. A traceback of anything else is a bug in rebasin.

The table in docs/errors.md is written from here: of each error its exit code, the first paragraph of its
docstring, a message (`Example`; … stands for what differs) and what to do (`Next`). What is none of these
ends with 70: an installation that is broken, or a bug (`runtime.broken`). The core states the fact; the
command line adds file names once.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MOST = 20  # problems that are shown
BROKEN = 70  # exit code of what is no error of ours (`runtime.broken`)
FEW = 6  # of which each has a line of its own
LISTED = 20  # names that are listed where none is like the one that was given
NEAREST = 5  # of more
_NUMBER = re.compile(r"[0-9]+")
_SIZE = re.compile(r"(?<!\S)(?<!model )[0-9][0-9×,.]*(?=[\s,;)]|$)")  # a number that stands alone


class RebasinError(Exception):
    """One clear message in four parts: where, found, expected, next.

    `message` says where and what; `problems` lists every single finding, a line each;
    `hint` is the next command or step, `closing` are lines that stand last: where to look, what to run. Of
    a recipe, `file` is its path, which a text that begins with "line 12" is of, and `step` what failed.
    """

    exit_code = 1
    whole = False  # whether every problem is shown, or what is alike in one line
    most = MOST  # problems that are shown
    closing: tuple[str, ...] = ()
    file: str | None = None
    step: str = ""
    kind: str = ""  # of another exception that is told as one of ours
    place: str | None = None  # `mine.py:12`: the line of the user's code that failed

    def __init__(self, message: str, *, problems: Sequence[str] = (), hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)
        self.hint = hint

    @property
    def own_code(self) -> bool:
        """Whether code of the user's own failed: that ends a command, whatever else it would try."""
        return self.place is not None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """What is shown, a line each; names from outside may hold anything, so whoever prints cleans them."""
        told = list(self.problems) if self.whole else gathered(self.problems)
        most = len(told) if self.whole else self.most
        shown = [f"  {problem}" for problem in told[:most]]
        if len(told) > most:
            shown.append(f"  … and {len(told) - most} more")
        return [self.message, *shown, *([self.hint] if self.hint else []), *self.closing]


class GateNotMet(RebasinError):
    """A threshold was missed; everything has been written.

    Example: … of … not met
    Next: look at the report, which has measured and wanted figures.

    `gates` are those that were missed, as values (`reports._gates.GateResult`).
    """

    exit_code = 1
    most = 5  # what is told has to be among the last lines of a log
    gates: tuple[Any, ...] = ()


class MergeConflict(RebasinError):
    """Both sides of a merge in git changed the same; nothing was written.

    Example: …: … of … tensors conflict
    Next: take a side, or merge by hand (docs/git.md).
    """

    exit_code = 1


class UsageError(RebasinError):
    """An option, a name or a combination that makes no sense.

    Example: unknown …
    Next: take what stands after "Did you mean"; `rebasin list` shows all names, `--help` all options.
    """

    exit_code = 2


class OutputExists(UsageError):
    """An output exists, and is not overwritten.

    Example: … exists
    Next: `--force`, or another name with `-o`.
    """


class NoEnvelope(UsageError):
    """One of several state dicts is asked for in a file of one.

    Example: … has no key …: its tensors are in no envelope
    Next: leave `--key` out.
    """


class CheckpointError(RebasinError):
    """A checkpoint that cannot be read or used: cut off, damaged, no checkpoint, NaN.

    Example: … is cut off
    Next: get the file again; the message says what the file is instead where it is known.
    """

    exit_code = 3


class UnsafeCheckpoint(CheckpointError):
    """A file that could only be read by running code from it.

    Example: …: reading it would run code, so it was not read
    Next: ask for plain weights; `--unsafe-load` only for a source that you would run a program from
    (docs/security.md).
    """


class SpecError(RebasinError):
    """Not a spec, or a spec that does not fit these tensors; models of different architectures.

    Example: … does not fit …
    Next: each problem names its tensor; `rebasin spec show` and `spec check` show the rest
    (docs/specs.md).
    """

    exit_code = 4


class NotProven(SpecError):
    """The permuted network computes something else; nothing was written.

    Example: … does not preserve the network's function
    Next: two words that are added to one another have to be one; an output that is no part of the
    function is named with `--not-kept`.

    `words` are those that change the function when they alone are permuted, where that was tried.

    `grouped`: as permutations they hold; what does not is the group that the spec gives them beyond.

    `untested`: nothing is wrong but that these tensors could not be tested.
    """

    words: tuple[str, ...] = ()
    grouped: bool = False
    untested: tuple[str, ...] = ()


class NoSpecFits(SpecError):
    """None of the built-in specs is for these tensors.

    Example: no built-in spec fits these … tensors
    Next: `--net file.py:factory`, and one is inferred; or write one (docs/specs.md); copies of one model
    need none: `rebasin average`.
    """


class ResourceError(RebasinError):
    """Out of memory or disk, a folder that cannot be written, a name that is too long.

    Example: …: no such folder
    Next: a larger machine or disk; a run goes on where it was.
    """

    exit_code = 5


class Lost(ResourceError):
    """Another process of this run is gone, or this one has to go.

    Example: the connection to another rank is lost
    Next: start all again, with `--resume` where the search was kept (docs/many-machines.md).
    """


class Elsewhere(RebasinError):
    """Another process of this run failed and says why; this one leaves with its exit code.

    Example: …
    Next: read the message of that process.
    """

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


class OutsideError(RebasinError):
    """Code that you brought fails.

    Example: code that rebasin was given failed
    Next: the line below has the place in your file; `sys.exit` counts as well.
    """

    exit_code = 6


class DataError(OutsideError):
    """The data set, or what it holds.

    Example: the models do not do what they were trained for
    Next: name other data with `--data`, or how inputs are normalised with `--normalize`.
    """


class NetworkError(OutsideError):
    """The network's code, or what it computes.

    Example: … failed to build the network
    Next: look at the line of your code that is named.
    """


class Interrupted(RebasinError):
    """Ctrl-C.

    Example: interrupted
    Next: the same command with `--resume` goes on; `rebasin run` as it was.
    """

    exit_code = 130


class HungUp(Interrupted):
    """SIGHUP: the terminal is gone.

    Example: the terminal is gone
    Next: as after Ctrl-C; `nohup` keeps it from that.
    """

    exit_code = 129


class Terminated(Interrupted):
    """SIGTERM, as containers and batch systems send it.

    Example: terminated
    Next: as after Ctrl-C.
    """

    exit_code = 143


class TimedOut(Interrupted):
    """A time limit was reached: `--time-limit` of `rebasin run`, or `time_limit` of a step.

    Example: the time limit of … was reached
    Next: run it again: it goes on from there.
    """

    exit_code = 124


# What a disk or a path may do to any command: no bug of ours.
OF_THE_DISK = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EIO)
    + (errno.ELOOP, errno.ENOTDIR, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EBUSY)
)


def account(error: BaseException) -> tuple[list[str], int] | None:
    """What to say of an error, line by line, and the exit code; None for a bug, which shows its traceback."""
    if isinstance(error, RebasinError):
        return error.lines(), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return ["interrupted"], Interrupted.exit_code
    if isinstance(error, MemoryError):
        return ["out of memory"], ResourceError.exit_code
    if isinstance(error, OSError):
        told = f"{error.filename or 'the output'}: {error.strerror}"
        return ([told], ResourceError.exit_code) if error.errno in OF_THE_DISK else None
    if type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error):
        return [f"out of memory: {str(error).splitlines()[0]}"], ResourceError.exit_code
    return None


def as_error(error: BaseException) -> RebasinError:
    """The same as one of ours, for what reports what a program ended with; a bug is one line and code 70."""
    if isinstance(error, RebasinError):
        return error
    told, code = account(error) or ([f"{type(error).__name__}: {error}"], BROKEN)
    found = RebasinError("\n".join(told))
    found.exit_code, found.kind = code, type(error).__name__
    return found


def gathered(problems: Sequence[str]) -> list[str]:
    """The problems; where they are many, those of one kind in one line, with their number.

    A problem is a name, two spaces, and what is said of it. First names that differ in numbers alone are one,
    as a spec writes them; then, if these are still many, whatever has the same said of it up to sizes.

    >>> gathered([f"layers.{k}.w  is absent in b.pt, float32 4×4 elsewhere" for k in range(30)])
    ['layers.{i}.w  is absent in b.pt, float32 4×4 elsewhere (30 such)']
    """
    if len(problems) <= FEW:
        return list(problems)
    families = _grouped([(problem, [problem]) for problem in problems], _family, least=2)
    lines = [(_of_family(group) if len(group) > 1 else text, group) for text, group in families]
    if len(lines) > FEW:
        lines = _grouped(lines, _said, least=3)
        lines = [(text if text else _of_kind(group), group) for text, group in lines]
    return [text for text, _ in lines]


def _grouped(
    lines: Sequence[tuple[str, list[str]]], key: Callable[[str], Any], *, least: int
) -> list[tuple[str, list[str]]]:
    """Lines with the problems that they stand for; `least` or more of one key are one, without a text."""
    groups: dict[Any, list[tuple[str, list[str]]]] = {}
    for number, line in enumerate(lines):
        groups.setdefault(key(line[1][0]) or number, []).append(line)
    found = []
    for group in groups.values():
        if len(group) < least:
            found += group
        else:
            found.append(("", [problem for _, each in group for problem in each]))
    return found


def _family(problem: str) -> Any:
    name, two, said = problem.partition("  ")
    return (_NUMBER.sub("0", name), said) if two else None


def _said(problem: str) -> Any:
    _, two, said = problem.partition("  ")
    return _SIZE.sub("0", said) if two else None


def _of_family(group: Sequence[str]) -> str:
    """Names that differ in numbers, as one: each number that is not the same in all has a letter."""
    name, _, said = group[0].partition("  ")
    numbers = [_NUMBER.findall(problem.partition("  ")[0]) for problem in group]
    letters = iter("ijklmnopq")
    alike = [len({*column}) == 1 for column in zip(*numbers, strict=True)]
    put = iter(
        [
            number if same else f"{{{next(letters, '…')}}}"
            for number, same in zip(numbers[0], alike, strict=True)
        ]
    )
    return f"{_NUMBER.sub(lambda found: next(put), name)}  {said} ({len(group):,} such)"


def _of_kind(group: Sequence[str]) -> str:
    name, _, said = group[0].partition("  ")
    return f"{len(group):,} names, such as {name}  {said}"


def no_number(figure: str, choose: str = "--method wm --repair none") -> NetworkError:
    """That nothing can be chosen by a held-out figure, which is infinite or NaN of all that was tried.

    `choose` are the options by which the user chooses.
    """
    return NetworkError(
        f"{figure} is no finite number, so that nothing can be chosen by it",
        hint=f"Look at one model with rebasin eval; or choose yourself: {choose}",
    )


def unknown(
    kind: str, name: str, known: Iterable[str], *, error: type[RebasinError] = UsageError
) -> RebasinError:
    """The error for a name that is not in a list, with "did you mean" where one is near."""
    hint = near(str(name), known, most=3)
    return error(f"unknown {kind} {name!r}", hint=hint[0].upper() + hint[1:] + "." * (hint[-1] != "?"))


def near(word: str, known: Iterable[str], *, most: int = 1) -> str:
    """The end of a sentence on a name that is not in a list: those that may be meant, or all there are.

    Of many that are all unlike it, the nearest.
    """
    known = sorted(known)
    found = difflib.get_close_matches(word, known, n=most, cutoff=0.5)
    if found:
        return f"did you mean {' or '.join(found)}?"
    if len(known) <= LISTED:
        return f"known: {', '.join(known)}"
    least = [*difflib.get_close_matches(word, known, n=NEAREST, cutoff=0.0)]
    return f"the nearest of {len(known)}: {', '.join(least)}"
