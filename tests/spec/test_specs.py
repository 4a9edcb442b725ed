"""The shipped specs: each fits its networks, is found from their tensors, is proven, misses no freedom."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rebasin_cli import nets
from rebasin_cli.errors import SpecError
from rebasin_cli.inference import infer
from rebasin_cli.nets import googlenet, resnet, resnet_cifar, vgg
from rebasin_cli.networks import example_inputs
from rebasin_cli.proof.prove import prove
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import Axis, Fixed, Product, Sum, Word, rewrite, words_of
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import FittedSpec

Shapes = dict[str, tuple[int, ...]]


def shapes_of(network: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def built(name: str, width: float, input_shape=(3, 16, 16), **options) -> nn.Module:
    return nets.build(name, width=width, input_shape=input_shape, classes=7, **options)


def in_port_spelling(network: nn.Module) -> nn.Module:
    """The residual network with `shortcut` and `linear` for `downsample` and `fc`."""
    shapes = {
        name.replace("downsample", "shortcut").replace("fc.", "linear."): shape
        for name, shape in shapes_of(network).items()
    }
    read = resnet.from_shapes if "layer4.0.conv1.weight" in shapes else resnet_cifar.from_shapes
    return read(shapes)


def small_vgg(**classifier: tuple[int, ...]) -> nn.Module:
    """Three convolutions, the first two with BatchNorm, the last with 6 channels, and these linear layers."""
    shapes: Shapes = {"features.0.weight": (6, 2, 3, 3), "features.3.weight": (6, 6, 3, 3)}
    shapes |= {"features.7.weight": (6, 6, 3, 3), "features.7.bias": (6,)}
    for norm in ("features.1", "features.4"):
        names = ("weight", "bias", "running_mean", "running_var")
        shapes |= {f"{norm}.{name}": (6,) for name in names} | {f"{norm}.num_batches_tracked": ()}
    for name, shape in classifier.items():
        name = name.replace("_", ".")
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return vgg.from_shapes(shapes)


class _EveryHead(googlenet.GoogLeNet):
    """GoogLeNet whose auxiliary heads answer in evaluation too, so that a proof sees them."""

    def forward(self, x: Tensor) -> Tensor:
        self.training = True  # of this module alone: norms and dropout stay in evaluation
        try:
            return torch.cat(super().forward(x), dim=1)
        finally:
            self.training = False


def googlenet_with_heads() -> nn.Module:
    widths = {block: (6, 5, 6, 7, 6, 5) for block in googlenet.BLOCKS}
    network = googlenet.GoogLeNet(3, (6, 6, 6), widths, 7, auxiliary={"aux1": (5, 6), "aux2": (5, 6)})
    network.__class__ = _EveryHead
    return network


def transformer(name: str, norm: str, activation: str, positions: str) -> nn.Module:
    options = {"norm": norm, "activation": activation, "positions": positions, "depth": 2, "heads": 3}
    shape = (3, 8, 12) if name == "vit" else (10,)
    return built(name, 24, shape, **options | ({"patch": 4} if name == "vit" else {}))


# (spec, case) → a small network. A spec without a case fails `test_every_shipped_spec_has_a_case`.
CASES: dict[tuple[str, str], Callable[[], nn.Module]] = {
    ("mlp", "plain"): lambda: built("mlp", 12),
    ("mlp", "one layer"): lambda: built("mlp", 12, depth=1),
    ("mlp", "twelve layers"): lambda: built("mlp", 12, depth=12),
    ("mlp", "batch"): lambda: built("mlp", 12, norm="batch"),
    ("mlp", "layer"): lambda: built("mlp", 12, norm="layer"),
    ("mlp", "tanh"): lambda: built("mlp", 12, activation="tanh"),
    ("two_layer", "plain"): lambda: built("two_layer", 12),
    ("tinyten", "batch"): lambda: built("tinyten", 0.25),
    ("tinyten", "plain"): lambda: built("tinyten", 0.25, norm="none"),
    **{
        ("vgg", name): lambda name=name: built(name, 1 / 16, (3, 32, 32))
        for name in ("vgg11", "vgg16", "vgg16_bn")
    },
    ("vgg", "torchvision's head"): lambda: built("vgg11", 1 / 64, (3, 64, 64)),
    ("vgg", "torchvision's head, batch"): lambda: built("vgg13_bn", 1 / 64, (3, 64, 64)),
    ("vgg", "one hidden layer"): lambda: small_vgg(classifier_0=(8, 24), classifier_3=(7, 8)),
    ("vgg", "dropout first"): lambda: small_vgg(
        classifier_1=(8, 6), classifier_4=(8, 8), classifier_6=(7, 8)
    ),
    ("vgg_linear", "flat"): lambda: small_vgg(classifier=(7, 6)),
    ("vgg_linear", "2x2"): lambda: small_vgg(classifier=(7, 24)),
    **{("resnet_cifar", name): lambda name=name: built(name, 0.25) for name in ("resnet20", "resnet32")},
    ("resnet_cifar", "layer"): lambda: built("resnet20", 0.25, norm="layer"),
    ("resnet_cifar", "3x3 joins"): lambda: resnet_cifar.build(
        "resnet20", width=0.25, input_shape=(3, 16, 16), classes=7, join="conv3x3"
    ),
    ("resnet_cifar", "port"): lambda: in_port_spelling(built("resnet20", 0.25)),
    ("resnet_cifar_pad", "fc"): lambda: resnet_cifar.build(
        "resnet20", width=0.25, input_shape=(3, 16, 16), classes=7, join="pad"
    ),
    ("resnet_cifar_pad", "port"): lambda: in_port_spelling(
        resnet_cifar.build("resnet20", width=0.25, input_shape=(3, 16, 16), classes=7, join="pad")
    ),
    ("resnet_basic", "resnet18"): lambda: built("resnet18", 1 / 16, (3, 64, 64)),
    ("resnet_basic", "resnet34"): lambda: built("resnet34", 1 / 16),
    ("resnet_basic", "port"): lambda: in_port_spelling(built("resnet18", 1 / 16)),
    ("resnet_bottleneck", "resnet50"): lambda: built("resnet50", 1 / 16, (3, 64, 64)),
    ("resnet_bottleneck", "port"): lambda: in_port_spelling(built("resnet50", 1 / 16)),
    **{
        (
            f"{name}{'_rope' * (positions == 'rope')}",
            f"{norm} {activation}",
        ): lambda options=(name, norm, activation, positions): transformer(*options)
        for name in ("vit", "gpt")
        for norm in ("layer", "rms")
        for activation in ("gelu", "swiglu")
        for positions in ("learned", "rope")
    },
    ("googlenet", "plain"): lambda: built("googlenet", 1 / 16),
    ("googlenet", "with heads"): googlenet_with_heads,
}


def case(key: tuple[str, str]) -> tuple[nn.Module, FittedSpec]:
    torch.manual_seed(0)
    network = CASES[key]()
    return network, fit(library.load(key[0]), shapes_of(network))


def inputs_of(network: nn.Module) -> Tensor:
    return example_inputs(network, torch.Generator().manual_seed(1))


LARGE = {("googlenet", "plain"), ("resnet_basic", "resnet34"), ("resnet_cifar", "resnet32")}
LARGE |= {key for key in CASES if key[0].startswith(("vit", "gpt"))}
LARGE -= {("vit", "rms swiglu"), ("gpt_rope", "layer gelu")}
LARGE |= {("resnet_bottleneck", "resnet50"), ("resnet_bottleneck", "port"), ("googlenet", "with heads")}
# Others over again: in other spelling, deeper, or of parts that are each in another case.
AGAIN = {("resnet_basic", "resnet18"), ("resnet_cifar", "port"), ("resnet_cifar_pad", "port")}
AGAIN |= {
    ("googlenet", "plain"),  # "with heads" has all of it, and two heads more
    ("mlp", "twelve layers"),
    ("vgg", "vgg16"),
    ("vgg", "vgg16_bn"),
    ("vgg", "torchvision's head, batch"),
    ("resnet_basic", "resnet34"),
    ("resnet_bottleneck", "resnet50"),
    ("resnet_cifar", "resnet32"),
}
KINDS = {("vit", "layer gelu"), ("vit", "rms swiglu"), ("vit_rope", "rms gelu")}  # each part, in each network
KINDS |= {
    ("gpt", "layer swiglu"),
    ("gpt", "rms gelu"),
    ("gpt_rope", "layer gelu"),
    ("vit_rope", "layer swiglu"),
}
KINDS |= {("gpt_rope", "rms swiglu")}
AGAIN |= {key for key in CASES if key[0].startswith(("vit", "gpt"))} - KINDS
each_case = pytest.mark.parametrize(
    "key",
    [pytest.param(key, marks=pytest.mark.sweep if key in AGAIN else ()) for key in CASES],
    ids=", ".join,
)


def test_every_shipped_spec_has_a_case():
    """Here, those of rebasin's own networks; the others in test_public.py."""
    own = {name for name, spec in library.builtin().items() if spec.net is not None}
    assert {spec for spec, _ in CASES} == own


