"""Groups beyond permutations, for commands: where they come from, what must hold before, what is written."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ... import matchers
from ...checkpoints.tensors import LazyTensors, chunks, overlaid, plan_of
from ...errors import NotProven, SpecError, UsageError
from ...matchers.portfolio.align import Alignment
from ...networks.returned import Kept
from ...networks.tied import absent
from ...proof.distance import difference
from ...proof.runs import Runs, in_finest
from ...runtime.seeds import generator
from ...session.given import folds_text
from ...session.listener import SILENT
from ...session.network import need_inputs
from ...session.session import Session
from ...spec.spec import FittedSpec
from ...symmetry import elements as acts
from ...symmetry import stored
from ...symmetry.elements import Elements
from ...symmetry.folding import folded
from ...symmetry.folds import Folds
from ...symmetry.form import Forms, canonical
from ...types import Tensors
from .proof import Proof, prove

DRAWS = 12  # of the noise: numbers that each leaves where they were are few in a million million
TIMES = 4  # as far as noise moves a number: rounding may be unlucky, and comes in more than one step
ALONE = 16  # the same where one model's noise is all: of many millions some are hardly moved by any draw
FINEST = 2.0**-38  # of a weight: what is computed in float64 from float64 is not compared to its last bit
COARSE = 2.0**-20  # the same of what is computed in float32
OWN = 2.0**-44  # of a number itself: float64 adds up in another order
AS_LONG = 2  # times as long as a proof of orders, at least: following the network, and another proof
LARGEST = 50_000_000  # numbers of a network that is followed once more: seconds, and several times its memory


def check_reference(session: Session) -> None:
    """Raise UsageError unless the reference is in canonical form: to that the other model is aligned."""
    model, folds = session.models[0], session.folds
    form = canonical(model, session.fitted, folds)
    again = [canonical(each, session.fitted, folds).changed for each in shaken(model)]
    for name, tensor in form.changed.items():
        before = model[name].double()
        noise = allowed(tensor, (each[name] for each in again), ALONE)
        if not near(tensor, before, noise, own_size(model[name])):
            raise UsageError(
                f"{session.paths[0]} is not in canonical form, and --groups all aligns to that",
                problems=[f"{name}  would change"],
                hint="Write it so, its function stays: "
                f"rebasin canon {session.paths[0]} -o a_canon.safetensors",
            )


def saver(found: Alignment, fitted: FittedSpec, folds: Folds) -> Callable[..., None]:
    """What writes the elements of a search beside its output, with the form that they act in where it is one
    that was computed."""
    form = form_texts(fitted, folds) if found.computed else None
    return functools.partial(stored.save, elements=found.elements[0], form=form)


def form_texts(fitted: FittedSpec, folds: Folds) -> dict[str, str]:
    """The canonical form that elements act in, as their file says it (`session.given.form_of` reads it)."""
    net = {stored.NET: fitted.spec.net} if fitted.spec.net else {}
    return {stored.SPEC: spec_of(fitted), stored.FOLDS: folds_text(folds)} | net


def check_moved(session: Session, found: Sequence[Elements]) -> None:
    """Whether the reference in canonical form, and each other model as it was found, compute what they did.

    Of their own weights, without the rounding to their dtypes: what a proof on random weights takes for
    given (equal gains, folds that hold) is looked at here. Raises NotProven.
    """
    reference, *others = session.models
    folds = session.folds
    check_same_function(session, reference, canonical(reference, session.fitted, folds).wide)
    for model, elements in zip(others, found, strict=True):
        wide = overlaid(doubled(model), folded(model, folds))
        check_same_function(session, model, acts.acted(wide, session.fitted, elements))


class Wide:
    """A session where units may take all that their network allows: opened, and proven, once it is tried."""

    def __init__(self, session: Session, proven: Proof):
        self.plain, self.before = session, proven
        self.session, self.proof = session, Proof({})

    @classmethod
    def of(cls, session: Session, proven: Proof, *, able: bool) -> Wide | None:
        """What `auto` may try beside orders; None where it is not to, or not `able` to run a network."""
        alone = session.ranks.size == 1 and not session.grouped
        asked = session.asked.search.groups == "auto" and session.method == "auto"
        return cls(session, proven) if alone and asked and able else None

    @property
    def refusal(self) -> str:
        """Why groups are not looked for unasked; "" where they are.

        Another spec is not to take the place of one that was named, or that ignores tensors.
        """
        fitted, named = self.plain.fitted, self.plain.asked.loading.spec not in (None, "infer")
        if fitted.spec.groups:
            return ""
        if named or fitted.spec.ignore:
            return f"the spec {fitted.spec.name} gives orders alone, and may say what else has to stay"
        if (numbers := sum(map(math.prod, fitted.shapes.values()))) > LARGEST:
            return (
                f"the network has {numbers:,} numbers, and unasked, groups are looked for up to {LARGEST:,} "
                "(--groups all looks)"
            )
        return ""

    def open(
        self, look: Callable[[], None] = lambda: None, seconds: float = math.inf
    ) -> matchers.Wider | None:
        """The models in their canonical forms; None where units take no more.

        It calls `look` between its steps. Raises as that and proofs do, and SpecError with the `refusal`, or
        where the proof of the orders tells that `seconds` are not enough.
        """
        if self.refusal:
            raise SpecError(self.refusal)
        if (about := AS_LONG * self.before.times.get("proof", 0.0)) > seconds:
            raise SpecError(f"following the network and proving it takes about {about:.1f} s, too long")
        wide = self.plain.by(replace(self.plain.asked.search, groups="all"))
        wide.say = SILENT.say
        if not any(wide.fitted.group(word).more for word in wide.fitted.groups):
            return None
        look()
        self.proof = prove(wide)
        look()
        forms, proven = Forms(wide.models, wide.fitted, wide.folds), wide.asked.search.prove
        self.session = wide
        return matchers.Wider(forms, functools.partial(check_moved, wide) if proven else lambda _: None)

    def taken(self, found: Alignment | None) -> tuple[Session, Proof] | None:
        """The session of what was found, and its proof, if units took more; says so."""
        if found is None or found.result.forms is None:
            return None
        self.session.say = self.plain.say
        self.session.splits = self.plain.splits
        self.session.say(
            "groups: units took more than an order, so all models were brought into a canonical form, with "
            "other numbers and the same function; --groups permutations keeps the form of the files"
        )
        return self.session, self.proof


def doubled(model: Mapping[str, torch.Tensor]) -> LazyTensors:
    plan = plan_of(model)
    dtypes = {name: torch.float64 if d.is_floating_point else d for name, (d, _) in plan.items()}
    return LazyTensors(
        {n: s for n, (_, s) in plan.items()}, dtypes, lambda name: model[name].to(dtypes[name])
    )


def spec_of(fitted: FittedSpec) -> str:
    """The spec's text, one line a tensor or list."""
    from ...inference.text.axis_text import spec_text

    lines: tuple[dict[str, str], dict[str, str]] = ({}, {})
    whole = fitted.stacked  # a line a list
    for name, axes in whole.tensors.items():
        lines[name in whole.statistics][name] = " ".join(map(str, axes))
    within = {word: block.word for word, block in fitted.within.items() if block.word}
    return spec_text(
        *lines, description=fitted.spec.name, sizes=fitted.sizes, within=within, groups=fitted.groups
    )


