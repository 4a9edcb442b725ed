"""Everything in float64, also where a network asks for less.

Many networks compute norms, rotary tables or softmaxes "in float32": `x.float()`, `x.to(torch.float32)`. In a
float64 copy of such a network half of the digits would be lost on the way, and a proof could no longer tell
rounding from a mistake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HIGH = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """While it lasts, this thread's casts to a lower precision, and new tensors of one, are float64.

    So is what is computed from tensors that are of a lower precision already, such as tables that a module
    keeps without registering them; such a table that is written into keeps its own precision.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # for `torch.zeros(3)` and integers divided by integers
    try:
        with _Raising():
            yield
    finally:
        torch.set_default_dtype(before)


class Uncompiled(TorchDispatchMode):
    """A mode that PyTorch need not keep its compiler off: nothing is compiled here."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch's own has no hints

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Or else PyTorch imports its compiler, which takes two seconds, to keep it off.

        A private question of PyTorch's: a version that does not ask it imports the compiler.
        """
        return False


def tensors_among(given: Any) -> list[torch.Tensor]:
    """The tensors among what an operation was given, or gave: in lists and tuples, and by name.

    Of a small network a walk that also looks for containers of other packages would take a third of the time.
    """
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, dict):
        given = given.values()
    elif not isinstance(given, (tuple, list)):
        return []
    found: list[torch.Tensor] = []
    for value in given:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list, dict)):
            found += tensors_among(value)
    return found


class _Raising(Uncompiled):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raised = _raise_all if _pure(func) else _raise_dtype
        return func(*_each(raised, args), **{name: raised(value) for name, value in (kwargs or {}).items()})


def _each(function: Callable[[Any], Any], values: Any) -> list[Any]:
    return [_each(function, one) if isinstance(one, (tuple, list)) else function(one) for one in values]


@cache
def _pure(func: Any) -> bool:
    """Whether its results share no memory with what it reads: a copy may be read instead."""
    return all(argument.alias_info is None for argument in func._schema.arguments)


def _raise_dtype(value: Any) -> Any:
    return HIGH.get(value, value) if isinstance(value, torch.dtype) else value


def _raise_all(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in HIGH:
        return value.to(HIGH[value.dtype])
    return _raise_dtype(value)
