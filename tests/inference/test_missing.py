"""What stays although it could move is named, with the symmetries that it costs."""

import math

import pytest
import torch
from torch import nn

from rebasin_cli.inference import infer
from rebasin_cli.inference.text import reasons
from tests.inference.test_infer import IMAGES, ROWS, Net

DIGITS = [math.log10(math.factorial(n)) for n in range(9)]


def named(network, inputs=ROWS):
    return infer(network, inputs, prove=False).missed


def linears(count):
    return nn.ModuleList(nn.Linear(5, 5) for _ in range(count))


def net(function, **modules):
    return Net(lambda s, x: s.h(function(s, s.i(x))), i=nn.Linear(3, 5), h=nn.Linear(5, 2), **modules)


def grouped():
    """An expert whose units lie in groups: within the order of a list, that would be too deep."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 1, groups=3), nn.ReLU(), nn.Conv2d(6, 5, 1)
    )


def experts(count):
    def mixture(s, x):
        gates = s.gate(x.mean((2, 3))).softmax(-1)
        return s.h(sum(gates[:, k : k + 1] * e(x).mean((2, 3)) for k, e in enumerate(s.experts)))

    many = nn.ModuleList(grouped() for _ in range(count))
    return Net(mixture, gate=nn.Linear(3, count), experts=many, h=nn.Linear(5, 2))


def test_experts_in_a_list_that_no_line_can_say_could_change_places_with_the_rows_of_their_router():
    network = experts(4)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    (found,) = (one for one in named(network, IMAGES) if "list" in one.what)
    assert found.log10 == pytest.approx(DIGITS[4]) and not found.bound
    assert "orders within its modules' orders would lie too deep" in found.what
    assert found.places[:4] == tuple(f"experts.{k}.0.weight …" for k in range(4))
    assert found.places[4:] == ("gate.weight axis 0", "gate.bias axis 0")
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_branches_that_are_added_up_change_places_and_others_could_not():
    def lists(function, count):
        found = infer(net(function, b=linears(count)), ROWS, prove=False)
        assert found.missed == ()
        return {its.word: len(its.members) for its in found.fitted.stacks.values()}

    assert lists(lambda s, x: sum(branch(x).relu() for branch in s.b), 3) == {"b": 3}
    assert lists(lambda s, x: s.b[0](x).relu() - s.b[1](x).relu(), 2) == {}
    circle = lists(lambda s, x: sum(s.b[k](x) * s.b[(k + 1) % 4](x).relu() for k in range(4)), 4)
    assert circle == {}
    assert lists(lambda s, x: s.b[1](s.b[0](x).relu()), 2) == {}  # one after another


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
    told = reasons.explain(infer(experts(2), IMAGES, prove=False))
    assert told["missed"][0]["log10"] == pytest.approx(DIGITS[2])
    lines = list(reasons.lines(told))
    at = lines.index("stays although it could move:")
    what = "modules of a list that could change places"
    why = "orders within its modules' orders would lie too deep for the notation"
    assert lines[at + 1] == f"  {what}; {why}, 10^0.3 symmetries"
    assert lines[at + 2].startswith("    experts.0.0.weight …, experts.1.0.weight …")
