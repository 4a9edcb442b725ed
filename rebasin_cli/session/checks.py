"""What is refused before a file is read or an hour is spent, as far as options alone can tell."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from .. import matchers, networks
from ..checkpoints import destination
from ..commands.verbs import resume
from ..commands.verbs.outputs import Output, check_distinct
from ..errors import UsageError, unknown
from ..matchers.search.align import check_groups as can_find_groups
from ..matchers.search.align import polish_of
from ..permutations import permutation
from ..repair import MATCHES
from ..repair.options import SAMPLES, check_ridge
from ..repair.repairing import settle
from ..runtime import files
from ..runtime.files import Inputs
from ..spec.spec import FittedSpec
from .subjects import Repair, Search

GROUPS = ("permutations", "all")


def check_method(search: Search, *, or_none: bool = False) -> None:
    """Raise UsageError for a method that there is not."""
    check_groups(search.groups)
    if search.groups != GROUPS[0] and search.method == "none":
        raise UsageError("--groups all is for a search, and --method none makes none")
    if search.groups != GROUPS[0] and search.method in matchers.registry.names():
        can_find_groups(search.method, options=search.options, polish=search.polish is not None)
    if search.polish is not None:
        polish_of(search.polish, search.method)
        if search.method == "none":
            raise UsageError(
                "--polish refines what a method found, and --method none finds nothing",
                hint="Choose one of: rebasin list methods",
            )
    if search.method == "none" and or_none:
        return
    if search.method == "none":
        raise UsageError("--method none leaves nothing to do", hint="Choose one of: rebasin list methods")
    known = [*matchers.registry.names(), *["none"] * or_none]
    if search.method not in known:
        raise unknown("method", search.method, known)


def check_groups(groups: str) -> None:
    """Raise UsageError for a choice of --groups that there is not."""
    if groups not in GROUPS:
        raise unknown("choice of --groups", groups, GROUPS)


def check_kept(search: Search, output: Output, inputs: Inputs, *, steps: bool) -> None:
    """Raise UsageError where a search's state or its `--log` would be one of the `inputs` or another output,
    and for a log of what takes no `steps`.

    OutputExists where a log is there already, unless it is overwritten or gone on with.
    """
    state = resume.state_path(output.path)
    files.check_output(state, inputs)
    if search.log is None:
        return
    if not steps:
        raise UsageError(f"--log: the method {search.method} takes no steps that could be logged")
    own = {"output": output.path, "permutation": permutation.beside(output.path), "state": state}
    own |= {} if output.attest is None else {"statement": output.attest}
    check_distinct([*own.items(), ("log", search.log)])
    if not output.resume:  # to overwrite the log of a search that can go on is no advice
        resume.check_no_search(state, force=output.force)
    destination.check_output(search.log, force=output.force or output.resume, text=True, inputs=inputs)


def settle_repair(fitted: FittedSpec, repair: Repair, *, has_data: bool, has_network: bool = True) -> str:
    """The repair of this network: "reset" where there are running statistics and data, unless told otherwise.

    There "repair" is "reset" too. "auto" stays where it is to be chosen by held-out loss: with data, and
    without running statistics. Raises UsageError for running statistics without data, whose average
    describes neither model, and for a repair that this network or a lack of data rules out.
    """
    how, statistics = repair.repair, bool(fitted.statistics)
    settled = settle(how, statistics=statistics, measurable=has_data)
    if repair.new_bias and how not in ("repair", "reshift"):
        raise UsageError("--allow-new-bias is for --repair repair or reshift")
    if repair.ridge is not None and how not in SAMPLES:
        raise UsageError("--ridge is for --repair refit or distill")
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
        return settled
    if how not in ("auto", "reset", "repair"):
        raise UsageError(
            f"--repair {how} is for networks without BatchNorm, and this one has its statistics",
            hint="Re-estimate them with --repair reset",
        )
    if not has_data:
        raise broken_statistics(has_network)
    return "reset"


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


def broken_statistics(has_network: bool, problems: Sequence[str] = ()) -> UsageError:
    """What to say where running statistics would be averaged, and cannot be measured anew.

    `has_network`: somebody names the network that they would be measured on.
    """
    return UsageError(
        "this network has BatchNorm statistics, and averaging them makes a broken model",
        problems=problems,
        hint=f"Re-estimate them with --data NAME{'' if has_network else ' and --net file.py:factory'}, "
        "or merge all the same with --repair none",
    )
