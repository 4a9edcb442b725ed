"""Students trained: many at once, by gradient descent on the exact loss or by SGD on fresh samples."""

from __future__ import annotations

import torch
from torch import Tensor

from . import systems

FLAT = 1e-14  # of the squared norm of the gradient: there a student stops
DIVERGED = 1e6  # of the norm of a student
BATCH = 64
LOOK = 200  # steps between two looks at who has arrived


def initial(count: int, students: int, inputs: int, spread: float, generator: torch.Generator) -> Tensor:
    return spread * torch.randn(count, students, inputs, generator=generator, dtype=torch.float64)


def descend(start: Tensor, units: int, rate: float | Tensor, steps: int) -> Tensor:
    """Gradient descent with the step rate/m, until the gradient is all but 0 or `steps` are done.

    `rate` may hold one for every student. One that diverges is NaN; one that has arrived is not moved any
    more.
    """
    found, at = start.clone(), torch.arange(len(start))
    moving = start.clone()
    step_size = (torch.as_tensor(rate, dtype=torch.float64) / start.shape[-2]).expand(len(start))[
        :, None, None
    ]
    for step in range(steps):
        slope = systems.gradient(moving, units)
        moving = moving - step_size * slope
        if step % LOOK == LOOK - 1 or step == steps - 1:
            size = moving.flatten(1).norm(dim=1)
            lost = ~torch.isfinite(size) | (size > DIVERGED)
            moving[lost] = torch.nan
            found[at] = moving
            going = ~lost & (slope.flatten(1).square().sum(1) > FLAT)
            moving, at, step_size = moving[going], at[going], step_size[going]
            if not len(at):
                break
    return found


def stochastic(start: Tensor, units: int, rate: float, steps: int, generator: torch.Generator) -> Tensor:
    """SGD with the step rate/m on fresh Gaussian samples, BATCH a step, others for every student."""
    moving, count, inputs = start.clone(), len(start), start.shape[-1]
    step_size = rate / start.shape[-2]
    for _ in range(steps):
        x = torch.randn(count, BATCH, inputs, generator=generator, dtype=torch.float64)
        seen = moving @ x.mT
        errors = seen.relu().sum(1) - x[..., :units].relu().sum(-1)
        moving = moving - step_size / BATCH * ((seen > 0) * errors[:, None]) @ x
    return moving
