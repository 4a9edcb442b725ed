"""The inputs and the commands that same_outputs.py compares two installations by."""

from __future__ import annotations

from dataclasses import dataclass

OFFLINE = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
NO_DATA = OFFLINE | {"REBASIN_DATA": "empty", "XDG_CACHE_HOME": "empty", "HOME": "empty"}

# ------------------------------------------------------------------------------------------------- inputs

SMALLNET = '''"""A convolution, a residual block, two linear layers."""

import torch
from torch import nn


class SmallNet(nn.Module):
    example_shape = (1, 8, 8)

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(8)
        self.conv1 = nn.Conv2d(8, 6, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(8)
        self.pool = nn.AvgPool2d(4)
        self.hidden = nn.Linear(8 * 2 * 2, 12)
        self.head = nn.Linear(12, 10)

    def forward(self, x):
        x = torch.relu(self.stem_norm(self.stem(x)))
        inner = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(x + self.norm2(self.conv2(inner)))
        x = self.pool(x).flatten(1)
        return self.head(torch.relu(self.hidden(x)))


class Two(SmallNet):
    def forward(self, x):
        return {"features": x.flatten(1), "logits": super().forward(x)}


class NoBias(nn.Module):
    example_shape = (64,)

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(64, 24, bias=False)
        self.two = nn.Linear(24, 24, bias=False)
        self.head = nn.Linear(24, 10, bias=False)

    def forward(self, x):
        x = torch.relu(self.one(x.flatten(1)))
        return self.head(torch.relu(self.two(x)))
'''

SMALLNET_YAML = """description: a convolution, a residual block, two linear layers
tensors:
  stem.weight: "stream . . ."
  stem_norm.weight: "stream"
  stem_norm.bias: "stream"
  conv1.weight: "inner stream . ."
  norm1.weight: "inner"
  norm1.bias: "inner"
  conv2.weight: "stream inner . ."
  norm2.weight: "stream"
  norm2.bias: "stream"
  hidden.weight: "hidden (stream _)"
  hidden.bias: "hidden"
  head.weight: ". hidden"
  head.bias: "."
statistics:
  "{norm}.num_batches_tracked": ""
  stem_norm.running_mean: "stream"
  stem_norm.running_var: "stream"
  norm1.running_mean: "inner"
  norm1.running_var: "inner"
  norm2.running_mean: "stream"
  norm2.running_var: "stream"
"""
WRONG_YAML = SMALLNET_YAML.replace('stream inner . ."', 'other inner . ."').replace(
    'norm2.weight: "stream"\n  norm2.bias: "stream"', 'norm2.weight: "other"\n  norm2.bias: "other"'
)
WRONG_YAML = WRONG_YAML.replace(
    'norm2.running_mean: "stream"\n  norm2.running_var: "stream"',
    'norm2.running_mean: "other"\n  norm2.running_var: "other"',
)

OWN = '''"""A loss, a metric and a loader of one's own."""

import torch


def squared(outputs, targets):
    hot = torch.nn.functional.one_hot(targets, outputs.shape[1]).to(outputs.dtype)
    return ((outputs.softmax(1) - hot) ** 2).sum(1).mean()


def top2(outputs, targets):
    return (outputs.topk(2, dim=1).indices == targets[:, None]).any(1).double().mean().item()


def load(split):
    rng = torch.Generator().manual_seed({"train": 1, "test": 2}[split])
    return [(torch.rand(50, 64, generator=rng), torch.arange(50) % 10) for _ in range(4)]
'''

AXES = {
    "layers.0.weight": ["P0", None],
    "layers.0.bias": ["P0"],
    "layers.1.weight": ["P1", "P0"],
    "layers.1.bias": ["P1"],
    "layers.2.weight": ["P2", "P1"],
    "layers.2.bias": ["P2"],
    "head.weight": [None, "P2"],
    "head.bias": [None],
}

