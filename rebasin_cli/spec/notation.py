"""One axis expression: what `"(c5 49) h{i-1|.} a + b + 16"` means.

    h0          Word     permuted by h0
    d*          Word     permuted within each unit of the word it stands behind: (heads d*)
    h~ |h|      Word     h, to which its group's inverse applies, or only its order (`Word.side`)
    .           Fixed    an axis that stays (an integer also states its size)
    ...         Rest     any number of axes that stay
    (c5 49)     Product  row-major factors of one flattened axis; `_` is a factor to be inferred
    a + b + 16  Sum      concatenated segments; an integer is a segment that stays

A word in a family may hold slots: `{i}`, `{i-1}` (the previous found value), `{i-0}` (the last found
value that is not after i), `{i+1}`, `{first}`, `{last}`, each with an optional fallback: `h{i-1|.}` is
`.` where there is no previous value. `h{<i}` and `h{all}` are a segment for every found value, those before
`i` or all of them: what was concatenated so far. `patterns` finds and fills them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ..errors import SpecError


@dataclass(frozen=True)
class Word:
    """Permuted by `name`; `each` is the star of `d*`: each unit of what it lies within has its own order.

    `side` counts where the word's group is more than permutations: "~" where the element's inverse transposed
    applies, "|" where only its order does. As a permutation the word is the same one.
    """

    name: str
    each: bool = False
    side: str = field(default="", compare=False)

    def __str__(self) -> str:
        order = "|" * (self.side == "|")
        return order + self.name + "~" * (self.side == "~") + "*" * self.each + order


@dataclass(frozen=True)
class Fixed:
    """Stays as it is; `size` is None until the tensor tells."""

    size: int | None = None

    def __str__(self) -> str:
        return "." if self.size is None else str(self.size)


@dataclass(frozen=True)
class Rest:
    def __str__(self) -> str:
        return "..."


@dataclass(frozen=True)
class Product:
    factors: tuple[Axis, ...]

    def __str__(self) -> str:
        return f"({' '.join('_' if f == Fixed() else str(f) for f in self.factors)})"


@dataclass(frozen=True)
class Sum:
    terms: tuple[Axis, ...]

    def __str__(self) -> str:
        return " + ".join(str(term) for term in self.terms)


Axis = Word | Fixed | Rest | Product | Sum
Token = tuple[str, str]  # its kind and its text

LONGEST, DEEPEST = 2_000, 100  # characters and parentheses of one tensor's axes
DIGITS = 18  # of a size; one more may be beyond int64

ALL = "all"
ENDS = ("first", "last", ALL)  # slots that no tensor name binds

_TOKEN = re.compile(
    r"\s*(?:(?P<rest>\.\.\.)|(?P<punctuation>[()+])|(?P<number>\d+)(?![\w{])|(?P<fixed>[._])(?![\w.])"
    r"|(?P<word>(?:[A-Za-z]|\{[^{}]*\})(?:[\w.-]|\{[^{}]*\})*(?:~?\*(?![\w{])|~(?![\w{]))?)"
    r"|(?P<order>\|(?:[A-Za-z]|\{[^{}]*\})(?:[\w.-]|\{[^{}]*\})*(?:\*(?![\w{]))?\|))"
)
SLOT = re.compile(
    r"\{(?P<before><)?(?P<name>[A-Za-z]\w*)(?P<offset>[+-][1-9][0-9]{0,8}|-0)?(?:\|(?P<fallback>[^{}]+))?\}"
)


@lru_cache(1 << 16)  # long specs say the same of many tensors
def parse_axes(text: str) -> tuple[Axis, ...]:
    """The axes of one tensor. Raises SpecError that points at the character."""
    if len(text) > LONGEST or text.count("(") > DEEPEST:
        raise SpecError(
            f'"{text[:40]}…": {len(text)} characters and {text.count("(")} parentheses; '
            f"at most {LONGEST} and {DEEPEST} are read"
        )
    tokens = list(_tokens(text))
    axes, rest = _sequence(tokens, text, closing=False)
    assert not rest
    if sum(isinstance(axis, Rest) for axis in axes) > 1:
        raise SpecError(f'"{text}": "..." may stand once')
    return axes


def parse_axis(text: str) -> Axis:
    """A text that must be exactly one axis."""
    axes = parse_axes(text)
    if len(axes) != 1:
        raise SpecError(f'"{text}": expected one axis, found {len(axes)}')
    return axes[0]


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise SpecError(f'"{text}": cannot read "{text[position:].strip()}"')
        kind = match.lastgroup or ""  # every part of the pattern is one
        yield kind, match[kind]
        position = match.end()


def _sequence(tokens: list[Token], text: str, *, closing: bool) -> tuple[tuple[Axis, ...], list[Token]]:
    """Axes up to the end, or up to the closing parenthesis; and the tokens behind."""
    axes: list[Axis] = []
    joining = False  # a "+" waits for its right side
    while tokens:
        (kind, value), tokens = tokens[0], tokens[1:]
        axis: Axis
        if value == "+" and kind == "punctuation":
            if not axes or joining:
                raise SpecError(f'"{text}": "+" needs a segment on both sides')
            joining = True
            continue
        if value == ")" and kind == "punctuation":
            if not closing:
                raise SpecError(f'"{text}": ")" without "("')
            break
        if value == "(" and kind == "punctuation":
            inner, tokens = _sequence(tokens, text, closing=True)
            if not inner:
                raise SpecError(f'"{text}": empty parentheses')
            axis = Product(inner) if len(inner) > 1 else inner[0]
        else:
            axis = _leaf(kind, value, text)
        if closing and isinstance(axis, Rest):
            raise SpecError(f'"{text}": "..." cannot stand inside parentheses')
        if joining:
            left = axes.pop()
            if isinstance(axis, Rest) or isinstance(left, Rest):
                raise SpecError(f'"{text}": "..." cannot be a segment')
            axis = Sum(
                tuple(t for side in (left, axis) for t in (side.terms if isinstance(side, Sum) else (side,)))
            )
            joining = False
        axes.append(axis)
    else:
        if closing:
            raise SpecError(f'"{text}": "(" is never closed')
    if joining:
        raise SpecError(f'"{text}": "+" needs a segment on both sides')
    return tuple(axes), tokens


def _leaf(kind: str, value: str, text: str) -> Axis:
    if kind == "rest":
        return Rest()
    if kind == "fixed":
        return Fixed()
    if kind == "number":
        if len(value) > DIGITS:
            raise SpecError(f'"{text[:40]}…": a size of {len(value)} digits')
        if int(value) == 0:
            raise SpecError(f'"{text}": a size of 0')
        return Fixed(int(value))
    for slot in re.findall(r"\{[^{}]*\}", value):
        found = SLOT.fullmatch(slot)
        if found is None or sum(map(bool, (found["before"], found["offset"], found["name"] in ENDS))) > 1:
            raise SpecError(f'"{text}": cannot read the slot "{slot}"')
        if found["fallback"] is not None and parse_axis(found["fallback"]) == Rest():
            raise SpecError(f'"{text}": "..." cannot be a fallback')
    if sum(found["before"] is not None or found["name"] == ALL for found in SLOT.finditer(value)) > 1:
        raise SpecError(f'"{text}": "{value}" has two slots of several values; one stands for all segments')
    side = "|" if kind == "order" else "~" if "~" in value else ""
    value = value.strip("|") if kind == "order" else value
    return Word(value.rstrip("*~"), value.endswith("*"), side)


def words_of(axis: Axis) -> Iterator[str]:
    """Every word in an axis, in order, with repetitions."""
    if isinstance(axis, Word):
        return iter((axis.name,))
    return (leaf.name for leaf in leaves_of(axis) if isinstance(leaf, Word)) if parts_of(axis) else iter(())


def leaves_of(axis: Axis) -> Iterator[Axis]:
    if not (parts := parts_of(axis)):
        yield axis
    for part in parts:
        yield from leaves_of(part)


def parts_of(axis: Axis) -> tuple[Axis, ...]:
    if isinstance(axis, Product):
        return axis.factors
    return axis.terms if isinstance(axis, Sum) else ()


def factors_of(axis: Axis) -> tuple[Axis, ...]:
    """What an axis is the product of, outermost first; products within the product are opened."""
    if not isinstance(axis, Product):
        return (axis,)
    return tuple(inner for factor in axis.factors for inner in factors_of(factor))


def length_of(axis: Axis, sizes: Mapping[str, int]) -> int | None:
    """How many entries an axis has, None while a part is unknown; `sizes` counts d in each unit for `d*`."""
    if isinstance(axis, Word):
        return sizes.get(axis.name)
    if isinstance(axis, Fixed):
        return axis.size
    parts = [length_of(part, sizes) for part in parts_of(axis)]
    known = [length for length in parts if length is not None]
    if len(known) < len(parts):
        return None
    return math.prod(known) if isinstance(axis, Product) else sum(known)


def fitted_length(axis: Axis, sizes: Mapping[str, int]) -> int:
    """As `length_of`, of an axis of a fitted spec, all of whose parts are known."""
    length = length_of(axis, sizes)
    assert length is not None, axis
    return length


def starred_of(axis: Axis, before: tuple[Axis, ...] = ()) -> Iterator[tuple[str, Word | Fixed | None]]:
    """Every starred word in an axis, and what the axis says that it lies within.

    That is the nearest un-starred word before it in its products, else the number that the outermost of
    them begins with; None where neither is there, so that other tensors must say. `before` holds the
    factors that `axis` itself stands behind.
    """
    if isinstance(axis, Word) and axis.each:
        near: list[Word | Fixed] = [f for f in reversed(before) if isinstance(f, Word) and not f.each]
        near += [factor for factor in before[:1] if isinstance(factor, Fixed)]
        yield axis.name, next(iter(near), None)
    elif isinstance(axis, Sum):
        for term in axis.terms:
            yield from starred_of(term, before)
    elif isinstance(axis, Product):
        factors = factors_of(axis)
        for k, factor in enumerate(factors):
            yield from starred_of(factor, before + factors[:k])


def rewrite(axis: Axis, leaf: Callable[[Axis], Axis]) -> Axis:
    """The axis with every leaf replaced by `leaf(it)`."""
    if isinstance(axis, Product):
        return Product(tuple(rewrite(factor, leaf) for factor in axis.factors))
    if isinstance(axis, Sum):
        terms = (rewrite(term, leaf) for term in axis.terms)
        return summed(t for term in terms for t in (term.terms if isinstance(term, Sum) else (term,)))
    return leaf(axis)


def summed(terms: Iterable[Axis]) -> Axis:
    """Segments one behind the other; one alone is itself, and none is a sum of none."""
    found = tuple(terms)
    return found[0] if len(found) == 1 else Sum(found)
