"""Budgets of multiplications: the same steps, and so the same result, however fast the machine is."""

import copy
import dataclasses
import itertools
import math
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rebasin_cli.averages.means import average
from rebasin_cli.datasets import Data, Normalization, Samples
from rebasin_cli.matchers import Problem, am, auto, ste
from rebasin_cli.matchers.polish.length import Length, multiplications
from rebasin_cli.matchers.polish.midpoint import Midpoint
from rebasin_cli.matchers.polish.search import polish
from rebasin_cli.matchers.portfolio import contest, gains
from rebasin_cli.matchers.portfolio.candidates import candidates
from rebasin_cli.matchers.portfolio.clock import SPEED, Clock
from rebasin_cli.matchers.portfolio.contest import Trials
from rebasin_cli.matchers.portfolio.sizes import sized
from rebasin_cli.nets import build
from rebasin_cli.repair import distillation
from rebasin_cli.repair.costs import TRACING
from rebasin_cli.spec.library import resolve_spec
from rebasin_cli.symmetry import permutation

REPAIRS = ("none", "repair", "refit", "distill")


@pytest.fixture(autouse=True)
def _all_is_tried(monkeypatch):
    """However little is left to gain."""
    monkeypatch.setattr(contest, "LITTLE", -math.inf)
    monkeypatch.setattr(gains, "NOISE", -math.inf)


@pytest.fixture(scope="module")
def problem():
    """Two networks of the same shapes that have nothing else in common."""
    torch.manual_seed(0)
    networks = [build("mlp", input_shape=(6,), classes=4, width=8, depth=2) for _ in range(2)]
    models = tuple(dict(network.state_dict()) for network in networks)
    x = torch.randn(1_500, 6)
    with torch.no_grad():
        data = [(part, networks[0](part).argmax(1)) for part in x.split(100)]
    fitted = resolve_spec(None, [models[0]])
    return Problem(fitted, models, network=networks[0], data=data, repairs=REPAIRS)


def without_seconds(found):
    return found.chosen.rows()


@pytest.mark.parametrize("budget", ["2G", "10G", pytest.param("100G", marks=pytest.mark.sweep)])
def test_the_same_is_tried_and_chosen_however_slow_the_machine_is(problem, monkeypatch, budget):
    options = auto.Options(budget=budget)
    plain = auto.match(problem, options)
    slow = itertools.count(0.0, 1000.0)  # every look at the clock is a quarter of an hour later
    monkeypatch.setattr(time, "monotonic", lambda: next(slow))
    monkeypatch.setattr(time, "perf_counter", lambda: next(slow))
    again = auto.match(problem, options)
    assert without_seconds(plain) == without_seconds(again)
    assert (plain.chosen.method, plain.chosen.repair) == (again.chosen.method, again.chosen.repair)
    for one, two in zip(plain.permutations, again.permutations, strict=True):
        assert all(torch.equal(one[word], two[word]) for word in one)
    if plain.chosen.repaired:
        one, other = plain.chosen.repaired.tensors, again.chosen.repaired.tensors
        assert one.keys() == other.keys()
        assert all(it.equal(other[name]) for name, it in one.items())


@pytest.mark.sweep
def test_more_work_is_more_that_is_tried(problem):
    tried = []
    for budget in ("2G", "30G", "100G"):
        found = auto.match(problem, auto.Options(budget=budget))
        rows = [row for row in found.chosen.tried if row.held_out_loss is not None]
        tried.append({(row.method.split(" + ")[-1], row.repair) for row in rows})
    assert tried[0] < tried[1] and {how for _, how in tried[1]} < {how for _, how in tried[2]} == {*REPAIRS}
    assert {method for method, _ in tried[2]} >= {"wm", "dual", "am", "ste"}


@dataclasses.dataclass(frozen=True)
class Slowly(Normalization):
    """Every sample that is read or run takes time on a clock of its own: more once the machine was timed."""

    now: list = dataclasses.field(default_factory=lambda: [0.0])
    a_sample: float = 1e-3
    later: float = 1e-3

    def apply(self, inputs):
        self.now[0] += len(inputs) * (self.a_sample if self.now[0] < 1.0 else self.later)
        return inputs


