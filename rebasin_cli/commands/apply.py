"""`rebasin apply`: permute a checkpoint by a saved permutation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..registry.options import PLAIN, READS, argument, option
from ..registry.results import UNSET, Result, Unset
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, OutModel, Screen, Weights
from ..session.session import Session
from ..session.subjects import Loading
from ..symmetry import elements as acts
from ..symmetry.form import turned
from .verbs import provenance
from .verbs.folders import placed
from .verbs.outputs import check_outputs, default_path, output_of, write
from .verbs.provenance import attested

PANEL = "Align and merge"


@dataclass(frozen=True, kw_only=True)
class Apply(Loading, Weights, Screen):
    """Permute another checkpoint of the same architecture: EMA weights, optimizer moments by name.

    Elements of groups (--groups all) are for weights alone: folded and turned, moments would mean nothing.

    Example: rebasin apply b_aligned.perm.safetensors b.pt --key ema -o b_ema_aligned.safetensors
    """

    perm: Path = argument("PERM", "A *.perm.safetensors that align or verify wrote.", role=READS)
    model: Path = argument("MODEL", "A checkpoint of the same architecture.", role=READS)
    out: str | None = OutModel.out
    invert: bool = option(False, "Undo the permutation instead.", role=PLAIN)
    json: bool = Answer.json


@dataclass(frozen=True, kw_only=True)
class ApplyResult(Result):
    """What was `written`, the model first, by how many `permutations`, and by how many `maps` of elements.

    `inverted`: the permutation was undone.
    """

    written: list[str]
    permutations: int
    maps: int | Unset = UNSET
    inverted: bool


def run(asked: Apply, listener: Listener = SILENT) -> ApplyResult:
    """Permute a checkpoint by a saved permutation: EMA weights, or moments stored by parameter name.

    Elements beyond permutations act on the model as its norms are folded, which changes no function. Raises
    SpecError if the permutation was found with another spec, CheckpointError if it does not fit.
    """
    perm, model, invert = asked.perm, asked.model, asked.invert
    output = placed(output_of(asked, default_path(model, "permuted")), model)
    session = Session("apply", [model], listener, subjects_of(asked), perm=perm, undo=invert)
    check_outputs(output, session.reads, as_torch=True)
    given = session.given
    if given is None:
        raise LookupError("no file of a permutation is named")
    elements = acts.invert(given.elements, session.fitted) if invert else given.elements
    options = {"invert": invert, **given.record}
    meta = provenance.of_session(session, options=options, searches=False, like=session.models, results=True)
    moved = turned(session.models[0], session.fitted, elements, session.folds)
    done: dict[str, Any] = {"written": write(output, moved, session.models[0], meta)}
    done |= {"permutations": len(elements.permutations), "inverted": invert}
    done |= {"maps": len(elements.maps)} if session.grouped else {}
    return ApplyResult(**attested(session, output, done))
