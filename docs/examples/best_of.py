"""Weight matching from several seeds; the best objective wins."""

from dataclasses import dataclass, replace

from rebasin_cli.matchers import MatchResult, Problem, State, wm
from rebasin_cli.registry import option
from rebasin_cli.runtime.seeds import derive

NEEDS = frozenset()  # weights alone
MANY = False  # two models at a time
DECLARES = frozenset({"identity", "planted", "monotone"})


@dataclass(frozen=True)
class Options:
    max_sweeps: int = option(100, "Stop each search after this many sweeps.", min=1, effect="length")
    starts: int = option(3, "Search from this many seeds.", min=1)


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """The best of `starts` searches; after each one, the best so far is where a search may go on."""
    best, begun = None, 0
    alone = replace(problem, progress=None, start=None)
    if problem.start is not None:  # a search that has ended: no sweep more
        best = replace(wm.match(replace(problem, progress=None), wm.Options(max_sweeps=0)), converged=True)
        begun = problem.start.sweep
    for k in range(begun, options.starts):
        seed = derive(problem.seed, f"best-of {k}")
        found = wm.match(replace(alone, seed=seed), wm.Options(max_sweeps=options.max_sweeps))
        if best is None or found.objective_after > best.objective_after:
            best = found
        problem.report(State(best.elements, k + 1, best.objective_after))
    return best
