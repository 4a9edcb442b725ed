"""Derived or independent: p of strangers, z of copies, the variance in closed form, a large pair of files.

    python benchmarks/kin.py --work DIR [--pairs 190] [--recipes SGD …]
        [--stages closed random trained part power aligned nets hub large rotated] [--files FILE …]

REBASIN_DATA holds MNIST and CIFAR-10. Strangers learn the same images from other seeds, twenty at once, by a
plain loop of PyTorch; `nets` by `rebasin train`. What was measured is kept in DIR/kin.json, and models beside
it: a run that was killed goes on, and the tables at its end are of all that is there. `hub` needs
transformers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from scipy.stats import kstest
from torch import Tensor
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli import networks
from rebasin_cli.datasets import open_data
from rebasin_cli.learning.training import train as trained_by_rebasin
from rebasin_cli.measure.kin import by_columns, columns, effect, kin, orders, sampled
from rebasin_cli.measure.kin.draws import by_draws
from rebasin_cli.measure.kin.parts import parts_of
from rebasin_cli.measure.kin.variance import closed_variance
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.library import resolve_words
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation

Model = dict[str, Tensor]
K = 20  # strangers of one recipe
RECIPES: dict[str, dict[str, Any]] = {
    "SGD": {"data": "mnist", "optimizer": "sgd", "rate": 0.05, "epochs": 4},
    "SGD, 20 epochs": {"data": "mnist", "optimizer": "sgd", "rate": 0.05, "epochs": 20, "decay": 5e-4},
    "Adam, L2": {"data": "mnist", "optimizer": "adam", "rate": 1e-3, "epochs": 4, "decay": 1e-4},
    "AdamW, own orders": {"data": "mnist", "optimizer": "adamw", "rate": 1e-3, "epochs": 4, "own": True},
    "AdamW, shifted images": {
        "data": "mnist",
        "optimizer": "adamw",
        "rate": 1e-3,
        "epochs": 4,
        "shift": True,
    },
    "Adam": {"data": "cifar10", "optimizer": "adam", "rate": 1e-3, "epochs": 3},
}
SIZES = {"mnist": (784, 128, 128, 10), "cifar10": (3072, 64, 64, 10)}
IMAGES = {"mnist": 20_000, "cifar10": 10_000}


@cache
def images(name: str) -> tuple[Tensor, Tensor]:
    data = open_data(name, "train", limit=None, normalize="unit")
    x = torch.cat([inputs.flatten(1) for inputs, _ in data])[: IMAGES[name]]
    y = torch.cat([targets for _, targets in data])[: IMAGES[name]]
    return (x if name == "mnist" else x - 0.5), y


def forward(layers: list[Tensor], x: Tensor) -> Tensor:
    """Logits (K, N, classes) of K networks on inputs (N, d), or (K, N, d)."""
    x = x.expand(len(layers[0]), *x.shape) if x.ndim == 2 else x
    for k in range(0, len(layers), 2):
        x = torch.baddbmm(layers[k + 1][:, None], x, layers[k].transpose(1, 2))
        x = torch.relu(x) if k + 2 < len(layers) else x
    return x


def learn(layers: list[Tensor], x: Tensor, y: Tensor, recipe: dict[str, Any], seed: int) -> list[Tensor]:
    layers = [tensor.clone().requires_grad_() for tensor in layers]
    rate, decay = recipe["rate"], recipe.get("decay", 0.0)
    if recipe["optimizer"] == "sgd":
        optimizer: Any = torch.optim.SGD(layers, lr=rate, momentum=0.9, weight_decay=decay)
    else:
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe["optimizer"]]
        optimizer = kind(layers, lr=rate, weight_decay=0.01 if recipe["optimizer"] == "adamw" else decay)
    rng, count = torch.Generator().manual_seed(seed), len(layers[0])
    for _ in range(recipe["epochs"]):
        shared = torch.randperm(len(x), generator=rng)
        order = (
            torch.stack([torch.randperm(len(x), generator=rng) for _ in range(count)])
            if recipe.get("own")
            else shared
        )
        for start in range(0, len(x), 100):
            at = order[..., start : start + 100]
            inputs, targets = x[at], y[at]
            if recipe.get("shift"):
                down, right = torch.randint(-2, 3, (2,), generator=rng).tolist()
                padded = F.pad(inputs.view(-1, 28, 28), (2, 2, 2, 2))
                inputs = padded[:, 2 + down : 30 + down, 2 + right : 30 + right].reshape(-1, 784)
            logits = forward(layers, inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.expand(count, -1).flatten(), reduction="sum")
            optimizer.zero_grad()
            (loss / 100).backward()
            optimizer.step()
    return [tensor.detach() for tensor in layers]


def begun(sizes: tuple[int, ...], seed: int, count: int = K) -> list[Tensor]:
    rng, layers = torch.Generator().manual_seed(seed), []
    for i, o in itertools.pairwise(sizes):
        bound = i**-0.5
        layers.append((torch.rand(count, o, i, generator=rng) * 2 - 1) * bound)
        layers.append((torch.rand(count, o, generator=rng) * 2 - 1) * bound)
    return layers


def strangers(work: Path, name: str) -> list[Model]:
    recipe = RECIPES[name]
    path = work / f"{name.replace(' ', '_').replace(',', '')}.pt"
    if not path.exists():
        torch.save(learn(begun(SIZES[recipe["data"]], 0), *images(recipe["data"]), recipe, 1), path)
    return [named([tensor[k] for tensor in torch.load(path)]) for k in range(K)]


def named(layers: list[Tensor]) -> Model:
    names = [f"layers.{k}" for k in range(len(layers) // 2 - 1)] + ["head"]
    return {
        f"{n}.{w}": layers[2 * k + j] for k, n in enumerate(names) for j, w in enumerate(("weight", "bias"))
    }


def beyond(figures: list[dict[str, Any]], p: str, z: str) -> list[str]:
    ps, zs = ([one[which] for one in figures if which in one] for which in (p, z))
    if not ps:
        return ["", "", "", "", ""]
    spread = torch.tensor(zs, dtype=torch.float64)
    return [
        f"{spread.mean():.2f} ± {spread.std():.2f}",
        f"{100 * (spread > 1.645).double().mean():.1f} %",
        f"{min(ps):.3f}",
        f"{sum(each <= 0.001 for each in ps)}",
        f"{kstest(ps, 'uniform').pvalue:.2f}",
    ]


# ------------------------------------------------------------------------------------------------- stages


CLOSED = {
    "one word": ({"w": "h ."}, {"w": (32, 20)}, ""),
    "two words": ({"v": "g h", "w": "h g"}, {"v": (24, 16), "w": (16, 24)}, ""),
    "kernels": ({"w": "g h ..."}, {"w": (16, 12, 3, 3)}, ""),
    "stacked (3 h)": ({"w": "(3 h) ."}, {"w": (48, 20)}, ""),
    "flattened (h 4)": ({"w": "g (h 4)"}, {"w": (12, 64)}, ""),
    "starred (k d*)": ({"w": "(k d*) s"}, {"w": (24, 16)}, "sizes: {k: 4}\n"),
    "packed (3 k d*)": ({"w": "(3 k d*) s"}, {"w": (72, 16)}, "sizes: {k: 4}\n"),
}


Rows = Iterator[tuple[str, Callable[[], dict[str, Any]]]]  # by name, each measured where it is not known yet


def closed(work: Path, asked: Any) -> Rows:
    for name in CLOSED:
        yield name, partial(_closed, *CLOSED[name])


def _closed(lines: dict[str, str], shapes: dict[str, tuple[int, ...]], more: str) -> dict[str, Any]:
    text = "schema: 1\ntensors:\n" + "".join(f'  {n}: "{axes}"\n' for n, axes in lines.items()) + more
    fitted = fit(parse(text, name="own"), shapes)
    a, b = (
        {n: torch.randn(s, generator=torch.Generator().manual_seed(k)) for n, s in shapes.items()}
        for k in range(2)
    )
    found = sampled.sample(a, b, fitted)
    parts, _ = parts_of(found, [*orders.atoms(found.fitted)], {}, found.fitted.within)
    variance = closed_variance(parts, fitted.within)
    drawn = by_draws(parts, fitted.words, fitted.within, 40_000, 0)
    return {"closed": variance, "drawn": float(drawn.var())}


def random(work: Path, asked: Any) -> Rows:
    for k in range(500):
        yield f"{k}", partial(_random, k)


def _random(k: int) -> dict[str, Any]:
    layers = begun(SIZES["mnist"], 1_000 + k, 2)
    a, b = (named([tensor[j] for tensor in layers]) for j in range(2))
    found = orders.in_place(sampled.sample(a, b, resolve_words(None, [a])), seed=k)
    return {"p": found.p, "z": found.z}


def trained(work: Path, asked: Any) -> Rows:
    for recipe in asked.recipes:
        its, models = RECIPES[recipe], strangers(work, recipe)
        fitted = resolve_words(None, models[:1])
        still = columns.still(columns.read([images(its["data"])]), models[0], fitted)
        for i, j in list(itertools.combinations(range(K), 2))[: asked.pairs]:
            yield f"{recipe}: {i} {j}", partial(_pair, models[i], models[j], fitted, still, 100 * i + j)


def part(work: Path, asked: Any) -> Rows:
    """By pairs of `--files` mlp*, strangers that learned all of MNIST: a part of it as the training data."""
    files = [path for path in asked.files if path.stem.startswith("mlp")]
    for count, k in itertools.product((20_000, 60_000), range(0, len(files) - 1, 2)):
        yield f"{count:,}: {k}", partial(_part, files[k], files[k + 1], count)


def _part(one: Path, other: Path, count: int) -> dict[str, Any]:
    a, b = (dict(rebasin_cli.open_checkpoint(path)) for path in (one, other))
    data = open_data("mnist", "train", limit=None, normalize="unit")
    x = torch.cat([inputs.flatten(1) for inputs, _ in data])[:count]
    fitted = resolve_words(None, [a])
    (still,) = columns.still(columns.read([(x, None)]), a, fitted)
    blocks = [columns._rows(model[still.tensor], still) for model in (a, b)]
    z = [columns._common([block - block.mean(0)], 0) for block in blocks]
    limit, columns.MOVED = columns.MOVED, float("inf")
    found = by_columns(a, b, fitted, [still])
    columns.MOVED = limit
    return {"columns": len(still.positions), "p": found.p, "z": found.z, "check": z}


def _pair(a: Model, b: Model, fitted: Any, still: list[columns.Still], seed: int) -> dict[str, Any]:
    found = sampled.sample(a, b, fitted)
    place = orders.in_place(found, seed=seed)
    rho = effect.correlation(found.a, found.b, found.matrices, found.fitted, match=True, seed=seed)
    row = {"p": place.p, "z": place.z, "rho": rho}
    if sum(len(one.positions) for one in still) < columns.LEAST:
        return row
    again = by_columns(a, b, fitted, still, seed=seed)
    return row | ({"refused": 1} if again.why else {"p of columns": again.p, "z of columns": again.z})


def copies(a: Model, other: Model, x: Tensor, y: Tensor) -> Iterator[tuple[str, Model]]:
    rng = torch.Generator().manual_seed(12_345)  # of other numbers than the first values
    stack = [tensor[None] for tensor in a.values()]
    again = {"data": "mnist", "optimizer": "sgd", "rate": 0.05, "epochs": 2}
    yield (
        "tuned on other labels, 2 epochs",
        named([t[0] for t in learn(stack, x, (3 * y + 1) % 10, again, 5)]),
    )
    for much in (1, 3, 10):
        yield (
            f"noise of {much} σ",
            {
                n: t + much * t.std() * torch.randn(t.shape, generator=rng) if t.ndim > 1 else t
                for n, t in a.items()
            },
        )
    least = {n: t.abs().flatten().kthvalue(int(0.98 * t.numel())).values for n, t in a.items() if t.ndim > 1}
    yield "98 % pruned", {n: t * (t.abs() > least[n]) if n in least else t for n, t in a.items()}
    step = {n: t.abs().amax(1, keepdim=True) / 7 for n, t in a.items() if t.ndim > 1}
    yield "rounded to int4", {n: (t / step[n]).round() * step[n] if n in step else t for n, t in a.items()}
    for part, called in ((0.5, "half"), (0.25, "a quarter"), (0.1, "a tenth")):
        yield f"{called} of a merge", {n: part * t + (1 - part) * other[n] for n, t in a.items()}


def power(work: Path, asked: Any) -> Rows:
    for recipe in ("SGD", "Adam, L2"):
        models = strangers(work, recipe)
        fitted, (x, y) = resolve_words(None, models[:1]), images("mnist")
        for k in range(3):
            perms = permutation.random(fitted.words, torch.Generator().manual_seed(k), within=fitted.within)
            for name, copy in copies(models[2 * k], models[2 * k + 1], x, y):
                for how, b in (("", copy), (", relabelled", dict(permutation.permuted(copy, fitted, perms)))):
                    yield f"{name}{how}: {recipe} {k}", partial(told, models[2 * k], b, fitted, [(x, y)])


def told(a: Model, b: Model, fitted: Any, data: Any = None) -> dict[str, Any]:
    found = kin(a, b, fitted, data=data)
    row = {"verdict": found.verdict, "p": found.in_place.p, "z": found.in_place.z, "rho": found.effect}
    if found.relabelled is not None and not found.relabelled.why:
        row |= {"p of columns": found.relabelled.p, "z of columns": found.relabelled.z}
    return row


def aligned(work: Path, asked: Any) -> Rows:
    for recipe in ("SGD", "SGD, 20 epochs", "Adam, L2", "Adam"):
        models, data = strangers(work, recipe), images(RECIPES[recipe]["data"])
        fitted = resolve_words(None, models[:1])
        network = networks.from_reference("mlp", {n: tuple(t.shape) for n, t in models[0].items()})
        batches = [(data[0][:4_000], data[1][:4_000])]
        for k, method in itertools.product(range(3), ("wm", "am", "dual")):
            more = {} if method == "wm" else {"network": network, "data": batches, "prove": False}
            pair = models[2 * k], models[2 * k + 1]
            yield (
                f"strangers aligned by {method}: {recipe} {k}",
                partial(_aligned, *pair, fitted, data, method, more),
            )


def _aligned(a: Model, b: Model, fitted: Any, data: Any, method: str, more: dict[str, Any]) -> dict[str, Any]:
    return told(a, dict(rebasin_cli.align(a, b, fitted, method=method, **more).tensors), fitted, [data])


NETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "CNN (tinyten, BatchNorm)": ("tinyten", "cifar10", {"width": 1}),
    "ViT": ("vit", "cifar10", {"width": 48, "depth": 3}),
    "GPT": ("gpt", "alice", {"width": 48, "depth": 3}),
}


def nets(work: Path, asked: Any) -> Rows:
    for name, (net, data, how) in NETS.items():
        path = work / f"{net}.pt"
        if not path.exists():
            found = [
                trained_by_rebasin(net, data, epochs=1, limit=2_000, batch_size=50, seed=seed, **how).tensors
                for seed in range(8)
            ]
            torch.save([dict(tensors) for tensors in found], path)
        models = torch.load(path)
        fitted = resolve_words(None, models[:1])
        for i, j in itertools.combinations(range(8), 2):
            yield f"strangers: {name} {i} {j}", partial(_place, models[i], models[j], fitted, 100 * i + j)
        for k in range(3):
            tuned = tuned_network(net, data, models[k])
            noise = {
                n: t + 3 * t.std() * torch.randn(t.shape, generator=torch.Generator().manual_seed(12_345 + k))
                if t.ndim > 1
                else t
                for n, t in models[k].items()
            }
            tenth = {
                n: 0.1 * t + 0.9 * models[k + 1][n] if t.is_floating_point() else t
                for n, t in models[k].items()
            }
            for called, b in (("tuned", tuned), ("noise of 3 σ", noise), ("a tenth of a merge", tenth)):
                yield f"{called}: {name} {k}", partial(told, models[k], b, fitted)


def _place(a: Model, b: Model, fitted: Any, seed: int) -> dict[str, Any]:
    place = orders.in_place(sampled.sample(a, b, fitted), seed=seed)
    return {"p": place.p, "z": place.z, "closed": place.closed}


def tuned_network(net: str, data: str, model: Model) -> Model:
    """Some 40 steps more, by a plain loop, on other samples."""
    network = networks.load(
        networks.from_reference(net, {n: tuple(t.shape) for n, t in model.items()}), model
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    network.train()
    for inputs, targets in itertools.islice(open_data(data, "test", batch_size=50), 40):
        optimizer.zero_grad()
        F.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


HUB = ("gpt2", "llama", "bert")


def hub(work: Path, asked: Any) -> Rows:
    """Tiny models of transformers' own classes, two seeds, fine-tuned: by the command, on folders."""
    import transformers

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 120}
    sizes |= {"intermediate_size": 96, "max_position_embeddings": 64}
    for name in HUB:
        config = transformers.AutoConfig.for_model(name, **sizes)
        kind = transformers.AutoModelForMaskedLM if name == "bert" else transformers.AutoModelForCausalLM
        folders = []
        for seed in range(2):
            torch.manual_seed(seed)
            network = kind.from_config(config)
            optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
            for step in range(180):
                if step == 120:
                    network.save_pretrained(work / f"{name}{seed}")
                ids = (torch.arange(32)[None] * torch.randint(1, 9, (16, 1)) + step) % 120
                optimizer.zero_grad()
                network(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()
            network.save_pretrained(work / f"{name}{seed}tuned")
            folders.append(work / f"{name}{seed}")
        for what, b in (("strangers", folders[1]), ("tuned", work / f"{name}0tuned")):
            yield f"{what}: transformers' {name}", partial(_command, folders[0], b)


def _command(a: Path, b: Path) -> dict[str, Any]:
    line = [sys.executable, "-m", "rebasin_cli", "kin", str(a), str(b), "--json", "-q"]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found = json.loads(done.stdout)
    figures = {"verdict": found["verdict"], "p": found["in_place"]["p"], "z": found["in_place"]["z"]}
    return figures | {"rho": float(found["effect"]["rho"])}


def llama(width: int, hidden: int, depth: int, vocabulary: int = 32_000) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, width)}
    for k in range(depth):
        at = f"model.layers.{k}."
        shapes |= {f"{at}self_attn.{w}_proj.weight": (width, width) for w in "qkvo"}
        shapes |= {f"{at}mlp.{w}_proj.weight": (hidden, width) for w in ("gate", "up")}
        shapes |= {f"{at}mlp.down_proj.weight": (width, hidden)}
        shapes |= {f"{at}{w}_layernorm.weight": (width,) for w in ("input", "post_attention")}
    return shapes | {"model.norm.weight": (width,), "lm_head.weight": (vocabulary, width)}


