"""What was followed through a network, written down: a spec as text, fitted, and why the other axes stay."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import nn

from ...errors import SpecError
from ...graph.program import Program
from ...groups import PERMUTATION
from ...networks.returned import Kept
from ...networks.tied import tied
from ...proof.prove import Proof
from ...spec.fits import fit
from ...spec.parser import parse
from ...spec.spec import FittedSpec, Spec
from ...symmetry.folds import Folds
from ..axes.axes import constants, variables
from ..groups import planes, rotary_pairs
from ..groups.largest import Grouped
from ..groups.symmetries import Symmetries, looked_at, sided
from ..rules.alike import Alike
from ..rules.missed_freedom import Missed
from ..rules.walk import Walk
from ..rules.writable import sizes, within
from .axis_text import lines_of, spec_text
from .lists import Lines, Unlisted, listed
from .unit_names import names

REFUSED = "the proof refused it"
LISTED = "modules of a list change places as they are"


@dataclass(frozen=True)
class Frozen:
    """Units that stay where they are: `why`, and the axes that have them ("fc.weight axis 0")."""

    why: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Inferred:
    """A spec read off a network: its text, what it means for the tensors, and what it leaves out.

    Where groups were asked for, `folds` are what the canonical form folds away, and `no_larger` says of each
    word why its group is no larger. `lists` are the modules that change places, each with the words of that.
    `kept` and `not_kept` name the outputs that stay, and those that need not.
    """

    text: str
    fitted: FittedSpec
    reasons: tuple[Frozen, ...]
    proof: Proof | None = None
    missed: tuple[Missed, ...] = ()
    folds: Folds = Folds()
    no_larger: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lists: tuple[tuple[Alike, tuple[str, ...]], ...] = ()
    kept: tuple[str, ...] = ()
    not_kept: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[Frozen, ...]:
        """What the proof took out."""
        return tuple(frozen for frozen in self.reasons if frozen.why.startswith(REFUSED))

    @property
    def spec(self) -> Spec:
        return self.fitted.spec


@dataclass(frozen=True)
class Writing:
    """All that a spec is written from; `refused` are words that the proof left with permutations only."""

    module: nn.Module
    program: Program
    walk: Walk
    kept: Kept
    name: str
    groups: bool
    alike: list[Alike] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    unlisted: list[tuple[Alike, str]] = field(default_factory=list)

    def __call__(self) -> Inferred:
        found = Symmetries()
        if self.groups:
            found = looked_at(self.module, self.program, self.walk, self.kept)
        told = told_by(self.module, self.walk, found, self.refused)
        for one in list(self.alike):
            try:
                told = _with_list(told, one)
            except (Unlisted, SpecError) as error:
                self.drop(one, str(error) if isinstance(error, Unlisted) else error.message)
        return inferred_from(self.module, self.walk, self.name, found, told, self.groups)

    def drop(self, one: Alike, why: str) -> None:
        """Leave the modules of a list where they are."""
        self.alike.remove(one)
        self.unlisted.append((one, why))


@dataclass(frozen=True)
class Told:
    """What is to be written: lines, the sizes that its words then have, and what is known of them.

    `listed` are the lists that it says, each with the words that it made.
    """

    lines: Lines
    expected: Mapping[str, int]
    why: Mapping[str, tuple[str, ...]]
    listed: tuple[tuple[Alike, tuple[str, ...]], ...] = ()


def told_by(module: nn.Module, walk: Walk, found: Symmetries, refused: Collection[str]) -> Told:
    """What the walk found, without lists; words that are `refused` keep their permutations only."""
    words = names(walk.units, walk.tensors, walk.used, walk.hints)
    parents = {var: walk.units.parents(var) for var in words}
    written = {var: f"{word}*" if parents[var] else word for var, word in words.items()}
    grouped = {words[var]: its for var, its in found.groups.items() if var in words}
    grouped |= {word: Grouped(why=(REFUSED,)) for word in refused if word in grouped}
    tensors, written = sided(walk, written, {v: grouped.get(word, Grouped()) for v, word in words.items()})
    kinds = {word: its.kind for word, its in grouped.items() if its.kind != PERMUTATION}
    tensors, written, turned = rotary_pairs.write(tensors, written, found.planes, refused)
    kinds |= {word: its.kind for word, its in turned.items()}
    told = {words[var]: size for var, size in sizes(walk.units, walk.tensors).items()}
    told |= {word: its.key.turned for word, its in turned.items()}
    lie = {words[var]: words[parent] for var, parent in within(walk.units, walk.tensors).items()}
    expected = {
        word: var.size * math.prod(parent.size for parent in parents[var]) for var, word in words.items()
    }
    expected |= {word: its.key.heads * its.key.turned for word, its in turned.items()}
    why = {word: its.why for word, its in grouped.items() if its.why}
    why |= dict.fromkeys(turned, (planes.WHY,))
    return Told(Lines(*lines_of(walk.units, tensors, written), told, lie, kinds), expected, why)


def _with_list(told: Told, one: Alike) -> Told:
    """The same with the modules of one list in an order of their own. Raises Unlisted."""
    lines, made = listed(told.lines, one)
    gone = {word for its in made.values() for word in its}
    expected = {word: size for word, size in told.expected.items() if word not in gone}
    expected |= {
        w: sum(told.expected[x] for x in its) if its else len(one.numbers) for w, its in made.items()
    }
    why = {word: its for word, its in told.why.items() if word not in gone} | dict.fromkeys(made, (LISTED,))
    return Told(lines, expected, why, (*told.listed, (one, tuple(made))))


def inferred_from(
    module: nn.Module, walk: Walk, name: str, found: Symmetries, told: Told, groups: bool
) -> Inferred:
    """The spec as its text reads back. Raises SpecError where that gives other sizes."""
    shapes = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    text = spec_text(
        **vars(told.lines),
        description=f"inferred from {type(module).__name__}",
        shapes=shapes,
        optional=tied(module),  # files have one name of a tied tensor, or all
    )
    fitted = fit(parse(text, name=name, source="the inferred spec"), shapes)
    if fitted.words != told.expected:  # never seen; sizes that differ would be another spec
        raise SpecError(
            "the inferred spec reads back with other sizes", problems=[f"{fitted.words} {told.expected}"]
        )
    moved = {f"{name} axis {k}" for one, _ in told.listed for name, k in one.beside}
    return Inferred(
        text,
        fitted,
        _reasons(walk, found, moved),
        folds=found.folds,
        no_larger={word: why for word, why in told.why.items() if groups},
        lists=told.listed,
    )


def _reasons(walk: Walk, groups: Symmetries, moved: Collection[str] = ()) -> tuple[Frozen, ...]:
    """Why axes stay, but for those that were `moved` since."""
    found: dict[str, list[str]] = {}
    normed: dict[tuple[str, int], list[str]] = {}
    for rows in groups.normed:
        for place in rows.places:
            normed.setdefault(place, []).append(rows.normed)
    for name, axes in walk.tensors.items():
        for k, axis in enumerate(axes):
            whole = walk.units.resolve(axis)
            said = [constant.why for constant in constants(whole) if constant.why]
            for why in dict.fromkeys([*said, *normed.get((name, k), ())]):
                part = "" if not list(variables(whole)) else " (in part)"
                found.setdefault(why, []).append(f"{name} axis {k}{part}")
    found = {why: [place for place in places if place not in moved] for why, places in found.items()}
    return tuple(Frozen(why, tuple(places)) for why, places in found.items() if places)
