"""Data and names to batches: which splits, how normalised, how scored, and whether the endpoints agree."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.nn import functional

from .. import datasets
from ..checkpoints.checkpoint import Checkpoint
from ..datasets import Data as DataSet
from ..datasets import open_data
from ..datasets.batches import LoaderData
from ..errors import UsageError
from ..matchers.activations import MATCH_BATCH
from ..networks.evaluation import MEASURED, Scores, evaluate
from ..registry import import_reference
from ..repair.options import REFIT_BATCH, SAMPLES
from .held_out import HeldOut
from .subjects import Data

Splits = dict[str, DataSet | LoaderData]

TRAIN_SAMPLES, RESET_SAMPLES, RESET_BATCH = 5_000, 2_560, 256
HELD_SAMPLES = 2_560  # to choose a repair and to fit a temperature on
MATCH_SAMPLES = 10_000  # for methods that do not say how many they look at
_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def data_reference(models: Sequence[Checkpoint], data: Data) -> str | None:
    """`--data`, else the data set that all models record.

    On a file's word only a name is taken, never code to run or a path to open.
    """
    if data.data is not None:
        return data.data
    found = {model.metadata.get("rebasin.data") for model in models}
    recorded = found.pop() if len(found) == 1 else None
    return recorded if recorded in datasets.registry.names() else None


def _no_data(models: Sequence[Checkpoint]) -> UsageError:
    """Why `data_reference` found none."""
    recorded = {str(model.path): model.metadata.get("rebasin.data") for model in models}
    hint = "Give one with --data (mnist, cifar10, npz:FILE, imagefolder:DIR, text:FILE, file.py:loader)"
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
    data: Data,
    seed: int,
    say: Callable[[str], None],
    *,
    wanted: Sequence[str],
    match: int | None = MATCH_SAMPLES,
    choosing: bool = False,
    epoch: bool = False,
    fits: str = "",
) -> Splits:
    """The wanted ones of "train", "test", "match", "reset" (what repairs measure), "fitted" and "held".

    All but "test" are training samples, a seeded subset unless `full`; "held" are what `data.held_out` says,
    if anything, and "test" is then without them. Those "held" are others than those of "reset" where there
    are enough; for `choosing` a repair some are kept from it if need be. With `epoch` "reset" is as many as a
    method that trains sees in one epoch, for a repair that `fits` weights as many as --limit says, or as it
    has by default; "fitted" are all that there are, of which `few` takes what a search then chose. `match` is
    how many a method looks at, None for all. Text is numbered by the vocabulary that the models record.
    Raises UsageError where no data set is named or the models record different normalisations or
    vocabularies, DataError where it cannot be read.
    """
    reference = data_reference(models, data)
    if reference is None:
        raise _no_data(models)
    normalize = data.normalize or recorded_normalization(models, reference)
    vocabulary = recorded_vocabulary(models)

    def open_split(reference: str, split: str) -> DataSet | LoaderData:
        return open_data(
            reference,
            split,
            root=data.data_root,
            batch_size=data.batch_size,
            normalize=normalize,
            vocabulary=vocabulary,
        )

    held_out = HeldOut.parse(data.held_out) if data.held_out else None
    splits: Splits = {}
    if {"train", "reset", "fitted", "held", "match"} & set(wanted):
        train = open_split(reference, "train")
        if "train" in wanted:
            size = data.limit or (None if data.full else TRAIN_SAMPLES)
            splits["train"] = train if size is None else train.subset(size, seed)
        if {"reset", "held"} & set(wanted):
            count = (data.limit or SAMPLES[fits]) if fits in SAMPLES else RESET_SAMPLES
            measured_on, held = _apart(train, data, seed, count, choosing=choosing, epoch=epoch)
            size = min(REFIT_BATCH, data.batch_size) if fits in SAMPLES else RESET_BATCH
            mixed = measured_on.with_batch_size(size).mixed(seed)  # every batch has every class
            parts = {"reset": mixed, "held": mixed if held is measured_on else held}
            splits |= {name: part for name, part in parts.items() if name in wanted}
        if "fitted" in wanted:
            some = train if data.limit is None else train.subset(data.limit, seed)
            splits["fitted"] = some.with_batch_size(min(REFIT_BATCH, data.batch_size)).mixed(seed)
        if "match" in wanted:
            size = data.limit or match
            splits["match"] = train if size is None else train.subset(size, seed)
            if match is not None:
                splits["match"] = splits["match"].with_batch_size(min(MATCH_BATCH, data.batch_size))
    if "test" in wanted:
        test = open_split(reference, "test")
        if held_out is not None:
            held_out.check(measured=True)
            test, _ = held_out.parted(test, seed)
        splits["test"] = test if data.limit is None else test.subset(data.limit, seed)
    if "held" in wanted and held_out is not None:
        splits["held"] = held_out.open(reference, open_split, seed)
    some = next(iter(splits.values()))
    bare = "" if normalize is not None else _bare(some)
    say(f"data: {reference}{_other_record(models, reference)}, inputs {_given(some)}{bare}")
    return splits


def _given(data: DataSet | LoaderData) -> str:
    """What a network's inputs are, in a few words."""
    if data.vocabulary is not None:
        return f"windows of {data.source.inputs.shape[1]} of {data.classes} characters"
    return "as the loader yields them" if data.normalization is None else f"normalised {data.normalization}"


