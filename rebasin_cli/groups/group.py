"""What a group says of itself."""

from __future__ import annotations

import torch

CLOSE = 1e-6  # how far from a rotation an element may be that claims to be one
SINGULAR = 1e-12  # of the largest singular value: a smaller one has no inverse

Both = tuple[torch.Tensor, torch.Tensor]


class Group:
    """Any order, and no more; other groups say what is different.

    An element is an order of the units, where there is one, and then a map: a number a unit (n,), or with
    `matrix` one matrix (n, n), of a starred word one for each block. All is float64.
    """

    told = ""  # what it is, in a few words, behind the word's name
    permutes = True  # all orders are in it; else units keep their places
    matrix = False  # units are added up; an order is part of the matrix
    more = False  # once a model is balanced, matching finds a map, and not an order alone
    balances = False  # it changes norms, so that a balance comes first

    @property
    def ordered(self) -> bool:
        """Whether its elements have an order beside their map."""
        return self.permutes and not self.matrix

    def unfit(self, n: int) -> str:
        """Why it cannot act on n units; empty where it can."""
        return ""

    def nearest(self, similarity: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """The maps with the largest inner products with `similarity`, and these.

        Of a number a unit: of every pair of units (…) by itself. Of matrices: of (…, n, n), worth (…). None
        where no map is found.
        """
        return None, similarity

    def drawn(self, n: int, rng: torch.Generator, *, balanced: bool = False) -> torch.Tensor | None:
        """A random map of n units, scales in 0.5 … 2; `balanced`: that leaves a model balanced."""
        return None

    def wrong(self, map_: torch.Tensor) -> str:
        """What keeps finite numbers of the right shape from being a map of this group; empty: nothing."""
        return "has a map, and the spec gives it permutations only"

    def balance(self, x: torch.Tensor, q: torch.Tensor) -> torch.Tensor | None:
        """The map that makes both sides (…, n, k) of a product alike; None where they are singular."""
        raise NotImplementedError

    def learnt(self, n: int) -> tuple[int, ...] | None:
        """The shape of the free numbers that a map of n units is learned by; None: it is not learned."""
        return None

    def learned(self, numbers: torch.Tensor) -> Both:
        """The map of such numbers, and its inverse transposed, with a gradient; 0 is the identity."""
        raise NotImplementedError


class Signed(Group):
    """A sign a unit."""

    more = True

    def nearest(self, similarity: torch.Tensor) -> Both:
        return torch.where(similarity < 0, -1.0, 1.0).double(), similarity.abs()

    def drawn(self, n: int, rng: torch.Generator, *, balanced: bool = False) -> torch.Tensor:
        return torch.randint(0, 2, (n,), generator=rng).double() * 2 - 1

    def wrong(self, map_: torch.Tensor) -> str:
        return "has factors that are not signed" if bool((map_.abs() != 1).any()) else ""


class Scaled(Group):
    """A positive number a unit."""

    balances = True

    def drawn(self, n: int, rng: torch.Generator, *, balanced: bool = False) -> torch.Tensor | None:
        return None if balanced else scales(n, rng)

    def wrong(self, map_: torch.Tensor) -> str:
        return "has factors that are not scaled" if bool((map_ <= 0).any()) else ""

    def balance(self, x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """√(‖out‖ / ‖in‖) of each unit; 1 where either is 0."""
        a, b = x.norm(dim=-1), q.norm(dim=-1)
        return torch.where((a > 0) & (b > 0), (b / a.clamp_min(1e-300)).sqrt(), 1.0)

    def learnt(self, n: int) -> tuple[int, ...]:
        return (n,)

    def learned(self, numbers: torch.Tensor) -> Both:
        return numbers.exp(), (-numbers).exp()


class Rotations(Group):
    """Any rotation or reflection of all units together."""

    matrix = more = True

    def nearest(self, similarity: torch.Tensor) -> Both:
        """Orthogonal Procrustes, Schönemann 1966: worth the nuclear norm."""
        u, values, v = torch.linalg.svd(similarity)
        return u @ v, values.sum(-1)

    def drawn(self, n: int, rng: torch.Generator, *, balanced: bool = False) -> torch.Tensor:
        found: torch.Tensor = torch.linalg.qr(torch.randn(n, n, generator=rng, dtype=torch.float64)).Q
        return found

    def wrong(self, map_: torch.Tensor) -> str:
        eye = torch.eye(map_.shape[-1], dtype=torch.float64)
        far = float((map_ @ map_.mT - eye).abs().max())
        return "has a map that is no rotation" if far > CLOSE else ""

    def learnt(self, n: int) -> tuple[int, ...]:
        return (n, n)

    def learned(self, numbers: torch.Tensor) -> Both:
        """Cayley's map of a skew matrix, (I − S/2)⁻¹ (I + S/2)."""
        skew = (numbers - numbers.mT) / 2
        eye = torch.eye(skew.shape[-1], dtype=skew.dtype, device=skew.device)
        turned = torch.linalg.solve(eye - skew, eye + skew)
        return turned, turned


def scales(n: int, rng: torch.Generator) -> torch.Tensor:
    return torch.exp2(torch.rand(n, generator=rng, dtype=torch.float64) * 2 - 1)


def singular(map_: torch.Tensor) -> str:
    values = torch.linalg.svdvals(map_)
    return "has a singular map" if bool((values[..., -1] <= SINGULAR * values[..., 0]).any()) else ""
