"""What a spec is, as values: `Spec` is what a file says, `FittedSpec` what it means for one architecture.

`parser` reads the first from text, `fits` makes the second from it; both collect every problem before
they speak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from ..groups import PERMUTATION, find
from ..types import Shapes
from .notation import Axis, Fixed, Word, rewrite, words_of
from .patterns import Pattern, pattern_of

if TYPE_CHECKING:
    from ..groups.group import Group

T = TypeVar("T")

EMPTY = "_"  # what a name's empty slot, `experts.{}.w1`, is called where slots have names


@dataclass(frozen=True)
class Entry:
    """One line: a tensor, or a family of tensors where the name has `{i}` slots.

    All tensors that differ in the empty slot `{}` alone are one tensor, stacked along the first axis.
    """

    name: str
    axes: tuple[Axis, ...]
    rank: int | None = None  # name[4]: only tensors of this rank
    optional: bool = False  # name?
    statistic: bool = False  # moves along, but is no evidence for matching
    line: int = 0

    @property
    def family(self) -> bool:
        return "{" in self.name

    @property
    def open(self) -> tuple[int, int]:
        """How much its name leaves open: slots that take anything, and slots that take what they list."""
        listing = sum(":" in slot for slot in self.name.split("{")[1:])
        return self.name.count("{") - listing, listing

    @cached_property
    def parts(self) -> list[str]:
        """Its name between dots, which no slot takes."""
        return self.name.split(".")

    @cached_property
    def end(self) -> str:
        """The last parts of its name, up to one that has a slot; all of them have none where it is exact."""
        last = max((k for k, part in enumerate(self.parts) if "{" in part), default=-1)
        return ".".join(self.parts[last + 1 :])

    @cached_property
    def slots(self) -> tuple[str, ...]:
        """The words on its axes that have slots."""
        return tuple(word for axis in self.axes for word in words_of(axis) if "{" in word)

    @cached_property
    def pattern(self) -> Pattern:
        return pattern_of(self.name.replace("{}", f"{{{EMPTY}}}"))

    def match(self, tensor: str, shape: tuple[int, ...]) -> Mapping[str, str] | None:
        """What the slots capture, or None where the line does not speak of this tensor."""
        if self.rank is not None and len(shape) != self.rank:
            return None
        if not self.family:
            return {} if tensor == self.name else None
        return self.pattern.match(tensor)


@dataclass(frozen=True)
class Spec:
    """A parsed spec file. `source` is where it was read, `digest` the sha256 of its text.

    `before` is that of the same spec as a version before wrote it, if in another order.
    `groups` are those of words that have more than permutations.
    `sizes` are those that no axis tells: words, or families of words where they have `{i}` slots.
    `looked_up` has names of what tells such a size: a setting of the configuration, or another word.
    `unlike` are pairs of words that must differ in size: else something may be added around what is between.
    `stays` are words, or families of words, that keep their order: they only say that axes are equally long.
    `within` says of starred words what they lie within, where no axis does.
    `classes` are those that a configuration names, where the spec is for these alone.
    `unproven` is what was only assumed of the network, where the spec was read off tensors alone; `proof` is
    the account of a proof that was made before, on a small network of the same kind.
    """

    name: str
    entries: tuple[Entry, ...]
    net: str | None = None
    names: tuple[str, ...] = ()  # further names a user may type
    description: str = ""
    ignore: tuple[str, ...] = ()
    source: str = ""
    digest: str = ""
    before: str = field(default="", compare=False)
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    looked_up: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    stays: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    within: Mapping[str, str] = field(default_factory=dict, hash=False)
    groups: Mapping[str, str] = field(default_factory=dict, hash=False)
    classes: tuple[str, ...] = ()
    unproven: str = ""
    proof: Mapping[str, object] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Block:
    """What a starred word lies within: `count` units, each with an order of its own of `size` units.

    They are the units of `word`, which permutes them too; None where a number says how many, which stay.
    """

    word: str | None
    count: int
    size: int


@dataclass(frozen=True)
class Stack:
    """Tensors of a list, which `word` gives their order: one tensor, whose first axis they are."""

    word: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class FittedSpec:
    """A spec resolved against the tensors of one architecture.

    `words` maps each permutation to its number of units, over all blocks for a starred one; `tensors` each
    tensor to its axes, all sizes known; `ignored` tensors stay as they are; `within` says of each starred
    word what it lies within, `groups` of each word that has more than permutations what it has. `stacks` has
    the lists by the names of their lines: each tensor of one has the axes that it has beside its place.
    `untold` are names that would tell how many units a word has, which stays for want of it, and `told` what
    the configuration alone tells; `beside` are specs that fit as well, and move more.
    """

    spec: Spec
    words: dict[str, int]
    tensors: dict[str, tuple[Axis, ...]]
    shapes: dict[str, tuple[int, ...]]
    statistics: frozenset[str] = frozenset()
    ignored: frozenset[str] = field(default=frozenset())
    within: dict[str, Block] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    untold: tuple[str, ...] = ()
    told: Mapping[str, int] = field(default_factory=dict)
    beside: tuple[str, ...] = ()

    @cached_property
    def places(self) -> dict[str, tuple[str, int]]:
        """Of each tensor of a list its stack and its place in it."""
        return {name: (stack, k) for stack, its in self.stacks.items() for k, name in enumerate(its.members)}

    def group(self, word: str) -> Group:
        """The group that a word's units take."""
        return find(self.groups.get(word, PERMUTATION))

    @cached_property
    def stacked(self) -> FittedSpec:
        """The same with each list as the one tensor that it is read as; itself where there is none."""
        if not self.stacks:
            return self
        first = {its.members[0]: (name, its) for name, its in self.stacks.items()}
        tensors: dict[str, tuple[Axis, ...]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        statistics = set(self.statistics - self.places.keys())
        for tensor, shape in self.shapes.items():
            if tensor in first:
                name, its = first[tensor]
                shapes[name] = (len(its.members), *shape)
                tensors[name] = (Word(its.word), *self.tensors[tensor])
                statistics |= {name} if tensor in self.statistics else set()
            elif tensor not in self.places:
                shapes[tensor] = shape
                tensors |= {tensor: self.tensors[tensor]} if tensor in self.tensors else {}
        return replace(self, tensors=tensors, shapes=shapes, statistics=frozenset(statistics), stacks={})

    @cached_property
    def unlisted(self) -> FittedSpec | None:
        """The same with each list in the order that it has, and its members' units words of their own.

        `hidden` within a list is `hidden[0]`, `hidden[1]` …; None where another tensor has them all.
        """
        if not self.stacks:
            return self
        lists = {its.word: len(its.members) for its in self.stacks.values()}
        inside = {word: block for word, block in self.within.items() if block.word in lists}
        beside = {name: axes for name, axes in self.tensors.items() if name not in self.places}
        if any(word in inside for axes in beside.values() for axis in axes for word in words_of(axis)):
            return None

        def leaf(axis: Axis, at: int) -> Axis:
            if isinstance(axis, Word) and axis.name in lists:
                return Fixed(lists[axis.name])
            if isinstance(axis, Word) and axis.name in inside:
                return Word(f"{axis.name}[{at}]", side=axis.side)
            return axis

        tensors = {
            name: tuple(rewrite(axis, partial(leaf, at=self.places.get(name, ("", 0))[1])) for axis in axes)
            for name, axes in self.tensors.items()
        }
        words: dict[str, int] = {}
        for word, size in self.words.items():
            if word in inside:
                words |= {f"{word}[{k}]": inside[word].size for k in range(inside[word].count)}
            elif word not in lists:
                words[word] = size
        rest = {word: block for word, block in self.within.items() if word not in inside}
        groups = {word: kind for word, kind in self.groups.items() if word in words}
        return replace(self, words=words, tensors=tensors, within=rest, groups=groups, stacks={})

    def opened(self, stacks: Mapping[str, Stack], shapes: Shapes) -> FittedSpec:
        """What `stacked` takes together: the tensors of these lists by themselves, all of these `shapes`."""
        of = {name: stack for stack, its in stacks.items() for name in its.members}
        tensors = {
            name: self.tensors[of[name]][1:] if name in of else self.tensors[name]
            for name in shapes
            if name in of or name in self.tensors
        }
        statistics = frozenset(name for name in tensors if of.get(name, name) in self.statistics)
        whole = {name: tuple(shape) for name, shape in shapes.items()}
        return replace(self, tensors=tensors, shapes=whole, statistics=statistics, stacks=dict(stacks))

    @cached_property
    def ordered(self) -> FittedSpec:
        """The same, permutations alone: words whose group has no order are positions that stay."""
        if not self.groups:
            return self
        still = {word for word, kind in self.groups.items() if not find(kind).permutes}

        def leaf(axis: Axis) -> Axis:
            if isinstance(axis, Word) and axis.name in still:
                return Fixed(self.sizes[axis.name])
            return axis

        def moving(given: Mapping[str, T]) -> dict[str, T]:
            return {word: value for word, value in given.items() if word not in still}

        tensors = {n: tuple(rewrite(axis, leaf) for axis in axes) for n, axes in self.tensors.items()}
        words, within = moving(self.words), moving(self.within)
        return replace(self, words=words, tensors=tensors, within=within, groups={})

    @cached_property
    def sizes(self) -> dict[str, int]:
        """How many entries a word stands for on an axis: a starred one those of one block."""
        return self.words | {word: block.size for word, block in self.within.items()}

    def units(self, word: str) -> str:
        """How many units a word permutes: "512 units", "12 × 64 units within heads"."""
        if (block := self.within.get(word)) is None:
            return f"{self.words[word]} unit{'s' * (self.words[word] != 1)}"
        return f"{block.count} × {block.size} units" + (f" within {block.word}" if block.word else "")

    def log10_symmetries(self) -> float:
        """log10 of the number of networks that compute the same function: Σ log10(n!) over words.

        A starred word has one permutation in each block.
        """
        counts, sizes = {word: block.count for word, block in self.within.items()}, self.ordered.sizes
        return sum(counts.get(word, 1) * math.lgamma(n + 1) for word, n in sizes.items()) / math.log(10)

    def moved_share(self) -> float:
        """Share of the parameters (statistics not counted) that have at least one permuted axis."""
        whole = self.stacked
        size = {n: math.prod(whole.shapes[n]) for n in whole.tensors if n not in whole.statistics}
        moved = sum(
            n for name, n in size.items() if any(True for a in whole.tensors[name] for _ in words_of(a))
        )
        return moved / max(1, sum(size.values()))
