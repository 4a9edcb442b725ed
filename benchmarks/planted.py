"""A planted random permutation, recovered: whether exactly, and what `align` does to the network's outputs.

    python benchmarks/planted.py [NET …]

B is A with every word permuted at random. "exact": πB equals A bit for bit. "outputs": the largest difference
between the outputs of B and of πB, relative to the largest output, in float64, norm statistics randomised.
"""

from __future__ import annotations

import sys
import time

import torch

import rebasin_cli
from rebasin_cli import nets, networks, permutation
from rebasin_cli.randomness import generator
from rebasin_cli.spec import library

NETS = {
    "mlp": (1, 28, 28),
    "vgg16": (3, 224, 224),
    "resnet20": (3, 32, 32),
    "resnet50": (3, 224, 224),
    "googlenet": (3, 224, 224),
}


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


if __name__ == "__main__":
    main(sys.argv[1:])
