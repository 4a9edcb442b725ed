"""`rebasin verify` on files: is one model a relabelling of another?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch

from ..canonical.folding import folded
from ..canonical.form import canonical
from ..checkpoints.tensors import overlaid, plan_of
from ..groups.elements import acted
from ..inference.comparing import difference
from ..matchers.search.align import Alignment, align
from ..permutations import permutation
from ..permutations.lists import stacked
from ..runtime.seeds import derive
from ..session.checks import check_groups
from ..session.listener import SILENT, Listener
from ..session.session import Session
from ..session.subjects import ForLook, Search
from ..spec.groups import MATRICES, PLANES
from ..spec.notation import words_of
from ..spec.spec import FittedSpec
from .verbs import provenance, symmetries
from .verbs.outputs import Output, check_outputs
from .verbs.roundoff import DRAWS, allowed, equal, near, own_size, shaken

TRIES = 5  # searches from different seeds before `verify` gives up
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def verify(
    a: Path,
    b: Path,
    listener: Listener = SILENT,
    *,
    groups: str = "permutations",
    output: Path | None = None,
    force: bool = False,
    **subjects: Unpack[ForLook],
) -> dict[str, Any]:
    """Is B a relabelling of A? Values as for `--json`: "answer" is "yes", "no" or "undecided".

    Counters (whole numbers without axes, such as `num_batches_tracked`) are not compared. "no" is certain:
    some other tensor holds other values, as `roundoff.equal` compares them. "undecided": the same values,
    but no search found the permutation. "yes" comes with the permutation, written to `output`, that turns B
    into A.

    With all `groups`: is B A with its units ordered, scaled, turned? "no" is certain there, too: some output
    differs by more than the rounding of both models' weights does to it. The elements that are written turn
    B into the canonical form of A.
    """
    check_groups(groups)
    session = Session("verify", [a, b], listener, search=Search(groups=groups), **subjects)
    if output is not None:
        check_outputs(Output(output, force), session.reads)
    models, fitted, seed = session.models, session.fitted, session.seed
    if session.folds is not None:
        return _by_groups(session, listener, output, force)
    plans = [plan_of(model) for model in models]
    compared = {
        name
        for name in fitted.shapes
        if not all(shape == () and not dtype.is_floating_point for dtype, shape in (p[name] for p in plans))
    }
    one, other = (stacked(model, fitted) for model in models)  # a list's values are anywhere in it
    counters = {fitted.places.get(name, (name, 0))[0] for name in fitted.shapes.keys() - compared}
    different = [n for n in one if n not in counters and not _same_values(one[n], other[n])]
    if different:
        return {"answer": "no", "reason": "these tensors hold other values", "tensors": different}
    best = None
    for attempt in range(TRIES):
        found = align(models, fitted, seed=seed if attempt == 0 else derive(seed, f"verify {attempt}"))
        same, largest = _differences(models[0], found.tensors, fitted, compared)
        best = largest if best is None else min(best, largest)
        listener.step("searching", attempt + 1, TRIES, f"largest difference {largest:.2g}")
        if same:
            break
    else:
        return {
            "answer": "undecided",
            "reason": f"every tensor holds the same values, but {TRIES} searches found no permutation",
            "largest_difference": best,
        }
    perms = found.permutations[0]
    if output is not None:
        meta = provenance.describe("verify", models, fitted, method="wm", seed=seed)
        permutation.save(output, perms, metadata=meta, force=force)
    moved = {word: int((perm != torch.arange(len(perm))).sum()) for word, perm in perms.items()}
    return {
        "answer": "yes",
        "largest_difference": largest,
        "units_moved": sum(moved.values()),
        "units": sum(fitted.words.values()),
        "written": [str(output)] if output else None,
    }


def _by_groups(session: Session, listener: Listener, output: Path | None, force: bool) -> dict[str, Any]:
    """As `verify`, of models in canonical form."""
    models, fitted, folds = session.models, session.fitted, session.folds
    again = [shaken(model) for model in models]
    one, other, *rest = symmetries.outputs(session, *models, *again[0], *again[1])
    change = difference(one, other)
    bounds = (symmetries.bounds(one, rest[:DRAWS]), symmetries.bounds(other, rest[DRAWS:]))
    if not all(near(*each) for each in zip(one, other, *bounds, strict=True)):
        return {"answer": "no", "reason": "the outputs differ", "outputs_differ": change}
    best = None
    for attempt in range(TRIES):
        seed = session.seed if attempt == 0 else derive(session.seed, f"verify {attempt}")
        found = align(models, fitted, seed=seed, folds=folds)
        largest = _largest_share(found.models[0], found.tensors, fitted)
        best = largest if best is None else min(best, largest)
        listener.step("searching", attempt + 1, TRIES, f"largest difference {largest:.2g}")
        if _turned(session, found, again):
            break
    else:
        return {
            "answer": "undecided",
            "reason": f"the outputs are the same, but {TRIES} searches found no elements",
            "outputs_differ": change,
            "largest_difference": best,
        }
    if output is not None:
        meta = provenance.describe("verify", models, fitted, method="wm", seed=session.seed)
        symmetries.saver(session, found, meta)(output, metadata=meta, force=force)
    return {
        "answer": "yes",
        "outputs_differ": change,
        "largest_difference": largest,
        "groups": [f"{word}: {kind}" for word, kind in fitted.groups.items()],
        "written": [str(output)] if output else None,
    }


def _turned(session: Session, found: Alignment, again: Sequence[Sequence[Mapping]]) -> bool:
    """Whether each number of B, as the elements turn it, is A's but for the rounding of both."""
    fitted, folds, (elements,) = found.fitted, session.folds, found.elements
    first, *more = (canonical(model, fitted, folds) for model in (session.models[0], *again[0]))
    forms = [form.wide for form in (first, *more)]
    moved = [
        acted(overlaid(symmetries.doubled(model), folded(model, folds)), fitted, elements)
        for model in (session.models[1], *again[1])
    ]
    for name in fitted.shapes:
        one, other = found.models[0][name], found.tensors[name]
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
    kinds = {*MATRICES, *PLANES}
    return [
        dim
        for dim, axis in enumerate(fitted.tensors[name])
        if any(fitted.groups.get(word) in kinds for word in words_of(axis))
    ]


