"""Barriers over width: their peak, what is said of it and of wide networks, on any family of networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...measure.intervals import resampled_means
from .claims import ABOVE, BELOW, Claim, Line, Panel, Table, bootstrap

SOURCE = "Permutation Invariance in LMC §6"
WIDER = "Git Re-Basin §5.2, Figure 4"
HEAD = ("width", "naive, test", "wm, test", "ends, test", "naive, train", "wm, train", "ends, train")
SPLITS = {"test": slice(0, 2), "train": slice(3, 5)}  # their naive and wm barriers among the columns


@dataclass(frozen=True)
class Sweep:
    """Pairs of one kind of network, `where`, of rising `widths`.

    `figures` (pairs, widths, 6), float64, in nats, has the columns of `HEAD` behind the first: those of
    `batched.matching.barriers` of the test and training split.
    """

    where: str
    widths: Sequence[int]
    figures: Tensor

    @property
    def wm(self) -> Tensor:
        """Barriers after matching on test data, (pairs, widths)."""
        return self.figures[..., 1]

    def claims(self, seed: int, *, source: str = SOURCE) -> list[Claim]:
        """On the peak, on naive and wm, and on wide networks, of both splits; intervals are over pairs."""
        found = []
        for split, columns in SPLITS.items():
            barriers = self.figures[..., columns]
            found += _claims(self.widths, barriers, f"{split}, {self.where}", seed, source)
        return found

    def table(self) -> Table:
        rows = zip(self.widths, self.figures.mean(0).tolist(), strict=True)
        title = f"Mean barriers of {len(self.figures)} pairs, {self.where}"
        return Table(title, HEAD, [(width, *row) for width, row in rows])

    def panel(self, width: str) -> Panel:
        """Both barriers on test data over what `width` says that it is."""
        means = self.figures.mean(0)
        lines = [Line(name, self.widths, means[:, k].tolist()) for k, name in enumerate(("naive", "wm"))]
        return Panel(f"test, {self.where}", width, "barrier, nats", lines, "xy")

    def left(self) -> Line:
        """The share of the naive barrier that is left after matching, on test data."""
        naive, wm = self.figures.mean(0).unbind(-1)[:2]
        return Line(self.where, self.widths, (wm / naive).tolist())


def shares(sweeps: Sequence[Sweep], width: str) -> Panel:
    return Panel("wm / naive, test", width, "", [sweep.left() for sweep in sweeps], "x", floor=0)


def highest(widths: Sequence[int], means: Tensor) -> Tensor:
    """The width of the highest barrier, of means (..., widths)."""
    return torch.tensor(widths, dtype=torch.float64)[means.argmax(-1)]


def _claims(widths: Sequence[int], barriers: Tensor, where: str, seed: int, source: str) -> list[Claim]:
    """Of naive and wm barriers (pairs, widths, 2)."""
    naive, wm = barriers.unbind(-1)
    peak = bootstrap(wm.tolist(), lambda means: highest(widths, means), seed=seed)
    least = bootstrap((naive - wm).tolist(), lambda means: means.amin(-1), seed=seed)
    fall = bootstrap(wm.tolist(), lambda means: means[..., -1] - means[..., 0], seed=seed)
    order = bootstrap(wm.tolist(), _order, seed=seed)
    left = bootstrap(wm.tolist(), lambda means: means[..., -1] / means[..., 0], seed=seed)
    between = (float(widths[1]), float(widths[-2]))
    rises = "the barrier after matching rises and falls: it is highest between the narrowest and the widest"
    at_all, lower = "matching lowers it at all widths", "wider networks have lower barriers"
    hardly = "hardly any is left at the widest; the paper's are wider"
    last = f"wm barrier at the widest minus narrowest, {where}"
    rank = f"Spearman's correlation of width and wm barrier, {where}"
    share = f"wm barrier at the widest / narrowest, {where}"
    return [
        Claim(source, rises, f"width of the highest barrier, {where}", between, *peak),
        Claim(source, at_all, f"least of naive minus wm over widths, {where}", ABOVE, *least),
        Claim(WIDER, lower, last, BELOW, *fall),
        Claim(WIDER, "and the wider, the lower", rank, BELOW, *order),
        Claim(WIDER, hardly, share, (-math.inf, 0.1), *left),
    ]


def _order(means: Tensor) -> Tensor:
    """Spearman's rank correlation of widths, which rise, and means (..., widths)."""
    count = means.shape[-1]
    ranks = means.argsort(-1).argsort(-1).double()
    apart = (ranks - torch.arange(count, dtype=torch.float64)).square().sum(-1)
    return 1 - 6 * apart / (count * (count**2 - 1))


def peaks(sweeps: Sequence[Sweep], seed: int) -> Table:
    """Where barriers after matching peak on test data, and how often at neither end."""
    rows = []
    for sweep in sweeps:
        widths = sweep.widths
        peak, between = bootstrap(sweep.wm.tolist(), partial(highest, widths), seed=seed)
        drawn = highest(widths, resampled_means(sweep.wm, seed=seed))
        inside = float(((drawn > widths[0]) & (drawn < widths[-1])).double().mean())
        rows.append((sweep.where, peak, " … ".join(f"{end:g}" for end in between), inside))
    head = ("", "width", "95 % interval", "share of bootstrap draws that peak at neither end")
    return Table("Width of the highest barrier after matching, test", head, rows)
