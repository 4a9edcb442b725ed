"""One rank of test_ranks.py: prints a JSON line a scenario. Each of them is a run of its own."""

import json
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

from rebasin_cli import api, nets
from rebasin_cli.errors import CheckpointError, RebasinError, UsageError
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.runtime import signals
from rebasin_cli.runtime.processes import joined
from rebasin_cli.runtime.ranks import ALONE
from rebasin_cli.runtime.rendezvous import in_short
from rebasin_cli.runtime.seeds import seeded
from rebasin_cli.spec import library
from rebasin_cli.symmetry import permutation

RANK, SIZE, FOLDER = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]


def scenario(name):
    def run(body):
        try:
            with joined("cpu", dist.FileStore(os.path.join(FOLDER, name), SIZE)) as ranks:
                found = body(ranks)
        except (Exception, KeyboardInterrupt) as error:
            message, code = in_short(error)
            message = str(error) if isinstance(error, RebasinError) else message
            found = [type(error).__name__, code, message]
        print(json.dumps([name, found]), flush=True)

    return run


def fail(error):
    raise error


@scenario("sum")
def _(ranks):
    return [ranks.sum(torch.tensor([1.0, 2.0]) * (RANK + 1)).tolist(), ranks.sum_float(RANK + 1)]


@scenario("bits")
def _(ranks):
    values = torch.randn(50, 50, generator=torch.Generator().manual_seed(RANK))
    return ranks.sum(values.T).sum().item()  # a transposed one, too


@scenario("broadcast")
def _(ranks):
    return ranks.broadcast(torch.full((2,), RANK, dtype=torch.float64), source=1).tolist()


@scenario("agree")
def _(ranks):
    return ranks.agree(0.1 + RANK)


@scenario("first")
def _(ranks):
    return ranks.first(lambda: {"pid": os.getpid()})


@scenario("first fails")
def _(ranks):
    ranks.first(fail, UsageError("no"))


@scenario("interrupted")
def _(ranks):
    ranks.first(fail, KeyboardInterrupt())


@scenario("each")
def _(ranks):
    return ranks.each(lambda: RANK * 10)


@scenario("one fails")
def _(ranks):
    ranks.each(lambda: fail(CheckpointError(f"rank {RANK} cannot")) if RANK == 1 else None)


@scenario("code of the user's fails")
def _(ranks):
    ranks.each(lambda: fail(KeyError("x")) if RANK == 1 else None)


@scenario("one fails within")
def _(ranks):
    ranks.each(ranks.each, lambda: fail(CheckpointError(f"rank {RANK} cannot")) if RANK == 1 else None)


@scenario("differ")
def _(ranks):
    ranks.check_same({"the spec": "other" if RANK == 2 else "one", "the model": "a"})


@scenario("out of memory")
def _(ranks):
    if RANK == 1:
        raise MemoryError
    ranks.sum_float(1.0)


@scenario("last")
def _(ranks):
    if RANK == 2:
        raise ValueError("a bug")
    return ranks.last(lambda: time.sleep(0.5) or "written")


class Largest:
    """A metric over the whole set."""

    def reset(self):
        self.most = -torch.inf

    def update(self, outputs, targets):
        self.most = max(self.most, outputs.max().item())

    def compute(self):
        return self.most


def measured(ranks, **how):
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(4, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    batches = [
        (torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator))
        for n in (5, 3, 4, 1)  # one more than there are ranks
    ][: how.pop("batches", 4)]
    found = evaluate(model, batches, each=True, ranks=ranks, **how)
    figures = {"ece": found.ece, "samples": found.samples, **found.figures}
    return [figures, found.sizes, found.classes, {k: v.tolist() for k, v in found.each.items()}]


MEASURED = {"default": {}, "fewer batches": {"batches": 2}, "an object": {"metric": Largest()}}


@scenario("measured")
def _(ranks):
    return {name: [measured(ranks, **how), measured(ALONE, **how)] for name, how in MEASURED.items()}


@scenario("measured wrongly")
def _(ranks):
    class Breaks(torch.nn.Module):
        def forward(self, x):
            return x[:, :2] if len(x) > 3 else fail(RuntimeError("too few"))

    evaluate(
        Breaks(), [(torch.zeros(n, 4), torch.zeros(n, dtype=torch.long)) for n in (5, 5, 3)], ranks=ranks
    )


def network(name, seed, dtype, **options):
    with seeded(seed, "test"):
        return nets.build(name, **options).to(dtype).state_dict()


MLP = {"input_shape": (1, 4, 4), "classes": 5, "width": 24, "depth": 4}
CONVOLUTIONS = {"input_shape": (3, 9, 9), "classes": 10}
CASES = {
    "mlp": ("mlp", torch.float32, MLP),
    "float64": ("mlp", torch.float64, MLP),
    "bfloat16": ("tinyten", torch.bfloat16, CONVOLUTIONS),
    "resnet20": ("resnet20", torch.float32, CONVOLUTIONS),
}


def account(alignment):
    (perms,), result = alignment.permutations, alignment.result
    return {
        "perms": {word: perm.tolist() for word, perm in perms.items()},
        "moved": any((perm != torch.arange(len(perm))).any().item() for perm in perms.values()),
        "objective": result.objective_after,
        "sweeps": result.sweeps,
    }


def search(name, a, b, spec=None):
    @scenario(f"search {name}")
    def _(ranks):
        together = account(api.align(a, b, spec, ranks=ranks))
        return [account(api.align(a, b, spec)) if RANK == 0 else None, together]


for case, (name, dtype, options) in CASES.items():
    search(case, *(network(name, seed, dtype, **options) for seed in (1, 2)))

large = network("mlp", 1, torch.float32, input_shape=(1, 20, 20), classes=5, width=256, depth=2)
fitted = library.find({name: tuple(tensor.shape) for name, tensor in large.items()})
rng = torch.Generator().manual_seed(0)
noisy = {n: t + 0.1 * t.std() * torch.randn(t.shape, generator=rng) for n, t in large.items()}
copy = dict(permutation.permuted(noisy, fitted, permutation.random(fitted.words, rng)))
search("near copies", large, copy)  # of which the first sweep looks at samples

shapes = {"fc1.weight": (16, 8), "fc2.weight": (4, 16)}
pair = [
    {n: torch.randn(s, generator=torch.Generator().manual_seed(k)) for n, s in shapes.items()} for k in (1, 2)
]
search("fewer atoms than ranks", *pair, "two_layer")

with open(os.path.join(FOLDER, f"recurrent{RANK}.yaml"), "w") as file:
    file.write('tensors:\n  inside: "h ."\n  again: "h h"\n  outside: ". h"\n')
shapes = {"inside": (16, 8), "again": (16, 16), "outside": (4, 16)}
pair = [
    {n: torch.randn(s, generator=torch.Generator().manual_seed(k)) for n, s in shapes.items()} for k in (1, 2)
]
search("two words", *pair, file.name)

signals.GRACE = 0.5


@scenario("stuck")
def _(ranks):
    if RANK == 0:  # the others do not come, and no handler in Python is called meanwhile
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        time.sleep(2)
    ranks.sum_float(1.0)
