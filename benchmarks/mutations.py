"""How many wrong specs does the proof accept? Break one thing of a right spec at a time, and try to prove it.

    python benchmarks/mutations.py [--rows NAME,…] [--each N] [--seed N] [--kept FILE]

Mutants: an axis loses its word, a tensor loses all of them, two axes of a tensor are exchanged, an axis gets
another word of its size, or a new one of its own, two factors of an axis are exchanged. Whether a mutant is
truly wrong is decided without the proof: weights of its own making at three scales, signs and all, other
inputs, tensors permuted as files are, some words or all, outputs compared in float64. Above 1e-9 relative in
any of them it is wrong; one that is right is another valid spec, whose refusal would be a mistake, too. Some
are valid since a tensor has no effect at all (a key's bias). Exits with 1 if a wrong mutant is accepted.

Built-in networks, and small ones of the structures where proofs are hard; rows of timm and transformers run
where these are installed (`--rows`). With `--kept` every row is kept when it ends, and a run that was stopped
goes on with the next.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from _fresh_structures import FRESH
from _odd_structures import ODD
from _structures import STRUCTURES
from torch import nn
from torch.nn import functional as F

from rebasin_cli import nets
from rebasin_cli.errors import NetworkError, NotProven, RebasinError
from rebasin_cli.graph.float64 import in_float64
from rebasin_cli.inference import infer
from rebasin_cli.networks.forward import evaluating, forward
from rebasin_cli.networks.returned import Kept
from rebasin_cli.proof.prove import prove
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import Product, Word, words_of
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import FittedSpec
from rebasin_cli.symmetry import permutation

GAINS = (0.3, 1.0, 3.0)  # of the weights by which truth is decided
DRAWS = 8  # of weights, inputs and orders, at each of them
WRONG = 1e-9
HEADING = ("network", "tensors", "words", "mutants", "valid", "wrong", "accepted wrong", "refused valid")


@dataclass(frozen=True)
class Case:
    network: nn.Module
    fitted: FittedSpec
    inputs: Any
    not_kept: tuple[str, ...] = ()


class Heads(nn.Module):
    """A policy and a value, each with hidden units of its own, returned beside a record of the trunk."""

    def __init__(self):
        super().__init__()
        self.trunk, self.norm = nn.Linear(6, 10), nn.LayerNorm(10)
        self.policy = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))
        self.value = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        h = torch.relu(self.norm(self.trunk(x)))
        return {"policy": self.policy(h), "more": [{"value": self.value(h)}], "hidden_states": (h,)}


class One(nn.Module):
    """One logit, as of a binary classifier."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(6, 10), nn.Linear(10, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.three(torch.tanh(self.two(torch.relu(self.one(x)))))


class Biased(nn.Module):
    """Attention with a table of biases a head, in a residual stream without norms: softmax may saturate."""

    def __init__(self, heads: int = 3, dim: int = 4, side: int = 4, depth: int = 3, caches: bool = False):
        super().__init__()
        width = heads * dim
        self.heads, self.caches = heads, caches
        self.stem = nn.Conv2d(3, width, 1)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(heads, side * side)) for _ in range(depth))
        at = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        apart = (at[:, None] - at[None]).abs()
        self.register_buffer("index", apart[..., 0] * side + apart[..., 1], persistent=False)
        self.head = nn.Linear(width, 5)
        self.cache: dict[int, torch.Tensor] = {}

    def train(self, mode: bool = True) -> nn.Module:
        if mode:
            self.cache = {}
        return super().train(mode)

    def bias(self, k: int) -> torch.Tensor:
        if not self.caches or self.training:
            return self.biases[k][:, self.index]
        if k not in self.cache:
            self.cache[k] = self.biases[k][:, self.index]
        return self.cache[k]

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        for k, (qkv, out, up, down) in enumerate(zip(self.qkv, self.out, self.up, self.down, strict=True)):
            q, key, v = qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            mixed = ((q @ key.mT) / math.sqrt(q.shape[-1]) + self.bias(k)).softmax(-1) @ v
            x = x + out(mixed.transpose(1, 2).flatten(2))
            x = x + down(F.gelu(up(x)))
        return self.head(x.mean(1))