def _largest_share(a: Mapping, b: Mapping, fitted: FittedSpec) -> float:
    """The largest difference of two tensors' numbers, relative to the tensor's largest."""
    both = ((a[name].double(), b[name].double()) for name in fitted.tensors if a[name].numel())
    return max((float((x - y).abs().max() / x.abs().max().clamp_min(1e-30)) for x, y in both), default=0.0)


def _same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same values in any order, as `equal` compares them."""
    return equal(_in_order(a), _in_order(b))


def _in_order(tensor: torch.Tensor) -> torch.Tensor:
    # torch sorts neither float8 nor unsigned integers of more than a byte
    narrow = tensor.dtype.itemsize == 1 and tensor.is_floating_point()
    wide = tensor.float() if narrow else tensor.long() if tensor.dtype in UNSIGNED else tensor
    return wide.flatten().sort().values.to(tensor.dtype)


def _counters(*tensors: torch.Tensor) -> bool:
    return all(tensor.ndim == 0 and not tensor.is_floating_point() for tensor in tensors)


def _differences(a: Mapping, b: Mapping, fitted: FittedSpec, compared: Collection[str]) -> tuple[bool, float]:
    """Whether all that is compared is equal, and the largest difference of what the spec permutes."""
    same, largest = True, 0.0
    for name in fitted.shapes:
        x, y = a[name], b[name]
        same = same and (name not in compared or equal(x, y))
        if name in fitted.tensors and x.numel():
            largest = max(largest, (x.double() - y.double()).abs().max().item())
    return same, largest
