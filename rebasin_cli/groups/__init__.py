"""The groups that a word of a spec can have: what each is, in numbers alone.

`kinds/` has one file each, whose name is what a spec writes; other packages add theirs under the entry point
group `rebasin_cli.groups`. The rest of the program asks `find(name)`, and knows none by name.

An axis of a word `h` is multiplied by the element, one of `h~` by its inverse's transpose, and one of `|h|`
only takes the element's order: a gain stays positive where signs change. Of rotations the first two are one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:  # groups are named in specs, which are read without PyTorch
    from .group import Group

PERMUTATION = "permutation"  # the group of a word of which a spec says nothing more
KNOWN = Registry("groups", "group")


def names() -> list[str]:
    """All that a spec may write, those of other packages too."""
    return KNOWN.names()


@functools.cache
def find(name: str) -> Group:
    """The group of this name. Raises UsageError where there is none."""
    found = KNOWN.get(name)
    group: Group = getattr(found, "GROUP", found)
    return group


def is_known(name: str) -> bool:
    """Other packages are asked only for what is not ours."""
    return name in KNOWN.own() or name in names()
