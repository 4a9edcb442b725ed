"""What is refused before a file is read or an hour is spent, as far as options alone can tell."""

from __future__ import annotations

from .. import matchers
from ..errors import UsageError, unknown
from ..matchers.search.align import check_groups as can_find_groups
from ..matchers.search.align import polish_of
from .subjects import Search

GROUPS = ("permutations", "all")


def check_method(search: Search, *, or_none: bool = False) -> None:
    """Raise UsageError for a method that there is not."""
    check_groups(search.groups)
    if search.groups != GROUPS[0] and search.method == "none":
        raise UsageError("--groups all is for a search, and --method none makes none")
    if search.groups != GROUPS[0] and search.method in matchers.registry.names():
        can_find_groups(search.method, options=search.options, polish=search.polish is not None)
    if search.polish is not None:
        polish_of(search.polish, search.method)
        if search.method == "none":
            raise UsageError(
                "--polish refines what a method found, and --method none finds nothing",
                hint="Choose one of: rebasin list methods",
            )
    if search.method == "none" and or_none:
        return
    if search.method == "none":
        raise UsageError("--method none leaves nothing to do", hint="Choose one of: rebasin list methods")
    known = [*matchers.registry.names(), *["none"] * or_none]
    if search.method not in known:
        raise unknown("method", search.method, known)


def check_groups(groups: str) -> None:
    """Raise UsageError for a choice of --groups that there is not."""
    if groups not in GROUPS:
        raise unknown("choice of --groups", groups, GROUPS)
