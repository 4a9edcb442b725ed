"""A rank of test_shares.py: what is learned together with the others, and beside it the same by itself."""

import json
import logging
import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from rebasin_cli import matchers, nets
from rebasin_cli.datasets import open_data
from rebasin_cli.errors import RebasinError
from rebasin_cli.learning import loop, training
from rebasin_cli.learning.curves import training as curves
from rebasin_cli.matchers import Problem
from rebasin_cli.matchers.portfolio import in_turn
from rebasin_cli.measure.controls import fine_tuned
from rebasin_cli.networks.shared_norms import SharedNorms
from rebasin_cli.repair import distill
from rebasin_cli.runtime.processes import joined
from rebasin_cli.runtime.ranks import ALONE
from rebasin_cli.runtime.seeds import seeded
from rebasin_cli.spec import library
from rebasin_cli.symmetry import elements as acts

RANK, SIZE, FOLDER = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(sys.argv[1])
SAID = []
logging.getLogger("rebasin").setLevel(logging.INFO)
logging.getLogger("rebasin").addHandler(handler := logging.Handler())
handler.emit = lambda record: SAID.append(record.getMessage())
torch.set_num_threads(1)


def scenario(name):
    """What a function finds with the other ranks, alone, and what was said of sharing."""

    def run(body):
        SAID.clear()
        try:
            with joined("cpu", dist.FileStore(str(FOLDER / name), SIZE)) as ranks:
                together = body(ranks)
            said = [text for text in SAID if "not shared" in text]
            found = [together, body(ALONE), said]
        except RebasinError as error:
            found = [type(error).__name__, error.message, error.exit_code]
        except Exception as error:
            found = [type(error).__name__, str(error), None]
        print(json.dumps([name, found]), flush=True)

    return run


def values(tensors):
    """Every number, one after the other."""
    return torch.cat([t.detach().double().flatten() for _, t in sorted(tensors.items())]).tolist()


def drawn(seed, build):
    with seeded(seed, "test"):
        return build()


class Conv(nn.Sequential):
    """Two norms of different kinds, one without running statistics."""

    def __init__(self, dropout=0.0):
        super().__init__(
            nn.Conv2d(1, 3, 3),
            nn.BatchNorm2d(3, momentum=None),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(108, 6),
            nn.BatchNorm1d(6, track_running_stats=False, affine=False),
            nn.Dropout(dropout),
            nn.Linear(6, 10),
        )


@contextmanager
def inputs_in_float64(network):
    handle = network.register_forward_pre_hook(lambda module, given: tuple(x.double() for x in given))
    try:
        yield
    finally:
        handle.remove()


train = open_data("digits", "train").subset(110, 0).with_batch_size(20)
test = open_data("digits", "test").subset(40, 0)
TRAININGS = {
    "mlp": (lambda: nets.build("mlp", input_shape=(1, 8, 8), classes=10, width=8, depth=2), {}),
    "norms": (Conv, {"optimizer": "sgd", "learning_rate": 0.05}),
    "dropout": (lambda: Conv(0.5), {}),
    "attacked": (Conv, {"attack": "0.1"}),
}
for name, (build, options) in TRAININGS.items():

    @scenario(f"train {name}")
    def _(ranks, build=build, options=options, name=name):
        network = drawn(0, build).double()
        state = FOLDER / f"{name}.{ranks.size}.{RANK}.pt"
        given = {"epochs": 2, "batch_size": 37, "precision": "float32", **options}  # 110: of the last, 36
        double = tuple(replace(its, source=its.source) for its in (train, test))
        with inputs_in_float64(network):
            found = training.train(network, double, ranks=ranks, state_path=state, **given)
        return [values(found.tensors), list(found.history), sorted(found.metadata.items())[-2:]]


model = "mlp", {"input_shape": (1, 8, 8), "classes": 10, "width": 12, "depth": 2}
states = [drawn(seed, lambda: nets.build(model[0], **model[1])).state_dict() for seed in (1, 2, 3)]
fitted = library.find({name: tuple(tensor.shape) for name, tensor in states[0].items()})


def problem(ranks, count=2, **more):
    network = nets.build(model[0], **model[1])
    return Problem(fitted, tuple(states[:count]), network=network, data=train, ranks=ranks, **more)


def search(name, count=2, seen=None, **options):
    @scenario(name)
    def _(ranks):
        module = matchers.registry.get(name.partition(" ")[0])
        task = problem(ranks, count, progress=None if seen is None else seen)
        found = in_turn.search(module, task, module.Options(**options), None)
        moved = [{w: p.tolist() for w, p in perms.items()} for perms in found.permutations]
        return [found.objective_before, found.objective_after, found.sweeps, found.solves, moved]


search("ste", epochs=2, share=1.0, learning_rate=1e-2)
search("ste few at a time", epochs=1, learning_rate=1e-2)
search("ste-mm", count=3, epochs=2, learning_rate=1e-2)
search("pam", epochs=1, samples=3, learning_rate=5.0)


class Stop(Exception):
    """In place of Ctrl-C."""


