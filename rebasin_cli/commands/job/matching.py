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
from . import grouped, method_options, planning, provenance, resume, samples
from .models import read_permutation
from .network import origin, proof_inputs
from .outputs import Output
from .progress import shown
from .resume import Resumable

if TYPE_CHECKING:
    from .job import Job


def inputs_of(job: Job) -> dict[str, Any]:
    """What a method gets beside the models; {} where weights are enough. Raises UsageError, DataError."""
    method, polish = job.asked.search.method, job.asked.search.polish is not None
    if not polish and method_options.can_do_without(method) and (why := nothing_to_run(job)):
        job.say(f"method: {method} goes by weights alone: {why}")
        return {}
    check_needs(job)
    network = job.network
    count = getattr(matchers.registry.get(method), "SAMPLES", samples.MATCH_SAMPLES)
    say = (lambda text: None) if job.splits else job.say  # which data it is was told already
    data = samples.open_splits(job.models, job.asked.data, job.seed, say, wanted=["match"], match=count)[
        "match"
    ]
    job.look_at_inputs({"match": data}, network)
    found = {"network": network, "data": data, "prove": False} | job.outputs
    if job.held_out is not None:
        job.splits |= samples.open_splits(
            job.models, job.asked.data, job.seed, lambda text: None, wanted=["held"]
        )
        found["held"] = job.splits["held"]
    return found | ({"loss": samples.loss_of(job.asked.data)} if job.asked.data.loss else {})


def check_needs(job: Job) -> None:
    """Raise UsageError that names all that the search lacks, and the repair of the merge to come with it."""
    search = job.asked.search
    if not job.runs_network or (search.polish is None and method_options.can_do_without(search.method)):
        return
    repaired = job.command == "merge" and job.asked.repair.repair != "none"
    searching.check_needs(
        search.method,
        network=job.network is not None,
        data=job.has_data,
        polish=search.polish is not None,
        statistics=repaired and bool(job.fitted.statistics),
    )


def check_limit(job: Job) -> None:
    """Raise UsageError for a --limit of samples where nothing is looked at that it would limit."""
    search, repair = job.asked.search, job.asked.repair.repair
    if (limit := job.asked.data.limit) is None or repair in SAMPLES or search.method == "none":
        return
    why = "the permutation is given" if job.perm else f"--method {search.method} goes by weights alone"
    then = "choose a method that looks at samples, such as am or auto"
    if job.runs_network:
        alone = search.polish is None and method_options.can_do_without(search.method)
        if not alone or not (why := nothing_to_run(job)):
            return
        then = "name what is missing: --data NAME, --net file.py:factory"
    if job.command == "merge":
        measures = repair not in ("none", "bias") and job.has_data
        why += f", and repairs measure on {samples.RESET_SAMPLES:,} samples always" * measures
        then += ", or --repair refit or distill, which fit on so many"
    raise UsageError(f"--limit {limit} limits nothing: {why}", hint=f"Leave it out, or {then}")


def settled(job: Job) -> Job:
    """As `Job.settled`."""
    search = job.asked.search
    alone = job.perm is None and search.polish is None and search.groups == "permutations"
    if not (search.open and alone):
        return job
    if why := nothing_to_run(job):
        if job.has_data:
            job.say(f"method: wm, by weights alone: {why}")
        return job
    found = job.by(replace(search, method="auto", open=False))
    found.say(
        "method: auto, the best by held-out loss within about a minute of one core "
        f"(--budget {found.options.budget}); by weights alone, in seconds: --method wm"
    )
    return found


def nothing_to_run(job: Job) -> str:
    """Why a method that can do without network and data has to, "" where they are there.

    What the user named has to work; of what checkpoints record, and names tell, that is not asked.
    """
    if not job.has_data:
        return "no data set is known"
    try:
        if job.network is None:
            return "no network is known"
        if job.network_is_assumed:
            return "only the tensors' names tell the network (give yours with --net)"
        samples.open_splits(job.models, job.asked.data, job.seed, lambda text: None, wanted=["train"])
    except (NetworkError, DataError) as error:
        if job.asked.network.net is not None or job.asked.data.data is not None:
            raise
        return error.message
    return ""


