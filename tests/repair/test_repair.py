"""BatchNorm statistics measured again; channels matched to the endpoints'; biases; a temperature."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli.errors import DataError, NetworkError, UsageError
from rebasin_cli.repair import (
    calibrated_biases,
    calibration,
    renormalize,
    reset,
    temperature,
)
from rebasin_cli.repair.calibration import fit_temperature
from rebasin_cli.repair.repair_steps import resolved, set_apart


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def batches(count: int = 5, size: int = 8) -> list:
    rng = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 4, generator=rng) + k, torch.zeros(size).long()) for k in range(count)]


def test_statistics_are_the_averages_over_all_batches():
    network = small_network()
    assert reset(network, batches()) == 1
    outputs = [network[0](inputs) for inputs, _ in batches()]
    mean = torch.stack([x.mean(0) for x in outputs]).mean(0)
    variance = torch.stack([x.var(0, unbiased=True) for x in outputs]).mean(0)
    torch.testing.assert_close(network[1].running_mean, mean)
    torch.testing.assert_close(network[1].running_var, variance)
    assert network[1].num_batches_tracked == 5


def test_what_was_there_before_does_not_count():
    one, other = small_network(), small_network()
    other[1].running_mean.fill_(1e6)
    other[1].num_batches_tracked.fill_(1000)
    for network in (one, other):
        reset(network, batches())
    assert torch.equal(one[1].running_mean, other[1].running_mean)


def test_a_single_sample_after_larger_batches_is_left_out():
    one, other = small_network(), small_network()
    reset(one, batches())
    reset(other, [*batches(), (torch.ones(1, 4), torch.zeros(1).long())])
    assert torch.equal(one[1].running_var, other[1].running_var)


def test_later_norms_see_what_norms_in_training_let_through():
    network = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4, affine=False))
    assert reset(network, batches()) == 2
    first = [(x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt() for x, _ in batches()]
    torch.testing.assert_close(network[1].running_var, torch.stack([x.var(0) for x in first]).mean(0))
    torch.testing.assert_close(network[1].running_mean, torch.zeros(4), atol=1e-6, rtol=0)


def test_dropout_stays_off():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(4))
    reset(network, batches())
    torch.testing.assert_close(
        network[1].running_mean, torch.stack([x.mean(0) for x, _ in batches()]).mean(0)
    )


@pytest.mark.parametrize("training", [True, False])
def test_weights_modes_and_momentum_are_left_as_they_were(training):
    network = small_network().train(training)
    network[1].momentum, network[3].training = 0.03, True
    before = {name: tensor.clone() for name, tensor in network.named_parameters()}
    reset(network, batches())
    assert network[1].momentum == 0.03
    assert [module.training for module in network] == [training, training, training, True, training]
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.named_parameters())
    assert all(tensor.grad is None for tensor in network.parameters())


def test_momentum_and_modes_come_back_after_an_error_too():
    network = small_network()
    with pytest.raises(DataError):
        reset(network, [batches()[0], "no batch"])
    assert network[1].momentum == 0.1 and network.training


def test_data_without_batches_is_refused():
    with pytest.raises(DataError, match="holds no samples"):
        reset(small_network(), [])


def test_a_network_without_running_statistics_reads_no_data():
    def fail():
        raise AssertionError("read")
        yield

    network = nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2), nn.BatchNorm1d(2, track_running_stats=False))
    assert reset(network, fail()) == 0


def test_instance_norms_with_statistics_are_reset_alike():
    network = nn.InstanceNorm1d(2, track_running_stats=True)
    data = [(inputs.reshape(4, 2, 4), None) for inputs, _ in batches()]
    assert reset(network, data) == 1
    expected = torch.stack([inputs.mean((0, 2)) for inputs, _ in data]).mean(0)
    torch.testing.assert_close(network.running_mean, expected)
    assert network.momentum == 0.1


def test_frozen_norms_of_other_kinds_stay_frozen():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("running_mean", torch.ones(4))

        def forward(self, x):
            return x - self.running_mean

    network = nn.Sequential(Frozen(), nn.BatchNorm1d(4))
    assert reset(network, batches()) == 1
    assert torch.equal(network[0].running_mean, torch.ones(4))


# --------------------------------------------------------------------------------- channels of any network

SHARE = 0.3  # λ of the merges below


class Residual(nn.Module):
    """Two branches on one stream, no norm, a word of its own for each inside."""

    def __init__(self, bias=True):
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.inner = nn.ModuleList(nn.Conv2d(6, 4, 3, padding=1, bias=bias) for _ in range(2))
        self.outer = nn.ModuleList(nn.Conv2d(4, 6, 1, bias=bias) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for inner, outer in zip(self.inner, self.outer, strict=True):
            x = F.relu(x + outer(F.relu(inner(x))))
        return self.head(x.mean((2, 3)))


def mlp(bias=True):
    return nn.Sequential(
        nn.Linear(8, 7, bias=bias), nn.ReLU(), nn.Linear(7, 6, bias=bias), nn.Tanh(), nn.Linear(6, 3)
    )


def convnet():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 4, 2, stride=2, groups=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
        nn.GELU(),
        nn.Linear(5, 3),
    )


def normed():
    return nn.Sequential(
        nn.Linear(8, 7),
        nn.LayerNorm(7),
        nn.ReLU(),
        nn.Linear(7, 6),
        nn.LayerNorm(6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )


def grouped():
    """No bias before the norms: theirs takes the shift."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    )


