"""The best of several methods within a budget, by the held-out loss of the models' mean; without data wm.

What is tried depends on what is known of the models (`search.candidates`): weights first, then activations,
then what learns, from the best of those, and swaps on the true loss with what is left of the time; each with
the repairs that are open, where a merge is to come (`Problem.repairs`). The one that costs least is taken
(`repair.choices`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import UsageError, no_number
from ..registry import PLAIN, option
from . import MatchResult, Problem, wm
from .accounts import Chosen, Tried
from .polish.length import Length
from .portfolio import in_turn
from .portfolio.candidates import candidates
from .portfolio.clock import Clock
from .portfolio.contest import COMPARABLE, Trials, ended
from .portfolio.worth import DEFAULTS
from .straight_through.settings import Training
from .straight_through.settings import memory as learning

NEEDS: frozenset[str] = frozenset()
USES = frozenset({"network", "data"})
MANY = True
SAMPLES = None
DECLARES = frozenset({"identity"})


@dataclass(frozen=True)
class Options:
    """`budget`: multiplications, such as 500G or 2T, or about how long to try, such as 60s or 5m.

    Of the first method at least one sweep is made; where multiplications are counted it comes to its end.
    """

    budget: str = option(
        "1T",
        "What trying methods may take: multiplications (500G, 2T), the same everywhere, or a time (60s, 5m).",
        metavar="WORK|TIME",
        role=PLAIN,
        effect="length",
    )

    def __post_init__(self) -> None:
        budget_of(self.budget)


def budget_of(text: str) -> Length:
    """Multiplications or seconds of a `--budget`. Raises UsageError."""
    return Length.parse(str(text), "--budget", steps=False)


def memory(models: int, parameters: int, options: Options) -> dict[str, int]:
    """As of the method that needs most."""
    return learning(models, parameters, Training())


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """Permutations for every model but the first, by the method that is best within the budget.

    `MatchResult.chosen` names the best, and has a row a candidate and repair. How far methods
    come in a time differs from run to run; with a budget of multiplications the same seed gives the same
    answer. Raises UsageError for fewer than two models, NetworkError where no merge has a finite figure to
    choose by, and as the methods do.
    """
    if len(problem.models) < 2:
        raise UsageError("auto needs at least two models")
    able = problem.network is not None and problem.data is not None
    wanted = candidates(problem.fitted, len(problem.models), able=able, wider=problem.wider is not None)
    clock = Clock.of(budget_of(options.budget))
    ranks = problem.ranks
    problem = replace(problem, over=lambda: ranks.agree(float(clock.over())) > 0)
    if not able:
        found = _by_weights(problem)
        return _alone(found, "no network or no data is known")
    trials = Trials(problem, clock)
    if not trials.comparable:
        why = f"a budget of {options.budget} is too little to compare methods on {COMPARABLE} samples"
        first = None if clock.counts else next(iter(problem.repairs), None)  # nor are repairs, in a time
        return _alone(_by_weights(problem), why, first)
    for candidate in wanted:
        if candidate.wider and not trials.widens(candidate):
            continue
        if candidate.method == "polish":  # it takes all that is left
            trials.finish()
        trials.try_(candidate)
    trials.finish()
    measured = [found for trial in trials.done for found, _ in trial.merges.values()]
    if all(found.lost == math.inf for found in measured):
        raise no_number(f"the held-out {measured[0].told} of every merge that was tried")
    best, how = trials.best
    repairs = bool(problem.repairs)
    metrics = problem.metric is not None or problem.choose != "loss"
    rows = tuple(row for trial in trials.done for row in trial.accounts(repairs=repairs, metrics=metrics))
    # What a merge chooses by itself, on samples of its own; where time counts, it was chosen here
    own = clock.counts and len(problem.repairs) > 1 and how in DEFAULTS
    chosen = Chosen(
        best.method,
        rows,
        how if repairs and not own else None,
        best.repaired.get(how),
        problem.choose,
        measured[0].plain.quantities,
    )
    return replace(best.found, chosen=chosen, forms=trials.wider.forms if best.wider else None)


def _alone(found: MatchResult, why: str, repair: str | None = None) -> MatchResult:
    """Weight matching, and why nothing else was tried; with the `repair` for which nothing is compared."""
    whole = "; ".join(part for part in (f"alone: {why}", ended(found)) if part)
    return replace(found, chosen=Chosen("wm", (Tried("wm", why=whole),), repair))


def _by_weights(problem: Problem) -> MatchResult:
    return in_turn.search(wm, problem, wm.Options(), problem.start)
