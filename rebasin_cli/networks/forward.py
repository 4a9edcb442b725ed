"""A network run on one batch: in evaluation mode, given what it computes in, and its failures told."""

from __future__ import annotations

import inspect
import logging
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..datasets.batches import describe, map_tensors, tensors_in, to_device
from ..errors import DataError, NetworkError, RebasinError
from ..registry import user_code

log = logging.getLogger("rebasin")


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode, and each module's own mode back afterwards (frozen norms stay frozen)."""
    with user_code("the network cannot be put into evaluation mode"):
        modes = {module: module.training for module in network.modules()}
        network.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def call(network: Callable[..., Any], inputs: Any, *, output: str | int | None = None) -> Tensor:
    """One output of `forward`, which has to be a tensor. Raises NetworkError."""
    return select(forward(network, inputs), output)


def returned(network: Callable[..., Any], inputs: Any, *, output: str | int | None = None) -> Any:
    """All that `forward` returns, or what `output` picks of it, of any structure. Raises NetworkError."""
    return pick(forward(network, inputs), output)


# What a norm says of a batch that has one value a channel.
ALONE = ("Expected more than 1 value per channel", "one value a channel has no variance")


def forward(network: Callable[..., Any], inputs: Any) -> Any:
    """`network(inputs)`, a dict as keywords, a tuple as arguments. Raises NetworkError if it fails.

    DataError where the batch is one sample, of which norms that measure it have no variance.
    """
    try:
        with _unwritten(network, inputs) as given:
            args, kwargs = arguments_of(given)
            with user_code(
                lambda: f"the network fails on inputs {describe(inputs)}",
                hint=lambda: _not_taken(network, kwargs),
            ):
                return network(*args, **kwargs)
    except NetworkError as error:
        if any(said in error.message for said in ALONE):
            raise needs_two(describe(inputs)) from error
        raise


def _not_taken(network: Callable[..., Any], given: Mapping[str, Any]) -> str | None:
    """The next step where `forward` has no parameters of some of these names."""
    try:
        known = inspect.signature(getattr(network, "forward", network)).parameters
    except (TypeError, ValueError):  # it does not say
        return None
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return None
    if not (others := [name for name in given if name not in known]):
        return None
    return f"Its forward takes {', '.join(known)}: leave {' and '.join(map(str, others))} out of the batches"


_writers: weakref.WeakKeyDictionary[Callable[..., Any], bool] = weakref.WeakKeyDictionary()


def writes(network: Callable[..., Any]) -> bool | None:
    """Whether a network writes into its inputs; None where it was not run yet."""
    return _writers.get(network)


def apart(network: Callable[..., Any], inputs: Any) -> Any:
    """The inputs, or copies for a network that may write into them: others read them after it."""
    return inputs if writes(network) is False else map_tensors(Tensor.clone, inputs)


def versions(tensors: Iterable[Tensor]) -> list[int | None]:
    """How often each was written to; None of one that does not say."""
    return [None if tensor.is_inference() else tensor._version for tensor in tensors]


@contextmanager
def _unwritten(network: Callable[..., Any], inputs: Any) -> Iterator[Any]:
    """`apart`; the first run tells whether it has to be. Raises NetworkError for what writes only later."""
    known = writes(network)
    if known:
        yield apart(network, inputs)
        return
    own = [*tensors_in(inputs)]
    with torch.no_grad():
        before, copies = versions(own), [] if known is False else [tensor.clone() for tensor in own]
    try:
        yield inputs
    finally:
        wrote = versions(own) != before
        for tensor, copy, version in zip(own, copies, before):  # noqa: B905 (none where it is known)
            changed = not torch.equal(tensor, copy) if version is None else tensor._version != version
            if changed:
                wrote = True
                with torch.no_grad():
                    tensor.copy_(copy)
        if known is None:
            _writers[network] = wrote
    if wrote and known is False:
        raise NetworkError(
            f"the network writes into its inputs {describe(inputs)}, and did not at first",
            hint="Whoever reads them after it sees other values: let it write into a copy, x = x.clone()",
        )


def needs_two(found: str) -> DataError:
    """What to say where norms measure batches, and there is none of two samples."""
    return DataError(
        f"a batch is one sample, of which the network's norms have no variance: inputs {found}",
        hint="Give batches of two or more: --batch-size 32, or in your loader (drop_last=True where one "
        "is left over)",
    )


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a batch."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def inputs_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The batch that has these arguments, where it is one or has them all by keyword; else a tuple."""
    return kwargs or (args[0] if len(args) == 1 else args)


