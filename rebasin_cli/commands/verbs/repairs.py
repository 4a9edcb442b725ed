"""The repair of what was merged: which one, on which network and samples; the account of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from ... import networks
from ... import repair as repairs
from ...checkpoints.tensors import replaced
from ...errors import DataError, NetworkError, UsageError
from ...matchers.portfolio.align import Alignment
from ...networks.forward import fed
from ...networks.losses import Loss
from ...repair import MATCHES, Outcome, Repairs, choices, logit_scale
from ...repair.costs import distillation_bytes
from ...repair.options import RIDGE, SAMPLES, check_ridge
from ...repair.producers import Site
from ...repair.repair_steps import few, resolved
from ...reports import accounts
from ...session.listener import SILENT
from ...session.method_options import trains
from ...session.network import find_network, need_inputs
from ...session.samples import Splits
from ...session.search_options import Repair
from ...session.session import Session
from ...spec.spec import FittedSpec
from ...types import Tensors
from . import provenance, search
from .ranks import check_measured

OR_CHOOSE = "Leave it out, or name one of them"


@dataclass(frozen=True)
class RepairPlan:
    """Which repair a merged model gets, made once and passed on: `planned`, `opened`, `chosen` by a search.

    `how` is "none", one of `repair.REPAIRS`, or "auto" where held-out loss decides; `tried` are those that a
    search may choose from with its method. Once it is opened, `network` and `splits` are what it runs on, and
    `layer` gives the logits, where a temperature is to be baked into it. `done` is the repair that the search
    has done itself, which is taken as it is.
    """

    how: str
    tried: tuple[str, ...] = ()
    network: nn.Module | None = None
    splits: Splits = field(default_factory=dict)
    layer: Site | None = None
    done: Outcome | None = None

    @property
    def measured(self) -> bool:
        """Whether training samples are read for it."""
        return self.how not in ("none", "bias")


def planned(session: Session, *, has_data: bool | None = None) -> RepairPlan:
    """The repair as far as options, spec and data tell, before anything is opened for it.

    Raises UsageError as `decide` does, and for samples to choose by where no data is known.
    """
    there, asked = session.has_data if has_data is None else has_data, session.asked
    if session.held_out is not None and not there:
        raise UsageError(
            f"--held-out {session.held_out.text}: no data set is known", hint="Name one with --data NAME"
        )
    named = asked.network.net is not None or session.fitted.spec.net is not None
    how = decide(session.fitted, asked.repair, has_data=there, has_network=named)
    if session.chosen_by != "loss" and "auto" not in (how, session.method):
        raise UsageError(
            f"--choose {session.asked.data.choose}: nothing is chosen, since --repair is {how}",
            hint="Leave it out, or choose a method: --method auto",
        )
    statistics = bool(session.fitted.statistics)
    return RepairPlan(how, repairs.open_to_choice(asked.repair.repair, statistics=statistics))


def decide(fitted: FittedSpec, repair: Repair, *, has_data: bool, has_network: bool = True) -> str:
    """The repair of this network: "reset" where there are running statistics and data, unless told otherwise.

    There "repair" is "reset" too. "auto" stays where it is to be chosen by held-out loss: with data, and
    without running statistics. Raises UsageError for running statistics without data, whose average
    describes neither model, and for a repair that this network or a lack of data rules out.
    """
    how, statistics = repair.repair, bool(fitted.statistics)
    meant = resolved(how, statistics=statistics, measurable=has_data)
    if repair.new_bias and how not in ("repair", "reshift"):
        raise UsageError("--allow-new-bias is for --repair repair or reshift", hint=OR_CHOOSE)
    for flag, value in (("--ridge", repair.ridge), ("--repair-samples", repair.repair_samples)):
        if value is not None and how not in SAMPLES:
            raise UsageError(f"{flag} is for --repair refit or distill", hint=OR_CHOOSE)
    check_ridge(0 if repair.ridge is None else repair.ridge)
    if how == "none":
        return "none"
    if how in SAMPLES and not has_data:
        raise UsageError(
            f"--repair {how} fits layers on training samples, and no data set is known",
            hint="Name one with --data; samples need no labels, so any like those of the training do",
        )
    if not statistics or how in SAMPLES:
        if how == "reset":
            raise UsageError("--repair reset: this network has no running statistics to reset")
        if how in MATCHES and not has_data:
            raise UsageError(
                f"--repair {how} measures channels on training samples, and no data set is known",
                hint="Name one with --data, or choose --repair bias, which needs none",
            )
        return meant
    if how not in ("auto", "reset", "repair"):
        raise UsageError(
            f"--repair {how} is for networks without BatchNorm, and this one has its statistics",
            hint="Re-estimate them with --repair reset",
        )
    if not has_data:
        raise broken_statistics(has_network)
    return "reset"


def opened(session: Session, plan: RepairPlan, *, needed: bool = False) -> RepairPlan:
    """The plan with what its repair runs on.

    Where a choice is to be made ("auto") and its network or samples are not there, nothing is repaired; if
    the repair is `needed`, that is an error. Raises UsageError, NetworkError, DataError.
    """
    how, network = plan.how, None
    splits: Splits = {}
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
        layer = logit_scale.logits_layer(
            network, fed(network, splits["held"].example(), "cpu"), session.output
        )
    if splits:
        check_measured(session, splits)
    return replace(plan, how=how, network=network, splits=splits, layer=layer)


def _if_there(session: Session) -> tuple[nn.Module | None, Splits]:
    """The network and the samples to choose a repair by, as `--repair auto` does; says why where it cannot.

    What the user named must be there, what the checkpoints record may be missing.
    """
    try:
        why = search.no_network(session)
    except NetworkError as error:
        if session.asked.network.net is not None:
            raise
        why = error.message
    if not why:
        try:
            return session.network, session.open_splits("reset", "held", choosing=True)
        except DataError as error:
            if session.asked.data.data is not None:
                raise
            why = error.message
    session.say(f"repair: --repair auto is none: {why}")
    return None, {}


def to_try(plan: RepairPlan, asked: Repair, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `inputs` of a search, with the repairs of the merge to come that it may choose from, too."""
    return {**inputs, "repairs": plan.tried, "ridge": asked.ridge} if inputs else inputs


