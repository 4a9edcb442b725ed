"""No order, and a complex number for each two neighbours 2j, 2j + 1: an angle and a scale."""

import torch

from ..planes import Planes


class Pairs(Planes):
    told = "an angle and a scale for each two neighbours"

    def units(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(0, n, 2), torch.arange(1, n, 2)


GROUP = Pairs()
