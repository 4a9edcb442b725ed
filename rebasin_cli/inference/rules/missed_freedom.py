"""Freedom that a network has and its spec does not: what stays although it could move.

Some of it is known from the walk: units that only one axis has, orders that the notation cannot tell apart,
operations without a rule. Whether like modules of a list could change places is tried (`alike`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..axes.axes import Fixed, Sum, Var, variables
from .alike import Alike
from .walk import COMPLEX, UNUSED, Walk
from .writable import ALONE, NO_EVIDENCE

OURS = ("is not understood", "that are grouped differently", " become ", COMPLEX)  # limits of this program
KNOWN = {
    ALONE: "units that no other axis has",
    NO_EVIDENCE: "units that only running statistics have",
    UNUSED: "units of tensors that no kept output shows",
}
SHIFTED = "units in two parts since a roll shifts them"
PLACES = "modules of a list that could change places"


@dataclass(frozen=True)
class Missed:
    """Freedom that the spec does not use: `what`, where, and the digits forgone, at most where `bound`.

    `log10` is None where nobody has counted.
    """

    what: str
    places: tuple[str, ...]
    log10: float | None = None
    bound: bool = False

    @property
    def told(self) -> str:
        """What it is, with the digits that it costs."""
        if self.log10 is None:
            return self.what
        return f"{self.what}, {'at most ' * self.bound}10^{self.log10:.1f} symmetries"


def factorial10(n: int) -> float:
    return math.lgamma(n + 1) / math.log(10)


def missed(walk: Walk, unlisted: Sequence[tuple[Alike, str]]) -> tuple[Missed, ...]:
    """All that is known of what stays although it could move.

    `unlisted` are lists whose modules could change places and that the spec does not say so of, and why.
    """
    lists = (Missed(f"{PLACES}; {why}", one.places, factorial10(len(one.numbers))) for one, why in unlisted)
    return (*_held(walk), *_alike(walk), *_shifted(walk), *lists)


def _held(walk: Walk) -> Iterator[Missed]:
    """Units that stay for reasons of this program, by reason."""
    found: dict[str, list[tuple[str, Fixed]]] = {}
    for name, axes in walk.tensors.items():
        for k, axis in enumerate(axes):
            here = walk.units.resolve(axis)
            if isinstance(here, Fixed) and here.size > 1:
                what = KNOWN.get(here.why)
                if what is None and any(part in here.why for part in OURS):
                    what = f"axes that stay since {here.why}"
                if what is not None:
                    found.setdefault(what, []).append((f"{name} axis {k}", here))
    for what, places in found.items():
        own = what in KNOWN.values()
        digits = sum(factorial10(axis.size) for _, axis in places)
        if what == KNOWN[UNUSED]:  # many axes may be one order
            yield Missed(what, tuple(place for place, _ in places), digits, bound=True)
        else:
            yield Missed(what, tuple(place for place, _ in places), digits if own else None)


def _places(walk: Walk, units: Iterable[Var]) -> dict[Var, list[str]]:
    """The axes that have these units."""
    places: dict[Var, list[str]] = {var: [] for var in units}
    for name, axes in walk.tensors.items():
        for k, axis in enumerate(axes):
            for var in places.keys() & set(variables(walk.units.resolve(axis))):
                places[var].append(f"{name} axis {k}")
    return places


def _shifted(walk: Walk) -> Iterator[Missed]:
    """Units in two parts where others have them shifted: a word says which order, not that it is shifted."""
    for one in walk.shifted:
        whole = walk.units.resolve(one.before)
        parts = _places(walk, variables(whole))
        if isinstance(whole, Sum) and any(parts.values()):
            digits = factorial10(whole.size) - sum(factorial10(var.size) for var in parts)
            yield Missed(SHIFTED, tuple(dict.fromkeys(itertools.chain(*parts.values()))), digits, bound=True)


def _alike(walk: Walk) -> Iterator[Missed]:
    """Orders that depend on more than the notation can say."""
    places = _places(walk, walk.merged)
    for var, (could, do) in walk.merged.items():
        if places[var]:
            what = (
                f"{var.size} units that have {do} {'order' if do == 1 else 'orders'} and could have {could}"
            )
            yield Missed(what, tuple(places[var]), (could - do) * factorial10(var.size))
