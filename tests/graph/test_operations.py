"""The table of operations: what is one row there, inference, matching and repair know."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.errors import SpecError
from rebasin_cli.graph import operations
from rebasin_cli.graph.nodes import name_of, operation
from rebasin_cli.graph.operations import OPERATIONS, Operation
from rebasin_cli.graph.tracing import export
from rebasin_cli.inference.inferring import infer
from rebasin_cli.matchers import Problem, am
from rebasin_cli.repair.channels import renormalize
from rebasin_cli.repair.refits import refit
from rebasin_cli.symmetry import elements

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "squareplus.py"


class Circular(nn.Module):
    """Convolutions around the edges, which PyTorch writes into an empty tensor."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(n, 8, 3, padding=1, padding_mode="circular") for n in (3, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu().mean((2, 3)))


class Turned(nn.Module):
    """What it looks at is turned by an angle that is learnt, as in spatial transformers."""

    def __init__(self):
        super().__init__()
        self.first, self.head, self.where = nn.Conv2d(3, 8, 3), nn.Linear(8, 4), nn.Parameter(torch.eye(2, 3))

    def forward(self, x):
        x = self.first(x).relu()
        grid = F.affine_grid(self.where.expand(len(x), 2, 3), x.shape, align_corners=False)
        return self.head(F.grid_sample(x, grid, align_corners=False).mean((2, 3)))


def squareplus():
    spec = importlib.util.spec_from_file_location("squareplus", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Net()


def leaking():
    """Slopes that are drawn in training, and their mean in evaluation."""
    return nn.Sequential(nn.Linear(20, 16), nn.RReLU(), nn.Linear(16, 12), nn.RReLU(), nn.Linear(12, 4))


IMAGES = (12, 3, 8, 8)
CASES = {
    "empty": (Circular, IMAGES, "first"),
    "grid_sampler_2d": (Turned, IMAGES, "first"),
    "rrelu": (leaking, (30, 20), "0"),
    "extras::squareplus": (squareplus, (30, 20), "first"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_new_operation_is_one_row(name, monkeypatch):
    made, shape, layer = CASES[name]
    torch.manual_seed(0)
    monkeypatch.setattr(operations, "OPERATIONS", rows := dict(OPERATIONS))
    net, x = made().eval(), torch.randn(shape)
    row = rows.pop(name, None) or OPERATIONS[name]
    assert name in {name_of(node) for node in export(net, (x,), {}).graph.nodes}
    lacking = infer(net, x).fitted
    assert str(lacking.tensors[f"{layer}.bias"][0]) not in lacking.words
    rows[name] = row
    fitted = infer(net, x).fitted  # with its proof
    assert set(lacking.words) < set(fitted.words) or not lacking.words
    before = dict(copy.deepcopy(net).state_dict())
    other = dict(elements.acted(before, fitted, elements.random(fitted, torch.Generator().manual_seed(3))))
    data = [(x, torch.zeros(len(x), dtype=torch.int64))]
    problem = Problem(fitted, (before, other), network=net, data=data)
    found = elements.acted(other, fitted, am.match(problem, am.Options()).elements[0])
    assert all(torch.equal(found[key], before[key]) for key in before)
    mean = {key: 1.1 * tensor for key, tensor in before.items()}
    for mend in (refit, renormalize):
        net.load_state_dict(mean)
        off = (net(x) - _with(net, before, x)).abs().max()
        mend(net, [before, before], data)
        assert (net(x) - _with(net, before, x)).abs().max() < off
    del rows[name]
    with pytest.raises(SpecError, match="nowhere in the network's graph"):
        am.match(problem, am.Options())


def _with(net, tensors, x):
    with torch.no_grad():
        return torch.func.functional_call(net, tensors, (x,))


def test_what_pytorch_tags_as_pointwise_is_an_activation_and_all_else_is_not_understood():
    assert operations.operation_of(torch.ops.aten.sigmoid.default, "sigmoid") == Operation("activation")
    assert operations.operation_of(torch.ops.aten.bernoulli.default, "bernoulli").kind == "other"
    assert operations.operation_of(torch.ops.aten.linalg_qr.default, "linalg_qr").kind == "other"
    assert operation("no node").kind == "other"


def test_rows_are_of_operations_that_pytorch_has():
    theirs = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    assert [name for name in OPERATIONS if "::" not in name and name not in theirs] == []


NUMBERS = torch.tensor([-3.0, -0.7, -0.1, 0.0, 0.2, 0.9, 2.5])


def _single(name):
    """The operation on numbers, where it needs nothing else."""
    try:
        made = getattr(torch.ops.aten, name)(NUMBERS)
    except (RuntimeError, AttributeError, TypeError):
        return None
    return getattr(torch.ops.aten, name) if isinstance(made, torch.Tensor) else None


ALONE = [name for name in OPERATIONS if not name.endswith("_") and _single(name) is not None]


@pytest.mark.parametrize("name", ALONE)
def test_what_a_row_says_of_numbers_is_so(name):
    row, call = OPERATIONS[name], _single(name)
    gives = call(NUMBERS)
    if row.odd:
        torch.testing.assert_close(call(-NUMBERS), -gives)
    if row.homogeneous or row.linear:
        torch.testing.assert_close(call(3 * NUMBERS), 3 * gives)
    if row.linear:
        more = NUMBERS.flip(0).square()
        torch.testing.assert_close(call(NUMBERS + more), gives + call(more))
    if row.kept:
        assert torch.equal(gives, NUMBERS)


def test_many_rows_are_tried_on_numbers():
    assert len(ALONE) > 20 and {"relu", "tanh", "neg", "clone"} <= set(ALONE)
