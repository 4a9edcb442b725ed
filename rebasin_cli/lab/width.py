"""How does the barrier change with width?

Pairs of multilayer perceptrons are trained with plain SGD for every width and depth, all of a width at
once, and aligned by weight matching. On data, too, the barrier is said to rise and to fall again, at a
width that does not depend on the depth and is larger for harder data: another data set, or the same with
noise on its inputs. Losses of the ends change with width, so the barrier is shown beside the naive one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..measure.statistics import resampled_means
from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import ABOVE, BELOW, Claim, bootstrap
from .engine.outcome import Line, Outcome, Panel, Table

PAPER = "Permutation Invariance in LMC §6 and B.4; Git Re-Basin §5.2"
FASTER = "fewer steps: a step costs the networks' products once, however many networks there are"
SOURCE = "Permutation Invariance in LMC §6"

HEAD = ("width", "naive, test", "wm, test", "ends, test", "naive, train", "wm, train", "ends, train")
LONGEST = 10  # times the steps, where training goes on until a loss is reached
Setting = tuple[str, float, float, int]  # data, noise, loss to be reached, hidden layers


def run(bench: Bench) -> Outcome:
    p = bench.p
    opened = {name: samples.opened(name, bench.root, limit=p.samples) for name in p.data}

    def measure(setting: Setting, width: int) -> list:
        """For every pair: naive and wm barrier on test and training data, and mean losses of the ends."""
        data, noise, until, depth = setting
        *splits, classes = opened[data]
        rng = bench.generator(f"noise on {data}")
        train, test = (samples.noisy(split, noise, rng) for split in splits)
        how = {"batch": p.batch, "rate": p.rate, "optimizer": "sgd", "init": "kaiming", "until": until}
        how |= {"steps": p.steps * (LONGEST if until else 1)}
        how |= {"generator": bench.generator(f"networks of {depth} and {width}")}
        kept = training.pairs(p.pairs, samples.layers(train, width, depth, classes), train, **how)
        one, other = kept[max(kept)]
        moved = matching.aligned(one, other, seed=bench.seed)
        found = []
        for split in (test, train):
            split = split.some(p.measured, bench.generator("measured samples"))
            for b in (other, moved):
                losses = stacks.path(one, b, *split, p.points).loss
                found.append(stacks.heights(losses)[0])
            found.append((losses[:, 0] + losses[:, -1]) / 2)
        return torch.stack(found, 1).tolist()

    claims, tables, panels, every = [], [], [], {}
    for setting in itertools.product(p.data, p.noise, p.until, p.depths):
        rows = bench.each(f"{_words(setting)}, width", p.widths, lambda w, s=setting: measure(s, w))
        figures = torch.tensor(rows, dtype=torch.float64).transpose(0, 1)  # (pairs, widths, columns)
        every[setting], means, where = figures, figures.mean(0), _words(setting)
        body = [(w, *row) for w, row in zip(p.widths, means.tolist(), strict=True)]
        tables.append(Table(f"Mean barriers of {p.pairs} pairs, {where}", HEAD, body))
        for at, split in ((0, "test"), (3, "train")):
            claims += _claims(figures[..., at : at + 2], f"{split}, {where}", bench)
        lines = [Line(name, p.widths, means[:, k].tolist()) for k, name in enumerate(("naive", "wm"))]
        panels.append(Panel(f"test, {where}", "width", "barrier, nats", lines, "xy"))
    claims += _comparisons(every, bench)
    tables.append(_peaks(every, bench))
    lines = [
        Line(_words(s), p.widths, (f[..., 1].mean(0) / f[..., 0].mean(0)).tolist()) for s, f in every.items()
    ]
    panels.append(Panel("wm / naive, test", "width", "", lines, "x", floor=0))
    note = (
        "The paper trains for '10000 epochs'; 10 000 steps is the only reading that fits its cost, and the "
        "full scale takes it, beside training until the loss is below 0.01."
    )
    return Outcome(claims, tables, panels, [note])


def _words(setting: Setting) -> str:
    data, noise, until, depth = setting
    more = f" with noise {noise:g}" * bool(noise) + f" to a loss of {until:g}" * bool(until)
    return f"{depth} hidden layers, {data}{more}"


def _peak(widths: Sequence[int], means: Tensor) -> Tensor:
    """The width of the highest barrier, of means (..., widths)."""
    return torch.tensor(widths, dtype=torch.float64)[means.argmax(-1)]


def _claims(barriers: Tensor, where: str, bench: Bench) -> list[Claim]:
    """On the peak, on naive and wm (pairs, widths, 2), and on wide networks; intervals are over pairs."""
    widths, (naive, wm) = bench.p.widths, barriers.unbind(-1)
    peak = bootstrap(wm.tolist(), lambda means: _peak(widths, means), seed=bench.seed)
    within = (float(widths[1]), float(widths[-2]))
    says = "the barrier after matching rises and falls: it is highest between the narrowest and the widest"
    found = [Claim(SOURCE, says, f"width of the highest barrier, {where}", within, *peak)]
    least = bootstrap((naive - wm).tolist(), lambda means: means.amin(-1), seed=bench.seed)
    says, about = "matching lowers it at all widths", f"least of naive minus wm over widths, {where}"
    found.append(Claim(SOURCE, says, about, ABOVE, *least))
    source = "Git Re-Basin §5.2, Figure 4"
    fall = bootstrap(wm.tolist(), lambda means: means[..., -1] - means[..., 0], seed=bench.seed)
    says, about = "wider networks have lower barriers", f"wm barrier at the widest minus narrowest, {where}"
    found.append(Claim(source, says, about, BELOW, *fall))
    order = bootstrap(wm.tolist(), _order, seed=bench.seed)
    about = f"Spearman's correlation of width and wm barrier, {where}"
    found.append(Claim(source, "and the wider, the lower", about, BELOW, *order))
    left = bootstrap(wm.tolist(), lambda means: means[..., -1] / means[..., 0], seed=bench.seed)
    about = f"wm barrier at the widest / narrowest, {where}"
    return [
        *found,
        Claim(
            source, "hardly any is left at the widest; the paper's are wider", about, (-math.inf, 0.1), *left
        ),
    ]


def _order(means: Tensor) -> Tensor:
    """Spearman's rank correlation of widths, which rise, and means (..., widths)."""
    count = means.shape[-1]
    ranks = means.argsort(-1).argsort(-1).double()
    apart = (ranks - torch.arange(count, dtype=torch.float64)).square().sum(-1)
    return 1 - 6 * apart / (count * (count**2 - 1))


