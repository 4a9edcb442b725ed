"""Which methods are worth trying on some models, in which order, and why: for `auto`, and for the doctor."""

from __future__ import annotations

from dataclasses import dataclass

from ...spec.spec import FittedSpec

NARROW = 128  # units; narrower networks merge badly by weights, and little time learns what they need


@dataclass(frozen=True)
class Candidate:
    """A `method`, and why it is tried. `share` of the time that is left then is what it may take."""

    method: str
    why: str
    share: float = 1.0


def candidates(fitted: FittedSpec, models: int, *, able: bool) -> tuple[Candidate, ...]:
    """What is tried, in this order; `able`: the network is known, and samples to run it on.

    The cheapest comes first, so that there is a result however little time there is; what learns comes last,
    from the best of the others. Swaps on the true loss ("polish") end it.
    """
    found = [Candidate("wm", "it needs weights alone")]
    if not able:
        return tuple(found)
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