TORCH_INPUTS = """
import pickle, numpy, torch
from safetensors.torch import load_file
from smallnet import NoBias, SmallNet

torch.set_num_threads(1)
a, b = load_file("a.safetensors"), load_file("b.safetensors")
half = {name: tensor * 0.5 for name, tensor in b.items()}
torch.save({"epoch": 3, "model": a, "ema": {"shadow": half}}, "bundle_a.pt")
torch.save({"epoch": 3, "model": b, "ema": {"shadow": a}}, "bundle_b.pt")
for seed, (net, name) in enumerate([(SmallNet, "s"), (NoBias, "x")] * 2):
    torch.manual_seed(seed)
    torch.save(net().state_dict(), f"{name}{seed // 2 + 1}.pt")
rng = numpy.random.default_rng(0)
sizes = {"train": 96, "test": 48}.items()
pictures = {f"x_{split}": rng.random((n, 1, 8, 8), dtype="float32") for split, n in sizes}
labels = {f"y_{split}": numpy.arange(n) % 10 for split, n in sizes}
numpy.savez("small.npz", **pictures, **labels)


class Code:
    def __reduce__(self):
        return print, ("this code was run",)


torch.save({"model": a, "args": Code()}, "evil.pt")
"""

ON_DIGITS = "--data digits --width 32"
ON_CIFAR = "--data cifar10 --limit 400 --epochs 1 --no-augment"
MADE = (  # commands that make inputs, with the old program
    f"train mlp {ON_DIGITS} --epochs 25 --seed 1 -o a.safetensors",
    f"train mlp {ON_DIGITS} --epochs 25 --seed 2 -o b.safetensors",
    f"train mlp {ON_DIGITS} --epochs 25 --seed 3 -o c.safetensors",
    "train mlp --data digits --width 16 --epochs 1 --seed 1 -o narrow.safetensors",
    f"train mlp {ON_DIGITS} --norm batch --epochs 10 --seed 1 -o n1.safetensors",
    f"train mlp {ON_DIGITS} --norm batch --epochs 10 --seed 2 -o n2.safetensors",
    "train two_layer --data digits --width 48 --epochs 20 --seed 1 -o t1.safetensors",
    "train two_layer --data digits --width 48 --epochs 20 --seed 2 -o t2.safetensors",
    f"train resnet20 {ON_CIFAR} --width 0.25 --seed 1 -o r1.safetensors",
    f"train resnet20 {ON_CIFAR} --width 0.25 --seed 2 -o r2.safetensors",
    f"train tinyten {ON_CIFAR} --width 0.25 --seed 1 -o k1.safetensors",
    f"train tinyten {ON_CIFAR} --width 0.25 --seed 2 -o k2.safetensors",
    f"train vgg11 {ON_CIFAR} --width 0.125 --seed 1 -o v1.safetensors",
    f"train vgg11 {ON_CIFAR} --width 0.125 --seed 2 -o v2.safetensors",
    "align a.safetensors b.safetensors -o moved.safetensors",
    "align n1.safetensors n2.safetensors -o n2_moved.safetensors",
    "merge a.safetensors b.safetensors --method wm --repair none -o plain.safetensors",
    "merge n1.safetensors n2.safetensors --method wm --repair none -o n_plain.safetensors",
    "barrier a.safetensors b.safetensors --limit 200 --json-file baseline.json",
)

# ----------------------------------------------------------------------------------------------- commands

AB, ABC = "a.safetensors b.safetensors", "a.safetensors b.safetensors c.safetensors"
NN, TT, RR = "n1.safetensors n2.safetensors", "t1.safetensors t2.safetensors", "r1.safetensors r2.safetensors"
KK, VV = "k1.safetensors k2.safetensors", "v1.safetensors v2.safetensors"
SS, XX = "s1.pt s2.pt --net smallnet.py:SmallNet", "x1.pt x2.pt --net smallnet.py:NoBias"
PERM, OUT = "moved.perm.safetensors", "-o out.safetensors"
STE, STEMM = "--method ste --epochs 1", "--method ste-mm --epochs 1"
ENDS = "plain.safetensors --endpoints a.safetensors moved.safetensors"
N_ENDS = "n_plain.safetensors --endpoints n1.safetensors n2_moved.safetensors"
FEW, SMALL = "--limit 100", "--data npz:small.npz"


@dataclass(frozen=True)
class Command:
    """A command line, the exit code that is expected of the old program, and what the environment adds."""

    line: str
    code: int = 0
    env: tuple[tuple[str, str], ...] = ()


def ok(*lines: str) -> list[Command]:
    return [Command(line) for line in lines]


def refused(code: int, *lines: str, env: dict[str, str] | None = None) -> list[Command]:
    return [Command(line, code, tuple((env or {}).items())) for line in lines]


