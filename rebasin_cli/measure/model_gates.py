"""Gates on the figures of one model on one split, `[SPLIT] FIGURE <=|>= X`: a report's, without its rows.

ece <= 0.05
test accuracy >= 90%
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import UsageError, near
from ..reports import Gate
from .gates import of_figure
from .thresholds import SPLITS, Figure, check_limit, compared, limit_of, shown

FIGURES = {
    "loss": Figure("loss", "loss", " nats"),
    "accuracy": Figure("accuracy", "accuracy", larger=True),
    "ece": Figure("ece", "expected calibration error"),
}


@dataclass(frozen=True)
class Limit:
    """A gate before its figure is measured."""

    text: str
    figure: Figure
    limit: float


def parse(text: str, split: str = "", *, own_loss: bool = False) -> Limit:
    """What a gate asks of a model that is measured on this split, on any where that is not known.

    With a loss of one's own there is no `ece`. Raises UsageError that says what is wrong, and what there is.

    >>> parse("90% <= accuracy").limit
    0.9
    """

    def wrong(told: str, hint: str = "write [SPLIT] FIGURE <= X, such as 'ece <= 0.05'") -> UsageError:
        hint, there = hint[0].upper() + hint[1:], f"figures: {', '.join(known)}"
        return UsageError(f"--gate {shown(text)}: {told}", problems=[there], hint=hint)

    known = [name for name in FIGURES if not (own_loss and name == "ece")]
    left, sign, right = compared(text, wrong)
    words = left.casefold().split()
    splits, named = [word for word in words if word in SPLITS], [word for word in words if word not in SPLITS]
    name = " ".join(named)
    if not name:
        raise wrong("names no figure")
    if name not in FIGURES:
        raise wrong(f"unknown figure {shown(name)}", near(name, known))
    if name not in known:
        raise wrong(f"with --loss no {name} is measured")
    if splits and (len(splits) > 1 or split not in ("", *splits)):
        told = f"names {' and '.join(splits)}, and one split is measured"
        raise wrong(f"{told}, {split}" if split else told, "leave it out, or name it by --split")
    figure = FIGURES[name]
    limit = limit_of(text, left, sign, right, figure)
    check_limit(f"--gate {shown(text)}", limit, figure)
    return Limit(text.strip(), figure, limit)


def held(limits: Iterable[Limit], figures: Mapping[str, float], split: str) -> list[Gate]:
    """Every limit held against its figure, in their order."""
    return [
        of_figure(each.text, each.figure, figures[each.figure.name], each.limit, split) for each in limits
    ]
