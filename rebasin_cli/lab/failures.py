"""Where is weight matching said to fail?

The paper lists what has no low barrier after matching: narrow networks, networks early in training, those
trained by SGD with a low learning rate, those trained by Adam with a high one, and VGG16 on MNIST. Each is
measured beside the same networks without it, trained on the same samples for as many steps; VGG16 beside the
multilayer perceptrons.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import nets
from ..datasets import Data, Samples, open_data
from ..datasets.loaders import LoaderData
from ..errors import UsageError
from ..learning.training import train as trained_alone
from ..matchers import Problem, wm
from ..networks.evaluation import evaluate
from ..spec import library
from ..spec.fits import fit
from ..symmetry.permutation import permuted
from .batched import matching, samples, stacks, training
from .engine.bench import Bench
from .engine.claims import ABOVE, Claim, Line, Outcome, Panel, Table, bootstrap, mean

PAPER = "Git Re-Basin A.1"
FASTER = "fewer steps, and fewer pairs of VGG16: training takes nearly all of the time"
SOURCE = "Git Re-Basin A.1"

VGG = "vgg16"
SIDE = 32  # of the images that VGG16 reads


def run(bench: Bench) -> Outcome:
    p = bench.p
    train, test, classes = samples.opened(p.data, bench.root, limit=p.samples)
    usual = {"width": p.width, "steps": p.steps, "optimizer": "adam", "rate": p.adam}
    kinds = {
        "as usual": usual,
        "narrow": usual | {"width": max(1, p.width // 8)},
        "early in training": usual | {"steps": p.early},
        "Adam, high rate": usual | {"rate": p.adam_high},
        "SGD": usual | {"optimizer": "sgd", "rate": p.sgd},
        "SGD, low rate": usual | {"optimizer": "sgd", "rate": p.sgd_low},
    }

    def measure(kind: str) -> list[Any]:
        """For every pair: wm and naive barrier, loss and accuracy of the ends, on test data."""
        how = kinds[kind]
        layers = samples.layers(train, how["width"], p.depth, classes)
        told = {key: value for key, value in how.items() if key != "width"}
        told |= {"batch": p.batch, "momentum": 0.9, "generator": bench.generator(f"networks {kind}")}
        one, other = training.pairs(p.pairs, layers, train, **told)[how["steps"]]
        line = stacks.path(one, matching.aligned(one, other, seed=bench.seed), *test, p.points)
        naive = stacks.heights(stacks.path(one, other, *test, p.points).loss)[0]
        own = [(values[:, 0] + values[:, -1]) / 2 for values in (line.loss, line.accuracy)]
        return torch.stack([stacks.heights(line.loss)[0], naive, *own], 1).tolist()

    found = dict(zip(kinds, bench.each("training and matching", kinds, measure), strict=True))
    found[VGG] = bench.each(f"{VGG}, pair", range(p.vgg_pairs), lambda number: _vgg(bench, number))
    claims = []
    for kind, beside, says in (
        ("narrow", "as usual", "narrow networks have a higher barrier"),
        ("early in training", "as usual", "networks early in training have a higher barrier"),
        ("Adam, high rate", "as usual", "so have networks trained by Adam with a high learning rate"),
        ("SGD, low rate", "SGD", "so have networks trained by SGD with a low learning rate"),
    ):
        rows = [[a[0], b[0]] for a, b in zip(found[kind], found[beside], strict=True)]
        differs = bootstrap(rows, lambda means: means[..., 0] - means[..., 1], seed=bench.seed)
        about = f"wm barrier of '{kind}' minus '{beside}', test, {p.pairs} pairs each"
        claims.append(Claim(SOURCE, says, about, ABOVE, *differs))
    means = {kind: torch.tensor(rows, dtype=torch.float64).mean(0).tolist() for kind, rows in found.items()}
    above = [row[0] - means["as usual"][0] for row in found[VGG]]
    about = f"its wm barrier minus the mean of 'as usual', test, {p.vgg_pairs} pairs"
    claims.append(mean(SOURCE, "so has VGG16 on handwritten digits", about, ABOVE, above))
    head = ("", "pairs", "wm barrier", "naive barrier", "ends' loss", "ends' accuracy")
    body = [(kind, len(found[kind]), *row) for kind, row in means.items()]
    names = ", ".join(f"{at}: {kind}" for at, kind in enumerate(means))
    bars = Line("wm", list(range(len(means))), [row[0] for row in means.values()], bars=0.7)
    panel = Panel("barrier after matching", names, "nats", [bars], floor=0)
    note = f"{VGG}, {p.vgg_width:g} times as wide as usual, without norms, on images of {SIDE}×{SIDE}."
    return Outcome(claims, [Table(f"Means of pairs, test, {p.data}", head, body)], [panel], [note])


def _vgg(bench: Bench, number: int) -> list[float]:
    """The same figures of one pair of VGG16, trained by Adam on the images made larger."""
    p = bench.p
    train, test = (
        _enlarged(
            open_data(p.data, split, root=bench.root, limit=p.samples or None if split == "train" else None)
        )
        for split in ("train", "test")
    )
    how = {"width": p.vgg_width, "epochs": p.vgg_epochs, "batch_size": p.batch, "learning_rate": p.adam}
    how |= {"optimizer": "adam", "schedule": "constant", "augment": False, "precision": "float32"}
    how |= {"warmup": 0.0, "weight_decay": 0.0}
    a, b = (
        trained_alone(VGG, (train, test), seed=bench.derive(f"{VGG} {number} {end}"), **how).tensors
        for end in "ab"
    )
    spec = fit(library.load(VGG), {name: tuple(tensor.shape) for name, tensor in a.items()})
    match = wm.match(Problem(spec, (a, b), seed=bench.seed))
    moved = dict(permuted(b, spec, match.permutations[0]))
    shape = tuple(train.source.inputs.shape[1:])
    network = nets.build(VGG, input_shape=shape, classes=train.classes, width=p.vgg_width)

    def losses(other: dict[str, Tensor]) -> tuple[Tensor, list[float]]:
        found = []
        for t in torch.linspace(0, 1, p.points):
            network.load_state_dict({name: torch.lerp(a[name], other[name], t) for name in a})
            found.append(evaluate(network, test))
        return torch.tensor([[s.loss for s in found]], dtype=torch.float64), [s.accuracy for s in found]

    line, accuracies = losses(moved)
    naive = stacks.heights(losses(b)[0])[0]
    own = [float(line[0, 0] + line[0, -1]) / 2, (accuracies[0] + accuracies[-1]) / 2]
    return [float(stacks.heights(line)[0]), float(naive), *own]


def _enlarged(data: Data | LoaderData) -> Data:
    """Its images with `SIDE` pixels a side: by zeros around them where these are few, else by repeating."""
    if not isinstance(data, Data):
        raise UsageError(f"{data.name}: the lab needs the samples of a data set, not batches of a loader")
    images = data.source.inputs
    around = SIDE - images.shape[-1]
    if 0 < around <= SIDE // 4:
        images = F.pad(images, [around // 2, around - around // 2] * 2)
    elif around > 0:
        images = F.interpolate(images.float(), size=(SIDE, SIDE), mode="nearest").to(images.dtype)
    return replace(data, source=Samples(images, data.source.targets))