FLAT, PICTURE = (8,), (2, 4, 4)
NETWORKS = [(mlp, FLAT), (convnet, PICTURE), (normed, FLAT), (Residual, PICTURE), (grouped, PICTURE)]


def two_and_between(build, share=SHARE):
    """Two models far from one another, and a network that holds what lies between."""
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        network = build()
        for tensor in network.parameters():
            tensor.data.add_(torch.randn_like(tensor) * (0.5 if tensor.ndim == 1 else 0.2))
        ends.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
    network.load_state_dict({name: (1 - share) * ends[0][name] + share * ends[1][name] for name in ends[0]})
    return ends, network


def samples(shape, sizes=(16, 16, 5)):
    """The last batch is smaller: every shape is traced."""
    rng = torch.Generator().manual_seed(3)
    return [(torch.randn(n, *shape, generator=rng) * 2 + 1, torch.zeros(n).long()) for n in sizes]


def statistics(network, data, tensors=None):
    """Mean and standard deviation of every layer's channels, seen by hooks, all samples at once."""
    network = copy.deepcopy(network)
    if tensors is not None:
        network.load_state_dict(tensors)
    found, hooks = {}, []
    for name, module in network.named_modules():
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd, nn.LayerNorm, nn.GroupNorm)):
            axis = -1 if isinstance(module, (nn.Linear, nn.LayerNorm)) else 1

            def see(_, __, value, name=name, axis=axis):
                rows = value.double().movedim(axis, -1).flatten(0, -2)
                found[name] = rows.mean(0), rows.std(0, correction=0)

            hooks.append(module.register_forward_hook(see))
    with torch.no_grad():
        network.double()(torch.cat([inputs for inputs, _ in data]).double())
    return found


def between(ends, network, data, share=SHARE):
    one, other = (statistics(network, data, tensors) for tensors in ends)
    return {
        name: tuple((1 - share) * a + share * b for a, b in zip(one[name], other[name], strict=True))
        for name in one
    }


def close(found, wanted):
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("build", "shape"), NETWORKS)
def test_repaired_channels_have_the_mean_and_spread_between_the_endpoints(build, shape):
    ends, network = two_and_between(build)
    data = samples(shape)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    kept = copy.deepcopy(ends)
    done = renormalize(network, ends, data, weights=[1 - SHARE, SHARE])
    found, wanted = statistics(network, data), between(ends, network, data)
    *hidden, head = wanted
    assert list(done.corrected) == hidden and done.left == ((head, "it is the network's output"),)
    for name in hidden:
        if build is not grouped or name != "0":
            assert close(found[name][0], wanted[name][0]), name
        assert close(found[name][1], wanted[name][1]), name
    after = network.state_dict()
    assert {n: (t.shape, t.dtype) for n, t in after.items()} == {
        n: (t.shape, t.dtype) for n, t in before.items()
    }
    assert all(torch.equal(after[f"{head}.{kind}"], before[f"{head}.{kind}"]) for kind in ("weight", "bias"))
    assert set(done.tensors) == {n for n in after if not torch.equal(after[n], before[n])} and not done.added
    assert all(torch.equal(tensor, kept[k][n]) for k in (0, 1) for n, tensor in ends[k].items())


