"""Adapters: which files are some, and the configuration of one that is written."""

import json

import pytest
import torch

from rebasin_cli.checkpoints.adapters import is_adapter
from rebasin_cli.checkpoints.families import families
from rebasin_cli.checkpoints.peft import config_of
from rebasin_cli.checkpoints.writer import write_safetensors

FACTORS = {"x.lora_down.weight": torch.ones(2, 3), "x.lora_up.weight": torch.ones(4, 2)}


@pytest.mark.parametrize(
    ("more", "is_one"),
    [
        ({}, True),
        ({"x.alpha": torch.ones(())}, True),
        ({"y.weight": torch.ones(2)}, False),  # a model that was saved with factors in it
    ],
)
def test_an_adapter_holds_factors_alone(tmp_path, more, is_one):
    write_safetensors(tmp_path / "a.safetensors", FACTORS | more)
    assert is_adapter(tmp_path / "a.safetensors") is is_one


@pytest.mark.parametrize(
    ("stem", "is_one"),
    [("unet.q", True), ("text_encoder_2.q", True), ("unetq", False), ("base_model.unet.q", False)],
)
def test_factors_of_a_pipelines_parts_need_no_configuration(tmp_path, stem, is_one):
    tensors = {f"{stem}.lora_A.weight": torch.ones(2, 3), f"{stem}.lora_B.weight": torch.ones(4, 2)}
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "a.safetensors", tmp_path / "folder"):
        write_safetensors(path / "lora.safetensors" if path.is_dir() else path, tensors)
        assert is_adapter(path) is is_one
    write_safetensors(tmp_path / "more.safetensors", tensors | {"q.lora_A.weight": torch.ones(2, 3)})
    assert not is_adapter(tmp_path / "more.safetensors")


@pytest.mark.parametrize(
    ("shapes", "kinds"),
    [
        ({"l.lora_A": (2, 3), "l.lora_B": (4, 2)}, ["adapter"]),
        ({"l.hada_w1_a": (4, 2), "l.hada_w1_b": (2, 3)}, ["adapter"]),  # without the word LoRA
        ({"l.a": (2, 3), "l.b": (4, 2)}, []),
        ({"l.weight_g": (4, 1), "l.weight_v": (4, 3)}, ["weight norm"]),
        ({"l.weight_g": (1, 3), "l.weight_v": (4, 3)}, ["weight norm"]),
        ({"l.weight_g": (), "l.weight_v": (4, 3)}, ["weight norm"]),
        ({"l.weight_g": (4, 3), "l.weight_v": (4, 3)}, []),  # lengths are along one axis
        ({"l.weight_g": (3, 1), "l.weight_v": (4, 3)}, []),
    ],
)
def test_what_means_something_only_together_is_found_by_names_and_shapes(shapes, kinds):
    found = families({name: (torch.float32, torch.Size(shape)) for name, shape in shapes.items()})
    assert [str(family.kind.name) for family in found] == kinds


@pytest.mark.parametrize(
    ("ranks", "patterns"),
    [
        ({"conv": 4, "fc": 2, "deep.fc": 2}, {"conv": 4}),
        ({"fc": 4, "deep.fc": 2, "conv": 2}, {"^fc": 4}),  # else deep.fc would be found, too
        ({"fc": 2, "deep.fc": 4, "conv": 2}, {"deep.fc": 4}),
    ],
)
def test_the_rank_of_most_is_common_and_a_pattern_is_of_one_module(ranks, patterns):
    config = json.loads(config_of([{"target_modules": ["fc"]}], ranks))
    assert config["r"] == config["lora_alpha"] == 2
    assert config["rank_pattern"] == config["alpha_pattern"] == patterns
