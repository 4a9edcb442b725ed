"""Whether processes that work together were asked for the same, of the same files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.tensors import CHUNK, rows
from ...datasets.batches import size_of
from ...learning.setup import Setup
from ...measure.samples import digest
from ...registry.regular import content
from ...runtime.ranks import Ranks
from ...session.session import Session
from ...types import Batches
from ...version import version


def check_same(
    session: Session,
    more: Mapping[str, Callable[[], Any]],
    models: Sequence[Checkpoint] | None = None,
) -> None:
    """Raise UsageError unless all ranks of a session were asked for the same of the same models.

    Where their files are may differ. Of every tensor a few values are looked at: enough to tell models apart,
    and soon read. `more` are facts of the command, small and plain, by what messages call them; one process
    is not asked for any. `models` are those of the session, where these are not to be looked through.
    """
    if session.ranks.size == 1:
        return
    network, search = session.asked.network, session.asked.search
    options = [network.seed, network.device, search.prove, search.groups, sorted(search.options.items())]
    session.ranks.check_same(
        {
            "the version of rebasin": version(),
            "the version of torch": torch.__version__,
            "an option": [search.method, *options],
        }
        | {name: fact() for name, fact in more.items()}
        | {
            f"model {k}": _sampled(model)
            for k, model in enumerate(session.models if models is None else models, start=1)
        }
    )


def check_measured(session: Session, splits: Mapping[str, Batches]) -> None:
    """As `check_same`, also of the samples, how they are batched, and the user's own code."""
    data = session.asked.data
    own = (data.loss, *data.metric, session.asked.network.net)
    named = session.asked.loading.spec is None and session.asked.network.net is not None
    more: dict[str, Callable[[], Any]] = {
        "the data": lambda: [(split, data.limit, *_read(its)) for split, its in splits.items()],
        "an option of the measure": lambda: (data.each, data.bins, data.skip_checks, session.output),
        "the code of --loss, --metric or --net": lambda: [text and _code(text) for text in own],
    }
    if session.command != "eval" or not named:
        more["the spec"] = lambda: session.fitted.spec.digest
    check_same(session, more)


def check_trained(ranks: Ranks, prepared: Setup) -> None:
    """The same of a training: what it is, its samples, how they are batched."""
    if ranks.size > 1:
        told = {"the version of torch": torch.__version__, "an option": prepared.identity}
        ranks.check_same(told | {"the data": [_read(its) for its in (prepared.train, prepared.test)]})


def _read(samples: Batches) -> tuple[str, list[int]]:
    """The digest of the samples, and how many each batch has: ranks take turns with these."""
    sizes = []

    def read() -> Iterator[Any]:
        for inputs, targets in samples:
            sizes.append(size_of(targets, inputs))
            yield inputs, targets

    return digest(read()), sizes


def _code(text: str) -> tuple[str, str]:
    """What names a user's code, wherever its file is, and that file's digest; "" of a package's."""
    file, _, name = text.rpartition(":")
    path = Path(file)
    return name, hashlib.sha256(content(path)).hexdigest() if path.is_file() else ""


def _sampled(model: Checkpoint) -> str:
    """A digest of names, dtypes, shapes and some 16 values a tensor: of a large one their rows are read."""
    total = hashlib.sha256()
    for name in sorted(model):
        total.update(repr((name, model.dtypes[name], model.shapes[name])).encode())
        for some in _some(model, name):
            total.update(some.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _some(model: Checkpoint, name: str) -> Iterator[torch.Tensor]:
    """Values at equal distances, as one tensor or one by one."""
    shape = model.shapes[name]
    count = math.prod(shape)
    step = max(1, count // 16)
    if count * model.dtypes[name].itemsize <= CHUNK or not shape:
        yield model[name].detach().flatten()[::step]
        return
    width = count // shape[0]
    for at in range(0, count, step):
        row = rows(model, name, at // width, at // width + 1)
        yield row.detach().flatten()[at % width, None]
