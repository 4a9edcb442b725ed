"""Whether endpoints do what they were trained for: else they are fed something else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...averages.kinship import kinship
from ...checkpoints.checkpoint import Checkpoint
from ...errors import DataError
from ...networks.evaluation import Scores
from ...session.session import Session
from ...session.subjects import Data

MOST = 16  # models that are held against the first
ALIGNED = ("align", "apply", "merge", "repair")  # commands after which units stand as in another model
MERGED = ("merge", "repair")
MARGIN = 0.05  # an endpoint this far below its recorded accuracy is fed something else


def check(session: Session, *, merges: bool = False) -> Callable[[Mapping[str, Sequence[Scores]]], None]:
    """As `check_of` of the session's models on its test samples."""
    test = session.splits["test"]
    better = [one.option for one in session.better or ()]
    return check_of(session.models, test, session.asked.data, better=better, merges=merges)


def check_of(
    models: Sequence[Checkpoint],
    test: Any,
    data: Data,
    *,
    better: Sequence[str] = (),
    merges: bool = False,
) -> Callable[[Mapping[str, Sequence[Scores]]], None]:
    """A look at the endpoints' test scores that stops a run fed the wrong inputs.

    `better` are the normalisations by name that were found to suit them. With `merges` some of them may be
    merged: these were not trained, and may well be at chance.
    Raises DataError for an endpoint at chance (within three standard errors of it), or more than 5 points
    below the accuracy that it records on this data set.
    """

    def check(scores: Mapping[str, Sequence[Scores]]) -> None:
        if data.skip_checks or data.metric:
            return
        problems = []
        for model, score in zip(models, scores["test"], strict=True):
            if merges and model.metadata.get("rebasin.command") in MERGED:
                continue
            recorded = _number(model.metadata.get("rebasin.test_accuracy"))
            classes, chance = test.classes, 1 / test.classes if test.classes else 0.0
            if classes and score.accuracy <= chance + 3 * math.sqrt(chance * (1 - chance) / score.samples):
                problems.append(f"{model.path}  accuracy {score.accuracy:.4f}, chance is {chance:.4f}")
            elif recorded is not None and model.metadata.get("rebasin.data") == test.name:
                error = 3 * math.sqrt(0.25 / score.samples)  # a small sample scatters
                if score.accuracy < recorded - max(MARGIN, error):
                    problems.append(f"{model.path}  accuracy {score.accuracy:.4f}, it records {recorded:.4f}")
        if problems:
            raise DataError(
                "the models do not do what they were trained for: is this the right data, normalised right?",
                problems=problems,
                hint=(
                    f"Give --normalize {better[0]}"
                    if better
                    else "Choose with --normalize unit|dataset|half|imagenet|raw|MEAN/STD"
                )
                + "; measure all the same with --skip-checks",
            )

    return check


def below_record(model: Checkpoint, found: Scores, samples: Any, data: Data) -> Iterator[str]:
    """Why the accuracy on training samples may be that of wrong inputs: it is far below what the file says.

    What a test accuracy is worth, `check` says.
    """
    if data.skip_checks or data.metric or math.isnan(found.accuracy):
        return
    same = model.metadata.get("rebasin.data") == samples.name
    recorded = _number(model.metadata.get("rebasin.train_accuracy")) if same else None
    error = 3 * math.sqrt(0.25 / found.samples)
    if samples.split == "train" and recorded is not None and found.accuracy < recorded - max(MARGIN, error):
        yield f"the accuracy is {found.accuracy:.4f} on training samples, the file records {recorded:.4f}"


def _number(text: str | None) -> float | None:
    """What a checkpoint records as a number, None where it is none."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def tell(models: Sequence[Checkpoint], say: Callable[[str], None]) -> None:
    """Say, in a line, which models look like strangers to the first one. Reads some rows of each."""
    first, *others = models
    if first.metadata.get("rebasin.command") in ALIGNED:
        return
    found = []
    for other in others[:MOST]:
        if other.metadata.get("rebasin.command") not in ALIGNED:
            kin = kinship(first, other)
            found += [(other, kin)] if kin.verdict == "strangers" else []
    if found:
        names = ", ".join(dict.fromkeys(str(model.path) for model, _ in found))
        say(
            f"warning: {names} and {first.path} look like strangers. {found[0][1].why} An average of "
            "them as they are is no model. Align them: rebasin merge, by any --method but none, and with "
            "--net where no built-in spec fits"
        )