def prove(job: Job) -> dict[str, Any]:
    """The account of the proof, or why there is none. Raises NotProven and NetworkError."""
    if not job.asked.search.prove:
        return {"status": "skipped", "reason": "--no-prove"}
    if not job.moved:
        return {"status": "skipped", "reason": "nothing was permuted"}
    if (network := job.network) is None:
        return accounts.describe_proof(None)
    inputs = proof_inputs(network, job.asked.network, job.asked.data, job.splits)
    proof = searching.prove_spec(network, job.fitted, inputs=inputs, seed=job.seed, **job.outputs)
    account = accounts.describe_proof(
        proof, "the network does not say its input: give --input SHAPE or --data"
    )
    whose = origin(network, job.fitted, job.models, job.asked.network)
    return account if proof is None else account | whose


@contextmanager
def resumable(job: Job, output: Output, more: Mapping[str, Any] | None) -> Iterator[Resumable]:
    """As `Job.resumable`."""
    identity = job.ranks.first(
        provenance.describe,
        job.command,
        job.models,
        job.fitted,
        method=job.asked.search.method,
        seed=job.seed,
        options=method_options.identity(job.asked.search, job.asked.data, job.asked.network)
        | dict(more or {}),
    )
    with resume.resumable(
        output.path,
        identity,
        job.fitted.words,
        within=job.fitted.within,
        resume=output.resume,
        say=job.say,
        ranks=job.ranks,
        every=job.asked.search.checkpoint_every,
        log=job.asked.search.log,
        force=output.force,
    ) as state:
        yield state


def first_state(job: Job) -> State | None:
    """As `Job.first_state`."""
    if (file := method_options.start_file(job.asked.search)) is None:
        return None
    option = method_options.declared(job.asked.search.method)[
        method_options.start_option(job.asked.search.method)
    ]
    if len(job.models) != 2:
        raise UsageError(
            f"{option.flag} {file} is for the second of two models, not of {len(job.models)}",
            hint=f"Choose one of {', '.join(option.choices)}",
        )
    return State((read_permutation(file, job.fitted)[0],))


def search(job: Job, state: Resumable, inputs: Mapping[str, Any] | None) -> searching.Alignment | None:
    """As `Job.search`."""
    if job.method in ("none", "given"):
        return None
    show = shown(job.listener.step, state.start)

    def progress(reached: State) -> None:
        if "polishing" not in reached.notes and "trying" not in reached.notes:  # these begin anew
            state.reached(reached)
        show(reached)

    found = searching.align(
        job.models,
        job.fitted,
        method=job.asked.search.method,
        seed=job.seed,
        options=job.options,
        start=state.start or job.first_state,
        progress=progress,
        polish=job.asked.search.polish,
        folds=job.folds,
        **(job.match_inputs() if inputs is None else inputs),
        device=devices.own(job.device),
        ranks=job.ranks,
    )
    if job.folds is not None and job.asked.search.prove:
        grouped.check_moved(job, found)
    for told in accounts.search_in_words(found.result):
        job.say(told)
    return found


def plan(job: Job) -> dict[str, Any]:
    """As `Job.plan`."""
    tries: dict[str, Any] = {}
    if job.method == "auto":
        able = not nothing_to_run(job)
        tries = planning.plan_trials(job.fitted, len(job.models), job.options.budget, able=able)
    return tries | planning.plan_search(
        job.models,
        job.fitted,
        job.method,
        proof=job.asked.search.prove,
        memory=job.asked.search.options.get("memory"),
        options=job.options,
        groups=job.asked.search.groups != "permutations",
    )


def summary(
    job: Job, found: searching.Alignment | None, proof: Mapping[str, Any], written: Sequence[str]
) -> dict[str, Any]:
    """As `Job.summary`."""
    return {
        "written": list(written),
        "spec": accounts.describe_spec(job.fitted),
        "match": accounts.describe_match(found, given=job.perm is not None),
        "proof": proof,
        "times": accounts.times(found, **job.took),
    }
