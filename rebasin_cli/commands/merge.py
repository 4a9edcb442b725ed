"""`rebasin merge` on files: one model from two or many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from .. import api
from ..errors import UsageError, unknown
from ..permutations.averages import average
from ..repair import Outcome
from .job import repairing
from .job.job import Job
from .job.listener import SILENT, Listener
from .job.method_options import where_it_began
from .job.outputs import Output, check_outputs, write
from .job.settings import ForMerge


@dataclass(frozen=True)
class Average:
    """How the models are averaged: one weight a model, adding up to 1 (None: equal), along which line.

    `reference` is the model that the others are aligned to (None: the first). `perm` is a permutation file
    for the second of two models, in place of a search.
    """

    reference: Path | None = None
    weights: Sequence[float] | None = None
    interpolation: str = "linear"
    perm: Path | None = None


def merge(
    paths: Sequence[Path],
    output: Output,
    listener: Listener = SILENT,
    *,
    mean: Average = Average(),  # noqa: B008 (frozen)
    **subjects: Unpack[ForMerge],
) -> dict[str, Any]:
    """Align all models to the reference, average them, repair what averaging broke; write one model."""
    check_outputs(output)
    paths, mean = _reference_first(paths, mean)
    _check(len(paths), mean)
    job = Job("merge", paths, listener, **subjects, perm=mean.perm)
    job.check_search(output, or_none=True)
    how = job.settle_repair()
    given, of_given = job.given
    if output.dry_run:
        return job.plan() | repairing.plan(job, how)
    ready = repairing.prepare(job, how)
    inputs, proof = job.match_inputs(), job.proof()
    with job.resumable(output) as state:
        found = job.search(state, inputs)
        merged = api.merge(
            found.models if found else job.models,
            job.fitted,
            method="none",
            weights=mean.weights,
            interpolation=mean.interpolation,
            permutations=[given] if given else None,
            repair_with=ready.how,
            new_bias=job.repaired.new_bias,
            network=ready.network,
            train=ready.splits.get("reset"),
            held=ready.splits.get("held"),
            inputs=job.need_inputs() if ready.how == "bias" else None,
            output=job.output,
            device=job.device,
        )
        done = Outcome(repaired=merged.repair, choice=merged.choice)
        tensors, options, account = repairing.finish(job, ready, merged.tensors, done)
        options |= {"weights": list(mean.weights or []), "interpolation": mean.interpolation}
        options |= of_given | where_it_began(found)
        meta = job.describe(options=options, proof=proof, like=job.models)
        added = merged.repair.added if merged.repair else ()
        written = write(output, tensors, job.models[0], meta, added=added)
    return job.summary(found, proof, written=written) | {"models": len(paths)} | account


def _reference_first(paths: Sequence[Path], mean: Average) -> tuple[Sequence[Path], Average]:
    """The models, and their weights, in an order that begins with the reference. Raises UsageError."""
    reference, weights = mean.reference, mean.weights
    if reference is None or not paths:
        return paths, mean
    first = next((k for k, path in enumerate(paths) if path.resolve() == reference.resolve()), None)
    if first == 0:
        return paths, mean
    if first is None:
        raise UsageError(
            f"--reference {reference} is none of the models",
            problems=[str(path) for path in paths],
            hint="Name one of those that are merged",
        )
    if weights is not None and len(weights) != len(paths):
        average([{}] * len(paths), weights)  # its error
    order = [first, *(k for k in range(len(paths)) if k != first)]
    return [paths[k] for k in order], replace(mean, weights=weights and [weights[k] for k in order])


def _check(models: int, mean: Average) -> None:
    """Raise UsageError for what cannot be merged so, before an hour of searching."""
    if models < 2:
        raise UsageError("merging takes at least two models", hint="rebasin merge A B …")
    if mean.interpolation not in api.INTERPOLATIONS:
        raise unknown("interpolation", mean.interpolation, api.INTERPOLATIONS)
    if mean.interpolation == "slerp" and models != 2:
        raise UsageError(f"slerp joins two models, not {models}", hint="Use --interpolation linear")
    if mean.perm and models != 2:
        raise UsageError(
            f"--perm is for the second of two models, not of {models}",
            hint="Apply it first: rebasin apply PERM MODEL -o aligned.safetensors",
        )
    if mean.weights is not None:
        average([{}] * models, mean.weights)  # only its checks
