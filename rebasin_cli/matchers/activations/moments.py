"""What the units of two models have in common: sums over samples of them, of their squares and products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from types import ModuleType

import numpy as np
import torch

from ...runtime.ranks import Ranks

_moments: ModuleType | None
try:
    from . import _moments
except ImportError:  # built without a C compiler, or for another processor
    _moments = None

SLAB = 1 << 18  # numbers that are multiplied at once: few enough for a cache
CHUNK = 256  # samples whose products are added up as the values are, in float32; sums of those in float64
WIDE = 1024  # units, of which adding up products of chunks takes longer than float32 saves
TINY = 1e-30  # a sum of squares, below which float32 has too few digits for its parts
FLAT = 1e-12  # a variance below this share of the mean square is rounding: the unit is constant

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Moments:
    """Sums over samples of the units (n,) of two models, and of all pairs of them (n, n), in float64.

    What is added up are distances from each unit's mean on the first samples. So units far from 0 lose no
    digits, and products of a few samples may be of float32: of up to `WIDE` units that takes half the time,
    and changes correlations by 2e-6 at most, where other samples change the second digit. On a CPU the
    compiled `_moments` does that where float32 values lie sample by sample, else PyTorch
    (docs/decisions/0034-own-sums-of-activations.md).
    """

    samples: int
    origin: Pair | None  # what is subtracted: a value a unit
    off: Pair  # sums of what is left
    off_squares: Pair
    off_products: torch.Tensor  # unit of the reference × unit of the model

    @classmethod
    def none(cls, units: int, device: torch.device) -> Moments:
        def zeros() -> torch.Tensor:
            return torch.zeros(units, dtype=torch.float64, device=device)

        return cls(0, None, (zeros(), zeros()), (zeros(), zeros()), torch.outer(zeros(), zeros()))

    def add(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """Units × samples of both."""
        if not a.shape[1]:
            return
        if self.origin is None:
            self.origin = _origin(next(_slabs(a))), _origin(next(_slabs(b)))
        if not self._add_compiled(a, b):
            for parts in zip(*map(_slabs, (a, b)), strict=True):
                if not self._add_in_float32(*parts):
                    self._add_in_float64(*parts)
        self.samples += a.shape[1]

    def _add_compiled(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """As `_add_in_float32`, in one pass over values that lie sample by sample."""
        if _moments is None or len(a) > WIDE or not all(map(_by_sample, (a, b), self._taken_off)):
            return False
        off, squares, products = (np.zeros((rows, len(a))) for rows in (2, 2, len(a)))
        every = [it.detach().numpy() for it in (a.T, b.T, *self._taken_off)]
        _moments.add(*every, off, squares, products)
        return self._take((a, b), *map(torch.from_numpy, (off, squares, products)))

    def _add_in_float32(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """`CHUNK` samples at a time; nothing, and False, where float32 cannot tell."""
        if a.dtype == torch.float64 or len(a) > WIDE:
            return False
        pairs = zip((a, b), self._taken_off, strict=True)
        chunks = [_chunked(values.float() - at[:, None]) for values, at in pairs]
        off = [_total(part.sum(2) for part in parts) for parts in chunks]
        squares = [_total(torch.linalg.vecdot(part, part) for part in parts) for parts in chunks]
        products = _total(torch.bmm(x, y.mT) for x, y in zip(*chunks, strict=True))
        return self._take((a, b), off, squares, products)

    def _take(
        self,
        values: Pair,
        off: Iterable[torch.Tensor],
        squares: Iterable[torch.Tensor],
        products: torch.Tensor,
    ) -> bool:
        """Add these sums of `values`, (n, samples) each; not, and False, where float32 lost them."""
        if not all(map(_fits, squares, values, self._taken_off)):
            return False
        for mine, more in zip((*self.off, *self.off_squares), (*off, *squares), strict=True):
            mine.add_(more)
        self.off_products.add_(products)
        return True

    def _add_in_float64(self, a: torch.Tensor, b: torch.Tensor) -> None:
        pairs = zip((a, b), self._taken_off, strict=True)
        x, y = (values.double() - at[:, None].double() for values, at in pairs)
        for k, part in enumerate((x, y)):
            self.off[k].add_(part.sum(1))
            self.off_squares[k].add_(torch.linalg.vecdot(part, part))
        self.off_products.addmm_(x, y.T)

    def begin(self, ranks: Ranks, whose: int) -> None:
        """All ranks subtract what the rank `whose` does, which alone keeps what it has added.

        So each batch gives the same sums whoever sees it.
        """
        if self.origin is None:
            return
        a, b = (ranks.broadcast(part, source=whose) for part in self.origin)
        self.origin = a, b
        if ranks.rank != whose:
            self.samples = 0
            for part in (*self.off, *self.off_squares, self.off_products):
                part.zero_()

    def joined(self, ranks: Ranks) -> Moments:
        """The sums of all ranks, which have begun alike, on each."""
        rows = ranks.sum(torch.stack([*self.off, *self.off_squares]))
        samples = int(ranks.sum_float(self.samples))
        products = ranks.sum(self.off_products.clone())
        return Moments(samples, self.origin, (rows[0], rows[1]), (rows[2], rows[3]), products)

    def finite(self) -> bool:
        return all(bool(part.isfinite().all()) for part in (*self.off_squares, self.off_products))

    @property
    def sums(self) -> Pair:
        """Of both models' units (n,), as they are."""
        (a, b), (x, y) = self._origin, self.off
        return x + self.samples * a, y + self.samples * b

    @property
    def squares(self) -> Pair:
        """Sums of squares of both models' units (n,), as they are."""
        every = zip(self.off_squares, self.off, self._origin, strict=True)
        a, b = (squares + 2 * at * off + self.samples * at.square() for squares, off, at in every)
        return a, b

    @property
    def products(self) -> torch.Tensor:
        """Sums of products (n, n), unit of the reference × unit of the model, as they are."""
        (a, b), (x, y) = self._origin, self.off
        return self.off_products + torch.outer(a, y) + torch.outer(x, b) + self.samples * torch.outer(a, b)

    @property
    def _origin(self) -> Pair:
        a, b = self.off if self.origin is None else self.origin
        return a.double(), b.double()

    @property
    def _taken_off(self) -> Pair:
        if self.origin is None:
            raise LookupError("no sample was seen")
        return self.origin

    def inner(self) -> torch.Tensor:
        """Mean products, not centred."""
        return self.products / self.samples

    def l2(self) -> torch.Tensor:
        """Mean squared distances, negative: larger is better."""
        a, b = (square / self.samples for square in self.squares)
        return 2 * self.inner() - a[:, None] - b

    def spread(self) -> list[torch.Tensor]:
        """The standard deviations (n,) of both models' units; 0 for what is constant."""
        every = zip(self.off, self.off_squares, self.squares, strict=True)
        return [deviation(*sums, self.samples) for sums in every]

    def correlation(self) -> torch.Tensor:
        """In −1 … 1, but for rounding; 0 where a unit of either is constant."""
        means = [part / self.samples for part in self.off]
        inverse = [torch.where(std > 0, 1 / std, 0.0) for std in self.spread()]
        centred = self.off_products / self.samples - torch.outer(*means)
        return centred * inverse[0][:, None] * inverse[1]


