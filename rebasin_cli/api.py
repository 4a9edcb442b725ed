"""The library: align, merge and measure tensors in memory. No files, no printing.

    import rebasin_cli
    aligned = rebasin_cli.align(a, b, "mlp")            # state dicts in
    aligned.tensors                                      # b, relabelled into a's basin
    merged = rebasin_cli.merge([a, b], "mlp").tensors
    mean = rebasin_cli.average([a, b])                   # as they are, without a spec
    report = rebasin_cli.barrier(a, b, network=net, train=train_batches, test=test_batches)

A spec is a built-in name, a path, a Spec, or None: found from the tensors' names and shapes. Batches are
any re-iterable of (inputs, targets).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import networks
from .averages import weights as schedules
from .averages.means import INTERPOLATIONS, check_interpolation
from .averages.names import agreed
from .averages.parts import parts_of
from .averages.tensors import combined
from .averages.weights import parse
from .checkpoints.tensors import Model, Values, as_given, named, plain
from .errors import UsageError
from .matchers import State
from .matchers.portfolio import align as searching
from .matchers.portfolio.align import Alignment
from .measure.report import barrier
from .networks.evaluation import evaluate
from .networks.losses import Loss
from .repair import Outcome, Repaired, Repairs
from .repair.choices import Choice
from .repair.means import repaired_mean
from .repair.repair_steps import few, open_to_choice, resolved
from .runtime.ranks import ALONE, Ranks
from .spec.library import resolve_words
from .spec.spec import FittedSpec, Spec
from .symmetry import elements as acts
from .symmetry.elements import Elements, element_of
from .symmetry.folds import NONE, Folds
from .symmetry.form import standing
from .types import Permutations, Tensors

__all__ = ["INTERPOLATIONS", "Alignment", "Merged", "align", "average", "barrier", "merge"]


@dataclass(frozen=True)
class Merged:
    """`tensors` of the merged model, with the first model's names and dtypes.

    `repaired` counts the norms that were reset, or the layers whose channels or biases were corrected;
    `repair` is the account of it, `choice` that of "auto" where there was something to choose. `tensors` has
    names of its own only for `repair.added`.
    """

    tensors: Tensors
    alignment: Alignment | None
    repaired: int = 0
    repair: Repaired | None = None
    choice: Choice | None = None


def align(
    *models_and_spec: Any,
    method: str = "wm",
    seed: int = 0,
    options: Any = None,
    network: nn.Module | None = None,
    data: Iterable[Any] | None = None,
    inputs: Any = None,
    output: str | int | None = None,
    not_kept: Sequence[str] = (),
    loss: Callable[[torch.Tensor, Any], torch.Tensor] | None = None,
    prove: bool = True,
    start: State | None = None,
    progress: Callable[[State], None] | None = None,
    polish: str | None = None,
    folds: Folds = NONE,
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> Alignment:
    """Permute models into the first one's basin: `align(reference, model, …, spec)`; a spec may be None.

    With `network` (and `prove`), the spec is proven on `inputs` (one batch; by default random ones of the
    network's `example_shape`), of all that the network returns but caches, hidden states, attentions and what
    `not_kept` names by key, attribute, index or dotted way; `output` picks what is measured. Methods that run
    the network need it and `data`, re-iterable batches of training samples; those that train take the
    gradient of `loss(outputs, targets)`, by default cross-entropy. `options` is the method's own Options, or
    a mapping of those that differ from their defaults; `polish` says how long swaps on the true loss are
    tried in the end (`25s`, or `300steps`, which gives the same result again), and needs network and data;
    `device` is where it computes. `ranks` are processes that search together, each of which calls this alike.
    Inputs are untouched. With groups: the spec is fitted already, `folds` what is folded, as
    `rebasin_cli.infer_spec(network, inputs, groups=True)` finds both.

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
    models = agreed(plain(models))[0]
    if len(models) < 2:
        raise UsageError("aligning takes at least two models")
    return searching.align(
        models,
        resolve_words(spec, models),
        method=method,
        seed=seed,
        options=options,
        network=network,
        data=data,
        inputs=inputs,
        output=output,
        not_kept=not_kept,
        loss=loss,
        prove=prove,
        start=start,
        progress=progress,
        polish=polish,
        folds=folds,
        device=device,
        ranks=ranks,
    )


def average(
    models: Sequence[Model],
    weights: Sequence[float] | str | None = None,
    *,
    names: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    learnt: Sequence[str] = (),
    heads: str | None = None,
    extra: str = "error",
    statistics: bool = False,
) -> dict[str, Values] | list[Values]:
    """Models as they are, averaged without a spec: Σ w_k θ_k in float64, rounded once to the first's dtypes.

    A model is a mapping of names to tensors or numpy arrays, or a list of arrays, whose `names` are given
    once for all; what comes back is what the first model is, under its names (`averages.names`). `weights`
    add up to 1 (default: equal), are written as in `rebasin merge` ("1/3,2/3"), or name a schedule of
    `averages.schedules` for checkpoints of one run in their order. Integers and what `ignore` (globs) names
    are the first model's; `learnt` (globs), `heads` and `extra` are as in `rebasin average`. Inputs are
    untouched, and share no memory with the result.

    Raises SpecError where tensors differ, CheckpointError for values that are no numbers, UsageError for what
    is no model, and for running statistics unless `statistics` lets them be averaged, too.

    >>> import torch, rebasin_cli
    >>> a, b = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 2.0])}
    >>> rebasin_cli.average([a, b], [0.25, 0.75])["w"]
    tensor([2.5000, 2.0000])
    """
    given = named(models, names)
    if not given:
        raise UsageError("there are no models to average")
    tensors = agreed(plain(given))[0]
    if isinstance(weights, str):
        weights = parse(weights)
    if isinstance(weights, str):
        weights = schedules.weights_of(weights, len(tensors))
    parts = parts_of(tensors, ignore=ignore, learnt=learnt, heads=heads, extra=extra)
    if parts.statistics and not statistics:
        raise UsageError(
            "these models have BatchNorm statistics, and averaging them makes a broken model",
            hint="Measure them anew (rebasin_cli.reset), and average these all the same with statistics=True",
        )
    made = combined(tensors, parts, weights, heads=heads)
    fresh = {*parts.averaged}
    mean = {name: tensor if name in fresh else tensor.clone() for name, tensor in made.items()}
    if names is not None and len(mean) < len(given[0]):
        raise UsageError("a list keeps all of its values", hint="Give mappings to leave some of them out")
    return as_given(mean, given[0], listed=names is not None)


def merge(
    models: Sequence[Tensors],
    spec: str | Path | Spec | FittedSpec | None = None,
    *,
    method: str = "wm",
    weights: Sequence[float] | None = None,
    interpolation: str = "linear",
    permutations: Sequence[Permutations | Elements] | None = None,
    repair_with: str = "auto",
    new_bias: bool = False,
    ridge: float | None = None,
    network: nn.Module | None = None,
    train: Iterable[Any] | None = None,
    held: Iterable[Any] | None = None,
    unseen: bool = False,
    repaired: Outcome | None = None,
    folds: Folds = NONE,
    device: str = "cpu",
    **align_options: Any,
) -> Merged:
    """One model from several: align (`method`, "none" for none), average, repair.

    `weights` add up to 1 (default: equal). "slerp" and "slerp-whole" take two models. `permutations` (or
    elements, and `folds` what is folded before they act) take the place of a search. `repair_with="reset"`
    re-estimates BatchNorm statistics on the batches of `train` and needs `network`; "auto" does so where the
    spec has statistics, "none" never: their average describes no model.
    Elsewhere "auto", given `network` and `train`, chooses between "repair" and "none": by the loss on `held`,
    other training samples (default: every third batch of `train`, kept from the repair), or `unseen` ones,
    that no model was trained on: they tell best.
    "repair", "rescale" and "reshift" need the same and correct channels (see `repair.renormalize`; `new_bias`
    lets layers without a bias get one); "refit" fits every layer on them (see `repair.refit`; `ridge`),
    and "distill" trains all of them after that (see `repair.distill`);
    "bias" needs `network` and one batch of `inputs`, or its `example_shape` (see `repair.calibrated_biases`).
    The method "auto" also tries the repairs that "auto" leaves open, and takes the best with its own choice.
    `repaired` is what a search has repaired already (`MatchResult.chosen`), of the mean with equal weights.
    Raises UsageError, SpecError, CheckpointError, DataError, NetworkError.
    """
    searching.check_names(align_options, "merge")
    models = agreed(plain(models))[0]
    check_interpolation(interpolation, len(models))
    asked = repair_with
    resolved(asked, statistics=False, measurable=False)  # its check, before the models are looked at
    if not models:
        raise UsageError("there are no models to merge")
    fitted = resolve_words(spec, models, averaged=True)
    measurable = network is not None and train is not None
    if permutations is None and method != "none":
        there = {"network": network is not None, "data": align_options.get("data", train) is not None}
        measured_anew = bool(fitted.statistics) and repair_with != "none"
        searching.check_needs(method, **there, statistics=measured_anew)
    repair_with = resolved(repair_with, statistics=bool(fitted.statistics), measurable=measurable)
    if repair_with not in ("none", "auto") and (network is None or (train is None and repair_with != "bias")):
        raise UsageError(
            "repair needs the network and training data: statistics are measured anew",
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
        elements = [element_of(given) for given in permutations]
        for element in elements:
            acts.check(element, fitted)
        models = standing(models, fitted, elements, folds)
    elif method != "none":
        align_options = {"data": train, "held": held if unseen else None} | align_options
        if measurable:
            tried = open_to_choice(asked, statistics=bool(fitted.statistics))
            align_options |= {"repairs": tried, "ridge": ridge}
        alignment = searching.align(
            models, fitted, method=method, network=network, folds=folds, device=device, **align_options
        )
        models = alignment.models
        repaired = None
        if (chosen := alignment.result.chosen) is not None:
            repair_with, repaired = chosen.repair or repair_with, chosen.repaired
    output = align_options.get("output")
    repairs = None
    if repair_with != "none":
        loss, metric = align_options.get("loss"), align_options.get("metric")
        repairs = Repairs(
            repair_with,
            models,
            train if repair_with == asked else few(train, repair_with),
            inputs=align_options.get("inputs"),
            new_bias=new_bias,
            ridge=ridge,
            output=output,
            device=device,
            logits=Loss.of(loss).of_logits,
            scores=partial(evaluate, output=output, device=device, loss=loss, metric=metric),
            by=align_options.get("choose", "loss"),
            metrics=metric is not None,
            named=loss is not None or metric is not None,
        )
    tensors, done = repaired_mean(
        models,
        fitted,
        weights,
        interpolation=interpolation,
        repairs=repairs,
        network=network,
        held=held,
        unseen=unseen,
        output=output,
        done=repaired,
    )
    count = len(done.repaired.corrected) if done.repaired else 0
    return Merged(tensors, alignment, count, done.repaired, done.choice)
