"""What is written into a part of a tensor, as the whole of it with that part replaced.

A view shows entries of a whole in another form: a slice, a transposed matrix, other axes. Writing into it is
writing into the whole, and all other views of that show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T", bound=torch.Tensor)
FORMS = ("view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze")
SAME = ("alias", "detach")


@dataclass(frozen=True)
class View(Generic[T]):
    """`part` of what an operation gives of `whole`, with these further arguments."""

    whole: T
    operation: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    part: int


def taken(view: View[T]) -> Any:
    """What it shows of its whole now."""
    found = view.operation(view.whole, *view.args, **view.kwargs)
    return found if isinstance(found, torch.Tensor) else found[view.part]


def put(view: View[T], new: torch.Tensor) -> Any:
    """The whole of a view with other entries in its place; None where it is not known how."""
    whole, name, aten = view.whole, view.operation._opname, torch.ops.aten
    names = (argument.name for argument in view.operation._schema.arguments[1:])
    given = dict(zip(names, view.args, strict=False)) | dict(view.kwargs)
    if name in FORMS:
        return new.reshape(whole.shape)
    if name in SAME:
        return new
    if name == "t":
        return new.t()
    if name == "transpose":
        return new.transpose(given["dim0"], given["dim1"])
    if name == "permute":
        dims = [d % whole.ndim for d in given["dims"]]
        return new.permute([dims.index(d) for d in range(whole.ndim)])
    if name == "diagonal":
        return aten.diagonal_scatter.default(whole, new, **given)
    if name == "slice":
        return aten.slice_scatter.default(whole, new, **given)
    dim = given.get("dim", 0) % whole.ndim
    if name in ("select", "unbind"):
        start, new = given.get("index", view.part) % whole.shape[dim], new.unsqueeze(dim)
    elif name.removeprefix("unsafe_") in ("split", "split_with_sizes"):
        sizes: Any = given.get("split_size", given.get("split_sizes"))
        start = view.part * sizes if isinstance(sizes, int) else sum(sizes[: view.part])
    else:
        return None
    return aten.slice_scatter.default(whole, new, dim, start, start + new.shape[dim])
