"""The library: align and merge tensors in memory (`measuring` has `barrier`). No files, no printing.

    import rebasin_cli
    aligned = rebasin_cli.align(a, b, "mlp")            # state dicts in
    aligned.tensors                                      # b, relabelled into a's basin
    merged = rebasin_cli.merge([a, b], "mlp").tensors
    report = rebasin_cli.barrier(a, b, network=net, train=train_batches, test=test_batches)

A spec is a built-in name, a path, a Spec, or None: found from the tensors' names and shapes. Batches are
any re-iterable of (inputs, targets).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import matchers, networks, permutation, repair
from .errors import SpecError, UsageError, unknown
from .matchers import MatchResult, Problem, State
from .merging import average, slerp
from .permutation import permuted
from .randomness import generator
from .ranks import ALONE, Ranks
from .spec import library
from .spec import prove as proving
from .spec.fitting import fit
from .spec.prove import Proof
from .spec.spec import FittedSpec, Spec
from .tensors import LazyTensors, plan_of

Tensors = Mapping[str, torch.Tensor]

INTERPOLATIONS = ("linear", "slerp")


@dataclass(frozen=True)
class Alignment:
    """`models`: all models, the first as it was, the others permuted, lazily; `tensors` is the last.

    `permutations` has one set per model after the first; `result` tells how the search went; `proof`
    is None where no network was given.
    """

    models: tuple[Tensors, ...]
    permutations: tuple[permutation.Permutations, ...]
    result: MatchResult
    fitted: FittedSpec
    proof: Proof | None
    method: str
    seconds: float

    @property
    def tensors(self) -> Tensors:
        return self.models[-1]


@dataclass(frozen=True)
class Merged:
    """`tensors` of the merged model, with the first model's names and dtypes; `repaired` norms."""

    tensors: Tensors
    alignment: Alignment | None
    repaired: int = 0


def resolve_spec(spec: str | Path | Spec | FittedSpec | None, models: Sequence[Tensors]) -> FittedSpec:
    """The spec fitted to the first model, after a look whether all models have the same tensors."""
    shapes = {name: shape for name, (_, shape) in plan_of(models[0]).items()}
    problems = [
        f"{name}  is {_show(shapes.get(name))} in model 1, {_show(other.get(name))} in model {k}"
        for k, model in enumerate(models[1:], start=2)
        for other in [{name: shape for name, (_, shape) in plan_of(model).items()}]
        for name in dict.fromkeys([*shapes, *other])
        if shapes.get(name) != other.get(name)
    ]
    if problems:
        raise SpecError("the models do not have the same architecture", problems=problems)
    if isinstance(spec, FittedSpec):
        return spec if spec.shapes == shapes else fit(spec.spec, shapes)
    if spec is None:
        return library.find(shapes)
    return fit(spec if isinstance(spec, Spec) else library.load(str(spec)), shapes)


