"""`rebasin canon`: a checkpoint in canonical form, which computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ..registry.options import READS, argument
from ..registry.results import Plan, Result
from ..runtime.ranks import ALONE, Ranks
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, OutModel, Screen, Weights
from ..session.request import Search
from ..session.session import Session
from ..session.subjects import Bounded, DataSet, Loading, Network
from ..symmetry.form import canonical
from .verbs import needs, plans, provenance, symmetries
from .verbs.folders import placed
from .verbs.outputs import check_outputs, default_path, output_of, write
from .verbs.provenance import attested
from .verbs.ranks import check_same

PANEL = "Align and merge"
TOGETHER = True


@dataclass(frozen=True, kw_only=True)
class Canon(Loading, Bounded, Network, DataSet, Weights, Screen):
    """Fold gains and biases of norms into the layers that read them, and balance what may be scaled.

    Key biases become 0, value biases go through the output matrix, what writes to a LayerNorm stream loses
    its mean; the two sides of every product through invertible or scaled units get the same norms. In this
    form --groups all compares models. Each step holds by the network's graph, and the outputs are compared
    in float64 before anything is written.

    Example: rebasin canon vit.safetensors --net net.py:vit -o vit_canon.safetensors
    """

    model: Path = argument("FILE", "The model; its function stays the same.", role=READS)
    out: str | None = OutModel.out
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json


@dataclass(frozen=True)
class CanonResult(Result):
    """What was `written`; how many of each kind were `folded` away, which words were `balanced`, what was
    `left` and why.

    `outputs_differ` is how much the network's outputs changed, relative to the largest, in float64 (0–1), and
    `as_rounded` how much once the numbers are rounded to the file's types.
    """

    written: list[str]
    folded: Mapping[str, int]
    balanced: list[str]
    left: list[str]
    outputs_differ: float
    as_rounded: float


def as_written(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
    """The tensors rounded as `--out-dtype` asks, if it does."""
    return {
        name: tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def run(asked: Canon, listener: Listener = SILENT, ranks: Ranks = ALONE) -> CanonResult | Plan:
    """Fold a model's norms and biases away and balance it; write it, and say what stayed and why.

    Nothing is written unless the network's outputs are what they were, in float64 and before the numbers are
    rounded to the file's types; `as_rounded` is how much they differ after that. Raises NotProven
    otherwise, UsageError where no network is named, NetworkError where it cannot be traced. Several `ranks`
    call this alike, and each writes its share.
    """
    model, subjects = asked.model, replace(subjects_of(asked), search=Search(groups="all"))
    output = ranks.first(lambda: placed(output_of(asked, default_path(model, "canon")), model))
    session = Session("canon", [model], listener, subjects, ranks=ranks)
    ranks.first(lambda: check_outputs(output, session.reads, as_torch=True))
    needs.check(session, output)
    if output.dry_run:
        return Plan(plans.of_reading(session, output))
    fitted, folds = session.fitted, session.folds
    form = canonical(session.models[0], fitted, folds)
    check_same(session, {"the spec": lambda: (fitted.spec.name, fitted.spec.digest)})
    like = session.models[0]

    def differ() -> tuple[float, float]:
        change = symmetries.check_same_function(session, like, form.wide)
        return change, symmetries.outputs_differ(session, like, as_written(form.tensors, output.dtype))

    change, rounded = ranks.first(differ)
    describe = partial(provenance.of_session, session, method="canon", like=session.models, results=True)
    written = write(output, form.tensors, like, ranks.first(describe), ranks=ranks)
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
    return CanonResult(**ranks.last(attested, session, output, done))
