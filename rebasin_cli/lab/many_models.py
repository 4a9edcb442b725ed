"""Merging more and more models: what happens to the mean?

Models are matched to the first one by one, or all together. The mean of those that were matched one by one
is also taken without the first itself, which hides how far apart they lie. Beside losses: how sharp the mean
is, and whether models matched together lie as the corners of a regular simplex, next to two nulls: the same
models with their units in random orders, and points that have nothing to do with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..datasets import open_data
from ..measure import geometry
from ..measure.sharpness import sharpness
from ..nets.mlp import MLP
from ..symmetry import permutation
from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import ABOVE, BELOW, Claim, Line, Outcome, Panel, Table, bootstrap, mean

PAPER = "STE-MM §3, §5 and §6, Figures 1, 3, 6, 7 and 8"
FASTER = "fewer models: matching twenty together, for every count anew, takes most of the time"

PAIRWISE, MANY = ("wm", "ste"), ("merge-many", "universe", "ste-mm")
ROWS = (*(f"{m}, {w} the first" for m in PAIRWISE for w in ("without", "with")), *MANY, "naive")
SPLITS = ("test", "train")
CURVED = ("merge-many", "ste-mm")  # whose means' sharpness is measured
POINTS = ("matched together", "units in random orders", "unrelated points")  # whose geometry is
OURS = "a control of ours"


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples)
    batches = open_data(p.data, "train", root=bench.root, limit=p.samples or None).with_batch_size(p.step)
    layers = samples.layers(train, p.width, p.depth, classes)
    splits = dict(zip(SPLITS, (test, train), strict=True))
    most = max(p.counts)

    def ends(number: int) -> stacks.Stack:
        generator = bench.generator(f"networks {number}")
        start = stacks.fresh(most, layers, generator)
        steps = training.steps_of(p.epochs, len(train.targets), p.batch)
        how = {"batch": p.batch, "rate": p.rate, "generator": generator}
        return training.trained(start, *train, steps=steps, **how)[steps]

    def trial(number: int) -> dict[str, Any]:
        """Figures of every count and row, sharpness by split, and the geometry of the most models."""
        models, data = ends(number), {"network": MLP(layers), "data": batches}
        own = {split: stacks.measured(models, *data_) for split, data_ in splits.items()}
        near = {
            method: matching.to_first(
                models, matching.by(method, p.passes), seed=number, **(data if method == "ste" else {})
            )
            for method in PAIRWISE
        }
        bent = {split: _sharp(models, data_, p, layers) for split, data_ in splits.items()}
        found: dict[str, Any] = {"gaps": [], "sharp": [], "ends": []}
        for count in p.counts:
            some = stacks.part(models, slice(0, count))
            moved = {}
            for method in MANY:
                evidence = data if method == "ste-mm" else {}
                moved[method] = matching.together(
                    some, matching.by(method, p.passes), seed=number, **evidence
                )
            one_by_one = [stacks.part(near[m], slice(k, count)) for m in PAIRWISE for k in (1, 0)]
            means = [stacks.mean(stack) for stack in (*one_by_one, *moved.values(), some)]
            found["gaps"].append([_gaps(each, splits, own, count) for each in means])
            curved = [_sharp(stacks.mean(moved[m]), splits[s], p, layers)[0] for m in CURVED for s in SPLITS]
            parents = [_together(bent[split][:count]) for split in SPLITS]
            found["sharp"].append([*curved, *parents])
            found["ends"].append(float(own["test"].accuracy[:count].mean()))
        found["geometry"] = _geometries(moved["merge-many"], number)
        return found

    trials = bench.each("trial", range(p.trials), trial)
    gaps = torch.tensor([t["gaps"] for t in trials], dtype=torch.float64)  # (trials, counts, rows, figures)
    sharp = torch.tensor([t["sharp"] for t in trials], dtype=torch.float64)  # (…, counts, kinds, 2)
    claims = [*_on_losses(p, gaps, bench.seed), *_on_sharpness(p, sharp[..., 0]), *_on_geometry(p, trials)]
    tables = [_losses(p, trials, gaps.mean(0)), _curved(p, sharp)]
    lines = [Line(row, p.counts, gaps.mean(0)[:, k, 0].tolist()) for k, row in enumerate(ROWS[:-1])]
    panels = [Panel("test loss over the models'", "models", "nats", lines)]
    for k, split in enumerate(SPLITS):
        bends = sharp[..., 0].mean(0)
        lines = [
            Line(name, p.counts, bends[:, 2 * n + k].tolist(), dashed=name == "parents")
            for n, name in enumerate((*CURVED, "parents"))
        ]
        panels.append(Panel(f"sharpness of the mean, {split}", "models", "tr(H ⊙ θθᵀ)", lines, floor=0))
    every = [[[v for t in trials for v in t["geometry"][k][w]] for k in range(len(POINTS))] for w in (0, 1)]
    panels.append(_histogram("distances / their mean", "", every[0]))
    if every[1][0]:
        panels.append(_histogram("angles of triplets", "degrees", every[1]))
    note = "Of two models, the mean without the first is the other one."
    return Outcome(claims, tables, panels, [note])


def _gaps(merged: stacks.Stack, splits: dict[str, Any], own: dict[str, Any], count: int) -> list[float]:
    """Test and train loss over the models', and test accuracy."""
    scores = {split: stacks.measured(merged, *data) for split, data in splits.items()}
    losses = [float(scores[split].loss[0] - own[split].loss[:count].mean()) for split in SPLITS]
    return [*losses, float(scores["test"].accuracy[0])]


