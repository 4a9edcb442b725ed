"""The largest group of every word, from the second walk (`sides`), and why it is no larger.

A word's classes and their relations say what a group would do to each of them: under rotations all classes
turn alike, and a gain in between must be folded away; under invertible maps the two sides of a product of
matrices take the map and its inverse; signs and scales are exponents −1, 0, 1 of a class, which solve a
small system of equations over all operations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ...groups import PERMUTATION
from ...symmetry.folds import Folds
from ..axes.axes import Expr, Sum, Var, variables
from .sides import NORM, ODD, ONES, ORDER, SCALE, Relation, Sides, pairs

OUTER = "other words lie within it, so it can only be ordered"
UNFOLLOWED = "an operation that was not followed alike"
APART = "it is grouped differently where it is multiplied"


Relations = Sequence[tuple[Relation, tuple[Var, ...]]]  # and the axes that each relates


@dataclass(frozen=True)
class Leaf:
    """One place of a word: the tensor, its axis, and which of the axis's words it is there."""

    tensor: str
    axis: int
    number: int


@dataclass(frozen=True)
class Grouped:
    """A word's group: `sides` says of each place how it acts there; `why` it is no larger group."""

    kind: str = PERMUTATION
    sides: Mapping[Leaf, str] = field(default_factory=dict)
    why: tuple[str, ...] = ()


class Classes:
    """The classes of the second walk, with their places, flags and relations."""

    def __init__(self, walk: Sides, first: Mapping[str, Sequence[Expr]]):
        self.walk = walk
        self.leaves: dict[Leaf, Var] = {}
        self.word: dict[Leaf, Var] = {}  # as the first walk knows it
        for name, axes in walk.tensors.items():
            for k, (axis, before) in enumerate(zip(axes, first[name], strict=True)):
                ours, theirs = self.of(axis), list(variables(before))
                if [var.size for var in ours] != [var.size for var in theirs]:
                    ours = [walk.units.variable(var.size) for var in theirs]
                    walk.flags += [(var, ORDER, UNFOLLOWED) for var in ours]
                for j, (var, word) in enumerate(zip(ours, theirs, strict=True)):
                    self.leaves[Leaf(name, k, j)] = var
                    self.word[Leaf(name, k, j)] = word
        self.flags: dict[Var, dict[str, str]] = {}
        for axis, flag, why in walk.flags:
            for var in self.of(axis):
                self.flags.setdefault(var, {}).setdefault(flag, why)
        self.relations: list[tuple[Relation, tuple[Var, ...]]] = []
        for relation in walk.relations:
            self._split(relation)
        self.at: dict[Var, list[Leaf]] = {}
        for leaf, var in self.leaves.items():
            self.at.setdefault(var, []).append(leaf)

    def of(self, axis: Expr) -> list[Var]:
        return list(variables(self.walk.units.resolve(axis)))

    def _split(self, relation: Relation) -> None:
        """One relation a variable."""
        head, *rest = relation.parts
        rows = [pairs(self.walk, head, other) for other in rest]
        if any(row is None for row in rows):
            for var in (var for part in relation.parts for var in self.of(part)):
                self.flags.setdefault(var, {}).setdefault(ORDER, APART)
            return
        for found in zip(*rows, strict=True):
            self.relations.append((relation, (found[0][0], *(pair[1] for pair in found))))

    def touching(self, var: Var) -> list[tuple[Relation, tuple[Var, ...]]]:
        return [(relation, parts) for relation, parts in self.relations if var in parts]

    def around(self, some: Iterable[Var]) -> list[Var]:
        """All classes that relations join these to, in the order in which they are met."""
        found, left = dict.fromkeys(some), list(some)
        while left:
            var = left.pop()
            new = [v for _, parts in self.touching(var) for v in parts if v not in found]
            found |= dict.fromkeys(new)
            left += new
        return list(found)


