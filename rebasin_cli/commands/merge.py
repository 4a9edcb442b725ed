"""`rebasin merge` on files: one model from two or many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from .. import api
from ..repair import Outcome
from .job import configs, curved, heads, plain, repairing, soups
from .job.averaging import Average
from .job.job import Job
from .job.listener import SILENT, Listener
from .job.method_options import how_it_went
from .job.outputs import Output, check_outputs, write
from .job.settings import ForMerge, Search
from .job.sources import attested


def merge(
    paths: Sequence[Path],
    output: Output,
    listener: Listener = SILENT,
    *,
    mean: Average = Average(),  # noqa: B008 (frozen)
    **subjects: Unpack[ForMerge],
) -> dict[str, Any]:
    """Align all models to the reference, average them, repair what averaging broke; write one model.

    Where nothing is permuted and nothing repaired, the models are averaged as they are (`plain`). On a
    trained curve between two of them, the model is the one at a point of it (`curved`).
    """
    paths, mean = mean.in_order(paths)
    mean.check(len(paths))
    curved.check(mean, subjects.get("search", Search()), len(paths))
    output = mean.placed(output, paths)
    job = Job("merge", paths, listener, **subjects, perm=mean.perm)
    check_outputs(output, job.inputs(mean.curve, *mean.sources()), as_torch=True)
    job.check_search(output, or_none=True)
    if mean.curve is not None:
        return attested(job, output, curved.merge(job, output, mean), mean=mean)
    if plain.suffices(job, mean):
        job.check_needs()
        return attested(job, output, plain.average(job, output, mean), mean=mean)
    if mean.soup:
        return attested(job, output, soups.merge(job, output, mean), mean=mean)
    mean.check_aligned()
    job = job if mean.heads else job.settled()
    aside = heads.set_aside(job, mean.heads)
    job.check_needs()
    job.tell_strangers()
    how = job.settle_repair()
    given, of_given = job.given
    if output.dry_run:
        return job.plan() | repairing.plan(job, how)
    ready = repairing.prepare(job, how)
    inputs, proof = repairing.to_try(job, job.match_inputs()), job.proof()
    with job.resumable(output) as state:
        found = job.search(state, inputs)
        ready = repairing.settled(job, ready, found)
        merged = api.merge(
            found.models if found else job.models,
            job.fitted,
            method="none",
            weights=mean.weights,
            interpolation=mean.interpolation,
            permutations=[given] if given else None,
            repair_with=ready.how,
            new_bias=job.asked.repair.new_bias,
            ridge=job.asked.repair.ridge,
            network=ready.network,
            train=ready.splits.get("reset"),
            held=ready.splits.get("held"),
            unseen=job.unseen,
            repaired=repairing.done_already(job, found),
            inputs=job.need_inputs() if ready.how == "bias" else None,
            output=job.output,
            device=job.device,
        )
        done = Outcome(repaired=merged.repair, choice=merged.choice)
        tensors, options, account = repairing.finish(job, ready, merged.tensors, done)
        options |= {"weights": list(mean.weights or []), "interpolation": mean.interpolation}
        options |= of_given | how_it_went(found)
        like = around = job.models[0]
        if aside is not None:
            permutations = found.result.permutations[0] if found else given
            tensors = like = aside.put_back(tensors, job, permutations, mean.weights)
            options |= {"heads": aside.how}
            output = configs.fitted(output, aside.models, tensors.shapes, job.say, heads=aside.how)
        meta = job.describe(options=options, proof=proof, like=job.models)
        added = merged.repair.added if merged.repair else ()
        written = write(output, tensors, like, meta, added=added, around=around, say=job.say)
    done = job.summary(found, proof, written=written) | {"models": len(paths)} | account
    return attested(job, output, done, mean=mean)
