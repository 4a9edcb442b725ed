"""Optimizers of PyTorch that do without its compiler, which takes two seconds to import.

A first step imports it only to tell it that it is to leave the optimizer alone. Nothing is compiled here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)
KEPT_OFF = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
_uncompiled: dict[type, Callable[..., Any]] = {}


def make(kind: type[Kind], parameters: Any, **options: Any) -> Kind:
    """`kind(parameters, **options)`, which computes the same and imports no compiler.

    It is of a class below `kind` whose methods are without what PyTorch wraps them in. A version of PyTorch
    that wraps others imports the compiler.
    """
    if kind not in _uncompiled:
        methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in KEPT_OFF}
        methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
        _uncompiled[kind] = type(kind.__name__, (kind,), methods)
    made: Kind = _uncompiled[kind](parameters, **options)
    return made
