"""Words that no value of a network shows: matched by weights, the others held as activations say.

Those are rotary pairs, which turn before anybody reads them, and queries that share a head's keys and
values: what is seen of one of them is a mean over units that are turned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ...spec.groups import MATRICES, PLANES
from ...spec.spec import FittedSpec
from ...symmetry import assignment, index_maps, permutation, projection
from ...symmetry.elements import Elements
from .. import Problem
from ..descent.baked import Baked
from ..descent.units import Unit, units_of


def words(units: Sequence[Unit], fitted: FittedSpec) -> list[str]:
    """What cannot be seen, what only orders first."""
    turned = [word for unit in units for word in unit.words if fitted.groups.get(word) in PLANES]
    ordered = [
        word
        for unit in units
        if any(fitted.groups.get(other) in MATRICES for other in unit.starred)
        for word in unit.starred
        if word not in fitted.groups
    ]
    return [*sorted(ordered), *sorted(turned)]


def by_weights(problem: Problem, element: Elements, unseen: Sequence[str]) -> Elements:
    """The element with `unseen`, too: one after the other, by tensors whose other words are known."""
    fitted = problem.fitted
    whole = {word for unit in units_of(fitted) for word in unit.words}
    reference, model = problem.models
    baked = Baked(reference, model, fitted, whole)
    pair, known = baked.pair, {*fitted.words} - {*unseen}
    with pair.computing():
        own = {word: perm for word, perm in element.permutations.items() if word in whole}
        baked.bake(own, element.maps)
        current = permutation.identity(pair.words)
        current |= {word: perm for word, perm in element.permutations.items() if word not in whole}
        for word in unseen:
            known.add(word)
            matrix = pair.matrix(word, current, chosen=pair.resting_on(word, known)).cpu()
            block = fitted.within.get(word)
            if (kind := fitted.groups.get(word)) is not None:
                found = projection.project(matrix, kind, block=block).map
                baked.bake({}, {} if found is None else {word: found})
                continue
            if block is None:
                raise LookupError(f"{word} has no group, and lies within nothing")
            inside = projection.blocks_of(matrix, block).diagonal(dim1=0, dim2=1).movedim(-1, 0)
            orders = torch.stack([assignment.solve(each).perm for each in inside])
            baked.bake({word: index_maps.join(torch.arange(block.count), orders)}, {})
        perms = {**element.permutations, **{w: baked.element.permutations[w] for w in whole}}
    return replace(element, permutations=perms, maps=dict(baked.element.maps))
