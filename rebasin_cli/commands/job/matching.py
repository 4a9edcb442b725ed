"""What a search runs the network on, and the proof that comes before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import matchers
from ...errors import DataError, NetworkError
from ...matchers.search import align as searching
from ...reports import _accounts as accounts
from . import method_options, samples
from .network import origin, proof_inputs

if TYPE_CHECKING:
    from .job import Job


def inputs_of(job: Job) -> dict[str, Any]:
    """What a method gets beside the models; {} where weights are enough. Raises UsageError, DataError."""
    method, polish = job.asked.search.method, job.asked.search.polish is not None
    if not polish and method_options.can_do_without(method) and (why := nothing_to_run(job)):
        job.say(f"method: {method} goes by weights alone: {why}")
        return {}
    network = job.network
    searching.check_needs(method, network=network is not None, data=job.has_data, polish=polish)
    count = getattr(matchers.registry.get(method), "SAMPLES", samples.MATCH_SAMPLES)
    say = (lambda text: None) if job.splits else job.say  # which data it is was told already
    data = samples.open_splits(job.models, job.asked.data, job.seed, say, wanted=["match"], match=count)[
        "match"
    ]
    found = {"network": network, "data": data, "output": job.output, "prove": False}
    if job.held_out is not None:
        found["held"] = samples.open_splits(
            job.models, job.asked.data, job.seed, lambda text: None, wanted=["held"]
        )["held"]
    return found | ({"loss": samples.loss_of(job.asked.data)} if job.asked.data.loss else {})


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
    proof = searching.prove_spec(network, job.fitted, inputs=inputs, output=job.output, seed=job.seed)
    account = accounts.describe_proof(
        proof, "the network does not say its input: give --input SHAPE or --data"
    )
    whose = origin(network, job.fitted, job.models, job.asked.network)
    return account if proof is None else account | whose