@each_case
def test_the_spec_is_found_from_the_tensors_alone(key):
    shapes = shapes_of(CASES[key]())
    found = library.find(shapes)
    assert found.spec.name == key[0]
    for name, spec in library.builtin().items():
        try:
            other = fit(spec, shapes)
        except SpecError:
            continue
        # a residual network is one of one group, too
        assert library._reading(other) == library._reading(found), f"{name} fits as well"


@each_case
def test_old_checkpoints_without_counters_fit_as_well(key):
    shapes = shapes_of(CASES[key]())
    kept = {name: shape for name, shape in shapes.items() if not name.endswith("num_batches_tracked")}
    assert fit(library.load(key[0]), kept).words == fit(library.load(key[0]), shapes).words


@each_case
def test_the_spec_names_the_network_of_these_tensors(key):
    network, fitted = case(key)
    module, _, factory = fitted.spec.net.partition(":")
    rebuilt = getattr(importlib.import_module(module), factory)(fitted.shapes)
    assert shapes_of(rebuilt) == shapes_of(network)


@each_case
def test_every_permutation_of_the_spec_preserves_the_function(key):
    network, fitted = case(key)
    proof = prove(network, fitted, inputs_of(network), trials=1)
    assert proof.largest_difference <= proof.tolerance < 1e-10


