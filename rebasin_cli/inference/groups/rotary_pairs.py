"""Pairs of queries and keys under rotary positions, written into the axes of their tensors.

A layer may make queries, keys and values in one, blocks of each or head by head: the places of a head's rows
are searched anywhere within an axis, and where they make up one part of it, that part becomes a word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from ..axes.axes import Axes, Expr, Fixed, Product, Sum, Var, variables
from .planes import Planes, Rows

FIRST = 10**9  # the number of a variable that no walk has made, below 0


def write(
    tensors: Mapping[str, Axes], written: Mapping[Var, str], every: Sequence[Planes], but: Collection[str]
) -> tuple[dict[str, Axes], dict[Var, str], dict[str, Planes]]:
    """Axes with a word for the pairs of each attention, how their variables are written, and the words.

    Left out are words of `but`, and what these axes cannot say.
    """
    tensors, written, words = dict(tensors), dict(written), {}
    for number, planes in enumerate(every):
        sides = [Var(-FIRST - 2 * number - k, planes.key.turned) for k in (0, 1)]
        changed: dict[str, Axes] = {}
        around: list[tuple[Expr, ...]] = []
        for rows, unit in zip((planes.query, planes.key), sides, strict=True):
            copies = (planes.key.heads, rows.heads // planes.key.heads)
            for name, axis in rows.places:
                axes = list(changed.get(name, tensors[name]))
                axes[axis], its = _placed(axes[axis], rows, unit, copies)
                changed[name] = tuple(axes)
                around += [] if its is None else [its]
        if len(around) < len(planes.query.places) + len(planes.key.places):
            continue  # one cannot be written
        heads = around[-1]  # what keys lie in: one word or number at most, and queries in the same
        if len(heads) > 1 or any(its[: len(heads)] != heads for its in around):
            continue
        of = next(variables(heads[0]), None) if heads else None
        stem = written[of] if of else planes.key.places[0][0].rpartition(".")[0]
        word = ".".join((*stem.split(".")[:-1], "dim"))
        word += "_qk" * (word in {text.strip("|").rstrip("*~") for text in written.values()})
        star = "*" * len(heads)
        if word not in but:
            written |= {sides[0]: f"{word}{star}", sides[1]: f"{word}~{star}"}
            tensors |= changed
            words[word] = planes
    return tensors, written, words


def _placed(
    axis: Expr, rows: Rows, unit: Var, copies: tuple[int, int]
) -> tuple[Expr, tuple[Expr, ...] | None]:
    """The axis with the pairs of these rows written anew, and what they lie in; None where that cannot be."""

    def within(axis: Expr, at: list[int], before: tuple[Expr, ...]) -> tuple[Expr, tuple[Expr, ...] | None]:
        """`at` are the places of all copies of a part of the axis, `before` the factors that number them."""
        if isinstance(axis, Product):
            *outer, last = axis.factors
            at = [start + k * last.size for start in at for k in range(axis.size // last.size)]
            new, found = within(last, at, (*before, *outer))
            return Product((*outer, *(new.factors if isinstance(new, Product) else (new,)))), found
        if isinstance(axis, Sum):
            start, around = 0, None
            terms: list[Expr] = []
            for term in axis.terms:
                new, found = within(term, [place + start for place in at], before)
                terms += new.terms if isinstance(new, Sum) else (new,)
                around, start = around if found is None else found, start + term.size
            return Sum(tuple(terms)), around
        return _held(axis, rows, unit, at, before, copies)

    return within(axis, [0], ())


def _held(
    axis: Expr, rows: Rows, unit: Var, at: list[int], before: tuple[Expr, ...], copies: tuple[int, int]
) -> tuple[Expr, tuple[Expr, ...] | None]:
    """Positions that stay, with the heads among them in pairs: as many in each copy, side by side."""
    inside = [start - at[0] for start in rows.starts if at[0] <= start < at[0] + axis.size]
    every = tuple(start + k for start in at for k in inside)
    apart = {b - a for a, b in pairwise(inside)} - {rows.size}
    if not isinstance(axis, Fixed) or not inside or every != rows.starts or apart:
        return axis, None
    size = rows.turned if len(inside) == 1 else rows.size * len(inside)  # what is not turned may be a word
    left = axis.size - inside[0] - size
    if left < 0:
        return axis, None
    # where all heads stay, the keys' come first, then the queries of each
    own = [count for count in (copies if not before else (len(inside),)) if count > 1]
    numbers = tuple(Fixed(count, axis.why) for count in own) if len(inside) > 1 else ()
    rest = (Fixed(rows.size - rows.turned, axis.why),) if numbers and rows.turned < rows.size else ()
    head: Expr = Sum((unit, *rest)) if rest else unit
    if len(numbers) > 1:  # one after the other, since two numbers side by side would be read as one
        head = Product((numbers[0], Sum((unit, *rest) * numbers[1].size)))
    elif numbers:
        head = Product((*numbers, head))
    segments = (Fixed(inside[0], axis.why), head, Fixed(left, axis.why))
    terms = [term for term in segments if term.size]
    return Sum(tuple(terms)) if len(terms) > 1 else head, (*before, *numbers)
