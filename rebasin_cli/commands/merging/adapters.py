"""Adapters of low rank averaged as what they add to their base: no mean of factors, no full matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...averages.kinship import equal_values
from ...averages.low_rank import Best, Rank, best, distance
from ...averages.weights import checked
from ...checkpoints import adapters as files
from ...checkpoints import destination, peft
from ...checkpoints.adapters import Adapter, Module
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.tensors import LazyTensors, plan_of
from ...errors import SpecError, UsageError
from ...runtime.text import some
from ...session.models import tell_notes
from ...session.session import Session
from ..verbs import provenance
from ..verbs.folders import placed
from ..verbs.outputs import Output, write_as_planned
from . import bases
from .average import Average

WORST = 3  # modules that are told


def asked(paths: Sequence[Path]) -> bool:
    """Whether one of these is an adapter: then all have to be."""
    return any(map(files.is_adapter, paths))


def check(session: Session, mean: Average, output: Output) -> None:
    """Raise UsageError for what is asked of full models alone, and for other than one weight an adapter."""
    asked = session.asked
    checked(mean.numbers, len(session.paths), any_sum=True)
    given: dict[str, Any] = {
        "--heads": mean.heads,
        "--soup": mean.soup,
        "--perm": mean.perm,
        "--curve": mean.curve,
        "--copy-from": mean.copy_from,
        "--ignore": mean.ignore,
        "--learnt": mean.learnt,
        "--extra": mean.extra != "error",
        "--interpolation": mean.interpolation != "linear",
        "--data": asked.data.data,
        "--net": asked.network.net,
        "--spec": asked.loading.spec,
        "--repair": asked.repair.repair not in ("auto", "none"),
        "--new-bias": asked.repair.new_bias,
        "--bake-temperature": asked.repair.bake_temperature,
        "--resume": output.resume,
        "--copy-files": mean.copy_files and mean.base is None,
        "--out-shard-size": output.shard_size and mean.base is None,
        "--rank": mean.rank and mean.base is not None,
    }
    if session.asked.search.method != "none":
        raise UsageError(
            f"--method {session.asked.search.method}: adapters have no units of their own to match",
            hint="Average what they add to their base: rebasin average A/ B/ -o merged/",
        )
    if unfit := [option for option, there in given.items() if there]:
        of = "a model with adapters in it" if mean.base else "adapters"
        raise UsageError(f"{', '.join(unfit)}: not for {of}", hint="Leave it out")


def placed_output(output: Output, paths: Sequence[Path], base: Path | None) -> Output:
    """Where the adapter, or the model, is written. Raises UsageError for a peft adapter in a file."""
    if base is not None:
        return placed(output, base)
    if all(peft.config_beside(path) is None for path in paths):
        return (
            output if output.folder is None else replace(output, path=output.folder / files.file_of(paths[0]))
        )
    folder = output.folder or output.path
    if output.folder is None and folder.suffix:
        raise UsageError(
            f"{folder}: an adapter is a folder, with {peft.CONFIG} beside its weights",
            hint=f"Name one: -o {folder.with_suffix('')}/",
        )
    # its content is made later: that it will be there is checked now
    return replace(output, folder=folder, path=folder / peft.WEIGHTS, copies={peft.CONFIG: b""})


def merge(session: Session, output: Output, mean: Average) -> dict[str, Any]:
    """Average adapters and write one, or their base with the sum; what was done, as values.

    Raises SpecError where they are more than factors, or not of one base, CheckpointError for values that are
    no numbers, UsageError for sums beyond float64.
    """
    weights, rank = checked(mean.numbers, len(session.paths), any_sum=True), Rank.parse(mean.rank)
    adapters = opened(session.paths, session.opened, skip=session.asked.data.skip_checks)
    base = None if mean.base is None else bases.opened(session, mean.base, adapters)
    for adapter in adapters:
        tell_notes(adapter.path, adapter.weights, session.say)
        adapter.weights.look(name=str(adapter.path))
    session.say(f"weights: {some([f'{a.path} {w:.4g}' for a, w in zip(adapters, weights, strict=True)], 20)}")
    options: dict[str, Any] = {"weights": weights, "rank": mean.rank or "full"}
    account: dict[str, Any] = {
        "models": len(adapters),
        "method": "none",
        "weights": {str(a.path): round(w, 6) for a, w in zip(adapters, weights, strict=True)},
    }
    if len(account["weights"]) < len(adapters):
        account["weights"] = [round(weight, 6) for weight in weights]
    names = [*dict.fromkeys(name for adapter in adapters for name in adapter.modules)]
    account["adapted_modules"] = len(names)
    if base is not None:
        tensors = bases.onto(base, adapters, weights)
        around, models = base.model, [base.model, *(adapter.weights for adapter in adapters)]
        options |= {"base": base.model.digest()}
    else:
        dtype = output.dtype
        tensors, found = _summed(adapters, weights, rank, names, dtype, session)
        around, models = adapters[0].weights, [adapter.weights for adapter in adapters]
        account |= found
        if adapters[0].config is not None:
            config = peft.config_of([adapter.config or {} for adapter in adapters], found["ranks"])
            output = replace(output, copies={peft.CONFIG: config})
        output = replace(output, dtype=None)  # which the factors have already
    size = sum(math.prod(shape) * tensors.dtypes[name].itemsize for name, shape in tensors.shapes.items())
    if output.dry_run:
        return account | {"written_bytes": size}
    meta = provenance.describe(
        "merge", models, None, method="none", seed=session.seed, options=options, like=models[:1]
    )
    if output.folder is None:
        destination.check_space(output.path.parent, size)
    written = write_as_planned(output, tensors, meta, around=around, say=session.say)
    return {"written": written} | account


# -------------------------------------------------------------------------------------- what is put together

NAMED = (  # which base, as peft's configuration and the metadata of sd-scripts say it
    *("base_model_name_or_path", "revision"),
    *("ss_base_model_version", "ss_sd_model_hash", "ss_new_sd_model_hash"),
)


def _no_adapter(path: Path, weights: Checkpoint) -> str:
    others = files.beyond_factors(weights)
    if others:
        return f"has tensors beside its factors: {some(others, 3)}"
    if others == []:
        return "has factors, and is no .safetensors file, as those of sd-scripts are: convert it first"
    if any(part.startswith("lora_") for name in weights for part in name.split(".")):
        return (
            f"has factors and no {peft.CONFIG}, which says their scale: copy it from where they were trained"
        )
    return f"is a model, no adapter: add adapters to it with --base {path}"


def opened(paths: Sequence[Path], models: Sequence[Checkpoint], *, skip: bool) -> list[Adapter]:
    """The adapters that these models are, all of one base, unless it is to `skip` that.

    Raises SpecError with all that makes them more than factors of low rank that can be added.
    """
    adapters, problems = [], []
    for path, weights in zip(paths, models, strict=True):
        if not files.is_adapter(path):
            problems.append(f"{path}  {_no_adapter(path, weights)}")
            continue
        adapter, wrong = files.read(weights)
        adapters.append(adapter)
        problems += [f"{path}  {problem}" for problem in wrong]
    first = adapters[0]
    for other in adapters[1:]:
        if other.form != first.form:
            problems.append(f"{other.path}  is {other.form}, {first.path} is {first.form}")
        elif not skip:
            problems += _other_base(first, other)
        problems += _other_shapes(first, other)
        for name in dict.fromkeys((*first.whole, *other.whole)):
            if not (name in first.weights and name in other.weights):
                problems.append(f"{name}  is saved whole in one of {first.path} and {other.path} alone")
            elif not name.endswith(files.DORA) and not _same(first.weights, other.weights, name):
                problems.append(
                    f"{name}  is saved whole, with other values in {other.path} than {first.path}"
                )
    if problems:
        error = SpecError(
            "these adapters cannot be averaged as factors of low rank"
            if len(paths) > 1
            else "this adapter is more than factors of low rank",
            problems=problems,
            hint="Take one of them: each prompt was learnt for itself"
            if any((adapter.config or {}).get("peft_type") in peft.PROMPTS for adapter in adapters)
            else "Merge each into its base (with peft: model.merge_and_unload()), and average what that is",
        )
        error.most = 40
        raise error
    return adapters


def _other_base(first: Adapter, other: Adapter) -> list[str]:
    """What two adapters say of their bases that differs; of names what one lacks is no difference."""
    told = []
    for key in (*NAMED, "layer_replication", "ensure_weight_tying"):
        one, two = (
            (adapter.config or {}).get(key) or adapter.weights.metadata.get(key) or None
            for adapter in (first, other)
        )
        named = key in NAMED
        if one != two and not (named and None in (one, two)):
            is_in = f"{one!s:.100} in {first.path}, {two!s:.100} in {other.path}"
            told.append(f"{key}  is {is_in} (one model? --skip-checks)")
    return told


def _other_shapes(first: Adapter, other: Adapter) -> list[str]:
    told = []
    for name in first.modules.keys() & other.modules.keys():
        shapes = [adapter.shape(name) for adapter in (first, other)]
        kinds = [adapter.modules[name].embedding for adapter in (first, other)]
        if shapes[0] != shapes[1] or kinds[0] != kinds[1]:
            one, two = ("×".join(map(str, shape)) for shape in shapes)
            told.append(f"{name}  adapts {one} in {first.path}, {two} in {other.path}")
    return sorted(told)


def _same(one: Checkpoint, other: Checkpoint, name: str) -> bool:
    alike = one.shapes[name] == other.shapes[name] and one.dtypes[name] == other.dtypes[name]
    return alike and equal_values(one[name], other[name])


# ----------------------------------------------------------------------------------------------- one adapter


def _summed(
    adapters: Sequence[Adapter],
    weights: Sequence[float],
    rank: Rank,
    names: Sequence[str],
    dtype: torch.dtype | None,
    session: Session,
) -> tuple[LazyTensors, dict[str, Any]]:
    """The tensors of one adapter, held, and what is to be told of them."""
    made: dict[str, Tensor] = {}
    sizes: dict[str, float] = {}
    errors: dict[str, float] = {}
    ranks: dict[str, int] = {}
    largest = 0
    alphas = any(module.alpha for adapter in adapters for module in adapter.modules.values())
    for k, name in enumerate(names, start=1):
        owner = next(adapter for adapter in adapters if name in adapter.modules)
        module = owner.modules[name]
        factors, summed = bases.parts(adapters, weights, name)
        largest = max(largest, summed)
        try:
            found = best(factors, rank)
        except OverflowError:
            raise UsageError(f"{name}: the weighted sum is beyond the range of float64") from None
        stored = _stored(owner, module, found, dtype)
        made |= stored
        rounded = stored[module.up].double().flatten(1), stored[module.down].double().flatten(1)
        sizes[name], ranks[name], errors[name] = found.size, found.rank, distance(rounded, factors)
        if alphas:
            stem = module.down[: module.down.rindex(".lora")]
            made[stem + files.ALPHA] = torch.tensor(float(found.rank))
        session.listener.step("adapters", k, len(names), name)
    for name in adapters[0].whole:
        made[name] = adapters[0].weights[name]
    whole, error = math.hypot(*sizes.values()), math.hypot(*errors.values())
    if not math.isfinite(whole + error):
        raise UsageError("the weighted sum is beyond the range of float64")
    if not whole:
        session.say("warning: what the adapters change cancels out: the one that is written adds nothing")
    relative = {name: _over(its, sizes[name]) for name, its in errors.items()}
    worst = sorted(relative, key=lambda name: -relative[name])[:WORST]
    tensors = LazyTensors.of(plan_of(made), lambda name, take: take(made))
    return tensors, {
        "summed_rank": largest,
        "rank": max(ranks.values()),
        "relative_error": _over(error, whole),
        "worst": {name: relative[name] for name in worst},
        "ranks": ranks,
    }


def _over(error: float, size: float) -> float:
    return error / size if size else 0.0


def _stored(adapter: Adapter, module: Module, found: Best, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The factors as an adapter has them: its names, its dtypes unless one is asked for, its kernels."""
    up, down = found.factors
    shapes, dtypes = adapter.weights.shapes, adapter.weights.dtypes
    tensors = {
        module.down: down.reshape(found.rank, *adapter.shape(module.name)[1:]),
        module.up: up.reshape(len(up), found.rank, *shapes[module.up][2:]),
    }
    stored = {}
    for name, tensor in tensors.items():
        stored[name] = tensor.to(dtype or dtypes[name])
        if not bool(stored[name].isfinite().all()):
            told = str(dtype or dtypes[name]).removeprefix("torch.")
            raise UsageError(
                f"{name} would hold more than {told} does",
                hint="Choose --out-dtype float64, or smaller weights",
            )
    return stored
