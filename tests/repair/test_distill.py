"""A merged network trained towards what its endpoints give in the mean."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import rebasin_cli
from rebasin_cli import nets
from rebasin_cli.errors import CheckpointError, DataError, UsageError
from rebasin_cli.repair import Repaired, Repairs, distill, distillation, ensemble, repair_steps, reset
from rebasin_cli.repair.costs import distillation_bytes, distillation_passes

from .test_refit import Normed, Scaled, drawn, same, state
from .test_repair import FLAT, PICTURE, Residual, convnet, mlp, samples, two_and_between

NETWORKS = [(mlp, FLAT), (Residual, PICTURE), (Normed, PICTURE), (Scaled, PICTURE)]


def missing(network, ends, data, shares=(0.5, 0.5)):
    """The mean square of what the network lacks of the mean of the endpoints' outputs, over all samples."""
    twin, total = copy.deepcopy(network).eval(), 0.0
    with torch.no_grad():
        for x, _ in data:
            targets = 0
            for share, end in zip(shares, ends, strict=True):
                twin.load_state_dict(end)
                targets = targets + share * twin(x)
            total += (network.eval()(x) - targets).square().mean().item()
    return total / len(data)


@pytest.mark.parametrize(("build", "shape"), NETWORKS)
def test_the_network_comes_nearer_to_the_weighted_mean_of_the_outputs(build, shape):
    data = samples(shape, (64, 64))
    ends, network = two_and_between(build)
    before, kept, held = missing(network, ends, data, (0.8, 0.2)), copy.deepcopy(ends), state(network)
    done = distill(network.train(), ends, data, weights=[0.8, 0.2], epochs=20)
    assert network.training and missing(network, ends, data, (0.8, 0.2)) < 0.8 * before
    assert all(same(one, other) for one, other in zip(ends, kept, strict=True))
    after = state(network)
    assert done.method == "distill"
    assert set(done.tensors) == {name for name in after if not torch.equal(after[name], held[name])}
    assert all(tensor.grad is None for tensor in network.parameters())


@pytest.mark.parametrize(("build", "shape"), NETWORKS)
def test_a_model_between_itself_and_itself_stays_as_it_is_to_the_last_bit(build, shape):
    data = samples(shape)
    network = drawn(build, data, 1).float()
    before = state(network)
    assert not distill(network, [before] * 3, data, epochs=4).tensors and same(state(network), before)


