"""Models aligned to the first, averaged and repaired: what `rebasin merge` does unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...checkpoints.tensors import replaced
from ...repair.means import repaired_mean
from ...session.method_options import how_it_went
from ...session.session import Session
from ...symmetry.permutation import permuted
from ...types import Tensors
from ..verbs import method, plans, provenance, repairs, search, strangers
from ..verbs.outputs import Output, write, write_as_planned
from ..verbs.proof import prove
from . import configs, heads
from .average import Average


def merge(session: Session, output: Output, mean: Average) -> dict[str, Any]:
    """Align all models to the reference, average them, repair what averaging broke; write one model."""
    mean.check_aligned()
    session = session if mean.heads else method.chosen(session)
    session, aside = heads.set_aside(session, mean.heads)
    search.check_needs(session)
    if not session.moved:
        strangers.tell(session.models, session.say)
    repair = repairs.planned(session)
    given, of_given = session.given
    if output.dry_run:
        return plans.of_search(session) | repairs.describe(session, repair)
    repair = repairs.opened(session, repair)
    inputs, proof = repairs.to_try(repair, session.asked.repair, search.inputs(session)), prove(session)
    with search.resumable(session, output) as state:
        found = search.find(session, state, given=inputs)
        repair = repairs.chosen(session, repair, found)
        models: Sequence[Tensors] = found.models if found else session.models
        if given:
            models = [models[0], permuted(models[1], session.fitted, given)]
        averaged, done = repaired_mean(
            models,
            session.fitted,
            mean.numbers,
            interpolation=mean.interpolation,
            repairs=None if repair.how == "none" else repairs.of(session, repair, models),
            network=repair.network,
            held=repair.splits.get("held"),
            unseen=session.unseen,
            output=session.output,
            done=repair.done,
        )
        tensors, options, account = repairs.finish(session, repair, replaced(averaged, done.tensors), done)
        options |= {"weights": list(mean.weights or []), "interpolation": mean.interpolation}
        options |= of_given | how_it_went(found)
        options |= {"heads": aside.how} if aside else {}
        meta = provenance.of_session(session, options=options, proof=proof.account, like=session.models)
        if aside is None:
            added = done.repaired.added if done.repaired else ()
            written = write(output, tensors, session.models[0], meta, added=added, say=session.say)
        else:
            permutations = found.result.permutations[0] if found else given
            whole = aside.put_back(tensors, session.fitted.spec, permutations, mean.numbers)
            output = configs.fitted(output, aside.models, whole.shapes, session.say, heads=aside.how)
            written = write_as_planned(output, whole, meta, around=session.models[0], say=session.say)
    return search.summary(session, found, proof, written=written) | {"models": len(session.paths)} | account
