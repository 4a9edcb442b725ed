"""Whether processes that work together were asked for the same, of the same files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...checkpoints.checkpoint import Checkpoint
from ...session.session import Session
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


def _sampled(model: Checkpoint) -> str:
    """A digest of names, dtypes, shapes and some 16 values a tensor."""
    total = hashlib.sha256()
    for name in sorted(model):
        tensor = model[name].detach()
        total.update(repr((name, model.dtypes[name], model.shapes[name])).encode())
        step = max(1, tensor.numel() // 16)
        some = tensor.reshape(-1)[::step] if tensor.is_contiguous() else tensor.flatten()[::step]
        total.update(some.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
