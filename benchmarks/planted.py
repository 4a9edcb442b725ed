"""A planted random permutation, recovered: whether exactly, and what `align` does to the network's outputs.

    python benchmarks/planted.py [NET …]
    python benchmarks/planted.py --inferred [NET …]     # needs torchvision and transformers

B is A with every word permuted at random. "exact": πB equals A bit for bit. "outputs": the largest difference
between the outputs of B and of πB, relative to the largest output, in float64, norm statistics randomised.
With --inferred, the specs are inferred, and heads, groups and the units within each are permuted, too; B has
noise of 0.1 standard deviations of each tensor besides, and "units" is the share that is back in its place.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import rebasin_cli
from rebasin_cli import nets, networks
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec import library
from rebasin_cli.symmetry import permutation

NETS = {
    "mlp": (1, 28, 28),
    "vgg16": (3, 224, 224),
    "resnet20": (3, 32, 32),
    "resnet50": (3, 224, 224),
    "googlenet": (3, 224, 224),
}
GPT2 = {
    "vocab_size": 5000,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}  # of full depth and width, with fewer words
LLAMA = {
    "vocab_size": 5000, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
NOISE = 0.1


def main(names: list[str]) -> None:
    print(f"{'net':<10} {'parameters':>12} {'exact':>6} {'outputs':>9} {'search, s':>10}")
    for name in names or NETS:
        torch.manual_seed(0)
        network = nets.build(name, input_shape=NETS[name], classes=1000)
        a = {key: tensor.clone() for key, tensor in network.state_dict().items()}
        for key, tensor in a.items():
            if key.endswith("running_mean"):
                tensor.normal_(std=0.1)
            elif key.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
        fitted = library.find({key: tuple(tensor.shape) for key, tensor in a.items()})
        planted = permutation.random(fitted.words, generator(1, "planted"))
        b = dict(permutation.permuted(a, fitted, planted))
        began = time.perf_counter()
        aligned = rebasin_cli.align(a, b, fitted, prove=False).tensors
        seconds = time.perf_counter() - began
        exact = all(torch.equal(aligned[key], a[key]) for key in a)
        inputs = networks.example_inputs(network, generator(2, "planted"))
        network = network.double().eval()
        with torch.no_grad():
            x, y = (networks.load(network, tensors)(inputs).clone() for tensors in (b, aligned))
        difference = ((x - y).abs().max() / x.abs().max()).item()
        count = sum(tensor.numel() for tensor in a.values())
        print(f"{name:<10} {count:>12,} {exact!s:>6} {difference:>9.1e} {seconds:>10.2f}", flush=True)


def inferred(names: list[str]) -> None:
    cases = {"vit_b_16": vit, "gpt-2": gpt2, "llama": llama, "resnext50": resnext}
    print(f"{'net':<10} {'parameters':>12} {'words':>6} {'units':>8} {'infer, s':>9} {'search, s':>10}")
    for name in names or cases:
        torch.manual_seed(0)
        network, inputs, output = cases[name]()
        network.eval()
        began = time.perf_counter()
        fitted = rebasin_cli.infer_spec(network, (), inputs, output=output, prove=False).fitted
        inferring = time.perf_counter() - began
        a = {key: tensor.detach().clone() for key, tensor in network.state_dict().items()}
        rng = generator(1, "planted")
        planted = permutation.random(fitted.words, rng, within=fitted.within)
        b = {}
        for key, tensor in permutation.permuted(a, fitted, planted).items():
            spread = tensor.std() if tensor.is_floating_point() and tensor.numel() > 1 else 0
            b[key] = tensor + NOISE * spread * torch.randn(tensor.shape, generator=rng) if spread else tensor
        began = time.perf_counter()
        (found,) = rebasin_cli.align(a, b, fitted, prove=False).permutations
        seconds = time.perf_counter() - began
        back = permutation.invert(planted)
        right = sum(int((found[word] == back[word]).sum()) for word in back) / sum(fitted.words.values())
        count = sum(tensor.numel() for tensor in a.values())
        print(
            f"{name:<10} {count:>12,} {len(back):>6} {right:>8.2%} {inferring:>9.1f} {seconds:>10.1f}",
            flush=True,
        )


Case = tuple[nn.Module, Mapping[str, Any], str | None]
IDS = {"input_ids": torch.arange(14).view(2, 7), "use_cache": False}


def vit() -> Case:
    return _torchvision("vit_b_16"), {"x": torch.randn(2, 3, 224, 224)}, None


def resnext() -> Case:
    return _torchvision("resnext50_32x4d"), {"x": torch.randn(2, 3, 64, 64)}, None


def gpt2() -> Case:
    return _transformers("GPT2", GPT2), IDS, "logits"


def llama() -> Case:
    return _transformers("Llama", LLAMA), IDS, "logits"


def _torchvision(name: str) -> nn.Module:
    from packages import torchvision

    network = torchvision().models.get_model(name, weights=None)
    if isinstance(getattr(network, "heads", None), nn.Module):  # its last layer begins as zeros
        nn.init.normal_(network.heads[-1].weight, std=0.02)
    return network


def _transformers(family: str, options: Mapping[str, int]) -> nn.Module:
    transformers = importlib.import_module("transformers")
    configuration = getattr(transformers, f"{family}Config")(**options)
    kind = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}[family]
    return getattr(transformers, kind)(configuration)


if __name__ == "__main__":
    if "--inferred" in sys.argv:
        inferred([name for name in sys.argv[1:] if name != "--inferred"])
    else:
        main(sys.argv[1:])