class Experts(nn.Module):
    """Stacked experts, two of which see each token; key and value heads that serve two query heads each."""

    def __init__(self, width: int = 8, experts: int = 4, hidden: int = 6):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, width), nn.Linear(width, 11, bias=False)
        self.q, self.k, self.v, self.o = (
            nn.Linear(width, n, bias=False) if n != -1 else nn.Linear(8, width) for n in (8, 4, 4, -1)
        )
        self.norm, self.gate = nn.RMSNorm(width), nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * hidden))
        self.down = nn.Parameter(torch.randn(experts, hidden, width))

    def forward(self, tokens):
        x = self.embed(tokens)
        q = self.q(x).unflatten(-1, (2, 2, 2)).permute(0, 2, 3, 1, 4)
        k, v = (part(x).unflatten(-1, (2, 1, 2)).permute(0, 2, 3, 1, 4) for part in (self.k, self.v))
        x = x + self.o(((q @ k.mT).softmax(-1) @ v).permute(0, 3, 1, 2, 4).flatten(2))
        h = self.norm(x)
        weights = self.gate(h).softmax(-1)
        kept = weights * (weights >= weights.topk(2, -1).values[..., -1:])
        a, b = torch.einsum("btd,edh->bteh", h, self.up).chunk(2, -1)
        return self.head(x + torch.einsum("bteh,ehd,bte->btd", F.silu(a) * b, self.down, kept))


class Standardised(nn.Module):
    """Standardised weights with gains, groups of channels, squeeze and excitation, a group norm."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, width, 3), nn.Conv2d(width, width, 3, padding=1, groups=2)
        self.gain = nn.Parameter(torch.ones(width, 1, 1, 1))
        self.norm = nn.GroupNorm(4, width)
        self.squeeze, self.excite = nn.Linear(width, 4), nn.Linear(4, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        weight = self.one.weight
        standard = F.batch_norm(weight.reshape(1, len(weight), -1), None, None, training=True)
        x = F.relu(F.conv2d(x, standard.reshape_as(weight) * self.gain, self.one.bias))
        y = self.norm(self.two(x))
        gates = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3))))))
        return self.head((x + y * gates[..., None, None]).mean((2, 3)))


class Recurrent(nn.Module):
    """An LSTM between a tied embedding and what it reads out."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.embed, self.cell = nn.Embedding(9, width), nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, 9, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.out(x + self.cell(x)[0])


IMAGES = (3, 16, 16)
BUILT_IN = {  # row: (net, input, options)
    "mlp": ("mlp", (1, 28, 28), {"width": 12, "depth": None}),
    "vgg11": ("vgg11", (3, 32, 32), {"width": 1 / 16, "depth": None}),
    "resnet20": ("resnet20", IMAGES, {"width": 0.5, "depth": None}),
    "resnet50": ("resnet50", (3, 64, 64), {"width": 1 / 16, "depth": None}),
    "tinyten": ("tinyten", IMAGES, {"width": 0.25, "depth": None}),
    "googlenet": ("googlenet", (3, 64, 64), {"width": 1 / 8, "depth": None}),
}
TOKENS = torch.tensor([[1, 2, 5, 7, 0], [3, 3, 8, 1, 6]])
OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "attention with bias tables": (Biased, lambda: torch.randn(2, 3, 4, 4)),
    "bias tables cached in evaluation": (lambda: Biased(caches=True), lambda: torch.randn(2, 3, 4, 4)),
    "stacked experts and grouped queries": (Experts, lambda: TOKENS),
    "standardised weights and groups": (Standardised, lambda: torch.randn(2, 3, 8, 8)),
    "LSTM and tied embedding": (Recurrent, lambda: TOKENS),
    "two heads of one trunk": (Heads, lambda: torch.randn(2, 6)),
    "one number of one input": (One, lambda: torch.randn(1, 6)),
    "torch's encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2),
        lambda: torch.randn(2, 5, 8),
    ),
    **{name: (one.make, one.inputs) for name, one in (STRUCTURES | ODD | FRESH).items()},
}
TIMM = ("efficientformer_l1", "levit_128s")


