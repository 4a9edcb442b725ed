"""What of the outside this process may run or fetch: all that is named, but for a stranger's recipe.

A stranger's recipe is looked through before anything of it is used (`commands/recipes/limits.py`). Here is
the second lock, at the few doors that lead to code of files and to the web: what has got past the first for
whatever reason is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..errors import UsageError

HINT = "Name it on the command line, with --set, if you have read it (docs/security.md)"


class Allowed(Protocol):
    """`references` are the code that may be imported (None: any), such as `net.py:build`."""

    @property
    def references(self) -> Collection[str] | None: ...

    @property
    def unsafe_load(self) -> bool: ...

    @property
    def downloads(self) -> bool: ...


class _All:
    references, unsafe_load, downloads = None, True, True


class _Now:
    allowed: Allowed = _All()


@contextmanager
def only(allowed: Allowed) -> Iterator[None]:
    """Within, nothing else is imported, unpickled or fetched."""
    before, _Now.allowed = _Now.allowed, allowed
    try:
        yield
    finally:
        _Now.allowed = before


def check_reference(text: str) -> None:
    """Raise UsageError for code that may not be imported."""
    known = _Now.allowed.references
    if known is not None and text not in known:
        raise UsageError(f"{text} is code, and --untrusted imports none of a recipe's", hint=HINT)


def check_unpickling(what: object) -> None:
    """Raise UsageError where no file may run code of its own."""
    if not _Now.allowed.unsafe_load:
        raise UsageError(f"{what} would run code of its own, and --untrusted lets none", hint=HINT)


def may_download() -> bool:
    return _Now.allowed.downloads
