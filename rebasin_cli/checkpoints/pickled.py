"""What plain tensors, numbers and containers are made of in a pickle: all that `inert.Reader` knows.

Each function gets what the pickle would have given to PyTorch's, Python's or NumPy's own function of that
name, looks at it, and makes the value itself. What cannot be made so, such as a tensor of another class,
becomes an `Inert` that says in `tensor` what it is; what cannot be true raises UnpicklingError.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .inert import Global, Inert, Known, Reader
from .inert import kind as kind_of
from .tensors import NESTED, SPARSE

DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
PLAIN = {name: dtype for name, dtype in DTYPES.items() if dtype.is_floating_point or dtype.is_complex}
PLAIN |= {f"torch.{name}": DTYPES[f"torch.{name}"] for name in ("bool", "uint8", "int8")}
PLAIN |= {
    f"torch.{kind}{bits}": DTYPES[f"torch.{kind}{bits}"] for kind in ("int", "uint") for bits in (16, 32, 64)
}

STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "QInt8Storage": "qint8",
    "QInt32Storage": "qint32",
    "QUInt8Storage": "quint8",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
    "UntypedStorage": "uint8",
    "_UntypedStorage": "uint8",
}
_NUMBER = re.compile("b1|[iu][1248]|f[248]|c8|c16")  # kinds of numbers of NumPy, with their bytes
TENSOR = 256  # bytes beside the values, at least
MAX_AXES = 64

# What is said of a tensor that is none of plain values.
QUANTISED = "is quantised: save the floating-point weights"
CONJUGATE = (
    "is stored as the conjugate or the negative of its values: save it with .resolve_conj().resolve_neg()"
)


@dataclass(frozen=True)
class StorageType:
    """A class of storages, such as torch.FloatStorage."""

    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Storage:
    """The values that tensors are views of."""

    values: torch.UntypedStorage
    dtype: torch.dtype


def _tensor(
    reader: Reader, storage: Any, offset: Any, size: Any, stride: Any, dtype: torch.dtype | None = None
) -> Any:
    reader.spend(TENSOR)
    if type(storage) is not Storage:
        raise UnpicklingError("a tensor has no storage")
    dtype = dtype or storage.dtype
    if str(dtype) not in PLAIN:
        return Inert(str(dtype), tensor=QUANTISED)
    size, stride = _sizes(size), _sizes(stride)
    if type(offset) is not int or offset < 0 or len(size) != len(stride):
        raise UnpicklingError("a tensor's sizes and strides are none")
    if math.prod(max(length, 1) for length in size) * dtype.itemsize >= 1 << 63:
        raise UnpicklingError("a tensor is larger than any memory")
    if 0 not in size:
        end = offset + 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if end * dtype.itemsize > storage.values.nbytes():
            raise UnpicklingError("a tensor reaches beyond what is stored")
    elif max(offset, *stride, 0) >= 1 << 63:
        raise UnpicklingError("a tensor's strides are larger than any memory")
    return torch.empty(0, dtype=dtype).set_(storage.values, offset if 0 not in size else 0, size, stride)


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or len(value) > MAX_AXES:
        raise UnpicklingError("a tensor's sizes are no tuple")
    if any(type(length) is not int or length < 0 for length in value):
        raise UnpicklingError("a tensor's sizes are no counts")
    return tuple(value)


def of_storage(
    reader: Reader,
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    metadata: Any = None,
) -> Any:
    """The tensor of these sizes and strides that begins at an offset in a storage, as torch rebuilds it.

    Inert where it is a view with a meaning of its own, such as conjugate. Raises UnpicklingError where it
    does not fit into the storage.
    """
    made = _tensor(reader, storage, offset, size, stride)
    return made if not metadata else Inert("torch.Tensor", (made,), tensor=CONJUGATE)


def _of_untyped_storage(
    reader: Reader,
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any,
    hooks: Any,
    dtype: Any,
    metadata: Any = None,
) -> Any:
    if type(dtype) is not torch.dtype:
        raise UnpicklingError("a tensor's dtype is none")
    made = _tensor(reader, storage, offset, size, stride, dtype)
    return made if not metadata else Inert("torch.Tensor", (made,), tensor=CONJUGATE)


def _parameter(reader: Reader, data: Any = None, *_: Any) -> Any:
    """A parameter, which is no number of the run's; that it would be trained is not kept."""
    value = _value(reader, data)
    return nn.Parameter(value, requires_grad=False) if isinstance(value, Tensor) else value


def _value(reader: Reader, data: Any = None, *_: Any) -> Any:
    """The tensor itself of what holds one."""
    if isinstance(data, Tensor) or (type(data) is Inert and data.tensor):
        return data
    return Inert("torch.nn.Parameter", (data,), tensor="is a parameter without a tensor", needs_code=True)


