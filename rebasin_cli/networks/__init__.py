"""A network to run tensors through: where it comes from, and how tensors get into it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from .. import nets
from ..checkpoints.wrappers import WRAPPERS
from ..errors import CheckpointError, NetworkError, UsageError
from ..registry import unnamed, user_code
from ..spec.spec import Spec
from ..types import Shapes
from . import caches, hub
from .state import duplicate
from .tied import absent, check_equal, groups

COMPILED = WRAPPERS[0]  # the name that torch.compile gives to what it wraps
FACTORY = (
    "Expected a function that takes nothing, or the tensors' shapes by name, and returns a torch.nn.Module: "
    "def net(): return MyNetwork(width=64)"
)


def resolve(
    reference: str | None, spec: Spec, shapes: Shapes, *, trust_code: bool = False
) -> nn.Module | None:
    """The network of these tensors, None where neither the user nor the spec names one.

    `reference` (`file.py:factory`, `package.module:factory`, or a built-in name such as "mlp") beats
    the spec's own. Raises UsageError if the spec wants to import code from elsewhere without
    `trust_code`, NetworkError if the factory fails or builds something else.
    """
    if (name := reference or spec.net) is None:
        return None
    if reference is None and nets.own_factory(name) is None and not (trust_code or hub.is_name(name)):
        raise UsageError(
            f"{spec.source} names the network {spec.net}, which would import and run that code",
            hint=f"Allow it with --trust-code, or say so yourself: --net {spec.net}",
        )
    return from_reference(name, shapes)


def from_reference(name: str, shapes: Shapes | None) -> nn.Module:
    """The network that a factory, or one of ours, builds: for these tensors, where there are some."""
    if hub.is_name(name):
        network = hub.build(name, shapes)
        if shapes is not None:
            check(network, shapes, name)
        return network
    if name in nets.variants() and shapes is None:
        raise UsageError(f"{name} is a family of networks", hint="Give a checkpoint to say how large")
    factory = nets.variants()[name].from_shapes if name in nets.variants() else _factory(name)
    network = _call(factory, name, shapes or {})
    if shapes is not None:
        check(network, shapes, name)
    return network


def ties(name: str, shapes: Shapes) -> list[tuple[str, ...]]:
    """The names of each tensor that a network has under several; it need not fit these shapes."""
    if hub.is_name(name):
        return hub.ties(name, shapes)
    if name in nets.variants():
        return []
    return groups(_call(_factory(name), name, shapes))


def _factory(name: str) -> Callable[..., Any]:
    if name.endswith(".py"):
        raise unnamed(name, "--net", "factory", FACTORY)
    if ":" not in name:
        nets.build(name, input_shape=(), classes=0)  # an unknown name: raises with the nearest ones
    return nets.own_factory(name) or nets.resolve(name)


def _call(factory: Callable[..., Any], name: str, shapes: Shapes) -> nn.Module:
    """`factory(shapes)` where it takes an argument, `factory()` where it takes none."""
    if isinstance(factory, nn.Module):
        raise NetworkError(f"{name} is a network, expected a function that returns one", hint=FACTORY)
    with user_code(f"{name} failed to build the network", hint=FACTORY):
        parameters = inspect.signature(factory).parameters.values()
        wanted = any(
            p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
            for p in parameters
        )
        network = factory(dict(shapes)) if wanted else factory()
    if not isinstance(network, nn.Module):
        raise NetworkError(
            f"{name} returned {type(network).__name__}, expected a torch.nn.Module", hint=FACTORY
        )
    if "_modules" not in vars(network):
        return network  # told where it is asked for its tensors
    with user_code(f"{name} does not say what it is made of"):
        return unwrapped(network)


def unwrapped(network: nn.Module) -> nn.Module:
    """A network without what compiles it, shares it among devices or keeps its average.

    Checkpoints are read without what these put before names, too (`checkpoints.wrappers`).
    """
    around = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
    while isinstance(network, around) or COMPILED in network._modules:
        network = network.get_submodule("module" if isinstance(network, around) else COMPILED)
    for parent in [*network.modules()]:
        for name, child in parent.named_children():
            if COMPILED in child._modules:
                parent._modules[name] = unwrapped(child)
    return network


def check_values(network: nn.Module, name: str = "the network") -> None:
    """Raise NetworkError that lists every tensor that has no values, since it is on the meta device."""
    with user_code(f"{name} does not say which tensors it has"):
        own = (*network.named_parameters(), *network.named_buffers())
    if lazy := [n for n, tensor in own if is_lazy(tensor)]:
        raise NetworkError(
            f"{name} has lazy layers, whose shapes are not known before it has run",
            problems=[f"{key}  has no shape" for key in lazy],
            hint="Run it once where it is built: def net(): network = Net(); "
            "network(torch.zeros(1, 3, 32, 32)); return network",
        )
    empty = [n for n, tensor in own if tensor.is_meta]
    if empty:
        raise NetworkError(
            f"{name} is on the meta device, where tensors have no values",
            problems=[f"{key}  has none" for key in empty],
            hint="Build it on the CPU; its values are replaced by those of the checkpoints",
        )


def check(network: nn.Module, shapes: Shapes, name: str = "the network") -> None:
    """Raise NetworkError that lists every tensor on which network and checkpoint differ.

    A name whose tensor the checkpoint has under another one is not missing. UsageError for what is no
    network.
    """
    if not isinstance(network, nn.Module):
        raise UsageError(f"{name} is of type {type(network).__name__}, not a torch.nn.Module")
    check_values(network, name)
    with user_code(f"{name} does not say which tensors it has"):
        state = network.state_dict()
        own = {key: tuple(tensor.shape) for key, tensor in state.items()}
    if problems := differences(network, own, shapes):
        found = f"{name} is not the network of this checkpoint"
        raise NetworkError(found, problems=problems, hint=_within(own, shapes))


def _within(own: Shapes, shapes: Shapes) -> str | None:
    """The next step where a checkpoint holds all tensors of the network, and others, below one name."""
    first = next(iter(own), "")
    for prefix in (name.removesuffix(first) for name in shapes if name.endswith(f".{first}")):
        if all(tuple(shapes.get(prefix + key, ())) == tuple(shape) for key, shape in own.items()):
            return (
                f"The checkpoint has all of it below {prefix!r}, beside other tensors: name the network that "
                "holds it there, such as the whole LightningModule"
            )
    return None


def differences(network: nn.Module, own: Shapes, shapes: Shapes) -> list[str]:
    """Every tensor on which a network, whose tensors are its `own`, and a checkpoint differ."""
    missing = own.keys() - shapes.keys() - absent(network, shapes).keys()
    problems = [f"{key}  is in the network, not in the checkpoint" for key in own if key in missing]
    problems += [f"{key}  is in the checkpoint, not in the network" for key in shapes if key not in own]
    problems += [
        f"{key}  is {own[key]} in the network, {tuple(shapes[key])} in the checkpoint"
        for key in own
        if key in shapes and own[key] != tuple(shapes[key])
    ]
    return problems


def load(network: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """Copy tensors into the network, in place and one at a time; of tied ones, one name is enough.

    What it kept of the tensors that it had, as far as that is known, is dropped.

    Raises CheckpointError for values beyond the range of the network's dtype, and for tensors that differ
    where the network has one.
    """
    caches.drop(network)
    check_equal(network, tensors)
    known = absent(network, tensors)
    with torch.no_grad():
        for name, own in network.state_dict().items():
            if name in known:
                continue
            tensor = tensors[name]
            own.copy_(tensor)
            wider = tensor.is_floating_point() and tensor.dtype.itemsize > own.dtype.itemsize
            if wider and (beyond := own.isinf().to(tensor.device) & tensor.isfinite()).any():
                raise CheckpointError(
                    f"{name} holds {tensor[beyond].flatten()[0].item():g}, more than "
                    f"{str(own.dtype).removeprefix('torch.')} holds, which the network computes in",
                    hint="Check the model's weights",
                )
    return network


def on(network: nn.Module, device: str | torch.device) -> nn.Module:
    """The network itself if it is on the device, else a copy that is: the caller's own stays where it was."""
    there = torch.device(device)
    places = {tensor.device for tensor in (*network.parameters(), *network.buffers())}
    return network if places <= {there} else duplicate(network).to(there)


