"""By which likeness of units should the ends of a curve be aligned?

Correlation or squared distance, before or after the activation: a curve is trained between each pair, its
second end aligned by each of the four, by weights, and not at all, and measured at points of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from ..datasets import open_data
from ..learning.curves.curve import Curve
from ..learning.curves.training import Training, train
from ..matchers import Problem, am, wm
from ..nets.mlp import MLP
from ..symmetry import permutation
from ..symmetry.elements import Elements
from ..symmetry.permutation import permuted
from ..types import Permutations
from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import BELOW, Line, Outcome, Panel, Table, mean

PAPER = "Neuron Alignment §3.1, Figure 2"
FASTER = "fewer epochs of curves: six are trained for each pair"
SOURCE, OURS = "Neuron Alignment Figure 2", "a control of ours"

KINDS = {
    "correlation, after": am.Options(cost="correlation", at="post"),
    "distance, after": am.Options(cost="l2", at="post"),
    "correlation, before": am.Options(cost="correlation", at="pre"),
    "distance, before": am.Options(cost="l2", at="pre"),
}
WEIGHTS, NONE = "weights", "not aligned"


def run(bench: Bench) -> Outcome:
    p = bench.p
    seen, test, classes = samples.opened(p.data, bench.root, limit=p.samples)
    layers = samples.layers(seen, p.width, p.depth, classes)
    data = open_data(p.data, "train", root=bench.root).with_batch_size(p.batch)
    data = data.subset(p.samples, bench.seed) if p.samples else data
    at = [k / (p.points - 1) for k in range(p.points)]
    names = [*KINDS, WEIGHTS, NONE]

    def pair(number: int) -> list[Any]:
        """By how the second end is aligned: test losses and accuracies at the points of the curve."""
        generator = bench.generator(f"networks {number}")
        steps = training.steps_of(p.epochs, len(seen.targets), p.batch)
        how = {"steps": steps, "batch": p.batch, "rate": p.rate, "generator": generator}
        one, other = training.pairs(1, layers, seen, **how)[steps]
        ends, spec = (stacks.tensors(one, 0), stacks.tensors(other, 0)), matching.fitted(one)
        problem = Problem(spec, ends, seed=bench.seed, network=MLP(layers), data=data)
        found = []
        for name in names:
            perms = _aligned(problem, name)
            moved = dict(permuted(ends[1], spec, perms))
            task = Problem(spec, (ends[0], moved), seed=bench.seed, network=MLP(layers), data=data)
            trained = train(task, Elements(perms), Training(epochs=p.passes))
            curve = Curve("bezier", ends[0], moved, trained.controls)
            models = [{n: its.float() for n, its in dict(curve.at(t)).items()} for t in at]
            measured = stacks.measured(stacks.stacked(models), *test)
            found.append([measured.loss.tolist(), measured.accuracy.tolist()])
        return found

    figures = torch.tensor(bench.each("pair", range(p.pairs), pair), dtype=torch.float64)
    losses = figures[:, :, 0].mean(-1)  # (pairs, names), along the curve
    least = figures[:, :, 1].amin(-1)
    about = f"mean test loss along the curve, difference, {p.pairs} pairs"
    first, second, third, fourth = (losses[:, k] for k in range(4))
    claims = [
        mean(SOURCE, f"aligned by {name}, curves are better than without", about, BELOW, gap.tolist())
        for name, gap in zip(KINDS, (losses[:, :4] - losses[:, -1:]).T, strict=True)
    ]
    claims += [
        mean(source, says, about, BELOW, gap.tolist())
        for source, says, gap in (
            (SOURCE, "after activations, correlation is no worse than distance", first - second),
            (SOURCE, "correlation after activations is no worse than before them", first - third),
            (SOURCE, "distance after activations is no worse than before them", second - fourth),
            (OURS, "correlation after activations is no worse than weights", first - losses[:, 4]),
        )
    ]
    body = [
        (name, *row)
        for name, *row in zip(
            names, losses.mean(0).tolist(), figures[:, :, 1].mean((0, 2)).tolist(), least.mean(0).tolist(),
            strict=True,
        )
    ]  # fmt: skip
    head = ("aligned by", "test loss along the curve", "accuracy along it", "least accuracy")
    lines = [Line(name, at, its) for name, its in zip(names, figures[:, :, 0].mean(0).tolist(), strict=True)]
    panel = Panel("test loss along curves", "t", "nats", lines)
    title = f"Curves of {p.passes} epochs, {p.pairs} pairs, {p.data}"
    return Outcome(claims, [Table(title, head, body)], [panel], [])


def _aligned(problem: Problem, name: str) -> Permutations:
    if name == NONE:
        return permutation.identity(problem.fitted.words)
    if name == WEIGHTS:
        return wm.match(problem).permutations[0]
    return am.match(problem, KINDS[name]).permutations[0]
