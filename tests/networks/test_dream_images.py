"""Dreams: images of the right form that all networks see as their class; the networks stay as they are."""

import pytest
import torch
from torch import nn

from rebasin_cli import nets, networks
from rebasin_cli.datasets import Normalization, form
from rebasin_cli.errors import NetworkError, UsageError
from rebasin_cli.learning.training import train
from rebasin_cli.networks import dream_images


@pytest.fixture(scope="module")
def learnt():
    """Two MLPs that know digits; trained, since a network that knows nothing imagines nothing."""
    found = []
    for seed in (1, 2):
        made = train("mlp", "digits", seed=seed, width=16, depth=1, epochs=8, learning_rate=0.01)
        network = nets.build("mlp", input_shape=(1, 8, 8), classes=10, width=16, depth=1)
        found.append(networks.load(network, made.tensors))
    return found


def seen(network, images):
    with torch.no_grad():
        return network.eval()(images).argmax(1)


def test_all_networks_see_every_image_as_its_class(learnt):
    dreams = dream_images.dream(learnt, (1, 8, 8), samples=60, seed=3)
    assert dreams.inputs.shape == (60, 1, 8, 8) and dreams.inputs.dtype == torch.float32
    assert dreams.targets.bincount(minlength=10).tolist() == [6] * 10
    noise = dream_images.dream(learnt, (1, 8, 8), samples=60, steps=0, seed=3)
    for network in learnt:
        assert (seen(network, dreams.inputs) == dreams.targets).float().mean() > 0.85
        assert (seen(network, noise.inputs) == noise.targets).float().mean() < 0.4


def test_images_are_normalised_and_coarse(learnt):
    images = dream_images.dream(learnt, (1, 8, 8), samples=40).inputs
    assert images.mean((1, 2, 3)).abs().max() < 1e-5
    assert images.std((1, 2, 3), correction=0).sub(1).abs().max() < 1e-5
    steps = (images[..., 1:] - images[..., :-1]).square().mean()
    assert steps < 1  # of white noise it is 2


def test_channels_of_colours_go_together():
    noise = dream_images._images(torch.randn(50, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    red, green = noise[:, 0].flatten(), noise[:, 1].flatten()
    assert torch.corrcoef(torch.stack([red, green]))[0, 1] > 0.7


def test_the_same_seed_gives_the_same_images_and_another_others(learnt):
    one, again, other = (dream_images.dream(learnt, (1, 8, 8), samples=20, seed=s).inputs for s in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_a_network_stays_as_it_is(learnt):
    network = learnt[0].train()
    next(network.parameters()).requires_grad_(False)
    asked = [parameter.requires_grad for parameter in network.parameters()]
    assert asked == [False, True, True, True]
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    dream_images.dream([network], (1, 8, 8), samples=10, steps=2)
    assert network.training
    assert [parameter.requires_grad for parameter in network.parameters()] == asked
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    next(network.parameters()).requires_grad_(True)


def test_what_batchnorm_remembers_draws_images_near():
    """Without classes to tell apart, only the memory counts: the images' statistics come nearer to it."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    norm.running_mean.copy_(torch.tensor([0.3, -0.2, 0.1, 0.0]))
    norm.running_var.copy_(torch.tensor([0.1, 0.2, 0.1, 0.2]))
    network[4].weight.data.zero_()

    def far(steps):
        images = dream_images.dream([network], (1, 8, 8), samples=50, steps=steps).inputs
        with dream_images._still(network) as distances, torch.no_grad():
            network(images)
            return float(sum(distances))

    assert far(30) < 0.5 * far(0)
    assert not norm._forward_pre_hooks


def test_vectors_are_dreamt_of_too():
    torch.manual_seed(0)
    network = nn.Linear(12, 3)
    dreams = dream_images.dream([network], (12,), samples=30)
    assert dreams.inputs.shape == (30, 12)
    assert (seen(network, dreams.inputs) == dreams.targets).float().mean() > 0.9


def test_batches_come_with_their_progress(learnt, monkeypatch):
    monkeypatch.setattr(dream_images, "MOST", 20)
    told = []
    dreams = dream_images.dream(
        learnt, (1, 8, 8), samples=50, steps=5, progress=lambda done, loss: told.append((done, loss))
    )
    assert [done for done, _ in told] == [20, 40, 50] and all(loss > 0 for _, loss in told)
    assert dreams.targets.tolist() == [k % 10 for k in range(50)]


@pytest.mark.parametrize("shape", [(8, 8), (1, 2, 8, 8), ()])
def test_other_shapes_are_refused(learnt, shape):
    with pytest.raises(UsageError, match="neither images"):
        dream_images.dream(learnt, shape)


def test_outputs_that_are_no_classes_are_refused(learnt):
    with pytest.raises(NetworkError, match=r"dreams are of classes.*\(2, 1\)"):
        dream_images.dream([nn.Sequential(nn.Flatten(), nn.Linear(64, 1))], (1, 8, 8))
    with pytest.raises(NetworkError, match=r"\(2, 10\) and \(2, 3\)"):
        dream_images.dream([learnt[0], nn.Sequential(nn.Flatten(), nn.Linear(64, 3))], (1, 8, 8))


def test_a_network_that_writes_into_what_it_gets_is_given_a_copy():
    class InPlace(nn.Linear):
        def forward(self, x):
            x -= 5
            return super().forward(x)

    torch.manual_seed(0)
    dreams = dream_images.dream([InPlace(12, 3)], (12,), samples=30, steps=3)
    assert dreams.inputs.mean().abs() < 1e-5


def test_outputs_without_a_gradient_or_that_are_not_finite_are_refused():
    class Rounded(nn.Linear):
        def forward(self, x):
            return super().forward(x).detach().round()

    class Broken(nn.Linear):
        def forward(self, x):
            return super().forward(x) * torch.inf

    with pytest.raises(NetworkError, match="no gradient"):
        dream_images.dream([Rounded(12, 3)], (12,), samples=3)
    with pytest.raises(NetworkError, match="the loss on noise is nan"):
        dream_images.dream([Broken(12, 3)], (12,), samples=3)


def test_every_shift_is_of_a_pixel_at_most_and_loses_none():
    image, rng = torch.rand(2, 1, 4, 4), torch.Generator().manual_seed(0)
    found = {dream_images._shifted(image, rng).numpy().tobytes() for _ in range(200)}
    ways = [image.roll((down, right), (2, 3)) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    assert found == {way.numpy().tobytes() for way in ways}


def test_a_data_set_tells_the_form_of_its_images_as_networks_get_them():
    assert form("cifar10") == ((3, 32, 32), Normalization((0.0,) * 3, (1.0,) * 3))
    shape, pixels = form("cifar10", "0.5/0.25")
    assert pixels.mean == pytest.approx([-0.0344, -0.0712, -0.214])
    assert pixels.std == pytest.approx([0.988, 0.974, 1.0464])
    assert form("mnist") == ((1, 28, 28), Normalization((0.1307,), (0.3081,)))
    assert form("alice") is None and form("npz:mine.npz") is None