def running_norms(network: nn.Module) -> dict[str, _NormBase]:
    """The norms that keep running statistics in training, by name; frozen ones have no momentum."""
    return {name: module for name, module in network.named_modules() if _keeps_statistics(module)}


def _keeps_statistics(module: nn.Module) -> TypeGuard[_NormBase]:
    """Whether it is a norm with running statistics, or has all that those have."""
    return getattr(module, "running_mean", None) is not None and hasattr(module, "momentum")


def has_running_statistics(network: nn.Module) -> bool:
    return bool(running_norms(network))


def example_inputs(network: nn.Module, generator: torch.Generator, *, batch: int = 2) -> Any:
    """Random inputs of the shape that the network says it takes; None where it says none.

    Whole numbers where it also says what these are below.
    """
    if (drawn := hub.example(network, generator)) is not None:
        return drawn
    shape, below = getattr(network, "example_shape", None), getattr(network, "example_below", None)
    if shape is None:
        return None
    if below is not None:
        return torch.randint(below, (batch, *shape), generator=generator)
    return torch.rand(batch, *shape, generator=generator, dtype=torch.float64)


def batch_of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """One batch of these arguments: a tuple of them, or everything by keyword.

    Raises NetworkError where `forward` does not take them, UsageError where neither form can hold them.
    """
    if not kwargs:
        return args
    if not args:
        return dict(kwargs)
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError) as cause:
        raise NetworkError(f"the inputs do not fit the network's forward: {cause}") from None
    if not bound.kwargs:  # all can be given by position
        return bound.args
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) and p.name in bound.arguments for p in parameters):
        raise UsageError("some inputs go by position only and others by name, which cannot be proven")
    named = {p.name: bound.arguments[p.name] for p in parameters if p.name in bound.arguments}
    for p in parameters:
        if p.kind is p.VAR_KEYWORD:
            named |= named.pop(p.name, {})
    return named
