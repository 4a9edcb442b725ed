"""The commands on files, `rebasin_cli.pipeline`: what each is asked as a value, and what does it.

pipeline.merge(pipeline.Merge(models=(a, b), method="am", data="mnist"))
"""

from __future__ import annotations

from ..session.listener import Listener
from ..session.subjects import Data, Loading, Network, Repair, Search
from .align import Align
from .align import run as align
from .barrier import Barrier
from .barrier import run as barrier
from .eval import Eval
from .eval import run as evaluate
from .merge import Merge
from .merge import run as merge
from .train import Train
from .train import run as train
from .verbs.outputs import Output, Written
from .verify import Verify
from .verify import run as verify

__all__ = [
    "Align",
    "Barrier",
    "Data",
    "Eval",
    "Listener",
    "Loading",
    "Merge",
    "Network",
    "Output",
    "Repair",
    "Search",
    "Train",
    "Verify",
    "Written",
    "align",
    "barrier",
    "evaluate",
    "merge",
    "train",
    "verify",
]
