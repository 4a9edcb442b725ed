"""What trying one method came to: its permutations, and what the models' mean is worth with each repair."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...repair import Outcome
from ...repair.choices import Measured
from .. import MatchResult
from ..accounts import Tried


@dataclass
class Trial:
    """What one candidate found in `seconds`, or `why` it was not tried, or not to its end.

    `wider`: units took more than orders, of models in another form. `merges` are the held-out figures of the
    models' mean, by repair, each with its seconds, and `repaired` what of that mean the best one changed,
    where it is not to be repaired anew; `lacking` says of the other repairs that are open why they were not
    tried.
    """

    method: str
    seconds: float = 0.0
    why: str = ""
    result: MatchResult | None = field(default=None, repr=False)
    merges: dict[str, tuple[Measured, float]] = field(default_factory=dict, repr=False)
    repaired: dict[str, Outcome] = field(default_factory=dict, repr=False)
    lacking: dict[str, str] = field(default_factory=dict)
    wider: bool = False

    @property
    def found(self) -> MatchResult:
        """What it found; raises LookupError where it was not tried to its end."""
        if self.result is None:
            raise LookupError(f"{self.method} found nothing: {self.why}")
        return self.result

    def accounts(self, *, repairs: bool, metrics: bool = False) -> Iterator[Tried]:
        """A row a merge; with `repairs` each says its own, with `metrics` these beside the loss."""
        if self.result is None or self.why:
            yield Tried(self.method, seconds=round(self.seconds, 2), why=self.why)
        for how, (measured, seconds) in self.merges.items():
            loss = measured.plain.loss
            yield Tried(
                self.method,
                how if repairs else None,
                round(self.seconds + seconds, 2),
                loss if loss < math.inf else None,
                measured.distance if math.isfinite(measured.distance) else None,
                metrics=measured.plain.finite if metrics else None,
            )
        for how, why in self.lacking.items():
            yield Tried(self.method, how, why=why)