@pytest.mark.parametrize(
    ("budget", "later"), [("40s", 5e-3), pytest.param("200s", 1e-3, marks=pytest.mark.sweep), ("200s", 2e-2)]
)
def test_a_time_is_kept_on_the_wall_however_slow_the_machine_becomes(problem, monkeypatch, budget, later):
    """After the time is over no more is done than to measure what was at work."""
    slow = Slowly((0.0,), (1.0,), later=later)
    monkeypatch.setattr(time, "monotonic", lambda: slow.now[0])
    monkeypatch.setattr(time, "perf_counter", lambda: slow.now[0])
    inputs, targets = (torch.cat(parts) for parts in zip(*problem.data, strict=True))
    data = Data("own", "train", Samples(inputs, targets), slow, 4, batch_size=100)
    network = copy.deepcopy(problem.network)
    network.register_forward_pre_hook(lambda module, given: (slow.apply(given[0]),))
    given = dataclasses.replace(problem, data=data, network=network)
    found = auto.match(given, auto.Options(budget=budget))
    seconds = float(budget.removesuffix("s"))
    assert slow.now[0] < 1.1 * seconds + 700 * later, [row.plain() for row in found.chosen.tried]
    assert found.chosen.method in {row.method for row in found.chosen.tried}


def test_what_is_reckoned_is_spent_and_time_is_not():
    clock = Clock.of(Length(work=10 * SPEED))
    assert clock.spent(time.monotonic() - 1e6, 4.0) == 4.0 and clock.left == 6.0
    assert clock.length(2.0) == Length(work=2.0 * SPEED) and "40G multiplications" in clock.told(2.0)
    timed = Clock.of(Length(seconds=10.0))
    assert timed.spent(time.monotonic() - 3.0, 1e6) == pytest.approx(3.0, abs=0.5)
    assert 9.0 < timed.left <= 10.0 and timed.length(2.0) == Length(seconds=2.0)


def test_every_candidate_and_repair_spends_some_of_the_budget(problem):
    trials = Trials(problem, Clock(1e3, counts=True))
    weights, dual, *_, ste, swaps = candidates(problem.fitted, 2, able=True)
    searching = {}
    for candidate in (weights, dual, ste, swaps):
        before = trials.clock.left
        trial = trials.try_(candidate)
        repairing = sum(trials.mending.took[how] for how in trial.merges)
        searching[candidate.method] = before - trials.clock.left - repairing
    a_sample, there = trials.a_sample, 1_500 - sum(len(y) for _, y in trials.held)
    assert searching["wm"] == pytest.approx(TRACING)  # weights alone are not counted
    assert searching["dual"] == pytest.approx(3 * a_sample * there)
    assert 6 * a_sample * there <= searching["ste"] < 6 * a_sample * 4 * there  # what is held out, too
    assert searching["polish"] > 76 * 1_000 * a_sample  # a step tries 64 swaps on 1,000 samples
    took = dict(trials.mending.took)
    assert took["none"] == pytest.approx(a_sample * sum(len(y) for _, y in trials.held))
    trials.try_(dual)
    assert trials.mending.took == took  # what is done once more takes as much as before
    before = trials.clock.left
    trials.finish()
    distilled = trials.mending.took["distill"]
    assert before - trials.clock.left == pytest.approx(distilled) and distilled > 0


def test_swaps_end_with_their_work_and_steps_of_the_same_number_are_the_same(problem):
    still = [permutation.identity(problem.fitted.words)]
    one = polish(problem, still, Length(steps=1))
    some = polish(problem, still, Length(work=7.5 * one.work))
    assert some.steps == 8 and some.work == pytest.approx(8 * one.work)
    assert polish(problem, still, Length(steps=8)).account() == some.account()


def test_a_distillation_is_cut_to_the_share_that_there_is_work_for(problem, monkeypatch):
    shares, own = [], distillation._Distillation

    def training(network, samples, steps, began, seconds):
        shares.append((steps, samples.steps, seconds))
        return own(network, samples, steps, began, seconds)

    monkeypatch.setattr(distillation, "_Distillation", training)
    able = dataclasses.replace(problem, repairs=("none", "refit", "distill"))
    trials = Trials(able, Clock(1e3, counts=True))
    trials.try_(candidates(problem.fitted, 2, able=True)[0])
    mending, clock = trials.mending, trials.clock
    for share in (0.5, 0.75, 1.0, 2.0):
        models = mending.models(trials.done[0].result.permutations)
        mending.judge(models, "distill", mending.seconds("distill", 0.0, share))
    whole = shares[-1][0]
    assert whole == distillation.epochs_of(1_500 - sum(len(y) for _, y in trials.held)) * shares[-1][1]
    assert [steps for steps, _, _ in shares] == [round(whole / 2), round(0.75 * whole), whole, whole]
    assert all(seconds > 1e9 for *_, seconds in shares) and clock.counts


