"""A network of ours or of the tests is traced once for inputs of one shape, as long as a process lives.

And its spec is inferred and proven once for one batch of inputs: nothing of that depends on its weights.
Tensors of the same names and shapes are held against the built-in specs once.

Inference, methods that look at activations and repairs trace the network whenever they are called. That
takes 10 to 100 ms, and 0.2 s or more where PyTorch's exporter has to do it; the graph depends on the
structure of the network and on the shapes of its inputs, not on its weights. Networks of classes that a user
or a test defines where it runs are traced every time, and half of what the exporter does is work that it
does anew for every network though it is always the same: a list of its operations, and type annotations.
Tests do it once.
"""

import functools
import hashlib
import itertools
import sys

import torch
from torch._export import utils as listing
from torch.export import decomp_utils, exported_program
from torch.utils import _pytree as pytree

from rebasin_cli import inference
from rebasin_cli.graph import tracing
from rebasin_cli.inference import inferring
from rebasin_cli.matchers.activations import sites
from rebasin_cli.proof import prove as proving
from rebasin_cli.repair import producers
from rebasin_cli.spec import library

USERS = inferring, sites, producers
_PARTICULAR = []  # programs where values decide what runs
_TRACED = {}  # the network as well, so that nothing of it gives its place in memory to another one


def export(network, args, kwargs, *, numbers=False):
    key, forwards = _key(network, args, kwargs, _kind, numbers)
    if key in _TRACED:
        return _TRACED[key][-1]
    program = tracing.export(network, args, kwargs, numbers=numbers)
    if not program.general:
        _PARTICULAR.append(program)
    elif key:
        _TRACED[key] = network, forwards, program
    return program


def _once(function):
    """`infer` or `folds_of`, which gives for one network and one batch what it gave before."""

    @functools.wraps(function)
    def once(network, *inputs, **asked):
        key, forwards = _key(network, inputs, {}, _values, function.__name__, sorted(asked.items()))
        if key not in _TRACED:
            before = len(_PARTICULAR)
            found = function(network, *inputs, **asked)
            if not key or len(_PARTICULAR) > before:
                return found
            _TRACED[key] = network, forwards, found
        return _TRACED[key][-1]

    return once


def _proven_once(function):
    """`prove`, which draws weights of its own: of one network, spec and batch it says what it said before.

    But where it took more trials than asked for, in which a network keeps its weights. Tests that are about
    the proof import it before, as it is.
    """

    @functools.wraps(function)
    def once(network, fitted, inputs, **asked):
        key, forwards = _key(network, (inputs,), {}, _values, "prove", fitted, sorted(asked.items()))
        if key not in _TRACED:
            found = function(network, fitted, inputs, **asked)
            if not key or found.trials > asked.get("trials", 2):
                return found
            _TRACED[key] = network, forwards, found
        return _TRACED[key][-1]

    return once


_FITTING = {}  # what was fitted from, too: a test may put in other specs


def _fitting_once(function):
    """`library.find`, which gives for tensors of these names and shapes what it gave before."""

    @functools.wraps(function)
    def once(shapes, settings=None):
        specs = library.builtin()
        key = repr((sorted(shapes.items()), settings))
        if _FITTING.get(key, (None,))[0] is not specs:
            _FITTING[key] = specs, function(shapes, settings)
        return _FITTING[key][1]

    return once


def _key(network, args, kwargs, told, *more):
    """What a network is, of inputs that are `told` so: None of one that is not found by its name."""
    classes = {type(module) for module in network.modules()}
    if not all(map(_stays, classes)):
        return None, []
    leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
    inputs = [told(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    forwards = [(cls, cls.forward) for cls in sorted(classes, key=repr)]  # a test may have put in another one
    return repr((_described(network), forwards, inputs, structure, more)), forwards


def _stays(cls):
    """Whether a class of ours, of PyTorch or of the tests is found by its name, as no other one ever is."""
    if cls.__module__.partition(".")[0] not in ("rebasin_cli", "torch", "tests"):
        return False
    return getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls


def _kind(tensor):
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _values(tensor):
    if tensor.is_meta:
        return _kind(tensor)
    return _kind(tensor), hashlib.sha256(
        tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy()
    ).digest()


def _described(network):
    """All attributes of all modules; for tensors their shapes and types, and which of them are one.

    Buffers that no state dict has and tensors in other attributes are constants of the graph: of these the
    values.
    """
    found, number = [], itertools.count()
    seen = {}
    for name, module in network.named_modules(remove_duplicate=False):
        own = {key: value for key, value in vars(module).items() if key not in ("_modules", "training")}
        for held in ("_parameters", "_buffers"):
            tensors = own.pop(held)
            for t in tensors.values():
                if t is not None and id(t) not in seen:
                    seen[id(t)] = next(number)
            own[held] = {key: t if t is None else (seen[id(t)], _kind(t)) for key, t in tensors.items()}
        constants = sorted(own.pop("_non_persistent_buffers_set"))
        own["constants"] = {key: getattr(module, key) for key in constants}
        own = pytree.tree_map_only(torch.Tensor, lambda t: (_kind(t), None if t.is_meta else t.tolist()), own)
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
    inferring.folds_of = _once(inferring.folds_of)
    inferring.infer = inference.infer = _once(inferring.infer)
    proving.prove = _proven_once(proving.prove)
    library.find = _fitting_once(library.find)
    name = "_collect_all_valid_cia_ops"  # of the PyTorch that is pinned; others may do without
    if hasattr(listing, name):
        operations = functools.cache(getattr(listing, name))  # tests add theirs when they are read
        for module in (listing, decomp_utils, exported_program):
            setattr(module, name, operations)
    if hasattr(torch._ops, "Callable"):
        torch._ops.Callable = _Callable  # 12,000 annotations a network
