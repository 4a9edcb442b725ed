"""`rebasin verify`: is one model a relabelling of another?"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..averages.kinship import equal_values
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.tensors import LazyTensors, blocks, overlaid, plan_of
from ..checkpoints.validation import finite, wrong_dtype
from ..matchers.portfolio.align import Alignment, align
from ..proof.distance import difference
from ..registry.options import READS, WRITES, argument, option
from ..registry.results import UNSET, Plan, Result, Unset
from ..runtime.ranks import ALONE, Ranks
from ..runtime.seeds import derive
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.method_options import check_groups
from ..session.outcomes import Answer, Screen, Weights
from ..session.search_options import Grouping
from ..session.session import Session
from ..session.subjects import Bounded, Loading, Network
from ..spec.notation import words_of
from ..spec.spec import FittedSpec
from ..symmetry import stored
from ..symmetry.elements import Elements, acted
from ..symmetry.fingerprints import of_values, read, relabelling
from ..symmetry.folding import folded
from ..symmetry.folds import NONE
from ..symmetry.form import canonical
from ..symmetry.lists import stacked
from ..symmetry.permutation import permuted
from ..types import Permutations, Tensors
from .verbs import needs, plans, provenance, symmetries
from .verbs.outputs import Output, check_outputs
from .verbs.ranks import check_same
from .verbs.symmetries import DRAWS, allowed, equal, near, own_size, shaken

SORTED = 1 << 26  # numbers of a tensor that are put in order, to compare it where it stays
TRIES = 5  # searches from different seeds before `verify` gives up
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


PANEL = "Measure"
TOGETHER = True


@dataclass(frozen=True, kw_only=True)
class Verify(Loading, Bounded, Network, Grouping):
    """Is B the same network as A with its hidden units in another order? Exit code 1 unless it is.

    Values must be the same to the last bit; of a tensor in two dtypes, to the rounding of the coarser one.
    With --groups all: in another order, or signed, scaled and turned, as the network allows, and the same but
    for the rounding of each number.

    Processes that are started together share the tensors: torchrun … -m rebasin_cli verify …

    Example: rebasin verify b.pt b_aligned.safetensors
    """

    a: Path = argument("A", role=READS)
    b: Path = argument("B", role=READS)
    out: Path | None = option(
        None, "Write the permutation that turns B into A.", also=("-o",), metavar="FILE", role=WRITES
    )
    force: bool = Weights.force
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json
    quiet: bool = Screen.quiet


@dataclass(frozen=True)
class VerifyResult(Result):
    """`answer` is "yes", "no" or "undecided"; of the others `reason` says why.

    "no" names the `tensors` that hold other values, or how far the outputs differ (`outputs_differ`,
    relative). "undecided": the same values, but no search found the permutation; `largest_difference` is how
    near the best came. "yes" says how many units moved of how many, or the `groups` by which they were
    turned, and what was `written`.
    """

    answer: str
    reason: str | Unset = UNSET
    tensors: list[str] | Unset = UNSET
    outputs_differ: float | Unset = UNSET
    largest_difference: float | None | Unset = UNSET
    units_moved: int | Unset = UNSET
    units: int | Unset = UNSET
    groups: list[str] | Unset = UNSET
    written: list[str] | None | Unset = UNSET

    @property
    def yes(self) -> bool:
        return self.answer == "yes"


def run(asked: Verify, listener: Listener = SILENT, ranks: Ranks = ALONE) -> VerifyResult | Plan:
    """Is B a relabelling of A? "yes" comes with the permutation, written to `out`, that turns B into A.

    Counters (whole numbers without axes, such as `num_batches_tracked`) are not compared. "no" is certain:
    some other tensor holds other values, as `roundoff.equal` compares them.

    With all `groups`: is B A with its units ordered, scaled, turned? "no" is certain there, too: some output
    differs by more than the rounding of both models' weights does to it. The elements that are written turn
    B into the canonical form of A. Several `ranks` call this alike, and each reads its share; what has to be
    searched the first one does.
    """
    check_groups(asked.groups)
    session = Session("verify", [asked.a, asked.b], listener, subjects_of(asked), ranks=ranks)
    if asked.out is not None:
        ranks.first(check_outputs, Output(asked.out, asked.force), session.reads)
    needs.check(session)
    if asked.dry_run:
        return Plan(plans.of_reading(session))
    models, fitted = session.named, session.fitted
    if fitted.groups or session.folds != NONE:
        _ = session.looked
        why = "what turns is found by one process"
        return session.by_first(why, lambda alone: _by_groups(alone, listener, asked))
    check_same(session, {"the spec": lambda: fitted.spec.digest}, models)
    kept = [plan_of(model) for model in models]
    compared = {name for name in fitted.shapes if not all(_counts(*its[name]) for its in kept)}
    if asked.out is not None or any(wrong_dtype(n, *its[n]) for its in kept for n in its):
        _ = session.looked  # for the digests that a file records, or to tell what is wrong
    are_finite: list[bool] = []
    exact = relabelling(
        models[0], models[1], fitted, ranks, look=lambda block: are_finite.append(_is_finite(block))
    )
    if not all(ranks.all(all(are_finite))):
        _ = session.looked
    if exact is not None:
        moved_by, known = permuted(models[1], fitted, exact), read(fitted)
        mine = _share(ranks, compared, fitted.shapes)
        if all(ranks.shared(lambda: all(_same(models[0], moved_by, n, n in known) for n in mine))):
            return _yes(session, asked, "fingerprints", Elements(exact), None, 0.0, **_moved(exact, fitted))
    models = session.models  # whose values are looked at, and told where they are wrong
    one, other = (stacked(model, fitted) for model in models)  # a list's values are anywhere in it
    counters = {fitted.places.get(name, (name, 0))[0] for name in fitted.shapes.keys() - compared}
    looked = [name for name in one if name not in counters]
    mine = _share(ranks, looked, {name: shape for name, (_, shape) in plan_of(one).items()})
    still = {
        name: [dim for dim, axis in enumerate(axes) if not any(words_of(axis))]
        for name, axes in fitted.stacked.tensors.items()
    }
    here = ranks.each(lambda: {name for name in mine if not _same_values(one, other, name, still.get(name))})
    apart = set().union(*ranks.all(here))
    if different := [name for name in looked if name in apart]:
        return VerifyResult(answer="no", reason="these tensors hold other values", tensors=different)

    def same(found: Alignment) -> tuple[bool, float]:
        return _differences(models[0], found.tensors, fitted, compared)

    def about(found: Alignment) -> dict[str, Any]:
        return _moved(found.permutations[0], fitted)

    why = f"every tensor holds the same values, but {TRIES} searches found no permutation"
    return session.by_first(
        "an order is searched for", lambda alone: _searched(alone, listener, asked, same, about, why)
    )


def _is_finite(block: torch.Tensor) -> bool:
    return not block.is_floating_point() or finite(block)


def _same(a: Tensors, b: Tensors, name: str, known: bool) -> bool:
    """As `equal`, of tensors in blocks, of numbers; where these are `known` the same bits are enough."""
    if plan_of(a)[name][0] != plan_of(b)[name][0]:
        return equal(a[name], b[name]) and _is_finite(a[name])
    both = zip(blocks(a, name), blocks(b, name), strict=True)
    return all((known and equal_values(x, y)) or (equal(x, y) and _is_finite(x)) for x, y in both)


def _share(ranks: Ranks, names: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Of these tensors those that are this rank's."""
    ordered = sorted(names)
    return ranks.share(ordered, [math.prod(shapes[name]) for name in ordered])


