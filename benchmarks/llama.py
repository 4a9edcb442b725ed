"""Two transformers of a billion parameters aligned on one machine: time, peak memory, and whether rightly.

    python benchmarks/llama.py [--layers 22] [--memory 3GB] [--keep FOLDER]
    python benchmarks/llama.py --processes 1 2 [--layers 22] [--keep FOLDER]   # a row a command

The shapes are those of a Llama of 1.1 billion parameters (width 2048, 22 layers, 32 query and 4 key heads
of 64, feed-forward 5632, vocabulary 32000) in bfloat16, 2 × 2.2 GB, under the plain YAML spec below; its
rotary embeddings leave the order within a head alone. B is A with every word permuted at random, and noise
of a tenth of each tensor's standard deviation. "right" is the share of units that come back to their place.
With --processes commands share the work, of one thread each, beside `cp`, reading both files, and a loop that
averages them with safetensors: processor seconds and peak memory are those of the process that has most.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from _rows import heading, row

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


READ = """
import sys
from safetensors import safe_open
for path in sys.argv[1:]:
    with safe_open(path, "pt") as file:
        for name in file.keys():
            file.get_tensor(name).clone()
"""
LOOP = """
import sys
from safetensors.torch import load_file, save_file
a, b = (load_file(path) for path in sys.argv[1:3])
save_file({name: ((a[name].float() + b[name].float()) / 2).to(a[name].dtype) for name in a}, sys.argv[3])
"""


def lines(folder: Path, layers: int) -> dict[str, list[str]]:
    """Commands by name, each with what it reads and writes."""
    a, b, spec = (str(path) for path in pair(folder, layers))
    out, aligned, perm = (str(folder / f"{name}.safetensors") for name in ("out", "aligned", "aligned.perm"))
    rebasin, of = [sys.executable, "-m", "rebasin_cli"], ["--spec", spec]
    return {
        "cp": ["cp", a, out],
        "reading both": [sys.executable, "-c", READ, a, b],
        "a plain mean": [sys.executable, "-c", LOOP, a, b, out],
        "average": [*rebasin, "average", a, b, "-o", out, "--force"],
        "align": [*rebasin, "align", a, b, *of, "-o", aligned, "--no-prove", "--force"],
        "apply": [*rebasin, "apply", perm, b, *of, "-o", out, "--force"],
        "verify": [*rebasin, "verify", b, aligned, *of],
        "doctor": [*rebasin, "doctor", a, b, *of],
    }


def rows(folder: Path, layers: int, processes: Sequence[int]) -> None:
    """A row a command and number of processes."""
    heading("command", "processes", "processor s", "peak MB")
    for name, command in lines(folder, layers).items():
        for count in processes if "rebasin_cli" in command else (1,):
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20_000 + os.getpid() % 20_000)}
            place |= {"WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
            started = [
                subprocess.Popen(
                    command, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.DEVNULL
                )
                for rank in range(count)
            ]
            ended = [os.wait4(each.pid, 0) for each in started]
            if any(status for _, status, _ in ended):
                raise SystemExit(f"{name} failed")
            most = max(usage.ru_utime + usage.ru_stime for *_, usage in ended)
            peak = max(usage.ru_maxrss for *_, usage in ended) * 1024
            row(name, count, f"{most:.1f}", f"{peak / 1e6:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--memory", default="3GB", help="similarities kept between solves")
    parser.add_argument("--keep", type=Path, help="write the checkpoints here, and reuse them")
    parser.add_argument("--processes", type=int, nargs="+", help="a row a command, in so many processes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.processes:
            rows(folder, arguments.layers, arguments.processes)
            return
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
