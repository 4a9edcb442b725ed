"""The commands as functions on files: `rebasin_cli.pipeline`."""

from __future__ import annotations

from .align import align
from .barrier import barrier
from .eval import evaluate
from .merge import merge
from .train import train

__all__ = ["align", "barrier", "evaluate", "merge", "train"]
