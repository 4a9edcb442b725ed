"""Lists of tensors for methods that follow the graph or learn: each module's units by themselves.

These see every expert where it stands, not the list. So the order of each list is found by weights before,
the model is put into it, and the method then matches what is left: all other words, and each expert's units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...spec.spec import FittedSpec
from ...symmetry import index_maps, permutation
from ...symmetry.elements import Elements
from ...symmetry.lists import without_lists
from ...symmetry.permutation import permuted
from ...types import Permutations, Tensors
from .. import MatchResult, Problem, State, registry

Sets = Sequence[Permutations]


def search(
    module: Any,
    problem: Problem,
    options: Any,
    start: State | None,
    run: Callable[[Any, Problem, Any, State | None], MatchResult],
) -> MatchResult:
    """What `run` finds by a method that knows no lists, of the spec's own words.

    A search that goes on has the orders that its state says. Raises SpecError where a list has a tensor
    beside it that holds all of its members' units.
    """
    unlisted = _plain(problem.fitted, module.__name__.rpartition(".")[2].replace("_", "-"))
    orders = _Orders(problem.fitted, _found(problem, start))

    def report(state: State) -> None:
        problem.report(replace(state, elements=orders.whole(state.permutations)))

    inner = replace(
        problem,
        fitted=unlisted,
        models=(problem.models[0], *orders.stand(problem.models[1:])),
        progress=report,
    )
    begun = None if start is None else replace(start, elements=orders.parts(start.permutations))
    result = run(module, inner, options, begun)
    return replace(result, elements=orders.whole(result.permutations))


def apart(
    fitted: FittedSpec, model: Tensors, perms: Permutations
) -> tuple[FittedSpec, Tensors, Permutations]:
    """The spec without its lists, a model in their order, and what of its permutations is left then.

    All three as they are where there is no list. Raises SpecError as `search`.
    """
    if not fitted.stacks:
        return fitted, model, perms
    plain, orders = _plain(fitted, "what looks at activations"), _Orders(fitted, [perms])
    return plain, *orders.stand([model]), orders.parts([perms])[0].permutations


def _plain(fitted: FittedSpec, who: str) -> FittedSpec:
    """The spec without its lists. Raises SpecError, which names `who` asks, where there is none."""
    if fitted.unlisted is None:
        without_lists(fitted, who)
        raise LookupError("a spec that has no lists needs none taken away")
    return fitted.unlisted


def _found(problem: Problem, start: State | None) -> list[Permutations]:
    """A set a model beside the reference: by `start` as far as that goes, else by weights."""
    found = list(start.permutations) if start is not None else []
    for model in problem.models[1 + len(found) :]:
        pair = replace(problem, models=(problem.models[0], model), start=None, progress=None)
        found.append(registry.get("wm").match(pair).permutations[0])
    return found


@dataclass(frozen=True)
class _Orders:
    """The orders of lists, a set of all words a model."""

    fitted: FittedSpec
    found: Sequence[Permutations]

    def _alone(self, k: int) -> dict[str, torch.Tensor]:
        """Lists in their order, all else as it is."""
        lists = {its.word for its in self.fitted.stacks.values()}
        still = permutation.identity(self.fitted.words)
        own = {word: self.found[k][word] if word in lists else perm for word, perm in still.items()}
        return permutation.carried(own, self.fitted.within)

    def stand(self, models: Sequence[Any]) -> list[Any]:
        """The models with their lists in order."""
        return [permuted(model, self.fitted, self._alone(k)) for k, model in enumerate(models)]

    def whole(self, sets: Sequence[Permutations]) -> tuple[Elements, ...]:
        """Sets of the method's words as those of the spec's, from how the models were given."""
        return tuple(
            Elements(permutation.compose(self._alone(k), _relisted(perms, self.fitted)))
            for k, perms in enumerate(sets)
        )

    def parts(self, sets: Sequence[Permutations]) -> tuple[Elements, ...]:
        """Sets of the spec's words as those of the method's, from how the models stand."""
        return tuple(
            Elements(_unlisted(permutation.compose(permutation.invert(self._alone(k)), perms), self.fitted))
            for k, perms in enumerate(sets)
        )


def _relisted(perms: Permutations, fitted: FittedSpec) -> dict[str, torch.Tensor]:
    """Permutations of the words of `fitted.unlisted` as those of all words, lists in order."""
    found = {}
    for word, size in fitted.words.items():
        if word in perms:
            found[word] = perms[word]
        elif (block := fitted.within.get(word)) is None:
            found[word] = torch.arange(size)
        else:
            inner = torch.stack([perms[f"{word}[{k}]"] for k in range(block.count)])
            found[word] = index_maps.join(torch.arange(block.count), inner)
    return found


def _unlisted(perms: Permutations, fitted: FittedSpec) -> dict[str, torch.Tensor]:
    """The same, back."""
    plain = _plain(fitted, "what looks at activations")
    found = {}
    for word in fitted.words:
        if word in plain.words:
            found[word] = perms[word]
        elif (block := fitted.within.get(word)) is not None:
            inner = index_maps.split(perms[word], block)[1]
            found |= {f"{word}[{k}]": inner[k] for k in range(block.count)}
    return found