LAYERS = 32  # of the large pair: 13.5 GB each
BLOCK = 160_000_000  # values that are drawn; every tensor has some of them, from a place of its own


def large(work: Path, asked: Any) -> Rows:
    """Folders of a Llama of 7 B in bfloat16, a shard a layer, by the command; both ways with a cold cache."""
    shapes, a = llama(4096, 11008, asked.layers), work / "large" / "a"
    for name in ("stranger", "copy"):
        rows = [f"{name}, {asked.layers} layers, run {run}" for run in range(asked.runs)]
        if not all(row in asked.kept.get("large", {}) for row in rows):
            for folder in (a, a.parent / name):
                if not (folder / INDEX).exists():
                    shards(folder, shapes, folder.name, asked.layers)
        for row in rows:
            yield row, partial(_large, a, a.parent / name)
        shutil.rmtree(a.parent / name, ignore_errors=True)
    shutil.rmtree(a.parent, ignore_errors=True)


INDEX = "model.safetensors.index.json"


def shards(folder: Path, shapes: dict[str, tuple[int, ...]], which: str, layers: int) -> None:
    """A model written shard by shard: `a`, a stranger, or a copy of `a` in noise of 3 σ."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = [
        torch.empty(BLOCK, dtype=torch.bfloat16).normal_(0, 0.02, generator=torch.Generator().manual_seed(k))
        for k in range(2)
    ]

    def some(name: str, k: int) -> Tensor:
        size = torch.Size(shapes[name]).numel()
        start = (hash_of(name) * 7919) % (BLOCK - size)
        return blocks[k][start : start + size].reshape(shapes[name])

    index = {}
    for name in shapes:
        place = name.split(".")[2] if ".layers." in name else "ends"
        index[name] = f"model-{place}.safetensors"
    for file in dict.fromkeys(index.values()):
        own = [name for name, its in index.items() if its == file]
        made = {
            n: (some(n, int(which == "stranger")) + (3 * some(n, 1) if which == "copy" else 0)).contiguous()
            for n in own
        }
        save_file(made, folder / file)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096}
    config |= {"intermediate_size": 11008, "num_hidden_layers": layers, "vocab_size": 32_000}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))


def _large(a: Path, b: Path) -> dict[str, Any]:
    files = [str(path) for folder in (a, b) for path in sorted(folder.glob("*.safetensors"))]
    size = sum(os.path.getsize(file) for file in files)
    forget(files)
    reading = spent(["-c", READING, *files])
    forget(files)
    ours = spent(["-m", "rebasin_cli", "kin", str(a), str(b), "--json", "-q"])
    found, imports = json.loads(ours["out"]), spent(["-c", IMPORTS])
    row = {"verdict": found["verdict"], "z": found["in_place"]["z"], "gigabytes": size / 1e9}
    row |= {"read": found["read"] / size, "seconds": ours["seconds"], "wall": ours["wall"]}
    row |= {"reading": reading["seconds"], "wall of reading": reading["wall"]}
    row |= {"imports": imports["seconds"], "peak": ours["peak"], "peak of imports": imports["peak"]}
    return row


def forget(files: list[str]) -> None:
    """No page of these stays in the cache."""
    for file in files:
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


READING = """
import sys
buffer = bytearray(1 << 24)
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
"""
IMPORTS = "import torch, rebasin_cli.commands.kin"


def hash_of(name: str) -> int:
    return sum((k + 1) * ord(letter) for k, letter in enumerate(name))


def spent(words: list[str]) -> dict[str, Any]:
    """A process of ours: what it printed, its processor seconds, seconds, and its largest memory, in MB."""
    script = """
import resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run([sys.executable, *sys.argv[1:]], capture_output=True, text=True)
wall = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
sys.stderr.write(done.stderr * bool(done.returncode))
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, wall)
print(done.stdout)
sys.exit(done.returncode)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    first, _, rest = done.stdout.partition("\n")
    seconds, peak, wall = map(float, first.split())
    return {"seconds": seconds, "peak": peak, "wall": wall, "out": rest}


def rotated(work: Path, asked: Any) -> Rows:
    """By `--files` of one architecture: strangers, and the first one with the units of a layer rotated."""
    models = [dict(rebasin_cli.open_checkpoint(path)) for path in asked.files]
    if not models:
        return
    fitted, name = resolve_words(None, models[:1]), asked.files[0].stem.partition(".")[0]
    for i, j in itertools.combinations(range(len(models)), 2):
        yield f"{name}, strangers: {i} {j}", partial(_rotated, models[i], models[j], fitted)
    a, other = models[0], models[1]
    rng = torch.Generator().manual_seed(0)
    noise = {n: t.std() * torch.randn(t.shape, generator=rng) if t.ndim > 1 else t for n, t in a.items()}
    copies = {"rotated": a}
    copies |= {f"rotated, noise of {k} σ": {n: t + k * noise[n] for n, t in a.items()} for k in (0.3, 1)}
    copies["rotated, half of a merge"] = {n: (t + other[n]) / 2 for n, t in a.items()}
    for called, b in copies.items():
        first = next(n for n, t in b.items() if t.ndim == 2)
        size = len(b[first])
        turn = torch.linalg.qr(torch.randn(size, size, generator=rng))[0]
        yield f"{name}, {called}: 0", partial(_rotated, a, b | {first: turn @ b[first]}, fitted)


