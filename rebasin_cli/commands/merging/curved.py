"""Trained curves by their files: as rows of a report, and one point as a model (`merge --curve --at`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...checkpoints.tensors import replaced
from ...errors import UsageError
from ...learning.curves import stored
from ...learning.curves.curve import Curve
from ...repair import Outcome
from ...repair.repair_steps import repair_merged
from ...session.request import Search
from ...session.session import Session
from ..verbs import provenance, repairs
from ..verbs.outputs import Output, write
from ..verbs.repairs import RepairPlan
from . import configs, declared
from .average import Average

ABLE = ("auto", "none", "reset")


def check(mean: Average, search: Search, models: int) -> None:
    """Raise UsageError for what makes no sense beside a curve."""
    if mean.curve is None:
        if mean.at is not None:
            raise UsageError("--at is for a point of a curve", hint="Name the curve with --curve")
        return
    if mean.at is None:
        raise UsageError(f"--curve {mean.curve} needs a point", hint="Give one in 0–1: --at 0.5")
    if not 0 <= mean.at <= 1:
        raise UsageError(f"--at {mean.at:g} is no point of a curve", hint="Give one in 0–1")
    beside = {
        "--weights": mean.weights or mean.schedule,
        "--perm": mean.perm,
        "--heads": mean.heads,
        "--soup": mean.soup,
        "--interpolation": mean.interpolation != "linear",
        "--reference": mean.reference,
        "--polish": search.polish,
        f"--method {search.method}": search.method not in (Search.method, "none"),
        "--groups all": search.groups == "all",
        "--log": search.log,
        **{f"--{name.replace('_', '-')}": True for name in search.options},
    }
    for name, given in beside.items():
        if given:
            raise UsageError(f"{name} makes no sense beside --curve: the curve says what lies at its points")
    if models != 2:
        raise UsageError(f"a curve joins two models, not {models}")


def between(session: Session, files: Sequence[Path], *, pairs: bool = False) -> dict[str, Curve]:
    """The curves in these files by the names of their rows. Raises UsageError for other models' curves."""
    if files and pairs:
        raise UsageError(
            "a curve is between two models, and --pair names more", hint="Measure one pair with it"
        )
    found: dict[str, Curve] = {}
    for file in files:
        kept = stored.load(file)
        name = f"curve ({'aligned' if kept.aligned else 'unaligned'})"
        name = name if name not in found else f"curve {len(found) + 1} {name.partition(' ')[2]}"
        a, b = session.models
        found[name] = kept.between(a, b, session.fitted, session.folds)
    return found


def merge(session: Session, output: Output, mean: Average) -> dict[str, Any]:
    """Write the model at the point, its running statistics re-estimated there; its account."""
    if session.asked.repair.repair not in ABLE:
        raise UsageError(
            f"--repair {session.asked.repair.repair} is for what lies on a straight line",
            hint="On a curve statistics are re-estimated, or nothing is: auto, reset or none",
        )
    if mean.curve is None or (at := mean.at) is None:
        raise LookupError("no curve is named, or no point of it")
    kept = stored.load(mean.curve)
    if 0 < at < 1 and not session.asked.data.skip_checks:
        declared.check(session.named, [*session.named[0].shapes], session.say)
    a, b = session.models
    curve = kept.between(a, b, session.fitted, session.folds)
    inner = 0 < at < 1 and bool(session.fitted.statistics)
    repair = repairs.planned(session) if inner else RepairPlan("none")
    if output.dry_run:
        return {"curve": str(mean.curve), "at": at, "repair": repair.how}
    repair, merged, done = repairs.opened(session, repair), curve.at(at), Outcome()
    if repair.how == "reset" and repair.network is not None:
        network = repair.network.to(session.device)
        how = repairs.of(session, repair, [curve.a, curve.b])
        done = repair_merged(network, merged, how, [1 - at, at], output=session.output)
    tensors, options, account = repairs.finish(session, repair, replaced(merged, done.tensors), done)
    options |= {"curve": kept.digest, "at": at}
    meta = provenance.of_session(session, method="curve", options=options, like=session.models)
    output = configs.fitted(output, [a, b], a.shapes, session.say)
    written = write(output, tensors, a, meta, say=session.say)
    return {"written": written, "curve": kept.kind, "at": at} | account