def _of_class(reader: Reader, function: Any, kind: Any, args: Any, state: Any = None) -> Any:
    """A tensor with attributes, or of another class, which may use its values in a way of its own."""
    known = type(function) is Global and "._rebuild_" in function.kind and function.make is not None
    made = reader.make(function, args) if known else None
    if type(made) is Inert and made.tensor:
        made.state = state
        return made
    if isinstance(made, Tensor) and type(kind) is Global and kind.kind in _CLASSES:
        return made
    name = kind_of(kind)
    return Inert(name, (made,), state, tensor=f"is a tensor of the class {name}", needs_code=True)


def _of_wrapper(reader: Reader, kind: Any = None, *_: Any) -> Any:
    name = kind_of(kind)
    return Inert(name, tensor=f"is a tensor of the class {name}", needs_code=True)


def _without_values(reader: Reader, dtype: Any, size: Any, stride: Any, requires_grad: Any = False) -> Any:
    size, stride = _sizes(size), _sizes(stride)
    reader.spend(TENSOR)
    if type(dtype) is not torch.dtype:
        raise UnpicklingError("a tensor's dtype is none")
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


def _strange(what: str) -> Known:
    return Known(lambda reader, *args: Inert("torch.Tensor", args, tensor=what))


def _of_numpy(reader: Reader, data: Any, dtype: Any, device: Any = None, requires_grad: Any = False) -> Any:
    """A tensor that a device without storages of its own kept as an array, or as a tensor of the CPU."""
    made = data if isinstance(data, Tensor) else array(reader, data)
    if made is None or made.dtype is not dtype:
        return Inert("torch.Tensor", (data,), tensor="is kept in a form that torch.save no longer writes")
    return made


# Plain values


def _filled(reader: Reader, value: dict[Any, Any], pairs: Any = ()) -> dict[Any, Any]:
    """A new dictionary with these pairs in it."""
    if isinstance(pairs, dict):
        pairs = tuple(pairs.items())
    known = (list, tuple)
    if type(pairs) not in known or any(type(pair) not in known or len(pair) != 2 for pair in pairs):
        raise UnpicklingError("a dictionary is made of what are no pairs")
    reader.spend(128 * len(pairs))
    reader.fill(value, [part for pair in pairs for part in pair])
    return value


def _set(reader: Reader, items: Any = ()) -> set[Any]:
    if type(items) not in (list, tuple, set, frozenset):
        raise UnpicklingError("a set is made of what are no items")
    return reader.add(set(), items)


def _listed(reader: Reader, items: Any = (), *_: Any) -> list[Any]:
    if type(items) not in (list, tuple):
        raise UnpicklingError("a queue is made of what are no items")
    reader.spend(64 + 8 * len(items))
    return list(items)


def _bytes(reader: Reader, text: Any = b"", encoding: Any = "latin1") -> Any:
    """Bytes, which older protocols keep as text."""
    if type(text) not in (str, bytes, bytearray) or encoding not in ("latin1", "latin-1"):
        return Inert("_codecs.encode")
    reader.spend(64 + len(text))
    return text.encode("latin1") if type(text) is str else bytes(text)


def _complex(reader: Reader, real: Any = 0.0, imaginary: Any = 0.0) -> Any:
    if not all(isinstance(part, int | float) for part in (real, imaginary)):
        raise UnpicklingError("a complex number is made of what are no numbers")
    return complex(real, imaginary)


def _size(reader: Reader, size: Any = ()) -> tuple[int, ...]:
    reader.spend(64)
    return _sizes(size)


def _device(reader: Reader, kind: Any = "", index: Any = None) -> Any:
    if kind not in ("cpu", "cuda", "mps", "xpu", "meta") or not (index is None or index in range(128)):
        return Inert("torch.device", (kind, index))
    return torch.device(kind) if index is None else torch.device(kind, index)


# NumPy


def _dtype(value: Any) -> np.dtype | None:
    """A plain dtype of NumPy as it is pickled: ('f8', False, True), then (3, '<', …)."""
    if type(value) is not Inert or value.kind != "numpy.dtype" or not value.args:
        return None
    code, order = value.args[0], "|"
    if type(value.state) is tuple and len(value.state) > 1:
        order = value.state[1]
    if type(code) is not str or not _NUMBER.fullmatch(code) or order not in ("<", ">", "|", "="):
        return None
    try:
        return np.dtype(f"{order}{code}")
    except TypeError:
        return None


def _number(reader: Reader, kind: Any, data: Any = None) -> Any:
    """A number of NumPy as one of Python."""
    dtype = _dtype(kind)
    if dtype is None or type(data) is not bytes or len(data) != dtype.itemsize:
        return Inert("numpy.generic", (kind, data))
    return np.frombuffer(data, dtype).item()


