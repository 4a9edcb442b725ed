"""`rebasin merge` on files: one model from two or many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from .. import api
from ..repair import Outcome
from ..session.listener import SILENT, Listener
from ..session.method_options import how_it_went
from ..session.session import Session
from ..session.subjects import ForMerge, Search
from .merging import configs, curved, heads, plain, soups
from .merging.average import Average
from .verbs import repair as repairing
from .verbs.outputs import Output, check_outputs, write
from .verbs.sources import attested


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
    session = Session("merge", paths, listener, **subjects, perm=mean.perm)
    check_outputs(output, session.inputs(mean.curve, *mean.sources()), as_torch=True)
    session.check_search(output, or_none=True)
    if mean.curve is not None:
        return attested(session, output, curved.merge(session, output, mean), mean=mean)
    if plain.suffices(session, mean):
        session.check_needs()
        return attested(session, output, plain.average(session, output, mean), mean=mean)
    if mean.soup:
        return attested(session, output, soups.merge(session, output, mean), mean=mean)
    mean.check_aligned()
    session = session if mean.heads else session.settled()
    aside = heads.set_aside(session, mean.heads)
    session.check_needs()
    session.tell_strangers()
    how = session.settle_repair()
    given, of_given = session.given
    if output.dry_run:
        return session.plan() | repairing.plan(session, how)
    ready = repairing.prepare(session, how)
    inputs, proof = repairing.to_try(session, session.match_inputs()), session.proof()
    with session.resumable(output) as state:
        found = session.search(state, inputs)
        ready = repairing.settled(session, ready, found)
        merged = api.merge(
            found.models if found else session.models,
            session.fitted,
            method="none",
            weights=mean.weights,
            interpolation=mean.interpolation,
            permutations=[given] if given else None,
            repair_with=ready.how,
            new_bias=session.asked.repair.new_bias,
            ridge=session.asked.repair.ridge,
            network=ready.network,
            train=ready.splits.get("reset"),
            held=ready.splits.get("held"),
            unseen=session.unseen,
            repaired=repairing.done_already(session, found),
            inputs=session.need_inputs() if ready.how == "bias" else None,
            output=session.output,
            device=session.device,
        )
        done = Outcome(repaired=merged.repair, choice=merged.choice)
        tensors, options, account = repairing.finish(session, ready, merged.tensors, done)
        options |= {"weights": list(mean.weights or []), "interpolation": mean.interpolation}
        options |= of_given | how_it_went(found)
        like = around = session.models[0]
        if aside is not None:
            permutations = found.result.permutations[0] if found else given
            tensors = like = aside.put_back(tensors, session, permutations, mean.weights)
            options |= {"heads": aside.how}
            output = configs.fitted(output, aside.models, tensors.shapes, session.say, heads=aside.how)
        meta = session.describe(options=options, proof=proof, like=session.models)
        added = merged.repair.added if merged.repair else ()
        written = write(output, tensors, like, meta, added=added, around=around, say=session.say)
    done = session.summary(found, proof, written=written) | {"models": len(paths)} | account
    return attested(session, output, done, mean=mean)
