"""The commands on files, `rebasin_cli.pipeline`: what each is asked as a value, and what does it.

pipeline.merge(pipeline.Merge(models=(a, b), method="am", data="mnist"))
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..registry import operations
from ..session.listener import Listener
from .align import Align
from .align import run as _align
from .barrier import Barrier
from .barrier import run as _barrier
from .eval import Eval
from .eval import run as _evaluate
from .merge import Merge
from .merge import run as _merge
from .train import Train
from .train import run as _train
from .verify import Verify
from .verify import run as _verify

T = TypeVar("T")


def _of_checked(run: Callable[..., T]) -> Callable[..., T]:
    """The same for values that somebody made by hand: texts are paths, and wrong types a UsageError."""

    @functools.wraps(run)
    def call(asked: Any, *others: Any, **more: Any) -> T:
        return run(operations.checked(asked), *others, **more)

    return call


align, barrier, evaluate = _of_checked(_align), _of_checked(_barrier), _of_checked(_evaluate)
merge, train, verify = _of_checked(_merge), _of_checked(_train), _of_checked(_verify)

__all__ = [
    "Align",
    "Barrier",
    "Eval",
    "Listener",
    "Merge",
    "Train",
    "Verify",
    "align",
    "barrier",
    "evaluate",
    "merge",
    "train",
    "verify",
]
