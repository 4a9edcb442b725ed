"""Adapters that peft wrote, averaged and moved: peft computes the same with them. Skipped without peft."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from rebasin_cli.checkpoints.writer import write_safetensors

peft = pytest.importorskip("peft")

TARGETS = ["embed", "fc", "conv", "head"]
KINDS = {
    "plain": {"r": 4, "lora_alpha": 6},
    "rank-stabilised": {"r": 3, "lora_alpha": 2, "use_rslora": True},
    "patterns": {
        "r": 2,
        "lora_alpha": 3,
        "rank_pattern": {"^fc": 5, "head": 1},
        "alpha_pattern": {"conv": 4, "fc": 2},
    },
    "begun otherwise, of some modules": {
        "r": 4,
        "lora_alpha": 6,
        "init_lora_weights": "gaussian",
        "exclude_modules": ["head"],
    },
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.conv = nn.Embedding(11, 12), nn.Conv1d(12, 10, 3, padding=1)
        self.fc, self.head = nn.Linear(12, 12), nn.Linear(10, 7)
        self.deep = nn.ModuleDict({"fc": nn.Linear(12, 12)})

    def forward(self, x):
        x = torch.relu(self.deep["fc"](torch.relu(self.fc(self.embed(x)))))
        return self.head(torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2))


X = torch.arange(24).reshape(4, 6) % 11


def base():
    torch.manual_seed(0)
    return Net()


def trained(seed, folder, net=None, targets=TARGETS, **config):
    """Logits of a network with an adapter, which is saved."""
    model = peft.get_peft_model(net or base(), peft.LoraConfig(target_modules=targets, **config)).eval()
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return model


def loaded(folder, net=None):
    return peft.PeftModel.from_pretrained(net or base(), folder).eval()


def agree(found, wanted, within=1e-6):
    assert (found - wanted).abs().max() <= within * max(1, wanted.abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_one_adapter_of_weight_1_gives_back_its_logits(kind, done):
    wanted = trained(1, "a", **KINDS[kind])(X)
    done("average", "a", "--weights", "1", "-o", "out/")
    agree(loaded("out")(X), wanted)
    write_safetensors("base.safetensors", base().state_dict())
    done("average", "a", "--weights", "1", "--base", "base.safetensors", "-o", "full.safetensors")
    net = base()
    net.load_state_dict(load_file("full.safetensors"))
    agree(net(X), wanted)
    assert (base()(X) - wanted).abs().max() > 1e-3


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(12, 10, 3, groups=2)


@pytest.mark.filterwarnings("ignore:LoRA adapter added to ConvNd")  # peft's: it merges none either
def test_a_grouped_convolution_is_refused_with_the_reason(refused):
    trained(1, "a", Grouped(), ["conv"], r=4)
    refused(
        4, "average", "a", "-o", "out/", says="conv  its factors are 10×2×1 and 4×12×3: those of a grouped"
    )


def delta(model, name):
    layer = model.base_model.model.get_submodule(name)
    return sum(layer.get_delta_weight(key).double() for key in layer.active_adapters)


def test_peft_says_the_same_of_concatenation_and_of_the_best_rank(done):
    """Its `cat` is exact, its `svd` makes the matrix."""
    names = [*"abc"]
    for seed, name in enumerate(names):
        trained(seed, name, r=2 + seed, lora_alpha=4, targets=["fc", "head"])
    done("average", *names, "--weights", "0.5,1,0.25", "-o", "full/")
    done("average", *names, "--weights", "0.5,1,0.25", "--rank", "3", "-o", "three/")
    model = peft.PeftModel.from_pretrained(base(), "a", adapter_name="a")
    for name in names[1:]:
        model.load_adapter(name, name)
    for kind, folder, more in (("cat", "full", {}), ("svd", "three", {"svd_rank": 3})):
        model.add_weighted_adapter(names, [0.5, 1.0, 0.25], kind, combination_type=kind, **more)
        model.set_adapter(kind)
        for layer in ("fc", "head"):
            agree(delta(loaded(folder), layer), delta(model, layer), 1e-5)


SPEC = """tensors:
  embed.weight: ". e"
  fc.weight: "h e"
  fc.bias: "h"
  deep.fc.weight: "k h"
  deep.fc.bias: "k"
  conv.weight: "c k ."
  conv.bias: "c"
  head.weight: ". c"
  head.bias: "."
"""


def test_an_adapter_moved_with_its_base_keeps_its_logits(done, tmp_path):
    (tmp_path / "net.yaml").write_text(SPEC)
    wanted = trained(1, "lora", **KINDS["patterns"])(X)
    write_safetensors("b.safetensors", base().state_dict())
    write_safetensors("a.safetensors", Net().state_dict())
    done("align", "a.safetensors", "b.safetensors", "--spec", "net.yaml", "-o", "p.safetensors")
    arguments = ("lora", "--base", "b.safetensors", "--spec", "net.yaml", "-o", "moved/")
    done("apply", "p.perm.safetensors", *arguments)
    net = Net()
    net.load_state_dict(load_file("p.safetensors"))
    assert not torch.equal(net.fc.weight, base().fc.weight)
    agree(loaded("moved", net)(X), wanted)
