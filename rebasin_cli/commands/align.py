"""`rebasin align` on files: permute one model into another's basin."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

from ..runtime.ranks import ALONE, Ranks
from ..session.listener import SILENT, Listener
from ..session.method_options import how_it_went
from ..session.session import Session
from ..session.subjects import ForSearch
from .verbs import plans, provenance, same_run, search, symmetries
from .verbs.folders import placed
from .verbs.outputs import Output, check_outputs, write_with_permutation
from .verbs.proof import prove
from .verbs.sources import attested


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
    session = Session("align", [reference, model], listener, **subjects, ranks=ranks)
    ranks.first(lambda: check_outputs(output, session.reads, permutation_beside=True, as_torch=True))
    search.check(session, output)
    search.check_needs(session)
    ranks.first(symmetries.check_reference, session, session.folds)  # which all look for, together
    same_run.check(session)
    if output.dry_run:
        return plans.of_search(session)
    inputs, proof = search.inputs(session), prove(session)
    session.forget_network()  # the search needs its memory
    with search.resumable(session, output) as state:
        found = search.find(session, state, given=inputs)

        def write_both() -> list[str]:
            options = how_it_went(found)
            meta = provenance.of_session(
                session, options=options, proof=proof.account, like=session.models[1:], results=True
            )
            save = symmetries.saver(session, found, meta)
            models = session.models
            files = write_with_permutation(output, found.tensors, models[0], save, meta, around=models[1])
            return attested(session, output, {"written": files})["written"]

        written = ranks.last(write_both)
    return search.summary(session, found, proof, written=written)