def not_shared(session: Session, plan: RepairPlan) -> str:
    """Why processes cannot share this repair; "" where they can."""
    if plan.how == "auto":
        return "--repair auto is not shared"
    return "a temperature is fitted by one process" if session.asked.repair.bake_temperature else ""


def tries(session: Session, plan: RepairPlan) -> dict[str, Any]:
    """For a plan: the repairs that `auto` tries with every method."""
    if session.method != "auto" or search.nothing_to_run(session):
        return {}
    return {"repairs_tried": list(plan.tried)}


def chosen(session: Session, plan: RepairPlan, found: Alignment | None) -> RepairPlan:
    """The plan with the repair that the search chose, and did, with its method, where it chose one.

    Where a temperature is to be baked in, the repair is done again: the samples for it may be among those
    that the search repaired on.
    """
    if found is None:
        return plan
    taken, bake = found.result.chosen, session.asked.repair.bake_temperature
    how, done = (None, None) if taken is None else (taken.repair, taken.repaired)
    if how is not None and how != plan.how:
        plan = opened(session, replace(plan, how=how))
        took = done.repaired.samples if done is not None and done.repaired is not None else None
        if took and not bake:  # done again, for other weights: on as many samples
            reset = few(session.open_splits("fitted")["fitted"], how, took, seed=session.seed)
            plan = replace(plan, splits={**plan.splits, "reset": reset})
    return replace(plan, done=None if bake else done)


