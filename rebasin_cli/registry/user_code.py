"""Where code of the user's runs: whatever it raises becomes one of our errors, with its place in a line.

Also what is no `Exception`: a `sys.exit(0)` in a loader must not pass for our success. Only Ctrl-C, a lack
of memory and errors of ours go through as they are. What ends the process itself (`os._exit`) cannot be
caught.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import NetworkError, OutsideError, RebasinError, account
from .surroundings import at_home, with_them

LONGEST = 500  # characters of a message that are shown
OURS = str(Path(__file__).parents[1]) + os.sep
PYTHON = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
# The packages that rebasin itself imports (pyproject.toml): one that fails is no code of the user's.
REQUIRED = frozenset(
    (
        "torch",
        "numpy",
        "scipy",
        "safetensors",
        "typer",
        "rich",
        "yaml",
        "matplotlib",
        "PIL",
        "filelock",
        "jinja2",
    )
)
INSTALLED = re.compile(r"[\\/](site|dist)-packages[\\/]")
TORCH = re.compile(r"[\\/]torch[\\/]")

_WORKER = re.compile(r"Caught \w+ in .*worker process", re.DOTALL)
_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)', re.MULTILINE)


class Passing(BaseException):
    """What ends our own work in the midst of the user's, as Ctrl-C does: it goes through as it is."""


@contextmanager
def user_code(
    what: str | Callable[[], str],
    error: type[RebasinError] = NetworkError,
    *,
    hint: str | Callable[[], str | None] | None = None,
) -> Iterator[None]:
    """Run the user's code within; if it fails, say that `what` failed, why, and where, as an `error`.

    What takes a while to say, and the next step, may be functions: they are asked only then.
    """
    try:
        with with_them():
            yield
    except BaseException as cause:
        if out_of_memory(cause):  # torch has no type of its own for this on the CPU
            raise MemoryError(told(cause)) from cause
        if passes(cause):
            raise
        step = hint() if callable(hint) else hint
        raise blamed(what() if callable(what) else what, cause, error, hint=step) from cause


@contextmanager
def outermost() -> Iterator[None]:
    """Around a whole command, for what no narrower `user_code` is around: hooks, `train()`, `__len__`."""
    try:
        with at_home():
            yield
    except BaseException as cause:
        if (found := as_theirs(cause)) is cause:
            raise
        raise found from cause


def as_theirs(cause: BaseException) -> BaseException:
    """An error that names the user's code, where that raised this; else itself.

    An exception is the user's where it was raised in a file that is neither ours nor installed; what is no
    `Exception` always is, since rebasin raises none. Not where a package failed that we imported.
    """
    ours = isinstance(cause, Exception) and _own_frame(cause) is None
    if passes(cause) or ours or _of_our_import(cause) or (account(cause) or ("", 0))[1] != 0:
        return cause
    return blamed("code that rebasin was given failed", cause, OutsideError)


def _of_our_import(cause: BaseException) -> bool:
    """Whether it comes out of the body of a package that we require, before anything of the user's ran."""
    for frame, _ in traceback.walk_tb(cause.__traceback__):
        if frame.f_code.co_name == "<module>" and not frame.f_code.co_filename.startswith(OURS):
            return str(frame.f_globals.get("__name__")).partition(".")[0] in REQUIRED
    return False


def passes(cause: BaseException) -> bool:
    """Whether an exception goes through as it is: Ctrl-C, out of memory, an error of ours with its own code.

    An error of ours that says 0, or that a gate was missed, is none that code of the user's may raise.
    """
    if isinstance(cause, RebasinError):
        return cause.exit_code in range(2, 7)
    return isinstance(cause, (KeyboardInterrupt, MemoryError, Passing)) or _name(cause) == "OutOfMemoryError"


def out_of_memory(cause: BaseException) -> bool:
    return type(cause) is RuntimeError and "can't allocate memory" in message_of(cause)


def blamed(
    what: str, cause: BaseException, error: type[RebasinError], *, hint: str | None = None
) -> RebasinError:
    """The error that says what failed, with the cause and its place."""
    where = place_of(cause)
    found = error(f"{what}: {told(cause)}", problems=[f"in {where}"] if where else (), hint=hint)
    found.place = where
    return found


def told(cause: BaseException) -> str:
    """Type and message of an exception in one line, also where its `__str__` fails."""
    text = message_of(cause)
    if _WORKER.match(text):  # torch puts the worker's whole traceback into the message
        lines = text.strip().splitlines()
        last = max((k for k, line in enumerate(lines) if _FRAME.match(line)), default=0)
        raised = [k for k, line in enumerate(lines) if k > last and line and not line[0].isspace()]
        text = "\n".join(lines[raised[0] :] if raised else lines[-1:])
        text = text.partition(":")[2] if text.startswith(_name(cause)) else text
    text = " ".join(text.split())
    if len(text) > LONGEST:
        text = text[:LONGEST] + " …"
    return f"{_name(cause)}: {text}" if text else _name(cause)


def place_of(cause: BaseException) -> str | None:
    """The innermost line of the user's code that an exception came through: `mine.py:12`."""
    if isinstance(cause, SyntaxError) and cause.filename and not isinstance(cause.filename, bytes):
        return f"{_shown(str(cause.filename))}:{cause.lineno or 1}"
    frame = _own_frame(cause) or next(iter(_brought(cause)), None)
    return None if frame is None else f"{_shown(frame[0])}:{frame[1]}"


def _own_frame(cause: BaseException) -> tuple[str, int] | None:
    return next((frame for frame in _brought(cause) if not INSTALLED.search(frame[0])), None)


def _brought(cause: BaseException) -> Iterator[tuple[str, int]]:
    """File and line of what is not ours, Python's or torch's, the innermost first."""
    for file, line in reversed(_frames(cause)):
        python = file.startswith(PYTHON) and not INSTALLED.search(file)
        if not (python or file.startswith((OURS, "<")) or TORCH.search(file)):
            yield file, line


def _frames(cause: BaseException) -> list[tuple[str, int]]:
    text = message_of(cause)
    if _WORKER.match(text):
        return [(file, int(line)) for file, line in _FRAME.findall(text)]
    return [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(cause.__traceback__)]


def _shown(file: str) -> str:
    """Below the working directory without it."""
    here = os.getcwd() + os.sep
    return file.removeprefix(here)


def _name(cause: BaseException) -> str:
    return str(type.__getattribute__(type(cause), "__name__"))


def message_of(cause: BaseException) -> str:
    """`str` of an exception, also where that fails, as text that can be written anywhere."""
    try:
        return str.__str__(str(cause)).encode("utf-8", "backslashreplace").decode()
    except KeyboardInterrupt:
        raise
    except BaseException:
        return "(its message cannot be shown)"