def check_runs(network: nn.Module, inputs: Any) -> None:
    """Raise NetworkError where the network as it is fails on these inputs: tracing has no part in it then."""
    with evaluating(network), torch.no_grad():
        forward(network, inputs)


def pick(outputs: Any, output: str | int | None) -> Any:
    """Part of what a network returned, as it is: KEY of a mapping or attribute, INDEX of a tuple; None: all.

    Raises NetworkError where there is no such part.
    """
    if output is None:
        return outputs
    key = int(output) if isinstance(output, str) and re.fullmatch("-?[0-9]{1,9}", output) else output
    try:
        if isinstance(key, str) and not isinstance(outputs, Mapping):
            return getattr(outputs, key)
        return outputs[key]
    except (KeyError, IndexError, TypeError, AttributeError) as cause:
        raise NetworkError(f"the network returns {describe(outputs)}, which has no {output!r}") from cause


def select(outputs: Any, output: str | int | None) -> Tensor:
    """What `pick` picks, which has to be one tensor. Raises NetworkError."""
    chosen = pick(outputs, output)
    if not isinstance(chosen, Tensor):
        raise NetworkError(
            f"the network returns {describe(chosen)}; expected one tensor of logits",
            hint="Choose one of several outputs with --output KEY or --output INDEX.",
        )
    return chosen


# What was decided for a network: by the types of its inputs, whether their integers become floats.
_decided: weakref.WeakKeyDictionary[nn.Module, dict[Any, bool]] = weakref.WeakKeyDictionary()


def fed(
    network: nn.Module,
    inputs: Any,
    device: str | torch.device,
    *,
    wanted: torch.dtype | None = None,
    quiet: bool = False,
) -> Any:
    """A batch of a loader's as `network`, already on `device`, takes it: there, and in its floating dtype.

    numpy makes float64, and networks here are mostly float32. Integers stay where the network runs on them
    (token numbers); where it only runs on floats they are converted, unscaled. What is converted is logged
    once a network, unless `quiet`. Who knows its dtype gives it as `wanted`. Raises DataError for values that
    are beyond the dtype's range.
    """
    inputs = to_device(inputs, device)
    if isinstance(inputs, Tensor) and inputs.dtype == wanted:
        return inputs
    if wanted is None:
        wanted = next((t.dtype for t in _tensors_of(network) if t.is_floating_point()), None)
    kinds = tuple(tensor.dtype for tensor in tensors_in(inputs))
    if wanted is None or all(kind == wanted for kind in kinds):
        return inputs
    known = _decided.setdefault(network, {})
    if (wanted, kinds) not in known:
        known[wanted, kinds] = _integers_fail(network, inputs, wanted)
        changed = [k for k in kinds if k.is_floating_point and k != wanted]
        changed += [k for k in kinds if known[wanted, kinds] and _whole(k)]
        if changed and not quiet:
            names = " and ".join(dict.fromkeys(map(_short, changed)))
            log.info("inputs of %s are converted to %s, as the network computes in it", names, _short(wanted))
    return _cast(inputs, wanted, integers=known[wanted, kinds])


def _tensors_of(network: nn.Module) -> Iterator[Tensor]:
    yield from network.parameters()
    yield from network.buffers()


def _whole(kind: torch.dtype) -> bool:
    return not (kind.is_floating_point or kind.is_complex)  # also of booleans: a mask stays, pixels do not


def _short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _integers_fail(network: nn.Module, inputs: Any, wanted: torch.dtype) -> bool:
    """Whether integers among the inputs have to be floats: the network fails on them, and then no more."""
    if not any(_whole(tensor.dtype) for tensor in tensors_in(inputs)):
        return False
    return not _runs(network, _cast(inputs, wanted, integers=False)) and _runs(
        network, _cast(inputs, wanted, integers=True)
    )


def _runs(network: nn.Module, inputs: Any) -> bool:
    try:
        check_runs(network, inputs)
    except RebasinError:
        return False
    return True


def _cast(inputs: Any, wanted: torch.dtype, *, integers: bool) -> Any:
    def cast(tensor: Tensor) -> Tensor:
        if tensor.dtype == wanted or not (tensor.is_floating_point() or (integers and _whole(tensor.dtype))):
            return tensor
        values = tensor.to(wanted)
        if torch.finfo(wanted).max < (torch.finfo(tensor.dtype).max if tensor.is_floating_point() else 0):
            if (beyond := values.isinf() & tensor.isfinite()).any():
                raise DataError(
                    f"the data has inputs of {tensor[beyond][0].item():g}, "
                    f"more than {_short(wanted)} holds, which the network computes in"
                )
        return values

    return map_tensors(cast, inputs)
