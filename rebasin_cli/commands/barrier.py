"""`rebasin barrier`: the path between two models, as a report that gates judge."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import networks
from ..averages.means import check_interpolation
from ..errors import UsageError
from ..measure import intervals
from ..measure.baseline import check_baseline
from ..measure.gates import GateSet, check_gate_names, fixed_rows, judged
from ..measure.settings import (
    ATTACKED,
    MIDDLE,
    Rows,
    check_points,
    plan,
    points_of,
    repaired_label,
)
from ..networks.attacks import Attack, Attacker
from ..networks.losses import Loss
from ..registry.options import PAIR, PLAIN, READS, WRITES, again, argument, option
from ..registry.results import Plan
from ..reports import Report
from ..reports.barrier import document
from ..reports.document import Document
from ..runtime.ranks import ALONE, Ranks
from ..session.asked import of_model, subjects_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import REPORT, Answer, Formats, Gates, Screen, Summary, Weights
from ..session.request import Subjects
from ..session.search_options import Grouping, Method, Methods, Polishing, Proving, Repair, Repairing
from ..session.session import Session
from ..session.subjects import (
    SAMPLES,
    Bounded,
    Calibration,
    Choice,
    Choosing,
    Data,
    DataSet,
    Loading,
    Network,
    Samples,
    Scoring,
)
from .merging.average import Mean
from .merging.curved import between
from .verbs import endpoints, needs, plans, repairs, search
from .verbs.before import known
from .verbs.gates import Judged, asked_of, judge, written_of
from .verbs.path import MEASURED, Planning, check_one_pair, check_pairs, language_of, measure, subject_of
from .verbs.ranks import check_measured
from .verbs.report_files import Written

PANEL = "Measure"
TOGETHER = True


@dataclass(frozen=True, kw_only=True)
class Barrier(
    Gates,
    Loading,
    Bounded,
    Network,
    DataSet,
    Samples,
    Choosing,
    Choice,
    Scoring,
    Calibration,
    Methods,
    Grouping,
    Polishing,
    Formats,
    Screen,
):
    """Measure loss and accuracy along the straight path from A to B, naive and aligned.

    Both barrier definitions, train and test, with and without repair, beside controls: a random permutation,
    an ensemble, temperatures. Intervals are over test samples, and over pairs with --pair.

    Example: rebasin barrier a.pt b.pt --data cifar10 --report report/ --max-barrier 0.05
    """

    COMMON = (
        "method",
        "repair",
        "data",
        "net",
        "spec",
        "report",
        "max_barrier",
        "gate",
        "baseline",
        "json",
    )

    a: Path = argument("A", "The reference.", role=READS)
    b: Path = argument("B", "The model that is aligned to it.", role=READS)
    method: str | None = Method.method
    perm: Path | None = Method.perm
    curve: tuple[Path, ...] = option(
        (),
        "Measure this trained curve between A and B, too (rebasin curve); repeatable.",
        metavar="FILE",
        role=READS,
    )
    attack: tuple[str, ...] = option(
        (),
        "Measure curves and lines under this attack (PGD), too: 8/255, or eps=0.1,step=0.025,"
        "steps=20,restarts=2; repeatable.",
        metavar="EPS",
        kind="attack",
        panel=SAMPLES,
        role=PLAIN,
    )
    pair: tuple[str, ...] = option(
        (),
        "Measure these two as well, for means over pairs of seeds; repeatable.",
        metavar="C,D",
        role=PAIR,
    )
    repair: str = Repair.repair
    ridge: float | None = Repairing.ridge
    repair_samples: int | None = Repairing.repair_samples
    full: bool = again(
        Data.full,
        False,
        help="All training samples, also for the reset; 65 points a path, 25 where repaired.",
        panel="",
    )
    interpolation: str = Mean.interpolation
    points: int | None = option(
        None,
        "Points of every path, both ends included; odd, so that λ = ½ is one (25; 11 where "
        "repaired, 5 where distilled; λ = ½ alone where a search chose to distil).",
        metavar="N",
        min=3,
        max=9_999,
    )
    report: Path | None = option(
        None,
        "Write HTML, Markdown, JSON, JUnit and a PNG into this folder.",
        metavar="DIR",
        panel=REPORT,
        role=WRITES,
    )
    json: bool = again(Answer.json, False, help="Print the report as JSON.", panel=REPORT)
    step_summary: Path | None = Summary.step_summary
    prove: str = Proving.prove
    no_prove: bool = Proving.no_prove
    force: bool = Weights.force
    dry_run: bool = Answer.dry_run


class BarrierResult(Judged):
    """What was measured along the path, and whether its gates are met."""

    def document(self) -> Document:
        return document(self.report)


def run(asked: Barrier, listener: Listener = SILENT, ranks: Ranks = ALONE) -> BarrierResult | Plan:
    """Measure the path between two models, and write the report in every format asked for.

    Trained curves between the two get rows of their own. Further pairs of the same architecture are
    measured alike, for means over pairs; all else is of A and B. What was `measured` before is not again.
    Gates are judged in the report, and raised only by the result's `end`: everything is written first.
    Several `ranks` call this alike, and take turns with the batches; a search by `auto` is the first one's.
    """
    subjects = subjects_of(asked)
    gates = asked_of(asked, language_of(subjects.data))
    written, pairs = written_of(asked, listener), [_two(text) for text in asked.pair]
    found = _barrier(asked, pairs, gates, written, listener, subjects, ranks)
    return BarrierResult(found, asked.baseline) if isinstance(found, Report) else Plan(found)


def _two(text: str) -> tuple[Path, Path]:
    """`C,D` as two paths: an option that may be repeated takes one value."""
    first, comma, second = text.partition(",")
    if not (first and second) or "," in second:
        raise UsageError(f"--pair {text!r} is not two files", hint="Write them like --pair c.pt,d.pt")
    return Path(first), Path(second)


def _barrier(
    asked: Barrier,
    pairs: Sequence[tuple[Path, Path]],
    gates: GateSet,
    written: Written,
    listener: Listener,
    subjects: Subjects,
    ranks: Ranks,
) -> Report | dict[str, Any]:
    """The report of A and B, over all pairs; of a dry run the plan."""
    if asked.points is not None:
        check_points(asked.points)
    check_interpolation(asked.interpolation)
    how: dict[str, Any] = {"perm": asked.perm, "curves": asked.curve, "ranks": ranks}
    session = Session("barrier", [asked.a, asked.b], listener, subjects, **how)
    others = [file for model in itertools.chain(*pairs) for file in of_model(model)]
    reads = session.reads.and_files([*asked.curve, *others])
    destinations = ranks.first(lambda: written.destinations(inputs=reads))
    command = written.command or "rebasin barrier"
    if (before := known()) is not None:
        if written.dry_run:
            judged(before, gates)
            return {"measuring": "nothing: the figures are known, and gates are judged by them"}
        before = dataclasses.replace(before, command=command)
        return judge(before, gates, written, destinations, listener)
    search.check(session, or_none=True)
    planned = _plan(session, asked, pairs, gates)
    if written.dry_run:
        return (
            plans.of_search(planned.session)
            | repairs.tries(planned.session, planned.repair)
            | planned.figures
        )
    report = _measured(planned, command, gates)
    measured: list[Report] = []
    by = planned.session.asked.search  # all pairs by one method
    subjects = dataclasses.replace(subjects, search=dataclasses.replace(by, open=False))
    for number, (c, d) in enumerate(pairs, start=2):
        listener.say(f"pair {number} of {1 + len(pairs)}: {c} and {d}")
        quiet = dataclasses.replace(listener, say=lambda text: None)
        alike = dataclasses.replace(asked, a=c, b=d, curve=())
        measured.append(_of_pair(alike, quiet, subjects, ranks))
    report = intervals.with_pairs(report, measured) if measured else report
    return ranks.last(judge, report, gates, written, destinations, listener)


def _of_pair(asked: Barrier, listener: Listener, subjects: Subjects, ranks: Ranks) -> Report:
    """The report of a further pair, which is not judged or written by itself."""
    session = Session("barrier", [asked.a, asked.b], listener, subjects, ranks=ranks)
    return _measured(_plan(session, asked, (), GateSet()), "rebasin barrier", GateSet())


def _measured(planned: Planning, command: str, gates: GateSet) -> Report:
    """The report of A and B, shared by ranks unless they may search apart."""
    session = planned.session
    if session.method == "auto" or session.grouped:
        why = "auto goes by the clock" if session.method == "auto" else "groups are searched by one process"
        return session.by_first(
            why,
            lambda alone: measure(dataclasses.replace(planned, session=alone), command, gates),
            goes_on=True,
        )
    check_measured(session, session.splits)
    return measure(planned, command, gates)


def _plan(
    session: Session,
    asked: Barrier,
    pairs: Sequence[tuple[Path, Path]],
    gates: GateSet,
) -> Planning:
    """Everything that can be refused before an hour of measuring; the minutes are told."""
    _, language = session.scores, language_of(session.asked.data)
    if session.held_out is not None:
        session.held_out.check(measured=True)
    check_one_pair(session, pairs)
    needs.check(session)  # models and spec, before the pairs
    check_pairs(session, pairs)
    if not session.moved:
        endpoints.tell(session.named, session.say)
    if fixed := next(iter(fixed_rows(gates.gates)), None):
        if session.asked.search.open:
            session.say(
                f"method: wm, as a gate names {fixed!r}: auto chooses its repair itself (a gate that names "
                "no row is of its choice)"
            )
    else:
        session = search.chosen(session)
    points, repaired = points_of(asked.points, full=session.asked.data.full)
    repair = repairs.planned(session, has_data=True)
    how = repair.how
    settings = Rows(
        points=points,
        repaired_points=repaired,
        repair_with="auto" if session.asked.repair.repair == "auto" else how,  # it is open to a search
        ridge=session.asked.repair.ridge,
        interpolation=asked.interpolation,
        curves=between(session, asked.curve, pairs=bool(pairs)),
        attacks=_attacks(asked),
        choose=session.chosen_by,
        attacked=None if session.asked.data.full else ATTACKED,
    )
    word = repaired_label(how, statistics=bool(session.fitted.statistics))
    _ = session.given
    network, auto = session.need_network(), how == "auto"
    wanted = ["train", "test", "held", *["reset"] * bool(word)]
    chosen = session.method == "auto" and settings.repair_with == "auto"  # with the method
    splits = session.open_splits(*wanted, *["fitted"] * chosen, choosing=auto, fits=word)
    rows = plan(
        settings,
        aligned=session.moved,
        word=word,
        ship=None if auto else how,
        auto=auto,
        logits=Loss.of(session.loss).of_logits,
        statistics=networks.has_running_statistics(network),
        groups=bool(session.fitted.groups),
        beside=session.given is None,
    )
    for attack in settings.attacks:  # refused before anything is measured
        Attacker(attack, splits["test"])
    check_gate_names(gates.gates, [row.name for row in rows], MEASURED, language)
    subject = None
    if gates.baseline is not None and gates.baseline.report is not None:
        subject = subject_of(session)
        check_baseline(gates.baseline.report, subject)
    count = 1 + len(pairs)
    figures = plans.plan_report(session, splits, rows, pairs=count, fits=word)
    figures |= plans.not_estimated([(session.method, session.options)])
    session.say(plans.in_words(figures))
    return Planning(session, repair, settings, word, rows, figures, subject)


def _attacks(asked: Barrier) -> Sequence[Attack]:
    if asked.attack and asked.loss is not None:
        raise UsageError(
            "--attack goes up the cross-entropy, and --loss names another loss", hint="Leave one of them out"
        )
    if asked.attack and asked.points is not None and asked.points <= MIDDLE:
        raise UsageError(
            f"--attack is measured along whole paths, and --points {asked.points} are the ends and λ = ½",
            hint="Give --points 5 or more",
        )
    return list(dict.fromkeys(map(Attack.parse, asked.attack)))
