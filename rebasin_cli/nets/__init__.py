"""The networks that built-in specs name, and those that `rebasin train` trains; one file an architecture.

A net module has

    VARIANTS: tuple[str, ...]                 # names a user types: ("resnet20", "resnet32", …)
    def build(name, *, input_shape, classes, width, norm, depth=None) -> nn.Module            # to train
    def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> nn.Module     # exactly these tensors' network
    READS = "text"                            # optional; else it reads images, or whatever is flattened

and every network an attribute `example_shape`, one input without the batch; where inputs are whole numbers
also `example_below`, what they are below. `build` may take more of `FURTHER`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..errors import NetworkError, UsageError, unknown
from ..registry import Registry, import_reference
from ..types import Shapes

registry = Registry("nets", "net")

WIDEST, DEEPEST = 1 << 20, 1000  # of what a user may ask for
FURTHER = ("heads", "patch", "activation", "positions")  # options that only some nets have


def variants() -> dict[str, ModuleType]:
    """Every network's name and the module that builds it."""
    modules = [registry.get(name) for name in registry.names()]
    return {variant: module for module in modules for variant in module.VARIANTS}


def is_from(name: str | None, reference: str) -> bool:
    """Whether `name` is a variant of the module in `package.module:factory`."""
    module = None if name is None else variants().get(name)
    return getattr(module, "__name__", None) == reference.partition(":")[0]


def own_factory(reference: str | None) -> Callable[..., nn.Module] | None:
    """`from_shapes` of a net of ours where `reference` is exactly its name, else None; nothing else is run.

    What merely resembles one (a file, a folder, another attribute) is the user's own code. So is another
    package's net, though its name may be typed.
    """
    known = {f"{module}:from_shapes": name for name, module in registry.own().items()}
    if reference not in known:
        return None
    factory: Callable[..., nn.Module] = registry.get(known[reference]).from_shapes
    return factory


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
    **further: Any,
) -> nn.Module:
    """A fresh network to train; `further` are options of `FURTHER`, None where they are left open.

    Raises UsageError for a name or an option that makes no sense.
    """
    known = variants()
    if name not in known:
        raise unknown("net", name, known)
    if width is not None and not 0 < width <= WIDEST:
        raise UsageError(
            f"a width of {width:g} makes no network: expected 0 to {WIDEST}", hint="Try --width 1."
        )
    if depth is not None and depth > DEEPEST:
        raise UsageError(f"a depth of {str(depth)[:20]} makes no network: expected 1 to {DEEPEST}")
    options = {key: value for key, value in further.items() if value is not None}
    if refused := [key for key in options if key not in inspect.signature(known[name].build).parameters]:
        raise UsageError(
            f"{name} has no option {' or '.join(f'--{key}' for key in refused)}", hint="Leave it out."
        )
    for key, value in options.items():
        if isinstance(value, int) and not 0 < value <= WIDEST:
            raise UsageError(f"{key} of {str(value)[:20]} make no network: expected 1 to {WIDEST}")
    network: nn.Module = known[name].build(
        name, input_shape=tuple(input_shape), classes=classes, width=width, norm=norm, depth=depth, **options
    )
    return network


class _Undrawn(TorchFunctionMode):
    """Initial values are not drawn: on the meta device PyTorch's compiler is imported for it, two seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in (torch.Tensor.normal_, nn.init.normal_):
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def without_values(name: str, **options: Any) -> nn.Module:
    """As `build`, on the meta device: its tensors have shapes and no values."""
    with torch.device("meta"), _Undrawn():
        return build(name, **options)


def check_own(reference: str | None, shapes: Shapes) -> None:
    """Raise NetworkError where `reference` is a net of ours that has other tensors than these.

    Nothing else is run.
    """
    if (factory := own_factory(reference)) is not None:
        with torch.device("meta"), _Undrawn(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tensors without entries
            factory(shapes)


def resolve(reference: str) -> Callable[..., Any]:
    """The factory behind `file.py:factory` or `package.module:factory`; this runs the user's code."""
    factory = import_reference(reference, error=NetworkError)
    if not callable(factory):
        raise NetworkError(
            f"{reference} is {type(factory).__name__}, which cannot be called",
            hint="Expected a class or a function that returns a torch.nn.Module.",
        )
    found: Callable[..., Any] = factory
    return found
