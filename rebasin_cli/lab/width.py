"""How does the barrier change with width?

Pairs of multilayer perceptrons are trained with plain SGD for every width and depth, all of a width at
once, and aligned by weight matching. On data, too, the barrier is said to rise and to fall again, at a
width that does not depend on the depth and is larger for harder data: another data set, or the same with
noise on its inputs. Losses of the ends change with width, so the barrier is shown beside the naive one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .batched import matching, samples, training
from .engine.bench import Bench
from .engine.claims import Claim, Outcome, bootstrap
from .engine.peaks import SOURCE, Sweep, highest, peaks, shares

PAPER = "Permutation Invariance in LMC §6 and B.4; Git Re-Basin §5.2"
FASTER = "fewer steps: a step costs the networks' products once, however many networks there are"
LONGEST = 10  # times the steps, where training goes on until a loss is reached
Setting = tuple[str, float, float, int]  # data, noise, loss to be reached, hidden layers


def run(bench: Bench) -> Outcome:
    p = bench.p
    opened = {name: samples.opened(name, bench.root, limit=p.samples) for name in p.data}

    def measure(setting: Setting, width: int) -> list[Any]:
        """For every pair: naive and wm barrier on test and training data, and mean losses of the ends."""
        data, noise, until, depth = setting
        *splits, classes = opened[data]
        rng = bench.generator(f"noise on {data}")
        train, test = (samples.noisy(split, noise, rng) for split in splits)
        how = {"batch": p.batch, "rate": p.rate, "optimizer": "sgd", "init": "kaiming", "until": until}
        how |= {"steps": p.steps * (LONGEST if until else 1)}
        how |= {"generator": bench.generator(f"networks of {depth} and {width}")}
        kept = training.pairs(p.pairs, samples.layers(train, width, depth, classes), train, **how)
        splits = [s.some(p.measured, bench.generator("measured samples")) for s in (test, train)]
        return matching.barriers(*kept[max(kept)], splits, p.points, seed=bench.seed).tolist()

    every = {}
    for setting in itertools.product(p.data, p.noise, p.until, p.depths):
        where = _words(setting)
        rows = bench.each(f"{where}, width", p.widths, partial(measure, setting))
        every[setting] = Sweep(where, p.widths, torch.tensor(rows, dtype=torch.float64).transpose(0, 1))
    sweeps = list(every.values())
    claims = [claim for sweep in sweeps for claim in sweep.claims(bench.seed)] + _comparisons(every, bench)
    tables = [*(sweep.table() for sweep in sweeps), peaks(sweeps, bench.seed)]
    panels = [*(sweep.panel("width") for sweep in sweeps), shares(sweeps, "width")]
    note = (
        "The paper trains for '10000 epochs'; 10 000 steps is the only reading that fits its cost, and the "
        "full scale takes it, beside training until the loss is below 0.01."
    )
    return Outcome(claims, tables, panels, [note])


def _words(setting: Setting) -> str:
    data, noise, until, depth = setting
    more = f" with noise {noise:g}" * bool(noise) + f" to a loss of {until:g}" * bool(until)
    return f"{depth} hidden layers, {data}{more}"


def _comparisons(every: dict[Setting, Sweep], bench: Bench) -> list[Claim]:
    """Of two depths, and of easy and hard data, the peaks beside each other, on test data."""
    p, found = bench.p, []
    tasks = list(itertools.product(p.data, p.noise))
    shallow, deep, easy, hard = min(p.depths), max(p.depths), tasks[0], tasks[-1]

    def beside(
        one: Setting,
        other: Setting,
        about: str,
        says: str,
        expected: tuple[float, float],
        function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        both = torch.cat([every[one].wm, every[other].wm], 1).tolist()
        at = len(p.widths)
        told = bootstrap(
            both,
            lambda means: function(highest(p.widths, means[..., :at]), highest(p.widths, means[..., at:])),
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
