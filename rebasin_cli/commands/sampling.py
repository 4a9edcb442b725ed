"""Data and names to batches: which splits, how normalised, how scored, and whether the endpoints agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from .. import datasets
from ..checkpoints.checkpoint import Checkpoint
from ..datasets import Data, open_data
from ..datasets._batches import LoaderData
from ..errors import DataError, NetworkError, UsageError
from ..networks.evaluation import Scores, evaluate
from ..registry import import_reference
from ..spec.spec import FittedSpec
from . import running
from .settings import Settings

Splits = dict[str, Data | LoaderData]

TRAIN_SAMPLES, RESET_SAMPLES, RESET_BATCH = 5_000, 2_560, 256
HELD_SAMPLES = 2_560  # to choose a repair and to fit a temperature on
MATCH_SAMPLES = 10_000  # for methods that do not say how many they look at
MATCH_BATCH = 250  # where activations are looked at: both networks' are in memory at once
MARGIN = 0.05  # an endpoint this far below its recorded accuracy is fed something else


def data_reference(models: Sequence[Checkpoint], settings: Settings) -> str | None:
    """`--data`, else the data set that all models record.

    On a file's word only a name is taken, never code to run or a path to open.
    """
    if settings.data is not None:
        return settings.data
    found = {model.metadata.get("rebasin.data") for model in models}
    recorded = found.pop() if len(found) == 1 else None
    return recorded if recorded in datasets.registry.names() else None


def _no_data(models: Sequence[Checkpoint]) -> UsageError:
    """Why `data_reference` found none."""
    recorded = {str(model.path): model.metadata.get("rebasin.data") for model in models}
    hint = "Give one with --data (mnist, cifar10, npz:FILE, imagefolder:DIR, file.py:loader)"
    if not any(recorded.values()):
        return UsageError("no data set is named, and the checkpoints record none", hint=hint)
    problems = [f"{path}  records {name or 'none'}" for path, name in recorded.items()]
    if any(name and ":" in name for name in recorded.values()):
        hint = "A file's word is not enough to open a path or run code: if you mean it, say so with --data"
    return UsageError(
        "no data set is named, and none can be taken from the checkpoints", problems=problems, hint=hint
    )


def open_splits(
    models: Sequence[Checkpoint],
    settings: Settings,
    say: Callable[[str], None],
    *,
    wanted: Sequence[str],
    match: int | None = MATCH_SAMPLES,
    choosing: bool = False,
    epoch: bool = False,
) -> Splits:
    """The wanted ones of "train", "test", "match", "reset" (what repairs measure) and "held".

    All but "test" are training samples, a seeded subset unless `full`. Those "held" are others than those of
    "reset" where there are enough; for `choosing` a repair some are kept from it if need be. With `epoch`
    "reset" is as many as a method that trains sees in one epoch. `match` is how
    many a method looks at, None for all. Raises UsageError where no data set is named or the models record
    different normalisations, DataError where it cannot be read.
    """
    reference = data_reference(models, settings)
    if reference is None:
        raise _no_data(models)
    normalize = settings.normalize or _recorded_normalization(models, reference)
    splits: Splits = {}
    if {"train", "reset", "held", "match"} & set(wanted):
        train = _open(reference, "train", normalize, settings)
        if "train" in wanted:
            size = settings.limit or (None if settings.full else TRAIN_SAMPLES)
            splits["train"] = train if size is None else train.subset(size, settings.seed)
        if {"reset", "held"} & set(wanted):
            mend, held = _apart(train, settings, choosing, epoch)
            mixed = mend.with_batch_size(RESET_BATCH).mixed(settings.seed)  # every batch has every class
            parts = {"reset": mixed, "held": mixed if held is mend else held}
            splits |= {name: part for name, part in parts.items() if name in wanted}
        if "match" in wanted:
            size = settings.limit or match
            splits["match"] = train if size is None else train.subset(size, settings.seed)
            if match is not None:
                splits["match"] = splits["match"].with_batch_size(min(MATCH_BATCH, settings.batch_size))
    if "test" in wanted:
        test = _open(reference, "test", normalize, settings)
        splits["test"] = test if settings.limit is None else test.subset(settings.limit, settings.seed)
    some = next(iter(splits.values()))
    used = "as the loader yields them" if some.normalization is None else f"normalised {some.normalization}"
    say(f"data: {reference}{_other_record(models, reference)}, inputs {used}")
    return splits


def _other_record(models: Sequence[Checkpoint], reference: str) -> str:
    """A remark where the checkpoints record that they were trained on something else."""
    names = {model.metadata.get("rebasin.data") for model in models} - {None, reference}
    return f" (the checkpoints record {' and '.join(sorted(names))})" if names else ""


def find_choice(
    models: Sequence[Checkpoint], fitted: FittedSpec, settings: Settings, say: Callable[[str], None]
) -> tuple[nn.Module | None, Splits]:
    """The network and the samples to choose a repair by, as `--repair auto` does; says why where it cannot.

    Whose network it is must be known: tensors' names alone do not tell what is computed with them. What the
    user named must be there, what the checkpoints record may be missing.
    """
    why = "no network is known"
    try:
        network = running.find_network(fitted, settings, say)
        if network is not None and running.origin(network, fitted, models, settings)["assumed"]:
            network, why = None, "only the tensors' names tell the network (give yours with --net)"
    except NetworkError as error:
        if settings.net is not None:
            raise
        network, why = None, error.message
    if network is None:
        say(f"repair: --repair auto is none: {why}")
        return None, {}
    try:
        return network, open_splits(models, settings, say, wanted=["reset", "held"], choosing=True)
    except DataError as error:
        if settings.data is not None:
            raise
        say(f"repair: --repair auto is none: {error.message}")
        return None, {}


def _apart(train: Any, settings: Settings, choosing: bool, epoch: bool) -> tuple[Any, Any]:
    """Training samples to measure a repair on, and others to choose it and fit a temperature on.

    Of a loader's data no more are counted than are needed. Where nothing is left, both are the same; where an
    `epoch` is measured, the others are some of it.
    """
    if epoch and not settings.full:
        whole = settings.limit is None
        mend = train if whole else train.subset(max(settings.limit, RESET_SAMPLES), settings.seed)
        return mend, train.subset(HELD_SAMPLES, settings.seed)
    loader = isinstance(train, LoaderData)
    if loader and settings.full:
        return train, train
    there = train.subset(RESET_SAMPLES + HELD_SAMPLES).samples if loader else train.samples
    measured = there if settings.full else min(RESET_SAMPLES, there)
    if choosing:
        measured = max(1, min(measured, max(there - HELD_SAMPLES, there * 2 // 3)))
    mend = train if measured == there and settings.full else train.subset(max(1, measured), settings.seed)
    if measured >= there:
        return mend, mend
    return mend, train.subset(HELD_SAMPLES, settings.seed, skip=measured)


def _open(reference: str, split: str, normalize: str | None, settings: Settings) -> Data | LoaderData:
    return open_data(
        reference, split, root=settings.data_root, batch_size=settings.batch_size, normalize=normalize
    )


def _recorded_normalization(models: Sequence[Checkpoint], reference: str) -> str | None:
    """What the models were trained with, where they record this data set; None: its default."""
    recorded = {
        str(model.path): model.metadata["rebasin.normalization"]
        for model in models
        if model.metadata.get("rebasin.data") == reference and "rebasin.normalization" in model.metadata
    }
    values = {value for value in recorded.values() if value != "None"}
    if len(values) > 1:
        raise UsageError(
            "the models were trained on differently normalised inputs",
            problems=[f"{path}  {value}" for path, value in recorded.items()],
            hint="They cannot be merged as they are; to measure all the same, choose with --normalize",
        )
    return values.pop() if values else None


def endpoint_check(
    models: Sequence[Checkpoint], reference: str, classes: int | None, settings: Settings
) -> Callable[[Mapping[str, Sequence[Scores]]], None]:
    """A look at the endpoints' test scores that stops a run fed the wrong inputs.

    Raises DataError for an endpoint at chance (within three standard errors of it), or more than 5 points
    below the accuracy that it records on this data set.
    """

    def check(scores: Mapping[str, Sequence[Scores]]) -> None:
        if settings.skip_checks or settings.metric:
            return
        problems = []
        for model, score in zip(models, scores["test"], strict=True):
            recorded = _number(model.metadata.get("rebasin.test_accuracy"))
            chance = 1 / classes if classes else 0.0
            if classes and score.accuracy <= chance + 3 * math.sqrt(chance * (1 - chance) / score.samples):
                problems.append(f"{model.path}  accuracy {score.accuracy:.4f}, chance is {chance:.4f}")
            elif recorded is not None and model.metadata.get("rebasin.data") == reference:
                error = 3 * math.sqrt(0.25 / score.samples)  # a small sample scatters
                if score.accuracy < recorded - max(MARGIN, error):
                    problems.append(f"{model.path}  accuracy {score.accuracy:.4f}, it records {recorded:.4f}")
        if problems:
            raise DataError(
                "the models do not do what they were trained for: is this the right data, normalised right?",
                problems=problems,
                hint="Choose with --normalize unit|dataset|MEAN/STD; measure all the same with --skip-checks",
            )

    return check


def _number(text: str | None) -> float | None:
    """What a checkpoint records as a number, None where it is none."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def loss_of(settings: Settings) -> Callable[..., Any] | None:
    """The user's own loss; None for cross-entropy. Raises UsageError."""
    return import_reference(settings.loss, error=UsageError) if settings.loss else None


def scorer(settings: Settings, device: str) -> Callable[..., Scores]:
    """`evaluate` with the user's own loss, metric and output."""
    loss = loss_of(settings)
    metric = import_reference(settings.metric, error=UsageError) if settings.metric else None

    def scores(network: nn.Module, batches: Any, **more: Any) -> Scores:
        options = {"loss": loss, "metric": metric, "output": settings.output, "device": device} | more
        return evaluate(network, batches, **options)

    return scores
