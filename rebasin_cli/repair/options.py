"""The options that repairs have."""

from __future__ import annotations

from dataclasses import dataclass

from ..registry import option


@dataclass(frozen=True)
class Options:
    """`new_bias`: layers without a bias may get one by "repair" and "reshift"."""

    new_bias: bool = option(
        False,
        "Let repair and reshift give layers a bias that have none; the output then has more tensors.",
        flag="--allow-new-bias",
    )
