"""Names of packages' networks, and configurations that a stranger wrote: read, and never believed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

from rebasin_cli.errors import NetworkError
from rebasin_cli.networks import hub
from rebasin_cli.networks.hub import configurations

GOOD = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD | {"architectures": {"a": 1}}),
        json.dumps(GOOD | {"architectures": 5}),
        json.dumps(GOOD | {"architectures": []}),
        json.dumps(GOOD | {"architectures": [None]}),
        *(json.dumps(GOOD | {"model_type": kind}) for kind in (["llama"], {"a": 1}, 7, None)),
        json.dumps(GOOD | {"text_config": {"num_hidden_layers": 10**9}}),
        json.dumps(GOOD | {"num_labels": 10**12}),
        json.dumps(GOOD | {"more": "x" * configurations.MOST}),
        "[" * 100_000,
        "null",
        "",
    ],
    ids=lambda text: text[-40:],
)
def test_a_configuration_that_names_no_class_or_too_much_names_no_network(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert hub.of_folder(tmp_path) is None
    with pytest.raises(NetworkError, match=r"config\.json"):
        hub.title(f"transformers:{tmp_path}")


def test_a_pipe_is_no_configuration(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert hub.of_folder(tmp_path) is None


def test_what_a_configuration_says_of_code_is_left_out(tmp_path):
    code = {"auto_map": {"AutoModel": "own.Own"}, "attn_implementation": "someone/kernel"}
    (tmp_path / "config.json").write_text(json.dumps(GOOD | code | {"text_config": code | {"n": 1}}))
    assert configurations.read(tmp_path).values == GOOD | {"text_config": {"n": 1}}


def test_a_name_is_that_of_an_installed_network_and_no_place_of_a_hub():
    assert hub.is_name("timm:resnet50.a1_in1k") and hub.is_name("torchvision:resnet50")
    for name in ("timm:hf-hub:someone/net", "timm:hf_hub:x", "timm:local-dir:/x", "timm:a/b", "timm:", "x:y"):
        assert not hub.is_name(name), name


def test_a_folder_of_this_place_is_no_name_of_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.json").write_text(json.dumps({"architecture": "resnet18", "num_classes": 3}))
    name = hub.of_folder(Path("a"))
    assert name == "timm:./a" and hub.is_name(name) and hub.title(name) == "timm's resnet18"


@pytest.mark.parametrize(
    "key", ["auto_map", "_attn_implementation_internal", "_experts_implementation_internal", "use_kernels"]
)
def test_code_that_a_configuration_names_is_left_out_wherever_it_stands(tmp_path, key):
    own = {"architectures": ["A"], "model_type": "a", "kernel_size": 3}
    (tmp_path / "config.json").write_text(json.dumps(own | {key: "x/y", "text_config": {key: "x/y"}}))
    assert configurations.read(tmp_path).values == own | {"text_config": {}}


def classifier(name, weights=None, num_classes=1000):
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, num_classes))


def of_two_heads(name, weights=None, num_classes=1000):
    return nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, num_classes), nn.Linear(5, num_classes)])


def of_one_size(name, weights=None):
    return classifier(name)


@pytest.mark.parametrize(
    ("make", "file", "classes"),
    [
        (classifier, {"2.weight": (10, 6), "2.bias": (10,)}, 10),
        (classifier, {"0.weight": (7, 4), "0.bias": (7,), "2.weight": (10, 7), "2.bias": (10,)}, 1000),
        (classifier, {"2.weight": (10, 6), "2.bias": (12,)}, 1000),
        (of_two_heads, {"1.weight": (10, 6), "1.bias": (10,), "2.weight": (10, 5), "2.bias": (10,)}, 10),
        (of_one_size, {"2.weight": (10, 6), "2.bias": (10,)}, 1000),
    ],
)
def test_a_name_takes_its_number_of_classes_from_the_file(make, file, classes, monkeypatch):
    """Other layers of another size are no other number of classes."""
    package = SimpleNamespace(models=SimpleNamespace(get_model=make), __version__="1")
    monkeypatch.setitem(sys.modules, "torchvision", package)
    own = {name: tuple(tensor.shape) for name, tensor in make("net").state_dict().items()}
    network = hub.build("torchvision:net", own | file)
    assert network[-1].out_features == classes
    assert hub.build("torchvision:net")[-1].out_features == 1000
