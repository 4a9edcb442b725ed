"""Do restarts help weights alone to find groups? Planted elements, and midpoints of trained pairs.

    python benchmarks/group_restarts.py [--starts 4] [--seeds 12] [--data mnist --pairs A:B …]

Without --pairs: tiny networks in which one layer makes queries, keys and values and several queries share a
key; B is A moved by a random element, with noise of 0.05 of each tensor's deviation. "found" is how often all
tensors come back to three times the noise. With --pairs: the midpoint's accuracy on 2,000 test samples. Of
several searches that of the best objective is kept, the first one among them:

    other orders    the same start, other random orders of words
    random start    from a random element of all groups, as they are balanced
    kick            from the best so far, heads of one block and all within them moved at random

Seconds are of processor time, of the first search and of all together.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line

from rebasin_cli.matchers import MatchResult, Problem, State, wm
from rebasin_cli.matchers.descent.starts import drawn as drawn_balanced
from rebasin_cli.matchers.descent.turned import groups
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec.spec import FittedSpec
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry.elements import Elements
from rebasin_cli.symmetry.form import Canonical, canonical, turned

NOISE = 0.05
HOWS = ("other orders", "random start", "kick")


def kicked(fitted: FittedSpec, best: Elements, rng: torch.Generator, k: int) -> Elements:
    inner = [group for group in groups(fitted).values() if group.starred]
    words, drawn, still = inner[k % len(inner)].words, drawn_balanced(fitted, rng), acts.identity(fitted)
    perms = still.permutations | {w: drawn.permutations[w] for w in words}
    maps = still.maps | {w: drawn.maps[w] for w in words if w in drawn.maps}
    return acts.compose(best, Elements(perms, maps), fitted)


def search(
    a: Canonical, b: Canonical, fitted: FittedSpec, seed: int = 0, start: Elements | None = None
) -> MatchResult:
    begin = None if start is None else State((start,))
    problem = Problem(fitted, (a.tensors, b.tensors), seed, start=begin)
    return wm.match(problem, wm.Options(effort="fast"))


def searches(
    a: Canonical, b: Canonical, fitted: FittedSpec, how: str, first: MatchResult, starts: int
) -> Iterator[MatchResult]:
    """The first search, then the others one by one."""
    best = first
    yield first
    for k in range(1, starts + 1):
        rng, start = generator(k, f"restart {how}"), None
        if how == "random start":
            start = drawn_balanced(fitted, rng)
        if how == "kick":
            start = kicked(fitted, best.elements[0], rng, k)
        found = search(a, b, fitted, k, start)
        best = max(best, found, key=lambda each: each.objective_after)
        yield found


def kept(
    a: Canonical, b: Canonical, fitted: FittedSpec, how: str, starts: int
) -> tuple[list[MatchResult], MatchResult, tuple[float, float]]:
    """All searches, that of the best objective, and seconds."""
    began = time.process_time()
    first = search(a, b, fitted)
    once = time.process_time() - began
    found = list(searches(a, b, fitted, how, first, starts))
    return found, max(found, key=lambda each: each.objective_after), (once, time.process_time() - began)


def planted(make: Callable[[], Any], seed: int) -> tuple[Canonical, Canonical, FittedSpec]:
    from tests.transformers import drawn, inferred

    net, found = inferred(make)
    fitted = found.fitted
    a = canonical(drawn(net, seed), fitted, found.folds)
    moved = acts.acted(a.tensors, fitted, acts.random(fitted, torch.Generator().manual_seed(seed + 7)))
    rng = torch.Generator().manual_seed(seed + 9)
    b = {
        name: t + NOISE * t.std() * torch.randn(t.shape, generator=rng) if t.ndim > 1 else t
        for name, t in moved.items()
    }
    return a, canonical(b, fitted, found.folds), fitted


def right(a: Canonical, b: Canonical, fitted: FittedSpec, found: MatchResult) -> bool:
    moved = turned(b.tensors, fitted, found.elements[0])
    return all((t - moved[name]).norm() <= 3 * NOISE * t.norm().clamp_min(1) for name, t in a.tensors.items())


def elements(starts: int, seeds: int) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.transformers import ByGroup, OneLayer

    line("date", "network", "restarts", "found by one search", f"by the best of {starts} more", "seconds")
    print("|" + "---|" * 6)
    for make in (OneLayer, ByGroup):
        cases = [planted(make, seed) for seed in range(seeds)]
        for how in HOWS:
            rows = [kept(*case, how, starts) for case in cases]
            one = sum(right(*case, row[0][0]) for case, row in zip(cases, rows, strict=True))
            best = sum(right(*case, row[1]) for case, row in zip(cases, rows, strict=True))
            times = " → ".join(f"{sum(row[2][k] for row in rows) / seeds:.2f}" for k in (0, 1))
            line(date.today(), make.__name__, how, f"{one} of {seeds}", f"{best} of {seeds}", times)


def midpoints(data: str, pairs: list[str], starts: int) -> None:
    from groups import Grouped
    from repair import score

    line("date", "pair", "restarts", "objectives", "accuracy", "of the best objective", "seconds")
    print("|" + "---|" * 7)
    for files in pairs:
        pair = Grouped(files, data, 2_000)
        (a, b), fitted, some = pair.forms, pair.found.fitted, pair.test.subset(2_000, 0)

        def accuracy(found: MatchResult, a=a, b=b, fitted=fitted, pair=pair, some=some) -> float:
            moved = turned(b.tensors, fitted, found.elements[0])
            middle = {n: ((t + moved[n]) / 2).to(pair.models[0][n].dtype) for n, t in a.tensors.items()}
            return score(*pair.logits(middle, some))[1]

        for how in HOWS:
            found, best, seconds = kept(a, b, fitted, how, starts)
            objectives = ", ".join(f"{each.objective_after:.2f}" for each in found)
            each = ", ".join(f"{accuracy(one):.3f}" for one in found)
            times = " → ".join(f"{s:.1f}" for s in seconds)
            line(date.today(), pair.name, how, objectives, each, f"{accuracy(best):.3f}", times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--data")
    parser.add_argument("--pairs", nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(environment())
    if given.pairs:
        midpoints(given.data, given.pairs, given.starts)
    else:
        elements(given.starts, given.seeds)


if __name__ == "__main__":
    main()