def array(reader: Reader, value: Any) -> Tensor | None:
    """A plain array of NumPy as a tensor, in memory of its own; None for anything else."""
    if type(value) is not Inert:
        return None
    if value.kind in _ARRAYS and type(value.state) is tuple and len(value.state) == 5:
        _, shape, kind, columns_first, data = value.state
    elif value.kind in _BUFFERS and len(value.args) == 4:
        data, kind, shape, order = value.args
        columns_first = order == "F"
    else:
        return None
    dtype = _dtype(kind)
    if type(data) is str:  # as Python 2 wrote bytes
        data = data.encode("latin-1", "replace")
    if dtype is None or type(data) not in (bytes, bytearray) or type(shape) is not tuple:
        return None
    shape = _sizes(shape)
    if math.prod(shape) * dtype.itemsize != len(data):
        return None
    reader.spend(TENSOR + len(data))
    values = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))  # a copy
    try:
        return torch.from_numpy(values.reshape(shape, order="F" if columns_first else "C"))
    except (TypeError, ValueError):  # a kind of number that PyTorch has not
        return None


_ARRAYS = tuple(f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core"))
_BUFFERS = tuple(f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core"))
_CLASSES = (
    "torch.Tensor",
    "torch._tensor.Tensor",
    "torch.nn.parameter.Parameter",
    "torch.nn.parameter.Buffer",
)

KNOWN: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor"): Known(of_storage),
    ("torch._utils", "_rebuild_tensor_v2"): Known(of_storage),
    ("torch._utils", "_rebuild_tensor_v3"): Known(_of_untyped_storage),
    ("torch._utils", "_rebuild_parameter"): Known(_parameter),
    ("torch._utils", "_rebuild_parameter_with_state"): Known(_parameter),
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): Known(_without_values),
    ("torch._utils", "_rebuild_wrapper_subclass"): Known(_of_wrapper),
    ("torch._utils", "_rebuild_sparse_tensor"): _strange(SPARSE),
    ("torch._utils", "_rebuild_sparse_csr_tensor"): _strange(SPARSE),
    ("torch._utils", "_rebuild_nested_tensor"): _strange(NESTED),
    ("torch.nested._internal.nested_tensor", "_rebuild_njt"): _strange(NESTED),
    ("torch._utils", "_rebuild_qtensor"): _strange(QUANTISED),
    ("torch._utils", "_rebuild_device_tensor_from_numpy"): Known(_of_numpy),
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): Known(_of_numpy),
    ("torch._utils", "_rebuild_xla_tensor"): Known(_of_numpy),
    ("torch._tensor", "_rebuild_from_type"): Known(_of_class),
    ("torch._tensor", "_rebuild_from_type_v2"): Known(_of_class),
    ("torch.tensor", "_rebuild_from_type"): Known(_of_class),
    ("torch", "Tensor"): Known(_value),
    ("torch._tensor", "Tensor"): Known(_value),
    ("torch.nn.parameter", "Parameter"): Known(_parameter),
    ("torch.nn.parameter", "Buffer"): Known(_value),
    ("torch.autograd.variable", "Variable"): Known(_value),
    ("torch", "Size"): Known(_size),
    ("torch", "device"): Known(_device),
    ("torch.serialization", "_get_layout"): Known(lambda reader, name=None: name),
    ("collections", "OrderedDict"): Known(lambda reader, pairs=(): _filled(reader, OrderedDict(), pairs)),
    ("collections", "Counter"): Known(lambda reader, pairs=(): _filled(reader, {}, pairs)),
    ("collections", "defaultdict"): Known(lambda reader, factory=None, pairs=(): _filled(reader, {}, pairs)),
    ("collections", "deque"): Known(_listed),
    ("_codecs", "encode"): Known(_bytes),
    **{(builtins, "set"): Known(_set) for builtins in ("builtins", "__builtin__")},
    **{
        (builtins, "frozenset"): Known(lambda reader, items=(): frozenset(_set(reader, items)))
        for builtins in ("builtins", "__builtin__")
    },
    **{
        (builtins, name): Known(_bytes)
        for builtins in ("builtins", "__builtin__")
        for name in ("bytes", "bytearray")
    },
    **{(builtins, "complex"): Known(_complex) for builtins in ("builtins", "__builtin__")},
    **{(f"numpy.{core}.multiarray", "scalar"): Known(_number) for core in ("core", "_core")},
    # The body of a traced network, which is a dictionary of its attributes.
    ("torch.fx.graph_module", "reduce_graph_module"): Known(
        lambda reader, body=None, *_: Inert("torch.fx.graph_module.GraphModule", state=body)
    ),
}
KNOWN |= {("torch", name): name for name in ("per_tensor_affine", "per_channel_affine")}
KNOWN |= {("torch", name.removeprefix("torch.")): dtype for name, dtype in DTYPES.items()}
for _name, _of in STORAGES.items():
    for _module in ("torch", "torch.storage", "torch.cuda"):
        KNOWN[_module, _name] = StorageType(DTYPES[f"torch.{_of}"])
