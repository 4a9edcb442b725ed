"""The commands as functions on files, and the values that they take: `rebasin_cli.pipeline`."""

from __future__ import annotations

from .align import align
from .barrier import barrier
from .eval import evaluate
from .job.averaging import Average
from .job.listener import Listener
from .job.outputs import Output, Written
from .job.settings import Data, Loading, Network, Repair, Search
from .merge import merge
from .train import train

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
