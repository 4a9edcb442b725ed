"""What a search runs the network on, and the proof that comes before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import matchers
from ...errors import DataError, NetworkError, UsageError
from ...matchers import State
from ...matchers.search import align as searching
from ...repair.options import SAMPLES
from ...reports import _accounts as accounts
from ...runtime import devices
from ...session import method_options, samples
from ...session.models import read_permutation
from ...session.network import origin, proof_inputs
from . import groups as grouped
from . import plan as planning
from . import provenance, resume
from .outputs import Output
from .progress import shown
from .resume import Resumable

if TYPE_CHECKING:
    from ...session.session import Session


def inputs_of(session: Session) -> dict[str, Any]:
    """What a method gets beside the models; {} where weights are enough. Raises UsageError, DataError."""
    method, polish = session.asked.search.method, session.asked.search.polish is not None
    if not polish and method_options.can_do_without(method) and (why := nothing_to_run(session)):
        session.say(f"method: {method} goes by weights alone: {why}")
        return {}
    check_needs(session)
    network = session.network
    count = getattr(matchers.registry.get(method), "SAMPLES", samples.MATCH_SAMPLES)
    say = (lambda text: None) if session.splits else session.say  # which data it is was told already
    data = samples.open_splits(
        session.models, session.asked.data, session.seed, say, wanted=["match"], match=count
    )["match"]
    session.look_at_inputs({"match": data}, network)
    found = {"network": network, "data": data, "prove": False} | session.outputs
    if session.held_out is not None:
        session.splits |= samples.open_splits(
            session.models, session.asked.data, session.seed, lambda text: None, wanted=["held"]
        )
        found["held"] = session.splits["held"]
    return found | ({"loss": samples.loss_of(session.asked.data)} if session.asked.data.loss else {})


def check_needs(session: Session) -> None:
    """Raise UsageError that names all that the search lacks, and the repair of the merge to come with it."""
    search = session.asked.search
    if not session.runs_network or (search.polish is None and method_options.can_do_without(search.method)):
        return
    repaired = session.command == "merge" and session.asked.repair.repair != "none"
    searching.check_needs(
        search.method,
        network=session.network is not None,
        data=session.has_data,
        polish=search.polish is not None,
        statistics=repaired and bool(session.fitted.statistics),
    )


def check_limit(session: Session) -> None:
    """Raise UsageError for a --limit of samples where nothing is looked at that it would limit."""
    search, repair = session.asked.search, session.asked.repair.repair
    if (limit := session.asked.data.limit) is None or repair in SAMPLES or search.method == "none":
        return
    why = "the permutation is given" if session.perm else f"--method {search.method} goes by weights alone"
    then = "choose a method that looks at samples, such as am or auto"
    if session.runs_network:
        alone = search.polish is None and method_options.can_do_without(search.method)
        if not alone or not (why := nothing_to_run(session)):
            return
        then = "name what is missing: --data NAME, --net file.py:factory"
    if session.command == "merge":
        measures = repair not in ("none", "bias") and session.has_data
        why += f", and repairs measure on {samples.RESET_SAMPLES:,} samples always" * measures
        then += ", or --repair refit or distill, which fit on so many"
    raise UsageError(f"--limit {limit} limits nothing: {why}", hint=f"Leave it out, or {then}")


def settled(session: Session) -> Session:
    """As `Session.settled`."""
    search = session.asked.search
    alone = session.perm is None and search.polish is None and search.groups == "permutations"
    if not (search.open and alone):
        return session
    if why := nothing_to_run(session):
        if session.has_data:
            session.say(f"method: wm, by weights alone: {why}")
        return session
    found = session.by(replace(search, method="auto", open=False))
    found.say(
        "method: auto, the best by held-out loss within about a minute of one core "
        f"(--budget {found.options.budget}); by weights alone, in seconds: --method wm"
    )
    return found


def nothing_to_run(session: Session) -> str:
    """Why a method that can do without network and data has to, "" where they are there.

    What the user named has to work; of what checkpoints record, and names tell, that is not asked.
    """
    if not session.has_data:
        return "no data set is known"
    try:
        if session.network is None:
            return "no network is known"
        if session.network_is_assumed:
            return "only the tensors' names tell the network (give yours with --net)"
        samples.open_splits(
            session.models, session.asked.data, session.seed, lambda text: None, wanted=["train"]
        )
    except (NetworkError, DataError) as error:
        if session.asked.network.net is not None or session.asked.data.data is not None:
            raise
        return error.message
    return ""


def prove(session: Session) -> dict[str, Any]:
    """The account of the proof, or why there is none. Raises NotProven and NetworkError."""
    if not session.asked.search.prove:
        return {"status": "skipped", "reason": "--no-prove"}
    if not session.moved:
        return {"status": "skipped", "reason": "nothing was permuted"}
    if (network := session.network) is None:
        return accounts.describe_proof(None)
    inputs = proof_inputs(network, session.asked.network, session.asked.data, session.splits)
    proof = searching.prove_spec(network, session.fitted, inputs=inputs, seed=session.seed, **session.outputs)
    account = accounts.describe_proof(
        proof, "the network does not say its input: give --input SHAPE or --data"
    )
    whose = origin(network, session.fitted, session.models, session.asked.network)
    return account if proof is None else account | whose


@contextmanager
def resumable(session: Session, output: Output, more: Mapping[str, Any] | None) -> Iterator[Resumable]:
    """As `Session.resumable`."""
    identity = session.ranks.first(
        provenance.describe,
        session.command,
        session.models,
        session.fitted,
        method=session.asked.search.method,
        seed=session.seed,
        options=method_options.identity(session.asked.search, session.asked.data, session.asked.network)
        | dict(more or {}),
    )
    with resume.resumable(
        output.path,
        identity,
        session.fitted.words,
        within=session.fitted.within,
        resume=output.resume,
        say=session.say,
        ranks=session.ranks,
        every=session.asked.search.checkpoint_every,
        log=session.asked.search.log,
        force=output.force,
    ) as state:
        yield state


def first_state(session: Session) -> State | None:
    """As `Session.first_state`."""
    if (file := method_options.start_file(session.asked.search)) is None:
        return None
    option = method_options.declared(session.asked.search.method)[
        method_options.start_option(session.asked.search.method)
    ]
    if len(session.models) != 2:
        raise UsageError(
            f"{option.flag} {file} is for the second of two models, not of {len(session.models)}",
            hint=f"Choose one of {', '.join(option.choices)}",
        )
    return State((read_permutation(file, session.fitted)[0],))


def search(
    session: Session, state: Resumable, inputs: Mapping[str, Any] | None
) -> searching.Alignment | None:
    """As `Session.search`."""
    if session.method in ("none", "given"):
        return None
    show = shown(session.listener.step, state.start)

    def progress(reached: State) -> None:
        if "polishing" not in reached.notes and "trying" not in reached.notes:  # these begin anew
            state.reached(reached)
        show(reached)

    found = searching.align(
        session.models,
        session.fitted,
        method=session.asked.search.method,
        seed=session.seed,
        options=session.options,
        start=state.start or session.first_state,
        progress=progress,
        polish=session.asked.search.polish,
        folds=session.folds,
        **(session.match_inputs() if inputs is None else inputs),
        device=devices.own(session.device),
        ranks=session.ranks,
    )
    if session.folds is not None and session.asked.search.prove:
        grouped.check_moved(session, found)
    for told in accounts.search_in_words(found.result):
        session.say(told)
    return found


def plan(session: Session) -> dict[str, Any]:
    """As `Session.plan`."""
    tries: dict[str, Any] = {}
    if session.method == "auto":
        able = not nothing_to_run(session)
        tries = planning.plan_trials(session.fitted, len(session.models), session.options.budget, able=able)
    return tries | planning.plan_search(
        session.models,
        session.fitted,
        session.method,
        proof=session.asked.search.prove,
        memory=session.asked.search.options.get("memory"),
        options=session.options,
        groups=session.asked.search.groups != "permutations",
    )


def summary(
    session: Session, found: searching.Alignment | None, proof: Mapping[str, Any], written: Sequence[str]
) -> dict[str, Any]:
    """As `Session.summary`."""
    return {
        "written": list(written),
        "spec": accounts.describe_spec(session.fitted),
        "match": accounts.describe_match(found, given=session.perm is not None),
        "proof": proof,
        "times": accounts.times(found, **session.took),
    }
