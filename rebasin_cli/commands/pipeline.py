"""The commands as functions on files, and the values that they take: `rebasin_cli.pipeline`."""

from __future__ import annotations

from ..session.listener import Listener
from ..session.subjects import Data, Loading, Network, Repair, Search
from .align import align
from .barrier import barrier
from .eval import evaluate
from .merge import merge
from .merging.average import Average
from .train import train
from .verbs.outputs import Output, Written

__all__ = [
    "Average",
    "Data",
    "Listener",
    "Loading",
    "Network",
    "Output",
    "Repair",
    "Search",
    "Written",
    "align",
    "barrier",
    "evaluate",
    "merge",
    "train",
]
