"""Universe: match many models at once through a space of their own, by Frank-Wolfe.

Model i has for every word a permutation P_i into the universe, and Σ over pairs ⟨P_i θ_i, P_j θ_j⟩ is
maximised over all of them together, so that going round from model to model is the identity by construction.
The permutations are relaxed to doubly stochastic matrices: the gradient says by how much each pair of units
is worth joining, one assignment a model and word (heads and their units together) finds the best corner, and
all models move towards theirs by the share that is best. At the end the matrices are rounded to elements,
from which rounds of MergeMany go on until nothing improves: Frank-Wolfe alone is left where it gains little,
since its last steps take longer than they are worth (`ascent=False` has the method as published).

The objective has many optima close to each other, and where this search ends is not always the best of them.
So all of MergeMany comes first, in the order of names, and what it finds is the least that is taken: no
result is below its own. And after Frank-Wolfe models in turn are the first that the others join, too, with
rounds from there, and kicks from the best of all ends. All of this takes the models in the order of their
norms, which elements do not change, and knows nothing of who is named first: another result for other orders
of names comes only from MergeMany. With groups it may depend on the frames that models come in, where
Frank-Wolfe begins.

The merge in the universe is the mean of all P_i θ_i; carried back by P_1ᵀ it computes the same, and that is
what the mean of the results is, which are turned so that the first model keeps the identity.

Crisostomi, Fumero, Baieri, Bernard, Rodolà 2024, "C²M³: Cycle-Consistent Multi-Model Merging",
arXiv:2405.17897, section 3. Not theirs: hulls of other groups, the rounds, the other starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch

from ..registry import PLAIN, option
from ..runtime.threads import on_one_thread
from ..symmetry import elements as acts
from ..symmetry.elements import Elements
from . import MatchResult, Problem, State, check_several, kept, merge_many
from .descent.line import best_share, settled
from .descent.many import Many
from .descent.mixtures import Mixtures
from .descent.options import Effort, Tolerance
from .descent.rounds import Rounds, Start, kicks, turns
from .merge_many import KICKS

NEEDS: frozenset[str] = frozenset()
MANY = True
GROUPS = True
DECLARES = frozenset({"identity", "planted"})


@dataclass(frozen=True)
class Options(Tolerance, Effort):
    """Frank-Wolfe ends when two steps gain less than `gain`, a share of Σ over pairs ‖θ_i‖·‖θ_j‖.

    `ascent`: rounds follow, and MergeMany goes before; `tolerance` and `memory` are those of the weight
    matching inside. `max_sweeps` counts the steps and the rounds. `effort`: fast has the mixtures alone.
    """

    gain: float = option(1e-3, "Stop mixing when two steps gain less than this share of the norms.", min=0)
    ascent: bool = option(True, "Go on with rounds of merge-many after mixing.", role=PLAIN)


def memory(models: int, parameters: int, options: Options) -> dict[str, int]:
    """Bytes beside the files, all in float64."""
    return {
        "mixed models": 32 * models * parameters,  # each with every subset of two axes mixed
        "sums": 24 * parameters,  # of all models, what is taken from it, and one product's operand
    }


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """The element of every model but the first, so that all lie in one basin.

    The objective of Frank-Wolfe never falls from step to step; rounding may lower it, and the rounds after
    it never do. A sweep is a step of Frank-Wolfe or a round. Raises UsageError for fewer than two models.
    """
    problem = problem.stacked
    check_several(problem, "universe")
    order = by_norm(problem)
    there = replace(problem, models=tuple(problem.models[k] for k in order))
    many = Many(there, "universe", options.tolerance, options.memory)
    begun, start, few = [Start(many, order, stay=True)], problem.start, options.effort != "high"
    before = None
    if options.ascent and options.effort != "fast":
        begun += [Start(many, order, joining) for joining in turns(len(order), few)[: len(order)]]
        same = {field.name: getattr(options, field.name) for field in fields(merge_many.Options)}
        before = merge_many.rounds(problem, merge_many.Options(**same))
        if start is None or ("start" in start.notes and "surpassed" not in start.notes):
            if start is not None:
                before.resume(start)
            if not before.run(options.max_sweeps):
                return before.result(False)
            start = None
    begun += kicks(many, order, KICKS[options.effort], few)
    search, mixed = Rounds(problem, begun, before), True
    if start is not None and "start" in start.notes:
        search.resume(start)
    else:
        if start is not None and before is not None and "steps" in start.tensors:
            with kept():
                search.take_over(start)
        many.current, steps, mixed = mix(many, options, start, search)
        search.sweep = search.begun = search.first + steps
    ended = mixed and (search.run(options.max_sweeps) if options.ascent else True)
    return search.result(ended)


def by_norm(problem: Problem) -> tuple[int, ...]:
    """The models' numbers, those with small weights first."""
    still = problem.fitted.statistics
    names = [n for n in sorted(problem.fitted.tensors) if n not in still]
    norms = [sum(float(model[n].double().square().sum()) for n in names) for model in problem.models]
    return tuple(sorted(range(len(norms)), key=norms.__getitem__))


def mix(
    many: Many, options: Options, start: State | None, search: Rounds
) -> tuple[list[Elements], int, bool]:
    """Frank-Wolfe; how the mixtures are rounded, the steps, and whether it came to its end.

    What it keeps of itself holds what there is before the `search` from there, too.
    """
    threads, device = torch.get_num_threads(), many.problem.device
    with on_one_thread():
        mixtures = Mixtures(many.models, many.fitted, many.shares, device=device, threads=threads)
        objectives, steps, limit = [mixtures.objective()], list[float](), many.limit()
        walked: list[Sequence[Elements]] = []  # the corners of every step
        if start is not None and "steps" in start.tensors:
            with kept():
                objectives, steps = start.tensors["objectives"].tolist(), start.tensors["steps"].tolist()
                for number, share in enumerate(steps):  # again, so that every bit is as it was
                    names = [_name(number, k) for k in range(len(many.models))]
                    walked.append([acts.of_tensors(start.named(name)) for name in names])
                    mixtures.step(walked[-1], share)
        done = settled(objectives, steps, options.gain * limit)
        while not done and len(steps) < options.max_sweeps:
            corners = mixtures.corners()
            line = mixtures.line(corners)
            share = best_share(line)
            mixtures.step(corners, share)
            objectives.append(float(line(share)))
            steps.append(share)
            walked.append(corners)
            many.problem.report(_mixing(walked, objectives, steps, search))
            done = settled(objectives, steps, options.gain * limit)
        many.solves += mixtures.solves
        return [mixtures.nearest(matrices) for matrices in mixtures.current], len(steps), done


def _mixing(
    walked: Sequence[Sequence[Elements]], objectives: list[float], steps: list[float], search: Rounds
) -> State:
    """The last corners, and in `tensors` all of them: mixtures are made of these by their shares again."""
    tensors = {
        _name(number, k) + name: tensor
        for number, corners in enumerate(walked)
        for k, element in enumerate(corners)
        for name, tensor in acts.tensors_of(element).items()
    }
    tensors["steps"] = torch.tensor(steps, dtype=torch.float64)
    tensors["objectives"] = torch.tensor(objectives, dtype=torch.float64)
    tensors |= search.kept_best() if search.after else {}
    sweep = search.first + len(steps)
    return State(tuple(walked[-1]), sweep, objectives[-1], search.surpassed, tensors)


def _name(number: int, k: int) -> str:
    return f"corner {number} {k} "
