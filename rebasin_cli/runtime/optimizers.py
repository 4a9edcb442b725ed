"""Optimizers of PyTorch that do without its compiler, which takes two seconds to import.

A first step imports it only to tell it that it is to leave the optimizer alone. Nothing is compiled here.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, TypeVar

import torch

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)
KEPT_OFF = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def make(kind: type[Kind], parameters: Any, **options: Any) -> Kind:
    """`kind(parameters, **options)`, which computes the same and imports no compiler."""
    return _uncompiled(kind)(parameters, **options)


@cache
def _uncompiled(kind: type[Kind]) -> type[Kind]:
    """`kind` without what PyTorch wraps its methods in. A version that wraps others imports the compiler."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in KEPT_OFF}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), methods)
