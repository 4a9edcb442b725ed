"""The last lines of a log that ends badly: where to look, and the command to see it at home."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import Interrupted, RebasinError, UsageError
from ..runtime.text import LONGEST

# The folder that a CI server has checked out, from which a person at home starts.
TOPS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")


@contextmanager
def of_recipe(recipe: Path, line: Sequence[str], variables: Mapping[str, str]) -> Iterator[None]:
    """What fails within says that its lines are of this recipe, and how it is run again.

    `variables` are those of the environment that it had by then.
    """
    try:
        yield
    except RebasinError as error:
        error.file = str(recipe)
        if not isinstance(error, UsageError | Interrupted):
            error.closing = (*error.closing, at_home(line, variables))
        raise


def at_home(
    line: Sequence[str], variables: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> str:
    """The command line as it is typed at the top of what was checked out.

    One that would be cut is not told: what is left of it could mean something else when it is pasted.
    """
    given = "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items())
    command = f"{_change(environ)}{given}{shlex.join(line)}"
    told = command if len(command) < LONGEST // 2 else "the same command line, which is too long to be told"
    return f"See it at home: {told}"


def _change(environ: Mapping[str, str]) -> str:
    for top in filter(None, map(environ.get, TOPS)):
        with suppress(ValueError, OSError):  # another drive; a folder that is gone
            inside = os.path.relpath(os.getcwd(), os.path.realpath(top))
            if inside != os.curdir and inside.partition(os.sep)[0] != os.pardir:
                return f"cd {shlex.quote(inside)} && "
    return ""
