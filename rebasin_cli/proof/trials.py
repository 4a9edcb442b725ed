"""One trial of a proof: the network on a batch, drawn anew from the second on, and how far outputs differ."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..datasets.batches import map_tensors, tensors_in
from ..errors import NetworkError
from ..runtime.seeds import generator
from . import random_weights, visibility
from .distance import difference, own_sizes
from .runs import Runs, Series, real_view

SIDE = 64  # pixels that drawn inputs have at most, where the network takes so few
DRAWS = 16  # of weights, before a network that answers every input alike is refused
WAYS = 32  # of rounding, where the size of what cancels is looked for
OTHERS = 3  # batches that are run beside one that tells nothing alone
SAME = 64  # times the rounding of the precision: what that may do to equal numbers
DEAD = "the network answers every input alike on random weights, so a proof would say nothing"


class Dead(NetworkError):
    """The network answers all inputs alike on these weights."""


@dataclass(frozen=True)
class Answers:
    """A batch, or a series of such, and what the network answers to it.

    `effects` says how much that depends on each tensor, `unread` which of them no output is computed from.
    """

    batch: Any
    outputs: list[torch.Tensor]
    effects: dict[str, float] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()


def answers(runs: Runs, inputs: Any, seed: int, trial: int, close: bool, *, own: bool = False) -> Answers:
    """The answers of a trial, on random weights; first on some near the network's `own` where that is asked.

    On those, too, where random ones make it fail or say nothing: lengths may depend on them. Raises Dead
    where all inputs are answered alike.
    """

    def answered() -> Answers:
        return _answers(runs, inputs, seed, trial, close)

    if own:
        runs.near_own(generator(seed, f"prove near {trial}"))
        with contextlib.suppress(NetworkError):
            return answered()
    try:
        return alive(runs, seed, f"prove weights {trial}", answered)
    except NetworkError:
        runs.near_own(generator(seed, f"prove near {trial}"))
        with contextlib.suppress(NetworkError):
            return answered()
        raise


def alive(runs: Runs, seed: int, name: str, answered: Callable[[], Answers]) -> Answers:
    """What the network answers on random weights, drawn anew where it answers all inputs alike.

    Raises Dead where it always does, and what `answered` raises.
    """
    for again in range(1, DRAWS):
        runs.draw(generator(seed, name))
        with contextlib.suppress(Dead):
            return answered()
        name = f"{name.partition(' again')[0]} again {again}"
    runs.draw(generator(seed, name))
    return answered()


def answers_to(runs: Runs, inputs: Any, seed: int) -> Answers:
    """The answers to the inputs that are given, on the weights as they are. Raises Dead."""
    return _answered(runs, inputs, seed, 0, False)


def _answers(runs: Runs, inputs: Any, seed: int, trial: int, close: bool) -> Answers:
    for batch in _batches(inputs, seed, trial):
        with contextlib.suppress(NetworkError):  # it takes less than all numbers: what is given must do
            return _answered(runs, batch, seed, trial, close)
    return _answered(runs, inputs, seed, trial, close)


def _answered(runs: Runs, batch: Any, seed: int, trial: int, close: bool) -> Answers:
    """The answers to a batch; to several of its kind where one batch does not tell inputs apart."""
    found = _run(runs, batch, close)
    if _tells(found.outputs) and (trial or not _of_one(found.outputs)):
        return found
    drawn = (_redrawn(batch, generator(seed, f"prove inputs {trial} beside {k}"), k) for k in range(OTHERS))
    others = [other for other in drawn if not _same(other, batch)]
    if _tells(found.outputs):  # of one input
        if others and _repeats(runs, others[0], found.outputs):
            raise Dead(DEAD)
        return found
    if others:
        series = Series((batch, *others))
        if _tells((more := _run(runs, series, close)).outputs):
            return more
    raise Dead(
        DEAD,
        hint=None if others else "Give it several inputs to tell apart, the batch first: --input 2x…",
    )


def _repeats(runs: Runs, other: Any, before: Sequence[torch.Tensor]) -> bool:
    """Whether another batch gets the same answers; not where it is none that the network takes."""
    with contextlib.suppress(NetworkError):
        return not difference(before, runs.outputs(other))
    return False


def _run(runs: Runs, batch: Any, close: bool) -> Answers:
    if close:
        found = Answers(batch, *visibility.outputs_and_effects(runs, batch))
    else:
        found = Answers(batch, runs.outputs(batch, scale=True))
    _check_outputs(found.outputs, runs.last.names)
    return found


def _same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tensors_in(a), tensors_in(b), strict=True))


def _tells(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether the outputs differ from entry to entry, and from sample to sample where there are several.

    By more than rounding, which adds up in an order of its own.
    """
    batched = [tensor for tensor in outputs if tensor.ndim > 1 and len(tensor) > 1]
    return any(_differ(tensor.flatten()) for tensor in outputs) and not (
        batched and not any(map(_differ, batched))
    )


