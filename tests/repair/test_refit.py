"""Layers of a merged network fitted to the mean of what its endpoints compute."""

import copy
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli.errors import CheckpointError, DataError, NetworkError, UsageError
from rebasin_cli.repair import plan_refit, refit, reset
from rebasin_cli.repair.costs import refit_products, repair_passes
from rebasin_cli.repair.layer_by_layer import Advancing
from rebasin_cli.repair.least_squares import Sums
from rebasin_cli.repair.producers import Graphs, shape_of
from rebasin_cli.runtime.ranks import Ranks

from .test_repair import FLAT, PICTURE, SHARE, Odd, Residual, convnet, mlp, normed, samples, two_and_between


class Normed(nn.Module):
    """Convolutions with BatchNorm: one before each, one joined to a sum, one before its convolution."""

    def __init__(self):
        super().__init__()
        self.stem, self.bn1 = nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.down, self.bn3 = nn.Conv2d(6, 6, 1, bias=False), nn.BatchNorm2d(6)
        self.bn4, self.last = nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.bn1(self.stem(x)))
        x = self.bn2(self.conv2(x)) + self.bn3(self.down(x))
        return self.head(F.relu(self.last(F.relu(self.bn4(x)))).mean((2, 3)))


class Attending(nn.Module):
    """A transformer's layer in its own order of axes: sums are reached across permutations and views."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(self.stem(x.unflatten(1, (2, 4)))))


class Scaled(nn.Module):
    """Norms without running statistics, and one written out: they multiply channels in the end."""

    def __init__(self):
        super().__init__()
        self.conv, self.group = nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.wide, self.layer = nn.Linear(6, 8), nn.LayerNorm(8)
        self.thin, self.rms = nn.Linear(8, 5, bias=False), nn.RMSNorm(5, eps=1e-6)
        self.own, self.gamma = nn.Linear(5, 5), nn.Parameter(torch.ones(5))
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        x = F.relu(self.group(self.conv(x))).mean((2, 3))
        x = F.relu(self.rms(self.thin(F.relu(self.layer(self.wide(x))))))
        x = self.own(x)
        return self.head(F.relu(x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.gamma))


NETWORKS = [
    (mlp, FLAT),
    (convnet, PICTURE),
    (normed, FLAT),
    (Residual, PICTURE),
    (Normed, PICTURE),
    (Attending, FLAT),
    (Scaled, PICTURE),
]


def seen_by(network, data):
    """`network` with statistics of these samples, in float64 and in evaluation mode."""
    reset(network, data)
    return network.double().eval()


def drawn(build, data, seed):
    torch.manual_seed(seed)
    network = build()
    for tensor in network.parameters():
        tensor.data.add_(torch.randn_like(tensor) * (0.5 if tensor.ndim == 1 else 0.2))
    return seen_by(network, data)


def state(network):
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def same(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(("build", "shape"), NETWORKS)
def test_a_model_between_itself_and_itself_stays_as_it_is_to_the_last_bit(build, shape):
    data = samples(shape)
    network = drawn(build, data, 1).float()
    before, known = state(network), {}
    for count in (2, 3):
        done = refit(network, [before] * count, data, known=known)
        assert same(state(network), before) and done.method == "refit"


@pytest.mark.parametrize(("build", "shape"), NETWORKS)
def test_plain_least_squares_find_an_endpoint_again_from_other_weights(build, shape):
    data = [(x.double(), y) for x, y in samples(shape, (64, 64))]
    network, other = (drawn(build, data, seed) for seed in (1, 2))
    end, known = state(network), {}
    untouched = {name for name, _ in refit(network, [end], data, known=known).left}
    network.load_state_dict({n: t if n in untouched else other.state_dict()[n] for n, t in end.items()})
    wanted = copy.deepcopy(network)
    wanted.load_state_dict(end)
    inputs = data[0][0]
    assert not torch.allclose(network(inputs), wanted(inputs), atol=0.01)
    refit(network, [end, end], data, ridge=0, known=known)
    torch.testing.assert_close(network(inputs), wanted(inputs), rtol=1e-6, atol=1e-6)


def test_norms_without_statistics_are_fitted_and_what_has_no_scale_of_its_own_stays():
    data = samples(PICTURE)
    planned = plan_refit(drawn(Scaled, data, 1).float(), data[0][0])
    assert (
        planned.layers
        == (
            "conv",
            "group",
            "wide",
            "layer",
            "thin",
            "rms",
            "own",
            "gamma",
            "head",
        )
        and not planned.left
    )

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(self.norm(self.first(x)))

    twice = plan_refit(Twice(), torch.randn(3, 4))
    assert twice.layers == ("first",) and [name for name, _ in twice.left] == ["norm.weight", "norm.bias"]


def test_what_it_takes_is_planned_where_a_network_casts_and_where_a_weight_is_computed():
    class Casting(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), nn.Linear(6, 3)

        def forward(self, x):
            return self.last(F.relu(self.first(x.to(torch.float32))))

    network = Casting()
    assert plan_refit(network, torch.randn(3, 4)).layers == ("last",)
    assert refit_products(network, torch.randn(3, 4), "cpu") > 0
    assert repair_passes(network) == 3  # of two layers


KINDS = [
    (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (4, 9)),
    (lambda: nn.Conv2d(4, 8, 3, padding="same", dilation=2, groups=4), (4, 6, 5)),
    (lambda: nn.Conv2d(4, 4, (3, 2), stride=(2, 1), padding=(0, 2), groups=4, bias=False), (4, 6, 5)),
    (lambda: nn.Conv3d(2, 3, (1, 2, 3), stride=(1, 2, 1)), (2, 3, 4, 5)),
    (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (4, 5)),
    (lambda: nn.ConvTranspose2d(4, 3, (3, 2), stride=(1, 3), padding=(2, 0), dilation=(1, 2)), (4, 4, 3)),
    (lambda: nn.ConvTranspose3d(2, 4, 2, stride=2, groups=2), (2, 2, 3, 2)),
    (lambda: nn.Linear(5, 4, bias=False), (3, 5)),
    (lambda: nn.LayerNorm((4, 5)), (3, 4, 5)),
    (lambda: nn.LayerNorm(5, bias=False), (3, 5)),
    (lambda: nn.RMSNorm(5), (5,)),
    (lambda: nn.GroupNorm(2, 4), (4, 3, 5)),
    (lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 5)),
]


@pytest.mark.parametrize(("build", "shape"), KINDS)
def test_a_layer_of_any_kind_becomes_the_weighted_mean_of_its_endpoints(build, shape):
    """They are linear: where inputs are the same, so are mean outputs and those of mean weights."""
    torch.manual_seed(0)
    ends = [{n: torch.randn_like(t) for n, t in build().double().state_dict().items()} for _ in range(3)]
    network = nn.Sequential(build()).double()
    data = [(torch.randn(40, *shape).double(), torch.zeros(40)) for _ in range(2)]
    weights = [0.5, 0.3, 0.2]
    done = refit(
        network, [{f"0.{n}": t for n, t in end.items()} for end in ends], data, weights=weights, ridge=0
    )
    assert done.corrected == ("0",) and not done.left
    for name, tensor in network[0].state_dict().items():
        mean = sum(w * end[name] for w, end in zip(weights, ends, strict=True))
        torch.testing.assert_close(tensor, mean, rtol=1e-9, atol=1e-9)


def least_squares(z, missing, ridge=0.01):
    """The change by the normal equations' own augmented system, all samples at once."""
    scale = (ridge * z.square().sum(0).mean()).sqrt()
    rows = torch.cat([z, scale * torch.eye(z.shape[1], dtype=z.dtype)])
    missing = torch.cat([missing, torch.zeros(z.shape[1], missing.shape[1], dtype=z.dtype)])
    return torch.linalg.lstsq(rows, missing, driver="gelsd").solution


