"""The repair of a job: which one, on which network and samples; what was done, for people and provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from ... import networks
from ... import repair as repairs
from ...checkpoints.tensors import replaced
from ...errors import DataError, NetworkError, UsageError
from ...matchers.search.align import Alignment
from ...networks.running import fed
from ...repair import Outcome, baking, choosing
from ...repair.costs import distillation_bytes
from ...repair.options import RIDGE, SAMPLES
from ...repair.producers import Site
from ...repair.repairing import few
from ...reports import _accounts as accounts
from . import provenance
from .job import Job
from .matching import nothing_to_run
from .method_options import trains
from .network import find_network, need_inputs
from .samples import Splits


@dataclass(frozen=True)
class Ready:
    """All that a repair needs, before an hour of searching: `how`, its `network` and its `splits`.

    `layer` gives the logits, where a temperature is to be baked into it.
    """

    how: str
    network: nn.Module | None = None
    splits: Splits = field(default_factory=dict)
    layer: Site | None = None

    @property
    def measured(self) -> bool:
        """Whether training samples are read for it."""
        return self.how not in ("none", "bias")


def prepare(job: Job, how: str, *, needed: bool = False) -> Ready:
    """Find what the repair `how` runs on.

    Where a choice is to be made ("auto") and its network or samples are not there, nothing is repaired; if
    the repair is `needed`, that is an error. Raises UsageError, NetworkError, DataError.
    """
    network, splits = None, {}
    if how == "auto" and not needed:
        network, splits = _if_there(job)
        how = "none" if network is None else how
    elif how != "none":
        network = job.need_network()
    bake = job.asked.repair.bake_temperature
    measured = how != "bias" and (needed or how != "none")
    wanted = [*["reset"] * measured, *["held"] * (bake or how == "auto")]
    if wanted and not splits:
        epoch = how == "reset" and trains(job.method)
        splits = job.open_splits(*wanted, choosing=how == "auto", epoch=epoch, fits=how)
    layer = None
    if bake:
        network = job.need_network()
        layer = baking.logits_layer(network, fed(network, splits["held"].example(), "cpu"), job.output)
    return Ready(how, network, splits, layer)


def _if_there(job: Job) -> tuple[nn.Module | None, Splits]:
    """The network and the samples to choose a repair by, as `--repair auto` does; says why where it cannot.

    Whose network it is must be known: tensors' names alone do not tell what is computed with them. What the
    user named must be there, what the checkpoints record may be missing.
    """
    why = "no network is known"
    try:
        network = job.network
        if job.network_is_assumed:
            network, why = None, "only the tensors' names tell the network (give yours with --net)"
    except NetworkError as error:
        if job.asked.network.net is not None:
            raise
        network, why = None, error.message
    if network is None:
        job.say(f"repair: --repair auto is none: {why}")
        return None, {}
    try:
        return network, job.open_splits("reset", "held", choosing=True)
    except DataError as error:
        if job.asked.data.data is not None:
            raise
        job.say(f"repair: --repair auto is none: {error.message}")
        return None, {}


def to_try(job: Job, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `inputs` of a search, with the repairs of the merge to come that it may choose from, too."""
    if not inputs:
        return inputs
    asked = job.asked.repair
    tried = repairs.open_to_choice(asked.repair, statistics=bool(job.fitted.statistics))
    return {**inputs, "repairs": tried, "ridge": asked.ridge}


def tries(job: Job) -> dict[str, Any]:
    """For a plan: the repairs that `auto` tries with every method."""
    if job.method != "auto" or nothing_to_run(job):
        return {}
    return {"repairs_tried": list(to_try(job, {"tries": True})["repairs"])}


def settled(job: Job, ready: Ready, found: Alignment | None) -> Ready:
    """What the repair needs that the search chose with its method; `ready` where it chose none."""
    how = found.result.repair if found is not None else None
    if how in (None, ready.how):
        return ready
    ready, took = prepare(job, how), found.result.repaired and found.result.repaired.repaired.samples
    if took and not job.asked.repair.bake_temperature:  # done again, for other weights: on as many samples
        fitted = job.open_splits("fitted")["fitted"]
        ready = replace(ready, splits={**ready.splits, "reset": few(fitted, how, took, seed=job.seed)})
    return ready


def done_already(job: Job, found: Alignment | None) -> Outcome | None:
    """What the search has repaired, and is taken as it is.

    None where a temperature is to be baked in: its samples may be among those that the search repaired on.
    """
    return None if found is None or job.asked.repair.bake_temperature else found.result.repaired


def finish(
    job: Job, ready: Ready, tensors: Mapping[str, Tensor], done: Outcome
) -> tuple[Mapping[str, Tensor], dict[str, Any], dict[str, Any]]:
    """Say what was repaired, and bake a temperature in where one was asked for.

    The tensors to write, what provenance records, and what the result of the command says.
    """
    options: dict[str, Any] = {"repair": done.repaired.method if done.repaired else "none"}
    if done.choice:
        job.say(f"repair: {choosing.in_words(done.choice)}")
        options["repair_choice"] = done.choice.account()
    if job.held_out is not None and "held" in job.splits:
        options["held_out"] = job.held_out.account(job.splits["held"].samples)
    if done.repaired:
        accounts.say_repair(job.say, done.repaired, ready.splits, asked=job.asked.repair.repair)
        if done.repaired.added:
            options["added"] = list(done.repaired.added)
    if ready.measured:
        on = ready.splits["reset"]
        options["repair_data"] = provenance.describe_data(on, full=job.asked.data.full)
        count = done.repaired.samples if done.repaired else None
        options["repair_data"] |= {"samples": count or on.samples, "device": job.device}
    if ready.how in SAMPLES:
        options["ridge"] = RIDGE if job.asked.repair.ridge is None else job.asked.repair.ridge
    baked = {}
    if ready.layer is not None:
        held = ready.splits["held"]
        found = baking.bake(ready.network, tensors, ready.layer, held, output=job.output, device=job.device)
        job.say(f"temperature: {found.in_words()}")
        tensors, baked = replaced(tensors, found.tensors), {"temperature": found.account()}
    return tensors, options | baked, accounts.describe_repair(done.repaired, done.choice) | baked


def plan(job: Job, how: str) -> dict[str, Any]:
    """The repair and, where a network is at hand, the layers that it would touch and those that it leaves.

    `how` may be "auto": then these are what "repair" would touch.
    """
    planned: dict[str, Any] = {"repair": how, **tries(job)}
    if how == "none":
        return planned
    network = find_network(
        job.fitted, job.asked.network, lambda text: None, named=job.asked.loading.spec is not None
    )
    if network is None:
        return planned
    if how == "reset":
        return planned | {"repair_layers": list(networks.running_norms(network))}
    try:
        inputs = need_inputs(network, job.asked.network, job.asked.data)
    except UsageError:  # it does not say what it takes
        return planned
    inputs = fed(network, inputs, "cpu", quiet=True)
    try:
        if how in SAMPLES:
            found = repairs.plan_refit(network, inputs)
            planned |= {"repair_layers": list(found.layers), "repair_left": dict(found.left)}
            return planned | {"repair_bytes": found.bytes + distillation_bytes(network) * (how == "distill")}
        match, new_bias = "repair" if how == "auto" else how, job.asked.repair.new_bias
        touched, left = repairs.layers_touched(network, inputs, match=match, new_bias=new_bias)
    except NetworkError as error:
        return planned | {"repair_left": {"the network": error.message}}
    return planned | {"repair_layers": list(touched), "repair_left": dict(left)}
