"""How many multiplications a pass takes, by PyTorch's formulas for its operations.

PyTorch's own counter would have its compiler imported first, which takes as long as many a search.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import flop_registry

from ...graph.float64 import Uncompiled


def _recurrent(inputs: Any, *weights: Any, **_: Any) -> int:
    """Of layers whose two matrices are multiplied with every step of a sequence; of one, or of a list."""
    first = weights[0] if isinstance(weights[0], (list, tuple)) else weights[:2]
    return int(2 * inputs.shape[:-1].numel() * sum(w.numel() for w in first if w.ndim == 2))


RECURRENT = {torch.ops.aten.mkldnn_rnn_layer: _recurrent, torch.ops.aten._cudnn_rnn: _recurrent}


@contextmanager
def counted() -> Iterator[Counter]:
    """As `Counter`, with attention made of products that it knows, on any device.

    Its fused kernels differ from processor to processor, and tell nothing.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel([SDPBackend.MATH]), Counter() as counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class Counter(Uncompiled):
    """While it lasts, this thread's multiplications are counted in `total`, those of products alone."""

    supports_higher_order_operators = True  # though nothing in them is counted

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    @property
    def total(self) -> float:
        return self.flops / 2

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        formula = RECURRENT.get(func._overloadpacket) or flop_registry.get(func._overloadpacket)
        if formula is None:  # made of others, maybe
            with self:
                made = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if made is NotImplemented else made
        out = func(*args, **kwargs)
        self.flops += formula(*args, **kwargs, out_val=out)
        return out
