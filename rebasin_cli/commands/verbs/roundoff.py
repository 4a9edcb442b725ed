"""What rounding alone may change, measured of every number by itself: none hides behind a larger one.

Every weight is shaken by as much as its own type rounds it, a few times, and what follows from the weights is
made anew. A number that moves by that much, or a few times more, is the same number but for rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor

from ...checkpoints.tensors import LazyTensors, plan_of
from ...runtime.seeds import generator
from ...types import Tensors

DRAWS = 6  # of the noise: one may by chance leave a number where it was
TIMES = 4  # as far as noise moves a number: rounding may be unlucky, and comes in more than one step
FINEST = 2.0**-38  # of a weight: what is computed in float64 from float64 is not compared to its last bit
COARSE = 2.0**-20  # the same of what is computed in float32
OWN = 2.0**-44  # of a number itself: float64 adds up in another order


def unit(dtype: torch.dtype) -> float:
    """From 1 to the next number of a floating-point type."""
    return torch.finfo(dtype).eps


def least(dtype: torch.dtype) -> float:
    """The smallest number above 0 of a floating-point type."""
    found = torch.finfo(dtype)
    return found.smallest_normal * found.eps


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors hold the same values: to the last bit in one dtype, −0 being 0; of two
    floating-point dtypes each value within a unit in the last place of the coarser one. NaN equals nothing.
    """
    if x.shape != y.shape or x.is_floating_point() != y.is_floating_point():
        return False
    if not x.is_floating_point():
        return x.dtype == y.dtype and torch.equal(x, y)
    wide, other = x.double(), y.double()
    if x.dtype == y.dtype:
        return torch.equal(wide, other)
    unit_, least_ = (max(of(d) for d in (x.dtype, y.dtype)) for of in (unit, least))
    return bool(((wide - other).abs() <= unit_ * torch.maximum(wide.abs(), other.abs()) + least_).all())


def shaken(tensors: Tensors, share: float | None = None, *, finest: float = FINEST) -> list[LazyTensors]:
    """The model in float64, several times, each value moved by up to this share of itself; zeros stay.

    By default by a unit in its last place, of its own type, or by the share that is `finest`. Each model is
    the same whenever it is asked for.
    """
    plan = plan_of(tensors)

    def get(draw: int, name: str) -> Tensor:
        tensor, dtype = tensors[name], plan[name][0]
        if not dtype.is_floating_point:
            return tensor
        wide = tensor.detach().double()
        most = share * wide.abs() if share is not None else _unit_of(wide, dtype, finest)
        noise = 2 * torch.rand(wide.shape, generator=generator(draw, name), dtype=torch.float64) - 1
        return torch.where(wide == 0, wide, wide + noise.to(wide.device) * most)

    shapes = {name: shape for name, (_, shape) in plan.items()}
    dtypes = {name: torch.float64 if d.is_floating_point else d for name, (d, _) in plan.items()}
    return [LazyTensors(shapes, dtypes, functools.partial(get, draw)) for draw in range(DRAWS)]


def _unit_of(size: Tensor, dtype: torch.dtype, finest: float = FINEST) -> Tensor:
    """What rounding to a type changes of numbers of this size."""
    return (max(unit(dtype), finest) * size.abs()).clamp_min(least(dtype))


def allowed(own: Tensor, again: Iterable[Tensor]) -> Tensor:
    """How far each number may be from where it is, by what is made of the same weights, shaken."""
    most = torch.zeros_like(own)
    for other in again:
        most = torch.maximum(most, (other - own).abs())
    return TIMES * most + OWN * own.abs()


def near(x: Tensor, y: Tensor, *bounds: Tensor) -> bool:
    """Whether all numbers are within the sum of these bounds; NaN never is."""
    return bool(((x - y).abs() <= sum(bounds)).all())


def own_size(tensor: Tensor, *, mixed: Iterable[int] = ()) -> Tensor:
    """How far each number of a tensor may be from where it is by its own type and size.

    Where numbers along some axes are `mixed` with one another, by a rotation, the size is theirs together.
    """
    wide, dims = tensor.detach().double(), [*mixed]
    size = torch.linalg.vector_norm(wide, dim=dims, keepdim=True) if dims else wide.abs()
    return TIMES * _unit_of(size, tensor.dtype)