def test_the_sum_of_branches_is_not_corrected():
    ends, network = two_and_between(Residual)
    done = renormalize(network, ends, samples(PICTURE), weights=[1 - SHARE, SHARE])
    assert done.corrected == ("stem", "inner.0", "outer.0", "inner.1", "outer.1")
    assert done.passes == 2 + 5  # the endpoints, then one layer after the other


def test_layers_that_do_not_feed_each_other_share_a_pass():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.head = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(F.relu(self.left(x)) * F.relu(self.right(x)))

    ends, network = two_and_between(Wide)
    assert renormalize(network, ends, samples(FLAT)).passes == 2 + 1


def test_rescale_matches_spreads_and_reshift_means():
    data = samples(FLAT)
    ends, network = two_and_between(mlp)
    renormalize(network, ends, data, match="rescale", weights=[1 - SHARE, SHARE])
    found, wanted = statistics(network, data), between(ends, network, data)
    assert all(close(found[n][1], wanted[n][1]) and not close(found[n][0], wanted[n][0]) for n in ("0", "2"))
    ends, network = two_and_between(mlp)
    spread = statistics(network, data)["0"][1]
    renormalize(network, ends, data, match="reshift", weights=[1 - SHARE, SHARE])
    found = statistics(network, data)
    assert all(close(found[n][0], wanted[n][0]) for n in ("0", "2"))
    assert close(found["0"][1], spread)


def test_a_model_between_itself_and_itself_stays_as_it_is():
    ends, network = two_and_between(mlp, share=0.0)
    renormalize(network, [ends[0], ends[0]], samples(FLAT))
    assert all(torch.allclose(t, ends[0][n], atol=1e-5) for n, t in network.state_dict().items())


def test_a_dead_channel_is_left_alone():
    ends, network = two_and_between(mlp)
    with torch.no_grad():
        network[0].weight[3] *= 1e-9
        network[2].weight[:, 3] += 1  # it still feeds the next layer
    weight, bias = network[0].weight[3].clone(), network[0].bias[3].clone()
    assert renormalize(network, ends, samples(FLAT)).dead == 1
    assert torch.equal(network[0].weight[3], weight) and network[0].bias[3] == bias


def test_a_channel_that_hardly_varies_is_as_good_as_dead():
    """Scaled up to the spread of its endpoints it would be nothing but noise."""
    ends, network = two_and_between(mlp)
    with torch.no_grad():
        network[0].weight[3] *= 1e-9
        network[0].bias[3] = 0  # so that what little it varies is not rounded away
    weight = network[0].weight[3].clone()
    assert renormalize(network, ends, samples(FLAT)).dead == 1
    assert torch.equal(network[0].weight[3], weight) and network[0].bias[3] == 0


def test_without_a_bias_only_the_scale_is_matched_and_that_is_told():
    ends, network = two_and_between(lambda: mlp(bias=False))
    data = samples(FLAT)
    done = renormalize(network, ends, data, weights=[1 - SHARE, SHARE])
    assert dict(done.left)["0"] == dict(done.left)["2"] == "it has no bias of its own: only scaled"
    found, wanted = statistics(network, data), between(ends, network, data)
    assert all(close(found[n][1], wanted[n][1]) and not close(found[n][0], wanted[n][0]) for n in ("0", "2"))
    done = renormalize(network, ends, data, match="reshift")
    assert not done.corrected and dict(done.left)["0"].endswith("not shifted")


def test_a_bias_is_added_only_where_that_is_allowed():
    ends, network = two_and_between(lambda: mlp(bias=False))
    data, names = samples(FLAT), set(network.state_dict())
    wanted = between(ends, network, data)
    done = renormalize(network, ends, data, weights=[1 - SHARE, SHARE], new_bias=True)
    assert done.added == ("0.bias", "2.bias") and set(network.state_dict()) == names | set(done.added)
    found = statistics(network, data)
    for name in ("0", "2"):
        assert close(found[name][0], wanted[name][0]) and close(found[name][1], wanted[name][1])


def test_repair_gives_the_same_bits_again():
    results = []
    for _ in range(2):
        ends, network = two_and_between(convnet)
        renormalize(network, ends, samples(PICTURE))
        results.append(network.state_dict())
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())


