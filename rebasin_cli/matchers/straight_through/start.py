"""Where permutations that are learnt start, where nobody gives them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ... import networks
from ...errors import NetworkError, SpecError
from ...symmetry import elements as acts
from ...types import Permutations
from .. import INITS, MatchResult, Problem, registry

STARTS = (*INITS, "given")  # what a state says of where its search began, by number
ENOUGH = 2_000  # samples that show how to turn one model to another, where the rest is learned

log = logging.getLogger("rebasin")


def started(problem: Problem, init: str | None, data: Iterable[Any]) -> tuple[str, Sequence[Permutations]]:
    """Where the other models start, each matched to the reference by itself, on `data` where it needs any.

    And the name of that.
    """
    init, found = matched(problem, init, data)
    return init, [part.permutations[0] for part in found]


def matched(problem: Problem, init: str | None, data: Iterable[Any]) -> tuple[str, Sequence[MatchResult]]:
    """The same as the results of these matches, which have maps where words have groups."""
    if init is None and (problem.groups or networks.has_running_statistics(problem.given_network)):
        try:
            return matched(problem, "am", data)
        except (NetworkError, SpecError) as error:  # its units cannot be seen
            log.info("permutations start from wm, since activations cannot be matched: %s", error.message)
    init = init or "wm"
    if init == "identity":
        found = MatchResult((acts.identity(problem.fitted),), 0.0, 0.0, 0, 0, True)
        return init, [found] * (len(problem.models) - 1)
    pairs = (
        replace(problem, models=(problem.models[0], model), data=data, start=None, progress=None)
        for model in problem.models[1:]
    )
    method = registry.get(init)
    options = (method.Options(limit=ENOUGH),) if problem.groups and init == "am" else ()
    return init, [method.match(pair, *options) for pair in pairs]
