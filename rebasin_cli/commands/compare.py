"""`rebasin compare`: how good is the merge of many models, by one method or several?"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import matchers
from ..errors import UsageError
from ..measure import comparison, formats
from ..measure.compared import Comparison
from ..registry.options import PLAIN, READS, WRITES, again, argument, option
from ..registry.results import Plan, Result
from ..reports.document import Document
from ..reports.formats.json import dump
from ..runtime.ranks import ALONE, Ranks
from ..session import method_options
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.method_options import check_method
from ..session.outcomes import REPORT, Answer, ReportFiles, Screen, Weights
from ..session.request import Search, Subjects
from ..session.samples import Splits
from ..session.search_options import Methods, Proving, Repair
from ..session.session import Session
from ..session.subjects import MOST, Data, DataSet, Loading, Network, Samples, Scoring
from .verbs import endpoints, plans, provenance, repairs, report_files, search
from .verbs import search as progress
from .verbs.proof import prove
from .verbs.ranks import check_measured
from .verbs.report_files import written_of

CURVED_SAMPLES = 1_000  # a split, for sharpness: a probe costs several times what a loss does


PANEL = "Measure"
TOGETHER = True


@dataclass(frozen=True, kw_only=True)
class Compare(Loading, Network, DataSet, Samples, Scoring, Methods, Screen):
    """Measure merges of the first 2, 3 … models, between pairs and anywhere in their simplex.

    With distances and angles beside those of unrelated points, and whether permutations of single pairs fit
    together.

    Example: rebasin compare a.pt b.pt c.pt --method wm --method merge-many --data mnist --report many/
    """

    models: tuple[Path, ...] = argument(
        "A B C …", "Two models or more; the first is the reference.", role=READS
    )
    method: tuple[str, ...] = option(
        (),
        "How to match: {methods}, or none; repeatable (wm).",
        kind="method",
        also=("-m",),
        role=PLAIN,
    )
    points: int = option(10, "Random points of the simplex to measure at.", min=0, max=MOST)
    once: bool = option(
        False, "Match all models once, not the first 2, 3 … anew (methods for many).", role=PLAIN
    )
    without_reference: bool = option(
        False,
        "Also measure the means without the first, which the others are matched to.",
        role=PLAIN,
    )
    sharpness: bool = option(False, "Also estimate tr(H ⊙ θθᵀ) of the models and every merge.", role=PLAIN)
    probes: int = option(10, "Random signs for --sharpness.", min=2, max=MOST)
    repair: str = again(
        Repair.repair, "auto", help="auto, none or reset (re-estimate BatchNorm statistics).", panel=""
    )
    full: bool = again(Data.full, False, help="All training samples, also for the reset.", panel="")
    report: Path | None = option(
        None,
        "Write HTML, Markdown, JSON and a PNG into this folder.",
        metavar="DIR",
        panel=REPORT,
        role=WRITES,
    )
    json: bool = again(Answer.json, False, help="Print the comparison as JSON.", panel=REPORT)
    json_file: Path | None = ReportFiles.json_file
    markdown: Path | None = option(
        None, "Write the comparison as Markdown.", metavar="FILE", panel=REPORT, role=WRITES
    )
    html: Path | None = ReportFiles.html
    prove: str = Proving.prove
    no_prove: bool = Proving.no_prove
    force: bool = Weights.force
    dry_run: bool = Answer.dry_run


@dataclass(frozen=True)
class CompareResult(Result):
    """How good the merges are, by every method: `measure.compared.Comparison`."""

    comparison: Comparison

    def values(self) -> dict[str, Any]:
        return dict(json.loads(self.json()))

    def json(self) -> str:
        return dump(self.comparison.to_dict())

    def document(self) -> Document:
        return formats.document(self.comparison)


def run(asked: Compare, listener: Listener = SILENT, ranks: Ranks = ALONE) -> CompareResult | Plan:
    """Compare merges of these models, the first of which is the reference, and write what was asked for.

    An option of a method is for those of the methods that have it. Raises as `barrier` does. Several `ranks`
    call this alike, and take turns with the batches.
    """
    methods = asked.method or ("wm",)
    if "auto" in methods and ranks.size > 1:
        listener.say(f"auto goes by the clock: the first of {ranks.size} processes compares, the others wait")
        return ranks.alone(run, asked, listener)
    subjects = subjects_of(replace(asked, method=methods))
    found = _compare(asked, methods, written_of(asked, listener), listener, subjects, ranks)
    return CompareResult(found) if isinstance(found, Comparison) else Plan(found)


def _compare(
    asked: Compare,
    methods: Sequence[str],
    written: report_files.Written,
    listener: Listener,
    subjects: Subjects,
    ranks: Ranks,
) -> Comparison | dict[str, Any]:
    """The comparison; of a dry run the plan."""
    paths = asked.models
    if len(paths) < 2:
        raise UsageError("comparing merges takes at least two models", hint="rebasin compare A B C …")
    if doubled := sorted({method for method in methods if list(methods).count(method) > 1}):
        raise UsageError(f"--method {doubled[0]} is given twice")
    searches = _searches(subjects.search, methods)
    session = Session("compare", paths, listener, replace(subjects, search=Search()), ranks=ranks)
    destinations = ranks.first(written.destinations, formats.FILENAMES, session.reads)
    options = {m: method_options.make(search, session.asked.data) for m, search in searches.items()}
    scores = session.scores
    repair = _repair(session)
    network = session.need_network()
    splits = session.open_splits("train", "test", *["reset"] * (repair == "reset"))
    plan = _plan(session, len(methods), asked) | plans.not_estimated(options.items())
    listener.say(plans.in_words(plan))
    sessions = {method: session.by(each) for method, each in searches.items()}
    if written.dry_run:
        largest = max(map(plans.of_search, sessions.values()), key=lambda one: one["peak_bytes"])
        return largest | {"method": ", ".join(methods)} | plan
    check_measured(session, splits)
    more = {"ranks": ranks}
    inputs = {m: search.inputs(each) | {"options": options[m]} | more for m, each in sessions.items()}
    moving = next((each for each in sessions.values() if each.moved), sessions[methods[0]])
    proof = prove(moving).account
    curved = {s: splits[s].subset(CURVED_SAMPLES, session.seed) for s in ("test", "train")}
    done = iter(range(1, plan["points"] + 1))
    found = comparison.compare(
        session.models,
        session.fitted,
        network=network,
        test=splits["test"],
        train=splits["train"],
        reset_batches=splits.get("reset"),
        methods=methods,
        repair_with=repair,
        points=asked.points,
        once=asked.once,
        without_reference=asked.without_reference,
        curved=curved if asked.sharpness else None,
        probes=asked.probes,
        seed=session.seed,
        scores=scores,
        loss=session.loss,
        output=session.output,
        device=session.device,
        check=endpoints.check(session),
        measured=lambda: listener.step("measuring", next(done), plan["points"], ""),
        align_options=inputs,
        progress=functools.partial(_show, listener),
    )
    notes = provenance.notes({k: v for k, v in splits.items() if k != "reset"}, proof)
    found = provenance.signed(
        found,
        session.models,
        splits["test"],
        proof=proof,
        command=written.command,
        full=session.asked.data.full,
        notes=notes,
    )
    told, values = formats.document(found), found.to_dict()
    ranks.last(report_files.write_document, told, destinations, force=written.force, values=values)
    return found


def _searches(search: Search, methods: Sequence[str]) -> dict[str, Search]:
    """The search by every method. Raises UsageError for a method or an option that there is not."""
    for method in methods:
        check_method(dataclasses.replace(search, method=method), or_none=True)
    each = method_options.for_those_that_have_them(search, list(methods))
    for found in each.values():
        file, known = method_options.start_file(found), method_options.start_option(found.method)
        if file is not None and known is not None:
            raise UsageError(
                f"{known.flag} {file} is for the second of two models",
                hint=f"Choose one of {', '.join(known.choices)}",
            )
    return each


def _repair(session: Session) -> str:
    """Statistics are reset, or nothing is repaired: other repairs are not compared. Raises UsageError."""
    how = repairs.planned(session, has_data=True).how
    how = "none" if how == "auto" else how
    if how not in comparison.REPAIRS:
        raise UsageError(f"--repair {how}: many models are compared with reset, or with none")
    return how


def _show(listener: Listener, method: str, state: matchers.State) -> None:
    listener.step(f"matching {method}", *progress.steps(state), progress.in_words(state))


def _plan(session: Session, methods: int, asked: Compare) -> dict[str, Any]:
    """As for a barrier: rows are the models as they are, and their mixtures."""
    splits: Splits = session.splits
    ends, mixed = comparison.points_to_measure(
        len(session.paths), methods, asked.points, without_reference=asked.without_reference
    )
    rows = {"the models": ends, "mixtures" + " + reset" * ("reset" in splits): mixed}
    sizes = {split: data.samples for split, data in splits.items()}
    a_sample = plans.seconds_a_sample(session, splits)
    read = (ends + mixed) * (sizes["train"] + sizes["test"]) + mixed * sizes.get("reset", 0)
    return {
        "rows": rows,
        "points": ends + mixed,
        "samples": sizes,
        "times": plans.estimated(None if a_sample is None else a_sample * read),
    }