def _searched(
    session: Session,
    listener: Listener,
    asked: Verify,
    same: Callable[[Alignment], tuple[bool, float]],
    about: Callable[[Alignment], dict[str, Any]],
    why: str,
    **known: Any,
) -> VerifyResult:
    """Yes where one of some searches finds what is the `same`, with its largest difference, and what there is
    to say `about` it; else undecided, and `why`. Either says what is `known`.
    """
    fitted, best = session.fitted, None
    searched: Sequence[LazyTensors | Checkpoint] = session.models
    options = {}
    if fitted.groups:  # as exactly as float64 tells: an angle is the root of what it gains
        searched, options = [symmetries.doubled(model) for model in searched], {"tolerance": 0.0}
    needs.check(session, searching=True)
    room = needs.room(session)
    for attempt in range(TRIES):
        seed = session.seed if attempt == 0 else derive(session.seed, f"verify {attempt}")
        found = align(searched, fitted, seed=seed, options=options, folds=session.folds, room=room)
        right, largest = same(found)
        best = largest if best is None else min(best, largest)
        listener.step("searching", attempt + 1, TRIES, f"largest difference {largest:.2g}")
        if right:
            break
    else:
        return VerifyResult(answer="undecided", reason=why, largest_difference=best, **known)
    form = symmetries.form_texts(fitted, session.folds) if found.computed else None
    return _yes(session, asked, "wm", found.elements[0], form, largest, **known, **about(found))


