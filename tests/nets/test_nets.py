"""The networks: names and sizes as in public checkpoints, and read back from tensors exactly."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from torch import nn

from rebasin_cli import nets
from rebasin_cli.errors import NetworkError, RebasinError, UsageError
from rebasin_cli.nets import resnet, resnet_cifar
from rebasin_cli.nets._convolutional import ResNet

VARIANTS = sorted(nets.variants())
# One of each kind where running a network, not only building it, is what takes the time.
TRANSFORMERS = ("vit", "gpt")  # their widths and inputs are their own: see test_transformers
CONVOLUTIONAL = [name for name in VARIANTS if name not in ("mlp", "two_layer", *TRANSFORMERS)]
KINDS = [module.VARIANTS[0] for module in map(nets.registry.get, nets.registry.names())]
KINDS = [name for name in KINDS if name not in TRANSFORMERS]
KINDS += ["vgg13_bn", "resnet50"]
UNITS = ("mlp", "two_layer")  # their width is a number of units, not a multiplier


def shapes_of(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def build(name: str, *, width: float | None = None, input_shape=(3, 32, 32), classes: int = 10, norm=None):
    """A network with `width` times its usual channels or units; None where it has no such norm."""
    if name in UNITS and width is not None:
        width = int(64 * width)
    try:
        return nets.build(name, input_shape=input_shape, classes=classes, width=width, norm=norm)
    except UsageError:
        if norm is None:
            raise
        return None


def rebuilt(network: nn.Module) -> nn.Module:
    """What `from_shapes` of the network's own file makes of its tensors."""
    return file_of(network).from_shapes(shapes_of(network))


def file_of(network: nn.Module) -> ModuleType:
    """Whose network it is: residual ones of both kinds have one class."""
    if isinstance(network, ResNet):
        return resnet if len(network.stages) == 4 else resnet_cifar
    return importlib.import_module(type(network).__module__)


def outputs(network: nn.Module, tensors=None, *, shape=None) -> torch.Tensor:
    if tensors is not None:
        network.load_state_dict(tensors)
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        return network.eval()(torch.rand(2, *(shape or network.example_shape), generator=generator))


# ------------------------------------------------------------------------------- reading tensors back


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.sweep if name in ("resnet101", "resnet152") else ())
        for name in VARIANTS
        if name not in TRANSFORMERS
    ],
)
def test_from_shapes_has_exactly_the_tensors_it_was_given(name):
    settings = [
        {"width": 0.25, "classes": 7, "input_shape": (1, 64, 64)},
        {"width": 2, "input_shape": (3, 32, 32)},
        *({"width": 0.5, "norm": norm} for norm in ("none", "batch", "layer")),
    ]
    with torch.device("meta"):
        for setting in settings:
            if (network := build(name, **setting)) is not None:
                assert shapes_of(rebuilt(network)) == shapes_of(network), setting


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 64, 64)])
def test_from_shapes_computes_what_the_original_computes(name, shape):
    network = build(name, width=0.125, input_shape=shape, classes=7)
    expected = outputs(network)
    assert network.example_shape == shape and expected.shape == (2, 7)
    assert expected.std() > 0
    again = rebuilt(network)
    torch.testing.assert_close(outputs(again, network.state_dict(), shape=shape), expected)
    assert outputs(again).shape == (2, 7)  # on an example shape of its own


