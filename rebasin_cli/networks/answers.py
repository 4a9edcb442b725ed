"""What a network answered to a batch, kept: several figures are of the same outputs."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn

from ..datasets.batches import tensors_in
from .folding import folded
from .forward import inputs_of
from .layout import Wrapper, in_parts

MOST = 256 << 20  # bytes of outputs


class Recording(Wrapper):
    """`network`, on its chosen output; a batch that comes again (the very tensor) is answered from memory.

    Of no use any more once a tensor of the network changes.
    """

    def __init__(self, network: nn.Module, output: str | int | None):
        super().__init__()
        self.network, self.output, self.bytes = network, output, 0
        self._known: dict[int, tuple[weakref.ref[Tensor], Any]] = {}

    def known(self, inputs: Any) -> Any:
        """The answer to a batch that was seen before, None to another."""
        found = self._known.get(id(inputs))
        return found[1] if found is not None and found[0]() is inputs else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        alone = args[0] if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) else None
        if alone is not None and (before := self.known(alone)) is not None:
            return before
        inputs = inputs_of(args, kwargs)
        with folded(self.network, inputs, self.output):
            answer = in_parts(self.network, inputs, self.output)
        size = sum(t.numel() * t.element_size() for t in tensors_in(answer))
        if size and alone is not None and self.bytes + size <= MOST:
            self._known[id(alone)] = (weakref.ref(alone), answer)
            self.bytes += size
        return answer
