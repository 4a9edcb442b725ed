"""The path between two models, measured as it was planned: the report of A and B, and what it is of."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...measure import report as measuring
from ...measure import samples, signatures
from ...measure.baseline import Subject
from ...measure.gates import GateSet, check_gate_names
from ...measure.settings import Planned, Rows, repaired_label
from ...measure.thresholds import Language
from ...repair.repair_steps import few
from ...reports import Report
from ...session.method_options import bounded, start_file
from ...session.request import Search
from ...session.samples import metrics_of, quantities_of
from ...session.session import Session
from ...session.subjects import Data
from . import endpoints, provenance, search
from .proof import prove
from .repairs import RepairPlan
from .search import shown

MEASURED = ("train", "test")


@dataclass(frozen=True)
class Planning:
    """What the report will have, what its repaired rows are called, and the plan's figures."""

    session: Session
    repair: RepairPlan
    settings: Rows
    word: str
    rows: Sequence[Planned]
    figures: dict[str, Any]
    subject: Subject | None = None


def language_of(data: Data) -> Language:
    """What gates may ask for: the loss and the metrics by their names."""
    loss, *metrics = quantities_of(data)
    return Language(loss, metrics)


def measure(planned: Planning, command: str, gates: GateSet) -> Report:
    """The report of A and B."""
    session = planned.session
    inputs, proof = search.inputs(session), prove(session)
    splits, network = dict(session.splits), session.need_network()
    fitted = splits.pop("fitted", None)
    done, total = itertools.count(1), sum(row.points for row in planned.rows)
    language = language_of(session.asked.data)
    (a, b), run = session.models, session.outputs | {"network": network, "device": session.device}
    report = measuring.barrier(
        a,
        b,
        session.fitted,
        train=splits["train"],
        test=splits["test"],
        reset_batches=splits.get("reset"),
        fitted_batches=fitted,
        held=splits["held"],
        unseen=session.unseen,
        method=session.asked.search.method,
        permutations=None if session.given is None else session.given.elements,
        **vars(planned.settings),
        signature=signatures.in_report(a, b, session.fitted, data=splits["train"], seed=session.seed, **run),
        scores=session.scores,
        seed=session.seed,
        check=endpoints.check(session),
        planned=lambda rows: check_gate_names(gates.gates, [row.name for row in rows], MEASURED, language),
        measured=lambda: session.listener.step("measuring", next(done), total, ""),
        options=bounded(session.options),
        data=inputs.get("data"),
        polish=session.asked.search.polish if session.moved and not session.perm else None,
        loss=inputs.get("loss"),
        metric=inputs.get("metric"),
        start=search.first_state(session),
        folds=session.folds,
        prove=False,
        progress=shown(session.listener.step),
        ranks=session.ranks,
        **run,
    )
    word = planned.word
    if decided := report.match.get("repair"):  # by the search, with the method
        word = repaired_label(decided, statistics=bool(session.fitted.statistics)) or word
        if fitted is not None:
            took = report.match.get("repair_samples")
            splits["reset"] = few(fitted, decided, took, seed=session.seed)
    notes = provenance.notes(splits, proof.account, repair=word, held_out=session.held_out)
    report = provenance.signed(
        report,
        session.models,
        splits["test"],
        proof=proof.account,
        command=command,
        full=session.asked.data.full,
        notes=notes,
    )
    subject = planned.subject or subject_of(session)
    more: dict[str, Any] = {"scores": subject.scores} if subject.scores else {}
    more |= {"sha256": subject.digest} if subject.digest else {}
    more |= {"checks": "skipped"} if session.asked.data.skip_checks else {}
    if session.held_out is not None:
        more["held_out"] = session.held_out.account(splits["held"].samples)
    return dataclasses.replace(report, data=report.data | more)


def subject_of(session: Session) -> Subject:
    """What the report will be of. Accuracy that nobody named may be left out, so that is not known yet."""
    metrics = metrics_of(session.asked.data)
    open_ = session.asked.data.loss is not None and not metrics
    quantities = None if open_ else quantities_of(session.asked.data)
    data, test = session.asked.data, session.splits["test"]
    named = {"loss": data.loss, "metric": ", ".join(data.metric) or None, "output": session.output}
    return Subject(
        test.name,
        provenance.describe_data(test, full=data.full)["normalization"],
        test.samples,
        session.fitted.spec.digest,
        session.fitted.log10_symmetries(),
        {key: value for key, value in named.items() if value is not None},
        samples.digest_of_all(test),
        quantities,
        open=any(metric.is_open for metric in metrics),
    )


def check_one_pair(session: Session, pairs: Sequence[tuple[Path, Path]]) -> None:
    """Raise UsageError where a file of elements meets further pairs; it is not read."""
    if pairs and (session.perm is not None or start_file(session.asked.search) is not None):
        raise UsageError(
            "a permutation file (--perm, --init) is for one pair of models, and --pair names more",
            hint="Align each first (rebasin align), then measure with --method none",
        )


def check_pairs(session: Session, pairs: Sequence[tuple[Path, Path]]) -> None:
    """Raise for further pairs that cannot be measured as the first one is, before an hour of measuring."""
    for pair in pairs:
        asked = dataclasses.replace(session.asked, search=Search())
        other = Session("barrier", pair, asked=asked).fitted
        if other.spec.digest != session.fitted.spec.digest or other.shapes != session.fitted.shapes:
            raise UsageError(
                f"--pair {pair[0]},{pair[1]}: these have another architecture than the first pair",
                hint="A mean over pairs is one over models that differ in nothing but their training",
            )