def of(session: Session, plan: RepairPlan, endpoints: Sequence[Tensors]) -> Repairs:
    """The repair of the plan, which is one, for merges of these endpoints."""
    asked, inputs = session.asked, None
    if plan.how == "bias":  # which measures no samples
        inputs = need_inputs(session.need_network(), asked.network, asked.data)
    return Repairs(
        plan.how,
        endpoints,
        plan.splits.get("reset"),
        inputs,
        new_bias=asked.repair.new_bias,
        ridge=asked.repair.ridge,
        output=session.output,
        device=session.device,
        logits=Loss.of(session.loss).of_logits,
        scores=session.scores,
        named=bool(session.asked.data.loss or session.asked.data.metric),
        by=session.chosen_by,
        metrics=bool(asked.data.metric),
    )


def finish(
    session: Session, plan: RepairPlan, tensors: Mapping[str, Tensor], done: Outcome
) -> tuple[Mapping[str, Tensor], dict[str, Any], dict[str, Any]]:
    """Say what was repaired, and bake a temperature in where one was asked for.

    The tensors to write, what provenance records, and what the result of the command says.
    """
    options: dict[str, Any] = {"repair": done.repaired.method if done.repaired else "none"}
    if done.choice:
        session.say(f"repair: {choices.in_words(done.choice)}")
        options["repair_choice"] = done.choice.account()
    if session.held_out is not None and "held" in session.splits:
        options["held_out"] = session.held_out.account(session.splits["held"].samples)
    if done.repaired:
        accounts.say_repair(session.say, done.repaired, plan.splits, asked=session.asked.repair.repair)
        if done.repaired.added:
            options["added"] = list(done.repaired.added)
    if plan.measured:
        on = plan.splits["reset"]
        options["repair_data"] = provenance.describe_data(on, full=session.asked.data.full)
        count = done.repaired.samples if done.repaired else None
        options["repair_data"] |= {"samples": count or on.samples, "device": session.device}
    if plan.how in SAMPLES:
        options["ridge"] = RIDGE if session.asked.repair.ridge is None else session.asked.repair.ridge
    baked = {}
    if plan.layer is not None:
        held = plan.splits["held"]
        found = logit_scale.bake(
            session.need_network(), tensors, plan.layer, held, output=session.output, device=session.device
        )
        session.say(f"temperature: {found.in_words()}")
        tensors, baked = replaced(tensors, found.tensors), {"temperature": found.account()}
    return tensors, options | baked, accounts.describe_repair(done.repaired, done.choice) | baked


def describe(session: Session, plan: RepairPlan) -> dict[str, Any]:
    """The repair and, where a network is at hand, the layers that it would touch and those that it leaves.

    Of "auto" these are what "repair" would touch.
    """
    how, planned = plan.how, {"repair": plan.how, **tries(session, plan)}
    if how == "none":
        return planned
    network = find_network(
        session.fitted, session.asked.network, SILENT.say, named=session.asked.loading.spec is not None
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


def resets(repair: Repair, network: nn.Module) -> bool:
    """Whether a mean of models is to have its running statistics measured anew; for soups, which have data.

    Raises UsageError for repairs that would have to be measured for every try.
    """
    if repair.repair not in ("auto", "none", "reset") or repair.bake_temperature:
        raise UsageError(
            f"--soup: every try would need --repair {repair.repair} of its own",
            hint="Choose --repair reset or none, and repair the soup afterwards: rebasin repair",
        )
    there = networks.has_running_statistics(network)
    if repair.repair == "reset" and not there:
        raise UsageError("--repair reset: this network has no running statistics to reset")
    return there and repair.repair != "none"


def broken_statistics(has_network: bool) -> UsageError:
    """What to say where running statistics would be averaged, and cannot be measured anew.

    `has_network`: somebody names the network that they would be measured on.
    """
    return UsageError(
        "this network has BatchNorm statistics, and averaging them makes a broken model",
        hint=f"Re-estimate them with --data NAME{'' if has_network else ' and --net file.py:factory'}, "
        "or merge all the same with --repair none",
    )
