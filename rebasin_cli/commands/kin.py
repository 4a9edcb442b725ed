"""`rebasin kin`: is one model derived from another?"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import Checkpoint
from ..errors import DataError, UsageError, unknown
from ..measure import kin as measure
from ..measure.kin import DERIVED, NO_EVIDENCE
from ..measure.kin.columns import Relabelled
from ..measure.kin.orders import InPlace
from ..measure.kin.sampled import VALUES
from ..registry.options import READS, again, argument, option
from ..registry.results import IN_JSON_ONLY, UNSET, Plan, Result, Unset
from ..reports import Gate, accounts, verdicts
from ..reports import kin as told
from ..reports.document import Document
from ..reports.formats import html
from ..reports.github import told_as_one
from ..reports.verdicts import GateResult
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.models import named_alike, naming
from ..session.outcomes import Answer, ReportFiles, Screen, Weights
from ..session.session import Session
from ..session.subjects import DataSet, Loading, Network
from .verbs import needs, plans, report_files

PANEL = "Measure"
FIGURES = True
ON = {"derived": DERIVED, "no-evidence": (NO_EVIDENCE,)}  # what --fail-on may say, and the verdicts
# Commands whose outputs hold units in an order that was chosen by looking at another model, or may do
MOVED = ("align", "apply", "merge", "repair", "canon")


@dataclass(frozen=True, kw_only=True)
class Kin(Loading, Network, DataSet, Screen):
    """Is B derived from A: fine-tuned, pruned, rounded, partly merged, even relabelled? With exact p-values.

    Without --data it is asked where B's units stand; with it also of copies in another order. A common
    ancestor is found, one initialisation among them, and never who copied whom. Exit code 0 unless --fail-on.

    Example: rebasin kin a.safetensors b.safetensors
    """

    COMMON = ("data", "reference", "alpha", "fail_on", "json")

    a: Path = argument("A", role=READS)
    b: Path = argument("B", role=READS)
    reference: tuple[Path, ...] = option(
        (), "A model known to be apart from A: ρ gets a rank among them; repeatable.", metavar="C", role=READS
    )
    alpha: float = option(0.001, "p at which a test says derived.", min=1e-9, max=0.5)
    draws: int = option(999, "Orders drawn: p is at least 1/(N+1).", metavar="N", min=19, max=1_000_000)
    fail_on: str | None = option(
        None,
        "Exit code 1 where the verdict is derived, or is no evidence.",
        choices=("derived", "no-evidence"),
        gate=True,
    )
    html: Path | None = again(ReportFiles.html, None, panel="")
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json
    force: bool = Weights.force


@dataclass(frozen=True, kw_only=True)
class KinResult(Result):
    """The `verdict`, "derived in place", "derived relabelled", "no evidence" or "undecided", and `why`.

    `in_place` and `relabelled` are the two tests: "p", "z" (in standard deviations), "draws", the "tensors"
    compared, and "why" where there is no exact test; None where there was none. Of the second one also how
    many "columns" were compared, and how many "samples" of the data were read. `effect` has ρ ("rho", −1–1),
    what it is like ("as"), ρ of the references and its "rank" among them (0–1), and ρ of copies whose units
    were "rotated". `left_out` says of each
    tensor that was not compared why, `read` is how many bytes of A and B were compared. `notes` are
    sentences.
    """

    files: list[str]
    spec: Mapping[str, Any]
    verdict: str
    why: str
    alpha: float
    seed: int
    in_place: Mapping[str, Any] | None
    relabelled: Mapping[str, Any] | None
    effect: Mapping[str, Any]
    left_out: Mapping[str, str] = field(metadata=IN_JSON_ONLY)
    read: int = field(metadata=IN_JSON_ONLY)
    notes: list[str]
    gates: list[Mapping[str, Any]] | Unset = UNSET

    def document(self) -> Document:
        return told.document(self.values())

    @property
    def _found(self) -> Sequence[GateResult]:
        return () if isinstance(self.gates, Unset) else verdicts.of_values(self.gates)

    def warnings(self) -> Sequence[Any]:
        return () if told_as_one() else self._found  # else the run tells

    def end(self) -> None:
        verdicts.raise_unmet(self._found)


def run(asked: Kin, listener: Listener = SILENT) -> KinResult | Plan:
    """Test whether B is derived from A, measure ρ, and write a page where one is asked for.

    The spec is fitted to A; what B lacks of it, or has in another shape, is left out and told. Models are
    read as far as they are compared.
    """
    subjects = subjects_of(asked)
    subjects = dataclasses.replace(subjects, data=dataclasses.replace(subjects.data, full=True))
    if asked.fail_on is not None and asked.fail_on not in ON:
        raise unknown("--fail-on", asked.fail_on, ON)
    measure.check_alpha(asked.alpha, asked.draws)
    begun = Session("kin", [asked.a, asked.b, *asked.reference], listener, subjects)
    if asked.html is not None:
        report_files.check_files([("html", asked.html)], begun.reads, force=asked.force)
    models = named_alike(begun.paths, begun.opened, listener.say)
    session = begun.over(models[:1], subjects)
    notes: list[str] = []
    if asked.dry_run:
        plans.look(session)
        return Plan(
            {"spec": session.fitted.spec.name} | plans.of_models(models, needs.of_compared(models, VALUES))
        )
    with naming(begun.paths):
        fitted = session.fitted
        data = _data(session, notes)
        found = measure.kin(
            models[0],
            models[1],
            fitted,
            data=data,
            references=models[2:],
            aligned=_recorded(models[:2]),
            alpha=asked.alpha,
            draws=asked.draws,
            seed=session.seed,
        )
    gates: list[Mapping[str, Any]] | Unset = UNSET
    if asked.fail_on is not None:
        gates = [dataclasses.asdict(_gate(asked.fail_on, found.verdict))]
    made = KinResult(
        files=[str(asked.a), str(asked.b)],
        spec=accounts.describe_spec(fitted),
        verdict=found.verdict,
        why=found.why,
        alpha=asked.alpha,
        seed=session.seed,
        in_place=_place(found.in_place),
        relabelled=_columns(found.relabelled),
        effect={
            "rho": found.effect,
            "as": found.as_what,
            "references": dict(
                zip(map(str, asked.reference), found.references, strict=bool(found.references))
            ),
            "rank": found.rank,
            "rotated": found.rotated,
        },
        left_out=dict(found.left_out),
        read=found.read,
        notes=[*found.notes, *notes],
        gates=gates,
    )
    if asked.html is not None:
        page = html.page(told.document(made.values(), listener.command or "rebasin kin"))
        report_files.write_files([(asked.html, page)], force=asked.force)
    return made


def _data(session: Session, notes: list[str]) -> Any:
    """All training samples; None where none are named, nor recorded and there. What is named has to work."""
    if not session.has_data:
        return None
    try:
        return session.open_splits("train")["train"]
    except (DataError, UsageError) as error:
        if session.asked.data.data is not None:
            raise
        notes.append(f"The data that A records were not read: {error.message}.")
        return None


def _recorded(models: Sequence[Checkpoint]) -> str:
    """Which of both has an order that was chosen by looking at another model, as far as it says so."""
    return next(
        (
            f"{model.path} was written by rebasin {made}"
            for model in models
            if (made := model.metadata.get("rebasin.command")) in MOVED
            and model.metadata.get("rebasin.method") != "none"
        ),
        "",
    )


def _place(found: InPlace | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "p": found.p,
        "z": found.z,
        "draws": found.draws,
        "closed_form": found.closed,
        "tensors": dict(zip(found.tensors, found.cosines, strict=True)),
        "equal": list(found.same),
        "held": dict(found.held),
    }


def _columns(found: Relabelled | None) -> dict[str, Any] | None:
    if found is None:
        return None
    figures = {"p": found.p, "z": found.z, "draws": found.draws, "columns": found.columns}
    figures["samples"] = found.samples
    return {**figures, "tensors": list(found.tensors), "why": found.why}


def _gate(fail_on: str, verdict: str) -> Gate:
    failed = verdict in ON[fail_on]
    told = f"the verdict is {verdict}"
    return Gate(f"--fail-on {fail_on}", float(failed), 0.0, not failed, told, "another verdict")
