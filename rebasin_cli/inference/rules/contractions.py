"""Rules for operations that sum over units: products of matrices, convolutions, norms, attention, pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...graph.nodes import operation
from ..axes.axes import Axes, Fixed, product
from ..axes.orders import Parents
from .rules import broadcast, dropped, kind, rule, tensors, unite

if TYPE_CHECKING:
    from .walk import Value, Walk

STILL = ""  # positions in space stay, which needs no reason


@kind("linear")
def linear(walk: Walk, a: dict[str, Any]) -> Axes:
    x, weight = a["input"].axes, a["weight"].axes
    walk.unify(x[-1], weight[-1])
    if a["bias"] is not None:
        walk.unify(weight[0], a["bias"].axes[0])
    return (*x[:-1], *weight[:-1])


@rule("mm", "bmm", "matmul", "mv", "dot")
def matmul(walk: Walk, a: dict[str, Any]) -> Axes:
    """Both operands' contracted axes are permuted alike, and so are the axes of a batch."""
    first, second = [value.axes for value in a.values() if hasattr(value, "axes")]
    left = (Fixed(1), *first) if len(first) == 1 else first
    right = (*second, Fixed(1)) if len(second) == 1 else second
    batch = broadcast(walk, [left[:-2], right[:-2]])
    walk.unify(left[-1], right[-2], _along(walk, left[:-2], right[:-2]))
    if len(left) > 2 and len(right) > 2:
        walk.call(batch[-1:], left[-1], right[-1])
    rows = left[-2:-1] if len(first) > 1 else ()
    columns = right[-1:] if len(second) > 1 else ()
    return (*batch, *rows, *columns)


def _along(walk: Walk, *batches: Axes) -> Parents:
    """What orders may depend on where these axes are one batch."""
    rank = max(map(len, batches))
    return walk.units.aligned([(Fixed(1),) * (rank - len(axes)) + axes for axes in batches])


@rule("_cdist_forward", "_euclidean_dist")
def distances(walk: Walk, a: dict[str, Any]) -> Axes:
    """Of all rows of one tensor from all rows of another: the units between are summed over."""
    left, right = a["x1"].axes, a["x2"].axes
    walk.unify(left[-1], right[-1], _along(walk, left[:-2], right[:-2]))
    return (*broadcast(walk, [left[:-2], right[:-2]]), left[-2], right[-2])


@rule("_trilinear")
def trilinear(walk: Walk, a: dict[str, Any]) -> Axes:
    """Three tensors multiplied entry by entry, each with axes of one where it has none, and summed over."""
    rows = []
    for k in "123":
        axes = list(a[f"i{k}"].axes)
        for at in sorted(a[f"expand{k}"]):
            axes.insert(at, Fixed(1))
        rows.append(tuple(axes))
    whole = broadcast(walk, rows)
    return tuple(axis for d, axis in enumerate(whole) if d not in a["sumdim"])


@rule("addmm", "baddbmm", "addbmm", "addmv")
def addmm(walk: Walk, a: dict[str, Any]) -> Axes | None:
    if walk.operation == "addbmm":
        return None
    factors = {key: value for key, value in a.items() if key != "self" and hasattr(value, "axes")}
    return broadcast(walk, [matmul(walk, factors), a["self"].axes])