def respelled(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names as ports of the residual networks to CIFAR spell them."""
    return {
        name.replace("downsample", "shortcut").replace("fc.", "linear."): tensor
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet20"])
def test_residual_networks_are_read_in_the_spelling_of_ports(name):
    network = build(name, width=0.125)
    tensors = respelled(network.state_dict())
    port = file_of(network).from_shapes({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    assert list(port.state_dict()) == list(tensors)
    assert any("shortcut.1.running_var" in name for name in tensors)
    shape = network.example_shape
    torch.testing.assert_close(outputs(port, tensors, shape=shape), outputs(network))


def sides(network: nn.Module, size: int, *names: str) -> list[int]:
    """Height of the map that leaves each of these modules, for an image of `size` × `size`."""
    found: dict[str, int] = {}
    for name in names:
        network.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: found.update({name: output.shape[-2]})
        )
    with torch.inference_mode():
        network.eval().to("meta")(torch.empty(1, 3, size, size, device="meta"))
    return [found[name] for name in names]


def test_resnet18_is_read_with_the_stem_that_its_first_kernel_tells():
    small, large = (rebuilt(build("resnet18", width=0.125, input_shape=(3, s, s))) for s in (32, 64))
    assert sides(small, 64, "conv1", "layer1", "layer4") == [64, 64, 8]  # stride 1, no pooling
    assert sides(large, 64, "conv1", "layer1", "layer4") == [32, 16, 2]  # stride 2, then pooling by 2


def test_maps_shrink_where_they_do_in_public_networks():
    with torch.device("meta"):
        bottleneck, googlenet, vgg = (
            build(name, width=0.125, input_shape=(3, 224, 224)) for name in ("resnet50", "googlenet", "vgg16")
        )
    stages = ("layer1", "layer2.0.conv1", "layer2.0.conv2", "layer3", "layer4")
    assert sides(bottleneck, 224, *stages) == [56, 56, 28, 14, 7]
    blocks = ("conv1", "conv3", "inception3b", "inception4a", "inception4e", "inception5b")
    assert sides(googlenet, 224, *blocks) == [112, 56, 28, 14, 14, 7]
    assert sides(vgg, 224, "features.0", "features.28", "features.30", "avgpool") == [224, 14, 7, 7]


@pytest.mark.parametrize("layers", [("fc1", "fc2"), ("layers.0", "layers.1", "head")])
def test_fully_connected_networks_have_relu_between_linear_maps(layers):
    name, depth = "two_layer" if len(layers) == 2 else "mlp", len(layers) - 1
    network = nets.build(name, input_shape=(1, 4, 4), classes=3, width=8, depth=depth)
    tensors = network.state_dict()
    inputs = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    x = inputs.flatten(1)
    for layer in layers:
        x = x @ tensors[f"{layer}.weight"].T + tensors[f"{layer}.bias"]
        x = x if layer == layers[-1] else x.relu()
    torch.testing.assert_close(network(inputs), x)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_an_mlp_is_read_back_with_its_activation(activation):
    network = nets.build("mlp", input_shape=(6,), classes=3, width=8, activation=activation)
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    x, tensors = inputs, network.state_dict()
    for layer in ("layers.0", "layers.1", "layers.2"):
        x = getattr(torch, activation)(x @ tensors[f"{layer}.weight"].T + tensors[f"{layer}.bias"])
    expected = x @ tensors["head.weight"].T + tensors["head.bias"]
    again = rebuilt(network)
    again.load_state_dict(tensors)
    for each in (network, again):
        torch.testing.assert_close(each(inputs), expected)


# Positions of max-pooling in torchvision's `features`.
POOLINGS = {
    "vgg11": [2, 5, 10, 15, 20],
    "vgg16": [4, 9, 16, 23, 30],
    "vgg16_bn": [6, 13, 23, 33, 43],
    "vgg19": [4, 9, 18, 27, 36],
}


@pytest.mark.parametrize("name", POOLINGS)
def test_vgg_finds_its_poolings_in_the_gaps_between_names(name):
    network = rebuilt(build(name, width=0.125))
    pools = [i for i, module in enumerate(network.features) if isinstance(module, nn.MaxPool2d)]
    assert pools == POOLINGS[name]


def vgg_shapes(**classifier: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """A small VGG whose last convolution has 6 channels, with these linear weights and their biases."""
    shapes = {"features.0.weight": (4, 3, 3, 3), "features.0.bias": (4,)}
    shapes |= {"features.3.weight": (6, 4, 3, 3), "features.3.bias": (6,)}
    for name, shape in classifier.items():
        name = name.replace("_", ".")
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


@pytest.mark.parametrize(
    "classifier",
    [
        {"classifier": (10, 6)},
        {"classifier_0": (10, 6)},
        {"classifier_0": (8, 6), "classifier_2": (10, 8)},
        {"classifier_0": (8, 6), "classifier_3": (8, 8), "classifier_6": (10, 8)},
        {"classifier_0": (8, 6 * 4), "classifier_3": (8, 8), "classifier_6": (10, 8)},
        {"classifier_0": (8, 6 * 49), "classifier_3": (10, 8)},
        {"classifier_1": (8, 6), "classifier_4": (8, 8), "classifier_6": (10, 8)},  # dropout first
    ],
)
def test_vgg_reads_every_usual_classifier(classifier):
    from rebasin_cli.nets import vgg

    shapes = vgg_shapes(**classifier)
    network = vgg.from_shapes(shapes)
    assert shapes_of(network) == shapes
    assert outputs(network).shape == (2, 10)
    linears = [module for module in network.classifier.modules() if isinstance(module, nn.Linear)]
    relus = [module for module in network.classifier.modules() if isinstance(module, nn.ReLU)]
    assert len(relus) == len(linears) - 1


@pytest.mark.parametrize(
    "change, words",
    [
        ({"classifier.0.weight": (10, 6 * 5)}, "reads 30 numbers, expected 6 channels times a square"),
        ({"features.8.weight": (4, 6, 3, 3)}, "between features.3 and features.8 there is room for 3"),
        ({"classifier.1.weight": (10, 10)}, "without a ReLU"),
    ],
)
def test_vgg_says_why_tensors_are_no_vgg(change, words):
    from rebasin_cli.nets import vgg

    with pytest.raises(NetworkError, match=words):
        vgg.from_shapes(vgg_shapes(classifier_0=(10, 6)) | change)


def googlenet_with_heads(width: float = 0.125) -> nn.Module:
    from rebasin_cli.nets import googlenet

    shapes = shapes_of(build("googlenet", width=width, classes=7))
    for head, block in (("aux1", "4a"), ("aux2", "4d")):
        branches = ("branch1", "branch2.1", "branch3.1", "branch4.1")
        inputs = sum(shapes[f"inception{block}.{branch}.conv.weight"][0] for branch in branches)
        shapes |= {f"{head}.conv.conv.weight": (5, inputs, 1, 1), f"{head}.conv.bn.num_batches_tracked": ()}
        for name in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{head}.conv.bn.{name}"] = (5,)
        shapes |= {f"{head}.fc1.weight": (9, 5 * 16), f"{head}.fc1.bias": (9,)}
        shapes |= {f"{head}.fc2.weight": (7, 9), f"{head}.fc2.bias": (7,)}
    network = googlenet.from_shapes(shapes)
    assert shapes_of(network) == shapes
    return network


def test_googlenet_uses_its_auxiliary_heads_in_training_only():
    network = googlenet_with_heads()
    assert outputs(network).shape == (2, 7)
    logits, aux2, aux1 = network.train()(torch.rand(2, *network.example_shape))
    assert logits.shape == aux2.shape == aux1.shape == (2, 7)
    (aux1.sum() + aux2.sum()).backward()
    assert network.inception4d.branch1.conv.weight.grad is not None
    assert network.inception4e.branch1.conv.weight.grad is None  # behind both heads


def test_googlenet_normalises_with_the_eps_of_public_weights():
    norms = [m for m in build("googlenet", width=0.125).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 57 and {norm.eps for norm in norms} == {0.001}


# ------------------------------------------------------------------------- sizes of public checkpoints


@pytest.mark.parametrize(
    "name, parameters",
    {
        "vgg11": 132_863_336,
        "vgg16": 138_357_544,
        "vgg19_bn": 143_678_248,
        "resnet18": 11_689_512,
        "resnet34": 21_797_672,
        "resnet50": 25_557_032,
        "resnet101": 44_549_160,
        "resnet152": 60_192_808,
        "googlenet": 6_624_904,
    }.items(),
)
def test_networks_for_imagenet_have_the_parameters_of_public_ones(name, parameters):
    with torch.device("meta"):
        network = build(name, input_shape=(3, 224, 224), classes=1000)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters


@pytest.mark.parametrize(
    "name, tensors",
    {
        "vgg16": {"features.28.weight": (512, 512, 3, 3), "classifier.6.bias": (1000,)},
        "vgg16_bn": {"features.41.running_var": (512,), "classifier.0.weight": (4096, 25088)},
        "resnet18": {"layer4.0.downsample.0.weight": (512, 256, 1, 1), "bn1.num_batches_tracked": ()},
        "resnet50": {"layer1.0.downsample.1.running_var": (256,), "layer4.2.conv3.weight": (2048, 512, 1, 1)},
        "googlenet": {"inception5b.branch4.1.conv.weight": (128, 832, 1, 1), "conv3.bn.weight": (192,)},
    }.items(),
)
def test_tensors_are_called_as_in_public_checkpoints(name, tensors):
    with torch.device("meta"):
        shapes = shapes_of(build(name, input_shape=(3, 224, 224), classes=1000))
    assert {tensor: shapes.get(tensor) for tensor in tensors} == tensors


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("module", nets.registry.names())
def test_tensors_of_another_network_are_refused_as_a_network_error(module):
    with pytest.raises(NetworkError, match="these tensors are no"):
        nets.registry.get(module).from_shapes({"encoder.weight": (3, 4)})


@pytest.mark.parametrize("setting", [{"norm": "group"}, {"width": 0.0}, {"depth": 0}])
def test_settings_that_make_no_sense_are_usage_errors(setting):
    for name in VARIANTS:
        with torch.device("meta"), pytest.raises(UsageError):
            nets.build(name, input_shape=(3, 32, 32), classes=10, **setting)
            pytest.fail(f"{name} was built")


@pytest.mark.parametrize("name", ["vit", *CONVOLUTIONAL])
def test_convolutional_networks_refuse_data_that_are_no_images(name):
    with pytest.raises(UsageError, match="reads images"):
        nets.build(name, input_shape=(784,), classes=10)


def test_vgg_refuses_images_that_five_poolings_would_use_up():
    with pytest.raises(UsageError, match="32×32 or more"):
        nets.build("vgg11", input_shape=(1, 28, 28), classes=10)


def test_an_unknown_network_is_answered_with_the_nearest_names():
    with pytest.raises(RebasinError, match="Did you mean .*resnet20"):
        nets.build("resnet21", input_shape=(3, 32, 32), classes=10)
