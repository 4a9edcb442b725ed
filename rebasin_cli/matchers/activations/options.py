"""The options that methods which look at activations share."""

from __future__ import annotations

from dataclasses import dataclass

from ...registry import option
from .. import Declared

COSTS = ("correlation", "inner", "l2")
AT = ("post", "pre", "post-then-pre", "constrained", "both")
SITES = ("all", "first", "last")


@dataclass(frozen=True)
class Looking(Declared):
    """`cost`: correlation of standardised units; inner, their mean products, not centred; l2, the squared
    distance, which differs from inner by what no permutation changes.

    `at`: post, after the activation; pre, before it; post-then-pre, the best before it among the assignments
    that are best after it; constrained, the best after it among those that are no worse before it than units
    left where they are. "both", a former name of post-then-pre, becomes that. `sites`: where a word has
    several, such as the sums of a residual stream, the mean of all of their similarities, or the first or the
    last one's alone. `limit`: samples.
    """

    cost: str = option("correlation", "How the activations of two units are compared.", choices=COSTS)
    at: str = option(
        "post",
        "Where units are looked at: after the activation, before it, or (am) both: the best before among "
        "the best after (post-then-pre), the best after no worse before than B as it is (constrained).",
        choices=AT,
    )
    sites: str = option("all", "Which sums of a residual stream are looked at.", choices=SITES)
    limit: int = option(10_000, "Look at this many training samples.", min=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at == "both":
            object.__setattr__(self, "at", "post-then-pre")
