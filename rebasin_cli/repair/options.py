"""The options that repairs have."""

from __future__ import annotations

from dataclasses import dataclass

from ..registry import option

RIDGE = 0.01  # of a refit


@dataclass(frozen=True)
class Options:
    """`new_bias`: layers without a bias may get one by "repair" and "reshift". `ridge`: of "refit"."""

    new_bias: bool = option(
        False,
        "Let repair and reshift give layers a bias that have none; the output then has more tensors.",
        flag="--allow-new-bias",
    )
    ridge: float = option(
        RIDGE,
        "Keep a refit this close to the averaged weights: a share of the mean square of a layer's inputs.",
        min=0,
        max=1e6,
    )