@kind("convolution")
def convolution(walk: Walk, a: dict[str, Any]) -> Axes:
    """With groups, these move as blocks, and within each group channels have an order of their own."""
    x, weight = a["input"].axes, a["weight"].axes
    transposed = a.get("transposed", "transpose" in walk.operation)
    space = len(weight) - 2
    batch = x[: -space - 1]
    channels = x[-space - 1]
    walk.freeze((*x[-space:], *weight[-space:]), STILL)
    groups = walk.units.new(a["groups"])
    if groups.size > 1:
        walk.unify(weight[0], walk.groups(groups, weight[0].size // groups.size))
        walk.hint(weight[1], "channels")
    if transposed:
        walk.unify(channels, weight[0])
        outputs = product([groups, weight[1]])
    else:
        walk.unify(channels, product([groups, weight[1]]))
        outputs = weight[0]
    if a["bias"] is not None:
        walk.unify(outputs, a["bias"].axes[0])
    shape = walk.node.meta["val"].shape
    return (*batch, outputs, *(Fixed(n) for n in shape[-space:]))


@kind("batch_norm")
def batch_norm(walk: Walk, a: dict[str, Any]) -> Any:
    """Channel by channel; with the batch's own statistics, which see no order, as of standardised weights."""
    if a.get("training") and (a.get("running_mean") is not None or a.get("running_var") is not None):
        return None  # it writes into them
    x = a["input"].axes
    for name in ("weight", "bias", "running_mean", "running_var"):
        if a.get(name) is not None:
            walk.unify(x[1], a[name].axes[0])
    if isinstance(made := walk.node.meta["val"], (tuple, list)):  # with the statistics that were used
        return [x, *((x[1],) if statistics.numel() else (Fixed(0),) for statistics in made[1:])]
    return x


@kind("layer_norm")
def layer_norm(walk: Walk, a: dict[str, Any]) -> Any:
    """Mean and variance do not see the order of what they are taken over."""
    x, count = a["input"].axes, len(a["normalized_shape"])
    for name in ("weight", "bias"):
        if a.get(name) is not None:
            x = unite(walk, [x, a[name].axes])
    if walk.operation != "native_layer_norm":
        return x
    kept = (*x[:-count], *(Fixed(1),) * count)
    return [x, kept, kept]


@kind("group_norm")
def group_norm(walk: Walk, a: dict[str, Any]) -> Any:
    """The sets of channels that are normed together stay sets: whole groups move, and units within theirs."""
    x = a["input"].axes
    if a.get("use_input_stats") is False:
        return batch_norm(walk, a | {"training": False})
    for name in ("weight", "bias"):
        if a.get(name) is not None:
            walk.unify(x[1], a[name].axes[0])
    count = a.get("num_groups", x[1].size)
    size = x[1].size // count
    if 1 < count < x[1].size:
        walk.unify(x[1], walk.groups(walk.units.new(count), size))
    return x


@rule("_weight_norm_interface", "_weight_norm")
def weight_norm(walk: Walk, a: dict[str, Any]) -> Any:
    v, g = a["v"].axes, a["g"].axes
    dim = a["dim"] % len(v)
    walk.unify(v[dim], g[dim] if len(g) == len(v) else g[0])
    return [v, g] if isinstance(walk.node.meta["val"], (tuple, list)) else v


@kind("attention")
def attention(walk: Walk, a: dict[str, Any]) -> Axes | None:
    query, key, value = a["query"].axes, a["key"].axes, a["value"].axes
    if len(query) > 3 and a["enable_gqa"] and query[-3].size != key[-3].size:
        walk.unify(key[-3], value[-3])
        shared = walk.units.free(query[-3].size // key[-3].size)
        heads = walk.unify(query[-3], product([key[-3], shared]))
        batch = (*broadcast(walk, [query[:-3], key[:-3], value[:-3]]), heads)
    else:
        batch = broadcast(walk, [query[:-2], key[:-2], value[:-2]])
    walk.unify(query[-1], key[-1], _along(walk, query[:-2], key[:-2]))
    walk.unify(key[-2], value[-2], _along(walk, key[:-2], value[:-2]))
    if a["is_causal"]:
        walk.freeze((query[-2], key[-2]), "attention is causal")
    if a["attn_mask"] is not None:
        mask = a["attn_mask"].axes
        unite(walk, [(*batch, query[-2], key[-2]), mask])
    walk.call(batch[-1:], query[-1], value[-1])
    if a["dropout_p"]:  # in evaluation, too
        dropped(walk, (*batch, query[-2], key[-2]))
    return (*batch, query[-2], value[-1])


@kind("pool", "resize", "mirror")
def pooling(walk: Walk, a: dict[str, Any]) -> Any:
    """Whatever looks at neighbours in space, channel by channel."""
    x: Value = a["self"] if "self" in a else a["input"]
    space = operation(walk.node).space or 0
    walk.freeze(x.axes[-space:], STILL)
    for other in tensors(a):
        if other is not x:  # where to look
            walk.freeze(other.axes, "it says where neighbours lie")
    meta = walk.node.meta["val"]
    several = isinstance(meta, (tuple, list))
    shape = meta[0].shape if several else meta.shape
    found = (*x.axes[:-space], *(Fixed(n) for n in shape[-space:]))
    return [found] * len(meta) if several else found