def _show(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else "×".join(map(str, shape)) or "a scalar"


def align(
    *models_and_spec: Any,
    method: str = "wm",
    seed: int = 0,
    options: Any = None,
    network: nn.Module | None = None,
    inputs: Any = None,
    output: str | int | None = None,
    prove: bool = True,
    start: State | None = None,
    progress: Callable[[State], None] | None = None,
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> Alignment:
    """Permute models into the first one's basin: `align(reference, model, …, spec)`; a spec may be None.

    With `network` (and `prove`), the spec is proven on `inputs` (one batch; by default random ones of the
    network's `example_shape`); `output` picks one of several outputs by key or index. `options` is the
    method's own Options, `device` where it computes. `ranks` are processes that search together, each of
    which calls this alike. Inputs are untouched.

    Raises SpecError (also NotProven), UsageError, CheckpointError for weights that are not finite.

    >>> import torch, rebasin_cli
    >>> a = {"fc1.weight": torch.randn(8, 4), "fc2.weight": torch.randn(3, 8)}
    >>> order = torch.randperm(8)
    >>> b = {"fc1.weight": a["fc1.weight"][order], "fc2.weight": a["fc2.weight"][:, order]}
    >>> aligned = rebasin_cli.align(a, b, "two_layer").tensors
    >>> torch.equal(aligned["fc1.weight"], a["fc1.weight"])
    True
    """
    *models, spec = models_and_spec
    if isinstance(spec, Mapping):
        models, spec = [*models, spec], None
    if len(models) < 2:
        raise UsageError("aligning takes at least two models")
    fitted = resolve_spec(spec, models)
    module = matchers.registry.get(method)
    if torch.device(device).type == "mps":
        device = "cpu"  # mps has no float64, in which gains are measured
    proof = None
    if network is not None and prove:
        proof = prove_spec(network, fitted, inputs=inputs, output=output, seed=seed)
    problem = Problem(
        fitted, tuple(models), seed, progress=progress, network=network, device=device, ranks=ranks
    )
    began = time.perf_counter()
    result = _search(module, problem, options or module.Options(), start)
    seconds = time.perf_counter() - began
    for permutations in result.permutations:
        permutation.check(permutations, fitted.words, within=fitted.within)
    moved = [permuted(m, fitted, p) for m, p in zip(models[1:], result.permutations, strict=True)]
    return Alignment((models[0], *moved), result.permutations, result, fitted, proof, method, seconds)


def _search(module: Any, problem: Problem, options: Any, start: State | None) -> MatchResult:
    """One search over all models, or one per model for methods that take two.

    The state of the latter holds the finished models' permutations and, last, those of the current one.
    """
    if module.MANY or len(problem.models) == 2:
        return module.match(replace(problem, start=start), options)
    parts: list[MatchResult] = []
    begun = start.permutations if start else ()
    for k, model in enumerate(problem.models[1:]):
        last = k == len(begun) - 1
        finished = tuple(part.permutations[0] for part in parts)

        def report(state: State, finished: tuple = finished) -> None:
            problem.report(replace(state, permutations=(*finished, *state.permutations)))

        pair = replace(
            problem,
            models=(problem.models[0], model),
            start=State((begun[k],), start.sweep if last else 0, notes=start.notes if last else {})
            if k < len(begun)
            else None,
            progress=report,
        )
        part = module.match(pair, options)
        if k < len(begun) - 1:  # finished before the interruption: a search that max_sweeps ended would go on
            part = replace(part, permutations=(begun[k],))
        parts.append(part)
    return MatchResult(
        tuple(part.permutations[0] for part in parts),
        sum(part.objective_before for part in parts),
        sum(part.objective_after for part in parts),
        max(part.sweeps for part in parts),
        sum(part.solves for part in parts),
        all(part.converged for part in parts),
    )


def prove_spec(
    network: nn.Module,
    fitted: FittedSpec,
    *,
    inputs: Any = None,
    output: str | int | None = None,
    seed: int = 0,
) -> Proof | None:
    """Prove a spec on a network; None where there are neither inputs nor an `example_shape`."""
    inputs = networks.example_inputs(network, generator(seed, "prove inputs")) if inputs is None else inputs
    return None if inputs is None else proving.prove(network, fitted, inputs, output=output, seed=seed)


def merge(
    models: Sequence[Tensors],
    spec: str | Path | Spec | FittedSpec | None = None,
    *,
    method: str = "wm",
    weights: Sequence[float] | None = None,
    interpolation: str = "linear",
    permutations: Sequence[permutation.Permutations] | None = None,
    repair_with: str = "auto",
    network: nn.Module | None = None,
    train: Iterable[Any] | None = None,
    device: str = "cpu",
    **align_options: Any,
) -> Merged:
    """One model from several: align (`method`, "none" for none), average, repair.

    `weights` add up to 1 (default: equal). "slerp" takes two models. `permutations` takes the place of a
    search. `repair_with="reset"` re-estimates BatchNorm statistics on the batches of `train` and needs
    `network`; "auto" does so where the spec has statistics, "none" never: their average describes no model.
    Raises UsageError, SpecError, CheckpointError, DataError, NetworkError.
    """
    if interpolation not in INTERPOLATIONS:
        raise unknown("interpolation", interpolation, INTERPOLATIONS)
    if interpolation == "slerp" and len(models) != 2:
        raise UsageError(f"slerp joins two models, not {len(models)}")
    if repair_with not in ("auto", *repair.REPAIRS):
        raise unknown("repair", repair_with, ["auto", *repair.REPAIRS])
    if not models:
        raise UsageError("there are no models to merge")
    fitted = resolve_spec(spec, models)
    if repair_with == "auto":
        repair_with = "reset" if fitted.statistics else "none"
    if repair_with != "none" and (network is None or train is None):
        raise UsageError(
            "repair needs the network and training data: running statistics are measured anew",
            hint='Give `network` and `train`, or average them all the same with repair_with="none"',
        )
    if network is not None:
        networks.check(network, fitted.shapes)
    alignment = None
    if permutations is not None:
        if len(permutations) != len(models) - 1:
            raise UsageError(
                f"{len(permutations)} permutations for {len(models)} models; the first keeps its own"
            )
        for given in permutations:
            permutation.check(given, fitted.words, within=fitted.within)
        models = [models[0], *(permuted(m, fitted, p) for m, p in zip(models[1:], permutations, strict=True))]
    elif method != "none":
        alignment = align(*models, fitted, method=method, network=network, device=device, **align_options)
        models = alignment.models
    if interpolation == "slerp":
        weights = [0.5, 0.5] if weights is None else weights
        average(models, weights)  # the same checks
        tensors = slerp(*models, weights[1], keep=fitted.ignored)
    else:
        tensors = average(models, weights, keep=fitted.ignored)
    if repair_with == "none":
        return Merged(tensors, alignment)
    networks.load(network.to(device), tensors)
    count = repair.reset(network, train, device=device)
    measured = {
        f"{norm}.{name}".lstrip("."): tensor.to("cpu", copy=True)
        for norm, module in networks.running_norms(network).items()
        for name, tensor in module.named_buffers()
    }
    return Merged(_replaced(tensors, measured), alignment, count)


def _replaced(tensors: LazyTensors, by: Tensors) -> LazyTensors:
    """`tensors` with some replaced; names, order and dtypes stay."""

    def get(name: str) -> torch.Tensor:
        return by[name].to(tensors.dtypes[name]) if name in by else tensors[name]

    def part(name: str, start: int, stop: int) -> torch.Tensor:
        return get(name)[start:stop] if name in by else tensors.rows(name, start, stop)

    return LazyTensors(tensors.shapes, tensors.dtypes, get, part)
