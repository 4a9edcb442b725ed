"""The models of a command: opened, under common names, their values checked. Errors name the files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from torch import nn

from .. import networks
from ..averages.names import agreed
from ..checkpoints.checkpoint import Checkpoint, open_checkpoint
from ..errors import CheckpointError, NoEnvelope, SpecError
from ..networks.tied import check_equal
from ..runtime.ranks import ALONE, Ranks
from .subjects import Loading


def named_alike(
    paths: Sequence[Path],
    opened: Sequence[Checkpoint],
    say: Callable[[str], None],
    network: str | None = None,
) -> list[Checkpoint]:
    """The models that were opened, under common names, by their headers. Says what was chosen on opening.

    Where names differ, what `network` has as one tensor is one.
    """
    for path, model in zip(paths, opened, strict=True):
        tell_notes(path, model, say)
        if not len(model):
            raise CheckpointError(f"{path} holds no tensors")
    differ = network is not None and any(model.shapes.keys() != opened[0].shapes.keys() for model in opened)
    return agreeing(opened, say, networks.ties(network, opened[0].shapes) if network and differ else ())


def know_digests(models: Sequence[Checkpoint], ranks: Ranks) -> None:
    """Every model's digest, each from the rank that has it or reads it: they take turns with the models."""
    if ranks.size == 1:
        return

    def read() -> dict[int, str]:
        return {k: model.digest() for k, model in enumerate(models) if k % ranks.size == ranks.rank}

    for found in ranks.shared(read):
        for k in found.keys() & {*range(len(models))}:
            models[k].know(found[k])


def look_through(paths: Sequence[Path], opened: Sequence[Checkpoint], ranks: Ranks = ALONE) -> None:
    """Look at the values of models as they were opened. Raises CheckpointError for what is no number.

    Several `ranks` take turns with the models: that reads whole files, which may lie far away.
    """
    for number, (path, model) in enumerate(zip(paths, opened, strict=True)):
        if number % ranks.size == ranks.rank:
            model.look(name=str(path))


def open_beside(first: Checkpoint, path: Path, loading: Loading, say: Callable[[str], None]) -> Checkpoint:
    """A model beside those of the session, such as whose tensors are copied, under the names of the first."""
    (model,) = open_models([path], loading, say)
    tell_notes(path, model, say)
    return agreeing([first, model], say)[1]


def agreeing(
    models: Sequence[Checkpoint], say: Callable[[str], None], one: Collection[Sequence[str]] = ()
) -> list[Checkpoint]:
    """The models under the names of the first, where only prefixes or ties differ; says what was done.

    `one`: names of each tensor that the network has under several.
    """
    found, told = agreed(models, [str(model.path) for model in models], one)
    for line in told:
        say(line)
    return cast(list[Checkpoint], found)  # a checkpoint under other names is one


def tell_notes(path: Path, model: Checkpoint, say: Callable[[str], None]) -> None:
    for note in model.notes:
        say(f"{path}: {note}")


def open_models(paths: Sequence[Path], loading: Loading, say: Callable[[str], None]) -> list[Checkpoint]:
    """Open checkpoints, without a look at their values or a word on them.

    `key` is for the files that have several state dicts, of which there must be one.
    """
    opened: list[Checkpoint] = []
    whole: dict[Path, NoEnvelope] = {}
    for path in paths:
        try:
            opened.append(open_checkpoint(path, key=loading.key, unsafe_load=loading.unsafe_load))
        except NoEnvelope as error:
            whole[path] = error
            opened.append(open_checkpoint(path, unsafe_load=loading.unsafe_load))
    if len(whole) == len({*paths}):
        raise next(iter(whole.values()))
    for path in whole:
        say(f"{path}: holds one set of weights, which is taken: --key {loading.key} is for the others")
    return opened


@contextmanager
def naming(paths: Sequence[Path]) -> Iterator[None]:
    """Put file names into what the core raises, once: into its message, and for "model 1", "model 2" …"""
    try:
        yield
    except (SpecError, CheckpointError) as error:
        names = {f"in model {k}": f"in {path}" for k, path in enumerate(paths, start=1)}
        problems = [
            re.sub(r"in model \d+\b", lambda found: names.get(found[0], found[0]), problem)
            for problem in error.problems
        ]
        message, first = error.message, str(paths[0])
        if message.endswith("does not fit"):
            message = f"{message} {first}"
        elif not message.startswith(f"{first}: ") and (
            len(paths) == 1 or "no built-in spec" in message or "do not fit" in message
        ):
            message = f"{first}: {message}"
        named = [str(path) for path in paths if any(f"in {path}" in problem for problem in problems)]
        one = shlex.quote(named[0] if len({*named}) == 1 else first)
        look = f"See what a file holds with: rebasin inspect {one}" if len(paths) > 1 else None
        raise type(error)(message, problems=problems, hint=error.hint or look) from None


def check_one(network: nn.Module, models: Sequence[Checkpoint]) -> None:
    """Raise CheckpointError where tensors of a model differ that the network has as one."""
    for model in models:
        try:
            check_equal(network, model)
        except CheckpointError as error:
            raise CheckpointError(f"{model.path}: {error.message}", hint=error.hint) from None