def case_of(name: str) -> Case:
    torch.manual_seed(0)
    if name in BUILT_IN:
        kind, shape, options = BUILT_IN[name]
        network = nets.build(kind, input_shape=shape, classes=6, **options)
        shapes = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
        return Case(network, fit(library.load(kind), shapes), torch.rand(2, *shape))
    if name in OWN:
        make, draw = OWN[name]
        network, inputs = make(), draw()
        return Case(network, infer(network, inputs).fitted, inputs)
    import inference  # networks of packages that only the benchmarks need
    import packages

    if name in TIMM:
        packages.torchvision()
        import timm

        network, inputs = timm.create_model(name), torch.randn(2, 3, 224, 224)
        return Case(network, infer(network, inputs).fitted, inputs)
    make = inference.text if name in inference.TEXTS else inference.vision
    network, args, kwargs, not_kept = make(name)
    return Case(network, infer(network, args, kwargs, not_kept=not_kept).fitted, kwargs or args, not_kept)


REFUSED = 10_000  # mutants in a row: there is none that the notation can say


def mutants(fitted: FittedSpec, rng: random.Random) -> Iterator[tuple[str, FittedSpec]]:
    """What was broken, and the spec then: all kinds of mistakes, at random places, on and on."""
    axes = {name: [str(axis) for axis in found] for name, found in fitted.tensors.items()}
    moving = {
        name: [k for k, axis in enumerate(found) if list(words_of(axis))]
        for name, found in fitted.tensors.items()
    }
    names = [name for name, places in moving.items() if places]
    if not names:
        return
    kinds = (_drop, _forget, _swap, _join, _tear, _turn)
    # all places of a list have one line, which begins with the word of its places
    lists = {name: fitted.places.get(name, (name, 0))[0] for name in axes}
    first = {entry.name: [str(entry.axes[0])] for entry in fitted.spec.entries if "{}" in entry.name}
    refused = 0
    while refused < REFUSED:
        name = rng.choice(names)
        kind = rng.choice(kinds)
        changed = kind(axes[name], moving[name], fitted, name, rng)
        refused += 1
        if changed is None or changed == axes[name]:
            continue
        told = f"{kind.__name__[1:]} {lists[name]}: {' '.join(axes[name])} → {' '.join(changed)}"
        lines = {lists[other]: line for other, line in axes.items()} | {lists[name]: changed}
        lines = {key: first.get(key, []) + line for key, line in lines.items()}
        text = "".join(f"  {key!r}: {' '.join(line)!r}\n" for key, line in lines.items())
        used = {word for line in lines.values() for axis in line for word in fitted.sizes if word in axis}
        sizes = "".join(f"  {word!r}: {fitted.sizes[word]}\n" for word in sorted(used))
        outer = {word: block.word for word, block in fitted.within.items() if word in used and block.word}
        within = "within:\n" * bool(outer) + "".join(f"  {w!r}: {o!r}\n" for w, o in outer.items())
        try:
            mutant = fit(parse(f"tensors:\n{text}sizes:\n{sizes}{within}", name="mutant"), fitted.shapes)
        except RebasinError:
            continue  # the notation refuses it already
        refused = 0
        yield told, mutant
    raise RuntimeError(f"the notation refuses {REFUSED} mutants one after the other")


def _drop(axes, moving, fitted, name, rng) -> list[str]:
    """One axis loses its word."""
    k = rng.choice(moving)
    return [*axes[:k], ".", *axes[k + 1 :]]


