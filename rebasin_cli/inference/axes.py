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
    size: int
    why: str = field(default="", compare=False)


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
            flat[-1] = Fixed(together(flat[-1].size, part.size), flat[-1].why or part.why)
        else:
            flat.append(part)
    if len(flat) > 1:
        return kind(tuple(flat))
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


def factors(axis: Expr) -> tuple[Var, ...]:
    """The variables whose positions a position along a resolved axis tells."""
    return tuple(part for part in getattr(axis, "factors", (axis,)) if isinstance(part, Var))
