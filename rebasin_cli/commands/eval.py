"""`rebasin eval` on files: what one model is worth on one split."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Unpack

from .. import networks
from ..datasets import SPLITS
from ..errors import unknown
from ..networks.evaluation import Scores
from ..session.listener import SILENT, Listener
from ..session.session import Session
from ..session.subjects import Data, ForLook
from .verbs import endpoints


def evaluate(
    path: Path,
    listener: Listener = SILENT,
    *,
    split: str = "test",
    **subjects: Unpack[ForLook],
) -> dict[str, Any]:
    """Loss (nats), accuracy (0–1) and expected calibration error (0–1) of one model on one split.

    Raises UsageError for an unknown split and without a network, DataError for a trained model at chance.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    subjects["data"] = dataclasses.replace(subjects.get("data", Data()), full=True)
    session = Session("eval", [path], listener, **subjects)
    scorer, (model,) = session.scores, session.models
    module = session.network_alone
    samples = session.open_splits(split)[split]
    session.look_at_inputs(session.splits, module)
    module = networks.load(module, model).to(session.device)
    scores = scorer(module, samples)
    for doubt in endpoints.below_record(model, scores, samples, session.asked.data):
        session.say(f"warning: {doubt}")
    made = model.metadata.get("rebasin.command")
    if split == "test" and made not in ("merge", "repair"):  # these were not trained, may well be at chance
        endpoints.check(session)({"test": [scores]})
    figures = {name: getattr(scores, name) for name in ("loss", "accuracy", "samples", "ece")}
    without = {} if session.held_out is None else {"held_out": dict(session.held_out.account())}
    figures |= {"bins": len(scores.bins[0]), "reliability": _reliability(scores)} if scores.bins else {}
    return {"file": str(path), "data": samples.name, "split": split} | without | figures


def _reliability(scores: Scores) -> dict[str, list[float | None]]:
    """The bins of the calibration error: their samples, mean confidence and accuracy, None in empty ones."""
    names = ("samples", "confidence", "accuracy")
    return {
        name: [None if value != value else value for value in row]
        for name, row in zip(names, scores.bins, strict=True)
    }