def _rotated(a: Model, b: Model, fitted: Any) -> dict[str, Any]:
    found = sampled.sample(a, b, fitted)
    return {"rotated": effect.rotated(found.a, found.b, found.fitted)}


STAGES: dict[str, Callable[[Path, Any], Rows]] = {
    "closed": closed,
    "random": random,
    "trained": trained,
    "part": part,
    "power": power,
    "aligned": aligned,
    "nets": nets,
    "hub": hub,
    "large": large,
    "rotated": rotated,
}


# ------------------------------------------------------------------------------------------------- tables


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    print(f"\n{title}\n")
    print(f"| date | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}")
    for row in rows:
        print(f"| {date.today()} | {' | '.join(row)} |")


def tables(kept: dict[str, dict[str, Any]]) -> None:
    def of(stage: str, begin: str = "") -> dict[str, dict[str, Any]]:
        return {k: v for k, v in kept.get(stage, {}).items() if k.startswith(begin)}

    rows = [[n, f"{v['closed']:.5f}", f"{v['drawn']:.5f}"] for n, v in of("closed").items()]
    table("Variance in closed form, and of 40,000 draws:", ["axes", "closed", "drawn"], rows)
    names = ["strangers", "test", "pairs", "z", "beyond 1.645", "least p", "p ≤ 0.001", "KS", "ρ"]
    rows = []
    if found := [*of("random").values()]:
        rows.append(
            ["MLP 784-128-128-10, untrained", "in place", str(len(found)), *beyond(found, "p", "z"), ""]
        )
    for recipe in RECIPES:
        found = [*of("trained", f"{recipe}: ").values()]
        if not found:
            continue
        what = f"{RECIPES[recipe]['data']}, {recipe}"
        rho = [one["rho"] for one in found]
        of_columns = [one for one in found if "p of columns" in one]
        ends = f"{min(rho):.2f} – {max(rho):.2f}"
        rows.append([what, "in place", str(len(found)), *beyond(found, "p", "z"), ends])
        refused = sum("refused" in one for one in found)
        if of_columns or refused:
            count = f"{len(of_columns)}" + f"; {refused} refused: columns moved" * bool(refused)
            figures = beyond(of_columns, "p of columns", "z of columns")
            rows.append([what, "relabelled", count, *figures, ""])
    for name in NETS:
        if found := [*of("nets", f"strangers: {name} ").values()]:
            rows.append([name, "in place", str(len(found)), *beyond(found, "p", "z"), ""])
    table("p and z of strangers:", names, rows)
    groups: dict[str, list[dict[str, Any]]] = {}
    for stage in ("power", "aligned", "nets", "hub"):
        for key, row in of(stage).items():
            if "verdict" in row:
                what, _, rest = key.partition(": ")
                of_what = rest if stage == "hub" else rest.rpartition(" ")[0]
                groups.setdefault(f"{what}, {of_what}", []).append(row)
    rows = [[name, *_copies(its)] for name, its in groups.items()]
    table(
        "Copies, and strangers that were aligned:",
        ["copy", "z in place", "z relabelled", "ρ", "verdict"],
        rows,
    )
    alike: dict[str, list[float]] = {}
    for key, row in of("rotated").items():
        alike.setdefault(key.rpartition(": ")[0], []).append(row["rotated"])
    rows = [[name, str(len(its)), f"{min(its):.3f} – {max(its):.3f}"] for name, its in alike.items()]
    table("Copies whose units were rotated:", ["pairs", "how many", "ρ of inner products"], rows)
    rows = [
        [n, str(v["columns"]), f"{v['p']:.3f}", f"{v['z']:.1f}", ", ".join(f"{z:.1f}" for z in v["check"])]
        for n, v in of("part").items()
    ]
    names = ["images: pair", "columns that stay", "p without the check", "z without it", "z of the check"]
    table("A part of the training data:", names, rows)
    keys = ("gigabytes", "read", "z", "seconds", "reading", "imports", "wall", "wall of reading", "peak")
    keys = (*keys, "peak of imports")
    rows = [[n, *(f"{v[k]:.3g}" if k in v else "" for k in keys)] for n, v in of("large").items()]
    names = ["B", "GB", "share read", "z", "processor s", "plain reading of both", "imports alone"]
    names += ["wall s", "plain reading of both", "peak MB", "imports MB"]
    table("A Llama of 7 B, folders of shards in bfloat16, one thread, a cold cache:", names, rows)


