"""A proof believes specs that keep the function, and no others."""

import pytest
import torch
from torch import nn

from rebasin_cli import permutation
from rebasin_cli.errors import NetworkError, NotProven
from rebasin_cli.spec.fitting import fit
from rebasin_cli.spec.parsing import parse
from rebasin_cli.spec.prove import prove


class Net(nn.Module):
    """Two convolutions, the first with a norm, flattened into a head; `change` spoils the output."""

    def __init__(self, change=lambda logits: logits, units: int = 4):
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, units, 3, padding=1), nn.BatchNorm2d(units)
        self.two = nn.Conv2d(units, 5, 3, padding=1)
        self.head = nn.Linear(5 * 16, 6)
        self.change = change

    def forward(self, x):
        x = torch.relu(self.norm(self.one(x)))
        return self.change(self.head(torch.relu(self.two(x)).flatten(1)))


GOOD = {
    "one.weight": "a . . .",
    "one.bias": "a",
    "norm.weight": "a",
    "norm.bias": "a",
    "two.weight": "b a . .",
    "two.bias": "b",
    "head.weight": ". (b _)",
    "head.bias": ".",
    "norm.running_mean": "a",
    "norm.running_var": "a",
    "norm.num_batches_tracked": "",
}
INPUTS = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def spec_for(network: nn.Module, axes: dict[str, str]):
    lines = "".join(f"  {name}: '{text}'\n" for name, text in axes.items())
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    return fit(parse("tensors:\n" + lines, name="test", source="test.yaml"), shapes)


def try_to_prove(axes: dict[str, str], network: nn.Module | None = None, **options):
    network = Net() if network is None else network
    return prove(network, spec_for(network, axes), INPUTS, **options)


def test_a_good_spec_is_proven_and_says_how_well():
    proof = try_to_prove(GOOD)
    assert 0 < proof.largest_difference < 1e-12 and proof.trials == 2 and proof.words == {}
    each = try_to_prove(GOOD, each_word=True)
    assert each.words.keys() == {"a", "b"} and max(each.words.values()) < 1e-12


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"head.weight": ". (_ b)"}, ["b"]),  # the factors of the flattened axis swapped
        ({"one.bias": "."}, ["a"]),  # forgotten
        ({"norm.weight": "."}, ["a"]),
        ({"norm.running_mean": "."}, ["a"]),
        ({"norm.running_var": "."}, ["a"]),
        ({"two.weight": "b . . ."}, ["a"]),
        ({"head.weight": ". ."}, ["b"]),
        ({"one.bias": "c"}, ["a", "c"]),  # torn off
        ({"head.bias": "out", "head.weight": "out (b _)"}, ["out"]),  # the logits
        ({"one.weight": "a in . ."}, ["in"]),  # the inputs
        ({"one.weight": "a . k ."}, ["k"]),  # a kernel
    ],
)
def test_a_wrong_spec_is_not_proven_and_the_words_are_named(wrong, words):
    with pytest.raises(NotProven) as caught:
        try_to_prove(GOOD | wrong)
    assert sorted(problem.split('"')[1] for problem in caught.value.problems) == words
    assert "test.yaml does not preserve the network's function" in caught.value.message


def test_two_words_joined_wrongly_are_not_proven():
    network = Net(units=5)
    joined = {name: axes.replace("b", "a") for name, axes in GOOD.items()}
    try_to_prove(joined, network)  # the same permutation of both layers keeps the function
    with pytest.raises(NotProven) as caught:
        try_to_prove(GOOD | {"two.weight": "a b . ."}, network)
    assert len(caught.value.problems) == 2


def test_an_axis_swapped_is_not_proven():
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    good = {"0.weight": "h .", "0.bias": "h", "2.weight": ". h", "2.bias": "."}
    inputs = torch.rand(3, 4)
    prove(network, spec_for(network, good), inputs)
    with pytest.raises(NotProven):
        prove(network, spec_for(network, good | {"2.weight": "h ."}), inputs)


def test_words_of_two_units_are_caught_with_every_seed():
    network = Net(units=2)
    for seed in range(20):
        with pytest.raises(NotProven):
            try_to_prove(GOOD | {"one.bias": "."}, network, seed=seed, trials=1)


