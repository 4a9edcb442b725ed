"""The whole story, one verb a line: files in, permutations found, files and reports out.

Start here. Each function is one command; `intake` reads, `api` and `measuring` think, `writing` writes. To
align and to merge is told below, the rest where it is imported from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import api
from ..permutations import permutation
from ..repair import baking, choosing
from ..reports import _accounts as accounts
from ..runtime import devices
from ..runtime.ranks import ALONE, Ranks
from . import deciding, intake, planning, provenance, running, sampling, searching
from .outputs import Output, appearing, check_outputs, permutation_path, write
from .reporting import barrier, evaluate
from .settings import Settings
from .shared import Listener, bake, describe, find_and_prove, keep_search, summary
from .train import train

__all__ = ["align", "barrier", "evaluate", "merge", "train"]


def align(
    reference: Path,
    model: Path,
    output: Output,
    settings: Settings,
    listener: Listener,
    *,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Permute `model` into the basin of `reference`; write it, and the permutation beside it.

    Several `ranks` call this alike: the first one checks, proves and writes, all read and search.
    """
    perm_path = permutation_path(output.path)
    ranks.first(check_outputs, output, perm_path)
    ranks.each(deciding.check_method, settings)
    ranks.each(searching.matcher_options, settings)
    ranks.first(searching.check_log, settings, output, [reference, model])
    device = devices.choose(settings.device)
    models = ranks.each(intake.read_models, [reference, model], settings, listener.say, ranks)
    fitted = ranks.each(intake.fit_spec, models, settings, listener.say)
    ranks.check_same(searching.facts(models, fitted, settings) if ranks.size > 1 else {})
    if output.dry_run:
        return planning.plan_search(models, fitted, settings.method, **searching.planned(settings))
    evidence = ranks.each(searching.find_evidence, models, fitted, settings, listener.say)
    proof = ranks.first(find_and_prove, fitted, models, settings, listener)
    with keep_search("align", models, fitted, output, settings, listener, ranks) as kept:
        place = devices.own(device)
        found = searching.search(
            models, fitted, settings, kept, listener.step, evidence=evidence, device=place, ranks=ranks
        )

        def finish() -> list[str]:
            meta = describe(
                "align",
                models,
                fitted,
                settings,
                options=searching.started(found),
                proof=proof,
                like=models[1:],
                results=True,
            )
            with appearing(perm_path) as beside:
                permutation.save(beside, found.permutations[0], metadata=meta)
                return write(output, found.tensors, models[0], meta)

        written = ranks.last(finish)
    return summary(fitted, accounts.describe_match(found), proof, written=[*written, str(perm_path)])


def merge(
    paths: Sequence[Path],
    output: Output,
    settings: Settings,
    listener: Listener,
    *,
    reference: Path | None = None,
    weights: Sequence[float] | None = None,
    interpolation: str = "linear",
    perm: Path | None = None,
) -> dict[str, Any]:
    """Align all models to the reference (the first), average them, mend statistics; write one model."""
    check_outputs(output)
    paths, weights = deciding.reference_first(paths, reference, weights)
    deciding.check_merge(len(paths), weights, interpolation, given=perm is not None)
    deciding.check_method(settings, or_none=True)
    searching.matcher_options(settings)
    searching.check_log(settings, output, paths)
    device = devices.choose(settings.device)
    models = intake.read_models(paths, settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    has_data = sampling.data_reference(models, settings) is not None
    repair = deciding.choose_repair(fitted, settings, has_data=has_data)
    given, of_given = intake.read_permutation(perm, fitted) if perm else (None, {})
    method = "given" if given else settings.method
    if output.dry_run:
        plan = planning.plan_search(models, fitted, method, **searching.planned(settings))
        return plan | planning.plan_repair(fitted, repair, settings)
    network, splits = None, {}
    if repair == "auto":
        network, splits = sampling.find_choice(models, fitted, settings, listener.say)
        repair = "none" if network is None else repair
    elif repair != "none":
        network = running.need_network(fitted, settings, listener.say)
    if network is None and settings.prove and method != "none":
        network = running.find_network(fitted, settings, listener.say)
    measured = repair not in ("none", "bias")  # on training samples
    wanted = [*["reset"] * measured, *["held"] * settings.bake_temperature]
    if wanted and not splits:
        epoch = repair == "reset" and searching.trains(method)
        splits = sampling.open_splits(models, settings, listener.say, wanted=wanted, epoch=epoch)
    layer = None
    if settings.bake_temperature:
        network = network or running.need_network(fitted, settings, listener.say)
        layer = baking.logits_layer(network, splits["held"].example(), settings.output)
    say = (lambda text: None) if splits else listener.say  # told already
    evidence = {} if given else searching.find_evidence(models, fitted, settings, say, network)
    proof = searching.prove(network, fitted, models, settings, splits=splits, permuted=method != "none")
    with keep_search("merge", models, fitted, output, settings, listener) as kept:
        found = None
        if method not in ("none", "given"):
            found = searching.search(
                models, fitted, settings, kept, listener.step, evidence=evidence, device=device
            )
        merged = api.merge(
            found.models if found else models,
            fitted,
            method="none",
            weights=weights,
            interpolation=interpolation,
            permutations=[given] if given else None,
            repair_with=repair,
            new_bias=settings.new_bias,
            network=network,
            train=splits.get("reset"),
            held=splits.get("held"),
            inputs=running.need_inputs(network, settings) if repair == "bias" else None,
            output=settings.output,
            device=device,
        )
        if merged.choice:
            listener.say(f"repair: {choosing.in_words(merged.choice)}")
            repair = merged.choice.chosen
        if merged.repair:
            accounts.tell_repair(listener.say, merged.repair, splits, asked=settings.repair)
        options = {"weights": list(weights or []), "interpolation": interpolation, "repair": repair}
        if merged.repair and merged.repair.added:
            options["added"] = list(merged.repair.added)
        if merged.choice:
            options["repair_choice"] = merged.choice.account()
        if measured:
            options["repair_data"] = provenance.describe_data(splits["reset"], full=settings.full)
            options["repair_data"] |= {"samples": splits["reset"].samples, "device": device}
        tensors, baked = bake(
            network, merged.tensors, layer, splits.get("held"), settings, listener, device=device
        )
        options |= baked | of_given | searching.started(found)
        meta = describe(
            "merge", models, fitted, settings, method=method, options=options, proof=proof, like=models
        )
        added = merged.repair.added if merged.repair else ()
        written = write(output, tensors, models[0], meta, added=added)
    match = accounts.describe_match(found, given=given is not None)
    return summary(fitted, match, proof, written=written) | {
        "models": len(models),
        **accounts.describe_repair(merged.repair, merged.choice),
        **baked,
    }