class Clock:
    """A second passes whenever it is looked at."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1
        return self.now


@pytest.mark.parametrize(("limits", "steps"), [({"epochs": 1000, "seconds": 40}, 40), ({"epochs": 20}, 80)])
def test_a_distillation_cools_down_in_the_time_or_the_steps_that_it_has(monkeypatch, limits, steps):
    data = samples(FLAT, (64, 64))
    ends, network = two_and_between(mlp)
    before, rates, clock = missing(network, ends, data), [], Clock()
    monkeypatch.setattr(distillation, "time", clock)

    class Adam(torch.optim.Adam):
        def step(self):
            rates.append(self.param_groups[0]["lr"] / self.param_groups[0]["rate"])
            super().step()

    monkeypatch.setattr(torch.optim, "Adam", Adam)
    assert distill(network, ends, data, **limits).tensors
    assert missing(network, ends, data) < 0.8 * before
    assert steps - 5 < len(rates) <= steps and clock.now < steps + 5
    assert rates == sorted(rates, reverse=True) and rates[0] > 0.9 and rates[-1] < 0.01


def test_without_any_time_what_stays_is_the_refit():
    data = samples(FLAT, (64, 64))
    ends, network = two_and_between(mlp)
    other = copy.deepcopy(network)
    done = Repairs("distill", ends, data, seconds=0.0).apply(network, [0.5, 0.5])
    Repairs("refit", ends, repair_steps.few(data, "refit")).apply(other, [0.5, 0.5])
    assert done.method == "refit" and same(state(network), state(other))


def test_training_that_comes_no_nearer_is_told_as_the_refit_that_stays():
    first, nothing = Repaired("refit", ("a",), tensors=("a.weight",)), Repaired("distill", ())
    assert distillation.after(first, nothing).method == "refit"
    assert distillation.after(first, Repaired("distill", ("b",), tensors=("b.weight",))).method == "distill"


def test_a_batch_of_one_sample_is_left_out_where_norms_need_more():
    data = samples(PICTURE, (8, 1))
    ends, network = two_and_between(Normed)
    assert distill(network, ends, data, epochs=2).method == "distill"
    with pytest.raises(DataError, match="a batch is one sample"):
        distill(network, ends, data[1:])


def test_labels_threads_and_what_is_kept_of_the_targets_change_no_bit():
    found = []
    for labels, threads, memory in ((0, 1, 1 << 20), (1, 2, 1 << 20), (2, 1, 0), (3, 1, 1_000)):
        ends, network = two_and_between(convnet)
        data = [(x, torch.full((len(x),), labels)) for x, _ in samples(PICTURE, (60, 60))]
        before, _ = torch.get_num_threads(), torch.set_num_threads(threads)
        assert distill(network, ends, data, memory=memory, epochs=6).tensors
        assert torch.get_num_threads() == threads
        torch.set_num_threads(before)
        found.append(state(network))
    assert all(same(found[0], other) for other in found)


def test_of_logits_the_divergence_is_lowered_too_wherever_their_classes_are():
    """Classes in the second axis or in the last; what targets are no class numbers of has the mean square."""

    class Turned(nn.Module):
        def __init__(self, axis):
            super().__init__()
            self.one, self.two, self.axis = nn.Linear(6, 12), nn.Linear(12, 5), axis

        def forward(self, x):
            return self.two(self.one(x).relu()).movedim(-1, self.axis)

    x = torch.randn(80, 3, 6, generator=torch.Generator().manual_seed(0))
    labels = {"class numbers": torch.zeros(80, 3, dtype=torch.int64), "numbers": torch.zeros(80, 3)}
    found = {}
    for axis, (kind, targets) in itertools.product((1, -1), labels.items()):
        torch.manual_seed(0)
        ends = [state(Turned(axis)) for _ in range(2)]
        network = Turned(axis)
        network.load_state_dict({name: (ends[0][name] + ends[1][name]) / 2 for name in ends[0]})
        teachers = [ensemble.holding(network, end) for end in ends]
        lacking = ensemble.Ensemble(teachers, [0.5, 0.5], [(x, targets)], None)
        assert lacking.begin(network) == (2 if kind == "class numbers" else 1)
        assert distill(network, ends, [(x, targets)], epochs=20).tensors
        assert lacking.missing(network) < (1 if kind == "class numbers" else 0.5)
        found[axis, kind] = state(network)
    for kind in labels:
        pairs = (found[1, kind][name].allclose(found[-1, kind][name], atol=1e-4) for name in found[1, kind])
        assert all(pairs)
    assert not same(found[1, "class numbers"], found[1, "numbers"])


def test_no_divergence_of_what_is_no_logits_and_none_that_is_rounding():
    """Labels of other shapes than the outputs' are no classes of them; rounding is not divided by."""
    x, network = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), nn.Linear(6, 5)
    other = copy.deepcopy(network)
    with torch.no_grad():
        other.bias += 1e-5
    for labels, kinds in (
        (torch.zeros(20, dtype=torch.int64), 2),
        (torch.zeros(20, 7, dtype=torch.int64), 1),
    ):
        lacking = ensemble.Ensemble([network], [1.0], [(x, labels)], None)
        with torch.no_grad():
            other.bias[0] += 1e-4
        assert lacking.begin(other) == 1 and len(lacking.starts) == kinds
        assert lacking.starts[1:] in ((), (math.inf,))


def test_statistics_of_norms_become_those_of_the_trained_network():
    data = samples(PICTURE, (64, 64))
    ends, network = two_and_between(Normed)
    assert distill(network, ends, data, epochs=8).tensors
    found = state(network)
    reset(network, data)
    assert same(state(network), found)


def test_few_samples_are_gone_through_more_often():
    for count in (50, 100):
        ends, network = two_and_between(mlp)
        steps = []
        watch = register_optimizer_step_post_hook(lambda *given, s=steps: s.append(None))
        try:
            distill(network, ends, samples(FLAT, (count,)))
        finally:
            watch.remove()
        assert len(steps) == 200


def test_norms_with_statistics_are_in_training_while_all_else_is_not():
    data, seen = samples(PICTURE), []
    ends, network = two_and_between(Normed)
    for name in ("bn1", "head"):
        hook = lambda it, inputs, name=name: seen.append((name, it.training, torch.is_grad_enabled()))  # noqa: E731
        network.get_submodule(name).register_forward_pre_hook(hook)
    distill(network, ends, data, epochs=1)
    assert {seen for seen in seen if seen[2]} == {("bn1", True, True), ("head", False, True)}


def test_dropout_stays_off():
    torch.manual_seed(0)
    found = []
    for rate in (0.0, 0.9):
        network = nn.Sequential(nn.Linear(8, 6), nn.Dropout(rate), nn.ReLU(), nn.Linear(6, 3))
        torch.manual_seed(1)
        ends = [{n: torch.randn(t.shape) for n, t in network.state_dict().items()} for _ in range(2)]
        network.load_state_dict({name: (tensor + ends[1][name]) / 2 for name, tensor in ends[0].items()})
        assert distill(network.train(), ends, samples(FLAT), epochs=8).tensors
        found.append(state(network))
    assert same(*found)