@scenario("train resumed")
def _(ranks):
    """What one process began, several go on with."""
    build, options = TRAININGS["norms"]
    network, given = drawn(0, build), {"epochs": 3, "batch_size": 37, "precision": "float32", **options}

    def stop(at):
        if at.epoch == 2:
            raise Stop

    def begin():
        try:
            training.train(drawn(0, build), (train, test), state_path=state, progress=stop, **given)
        except Stop:
            return state.exists()

    state = FOLDER / "begun.pt"
    assert ranks.size == 1 or ranks.first(begin)
    found = training.train(
        network, (train, test), ranks=ranks, state_path=state, resume=ranks.size > 1, **given
    )
    return [values(found.tensors), list(found.history)]


@scenario("train interrupted")
def _(ranks):
    """Whether a training that was interrupted is one that was not, to the last bit."""
    build, options = TRAININGS["norms"]
    given = {
        "epochs": 4,
        "batch_size": 37,
        "precision": "float32",
        "momentum": 0.9,
        "rotate": 10.0,
        **options,
    }

    def learned(state=None, stop=0):
        def seen(at):
            if at.epoch == stop:
                raise Stop

        with suppress(Stop):
            return training.train(
                drawn(0, build), (train, test), ranks=ranks, state_path=state, progress=seen, **given
            )

    whole, state = learned(), FOLDER / f"interrupted{ranks.size}.{RANK}.pt"
    assert learned(state, 2) is None
    again = learned(state)
    return [[values(again.tensors) == values(whole.tensors), again.history == whole.history]]


@scenario("ste resumed")
def _(ranks):
    module, kept = matchers.registry.get("ste"), []

    def keep(state):
        if state.sweep == 4:
            tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
            kept.append(replace(state, tensors=tensors))

    options = module.Options(epochs=2, share=1.0, learning_rate=1e-2)
    found = module.match(problem(ALONE, progress=keep), options)
    if ranks.size > 1:
        found = module.match(problem(ranks, start=kept[0]), options)
    moved = [{w: p.tolist() for w, p in perms.items()} for perms in found.permutations]
    return [found.objective_before, found.objective_after, found.sweeps, moved]


@scenario("curve")
def _(ranks):
    how = curves.Training(epochs=2, weight_decay=1e-3, learning_rate=0.1)
    found = curves.train(problem(ranks), acts.identity(fitted), how)
    return [values(found.controls[0]), list(found.losses)]


for name, more in {"distill": {}, "distill without memory": {"memory": 0}}.items():

    @scenario(name)
    def _(ranks, more=more):
        network = drawn(4, lambda: nets.build(model[0], **model[1]))
        done = distill(network, states[:2], train, epochs=2, ranks=ranks, **more)
        return [values(network.state_dict()), done.method]


@scenario("fine-tuned")
def _(ranks):
    network = nets.build(model[0], **model[1])
    found = fine_tuned(network, states[0], "A", train, ranks=ranks)
    return [values(found.network.state_dict()), found.details["steps"]]


class Losing(loop.Learner):
    """A network by plain gradient descent on a loss."""

    def __init__(self, function, network):
        self.function, self.network, self.losses = function, network, []

    def begin_step(self, inputs, targets):
        self.network.zero_grad()

    def loss(self, inputs, targets):
        return self.function(self.network(inputs), targets)

    def counted(self, targets, size):
        return int((targets != -100).sum())

    def move(self):
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter -= 0.5 * parameter.grad if parameter.grad is not None else 0

    def tell(self, loss):
        self.losses.append(loss)


def batches(sizes, classes=3):
    rng = torch.Generator().manual_seed(0)
    return [
        (torch.randn(n, 4, generator=rng, dtype=torch.float64), torch.randint(classes, (n,), generator=rng))
        for n in sizes
    ]


def left_out(pairs):
    return [(x, torch.where(torch.arange(len(y)) % 5 == 0, -100, y)) for x, y in pairs]


def beyond(pairs):
    """The last target is of no class."""
    return [(x, torch.cat([y[:-1], torch.tensor([6])])) for x, y in pairs]


class Fixed(nn.Linear):
    def forward(self, x):
        return super().forward(x.view(8, 4))


class Unused(nn.Linear):
    def __init__(self, *shape):
        super().__init__(*shape)
        self.never = nn.Parameter(torch.ones(2))


def rare(pairs):
    """Only the last batch has targets of the last class."""
    return [(x, y.clamp(max=1)) for x, y in pairs[:-1]] + pairs[-1:]


def weighing(pairs, varied=()):
    """Beside the class a weight; it is not the same for all in these batches."""
    for k, (x, y) in enumerate(pairs):
        weights = 1.0 + 8.0 * (torch.arange(len(y)) * 2 >= len(y)) * (k in varied)
        yield x, torch.stack([y.double(), weights.double()], 1)


def unknown(pairs, rarely):
    """Real targets; in some of these batches the first few are NaN, which nobody knows."""
    for k, (x, y) in enumerate(pairs):
        yield x, y.double().masked_fill((torch.arange(len(y)) < 3) & (k in rarely), torch.nan)


