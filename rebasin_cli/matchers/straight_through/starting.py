"""Where permutations that are learnt start, where nobody gives them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ... import networks
from ...errors import NetworkError, SpecError
from ...permutations import permutation
from ...permutations.permutation import Permutations
from .. import Problem, registry

log = logging.getLogger("rebasin")


def started(problem: Problem, init: str | None, data: Iterable[Any]) -> tuple[str, Sequence[Permutations]]:
    """Where the other models start, each matched to the reference by itself, on `data` where it needs any.

    And the name of that.
    """
    if init is None and networks.has_running_statistics(problem.network):
        try:
            return started(problem, "am", data)
        except (NetworkError, SpecError) as error:  # its units cannot be seen
            log.info("permutations start from wm, since activations cannot be matched: %s", error.message)
    init = init or "wm"
    if init == "identity":
        return init, [permutation.identity(problem.fitted.words)] * (len(problem.models) - 1)
    pairs = (
        replace(problem, models=(problem.models[0], model), data=data, start=None, progress=None)
        for model in problem.models[1:]
    )
    match = registry.get(init).match
    return init, [match(pair).permutations[0] for pair in pairs]