def test_half_a_distillation_takes_half_the_steps_and_comes_to_rest(problem):
    a, b = problem.models
    batches = [(x, None) for x, _ in problem.data]
    found = []
    for share in (1.0, 0.5):
        network = build("mlp", input_shape=(6,), classes=4, width=8, depth=2)
        network.load_state_dict(average([a, b]))
        done = distillation.distill(network, [a, b], batches, epochs=4, share=share)
        found.append((done.passes, network.state_dict()))
    (four, whole), (two, half) = found
    assert four - two == 2 and any(not whole[name].equal(half[name]) for name in whole)
    network.load_state_dict(average([a, b]))
    distillation.distill(network, [a, b], batches, epochs=2)
    assert all(tensor.equal(half[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize(
    ("there", "room", "epochs", "limit", "samples"),
    [
        (None, 600.0, 1, 10_000, None),  # a loader without a length is read no farther
        (40_000, 600.0, 1, 10_000, 10_000),
        (4_000, 600.0, 2, None, 8_000),
        (4_000, 1e9, 8, None, 32_000),
        (0, 600.0, 8, None, 0),
    ],
)
def test_what_learns_gets_as_many_samples_and_epochs_as_there_is_room_for(
    there, room, epochs, limit, samples
):
    size = sized(ste, room, a_sample=0.01, models=2, there=there)
    assert (size.options.epochs, size.options.limit) == (epochs, limit)
    assert (size.samples, size.each, size.least) == (samples, pytest.approx(0.06), "")
    timed = sized(ste, room, a_sample=0.01, models=2, there=there, counts=False)  # ended by the clock
    assert timed.options.limit == (None if there is None else limit)


@pytest.mark.parametrize(
    ("models", "there", "limit", "samples"), [(2, None, 2_000, None), (4, 500, 666, 1_500)]
)
def test_what_looks_at_units_gets_as_many_samples_as_there_is_room_for(models, there, limit, samples):
    size = sized(am, 60.0, a_sample=0.01, models=models, there=there)
    assert (size.options.limit, size.samples, size.each) == (limit, samples, pytest.approx(0.03))
    assert sized(am, 5.0, a_sample=0.01, models=2, there=None).least == "look at 200 samples"
    assert sized(ste, 5.0, a_sample=0.01, models=2, there=None).least == "learn from 1,000 samples"


def test_what_swaps_find_after_a_distillation_is_distilled_too(problem, monkeypatch):
    able = dataclasses.replace(problem, repairs=("none", "refit", "distill"))
    trials = Trials(able, Clock(1e3, counts=True))
    weights, *_, swaps = candidates(problem.fitted, 2, able=True)
    trials.try_(weights)
    trials.finish()
    left, spent = trials.clock.left, trials.mending.took["distill"]
    found = trials.try_(swaps)
    assert set(found.merges) == {"none", "refit"} and "distill" in trials.done[0].merges
    monkeypatch.setattr(Trials, "_promising", property(lambda self: found))
    before = trials.clock.left
    assert before < left
    trials.finish()
    assert trials.mending.took["distill"] == pytest.approx(spent) == pytest.approx(before - trials.clock.left)


def test_what_is_told_of_a_candidate_are_seconds_whatever_is_counted(problem, monkeypatch):
    trials = Trials(problem, Clock(1e3, counts=True))
    judge = trials.mending.judge

    def slow(*given):
        time.sleep(0.2)
        return judge(*given)

    monkeypatch.setattr(trials.mending, "judge", slow)
    trial = trials.try_(candidates(problem.fitted, 2, able=True)[0])
    assert all(seconds > 0.2 for _, seconds in trial.merges.values())


class Last(nn.Module):
    """A recurrent layer, of whose outputs the last is given."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0][:, -1]


ENCODER = 2 * (4 * 128**2 + 2 * 128 * 512) * 64 + 2 * 2 * 64**2 * 128  # projections, attention: two layers


@pytest.mark.parametrize(
    ("network", "products"),
    [
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 2), ENCODER),
        (Last(nn.LSTM(128, 128, batch_first=True)), 64 * 2 * 4 * 128**2),
        (Last(nn.LSTM(128, 128, num_layers=2, batch_first=True)), 64 * 4 * 4 * 128**2),
        (Last(nn.GRU(128, 128, batch_first=True)), 64 * 2 * 3 * 128**2),
    ],
)
@pytest.mark.parametrize("samples", [1, 5])
def test_attention_and_recurrent_layers_count_however_they_are_computed(network, products, samples):
    bare = SimpleNamespace(given_network=network.eval(), device="cpu", loss=None, output=None)
    fast = torch.backends.mha.get_fastpath_enabled()
    assert Midpoint(bare).work(torch.rand(samples, 64, 128)) == products
    assert torch.backends.mha.get_fastpath_enabled() == fast


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (9.996e11, "1T"),
        (2.5e12, "2.5T"),
        (1e18, "1000P"),
        (5e4, "0.00005G"),
        (3.16e10, "31.6G"),
        (999e9, "999G"),
    ],
)
def test_multiplications_are_told_as_they_are_given(work, told):
    assert multiplications(work) == told
    assert Length.parse(told) == Length(work=pytest.approx(work, rel=1e-2))
