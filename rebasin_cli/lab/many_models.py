"""Merging more and more models: what happens to the mean?

Models are matched to the first one by one, or all together. The mean of those that were matched one by one
is also taken without the first itself, which hides how far apart they lie. Beside losses: sharpness of the
mean, and whether models matched together lie as the corners of a regular simplex, next to points that have
nothing to do with them.
"""

from __future__ import annotations

import math

import torch

from ..analysis import geometry
from ..analysis.sharpness import sharpness
from ..matchers import Problem, merge_many, universe, wm
from ..nets.mlp import MLP
from ..permutations.permutation import permuted
from .batched import samples, stacks, training
from .engine.bench import Bench
from .engine.claims import ABOVE, BELOW, mean
from .engine.outcome import Line, Outcome, Panel, Table

PAPER = "STE-MM §3, §5 and §6, Figures 1, 3, 6, 7 and 8"
FASTER = "fewer models: matching all together takes most of the time"

ROWS = ("wm, without the first", "wm, with the first", "merge-many", "universe", "naive")
SPLITS = ("test", "train")
OURS = "a control of ours"


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples)
    sizes = [train.inputs.shape[1], *[p.width] * p.depth, classes]
    splits = dict(zip(SPLITS, (test, train), strict=True))

    def trial(number: int) -> dict:
        """Figures of every count and row, sharpness by split, and the geometry of the most models."""
        generator = bench.generator(f"networks {number}")
        most = max(p.counts)
        start = stacks.fresh(most, sizes, generator)
        steps = max(1, p.epochs * (len(train.targets) // min(p.batch, len(train.targets))))
        how = {"batch": p.batch, "rate": p.rate}
        ends = training.trained(start, *train, steps=steps, generator=generator, **how)[steps]
        own = {split: stacks.measured(ends, *data) for split, data in splits.items()}
        found: dict = {"gaps": [], "sharp": [], "ends": []}
        near = _one_by_one(ends, seed=number)
        parents = {split: _sharp(ends, data, p, sizes, range(most)) for split, data in splits.items()}
        for count in p.counts:
            some = stacks.part(ends, slice(0, count))
            aligned = {
                "merge-many": _together(merge_many, some, number),
                "universe": _together(universe, some, number),
            }
            means = {
                ROWS[0]: stacks.mean(stacks.part(near, slice(1, count))),
                ROWS[1]: stacks.mean(stacks.part(near, slice(0, count))),
                **{name: stacks.mean(stack) for name, stack in aligned.items()},
                "naive": stacks.mean(some),
            }
            gaps = []
            for row in ROWS:
                scores = [stacks.measured(means[row], *splits[split]) for split in SPLITS]
                losses = [
                    float(s.loss[0] - own[k].loss[:count].mean()) for k, s in zip(SPLITS, scores, strict=True)
                ]
                gaps.append([*losses, float(scores[0].accuracy[0])])
            found["gaps"].append(gaps)
            sharp = [_sharp(means["merge-many"], splits[split], p, sizes, [0])[0] for split in SPLITS]
            base = [sum(parents[split][:count]) / count for split in SPLITS]
            found["sharp"].append([*sharp, *base])
            found["ends"].append(float(own["test"].accuracy[:count].mean()))
        models = [stacks.tensors(aligned["merge-many"], k) for k in range(most)]
        names = [name for name in models[0] if name.endswith("weight")]
        null = geometry.independent(models, names, seed=number)
        found["geometry"] = [_geometry(points, names) for points in (models, null)]
        return found

    trials = bench.each("trial", range(p.trials), trial)
    gaps = torch.tensor([t["gaps"] for t in trials], dtype=torch.float64)  # (trials, counts, rows, figures)
    sharp = torch.tensor([t["sharp"] for t in trials], dtype=torch.float64)  # (trials, counts, 4)
    return _told(p, trials, gaps, sharp)


def _one_by_one(ends: stacks.Stack, *, seed: int) -> stacks.Stack:
    """All models, matched to the first one by one."""
    spec, count = stacks.fitted(ends), len(ends[0][0])
    models = [stacks.tensors(ends, k) for k in range(count)]
    found = [models[0]]
    for model in models[1:]:
        match = wm.match(Problem(spec, (models[0], model), seed=seed))
        found.append(dict(permuted(model, spec, match.permutations[0])))
    return stacks.stacked(found)


def _together(method, ends: stacks.Stack, seed: int) -> stacks.Stack:
    spec, count = stacks.fitted(ends), len(ends[0][0])
    models = [stacks.tensors(ends, k) for k in range(count)]
    found = method.match(Problem(spec, tuple(models), seed=seed)).permutations
    moved = [dict(permuted(m, spec, perm)) for m, perm in zip(models[1:], found, strict=True)]
    return stacks.stacked([models[0], *moved])


def _sharp(stack: stacks.Stack, data: samples.Samples, p, sizes: list[int], numbers) -> list[float]:
    """Sharpness of some networks on the first samples of a split."""
    found, network = [], MLP(sizes)
    batch = [(data.inputs[: p.sharp], data.targets[: p.sharp])]
    for number in numbers:
        network.load_state_dict(stacks.tensors(stack, number))
        found.append(sharpness(network, batch, probes=p.probes).value)
    return found


def _geometry(models: list, names: list[str]) -> list[list[float]]:
    """Distances over their mean, and angles."""
    found = geometry.geometry(models, names)
    middle = sum(found.distances) / len(found.distances)
    return [[d / middle for d in found.distances], [a for a in found.angles if not math.isnan(a)]]


def _told(p, trials: list, gaps: torch.Tensor, sharp: torch.Tensor) -> Outcome:
    last, about = -1, f"{p.counts[-1]} models, {p.trials} trials"
    without, with_first, many = gaps[:, :, 0, 0], gaps[:, :, 1, 0], gaps[:, :, 2, 0]
    claims = []

    def add(source: str, says: str, number: str, expected: tuple[float, float], values: torch.Tensor) -> None:
        claims.append(mean(source, says, f"{number}, {about}", expected, values.tolist()))

    fig1, fig3, fig8 = "STE-MM §3, Figure 1", "STE-MM §5, Figure 3", "STE-MM §6.2, Figure 8"
    grows, over = without[:, last] - without[:, 0], without[:, last] - many[:, last]
    says = "matched to the first, the others' mean gets worse with their number"
    add(fig1, says, f"test loss gap minus that of {p.counts[0]}", ABOVE, grows)
    add(fig1, "and is worse than merge-many", "wm without the first minus merge-many", ABOVE, over)
    says, number = "the first in the mean hides some of it", "wm with minus without the first"
    add(OURS, says, number, BELOW, with_first[:, last] - without[:, last])
    says, number = "matched together, hardly any loss is added", "test loss gap of merge-many"
    add(fig3, says, number, (-math.inf, 0.1), many[:, last])
    for k, split in enumerate(SPLITS):
        flatter = sharp[:, last, k] - sharp[:, last, 2 + k]
        says = f"the mean of MLPs by merge-many is flatter than they are ({split} data)"
        add(fig8, says, f"sharpness, difference, {split}", BELOW, flatter)
    real, null = ([v for t in trials for v in t["geometry"][k][1]] for k in (0, 1))
    if len(real) > 1:
        fig6, far = "STE-MM §6.1, Figure 6", [abs(angle - 60) for angle in real]
        number = f"mean distance of an angle from 60°, {about}"
        claims.append(mean(fig6, "merged models are corners of a regular simplex", number, (0, 5), far))
        says = "they are so more nearly than points that have nothing to do with each other"
        closer = [one - abs(angle - 60) for one, angle in zip(far, null, strict=True)]
        claims.append(mean(OURS, says, f"that minus the null's, {about}", BELOW, closer))
    means = gaps.mean(0)
    head = ("models", "", "test loss gap", "train loss gap", "test accuracy", "the models' accuracy")
    body = [
        (count, row, *means[i, k].tolist(), sum(t["ends"][i] for t in trials) / len(trials))
        for i, count in enumerate(p.counts)
        for k, row in enumerate(ROWS)
    ]
    tables = [Table(f"The mean of n models, {p.trials} trials, {p.data}", head, body)]
    names = ("merge, test", "merge, train", "parents, test", "parents, train")
    body = [(n, *row) for n, row in zip(p.counts, sharp.mean(0).tolist(), strict=True)]
    tables.append(Table("Sharpness of the mean by merge-many", ("models", *names), body))
    lines = [Line(row, p.counts, means[:, k, 0].tolist()) for k, row in enumerate(ROWS[:-1])]
    panels = [Panel("test loss over the models'", "models", "nats", lines)]
    lines = [Line(name, p.counts, sharp.mean(0)[:, k].tolist(), dashed=k > 1) for k, name in enumerate(names)]
    panels.append(Panel("sharpness", "models", "tr(H ⊙ θθᵀ)", lines, floor=0))
    if real:
        bars = [_bars("matched together", real), _bars("unrelated points", null)]
        panels.append(Panel("angles of triplets", "degrees", "share", bars))
    note = "Of two models, the mean without the first is the other one."
    return Outcome(claims, tables, panels, [note])


def _bars(label: str, values: list[float]) -> Line:
    counts = torch.histc(torch.tensor(values), bins=40, min=50, max=70)
    return Line(label, [50.25 + 0.5 * k for k in range(40)], (counts / len(values)).tolist(), bars=0.5)
