"""Weight matching: align the second model to the first by comparing weights alone.

Hold all words but one, sum the inner products of matching slices into a similarity of shape (n, n), reference
unit × model unit, and take the element that is best by it: for permutations one linear assignment, for other
groups the nearest one of theirs. Go round until nothing improves.
The first sweep goes from what cannot move to the inside, later ones in random order. The objective never
falls; the optimum is local and depends on the seed, which orders the layers.

A higher objective is a better match of weights, not always a lower barrier: docs/methods/weights.md.

Ainsworth et al. 2022, section 3.2 and Algorithm 1, arXiv:2209.04836.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch

from ..registry import PLAIN, option
from ..runtime.seeds import derive, generator
from ..spec.spec import FittedSpec
from ..symmetry import permutation
from ..symmetry.elements import Elements
from ..types import Permutations, Tensors
from . import MatchResult, Problem, State, check_two
from .descent.baked import paired, same
from .descent.bound import upper_bound
from .descent.descent import DOUBT, Descent
from .descent.exact import enumerate_all
from .descent.options import ATTEMPTS, TURNING, Effort, Tolerance
from .descent.pair import Pair
from .descent.soft import fits, soft_start
from .descent.starts import NEAR, drawn, kicked, ordered

NEEDS: frozenset[str] = frozenset()
MANY = False
GROUPS = True
DECLARES = frozenset({"identity", "planted", "monotone"})

NARROW = 512  # units of the largest word, below which optima differ by percents, and a third kick pays
WIDE = 768  # units of the largest word, from which a sweep takes time, and a kick pays after the polish
ROUGH = 3e-4  # the tolerance of what goes before a polish
FINER = 1e-4  # … where words are narrower, so that sweeps cost next to nothing
MOVED = 0.2  # the share of a word's units that a kick moves
LITTLE = 3e-3  # of what permutations can reach: where later sweeps gain less, kicks lead nowhere else
CLOSE = 1.01  # a bound this near to the objective need not be nearer
MARKS = ("small", "stale")  # how the notes of words begin in a state that is kept
FINEST = 1e-13  # of ‖A‖·‖B‖: gains that float64 tells apart; near the top an angle is the root of its gain
SOFT_MEMORY = 1 << 30  # bytes that a soft start may take


@dataclass(frozen=True)
class Options(Tolerance, Effort):
    """Those of `Effort` and `Tolerance`, and `bound`: also find a number that no permutation's objective
    exceeds, for about two sweeps' time.
    """

    bound: bool = option(
        False, "Also find what no permutation's objective exceeds, and the gap.", effect="nothing", role=PLAIN
    )
    restarts: int = option(0, "Search again from so many random elements; the best objective wins.", min=0)


def match(
    problem: Problem,
    options: Options = Options(),  # noqa: B008 (frozen)
    shares: Mapping[str, float | None] | None = None,
) -> MatchResult:
    """The element of the one model beside the reference; with groups both are in canonical form.

    Exact where all permutations together are fewer than a million. `shares` are factors of tensors in the
    objective of a search with groups, where they are not its own (`Baked`). Raises UsageError unless there
    are exactly two models. KeyboardInterrupt passes through; the last State reported is where `problem.start`
    may go on.
    """
    problem = problem.stacked
    check_two(problem, "wm", "For many models: rebasin merge --method merge-many, which matches them all")
    reference, model = problem.models
    pair = paired(reference, model, problem.fitted, shares, device=problem.device, ranks=problem.ranks)
    with pair.computing():
        pair.read_ahead()
        still = permutation.identity(pair.words)
        before = pair.objective(still)
        if options.max_sweeps > 0 and not pair.turned and (exact := enumerate_all(pair)) is not None:
            after = pair.objective(exact)
            problem.report(State((Elements(exact),), 1, after))
            return MatchResult((Elements(exact),), before, after, 1, 0, True, after)
        search = Search(problem, pair, options, before)
        converged = search.run()
        best, solves = search.best.elements[0], search.descent.solves
        after = search.best.objective if search.summed else pair.objective(search.descent.stand(best))
        bound = max(after, upper_bound(pair, after * CLOSE)) if options.bound else None
    return MatchResult((best,), before, after, search.sweeps, solves, converged, bound)


@dataclass
class Progress:
    """What a search needs to know to go on, beside its best state.

    `attempt` is the one at work and `begun` the sweep that it began with (None: the search's first). `small`
    are words that the best state leaves a small gain in, `stale` those that were not solved since others
    moved. `first` and `descent` are the objectives after the first sweep, and after the first attempt.
    """

    attempt: int = 0
    begun: int | None = None
    small: set[str] = field(default_factory=set)
    stale: set[str] = field(default_factory=set)
    first: float | None = None
    descent: float | None = None

    @classmethod
    def of(cls, state: State, words: Collection[str]) -> Progress:
        """As a kept state says it, of these words."""
        notes = state.notes
        small, stale = ({word for word in words if f"{kind} {word}" in notes} for kind in MARKS)
        begun = int(notes["begun"]) if "begun" in notes else None
        return cls(
            int(notes.get("attempt", 0)), begun, small, stale, notes.get("first"), notes.get("descent")
        )

    def notes(self) -> dict[str, float]:
        """As a kept state says it."""
        marked = zip(MARKS, (self.small, self.stale), strict=True)
        told = {f"{kind} {word}": 1.0 for kind, words in marked for word in sorted(words)}
        known = {"first": self.first, "descent": self.descent}
        told |= {name: value for name, value in known.items() if value is not None}
        return told | ({} if self.begun is None else {"attempt": self.attempt, "begun": self.begun})


class Search:
    """Attempts one after the other; the best state so far is what is reported and kept.

    The first descends from where the search starts. Others begin near the best: after a soft start, or after
    a kick that exchanges a few units; or anywhere: a restart from a random element, and where words take more
    than an order, the order that is found without it. Most leave small gains where they are; a polish takes
    what the best state has of them. Each depends on the best state at its beginning and on its own number
    alone: that state is kept until it ends, so an interrupted one is begun anew.
    """

    def __init__(self, problem: Problem, pair: Pair, options: Options, before: float):
        self.problem, self.pair, self.options = problem, pair, options
        self.descent = Descent(pair, options.tolerance, options.memory)
        if self.descent.turning and pair.dtype == torch.float64:
            self.descent.little = FINEST
        self.summed = True  # the best objective was summed over the tensors, and not from gains
        turning = bool(self.descent.turning)
        planned = (TURNING if turning else ATTEMPTS)[options.effort]
        self.planned, self.kinds = len(planned), (*planned, *("restart",) * options.restarts)
        largest = max(pair.words.values(), default=0)
        self.narrow, self.wide = largest < NARROW, largest >= WIDE
        self.rough = 0.0 if turning else ROUGH if self.wide or options.effort == "fast" else FINER
        start = problem.start
        if start is None:
            self.best = State((Elements(permutation.identity(pair.words)),), 0, before)
        else:
            self.best = replace(start, objective=pair.objective(pair.stand(start.elements[0])))
        self.progress = Progress.of(self.best, self.descent.words)
        begun = self.progress.begun
        self.sweeps = self.best.sweep if begun is None else begun  # of what is begun anew none count
        self.small = set(self.progress.small)

    def run(self) -> bool:
        """All attempts; False where the sweeps were used up, or the time was over, before."""
        while (attempt := self.progress.attempt) < len(self.kinds):
            if attempt > 0 and self.problem.over():
                return False
            best, kind = self.descent.stand(self.best.elements[0]), self.kinds[attempt]
            if kind == "descent":
                stale = self.progress.stale or None
                done = self.settle(best, self.rough, anew=self.problem.start is None, stale=stale)
            elif kind == "polish":
                done = self.settle(best, 0.0, stale=self.small)
            elif kind in ("kick", "fine kick"):
                done = self.settle(best, self.rough if kind == "kick" else 0.0, kick=True)
            elif kind in ("restart", "ordered"):
                begin = self._drawn(attempt) if kind == "restart" else ordered(self.pair, self._orders)
                done = self.settle(self.descent.stand(begin), 0.0)
            elif fits(self.pair.words, max(self.options.memory or 0, SOFT_MEMORY)):
                done = self.settle(soft_start(self.pair, best, self.descent.single), self.rough)
            else:
                done = True
            if not done:
                return False
            if self.progress.attempt == attempt:  # there was nothing to sweep
                self._end(attempt)
        return True

    def _drawn(self, attempt: int) -> Elements:
        seed = derive(self.problem.seed, f"groups restart {attempt - self.planned + 1}")
        return drawn(self.problem.fitted, generator(seed, "element"))

    def _orders(self, models: tuple[Tensors, ...], fitted: FittedSpec) -> Permutations:
        """What permutations alone find."""
        problem = replace(self.problem, models=models, fitted=fitted, start=None, progress=None)
        return match(problem, Options(max_sweeps=self.options.max_sweeps, effort="fast")).permutations[0]

    def _end(self, attempt: int) -> None:
        """Note what comes next."""
        self.progress.attempt, self.progress.begun = self._after(attempt), self.sweeps

    def settle(
        self,
        current: dict[str, torch.Tensor],
        tolerance: float,
        *,
        anew: bool = False,
        kick: bool = False,
        stale: set[str] | None = None,
    ) -> bool:
        """Sweep until nothing improves by more than the tolerance; the best state is replaced by better.

        `anew` begins with the sweep from the outside to the inside, `kick` with a few units out of their
        order. False where the sweeps were used up, or the time was over after one of them.
        """
        descent, attempt = self.descent, self.progress.attempt
        descent.tolerance = max(tolerance, self.options.tolerance)
        descent.small = set(self.small) if attempt == 0 else set()
        now, summed = self.best.objective, self.summed
        if not same(self.pair.element(current), self.best.elements[0]):
            now, summed = self.pair.objective(current), True
        if kick:
            rng = generator(self.problem.seed, f"wm kick {attempt}")
            moved = kicked(current, rng, self.pair.within, share=MOVED)
            begun = descent.first(descent.order(self.problem.seed, f"wm sweep {attempt} 0"))
            for word in sorted(moved.keys() - begun):  # to kick these would change nothing
                now += self.pair.gain(word, current, moved[word])
                current[word] = moved[word]
            summed = False
        stale = set(descent.words) if stale is None else set(stale)
        sweep = self.sweeps if attempt == 0 else 0
        found = self.best, self.small, self.summed
        while stale and self.sweeps < self.options.max_sweeps:
            order = descent.order(self.problem.seed, f"wm sweep {attempt} {sweep}")
            if anew and sweep == 0:
                first = descent.outward(order, current)
                if (reached := descent.reached(first)) >= now or descent.turning:
                    current, now, summed = first, reached, descent.summed and not descent.turning
                descent.proving = now > NEAR * self.pair.limit()
            else:
                if gained := descent.sweep(order, current, stale):
                    now, summed = now + gained, False
                if descent.enough(gained):
                    stale.clear()
            sweep += 1
            self.sweeps += 1
            if now >= found[0].objective:
                better = State((self.pair.element(current),), objective=now)
                found = better, set(descent.small), summed
            if attempt == 0 or not stale:
                self.best, self.small, self.summed = found
                self.progress.small, self.progress.stale = set(self.small), set(stale)
            if attempt == 0 and sweep == 1:
                self.progress.first = self.best.objective
            if not stale:
                self._end(attempt)
            self.problem.report(replace(self.best, sweep=self.sweeps, notes=self.progress.notes()))
            if self.problem.over():
                break
        if stale:
            self.best, self.small, self.summed = found
        return not stale

    def _after(self, attempt: int) -> int:
        """The next attempt; with normal effort not all are made."""
        limit, best = self.pair.limit(), self.best.objective
        if attempt == 0:
            self.progress.descent = best
        if self.options.effort != "normal" or self.descent.turning or attempt >= self.planned:
            return attempt + 1
        if attempt == 0:  # the first sweep left next to nothing: the last polish is all
            little = LITTLE * self.pair.reach(self.pair.atoms)
            first = -limit if self.progress.first is None else self.progress.first
            if best - first < little or best > NEAR * limit:
                return self.planned - 1
        descent = math.inf if self.progress.descent is None else self.progress.descent
        gained = self.wide and attempt == 1 and best > descent + DOUBT * limit
        if gained or (attempt == 2 and not self.narrow):
            return self.kinds.index("polish")
        if attempt == self.kinds.index("polish") and not self.wide:
            return self.planned
        return attempt + 1
