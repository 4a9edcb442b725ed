"""Straight-through estimation: seconds a step, and how much of them is spent on matching.

    python benchmarks/learning.py [--rows "mlp 3x512 n=2,…"] [--models A B C … --data mnist] [--steps 20]

Three ways to take the same steps: "plain" solves every permutation in every step, one after the other, with
scipy's cold assignments in float64; "exact" solves every permutation in every step as shipped; "shipped" is
the default, which solves as many as it takes to stay below a fifth of a step. All start from weight matching,
as "plain" did not before 2026-11-23. Without --models the models are random initialisations and the data
noise; with --models the rows are of these, the first n of them. One thread, so that parts add up; medians
over steps, the first two left out. "products" are the same products by torch.mm alone, on operands that lie
as it likes them.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from _rows import begin, described, heading, parser, random_net, row
from scipy.optimize import linear_sum_assignment

from rebasin_cli import nets, networks, open_checkpoint
from rebasin_cli.datasets import open_data
from rebasin_cli.matchers import Problem, ste_mm
from rebasin_cli.matchers.straight_through import projection
from rebasin_cli.matchers.straight_through.projection import Followers
from rebasin_cli.matchers.straight_through.search import Run
from rebasin_cli.symmetry import assignment

NETS = {
    "mlp 3x512": ("mlp", (1, 28, 28), 512, 500),
    "vgg11": ("vgg11", (3, 32, 32), 1, 128),
    "resnet20 4x": ("resnet20", (3, 32, 32), 4, 128),
}
ROWS = ["mlp 3x512 n=2", "mlp 3x512 n=5", "mlp 3x512 n=10", "vgg11 n=2", "resnet20 4x n=2"]
WAYS = {
    "plain": ste_mm.Options(epochs=1, share=1.0),
    "exact": ste_mm.Options(epochs=1, share=1.0),
    "shipped": ste_mm.Options(epochs=1),
}


def cold(similarities: Iterable[torch.Tensor], starts: object, *, pool: object) -> list[assignment.Solution]:
    """scipy in float64, from nothing; with duals that nobody uses."""
    found = []
    for similarity in similarities:
        _, perm = linear_sum_assignment(similarity.double().numpy(), maximize=True)
        found.append(assignment.Solution(perm, np.zeros((3, len(perm)))))
    return found


@contextmanager
def watched(plain: bool) -> Iterator[Counter]:
    """Seconds of matching, of its assignments and products, and the products that were taken."""
    taken: Counter = Counter()
    solve = cold if plain else assignment.solve_all
    project, matrix = Followers.solve, projection.Pair.matrix

    def timed(name, function):
        def run(*args, **kwargs):
            args = [list(arg) if isinstance(arg, Iterator) else arg for arg in args]  # made before the clock
            began = time.perf_counter()
            found = function(*args, **kwargs)
            taken[name] += time.perf_counter() - began
            return found

        return run

    def products(pair, word, permutations, *, chosen=None, out=None):
        chosen = pair.single[word] if chosen is None else chosen
        taken[pair.words[word], sum(pair.columns([a], word) for a in chosen)] += 1
        began = time.perf_counter()
        found = matrix(pair, word, permutations, chosen=chosen, out=out)
        taken["similarities"] += time.perf_counter() - began
        return found

    with (
        mock.patch.object(Followers, "solve", timed("matching", project)),
        mock.patch.object(projection.assignment, "solve_all", timed("assignments", solve)),
        mock.patch.object(projection.Pair, "matrix", products),
        mock.patch.object(projection, "TOGETHER", 0 if plain else projection.TOGETHER),
    ):
        yield taken


def product_seconds(shapes: Counter) -> float:
    """What torch.mm alone takes for all of these products: medians of three, as busy a machine."""
    total = 0.0
    for (units, columns), count in shapes.items():
        a, b = torch.randn(units, columns), torch.randn(columns, units)
        middle = statistics.median(_seconds(torch.mm, a, b) for _ in range(3))
        total += count * middle
    return total


def _seconds(task, *args) -> float:
    began = time.perf_counter()
    task(*args)
    return time.perf_counter() - began


def measure(problem: Problem, way: str, steps: int) -> dict[str, float]:
    """Seconds a step, medians: all, matching, its assignments, and the same products by torch.mm alone."""
    with watched(way == "plain") as taken:
        run = Run(problem, WAYS[way], ste_mm.PRIORS["uniforms"], 1.0)
        run.begin(None)
        rows: list[dict[str, float]] = []
        for inputs, targets in itertools.chain.from_iterable(map(run.passes.batches, itertools.count())):
            taken.clear()
            began = time.perf_counter()
            run.loss(inputs, targets).backward()
            run.move()
            seconds = time.perf_counter() - began
            run.done += 1
            shapes = Counter({key: n for key, n in taken.items() if isinstance(key, tuple)})
            rows.append({name: taken[name] for name in ("matching", "assignments", "similarities")})
            rows[-1] |= {"step": seconds, "products": product_seconds(shapes), "solved": shapes.total()}
            if len(rows) == steps:
                break
        run.close()
    late = rows[2:] or rows
    found = {name: statistics.median(r[name] for r in late) for name in rows[0]}
    return found | {"matched": statistics.fmean(r["matching"] / r["step"] for r in late)}


def problem_of(name: str, count: int, files: list[Path], data: str) -> Problem:
    net, shape, width, batch = NETS[name]
    if files:
        models = tuple(dict(open_checkpoint(path).items()) for path in files[:count])
        batches = open_data(data, "train", batch_size=batch)
        network = networks.from_reference(net, open_checkpoint(files[0]).shapes)
    else:
        models = tuple(random_net(net, shape, width, seed) for seed in range(count))
        rng = torch.Generator().manual_seed(0)
        batches = [
            (torch.randn(batch, *shape, generator=rng), torch.randint(10, (batch,), generator=rng))
            for _ in range(6)
        ] * 6
        network = nets.build(net, input_shape=shape, classes=10, width=width)
    return Problem(described(models[0]), models, 0, network=copy.deepcopy(network), data=batches)


def main() -> None:
    found = parser(__doc__, rows=False)
    found.add_argument("--rows", default=",".join(ROWS), help="comma-separated: NET n=COUNT")
    found.add_argument("--models", nargs="*", type=Path, default=[], help="checkpoints of the rows' network")
    found.add_argument("--data", default="mnist")
    found.add_argument("--steps", type=int, default=20)
    torch.set_num_threads(1)
    arguments = begin(found)
    steps = 5 if arguments.quick else arguments.steps
    heading(
        "row",
        "way",
        "ms a step",
        "solved a step",
        "matching",
        "share of the step",
        "assignments ms",
        "over torch.mm alone",
        "assignments against plain",
    )
    for text in arguments.rows.split(","):
        name, _, count = text.strip().rpartition(" n=")
        problem = problem_of(name, int(count), arguments.models, arguments.data)
        plain = None
        for way in WAYS:
            took = measure(problem, way, steps)
            plain = plain or took
            row(
                f"{text.strip()}{', trained' if arguments.models else ''}",
                way,
                f"{1e3 * took['step']:.1f}",
                f"{took['solved']:.0f}",
                f"{1e3 * took['matching']:.1f} ms",
                f"{took['matched']:.0%}",
                f"{1e3 * took['assignments']:.1f}",
                f"{took['matching'] / took['products']:.2f}x" if took["products"] else "",
                _times(plain, took),
            )


def _times(plain: dict[str, float], took: dict[str, float]) -> str:
    """How much faster assignments are, each."""
    each = [t["assignments"] / max(1, t["solved"]) for t in (plain, took)]
    return f"{each[0] / each[1]:.1f}x" if each[1] else ""


if __name__ == "__main__":
    main()
