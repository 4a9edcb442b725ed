"""BatchNorm's running statistics, measured again.

The average of two models has other activations than either, so the averages of their running means and
variances describe neither; they are measured again on training data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import networks
from ..datasets._batches import checked, tensors_in
from ..errors import DataError
from ..networks.running import evaluating, fed, forward


def reset(network: nn.Module, batches: Iterable[Any], *, device: str | torch.device = "cpu") -> int:
    """Re-estimate every running mean and variance as the average over batches; weights stay as they are.

    The network is on `device` and is changed in place. The average is cumulative, each batch counts the
    same; a single sample after larger batches is left out, since BatchNorm may refuse it. Returns the number
    of norms reset. Raises DataError for data without batches.

    Izmailov et al. 2018, section 3; of merged models Jordan et al. 2023 (REPAIR), arXiv:2211.08403.
    """
    norms = list(networks.running_norms(network).values())
    if not norms:
        return 0
    momenta = {norm: norm.momentum for norm in norms}
    seen = largest = 0
    try:
        with evaluating(network), torch.no_grad():
            for norm in norms:
                norm.reset_running_stats()
                norm.training = True  # only the norms: dropout stays off
            for inputs, _ in checked(batches):
                size = max((len(tensor) for tensor in tensors_in(inputs) if tensor.ndim), default=0)
                largest = max(largest, size)
                if size == 1 < largest:
                    continue
                for norm in norms:  # a cumulative average: None says so, but InstanceNorm takes it for 0
                    norm.momentum = None if isinstance(norm, _BatchNorm) else 1 / (seen + 1)
                forward(network, fed(network, inputs, device))
                seen += 1
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    if not seen:
        raise DataError("the data holds no batches to re-estimate BatchNorm statistics on")
    return len(norms)