@pytest.mark.parametrize(
    "key",
    [pytest.param(key, marks=pytest.mark.sweep if key in LARGE | AGAIN else ()) for key in CASES],
    ids=", ".join,
)
def test_inference_finds_the_freedom_that_the_spec_says(key):
    """Words of one unit left out. Where zeros join stages, the spec keeps the streams."""
    network, fitted = case(key)
    inputs = inputs_of(network)
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    found = infer(network.float(), (inputs,), prove=False).fitted
    if key[0] == "resnet_cifar_pad":
        assert found.log10_symmetries() > fitted.log10_symmetries()
        return
    assert found.log10_symmetries() == pytest.approx(fitted.log10_symmetries(), abs=1e-9)
    sizes = [sorted(size for size in spec.words.values() if size > 1) for spec in (found, fitted)]
    assert sizes[0] == sizes[1] and found.statistics == fitted.statistics


def test_every_name_of_a_network_is_a_name_of_its_spec():
    assert set(nets.variants()) <= set(library.names())


# ------------------------------------------------------------------------------------------- wrong specs


def other_word(fitted: FittedSpec, word: str) -> Axis:
    """Another word with as many units; the axis left in place where there is none."""
    size = fitted.words[word]
    others = sorted(name for name, units in fitted.words.items() if units == size and name != word)
    return Word(others[0]) if others else Fixed(size)


def with_one_wrong_word(fitted: FittedSpec) -> dict[str, FittedSpec]:
    """For every line of the spec, a spec whose first matching tensor has one word exchanged."""
    wrong: dict[str, FittedSpec] = {}
    for entry in fitted.spec.entries:
        matching = [t for t, shape in fitted.shapes.items() if entry.match(t, shape) is not None]
        for tensor in matching[-1:]:
            for k, axis in enumerate(fitted.tensors[tensor]):
                for word in sorted(set(words_of(axis)))[:1]:
                    changed = list(fitted.tensors[tensor])
                    changed[k] = rewrite(
                        axis,
                        lambda leaf, word=word: other_word(fitted, word) if leaf == Word(word) else leaf,
                    )
                    tensors = {**fitted.tensors, tensor: tuple(changed)}
                    wrong[f"{tensor} axis {k}"] = dataclasses.replace(fitted, tensors=tensors)
    return wrong


@pytest.mark.parametrize(
    "key",
    [
        ("mlp", "batch"),
        ("two_layer", "plain"),
        ("tinyten", "batch"),
        ("vgg", "dropout first"),
        ("vgg", "one hidden layer"),
        ("vgg_linear", "2x2"),
        ("resnet_cifar", "resnet20"),
        pytest.param(("resnet_cifar_pad", "fc"), marks=pytest.mark.sweep),
        pytest.param(("resnet_basic", "resnet18"), marks=pytest.mark.sweep),
        pytest.param(("resnet_bottleneck", "port"), marks=pytest.mark.sweep),
        pytest.param(("googlenet", "with heads"), marks=pytest.mark.sweep),
        ("vit", "layer swiglu"),
        pytest.param(("gpt_rope", "rms gelu"), marks=pytest.mark.sweep),
    ],
    ids=", ".join,
)
def test_a_spec_with_one_word_exchanged_fails_the_proof(key):
    network, fitted = case(key)
    inputs = inputs_of(network)

    def difference(spec: FittedSpec) -> float:
        return prove(network, spec, inputs, trials=1, tolerance=math.inf).largest_difference

    wrong = with_one_wrong_word(fitted)
    places = list(wrong)[:: math.ceil(len(wrong) / 6)]  # all of them would take minutes
    assert len(places) > 2
    assert not [place for place in places if difference(wrong[place]) <= 1e-8]


