"""Weights of models as a person writes them: `0.5,0.3,0.2`, `1/3,1/3,1/3`, or the name of a schedule."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from ..errors import UsageError, unknown
from ..registry.options import is_number

DECAYS: dict[str, Callable[[float], float]] = {
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "minus-sqrt": lambda t: 1 - math.sqrt(t),
}
NAMES = ("uniform", *DECAYS)  # uniform is the plain mean, whatever the order
NEAR = 1e-6  # by which the sum of weights may miss 1
DIGITS = 6  # of a suggestion
LARGEST = 1_000  # the denominator of a suggestion
SHOWN = 60  # characters of what is no number


def parse(text: str | None) -> list[float] | str | None:
    """One number a model, a schedule's name, or None where nothing is given.

    Numbers are decimals or fractions of them, with commas between, and may be negative. A fraction is rounded
    once, so `1/3,1/3,1/3` are the weights of a plain mean. Raises UsageError for everything else, infinite
    numbers and NaN included.

    >>> parse("1/2, 1/4, 0.25")
    [0.5, 0.25, 0.25]
    >>> parse("cosine")
    'cosine'
    """
    if text is None or text in NAMES:
        return text
    if text.replace("-", "").isalpha() and text.lower().strip("-") not in ("nan", "inf", "infinity"):
        raise unknown("schedule of weights", text, NAMES)
    return [_weight(part.strip(), text) for part in text.split(",")]


def _weight(part: str, text: str) -> float:
    above, slash, below = map(str.strip, part.partition("/"))
    try:
        plain = is_number(above) and (is_number(below) if slash else True)
        value = float(Fraction(above) / Fraction(below or 1)) if plain else math.nan
    except (ValueError, ArithmeticError):  # too many digits, too large, a division by 0
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(
            f"--weights {text[:SHOWN]!r}: {part[:SHOWN]!r} is no number"
            if part
            else f"--weights {text[:SHOWN]!r} lacks a number",
            hint=f"Write one a model, such as 0.5,0.3,0.2 or 1/3,1/3,1/3; or a name: {', '.join(NAMES)}",
        )
    return value


def checked(weights: Sequence[float] | None, models: int, *, any_sum: bool = False) -> list[float]:
    """One weight a model, None for equal ones.

    Raises UsageError for weights that are not one finite number a model, or do not add up to 1, unless
    `any_sum` makes sense.
    """
    if not models:
        raise UsageError("there are no models to average")
    try:
        weights = [1 / models] * models if weights is None else [float(weight) for weight in weights]
    except (TypeError, ValueError, OverflowError):
        raise UsageError("the weights are no numbers", hint="Give one number a model") from None
    if len(weights) != models:
        raise UsageError(
            f"{len(weights)} weights for {models} models", hint="Give one a model, in the order of the models"
        )
    if not all(map(math.isfinite, weights)):
        raise UsageError(f"the weights are {', '.join(f'{w:g}' for w in weights)}, expected finite numbers")
    total = sum(weights)
    if abs(total - 1) > NEAR and not any_sum:
        raise UsageError(f"the weights add up to {total:g}, expected 1", hint=_next(weights))
    return weights


def _next(weights: Sequence[float]) -> str:
    if (shares := suggested(weights)) is None:
        return "Negative ones are allowed, but all of them add up to 1, such as 1,0.8,-0.8"
    return f"In the same proportions: {shares}"


def suggested(weights: Sequence[float]) -> str | None:
    """The same proportions, adding up to 1, as a person would write them; None where there are none.

    >>> suggested([600, 400]), suggested([1, 1, 1]), suggested([1, 0.8, -1.8])
    ('0.6,0.4', '1/3,1/3,1/3', None)
    """
    exact = [Fraction(repr(float(weight))) for weight in weights]
    if (total := sum(exact)) <= 0:
        return None
    shares = [weight / total for weight in exact]
    if all(round(share, DIGITS) == share for share in shares):
        return ",".join(_decimal(share) for share in shares)
    if all(share.denominator <= LARGEST for share in shares):
        return ",".join(map(str, shares))
    rounded = [round(share, DIGITS) for share in shares[:-1]]
    last = Fraction(1) - sum(rounded)  # it takes what rounding left
    return ",".join(map(_decimal, [*rounded, last]))


def _decimal(share: Fraction) -> str:
    return f"{float(share):.{DIGITS}f}".rstrip("0").rstrip(".")


def weights_of(name: str, models: int) -> list[float]:
    """One weight a model, adding up to 1. Raises UsageError for an unknown name.

    >>> [round(weight, 3) for weight in weights_of("minus-sqrt", 4)]
    [0.5, 0.207, 0.159, 0.134]
    """
    if name in ("uniform", "linear"):  # equal, and exactly so: the shares of a line differ by 1/(k + 1)
        return [1 / models] * models
    if name not in DECAYS:
        raise unknown("schedule of weights", name, NAMES)
    shares = [1.0, *(DECAYS[name](k / models) for k in range(1, models)), 0.0]
    return [earlier - later for earlier, later in zip(shares, shares[1:], strict=False)]


def in_order(names: Sequence[str]) -> list[int]:
    """The order of a run's checkpoints by the numbers in their names: step-200 comes before step-1000.

    Raises UsageError where the names do not differ in numbers alone: then nothing tells the order.
    """
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({tuple(part[::2]) for part in parts}) > 1:
        raise UsageError(
            "the names of the models tell no order: they differ in more than numbers",
            problems=names,
            hint="Name them alike (step-200.pt, step-400.pt), or give numbers: --weights W,W,…",
        )
    numbers = [tuple(map(int, part[1::2])) for part in parts]
    if len(set(numbers)) < len(names):
        raise UsageError(
            "the names of the models tell no order: two have the same numbers",
            problems=names,
            hint="Name a run's checkpoints by their steps, or give numbers: --weights W,W,…",
        )
    return sorted(range(len(names)), key=numbers.__getitem__)