def _sharp(
    stack: stacks.Stack, data: samples.Samples, p: Any, layers: list[int]
) -> list[tuple[float, float]]:
    """Sharpness of every network on the first samples of a split, and its standard error."""
    found, network = [], MLP(layers)
    batch = [(data.inputs[: p.sharp], data.targets[: p.sharp])]
    for number in range(len(stack[0][0])):
        network.load_state_dict(stacks.tensors(stack, number))
        bent = sharpness(network, batch, probes=p.probes)
        found.append((bent.value, bent.error))
    return found


def _together(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The mean of independent figures, and its standard error."""
    count = len(values)
    return sum(v for v, _ in values) / count, math.sqrt(sum(e * e for _, e in values)) / count


def _geometries(matched: stacks.Stack, seed: int) -> list[list[list[float]]]:
    """Of `POINTS` each: distances over their mean, and angles."""
    spec, generator = matching.fitted(matched), torch.Generator().manual_seed(seed)
    models = [stacks.tensors(matched, k) for k in range(len(matched[0][0]))]
    names = [name for name in models[0] if name.endswith("weight")]
    drawn = [permutation.random(spec.words, generator) for _ in models]
    shuffled = [dict(permutation.permuted(m, spec, o)) for m, o in zip(models, drawn, strict=True)]
    found = []
    for points in (models, shuffled, geometry.independent(models, names, seed=seed)):
        of = geometry.geometry(points, names)
        middle = sum(of.distances) / len(of.distances)
        found.append([[d / middle for d in of.distances], [a for a in of.angles if not math.isnan(a)]])
    return found


def _on_losses(p: Any, gaps: Tensor, seed: int) -> list[Claim]:
    claims, about = [], f"{p.counts[-1]} models, {p.trials} trials"
    fig1, fig3 = "STE-MM §3, Figure 1", "STE-MM §5, Figure 3"
    loss = {row: gaps[:, :, k, 0] for k, row in enumerate(ROWS)}  # (trials, counts)

    def add(source: str, says: str, number: str, expected: tuple[float, float], values: Tensor) -> None:
        claims.append(mean(source, says, f"{number}, {about}", expected, values.tolist()))

    for method in PAIRWISE:
        alone, whole = loss[f"{method}, without the first"], loss[f"{method}, with the first"]
        says = f"matched to the first by {method}, the others' mean gets worse with their number"
        add(
            fig1,
            says,
            f"test loss gap minus that of {p.counts[0]}",
            ABOVE,
            alone[:, -1] - alone[:, 0],
        )
        rises = bootstrap(alone.tolist(), lambda means: means.diff(dim=-1).amin(-1), seed=seed)
        number = f"least rise of the gap from one count to the next, {p.trials} trials"
        claims.append(Claim(fig1, f"and does so steadily ({method})", number, ABOVE, *rises))
        number = f"{method} without the first minus merge-many"
        add(fig1, "and is worse than merge-many", number, ABOVE, alone[:, -1] - loss["merge-many"][:, -1])
        says, number = "the first in the mean hides some of it", f"{method} with minus without the first"
        add(OURS, says, number, BELOW, whole[:, -1] - alone[:, -1])
    worse = loss["ste, without the first"][:, -1] - loss["wm, without the first"][:, -1]
    add(fig1, "it falls more sharply with ste than with wm", "ste minus wm without the first", ABOVE, worse)
    for method in MANY:
        says = f"matched together by {method}, hardly any loss is added"
        add(fig3, says, f"test loss gap of {method}", (-math.inf, 0.1), loss[method][:, -1])
    return claims


def _on_sharpness(p: Any, sharp: Tensor) -> list[Claim]:
    claims, source = [], "STE-MM §6.2, Figure 8"
    about = f"{p.counts[-1]} models, {p.trials} trials"
    for n, method in enumerate(CURVED):
        for k, split in enumerate(SPLITS):
            merged, parents = sharp[:, :, 2 * n + k], sharp[:, :, 2 * len(CURVED) + k]
            says = f"the mean of MLPs by {method} is flatter than they are ({split} data)"
            number = f"sharpness, difference, {split}, {about}"
            flatter = (merged[:, -1] - parents[:, -1]).tolist()
            claims.append(mean(source, says, number, BELOW, flatter))
            says = f"and the flatter the more there are ({method}, {split} data)"
            falls = (merged[:, -1] - merged[:, 0]).tolist()
            number = f"sharpness minus that of {p.counts[0]}, {split}, {about}"
            claims.append(mean(source, says, number, BELOW, falls))
    return claims


def _on_geometry(p: Any, trials: list[Any]) -> list[Claim]:
    """How far angles are from 60°, and whether the nulls' are farther; intervals are over trials."""
    if not trials[0]["geometry"][0][1]:
        return []
    about = f"{p.counts[-1]} models, {p.trials} trials"
    far = [
        [sum(abs(a - 60) for a in t["geometry"][k][1]) / len(t["geometry"][k][1]) for t in trials]
        for k in range(len(POINTS))
    ]
    says, number = "merged models are corners of a regular simplex", "mean distance of an angle from 60°"
    claims = [mean("STE-MM §6.1, Figures 6 and 7", says, f"{number}, {about}", (0, 5), far[0])]
    for null, values in zip(POINTS[1:], far[1:], strict=True):
        says = f"they are so more nearly than {null}"
        closer = [one - other for one, other in zip(far[0], values, strict=True)]
        claims.append(mean(OURS, says, f"that minus the null's, {about}", BELOW, closer))
    return claims


def _losses(p: Any, trials: list[Any], means: Tensor) -> Table:
    head = ("models", "", "test loss gap", "train loss gap", "test accuracy", "the models' accuracy")
    body = [
        (count, row, *means[i, k].tolist(), sum(t["ends"][i] for t in trials) / len(trials))
        for i, count in enumerate(p.counts)
        for k, row in enumerate(ROWS)
    ]
    return Table(f"The mean of n models, {p.trials} trials, {p.data}", head, body)


def _curved(p: Any, sharp: Tensor) -> Table:
    head = [f"{name}, {split}" for name in (*CURVED, "parents") for split in SPLITS]
    values = sharp[..., 0].mean(0).tolist()
    errors = (sharp[..., 1].square().sum(0).sqrt() / len(sharp)).tolist()
    body = [
        (count, *(f"{v:.4g} ± {e:.2g}" for v, e in zip(row, error, strict=True)))
        for count, row, error in zip(p.counts, values, errors, strict=True)
    ]
    title = f"Sharpness of the mean, ± the standard error over {p.probes} probes"
    return Table(title, ("models", *head), body)


def _histogram(title: str, x: str, values: list[list[float]]) -> Panel:
    low, high = min(map(min, values)), max(map(max, values))
    width = (high - low) / 40 or 1.0
    lines = []
    for label, some in zip(POINTS, values, strict=True):
        counts = torch.histc(torch.tensor(some, dtype=torch.float64), bins=40, min=low, max=low + 40 * width)
        at = [low + (k + 0.5) * width for k in range(40)]
        lines.append(Line(label, at, (counts / len(some)).tolist(), bars=width))
    return Panel(title, x, "share", lines)
