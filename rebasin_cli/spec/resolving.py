"""Whatever stands for a spec (a name, a path, a Spec, nothing), fitted to the models that it is for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..averages.together import products_of
from ..checkpoints.tensors import plan_of
from ..errors import SpecError
from ..types import Tensors
from . import library
from .fitting import fit
from .spec import FittedSpec, Spec


def resolve_spec(
    spec: str | Path | Spec | FittedSpec | None, models: Sequence[Tensors], *, averaged: bool = False
) -> FittedSpec:
    """The spec fitted to the first model, after a look whether all models have the same tensors.

    Where the models are to be `averaged`, families of tensors that cannot be are refused, sooner than that no
    spec fits them (`averages.together`).
    """
    try:
        fitted = _resolved(spec, models)
    except SpecError:
        if averaged:
            products_of(models)
        raise
    if averaged:
        products_of(models, keep=fitted.ignored)
    return fitted


def _resolved(spec: str | Path | Spec | FittedSpec | None, models: Sequence[Tensors]) -> FittedSpec:
    shapes = {name: shape for name, (_, shape) in plan_of(models[0]).items()}
    problems = [
        f"{name}  is {_show(shapes.get(name))} in model 1, {_show(other.get(name))} in model {k}"
        for k, model in enumerate(models[1:], start=2)
        for other in [{name: shape for name, (_, shape) in plan_of(model).items()}]
        for name in dict.fromkeys([*shapes, *other])
        if shapes.get(name) != other.get(name)
    ]
    if problems:
        raise SpecError("the models do not have the same architecture", problems=problems)
    if isinstance(spec, FittedSpec):
        return spec if spec.shapes == shapes else fit(spec.spec, shapes)
    if spec is None:
        return library.find(shapes)
    return fit(spec if isinstance(spec, Spec) else library.load(str(spec)), shapes)


def _show(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else "×".join(map(str, shape)) or "a scalar"
