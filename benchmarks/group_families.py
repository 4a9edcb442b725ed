"""Groups on families of networks: what each word may take, that it holds, and that it is found again.

    python benchmarks/group_families.py [--rows NAME,…] [--plot FILE] [--seeds 3]

Small configurations of full structure from timm and transformers, and a few of no package, with random
weights whose norms' gains and biases are drawn, too. A row a network: the largest group of every word, the
reasons why others have no larger one, how much a random element of all groups changes the outputs (relative,
in float64 and in float32 as it would be written), and a planted case: the model after a random element, with
noise of a tenth of each matrix's deviation, matched by `wm` with groups. "recovered" is how far it ends from
the original, relative, beside "floor": what the noise itself makes of that, with the true element taken back.
The plot has recovery against noise, over `--seeds` elements. Exits with 1 where an element changes outputs by
more than 1e-12 in float64 or 1e-5 in float32, or is not found again to 1.1 of the floor, or without
noise to 1e-3 ("exact copy": the worst of `--seeds` elements).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import math
import re
import sys
import time
import warnings
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _rows import environment, line
from families import HIDDEN, LAYERS, SIZES, SMALL, Case, causal
from packages import torchvision
from torch import nn
from torch.nn import functional as F

from rebasin_cli.errors import RebasinError
from rebasin_cli.inference.inferring import infer
from rebasin_cli.inference.text.spec_text import Inferred
from rebasin_cli.matchers import Problem, wm
from rebasin_cli.networks.forward import fed
from rebasin_cli.networks.returned import Kept
from rebasin_cli.networks.state import fresh, own_state
from rebasin_cli.proof.distance import difference
from rebasin_cli.proof.runs import Fails, Runs
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry.form import Canonical, canonical, turned

NOISES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
PLOTTED = ("ViT", "GPT-2, head apart", "Llama", "Mixtral", "BERT", "MLP tanh", "MLP ReLU", "ResNet, no norms")
NEAR = 1.1  # of the floor
EXACT = 1e-3  # of a copy without noise: rotations are found as well as float32 gains tell

# ---------------------------------------------------------------------------------------------- networks


def hub(kind: str, config: str, inputs: dict[str, Any], **options: Any) -> Case:
    transformers = importlib.import_module("transformers")
    network = getattr(transformers, kind)(getattr(transformers, config)(**options))
    return network, (), inputs, "logits"


def tokens(**more: Any) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 99, (2, 7)), **more}


def seen(name: str) -> Case:
    network = importlib.import_module("timm").create_model(name, num_classes=5, **SMALL)
    return network, (torch.randn(2, 3, 32, 32),), {}, None


GPT2 = {"vocab_size": 99, "n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 64,
        "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": HIDDEN, "num_layers": LAYERS, "num_heads": 4,
      "decoder_start_token_id": 0}  # fmt: skip
FALCON = SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False}


def t5(*, apart: bool) -> Case:
    given = tokens(decoder_input_ids=torch.randint(3, 99, (2, 5)), use_cache=False)
    found = hub("T5ForConditionalGeneration", "T5Config", given, **T5)
    if apart:
        found[0].lm_head.weight = nn.Parameter(found[0].lm_head.weight.detach().clone())
    return found


class Residual(nn.Module):
    """Convolutions and sums, no norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.first = nn.ModuleList(nn.Conv2d(12, 16, 3, padding=1) for _ in range(3))
        self.second = nn.ModuleList(nn.Conv2d(16, 12, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        for first, second in zip(self.first, self.second, strict=True):
            x = F.relu(x + second(F.relu(first(x))))
        return self.head(x.mean((2, 3)))


def layers(activation: type[nn.Module]) -> Case:
    sizes = (20, 48, 48, 48, 5)
    parts = [m for a, b in zip(sizes, sizes[1:], strict=False) for m in (nn.Linear(a, b), activation())]
    return nn.Sequential(*parts[:-1]), (torch.randn(8, 20),), {}, None


NETWORKS = {
    "ViT": lambda: seen("vit_tiny_patch16_224"),
    "DeiT": lambda: seen("deit_tiny_patch16_224"),
    "BERT": lambda: hub("BertForMaskedLM", "BertConfig", tokens(), **SIZES),
    "GPT-2": lambda: hub("GPT2LMHeadModel", "GPT2Config", tokens(use_cache=False), **GPT2),
    "GPT-2, head apart": lambda: hub(
        "GPT2LMHeadModel", "GPT2Config", tokens(use_cache=False), **GPT2, tie_word_embeddings=False
    ),
    "Llama": lambda: hub(
        "LlamaForCausalLM", "LlamaConfig", tokens(use_cache=False), **SIZES, num_key_value_heads=2
    ),
    "Qwen2": lambda: causal("Qwen2"),
    "Qwen3": lambda: causal("Qwen3"),
    "T5": lambda: t5(apart=False),
    "T5, head apart": lambda: t5(apart=True),
    "Mixtral": lambda: causal("Mixtral"),
    "Qwen3-MoE": lambda: causal("Qwen3-MoE"),
    "GPT-J": lambda: causal("GPT-J"),
    "StableLM": lambda: causal("StableLM"),
    "GPT-NeoX": lambda: hub("GPTNeoXForCausalLM", "GPTNeoXConfig", tokens(use_cache=False), **SIZES),
    "Phi-3": lambda: causal("Phi-3"),
    "Falcon": lambda: hub("FalconForCausalLM", "FalconConfig", tokens(use_cache=False), **FALCON),
    "MLP tanh": lambda: layers(nn.Tanh),
    "MLP ReLU": lambda: layers(nn.ReLU),
    "ResNet, no norms": lambda: (Residual(), (torch.randn(2, 3, 8, 8),), {}, None),
}


def small(name: str) -> Case:
    """A network of the tests, which needs no package."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    network = getattr(importlib.import_module("tests.transformers"), name)()
    return network, (torch.randn(2, *getattr(network, "example_shape", (5, 6))),), {}, None


OWN = (
    *("Transformer", "Packed", "Gated", "relu", "tanh", "Factored", "Rotary", "Neighbours", "ByHead"),
    *("ByGroup", "OneLayer"),
)
NETWORKS |= {f"tests: {name}": partial(small, name) for name in OWN}

# ----------------------------------------------------------------------------------------------- figures


class Subject:
    """One network, its symmetries and weights of its own."""

    def __init__(self, name: str):
        torch.manual_seed(0)
        self.network, args, kwargs, self.output = NETWORKS[name]()
        self.network.eval()
        self.inputs = kwargs or args
        self.found: Inferred = infer(self.network, args, kwargs, output=self.output, groups=True)
        state = self.network.state_dict()
        with torch.no_grad():
            for tensor in state.values():
                if tensor.is_floating_point() and tensor.ndim == 1 and tensor.numel() > 1:
                    tensor.add_(0.3 * torch.randn(tensor.shape))  # no gain is 1, no bias 0
        self.ties = [tensor.data_ptr() for tensor in state.values()]
        self.tensors = {n: t.double() if t.is_floating_point() else t.clone() for n, t in state.items()}
        self.form = self.canonical(self.tensors)

    def canonical(self, tensors: Any) -> Canonical:
        return canonical(tensors, self.found.fitted, self.found.folds)

    def draw(self, seed: int) -> acts.Elements:
        return acts.random(self.found.fitted, torch.Generator().manual_seed(seed))

    def error(self, dtype: torch.dtype) -> float:
        """How much a random element of the canonical form changes the outputs; NaN where none are."""
        moved = acts.acted(self.form.tensors, self.found.fitted, self.draw(1))
        outputs = []
        try:
            with fresh(self.network, self.inputs) as refresh, own_state(self.network, dtype), torch.no_grad():
                runs = Runs(self.network, refresh, dtype, Kept(self.output), lambda: None)
                batch = fed(self.network, self.inputs, "cpu", quiet=True)
                for tensors in (self.tensors, moved):
                    for name, tensor in self.network.state_dict().items():
                        tensor.copy_(tensors[name])
                    outputs.append(runs.outputs(batch))
        except Fails:
            return math.nan
        return difference(*outputs)

    def planted(self, noise: float, seed: int) -> tuple[float, float, float]:
        """How far the model ends from the original, the floor, and seconds of the search."""
        element, rng = self.draw(seed), torch.Generator().manual_seed(seed + 1)
        moved = dict(acts.acted(self.form.tensors, self.found.fitted, element))
        drawn: dict[int, torch.Tensor] = {}
        for place, (name, tensor) in zip(self.ties, moved.items(), strict=True):
            if tensor.is_floating_point() and tensor.ndim > 1 and tensor.numel() > 1:
                if place not in drawn:
                    drawn[place] = torch.randn(tensor.shape, generator=rng, dtype=torch.float64)
                moved[name] = tensor + noise * tensor.std() * drawn[place]
        back = acts.acted(moved, self.found.fitted, acts.invert(element, self.found.fitted))
        floor = self.distance(self.canonical(dict(back)).tensors)
        form = self.canonical(moved)
        began = time.perf_counter()
        found = wm.match(Problem(self.found.fitted, (self.form.tensors, form.tensors)))
        seconds = time.perf_counter() - began
        return self.distance(turned(form.tensors, self.found.fitted, found.elements[0])), floor, seconds

    def distance(self, tensors: Any) -> float:
        """Relative, of all tensors that are permuted or turned, each counted alike."""
        shares = []
        for name in self.found.fitted.tensors:
            mine, other = self.form.tensors[name], tensors[name]
            if mine.is_floating_point() and mine.ndim > 1 and mine.norm() > 0:
                shares.append(float((mine - other).norm() / mine.norm()) ** 2)
        return math.sqrt(sum(shares) / len(shares))

    def groups(self) -> str:
        """Each word's group, those of like layers together."""
        kinds = collections.Counter(
            (re.sub(r"\d+", "*", word), self.found.fitted.groups.get(word, "permutation"))
            for word in self.found.fitted.words
        )
        return "; ".join(f"{word} {kind}" + f" ×{n}" * (n > 1) for (word, kind), n in kinds.items())

    def reasons(self) -> str:
        """Why no larger, the code's lines left out."""
        said: dict[str, str] = {}
        for word, why in self.found.no_larger.items():
            plain = dict.fromkeys(re.sub(r" \(.*\)", "", each) for each in why)
            told = "; ".join(list(plain)[:2])
            said.setdefault(re.sub(r"\d+", "*", word), told)
        return " · ".join(f"{word}: {told}" for word, told in said.items() if "lie within it" not in told)


def plot(curves: dict[str, list[tuple[float, float, float]]], file: Path) -> None:
    """Recovery against noise: `curves` has (noise, reached, floor) of each network."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    columns = 4
    rows = -(-len(curves) // columns)
    _, panels = plt.subplots(rows, columns, figsize=(3.1 * columns, 2.6 * rows), sharex=True, squeeze=False)
    for panel, (name, points) in zip(panels.flat, curves.items(), strict=False):
        noise, reached, floor = zip(*points, strict=True)
        panel.plot(noise, floor, color="0.6", label="noise alone")
        panel.plot(noise, reached, "o-", ms=3, color="tab:blue", label="recovered")
        panel.set_title(name, fontsize=9)
        panel.set_ylim(bottom=0)
    for panel in panels[-1]:
        panel.set_xlabel("noise, of each matrix's deviation")
    for row in panels:
        row[0].set_ylabel("distance, relative")
    panels[0][0].legend(fontsize=8)
    plt.tight_layout()
    plt.savefig(file, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", metavar="NAME;…", default=";".join(NETWORKS))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        torchvision()
    print(environment())
    figures = ("float64", "float32", "exact copy", "recovered", "floor", "search, s")
    line("date", "network", "groups", *figures, "why no larger")
    print("|" + "---|" * 10)
    wrong, curves = [], {}
    for name in given.rows.split(";"):
        try:
            subject = Subject(name)
        except RebasinError as error:
            line(date.today(), name, f"{error.message[:90]}", *[""] * 7)
            wrong.append(name)
            continue
        errors = [subject.error(dtype) for dtype in (torch.float64, torch.float32)]
        reached, floor, seconds = subject.planted(0.1, 5)
        exact = max(subject.planted(0.0, seed)[0] for seed in range(5, 5 + given.seeds))
        if errors[0] > 1e-12 or not errors[1] <= 1e-5 or reached > NEAR * floor or exact > EXACT:
            wrong.append(name)
        told = [f"{error:.0e}" if not math.isnan(error) else "float32 only" for error in errors]
        figures = (f"{exact:.0e}", f"{reached:.4f}", f"{floor:.4f}", f"{seconds:.1f}")
        line(date.today(), name, subject.groups(), *told, *figures, subject.reasons())
        if given.plot and name in PLOTTED:
            curves[name] = []
            for noise in NOISES:
                several = [subject.planted(noise, seed)[:2] for seed in range(10, 10 + given.seeds)]
                curves[name].append(
                    (noise, *(sum(part) / given.seeds for part in zip(*several, strict=True)))
                )
    if given.plot:
        plot(curves, given.plot)
    sys.exit(f"not as promised: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