def _forget(axes, moving, fitted, name, rng) -> list[str]:
    return ["."] * len(axes)


def _swap(axes, moving, fitted, name, rng) -> list[str] | None:
    """Two axes of one length exchanged."""
    shape = fitted.shapes[name]
    pairs = [(j, k) for j in range(len(axes)) for k in moving if j != k and shape[j] == shape[k]]
    if not pairs:
        return None
    j, k = rng.choice(pairs)
    found = list(axes)
    found[j], found[k] = found[k], found[j]
    return found


def _join(axes, moving, fitted, name, rng) -> list[str] | None:
    """One axis gets another word, or product, that is as long."""
    k = rng.choice(moving)
    size = fitted.shapes[name][k]
    others = {
        str(axis)
        for other, found in fitted.tensors.items()
        for axis, n in zip(found, fitted.shapes[other], strict=True)
        if n == size and str(axis) not in (".", axes[k])
    }
    return [*axes[:k], rng.choice(sorted(others)), *axes[k + 1 :]] if others else None


def _tear(axes, moving, fitted, name, rng) -> list[str]:
    """One axis gets a word of its own."""
    k = rng.choice(moving)
    return [*axes[:k], "torn", *axes[k + 1 :]]


def _turn(axes, moving, fitted, name, rng) -> list[str] | None:
    """Two plain factors of one axis exchanged."""
    k = rng.choice(moving)
    axis = fitted.tensors[name][k]
    if not isinstance(axis, Product) or any(isinstance(f, Word) and f.each for f in axis.factors):
        return None
    turned = Product(tuple(reversed(axis.factors)))
    return [*axes[:k], str(turned), *axes[k + 1 :]]


def is_wrong(case: Case, mutant: FittedSpec, seed: int, draws: int = DRAWS) -> bool:
    """Whether any weights at all tell the permuted network from the other, without the proof's means."""
    state = {key: tensor.clone() for key, tensor in case.network.state_dict().items()}
    try:
        gains = enumerate(GAINS * draws)
        return any(_differs(case, mutant, state, gain, seed + k, some=k >= len(GAINS)) for k, gain in gains)
    finally:
        _load(case.network.float(), state)


def _differs(case: Case, mutant: FittedSpec, state: dict, gain: float, seed: int, some: bool) -> bool:
    """Whether outputs do; where `some`, half of the words stay: else pairs of two units move as one."""
    rng = torch.Generator().manual_seed(seed)
    drawn: dict[int, torch.Tensor] = {}
    tensors = {}
    for name, tensor in state.items():
        if tensor.is_floating_point():
            fan_in = (
                max(1, math.prod(tensor.shape[1:]))
                if tensor.ndim in (2, 4)
                else max(tensor.shape[1:], default=1)
            )
            value = gain * torch.randn(tensor.shape, generator=rng, dtype=torch.float64) / math.sqrt(fan_in)
            value = value.abs() + 0.1 if "running_var" in name else value
            original = case.network.state_dict()[name].data_ptr()
            value = drawn.setdefault(original, value)  # tied ones stay tied
            tensors[name] = value
        else:
            tensors[name] = tensor
    words = permutation.random(mutant.words, rng, within=mutant.within)
    for word, order in words.items():
        if some and torch.rand((), generator=rng) < 0.5:
            words[word] = torch.arange(len(order))
    moved = dict(permutation.permuted(tensors, mutant, permutation.carried(words, mutant.within)))
    homes: dict[int, torch.Tensor] = {}
    for name, tensor in case.network.state_dict().items():
        if tensor.numel() and not torch.equal(homes.setdefault(tensor.data_ptr(), moved[name]), moved[name]):
            return True  # tied tensors are torn apart
    inputs = _other(case.inputs, rng)
    before, after = (_answers(case, found, inputs) for found in (tensors, moved))
    return any(
        not ((x - y).abs().max() <= WRONG * x.abs().max()).item() for x, y in zip(before, after, strict=True)
    )


