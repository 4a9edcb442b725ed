"""Optimizers that import no compiler take the steps of PyTorch's own."""

import copy

import pytest
import torch

from rebasin_cli.runtime import optimizers

OPTIONS = [
    (torch.optim.Adam, {"lr": 0.1, "fused": True}),
    (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
]


@pytest.mark.parametrize(("kind", "options"), OPTIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_steps_and_states_are_those_of_pytorchs_own(kind, options):
    """Bit for bit; a state goes from one into the other."""
    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    made, plain = optimizers.make(kind, [ours], **options), kind([theirs], **options)
    assert isinstance(made, kind) and type(made).__name__ == kind.__name__
    for k in range(4):
        for tensor, optimizer in ((ours, made), (theirs, plain)):
            optimizer.zero_grad(set_to_none=True)
            (tensor - k).square().sum().backward()
            optimizer.step()
        assert ours.equal(theirs) and ours.requires_grad and ours.is_leaf
        made.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert not ours.equal(start)
