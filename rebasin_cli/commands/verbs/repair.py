"""The repair of what was merged: which one, on which network and samples; the account of it."""

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
from ...session.method_options import trains
from ...session.network import find_network, need_inputs
from ...session.samples import Splits
from ...session.session import Session
from . import provenance
from .search import nothing_to_run


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


def prepare(session: Session, how: str, *, needed: bool = False) -> Ready:
    """Find what the repair `how` runs on.

    Where a choice is to be made ("auto") and its network or samples are not there, nothing is repaired; if
    the repair is `needed`, that is an error. Raises UsageError, NetworkError, DataError.
    """
    network, splits = None, {}
    if how == "auto" and not needed:
        network, splits = _if_there(session)
        how = "none" if network is None else how
    elif how != "none":
        network = session.need_network()
    bake = session.asked.repair.bake_temperature
    measured = how != "bias" and (needed or how != "none")
    wanted = [*["reset"] * measured, *["held"] * (bake or how == "auto")]
    if wanted and not splits:
        epoch = how == "reset" and trains(session.method)
        splits = session.open_splits(*wanted, choosing=how == "auto", epoch=epoch, fits=how)
    layer = None
    if bake:
        network = session.need_network()
        layer = baking.logits_layer(network, fed(network, splits["held"].example(), "cpu"), session.output)
    return Ready(how, network, splits, layer)


def _if_there(session: Session) -> tuple[nn.Module | None, Splits]:
    """The network and the samples to choose a repair by, as `--repair auto` does; says why where it cannot.

    Whose network it is must be known: tensors' names alone do not tell what is computed with them. What the
    user named must be there, what the checkpoints record may be missing.
    """
    why = "no network is known"
    try:
        network = session.network
        if session.network_is_assumed:
            network, why = None, "only the tensors' names tell the network (give yours with --net)"
    except NetworkError as error:
        if session.asked.network.net is not None:
            raise
        network, why = None, error.message
    if network is None:
        session.say(f"repair: --repair auto is none: {why}")
        return None, {}
    try:
        return network, session.open_splits("reset", "held", choosing=True)
    except DataError as error:
        if session.asked.data.data is not None:
            raise
        session.say(f"repair: --repair auto is none: {error.message}")
        return None, {}


def to_try(session: Session, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `inputs` of a search, with the repairs of the merge to come that it may choose from, too."""
    if not inputs:
        return inputs
    asked = session.asked.repair
    tried = repairs.open_to_choice(asked.repair, statistics=bool(session.fitted.statistics))
    return {**inputs, "repairs": tried, "ridge": asked.ridge}


def tries(session: Session) -> dict[str, Any]:
    """For a plan: the repairs that `auto` tries with every method."""
    if session.method != "auto" or nothing_to_run(session):
        return {}
    return {"repairs_tried": list(to_try(session, {"tries": True})["repairs"])}


def settled(session: Session, ready: Ready, found: Alignment | None) -> Ready:
    """What the repair needs that the search chose with its method; `ready` where it chose none."""
    how = found.result.repair if found is not None else None
    if how in (None, ready.how):
        return ready
    ready, took = prepare(session, how), found.result.repaired and found.result.repaired.repaired.samples
    if (
        took and not session.asked.repair.bake_temperature
    ):  # done again, for other weights: on as many samples
        fitted = session.open_splits("fitted")["fitted"]
        ready = replace(ready, splits={**ready.splits, "reset": few(fitted, how, took, seed=session.seed)})
    return ready


def done_already(session: Session, found: Alignment | None) -> Outcome | None:
    """What the search has repaired, and is taken as it is.

    None where a temperature is to be baked in: its samples may be among those that the search repaired on.
    """
    return None if found is None or session.asked.repair.bake_temperature else found.result.repaired


def finish(
    session: Session, ready: Ready, tensors: Mapping[str, Tensor], done: Outcome
) -> tuple[Mapping[str, Tensor], dict[str, Any], dict[str, Any]]:
    """Say what was repaired, and bake a temperature in where one was asked for.

    The tensors to write, what provenance records, and what the result of the command says.
    """
    options: dict[str, Any] = {"repair": done.repaired.method if done.repaired else "none"}
    if done.choice:
        session.say(f"repair: {choosing.in_words(done.choice)}")
        options["repair_choice"] = done.choice.account()
    if session.held_out is not None and "held" in session.splits:
        options["held_out"] = session.held_out.account(session.splits["held"].samples)
    if done.repaired:
        accounts.say_repair(session.say, done.repaired, ready.splits, asked=session.asked.repair.repair)
        if done.repaired.added:
            options["added"] = list(done.repaired.added)
    if ready.measured:
        on = ready.splits["reset"]
        options["repair_data"] = provenance.describe_data(on, full=session.asked.data.full)
        count = done.repaired.samples if done.repaired else None
        options["repair_data"] |= {"samples": count or on.samples, "device": session.device}
    if ready.how in SAMPLES:
        options["ridge"] = RIDGE if session.asked.repair.ridge is None else session.asked.repair.ridge
    baked = {}
    if ready.layer is not None:
        held = ready.splits["held"]
        found = baking.bake(
            ready.network, tensors, ready.layer, held, output=session.output, device=session.device
        )
        session.say(f"temperature: {found.in_words()}")
        tensors, baked = replaced(tensors, found.tensors), {"temperature": found.account()}
    return tensors, options | baked, accounts.describe_repair(done.repaired, done.choice) | baked


def plan(session: Session, how: str) -> dict[str, Any]:
    """The repair and, where a network is at hand, the layers that it would touch and those that it leaves.

    `how` may be "auto": then these are what "repair" would touch.
    """
    planned: dict[str, Any] = {"repair": how, **tries(session)}
    if how == "none":
        return planned
    network = find_network(
        session.fitted, session.asked.network, lambda text: None, named=session.asked.loading.spec is not None
    )
    if network is None:
        return planned
    if how == "reset":
        return planned | {"repair_layers": list(networks.running_norms(network))}
    try:
        inputs = need_inputs(network, session.asked.network, session.asked.data)
    except UsageError:  # it does not say what it takes
        return planned
    inputs = fed(network, inputs, "cpu", quiet=True)
    try:
        if how in SAMPLES:
            found = repairs.plan_refit(network, inputs)
            planned |= {"repair_layers": list(found.layers), "repair_left": dict(found.left)}
            return planned | {"repair_bytes": found.bytes + distillation_bytes(network) * (how == "distill")}
        match, new_bias = "repair" if how == "auto" else how, session.asked.repair.new_bias
        touched, left = repairs.layers_touched(network, inputs, match=match, new_bias=new_bias)
    except NetworkError as error:
        return planned | {"repair_left": {"the network": error.message}}
    return planned | {"repair_layers": list(touched), "repair_left": dict(left)}
