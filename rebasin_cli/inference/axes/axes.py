"""Axes whose permutations are unknown: expressions over variables, each a permutation.

Var      n units in an order of their own
Fixed    n positions that stay, and why
Product  row-major factors of one flattened axis
Sum      segments one after another
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Var:
    id: int
    size: int


@dataclass(frozen=True)
class Fixed:
    """`made` are the constants that were joined into it, each with its own reason.

    `var` is what stays here: positions along it still tell blocks apart, each of which may have an order of
    its own within.
    """

    size: int
    why: str = field(default="", compare=False)
    made: tuple[Fixed, ...] = field(default=(), compare=False, repr=False)
    var: Var | None = field(default=None, compare=False, repr=False)

    def divided(self, outer: int) -> tuple[Fixed, Fixed]:
        """As the product of two, with the reasons of what each was made of."""
        parts, left, taken = list(self.made), outer, []
        while parts and left > 1 and left % parts[0].size == 0:
            left //= parts[0].size
            taken.append(parts.pop(0))
        if left > 1 or not parts:
            return Fixed(outer, self.why), Fixed(self.size // outer, self.why)
        return _row(taken) if taken else Fixed(outer), _row(parts)


def _row(parts: Sequence[Fixed]) -> Fixed:
    """Constants that are factors of one, side by side."""
    if len(parts) == 1:
        return parts[0]
    why = next((part.why for part in parts if part.why), "")
    return Fixed(math.prod(part.size for part in parts), why, tuple(parts))


def united(a: Expr, b: Expr) -> Expr:
    """One of two that are equal, with all that stays in either."""
    if not (isinstance(a, Fixed) and isinstance(b, Fixed)):
        return a
    left, right = (axis.made or (axis,) for axis in (a, b))
    if [part.size for part in left] != [part.size for part in right]:
        return max(a, b, key=lambda axis: len(places(axis)))
    return _row([ours if ours.var is not None else other for ours, other in zip(left, right, strict=True)])


@dataclass(frozen=True)
class Product:
    factors: tuple[Expr, ...]

    @property
    def size(self) -> int:
        return math.prod(factor.size for factor in self.factors)


@dataclass(frozen=True)
class Sum:
    terms: tuple[Expr, ...]

    @property
    def size(self) -> int:
        return sum(term.size for term in self.terms)


Expr = Var | Fixed | Product | Sum
Axes = tuple[Expr, ...]


def product(factors: Sequence[Expr]) -> Expr:
    """Flat, without factors of 1, constants that touch joined."""
    return _joined(Product, factors, 1, operator.mul)


def total(terms: Sequence[Expr]) -> Expr:
    """Flat, without empty terms, constants that touch joined."""
    return _joined(Sum, terms, 0, operator.add)


def _joined(kind: type, given: Sequence[Expr], neutral: int, together: Callable[[int, int], int]) -> Expr:
    flat: list[Expr] = []
    for part in (p for one in given for p in (parts(one) if isinstance(one, kind) else (one,))):
        if part.size == neutral:
            continue
        if flat and isinstance(flat[-1], Fixed) and isinstance(part, Fixed):
            if kind is Product:
                flat[-1] = _row([*(flat[-1].made or (flat[-1],)), *(part.made or (part,))])
            else:
                flat[-1] = Fixed(together(flat[-1].size, part.size), flat[-1].why or part.why)
        else:
            flat.append(part)
    if len(flat) > 1:
        whole: Expr = kind(tuple(flat))
        return whole
    return flat[0] if flat else Fixed(neutral)


def variables(axis: Expr) -> Iterator[Var]:
    """The variables of a resolved axis, left to right, with repetitions."""
    if isinstance(axis, Var):
        yield axis
    for part in parts(axis):
        yield from variables(part)


def constants(axis: Expr) -> Iterator[Fixed]:
    if isinstance(axis, Fixed):
        yield axis
    for part in parts(axis):
        yield from constants(part)


def parts(axis: Expr) -> tuple[Expr, ...]:
    if isinstance(axis, Product):
        return axis.factors
    return axis.terms if isinstance(axis, Sum) else ()


def rewritten(axis: Expr, leaf: Callable[[Var], Expr]) -> Expr:
    """The same structure with `leaf(it)` in the place of each variable, left to right."""
    if isinstance(axis, Var):
        return leaf(axis)
    if isinstance(axis, Fixed):
        return axis
    return type(axis)(tuple(rewritten(part, leaf) for part in parts(axis)))


def factors(axis: Expr) -> tuple[Var, ...]:
    """The variables whose positions a position along a resolved axis tells."""
    return tuple(part for part in getattr(axis, "factors", (axis,)) if isinstance(part, Var))


def places(axis: Expr) -> tuple[Var, ...]:
    """The same, with those that stay."""
    found = []
    for part in getattr(axis, "factors", (axis,)):
        found += [part] if isinstance(part, Var) else _still(part)
    return tuple(found)


def every(axis: Expr) -> Iterator[Var]:
    """The variables of a resolved axis with those that stay, with repetitions."""
    yield from variables(axis)
    for constant in constants(axis):
        yield from _still(constant)


def _still(part: Expr) -> list[Var]:
    made = (part.made or (part,)) if isinstance(part, Fixed) else ()
    return [constant.var for constant in made if constant.var is not None]
