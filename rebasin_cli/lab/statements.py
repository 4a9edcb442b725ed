"""Statements of the papers that a computation settles.

Counts of symmetries, a distribution, an inequality: nothing is trained.
"""

from __future__ import annotations

import math

import torch

from .. import nets
from ..spec import library
from ..spec.fits import fit
from .engine.bench import Bench
from .engine.claims import Claim, Line, Outcome, Panel, Table, exact

PAPER = "Git Re-Basin Table 1; STE-MM §4.1; Neuron Alignment C.2"
FASTER = "nothing: it takes two minutes at most"

# Exponents of ten of Git Re-Basin's Table 1; our VGG16 has one layer behind its convolutions, the first of
# that name had two more of 4096 units.
NEAR = 1e-3  # of the exponent: both counts differ in biases, norms or rounding, not in their layers
COUNTS: dict[str, tuple[int, tuple[int, ...], int, tuple[int, ...]]] = {
    "mlp": (3498, (1, 28, 28), 10, ()),
    "vgg16": (35160, (3, 32, 32), 10, (4096, 4096)),
    "resnet50": (55109, (3, 224, 224), 1000, ()),
}


def symmetries(
    net: str, shape: tuple[int, ...], classes: int, more: tuple[int, ...] = ()
) -> tuple[float, float]:
    """log10 of the networks that compute the same, with layers of `more` units too.

    First with channels that are added to one another tied, as they have to be; then with nothing tied and
    shortcuts left out.
    """
    network = nets.without_values(net, input_shape=shape, classes=classes)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    *hidden, _ = (
        module.weight.shape[0]
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear) and "downsample" not in name
    )
    rest = sum(math.lgamma(size + 1) for size in more) / math.log(10)
    untied = sum(math.lgamma(size + 1) for size in hidden) / math.log(10)
    return fit(library.load(net), shapes).log10_symmetries() + rest, untied + rest


def spreads(models: int, draws: int, generator: torch.Generator) -> tuple[float, float]:
    """The standard deviation of a weight U/ΣU over draws, and its standard error."""
    uniform = torch.rand(draws, models, generator=generator, dtype=torch.float64)
    weights = (uniform / uniform.sum(1, keepdim=True))[:, 0]
    squares = (weights - 1 / models) ** 2
    spread = float(squares.mean().sqrt())
    return spread, float(squares.std() / math.sqrt(draws) / (2 * spread))


def even(models: int) -> float:
    """The standard deviation of a weight that is uniform on the simplex (Dirichlet of ones)."""
    return math.sqrt((models - 1) / (models**2 * (models + 1)))


def stretched(one: list[float], other: list[float]) -> float:
    """‖a + b‖ / (‖a‖ + ‖b‖): 1 where the triangle inequality is an equation."""
    a, b = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    return float((a + b).norm() / (a.norm() + b.norm()))


def run(bench: Bench) -> Outcome:
    rows, claims = [], []
    for net, (told, shape, classes, more) in COUNTS.items():
        tied, untied = symmetries(net, shape, classes, more)
        rows.append((net, told, tied, untied))
        says = f"{net} has 10^{told} symmetries"
        near = (told * (1 - NEAR), told * (1 + NEAR))
        about = f"exponent, within {100 * NEAR:g} %, tensors that are added to one another tied"
        claims.append(exact("Git Re-Basin Table 1", says, about, near, tied))
    sizes = list(range(2, bench.p.models + 1))
    drawn = bench.each(
        "models", sizes, lambda n: spreads(n, bench.p.draws, bench.generator(f"weights of {n}"))
    )
    found, error = drawn[-1]
    claims.append(
        Claim(
            "STE-MM §4.1",
            "λ = U/ΣU draws the points between the models evenly",
            f"standard deviation of a weight of {sizes[-1]}; expected is that of even points",
            (even(sizes[-1]) * 0.99, even(sizes[-1]) * 1.01),
            found,
            (found - 1.96 * error, found + 1.96 * error),
        )
    )
    claims.append(
        exact(
            "Neuron Alignment C.2, item 4",
            "vectors of equal signs make the triangle inequality an equation",
            "‖a + b‖ / (‖a‖ + ‖b‖) of (1, 2) and (2, 1)",
            (1 - 1e-12, 1 + 1e-12),
            stretched([1, 2], [2, 1]),
        )
    )
    counted = [(net, told, f"{tied:.1f}", f"{untied:.1f}") for net, told, tied, untied in rows]
    tables = [
        Table("Symmetries, as exponents of ten", ("network", "the paper", "tied", "nothing tied"), counted),
        Table(
            "Standard deviation of a model's weight",
            ("models", "U/ΣU", "even on the simplex"),
            [(n, spread, even(n)) for n, (spread, _) in zip(sizes, drawn, strict=True)],
        ),
    ]
    lines = [Line("U/ΣU", sizes, [spread for spread, _ in drawn])]
    lines.append(Line("even", sizes, [even(n) for n in sizes], dashed=True))
    panel = Panel("how far weights vary", "models", "standard deviation of a weight", lines, floor=0)
    note = (
        "The paper's count of ResNet50 comes out only where channels that are added to one another are not "
        "tied; its own program ties them."
    )
    return Outcome(claims, tables, [panel], [note])
