"""How many multiplications a pass takes, by PyTorch's formulas for its operations.

PyTorch's own counter would have its compiler imported first, which takes as long as many a search.
"""

from __future__ import annotations

from typing import Any

from torch._ops import HigherOrderOperator
from torch.utils.flop_counter import flop_registry

from ...inference.float64 import Uncompiled


class Counter(Uncompiled):
    """While it lasts, this thread's multiplications are counted in `total`, those of products alone."""

    supports_higher_order_operators = True  # though nothing in them is counted

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    @property
    def total(self) -> float:
        return self.flops / 2

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is None:  # made of others, maybe
            with self:
                made = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if made is NotImplemented else made
        out = func(*args, **kwargs)
        self.flops += formula(*args, **kwargs, out_val=out)
        return out
