"""`rebasin repair` on files: a merged checkpoint, mended after the fact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..checkpoints.tensors import replaced
from ..errors import SpecError, UsageError, unknown
from ..permutations.averages import interpolate
from ..permutations.permutation import permuted
from ..repair import REPAIRS, Repaired, baking, choosing, mending
from ..reports import _accounts as accounts
from ..runtime import devices
from ..spec.spec import FittedSpec
from . import deciding, intake, provenance, running, sampling
from .outputs import Output, check_outputs, write
from .settings import Settings
from .shared import Listener, bake

FAR = 1 / 3  # of the distance between the endpoints: units in another order are farther, repaired ones nearer


def repair(
    path: Path,
    endpoints: tuple[Path, Path],
    output: Output,
    settings: Settings,
    listener: Listener,
    *,
    share: float = 0.5,
    perm: Path | None = None,
) -> dict[str, Any]:
    """Repair the merged model in `path`, which lies at λ = `share` between `endpoints`, and write it.

    `perm` brings the second endpoint into the first one's basin, where it is not there yet. Raises SpecError
    where the merged model is not between the endpoints, and as `pipeline.merge` does. "auto" leaves the model
    as it is where its held-out loss is not less when repaired.
    """
    check_outputs(output)
    if settings.repair not in ("auto", *REPAIRS[1:]):
        raise unknown("repair", settings.repair, ["auto", *REPAIRS[1:]])
    if not 0 < share < 1:
        raise UsageError(f"--lambda {share:g} is not between the endpoints", hint="Choose one in 0–1: 0.5")
    device = devices.choose(settings.device)
    models = intake.read_models([path, *endpoints], settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    has_data = sampling.data_reference(models, settings) is not None
    how = deciding.choose_repair(fitted, settings, has_data=has_data)
    given, of_given = intake.read_permutation(perm, fitted) if perm else (None, {})
    merged, first, second = models
    aligned = permuted(second, fitted, given) if given else second
    check_between(merged, first, aligned, share, fitted)
    network = running.need_network(fitted, settings, listener.say)
    measured, auto = how != "bias", how == "auto"
    wanted = [*["reset"] * measured, *["held"] * (auto or settings.bake_temperature)]
    splits = (
        sampling.open_splits(models, settings, listener.say, wanted=wanted, choosing=auto) if wanted else {}
    )
    layer = None
    if settings.bake_temperature:
        layer = baking.logits_layer(network, splits["held"].example(), settings.output)
    choice = None
    if auto:
        choice, done, changed = mending.mend_if_better(
            network.to(device),
            merged,
            [first, aligned],
            weights=[1 - share, share],
            batches=splits["reset"],
            held=splits["held"],
            output=settings.output,
            device=device,
        )
        listener.say(f"repair: {choosing.in_words(choice)}")
        done = done or Repaired("none", ())
    else:
        done, changed = mending.mend(
            network.to(device),
            merged,
            [first, aligned],
            how,
            weights=[1 - share, share],
            new_bias=settings.new_bias,
            batches=splits.get("reset"),
            inputs=None if measured else running.need_inputs(network, settings),
            device=device,
        )
    if done.method != "none":
        accounts.tell_repair(listener.say, done, splits, asked=settings.repair)
    mended = replaced(merged, changed)
    tensors, baked = bake(network, mended, layer, splits.get("held"), settings, listener, device=device)
    options = {"lambda": share, "repair": done.method, "added": list(done.added)} | baked | of_given
    if choice is not None:
        options["repair_choice"] = choice.account()
    if measured:
        options["repair_data"] = provenance.describe_data(splits["reset"], full=settings.full)
        options["repair_data"] |= {"samples": splits["reset"].samples, "device": device}
    meta = provenance.describe(
        "repair", models, fitted, method=done.method, seed=settings.seed, options=options, like=models
    )
    written = write(output, tensors, merged, meta, added=done.added)
    account = accounts.describe_repair(done if done.method != "none" else None, choice)
    return {"written": written, "spec": accounts.describe_spec(fitted), **account, **baked}


def check_between(
    merged: Mapping[str, torch.Tensor],
    first: Mapping[str, torch.Tensor],
    second: Mapping[str, torch.Tensor],
    share: float,
    fitted: FittedSpec,
) -> None:
    """Raise SpecError where the merged model's units are not in the endpoints' order.

    Statistics of channels that have nothing to do with each other would be mixed. Repaired and spherical
    merges are near enough to the straight line.
    """
    line = interpolate(first, second, share)
    off = apart = 0.0
    for name in line:
        if name in fitted.ignored or name in fitted.statistics or not merged[name].is_floating_point():
            continue
        off += (merged[name].double() - line[name].double()).square().sum().item()
        apart += (first[name].double() - second[name].double()).square().sum().item()
    if off > FAR**2 * apart:
        raise SpecError(
            f"the merged model does not lie between the endpoints at λ = {share:g}: it is "
            f"{(off / apart) ** 0.5 if apart else float('inf'):.2f} of their distance away from there",
            hint="Give the permutation of B that was used (--perm FILE), or B as `rebasin align` wrote it",
        )
