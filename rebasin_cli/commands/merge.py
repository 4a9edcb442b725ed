"""`rebasin merge` on files: one model from two or many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from ..session.listener import SILENT, Listener
from ..session.session import Session
from ..session.subjects import ForMerge, Search
from .merging import aligned, curved, plain, soups
from .merging.average import Average
from .verbs import search
from .verbs.outputs import Output, check_outputs
from .verbs.sources import attested

Way = Callable[[Session, Output, Average], dict[str, Any]]


def merge(
    paths: Sequence[Path],
    output: Output,
    listener: Listener = SILENT,
    *,
    mean: Average = Average(),  # noqa: B008 (frozen)
    **subjects: Unpack[ForMerge],
) -> dict[str, Any]:
    """Merge models in the way that fits what was asked for, and write one model; what was done, as values."""
    paths, mean = mean.in_order(paths)
    mean.check(len(paths))
    curved.check(mean, subjects.get("search", Search()), len(paths))
    output = mean.placed(output, paths)
    session = Session("merge", paths, listener, **subjects, perm=mean.perm)
    reads = session.reads.and_files([mean.curve, *mean.sources()])
    check_outputs(output, reads, as_torch=True)
    search.check(session, output, or_none=True)
    done = _way(session, mean)(session, output, mean)
    return attested(session, output, done, copied=mean.copy_from)


def _way(session: Session, mean: Average) -> Way:
    """A point of a trained curve, models as they are, a soup of some of them; else aligned to the first."""
    if mean.curve is not None:
        return curved.merge
    if plain.suffices(session, mean):
        return plain.merge
    return soups.merge if mean.soup else aligned.merge
