"""Axes whose permutations are unknown: expressions over variables, each a permutation.

Var      n units in an order of their own
Fixed    n positions that stay, and why
Product  row-major factors of one flattened axis
Sum      segments one after another
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    flat: list[Expr] = []
    for factor in (f for part in factors for f in (part.factors if isinstance(part, Product) else (part,))):
        if factor.size == 1:
            continue
        if flat and isinstance(flat[-1], Fixed) and isinstance(factor, Fixed):
            flat[-1] = Fixed(flat[-1].size * factor.size, flat[-1].why or factor.why)
        else:
            flat.append(factor)
    if len(flat) > 1:
        return Product(tuple(flat))
    return flat[0] if flat else Fixed(1)


def total(terms: Sequence[Expr]) -> Expr:
    """Flat, without empty terms, constants that touch joined."""
    flat: list[Expr] = []
    for term in (t for part in terms for t in (part.terms if isinstance(part, Sum) else (part,))):
        if term.size == 0:
            continue
        if flat and isinstance(flat[-1], Fixed) and isinstance(term, Fixed):
            flat[-1] = Fixed(flat[-1].size + term.size, flat[-1].why or term.why)
        else:
            flat.append(term)
    if len(flat) > 1:
        return Sum(tuple(flat))
    return flat[0] if flat else Fixed(0)


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
