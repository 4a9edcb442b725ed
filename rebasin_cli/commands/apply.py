"""`rebasin apply` on files: permute a checkpoint by a saved permutation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..groups import stored
from ..permutations import permutation
from .job import grouped, provenance
from .job.folders import placed
from .job.job import Job
from .job.listener import SILENT, Listener
from .job.outputs import Output, check_outputs, write
from .job.settings import Loading
from .job.sources import attested


def apply(
    perm: Path,
    model: Path,
    output: Output,
    listener: Listener = SILENT,
    *,
    loading: Loading = Loading(),  # noqa: B008 (frozen)
    invert: bool = False,
) -> dict[str, Any]:
    """Permute a checkpoint by a saved permutation: EMA weights, or moments stored by parameter name.

    Elements beyond permutations act on the model as its norms are folded, which changes no function. Raises
    SpecError if the permutation was found with another spec, CheckpointError if it does not fit.
    """
    output = placed(output, model)
    job = Job("apply", [model], listener, loading=loading, perm=perm, undo=invert)
    check_outputs(output, job.inputs(), as_torch=True)
    if stored.is_stored(perm):
        if loading.spec is not None:
            raise UsageError(
                f"--spec {loading.spec}: {perm} brings the spec that its elements are of",
                hint="Leave --spec out",
            )
        return attested(job, output, grouped.apply(job, output, perm, invert=invert))
    found, given = job.given
    found = permutation.invert(found) if invert else found
    options = {"invert": invert, **given}
    about = {"method": "given", "seed": job.seed, "options": options, "like": job.models, "results": True}
    meta = provenance.describe("apply", job.models, job.fitted, **about)
    written = write(output, permutation.permuted(job.models[0], job.fitted, found), job.models[0], meta)
    done = {"written": written, "permutations": len(found), "inverted": invert}
    return attested(job, output, done)
