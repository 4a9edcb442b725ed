"""Packages of networks that only benchmarks need."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch


def torchvision() -> ModuleType:
    """The package; where its compiled part does not fit the torch that is here, without it."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:  # it describes operators that nobody has defined
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")
        return importlib.import_module("torchvision")