def long(pairs):
    """A weight for each of several numbers, of other lengths in every batch, and what they were before."""
    for k, (x, y) in enumerate(pairs):
        yield x, (1.0 + y[:, None]).double().expand(-1, 2 + k % 3)


def known(outputs, targets):
    known = ~targets.isnan()
    return (outputs[known, 0] - targets[known]).square().sum() / known.sum()


def of_any_length(outputs, targets):
    ASKED.append(len(targets))
    return (outputs[:, :1] - targets).square().mean()


def weighed(outputs, targets):
    losses = F.cross_entropy(outputs, targets[:, 0].long(), reduction="none")
    return (losses * targets[:, 1]).sum() / targets[:, 1].sum()


class Normed(nn.Sequential):
    def __init__(self, *shape):
        super().__init__(nn.Linear(*shape), nn.BatchNorm1d(shape[1]))


class Fails(Normed):
    """In the second rank alone, once: before its norm, within which the others wait."""

    def forward(self, x):
        if self.training and RANK == 1 and SIZE > 1 and len(x) == 5 and torch.is_grad_enabled():
            raise MemoryError("no room on this rank")
        return super().forward(x)


ASKED = []
WEIGHTED = nn.CrossEntropyLoss(torch.tensor([1.0, 5.0, 0.1], dtype=torch.float64))
RARELY = nn.CrossEntropyLoss(torch.tensor([1.0, 1.0, 9.0], dtype=torch.float64))
LOSSES = {
    "means": (F.cross_entropy, nn.Linear, batches([8, 9, 1, 2])),
    "some left out": (F.cross_entropy, nn.Linear, left_out(batches([20, 11, 4]))),
    "sums": (lambda out, y: F.cross_entropy(out, y, reduction="sum"), nn.Linear, batches([8, 9])),
    "weighted": (WEIGHTED, nn.Linear, batches([8, 9])),
    "weighted rarely": (RARELY, nn.Linear, rare(batches([8, 9, 7, 9, 8]))),
    "weights in some batches": (weighed, nn.Linear, [*weighing(batches([9] * 8), varied=(2,))]),
    "weights alike": (weighed, nn.Linear, [*weighing(batches([9] * 8))]),
    "targets unknown in some batches": (known, nn.Linear, [*unknown(batches([9] * 8), rarely=(2,))]),
    "lengths": (of_any_length, nn.Linear, [*long(batches([9] * 24))]),
    "fixed size": (F.cross_entropy, Fixed, batches([8, 8])),
    "unused": (F.cross_entropy, Unused, batches([8, 9])),
    "one rank fails beside a norm": (F.cross_entropy, Normed, batches([8]) + beyond(batches([8]))),
    "one rank fails before a norm": (F.cross_entropy, Fails, batches([8, 9, 10])),
    "one rank fails": (F.cross_entropy, nn.Linear, batches([8]) + beyond(batches([8]))),
}
for name, (function, kind, data) in LOSSES.items():

    @scenario(f"loss {name}")
    def _(ranks, function=function, kind=kind, data=data):
        learner = Losing(function, drawn(5, lambda: kind(4, 3)).double())
        learner.own = function in (WEIGHTED, RARELY, weighed, known, of_any_length)
        loop.learn(learner, loop.Passes(data, epochs=2), ranks)
        return [values(learner.network.state_dict()), learner.losses]


@scenario("asked")
def _(ranks):
    """How often a loss is asked for 48 steps, of targets of three lengths."""
    ASKED.clear()
    learner = Losing(of_any_length, drawn(5, lambda: nn.Linear(4, 3)).double())
    learner.own = True
    loop.learn(learner, loop.Passes([*long(batches([9] * 24))], epochs=2), ranks)
    return len(ASKED)


NORMS = {
    "affine": {},
    "of all batches": {"momentum": None},
    "plain": {"affine": False, "track_running_stats": False},
}


@scenario("norms")
def _(ranks):
    found = {}
    for name, options in NORMS.items():
        rng = torch.Generator().manual_seed(0)
        x = 3 + torch.randn(7, 3, 4, 4, generator=rng, dtype=torch.float64)
        pull = torch.randn(7, 3, 4, 4, generator=rng, dtype=torch.float64)
        norm = nn.BatchNorm2d(3, **options).double()
        ends = [7 * k // ranks.size for k in range(ranks.size + 1)]
        mine = slice(ends[ranks.rank], ends[ranks.rank + 1])
        x = x[mine].clone().requires_grad_()
        for _ in range(2):
            if ranks.size > 1:
                with SharedNorms(norm, ranks).joined():
                    y = norm(x)
            else:
                y = norm(x)
        (y * pull[mine]).sum().backward()
        parts = ranks.all([y.detach(), x.grad])
        sums = [ranks.sum(p.grad.clone()).tolist() for p in norm.parameters()]
        found[name] = [
            [torch.cat(part).tolist() for part in zip(*parts, strict=True)],
            sums,
            [b.tolist() for b in norm.buffers()],
        ]
    return found
