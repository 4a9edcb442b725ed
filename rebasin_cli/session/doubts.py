"""Whether models get the inputs that they were trained on: other usual normalisations are tried on a few.

A network whose inputs are shifted or scaled still runs, and what is then measured, matched and repaired is
another function than its file holds. So where no file says how its inputs were normalised, some samples are
measured under each usual normalisation, once a command.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import datasets, networks
from ..checkpoints.checkpoint import Checkpoint
from ..datasets import Data as DataSet
from ..errors import RebasinError
from ..networks.evaluation import Scores
from ..networks.state import duplicate
from ..runtime.devices import for_search
from . import samples
from .subjects import Data

FIRST, MOST = 128, 1_024  # samples for all normalisations, and for those that may be better
SHOWS = ("test", "held", "train", "match", "reset", "fitted")  # splits, the best to look at first

# A better normalisation takes a quarter off the loss and answers more samples right, or takes half of the
# loss off: networks that are too sure of themselves, or not sure enough, may lose less of any scaled inputs.
LESS, FAR_LESS, RIGHT = 0.75, 0.5, 0.01
# Where it takes half off, and nearly all samples lose less, it may answer a few less right: of a network too
# sure of itself most samples would lose more.
ALL = 0.9
WRONG = 2.5  # answers: where none is wrong, the surer network always loses less
# Or it answers a tenth more of them right, and most that guessing the largest class would not.
FAR_MORE, MOST_RIGHT = 0.1, 0.6
FEWER = 0.03  # right answers among the first few, of which one is much
NATS, SIGMAS, FEWEST = 0.05, 4.0, 30  # of the difference, sample by sample: it matters, and is not by chance
BEGUN = 100  # batches, before which the running statistics of a BatchNorm are still on their way
# And with it the network knows something: less than this uncertainty is left, of what the classes' shares
# leave, or more than this share of the answers is right that guessing would get wrong.
UNSURE, KNOWS = 0.9, 0.4


@dataclass(frozen=True)
class Better:
    """What one model loses less with: `option` is what `--normalize` calls it; scores on the same samples."""

    model: Checkpoint
    option: str
    used: str
    before: Scores
    after: Scores


def look(
    models: Sequence[Checkpoint],
    network: nn.Module,
    splits: Mapping[str, Any],
    data: Data,
    output: str | None,
    device: str,
    say: Callable[[str], None],
) -> tuple[Better, ...]:
    """Say, of each model, with what normalisation it loses clearly less than as it is measured.

    On the first split of `SHOWS` that is there. Nothing is tried of what the models record as theirs, of a
    loader's batches, of text, with a loss of the user's own, and with `--skip-checks`.
    """
    split = next((splits[name] for name in SHOWS if name in splits), None)
    if data.skip_checks or data.loss or not isinstance(split, DataSet):
        return ()
    found: list[Better] = []
    asked = [model for model in models if not _recorded(model, split) and _has_learned(model)]
    if asked and split.normalization is not None:
        device = for_search(device)  # what is looked at before a search is looked at where it runs
        own, scores = duplicate(network).to(device), samples.scorer(data, output, device)
        for model in asked:
            try:
                networks.load(own, model)
                found += better(model, split, lambda batches: scores(own, batches, **CLASSES))
            except RebasinError:  # what does not run is told where it is measured
                return ()
    for told in in_words(found, split):
        say(f"warning: {told}")
    return tuple(found)


CLASSES = {"loss": None, "metric": None, "each": True}  # cross-entropy of class numbers, whatever is measured


def _recorded(model: Checkpoint, split: DataSet) -> bool:
    """Whether the file says that it was trained on just these inputs."""
    same = model.metadata.get("rebasin.data") == split.name
    return same and model.metadata.get("rebasin.normalization") == str(split.normalization)


def _has_learned(model: Checkpoint) -> bool:
    """Whether running statistics, where there are some, are of more than the first steps of training."""
    counts = (int(model[name].max()) for name in model.shapes if name.endswith(".num_batches_tracked"))
    return not any(0 < count < BEGUN for count in counts)


def better(model: Checkpoint, samples: DataSet, scores: Callable[[DataSet], Scores]) -> Iterator[Better]:
    """The usual normalisation with which a model loses clearly less; nothing where that is the one used.

    Of several that are nearly as good, the one with most right answers.
    """
    used = samples.normalization
    tried = {name: each for name, each in datasets.normalizations(samples).items() if each != used}
    few = samples.subset(FIRST).with_batch_size(FIRST)
    before = scores(few)
    tried = {
        name: each
        for name, each in tried.items()
        if (after := scores(dataclasses.replace(few, normalization=each))).accuracy > before.accuracy - FEWER
        and (after.loss < before.loss or after.accuracy > before.accuracy + FAR_MORE / 2)
    }
    if not tried:
        return
    many = samples.subset(MOST).with_batch_size(2 * FIRST)
    before = scores(many)
    found = {name: scores(dataclasses.replace(many, normalization=each)) for name, each in tried.items()}
    found = {name: after for name, after in found.items() if clearly(before, after, many.source.targets)}
    if found:
        least = min(after.loss for after in found.values())
        near = {name: after for name, after in found.items() if after.loss <= least / LESS}
        name, after = max(near.items(), key=lambda item: (item[1].accuracy, -item[1].loss))
        yield Better(model, name, str(used), before, after)


def clearly(before: Scores, after: Scores, targets: Tensor) -> bool:
    """Whether `after` is better beyond doubt, sample by sample, and by a network that has learned."""
    if before.each is None or after.each is None:
        return False
    pairs = [(before.each[key], after.each[key]) for key in ("loss", "accuracy")]
    gains = torch.stack([one.double() - two.double() for one, two in pairs], 1).clamp(-1e6, 1e6)
    gains[:, 1] *= -1
    if len(gains) < FEWEST or not gains.isfinite().all():
        return False
    loss, right = gains.mean(0).tolist()
    less, more = (gains.mean(0) > SIGMAS * gains.std(0) / math.sqrt(len(gains))).tolist()
    shares = torch.bincount(targets.flatten()).double() / targets.numel()
    guess, entropy = shares.max().item(), -(shares * shares.clamp(min=1e-300).log()).sum().item()
    knows = (after.accuracy - guess) / (1 - guess) if guess < 1 else 0.0
    if more and right >= FAR_MORE and knows > MOST_RIGHT:
        return True
    nearly_all = (gains[:, 0] > 0).double().mean().item() > ALL
    if not less or right < (-RIGHT if nearly_all else 0):
        return False
    better_answers = more and right >= RIGHT
    if not better_answers and (1 - after.accuracy) * after.samples < WRONG:
        return False
    share = LESS if better_answers else FAR_LESS
    return (
        loss > NATS and after.loss < share * before.loss and (knows > KNOWS or after.loss < UNSURE * entropy)
    )


def in_words(found: Sequence[Better], split: DataSet) -> Iterator[str]:
    """A sentence a normalisation, with the models that it is for and what it changes."""
    for option in dict.fromkeys(one.option for one in found):
        its = [one for one in found if one.option == option]
        files = ", ".join(str(one.model.path) for one in its)
        figures = "; ".join(
            f"{one.before.loss:.4g} → {one.after.loss:.4g} nats, accuracy {one.before.accuracy:.3f} → "
            f"{one.after.accuracy:.3f}"
            for one in its
        )
        yield (
            f"{files} {'loses' if len(its) == 1 else 'lose'} clearly less with --normalize {option} "
            f"({datasets.normalizations(split)[option]}) than normalised {its[0].used}: {figures}, on "
            f"{its[0].after.samples} {split.split} samples. Give what the training program did to its inputs"
        )
