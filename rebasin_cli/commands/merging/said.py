"""What models say of themselves beside their weights, held against each other before they are averaged.

Weights that were trained for other activations, numbers of heads, classes or scalings of inputs have no
average that is a model of either, though every tensor has the same name and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...checkpoints import said
from ...checkpoints.checkpoint import Checkpoint
from ...errors import SpecError
from . import labels


def check(
    models: Sequence[Checkpoint],
    averaged: Collection[str],
    say: Callable[[str], None],
    *,
    by_number: bool = False,
) -> None:
    """Raise SpecError where models say that they compute otherwise, or scale otherwise; as `labels.check`."""
    first, *others = models
    settings, scalings = said.settings(first), said.scalings(first)
    computing, scaling = [], []
    for other in others:
        its, scaled = said.settings(other), said.scalings(other)
        computing += [
            f"{key}  is {value} in {first.path}, {its[key]} in {other.path}"
            for key, value in settings.items()
            if its.get(key, value) != value
        ]
        for key, pair in scalings.items():
            if key in scaled and said.far(pair, scaled[key]):
                scaling.append(
                    f"{key}  is {_short(pair)} in {first.path}, {_short(scaled[key])} in {other.path}"
                )
            elif scaled.get(key, pair) != pair:
                say(f"{key} differs a little in {first.path} and {other.path}: take the mean of both, too")
    if computing or scaling:
        what = " and ".join(
            ["compute otherwise"] * bool(computing)
            + ["scale their inputs or targets otherwise"] * bool(scaling)
        )
        raise SpecError(
            f"the models say that they {what}: no average of their weights is a model of either",
            problems=[*computing, *scaling],
            hint="Merge models of one function. Where that is said and is not so: --skip-checks",
        )
    labels.check(models, averaged, say, by_number=by_number)


def _short(pair: said.Pair) -> str:
    means, deviations = (f"{its[0]:.4g}{' …' * (len(its) > 1)}" for its in pair)
    return f"{means} ± {deviations}"
