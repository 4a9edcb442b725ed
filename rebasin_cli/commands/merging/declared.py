"""What models say of themselves beside their weights, held against each other before they are averaged.

Weights that were trained for other activations, numbers of heads, classes or scalings of inputs have no
average that is a model of either, though every tensor has the same name and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ...checkpoints import declared
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.scalings import Pair, unlike
from ...errors import SpecError
from . import labels


def check(
    models: Sequence[Checkpoint],
    averaged: Collection[str],
    say: Callable[[str], None],
    *,
    by_number: bool = False,
    hint: str | None = None,
) -> None:
    """Raise SpecError where models say that they compute otherwise, or scale otherwise; as `labels.check`.

    `hint` is what to do about any of that, where there is no `--skip-checks`.
    """
    computing, scaling = [], []
    found = {model: declared.of(model) for model in models}
    told: dict[str, tuple[Checkpoint, Any]] = {}  # by the first that says it
    scaled: dict[str, tuple[Checkpoint, Pair]] = {}
    for model, its_own in found.items():
        for key, value in its_own.settings.items():
            first, its = told.setdefault(key, (model, value))
            if not declared.same(its, value):
                computing.append(f"{key}  is {its} in {first.path}, {value} in {model.path}")
        for key, pair in its_own.scalings.items():
            first, other = scaled.setdefault(key, (model, pair))
            if far := unlike(other, pair):
                mean, deviation, its, wide = (f"{number:.4g}" for number in far)
                scaling.append(
                    f"{key}  is {mean} ± {deviation} in {first.path}, {its} ± {wide} in {model.path}"
                )
            elif unlike(other, pair, declared.ROUNDED):
                say(f"{key} differs a little in {first.path} and {model.path}: take the mean of both, too")
    if computing or scaling:
        what = " and ".join(
            ["compute otherwise"] * bool(computing)
            + ["scale their inputs or targets otherwise"] * bool(scaling)
        )
        raise SpecError(
            f"the models say that they {what}: no average of their weights is a model of either",
            problems=[*computing, *scaling],
            hint=hint or "Merge models of one function. Where that is said and is not so: --skip-checks",
        )
    numberings = {model: its.numberings for model, its in found.items()}
    labels.check(models, averaged, say, numberings, by_number=by_number, hint=hint)