def check_same_function(session: Session, before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """As `outputs_differ`. Raises NotProven where any of them changes by more than rounding: no such thing is
    written.
    """
    own, other, *again = outputs(session, before, after, shakes=lambda fine: shaken(before, fine))
    if not all(near(*each) for each in zip(own, other, bounds(own, again), strict=True)):
        raise NotProven(
            "the canonical form or its turning changes the outputs by "
            f"{difference(own, other):.2g} relative, more than rounding does",
            hint="Nothing was written. See what is folded with: rebasin spec explain --groups all",
        )
    return difference(own, other)


def bounds(own: Sequence[torch.Tensor], again: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """How far each number of the outputs may be from where it is, by the outputs of shaken weights."""
    return [allowed(x, each) for x, *each in zip(own, *again, strict=True)]


def outputs_differ(session: Session, before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """How much the network's outputs differ with these weights, relative to the largest, in float64."""
    return difference(*outputs(session, before, after))


def outputs(
    session: Session,
    *weights: Mapping[str, Any],
    shakes: Callable[[float], Iterable[Mapping[str, Any]]] = lambda fine: (),
) -> list[list[torch.Tensor]]:
    """What the network returns with each of these weights, in float64; float32 where that fails.

    `shakes` makes more weights, shaken by what is fine in that precision.
    """
    network = session.need_network()
    inputs = need_inputs(network, session.asked.network, session.asked.data)

    def work(runs: Runs, batch: Any) -> list[list[torch.Tensor]]:
        found = []
        finest = FINEST if runs.dtype is torch.float64 else COARSE
        for tensors in (*weights, *shakes(finest)):
            missing = absent(network, tensors)
            for name, tensor in network.state_dict().items():
                if name not in missing:
                    tensor.copy_(tensors[name])
            found.append([tensor.double() for tensor in runs.outputs(batch)])
        return found

    return in_finest(network, inputs, Kept(**session.outputs), work)


def unit(dtype: torch.dtype) -> float:
    """From 1 to the next number of a floating-point type."""
    return torch.finfo(dtype).eps


def least(dtype: torch.dtype) -> float:
    """The smallest number above 0 of a floating-point type."""
    found = torch.finfo(dtype)
    return found.smallest_normal * found.eps


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors hold the same values: to the last bit in one dtype, −0 being 0; of two
    floating-point dtypes each value within a unit in the last place of the coarser one. NaN equals nothing.
    """
    if x.shape != y.shape or x.is_floating_point() != y.is_floating_point():
        return False
    if not x.is_floating_point():
        return x.dtype == y.dtype and torch.equal(x, y)
    if x.dtype == y.dtype:  # a part at a time: a copy of all of it in float64 is four times as large
        both = (chunks(each.contiguous()) for each in (x, y))
        return all(torch.equal(one.double(), other.double()) for one, other in zip(*both, strict=True))
    wide, other = x.double(), y.double()
    unit_, least_ = (max(of(d) for d in (x.dtype, y.dtype)) for of in (unit, least))
    return bool(((wide - other).abs() <= unit_ * torch.maximum(wide.abs(), other.abs()) + least_).all())


def shaken(tensors: Tensors, share: float | None = None, *, finest: float = FINEST) -> list[LazyTensors]:
    """The model in float64, several times, each value moved by up to this share of itself; zeros stay.

    By default by a unit in its last place, of its own type, or by the share that is `finest`. Each model is
    the same whenever it is asked for.
    """
    plan = plan_of(tensors)

    def get(draw: int, name: str) -> Tensor:
        tensor, dtype = tensors[name], plan[name][0]
        if not dtype.is_floating_point:
            return tensor
        wide = tensor.detach().double()
        most = share * wide.abs() if share is not None else _unit_of(wide, dtype, finest)
        noise = 2 * torch.rand(wide.shape, generator=generator(draw, name), dtype=torch.float64) - 1
        return torch.where(wide == 0, wide, wide + noise.to(wide.device) * most)

    shapes = {name: shape for name, (_, shape) in plan.items()}
    dtypes = {name: torch.float64 if d.is_floating_point else d for name, (d, _) in plan.items()}
    return [LazyTensors(shapes, dtypes, functools.partial(get, draw)) for draw in range(DRAWS)]


def _unit_of(size: Tensor, dtype: torch.dtype, finest: float = FINEST) -> Tensor:
    """What rounding to a type changes of numbers of this size."""
    return (max(unit(dtype), finest) * size.abs()).clamp_min(least(dtype))


def allowed(own: Tensor, again: Iterable[Tensor], times: int = TIMES) -> Tensor:
    """How far each number may be from where it is, by what is made of the same weights, shaken."""
    most = torch.zeros_like(own)
    for other in again:
        most = torch.maximum(most, (other - own).abs())
    return times * most + OWN * own.abs()


def near(x: Tensor, y: Tensor, *bounds: Tensor) -> bool:
    """Whether all numbers are within the sum of these bounds; NaN never is."""
    return bool(((x - y).abs() <= sum(bounds)).all())


def own_size(tensor: Tensor, *, mixed: Iterable[int] = ()) -> Tensor:
    """How far each number of a tensor may be from where it is by its own type and size.

    Where numbers along some axes are `mixed` with one another, by a rotation, the size is theirs together.
    """
    wide, dims = tensor.detach().double(), [*mixed]
    size = torch.linalg.vector_norm(wide, dim=dims, keepdim=True) if dims else wide.abs()
    return TIMES * _unit_of(size, tensor.dtype)
