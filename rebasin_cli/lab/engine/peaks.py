"""Barriers over width: their peak, what is said of it and of wide networks, on any family of networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...measure.statistics import resampled_means
from .claims import ABOVE, BELOW, Claim, bootstrap
from .outcome import Table

SOURCE = "Permutation Invariance in LMC §6"
WIDER = "Git Re-Basin §5.2, Figure 4"
HEAD = ("width", "naive, test", "wm, test", "ends, test", "naive, train", "wm, train", "ends, train")


def highest(widths: Sequence[int], means: Tensor) -> Tensor:
    """The width of the highest barrier, of means (..., widths)."""
    return torch.tensor(widths, dtype=torch.float64)[means.argmax(-1)]


def claims_of(
    widths: Sequence[int], barriers: Tensor, where: str, seed: int, *, source: str = SOURCE
) -> list[Claim]:
    """On the peak, on naive and wm (pairs, widths, 2), and on wide networks; intervals are over pairs."""
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


def table(widths: Sequence[int], barriers: Mapping[str, Tensor], seed: int) -> Table:
    """Where barriers (pairs, widths) peak, each under its name, and how often at neither end."""
    rows = []
    for name, figures in barriers.items():
        peak, between = bootstrap(figures.tolist(), lambda means: highest(widths, means), seed=seed)
        drawn = highest(widths, resampled_means(figures, seed=seed))
        inside = float(((drawn > widths[0]) & (drawn < widths[-1])).double().mean())
        rows.append((name, peak, " … ".join(f"{end:g}" for end in between), inside))
    head = ("", "width", "95 % interval", "share of bootstrap draws that peak at neither end")
    return Table("Width of the highest barrier after matching, test", head, rows)
