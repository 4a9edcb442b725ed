"""`rebasin plane`: loss and metrics over the plane through three models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.tensors import replaced
from ..errors import UsageError
from ..learning.curves import stored
from ..learning.curves.curve import Curve, shares
from ..matchers import State
from ..measure import planes
from ..measure.planes import Place
from ..registry.options import PLAIN, READS, WRITES, again, argument, option
from ..registry.results import NAMED, Plan, Result
from ..reports import accounts
from ..reports import plane as drawn
from ..reports.document import Document
from ..runtime.ranks import ALONE, Ranks
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import REPORT, Answer, ReportFiles, Screen, Weights
from ..session.search_options import Interruptible, Method, Methods, Proving
from ..session.session import Session
from ..session.subjects import Data, DataSet, Loading, Network, Samples, Scoring
from ..symmetry.elements import Elements
from ..types import Tensors
from ..version import version
from .merging.curved import between
from .verbs import endpoints, plans, provenance, report_files, search
from .verbs.outputs import Output, check_state
from .verbs.proof import prove
from .verbs.ranks import check_measured
from .verbs.report_files import Written, written_of
from .verbs.resume import Resumable, state_path

SCHEMA = "rebasin.plane/1"
FILENAMES = {"html": "plane.html", "json": "plane.json", "png": "plane.png"}
POINTS, CURVED = 25, 65  # in each direction; of a curve that is drawn
SAMPLES, RESET = 1_000, 512
SPLITS = ("test", "train")


PANEL = "Measure"
TOGETHER = True
FIGURES = True


@dataclass(frozen=True, kw_only=True)
class Plane(Loading, Network, DataSet, Samples, Scoring, Methods, Screen):
    """Draw loss and metrics over the plane through three models, and the paths between them.

    Distances in the picture are distances between weights. With BatchNorm, statistics are measured anew at
    every point. After Ctrl-C, --resume goes on with a plane that is written.

    Example: rebasin plane a.pt b.pt --data mnist --report plane/
    """

    a: Path = argument("A", "The first model; (0, 0) in the plane.", role=READS)
    b: Path = argument("B", "The second one.", role=READS)
    c: Path | None = argument(
        "[C]",
        "The third one; else the control point of the curve, or B once it is aligned to A.",
        default=None,
        role=READS,
    )
    method: str | None = again(
        Method.method,
        None,
        help="How B is aligned: {methods} (wm where nothing else is a third model).",
        panel="",
    )
    perm: Path | None = Method.perm
    curve: tuple[Path, ...] = option(
        (),
        "Draw this trained curve from A to B (rebasin curve); repeatable. The first one's control "
        "point is the third model.",
        metavar="FILE",
        role=READS,
    )
    points: int = option(POINTS, "Points in each direction.", metavar="N", min=3, max=999)
    split: str = option("test", "test or train: whose samples are measured on.", role=PLAIN)
    full: bool = again(
        Data.full, False, help="All samples of the split; else 1,000, or as --limit says.", panel=""
    )
    report: Path | None = option(
        None, "Write HTML, JSON and a PNG into this folder.", metavar="DIR", panel=REPORT, role=WRITES
    )
    json: bool = again(Answer.json, False, help="Print the figures as JSON.", panel=REPORT)
    plot: Path | None = option(None, "Draw the plane, as PNG.", metavar="FILE", panel=REPORT, role=WRITES)
    html: Path | None = ReportFiles.html
    json_file: Path | None = ReportFiles.json_file
    prove: str = Proving.prove
    no_prove: bool = Proving.no_prove
    resume: bool = Interruptible.resume
    force: bool = Weights.force
    dry_run: bool = Answer.dry_run


@dataclass(frozen=True)
class PlaneResult(Result):
    """Loss and metrics, by name, over a grid: a row for each of `y`, a column for each of `x`.

    `points` are the models that span the plane, with their places in it and their figures, `lines` and
    `curves` what is drawn into it; from `ceiling` on all losses are drawn alike.
    """

    schema: str
    rebasin: str
    command: str
    seed: int
    inputs: Sequence[Mapping[str, str]]
    spec: Mapping[str, Any]
    match: Mapping[str, Any]
    proof: Mapping[str, Any]
    data: Mapping[str, Any]
    points: Sequence[Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    curves: Sequence[Mapping[str, Any]]
    ceiling: float
    x: list[float]
    y: list[float]
    loss: list[list[float]]
    metrics: Mapping[str, list[list[float]]] = field(metadata=NAMED)
    measured: Mapping[str, Any]
    written: list[str] | None
    times: Mapping[str, float]

    def document(self) -> Document:
        return drawn.document(self.values())


def run(asked: Plane, listener: Listener = SILENT, ranks: Ranks = ALONE) -> PlaneResult | Plan:
    """Measure a grid of the plane through three models, and draw it.

    The third one is named, else it is the control point of the first curve, else the second one, aligned to
    the first. Curves are drawn into the plane, as they are seen from above it. Raises as `barrier` does.
    Several `ranks` call this alike, and take turns with the batches.
    """
    if asked.method == "auto" and ranks.size > 1:
        listener.say(f"auto goes by the clock: the first of {ranks.size} processes draws, the others wait")
        return ranks.alone(run, asked, listener)
    if asked.split not in SPLITS:
        raise UsageError(f"--split {asked.split}: there is test, and train")
    written, perm, curves = written_of(asked, listener), asked.perm, asked.curve
    settled = asked.c is not None or bool(curves) or perm is not None  # what the third one is
    named = "none" if asked.method is None and settled else asked.method
    paths = [asked.a, asked.b, *([asked.c] if asked.c is not None else [])]
    subjects = subjects_of(replace(asked, method=named))
    session = Session("plane", paths, listener, subjects, perm=perm, curves=curves, ranks=ranks)
    reads = session.reads.and_files([*curves])
    files = ranks.first(written.destinations, FILENAMES, reads)
    if written.resume and not files:
        raise UsageError("--resume: nothing is kept of a plane that is not written", hint="Name a --report")
    search.check(session, or_none=True)
    search.tell(session)
    _check(session, curves)
    if files:
        ranks.first(check_state, state_path(files[0][1]), "search", reads, again=True)
    trained = between(session, curves)
    network, statistics = session.need_network(), bool(session.fitted.statistics)
    splits = session.open_splits(asked.split, *["reset"] * statistics)
    shown = splits[asked.split]
    if session.asked.data.limit is None and not session.asked.data.full:
        shown = shown.subset(SAMPLES, session.seed)
    again = splits["reset"].subset(RESET, session.seed) if statistics else None
    plan = _plan(session, asked, shown, again)
    listener.say(plans.in_words(plan))
    if written.dry_run:
        return Plan(plans.of_search(session) | plan)
    check_measured(session, {asked.split: shown})
    inputs, proof = search.inputs(session), prove(session)
    found = search.find(session, given=inputs)
    names, models = _three(session.models, session.standing(found), trained)
    flat = planes.Plane.through(models, session.fitted)
    axes = flat.axes(asked.points)
    network = network.to(session.device)
    ends = [
        planes.score(model, network, shown, scores=session.scores, device=session.device) for model in models
    ]
    if asked.split == "test":
        session.splits["test"] = shown
        endpoints.check(session)({"test": ends[: len(session.models)]})
    with _kept(session, written, files, asked) as state:
        figures = _measured(
            session, flat, axes, shown, again, session.element(found), state, [*ends[0].figures]
        )
    made = PlaneResult(
        schema=SCHEMA,
        rebasin=version(),
        command=written.command,
        seed=session.seed,
        inputs=[{"file": str(m.path), "sha256": m.digest()} for m in session.models],
        spec=accounts.describe_spec(session.fitted),
        match=accounts.describe_match(found, given=perm is not None),
        proof=proof.account,
        data=provenance.describe_data(shown, full=session.asked.data.full)
        | {"split": asked.split, "samples": shown.samples, "reset": 0 if again is None else again.samples},
        points=[
            {"name": name, "x": x, "y": y, **end.figures}
            for name, (x, y), end in zip(names, flat.places, ends, strict=True)
        ],
        lines=_lines(names, flat, bool(trained)),
        curves=[_drawn(name, curve, flat) for name, curve in trained.items()],
        ceiling=_ceiling(figures[0], getattr(shown, "classes", None)),
        x=list(axes[0]),
        y=list(axes[1]),
        loss=figures[0].tolist(),
        metrics={key: grid.tolist() for key, grid in zip(ends[0].metrics, figures[1:], strict=True)},
        measured=accounts.describe_quantities(ends[0].quantities),
        written=[str(path) for _, path in files] or None,
        times=accounts.times(found),
    )
    document = made.document()
    ranks.last(report_files.write_document, document, files, force=written.force, values=made.values())
    return made


def _check(session: Session, curves: Sequence[Path]) -> None:
    """Raise UsageError for what names more than three models, or fewer."""
    if len(session.paths) == 3 and (session.moved or curves):
        what = "--perm" if session.perm else f"--method {session.method}" if session.moved else "--curve"
        raise UsageError(
            f"{what}: three models are a plane as they are",
            hint="Leave the third model out"
            + ("" if curves and not session.moved else ", or align it first: rebasin align A B"),
        )
    if len(session.paths) == 2 and not session.moved and not curves:
        raise UsageError(
            "two models are a line",
            hint="Name a third one, a curve (--curve), or a way to align B (--method)",
        )
    if curves and session.moved:
        what = "--perm" if session.perm else f"--method {session.method}"
        raise UsageError(f"{what}: a curve has its own permutation of B", hint="Leave one of the two out")


def _three(
    given: Sequence[Checkpoint],
    standing: Sequence[Tensors],
    trained: Mapping[str, Curve],
) -> tuple[tuple[str, str, str], tuple[Any, Any, Any]]:
    """The models that span the plane, with their names."""
    a, b, *third = given
    if third:
        return ("A", "B", "C"), (a, b, third[0])
    if not trained:
        return ("A", "B", "πB"), (standing[0], b, standing[1])
    name, first = next(iter(trained.items()))
    if len(first.controls) != 1:
        raise UsageError(
            f"a curve with {len(first.controls)} control points lies in no plane",
            hint="Give one that was trained with --bends 1",
        )
    end = "B" if "unaligned" in name else "πB"
    return ("A", end, "bend"), (first.a, first.b, replaced(a, first.controls[0]))


def _plan(session: Session, asked: Plane, shown: Any, again: Any) -> dict[str, Any]:
    """Points, samples and seconds."""
    points, splits = asked.points**2 + 3, {asked.split: shown}
    each = plans.seconds_a_sample(session, splits)
    samples = {asked.split: shown.samples} | ({} if again is None else {"reset": again.samples})
    return {
        "rows": {"the plane": points},
        "points": points,
        "samples": samples,
        "times": plans.estimated(None if each is None else each * points * sum(samples.values())),
    }


@contextmanager
def _kept(
    session: Session,
    written: Written,
    files: Sequence[tuple[str, Path]],
    asked: Plane,
) -> Iterator[Resumable]:
    """What was measured is kept beside the first file when it is interrupted; without any, nowhere."""
    if not files:
        yield Resumable()
        return
    data = session.asked.data
    options = {
        "points": asked.points,
        "split": asked.split,
        "full": data.full,
        "batch_size": data.batch_size,
        "loss": data.loss,
        "metric": list(data.metric) or None,
        "curves": [stored.load(path).digest for path in asked.curve],
    }
    output = Output(files[0][1], written.force, resume=written.resume)
    with search.resumable(session, output, options) as state:
        state.always = True
        yield state


def _measured(
    session: Session,
    flat: planes.Plane,
    axes: tuple[list[float], list[float]],
    shown: Any,
    again: Any,
    element: Elements,
    state: Resumable,
    names: Sequence[str],
) -> torch.Tensor:
    """The figures over the grid, those of an interrupted run among them."""
    total = len(axes[0]) * len(axes[1])
    known = state.start.tensors.get("figures") if state.start else None

    def reached(figures: torch.Tensor, done: int) -> None:
        state.reached(State((element,), done, 0.0, {}, {"figures": figures}))
        session.listener.step("measuring", done, total, "")

    return planes.measure(
        flat,
        session.need_network(),
        shown,
        axes,
        reset_batches=again,
        scores=session.scores,
        device=session.device,
        known=known,
        names=names,
        reached=reached,
    )


def _lines(names: Sequence[str], flat: planes.Plane, curved: bool) -> list[Mapping[str, Any]]:
    """The straight lines from the first model; to the control point of a curve there is none."""
    first, *others = flat.places
    ends = list(zip(names[1:], others, strict=True))[: 1 if curved else 2]
    return [{"name": f"{names[0]} to {name}", "points": [first, place]} for name, place in ends]


def _drawn(name: str, curve: Curve, flat: planes.Plane) -> dict[str, Any]:
    """A curve as it is seen in the plane, and how far from it its control points are at most."""
    places: list[Place] = []
    away = 0.0
    for model in (curve.a, *curve.controls, curve.b):
        place, off = flat.place(model)
        places, away = [*places, place], max(away, off)
    weights = [shares(curve.kind, k / (CURVED - 1), curve.points) for k in range(CURVED)]
    points = [
        tuple(math.fsum(w * place[axis] for w, place in zip(some, places, strict=True)) for axis in range(2))
        for some in weights
    ]
    return {"name": name, "points": points, "away": away}


def _ceiling(losses: torch.Tensor, classes: int | None) -> float:
    """The loss from which on all is drawn alike: twice that of a guess."""
    if classes and classes > 1:
        return 2 * math.log(classes)
    finite = losses[losses.isfinite()]
    return float(finite.max()) if len(finite) else 1.0
