"""Weights from several models: interpolate two, average many. Tensor by tensor, as they are asked for.

Sums are float64 whatever the stored dtype (`mean`); integer buffers and tensors that a spec ignores are the
first model's, never averaged. Of tensors that mean something only together what they stand for is joined, or
nothing (`together`). Names, order and dtypes are the first model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ..checkpoints.tensors import LazyTensors, plan_of
from ..errors import UsageError, unknown
from ..types import Tensors
from .together import products_of
from .weights import checked

BLOCK = 1 << 15  # values worked on at once: they stay in the cache, and torch starts no threads for so few
TOLD_APART = 16  # values of a block by which models are ordered; all of them where these are equal
LAST = 1 << 29  # the bit of a float64 that is a float32's last
BELOW = LAST - 1  # and all below it
Turned = Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor | None]  # None: the straight line

INTERPOLATIONS = ("linear", "slerp", "slerp-whole")


def average(
    models: Sequence[Tensors], weights: Sequence[float] | None = None, *, keep: Collection[str] = ()
) -> LazyTensors:
    """Σ w_k · model_k, by default their mean; weights are used as they are and must add up to 1.

    `keep` names tensors that are taken from the first model. Raises UsageError for weights that are
    not one finite number a model, or do not add up to 1, SpecError for families of tensors that cannot be
    averaged (`together.products_of`).
    """
    weights = checked(weights, len(models))
    if len(models) == 1:
        return line(models, weights, keep)
    found = products_of(models, keep=keep)
    return found.joined(models, weights, keep, lambda views, keep: line(views, weights, keep))


def line(models: Sequence[Tensors], weights: Sequence[float], keep: Collection[str] = ()) -> LazyTensors:
    """Σ w_k · model_k tensor by tensor, whatever these are; `keep`, and what are integers, is the first's."""

    def mean(name: str, take: Callable[[Tensors], torch.Tensor]) -> torch.Tensor:
        first = take(models[0])
        if name in keep or not first.is_floating_point():
            return first
        return mean_of([first, *(take(model) for model in models[1:])], weights, first.dtype)

    return LazyTensors.of(plan_of(models[0]), mean)


def interpolate(
    a: Tensors,
    b: Tensors,
    t: float,
    *,
    interpolation: str = "linear",
    keep: Collection[str] = (),
    straight: Collection[str] = (),
) -> LazyTensors:
    """(1 − t)·a + t·b, or a point of an arc; exactly a at 0 and exactly b at 1.

    `straight` names what goes straight on an arc, too.
    """
    if interpolation != "linear":
        return ARCS[interpolation](a, b, t, keep=keep, straight=straight)
    if t in (0.0, 1.0):
        return average([a if t == 0 else b])
    return average([a, b], [1 - t, t], keep=keep)


