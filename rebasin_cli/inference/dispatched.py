"""A network's operations as PyTorch dispatches them: the exporter's graph without the exporter.

PyTorch's exporter imports its compiler, which takes two seconds, and 0.2 to 1 more to follow a network.
What most networks do can be written down while they run, below autograd, where a linear layer is still
one operation. Operations that write into what they read become those that return it, others are taken
apart by the exporter's own table. All that this does not follow for certain (values that decide what
runs, views that are written into, tensors that no parameter, buffer or input is, several devices) is left
to the exporter.
"""

from __future__ import annotations

import contextlib
import math
import operator
import sys
import weakref
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from .float64 import Uncompiled
from .program import Program

LEFT = frozenset(
    {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}
)
SAMPLED = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
ATTENTION = "scaled_dot_product_attention"
PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


class Unfollowed(Exception):
    """The exporter has to be asked."""


class Seen(torch.Tensor):
    """What the network has in place of `value`, whose numbers it cannot see; `node` makes it.

    A network may keep one where nobody finds it, such as a table in its file. After the run that is its
    value, where the value is `exact`.
    """

    value: torch.Tensor
    node: fx.Node
    exact: bool
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, value: torch.Tensor, node: fx.Node, exact: bool = True):
        seen = torch.Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=value.device,
            requires_grad=value.requires_grad,
        )
        seen.value, seen.node, seen.exact = value, node, exact
        return seen

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if not _exact(args, kwargs):
            raise Unfollowed(f"{func} of what a network kept while it was traced")
        plain = pytree.tree_map_only(Seen, lambda seen: seen.value, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


class Recorder(Uncompiled):
    """Writes down the operations that run while it is active."""

    def __init__(self, device: torch.device, table: Mapping[Any, Any], kept: Set[Any]):
        super().__init__()
        self.graph, self.device, self.table, self.kept = fx.Graph(), device, table, kept
        self.given: set[int] = set()  # memory of parameters, buffers and inputs
        self.sharing: dict[int, list[weakref.ref[Seen]]] = {}  # by the memory

    def given_tensor(self, name: str, tensor: torch.Tensor) -> Seen:
        """A parameter, a buffer or an input."""
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided or tensor.device != self.device:
            raise Unfollowed(f"{name} is no plain tensor on {self.device}")
        self.given.add(_memory(tensor))
        return self._seen(tensor, self.graph.placeholder(name))

    def given_leaf(self, name: str, leaf: Any) -> Any:
        """An input, or something else among the arguments, which has a placeholder as well."""
        if isinstance(leaf, torch.Tensor):
            return self.given_tensor(name, leaf)
        self.graph.placeholder(name)
        return leaf

    def _seen(self, value: torch.Tensor, node: fx.Node, exact: bool = True) -> Seen:
        node.meta["val"] = _without_numbers(value)
        seen = Seen(value, node, exact)
        self.sharing.setdefault(_memory(value), []).append(weakref.ref(seen))
        return seen

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.namespace != "aten":
            raise Unfollowed(str(func))
        if func._schema.is_mutable:
            return self._written(func, args, kwargs)
        if func not in self.kept and (parts := _parts(func, self.table)) is not None:
            with self:
                found = parts(*args, **kwargs)
            if found is not NotImplemented:
                return found
        return self._recorded(func, args, kwargs)

    def _recorded(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The operation as a node, and what it gives."""
        if func._opname.startswith("mkldnn_") or LEFT & set(func.tags) and not _certain(func, args, kwargs):
            raise Unfollowed(f"{func} gives what values, chance or the processor decide")
        exact = func._opname not in SAMPLED and _exact(args, kwargs)
        found = _run(func, *pytree.tree_map(self._value, (args, kwargs)))
        reads = pytree.tree_map(_node, (args, kwargs))
        node = self.graph.create_node("call_function", func, *reads, name=func._opname)
        node.meta["place"] = _place()
        if isinstance(found, torch.Tensor):
            return self._seen(found, node, exact)
        if not isinstance(found, (tuple, list)) or not all(isinstance(it, torch.Tensor) for it in found):
            raise Unfollowed(f"{func} gives {found}")
        node.meta["val"] = type(found)(map(_without_numbers, found))
        parts = [self.graph.call_function(operator.getitem, (node, k)) for k in range(len(found))]
        return type(found)(self._seen(*both, exact) for both in zip(found, parts, strict=True))

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.device) and value != self.device:
            raise Unfollowed(f"{value} beside {self.device}")
        if isinstance(value, torch.Tensor) and not (
            isinstance(value, Seen) and value.node.graph is self.graph
        ):
            raise Unfollowed("a tensor that no parameter, buffer or input is")
        return value.value if isinstance(value, Seen) else value

    def _written(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """An operation that writes into its first argument, as the one that does not."""
        packet = getattr(torch.ops.aten, func._opname.removesuffix("_"), None)
        instead = getattr(packet, func._overloadname, None)
        own = args[0] if args else None
        if not func._opname.endswith("_") or instead is None or not isinstance(own, Seen):
            raise Unfollowed(f"{func} writes")
        memory = _memory(own.value)
        if memory in self.given or any(it() is not None and it() is not own for it in self.sharing[memory]):
            raise Unfollowed(f"{func} writes into what others read")
        with self:
            found = instead(*args, **kwargs)
        if not isinstance(found, Seen) or _memory(found.value) == memory or _kind(found) != _kind(own):
            raise Unfollowed(f"{func} changes what it writes into")
        own.node = found.node
        return own


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """What the operation gives. Nobody reads the numbers, so where most of the work is, one sample does."""
    rows = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if func._opname not in SAMPLED or rows is None or rows.ndim < 2:
        return func(*args, **kwargs)
    if func._opname == "linear":
        lead, rows = rows.shape[:-1], rows.reshape(-1, rows.shape[-1])
    elif rows.ndim == args[1].ndim:
        lead = rows.shape[:1]
    else:  # without an axis of samples
        return func(*args, **kwargs)
    one = func(rows[:1], *args[1:], **kwargs)
    many = torch.zeros(math.prod(lead) * one[0].numel(), dtype=one.dtype, device=one.device)
    rows = many.as_strided((math.prod(lead), *one.shape[1:]), (one[0].numel(), *one.stride()[1:]))
    return rows.view(*lead, *one.shape[1:])


def _without_numbers(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def _exact(*given: Any) -> bool:
    """Whether all values among arguments have the numbers that the network would see."""
    return all(leaf.exact for leaf in pytree.tree_leaves(given) if isinstance(leaf, Seen))


def _node(value: Any) -> Any:
    return value.node if isinstance(value, Seen) else value


def _parts(func: Any, table: Mapping[Any, Any]) -> Any:
    """What takes an operation apart; None: it is not taken apart."""
    for key in (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd):
        if callable(found := func.py_kernels.get(key)):
            return found
    return table.get(func) or (func.decompose if func._can_decompose() else None)


def _certain(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether an operation that chance or values may decide on is none of these, called like that."""
    if func._opname == "index":
        return not any(it.dtype in (torch.bool, torch.uint8) for it in args[1] if it is not None)
    return func._opname == ATTENTION and not (kwargs.get("dropout_p", 0) or (len(args) > 4 and args[4]))


def _place() -> tuple[str, int] | None:
    """File and line, the innermost outside of PyTorch; where there is none, the innermost there."""
    frame, inner = sys._getframe(1), None
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and "/torch/" not in file:
            return file, frame.f_lineno
        if inner is None and file != __file__ and not file.endswith(("_ops.py", "_python_dispatch.py")):
            inner = file, frame.f_lineno
        frame = frame.f_back
    return inner


@contextlib.contextmanager
def _attention_in_full() -> Iterator[None]:
    """Without the one operation that PyTorch's attention modules may be where nothing learns."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def record(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    table: Mapping[Any, Any],
    kept: Set[Any],
) -> Program:
    """The module's graph; `table` takes operations apart (operation → function), all but those `kept`.

    Raises Unfollowed, or whatever the network raises where it cannot see numbers.
    """
    leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    held = (*parameters.values(), *buffers.values(), *leaves)
    devices = {it.device for it in held if isinstance(it, torch.Tensor)}
    if len(devices) != 1 or torch._C._is_any_autocast_enabled():
        raise Unfollowed(f"{len(devices)} devices, or a lower precision around it")
    recorder, saved = Recorder(devices.pop(), table, kept), module.state_dict(keep_vars=True)
    own = {name: recorder.given_tensor(f"p_{_label(name)}", it) for name, it in parameters.items()}
    own |= {name: recorder.given_tensor(f"b_{_label(name)}", it) for name, it in buffers.items()}
    last = {id(it): own[name] for name, it in (parameters | buffers).items()}  # of one with several names
    given = [recorder.given_leaf(f"input_{k}", leaf) for k, leaf in enumerate(leaves)]
    arguments, keywords = pytree.tree_unflatten(given, tree)
    seen = {name: last[id(it)] for name, it in (parameters | buffers).items()}
    with _attention_in_full(), torch._C._AutoDispatchBelowAutograd(), recorder:
        returned = torch.func.functional_call(module, seen, arguments, keywords)
    results, structure = pytree.tree_flatten(returned)
    if any(isinstance(it, torch.Tensor) and not isinstance(it, Seen) for it in results):
        raise Unfollowed("it returns a tensor that it did not compute")
    recorder.graph.output(tuple(map(_node, results)))
    recorder.graph.eliminate_dead_code()
    return Program(
        graph_module=fx.GraphModule(nn.Module(), recorder.graph),
        inputs=(
            *(InputSpec(InputKind.PARAMETER, _argument(own[name]), name) for name in parameters),
            *(InputSpec(InputKind.BUFFER, _argument(own[name]), name, name in saved) for name in buffers),
            *(InputSpec(InputKind.USER_INPUT, _argument(it), None) for it in given),
        ),
        outputs=tuple(OutputSpec(OutputKind.USER_OUTPUT, _argument(it), None) for it in results),
        constants={name: buffer for name, buffer in buffers.items() if name not in saved},
        buffers=buffers,
        results=structure,
        examples=(tuple(args), dict(kwargs)),
    )


def _label(name: str) -> str:
    return name.replace(".", "_")


def _argument(value: Any) -> TensorArgument | ConstantArgument:
    return TensorArgument(value.node.name) if isinstance(value, Seen) else ConstantArgument("", value)
