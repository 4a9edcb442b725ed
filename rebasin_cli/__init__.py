"""rebasin: git merge for neural networks. The command line is `rebasin`; the library is below.

`align`, `merge` and `barrier` work on tensors, networks and batches in memory; `pipeline` has the same
on files. Importing this package imports nothing heavy: names are loaded when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "Alignment": "api",
    "Merged": "api",
    "MatchResult": "matchers",
    "Report": "reports",
    "RebasinError": "errors",
    "align": "api",
    "barrier": "measuring",
    "doctor": "diagnosis",
    "compare": "analysis.comparison",
    "fit": "spec.fitting",
    "infer_spec": "spec.infer:infer",
    "load_spec": "spec.library:load",
    "merge": "api",
    "over_pairs": "certainty",
    "open_checkpoint": "checkpoint",
    "prove": "spec.prove",
    "renormalize": "repair",
    "reset": "repair",
    "signature": "signatures",
    "stability": "signatures",
    "temperature": "repair",
    "write_safetensors": "writing",
}

_MODULES = ("permutation", "pipeline")

__all__ = sorted([*_WHERE, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    return getattr(import_module(f".{module}", __name__), attribute or name)
