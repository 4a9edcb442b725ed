"""The largest cosine that a matching finds by chance: by search of two fresh networks, and in closed form.

    python benchmarks/chance.py

What `rebasin doctor` compares of weights (`weigh`). Two networks of other seeds have nothing in common, so
that the search finds what there is by chance; the closed form is the most that is expected.
"""

from __future__ import annotations

import torch
from _rows import heading, row

from rebasin_cli import nets
from rebasin_cli.measure.diagnosis.weights import weigh
from rebasin_cli.spec import library

NETWORKS = {  # name: (net, input, width)
    **{f"mlp, width {width}": ("mlp", (1, 28, 28), width) for width in (16, 64, 256, 512)},
    **{f"resnet20, {width}×": ("resnet20", (3, 32, 32), width) for width in (1, 4)},
}


def fresh(net: str, shape: tuple[int, ...], width: int, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return nets.build(net, input_shape=shape, classes=10, width=width).state_dict()


def main() -> None:
    torch.set_num_threads(1)
    heading("network", "by search", "in closed form", "share")
    for name, what in NETWORKS.items():
        a, b = (fresh(*what, seed) for seed in range(2))
        found = weigh(a, b, library.resolve_spec(what[0], [a, b]))
        figures = (found.aligned_cosine, found.chance, found.aligned_cosine / found.chance)
        row(name, *(f"{figure:.3f}" for figure in figures))


if __name__ == "__main__":
    main()
