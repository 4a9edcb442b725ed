"""What of a network's outputs is its function, on the command line."""

import json

import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint

from .conftest import tensors
from .test_infer import written

HEADS = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)
        self.training_only = nn.Linear(8, 2)

    def forward(self, x):
        h = torch.relu(self.trunk(x))
        more = (self.training_only(h),) if self.training else ()
        return (self.one(h), self.two(h), *more)

def build():
    return Two()
"""
BROKEN = {  # the trunk moves with the first head alone
    "trunk.weight": "h .", "trunk.bias": "h", "one.weight": ". h", "one.bias": ".", "two.weight": ". .",
    "two.bias": ".", "training_only.weight": ". h", "training_only.bias": ".",
}  # fmt: skip


def test_no_head_is_permuted_wrongly_whatever_is_measured(tmp_path, done, refused):
    written(tmp_path, "two", HEADS)
    lines = (f'  {name}: "{axes}"' for name, axes in BROKEN.items())
    (tmp_path / "broken.yaml").write_text("\n".join(["tensors:", *lines]) + "\n")
    line = [
        "align",
        "a.safetensors",
        "b.safetensors",
        "--net",
        "two.py:build",
        "--input",
        "2x4",
        "--output",
        "0",
    ]
    says = ("of the outputs these change: 1", "if 1 is no part of the network's function: --not-kept 1")
    refused(4, *line, "--spec", "broken.yaml", "-o", "c.safetensors", says=says)
    out = done(*line, "--spec", "infer", "-o", "c.safetensors").out
    told = "kept: 0, 1; not kept: none; not seen by any kept output: training_only.weight, training_only.bias"
    assert told in " ".join(out.split())
    told += "; in training mode these do not stay: 2"
    assert open_checkpoint("c.safetensors").metadata["rebasin.outputs"] == told
    namespace: dict = {"__name__": "two"}
    exec(HEADS, namespace)
    network, x, answers = namespace["build"]().eval(), torch.rand(5, 4), []
    for file in ("b.safetensors", "c.safetensors"):
        network.load_state_dict(tensors(file))
        answers.append([head.detach() for head in network(x)])
    assert not torch.equal(tensors("b.safetensors")["trunk.bias"], tensors("c.safetensors")["trunk.bias"])
    for before, after in zip(*answers, strict=True):
        assert torch.allclose(before, after, atol=1e-5)


def test_a_recipe_and_the_doctors_advice_leave_out_what_was_named(tmp_path, done):
    written(tmp_path, "two", HEADS)
    step = {
        "models": ["a.safetensors", "b.safetensors"],
        "net": "two.py:build",
        "input": "2x4",
        "spec": "infer",
    }
    recipe = {"rebasin": 1, "steps": [{"align": step | {"not_kept": ["1"], "out": "c.safetensors"}}]}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    done("run", "r.yaml")
    assert "not kept: 1;" in open_checkpoint("c.safetensors").metadata["rebasin.outputs"]
    (tmp_path / "data.py").write_text(
        "import torch\ndef loader(split):\n    return [(torch.rand(8, 4), torch.arange(8) % 3)]\n"
    )
    line = ["doctor", "a.safetensors", "b.safetensors", "--net", "two.py:build", "--data", "data.py:loader"]
    told = done(*line, "--spec", "infer", "--output", "0", "--not-kept", "1", "--json").json()
    assert not told["unseen"] and ("--not-kept 1" in told["next"] or "rebasin eval" in told["next"])


def test_one_number_out_is_inferred_and_proven(tmp_path, done):
    """A batch of one and one output, as for a binary classifier."""
    text = "from torch.nn import Linear, Sequential, Tanh\n"
    text += "def build():\n    return Sequential(Linear(4, 8), Tanh(), Linear(8, 1))\n"
    (tmp_path / "value.py").write_text(text)
    assert '"2.weight": ". h0"' in done("spec", "infer", "--net", "value.py:build", "--input", "1x4").out
