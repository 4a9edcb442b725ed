"""What tensors stand for together is averaged, and written back so that PyTorch's own modules compute it."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from rebasin_cli.averages.means import average, slerp, slerp_whole
from rebasin_cli.averages.parts import parts_of
from rebasin_cli.averages.tensors import combined
from rebasin_cli.averages.writing_back import largest_singular
from rebasin_cli.errors import CheckpointError, SpecError

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")


def pruned(layer):
    prune.random_unstructured(layer, "weight", 0.5)
    return layer


EXACT = {
    "weight norm": lambda: nn.utils.weight_norm(nn.Linear(6, 8)),
    "one output": lambda: nn.utils.weight_norm(nn.Linear(6, 1)),
    "one length": lambda: nn.utils.weight_norm(nn.Linear(6, 8), dim=None),
    "lengths of the last axis": lambda: nn.utils.weight_norm(nn.Conv1d(6, 8, 3), dim=2),
    "parametrized weight norm": lambda: parametrizations.weight_norm(nn.Linear(6, 8)),
    "transposed": lambda: parametrizations.weight_norm(nn.ConvTranspose2d(5, 7, 3), dim=1),
    "mask": lambda: pruned(nn.Linear(6, 8)),
}
SPECTRAL = {
    "linear": lambda: nn.utils.spectral_norm(nn.Linear(6, 8)),
    "square convolution": lambda: nn.utils.spectral_norm(nn.Conv2d(5, 5, 3)),
    "square transposed": lambda: nn.utils.spectral_norm(nn.ConvTranspose2d(5, 5, 3)),
    "parametrized": lambda: parametrizations.spectral_norm(nn.ConvTranspose2d(5, 7, 3)),
}


def weight_of(layer):
    """What a layer in evaluation computes with."""
    layer.eval()
    with torch.no_grad():
        for hook in layer._forward_pre_hooks.values():
            hook(layer, ())
        return layer.weight.detach().clone()


def trained(make, seed):
    """A layer whose singular vectors are settled, as after a training."""
    torch.manual_seed(seed)
    layer = make().train()
    with torch.no_grad():
        for _ in range(
            300 * ("Spectral" in str(layer._forward_pre_hooks) or hasattr(layer, "parametrizations"))
        ):
            [hook(layer, ()) for hook in layer._forward_pre_hooks.values()] or layer.weight
    return layer.eval()


def states(layers):
    return [{name: tensor.clone() for name, tensor in layer.state_dict().items()} for layer in layers]


def loaded(make, tensors):
    layer = make().eval()
    layer.load_state_dict(dict(tensors))
    return weight_of(layer)


@pytest.mark.parametrize("make", EXACT.values(), ids=EXACT)
def test_the_mean_of_layers_computes_with_the_mean_of_their_weights(make):
    layers = [trained(make, seed) for seed in range(3)]
    models, shares = states(layers), [0.5, 0.75, -0.25]
    weights = [weight_of(layer) for layer in layers]
    torch.testing.assert_close(loaded(make, average(models)), sum(weights) / 3, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        loaded(make, average(models, shares)),
        sum(share * weight for share, weight in zip(shares, weights, strict=True)),
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("make", SPECTRAL.values(), ids=SPECTRAL)
def test_the_mean_of_layers_with_spectral_norm_has_their_mean_s_direction_and_norm_one(make):
    layers = [trained(make, seed) for seed in range(2)]
    found, wanted = loaded(make, average(states(layers))), sum(map(weight_of, layers)) / 2
    torch.testing.assert_close(found / found.norm(), wanted / wanted.norm())
    axis = isinstance(layers[0], nn.ConvTranspose2d)
    norm = torch.linalg.matrix_norm(found.movedim(int(axis), 0).flatten(1), 2)
    assert norm.item() == pytest.approx(1, abs=1e-5)


def test_a_spectral_norm_with_one_vector_alone_steps_before_it_divides():
    """As BigGAN stores it: v is one step of power iteration from u."""
    models = []
    for seed in (1, 2):
        w = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
        left, values, _ = torch.linalg.svd(w)
        models.append({"l.weight": w, "l.u0": left[:, :1].T, "l.sv0": values[:1]})
    mean = average(models)
    wanted = sum(model["l.weight"] / model["l.sv0"] for model in models)
    value = torch.linalg.matrix_norm(mean["l.weight"], 2)
    torch.testing.assert_close(mean["l.weight"] / value, wanted / torch.linalg.matrix_norm(wanted, 2))
    torch.testing.assert_close(mean["l.sv0"], value[None])
    torch.testing.assert_close((mean["l.u0"] @ mean["l.weight"]).norm(), value)


@pytest.mark.parametrize("outputs", [8, 1])
def test_two_files_of_one_function_give_that_function(outputs):
    """Singular vectors have no sign; and in a network that never ran they are still random."""
    torch.manual_seed(3)
    layer = nn.utils.spectral_norm(nn.Linear(6, outputs)).eval()
    (one,) = states([layer])
    other = one | {"weight_u": -one["weight_u"], "weight_v": -one["weight_v"]}
    other["weight_orig"] = 3 * other["weight_orig"]
    found = loaded(lambda: nn.utils.spectral_norm(nn.Linear(6, outputs)), average([one, other]))
    torch.testing.assert_close(found, weight_of(layer), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [*EXACT.values(), *SPECTRAL.values()], ids=[*EXACT, *SPECTRAL])
def test_a_model_with_itself_and_the_ends_of_a_line_stay_bit_for_bit(make):
    one, other = states([trained(make, seed) for seed in range(2)])
    for join in (slerp, slerp_whole):
        assert all(torch.isfinite(tensor).all() for tensor in dict(join(one, other, 0.3)).values())
        assert all(torch.equal(tensor, other[name]) for name, tensor in join(one, other, 1.0).items())
    ends = average([one, one, one]), average([one, other], [1, 0])
    assert all(tensor.data_ptr() != one[name].data_ptr() for name, tensor in ends[0].items())
    assert all(torch.equal(tensor, one[name]) for end in ends for name, tensor in end.items())


@pytest.mark.parametrize("kind", ["weight norm", "mask", "linear"])
def test_averaging_commutes_with_relabelling_units(kind):
    models, order = states([trained((EXACT | SPECTRAL)[kind], seed) for seed in range(2)]), torch.randperm(8)

    def moved(model):
        return {
            name: tensor if name == "weight_v" and tensor.ndim == 1 else tensor[order]
            for name, tensor in model.items()
        }

    for name, tensor in moved(dict(average(models))).items():
        torch.testing.assert_close(average([moved(model) for model in models])[name], tensor)


def test_what_any_model_keeps_is_kept_and_the_rest_is_as_it_was():
    one = {"l.weight_orig": torch.tensor([1.0, 2, 3]), "l.weight_mask": torch.tensor([1.0, 0, 0])}
    other = {"l.weight_orig": torch.tensor([5.0, 6, 7]), "l.weight_mask": torch.tensor([1.0, 1, 0])}
    mean = average([one, other])
    assert mean["l.weight_mask"].tolist() == [1, 1, 0] and mean["l.weight_orig"].tolist() == [3, 3, 5]
    booleans = [
        {"m.weight": (m["l.weight_orig"] * m["l.weight_mask"])[None], "m.mask": m["l.weight_mask"][None] > 0}
        for m in (one, other)
    ]
    parts = parts_of(booleans)
    assert parts.averaged == ("m.weight", "m.mask")
    assert combined(booleans, parts)["m.mask"].tolist() == [[True, True, False]]
    assert combined(booleans, parts)["m.weight"].tolist() == [[3, 3, 0]]
    booleans[1]["m.weight"] = torch.ones(1, 3)  # who knows what this mask does
    with pytest.raises(SpecError, match="weights are not 0 where they are"):
        combined(booleans, parts)["m.mask"]
    assert torch.equal(combined([booleans[1]] * 2, parts)["m.weight"], booleans[1]["m.weight"])
    soft = other | {"l.weight_mask": torch.tensor([1.0, 0.5, 0])}
    with pytest.raises(SpecError, match="masks differ, and are not 0 and 1"):
        average([one, soft])["l.weight_mask"]
    assert average([soft, soft | one | {"l.weight_mask": soft["l.weight_mask"]}])[
        "l.weight_orig"
    ].tolist() == [3, 4, 5]


def test_sums_and_counts_of_a_codebook_give_the_mean_of_its_vectors():
    vectors, counts = torch.randn(2, 5, 3), torch.rand(2, 5) + 1
    sums = vectors * counts[..., None]
    whole = [
        {"q.embed": v, "q.embed_avg": s, "q.cluster_size": c}
        for v, s, c in zip(vectors, sums, counts, strict=True)
    ]
    mean = average(whole)
    torch.testing.assert_close(mean["q.embed"], vectors.mean(0))
    torch.testing.assert_close(mean["q.embed_avg"] / mean["q.cluster_size"][:, None], vectors.mean(0))
    columns = [{n: t.T if t.ndim == 2 else t for n, t in model.items()} for model in whole]
    torch.testing.assert_close(average(columns)["q.embed_avg"], mean["q.embed_avg"].T)
    alone = [{"q.embed_sum": s, "q.cluster_usage": c} for s, c in zip(sums, counts, strict=True)]
    mean = average(alone)
    torch.testing.assert_close(mean["q.embed_sum"] / mean["q.cluster_usage"][:, None], vectors.mean(0))


def test_running_moments_are_those_of_all_samples_together():
    samples = torch.randn(2, 100, 3) + torch.tensor([0.0, 5.0])[:, None, None]
    models = [
        {"n.mean": s.mean(0), "n.var": s.var(0, correction=0), "n.count": torch.tensor(100.0)}
        for s in samples
    ]
    both = samples.flatten(0, 1)
    for found in (average(models), slerp(*models, 0.5)):
        torch.testing.assert_close(found["n.mean"], both.mean(0))
        torch.testing.assert_close(found["n.var"], both.var(0, correction=0))
        assert found["n.count"] == 100
    with pytest.raises(SpecError, match="variance is negative"):
        average(models, [3, -2])["n.var"]


def test_families_are_read_in_parts_and_written_in_any_dtype():
    models = [
        {n: t.bfloat16() for n, t in m.items()}
        for m in states([trained(EXACT["weight norm"], k) for k in (1, 2)])
    ]
    parts = parts_of(models)
    found, wide = combined(models, parts), combined(models, parts, dtype=torch.float32)
    assert found.dtypes["weight_v"] == found["weight_v"].dtype == torch.bfloat16 != wide["weight_v"].dtype
    assert torch.equal(found.rows("weight_v", 2, 5), found["weight_v"][2:5])
    torch.testing.assert_close(found["weight_v"].float(), wide["weight_v"], rtol=1e-2, atol=0)


def test_a_weight_without_direction_is_refused_by_name():
    one = {"l.weight_g": torch.ones(2, 1), "l.weight_v": torch.tensor([[0.0, 0], [1, 1]])}
    with pytest.raises(CheckpointError, match="l.weight is NaN or infinite in model 2"):
        average([one | {"l.weight_v": torch.ones(2, 2)}, one])["l.weight_v"]
    u = torch.tensor([1.0, 0])
    spectral = [{"l.weight_orig": torch.eye(2), "l.weight_u": sign * u, "l.weight_v": u} for sign in (1, -1)]
    with pytest.raises(SpecError, match="l.weight .spectral norm. cannot be averaged: the mean is zero"):
        average(spectral)["l.weight_u"]


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (1, 4), (300, 260)])
def test_the_largest_singular_value_has_its_vectors(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value, left, right = largest_singular(matrix)
    torch.testing.assert_close(value, torch.linalg.matrix_norm(matrix, 2))
    torch.testing.assert_close(left @ matrix @ right, value)
    torch.testing.assert_close(matrix @ right, value * left)


def test_the_mean_of_four_checkpoints_of_a_run_with_spectral_norm_is_as_good_as_they_are():
    """Factor by factor it is far worse: singular vectors turn meanwhile, and have no sign."""

    def build():
        sizes = ((6, 16), (16, 16), (16, 1))
        layers = [nn.utils.spectral_norm(nn.Linear(*each)) for each in sizes]
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    torch.manual_seed(2)
    x = torch.randn(256, 6)
    y = torch.tanh(x @ torch.randn(6, 1) * 0.5) * 0.7
    network, run = build().train(), []
    optimizer = torch.optim.SGD(network.parameters(), 0.03, momentum=0.9)
    for step in range(1, 81):
        optimizer.zero_grad()
        (network(x) - y).square().mean().backward()
        optimizer.step()
        run += states([network]) if step % 20 == 0 else []

    @torch.no_grad()
    def loss(tensors):
        other = build().eval()
        other.load_state_dict(dict(tensors))
        return (other(x) - y).square().mean().item()

    each, found = [loss(tensors) for tensors in run], loss(average(run))
    assert min(each) < found < sum(each) / 4
    assert loss({name: sum(tensors[name] for tensors in run) / 4 for name in run[0]}) > 5 * found
    turned = [
        {name: -t if name.endswith(("_u", "_v")) and k % 2 else t for name, t in tensors.items()}
        for k, tensors in enumerate(run)
    ]
    assert loss(average(turned)) == pytest.approx(found, rel=1e-4)
