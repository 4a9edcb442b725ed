"""Weight matching from several seeds, of which the best or the worst is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rebasin_cli.matchers import MatchResult, Problem, State, wm
from rebasin_cli.matchers.descent.options import Sweeps
from rebasin_cli.registry import option
from rebasin_cli.runtime.seeds import derive

NEEDS = frozenset()
MANY = False
DECLARES = frozenset()
KEEP = ("best", "worst")


@dataclass(frozen=True)
class Options(Sweeps):
    starts: int = option(3, "Search from this many seeds.", min=1)
    keep: str = option("best", "Which of the searches counts.", choices=KEEP)
    effort: str = option("fast", "How hard each search looks.", choices=("fast", "normal"))
    hurry: bool = option(False, "End with the first search that gains anything.")
    sealed: tuple = ()  # of a type that no option has: Python's alone


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    inner = wm.Options(max_sweeps=options.max_sweeps, effort=options.effort)
    every = []
    for k in range(options.starts):
        seed = derive(problem.seed, f"restarts {k}")
        every.append(wm.match(replace(problem, seed=seed, progress=None, start=None), inner))
        problem.report(State(every[-1].permutations, k + 1, every[-1].objective_after))
        if options.hurry and every[-1].objective_after > every[-1].objective_before:
            break
    found = (max if options.keep == "best" else min)(every, key=lambda result: result.objective_after)
    return replace(found, sweeps=len(every))
