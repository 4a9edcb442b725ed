"""What several processes that search together must agree on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...checkpoints.checkpoint import Checkpoint
from ...session.subjects import Network, Search
from ...spec.spec import FittedSpec
from ...version import version

if TYPE_CHECKING:
    from ...session.session import Session


def check(session: Session) -> None:
    """Raise UsageError unless all ranks of a session were asked for the same search."""
    alone = session.ranks.size == 1
    session.ranks.check_same(
        {} if alone else facts(session.models, session.fitted, session.asked.search, session.asked.network)
    )


def facts(
    models: Sequence[Checkpoint], fitted: FittedSpec, search: Search, network: Network
) -> dict[str, Any]:
    """All but where their files are.

    Of every tensor a few values are looked at: enough to tell models apart, and soon read.
    """
    roles = ("the reference", "the other model")
    return {
        "the version of rebasin": version(),
        "the version of torch": torch.__version__,
        "the spec": (fitted.spec.name, fitted.spec.digest),
        "an option": [
            search.method,
            network.seed,
            network.device,
            search.prove,
            search.groups,
            sorted(search.options.items()),
        ],
    } | {role: _sampled(model) for role, model in zip(roles, models, strict=True)}


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