def groups_of(classes: Classes, parents: Mapping[Var, Collection[Var]], folds: Folds) -> dict[Var, Grouped]:
    """The largest group of each word of the first walk.

    `parents` has all words, each with those that it lies within; `folds` what becomes of norms' gains and
    biases.
    """
    outer = {parent for those in parents.values() for parent in those}
    leaves: dict[Var, list[Leaf]] = {}
    for leaf, word in classes.word.items():
        leaves.setdefault(word, []).append(leaf)
    return {
        word: Grouped(why=(OUTER,))
        if word in outer
        else _grouped(classes, leaves[word], folds, starred=bool(its))
        for word, its in parents.items()
    }


def _grouped(classes: Classes, leaves: Sequence[Leaf], folds: Folds, *, starred: bool) -> Grouped:
    gains = {name for relation, _ in classes.relations for name in (relation.weight, relation.bias) if name}
    gains -= folds.free
    own = [leaf for leaf in leaves if leaf.tensor not in gains]
    beside = [leaf for leaf in leaves if leaf.tensor in gains]
    its = classes.around(dict.fromkeys(classes.leaves[leaf] for leaf in own))
    within = set(its)
    relations = [(r, parts) for r, parts in classes.relations if parts[0] in within]
    why = _no_matrix(classes, its, relations, folds.unfolded)
    if not why:
        kind, sides = _matrix(classes, its, relations, own)
        return Grouped(kind, sides | dict.fromkeys(beside, "|"))
    if starred:
        return Grouped(why=why)
    for kind, exponents in _exponents(classes, its, relations):
        found = {leaf: exponents[classes.leaves[leaf]] for leaf in own}
        first = next(exponent for exponent in found.values() if exponent)
        inverse = "" if kind == "signed" else "~"  # a sign is its own
        sides = {leaf: {first: "", -first: inverse, 0: "|"}[exponent] for leaf, exponent in found.items()}
        return Grouped(kind, sides | dict.fromkeys(beside, "|"), why)
    return Grouped(why=why)


def _squares(relations: Relations) -> set[Var]:
    return {parts[1] for relation, parts in relations if relation.kind == "square"}


def _no_matrix(
    classes: Classes,
    its: Sequence[Var],
    relations: Relations,
    unfolded: Mapping[str, str],
) -> tuple[str, ...]:
    """Why no rotation may act on these classes."""
    squares, found = _squares(relations), []
    for var in its:
        flags = classes.flags.get(var, {})
        found += [
            f"{why} acts on each unit alone" for flag, why in flags.items() if flag in (ORDER, ODD, SCALE)
        ]
        if var in squares and (classes.at.get(var) or len(classes.touching(var)) > 1):
            found.append("its squares are read one by one")
    for relation, _ in relations:
        if relation.kind == "mul":
            found.append("its units are multiplied with others one by one")
        found += [unfolded[name] for name in relation.parameters if name in unfolded]
    return tuple(dict.fromkeys(found))


def _matrix(
    classes: Classes,
    its: Sequence[Var],
    relations: Relations,
    own: Sequence[Leaf],
) -> tuple[str, dict[Leaf, str]]:
    """The group of matrices, and at which places the inverse acts."""
    squares = _squares(relations)
    flags = {flag for var in its if var not in squares for flag in classes.flags.get(var, {})}
    if ONES in flags:
        return "O1", dict.fromkeys(own, "")
    colour = {classes.leaves[own[0]]: 1}
    left, fits = [classes.leaves[own[0]]], not squares and NORM not in flags
    while left and fits:
        var = left.pop()
        for relation, parts in relations:
            if var not in parts:
                continue
            if relation.kind != "contract":
                fits = False
            other = parts[1] if parts[0] == var else parts[0]
            if other not in colour:
                left.append(other)
            fits &= colour.setdefault(other, -colour[var]) == -colour[var]
    if not fits or any(classes.leaves[leaf] not in colour for leaf in own):
        return "O", dict.fromkeys(own, "")
    return "GL", {leaf: "" if colour[classes.leaves[leaf]] > 0 else "~" for leaf in own}


