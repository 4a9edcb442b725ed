"""What ends the program and is no error of ours: an installation that is broken, or a bug.

Nothing but the standard library is imported here, since anything else may be what is broken. The exit code is
70 (EX_SOFTWARE of sysexits.h): Python's own, 1, is that of a gate that was not met.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

EXIT_CODE = 70
OLDEST = (3, 11)  # as in pyproject.toml
OURS = __name__.partition(".")[0]
LONGEST = 500  # characters of what an exception says


@contextmanager
def told() -> Iterator[None]:
    """Whatever leaves the block, and is no end of ours, is told on stderr, and leaves with `EXIT_CODE`."""
    try:
        yield
    except SystemExit as stop:
        if not importing(stop):
            raise
        _end(stop)  # a module ended the program as it was imported
    except BaseException as error:
        _end(error)


def check_python() -> None:
    """Raise ImportError where this Python is older than what rebasin is written for."""
    if sys.version_info[:2] < OLDEST:
        raise ImportError(f"it needs Python {'.'.join(map(str, OLDEST))} or newer", name="rebasin")


def importing(error: BaseException) -> str:
    """The module whose import raised this, "" where none did.

    Code of a module itself, rather than of its functions, runs only while it is imported.
    """
    if isinstance(error, ModuleNotFoundError) and error.name:
        return error.name
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    bodies = [str(frame.f_globals.get("__name__")) for frame in frames if frame.f_code.co_name == "<module>"]
    bodies = [name for name in bodies if name != "__main__"]
    if others := [name for name in bodies if name.partition(".")[0] != OURS]:
        return others[0].partition(".")[0]  # the package that was asked for, not what failed within it
    if isinstance(error, SyntaxError) and error.filename:
        return str(error.filename)
    if isinstance(error, ImportError) and error.name:
        return error.name
    return bodies[-1] if bodies else "a module" if isinstance(error, ImportError) else ""


def _end(error: BaseException) -> None:
    broken = _broken(error)
    what, hint = broken or (f"a bug: {_said(error)}", "Please report it, with the lines above")
    lines = [f"rebasin: {what}", hint]
    if os.environ.get("GITHUB_ACTIONS") == "true":
        text = "".join(f"%{ord(char):02X}" if char in "%\r\n" else char for char in f"{what}\n{hint}")
        lines.insert(0, f"::error title=rebasin::{text}")
    with suppress(Exception):  # closed meanwhile, or none: the exit code says it all the same
        if broken is None or os.environ.get("REBASIN_DEBUG") == "1":
            traceback.print_exception(error)
        sys.stderr.write("\n".join([*lines, ""]))
        sys.stderr.flush()
    sys.exit(EXIT_CODE)


def _broken(error: BaseException | None) -> tuple[str, str] | None:
    """What is wrong with the installation, and what to do; None where it is something else."""
    while error is not None and not importing(error):
        error = error.__cause__
    if error is None:
        return None
    python = f"{sys.executable} {'.'.join(map(str, sys.version_info[:3]))}"
    return (
        f"this installation is broken: {_plain(importing(error))} cannot be imported: {_said(error)}",
        f"Install it anew: python -m pip install --force-reinstall rebasin-cli (this Python is "
        f"{_plain(python)}); REBASIN_DEBUG=1 shows where it fails",
    )


def _said(error: BaseException) -> str:
    with suppress(Exception):
        return _plain(f"{type(error).__name__}: {' '.join(str(error).split())[:LONGEST]}")
    return type(error).__name__


def _plain(text: str) -> str:
    """On one line, and no command to a terminal or a CI server."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text).replace("##", "# #")
