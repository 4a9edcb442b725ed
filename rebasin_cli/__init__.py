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
    "average": "api",
    "barrier": "measure.report",
    "distill": "repair",
    "doctor": "measure.diagnosis",
    "compare": "measure.comparison",
    "elements": "symmetry.elements:",
    "fit": "spec.fits",
    "infer_spec": "inference:infer",
    "kin": "measure.kin",
    "load_spec": "spec.library:load",
    "merge": "api",
    "over_pairs": "measure.intervals",
    "open_checkpoint": "checkpoints.checkpoint",
    "permutation": "symmetry.permutation:",
    "pipeline": "commands.pipeline:",
    "prove": "proof.prove",
    "refit": "repair",
    "renormalize": "repair",
    "reset": "repair",
    "signature": "measure.signatures",
    "stability": "measure.signatures",
    "temperature": "repair",
    "write_safetensors": "checkpoints.writer",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place, colon, attribute = _WHERE[name].partition(":")
    module = import_module(f".{place}", __name__)
    if colon and not attribute:  # the module itself
        return module
    return getattr(module, attribute or name)
