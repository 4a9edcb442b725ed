"""What can be told of a value before anything is opened: names of methods and files, gates, sizes."""

from __future__ import annotations

import importlib
import operator
import os
from collections.abc import Callable, Collection
from pathlib import Path

from ...averages.weights import checked, parse
from ...errors import RebasinError, UsageError, near
from ...registry.operations import known
from ...registry.options import Option


def wrong(option: Option, text: str, *, own: bool = False) -> str | None:
    """What is wrong with the text of an option; None where nothing is, or only its command can tell.

    Of gates that is so where a loss or a metric is the user's `own`: its code says what it is called.
    """
    if own and option.kind in ("gate", "figure"):
        return None
    if "${" in text:  # a variable that was not there
        return None
    if option.choices and not option.within:  # what a method takes it checks itself
        return _among(option.choices, text)
    check = CHECKS.get(option.kind)
    return check(text) if check else None


def _among(names: Collection[str], text: str, what: str = "") -> str | None:
    return None if text in names else f"unknown {what}{text!r}; {near(text, names)}"


def wrong_weights(text: str, models: int, *, any_sum: bool = False) -> str | None:
    """What is wrong with numbers, one a model, that add up to 1; names of schedules their command knows.

    Without `models` nobody knows how many there are. Of adapters `any_sum` makes sense.
    """
    if text.replace("-", "").isalpha() or "${" in text:
        return None
    try:
        weights = parse(text)
        if models and not isinstance(weights, str):
            checked(weights, models, any_sum=any_sum)
    except UsageError as error:
        return "; ".join(filter(None, (error.message, error.hint)))
    return None


def of_adapters(command: str, method: object, paths: Collection[str]) -> bool:
    """Whether a step averages adapters, whose weights may have any sum; of files to come the run tells."""
    from ...checkpoints.adapters import is_adapter  # heavy

    return (command == "average" or method == "none") and all(is_adapter(Path(path)) for path in paths)


def _named(kind: str) -> Callable[[str], str | None]:
    """A check against the names of a kind."""
    what = "method " if kind == "method" else ""
    return lambda text: _among(known(kind), text, what)


def _reference(text: str) -> str | None:
    """A user's code must be there: `file.py:name`."""
    file, colon, _ = text.rpartition(":")
    if colon and file.endswith(".py") and not os.path.isfile(file):
        return f"{file}: no such file"
    return None


def _data(text: str) -> str | None:
    if ":" in text or os.path.exists(text):
        return _reference(text)
    return _among(known("data"), text, "data set ")


def _spec(text: str) -> str | None:
    is_file = text.endswith((".yaml", ".yml")) or "/" in text
    return f"{text}: no such file" if is_file and not os.path.isfile(text) else None


def _by(module: str, name: str, *more: str) -> Callable[[str], str | None]:
    """A check that an option's own reader makes, which is imported when it is asked: most bring torch.

    `more` are what it takes beside the text, called without anything.
    """

    def check(text: str) -> str | None:
        found = importlib.import_module(f"rebasin_cli.{module}")
        try:
            operator.attrgetter(name)(found)(text, *(getattr(found, each)() for each in more))
        except RebasinError as error:
            return "; ".join(map(str.strip, str(error).splitlines()))
        return None

    return check


# By the `kind` of an option.
CHECKS: dict[str, Callable[[str], str | None]] = {
    "code": _reference,
    "data": _data,
    "spec": _spec,
    "gate": _by("measure.thresholds", "parse_gate"),
    "figure": _by("measure.gates", "parse"),
    **{kind: _named(kind) for kind in ("method", "repair", "interpolation", "heads", "extra")},
    "dtype": _by("checkpoints.units", "parse_dtype"),
    "bytes": _by("runtime.sizes", "parse_size"),
    "rank": _by("averages.low_rank", "Rank.parse"),
    "attack": _by("networks.attacks", "Attack.parse"),
    "input": _by("networks.inputs", "parse"),
    # what a data set says of itself is read with it
    "normalize": _by("datasets", "Normalization.parse", "Normalization"),
}
