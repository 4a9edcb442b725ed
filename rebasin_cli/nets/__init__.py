"""The networks that built-in specs name, and those that `rebasin train` trains; one file an architecture.

A net module has

    VARIANTS: tuple[str, ...]                 # names a user types: ("resnet20", "resnet32", …)
    def build(name, *, input_shape, classes, width, norm, depth=None) -> nn.Module            # to train
    def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> nn.Module     # exactly these tensors' network

and every network an attribute `example_shape`, one input without the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch import nn

from ..errors import NetworkError, UsageError, unknown
from ..registry import Registry, import_reference

registry = Registry("nets", "net")

WIDEST, DEEPEST = 1 << 20, 1000  # of what a user may ask for


def variants() -> dict[str, ModuleType]:
    """Every network's name and the module that builds it."""
    modules = [registry.get(name) for name in registry.names()]
    return {variant: module for module in modules for variant in module.VARIANTS}


def is_from(name: str | None, reference: str) -> bool:
    """Whether `name` is a variant of the module in `package.module:factory`."""
    module = variants().get(name)
    return getattr(module, "__name__", None) == reference.partition(":")[0]


def own_factory(reference: str | None) -> Callable[..., nn.Module] | None:
    """`from_shapes` of a net of ours where `reference` is exactly its name, else None; nothing else is run.

    What merely resembles one (a file, a folder, another attribute) is the user's own code. So is another
    package's net, though its name may be typed.
    """
    known = {f"{module}:from_shapes": name for name, module in registry.own().items()}
    return registry.get(known[reference]).from_shapes if reference in known else None


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
) -> nn.Module:
    """A fresh network to train. Raises UsageError for a name, width, norm or depth that makes no sense."""
    known = variants()
    if name not in known:
        raise unknown("net", name, known)
    if width is not None and not 0 < width <= WIDEST:
        raise UsageError(
            f"a width of {width:g} makes no network: expected 0 to {WIDEST}", hint="Try --width 1."
        )
    if depth is not None and depth > DEEPEST:
        raise UsageError(f"a depth of {str(depth)[:20]} makes no network: expected 1 to {DEEPEST}")
    return known[name].build(
        name, input_shape=tuple(input_shape), classes=classes, width=width, norm=norm, depth=depth
    )


def resolve(reference: str) -> Callable[..., Any]:
    """The factory behind `file.py:factory` or `package.module:factory`; this runs the user's code."""
    factory = import_reference(reference, error=NetworkError)
    if not callable(factory):
        raise NetworkError(
            f"{reference} is {type(factory).__name__}, which cannot be called",
            hint="Expected a class or a function that returns a torch.nn.Module.",
        )
    return factory
