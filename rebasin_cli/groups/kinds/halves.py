"""No order, and a complex number for units j and j + n/2: an angle and a scale."""

import torch

from ..planes import Planes


class Halves(Planes):
    told = "an angle and a scale for each unit and the one half an axis on"

    def units(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(n // 2), torch.arange(n // 2, n)


GROUP = Halves()
