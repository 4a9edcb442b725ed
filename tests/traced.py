"""A network of ours is traced once for inputs of one shape, as long as a process lives.

Inference, methods that look at activations and repairs trace the network whenever they are called. PyTorch
takes 0.2 s or more for that, which is most of the time of a test with a small network; and the graph depends
on the structure of the network and on the shapes of its inputs, not on its weights. Networks that tests or
users define are traced every time, and half of that is work that PyTorch does anew for every network though
it is always the same: a list of its operations, and type annotations. Tests do it once.
"""

import functools

import torch
from torch._export import utils as listing
from torch.export import decomp_utils, exported_program
from torch.utils import _pytree as pytree

from rebasin_cli.inference import inferring, tracing
from rebasin_cli.matchers.activations import sites
from rebasin_cli.repair import producers

USERS = inferring, sites, producers
_TRACED = {}  # the network as well, so that nothing of it gives its place in memory to another one


def export(network, args, kwargs):
    if not type(network).__module__.startswith("rebasin_cli.nets"):
        return tracing.export(network, args, kwargs)
    leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
    inputs = [_kind(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    key = repr((_described(network), inputs, structure))
    if key not in _TRACED:
        _TRACED[key] = network, tracing.export(network, args, kwargs)
    return _TRACED[key][1]


def _kind(tensor):
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _described(network):
    """All attributes of all modules, with the shapes and types of tensors for their values.

    Buffers that no state dict has are constants of the graph: of these the values.
    """
    found = []
    for name, module in network.named_modules():
        own = {key: value for key, value in vars(module).items() if key not in ("_modules", "training")}
        for held in ("_parameters", "_buffers"):
            own[held] = {key: t if t is None else _kind(t) for key, t in own[held].items()}
        constants = sorted(own.pop("_non_persistent_buffers_set"))
        own["constants"] = {key: getattr(module, key).tolist() for key in constants}
        found.append((name, type(module), own))
    return found


class _Unsaid(type):
    """What stands for `Callable` in annotations that are evaluated and never read."""

    def __getitem__(cls, parameters):
        return cls

    def __instancecheck__(cls, value):
        return callable(value)


class _Callable(metaclass=_Unsaid):
    pass


def trace_once():
    for module in USERS:
        module.export = export
    name = "_collect_all_valid_cia_ops"  # of the PyTorch that is pinned; others may do without
    if hasattr(listing, name):
        operations = functools.cache(getattr(listing, name))  # tests add theirs when they are read
        for module in (listing, decomp_utils, exported_program):
            setattr(module, name, operations)
    if hasattr(torch._ops, "Callable"):
        torch._ops.Callable = _Callable  # 12,000 annotations a network