def slerp(
    a: Tensors, b: Tensors, t: float, *, keep: Collection[str] = (), straight: Collection[str] = ()
) -> LazyTensors:
    """Spherical interpolation: directions turn by one angle a tensor, norms change linearly.

    So norms along the way lie between the two models', where a straight line shrinks them. Tensors that
    are parallel, opposite or zero go straight, and so do those that `straight` names (running statistics
    have no direction); both ends are exact.

    Shoemake 1985.
    """

    def turned(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
        x_norm, y_norm = x.norm(), y.norm()
        shares = _arc(((x * y).sum() / (x_norm * y_norm)).item() if x_norm * y_norm > 0 else 1.0, t)
        if shares is None:
            return None
        direction = (shares[0] / x_norm) * x + (shares[1] / y_norm) * y
        return torch.mul(direction, (1 - t) * x_norm + t * y_norm)

    return _turning(a, b, t, lambda views, straight: turned, keep, straight)


def slerp_whole(
    a: Tensors, b: Tensors, t: float, *, keep: Collection[str] = (), straight: Collection[str] = ()
) -> LazyTensors:
    """Spherical interpolation as Shoemake wrote it: one angle Ω, that of all tensors together as one vector.

    sin((1−t)Ω)/sin Ω · a + sin(tΩ)/sin Ω · b. The norm is what this gives, between the models' or above.
    Models that are parallel, opposite or zero go straight; `straight` and `keep` are as in `slerp`. Every
    tensor is read once more, for the angle.
    """
    shares: list[tuple[float, float] | None] = []

    def of(views: Sequence[Tensors], without: Collection[str]) -> Turned:
        def turned(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
            if not shares:
                shares.append(_arc(_cosine(views[0], views[1], without), t))
            if (found := shares[0]) is None:
                return None
            return torch.add(found[0] * x, found[1] * y)

        return turned

    return _turning(a, b, t, of, keep, straight)


def _arc(cosine: float, t: float) -> tuple[float, float] | None:
    """The shares of two directions on the arc between them; None where there is none, or more than one."""
    if abs(cosine) > 1 - 1e-9:
        return None
    angle = math.acos(cosine)
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)


def _cosine(a: Tensors, b: Tensors, without: Collection[str]) -> float:
    """Of the angle between two models, floating-point tensors alone; 1 where one of them is zero."""
    dot = one = other = 0.0
    for name, (dtype, _) in plan_of(a).items():
        if dtype.is_floating_point and name not in without:
            x, y = a[name].double(), b[name].double()
            dot, one = dot + (x * y).sum().item(), one + x.square().sum().item()
            other += y.square().sum().item()
    return dot / math.sqrt(one * other) if one * other > 0 else 1.0


def _turning(
    a: Tensors,
    b: Tensors,
    t: float,
    of: Callable[[Sequence[Tensors], Collection[str]], Turned],
    keep: Collection[str],
    straight: Collection[str],
) -> LazyTensors:
    """What a turn makes of both tensors in float64, where it makes something; else the straight line.

    The turn is made `of` both models, and of the tensors that it leaves out.
    """
    found = products_of([a, b], keep=keep)
    straight = {*straight, *found.straight}

    def join(views: Sequence[Tensors], keep: Collection[str]) -> LazyTensors:
        (one, other), turned = views, of(views, {*keep, *straight})
        linear, plan = line(views, [1 - t, t], keep), plan_of(one)

        def get(name: str) -> torch.Tensor:
            first = one[name]
            if name in keep or not first.is_floating_point() or t == 0:
                return first
            if t == 1:
                return other[name].to(first.dtype)
            made = None if name in straight else turned(name, first.double(), other[name].double())
            return linear[name] if made is None else made.to(first.dtype)

        return LazyTensors({n: s for n, (_, s) in plan.items()}, {n: d for n, (d, _) in plan.items()}, get)

    return found.joined([a, b], [1 - t, t], keep, join)


ARCS: dict[str, Callable[..., LazyTensors]] = {"slerp": slerp, "slerp-whole": slerp_whole}


def check_interpolation(name: str, models: int = 2) -> None:
    """Raise UsageError for an interpolation that there is not, or that joins two models alone."""
    if name not in INTERPOLATIONS:
        raise unknown("interpolation", name, INTERPOLATIONS)
    if name != "linear" and models != 2:
        raise UsageError(f"{name} joins two models, not {models}", hint="Use --interpolation linear")


class Measured(Protocol):
    """What a measurement gives; `networks.evaluation.Scores` does."""

    @property
    def loss(self) -> float: ...


Found = TypeVar("Found", bound=Measured)


@dataclass(frozen=True)
class Try(Generic[Found]):
    """A model that was added to those kept so far (for the first: alone), and whether it stayed."""

    model: int
    scores: Found
    kept: bool


@dataclass(frozen=True)
class Soup(Generic[Found]):
    """`kept` models by number, in the order in which they were added; `singles` are the scores of each alone.

    `scores` are those of the soup: its loss is at most that of the best single model, `kept[0]`.
    """

    kept: tuple[int, ...]
    scores: Found
    singles: tuple[Found, ...]
    tries: tuple[Try[Found], ...]


def greedy(models: int, measure: Callable[[Sequence[int]], Found]) -> Soup[Found]:
    """From the best model on, add the next best wherever the loss of the mean falls by it.

    `measure` gives the scores of the mean of these models. It is asked 2·n − 1 times.
    """
    singles = tuple(measure((k,)) for k in range(models))
    best, *others = sorted(range(models), key=lambda k: (singles[k].loss, k))
    kept: tuple[int, ...] = (best,)
    scores, tries = singles[best], [Try(best, singles[best], True)]
    for k in others:
        found = measure((*kept, k))
        better = found.loss < scores.loss
        tries.append(Try(k, found, better))
        if better:
            kept, scores = (*kept, k), found
    return Soup(kept, scores, singles, tuple(tries))


def mean_of(parts: Sequence[Tensor], weights: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Σ w_k · part_k for tensors of one shape, in `dtype`; a new tensor, laid out plainly.

    Equal weights that add up to 1 are a sum and one division: the mean of n equal tensors is that tensor, bit
    for bit. Values beyond the range of `dtype` become infinite (NaN where it has no infinity).
    """
    shape, complex_ = parts[0].shape, dtype.is_complex
    device = parts[0].device
    flat = [(torch.view_as_real(part) if part.is_complex() else part).reshape(-1) for part in parts]
    flat = [values if values.device == device else values.to(device) for values in flat]
    result = torch.empty(flat[0].numel(), dtype=torch.float32 if complex_ else dtype, device=device)
    wide = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
    sums, mean = torch.empty(min(result.numel(), BLOCK), dtype=wide, device=device), _is_mean(weights)
    for *blocks, made in zip(*map(_blocks, (*flat, result)), strict=True):
        total = sums if made.numel() == sums.numel() else sums[: made.numel()]
        made.copy_(odd(_add(blocks, weights, total, mean=mean), result.dtype))
    return torch.view_as_complex(result.view(*shape, 2)) if complex_ else result.view(shape)


def _blocks(values: Tensor) -> Sequence[Tensor]:
    count = values.numel()
    return values.split(BLOCK) if count > BLOCK else [values][:count]


def _is_mean(weights: Sequence[float]) -> bool:
    return len({*weights}) == 1 and abs(weights[0] * len(weights) - 1) < 1e-12


def _add(blocks: Sequence[Tensor], weights: Sequence[float], total: Tensor, *, mean: bool) -> Tensor:
    """The weighted sum, in `total`."""
    order: Sequence[int] = range(len(blocks))
    if len(blocks) > 2 or not mean:  # a sum of two is the same either way
        order = _order(blocks, weights)
    first, *rest = order
    total.copy_(blocks[first])
    if not mean:
        total *= weights[first]
    for k in rest:
        block = blocks[k] if blocks[k].dtype.itemsize > 1 else blocks[k].float()  # float8 knows no sum
        total.add_(block, alpha=1 if mean else weights[k])
    if mean:
        total /= len(blocks)
    # No digits to spare: what is equal in all shall stay so.
    if any(block.dtype == total.dtype for block in blocks) and abs(sum(weights) - 1) < 1e-12:
        alike = torch.stack([block == blocks[0] for block in blocks]).all(0)
        return torch.where(alike, blocks[0].to(total.dtype), total)
    return total


def _order(blocks: Sequence[Tensor], weights: Sequence[float]) -> list[int]:
    """The models by weight, dtype and the bytes of this block: the same whoever is named first."""

    def key(k: int, count: int | None) -> tuple[float, str, bytes]:
        values = blocks[k][:count].contiguous().view(torch.uint8)
        return weights[k], str(blocks[k].dtype), values.cpu().numpy().tobytes()

    keys = [key(k, TOLD_APART) for k in range(len(blocks))]
    if len(set(keys)) < len(keys):
        keys = [key(k, None) for k in range(len(blocks))]
    return sorted(range(len(blocks)), key=keys.__getitem__)


def odd(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Values that a conversion to `dtype` rounds once, to nearest, ties to even; `exact` may be changed.

    torch goes from float64 to the narrow dtypes by way of float32: where that lands on a tie, the second
    rounding forgets on which side of it the value was. So what float32 cannot hold is cut off here, and
    its last bit says that there was more ("round to odd", Boldo and Melquiond 2008).
    """
    if dtype.itemsize >= 4 or exact.dtype != torch.float64:
        return exact
    bits = exact.view(torch.int64)
    more = (bits & BELOW).add_(BELOW).bitwise_and_(LAST)
    bits.bitwise_and_(~BELOW).bitwise_or_(more)
    return exact.to(torch.float32)
