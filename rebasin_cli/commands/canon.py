"""`rebasin canon` on files: a checkpoint in canonical form, which computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import torch

from ..canonical.form import canonical
from ..groups.folds import Folds
from ..session.listener import SILENT, Listener
from ..session.session import Session
from ..session.subjects import ForLook, Search
from .verbs import provenance, symmetries
from .verbs.folders import placed
from .verbs.outputs import Output, check_outputs, write
from .verbs.provenance import attested


def as_written(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """The tensors rounded as `--out-dtype` asks, if it does."""
    return {
        name: tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def canon(
    model: Path, output: Output, listener: Listener = SILENT, **subjects: Unpack[ForLook]
) -> dict[str, Any]:
    """Fold a model's norms and biases away and balance it; write it, and say what stayed and why.

    Nothing is written unless the network's outputs are what they were, in float64 and before the numbers are
    rounded to the file's types; `as_rounded` is how much they differ after that. Raises NotProven
    otherwise, UsageError where no network is named, NetworkError where it cannot be traced.
    """
    output = placed(output, model)
    session = Session("canon", [model], listener, search=Search(groups="all"), **subjects)
    check_outputs(output, session.reads, as_torch=True)
    fitted, folds = session.fitted, session.folds or Folds()
    form = canonical(session.models[0], fitted, folds)
    change = symmetries.check_same_function(session, session.models[0], form.wide)
    rounded = symmetries.outputs_differ(session, session.models[0], as_written(form.tensors, output.dtype))
    meta = provenance.of_session(session, method="canon", like=session.models, results=True)
    written = write(output, form.tensors, session.models[0], meta)
    done = {
        "written": written,
        "folded": {
            "norms": len(folds.norms),
            "key_biases": len(folds.keys),
            "value_biases": len(folds.values),
            "means": len(folds.means),
        },
        "balanced": sorted(form.balance.maps),
        "left": [f"{what}: {why}" for what, why in form.left],
        "outputs_differ": change,
        "as_rounded": rounded,
    }
    return attested(session, output, done)
