"""Data and names to batches: which splits, how normalised, how scored, and whether the endpoints agree."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn import functional

from .. import datasets
from ..checkpoints.checkpoint import Checkpoint
from ..datasets import SPLITS, open_data
from ..datasets import Data as DataSet
from ..datasets.batches import TARGETS
from ..datasets.loaders import LoaderData
from ..errors import DataError, UsageError, unknown
from ..matchers.activations import MATCH_BATCH
from ..networks import losses
from ..networks.classes import CLASSES
from ..networks.evaluation import Scores, evaluate
from ..networks.losses import Loss, Metric
from ..registry import import_reference, is_reference
from ..registry.options import real
from ..repair.options import REFIT_BATCH, SAMPLES
from ..runtime.seeds import derive
from ..types import Quantity
from .subjects import Data

HOW = "Give a fraction of the test split (0.1, auto), a split (test), or a data set whose test split they are"
Splits = dict[str, DataSet | LoaderData]

TRAIN_SAMPLES, RESET_SAMPLES, RESET_BATCH = 5_000, 2_560, 256
HELD_SAMPLES = 2_560  # to choose a repair and to fit a temperature on
AUTO, LARGE, FEW = 0.2, 2_000, 100  # of the test split by itself: a share, samples at most and at least
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
    repair_samples: int | None = None,
) -> Splits:
    """The wanted ones of "train", "test", "match", "reset" (what repairs measure), "fitted" and "held".

    All but "test" are training samples, a seeded subset unless `full`; "held" are what `data.held_out` says,
    if anything, and "test" is then without them. Those "held" are others than those of "reset" where there
    are enough; for `choosing` a repair some are kept from it if need be. With `epoch` "reset" is as many as a
    method that trains sees in one epoch, for a repair that `fits` weights `repair_samples`, else as many as
    it has by default; "fitted" are all that there are, of which `few` takes what a search then chose. `match`
    is how many a method looks at, None for all. Text is numbered by the vocabulary that the models record.
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
            targets=data.targets,
        )

    held_out = HeldOut.parse(data.held_out) if data.held_out else None
    splits: Splits = {}
    if {"train", "reset", "fitted", "held", "match"} & set(wanted):
        train = open_split(reference, "train")
        if "train" in wanted:
            size = data.limit or (None if data.full else TRAIN_SAMPLES)
            splits["train"] = train if size is None else train.subset(size, seed)
        if {"reset", "held"} & set(wanted):
            count = (repair_samples or SAMPLES[fits]) if fits in SAMPLES else RESET_SAMPLES
            measured_on, held = _apart(train, data, seed, count, choosing=choosing, epoch=epoch)
            size = min(REFIT_BATCH, data.batch_size) if fits in SAMPLES else RESET_BATCH
            mixed = measured_on.with_batch_size(size).mixed(seed)  # every batch has every class
            parts = {"reset": mixed, "held": mixed if held is measured_on else held}
            splits |= {name: part for name, part in parts.items() if name in wanted}
        if "fitted" in wanted:
            splits["fitted"] = train.with_batch_size(min(REFIT_BATCH, data.batch_size)).mixed(seed)
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
    if isinstance(data, LoaderData):
        key = data.key
        told = [
            data.how,
            "" if key is None else f"targets under {key!r}",
        ]
        return "; ".join(["as the loader yields them", *filter(None, told)])
    return "as they are" if data.normalization is None else f"normalised {data.normalization}"


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


def computing_its_loss(splits: Splits, network: nn.Module) -> Splits:
    """The splits, their targets among the inputs, where a network takes these and returns its loss itself.

    That is where batches are dictionaries, and `forward` has a parameter of the name of their targets.
    """
    try:
        taken = set(inspect.signature(network.forward).parameters) & set(TARGETS)
    except (TypeError, ValueError):
        return splits
    return {
        name: replace(its, keyed=replace(its.keyed, inside=True))
        if taken and isinstance(its, LoaderData) and its.key in taken
        else its
        for name, its in splits.items()
    }


def loss_of(data: Data) -> Loss | None:
    """The user's own loss; None for cross-entropy. Raises UsageError."""
    if data.each and not data.loss:
        raise UsageError(
            "--each asks a --loss one sample at a time, and none is named",
            hint="Leave it out: cross-entropy has one number a sample; name the function of a network's own",
        )
    return Loss.of(_own(data.loss, "--loss"), alone=data.each) if data.loss else None


def metrics_of(data: Data) -> tuple[Metric, ...]:
    """The user's own metrics; () for accuracy. Raises UsageError."""
    return losses.metrics_of([_own(text, "--metric") for text in data.metric]) if data.metric else ()