def _bare(data: DataSet | LoaderData) -> str:
    """That nobody said how inputs are normalised, and what else they may be."""
    if data.normalization is None:
        return ""
    own = datasets.own_normalization(data.name)
    if data.normalization != datasets.UNIT:
        return " (dataset, its default)"
    return " (unit, its default" + (f"; --normalize dataset: {own})" if own else ")")


def _other_record(models: Sequence[Checkpoint], reference: str) -> str:
    """A remark where the checkpoints record that they were trained on something else."""
    recorded = [model.metadata.get("rebasin.data") for model in models]
    names = {name for name in recorded if name is not None} - {reference}
    return f" (the checkpoints record {' and '.join(sorted(names))})" if names else ""


def _apart(train: Any, data: Data, seed: int, count: int, *, choosing: bool, epoch: bool) -> tuple[Any, Any]:
    """`count` training samples to measure a repair on, and others to choose it and fit a temperature on.

    Of a loader's data no more are counted than are needed. Where nothing is left, both are the same; where an
    `epoch` is measured, the others are some of it.
    """
    if epoch and not data.full:
        limit = data.limit
        measured_on = train if limit is None else train.subset(max(limit, RESET_SAMPLES), seed)
        return measured_on, train.subset(HELD_SAMPLES, seed)
    loader = isinstance(train, LoaderData)
    if loader and data.full:
        return train, train
    there = train.subset(count + HELD_SAMPLES).samples if loader else train.samples
    measured = there if data.full else min(count, there)
    if choosing:
        measured = max(1, min(measured, max(there - HELD_SAMPLES, there * 2 // 3)))
    measured_on = train if measured == there and data.full else train.subset(max(1, measured), seed)
    if measured >= there:
        return measured_on, measured_on
    return measured_on, train.subset(HELD_SAMPLES, seed, skip=measured)


def recorded_normalization(models: Sequence[Checkpoint], reference: str) -> str | None:
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


def recorded_vocabulary(models: Sequence[Checkpoint]) -> str | None:
    """The characters that the models number, where they record them; None: the text's own."""
    recorded = {str(model.path): model.metadata.get("rebasin.vocabulary") for model in models}
    if len(values := {value for value in recorded.values() if value}) > 1:
        raise UsageError(
            "the models were trained on texts of different characters, which they number each in its own way",
            problems=[f"{path}  {len(value)} characters" for path, value in recorded.items() if value],
            hint="Train them on one text, or on texts of the same characters",
        )
    return values.pop() if values else None


def loss_of(data: Data) -> Callable[..., Any] | None:
    """The user's own loss; None for cross-entropy. Raises UsageError."""
    return _own(data.loss, "--loss") if data.loss else None


def scorer(data: Data, output: str | None, device: str) -> Callable[..., Scores]:
    """`evaluate` with the user's own loss, metric and output."""
    loss = loss_of(data)
    metric = _own(data.metric, "--metric") if data.metric else None

    def scores(network: nn.Module, batches: Any, **more: Any) -> Scores:
        options: dict[str, Any] = {
            "loss": loss,
            "metric": metric,
            "output": output,
            "device": device,
            "bins": data.bins,
        }
        options |= more
        return evaluate(network, batches, **options)

    return scores


def _own(text: str, flag: str) -> Any:
    """The function that a text refers to. Raises UsageError, for a bare name with the way to write it."""
    if ":" in text or text.endswith(".py"):
        return import_reference(text, error=UsageError)
    word = _CAPITALS.sub("_", text.rpartition(".")[2]).lower()
    own = MEASURED[flag]
    if word in ("ce", "cross_entropy", "cross_entropy_loss", "acc", "accuracy"):
        hint = f"Leave it out: {own} is what is measured without it."
    else:
        known = [name for name in (word, f"{word}_loss") if hasattr(functional, name)] or ["mse_loss"]
        hint = f"Write package.module:name, such as torch.nn.functional:{known[0]}, or file.py:name."
    raise UsageError(f"{flag} {text} names no function", hint=hint)
