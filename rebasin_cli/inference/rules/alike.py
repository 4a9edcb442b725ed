"""Like modules of a list that may change places: experts with the rows of their router, branches.

No equation of the graph says it. It is tried, on random weights, where no data flows from one of them to
another: in a circle and two of them, so in any way.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from ...errors import RebasinError
from ...graph.program import Program, placeholders
from ...networks.returned import Kept
from ...proof.distance import difference
from ...proof.runs import Runs, in_finest
from ...proof.trials import alive, answers_to
from ..axes.axes import constants, variables
from .walk import INPUT, OUTPUT, UNUSED, Walk

ALIKE = 1e-9  # relative: what may change where modules change places
ROUNDING = 1000  # times the rounding of a precision that is coarser than that
MOST = 32  # lists that are tried
ENDS = {INPUT, OUTPUT, UNUSED}
ROUTERS = 4  # modules beside a list that may number it

Numbers = Mapping[str, Sequence[str]]  # of each number in a list, its tensors

_NUMBER = re.compile(r"(?<![^._])\d+(?=\.)|(?<=[A-Za-z_])\d+(?=\.)")


@dataclass(frozen=True)
class Alike:
    """Modules that may change places: `prefix`, a number, and the same names behind it.

    `beside` are the axes (tensor, axis) that move with them, such as a router's rows.
    """

    prefix: str
    numbers: Numbers
    beside: tuple[tuple[str, int], ...]

    @property
    def places(self) -> tuple[str, ...]:
        """For a person: the first tensor of each, and the axes beside."""
        first = (f"{names[0]} …" for names in self.numbers.values())
        return (*first, *(f"{name} axis {k}" for name, k in self.beside))


def alike(
    module: nn.Module,
    walk: Walk,
    program: Program,
    inputs: Any,
    kept: Kept,
) -> list[Alike]:
    """Lists of modules that may change places; none where the network fails on what is tried."""
    lists = [(prefix, numbers) for prefix, numbers in _lists(walk) if _apart(numbers, program)]
    if not lists:
        return []
    try:
        return in_finest(module, inputs, kept, partial(_found, walk, lists))
    except RebasinError:
        return []


def _found(walk: Walk, lists: Sequence[tuple[str, Numbers]], runs: Runs, batch: Any) -> list[Alike]:
    answer = alive(runs, 0, "like modules", lambda: answers_to(runs, batch, 0))
    least = max(ALIKE, ROUNDING * torch.finfo(runs.dtype).eps)

    def unchanged() -> bool:
        return difference(answer.outputs, runs.outputs(answer.batch)) <= least

    found = []
    for prefix, numbers in itertools.islice(lists, MOST):
        if (beside := _exchangeable(runs.network, walk, numbers, unchanged)) is not None:
            found.append(Alike(prefix, numbers, beside))
    return found


def _lists(walk: Walk) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Tensors of modules that differ in one number of their names, by that number: of like shapes.

    With what stands before the number. The names behind it are in one order for all.
    """
    groups: dict[str, dict[str, dict[str, tuple[int, ...]]]] = {}
    for name, axes in walk.tensors.items():
        for number in _NUMBER.finditer(name):
            members = groups.setdefault(name[: number.start()], {})
            shape = tuple(axis.size for axis in axes)
            members.setdefault(number[0], {})[name[number.end() :]] = shape
    for prefix, members in groups.items():
        shapes = list(members.values())
        if len(members) > 1 and all(own == shapes[0] for own in shapes):
            yield prefix, {number: [f"{prefix}{number}{rest}" for rest in shapes[0]] for number in members}


def _apart(numbers: Numbers, program: Program) -> bool:
    """Whether no data flows from one of the modules into another."""
    owner = {name: number for number, names in numbers.items() for name in names}
    used: set[str] = set()
    every = (program, *program.others)
    sources = {
        node: owner[spec.target]
        for one in every
        for node, spec in zip(placeholders(one), one.inputs, strict=True)
        if spec.target in owner
    }
    reached: dict[fx.Node, frozenset[str]] = {}
    for node in (node for one in every for node in one.graph.nodes):
        if node.op == "placeholder":
            reached[node] = frozenset()
            continue
        own = {sources[read] for read in node.all_input_nodes if read in sources}
        before = frozenset().union(*(reached[read] for read in node.all_input_nodes))
        if own and (before - own):
            return False
        used |= own
        reached[node] = before | own
    return len(used) == len(numbers)


def _exchangeable(
    module: nn.Module, walk: Walk, numbers: Numbers, unchanged: Callable[[], bool]
) -> tuple[tuple[str, int], ...] | None:
    """The axes with which like modules may change places, none where they may alone; None: they may not."""
    first, second, *others = range(len(numbers))
    orders = [second, first, *others], [second, *others, first]
    for axes in ((), *_numbering(walk, numbers)):
        if all(_unchanged(module, numbers, order, axes, unchanged) for order in orders):
            return axes
    return None


def _numbering(walk: Walk, numbers: Numbers) -> list[tuple[tuple[str, int], ...]]:
    """Axes that stay and are as long as the list, module by module, the nearest first: a router's rows."""
    own = {name for names in numbers.values() for name in names}
    first = next(iter(numbers.values()))[0]
    found: dict[str, list[tuple[str, int]]] = {}
    for name, axes in walk.tensors.items():
        for k, axis in enumerate(axes):
            here = walk.units.resolve(axis)
            fixed = not list(variables(here)) and not {part.why for part in constants(here)} & ENDS
            if name not in own and axis.size == len(numbers) and fixed:
                found.setdefault(name.rpartition(".")[0], []).append((name, k))
    nearest = sorted(found, key=lambda parent: -_shared(parent, first))
    return [tuple(found[parent]) for parent in nearest[:ROUTERS]]


def _shared(a: str, b: str) -> int:
    """How many parts two names begin with alike."""
    parts = zip(a.split("."), b.split("."), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], parts))


def _unchanged(
    module: nn.Module,
    numbers: Numbers,
    order: Sequence[int],
    axes: Sequence[tuple[str, int]],
    unchanged: Callable[[], bool],
) -> bool:
    """Whether the outputs stay where modules and axes are in this order; all is put back."""
    own, groups = module.state_dict(), list(numbers.values())
    kept = {name: own[name].clone() for name in (*itertools.chain(*groups), *(name for name, _ in axes))}
    for here, there in zip(groups, (groups[k] for k in order), strict=True):
        for name, source in zip(here, there, strict=True):
            own[name].copy_(kept[source])
    for name, k in axes:
        own[name].copy_(own[name].index_select(k, torch.tensor(order)))
    try:
        return unchanged()
    finally:
        for name, tensor in kept.items():
            own[name].copy_(tensor)
