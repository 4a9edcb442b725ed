"""Align, merge and measure in memory: no files, no command line."""

import rebasin_cli
from rebasin_cli.datasets import open_data
from rebasin_cli.learning.training import train
from rebasin_cli.nets.mlp import from_shapes

# Two networks from different seeds. Yours come from anywhere; a state dict is a mapping of names to tensors.
a, b = (train("mlp", "digits", width=64, epochs=20, seed=seed).tensors for seed in (1, 2))

# The spec "mlp" says which axes move together; left out, it is found from the tensors.
network = from_shapes({name: tuple(tensor.shape) for name, tensor in a.items()})
aligned = rebasin_cli.align(a, b, "mlp", network=network)  # the network is for the proof
print(f"{aligned.result.sweeps} sweeps, converged: {aligned.result.converged}")
print(f"outputs of b changed by {aligned.proof.largest_difference:.0e}")
order = aligned.permutations[0]["h0"]  # unit i of a's first layer matches unit order[i] of b's
print(f"permutation of the first layer: {len(order)} units")

# A mean of state dicts, or of any number of models with method="merge-many".
merged = rebasin_cli.merge([a, aligned.tensors], "mlp", method="none").tensors
network.load_state_dict(dict(merged))

# Loss and accuracy along the path. Batches are any re-iterable of (inputs, targets).
report = rebasin_cli.barrier(a, b, "mlp", network=network, test=open_data("digits", "test"))
for row in report.rows:
    print(f"{row.name}: barrier {row.barriers['test'].chord:.3f} nats")
