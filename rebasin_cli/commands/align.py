"""`rebasin align`: permute one model into another's basin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..registry.options import READS, argument
from ..registry.results import Plan, Result
from ..runtime.ranks import ALONE, Ranks
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.method_options import how_it_went
from ..session.outcomes import Answer, OutModel, Screen, Weights
from ..session.search_options import Grouping, Interruptible, Method, Methods, Polishing, Proving
from ..session.session import Session
from ..session.subjects import Bounded, DataSet, Loading, Network, Samples, Scoring
from .verbs import needs, plans, provenance, search, symmetries
from .verbs import search as method
from .verbs.folders import placed
from .verbs.outputs import check_outputs, default_path, output_of, write_with_permutation
from .verbs.proof import prove
from .verbs.provenance import attested
from .verbs.ranks import check_same

PANEL = "Align and merge"
TOGETHER = True


@dataclass(frozen=True, kw_only=True)
class Align(
    Loading, Bounded, Network, DataSet, Samples, Methods, Grouping, Polishing, Interruptible, Weights, Screen
):
    """Permute B's hidden units into A's basin; B's function stays the same.

    Writes B_aligned.safetensors (or --out), and the permutation beside it as *.perm.safetensors.

    Many processes search together, on one machine or more: torchrun … -m rebasin_cli align …

    Example: rebasin align a.pt b.pt --method wm -o b_aligned.safetensors
    """

    COMMON = (
        "out",
        "method",
        "data",
        "net",
        "spec",
        "groups",
        "polish",
        "resume",
        "json",
        "force",
    )

    reference: Path = argument("A", "The model that stays.", role=READS)
    model: Path = argument("B", "The model that is permuted.", role=READS)
    out: str | None = OutModel.out
    method: str | None = Method.method
    loss: str | None = Scoring.loss
    prove: str = Proving.prove
    no_prove: bool = Proving.no_prove
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json


@dataclass(frozen=True)
class AlignResult(Result):
    """What was `written`, the model first, then the permutation; how the search went, in `times` of seconds.

    `match` has the objective before and after, `proof` whether and on which network the spec was proven.
    """

    written: list[str]
    spec: Mapping[str, Any]
    match: Mapping[str, Any]
    proof: Mapping[str, Any]
    times: Mapping[str, float]


def run(asked: Align, listener: Listener = SILENT, ranks: Ranks = ALONE) -> AlignResult | Plan:
    """Permute `model` into the basin of `reference`; write it, and the permutation beside it.

    Several `ranks` call this alike: the first one checks, proves and writes, all read and search.
    """
    if ranks.size > 1 and (asked.method == "auto" or asked.groups == "all"):
        why = "auto goes by the clock" if asked.method == "auto" else "groups are searched by one process"
        listener.say(f"{why}: the first of {ranks.size} processes aligns, the others wait")
        return ranks.alone(run, asked, listener)
    model = asked.model
    output = output_of(asked, default_path(model, "aligned"))
    output = placed(output, model)
    session = Session("align", [asked.reference, model], listener, subjects_of(asked), ranks=ranks)
    ranks.first(lambda: check_outputs(output, session.reads, permutation_beside=True, as_torch=True))
    search.check(session, output)
    search.check_needs(session)
    needs.check(session, output)
    if session.grouped:
        _ = session.symmetries  # which all look for, together
        ranks.first(symmetries.check_reference, session)
    spec = session.fitted.spec
    check_same(session, {"the spec": lambda: (spec.name, spec.digest)})
    method.tell(session)
    if output.dry_run:
        return Plan(plans.of_search(session, output))
    inputs, proof = search.inputs(session), prove(session)
    session.forget_network()  # the search needs its memory
    with search.resumable(session, output) as state:
        if (found := search.find(session, state, given=inputs)) is None:
            raise LookupError("an alignment searches, or is given")

        def write_both() -> list[str]:
            options = how_it_went(found)
            meta = provenance.of_session(
                session, options=options, proof=proof.account, like=session.models[1:], results=True
            )
            save = symmetries.saver(found, session.fitted, session.folds)
            models = session.models
            files = write_with_permutation(output, found.tensors, models[0], save, meta, around=models[1])
            written: list[str] = attested(session, output, {"written": files})["written"]
            return written

        written = ranks.last(write_both)
    return AlignResult(**search.summary(session, found, proof, written=written))
