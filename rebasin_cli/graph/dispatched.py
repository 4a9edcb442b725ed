"""A network's operations as PyTorch dispatches them: the exporter's graph without the exporter.

PyTorch's exporter imports its compiler, which takes two seconds, and 0.2 to 1 more to follow a network.
What most networks do can be written down while they run, below autograd, where a linear layer is still
one operation. Operations that write into what they read become those that return it, others are taken
apart by the exporter's own table. All that this does not follow for certain (values that decide what
runs, views that are written into, buffers and `.data` that are assigned, tensors that no parameter, buffer
or input is, several devices) is left to the exporter. What it cannot see is a network that asks for the
class of a tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Set
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

from ..networks.returned import leaves_of
from .answers import Answers
from .program import Program
from .recorder import Assigned, Recorder, Seen, Unfollowed, node_of


def record(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    table: Mapping[Any, Any],
    kept: Set[Any],
    *,
    numbers: bool = False,
    whole: bool = False,
    answers: Answers | None = None,
) -> Program:
    """The graph of a module in evaluation mode, for arguments of these shapes and types.

    It is run once, and stays as it is. `table` takes operations apart (operation → function), all but those
    `kept`; `numbers`, `whole` and `answers` are as `Recorder` takes them: what the network looks at are
    further outputs, and the graph is that of inputs that look alike. Raises Unfollowed, or whatever the
    network raises where it cannot see numbers.
    """
    leaves, tree = pytree.tree_flatten((args, dict(kwargs)))
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    tensors: dict[str, torch.Tensor] = {**parameters, **buffers}
    devices = {it.device for it in (*tensors.values(), *leaves) if isinstance(it, torch.Tensor)}
    if len(devices) != 1 or torch._C._is_any_autocast_enabled():
        raise Unfollowed(f"{len(devices)} devices, or a lower precision around it")
    recorder, saved = (
        Recorder(devices.pop(), table, kept, numbers, whole, answers),
        module.state_dict(keep_vars=True),
    )
    own = {
        name: recorder.placeholder(f"{'p' if name in parameters else 'b'}_{name.replace('.', '_')}", it)
        for name, it in tensors.items()
    }
    last = {id(it): own[name] for name, it in tensors.items()}  # of one tensor with several names
    state = {name: last[id(it)] for name, it in tensors.items()}
    inputs = [recorder.placeholder(f"input_{k}", leaf) for k, leaf in enumerate(leaves)]
    arguments, keywords = pytree.tree_unflatten(inputs, tree)

    def check_state(root: nn.Module, *_: Any) -> None:
        held: dict[str, torch.Tensor] = dict(root.named_buffers(remove_duplicate=False))
        held |= root.named_parameters(remove_duplicate=False)
        if any(held.get(name) is not it for name, it in state.items()):
            recorder.fail("it assigns a parameter or a buffer")

    # One operation of its own in place of an LSTM's is nobody's.
    plain = torch.backends.mkldnn.flags(enabled=False) if numbers else contextlib.nullcontext()
    hook = module.register_forward_hook(check_state)
    try:
        with plain, Assigned(recorder), torch._C._AutoDispatchBelowAutograd(), recorder:
            returned = torch.func.functional_call(module, state, arguments, keywords)
    finally:
        hook.remove()
        recorder.done = True
    if recorder.failed:  # and the network went on
        raise Unfollowed(recorder.failed)
    constants = recorder.constants.values()
    results = [leaf.tensor for leaf in leaves_of(returned) if leaf.tensor is not None]
    if not all(isinstance(it, Seen) for it in results):
        raise Unfollowed("it returns a tensor that it did not compute")
    recorder.graph.output((*map(node_of, results), *recorder.decided))
    recorder.graph.eliminate_dead_code()
    return Program(
        graph_module=fx.GraphModule(nn.Module(), recorder.graph),
        inputs=(
            *(InputSpec(InputKind.PARAMETER, _argument(own[name]), name) for name in parameters),
            *(InputSpec(InputKind.BUFFER, _argument(own[name]), name, name in saved) for name in buffers),
            *(InputSpec(InputKind.USER_INPUT, _argument(it), None) for it in inputs),
            *(InputSpec(InputKind.CONSTANT_TENSOR, _argument(it), it.node.name) for it in constants),
        ),
        outputs=(
            *(OutputSpec(OutputKind.USER_OUTPUT, _argument(it), None) for it in results),
            *(OutputSpec(OutputKind.TOKEN, TensorArgument(node.name), None) for node in recorder.decided),
        ),
        constants={name: buffer for name, buffer in buffers.items() if name not in saved}
        | {it.node.name: it.value for it in constants},
        buffers=buffers,
        returned=returned,
        examples=(args, dict(kwargs)),
        general=recorder.general,
        answers=recorder.answers,
    )


def _argument(value: Any) -> TensorArgument | ConstantArgument:
    return TensorArgument(value.node.name) if isinstance(value, Seen) else ConstantArgument("", value)