def _comparisons(every: dict[Setting, Tensor], bench: Bench) -> list[Claim]:
    """Of two depths, and of easy and hard data, the peaks beside each other, on test data."""
    p, found = bench.p, []
    tasks = list(itertools.product(p.data, p.noise))
    shallow, deep, easy, hard = min(p.depths), max(p.depths), tasks[0], tasks[-1]

    def beside(one: Setting, other: Setting, about: str, says: str, expected, function) -> None:
        both = torch.cat([every[one][..., 1], every[other][..., 1]], 1).tolist()
        at = len(p.widths)
        told = bootstrap(
            both,
            lambda means: function(_peak(p.widths, means[..., :at]), _peak(p.widths, means[..., at:])),
            seed=bench.seed,
        )
        found.append(Claim(SOURCE, says, about, expected, *told))

    for until in p.until:
        if deep > shallow:
            one, other = (*easy, until, shallow), (*easy, until, deep)
            about = f"peak, {_words(other)} / {_words(one)}, test"
            says = "the width of the peak does not depend on the depth"
            beside(one, other, about, says, (2 / 3, 3 / 2), lambda x, y: y / x)
        if hard != easy:
            one, other = (*easy, until, deep), (*hard, until, deep)
            about = f"peak, {_words(other)} minus {_words(one)}, test"
            beside(one, other, about, "it is larger for harder data", (1e-9, math.inf), lambda x, y: y - x)
    return found


def _peaks(every: dict[Setting, Tensor], bench: Bench) -> Table:
    widths, rows = bench.p.widths, []
    for setting, figures in every.items():
        wm = figures[..., 1].tolist()
        peak, between = bootstrap(wm, lambda means: _peak(widths, means), seed=bench.seed)
        drawn = _peak(widths, resampled_means(figures[..., 1], seed=bench.seed))
        inside = float(((drawn > widths[0]) & (drawn < widths[-1])).double().mean())
        rows.append((_words(setting), peak, " … ".join(f"{end:g}" for end in between), inside))
    head = ("", "width", "95 % interval", "share of bootstrap draws that peak at neither end")
    return Table("Width of the highest barrier after matching, test", head, rows)