def _yes(
    session: Session,
    asked: Verify,
    method: str,
    elements: Elements,
    form: dict[str, str] | None,
    largest: float,
    **known: Any,
) -> VerifyResult:
    """The answer, and the file of these elements, where one is asked for.

    They were found by a `method`, which the file records, and act in a `form`.
    """
    if asked.out is not None:
        models, fitted = session.models, session.fitted
        meta = provenance.describe("verify", models, fitted, method=method, seed=session.seed)
        save = partial(stored.save, asked.out, elements=elements, form=form, metadata=meta, force=asked.force)
        session.ranks.last(save)
    written = [str(asked.out)] if asked.out else None
    return VerifyResult(answer="yes", largest_difference=largest, written=written, **known)


def _moved(permutations: Permutations, fitted: FittedSpec) -> dict[str, Any]:
    units = sum(int((perm != torch.arange(len(perm))).sum()) for perm in permutations.values())
    return {"units_moved": units, "units": sum(fitted.words.values())}


def _by_groups(session: Session, listener: Listener, asked: Verify) -> VerifyResult:
    """As `run`, of models in canonical form."""
    models, fitted = session.models, session.fitted
    again = [shaken(model) for model in models]

    def shakes(fine: float) -> list[LazyTensors]:
        return [each for model in models for each in shaken(model, finest=fine)]

    one, other, *rest = symmetries.outputs(session, *models, shakes=shakes)
    change = difference(one, other)
    bounds = (symmetries.bounds(one, rest[:DRAWS]), symmetries.bounds(other, rest[DRAWS:]))
    if not all(near(*each) for each in zip(one, other, *bounds, strict=True)):
        return VerifyResult(answer="no", reason="the outputs differ", outputs_differ=change)

    def same(found: Alignment) -> tuple[bool, float]:
        return _turned(session, found, again), _largest_share(found.models[0], found.tensors, fitted)

    groups = [f"{word}: {kind}" for word, kind in fitted.groups.items()]
    why = f"the outputs are the same, but {TRIES} searches found no elements"
    about = {"groups": groups}
    return _searched(session, listener, asked, same, lambda _: about, why, outputs_differ=change)


