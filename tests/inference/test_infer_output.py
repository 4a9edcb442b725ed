"""With `output`, one of several outputs stays, and what is computed for the others says nothing."""

from collections import namedtuple

import pytest
import torch
from torch import nn

from rebasin_cli import align, infer_spec
from rebasin_cli.errors import NetworkError, NotProven
from rebasin_cli.inference.walk import OUTPUT, UNUSED, WRITTEN
from rebasin_cli.measure import report
from rebasin_cli.spec.notation import words_of

Both = namedtuple("Both", ["logits", "hidden"])
X = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two hidden layers; `wrap` makes of logits, both hidden layers and an extra head what is returned."""

    def __init__(self, wrap=lambda logits, one, two, extra: {"logits": logits, "hidden": (one, two)}):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 4)
        self.extra = nn.Linear(5, 4)
        self.wrap = wrap

    def forward(self, x):
        one = torch.relu(self.one(x))
        two = torch.relu(self.two(one))
        return self.wrap(self.head(two), one, two, self.extra(one + two))


def why(found, place):
    return [frozen.why for frozen in found.reasons if place in frozen.places]


def test_without_output_every_output_stays():
    found = infer_spec(Net(), X)
    assert found.fitted.words == {} and why(found, "one.weight axis 0") == [OUTPUT]


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda logits, one, two, extra: {"logits": logits, "hidden": (one, two)}, "logits"),
        (lambda logits, one, two, extra: (one, None, 3, logits), 3),
        (lambda logits, one, two, extra: (one, {"two": [two]}, logits), "-1"),
        (lambda logits, one, two, extra: Both(logits, one), "logits"),
        (lambda logits, one, two, extra: (logits, logits, two), 1),
    ],
)
def test_the_chosen_output_stays_and_the_others_move(wrap, output):
    found = infer_spec(Net(wrap), X, output=output)
    assert sorted(found.fitted.words.values()) == [5, 5] and found.proof.largest_difference < 1e-12
    assert why(found, "head.weight axis 0") == [OUTPUT]


def test_everything_inside_the_chosen_output_stays():
    found = infer_spec(Net(), X, output="hidden")
    assert why(found, "one.weight axis 0") == [OUTPUT] == why(found, "two.weight axis 0")
    assert why(found, "head.weight axis 0") == [UNUSED]


def test_what_is_computed_for_other_outputs_ties_nothing_and_is_not_used():
    """The extra head adds both hidden layers, whose units would be one word."""

    def wrap(logits, one, two, extra):
        return logits, extra

    assert list(infer_spec(Net(wrap), X).fitted.words.values()) == [5]
    found = infer_spec(Net(wrap), X, output=0)
    assert list(found.fitted.words.values()) == [5, 5]
    assert why(found, "extra.weight axis 1") == [UNUSED]
    assert not [word for axis in found.fitted.tensors["extra.weight"] for word in words_of(axis)]


def test_a_parameter_may_be_the_output():
    network = Net()
    network.wrap = lambda logits, one, two, extra: (logits, network.extra.bias)
    found = infer_spec(network, X, output=1)
    assert why(found, "extra.bias axis 0") == [OUTPUT] and why(found, "head.weight axis 0") == [UNUSED]


def test_rows_of_one_tensor_keep_all_of_it():
    found = infer_spec(
        Net(lambda logits, one, two, extra: torch.stack([two, extra @ extra.mT @ two])), X, output=0
    )
    assert why(found, "two.weight axis 0") == [OUTPUT]


class Remembering(nn.Module):
    """Answers with the units of the previous call."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(3, 5), nn.Linear(5, 4)
        self.register_buffer("last", torch.rand(2, 5))

    def forward(self, x):
        logits = self.head(self.last)
        self.last.copy_(torch.relu(self.layer(x)))
        return logits + x.sum(), x


def test_buffers_that_are_written_stay_whatever_is_chosen():
    found = infer_spec(Remembering(), X, output=0, prove=False)
    assert why(found, "layer.weight axis 0") == [OUTPUT]
    assert why(found, "head.weight axis 1") == [WRITTEN] == why(found, "last axis 1")


@pytest.mark.parametrize(
    ("wrap", "output", "said"),
    [
        (
            lambda logits, one, two, extra: {"logits": logits, "hidden": one},
            "absent",
            r"returns \{logits: float32 \(2, 4\), hidden: float32 \(2, 5\)\}, which has no 'absent'",
        ),
        (lambda logits, one, two, extra: (logits, one), 2, r"tuple of 2: .*, which has no 2"),
        (lambda logits, one, two, extra: logits, "logits", r"float32 \(2, 4\), which has no 'logits'"),
        (lambda logits, one, two, extra: (logits, None), 1, "where 1 holds no tensor"),
    ],
)
def test_an_output_that_there_is_not_is_the_networks_error(wrap, output, said):
    with pytest.raises(NetworkError, match=said):
        infer_spec(Net(wrap), X, output=output)


def test_who_measures_one_output_proves_one_output():
    network, spec = Net(), infer_spec(Net(), X, output="logits").fitted
    a, b = ({k: t.clone() for k, t in Net().state_dict().items()} for _ in range(2))
    aligned = align(a, b, spec, network=network, inputs=X, output="logits")
    assert aligned.proof.largest_difference < 1e-12
    with pytest.raises(NotProven):
        align(a, b, spec, network=network, inputs=X)
    batches = [(X, torch.tensor([0, 1]))]
    options = {"network": network, "test": batches, "points": 3, "inputs": X}
    assert report.barrier(a, b, spec, output="logits", **options).proof["status"] == "proven"
    with pytest.raises(NetworkError, match="--output KEY"):
        report.barrier(a, b, spec, **options)
