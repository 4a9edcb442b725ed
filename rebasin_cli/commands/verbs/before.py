"""What was measured before: a report that is taken as it is, and since when a file has its content.

Without torch, for a run of which nothing is measured anew has no need of it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from ...checkpoints import digests
from ...errors import RebasinError
from ...reports import Report
from ...runtime import files
from ...runtime.text import clean

_known: ContextVar[Report | None] = ContextVar("_known", default=None)
SHOWN = 12  # digits of a digest
PATIENCE = 10  # seconds for git
# Nothing is locked, fetched or asked for; a name is a name, whatever it holds. What a repository says of
# programs is not heard: a folder that was checked out may be made like a repository, with its own settings.
QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
QUIET |= {"GIT_LITERAL_PATHSPECS": "1"}
DEAF = {"safe.bareRepository": "explicit", "log.showSignature": "false", "core.fsmonitor": "false"}
DEAF |= {"gpg.program": "false", "gpg.ssh.program": "false", "gpg.x509.program": "false"}
DEAF |= {"core.hooksPath": os.devnull, "protocol.allow": "never"}


def account(path: Path) -> str:
    """A file with the beginning of its SHA-256, and since when it has this content.

    A file that was checked out has the time of the checkout: where git has it as it is, the commit tells.
    """
    try:
        status = path.stat()
        return _account(path.absolute(), str(path), status.st_mtime_ns)
    except (OSError, RebasinError):
        return f"{clean(path)}, which is gone"


def of_missed(report: Report, baseline: str | Path | None) -> str:
    """The account of the `baseline` that a report was held against, "" where all its gates are met."""
    missed = any(not gate.met for gate in report.gates)
    return account(Path(baseline)) if missed and baseline else ""


@cache
def _account(path: Path, shown: str, modified: int) -> str:
    told = f"{clean(shown)}, sha256 {digests.of_file(path)[:SHOWN]}…"
    if found := _in_git(path):
        return f"{told}, {found}"
    when = datetime.fromtimestamp(modified / 1e9, UTC)
    return f"{told}, last written {when:%Y-%m-%d %H:%M} UTC by the file's own time"


def _in_git(path: Path) -> str:
    """Since which commit it is as it is; "" where git does not know it, or as something else.

    The first commit of a shallow clone seems to bring every file: it may be older.
    """
    folder, name = path.parent, f"./{path.name}"
    known = _git(folder, "rev-parse", "--is-shallow-repository", f"HEAD:{name}").split()
    if len(known) != 2 or known[1] != _blob(path, len(known[1])):
        return ""
    commit, day, *parents = _git(folder, "log", "-1", "--format=%h %cs %p", "--", name).split() or ("", "")
    if not commit:
        return ""
    older = known[0] == "true" and not parents
    return f"in git since {day}{' or before' * older} (commit {commit}{', a shallow clone' * older})"


def _blob(path: Path, digits: int) -> str:
    """The name that git gives to this content."""
    content = files.content(path)
    kind = hashlib.sha1 if digits == 40 else hashlib.sha256
    return kind(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _git(folder: Path, *words: str) -> str:
    settings = [word for name, value in DEAF.items() for word in ("-c", f"{name}={value}")]
    try:
        ended = subprocess.run(
            ["git", "--no-pager", *settings, "-C", str(folder), *words],
            env=os.environ | QUIET,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout if ended.returncode == 0 else ""


@contextmanager
def measured(report: Report | None) -> Iterator[None]:
    """Whatever is measured within was measured before, and found to be this; None measures."""
    token = _known.set(report)
    try:
        yield
    finally:
        _known.reset(token)


def known() -> Report | None:
    """What was measured before, None where that is still to be done."""
    return _known.get()
