"""`rebasin curve`: train a curve between two models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..datasets.rotation import with_rotation
from ..errors import NetworkError, UsageError
from ..learning.curves import stored, training
from ..learning.curves.alternation import alternate
from ..learning.curves.curve import check_families
from ..learning.curves.stored import SUFFIX
from ..learning.setup import check_augmentation
from ..matchers import Problem, State
from ..measure import bounds
from ..networks.attacks import Attack
from ..registry.options import PLAIN, READS, again, argument, option
from ..registry.results import Plan, Result
from ..runtime import devices
from ..runtime.ranks import ALONE, Ranks
from ..runtime.seeds import derive
from ..session.asked import of, subjects_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, Output, Screen, Weights
from ..session.search_options import Interruptible, Method, Proving, Training
from ..session.session import Session
from ..session.subjects import SEARCH, Data, DataSet, Loading, Network, Scoring
from ..symmetry.elements import Elements
from ..symmetry.form import standing
from ..types import Tensors
from .verbs import outputs, plans, provenance, search, symmetries
from .verbs.outputs import check_outputs
from .verbs.proof import prove
from .verbs.ranks import check_measured
from .verbs.search import shown

PANEL = "Align and merge"
TOGETHER = True
TRAINED = "Training"  # the panel of what is said of the training


@dataclass(frozen=True, kw_only=True)
class Curve(Loading, Network, DataSet, Screen):
    """Train a curve of low loss from A to B, where the straight line has a barrier.

    `rebasin merge A B --curve FILE --at 0.5` writes a point of it as a checkpoint. Its ends are A, and B
    with its units permuted (--method none: B as it is).

    Processes that are started together share the steps: torchrun … -m rebasin_cli curve …

    Example: rebasin curve a.pt b.pt --data cifar10 --epochs 60 -o ab.curve.safetensors
    """

    a: Path = argument("A", "One end; the reference.", role=READS)
    b: Path = argument("B", "The other end, once it is aligned to A.", role=READS)
    out: Path = again(Output.out, Path("between.curve.safetensors"), ending=SUFFIX, shown=False)
    kind: str = option(
        "bezier", "bezier, or chain: straight lines that meet at the bends.", panel=TRAINED, role=PLAIN
    )
    bends: int = option(1, "Control points between the ends that are trained.", min=1, max=100, panel=TRAINED)
    epochs: int = again(Training.epochs, 60)
    learning_rate: float | None = Training.learning_rate
    weight_decay: float = again(Training.weight_decay, 0.0)
    schedule: str = option(
        "halving",
        "halving (twelve times over all epochs), cosine or constant.",
        panel=TRAINED,
        role=PLAIN,
    )
    batch_size: int = again(Training.batch_size, 128)
    augment: bool | None = Training.augment
    rotate: float | None = Training.rotate
    limit: int | None = Training.limit
    attack: str | None = Training.attack
    method: str | None = again(Method.method, None, help="How B is aligned: {methods}, or none (wm).")
    perm: Path | None = again(Method.perm, None, panel=SEARCH)
    rounds: int = option(
        1,
        "With pam: at most so many rounds of permutation and curve; they end where one lowers the loss by "
        "less than equation 46 asks for.",
        min=1,
        max=1_000,
        panel=SEARCH,
    )
    loss: str | None = Scoring.loss
    metric: tuple[str, ...] = Scoring.metric
    prove: str = Proving.prove
    no_prove: bool = Proving.no_prove
    checkpoint_every: int | None = Interruptible.checkpoint_every
    log: Path | None = Interruptible.log
    resume: bool = Interruptible.resume
    force: bool = Weights.force
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json


@dataclass(frozen=True)
class CurveResult(Result):
    """The curve's file (`written`), how B was aligned, in `times` of seconds, and what was trained.

    `curve` has its "kind", "bends" and "steps", the "loss" of the last epoch, and the "attack", where one was
    trained under; of several rounds (pam) what each came to, and whether they "converged".
    """

    written: list[str]
    spec: Mapping[str, Any]
    match: Mapping[str, Any]
    proof: Mapping[str, Any]
    times: Mapping[str, float]
    curve: Mapping[str, Any]


def run(asked: Curve, listener: Listener = SILENT, ranks: Ranks = ALONE) -> CurveResult | Plan:
    """Align B to A, train the control points of a curve between them, and write it.

    An interrupted training is kept beside the output, and goes on from there with `resume`. Several `ranks`
    call this alike, and share the steps; the first one keeps and writes.
    """
    if ranks.size > 1 and asked.method == "auto":
        listener.say(f"auto goes by the clock: the first of {ranks.size} processes does it, the others wait")
        return ranks.alone(run, asked, listener)
    how = of(asked, training.Training)  # whose limit is of what is trained on alone
    subjects = replace(subjects_of(asked), data=of(asked, Data, limit=None))
    output = outputs.Output(asked.out, asked.force, resume=asked.resume, dry_run=asked.dry_run)
    if not output.path.name.endswith(SUFFIX):
        raise UsageError(f"{output.path} is no name for a curve", hint=f"Use {output.path.stem}{SUFFIX}")
    _check_rounds(asked, how)
    session = Session("curve", [asked.a, asked.b], listener, subjects, perm=asked.perm, ranks=ranks)
    ranks.first(check_outputs, output, session.reads)
    search.check(session, output, or_none=True, steps=True)
    search.tell(session)
    network, fitted = session.need_network(), session.fitted
    of_given = session.of_given
    first, second = session.models
    check_families(first, second, dict(network.named_parameters()), fitted.ignored)
    data: Any = session.open_splits("match", match=None)["match"]
    if how.augment:
        check_augmentation(data)
    data = with_rotation(data, how.rotate)
    if output.dry_run:
        return Plan(plans.of_search(session) | _plan(session, data, how))
    if session.grouped and ranks.size > 1:
        raise UsageError("a curve along more than permutations is one process's", hint="Start it alone")
    check_measured(session, {"curve": data})
    inputs, proof = search.inputs(session), prove(session)
    options = _told(how) | {"batch_size": session.asked.data.batch_size}
    options |= {"rounds": asked.rounds} if asked.rounds > 1 else {}
    with search.resumable(session, output, options) as state:
        start, found = state.start, None
        if start is None:
            found = search.find(session, given=inputs)
            element = session.element(found)
        else:
            element = start.elements[0]
        show = shown(listener.step, start, what="training")

        def progress(reached: State) -> None:
            state.reached(reached)
            show(reached)

        problem = Problem(
            fitted,
            standing((first, second), fitted, (element,), session.folds),
            seed=derive(session.seed, "curve"),
            start=start,
            progress=progress,
            network=network,
            data=data,
            output=session.output,
            loss=session.loss,
            device=devices.own(session.device),
            ranks=ranks,
        )
        trained = training.train(problem, element, how)
        told: dict[str, Any] = {}
        if asked.rounds > 1:
            element, trained, told = _in_rounds(session, problem, element, trained, how, asked.rounds)

        def write() -> None:
            meta = provenance.of_session(
                session, options=options | of_given, proof=proof.account, like=session.models
            )
            form = symmetries.form_texts(fitted, session.folds) if session.grouped else None
            how_written: dict[str, Any] = {"form": form, "metadata": meta, "force": output.force}
            stored.save(output.path, how.kind, trained.controls, element, **how_written)

        ranks.last(write)
    told = {"kind": how.kind, "bends": how.bends, "steps": trained.steps} | told
    told |= {"attack": how.attack} if how.attack else {}
    if trained.losses:
        told |= {"loss": trained.losses[-1]}
    done = search.summary(session, found, proof, written=[str(output.path)])
    if found is None:  # before it was interrupted
        done["match"] = {"method": session.method}
    return CurveResult(**done, curve=told)


def _check_rounds(asked: Curve, how: training.Training) -> None:
    """Raise UsageError for rounds of what has none."""
    if asked.rounds == 1:
        return
    if asked.method != "pam" or asked.perm is not None:
        raise UsageError("--rounds alternates permutation and curve", hint="Add --method pam, without --perm")
    if (how.kind, how.bends) != ("bezier", 1):
        raise UsageError("--rounds are of a Bezier curve with one bend", hint="Leave --kind and --bends out")


def _in_rounds(
    session: Session,
    problem: Problem,
    element: Elements,
    trained: training.Trained,
    how: training.Training,
    rounds: int,
) -> tuple[Elements, training.Trained, dict[str, Any]]:
    """The rounds after the first, and what is told of them. An interrupted one begins anew."""
    network, own = session.need_network(), session.loss is not None

    def least(*points: Tensors) -> float:
        try:
            found = 0.0 if own else bounds.least_fall([bounds.layers_of(network, its) for its in points])
            return session.ranks.agree(found)
        except NetworkError:  # no bound is known: as long as the loss falls
            return 0.0

    show = shown(session.listener.step, what="training, later rounds")
    still = replace(problem, start=None, progress=show)  # what is kept stays the end of the first round
    found = alternate(still, element, trained, how, session.options, rounds=rounds - 1, least=least)
    told = {"rounds": [dataclasses.asdict(each) for each in found.rounds], "converged": found.converged}
    return found.element, found.trained, told


def _plan(session: Session, data: Any, how: training.Training) -> dict[str, Any]:
    """What is trained on how many samples, and the seconds of so many forward and backward passes."""
    samples = data.samples if how.limit is None else min(data.samples, how.limit)
    each = plans.seconds_a_sample(session, {"match": data})
    passes = 3 * (
        1 + (Attack.parse(how.attack).passes / 3 if how.attack else 0)
    )  # backward is two forward ones
    seconds = None if each is None else passes * each * samples * how.epochs
    return {"curve": _told(how), "samples": samples, "times": plans.estimated(seconds)}


def _told(how: training.Training) -> dict[str, Any]:
    """The options of a training; an attack and a rotation only where there is one."""
    every = dataclasses.asdict(how).items()
    return {name: value for name, value in every if value or name not in ("attack", "rotate")}