def test_it_is_ridge_least_squares_layer_by_layer_on_the_refitted_networks_own_activations():
    ends, network = two_and_between(mlp)
    network.double()
    data = [(x.double(), y) for x, y in samples(FLAT)]
    h = torch.cat([x for x, _ in data])
    others = [h, h]
    merged = state(network)
    wanted = {}
    for name, activation in (("0", F.relu), ("2", torch.tanh), ("4", lambda x: x)):
        keys = f"{name}.weight", f"{name}.bias"
        others = [
            F.linear(x, *(end[key].double() for key in keys)) for x, end in zip(others, ends, strict=True)
        ]
        target = (1 - SHARE) * others[0] + SHARE * others[1]
        z = torch.cat([h, torch.ones(len(h), 1)], 1)
        m = torch.cat([merged[keys[0]].T, merged[keys[1]][None]])
        m = m + least_squares(z, target - z @ m)
        wanted |= {keys[0]: m[:-1].T, keys[1]: m[-1]}
        h, others = activation(z @ m), list(map(activation, others))
    refit(network, ends, data, weights=[1 - SHARE, SHARE])
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-9, atol=1e-9)


def test_a_convolution_with_a_norm_is_fitted_behind_it_and_written_back_as_both():
    def build():
        return nn.Sequential(nn.Conv2d(2, 5, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(5))

    data = [(x.double(), y) for x, y in samples(PICTURE)]
    x = torch.cat([inputs for inputs, _ in data])
    models = [drawn(build, data, seed) for seed in (1, 2)]
    network = drawn(build, data, 3)
    z = F.unfold(x, 3, padding=1, stride=2).mT.reshape(-1, 18)
    z = torch.cat([z, torch.ones(len(z), 1)], 1)
    here, *there = (model(x).movedim(1, -1).reshape(-1, 5) for model in (network, *models))
    found = least_squares(z, (there[0] + there[1]) / 2 - here)
    refit(network, [state(model) for model in models], data)
    torch.testing.assert_close(
        network(x).movedim(1, -1).reshape(-1, 5), here + z @ found, rtol=1e-9, atol=1e-9
    )
    before = copy.deepcopy(network)
    whole = network[0](x).movedim(1, 0).flatten(1)
    torch.testing.assert_close(network[1].running_mean, whole.mean(1))
    torch.testing.assert_close(network[1].running_var, whole.var(1))
    reset(network, [(x, None)])
    torch.testing.assert_close(network(x), before(x))


def test_the_last_layer_of_a_sum_fits_the_sum_given_the_rest():
    ends, network = two_and_between(Residual)
    network.double()
    data = [(x.double(), y) for x, y in samples(PICTURE)]
    x = torch.cat([inputs for inputs, _ in data])

    def streams(model):
        """What goes into the last layer of the first block, and the sum that it is added to."""
        stream = F.relu(model.stem(x))
        inner = F.relu(model.inner[0](stream))
        return inner.movedim(1, -1).reshape(-1, 4), (stream + model.outer[0](inner)).movedim(1, -1).reshape(
            -1, 6
        )

    sums = []
    for end in ends:
        model = Residual().double()
        model.load_state_dict(end)
        sums.append(streams(model)[1])
    merged = copy.deepcopy(network)
    refit(network, ends, data, weights=[1 - SHARE, SHARE])
    before = copy.deepcopy(network)
    before.outer[0].load_state_dict(merged.outer[0].state_dict())
    z, here = streams(before)
    z = torch.cat([z, torch.ones(len(z), 1)], 1)
    found = least_squares(z, (1 - SHARE) * sums[0] + SHARE * sums[1] - here)
    torch.testing.assert_close(streams(network)[1], here + z @ found, rtol=1e-9, atol=1e-9)


def test_all_uses_of_a_shared_weight_are_fitted_at_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))

    ends, network = two_and_between(Twice)
    network.double()
    data = [(x.double(), y) for x, y in samples(FLAT)]
    x = torch.cat([inputs for inputs, _ in data])

    def uses(layer):
        first = layer(x)
        return torch.cat([x, torch.tanh(first)]), torch.cat([first, layer(torch.tanh(first))])

    mean = 0
    for end, share in zip(ends, (1 - SHARE, SHARE), strict=True):
        model = Twice().double()
        model.load_state_dict(end)
        mean = mean + share * uses(model.layer)[1]
    z, here = uses(network.layer)
    found = least_squares(torch.cat([z, torch.ones(len(z), 1)], 1), mean - here)
    wanted = network.layer.weight + found[:-1].T
    done = refit(network, ends, data, weights=[1 - SHARE, SHARE])
    assert done.corrected == ("layer", "head")
    torch.testing.assert_close(network.layer.weight, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("build", "shape"), [(Normed, PICTURE), pytest.param(Attending, FLAT, marks=pytest.mark.sweep)]
)
def test_what_is_kept_between_layers_changes_no_bit(build, shape):
    data = samples(shape)
    ends = [state(drawn(build, data, seed).float()) for seed in (1, 2)]
    network, found, known = drawn(build, data, 3).float(), [], {}
    merged = state(network)
    for memory in (1 << 30, 1 << 15, 0):
        network.load_state_dict(merged)
        done = refit(network, ends, data, memory=memory, known=known)
        found.append((state(network), done.passes))
    assert same(found[0][0], found[1][0]) and same(found[0][0], found[2][0])
    assert found[0][1] == 1 and found[2][1] == len(done.corrected)


