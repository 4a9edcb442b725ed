"""The six worked examples of docs/own.md: trained, aligned, merged, measured and held against a gate."""

import json
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.func import functional_call

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "own"
OWN = {
    "regression": ("net", "--loss", "loss", "--metric", "R2"),
    "segmentation": ("Net", "--metric", "IoU"),
    "towers": ("Net", "--loss", "loss", "--metric", "found"),
    "masked": ("Net",),
    "detector": ("Net", "--loss", "loss", "--metric", "noticed"),
    "two_heads": ("Net", "--loss", "loss", "--metric", "right", "--metric", "off"),
}
GATES = {
    "regression": "r² drop <= 0.2",
    "segmentation": "iou drop <= 0.3",
    "towers": "found drop <= 50%",
    "masked": "accuracy drop <= 0.2",
    "detector": "noticed drop <= 0.3",
    "two_heads": "ink_off rise <= 0.5 grey",
}


# How many times what the worse end loses the merge may lose.
LOST = {"regression": 1.1, "segmentation": 3, "towers": 3, "masked": 1.5, "detector": 3, "two_heads": 3}


@pytest.fixture
def example(request, tmp_path, monkeypatch):
    """The module of an example, trained, in a folder of its own."""
    name = request.param
    if name == "regression":
        pytest.importorskip("sklearn", reason="the data are scikit-learn's")
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("training", name):
        sys.modules.pop(module, None)
    import runpy

    runpy.run_path(f"{name}.py", run_name="__main__")
    yield name, import_module(name)
    for module in ("training", name):
        sys.modules.pop(module, None)


def plain(module, *answers):
    """Mean loss, and the metrics by name, of the mean of these outputs on the test samples: a plain loop."""
    figures, wholes = {"loss": []}, {}
    for name in OWN[module.__name__][2::2]:
        given = getattr(module, name) if name != "loss" else None
        if isinstance(given, type):
            wholes[name] = given()
        elif given is not None:
            figures[name] = []
    with torch.no_grad():
        for batch in module.loader("test"):
            inputs, targets = (batch["text"], batch["labels"]) if isinstance(batch, dict) else batch
            arguments = inputs if isinstance(inputs, tuple) else (inputs,)
            outputs = mean([answer(*arguments) for answer in answers])
            figures["loss"] += lost(module, outputs, targets).tolist()
            for name in figures.keys() - {"loss"}:
                figures[name] += getattr(module, name)(outputs, targets).double().tolist()
            for whole in wholes.values():
                whole.update(outputs, targets)
    found = {name: sum(values) / len(values) for name, values in figures.items()}
    return found | {name: float(whole.compute()) for name, whole in wholes.items()}


def lost(module, outputs, targets):
    """The loss of every sample; without one of the example's own cross-entropy."""
    if "--loss" in OWN[module.__name__]:
        return module.loss(outputs, targets).double()
    axis = outputs.movedim(-1, 1) if outputs.shape[:-1] == targets.shape else outputs
    each = torch.nn.functional.cross_entropy(axis.double(), targets, reduction="none").flatten(1)
    return each.sum(1) / (targets != -100).flatten(1).sum(1)


def mean(outputs):
    """The ensemble of several networks: the mean of all that they return."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return sum(outputs) / len(outputs)
    if isinstance(first, dict):
        return {key: mean([one[key] for one in outputs]) for key in first}
    return tuple(mean(list(each)) for each in zip(*outputs, strict=True))


def holding(module, weights):
    network = getattr(module, OWN[module.__name__][0])()
    return lambda *inputs: functional_call(network, weights, inputs)


@pytest.mark.parametrize(
    "example",
    [pytest.param(name, marks=[] if name == "segmentation" else [pytest.mark.sweep]) for name in OWN],
    indirect=True,
)
def test_it_is_aligned_merged_measured_and_held_against_a_gate(example, done, run):
    name, module = example
    net, *options = OWN[name]
    own = ["--net", f"{name}.py:{net}", "--data", f"{name}.py:loader"]
    for flag, value in zip(options[::2], options[1::2], strict=True):
        own += [flag, f"{name}.py:{value}"]
    loss = own[: own.index("--metric")] if "--metric" in own else own
    budget = "30G" if name == "detector" else "10G"
    done("align", "a.pt", "b.pt", *loss, "-o", "aligned.safetensors")
    done("merge", "a.pt", "b.pt", *loss, "--method", "auto", "--budget", budget, "-o", "merged.safetensors")
    ends = [holding(module, torch.load(f"{letter}.pt")) for letter in "ab"]
    files = {
        "a.pt": ends[0],
        "b.pt": ends[1],
        "merged.safetensors": holding(module, load_file("merged.safetensors")),
    }
    by_file = {}
    for file, network in files.items():
        told = done("eval", file, *own, "--json").json()
        by_file[file] = by_hand = plain(module, network)
        keys = ["loss", *(metric["name"] for metric in told["measured"]["metrics"])]
        if len(by_hand) == 1:  # accuracy, where the example names no metric
            keys = keys[:1]
        figures = [told[re.sub(r"\W+", "_", key).lower()] for key in keys]
        assert figures == pytest.approx([by_hand[key] for key in by_hand], abs=1e-6), file
    both = plain(module, *ends)
    merged, worst = by_file["merged.safetensors"]["loss"], max(by_file[f]["loss"] for f in ("a.pt", "b.pt"))
    assert both["loss"] < 1.3 * worst and merged < LOST[name] * worst
    few = ("--points", 3, "--method", "wm", "--limit", 256, "--json", "--gate", GATES[name])
    found = run("barrier", "a.pt", "b.pt", *own, *few)
    assert found.code in (0, 1), found.err
    report = json.loads(found.out)
    (gate,) = report["gates"]
    assert gate["met"] == (found.code == 0)
    rows = {row["name"]: row["curves"]["test"]["loss"][1] for row in report["rows"]}
    assert rows["aligned"] < rows["naive"]
    if "--loss" not in OWN[name]:  # of logits rebasin measures the ensemble, too
        assert rows["logit ensemble"] == pytest.approx(both["loss"], abs=1e-6)
