"""The first model alone, distilled towards all, beside merges: when it is tried, and when it is taken."""

import dataclasses
import math

import pytest
import torch

import rebasin_cli
from rebasin_cli import networks
from rebasin_cli.matchers import Problem, auto
from rebasin_cli.matchers.portfolio import alone, trying
from rebasin_cli.matchers.portfolio.candidates import candidates
from rebasin_cli.matchers.portfolio.clock import Clock
from rebasin_cli.matchers.portfolio.trying import Trials
from rebasin_cli.nets import build
from rebasin_cli.networks.running import evaluating
from rebasin_cli.repair.choosing import SAME
from rebasin_cli.spec.library import resolve_spec

from .test_auto import figures

REPAIRS = ("none", "refit", "distill")
BOTH = "A, distilled towards both"


@pytest.fixture(scope="module")
def problem():
    """Two strangers of one architecture, and inputs with the first one's classes."""
    networks_ = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        networks_.append(build("mlp", input_shape=(6,), classes=4, width=8, depth=2))
    models = tuple({n: t.clone() for n, t in network.state_dict().items()} for network in networks_)
    x = torch.randn(600, 6)
    with torch.no_grad():
        data = [(part, networks_[0](part).argmax(1)) for part in x.split(100)]
    return Problem(
        resolve_spec(None, [models[0]]),
        models,
        network=networks_[0],
        data=data[:4],
        held=data[4:],
        repairs=REPAIRS,
        alone=True,
    )


@pytest.fixture(autouse=True)
def _all_is_tried(monkeypatch):
    """However little is left to gain."""
    monkeypatch.setattr(trying, "LITTLE", -math.inf)


@pytest.fixture
def weights_only(monkeypatch):
    monkeypatch.setattr(auto, "candidates", lambda *given, **more: candidates(*given, **more)[:1])


def given(problem):
    """What a merge in memory takes."""
    samples = {"train": problem.data, "held": problem.held, "unseen": True}
    return {"method": "auto", "network": problem.network, **samples}


def ended(problem, seconds=1e3):
    trials = Trials(problem, Clock(seconds, counts=True))
    trials.try_(candidates(problem.fitted, 2, able=True)[0])
    trials.finish()
    return trials


def costs(trials, **by):
    """The trials with these costs: of the merge, and of the one model with the spread of its samples."""
    merge, one = trials.done
    merge.merges = {"distill": (by["merge"], 0.0)}
    one.merges = {"distill": (by["one"], 0.0)}
    return trials.best


def test_it_is_tried_last_on_the_models_as_they_are_and_all_of_it_is_kept(problem):
    first, last = ended(problem).done
    assert (last.method, last.alone, [*last.merges]) == (BOTH, True, ["distill"]) and not first.alone
    assert all(perm.equal(torch.arange(8)) for perm in last.result.permutations[0].values())
    assert {*last.distilled.tensors} == {*problem.models[0]}
    network = networks.load(problem.network, last.distilled.tensors)
    a, b = ({**model} for model in problem.models)
    x = torch.cat([inputs for inputs, _ in problem.data])

    def lacks(tensors):
        outputs = []
        for weights in (tensors, a, b):
            with evaluating(networks.load(network, weights)), torch.no_grad():
                outputs.append(network(x))
        return (outputs[0] - (outputs[1] + outputs[2]) / 2).square().mean().item()

    assert lacks(last.distilled.tensors) < 0.5 * lacks(a)


@pytest.mark.parametrize(
    ("merge", "one", "taken"),
    [
        (figures(0.5, apart=0.1), figures(0.4, apart=0.1), True),
        (figures(0.4, apart=0.1), figures(0.5, apart=0.1), False),
        (figures(0.5, apart=0.1), figures(0.5, apart=0.1), False),
        (figures(0.5, 0.4, apart=0.1), figures(0.45, -0.4, apart=0.1), False),  # 0.05 ± 0.08
        (figures(0.5, 0.1, apart=0.1), figures(0.45, -0.1, apart=0.1), True),  # 0.05 ± 0.02
    ],
)
def test_it_is_taken_where_it_costs_less_by_more_than_chance(problem, merge, one, taken):
    trial, how = costs(ended(problem), merge=merge, one=one)
    assert (trial.alone, how) == (taken, "distill")


def test_by_training_samples_it_is_no_candidate(problem):
    """It knows its own by heart."""
    trials = ended(dataclasses.replace(problem, held=None))
    assert len(trials.done) == 1 and "distill" in trials.done[0].merges


def test_two_distillations_have_to_be_whole(problem, monkeypatch):
    monkeypatch.setattr(trying, "EARLY", 0.0)
    trials = Trials(problem, Clock(1e3, counts=True))
    trials.try_(candidates(problem.fitted, 2, able=True)[0])
    trials.clock.seconds -= trials.clock.left - 1.5 * trials.mending.seconds("distill", 0.0, 1.0)
    trials.finish()
    first, last = trials.done
    assert "distill" in first.merges and not last.merges and "too long" in last.why


def test_what_comes_no_nearer_is_told(problem):
    one = dataclasses.replace(problem, models=(problem.models[0],) * 2)
    last = ended(one).done[1]
    assert "no nearer" in last.why and last.result is None and not last.merges


def test_a_merge_that_takes_it_is_the_first_model_and_says_so(problem, weights_only, monkeypatch):
    monkeypatch.setattr(alone, "surely", lambda *given, **more: True)
    merged = rebasin_cli.merge(problem.models, problem.fitted, **given(problem))
    chosen = merged.alignment.result.chosen
    assert (chosen.method, chosen.merged, chosen.best_merge[0]) == (BOTH, False, "wm")
    told = chosen.plain()
    assert told["merged"] is False and "repair" not in told
    assert {row["method"] for row in told["tried"]} == {"wm", BOTH}
    for name, tensor in chosen.repaired.tensors.items():
        assert merged.tensors[name].equal(tensor)
    assert max((merged.tensors[n] - t).abs().max().item() for n, t in problem.models[0].items()) > SAME


@pytest.mark.parametrize("more", [{"weights": (0.5, 0.5)}, {"interpolation": "slerp"}])
def test_where_a_mean_is_asked_for_it_is_no_candidate(problem, weights_only, more, monkeypatch):
    monkeypatch.setattr(alone, "surely", lambda *given, **more: True)
    merged = rebasin_cli.merge(problem.models, problem.fitted, **given(problem), **more)
    chosen = merged.alignment.result.chosen
    assert chosen.merged and {row.method for row in chosen.tried} == {"wm"}
