"""Models that are averaged as they are, although nothing of theirs stands in the same place: a warning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...averages.kinship import kinship
from ...checkpoints.checkpoint import Checkpoint

MOST = 16  # models that are held against the first
ALIGNED = ("align", "apply", "merge", "repair")  # commands after which units stand as in another model


def tell(models: Sequence[Checkpoint], say: Callable[[str], None]) -> None:
    """Say, in a line, which models look like strangers to the first one. Reads some rows of each."""
    first, *others = models
    if first.metadata.get("rebasin.command") in ALIGNED:
        return
    found = []
    for other in others[:MOST]:
        if other.metadata.get("rebasin.command") not in ALIGNED:
            kin = kinship(first, other)
            found += [(other, kin)] if kin.verdict == "strangers" else []
    if found:
        names = ", ".join(dict.fromkeys(str(model.path) for model, _ in found))
        say(
            f"warning: {names} and {first.path} look like strangers. {found[0][1].why} An average of "
            "them as they are is no model. Align them: rebasin merge, by any --method but none, and with "
            "--net where no built-in spec fits"
        )
