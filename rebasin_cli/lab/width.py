"""How does the barrier change with width?

Pairs of multilayer perceptrons are trained with plain SGD for every width and depth, all of a width at
once, and aligned by weight matching. On data, too, the barrier is said to rise and to fall again, at a
width that does not depend on the depth. Losses of the ends change with width, so the barrier is shown
beside the naive one.
"""

from __future__ import annotations

import torch

from .batched import samples, stacks, training
from .engine.bench import Bench
from .engine.claims import ABOVE, BELOW, Claim, bootstrap
from .engine.outcome import Line, Outcome, Panel, Table

PAPER = "Permutation Invariance in LMC §6 and B.4; Git Re-Basin §5.2"
FASTER = "fewer steps; widths above 64 take most of the time"
SOURCE = "Permutation Invariance in LMC §6"

COLUMNS = ("naive", "wm")


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples)

    def measure(depth: int, width: int) -> list:
        """For every pair: naive and wm barrier on test and training data, and mean losses of the ends."""
        generator = bench.generator(f"networks of {depth} and {width}")
        sizes = [train.inputs.shape[1], *[width] * depth, classes]
        start = stacks.fresh(2 * p.pairs, sizes, generator, "kaiming")
        how = {"batch": p.batch, "rate": p.rate, "optimizer": "sgd"}
        ends = training.trained(start, *train, steps=p.steps, generator=generator, **how)[p.steps]
        one, other = stacks.part(ends, slice(0, p.pairs)), stacks.part(ends, slice(p.pairs, None))
        moved = stacks.aligned(one, other, seed=bench.seed)
        found = []
        for split in (test, train):
            for b in (other, moved):
                losses = stacks.path(one, b, *split, p.points).loss
                found.append(stacks.heights(losses)[0])
            found.append((losses[:, 0] + losses[:, -1]) / 2)
        return torch.stack(found, 1).tolist()

    claims, tables, panels, peaks = [], [], [], {}
    for depth in p.depths:
        rows = bench.each(f"{depth} hidden layers, width", p.widths, lambda w, depth=depth: measure(depth, w))
        means = torch.tensor(rows, dtype=torch.float64).mean(1)
        head = (
            "width",
            "naive, test",
            "wm, test",
            "ends' loss, test",
            "naive, train",
            "wm, train",
            "ends, train",
        )
        body = [(w, *row) for w, row in zip(p.widths, means.tolist(), strict=True)]
        tables.append(Table(f"Mean barriers of {p.pairs} pairs, {depth} hidden layers, {p.data}", head, body))
        for at, split in ((0, "test"), (3, "train")):
            claims += _claims(rows, at, split, depth, bench)
        lines = [Line("naive", p.widths, means[:, 0].tolist()), Line("wm", p.widths, means[:, 1].tolist())]
        panels.append(Panel(f"test, {depth} hidden layers", "width", "barrier, nats", lines, "xy"))
        part = (means[:, 1] / means[:, 0]).tolist()
        line = Line(f"{depth} hidden layers", p.widths, part)
        panels.append(Panel(f"wm / naive, test, {depth} hidden layers", "width", "", [line], "x", floor=0))
        peaks[depth] = float(torch.tensor(p.widths)[means[:, 1].argmax()])
    if len(peaks) > 1:
        body = [(depth, peak) for depth, peak in peaks.items()]
        head = ("hidden layers", "width")
        tables.append(Table("Width of the highest barrier, test", head, body))
    note = (
        "The paper trains for '10000 epochs'; 10 000 steps is the only reading that fits its cost, and the "
        "full scale takes it."
    )
    return Outcome(claims, tables, panels, [note])


def _claims(rows: list, at: int, split: str, depth: int, bench: Bench) -> list[Claim]:
    """On the peak of the aligned barrier, the naive one, and wide networks; intervals are over pairs."""
    p = bench.p
    widths = torch.tensor(p.widths, dtype=torch.float64)
    aligned = [[row[n][at + 1] for row in rows] for n in range(p.pairs)]
    apart = [[row[n][at] - row[n][at + 1] for row in rows] for n in range(p.pairs)]
    where = f"{split}, {depth} hidden layers, {p.data}"
    peak = bootstrap(aligned, lambda means: widths[means.argmax(-1)], seed=bench.seed)
    within = (float(widths[1]), float(widths[-2]))
    says = "the barrier after matching rises and falls: it is highest between the narrowest and the widest"
    found = [Claim(SOURCE, says, f"width of the highest barrier, {where}", within, *peak)]
    least = bootstrap(apart, lambda means: means.amin(-1), seed=bench.seed)
    says, about = "matching lowers it at all widths", f"least of naive minus wm over widths, {where}"
    found.append(Claim(SOURCE, says, about, ABOVE, *least))
    fall = bootstrap(aligned, lambda means: means[..., -1] - means[..., 0], seed=bench.seed)
    says, about = (
        "wider networks have lower barriers",
        f"wm barrier at the widest minus at the narrowest, {where}",
    )
    return [*found, Claim("Git Re-Basin §5.2, Figure 4", says, about, BELOW, *fall)]