def test_a_thread_that_adds_up_slowly_changes_no_bit(monkeypatch):
    """A second thread is what is tested."""
    data, add = samples(PICTURE), Sums.add
    ends, found = [state(drawn(Normed, data, seed)) for seed in (1, 2)], []
    merged = drawn(Normed, data, 3)

    def slow(self, *both):
        time.sleep(0.005)
        add(self, *both)

    monkeypatch.setattr(Sums, "add", slow)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            refit(network := copy.deepcopy(merged), ends, data)
        finally:
            torch.set_num_threads(1)
        found.append(state(network))
    assert same(*found)


def test_labels_are_not_looked_at():
    found = []
    for labels in (lambda n: torch.zeros(n).long(), lambda n: torch.randint(9, (n,))):
        ends, network = two_and_between(convnet)
        refit(network, ends, [(x, labels(len(x))) for x, _ in samples(PICTURE, (16,))])
        found.append(state(network))
    assert same(*found)


def test_the_endpoints_and_modes_stay_and_what_changed_is_told():
    ends, network = two_and_between(Residual)
    kept, before = copy.deepcopy(ends), state(network)
    done = refit(network.train(), ends, samples(PICTURE, (16,)))
    assert all(same(one, other) for one, other in zip(ends, kept, strict=True)) and network.training
    after = state(network)
    assert set(done.tensors) == {name for name in after if not torch.equal(after[name], before[name])}
    assert all(tensor.grad is None for tensor in network.parameters())


