"""All of a network's symmetries in one look: the largest group of every word, and what can be folded away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from ...graph.program import Program
from ...networks.returned import Kept
from ...symmetry.folds import Folds
from ..axes.axes import Axes, Expr, Var, rewritten, variables
from ..rules.walk import Walk
from . import side_rules
from .folds import folds_of
from .largest import Classes, Grouped, Leaf, groups_of
from .planes import Planes, Rows, find


@dataclass(frozen=True)
class Symmetries:
    """`groups` of the first walk's variables; `planes` of units that to it stay, `normed` where they stay."""

    groups: Mapping[Var, Grouped] = field(default_factory=dict)
    folds: Folds = Folds()
    planes: tuple[Planes, ...] = ()
    normed: tuple[Rows, ...] = ()


def looked_at(module: nn.Module, program: Program, walk: Walk, kept: Kept) -> Symmetries:
    """`walk` is the first walk, done, with all frozen that is to stay."""
    resolved = {name: [walk.units.resolve(axis) for axis in axes] for name, axes in walk.tensors.items()}
    words = dict.fromkeys(v for axes in resolved.values() for axis in axes for v in variables(axis))
    classes = Classes(side_rules.look(module, program, walk, kept), resolved)
    folds = folds_of(classes, module, program)
    parents = {var: walk.units.parents(var) for var in words}
    turned, normed = find(classes.walk, module, program)
    return Symmetries(groups_of(classes, parents, folds), folds, tuple(turned), tuple(normed))


def sided(
    walk: Walk, written: Mapping[Var, str], groups: Mapping[Var, Grouped]
) -> tuple[dict[str, Axes], dict[Var, str]]:
    """The tensors' axes with a variable for each side of a word, and how each of these is written."""
    written = dict(written)
    known: dict[tuple[Var, str], Var] = {}
    sides_of: dict[Leaf, str] = {
        leaf: side for its in groups.values() for leaf, side in its.sides.items() if side
    }

    def other(var: Var, side: str) -> Var:
        if (var, side) not in known:
            known[var, side] = Var(-len(known) - 1, var.size)
            word = written[var].removesuffix("*")
            star = "*" * written[var].endswith("*")
            written[known[var, side]] = f"|{word}{star}|" if side == "|" else f"{word}~{star}"
        return known[var, side]

    def leaf_of(name: str, k: int, number: Iterator[int]) -> Callable[[Var], Expr]:
        def leaf(var: Var) -> Expr:
            side = sides_of.get(Leaf(name, k, next(number)))
            return other(var, side) if side else var

        return leaf

    tensors = {}
    for name, axes in walk.tensors.items():
        found = []
        for k, axis in enumerate(axes):
            number = iter(range(len(list(variables(walk.units.resolve(axis))))))
            found.append(rewritten(walk.units.resolve(axis), leaf_of(name, k, number)))
        tensors[name] = tuple(found)
    return tensors, written
