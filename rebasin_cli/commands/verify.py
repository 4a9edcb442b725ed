"""`rebasin verify` on files: is one model a relabelling of another?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch

from ..matchers.search.align import align
from ..permutations import permutation
from ..permutations.lists import stacked
from ..runtime.seeds import derive
from ..spec.spec import FittedSpec
from .job import grouped, provenance
from .job.checks import check_groups
from .job.job import Job
from .job.listener import SILENT, Listener
from .job.outputs import Output, check_outputs
from .job.settings import ForLook, Search

TRIES = 5  # searches from different seeds before `verify` gives up
# What outputs and folded, turned numbers of the same network may differ by, as its numbers are rounded
NEAR = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}


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
    some other tensor holds other values. "undecided": the same values, but no search found the
    permutation. "yes" comes with the permutation, written to `output`, that turns B into A.

    With all `groups`: is B A with its units ordered, scaled, turned? "no" is certain there, too: the outputs
    differ. The elements that are written turn B into the canonical form of A.
    """
    check_groups(groups)
    job = Job("verify", [a, b], listener, search=Search(groups=groups), **subjects)
    if output is not None:
        check_outputs(Output(output, force), job.inputs())
    models, fitted, seed = job.models, job.fitted, job.seed
    if job.folds is not None:
        return _by_groups(job, listener, output, force)
    compared = [name for name in fitted.shapes if not _is_counter(models[0][name])]
    one, other = (stacked(model, fitted) for model in models)  # a list's values are anywhere in it
    counters = {fitted.places.get(name, (name, 0))[0] for name in fitted.shapes.keys() - {*compared}}
    different = [n for n in one if n not in counters and not _same_values(one[n], other[n])]
    if different:
        return {"answer": "no", "reason": "these tensors hold other values", "tensors": different}
    best = None
    for attempt in range(TRIES):
        found = align(models, fitted, seed=seed if attempt == 0 else derive(seed, f"verify {attempt}"))
        largest = _largest_difference(models[0], found.tensors, fitted)
        best = largest if best is None else min(best, largest)
        listener.step("searching", attempt + 1, TRIES, f"largest difference {largest:.2g}")
        if _equal(models[0], found.tensors, compared):
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


def _by_groups(job: Job, listener: Listener, output: Path | None, force: bool) -> dict[str, Any]:
    """As `verify`, of models in canonical form."""
    models, fitted, folds = job.models, job.fitted, job.folds
    near = max(NEAR.get(t.dtype, 1e-1) for m in models for t in m.values() if t.is_floating_point())
    if not (change := grouped.outputs_differ(job, *models)) <= near:
        return {"answer": "no", "reason": "the outputs differ", "outputs_differ": change}
    best = None
    for attempt in range(TRIES):
        seed = job.seed if attempt == 0 else derive(job.seed, f"verify {attempt}")
        found = align(models, fitted, seed=seed, folds=folds)
        largest = _largest_share(found.models[0], found.tensors, fitted)
        best = largest if best is None else min(best, largest)
        listener.step("searching", attempt + 1, TRIES, f"largest difference {largest:.2g}")
        if largest <= near:
            break
    else:
        return {
            "answer": "undecided",
            "reason": f"the outputs are the same, but {TRIES} searches found no elements",
            "outputs_differ": change,
            "largest_difference": best,
        }
    if output is not None:
        meta = provenance.describe("verify", models, fitted, method="wm", seed=job.seed)
        grouped.saver(job, found, meta)(output, metadata=meta, force=force)
    return {
        "answer": "yes",
        "outputs_differ": change,
        "largest_difference": largest,
        "groups": [f"{word}: {kind}" for word, kind in fitted.groups.items()],
        "written": [str(output)] if output else None,
    }


def _largest_share(a: Mapping, b: Mapping, fitted: FittedSpec) -> float:
    """The largest difference of two tensors' numbers, relative to the tensor's largest."""
    both = ((a[name].double(), b[name].double()) for name in fitted.tensors if a[name].numel())
    return max((float((x - y).abs().max() / x.abs().max().clamp_min(1e-30)) for x, y in both), default=0.0)


def _same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same values in any order, within the precision of their dtypes."""
    if not (a.is_floating_point() and b.is_floating_point()):
        return a.dtype == b.dtype and torch.equal(a.flatten().sort().values, b.flatten().sort().values)
    x, y = (tensor.double().flatten().sort().values for tensor in (a, b))
    return _close(x, y, a.dtype, b.dtype)


def _is_counter(tensor: torch.Tensor) -> bool:
    return tensor.ndim == 0 and not tensor.is_floating_point()


def _equal(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor], compared: Sequence[str]) -> bool:
    for name in compared:
        x, y = a[name], b[name]
        if x.is_floating_point() and y.is_floating_point():
            if not _close(x.double(), y.double(), x.dtype, y.dtype):
                return False
        elif not torch.equal(x, y):
            return False
    return True


def _close(x: torch.Tensor, y: torch.Tensor, *dtypes: torch.dtype) -> bool:
    """Whether they agree to the precision of the coarser dtype, relative to the largest value."""
    if not x.numel():
        return True
    close = max(CLOSE.get(dtype, 1e-1) for dtype in dtypes)
    return bool(((x - y).abs() <= close * x.abs().max().clamp_min(1e-30)).all())


def _largest_difference(a: Mapping, b: Mapping, fitted: FittedSpec) -> float:
    return max(
        ((a[n].double() - b[n].double()).abs().max().item() for n in fitted.tensors if a[n].numel()),
        default=0.0,
    )
