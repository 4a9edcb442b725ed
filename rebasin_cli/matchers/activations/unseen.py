"""Words that no value of a network shows: matched by weights, the others held as activations say.

Those are rotary pairs, which turn before anybody reads them, and queries that share a head's keys and
values: what is seen of one of them is a mean over units that are turned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ...spec.spec import FittedSpec
from ...symmetry import assignment, index_maps, projection
from ...symmetry.elements import Elements
from .. import Problem
from ..descent.baked import Baked
from ..descent.starred import Group


def words(units: Iterable[Group], fitted: FittedSpec) -> list[str]:
    """What cannot be seen, what only orders first."""
    turned = [word for unit in units for word in unit.words if _turns(word, fitted)]
    ordered = [
        word
        for unit in units
        if any(fitted.group(other).matrix for other in unit.starred)
        for word in unit.starred
        if word not in fitted.groups
    ]
    return [*sorted(ordered), *sorted(turned)]


def _turns(word: str, fitted: FittedSpec) -> bool:
    """Whether it only turns, in places that stay."""
    group = fitted.group(word)
    return group.matrix and not group.permutes


def by_weights(problem: Problem, element: Elements, unseen: Sequence[str]) -> Elements:
    """The element with `unseen`, too: one after the other, by tensors whose other words are known."""
    fitted = problem.fitted
    reference, model = problem.models
    pair, known = Baked(reference, model, fitted), {*fitted.words} - {*unseen}
    with pair.computing():
        current = pair.stand(element)
        for word in unseen:
            known.add(word)
            matrix = pair.matrix(word, current, chosen=pair.resting_on(word, known)).cpu()
            block = fitted.within.get(word)
            if (kind := fitted.groups.get(word)) is not None:
                found = projection.project(matrix, kind, block=block).map
                pair.bake({}, {} if found is None else {word: found})
                continue
            if block is None:
                raise LookupError(f"{word} has no group, and lies within nothing")
            inside = projection.blocks_of(matrix, block).diagonal(dim1=0, dim2=1).movedim(-1, 0)
            orders = torch.stack([assignment.solve(each).perm for each in inside])
            pair.bake({word: index_maps.join(torch.arange(block.count), orders)}, {})
        return pair.element(current)
