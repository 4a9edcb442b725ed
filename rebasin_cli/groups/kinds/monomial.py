"""Any order, and each unit times any number but 0; a balance leaves orders and signs of it."""

import torch

from ..group import Scaled, Signed, scales


class Monomial(Signed, Scaled):
    told = "any order, signs and scales"

    def drawn(self, n: int, rng: torch.Generator, *, balanced: bool = False) -> torch.Tensor:
        signs = Signed.drawn(self, n, rng)
        return signs if balanced else signs * scales(n, rng)

    def wrong(self, map_: torch.Tensor) -> str:
        return "has factors that are not monomial" if bool((map_ == 0).any()) else ""


GROUP = Monomial()