def _other(inputs: Any, rng: torch.Generator) -> Any:
    if isinstance(inputs, dict):
        return {key: _other(value, rng) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(_other(value, rng) for value in inputs)
    if not isinstance(inputs, torch.Tensor):
        return inputs
    if inputs.is_floating_point():
        return torch.randn(inputs.shape, generator=rng, dtype=torch.float64)
    return inputs.roll(1)


def _answers(case: Case, tensors: dict[str, torch.Tensor], inputs: Any) -> list[torch.Tensor]:
    network = case.network.double().train()  # and to evaluation again: caches go
    _load(network, tensors)
    with evaluating(network), torch.no_grad(), in_float64():
        return list(Kept(not_kept=case.not_kept).of(forward(network, inputs)).tensors)


def _load(network: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """As they are: some networks read older files by hooks of their own, which ask for more than tensors."""
    with torch.no_grad():
        for name, own in network.state_dict().items():
            own.copy_(tensors[name])


def accepts(case: Case, fitted: FittedSpec, seed: int) -> bool:
    try:
        prove(case.network, fitted, case.inputs, not_kept=case.not_kept, seed=seed)
    except (NotProven, NetworkError):
        return False
    return True


def measured(name: str, each: int, seed: int, show: Callable[[str], None] = print) -> Counter:
    """How many mutants there were, valid, wrong, and judged mistakenly."""
    case, rng = case_of(name), random.Random(f"{name} {seed}")
    counts: Counter = Counter(tensors=len(case.fitted.tensors), words=len(case.fitted.words))
    counts["right refused"] = not accepts(case, case.fitted, seed)
    known: set[str] = set()
    for told, mutant in mutants(case.fitted, rng):
        if told not in known:
            known.add(told)
            wrong, accepted = is_wrong(case, mutant, seed + len(known)), accepts(case, mutant, seed)
            counts["mutants"] += 1
            counts["wrong" if wrong else "valid"] += 1
            if not wrong:
                show(f"{name}: valid, {'accepted' if accepted else 'refused'}: {told}")
            if wrong == accepted:
                counts["accepted wrong" if wrong else "refused valid"] += 1
                show(f"{name}: {'accepted though wrong' if wrong else 'refused though valid'}: {told}")
        else:
            counts["again"] += 1
        if counts["mutants"] >= each or counts["again"] > 20 * each:
            return counts
    return counts


def line(cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", metavar="NAME,…", default=",".join((*BUILT_IN, *OWN)))
    parser.add_argument("--each", type=int, default=50, metavar="N", help="mutants of each network (50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, metavar="FILE", help="rows of a run that was stopped")
    options = parser.parse_args()
    print(line(("date", *HEADING, "seconds")), line(["---"] * (len(HEADING) + 2)), sep="\n", flush=True)
    kept = json.loads(options.kept.read_text()) if options.kept and options.kept.exists() else {}
    total: Counter = Counter()
    for name in options.rows.split(","):
        began, key = time.process_time(), f"{name} {options.each} {options.seed}"
        if key not in kept:
            found = measured(name, options.each, options.seed, lambda text: print(text, file=sys.stderr))
            seconds = round(time.process_time() - began)
            kept[key] = [str(date.today()), [found[column] for column in HEADING[1:]], seconds]
            if options.kept:
                options.kept.write_text(json.dumps(kept))
        day, cells, seconds = kept[key]
        total += Counter(dict(zip(HEADING[1:], cells, strict=True)))
        print(line((day, name, *cells, seconds)), flush=True)
    cells = [total[key] if key not in ("tensors", "words") else "" for key in HEADING[1:]]
    print(line((date.today(), "all", *cells, "")))
    sys.exit(f"{total['accepted wrong']} wrong specs accepted" if total["accepted wrong"] else 0)


if __name__ == "__main__":
    main()
