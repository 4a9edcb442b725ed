"""Which methods are worth trying on some models, in which order, and why: for `auto`, and for the doctor."""

from __future__ import annotations

from dataclasses import dataclass

from ...spec.spec import FittedSpec

GROUPED = " + groups"  # after the name of a method that was given more than orders
NARROW = 128  # units; narrower networks merge badly by weights, and little time learns what they need


@dataclass(frozen=True)
class Candidate:
    """A `method`, and why it is tried. `share` of the time that is left then is what it may take.

    `wider`: where units may take more than orders.
    """

    method: str
    why: str
    share: float = 1.0
    wider: bool = False

    @property
    def name(self) -> str:
        """The method, and what it was given."""
        return self.method + GROUPED * self.wider


def candidates(fitted: FittedSpec, models: int, *, able: bool, wider: bool = False) -> tuple[Candidate, ...]:
    """What is tried, in this order; `able`: the network is known, and samples to run it on.

    `wider`: it may have groups, so that weights are also matched by these, and what follows goes on with the
    better of both.
    The cheapest comes first, so that there is a result however little time there is; what learns comes last,
    from the best of the others. Swaps on the true loss ("polish") end it.
    """
    found = [Candidate("wm", "it needs weights alone")]
    if not able:
        return tuple(found)
    if wider:
        found.append(Candidate("wm", "where the network lets units take more than orders", wider=True))
    if models > 2:
        found.append(Candidate("merge-many", "no model is the centre of all others"))
    if fitted.statistics:
        found.append(Candidate("am", "with BatchNorm activations match better than weights", 0.3))
        found.append(Candidate("dual", "weights and activations together", 0.3))
    else:
        found.append(Candidate("dual", "weights and activations together", 0.25))
        if models == 2:  # of many models weights and learning take all of the time
            found.append(Candidate("am", "what units do on data is what they are for", 0.25))
    narrow = min(fitted.words.values(), default=0) < NARROW
    why = "narrow layers gain most by learning" if narrow else "it learns what lets the loss fall"
    found.append(Candidate("ste" if models == 2 else "ste-mm", why, 0.7 if narrow else 0.9))
    found.append(Candidate("polish", "swaps on the true loss end it"))
    return tuple(found)