def quantities_of(data: Data) -> tuple[Quantity, ...]:
    """What is measured: the loss first, then every metric. Raises UsageError."""
    loss, metrics = loss_of(data) or Loss(), metrics_of(data)
    return (loss.quantity, *(quantity for metric in metrics or (Metric(),) for quantity in metric.figures))


def chosen_by(data: Data) -> str:
    """The key of the figure that methods and repairs are chosen by. Raises UsageError, with the list."""
    metrics = quantities_of(data)[1:]
    for metric in metrics:
        if data.choose.casefold() in (metric.key, metric.name.casefold()):
            return metric.key
    if data.choose == "loss":
        return "loss"
    raise unknown("figure of --choose", data.choose, ["loss", *(metric.name for metric in metrics)])


def scorer(data: Data, output: str | None, device: str) -> Callable[..., Scores]:
    """`evaluate` with the user's own loss, metric and output."""
    loss = loss_of(data)
    metric = metrics_of(data) or None

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
    own = CLASSES[flag]
    if word in ("ce", "cross_entropy", "cross_entropy_loss", "acc", "accuracy"):
        hint = f"Leave it out: {own} is what is measured without it."
    else:
        known = [name for name in (word, f"{word}_loss") if hasattr(functional, name)] or ["mse_loss"]
        hint = f"Write package.module:name, such as torch.nn.functional:{known[0]}, or file.py:name."
    raise UsageError(f"{flag} {text} names no function", hint=hint)


@dataclass(frozen=True)
class HeldOut:
    """What was asked for: a `fraction` of the test split; else a split of a data set, by its reference.

    Of "auto" the fraction is AUTO, and no more than LARGE samples: with so many unseen ones 19 choices of 20
    are within .003 nats of the best (`benchmarks/regret.py floor`), with 300 of them 17 are.
    """

    text: str
    fraction: float | None = None
    split: str = "test"
    reference: str | None = None  # None: the data set that the models are measured on

    @staticmethod
    def parse(text: str) -> HeldOut:
        """Raise UsageError for what is none of the three."""
        if text == "auto":
            return HeldOut(text, AUTO)
        try:
            fraction = real(text)
        except ValueError:
            pass
        else:
            if not 0 < fraction < 1:
                raise UsageError(f"--held-out {text}: a fraction lies between 0 and 1", hint=HOW)
            return HeldOut(text, fraction)
        if is_reference(text) or text.partition(":")[0] in datasets.registry.names():
            return HeldOut(text, reference=text)
        if not text.isidentifier():
            raise UsageError(f"--held-out {text!r} is no fraction, split or data set", hint=HOW)
        return HeldOut(text, split=text)

    @property
    def unseen(self) -> bool:
        """Whether no endpoint was trained on them, as far as their split's name says."""
        return self.split != "train"

    def check(self, *, measured: bool) -> None:
        """Raise UsageError where nothing of the test split is left to be `measured`."""
        if measured and self.reference is None and self.fraction is None and self.split == "test":
            raise UsageError(
                "--held-out test leaves no test samples to measure on",
                hint="Hold a part of them out, such as --held-out 0.1",
            )

    def open(self, reference: str, load: Callable[[str, str], Any], seed: int) -> Any:
        """The samples; `load` opens a split of a data set by its reference.

        Raises UsageError for a split that there is not, DataError as `load` does, and where nothing is in it.
        """
        if self.fraction is not None:
            return self.parted(load(reference, "test"), seed)[1]
        if self.reference is None and self.split not in SPLITS and not is_reference(reference):
            raise UsageError(f"--held-out {self.text}: {reference} has no such split", hint=HOW)
        return load(self.reference or reference, self.split)

    def parted(self, test: Any, seed: int) -> tuple[Any, Any]:
        """The test split without these samples, and these; all of it, and none, where they are others."""
        if self.fraction is None:
            return test, None
        size, drawn = round(self.fraction * test.samples), derive(seed, "held out of the test split")
        least, needed, hint = 1, "both parts need some", HOW
        if self.text == "auto":
            size, least, needed = min(size, LARGE), FEW, f"fewer than {FEW} tell little"
            hint = HOW.replace("0.1, auto", "0.5")
        if not least <= size < test.samples:
            raise DataError(
                f"--held-out {self.text} of {test.samples} test samples are {size}: {needed}", hint=hint
            )
        return test.subset(test.samples - size, drawn, skip=size), test.subset(size, drawn)

    def account(self, samples: int | None = None) -> Mapping[str, Any]:
        """For reports and provenance."""
        told: dict[str, Any] = {"fraction": self.fraction} if self.fraction else {"split": self.split}
        if self.text == "auto":
            told = {"fraction": self.text}
        if self.reference:
            told["data"] = self.reference.partition(":")[0]
        return told | ({} if samples is None else {"samples": samples})