def _origin(values: torch.Tensor) -> torch.Tensor:
    """The mean of each unit, as exact as the values are."""
    return values.double().mean(1).to(torch.float64 if values.dtype == torch.float64 else torch.float32)


def _slabs(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Units × samples in parts of whole chunks."""
    return iter(values.split(CHUNK * max(1, SLAB // (CHUNK * len(values))), 1))


def _by_sample(values: torch.Tensor, origin: torch.Tensor) -> bool:
    """Whether units × samples are float32 in this machine's memory, the units of a sample side by side."""
    plain = values.dtype == origin.dtype == torch.float32 and not values.is_neg()
    return plain and values.device.type == "cpu" and values.T.is_contiguous()


def _chunked(values: torch.Tensor) -> list[torch.Tensor]:
    """Units × samples as chunks × units × samples: all whole ones, and what is left over."""
    whole = values.shape[1] // CHUNK * CHUNK
    parts = [part for part in (values[:, :whole], values[:, whole:]) if part.shape[1]]
    return [part.unflatten(1, (-1, min(CHUNK, part.shape[1]))).movedim(1, 0) for part in parts]


def _total(chunks: Iterable[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.add, (part.sum(0, dtype=torch.float64) for part in chunks))


def _fits(squares: torch.Tensor, values: torch.Tensor, origin: torch.Tensor) -> bool:
    """Whether no unit's sum of squares (n,) is beyond float32, or too small for it to have digits.

    They are of `values`, units × samples, less their origin.
    """
    small, finite = squares < TINY, bool(squares.isfinite().all())
    if not (finite and small.any()):
        return finite
    return all(bool((part[small] == origin[small, None]).all()) for part in _slabs(values))


def deviation(
    off: torch.Tensor, off_squares: torch.Tensor, squares: torch.Tensor, samples: int
) -> torch.Tensor:
    """Standard deviations (n,), from sums of distances to anything; 0 for units constant but for rounding.

    `squares` (n,) are sums of the units' own squares, which say what rounding is.
    """
    variance = off_squares / samples - (off / samples).square()
    return torch.where(variance > FLAT * squares / samples, variance, 0.0).sqrt()
