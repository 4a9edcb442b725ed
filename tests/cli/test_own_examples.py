"""The six worked examples of docs/own.md: trained, aligned, merged, measured and held against a gate."""

import json
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
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


def plain_loss(module, net, weights):
    """The mean over the test samples, by a plain loop."""
    lost = getattr(module, "loss", None)
    total = count = 0
    with torch.no_grad():
        for batch in module.loader("test"):
            inputs, targets = (batch["text"], batch["labels"]) if isinstance(batch, dict) else batch
            arguments = inputs if isinstance(inputs, tuple) else (inputs,)
            outputs = functional_call(net, weights, arguments)
            if isinstance(targets, torch.Tensor) and targets.dtype == torch.int64:  # cross-entropy
                axis = outputs.movedim(-1, 1) if outputs.shape[:-1] == targets.shape else outputs
                each = torch.nn.functional.cross_entropy(axis.double(), targets, reduction="none").flatten(1)
                values = each.sum(1) / (targets != -100).flatten(1).sum(1)
            else:
                values = lost(outputs, targets).double()
            total, count = total + values.sum().item(), count + len(values)
    return total / count


@pytest.mark.parametrize("example", OWN, indirect=True)
def test_it_is_aligned_merged_measured_and_held_against_a_gate(example, done, run):
    name, module = example
    net, *options = OWN[name]
    own = ["--net", f"{name}.py:{net}", "--data", f"{name}.py:loader"]
    for flag, value in zip(options[::2], options[1::2], strict=True):
        own += [flag, f"{name}.py:{value}"]
    scored = [word for word in own]
    loss = own[: own.index("--metric")] if "--metric" in own else own
    done("align", "a.pt", "b.pt", *loss, "-o", "aligned.safetensors")
    done("merge", "a.pt", "b.pt", *loss, "--method", "auto", "--budget", "200G", "-o", "merged.safetensors")
    told = done("eval", "merged.safetensors", *scored, "--json").json()
    from safetensors.torch import load_file

    weights = load_file("merged.safetensors")
    assert told["loss"] == pytest.approx(plain_loss(module, getattr(module, net)(), weights), abs=1e-6)
    few = ("--points", 3, "--method", "wm", "--limit", 256, "--json", "--gate", GATES[name])
    found = run("barrier", "a.pt", "b.pt", *scored, *few)
    assert found.code in (0, 1), found.err
    report = json.loads(found.out)
    (gate,) = report["gates"]
    assert gate["met"] == (found.code == 0)
    rows = {row["name"]: row["curves"]["test"]["loss"][1] for row in report["rows"]}
    assert rows["aligned"] < rows["naive"]
