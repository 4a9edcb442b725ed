"""What stays although it could move is named, with the symmetries that it costs."""

import math

import pytest
import torch
from torch import nn

from rebasin_cli.inference import explaining, infer
from tests.inference.test_infer import IMAGES, ROWS, Net

DIGITS = [math.log10(math.factorial(n)) for n in range(9)]


def named(network, inputs=ROWS):
    return infer(network, inputs, prove=False).missed


def linears(count):
    return nn.ModuleList(nn.Linear(5, 5) for _ in range(count))


def net(function, **modules):
    return Net(lambda s, x: s.h(function(s, s.i(x))), i=nn.Linear(3, 5), h=nn.Linear(5, 2), **modules)


def test_experts_in_a_list_could_change_places_with_the_rows_of_their_router():
    def mixture(s, x):
        gates = s.gate(x).softmax(-1)
        return x + sum(gates[:, k : k + 1] * expert(x) for k, expert in enumerate(s.experts))

    network = net(mixture, gate=nn.Linear(5, 4), experts=linears(4))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    (found,) = named(network)
    assert found.log10 == pytest.approx(DIGITS[4]) and not found.bound
    assert found.places[:4] == tuple(f"experts.{k}.weight …" for k in range(4))
    assert found.places[4:] == ("gate.weight axis 0", "gate.bias axis 0")
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_branches_that_are_added_up_could_change_places_and_others_could_not():
    added = net(lambda s, x: sum(branch(x).relu() for branch in s.b), b=linears(3))
    assert [found.log10 for found in named(added)] == pytest.approx([DIGITS[3]])
    taken = net(lambda s, x: s.b[0](x).relu() - s.b[1](x).relu(), b=linears(2))
    assert named(taken) == ()
    circle = net(lambda s, x: sum(s.b[k](x) * s.b[(k + 1) % 4](x).relu() for k in range(4)), b=linears(4))
    assert named(circle) == ()


def test_layers_one_after_another_are_not_tried():
    assert named(net(lambda s, x: s.b[1](s.b[0](x).relu()), b=linears(2))) == ()


def test_units_that_no_method_could_match_and_axes_without_a_rule_are_named():
    alone = Net(lambda s, x: s.h(x) * s.w.softmax(0).max(), h=nn.Linear(3, 2), w=nn.Parameter(torch.rand(6)))
    (found,) = named(alone)
    assert found.places == ("w axis 0",) and found.log10 == pytest.approx(DIGITS[6])
    unlike = Net(
        lambda s, x: s.h(s.c(s.b(s.a(x)).relu()).mean((2, 3))), a=nn.Conv2d(3, 12, 1),
        b=nn.Conv2d(12, 12, 1, groups=4), c=nn.Conv2d(12, 12, 1, groups=6), h=nn.Linear(12, 2),
    )  # fmt: skip
    found, within = named(unlike, IMAGES)
    assert "grouped differently" in found.what and "b.weight axis 0" in found.places and found.log10 is None
    assert within.what == "3 units that have 1 order and could have 4"
    assert within.log10 == pytest.approx(3 * DIGITS[3])
    assert within.places == ("a.weight axis 0", "a.bias axis 0", "b.weight axis 1")


def test_they_are_told_with_their_digits():
    found = infer(net(lambda s, x: s.b[0](x).relu() + s.b[1](x).relu(), b=linears(2)), ROWS, prove=False)
    told = explaining.explain(found)
    assert told["missed"][0]["log10"] == pytest.approx(DIGITS[2])
    lines = list(explaining.lines(told))
    at = lines.index("stays although it could move:")
    assert lines[at + 1] == "  modules of a list that could change places, 10^0.3 symmetries"
    assert lines[at + 2] == "    b.0.weight …, b.1.weight …"
