"""The mean of models, and the repair of it that a search has done already."""

import torch

from rebasin_cli.checkpoints.tensors import replaced
from rebasin_cli.nets.mlp import MLP
from rebasin_cli.repair import Outcome, Repairs
from rebasin_cli.repair.means import repaired_mean
from rebasin_cli.spec.library import resolve_spec


def test_a_repair_that_was_done_is_taken_for_the_mean_it_was_done_on_alone():
    network = MLP([4, 3, 2])
    a = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    b = {name: tensor + 1 for name, tensor in a.items()}
    done = Outcome({"head.bias": torch.full_like(a["head.bias"], 7.0)})
    fitted = resolve_spec("mlp", [a, b])
    how = Repairs("bias", [a, b], inputs=torch.ones(2, 4))
    run = {"repairs": how, "network": network, "done": done}
    for weights, interpolation, taken in (
        (None, "linear", True),
        ([0.5, 0.5], "linear", True),
        ([0.7, 0.3], "linear", False),
        (None, "slerp", False),
    ):
        tensors, found = repaired_mean([a, b], fitted, weights, interpolation=interpolation, **run)
        assert (found is done) == taken
        assert replaced(tensors, found.tensors)["head.bias"].eq(7).all() == taken
    tensors, found = repaired_mean([a, b], fitted, repairs=None, done=done)
    assert found == Outcome() and torch.allclose(tensors["head.bias"], a["head.bias"] + 0.5)