class Odd(nn.Module):
    """Layers that hooks miss or see too often."""

    def __init__(self):
        super().__init__()
        self.twice, self.tied, self.same = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.same.weight = self.tied.weight
        self.made = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.table, self.head = nn.Embedding(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = F.relu(self.made(self.same(self.tied(self.twice(self.twice(x))))))[:, None]
        x = x + self.table(torch.arange(5, device=x.device))
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def test_what_cannot_be_corrected_is_listed_with_its_reason():
    torch.manual_seed(0)
    network = Odd()
    ends = [{n: t.clone() + 0.1 * k for n, t in network.state_dict().items()} for k in (0, 1)]
    done = renormalize(network, ends, samples(FLAT))
    left = dict(done.left)
    assert left["twice"] == "its weight is used more than once"
    assert (left.keys() & {"tied", "same"}) and left.get("tied", left.get("same")) == left["twice"]
    assert left["made.parametrizations.weight.original1"] == "its weight is computed from other parameters"
    assert left["table"] == "embedding reads it, no linear layer or convolution"
    assert set(done.corrected) == {"attention.in_proj_weight", "attention.out_proj"}  # hooks see neither


def test_a_network_with_batchnorm_is_reset_instead():
    one, other = small_network(), small_network()
    done = renormalize(one, [one.state_dict()] * 2, batches())
    reset(other, batches())
    assert done.method == "reset" and done.corrected == ("1",)
    assert all(torch.equal(t, other.state_dict()[n]) for n, t in one.state_dict().items())
    with pytest.raises(UsageError, match="rescale is for networks without BatchNorm"):
        renormalize(one, [one.state_dict()] * 2, batches(), match="rescale")


def test_what_repair_refuses():
    ends, network = two_and_between(mlp)
    with pytest.raises(DataError, match="holds no samples"):
        renormalize(network, ends, [])
    with pytest.raises(UsageError, match="3 weights for 2 models"):
        renormalize(network, ends, samples(FLAT), weights=[0.5, 0.3, 0.2])
    with pytest.raises(UsageError, match="unknown match"):
        renormalize(network, ends, samples(FLAT), match="repare")

    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x[:, :3]

    torch.manual_seed(0)
    network = Branching(8, 3)
    with pytest.raises(NetworkError, match="cannot be traced, so its channels"):
        renormalize(network, [network.state_dict()] * 2, samples(FLAT))


def test_merging_in_memory_repairs_and_leaves_the_models():
    ends = [rebasin_mlp(seed).state_dict() for seed in (1, 2)]
    network, data = rebasin_mlp(3), samples((8,))
    merged = rebasin_cli.merge(
        ends, "mlp", weights=[1 - SHARE, SHARE], network=network, train=data, repair_with="repair"
    )
    aligned = [dict(model) for model in merged.alignment.models]
    wanted, found = between(aligned, network, data), statistics(network, data, dict(merged.tensors))
    assert merged.repaired == 2 and list(merged.tensors) == list(ends[0])
    assert all(close(found[n][k], wanted[n][k]) for n in ("layers.0", "layers.1") for k in (0, 1))


def rebasin_mlp(seed):
    from rebasin_cli.nets.mlp import MLP

    torch.manual_seed(seed)
    return MLP([8, 7, 6, 3])


# ------------------------------------------------------------------------------------------ biases, no data


def test_biases_shrink_as_often_as_what_comes_from_the_input():
    """So the mean of A and a network that is zero is A, scaled once a layer."""
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))
    zero = {name: torch.zeros_like(tensor) for name, tensor in a.state_dict().items()}
    merged = copy.deepcopy(a)
    merged.load_state_dict({name: 0.4 * tensor for name, tensor in a.state_dict().items()})
    x = torch.randn(4, 8)
    biases = calibrated_biases(merged, [a.state_dict(), zero], x, weights=[0.4, 0.6])
    merged.load_state_dict(merged.state_dict() | biases)
    torch.testing.assert_close(merged(x), 0.4**3 * a(x))


def test_calibrated_biases_are_sums_over_models_weighted_to_the_power_of_the_depth():
    ends, network = two_and_between(mlp)
    found = calibrated_biases(network, ends, torch.randn(2, 8), weights=[0.7, 0.3])
    assert list(found) == ["0.bias", "2.bias", "4.bias"]
    for depth, name in enumerate(found, start=1):
        wanted = 0.7**depth * ends[0][name].double() + 0.3**depth * ends[1][name].double()
        torch.testing.assert_close(found[name], wanted)


