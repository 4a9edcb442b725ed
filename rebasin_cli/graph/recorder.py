"""What sees a network's operations where PyTorch dispatches them, and the tensors that it is run on."""

from __future__ import annotations

import contextlib
import math
import operator
import sys
import weakref
from collections.abc import Mapping, Set
from typing import Any, NoReturn

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from . import views
from .answers import Answers, asking
from .float64 import Uncompiled
from .operations import operation_of

LEFT = frozenset(
    {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}
)
LENGTHS = ("_pack_padded_sequence", "_pad_packed_sequence")  # what they give second is made of lengths alone
DENIED = ("mkldnn_", *LENGTHS)  # by what operations' names begin with
ATTENTION = "scaled_dot_product_attention"
# What hands numbers on where nothing is dispatched; the first three as plain values:
VALUES = ("tolist", "numpy", "__array__")
LEAVING = frozenset({*VALUES, "__dlpack__", "data_ptr", "untyped_storage", "storage"})
PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


class Unfollowed(Exception):
    """The exporter has to be asked."""


class Seen(torch.Tensor):
    """What the network has in place of `value`, whose numbers it cannot see; `node` makes it.

    A network may keep one where nobody finds it, such as a table in its file. Once its `recorder` is done
    that is its value; only an `exact` one, since that of the others was not computed on all samples.
    """

    value: torch.Tensor
    node: fx.Node
    recorder: Recorder
    exact: bool
    shows: views.View[Seen] | None = None  # of what it shows, where it has no memory of its own
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, value: torch.Tensor, node: fx.Node, recorder: Recorder, exact: bool = True) -> Any:
        seen = torch.Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=value.device,
            requires_grad=value.requires_grad,
        )
        seen.value, seen.node, seen.recorder, seen.exact = value, node, recorder, exact
        seen._is_param = isinstance(value, nn.Parameter)  # for who asks
        return seen

    @classmethod  # as PyTorch has it of tensors: its hints take no account of the class
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for seen in pytree.tree_leaves((args, kwargs)):
            if isinstance(seen, Seen) and not seen.recorder.done:  # in another thread, or behind modes
                seen.recorder.fail(f"{func._opname} runs in another thread, where it is not seen")
            if isinstance(seen, Seen) and not seen.exact:
                raise Unfollowed(f"{func} of what a network kept while it was traced")
        plain = pytree.tree_map_only(Seen, lambda seen: seen.value, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


class Recorder(Uncompiled):
    """Writes down the operations that run while it is active, as nodes of `graph`.

    `table` takes operations apart (operation → function), all but those `kept`. Where one could not be
    written down, `failed` says why. With `numbers`, what the network looks at (`.item()`, a mask's rows) is
    as its inputs and weights make it, or as `answers` say: nodes of `decided`, which have to stay. `whole`:
    all numbers are there, no operation is run on one sample alone. Raises Unfollowed, and what operations
    raise.
    """

    def __init__(
        self,
        device: torch.device,
        table: Mapping[Any, Any],
        kept: Set[Any],
        numbers: bool = False,
        whole: bool = False,
        answers: Answers | None = None,
    ):
        super().__init__()
        self.answers = answers or Answers()
        self.graph, self.device, self.table, self.kept = fx.Graph(), device, table, kept
        self.numbers, self.whole = numbers, whole
        self.decided: list[fx.Node] = []
        self.general = True  # whether no values decided
        self.given: set[int] = set()  # memory of parameters, buffers, inputs and constants
        self.constants: dict[int, Seen] = {}  # what is none of the network's own, by its id
        self.sharing: dict[int, list[weakref.ref[Seen]]] = {}  # by the memory
        self.failed, self.done = "", False
        self.outside = sys._getframe(1)  # who asks for the graph, and is no part of the network

    def placeholder(self, name: str, value: Any) -> Any:
        """What the network gets in place of a parameter, buffer or input; what is no tensor stays itself."""
        if not isinstance(value, torch.Tensor):
            self.graph.placeholder(name)
            return value
        if type(value) not in PLAIN or value.layout is not torch.strided or value.device != self.device:
            raise Unfollowed(f"{name} is no plain tensor on {self.device}")
        self.given.add(_memory(value))
        return self._seen(value, self.graph.placeholder(name))

    def _seen(self, value: torch.Tensor, node: fx.Node, exact: bool = True) -> Seen:
        node.meta["val"] = _without_numbers(value)
        seen: Seen = Seen(value, node, self, exact)
        self.sharing.setdefault(_memory(value), []).append(weakref.ref(seen))
        return seen

    def _constant(self, value: Any) -> Any:
        """A tensor that the network makes of plain numbers, or keeps beside its state, as a placeholder.

        Numbers that it looked at before may be in it: they decide, and have to stay.
        """
        if not self.numbers or type(value) not in PLAIN or value.device != self.device:
            return value
        if id(value) not in self.constants:
            last = [node for node in self.graph.nodes if node.op == "placeholder"][-1:]
            with self.graph.inserting_after(*last) if last else contextlib.nullcontext():
                node = self.graph.placeholder(f"constant_{len(self.constants)}")
            self.given.add(_memory(value))
            self.constants[id(value)] = self._seen(value, node)  # which keeps it, and so its id
        return self.constants[id(value)]

    def looked_at(self, seen: Seen) -> bool:
        """Whether the network may have all its numbers, which then decide."""
        if not (self.numbers and seen.exact):
            return False
        self.decided.append(seen.node)
        self.general = False
        return True

    def _count(self, counted: list[Seen]) -> None:
        """Rows are counted by these: from now on by other numbers, where another answer is wanted."""
        others = self.answers.rows(asking(self.outside), [seen.value for seen in counted])
        for seen, other in zip(counted, others, strict=True):
            seen.value = other

    def fail(self, why: str) -> NoReturn:
        """Give up, also where the network goes on after an error."""
        self.failed = self.failed or why
        raise Unfollowed(why)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return self._dispatched(func, args, dict(kwargs or {}))
        except BaseException as cause:
            self.failed = self.failed or f"{func}: {cause}"
            raise

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace != "aten":
            raise Unfollowed(f"{func} is no operation of PyTorch itself")
        if func._opname == "detach_":  # of what `torch.tensor` makes; below autograd it does nothing
            return args[0]
        if func._schema.is_mutable:
            return self._written(func, args, kwargs)
        whole = func in self.kept or func._opname in LENGTHS  # PyTorch reads the lengths where nobody sees it
        if not whole and (parts := _parts(func, self.table)) is not None:
            with self:
                found = parts(*args, **kwargs)
            if found is not NotImplemented:
                return found
        return self._recorded(func, args, kwargs)

    def _recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operation as a node, and what it gives."""
        args, kwargs = pytree.tree_map(self._constant, (args, kwargs))
        if func._opname == "lift_fresh":
            return args[0]
        chance = func._opname.startswith(DENIED) or LEFT & set(func.tags)
        certain = not chance or _certain(func, args, kwargs)
        if not certain and self.numbers and _known(func, args):
            certain, self.general = True, False
            counted = _counted(func, args)
            self.decided += [seen.node for seen in counted]
            self._count(counted)
        if not certain or _changes_statistics(func, args, kwargs):
            raise Unfollowed(f"what {func._opname} gives is decided by values or by chance")
        sampled = not self.whole and operation_of(func, func._opname).layer
        exact, own = not sampled and _exact(args, kwargs), pytree.tree_map(self._value, (args, kwargs))
        found = _run(func, *own) if sampled else func(*own[0], **own[1])
        if found is None:  # a check, which has passed
            return None
        read, named = pytree.tree_map(node_of, (args, kwargs))
        place = asking(self.outside)
        node = self.graph.create_node("call_function", func, read, named, name=func._opname)
        node.meta["place"] = place and place[:2]
        if self.answers.most is not None and len(self.graph.nodes) > self.answers.most:
            raise Unfollowed("it does not end with such answers")
        if isinstance(found, torch.Tensor):
            return self._shown(self._seen(found, node, exact), func, args, kwargs)
        if isinstance(found, (bool, int, float, complex)):  # with `numbers` alone
            self.decided.append(node)
            return self.answers.of(place, found)
        if not isinstance(found, (tuple, list)) or not all(isinstance(it, torch.Tensor) for it in found):
            raise Unfollowed(f"{func._opname} gives {type(found).__name__}")
        node.meta["val"] = type(found)(map(_without_numbers, found))
        parts = [self.graph.call_function(operator.getitem, (node, k)) for k in range(len(found))]
        known = [exact or (func._opname in LENGTHS and k > 0) for k in range(len(found))]
        seen = [self._seen(*each) for each in zip(found, parts, known, strict=True)]
        return type(found)(self._shown(each, func, args, kwargs, k) for k, each in enumerate(seen))

    def _shown(
        self, seen: Seen, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], k: int = 0
    ) -> Seen:
        """The same, which remembers what it is a view of, if it is one."""
        whole = args[0] if args and isinstance(args[0], Seen) else None
        if whole is not None and _memory(whole.value) == _memory(seen.value):
            seen.shows = views.View(whole, func, args[1:], kwargs, k)
        return seen

    def _value(self, value: Any) -> Any:
        if isinstance(value, torch.device) and value != self.device:
            raise Unfollowed(f"{value} beside {self.device}")
        if isinstance(value, torch.Tensor) and not (isinstance(value, Seen) and value.recorder is self):
            raise Unfollowed("it uses a tensor that is no parameter, buffer or input")
        return value.value if isinstance(value, Seen) else value

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation that writes into its first argument, as the one that does not."""
        packet = getattr(torch.ops.aten, func._opname.removesuffix("_"), None)
        instead = getattr(packet, func._overloadname, None)
        own = args[0] if args else None
        if (
            not func._opname.endswith("_")
            or func._opname == "set_"
            or instead is None
            or not isinstance(own, Seen)
        ):
            raise Unfollowed(f"{func._opname} writes into a tensor")
        memory = _memory(own.value)
        if memory in self.given:
            raise Unfollowed(f"{func._opname} writes into what the network was given")
        others = [it for each in self.sharing[memory] if (it := each()) is not None and it is not own]
        others = [it for it in others if _memory(it.value) == memory]
        with self:
            found = instead(*args, **kwargs)
            alike = isinstance(found, Seen) and (found.shape, found.dtype) == (own.shape, own.dtype)
            if not alike or _memory(found.value) == memory:
                raise Unfollowed(f"{func._opname} changes what it writes into")
            self._write(own, found, others)
        return own

    def _write(self, own: Seen, new: Seen, others: list[Seen]) -> None:
        """The whole that is written into is another then, and all that show it show that."""
        whole, showing, value = own, {own, *others}, new
        while whole.shows is not None and value is not None:
            value, whole = views.put(whole.shows, value), whole.shows.whole
            showing.add(whole)
        if value is not None and _kind(value) != _kind(whole):
            value = torch.ops.aten.copy.default(whole, value)
        known = value is not None and _kind(value) == _kind(whole)
        if not known or any(seen.shows is None for seen in showing - {whole}):
            raise Unfollowed("it writes into a part of what others read, in a way that is not known")
        self._replace(whole, value)
        anew = {whole}

        def refresh(seen: Seen) -> None:
            if seen.shows is not None and seen not in anew:
                refresh(seen.shows.whole)
                self._replace(seen, views.taken(seen.shows))
                anew.add(seen)

        for seen in showing:
            refresh(seen)

    def _replace(self, own: Seen, new: Seen) -> None:
        own.value, own.node, own.exact = new.value, new.node, new.exact
        self.sharing.setdefault(_memory(own.value), []).append(weakref.ref(own))


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """What the operation gives. Nobody reads the numbers, so where most of the work is, one sample does."""
    rows = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if rows is None or rows.ndim < 2:
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
    return int(value.untyped_storage()._cdata)


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def _exact(*given: Any) -> bool:
    """Whether all values among arguments have the numbers that the network would see."""
    return all(leaf.exact for leaf in pytree.tree_leaves(given) if isinstance(leaf, Seen))


def node_of(value: Any) -> Any:
    return value.node if isinstance(value, Seen) else value


def _parts(func: Any, table: Mapping[Any, Any]) -> Any:
    """What takes an operation apart; None: it is not taken apart."""
    for key in (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd):
        if callable(found := func.py_kernels.get(key)):
            return found
    return table.get(func) or (func.decompose if func._can_decompose() else None)


def _changes_statistics(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a norm writes into running statistics, which its schema does not say."""
    if func._opname != "instance_norm":
        return False
    given = dict(zip((it.name for it in func._schema.arguments), args, strict=False)) | kwargs
    return given["running_mean"] is not None and given["use_input_stats"]


def _certain(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation that chance or values may decide on is none of these, called like that."""
    if func._opname == "index":
        return not any(it.dtype in (torch.bool, torch.uint8) for it in args[1] if it is not None)
    return func._opname == ATTENTION and not (kwargs.get("dropout_p", 0) or (len(args) > 4 and args[4]))


def _known(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether what decides its result, or the shape of it, is known: it has the numbers of a real run."""
    if torch.Tag.nondeterministic_seeded in func.tags or func._opname.startswith("mkldnn_"):
        return False
    if func._opname in (*LENGTHS, "index", "masked_select"):
        return _exact(args[1])
    return _exact(args)


def _counted(func: Any, args: tuple[Any, ...]) -> list[Seen]:
    """What says how much there is of its result: masks, whole numbers, and where these are found."""
    if torch.Tag.dynamic_output_shape not in func.tags or func._opname in LENGTHS:
        return []
    taken = func._opname in ("index", "masked_select")  # floating numbers that a mask picks from say nothing
    read = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Seen)]
    return [seen for seen in read if not (taken and seen.dtype.is_floating_point)]


class Assigned(TorchFunctionMode):
    """Sees what is dispatched nowhere: `.data` that is assigned, addresses, and whether a value learns.

    While it is there PyTorch's attention modules take the way of many operations, also where nothing learns.
    """

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, own = getattr(func, "__name__", ""), args[0] if args else None
        learns = name == "__get__" and getattr(func, "__self__", None) is torch.Tensor.requires_grad
        made = isinstance(own, Seen) and own.node.op != "placeholder"
        if name in VALUES and isinstance(own, Seen) and self.recorder.looked_at(own):
            with _disable_current_modes():
                found = func(own.value.detach().clone(), *args[1:], **(kwargs or {}))
                place = asking(self.recorder.outside)
                return self.recorder.answers.of(place, found) if name == "tolist" else found
        if isinstance(own, Seen) and (name in LEAVING or name == "__set__" or (learns and made)):
            self.recorder.fail(
                f"{name} takes a tensor out of PyTorch, or puts one in: it is dispatched nowhere"
            )
        return func(*args, **(kwargs or {}))
