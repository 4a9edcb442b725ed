"""Theorem 3.1 of Neuron Alignment in numbers: how far a network on the straight line can be from its ends.

For plain feed-forward networks f_i = W_i σ(f_{i−1}) + b_i and θ(t) = (1−t) A + t B, with
D_i = ‖f_i^A − f_i^B‖ over all samples (B permuted, where it is) and spectral norms ‖W‖, ReLUs for σ:

    b_1(0) = t D_1                    b_1(1) = (1−t) D_1
    base   = (1−t) ‖W_i^A‖ b_{i−1}(0) + t ‖W_i^B‖ b_{i−1}(1)
    b_i(0) = base + t D_i             b_i(1) = base + (1−t) D_i

bound ‖f_i(t) − f_i^A‖ and ‖f_i(t) − f_i^B‖, and the loss (root of the mean squared error to one-hot targets)
is at most K [(1−t) ‖W_L^A‖ b_{L−1}(0) + t ‖W_L^B‖ b_{L−1}(1) + (1−t) ε_A + t ε_B], ε the distances of the
ends' outputs from the targets and K = 1/√(samples · outputs). The D_i of an alignment by the L2 distance of
pre-activations (am --cost l2 --at pre) are no larger than without, so its bound is lower at every t. Of the
distances themselves the proof says no such thing.

Tatro et al. 2020, appendices C.1, C.2 and E.3, arXiv:2009.02439.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import NetworkError
from ..nets.mlp import MLP

POINTS = 101  # of t, for integrals by the trapezoid rule
DELTAS = (1.0, 0.1, 0.01)  # of huberised ReLUs
ROUND = 1e-6  # δ of a stopping rule: no one looks at huberised outputs, so it may be as small

Layers = Sequence[tuple[Tensor, Tensor]]  # weight (outputs, inputs) and bias, float64


@dataclass(frozen=True)
class Bounds:
    """`bound` and `loss` at every one of `ts`; `ends` is the part of the bound that the ends' own losses are.

    `layers` has a row a hidden layer at t = ½: its "distance" D, the "bound" b(0), and what it is: "actual".
    """

    ts: tuple[float, ...]
    bound: tuple[float, ...]
    ends: tuple[float, ...]
    loss: tuple[float, ...]
    layers: tuple[dict[str, float], ...]

    @property
    def integral(self) -> float:
        """Of the bound over t."""
        pairs = zip(self.bound, self.bound[1:], strict=False)
        return sum((one + other) / 2 for one, other in pairs) / (len(self.bound) - 1)


def layers_of(network: nn.Module, model: Mapping[str, Tensor]) -> Layers:
    """The layers of a plain feed-forward network with the tensors of `model`. Raises NetworkError."""
    plain = isinstance(network, MLP) and all(isinstance(norm, nn.Identity) for norm in network.norms)
    if not plain or not isinstance(network, MLP) or network.activation != "relu":
        raise NetworkError(
            "the theorem's bounds are of plain feed-forward networks with ReLU, and this is none",
            hint="They are known of rebasin's own mlp with ReLU and without norms",
        )
    found = []
    for name in (*(f"layers.{k}" for k in range(len(network.layers))), "head"):
        weight = model[f"{name}.weight"].double()
        bias = model.get(f"{name}.bias")
        found.append((weight, weight.new_zeros(len(weight)) if bias is None else bias.double()))
    return found


def bounds(a: Layers, b: Layers, inputs: Tensor, targets: Tensor, *, points: int = POINTS) -> Bounds:
    """The bound along the straight line from `a` to `b`, which is permuted already, and the loss itself.

    `inputs` (samples, n) and `targets` (samples, outputs) are float64.
    """
    ts = [k / (points - 1) for k in range(points)]
    of_a, of_b = values(a, inputs), values(b, inputs)
    distances = [float((x - y).norm()) for x, y in zip(of_a[:-1], of_b[:-1], strict=True)]
    norms = [[float(torch.linalg.matrix_norm(weight, 2)) for weight, _ in its] for its in (a, b)]
    off = [float((its[-1] - targets).norm()) for its in (of_a, of_b)]
    scale = 1 / math.sqrt(targets.numel())
    bound, ends, loss = [], [], []
    for t in ts:
        near = _reach(t, distances, norms)[-1]
        ends.append(scale * ((1 - t) * off[0] + t * off[1]))
        bound.append(scale * ((1 - t) * norms[0][-1] * near[0] + t * norms[1][-1] * near[1]) + ends[-1])
        loss.append(scale * float((values(between(a, b, t), inputs)[-1] - targets).norm()))
    middle = values(between(a, b, 0.5), inputs)
    rows = tuple(
        {"distance": distance, "bound": near[0], "actual": float((x - y).norm())}
        for distance, near, x, y in zip(
            distances, _reach(0.5, distances, norms), middle[:-1], of_a[:-1], strict=True
        )
    )
    return Bounds(tuple(ts), tuple(bound), tuple(ends), tuple(loss), rows)


def _reach(
    t: float, distances: Sequence[float], norms: Sequence[Sequence[float]]
) -> list[tuple[float, float]]:
    """b(0) and b(1) of every hidden layer."""
    found = [(t * distances[0], (1 - t) * distances[0])]
    for k, distance in enumerate(distances[1:], start=1):
        base = (1 - t) * norms[0][k] * found[-1][0] + t * norms[1][k] * found[-1][1]
        found.append((base + t * distance, base + (1 - t) * distance))
    return found


def values(
    layers: Layers, inputs: Tensor, activation: Callable[[Tensor], Tensor] = torch.relu
) -> list[Tensor]:
    """What every layer gives, before the activation; the last are the outputs."""
    found: list[Tensor] = []
    for weight, bias in layers:
        before = inputs if not found else activation(found[-1])
        found.append(before @ weight.T + bias)
    return found


def between(a: Layers, b: Layers, t: float) -> Layers:
    """(1 − t) a + t b."""
    return [
        ((1 - t) * weight + t * other_weight, (1 - t) * bias + t * other_bias)
        for (weight, bias), (other_weight, other_bias) in zip(a, b, strict=True)
    ]


def huberised(x: Tensor, delta: float) -> Tensor:
    """A ReLU with a parabola of width `delta` in its corner, δ/2 from it at most (equation 38)."""
    return torch.where(x <= 0, 0.0, torch.where(x < delta, x.square() / (2 * delta), x - delta / 2))


def smoothing(layers: Layers, inputs: Tensor, targets: Tensor, delta: float) -> tuple[float, float]:
    """By how much the loss changes with huberised ReLUs, and what it changes by at most (equation 48).

    That is K √M (δ/2) Σ_{i=1}^{L−1} K_W^i, with K_W the largest spectral norm, and M values of the widest
    layer on all samples.
    """
    scale = 1 / math.sqrt(targets.numel())
    plain, smooth = (
        scale * float((values(layers, inputs, activation)[-1] - targets).norm())
        for activation in (torch.relu, lambda x: huberised(x, delta))
    )
    hidden = [weight for weight, _ in layers[:-1]]
    largest = max(float(torch.linalg.matrix_norm(weight, 2)) for weight, _ in layers[1:])
    many = len(inputs) * max(map(len, hidden))
    powers = sum(largest**k for k in range(1, len(hidden) + 1))
    return abs(plain - smooth), scale * math.sqrt(many) * delta / 2 * powers


def least_fall(points: Sequence[Layers], delta: float = ROUND) -> float:
    """By how much a round of PAM has to lower the cross-entropy, in nats, to lower it for certain.

    Equation 46: twice the bound of equation 48, on a Bezier curve with these ends and control points; no
    weight on it has a larger spectral norm than the largest of theirs. Cross-entropy of N samples has
    K = √(2/N), and √M is √(N · widest).
    """
    hidden = [weight for weight, _ in points[0][:-1]]
    largest = max(float(torch.linalg.matrix_norm(weight, 2)) for its in points for weight, _ in its[1:])
    powers = sum(largest**k for k in range(1, len(hidden) + 1))
    return 2 * math.sqrt(2 * max(map(len, hidden))) * delta / 2 * powers


def account(
    network: nn.Module,
    a: Mapping[str, Tensor],
    others: Mapping[str, Mapping[str, Tensor]],
    inputs: Tensor,
    targets: Tensor,
) -> dict[str, Any]:
    """The bounds from `a` to each of `others` by name, and what huberised ReLUs change of `a`, as values.

    A search that huberised ReLUs stand in for lowers the loss itself as long as it lowers the huberised one
    by more than twice the bound of equation 48, its "fall", while no weight's norm exceeds those of `a`.
    """
    first = layers_of(network, a)
    inputs = inputs.flatten(1).double()
    wanted = torch.nn.functional.one_hot(targets, len(first[-1][0])).double()
    found: dict[str, Any] = {"samples": len(inputs)}
    for name, other in others.items():
        its = bounds(first, layers_of(network, other), inputs, wanted)
        half = len(its.ts) // 2
        found[name] = {
            "bound": its.bound[half],
            "ends": its.ends[half],
            "loss": its.loss[half],
            "integral": its.integral,
            "layers": list(its.layers),
        }
    rows = []
    for delta in DELTAS:
        change, bound = smoothing(first, inputs, wanted, delta)
        rows.append({"delta": delta, "change": change, "bound": bound, "fall": 2 * bound})
    return found | {"huber": rows}