@pytest.mark.parametrize(
    ("build", "shape", "says"),
    [
        (Residual, PICTURE, "joins values of different depth"),
        (normed, FLAT, "1.weight  belongs to no linear"),
    ],
)
def test_biases_are_not_calibrated_where_depth_means_nothing(build, shape, says):
    ends, network = two_and_between(build)
    with pytest.raises(UsageError, match="every layer has one depth") as refused:
        calibrated_biases(network, ends, torch.randn(2, *shape))
    assert any(says in problem for problem in refused.value.problems), refused.value.problems


# --------------------------------------------------------------------------------------------- temperature


def test_a_temperature_undoes_a_scale_of_the_logits():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 5, generator=rng)
    targets = torch.multinomial(logits.softmax(1), 1, generator=rng).squeeze(1)
    assert temperature(logits, targets) == pytest.approx(1, abs=0.05)
    assert temperature(3 * logits, targets) == pytest.approx(3 * temperature(logits, targets), rel=1e-6)


def test_no_other_temperature_has_a_lower_loss():
    rng = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(200, 4, generator=rng), torch.randint(4, (200,), generator=rng)
    logits[range(200), targets] += 1
    found = temperature(logits, targets)
    losses = [
        F.cross_entropy(logits.double() / (found * by), targets).item() for by in (1, 0.99, 1.01, 0.5, 2)
    ]
    assert min(losses) == losses[0] and temperature(logits, targets) == found


def test_a_temperature_stays_finite_and_refuses_nonsense():
    right = torch.eye(3)
    assert temperature(right, torch.arange(3)) == pytest.approx(0.01)
    assert temperature(right, torch.tensor([1, 2, 0])) == pytest.approx(100)
    for logits, targets in [
        (right, torch.zeros(3)),
        (right, torch.tensor([0, 1, 3])),
        (right * math.nan, torch.arange(3)),
        (right[:0], torch.arange(0)),
    ]:
        with pytest.raises(UsageError):
            temperature(logits, targets)


def test_a_temperature_is_fitted_to_all_targets_of_a_sample(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, 5, generator=rng)  # samples, classes, targets
    targets = torch.randint(4, (6, 5), generator=rng)
    flat = temperature(logits.movedim(1, -1).flatten(0, 1), targets.flatten())
    assert fit_temperature(torch.nn.Identity(), [(logits, targets)]) == flat
    monkeypatch.setattr(calibration, "MOST", 40)  # ten targets of four classes: every third of thirty
    every_third = temperature(logits.movedim(1, -1).flatten(0, 1)[::3], targets.flatten()[::3])
    assert fit_temperature(torch.nn.Identity(), [(logits, targets)]) == every_third != flat


def test_the_loss_at_the_best_temperature_is_of_all_logits(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    logits = 9 * torch.randn(40, 5, generator=rng)
    targets = logits.argmax(1).where(torch.rand(40, generator=rng) < 0.7, 0)
    loss = torch.nn.functional.cross_entropy
    least = loss(logits / temperature(logits, targets), targets).item()
    assert calibration.calibrated_loss(logits, targets) == least < loss(logits, targets).item()
    monkeypatch.setattr(calibration, "FITTED", 50)  # ten of the forty: every fourth
    fourth = loss(logits / temperature(logits[::4], targets[::4]), targets).item()
    assert calibration.calibrated_loss(logits, targets) == fourth != least


# ------------------------------------------------------------------------------------ what is decided once


def test_a_repair_is_judged_by_batches_that_it_was_not_measured_on():
    batches = [(torch.full((2, 1), k), torch.zeros(2)) for k in range(9)]
    measured, held, apart = set_apart(batches, None)
    numbers = [[int(x[0]) for x, _ in some] for some in (measured, held)]
    assert apart and numbers == [[0, 1, 3, 4, 6, 7], [2, 5, 8]]
    measured, held, apart = set_apart(batches[:2], None)  # too few to be parted
    assert not apart and list(measured) == list(held) == batches[:2]
    assert set_apart(batches, batches[:1]) == (batches, batches[:1], True)


@pytest.mark.parametrize(
    "statistics, measurable, is_", [(True, False, "reset"), (False, True, "auto"), (False, False, "none")]
)
def test_auto_is_settled_by_what_there_is(statistics, measurable, is_):
    assert resolved("auto", statistics=statistics, measurable=measurable) == is_
    assert resolved("rescale", statistics=statistics, measurable=measurable) == "rescale"
    with pytest.raises(UsageError, match="unknown repair"):
        resolved("mend", statistics=statistics, measurable=measurable)
