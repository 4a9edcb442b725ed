"""Methods that follow the graph or learn take the order of a list from weights, and match the rest."""

import pytest
import torch
from torch import nn

import rebasin_cli
from rebasin_cli.errors import SpecError
from rebasin_cli.matchers import Problem, am, pam, ste
from rebasin_cli.matchers.portfolio import in_turn
from rebasin_cli.measure.signatures import signature
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation

SPEC = """
tensors:
  first.weight: "h ."
  first.bias: "h"
  gate.weight: "experts h"
  experts.{}.0.weight: "experts hidden* h"
  experts.{}.0.bias: "experts hidden*"
  experts.{}.2.weight: "experts . hidden*"
  experts.{}.2.bias: "experts ."
within:
  hidden: experts
"""


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.gate = nn.Linear(6, 8), nn.Linear(8, 4, bias=False)
        expert = (nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)) for _ in range(4))
        self.experts = nn.ModuleList(expert)

    def forward(self, x):
        x = self.first(x).relu()
        shares = self.gate(x).softmax(-1)
        return sum(shares[:, k : k + 1] * expert(x) for k, expert in enumerate(self.experts))


@pytest.fixture
def given():
    """A network, its model and the same in another order, the way back, and data."""
    torch.manual_seed(0)
    network = Mixture()
    a = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    fitted = fit(parse(SPEC, name="s"), {name: tuple(tensor.shape) for name, tensor in a.items()})
    perms = permutation.random(fitted.words, torch.Generator().manual_seed(1), within=fitted.within)
    b = dict(permutation.permuted(a, fitted, perms))
    data = [(torch.randn(50, 6), torch.randint(3, (50,))) for _ in range(4)]
    return network, fitted, a, b, permutation.invert(perms), data


@pytest.mark.parametrize("method", ["am", "dual", "ste", "ste-mm", "auto"])
def test_a_planted_order_is_recovered(given, method):
    network, fitted, a, b, back, data = given
    options = {"epochs": 1} if method.startswith("ste") else {"budget": "2s"} if method == "auto" else None
    how = {"network": network, "data": data, "method": method, "options": options}
    found = rebasin_cli.align(a, b, fitted.spec, **how)
    assert found.permutations[0].keys() == back.keys()
    assert all(torch.equal(found.permutations[0][word], back[word]) for word in back)


def test_the_orders_of_lists_and_of_units_are_taken_apart_and_put_together(given):
    _, fitted, _, b, back, _ = given
    apart = fitted.unlisted
    assert apart.words == {"h": 8, **{f"hidden[{k}]": 5 for k in range(4)}} and not apart.stacks
    assert [str(axis) for axis in apart.tensors["experts.2.0.weight"]] == ["hidden[2]", "h"]
    assert [str(axis) for axis in apart.tensors["gate.weight"]] == ["4", "h"]
    seen, standing, rest = in_turn.listed.apart(fitted, b, back)
    whole, parts = permutation.permuted(b, fitted, back), permutation.permuted(standing, seen, rest)
    assert all(torch.equal(whole[name], parts[name]) for name in b)


def test_states_are_of_the_words_of_the_spec_and_a_search_goes_on_from_them(given):
    network, fitted, a, _, _, data = given
    torch.manual_seed(5)
    b = {name: torch.randn_like(tensor) / 3 for name, tensor in a.items()}
    states, options = [], ste.Options(epochs=2)

    def keep(state):
        tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
        states.append(
            type(state)(state.permutations, state.sweep, state.objective, dict(state.notes), tensors)
        )

    problem = Problem(fitted, (a, b), 0, progress=keep, network=network, data=data)
    whole = in_turn.search(ste, problem, options, None)
    middle = next(state for state in states if 0 < state.sweep < states[-1].sweep and state.tensors)
    permutation.check(middle.permutations[0], fitted.words, within=fitted.within)
    again = in_turn.search(ste, problem, options, middle)
    assert all(torch.equal(again.permutations[0][w], whole.permutations[0][w]) for w in fitted.words)


def test_activations_are_compared_in_the_order_of_the_list(given):
    network, fitted, a, b, back, data = given
    rows = signature(a, b, fitted, back, network=network, data=data)
    assert [row["word"] for row in rows][:2] == ["h", "hidden[0]"]
    assert all(row["after"]["mean"] == pytest.approx(1) for row in rows)


@pytest.mark.parametrize("method", [am, pam, ste])
def test_a_tensor_that_holds_the_units_of_all_members_is_refused(given, method):
    network, _, a, _, _, data = given
    spec = SPEC.replace("within:", '  all: "experts hidden*"\nwithin:')
    both = a | {"all": torch.zeros(4, 5)}
    fitted = fit(parse(spec, name="s"), {name: tuple(tensor.shape) for name, tensor in both.items()})
    problem = Problem(fitted, (both, both), network=network, data=data)
    with pytest.raises(SpecError, match="cannot follow lists of tensors") as refused:
        in_turn.search(method, problem, method.Options(), None)
    assert refused.value.hint == "Match by weights alone: --method wm"