def _turned(session: Session, found: Alignment, again: Sequence[Sequence[Tensors]]) -> bool:
    """Whether each number of B, as the elements turn it, is A's but for the rounding of both."""
    fitted, folds, (elements,) = found.fitted, session.folds, found.elements
    first, *more = (canonical(model, fitted, folds) for model in (session.models[0], *again[0]))
    forms = [form.wide for form in (first, *more)]
    moved = [
        acted(overlaid(symmetries.doubled(model), folded(model, folds)), fitted, elements)
        for model in (session.models[1], *again[1])
    ]
    plans = [plan_of(model) for model in session.models]
    for name in fitted.shapes:  # in the types of the files
        both = zip((found.models[0], found.tensors), plans, strict=True)
        one, other = (tensors[name].to(plan[name][0]) for tensors, plan in both)
        words = {word for axis in fitted.tensors.get(name, ()) for word in words_of(axis)}
        if name not in first.changed and words.isdisjoint(elements.maps):
            if not (_counters(one, other) or equal(one, other)):  # nothing but its order is another
                return False
            continue
        (x, *others), (y, *rest) = ([model[name].double() for model in models] for models in (forms, moved))
        mixed = _mixed(fitted, name)
        sizes = (own_size(tensor, mixed=mixed) for tensor in (one, other))
        if not near(x, y, allowed(x, others), allowed(y, rest), *sizes):
            return False
    return True


def _mixed(fitted: FittedSpec, name: str) -> list[int]:
    """The axes of a tensor along which a group adds units up."""
    return [
        dim
        for dim, axis in enumerate(fitted.tensors[name])
        if any(fitted.group(word).matrix for word in words_of(axis))
    ]


def _largest_share(a: Tensors, b: Tensors, fitted: FittedSpec) -> float:
    """The largest difference of two tensors' numbers, relative to the tensor's largest."""
    both = ((a[name].double(), b[name].double()) for name in fitted.tensors if a[name].numel())
    return max((float((x - y).abs().max() / x.abs().max().clamp_min(1e-30)) for x, y in both), default=0.0)


def _same_values(a: Tensors, b: Tensors, name: str, still: Sequence[int] | None) -> bool:
    """Whether two tensors hold the same values in any order, as `equal` compares them.

    On axes that are `still` (None: on all of them) they are where they were. Of one dtype it is told from
    sums, without the tensors in memory, where nothing is still: "no" is certain, and of the same sums a
    search finds the order, or nothing.
    """
    if still is None or len(still) == len(plan_of(a)[name][1]):
        return _same(a, b, name, known=False)
    if plan_of(a)[name] == plan_of(b)[name] and (ours := of_values(a, name)) is not None:
        if ours != of_values(b, name):
            return False
        if not still or math.prod(plan_of(a)[name][1]) > SORTED:
            return True
    return equal(_in_order(a[name], still), _in_order(b[name], still))


def _in_order(tensor: torch.Tensor, still: Sequence[int]) -> torch.Tensor:
    # torch sorts neither float8 nor unsigned integers of more than a byte
    narrow = tensor.dtype.itemsize == 1 and tensor.is_floating_point()
    wide = tensor.float() if narrow else tensor.long() if tensor.dtype in UNSIGNED else tensor
    first = wide.movedim((*still,), (*range(len(still)),)).flatten(len(still))
    return first.sort(-1).values.to(tensor.dtype)


def _counters(*tensors: torch.Tensor) -> bool:
    return all(_counts(tensor.dtype, tensor.shape) for tensor in tensors)


def _counts(dtype: torch.dtype, shape: Sequence[int]) -> bool:
    """Whether a tensor is a whole number that is not compared; a switch is none."""
    return not shape and not dtype.is_floating_point and dtype != torch.bool


def _differences(a: Tensors, b: Tensors, fitted: FittedSpec, compared: Collection[str]) -> tuple[bool, float]:
    """Whether all that is compared is equal, and the largest difference of what the spec permutes."""
    same, largest = True, 0.0
    for name in fitted.shapes:
        x, y = a[name], b[name]
        same = same and (name not in compared or equal(x, y))
        if name in fitted.tensors and x.numel():
            largest = max(largest, (x.double() - y.double()).abs().max().item())
    return same, largest
