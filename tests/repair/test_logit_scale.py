"""A temperature in the weights: which layer gives the logits, and what dividing it does."""

import copy

import pytest
import torch
from torch import nn

from rebasin_cli import nets
from rebasin_cli.errors import UsageError
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.repair import logit_scale


class Net(nn.Module):
    """Two linear layers, and what a test puts after them."""

    def __init__(self, ending, **head):
        super().__init__()
        self.body, self.head, self.ending = nn.Linear(4, 6), nn.Linear(6, 3, **head), ending

    def forward(self, x):
        return self.ending(self, self.head(self.body(x).relu()))


def batches(count=4):
    rng = torch.Generator().manual_seed(0)
    return [(torch.randn(32, 4, generator=rng), torch.randint(3, (32,), generator=rng)) for _ in range(count)]


def logits(network):
    with torch.inference_mode():
        return torch.cat([network.eval()(inputs) for inputs, _ in batches()])


@pytest.mark.parametrize(
    ("ending", "head", "output"),
    [
        (lambda net, x: x, {}, None),
        (lambda net, x: x, {"bias": False}, None),
        (lambda net, x: nn.functional.dropout(x.view(-1, 3, 1), 0.5, net.training).mean(2), {}, None),
        (lambda net, x: {"aux": net.body.weight.sum(), "logits": x}, {}, "logits"),
    ],
)
def test_logits_are_divided_and_nothing_else_changes(ending, head, output):
    torch.manual_seed(3)
    network = Net(ending, **head)
    network.head.weight.data *= 20  # far too sure: a temperature well above 1
    state = copy.deepcopy(network.state_dict())
    plain = Net(lambda net, x: x, **head)
    plain.load_state_dict(state)
    rng = torch.Generator().manual_seed(1)
    right = [plain(inputs).argmax(1) for inputs, _ in batches()]  # three of four times
    held = [
        (inputs, torch.where(torch.rand(32, generator=rng) < 0.75, best, targets))
        for (inputs, targets), best in zip(batches(), right, strict=True)
    ]
    site = logit_scale.logits_layer(network, held[0][0], output)
    done = logit_scale.bake(network, state, site, held, output=output)
    assert site.name == done.layer == "head" and done.temperature > 2
    assert set(done.tensors) == {"head.weight", *["head.bias"] * head.get("bias", True)}
    wanted = logits(plain) / done.temperature
    plain.load_state_dict(state | done.tensors)
    torch.testing.assert_close(logits(plain), wanted, rtol=1e-5, atol=1e-6)
    assert done.losses[1] == pytest.approx(evaluate(plain, held).loss) and done.losses[1] < done.losses[0]


def tied(net, x):
    return x + nn.functional.linear(x, net.head.weight[:, :3])


@pytest.mark.parametrize(
    ("ending", "head", "output", "why"),
    [
        (lambda net, x: x.softmax(1), {}, None, "the last operation on the way to them is _softmax"),
        (lambda net, x: x + x.tanh(), {}, None, "the last operation on the way to them is add"),
        (lambda net, x: x @ net.body.weight[:3, :3], {}, None, "on the way to them is "),
        (lambda net, x: nn.functional.linear(x, net.body.weight[:3, :3]), {}, None, "on the way to them is "),
        (lambda net, x: (x, x.exp()), {}, None, "the network returns 2 tensors"),
        (lambda net, x: (x, nn.functional.linear(x, net.body.weight[:, :3])), {}, 0, "is read again"),
        (lambda net, x: x + 0 * net.head.bias, {}, None, "is add"),
        (lambda net, x: (x, net.head.bias * 2), {}, 0, "the bias of head is not its alone"),
    ],
)
def test_what_no_single_layer_gives_is_refused(ending, head, output, why):
    with pytest.raises(UsageError) as found:
        logit_scale.logits_layer(Net(ending, **head), batches()[0][0], output)
    assert "no single layer gives the logits" in found.value.message
    assert why in found.value.problems[0], found.value.problems


def test_a_tied_head_is_refused():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.words.weight

        def forward(self, x):
            return self.head(self.words(x).mean(1))

    with pytest.raises(UsageError) as found:
        logit_scale.logits_layer(Tied(), torch.zeros(2, 3, dtype=torch.long))
    assert "used more than once" in found.value.problems[0]


def test_a_network_that_cannot_be_traced_is_refused():
    network = Net(lambda net, x: x if x.sum() > 0 else -x)
    with pytest.raises(UsageError) as found:
        logit_scale.logits_layer(network, batches()[0][0])
    assert "the network cannot be traced" in found.value.problems[0]


@pytest.mark.parametrize(
    ("name", "shape", "head"),
    [("mlp", (1, 8, 8), "head"), ("tinyten", (3, 9, 9), "fc"), ("resnet20", (3, 8, 8), "fc")],
)
def test_the_last_layer_of_our_own_networks_is_found(name, shape, head):
    network = nets.build(name, input_shape=shape, classes=10, width={"mlp": 8}.get(name, 0.25))
    assert logit_scale.logits_layer(network, torch.zeros(2, *shape)).name.endswith(head)


def test_where_no_temperature_is_best_nothing_changes():
    network = Net(lambda net, x: x)
    held = [(inputs, network(inputs).argmax(1)) for inputs, _ in batches()]  # all right
    done = logit_scale.bake(
        network, network.state_dict(), logit_scale.logits_layer(network, held[0][0]), held
    )
    assert done.temperature == 1 and not done.tensors and "no temperature is best" in done.in_words()
    assert done.account()["why"] == done.why
