"""Models that are looked at run with their norms folded into convolutions, where nobody looks between."""

import pytest
import torch
from torch import nn

from rebasin_cli.graph import interpreter
from rebasin_cli.graph.interpreter import Folded, foldable, given
from rebasin_cli.graph.program import exported
from rebasin_cli.graph.tracing import export
from rebasin_cli.matchers import Problem, am
from rebasin_cli.matchers.activations import batches
from rebasin_cli.matchers.activations.similarities import similarities
from rebasin_cli.nets import build
from rebasin_cli.networks.layout import takes_last
from rebasin_cli.spec.library import resolve_spec


class Block(nn.Module):
    """Two convolutions with norms; what the second gives is read by its norm, and by the end if `twice`."""

    def __init__(self, twice=False, affine=True):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.first, self.second = nn.BatchNorm2d(4, affine=affine), nn.BatchNorm2d(4, eps=0.1)
        self.twice = twice

    def forward(self, x):
        inner = self.two(torch.relu(self.first(self.one(x))))
        return self.second(inner) + inner if self.twice else self.second(inner)


def randomised(network):
    torch.manual_seed(1)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    return network.eval()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("twice", [False, True])
def test_folded_norms_give_what_the_network_gives(twice, affine):
    network, x = randomised(Block(twice, affine)), torch.rand(5, 3, 8, 8)
    program = exported(torch.export.export(network, (x,)), ())
    nodes = list(program.graph.nodes)
    folded = foldable(nodes, ())
    assert [node.name for node in folded] == ["conv2d"] + ["conv2d_1"] * (not twice)
    with torch.no_grad():
        run = Folded(program, given(program, network.state_dict(), ((x,), {})), nodes)
        torch.testing.assert_close(run.compute(nodes), network(x))


def test_what_is_looked_at_is_not_folded():
    network, x = randomised(Block()), torch.rand(5, 3, 8, 8)
    nodes = list(torch.export.export(network, (x,)).graph_module.graph.nodes)
    shown = next(node for node in nodes if node.name == "conv2d")
    assert [node.name for node in foldable(nodes, {shown})] == ["conv2d_1"]


def test_norms_in_training_are_not_folded():
    network, x = randomised(Block()).train(), torch.rand(5, 3, 8, 8)
    assert not foldable(list(torch.export.export(network, (x,)).graph_module.graph.nodes), ())


class Rectified(nn.Module):
    """ReLUs of a convolution, of a sum, and of what is read twice, a view, the input, and its double."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x):
        inner = torch.relu(self.one(x))
        twice = self.two(inner)
        turned = torch.relu(twice.flatten(2)).unflatten(2, twice.shape[2:])
        return torch.relu(torch.relu(twice) + turned + torch.relu(x) + torch.relu(x * 2))


def test_a_relu_writes_over_what_is_its_own_alone(monkeypatch):
    network, x = randomised(Rectified()), torch.randn(5, 3, 8, 8)
    program = exported(torch.export.export(network, (x,)), ())
    nodes = list(program.graph.nodes)
    over = [node.args[0].name for node in nodes if interpreter.overwrites(node, ())]
    assert over == ["conv2d", "add_2"]
    shown = next(node for node in nodes if node.name == "conv2d")
    assert [node.args[0].name for node in nodes if interpreter.overwrites(node, {shown})] == ["add_2"]
    before, over, relu_ = x.clone(), [], torch.relu_
    monkeypatch.setattr(torch, "relu_", lambda value: over.append(value.data_ptr()) or relu_(value))
    with torch.no_grad():
        run = Folded(program, given(program, network.state_dict(), ((x,), {})), nodes)
        made = run.compute(nodes)
        assert len(over) == 2
        assert torch.equal(made, network(x)) and torch.equal(x, before)


def test_a_relu_behind_a_folded_norm_writes_over_the_convolution_unless_somebody_looks_at_the_norm():
    """As networks are traced while they run: there a norm gives several values."""
    network, x = randomised(Block()), torch.rand(5, 3, 8, 8)
    nodes = list(export(network, (x,), {}).graph.nodes)
    relu = next(node for node in nodes if "relu" in node.name)
    assert interpreter.overwrites(relu, ())
    read, between = relu.args[0], []
    while "conv" not in read.name:
        between.append(read)
        read = read.args[0]
    assert between
    for node in between:
        assert not interpreter.overwrites(relu, {node})


@pytest.mark.parametrize("at", ["post", "pre"])
def test_similarities_are_those_of_the_graph_as_it_is(monkeypatch, at):
    network = build("resnet20", input_shape=(3, 8, 8), classes=4, width=0.5)
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(
            {
                name: tensor * (0.5 + torch.rand_like(tensor)) if tensor.is_floating_point() else tensor
                for name, tensor in network.state_dict().items()
            }
        )
    fitted = resolve_spec(None, [models[0]])
    data = [(torch.rand(30, 3, 8, 8), torch.zeros(30, dtype=torch.int64)) for _ in range(3)]
    problem = Problem(fitted, tuple(models), network=network, data=data)
    count, real = [], interpreter.Folded._both

    def both(self, convolution, norm):
        count.append(norm)
        return real(self, convolution, norm)

    monkeypatch.setattr(interpreter.Folded, "_both", both)
    quick = similarities(problem, am.Options(at=at))[at]
    assert len(count) >= 2 * 3 * 15  # models, batches, layers
    monkeypatch.setattr(interpreter, "foldable", lambda nodes, shown: {})
    monkeypatch.setattr(interpreter, "overwrites", lambda node, shown: False)
    del count[:]
    plain = similarities(problem, am.Options(at=at))[at]
    assert not count
    for word, matrix in plain.items():
        assert torch.allclose(quick[word], matrix, atol=2e-5), word


def test_images_lie_channels_last_where_the_network_takes_that(monkeypatch):
    network = build("tinyten", input_shape=(3, 16, 16), classes=4, norm="batch")
    model = dict(network.state_dict())
    data = [(torch.rand(10, 3, 16, 16), torch.zeros(10, dtype=torch.int64))]
    seen, real = [], batches.watch

    def watch(sites, models, inputs, *more):
        seen.append(inputs[0][0].is_contiguous(memory_format=torch.channels_last))
        return real(sites, models, inputs, *more)

    monkeypatch.setattr("rebasin_cli.matchers.activations.observation.watch", watch)
    fitted = resolve_spec(None, [model])
    similarities(Problem(fitted, (model, model), network=network, data=data), am.Options())
    assert seen == [takes_last(network, data[0][0], None)] == [True]
