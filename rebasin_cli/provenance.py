"""What an output file says of its making: text metadata, the same for the same inputs, options and seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .checkpoint import Checkpoint
from .spec.spec import FittedSpec
from .version import version

TRAINING = ("rebasin.data", "rebasin.normalization", "rebasin.net")  # shared by models of one training
RESULTS = ("rebasin.train_accuracy", "rebasin.test_accuracy")  # a relabelled model keeps them


def describe(
    command: str,
    models: Sequence[Checkpoint],
    fitted: FittedSpec,
    *,
    method: str,
    seed: int,
    options: Mapping[str, Any] | None = None,
    like: Sequence[Checkpoint] = (),
    results: bool = False,
) -> dict[str, str]:
    """Version, method, options, seed, digests of inputs and spec; no paths and no times.

    What all of `like` record alike on their training is carried over, with `results` their accuracies too.
    """
    keys = TRAINING + RESULTS * results
    return {
        "rebasin.version": version(),
        "rebasin.command": command,
        "rebasin.method": method,
        "rebasin.options": json.dumps(dict(options or {}), sort_keys=True),
        "rebasin.seed": str(seed),
        "rebasin.inputs": json.dumps([model.digest() for model in models]),
        "rebasin.spec": fitted.spec.name,
        "rebasin.spec_sha256": fitted.spec.digest,
    } | {key: values.pop() for key in keys if len(values := _values(like, key)) == 1 and None not in values}


def _values(models: Sequence[Checkpoint], key: str) -> set[str | None]:
    return {model.metadata.get(key) for model in models}


def recorded(model: Checkpoint) -> dict[str, str] | None:
    """The provenance that a checkpoint carries; None where it carries none."""
    return {key: value for key, value in sorted(model.metadata.items()) if key.startswith("rebasin.")} or None
