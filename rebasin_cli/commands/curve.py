"""`rebasin curve` on files: train a curve between two models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Unpack

from ..curves import stored, training
from ..curves.curve import check_families
from ..errors import UsageError
from ..matchers import Problem, State
from ..networks.attacks import Attack
from ..networks.training_setup import check_augmentation
from ..permutations.permutation import identity, permuted
from ..runtime.seeds import derive
from ..session.listener import SILENT, Listener
from ..session.samples import loss_of
from ..session.session import Session
from ..session.subjects import ForSearch
from .verbs import plans, provenance, search
from .verbs.outputs import Output, check_outputs
from .verbs.progress import shown
from .verbs.proof import prove


def curve(
    a: Path,
    b: Path,
    output: Output,
    listener: Listener = SILENT,
    *,
    how: training.Training = training.Training(),  # noqa: B008 (frozen)
    perm: Path | None = None,
    **subjects: Unpack[ForSearch],
) -> dict[str, Any]:
    """Align B to A, train the control points of a curve between them, and write it.

    An interrupted training is kept beside the output, and goes on from there with `output.resume`.
    """
    if not output.path.name.endswith(stored.SUFFIX):
        raise UsageError(
            f"{output.path} is no name for a curve", hint=f"Use {output.path.stem}{stored.SUFFIX}"
        )
    session = Session("curve", [a, b], listener, **subjects, perm=perm)
    check_outputs(output, session.reads)
    search.check(session, output, or_none=True, steps=True)
    network, fitted, (given, of_given) = session.need_network(), session.fitted, session.given
    first, second = session.models
    check_families(first, second, dict(network.named_parameters()), fitted.ignored)
    data = session.open_splits("match", match=None)["match"]
    if how.augment:
        check_augmentation(data)
    if output.dry_run:
        return plans.of_search(session) | _plan(session, data, how)
    inputs, proof = search.inputs(session), prove(session)
    options = {k: v for k, v in dataclasses.asdict(how).items() if k != "attack" or v}
    options |= {"batch_size": session.asked.data.batch_size}
    with search.resumable(session, output, options) as state:
        start, found = state.start, None
        if start is None:
            found = search.find(session, given=inputs)
            permutations = found.permutations[0] if found else given or identity(fitted.words)
        else:
            permutations = start.permutations[0]
        show = shown(listener.step, start, what="training")

        def progress(reached: State) -> None:
            state.reached(reached)
            show(reached)

        problem = Problem(
            fitted,
            (session.models[0], permuted(session.models[1], fitted, permutations)),
            seed=derive(session.seed, "curve"),
            start=start,
            progress=progress,
            network=network,
            data=data,
            output=session.output,
            loss=loss_of(session.asked.data),
            device=session.device,
        )
        trained = training.train(problem, permutations, how)
        meta = provenance.of_session(
            session, options=options | of_given, proof=proof.account, like=session.models
        )
        stored.save(output.path, how.kind, trained.controls, permutations, metadata=meta, force=output.force)
    told = {"kind": how.kind, "bends": how.bends, "steps": trained.steps}
    told |= {"attack": how.attack} if how.attack else {}
    if trained.losses:
        told |= {"loss": trained.losses[-1]}
    return search.summary(session, found, proof, written=[str(output.path)]) | {"curve": told}


def _plan(session: Session, data: Any, how: training.Training) -> dict[str, Any]:
    """What is trained on how many samples, and the seconds of so many forward and backward passes."""
    samples = data.samples if how.limit is None else min(data.samples, how.limit)
    each = plans.seconds_a_sample(
        session.need_network(), {"match": data}, output=session.output, device=session.device
    )
    passes = 3 * (
        1 + (Attack.parse(how.attack).passes / 3 if how.attack else 0)
    )  # backward is two forward ones
    seconds = None if each is None else passes * each * samples * how.epochs
    told = {name: value for name, value in dataclasses.asdict(how).items() if name != "attack" or value}
    return {"curve": told, "samples": samples, "times": plans.estimated(seconds)}