def test_what_cannot_be_followed_stays_and_is_named_with_its_reason():
    torch.manual_seed(0)
    network = Odd()
    ends = [{n: t.clone() + 0.1 * k for n, t in network.state_dict().items()} for k in (0, 1)]
    done = refit(network, ends, samples(FLAT))
    left = dict(done.left)
    assert left["made.parametrizations.weight.original1"] == "its weight is computed from other parameters"
    assert left["table.weight"] == "embedding reads it, no linear layer or convolution"
    assert {"twice", "attention.in_proj_weight", "attention.out_proj", "head"} <= set(done.corrected)
    assert {"tied.weight", "same.weight"} <= set(done.tensors)  # one tensor by two names


def test_a_weight_that_an_embedding_reads_too_stays():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = nn.Embedding(9, 4), nn.Linear(4, 4)

        def forward(self, tokens):
            return F.linear(self.inner(self.table(tokens)), self.table.weight)

    torch.manual_seed(0)
    network, end = Tied(), Tied().state_dict()
    table = network.table.weight.clone()
    tokens = [(torch.randint(9, (8, 3)), torch.zeros(8))]
    done = refit(network, [end, end], tokens)
    assert done.corrected == ("inner",)
    assert dict(done.left) == {"table.weight": "embedding reads its weight, too"}
    assert torch.equal(network.table.weight, table)


def test_layers_whose_sums_would_be_too_large_stay(monkeypatch):
    monkeypatch.setattr("rebasin_cli.repair.refits.LARGEST", 8 * 9**2 - 1)
    ends, network = two_and_between(mlp)
    before = state(network)
    done = refit(network, ends, samples(FLAT))
    assert done.corrected == ("2", "4") and torch.equal(network[0].weight, before["0.weight"])
    assert dict(done.left) == {"0": "its Gram matrix would take 648 bytes"}
    assert plan_refit(network, torch.zeros(2, 8)).left == done.left


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(("build", "shape"), [(mlp, FLAT), (Normed, PICTURE)])
def test_one_sample_is_enough_for_finite_weights(build, shape):
    data, known = samples(shape, (1,)), {}
    ends = [state(drawn(build, samples(shape), seed).float()) for seed in (1, 2)]
    for ridge in (0.01, 0.0):
        network = drawn(build, samples(shape), 3).float()
        refit(network, ends, data, ridge=ridge, known=known)
        assert all(tensor.isfinite().all() for tensor in network.state_dict().values())


def test_weights_of_inputs_that_are_always_0_stay_as_averaged():
    ends, network = two_and_between(mlp)
    data = [(x.clone(), y) for x, y in samples(FLAT)]
    for x, _ in data:
        x[:, 2] = 0
    before = state(network)
    assert refit(network, ends, data).dead == 1
    changed = (network[0].weight != before["0.weight"]).any(0)
    assert changed.tolist() == [k != 2 for k in range(8)]


def test_a_layer_that_sees_nothing_but_zeros_stays():
    ends, network = two_and_between(lambda: mlp(bias=False))
    before = state(network)
    refit(network, ends, [(torch.zeros(5, 8), torch.zeros(5))])
    assert same(
        {n: t for n, t in state(network).items() if n != "4.bias"},
        {n: t for n, t in before.items() if n != "4.bias"},
    )


