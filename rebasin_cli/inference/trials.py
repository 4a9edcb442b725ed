"""One trial of a proof: the network on a batch, drawn anew from the second on, and how far outputs differ."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..datasets._batches import map_tensors, tensors_in
from ..errors import NetworkError
from ..networks.running import forward, pick
from ..networks.state import buffers_kept
from ..runtime.seeds import generator
from . import drawing, seeing
from .float64 import in_float64

SIDE = 64  # pixels that drawn inputs have at most, where the network takes so few


class Fails(NetworkError):
    """The network does not run in this precision on the inputs that are given."""


class Runs:
    """The network on batches, each time as if for the first time."""

    def __init__(
        self, network: nn.Module, refresh: Callable[[], None], dtype: torch.dtype, output: str | int | None
    ) -> None:
        self.network, self._refresh, self._dtype, self._output = network, refresh, dtype, output

    def outputs(self, inputs: Any, *, scale: bool = False) -> list[torch.Tensor]:
        """Every tensor among the outputs, in this precision; `scale`: after weights were scaled to size.

        Raises Fails where the network does.
        """
        self._refresh()
        try:
            with contextlib.ExitStack() as modes:
                modes.enter_context(buffers_kept(self.network))
                if scale:
                    modes.enter_context(drawing.Scaling(self.network))
                if self._dtype is torch.float64:
                    modes.enter_context(in_float64())
                found = forward(self.network, inputs)
        except NetworkError as cause:
            raise Fails(cause.message, problems=cause.problems, hint=cause.hint) from cause
        return [self._real(tensor) for tensor in tensors_in(pick(found, self._output))]

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        whole = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        return whole.to(self._dtype).clone()


def answers(
    runs: Runs, inputs: Any, seed: int, trial: int, close: bool
) -> tuple[Any, list[torch.Tensor], dict[str, float]]:
    """The batch of a trial, the network's outputs, and how much they depend on each tensor."""
    for batch in _batches(inputs, seed, trial):
        with contextlib.suppress(NetworkError):  # it takes less than all numbers: what is given must do
            return batch, *_answered(runs, batch, close)
    return inputs, *_answered(runs, inputs, close)


def _answered(runs: Runs, batch: Any, close: bool) -> tuple[list[torch.Tensor], dict[str, float]]:
    if close:
        outputs, effects = seeing.outputs_and_effects(runs, batch)
    else:
        outputs, effects = runs.outputs(batch, scale=True), {}
    _check_outputs(outputs)
    return outputs, effects


def _batches(inputs: Any, seed: int, trial: int) -> Iterator[Any]:
    """Other batches of the same kind, the smaller first."""
    if trial == 0:
        return
    drawn = _redrawn(inputs, generator(seed, f"prove inputs {trial}"))
    sides = [min(tensor.shape[-2:]) for tensor in tensors_in(drawn) if tensor.ndim == 4]
    if sides and min(sides) > SIDE:
        yield map_tensors(lambda tensor: tensor[..., :SIDE, :SIDE] if tensor.ndim == 4 else tensor, drawn)
    yield drawn


def _redrawn(inputs: Any, rng: torch.Generator) -> Any:
    """Another batch of the same kind: noise as large as the input, integers in another order."""

    def redraw(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() and tensor.numel():
            spread = tensor.std(correction=0)
            if not torch.isfinite(spread):
                return tensor  # a mask of infinities
            return tensor.mean() + spread * torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
        if tensor.dtype == torch.bool:
            return tensor
        return tensor.flatten()[torch.randperm(tensor.numel(), generator=rng)].view(tensor.shape)

    return map_tensors(redraw, inputs)


def nudged(inputs: Any) -> Any:
    """The next numbers: what rounding alone may change."""

    def nudge(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        after = torch.nextafter(tensor, torch.full_like(tensor, math.inf))
        return torch.where(tensor.isfinite() & (tensor != 0), after, tensor)  # a mask of infinities stays one

    return map_tensors(nudge, inputs)


def _check_outputs(outputs: list[torch.Tensor]) -> None:
    if not outputs:
        raise NetworkError("the network returns no tensor, so the spec cannot be proven")
    for tensor in outputs:
        if not torch.isfinite(tensor).all():
            raise NetworkError(
                "the network returns NaN or infinite values on random weights: no proof possible"
            )
    if not any(tensor.numel() > 1 and tensor.min() < tensor.max() for tensor in outputs):
        raise NetworkError(
            "the network's outputs are all equal on random weights, so a proof would say nothing"
        )
    batched = [tensor for tensor in outputs if tensor.ndim > 1 and len(tensor) > 1]
    if batched and all(torch.equal(tensor, tensor[:1].expand_as(tensor)) for tensor in batched):
        raise NetworkError("the network answers every input alike on random weights: its units are dead")


def difference(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    """Largest absolute difference relative to the largest value of the same output; NaN counts as inf."""
    worst = 0.0
    for x, y in zip(before, after, strict=True):
        value = ((x - y).abs().max() / x.abs().max().clamp_min(1e-300)).item()
        worst = max(worst, math.inf if math.isnan(value) else value)
    return worst
