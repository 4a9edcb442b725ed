"""`rebasin apply`: permute a checkpoint by a saved permutation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoints.adapters import is_adapter
from ..checkpoints.checkpoint import Checkpoint, open_checkpoint
from ..checkpoints.peft import CONFIG, config_of_moved
from ..errors import SpecError, UsageError
from ..registry.options import PLAIN, READS, argument, option
from ..registry.results import UNSET, Plan, Result, Unset
from ..runtime.ranks import ALONE, Ranks
from ..session.asked import of_model, subjects_of
from ..session.listener import SILENT, Listener
from ..session.models import open_models
from ..session.outcomes import Answer, OutModel, Screen, Weights
from ..session.session import Session
from ..session.subjects import Bounded, Loading
from ..symmetry import elements as acts
from ..symmetry.elements import Elements
from ..symmetry.factors import Pair, turned_factors
from ..symmetry.form import turned
from .merging import adapters as merging
from .merging import bases
from .merging.average import AsTheyAre
from .verbs import needs, plans, provenance
from .verbs.folders import placed
from .verbs.outputs import Output, check_outputs, default_path, output_of, write
from .verbs.provenance import attested
from .verbs.ranks import check_same

PANEL = "Align and merge"
TOGETHER = True


@dataclass(frozen=True, kw_only=True)
class Apply(Loading, Bounded, Weights, Screen):
    """Permute another checkpoint of the same architecture: EMA weights, optimizer moments by name.

    Elements of groups (--groups all) are for weights alone: folded and turned, moments would mean nothing.

    Example: rebasin apply b_aligned.perm.safetensors b.pt --key ema -o b_ema_aligned.safetensors
    """

    perm: Path = argument("PERM", "A *.perm.safetensors that align or verify wrote.", role=READS)
    model: Path = argument(
        "MODEL", "A checkpoint of the same architecture, or an adapter of one.", role=READS
    )
    out: str | None = OutModel.out
    base: Path | None = AsTheyAre.base
    invert: bool = option(False, "Undo the permutation instead.", role=PLAIN)
    dry_run: bool = Answer.dry_run
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


def run(asked: Apply, listener: Listener = SILENT, ranks: Ranks = ALONE) -> ApplyResult | Plan:
    """Permute a checkpoint by a saved permutation: EMA weights, or moments stored by parameter name.

    Elements beyond permutations act on the model as its norms are folded, which changes no function. Of an
    adapter the factors are moved, as its base's units say. Raises SpecError if the permutation was found with
    another spec, CheckpointError if it does not fit. Several `ranks` call this alike, and each writes its
    share; an adapter the first one moves.
    """
    perm, model, invert = asked.perm, asked.model, asked.invert
    if is_adapter(model):
        return ranks.alone(_of_adapter, asked, listener)
    if asked.base is not None:
        raise UsageError(f"--base is for adapters, and {model} is none", hint="Leave it out")
    output = ranks.first(lambda: placed(output_of(asked, default_path(model, "permuted")), model))
    session = Session("apply", [model], listener, subjects_of(asked), perm=perm, undo=invert, ranks=ranks)
    ranks.first(lambda: check_outputs(output, session.reads, as_torch=True))
    needs.check(session, output)
    if output.dry_run:
        return Plan(plans.of_reading(session, output))
    check_same(session, {"PERM": lambda: open_checkpoint(perm).digest()})
    elements = _elements(session, invert)
    meta = ranks.first(_meta, session, invert, session.models)
    moved = turned(session.models[0], session.fitted, elements, session.folds)
    written = write(output, moved, session.models[0], meta, ranks=ranks)
    return ranks.last(_result, session, output, written, elements, invert)


def _of_adapter(asked: Apply, listener: Listener) -> ApplyResult | Plan:
    """The factors of an adapter as the permutation makes them, for the base that it was applied to."""
    perm, path, invert = asked.perm, asked.model, asked.invert
    if asked.base is None:
        raise UsageError(
            f"{path} is an adapter: what its units are is told by its base",
            hint=f"Name the model that it was trained on, as it was before {perm}: --base MODEL",
        )
    bases.check_base(asked.base)
    output = merging.placed_output(output_of(asked, Path(f"{path.resolve().stem}_permuted")), [path], None)
    session = Session("apply", [asked.base], listener, subjects_of(asked), perm=perm, undo=invert)
    reads = session.reads.and_files(of_model(path))
    check_outputs(output, replace(reads, models=(*reads.models, path)))
    adapter = merging.opened([path], open_models([path], session.asked.loading, listener.say), skip=True)[0]
    adapter.weights.look(name=str(path))
    base = bases.of_base(session.models[0], [adapter], added=False)
    if output.dry_run:
        return Plan(plans.of_reading(session, output))
    elements = _elements(session, invert)
    if invert and session.folds.tensors:
        raise UsageError(
            "--invert: what was folded into an adapter is not taken out again",
            hint="Keep the adapter as it was",
        )
    pairs = {
        base.names[name]: Pair(base.names[name], module.up, module.down, name in base.turned)
        for name, module in adapter.modules.items()
    }
    whole = {name: bases.stored_whole(base.model, name) for name in adapter.whole}
    if unknown := [f"{name}  is no tensor of the base" for name, its in whole.items() if its is None]:
        raise SpecError(f"{path} does not fit {asked.base}", problems=unknown)
    moved = turned_factors(
        adapter.weights,
        pairs,
        base.model,
        session.fitted,
        elements,
        session.folds,
        {name: its for name, its in whole.items() if its is not None},
    )
    meta = _meta(session, invert, [adapter.weights], adapter=adapter.weights.digest())
    if adapter.config is not None:
        listener.say("its configuration names no base: load it on the permuted one")
        output = replace(output, copies={CONFIG: config_of_moved(adapter.config)})
    written = write(output, moved, adapter.weights, meta)
    return _result(session, output, written, elements, invert, adapter=path)


def _elements(session: Session, invert: bool) -> Elements:
    given = session.given
    if given is None:
        raise LookupError("no file of a permutation is named")
    return acts.invert(given.elements, session.fitted) if invert else given.elements


def _meta(session: Session, invert: bool, like: Sequence[Checkpoint], **more: str) -> dict[str, str]:
    options = {"invert": invert, **session.of_given, **more}
    return provenance.of_session(session, options=options, searches=False, like=like, results=True)


def _result(
    session: Session,
    output: Output,
    written: list[str],
    elements: Elements,
    invert: bool,
    *,
    adapter: Path | None = None,
) -> ApplyResult:
    done: dict[str, Any] = {"written": written}
    done |= {"permutations": len(elements.permutations), "inverted": invert}
    done |= {"maps": len(elements.maps)} if session.grouped else {}
    return ApplyResult(**attested(session, output, done, copied=adapter))
