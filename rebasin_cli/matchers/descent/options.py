"""The options that methods which descend on weights share."""

from __future__ import annotations

from dataclasses import dataclass

from ...registry import option
from .. import Declared

ATTEMPTS = {
    "fast": ("descent",),
    "normal": ("descent", "kick", "kick", "kick", "polish", "fine kick", "polish"),
    "high": ("descent", "soft", *("kick",) * 16, "polish"),
}
TURNING = {  # where words take more than an order
    "fast": ("descent",),
    "normal": ("descent", "ordered"),
    "high": ("descent", "ordered", *("restart",) * 4),
}


@dataclass(frozen=True)
class Sweeps(Declared):
    """How long a search goes round at most."""

    max_sweeps: int = option(100, "Stop the search after this many sweeps.", min=0, effect="length")


@dataclass(frozen=True)
class Effort(Sweeps):
    """`effort`: fast leaves gains below 3e-4 of ‖A‖·‖B‖ where they are; normal kicks a search that is not
    done after its first sweeps, twice, narrow words three times; wide words a second time if the first gains
    nothing, and once more in the end; high tries a soft start and more kicks. Where words take more than an
    order: fast one descent, normal another one from what permutations find, high four more
    from random elements.

    `memory`: bytes of similarity matrices that are kept between solves, beyond the one worked on; 64 MB
    and one of the largest by default.
    """

    effort: str = option(
        "normal", "How hard to look for a better match of weights.", choices=("fast", "normal", "high")
    )
    memory: int | None = option(
        None,
        "Similarities that may be kept between solves, such as 2GB: faster, for large models.",
        metavar="SIZE",
        kind="bytes",
        effect="nothing",
    )


@dataclass(frozen=True)
class Tolerance(Declared):
    """A gain below this share of ‖A‖·‖B‖, over the tensors concerned, counts as none."""

    tolerance: float = option(1e-12, "A gain below this share of the norms counts as none.", min=0)