def test_inputs_that_depend_on_each_other_are_no_harm():
    ends, network = two_and_between(mlp)
    data = [(x[:, :1].expand(-1, 8).clone(), y) for x, y in samples(FLAT)]
    refit(network, ends, data, ridge=0)
    assert all(tensor.isfinite().all() and tensor.abs().max() < 100 for tensor in network.parameters())


def test_a_channel_that_its_norm_silences_is_fitted_with_a_scale_of_its_own():
    data = samples(PICTURE)
    end = state(drawn(Normed, data, 1).float())
    network = drawn(Normed, data, 1).float()
    with torch.no_grad():
        network.bn1.weight[2] = 0
    refit(network, [end, end], [(x, y) for x, y in samples(PICTURE, (64, 64))], ridge=0)
    wanted = Normed().eval()
    wanted.load_state_dict(end)
    torch.testing.assert_close(network.eval()(data[0][0]), wanted(data[0][0]), rtol=1e-3, atol=1e-3)


def test_what_a_refit_refuses():
    ends, network = two_and_between(mlp)
    before = state(network)
    with pytest.raises(DataError, match="holds no samples"):
        refit(network, ends, [])
    with pytest.raises(DataError, match="NaN or infinite inputs"):
        refit(network, ends, [(torch.full((4, 8), torch.nan), torch.zeros(4))])
    with pytest.raises(UsageError, match="3 weights for 2 models"):
        refit(network, ends, samples(FLAT), weights=[0.5, 0.3, 0.2])
    for ridge in (-1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="a ridge of"):
            refit(network, ends, samples(FLAT), ridge=ridge)
    assert same(state(network), before)
    with pytest.raises(CheckpointError, match="the activations at 0 hold NaN"):
        refit(network, [ends[0], ends[1] | {"0.weight": torch.full((7, 8), 3e38)}], samples(FLAT))

    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x[:, :3]

    network = Branching(8, 3)
    with pytest.raises(NetworkError, match="cannot be traced"):
        refit(network, [network.state_dict()] * 2, samples(FLAT))


# --------------------------------------------------------------------------------------------- merge, report


def test_merging_planted_copies_gives_the_model_again():
    from rebasin_cli import nets
    from rebasin_cli.spec.library import resolve_spec
    from rebasin_cli.symmetry import permutation

    torch.manual_seed(0)
    network = nets.build("mlp", input_shape=(8,), classes=3, width=16)
    model = state(network)
    fitted = resolve_spec("mlp", [model])
    moved = [
        permutation.permuted(
            model, fitted, permutation.random(fitted.words, torch.Generator().manual_seed(k))
        )
        for k in (1, 2)
    ]
    merged = rebasin_cli.merge(
        [model, *moved], fitted, repair_with="refit", network=network, train=samples((8,))
    )
    assert same(merged.tensors, model) and merged.repair.method == "refit"


def test_merging_in_memory_needs_samples_for_a_refit():
    torch.manual_seed(0)
    model = {"fc1.weight": torch.randn(8, 4), "fc2.weight": torch.randn(3, 8)}
    with pytest.raises(UsageError, match="repair needs the network and training data"):
        rebasin_cli.merge([model, model], "two_layer", repair_with="refit")


class Short(nn.Module):
    """Other operations for few samples."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.one(x)
        return self.two(hidden.relu() if len(x) > 5 else hidden.relu().abs())


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_all_ranks_refuse_batches_of_other_layers_whoever_sees_them(rank):
    """One rank went on, or ended with a KeyError."""
    data = [(torch.randn(size, 3), torch.zeros(size)) for size in (8, 8, 4)]
    network = Short()
    moving = Advancing(
        Graphs(network, {}), [network.state_dict()], data, "cpu", memory=0, ranks=Ranks(rank, 3)
    )
    with pytest.raises(NetworkError, match="other layers for inputs of another shape"):
        for _ in moving.at("linear", ["linear"]):
            pass


def test_a_rank_without_a_batch_has_zeros_where_the_others_have_sums():
    """Sums of a GPU go another way than those of a CPU: the ranks would wait for one another."""

    class Second(Ranks):
        def all(self, value):
            return [(5, (1, 3, 3), (1, 3, 2)), value]

    sums = Sums(constant=True)
    sums.join(Second(1, 2), "meta")
    assert sums.count == 5
    assert (sums.gram.shape, sums.cross.shape) == ((1, 3, 3), (1, 3, 2))
    assert sums.gram.device.type == sums.cross.device.type == "meta"


def test_a_graph_is_of_one_kind_of_device():
    """A refit runs on the CPU where the device has no float64, and other repairs do not."""
    assert shape_of([torch.zeros(2)]) != shape_of([torch.zeros(2, device="meta")])