def _differ(rows: torch.Tensor) -> bool:
    """Whether any row is another one than the first."""
    if len(rows) < 2 or not rows.numel():
        return False
    same = rows[:1].expand_as(rows)
    size = torch.maximum(rows.abs(), same.abs()).nan_to_num(posinf=0.0)
    apart = ~((rows - same).abs() <= SAME * torch.finfo(rows.dtype).eps * size)
    return bool((apart & (rows != same)).any())  # infinities differ by no number


def _of_one(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether they are answers to one input."""
    rows = {len(tensor) for tensor in outputs if tensor.ndim > 1}
    return rows == {1}


def _batches(inputs: Any, seed: int, trial: int) -> Iterator[Any]:
    """Other batches of the same kind, the smaller first."""
    if trial == 0:
        return
    drawn = _redrawn(inputs, generator(seed, f"prove inputs {trial}"))
    sides = [min(tensor.shape[-2:]) for tensor in tensors_in(drawn) if tensor.ndim == 4]
    if sides and min(sides) > SIDE:
        yield map_tensors(lambda tensor: tensor[..., :SIDE, :SIDE] if tensor.ndim == 4 else tensor, drawn)
    yield drawn


def _redrawn(inputs: Any, rng: torch.Generator, way: int = 0) -> Any:
    """Another batch of the same kind: noise as large as the input, integers in another order.

    By another `way` some integers in place of others, or any up to the largest: an order may be nothing that
    a network sees, and there may be one integer only.
    """

    def redraw(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() and tensor.numel():
            spread = tensor.std(correction=0) if tensor.numel() > 1 else tensor.new_ones(())
            if not torch.isfinite(spread):
                return tensor  # a mask of infinities
            return tensor.mean() + spread * torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
        if tensor.dtype == torch.bool:
            return tensor
        count = tensor.numel()
        if not way or not count:
            return tensor.flatten()[torch.randperm(count, generator=rng)].view(tensor.shape)
        if tensor.unique().numel() > 1:
            return tensor.flatten()[torch.randint(count, (count,), generator=rng)].view(tensor.shape)
        below = int(tensor.max()) + 1
        if way == 1 or below < 3:  # a mask that lets all through
            return tensor
        return torch.randint(below, tensor.shape, generator=rng, dtype=tensor.dtype)

    return map_tensors(redraw, inputs)


def nudged(inputs: Any, way: int = 0) -> Any:
    """The next numbers: what rounding alone may change. Upwards, or each up or down as this way draws it."""
    rng = generator(way, "rounding of inputs")

    def nudge(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        after = torch.nextafter(tensor, _towards(tensor, rng, way))
        return torch.where(tensor.isfinite() & (tensor != 0), after, tensor)  # a mask of infinities stays one

    if isinstance(inputs, Series):
        return Series(tuple(map_tensors(nudge, batch) for batch in inputs.batches))
    return map_tensors(nudge, inputs)


def sizes_by_rounding(runs: Runs, batch: Any, before: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """As `own_sizes` of these outputs, by what rounding of the batch and of all weights changes.

    In several ways while there are numbers without a size: where few cancel, one way may change nothing.
    """
    largest = list(map(torch.zeros_like, before))
    for way in range(WAYS):
        with _nudged(runs.network, way):
            largest = list(map(torch.maximum, largest, own_sizes(before, runs.outputs(nudged(batch, way)))))
        if all((sizes > torch.finfo(sizes.dtype).tiny).all() for sizes in largest):
            break
    return largest


@contextlib.contextmanager
def _nudged(network: nn.Module, way: int) -> Iterator[None]:
    """While it lasts, each weight is a number next to it; there and back is the same number."""
    own = [real_view(tensor) for tensor in network.state_dict().values() if random_weights.draws(tensor)]

    def step(sign: int) -> None:
        rng = generator(way, "rounding of weights")
        for tensor in own:
            tensor.copy_(torch.nextafter(tensor, sign * _towards(tensor, rng, way)))

    step(1)
    try:
        yield
    finally:
        step(-1)


def _towards(tensor: torch.Tensor, rng: torch.Generator, way: int) -> torch.Tensor:
    """Infinities, of which each says where its number goes: way 0 is upwards."""
    up = torch.full_like(tensor, math.inf)
    return torch.where(torch.rand(tensor.shape, generator=rng) < 0.5, -up, up) if way else up


def _check_outputs(outputs: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    if not outputs:
        raise NetworkError("the network returns no tensor, so the spec cannot be proven")
    broken = [
        name
        for tensor, name in zip(outputs, names, strict=True)
        if tensor.numel() and (tensor.isnan().any() or not tensor.isfinite().any())
    ]
    if broken:
        raise NetworkError(
            "the network returns NaN or infinite values on random weights: no proof possible",
            problems=[f"{name}  has them" for name in broken if len(outputs) > 1],
            hint=f"What is no part of its function need not stay: --not-kept {broken[0]}"
            if len(broken) < len(outputs)
            else None,
        )