@pytest.mark.parametrize(
    "name, drop",
    [
        ("resnet20", r"layer2\.0\.downsample.*"),  # without it the join would be a padding
        ("resnet18", r"layer3\.0\.downsample.*"),
        ("resnet50", r"layer1\.0\.downsample.*"),  # without it stem and first stage would be tied
        ("resnet50", r"fc\..*"),  # without a head the last units are the output and must stay
        ("vgg16", r"classifier\..*"),
        ("googlenet", r"fc\..*"),
        ("mlp", r"head\..*"),
        ("tinyten", r"fc\..*"),
    ],
)
def test_tensors_that_would_be_permuted_wrongly_fit_no_spec(name, drop):
    shapes = shapes_of(built(name, 12 if name == "mlp" else 0.25, (3, 32, 32)))
    kept = {tensor: shape for tensor, shape in shapes.items() if not re.fullmatch(drop, tensor)}
    assert len(kept) < len(shapes)
    with pytest.raises(SpecError):
        library.find(kept)


# ----------------------------------------------------------------------------------------------- freedom


@pytest.mark.parametrize(
    "name, options, symmetries",
    [
        ("mlp", {"width": 512, "depth": 3, "input_shape": (784,)}, 3499.6),
        ("resnet20", {"width": 1}, 551.4),
        ("resnet20", {"width": 4}, 3246.5),
        ("resnet20", {"width": 16}, 17252.8),
        ("resnet50", {"width": 1, "input_shape": (3, 224, 224)}, 25638.3),
        ("vgg16", {"width": 1, "input_shape": (3, 224, 224)}, 35168.5),
    ],
)
def test_specs_know_all_symmetries(name, options, symmetries):
    with torch.device("meta"):
        network = built(name, **options)
    assert round(library.find(shapes_of(network)).log10_symmetries(), 1) == symmetries


def test_googlenet_has_a_word_for_every_convolution():
    with torch.device("meta"):
        network = built("googlenet", 1)
    convolutions = [module.out_channels for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 57
    assert sorted(library.find(shapes_of(network)).words.values()) == sorted(convolutions)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=pytest.mark.sweep if key in AGAIN else ())
        for key in CASES
        if key[0] != "resnet_cifar_pad"
    ],
    ids=", ".join,
)
def test_only_inputs_and_logits_stay(key):
    """Among the units that tensors write and read; positions in a kernel are no units.

    Of padded joins the spec is a safe subset, which keeps the residual stream.
    """
    network, fitted = case(key)
    outside = {7, *network.example_shape[:1], math.prod(network.example_shape)}
    outside |= {*fitted.shapes.get("pos_embed", ())[:1]}  # a row a position
    for tensor, axes in fitted.tensors.items():
        stays = [axis.size for axis in axes[:2] if isinstance(axis, Fixed)]
        assert set(stays) <= outside, tensor


# -------------------------------------------------------------------------------------------- the manual


def manual() -> str:
    return (library.folder() / "README.md").read_text(encoding="utf-8")


def test_the_manual_lists_every_spec():
    listed = re.findall(r"^- \[(\w+)\]\((\w+)\.yaml\): ", manual(), flags=re.MULTILINE)
    assert sorted(name for name, file in listed) == sorted(library.builtin())
    assert all(name == file for name, file in listed)


def test_the_manuals_examples_say_the_same_of_its_network():
    blocks = re.findall(r"```yaml\n(.*?)```", manual(), flags=re.DOTALL)
    network = nets.build("mlp", input_shape=(784,), classes=10, width=512, depth=2)
    one, other = (fit(parse(block, name="example"), shapes_of(network)) for block in blocks[:2])
    assert one.tensors == other.tensors
    assert one.words == {"h0": 512, "h1": 512}


def test_previous_and_last_found_values_are_what_the_manual_says():
    shapes = shapes_of(small_vgg(classifier_0=(7, 6)).features)  # convolutions 0, 3, 7 and norms 1, 4
    lines = ["tensors:", '  "{i}.weight[4]": "c{i} c{i-1|.} . ."', '  "{i}.{t}[1]": "c{i-0}"']
    text = "\n".join([*lines, 'ignore: ["*tracked"]'])
    tensors = fit(parse(text, name="example"), shapes).tensors
    assert str(tensors["7.weight"][1]) == "c3"
    assert {str(axes[0]) for name, axes in tensors.items() if name.startswith("4.")} == {"c3"}


def test_a_flattened_word_and_a_sum_count_their_units():
    spec = parse('tensors:\n  a: "a"\n  flat: "(a _)"\n  cat: "a + b + 16"\n', name="example")
    fitted = fit(spec, {"a": (4,), "flat": (4 * 49,), "cat": (4 + 5 + 16,)})
    assert fitted.words == {"a": 4, "b": 5}
    assert fitted.tensors["flat"] == (Product((Word("a"), Fixed(49))),)
    assert fitted.tensors["cat"] == (Sum((Word("a"), Word("b"), Fixed(16))),)
    assert math.isclose(fitted.log10_symmetries(), math.log10(math.factorial(4) * math.factorial(5)))
