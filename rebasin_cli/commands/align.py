"""`rebasin align` on files: permute one model into another's basin."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from ..runtime.ranks import ALONE, Ranks
from .job import grouped, same_run
from .job.folders import placed
from .job.job import Job
from .job.listener import SILENT, Listener
from .job.method_options import how_it_went
from .job.outputs import Output, check_outputs, write_with_permutation
from .job.settings import ForSearch
from .job.sources import attested


def align(
    reference: Path,
    model: Path,
    output: Output,
    listener: Listener = SILENT,
    *,
    ranks: Ranks = ALONE,
    **subjects: Unpack[ForSearch],
) -> dict[str, Any]:
    """Permute `model` into the basin of `reference`; write it, and the permutation beside it.

    Several `ranks` call this alike: the first one checks, proves and writes, all read and search.
    """
    output = placed(output, model)
    job = Job("align", [reference, model], listener, **subjects, ranks=ranks)
    ranks.first(lambda: check_outputs(output, job.inputs(), permutation_beside=True, as_torch=True))
    job.check_search(output)
    job.check_needs()
    ranks.first(grouped.check_reference, job)
    same_run.check(job)
    if output.dry_run:
        return job.plan()
    inputs, proof = job.match_inputs(), job.proof()
    job.forget_network()  # the search needs its memory
    with job.resumable(output) as state:
        found = job.search(state, inputs)

        def write_both() -> list[str]:
            options = how_it_went(found)
            meta = job.describe(options=options, proof=proof, like=job.models[1:], results=True)
            save = grouped.saver(job, found, meta)
            models = job.models
            files = write_with_permutation(output, found.tensors, models[0], save, meta, around=models[1])
            return attested(job, output, {"written": files})["written"]

        written = ranks.last(write_both)
    return job.summary(found, proof, written=written)
