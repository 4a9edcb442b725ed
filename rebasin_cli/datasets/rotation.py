"""Images turned about their middle by random angles, as curves between networks are trained on them.

Tatro et al. 2020, section 4 (NeurIPS 2020); Ainsworth et al. 2022, arXiv:2209.04836: in both programs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import UsageError


def rotated(images: Tensor, degrees: float, generator: torch.Generator) -> Tensor:
    """Images (N, C, H, W), each turned by an angle of its own, even in ±`degrees`; black where nothing is.

    Values between pixels are bilinear, and rounded where images are integers. On the CPU.
    """
    angles = (2 * torch.rand(len(images), generator=generator) - 1) * math.radians(degrees)
    height, width = images.shape[-2:]
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros(len(images))
    # in units of half a side: a turn of pixels, whatever the sides
    rows = (cos, -sin * height / width, zero, sin * width / height, cos, zero)
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(images.shape), align_corners=False)
    turned = F.grid_sample(images.float(), grid, align_corners=False)
    return turned.to(images.dtype) if images.is_floating_point() else turned.round().to(images.dtype)


def with_rotation(data: Any, degrees: float | None) -> Any:
    """The data, whose images are turned by up to so many degrees wherever they come shuffled.

    Raises UsageError for data that holds no images, or whose batches somebody else makes.
    """
    if not degrees:
        return data
    source = getattr(data, "source", None)
    if source is None or source.inputs.ndim != 4:
        raise UsageError(
            f"--rotate: {getattr(data, 'name', 'this data')} has no images that could be turned",
            hint="Leave it out; a loader of your own turns its images itself",
        )
    return replace(data, rotate=degrees)