def _copies(rows: list[dict[str, Any]]) -> list[str]:
    def ends(key: str) -> str:
        values = [row[key] for row in rows if key in row]
        digits = 2 if key == "rho" else 1
        return "" if not values else f"{min(values):.{digits}f} – {max(values):.{digits}f}"

    verdicts: dict[str, int] = {}
    for row in rows:
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    return [ends("z"), ends("z of columns"), ends("rho"), ", ".join(f"{n} {v}" for v, n in verdicts.items())]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--stages", nargs="*", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--pairs", type=int, default=190)
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the stage large")
    parser.add_argument("--runs", type=int, default=2, help="of the stage large")
    parser.add_argument("--files", nargs="*", type=Path, default=[], help="of the stages part and rotated")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    state = asked.work / "kin.json"
    kept: dict[str, dict[str, Any]] = json.loads(state.read_text()) if state.exists() else {}
    asked.kept = kept
    for stage in asked.stages:
        own, last = kept.setdefault(stage, {}), time.time()
        for key, row in STAGES[stage](asked.work, asked):
            if key not in own:
                own[key] = row()
            if time.time() - last > 5:
                state.write_text(json.dumps(kept))
                print(stage, key, file=sys.stderr, flush=True)
                last = time.time()
        state.write_text(json.dumps(kept))
    tables(kept)


if __name__ == "__main__":
    main()