def test_one_output_of_several_is_trained_or_all_of_them():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(8, 3), nn.Linear(8, 2)

        def forward(self, x):
            return {"one": self.one(x), "other": self.other(x)}

    torch.manual_seed(0)
    network = Two()
    ends = [{n: torch.randn(t.shape) for n, t in network.state_dict().items()} for _ in range(2)]
    done = distill(network, ends, samples(FLAT), output="one", epochs=8)
    assert set(done.tensors) == {"one.weight", "one.bias"}
    assert set(distill(network, ends, samples(FLAT), epochs=8).tensors) == set(network.state_dict())


def test_small_and_large_weights_learn_at_the_same_relative_rate():
    network = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 3))
    with torch.no_grad():
        network[0].weight.fill_(10.0), network[1].weight.fill_(0.1)
    first, bias, second, _ = (group["rate"] for group in distillation._rated(list(network.parameters())))
    assert first == pytest.approx(100 * second) and second == pytest.approx(0.1 * distillation.RATE)
    assert bias == pytest.approx((first + second) / 2)


def test_what_a_distillation_refuses():
    ends, network = two_and_between(mlp)
    before = state(network)
    with pytest.raises(DataError, match="holds no samples"):
        distill(network, ends, [])
    with pytest.raises(UsageError, match="3 weights for 2 models"):
        distill(network, ends, samples(FLAT), weights=[0.5, 0.3, 0.2])
    with pytest.raises(CheckpointError, match="outputs of the merged models hold NaN"):
        distill(network, [ends[0], ends[1] | {"0.weight": torch.full((7, 8), 3e38)}], samples(FLAT))
    assert same(state(network), before)


def test_it_begins_with_a_refit_on_its_first_samples_and_tells_of_both(monkeypatch):
    monkeypatch.setitem(repair_steps.SAMPLES, "refit", 16)
    monkeypatch.setattr(distillation, "epochs_of", lambda count: 6)
    ends, network = two_and_between(Residual)
    data = samples(PICTURE, (16, 16))
    done = Repairs("distill", ends, data).apply(network, [0.5, 0.5])
    _, twin = two_and_between(Residual)
    first = Repairs("refit", ends, data[:1]).apply(twin, [0.5, 0.5])
    then = distill(twin, ends, data)
    assert same(state(twin), state(network)) and done.method == "distill"
    assert set(done.tensors) == {*first.tensors, *then.tensors} and done.passes == first.passes + then.passes


def test_what_it_takes_is_reckoned_from_the_network_alone():
    network = mlp()
    assert distillation_passes(2, 10_000) == 3 * 4 + 5 and distillation_passes(3, 1_000) == 3 * 10 + 6
    parameters = sum(tensor.numel() for tensor in network.parameters())
    assert distillation_bytes(network) - ensemble.MEMORY == 16 * parameters


def test_merging_in_memory_distills_several_models():
    torch.manual_seed(0)
    models = [state(nets.build("mlp", input_shape=(8,), classes=3, width=16)) for _ in range(3)]
    network, data = nets.build("mlp", input_shape=(8,), classes=3, width=16), samples((8,), (100, 100))
    found = {
        how: rebasin_cli.merge(models, repair_with=how, network=network, train=data)
        for how in ("refit", "distill")
    }
    assert found["distill"].repair.method == "distill"
    left = {}
    for how, merged in found.items():
        network.load_state_dict(merged.tensors)
        left[how] = missing(network, models, data, [1 / 3] * 3)
    assert left["distill"] < left["refit"]


@pytest.mark.parametrize("logits", [True, False])
def test_outputs_under_a_loss_of_ones_own_are_no_logits(logits, monkeypatch):
    """Numbers of classes beside rows of outputs do not make these logits: quantiles of a count look alike."""
    monkeypatch.setattr(distillation, "epochs_of", lambda count: 6)
    ends, network = two_and_between(mlp)
    data = [(x, torch.zeros(len(x), dtype=torch.int64)) for x, _ in samples(FLAT)]
    teachers = [ensemble.holding(network, end) for end in ends]
    lacking = ensemble.Ensemble(teachers, [0.5, 0.5], data, None, logits=logits)
    lacking.begin(network)
    assert len(lacking.starts) == 1 + logits
    plain = copy.deepcopy(network)
    Repairs("distill", ends, data, logits=logits).apply(network, [0.5, 0.5])
    floats = [(x, y.float()) for x, y in data]
    Repairs("distill", ends, floats).apply(plain, [0.5, 0.5])
    assert same(state(network), state(plain)) is not logits
