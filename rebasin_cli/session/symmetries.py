"""Groups beyond permutations: the spec with them, and what canonical forms fold away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from ..canonical.form import check_numbers
from ..checkpoints.checkpoint import Checkpoint
from ..groups.folds import Folds
from ..networks.running import fed
from ..spec.spec import FittedSpec
from .listener import SILENT
from .models import naming
from .network import find_network, need_inputs, none_named
from .subjects import Asked


def beyond(
    plain: FittedSpec, models: Sequence[Checkpoint], asked: Asked, say: Callable[[str], None]
) -> tuple[FittedSpec, Folds]:
    """The spec with groups, and what is folded: from the spec where it gives some, else from the network.

    Raises UsageError where no network is named, NetworkError where it cannot be traced, CheckpointError where
    a model has integers or quantised numbers that would be folded or turned.
    """
    fitted, folds = _found(plain, asked, say)
    for model in models:
        with naming([model.path]):
            check_numbers(model.dtypes, fitted, folds)
    return fitted, folds


def _found(plain: FittedSpec, asked: Asked, say: Callable[[str], None]) -> tuple[FittedSpec, Folds]:
    from ..inference.inferring import folds_of, infer  # torch.export takes a second to import

    quiet = SILENT.say if asked.network.net else say
    module = find_network(plain, asked.network, quiet, named=asked.loading.spec is not None)
    if module is None:
        raise none_named(plain)
    batch = fed(module, need_inputs(module, asked.network, asked.data), "cpu", quiet=True)
    if plain.groups:
        return plain, folds_of(module, batch, **asked.network.outputs)
    args, kwargs = ((), batch) if isinstance(batch, Mapping) else (batch, {})
    found = infer(module, args, kwargs, prove=False, groups=True, **asked.network.outputs)
    kinds = ", ".join(f"{word} {kind}" for word, kind in list(found.fitted.groups.items())[:4])
    more = " …" * (len(found.fitted.groups) > 4)
    say(
        f"groups: {kinds}{more}"
        if kinds
        else "groups: permutations only, see rebasin spec explain --groups all"
    )
    for what, why in found.folds.left:
        say(f"not folded: {what}: {why}")
    spec = dataclasses.replace(found.fitted.spec, net=plain.spec.net)
    return dataclasses.replace(found.fitted, spec=spec), found.folds
