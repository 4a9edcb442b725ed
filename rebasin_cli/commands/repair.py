"""`rebasin repair` on files: a checkpoint that was merged already, repaired after the fact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..averages.means import interpolate
from ..checkpoints.tensors import replaced
from ..errors import SpecError, UsageError, unknown
from ..registry.options import READS, REQUIRED, again, argument, option
from ..registry.results import UNSET, Plan, Result, Unset
from ..repair import REPAIRS, repair_merged
from ..reports import accounts
from ..runtime.ranks import ALONE, Ranks
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, OutModel, Screen, Weights
from ..session.search_options import Repair as Mending
from ..session.search_options import Repairing
from ..session.session import Session
from ..session.subjects import Bounded, Choice, Choosing, DataSet, Loading, Network, Scoring
from ..spec.spec import FittedSpec
from .verbs import needs, plans, provenance, repairs
from .verbs.folders import placed
from .verbs.outputs import Output, check_outputs, default_path, output_of, write
from .verbs.provenance import attested
from .verbs.ranks import check_same
from .verbs.repairs import RepairPlan

FAR = 1 / 3  # of the distance between the endpoints: units in another order are farther, repaired ones nearer


PANEL = "Align and merge"
TOGETHER = True


@dataclass(frozen=True, kw_only=True)
class Repair(Loading, Bounded, Network, DataSet, Choosing, Repairing, Weights, Screen):
    """Repair a checkpoint that was merged already: match its channels to those of its endpoints.

    Networks with BatchNorm get their running statistics re-estimated instead (reset). With --repair auto a
    model that no repair makes better, on held-out training samples, is written as it is.

    Processes that are started together share the batches: torchrun … -m rebasin_cli repair …

    Example: rebasin repair merged.safetensors --endpoints a.pt b_aligned.safetensors --data cifar10
    """

    model: Path = argument("FILE", "What was merged of A and B.", role=READS)
    endpoints: tuple[Path, Path] = option(
        REQUIRED, "The two models, B aligned to A (or with --perm).", metavar="A B", role=READS
    )
    out: str | None = OutModel.out
    share: float = option(0.5, "Where FILE lies between A (0) and B (1).", flag="--lambda", metavar="λ")
    repair: str = again(Mending.repair, "repair")
    loss: str | None = Scoring.loss
    metric: tuple[str, ...] = Scoring.metric
    choose: str = Choice.choose
    bake_temperature: bool = Mending.bake_temperature
    perm: Path | None = option(
        None, "The permutation of B that FILE was merged with.", metavar="FILE", role=READS
    )
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json


@dataclass(frozen=True)
class RepairResult(Result):
    """What was `written`, the `spec`, which `repair` in how many norms or layers, which were `left` and why.

    And how many channels were dead, `held_out_loss` where a repair was chosen, `held_out` where that was by a
    metric, the `temperature` baked in.
    """

    written: list[str]
    spec: Mapping[str, Any]
    repair: str | Unset = UNSET
    repaired_norms: int | Unset = UNSET
    repaired_layers: int | Unset = UNSET
    dead_channels: int | Unset = UNSET
    passes: int | Unset = UNSET
    left: Mapping[str, str] | Unset = UNSET
    added: list[str] | Unset = UNSET
    held_out: Mapping[str, Any] | Unset = UNSET
    held_out_loss: Mapping[str, float] | Unset = UNSET
    temperature: Mapping[str, Any] | Unset = UNSET


def run(asked: Repair, listener: Listener = SILENT, ranks: Ranks = ALONE) -> RepairResult | Plan:
    """Repair the merged model, which lies at λ = `share` between its endpoints, and write it.

    `perm` brings the second endpoint into the first one's basin, where it is not there yet. Raises SpecError
    where the merged model is not between the endpoints, and as `merge` does. "auto" leaves the model as it is
    where its held-out loss is not less when repaired. Several `ranks` call this alike.
    """
    path, share = asked.model, asked.share
    output: Output = ranks.first(lambda: placed(output_of(asked, default_path(path, "repaired")), path))
    if asked.repair not in ("auto", *REPAIRS[1:]):
        raise unknown("repair", asked.repair, ["auto", *REPAIRS[1:]])
    if not 0 < share < 1:
        raise UsageError(f"--lambda {share:g} is not between the endpoints", hint="Choose one in 0–1: 0.5")
    models, subjects = [path, *asked.endpoints], subjects_of(asked)
    session = Session("repair", models, listener, subjects, perm=asked.perm, ranks=ranks)
    ranks.first(lambda: check_outputs(output, session.reads, as_torch=True))
    plan = repairs.planned(session)
    needs.check(session, output)
    if output.dry_run:
        return Plan({"repair": plan.how} | plans.of_reading(session, output))
    if why := repairs.not_shared(session, plan):
        found = session.by_first(why, lambda alone: _repaired(alone, output, plan, share))
    else:
        check_same(session, {"the spec": lambda: session.fitted.spec.digest})
        found = _repaired(session, output, plan, share)
    return RepairResult(**ranks.last(attested, session, output, found))


def _repaired(session: Session, output: Output, plan: RepairPlan, share: float) -> dict[str, Any]:
    """What was written, and how; of several ranks each writes its share."""
    merged = session.models[0]
    _, first, aligned = session.standing(None)
    check_between(merged, first, aligned, share, session.fitted)
    session.need_network()
    plan = repairs.opened(session, plan, needed=True)
    how = repairs.of(session, plan, [first, aligned])
    done = repair_merged(
        session.need_network().to(session.device),
        merged,
        how,
        [1 - share, share],
        held=plan.splits.get("held"),
        unseen=session.unseen,
        output=session.output,
    )
    tensors, options, account = repairs.finish(session, plan, replaced(merged, done.tensors), done)
    options = {"lambda": share, "added": [], **options, **session.of_given}
    describe = partial(provenance.of_session, session, method=options["repair"], options=options)
    meta = session.ranks.first(describe, searches=False, like=session.models)
    ranks, added = session.ranks, options["added"]
    written = write(output, tensors, merged, meta, added=added, say=session.say, ranks=ranks)
    return {"written": written, "spec": accounts.describe_spec(session.fitted), **account}


def check_between(
    merged: Mapping[str, torch.Tensor],
    first: Mapping[str, torch.Tensor],
    second: Mapping[str, torch.Tensor],
    share: float,
    fitted: FittedSpec,
) -> None:
    """Raise SpecError where the merged model's units are not in the endpoints' order.

    Statistics of channels that have nothing to do with each other would be mixed. Repaired and spherical
    merges are near enough to the straight line.
    """
    line = interpolate(first, second, share)
    off = apart = 0.0
    for name in line:
        if name in fitted.ignored or name in fitted.statistics or not merged[name].is_floating_point():
            continue
        off += (merged[name].double() - line[name].double()).square().sum().item()
        apart += (first[name].double() - second[name].double()).square().sum().item()
    if off > FAR**2 * apart:
        raise SpecError(
            f"the merged model does not lie between the endpoints at λ = {share:g}: it is "
            f"{(off / apart) ** 0.5 if apart else float('inf'):.2f} of their distance away from there",
            hint="Give the permutation of B that was used (--perm FILE), or B as `rebasin align` wrote it",
        )
