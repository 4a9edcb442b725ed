"""What files say of their models beside the weights: another function, classes or scalings are no average."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.cli.conftest import rebasin

ANIMALS = ["cat", "dog", "eel", "fox"]
TURNED = ["dog", "cat", "eel", "fox"]
NUMBERS = {name: k for k, name in enumerate(ANIMALS)}


def weights(seed):
    """Two that are near each other: a body, a head of four classes, six words."""
    near = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    shapes = {"embed.weight": (6, 8), "body.weight": (8, 8), "fc.weight": (4, 8), "fc.bias": (4,)}
    return {
        name: torch.randn(shape, generator=near[0]) + 0.01 * torch.randn(shape, generator=near[1])
        for name, shape in shapes.items()
    }


APART = {
    "heads": (
        {"hyper_parameters": {"num_heads": 4, "lr": 1}},
        {"hyper_parameters": {"num_heads": 8}},
        "num_heads",
    ),
    "activations of parsed arguments": (
        {"args": Namespace(activation="relu", seed=1)},
        {"args": Namespace(activation="gelu", seed=2)},
        "gelu",
    ),
    "deep in a configuration": (
        {"cfg": {"net": {"norm-eps": 1e-5}}},
        {"cfg": {"net": {"norm-eps": 1e-6}}},
        "eps",
    ),
    "how data to test on are scaled": (
        {"test_data": {"mean": 0.1, "std": 0.2}},
        {"test_data": {"mean": 0.5, "std": 0.2}},
        "test_data.mean",
    ),
    "other numbers of channels": (
        {"mean": [0.1, 0.2], "std": [1.0, 1.0]},
        {"mean": [0.1, 0.2, 0.3], "std": [1.0] * 3},
        "mean",
    ),
    "classes that are called as settings": (
        {"class_to_idx": {"seed": 0, "gpu": 1, "fold": 2, "step": 3}},
        {"class_to_idx": {"seed": 1, "gpu": 0, "fold": 2, "step": 3}},
        "'seed'",
    ),
    "a name and a number": ({"act": "relu", "heads": 4}, {"act": 4, "heads": 4}, "act"),
    "scalings by Greek letters": ({"mu": 0.1, "std": 0.2}, {"mu": 0.3, "std": 0.2}, "mu"),
    "schedules of noise": ({"beta_schedule": "linear"}, {"beta_schedule": "cosine"}, "cosine"),
    "numbers of classes": (
        {"class_to_idx": NUMBERS},
        {"class_to_idx": {**NUMBERS, "cat": 1, "dog": 0}},
        "'cat'",
    ),
    "names by numbers": ({"names": dict(enumerate(ANIMALS))}, {"names": dict(enumerate(TURNED))}, "'cat'"),
    "lists of classes": ({"meta": {"CLASSES": (*ANIMALS,)}}, {"meta": {"CLASSES": (*TURNED,)}}, "'cat'"),
    "text numbers": (
        {"config": {"id2label": {str(k): name for k, name in enumerate(ANIMALS)}}},
        {"config": {"id2label": {str(k): name for k, name in enumerate(TURNED)}}},
        "'cat'",
    ),
    "a map by another name": (
        {"mapping": NUMBERS},
        {"mapping": {**NUMBERS, "cat": 1, "dog": 0}},
        "mapping: 'cat'",
    ),
    "numbers from 1 on": (
        {"label_map": {name: k + 1 for name, k in NUMBERS.items()}},
        {"label_map": {name: 4 - k for name, k in NUMBERS.items()}},
        "label_map: 'cat'",
    ),
    "classes that are numbers": (
        {"label_encoder": {"classes_": [2, 3, 5, 7]}},
        {"label_encoder": {"classes_": [3, 2, 5, 7]}},
        "'2'",
    ),
    "characters": ({"charset": "aAbB"}, {"charset": "AabB"}, "'a'"),
    "words": ({"stoi": {"a": 0, "b": 1, "c": 2}}, {"stoi": {"b": 0, "a": 1, "c": 2}}, "stoi: 'a'"),
    "scalings of targets": (
        {"scaler": {"y_mean": 3.0, "y_std": 2.0}},
        {"scaler": {"y_mean": 30.0, "y_std": 9.0}},
        "3 ± 2",
    ),
    "scalings of pixels": (
        {"mean": [0.5] * 3, "std": [0.5] * 3},
        {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
        "mean",
    ),
    "of a transformer": ({"transformer": {"heads": 4}}, {"transformer": {"heads": 8}}, "heads"),
    "far within": (
        {"a": {"b": {"c": {"d": {"model": {"init_args": {"enc_n_heads": 4}}}}}}},
        {"a": {"b": {"c": {"d": {"model": {"init_args": {"enc_n_heads": 8}}}}}}},
        "enc_n_heads",
    ),
    "settings made flat": ({"modelspec.prediction_type": "epsilon"}, {"modelspec.prediction_type": "v"}, "v"),
    "arguments of an activation": ({"act": "GELU(approximate='tanh')"}, {"act": "gelu"}, "gelutanh"),
    "classes of the data": (
        {"meta": {"dataset_meta": {"classes": ANIMALS}}},
        {"meta": {"dataset_meta": {"classes": TURNED}}},
        "'cat'",
    ),
    "orders of classes": ({"class_order": [3, 1, 0, 2]}, {"class_order": [0, 1, 2, 3]}, "'3'"),
    "scalings of the data": (
        {"data_config": {"mean": [0.5] * 3, "std": [0.5] * 3}},
        {"data_config": {"mean": [0.5, 0.5, 0.9], "std": [0.5] * 3}},
        "0.9 ± 0.5",
    ),
    "scalings in large letters": (
        {"PIXEL_MEAN": [1.0, 2.0], "PIXEL_STD": [1.0, 1.0]},
        {"PIXEL_MEAN": [2.0, 1.0], "PIXEL_STD": [1.0, 1.0]},
        "PIXEL_MEAN",
    ),
    "scalers of scikit-learn": (
        {"scaler": {"mean_": [3.0], "scale_": [2.0]}},
        {"scaler": {"mean_": [30.0], "scale_": [9.0]}},
        "mean_",
    ),
}
DRAWN = "noise", "init", "prior", "P", "logit", "acc", "test", "reward", "step_time", "grad_norm"
ALIKE = {
    "how they were trained": (
        {"args": Namespace(lr=0.1, optimizer={"activation": "a"}, eps=1e-8), "epoch": 3},
        {"args": Namespace(lr=0.2, optimizer={"activation": "b"}, eps=1e-6), "epoch": 5},
    ),
    "other spellings": ({"cfg": {"act": "nn.ReLU"}}, {"cfg": {"act": "relu"}}),
    "numbers and truths as text": (
        {"args": {"num_heads": "8", "norm_first": "True", "act": "None"}},
        {"args": {"num_heads": 8, "norm_first": True, "act": "relu"}},
    ),
    "said of one alone": ({"num_heads": 4}, {}),
    "other classes": ({"classes": ANIMALS}, {"classes": ["ant", "bee", "cow", "doe"]}),
    "numbers that count": ({"epochs": 1, "steps": 2}, {"epochs": 2, "steps": 3}),
    "other names in part": ({"columns": ["x", "y", "z", "t"]}, {"columns": ["y", "x", "z", "u"]}),
    "names of what has no rows": ({"names": ["x", "y"]}, {"names": ["y", "x"]}),
    "scalings that were measured twice": ({"mean": 3.0, "std": 2.0}, {"mean": 3.1, "std": 2.05}),
    "a record": ({"results": {"mean": 3.0, "std": 0.1}}, {"results": {"mean": 9.0, "std": 0.2}}),
    "settings that are small numbers": (
        {"args": Namespace(seed=1, fold=0, gpu=2, rank=3), "seeds": "1234"},
        {"args": Namespace(seed=3, fold=2, gpu=1, rank=0), "seeds": "4321"},
    ),
    "text that is no letters": (
        {"label": "exp1", "class_name": "base"},
        {"label": "best", "class_name": "sabe"},
    ),
    "heaps of names": (
        {"tags": ANIMALS, "target_modules": ANIMALS, "metric_names": ANIMALS, "freeze_layer_names": ANIMALS},
        {"tags": TURNED, "target_modules": TURNED, "metric_names": TURNED, "freeze_layer_names": TURNED},
    ),
    "numbers of samples": (
        {"class_counts": [5, 9, 6, 7], "class_weight": {**NUMBERS}, "label_colors": [1, 2, 3, 4]},
        {
            "class_counts": [9, 5, 6, 7],
            "class_weight": {**NUMBERS, "cat": 1, "dog": 0},
            "label_colors": [2, 1, 3, 4],
        },
    ),
    "what was drawn or measured": (
        {name: value for what in DRAWN for name, value in ((f"{what}_mean", 1.0), (f"{what}_std", 0.1))},
        {name: value for what in DRAWN for name, value in ((f"{what}_mean", 2.0), (f"{what}_std", 0.2))},
    ),
    "settings of a training": ({"train": {"num_heads": 2}}, {"train": {"num_heads": 4}}),
    "words that end so": ({"kmean": 1.0, "kstd": 0.1}, {"kmean": 2.0, "kstd": 0.1}),
    "settings by Greek letters": ({"args": {"mu": 0.1, "std": 0.2}}, {"args": {"mu": 0.3, "std": 0.2}}),
    "settings called as deviations": (
        {"hparams": {"mu": 0.1, "sigma": 0.3, "mean": 0.5, "scale": 512.0}, "cv": {"mean": 1.0, "std": 0.1}},
        {"hparams": {"mu": 0.2, "sigma": 0.1, "mean": 0.5, "scale": 9.0}, "cv": {"mean": 2.0, "std": 0.1}},
    ),
    "one number for all channels": ({"mean": 0.5, "std": 0.5}, {"mean": (0.5,) * 3, "std": [0.5] * 3}),
    "levels of a pixel": (
        {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]},
        {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    ),
    "names of one activation": (
        {
            "act": "<function leaky_relu at 0x7f01>",
            "activation": "<class 'torch.nn.SiLU'>",
            "ffn_act": "gelu_new",
        },
        {"act": "nn.LeakyReLU(negative_slope=0.01)", "activation": "swish", "ffn_act": "gelu_pytorch_tanh"},
    ),
    "numbers in other precision and as text": (
        {"norm_eps": 9.999999747378752e-06, "bn_eps": ".001", "causal": "yes", "ln_eps": float("nan")},
        {"norm_eps": 1e-5, "bn_eps": 1e-3, "causal": True, "ln_eps": float("nan")},
    ),
    "rates that are none of sound": (
        {"sampling_rate": 4, "heads": "mlp"},
        {"sampling_rate": 2, "heads": "linear"},
    ),
    "anything": (
        {"mean": 10**400, "std": [None], "act": [[]], "num_heads": 10**6000, "classes": [10**6000, 1, 2, 3]},
        {"mean": "x", "std": {}, 3: "y", "act": {1: 2}},
    ),
}


def saved(name, seed, beside):
    torch.save({"state_dict": weights(seed), **beside}, name)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


AVERAGE = "average", "a.pt", "b.pt", "-o", "out.safetensors"


@pytest.mark.parametrize(("a", "b", "says"), APART.values(), ids=APART)
def test_what_models_say_of_themselves_otherwise_is_no_average(a, b, says):
    saved("a.pt", 1, a), saved("b.pt", 2, b)
    outcome = rebasin(*AVERAGE)
    assert outcome.code == 4 and says in outcome.err and "--skip-checks" in outcome.err, outcome.err
    assert not Path("out.safetensors").exists()
    assert rebasin(*AVERAGE, "--skip-checks").code == 0


@pytest.mark.parametrize(("a", "b"), ALIKE.values(), ids=ALIKE)
def test_what_says_nothing_of_the_function_is_no_matter(a, b):
    saved("a.pt", 1, a), saved("b.pt", 2, b)
    outcome = rebasin(*AVERAGE)
    assert outcome.code == 0, outcome.err


def test_scalings_that_differ_a_little_are_told():
    saved("a.pt", 1, {"mean": 3.0, "std": 2.0}), saved("b.pt", 2, {"mean": 3.1, "std": 2.0})
    assert "mean differs a little in a.pt and b.pt: take the mean of both, too" in rebasin(*AVERAGE).err


def test_what_the_first_does_not_say_is_compared_among_the_others():
    saved("a.pt", 1, {}), saved("b.pt", 2, {"act": "relu"}), saved("c.pt", 3, {"act": "gelu"})
    outcome = rebasin("average", "a.pt", "b.pt", "c.pt")
    assert outcome.code == 4 and "act  is relu in b.pt, gelu in c.pt" in outcome.err


def test_lists_of_modules_in_an_adapters_metadata_have_no_order():
    for name, seed, said in (("a.safetensors", 1, ANIMALS), ("b.safetensors", 2, TURNED)):
        save_file(weights(seed), name, {"lora_adapter_metadata": json.dumps({"x.target_modules": said})})
    assert rebasin("average", "a.safetensors", "b.safetensors").code == 0


def test_safetensors_say_it_in_their_metadata():
    for name, seed, said in (("a.safetensors", 1, ANIMALS), ("b.safetensors", 2, TURNED)):
        save_file(weights(seed), name, {"classes": json.dumps(said), "rebasin.options": "{"})
    outcome = rebasin("average", "a.safetensors", "b.safetensors")
    assert outcome.code == 4 and "'cat'" in outcome.err


def test_what_an_average_keeps_of_its_models_is_theirs_too():
    for name, activation in (("c", "relu"), ("d", "gelu")):
        for k, model in enumerate(("a.pt", "b.pt")):
            saved(model, k, {"act": activation})
        assert rebasin("average", "a.pt", "b.pt", "-o", f"{name}.safetensors").code == 0
    outcome = rebasin("average", "c.safetensors", "d.safetensors")
    assert outcome.code == 4 and "act  is relu in c.safetensors, gelu in d.safetensors" in outcome.err


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("preprocessor_config.json", lambda mean: {"image_mean": [mean] * 3, "image_std": [0.2] * 3}),
        ("config.json", lambda mean: {"pretrained_cfg": {"mean": [mean] * 3, "std": [0.2] * 3}}),
        ("preprocessor_config.json", lambda mean: {"sampling_rate": int(mean * 40_000)}),
    ],
)
def test_how_inputs_are_prepared_is_said_beside_the_weights(file, content):
    for name, seed, mean in (("a", 1, 0.4), ("b", 2, 0.5)):
        Path(name).mkdir()
        save_file(weights(seed), f"{name}/model.safetensors")
        Path(name, file).write_text(json.dumps(content(mean)))
    outcome = rebasin("average", "a", "b", "-o", "out/")
    assert outcome.code == 4 and file in outcome.err


def test_a_merge_that_aligns_looks_at_the_same():
    Path("net.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))\n"
    )
    for name, heads in (("a.pt", 2), ("b.pt", 4)):
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        torch.save({"state_dict": net.state_dict(), "num_heads": heads}, name)
    line = (
        "merge",
        "a.pt",
        "b.pt",
        "--net",
        "net.py:net",
        "--input",
        "1x4",
        "--method",
        "wm",
        "--repair",
        "none",
    )
    assert "num_heads  is 2 in a.pt, 4 in b.pt" in rebasin(*line).err
    assert rebasin(*line, "--skip-checks").code == 0
