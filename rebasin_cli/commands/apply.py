"""`rebasin apply` on files: permute a checkpoint by a saved permutation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..groups import stored
from ..permutations import permutation
from ..session.listener import SILENT, Listener
from ..session.session import Session
from ..session.subjects import Loading
from .verbs import provenance, symmetries
from .verbs.folders import placed
from .verbs.outputs import Output, check_outputs, write
from .verbs.provenance import attested


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
    session = Session("apply", [model], listener, loading=loading, perm=perm, undo=invert)
    check_outputs(output, session.reads, as_torch=True)
    if stored.is_stored(perm):
        if loading.spec is not None:
            raise UsageError(
                f"--spec {loading.spec}: {perm} brings the spec that its elements are of",
                hint="Leave --spec out",
            )
        return attested(session, output, symmetries.apply(session, output, perm, invert=invert))
    found, given = session.given
    if found is None:
        raise LookupError("no file of a permutation is named")
    found = permutation.invert(found) if invert else found
    meta = provenance.describe(
        "apply",
        session.models,
        session.fitted,
        method="given",
        seed=session.seed,
        options={"invert": invert, **given},
        like=session.models,
        results=True,
    )
    written = write(
        output, permutation.permuted(session.models[0], session.fitted, found), session.models[0], meta
    )
    done = {"written": written, "permutations": len(found), "inverted": invert}
    return attested(session, output, done)
