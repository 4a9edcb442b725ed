"""Elements that a file gives: read for the models of a command, and the canonical form that they bring."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.validation import digest
from ..errors import CheckpointError, SpecError
from ..reports.formats.json import read_as
from ..spec.fits import fit
from ..spec.library import to_same
from ..spec.parser import parse
from ..spec.spec import FittedSpec
from ..symmetry import elements as acts
from ..symmetry import stored
from ..symmetry.elements import Elements, tensors_of
from ..symmetry.folds import Folds
from ..symmetry.form import check_numbers
from ..symmetry.permutation import is_identity
from .models import naming


@dataclass(frozen=True)
class Given:
    """The elements of a file, and what an output records of them."""

    elements: Elements
    record: dict[str, str]


def read(path: Path, fitted: FittedSpec, model: Checkpoint | None = None, *, undo: bool = False) -> Given:
    """The elements of a file for this very spec.

    `model` is what they will be applied to, or taken back from (`undo`). Raises SpecError if they were found
    with another spec, CheckpointError if they do not fit or the model is not the one to do that with.
    """
    kept = stored.load(path)
    own, made = kept.elements, kept.metadata
    known = (None, fitted.spec.digest, fitted.spec.before or None)
    if not kept.brings_spec and made.get("rebasin.spec_sha256") not in known:
        raise SpecError(
            f"{path} was found with another spec ({made.get('rebasin.spec')}) than {fitted.spec.source}",
            hint=to_same(made.get("rebasin.spec"), fitted.spec),
        )
    with naming([path]):
        acts.check(own, fitted)
    still = is_identity(own.permutations) and not kept.brings_spec
    if model is not None and not still:
        _check_its_weights(path, made.get(stored.WEIGHTS), model, undo)
    return Given(own, {"permutation": digest(tensors_of(own))})


def form_of(path: Path, made: Mapping[str, str], models: list[Checkpoint]) -> tuple[FittedSpec, Folds]:
    """The spec that stored elements are of, fitted to these models, and what is folded of them.

    `made` is the metadata of their file, which is one of elements or of a curve. Raises SpecError where a
    model has other tensors, CheckpointError where the folds do not fit, or a model has integers or quantised
    numbers that would be folded or turned.
    """
    spec = parse(made[stored.SPEC], name=made.get("rebasin.spec", "stored"), source=str(path))
    spec = dataclasses.replace(spec, net=made.get(stored.NET))
    for model in reversed(models):  # the first is the one that counts
        with naming([model.path]):
            fitted = fit(spec, model.shapes)
    folds = _folds(made[stored.FOLDS], path, fitted.shapes)
    for model in models:
        with naming([model.path]):
            check_numbers(model.dtypes, fitted, folds)
    return fitted, folds


def folds_text(folds: Folds) -> str:
    return json.dumps(dataclasses.asdict(folds), separators=(",", ":"), sort_keys=True)


def _folds(text: str, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Folds:
    """What `folds_text` wrote into a file. Raises CheckpointError for anything else, or other tensors."""
    problems: list[str] = []
    try:
        folds: Folds = read_as(Folds, json.loads(text), "", problems)
    except (ValueError, ArithmeticError, RecursionError) as cause:
        folds, problems = Folds(), [f"no JSON that can be read: {cause}"]
    if problems := problems or folds.problems(shapes):
        raise CheckpointError(
            f"{path}: what it says is folded away ({stored.FOLDS}) does not fit",
            problems=problems,
            hint="Write it again with: rebasin align A B --groups all",
        )
    return folds


def _check_its_weights(path: Path, weights: str | None, model: Checkpoint, undo: bool) -> None:
    """Refuse weights that were permuted by this already, or that replaced those which it was written with."""
    if weights is None:
        return
    if not undo and model.digest() == weights:
        raise CheckpointError(
            f"{model.path} is permuted by {path} already: they were written together",
            hint="Give the model as it was before, or leave the permutation out: --method none.",
        )
    if undo and stored.beside(model.path).resolve() == path.resolve() and model.digest() != weights:
        raise CheckpointError(
            f"{path} was written beside other weights than {model.path} holds now",
            problems=[f"sha256 of the weights  {model.digest()}", f"the permutation says   {weights}"],
            hint="Use the permutation that belongs to these weights, or align again.",
        )