ALIGN = [
    *ok(
        f"align {AB} --json",
        f"align {AB} {OUT} -v --seed 7",
        f"align {AB} --effort high --json",
        f"align {AB} --effort fast -q --no-prove",
        f"align {AB} --memory 1MB --json",
        f"align {AB} --max-sweeps 2 --json",
        f"align {AB} --bound --json",
        f"align {TT} --bound",
        f"align {AB} --spec mlp --out-dtype float16",
        f"align {AB} --out-shard-size 5kB --json",
        f"align {AB} -o plain.safetensors --force",
        f"align {RR} --json",
        f"align {KK}",
        f"align {VV} --effort high --json",
        f"align {SS} --spec smallnet.yaml --json",
        f"align {SS} --spec infer --input 2x1x8x8 --json",
        f"align {XX} --spec infer --input 2x64",
        "align s1.pt s2.pt --net smallnet.py:Two --output logits --spec smallnet.yaml --json",
        "align s1.pt s2.pt --spec trusting.yaml --trust-code --json",
        "align bundle_a.pt bundle_b.pt --key ema.shadow --json",
        "align evil.pt bundle_b.pt --key model --unsafe-load",
        f"align {AB} --method am --json",
        f"align {AB} --method am --cost inner --at pre --limit 300 --json",
        f"align {AB} --method am --cost l2 --at both {FEW} --batch-size 40 -v",
        f"align {AB} --method am --data own.py:load --json",
        f"align {RR} --method am --sites first {FEW} --json",
        f"align {RR} --method am --sites last --cost inner {FEW} --json",
        f"align {AB} --method dual --json",
        f"align {NN} --method dual --mix 0.3 --cost l2 --at post --json",
        f"align {RR} --method dual --mix 0.8 --sites last {FEW} --max-sweeps 3 --json",
        f"align {AB} {STE} --log ste.log --json",
        f"align {AB} {STE} --optimizer sgd --lr 0.02 --share 0.5 --init identity --log ste.log -v",
        f"align {AB} {STE} --init {PERM} --precision bf16 --mixture uniform --json",
        f"align {AB} {STE} --parameter midpoint --init wm --checkpoint-every 3 --log ste.log --json",
        f"align {NN} {STE} --init am --limit 300 --json",
        f"align {AB} {STE} --loss own.py:squared --limit 300 --json",
        f"align {AB} --method merge-many --json",
        f"align {AB} --method universe --json",
        f"align {AB} {STEMM} --json",
        f"align {AB} --dry-run",
        f"align {RR} --dry-run --json",
        f"align {AB} {STE} --dry-run --json",
        f"align {AB} --method am --dry-run",
    ),
]
APPLY = [
    *ok(
        f"apply {PERM} b.safetensors --json",
        f"apply {PERM} moved.safetensors --invert {OUT}",
        f"apply {PERM} bundle_a.pt --key ema.shadow --out-dtype bfloat16 --out-shard-size 5kB {OUT} --json",
    ),
    *refused(3, f"apply {PERM} narrow.safetensors {OUT}"),
]
MERGE = [
    *ok(
        f"merge {AB} --json",
        f"merge {AB} -v",
        f"merge {AB} --repair none --json",
        f"merge {AB} --repair repair --json",
        f"merge {AB} --repair rescale",
        f"merge {AB} --repair reshift",
        f"merge {AB} --repair bias --json",
        f"merge {NN} --json",
        f"merge {NN} --repair reset --batch-size 100 --bake-temperature",
        f"merge {NN} --repair none",
        f"merge {RR} --method am {FEW} --json",
        f"merge {KK} --method am --repair reset {FEW}",
        f"merge {VV} --method am --repair repair {FEW} --json",
        f"merge {AB} --bake-temperature --json",
        f"merge {XX} --spec infer --input 2x64 --data digits --repair repair --allow-new-bias {OUT} --json",
        f"merge {XX} --spec infer --input 2x64 --data digits --repair repair {OUT} --json",
        f"merge {SS} --spec smallnet.yaml --data npz:small.npz {OUT} --json",
        f"merge {AB} --weights 0.7,0.3 --repair none",
        f"merge {AB} --interpolation slerp --json",
        f"merge {AB} --method none --repair none --interpolation slerp --weights 0.2,0.8",
        f"merge {AB} --perm {PERM} --json",
        f"merge {AB} --out-dtype float16 --out-shard-size 5kB --repair none",
        f"merge {ABC} --json",
        f"merge {ABC} --reference b.safetensors --weights 0.5,0.25,0.25 --repair none --json",
        f"merge {ABC} --method merge-many --json",
        f"merge {ABC} --method merge-many --seed 5 --max-sweeps 2 --repair none -v",
        f"merge {ABC} --method universe --json",
        f"merge {ABC} --method am --cost inner --json",
        f"merge {ABC} --method dual --mix 0.9 --repair none",
        f"merge {ABC} {STE} --limit 500 --log ste.log --json",
        f"merge {ABC} {STEMM} --limit 500 --log mm.log --json",
        f"merge {ABC} {STEMM} --limit 500 --weights-prior dirichlet --init identity --optimizer sgd",
        f"merge {AB} --dry-run",
        f"merge {ABC} --method merge-many --dry-run --json",
        f"merge {NN} --dry-run --json",
    ),
]
REPAIR = [
    *ok(
        f"repair {ENDS} --json",
        f"repair {ENDS} --repair auto {OUT}",
        f"repair {ENDS} --repair rescale {OUT} --json",
        f"repair {ENDS} --repair reshift --bake-temperature {OUT} --json",
        f"repair {ENDS} --repair bias {OUT}",
        f"repair {ENDS} --lambda 0.2 {OUT} --out-dtype float16",
        f"repair plain.safetensors --endpoints {AB} --perm {PERM} --seed 4 {OUT} --json",
        f"repair {N_ENDS} --repair reset {OUT} --json",
        f"repair {N_ENDS} --repair repair {OUT}",
        f"repair {N_ENDS} --repair auto {OUT} --out-shard-size 5kB",
    ),
    *refused(2, f"repair {ENDS} --repair none {OUT}", f"repair {ENDS} --repair reset {OUT}"),
    *refused(4, f"repair plain.safetensors --endpoints {AB} {OUT}"),
]
BARRIER = [
    *ok(
        f"barrier {AB} --limit 200",
        f"barrier {AB} --limit 200 --json",
        f"barrier {AB} --limit 200 --report report --max-barrier 100 --gate naive:train:accuracy>=0.01",
        f"barrier {AB} --limit 200 --baseline baseline.json --json",
        f"barrier {AB} {FEW} --json-file r.json --markdown r.md --html r.html --junit r.xml -q",
        f"barrier {AB} {FEW} --pair c.safetensors,moved.safetensors --json",
        f"barrier {AB} {FEW} --pair a.safetensors,c.safetensors --report report",
        f"barrier {AB} --full {FEW} --seed 3 --json",
        f"barrier {AB} --full --repair none --json",
        f"barrier {AB} --method none {FEW} --repair rescale",
        f"barrier {AB} --perm {PERM} {FEW} --repair reshift --json",
        f"barrier {AB} --method am --cost inner {FEW} --repair repair --json",
        f"barrier {AB} --method dual --mix 0.2 {FEW} --json",
        f"barrier {AB} {STE} {FEW} --json",
        f"barrier {AB} --loss own.py:squared --metric own.py:top2 {FEW} --json",
        f"barrier {NN} {FEW} --report report",
        f"barrier {NN} --method am --repair none {FEW} --batch-size 30",
        f"barrier {RR} --limit 40 --skip-checks --json",
        f"barrier {SS} --spec smallnet.yaml --data npz:small.npz --skip-checks --report report",
        f"barrier {AB} --dry-run",
        f"barrier {AB} --dry-run --json",
        f"barrier {NN} {STE} --pair {NN.replace(' ', ',')} --dry-run --json",
    ),
    *refused(
        1,
        f"barrier {AB} {FEW} --max-barrier 0.0001 --gate shipped:test:accuracy>=0.999 --junit r.xml",
        f"barrier {AB} {FEW} --method none --baseline baseline.json --baseline-tolerance 0.02 --json",
        f"barrier {AB} {FEW} --gate naive:test:midpoint<=0.01 --gate aligned:test:chord<=100 --report report",
    ),
    *refused(6, f"barrier {RR} --limit 40 --normalize 9/0.001"),
]
COMPARE = [
    *ok(
        f"compare {ABC} --limit 200",
        f"compare {ABC} --limit 200 --points 3 --method wm --method merge-many --method universe --json",
        f"compare {ABC} {FEW} --points 2 --method merge-many --once --report report",
        f"compare {ABC} {FEW} --points 2 --method none --json-file c.json --markdown c.md -q",
        f"compare {ABC} --limit 60 --points 1 --sharpness --probes 2 --json",
        f"compare {ABC} {FEW} --points 1 {STEMM} --weights-prior dirichlet --full --json",
        f"compare {NN} {FEW} --points 2 --repair reset --method wm --json",
        f"compare {ABC} --dry-run",
        f"compare {ABC} --method ste-mm --once --dry-run --json",
    ),
]
LOOK = [
    *ok(
        f"signature {AB}",
        f"signature {AB} --json --limit 200",
        f"signature {AB} --method am --stability 100,200,400 --plot s.png",
        f"signature {AB} --method am --at pre --stability 100,300 --json",
        f"signature {AB} --perm {PERM} --json",
        f"signature {AB} --method none --limit 200 --plot s.png",
        f"signature {RR} --method am --sites first {FEW} --json",
        f"doctor {AB}",
        f"doctor {AB} --json",
        f"doctor {NN} --limit 200",
        f"doctor {RR} {FEW} --json",
        "doctor b.safetensors moved.safetensors",
        "doctor a.safetensors a.safetensors --json",
        "doctor x1.pt x2.pt --spec infer --net smallnet.py:NoBias --input 2x64 --json",
        "verify b.safetensors moved.safetensors -o v.perm.safetensors",
        "verify b.safetensors moved.safetensors --json",
        "eval a.safetensors",
        "eval n1.safetensors --split train --limit 300 --json",
        f"eval r1.safetensors {FEW} --skip-checks --batch-size 32 --json",
        "eval a.safetensors --loss own.py:squared --metric own.py:top2 --json",
        "eval bundle_a.pt --key model --net mlp --data digits --normalize dataset --json",
        f"eval s1.pt --spec smallnet.yaml --net smallnet.py:Two --output logits {SMALL} --skip-checks --json",
        "inspect a.safetensors",
        "inspect r1.safetensors --json",
        f"inspect {PERM}",
        "inspect bundle_a.pt --key ema.shadow",
        "inspect s1.pt --json",
        "list",
        "list methods",
        "list reports",
        "--version",
    ),
    *refused(1, f"verify {AB}", f"verify {NN} --json"),
    *refused(6, "eval a.safetensors --normalize 5/0.01"),
]
SPEC = [
    *ok(
        "spec list",
        "spec show mlp a.safetensors",
        "spec show resnet20 --width 4 --json",
        "spec show smallnet.yaml s1.pt --json",
        "spec check mlp a.safetensors",
        "spec check smallnet.yaml s1.pt",
        "spec prove mlp a.safetensors --json",
        "spec prove resnet20 --width 0.25",
        "spec prove smallnet.yaml s1.pt --net smallnet.py:SmallNet --seed 2",
        "spec infer --net smallnet.py:SmallNet --input 1x1x8x8",
        "spec infer --net smallnet.py:SmallNet --checkpoint s1.pt -o inferred.yaml",
        "spec explain --net smallnet.py:SmallNet --input 1x1x8x8",
        "spec explain --net smallnet.py:SmallNet --input 1x1x8x8 --spec smallnet.yaml --tensors",
        "spec explain --net smallnet.py:SmallNet --input 1x1x8x8 --spec smallnet.yaml --json",
        "spec explain --net smallnet.py:SmallNet --input 1x1x8x8 --spec wrong.yaml",
        "spec import axes.json --checkpoint a.safetensors -o own.yaml",
        "spec import axes.json",
    ),
    *refused(
        4,
        "spec check two_layer a.safetensors",
        "spec check smallnet.yaml a.safetensors",
        "spec prove wrong.yaml s1.pt --net smallnet.py:SmallNet",
    ),
]
TRAIN = [
    *ok(
        "train mlp --data digits --width 24 --depth 2 --epochs 3 --seed 4 -o out.safetensors --json",
        "train mlp --data digits --width 24 --norm layer --optimizer sgd --learning-rate 0.05 --epochs 2 -v "
        f"--schedule constant --weight-decay 0.001 --batch-size 64 --precision float32 {OUT}",
        f"train tinyten --data cifar10 --limit 200 --width 0.25 --epochs 1 --augment {OUT} --json",
        "train two_layer --data mnist --limit 500 --epochs 1 --normalize unit -o a.safetensors --force",
        "train mlp --data npz:small.npz --width 16 --epochs 2 -o out.safetensors",
        "demo -o demo",
    ),
    *refused(2, "demo -o full"),
]
REFUSED = [
    *refused(
        2,
        f"align {AB} --method wmm {OUT}",
        f"align {AB} --mix 0.3 {OUT}",
        f"align {AB} --method am --epochs 2 {OUT}",
        f"align {AB} --method dual --at both {OUT}",
        f"align {AB} {STE} --weights-prior dirichlet {OUT}",
        f"align {AB} {STE} --precision fp64 {OUT}",
        f"align {AB} {STE} --init nothing.perm.safetensors {OUT}",
        f"align {AB} --log wm.log {OUT}",
        f"align {AB} {STE} --log a.safetensors {OUT}",
        f"align {AB} -o plain.safetensors",
        f"align {AB} --spec mpl {OUT}",
        f"align {AB} --spec infer {OUT}",
        f"align {AB} --resume {OUT}",
        f"align {AB} --effort extreme {OUT}",
        f"align {AB} --memory lots {OUT}",
        f"align {AB} --out-dtype float17 {OUT}",
        f"align {AB} --device cudo {OUT}",
        f"align {AB} --no-such-option",
        f"merge {AB} --weights 0.5,0.6",
        f"merge {AB} --weights 0.5,0.3,0.2",
        f"merge {AB} --repair rest",
        f"merge {AB} --repair reset",
        f"merge {AB} --repair rescale --allow-new-bias",
        f"merge {AB} --reference c.safetensors",
        f"merge {ABC} --perm {PERM}",
        f"merge {ABC} {STE} --init {PERM}",
        f"merge {ABC} --interpolation slerp",
        "merge a.safetensors",
        f"merge {SS} --spec smallnet.yaml {OUT}",
        f"merge {AB} --resume",
        f"barrier {AB} --pair c.safetensors",
        f"barrier {AB} --pair {NN.replace(' ', ',')}",
        f"barrier {AB} --perm {PERM} --pair a.safetensors,c.safetensors",
        f"barrier {AB} --gate shipped:test:accuracy>=95",
        f"barrier {AB} --gate nonsense",
        f"barrier {AB} --gate shiny:test:chord<=1",
        f"barrier {AB} --baseline axes.json",
        f"barrier {SS} --spec smallnet.yaml",
        f"barrier {AB} --repair bias",
        f"compare {AB} --repair repair",
        f"compare {AB} --method wm --epochs 2",
        f"signature {AB} --stability 100,200",
        f"signature {AB} --method am --stability 100",
        f"signature {AB} --method am --stability 100,200 --limit 50",
        "eval a.safetensors --data digitz",
        "train mlq --data digits -o out.safetensors",
        "train mlp --data digits -o a.safetensors",
        "train mlp --data digits -o out.safetensors --resume",
        "list things",
        "spec show mpl",
        "spec infer --net smallnet.py:Smallnet --input 1x1x8x8",
    ),
    *refused(
        3,
        "inspect garbage.safetensors",
        "align a.safetensors nowhere.safetensors",
        "inspect evil.pt",
        "inspect pointer.safetensors",
        f"merge {AB} --perm a.safetensors",
        "eval cut.safetensors",
    ),
    *refused(
        4,
        "align a.safetensors narrow.safetensors",
        f"align {AB} --spec two_layer",
        f"verify {AB.split()[0]} s1.pt",
    ),
    *refused(4, "align s1.pt s2.pt --spec wrong.yaml --net smallnet.py:SmallNet"),
    *refused(5, f"align {AB} -o nowhere/out.safetensors"),
    *refused(
        6, f"barrier {AB} --data cifar100", "train mlp --data fashion-mnist -o out.safetensors", env=NO_DATA
    ),
]
COMMANDS = (*ALIGN, *APPLY, *MERGE, *REPAIR, *BARRIER, *COMPARE, *LOOK, *SPEC, *TRAIN, *REFUSED)
