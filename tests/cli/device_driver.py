"""Commands beside a second device, on a machine without one: its tensors lie in the CPU's memory.

    python tests/cli/device_driver.py COMMANDS.json

runs each command, in the folder it is called from, and prints a line of JSON for it: name, exit code, stdout,
stderr, and what was multiplied where and copied. PyTorch tells the device apart as it does a GPU: it refuses
operations on tensors of two devices and `.numpy()`, and exports the graphs that it exports on a GPU. Unlike a
GPU it computes what the CPU computes, to the bit, so that results can be compared. It says nothing of CUDA's
libraries, streams and speed.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
import threading
import traceback
import types
from collections import Counter

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from rebasin_cli.__main__ import main as rebasin
from rebasin_cli.cli.screen import Screen
from rebasin_cli.matchers.descent.pair import Pair
from rebasin_cli.runtime import devices
from rebasin_cli.runtime.threads import Beside
from tests.traced import trace_once

NAME = "simulated"
FLOAT64 = os.environ.get("SIMULATED_FLOAT64") != "no"  # Apple's GPUs have none
aten = torch.ops.aten
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "convolution", "convolution_backward"}
counted: Counter[str] = Counter()
counting = threading.Lock()


class Far(torch.Tensor):
    """A tensor of the device; `near` holds its numbers."""

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> Far:
        if near.dtype is torch.float64 and not FLOAT64:
            raise TypeError("this device has no float64")
        layout = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        with torch.inference_mode(False):  # else no operation is taken apart
            self = cls._make_wrapper_subclass(cls, near.size(), **layout, device=f"{NAME}:0")
        self.near = near
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def __deepcopy__(self, memo):
        copied = Far(self.near.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, other: Far) -> None:
        torch.Tensor.data.__set__(self, other)
        self.near = other.near

    def numpy(self, **kwargs):
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy")

    def tolist(self):
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.near.data_ptr()

    def untyped_storage(self):
        return self.near.untyped_storage()


def _near(value):
    return value.near if isinstance(value, Far) else value


def _is_far(device) -> bool:
    return device is not None and torch.device(device).type == NAME


def _count(name: str, number: int = 1) -> None:
    with counting:
        counted[name] += number


def _run(func, args, kwargs):
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        if (result := func.decompose(*args, **kwargs)) is not NotImplemented:
            return result
    if func is aten.copy_.default:
        to, source = args[:2]
        if isinstance(to, Far) is not isinstance(source, Far):
            _count("bytes in" if isinstance(to, Far) else "bytes out", source.nbytes)
        _near(to).copy_(_near(source))
        return to
    if func is aten._to_copy.default:
        result = func(_near(args[0]), **{**kwargs, "device": "cpu"})
        if "device" in kwargs and kwargs["device"] is not None and not _is_far(kwargs["device"]):
            _count("bytes out", result.nbytes)
            return result
        return Far(result)
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    near = [t for t in tensors if not isinstance(t, Far) and t.ndim]
    if near and func is not aten.index.Tensor:  # which takes its indices from anywhere
        raise RuntimeError(f"{func}: expected all tensors to be on the same device")
    if func._schema.name.removeprefix("aten::") in PRODUCTS:
        _count("products there")
    here = not _is_far(kwargs["device"]) if kwargs.get("device") is not None else False
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    result = func(*pytree.tree_map(_near, args), **pytree.tree_map(_near, kwargs))
    known = {id(t.near): t for t in tensors if isinstance(t, Far)}  # in-place operations return their own

    def far(value):
        if not isinstance(value, torch.Tensor) or here:
            return value
        return known[id(value)] if id(value) in known else Far(value)

    return pytree.tree_map(far, result)


class Near(TorchDispatchMode):
    """Counts what the thread that enters it multiplies on the CPU; no other thread has the mode."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        name = func._schema.name.removeprefix("aten::")
        if name in PRODUCTS and not any(isinstance(t, (Far, FakeTensor)) for t in tensors):
            _count("products here")
        return func(*args, **(kwargs or {}))


def _add_product(self, out, *args, add=Pair._add_product):
    """As `Pair._add_product`, which other threads call too."""
    if not isinstance(out, Far) and threading.current_thread() is not threading.main_thread():
        _count("products here")
    return add(self, out, *args)


def _each(self, task, items, each=Beside.each):
    """As `Beside.each`, whose threads count, too."""

    def seen(item):
        if threading.current_thread() is threading.main_thread():
            return task(item)
        with Near():
            return task(item)

    return each(self, seen, items)


def register() -> torch.library.Library:
    """Let PyTorch know the device, as long as what this returns is kept."""
    module = types.SimpleNamespace(
        get_amp_supported_dtype=lambda: [torch.bfloat16],
        is_available=lambda: True,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
    )
    _setup_privateuseone_for_python_backend(NAME, backend_module=module)
    library = torch.library.Library("aten", "IMPL")

    def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return Far(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))

    def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
        return Far(torch.empty_strided(size, stride, dtype=dtype))

    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    return library


def run(arguments: list[str], interrupted: int | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that gets Ctrl-C at its n-th sign of progress."""
    out, err, code, steps = io.StringIO(), io.StringIO(), 0, itertools.count(1)

    def step(self, *progress):
        if next(steps) == interrupted:
            raise KeyboardInterrupt

    Screen.step, Pair._add_product, Beside.each = step, _add_product, _each
    with Near(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            rebasin(arguments)
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
    return code, out.getvalue(), err.getvalue()


def main(path: str) -> None:
    torch.set_num_threads(3)  # assignments beside products
    trace_once()
    kept, choose = register(), devices.choose
    devices.choose = lambda name: NAME if name == NAME else choose(name)
    devices.has_float64 = lambda device: FLOAT64 or torch.device(device).type == "cpu"
    with open(path, encoding="utf-8") as file:
        commands = json.load(file)
    for name, (arguments, *interrupted) in commands.items():
        counted.clear()
        print(json.dumps([name, *run(arguments, *interrupted), counted]), flush=True)
    del kept


if __name__ == "__main__":
    main(*sys.argv[1:])
