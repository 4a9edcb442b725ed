"""The best assignment after the activation that is no worse before it than leaving units where they are.

    max ⟨S_post, P⟩  such that  ⟨S_pre, P⟩ ≥ tr S_pre

Where the best P of S_post keeps the constraint, it is the answer. Else the constraint gets a price μ: the
best P of S_post + μ S_pre, worth g(μ) = ⟨S_post + μ S_pre, P⟩ − μ tr S_pre, and g(μ) is a bound on what any P
within the constraint reaches after the activation. The least g is found where an answer that breaks the
constraint and one that keeps it are worth the same: each step solves at that μ, and ends, as there are
finitely many P. What the best one within it falls short of the least g is the gap, which is told.

Tatro et al. 2020, appendix C.3, equation 31, there with costs: S is −C, arXiv:2009.02439.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...symmetry import assignment
from ...types import Permutations

STEPS = 200  # prices; a handful is usual


@dataclass(frozen=True)
class Within:
    """The permutations of some words, what they are worth after the activation, and what none exceeds.

    `free` says whether they are the best there are without the constraint; `before` and `allowed` are what
    they, and units left where they are, are worth before the activation.
    """

    perms: Permutations
    reached: float
    bound: float
    before: float
    allowed: float
    free: bool

    @property
    def gap(self) -> float:
        return max(0.0, self.bound - self.reached)


def within(
    post: Permutations,
    pre: Permutations,
    solve: Callable[[Permutations], Permutations],
    still: Permutations,
    *,
    steps: int = STEPS,
) -> Within:
    """The best permutations of the words of `post` within the constraint on the sum over these words.

    `solve` gives the best ones of one similarity (n, n) a word, `still` are those that leave units where they
    are. The answer always keeps the constraint: `still` does.
    """

    def worth(perms: Permutations) -> tuple[float, float]:
        after, before = (
            sum((assignment.total(its[word], perms[word]) for word in post), 0.0) for its in (post, pre)
        )
        return after, before

    allowed = worth(still)[1]
    best = solve(post)
    after, before = worth(best)
    if before >= allowed:
        return Within(best, after, after, before, allowed, free=True)
    broken, kept, bound = (after, before), (still, *worth(still)), after
    steepest = solve(pre)
    if (found := worth(steepest))[1] > allowed:
        kept = (steepest, *found)
    for _ in range(steps):
        price = (broken[0] - kept[1]) / (kept[2] - broken[1])
        perms = solve({word: post[word] + price * pre[word] for word in post})
        after, before = worth(perms)
        value = after + price * before
        bound = min(bound, value - price * allowed)
        if value <= kept[1] + price * kept[2] + 1e-12 * max(1.0, abs(value)):
            break
        if before >= allowed:
            kept = (perms, after, before)
        else:
            broken = (after, before)
    own = worth(still)
    if own[0] > kept[1]:  # what leaves all where it is keeps the constraint, too
        kept = (still, *own)
    return Within(kept[0], kept[1], max(bound, kept[1]), kept[2], allowed, free=False)