def _exponents(
    classes: Classes, its: Sequence[Var], relations: Relations
) -> Iterator[tuple[str, dict[Var, int]]]:
    """(kind, exponent of each class) of the monomial groups that hold, the largest first."""
    signs = _solved(its, _equations(classes, its, relations, {ORDER, SCALE, ONES}, norms=True))
    scales = _solved(its, _equations(classes, its, relations, {ORDER, ODD, ONES, NORM}, norms=False))
    if scales and signs and {v for v, e in signs.items() if e} == {v for v, e in scales.items() if e}:
        yield "monomial", scales
    if scales:
        yield "scaled", scales
    if signs:
        yield "signed", signs


Equation = dict[Var, int]


def _equations(
    classes: Classes, its: Sequence[Var], relations: Relations, stopping: set[str], *, norms: bool
) -> list[Equation]:
    squares = _squares(relations)
    found: list[Equation] = [
        {var: 1}
        for var in its
        if classes.flags.get(var, {}).keys() & stopping and not (norms and var in squares)
    ]
    for relation, parts in relations:
        if relation.kind == "contract":
            found.append({parts[0]: 1, parts[1]: 1} if parts[0] != parts[1] else {parts[0]: 2})
        elif relation.kind == "mul":
            sums: Equation = {parts[2]: -1}
            for var in parts[:2]:
                sums[var] = sums.get(var, 0) + 1
            found.append(sums)
        elif relation.kind == "square":
            found.append({parts[1]: 1} if norms else {parts[1]: 1, parts[0]: -2})
        elif relation.kind == "gain" or norms:
            found.append({parts[0]: 1, parts[1]: -1} if parts[0] != parts[1] else {})
        else:
            found += [{var: 1} for var in parts]
    return found


def _solved(its: Sequence[Var], equations: Sequence[Equation]) -> dict[Var, int]:
    """Exponents in −1, 0, 1 that satisfy all equations, most of them not 0; {} where there are none."""
    place = {var: k for k, var in enumerate(its)}
    rows: list[list[Fraction]] = []
    pivots: list[int] = []
    for equation in equations:
        row = [Fraction(0)] * len(its)
        for var, factor in equation.items():
            row[place[var]] += factor
        for pivot, other in zip(pivots, rows, strict=True):
            if row[pivot]:
                row = [a - row[pivot] * b for a, b in zip(row, other, strict=True)]
        if (lead := next((k for k, a in enumerate(row) if a), None)) is None:
            continue
        row = [a / row[lead] for a in row]
        rows = [[a - other[lead] * b for a, b in zip(other, row, strict=True)] for other in rows] + [row]
        pivots.append(lead)
    options = []
    for free in (k for k in range(len(its)) if k not in pivots):
        values = [Fraction(0)] * len(its)
        values[free] = Fraction(1)
        for pivot, row in zip(pivots, rows, strict=True):
            values[pivot] = -row[free]
        if all(abs(value) in (0, 1) for value in values):
            options.append({var: int(value) for var, value in zip(its, values, strict=True)})
    return max(options, key=lambda found: sum(map(abs, found.values())), default={})


def segment(classes: Classes, leaf: Leaf) -> tuple[int, int] | None:
    """Start and length, along its axis, of the segment that a place lies in.

    None where that has units beside the place's own in each block: no run of entries is the place.
    """
    axis = classes.walk.units.resolve(classes.walk.tensors[leaf.tensor][leaf.axis])
    start, number = 0, leaf.number
    for term in axis.terms if isinstance(axis, Sum) else (axis,):
        inside = len(list(variables(term)))
        if number < inside:
            whole = not any(isinstance(factor, Sum) for factor in getattr(term, "factors", ()))
            return (start, term.size) if whole else None
        start, number = start + term.size, number - inside
    raise IndexError(leaf)
