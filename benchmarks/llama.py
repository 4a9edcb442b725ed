"""Two transformers of a billion parameters aligned on one machine: time, peak memory, and whether rightly.

    python benchmarks/llama.py [--layers 22] [--memory 3GB] [--keep FOLDER]

The shapes are those of a Llama of 1.1 billion parameters (width 2048, 22 layers, 32 query and 4 key heads
of 64, feed-forward 5632, vocabulary 32000) in bfloat16, 2 × 2.2 GB, under the plain YAML spec below; its
rotary embeddings leave the order within a head alone. B is A with every word permuted at random, and noise
of a tenth of each tensor's standard deviation. "right" is the share of units that come back to their place.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import FittedSpec
from rebasin_cli.symmetry import permutation, stored
from rebasin_cli.types import Permutations

SPEC = """\
# Llama: residual stream r, key heads with their query heads kv{i}, feed-forward f{i}
tensors:
  model.embed_tokens.weight: ". r"
  model.layers.{i}.input_layernorm.weight: "r"
  model.layers.{i}.self_attn.q_proj.weight: "(kv{i} _) r"
  model.layers.{i}.self_attn.k_proj.weight: "(kv{i} 64) r"
  model.layers.{i}.self_attn.v_proj.weight: "(kv{i} 64) r"
  model.layers.{i}.self_attn.o_proj.weight: "r (kv{i} _)"
  model.layers.{i}.post_attention_layernorm.weight: "r"
  model.layers.{i}.mlp.gate_proj.weight: "f{i} r"
  model.layers.{i}.mlp.up_proj.weight: "f{i} r"
  model.layers.{i}.mlp.down_proj.weight: "r f{i}"
  model.norm.weight: "r"
  lm_head.weight: ". r"
"""
WIDTH, FEED, KEYS, QUERIES, VOCABULARY = 2048, 5632, 4 * 64, 32 * 64, 32000
NOISE = 0.1


def shapes(
    layers: int, width: int = WIDTH, feed: int = FEED, keys: int = KEYS, queries: int = QUERIES
) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, width)}
    for i in range(layers):
        layer = f"model.layers.{i}"
        found |= {
            f"{layer}.input_layernorm.weight": (width,),
            f"{layer}.self_attn.q_proj.weight": (queries, width),
            f"{layer}.self_attn.k_proj.weight": (keys, width),
            f"{layer}.self_attn.v_proj.weight": (keys, width),
            f"{layer}.self_attn.o_proj.weight": (width, queries),
            f"{layer}.post_attention_layernorm.weight": (width,),
            f"{layer}.mlp.gate_proj.weight": (feed, width),
            f"{layer}.mlp.up_proj.weight": (feed, width),
            f"{layer}.mlp.down_proj.weight": (width, feed),
        }
    return found | {"model.norm.weight": (width,), "lm_head.weight": (VOCABULARY, width)}


def model(layers: int, *, noise: bool) -> LazyTensors:
    """The same weights for every call, tensor by tensor; with noise on top if asked."""
    plan = shapes(layers)

    def get(name: str) -> torch.Tensor:
        tensor = torch.randn(plan[name], generator=generator(0, f"llama {name}")) * 0.02
        if len(plan[name]) == 1:
            tensor += 1
        if noise:
            extra = torch.randn(plan[name], generator=generator(1, f"llama {name}"))
            tensor += NOISE * tensor.std() * extra
        return tensor.bfloat16()

    return LazyTensors(plan, dict.fromkeys(plan, torch.bfloat16), get)


def planted(layers: int) -> tuple[FittedSpec, Permutations]:
    """The spec, and the order in which B has the units."""
    fitted = fit(parse(SPEC, name="llama"), shapes(layers))
    return fitted, permutation.random(fitted.words, generator(2, "llama"))


def pair(folder: Path, layers: int) -> tuple[Path, Path, Path]:
    """A, B and their spec, written unless they are there."""
    a, b, spec = (folder / name for name in ("a.safetensors", "b.safetensors", "llama.yaml"))
    spec.write_text(SPEC)
    if not b.exists():
        write_safetensors(a, model(layers, noise=False), force=True)
        write_safetensors(b, permutation.permuted(model(layers, noise=True), *planted(layers)), force=True)
    return a, b, spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--memory", default="3GB", help="similarities kept between solves")
    parser.add_argument("--keep", type=Path, help="write the checkpoints here, and reuse them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        out = folder / "out.safetensors"
        a, b, spec = pair(folder, arguments.layers)
        command = [sys.executable, "-m", "rebasin_cli", "align", str(a), str(b), "--spec", str(spec)]
        command += ["-o", str(out), "--no-prove", "--force", "--memory", arguments.memory]
        began = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        peak *= 1 if sys.platform == "darwin" else 1024
        found = stored.load(out.with_name("out.perm.safetensors")).elements.permutations
        back = permutation.invert(planted(arguments.layers)[1])
        right = sum((found[word] == back[word]).sum().item() for word in back) / sum(map(len, back.values()))
        numbers = sum(torch.Size(shape).numel() for shape in shapes(arguments.layers).values())
        print(f"{numbers:,} parameters, {2 * 2 * numbers / 1e9:.2f} GB of checkpoints")
        print(f"{seconds:.0f} s, peak memory {peak / 1e9:.2f} GB, right {right:.4%}")


if __name__ == "__main__":
    main()