def test_a_zero_initialised_head_hides_no_mistake():
    network = Net()
    with torch.no_grad():
        for tensor in (network.head.weight, network.head.bias, network.norm.weight):
            tensor.zero_()
    try_to_prove(GOOD, network)
    for wrong in ({"two.weight": "b . . ."}, {"norm.bias": "."}, {"head.weight": ". ."}):
        with pytest.raises(NotProven):
            try_to_prove(GOOD | wrong, network)


def test_every_trial_counts():
    """A mistake that only the second draw of weights brings to light is a mistake."""
    runs = []

    class Late(Net):
        def forward(self, x):
            runs.append(None)
            logits = super().forward(x)
            return logits + self.one.bias[0] if len(runs) in (3, 4) else logits

    with pytest.raises(NotProven):
        try_to_prove(GOOD, Late(), trials=2)
    runs.clear()
    assert try_to_prove(GOOD, Late(), trials=1).trials == 1


@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda logits: logits / 0 * 0, "NaN or infinite"),
        (lambda logits: logits * 0 + 1, "all equal"),
        (lambda logits: logits[:1].expand_as(logits), "answers every input alike"),
        (lambda logits: None, "returns no tensor"),
        (lambda logits: logits.reshape(7, 7, 7), "the network fails on inputs"),
    ],
)
def test_outputs_that_say_nothing_are_the_networks_fault(change, complaint):
    with pytest.raises(NetworkError, match=complaint):
        try_to_prove(GOOD, Net(change))


@pytest.mark.parametrize("wrap", [lambda t: (t, 2 * t), lambda t: {"logits": t, "extra": [t]}])
def test_outputs_and_inputs_may_be_structures(wrap):
    try_to_prove(GOOD, Net(wrap))
    with pytest.raises(NotProven):
        try_to_prove(GOOD | {"one.bias": "."}, Net(wrap))
    network = Net()
    spec = spec_for(network, GOOD)
    assert (
        prove(network, spec, {"x": INPUTS}).largest_difference
        == prove(network, spec, (INPUTS,)).largest_difference
    )


def test_a_network_of_other_tensors_proves_nothing():
    network = Net()
    spec = spec_for(network, GOOD | {"one.bias": "."})
    wrapped = nn.ModuleDict({"module": network})
    wrapped.forward = network.forward
    with pytest.raises(NetworkError, match="is not the network of this checkpoint"):
        prove(wrapped, spec, INPUTS)


class Tied(nn.Module):
    """One matrix that embeds and, as the same parameter, reads out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(torch.relu(self.mix(self.embed(tokens))) + self.embed(tokens))


TIED = {"embed.weight": ". h", "mix.weight": "h h", "mix.bias": "h", "out.weight": ". h"}
TOKENS = torch.tensor([[1, 2], [5, 6]])


def test_tied_parameters_are_permuted_once():
    network = Tied()
    assert prove(network, spec_for(network, TIED), TOKENS).largest_difference < 1e-12
    assert network.out.weight is network.embed.weight


@pytest.mark.parametrize("name", ["embed.weight", "out.weight"])
def test_tied_parameters_with_different_words_are_not_proven(name):
    """Written under its two names, the tensor would be two tensors."""
    network = Tied()
    with pytest.raises(NotProven, match="tear tied tensors apart") as caught:
        prove(network, spec_for(network, TIED | {name: ". ."}), TOKENS)
    assert f'{name}  is "7 4"' in caught.value.problems


def test_the_network_is_left_as_it_was():
    network = Net().train()
    network.norm.eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    try_to_prove(GOOD, network)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert network.training and not network.norm.training
    assert next(network.parameters()).dtype == torch.float32


def test_half_precision_networks_are_proven_in_float64():
    assert try_to_prove(GOOD, Net().bfloat16()).largest_difference < 1e-12


def test_the_same_seed_proves_the_same():
    assert try_to_prove(GOOD, seed=1) == try_to_prove(GOOD, seed=1)
    assert try_to_prove(GOOD, seed=1).largest_difference != try_to_prove(GOOD, seed=2).largest_difference


def test_the_permutation_that_is_proven_is_the_one_that_is_applied():
    """The proof moves tensors with the function that writes files."""
    network = Net()
    spec = spec_for(network, GOOD)
    perms = permutation.random(spec.words, torch.Generator().manual_seed(0))
    moved = Net().double().eval()
    moved.load_state_dict(dict(permutation.permuted(network.double().state_dict(), spec, perms)))
    torch.testing.assert_close(moved(INPUTS.double()), network.eval()(INPUTS.double()))
