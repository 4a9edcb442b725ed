"""One rank that writes folders of DCP as training does, and what is in them: python worker.py FOLDER."""

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

warnings.simplefilter("ignore")
folder, world = Path(sys.argv[1]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")


def whole(state):
    return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in state.items()}


def save(name, state, weights):
    """The folder, and the weights in it as one file."""
    whole_weights = {key: tensor.detach().clone() for key, tensor in whole(weights).items()}
    dcp.save(state, checkpoint_id=folder / f"{name}-{world}")
    if dist.get_rank() == 0:
        torch.save(whole_weights, folder / f"{name}-{world}.pt")


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.LayerNorm(7), nn.Linear(7, 3)).to(dtype)


def sharded(name, mesh, dtype=torch.float32):
    """FSDP2 with an optimizer beside it, as its tutorial saves both."""
    model = net(dtype)
    for part in (model[0], model[3]):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    save(name, {"app": {"model": weights, "optim": state}}, weights)


flat = init_device_mesh("cpu", (world,))
sharded("fsdp", flat)
sharded("bf16", flat, torch.bfloat16)
if world == 4:
    sharded("hsdp", init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))

made = torch.Generator().manual_seed(1)
tensors = {
    "rows.weight": (torch.randn(8, 6, generator=made), [Shard(0)]),
    "columns.weight": (torch.randn(8, 6, generator=made), [Shard(1)]),
    "uneven.weight": (torch.randn(7, 5, generator=made), [Shard(0)]),
    "uneven_columns.weight": (torch.randn(3, 7, generator=made), [Shard(1)]),
    "empty.weight": (torch.randn(2, 3, generator=made), [Shard(0)]),
    "strided.weight": (torch.randn(6, 8, generator=made).t(), [Shard(0)]),
    "same.bias": (torch.randn(6, generator=made), [Replicate()]),
    "float8.weight": (torch.randn(8, 4, generator=made).to(torch.float8_e4m3fn), [Shard(0)]),
    "half.weight": (torch.randn(8, 4, generator=made).half(), [Shard(1)]),
    "count": (torch.arange(8), [Shard(0)]),
}
placed = {}
for key, (tensor, placements) in tensors.items():
    if tensor.dtype is torch.float8_e4m3fn:  # gloo does not send it
        size = len(tensor) // world
        own = tensor[dist.get_rank() * size : (dist.get_rank() + 1) * size].clone()
        placed[key] = DTensor.from_local(own, flat, placements)
    else:
        placed[key] = distribute_tensor(tensor, flat, placements)
whole_tensors = {key: tensor for key, (tensor, _) in tensors.items()}
save("tensors", {"model": placed}, whole_tensors)
if world == 4:
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    both = [
        ("both.weight", [Shard(0), Shard(1)]),
        ("twice.weight", [Shard(0), Shard(0)]),
        ("half.weight", [Replicate(), Shard(1)]),
    ]
    values = {key: torch.randn(9, 7, generator=made) for key, _ in both}
    state = {key: distribute_tensor(values[key], grid, placements) for key, placements in both}
    save("grid", {"model": state}, values)
dist.barrier()
dist.destroy_process_group()
