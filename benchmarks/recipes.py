"""The objective of weight matching beside Algorithm 1's, on pairs that were trained by ten other recipes.

    python benchmarks/recipes.py [--width 256] [--seeds 5] [--pairs-in DIR]

`rebasin train` makes networks of one kind: Kaiming's uniform initialisation, Adam, a cosine. What holds of
those need not hold of others, so each pair here has another initialisation, optimizer, decay or dropout:
MNIST, mlp 3 × width, EPOCHS epochs. "plain" is Algorithm 1 in float32 that leaves out what nothing changed
for (benchmarks/weight_matching.py), in random orders of words by seeds 0, 1, …; wm has the same seeds.
Columns: the objectives' means over the seeds, the difference of wm's in % of plain's, how many seeds of wm
are below the same seed of plain, and wm's worst run beside plain's best. The pairs are kept in DIR.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean

import torch
from _rows import Case, begin, described, heading, parser, row
from safetensors.torch import load_file, save_file
from torch import nn
from weight_matching import plain

from rebasin_cli import datasets, nets
from rebasin_cli.matchers import wm
from rebasin_cli.runtime.seeds import seeded

EPOCHS, BATCH = 3, 128
FULL = 600.0  # seconds that a plain run may take


@dataclass(frozen=True)
class Recipe:
    """How a pair is trained, where it differs from what `rebasin train` does."""

    init: Callable[[torch.Tensor], object] | None = None
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
    rate: float = 1e-3
    decay: float = 0.0
    momentum: float | None = None
    dropout: float = 0.0
    cosine: bool = True


RECIPES = {
    "SGD, rate 0.1": Recipe(optimizer=torch.optim.SGD, rate=0.1),
    "SGD, momentum 0.9, decay 5e-4": Recipe(optimizer=torch.optim.SGD, rate=0.02, momentum=0.9, decay=5e-4),
    "Adam, constant rate": Recipe(cosine=False),
    "Adam, dropout 0.5": Recipe(dropout=0.5),
    "AdamW, decay 0.1": Recipe(optimizer=torch.optim.AdamW, decay=0.1),
    "RMSprop": Recipe(optimizer=torch.optim.RMSprop, rate=5e-4),
    "orthogonal, SGD": Recipe(nn.init.orthogonal_, torch.optim.SGD, 0.1),
    "Kaiming normal, Adam": Recipe(nn.init.kaiming_normal_),
    "Xavier normal, Adam, rate 3e-3": Recipe(nn.init.xavier_normal_, rate=3e-3),
    "normal 0.02, SGD with momentum": Recipe(
        lambda t: nn.init.normal_(t, std=0.02), torch.optim.SGD, 0.05, momentum=0.9
    ),
}


def trained(recipe: Recipe, seed: int, width: int) -> dict[str, torch.Tensor]:
    """One network's tensors."""
    with seeded(seed, "recipes"):
        network = nets.build("mlp", input_shape=(1, 28, 28), classes=10, width=width)
        for weight in (p for p in network.parameters() if p.ndim == 2 and recipe.init is not None):
            recipe.init(weight)
        images, targets = _digits()
        settings = {"lr": recipe.rate, "weight_decay": recipe.decay}
        settings |= {} if recipe.momentum is None else {"momentum": recipe.momentum}
        optimizer = recipe.optimizer(network.parameters(), **settings)
        steps = EPOCHS * (len(images) // BATCH)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if recipe.cosine else None
        layers = [
            layer for hidden in network.layers for layer in (hidden, nn.ReLU(), nn.Dropout(recipe.dropout))
        ]
        body = nn.Sequential(nn.Flatten(), *layers, network.head).train()
        for _ in range(EPOCHS):
            for some in torch.randperm(len(images))[: len(images) // BATCH * BATCH].split(BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(body(images[some]), targets[some]).backward()
                optimizer.step()
                if schedule is not None:
                    schedule.step()
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


@cache
def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    batches = list(datasets.open_data("mnist", split="train", normalize="dataset"))
    return tuple(torch.cat(side) for side in zip(*batches, strict=True))


def pair(folder: Path, name: str, width: int) -> Case:
    """The two networks of a recipe, trained where the folder has them not."""
    stem = re.sub(r"[^a-zA-Z0-9.-]+", "_", f"{name} {width}")
    files = [folder / f"{stem}_{seed}.safetensors" for seed in (0, 1)]
    for seed, file in enumerate(files):
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            save_file(trained(RECIPES[name], seed, width), file)
    a, b = map(load_file, files)
    return Case(name, described(a), a, b)


def main() -> None:
    found = parser(__doc__, rows=False)
    found.add_argument("--width", type=int, default=256)
    found.add_argument("--seeds", type=int, default=5)
    found.add_argument("--pairs-in", type=Path, default=Path("runs/recipes"), metavar="DIR")
    arguments = begin(found)
    heading("recipe", "plain", "wm", "difference", "seeds below", "wm's worst − plain's best")
    for name in RECIPES:
        case = pair(arguments.pairs_in, name, arguments.width)
        low = [
            case.reached(plain(case.fitted, case.a, case.b, FULL, seed, skipping=True)[0])
            for seed in range(arguments.seeds)
        ]
        high = [case.reached(wm.match(case.problem(seed)).permutations[0]) for seed in range(arguments.seeds)]
        below = sum(here < there for here, there in zip(high, low, strict=True))
        row(
            *(name, f"{mean(low):.2f}", f"{mean(high):.2f}", f"{mean(high) / mean(low) - 1:+.3%}"),
            *(f"{below} of {arguments.seeds}", f"{min(high) / max(low) - 1:+.3%}"),
        )


if __name__ == "__main__":
    main()
