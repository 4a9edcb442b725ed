"""Rules for elementwise operations, reductions, and whatever only moves entries around.

A rule gets the walk and the operation's arguments by name and returns the axes of its result (a list of
them for several results), or None where it does not understand the case.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from ...graph.nodes import operand
from ..axes.axes import Axes, Fixed, Var, product, total, variables
from .rules import broadcast, dropped, kind, places, rule, tensors
from .walk import Shifted

if TYPE_CHECKING:
    from .walk import Walk


@kind("activation", "plain", "adding", "scaling", "same", "cast", "dropout")
def pointwise(walk: Walk, a: dict[str, Any]) -> Axes | None:
    if a.get("train"):  # dropout that drops
        dropped(walk, a["input"].axes)
    return elementwise(walk, a)


def elementwise(walk: Walk, a: dict[str, Any]) -> Axes:
    """The axes that all tensors have, entry by entry."""
    return broadcast(walk, [value.axes for value in tensors(a)])


@rule("native_dropout")
def native_dropout(walk: Walk, a: dict[str, Any]) -> list[Axes]:
    """Also where it drops in evaluation: by the same chance for every unit, so that orders change nothing."""
    if a["train"]:
        dropped(walk, a["input"].axes)
    return [a["input"].axes, a["input"].axes]


@kind("softmax")
def softmax(walk: Walk, a: dict[str, Any]) -> Axes:
    """Permuted inputs give permuted outputs, along any axis."""
    axes: Axes = a["self"].axes
    return axes


@kind("constant")
def constant(walk: Walk, a: dict[str, Any]) -> Axes:
    """Equal entries may be permuted at will."""
    shape = a.get("size", a["self"].shape if "self" in a else ())
    return tuple(walk.units.free(n) for n in shape)


@rule("arange")
def arange(walk: Walk, a: dict[str, Any]) -> Axes:
    start, step = a.get("start", 0), a.get("step", 1)
    return (Fixed(max(0, math.ceil((a["end"] - start) / step)), walk.why("arange numbers its units")),)


@kind("reduction")
def reduction(walk: Walk, a: dict[str, Any]) -> Axes:
    """Over all units of an axis, in whichever order: the axis is gone."""
    value = a["self"]
    if "other" in a:  # the elementwise maximum of two tensors
        return elementwise(walk, a)
    return _without(value.axes, places(a.get("dim"), len(value.axes)), a.get("keepdim", False))


@rule("var_mean", "std_mean")
def moments(walk: Walk, a: dict[str, Any]) -> list[Axes]:
    kept = reduction(walk, a)
    return [kept, kept]


def _without(axes: Axes, gone: set[int], keep: bool) -> Axes:
    if keep:
        return tuple(Fixed(1) if d in gone else axis for d, axis in enumerate(axes))
    return tuple(axis for d, axis in enumerate(axes) if d not in gone)


@rule("roll")
def roll(walk: Walk, a: dict[str, Any]) -> Axes:
    """Along each of these dimensions the last units come first, in an order that `settle` ties to theirs."""
    axes = list(a["self"].axes)
    if not a["dims"]:
        return walk.freeze(tuple(axes), "roll depends on its order")
    for shift, d in zip(a["shifts"], a["dims"], strict=True):
        before = walk.units.resolve(axes[d])
        if isinstance(before, Fixed):  # its places tell other blocks from now on
            axes[d] = Fixed(before.size, before.why)
            continue
        walk.units.ground((before,))
        axes[d] = walk.units.new(before.size)
        walk.shifted.append(Shifted(before, axes[d], shift % before.size, walk.why("a roll shifts it")))
    return tuple(axes)


def settle(walk: Walk) -> None:
    """Shifted units that came to count: both parts of them come in the other order."""
    resolve, left = walk.units.resolve, list(walk.shifted)
    while left:
        held = {var for axes in walk.tensors.values() for axis in axes for var in variables(resolve(axis))}
        met = Counter(resolve(one.after) for one in left)
        counts = [one for one in left if resolve(one.after) in held or met[resolve(one.after)] > 1
                  or not isinstance(resolve(one.after), Var)]  # fmt: skip
        for one in counts:
            parts = walk.units.pieces(one.before, [one.before.size - one.by, one.by], one.why)
            walk.units.unify(one.after, total(parts[::-1]), one.why)
            left.remove(one)
        if not counts:
            return


@kind("order", "shift")
def ordered(walk: Walk, a: dict[str, Any]) -> Any:
    """Along these dimensions the order counts; along the others it does not."""
    value, name = a["self"], walk.operation
    axes = list(value.axes)
    for d in places(a.get("dim", a.get("dims")), len(axes)):
        (axes[d],) = walk.freeze(axes[d], f"{name} depends on its order")
    if "keepdim" in a:
        return _without(tuple(axes), places(a.get("dim"), len(axes)), a["keepdim"])
    made = walk.node.meta["val"]
    return [tuple(axes)] * len(made) if isinstance(made, (tuple, list)) else tuple(axes)


@kind("reshape")
def reshape(walk: Walk, a: dict[str, Any]) -> Axes:
    shape = list(walk.node.meta["val"].shape)
    told = walk.why(f"its {'×'.join(map(str, a['self'].shape))} become {'×'.join(map(str, shape))}")
    return walk.units.regroup(a["self"].axes, shape, told)


@rule("permute", "permute_copy")
def permute(walk: Walk, a: dict[str, Any]) -> Axes:
    return tuple(a["self"].axes[d] for d in a["dims"])


@rule("transpose", "transpose_copy")
def transpose(walk: Walk, a: dict[str, Any]) -> Axes:
    axes = list(a["self"].axes)
    if axes:
        axes[a["dim0"]], axes[a["dim1"]] = axes[a["dim1"]], axes[a["dim0"]]
    return tuple(axes)


@rule("t")
def t(walk: Walk, a: dict[str, Any]) -> Axes:
    return tuple(reversed(a["self"].axes))


@kind("axis")
def squeeze(walk: Walk, a: dict[str, Any]) -> Axes:
    value = a["self"]
    if "unsqueeze" in walk.operation:
        at = a["dim"] % (len(value.axes) + 1)
        return (*value.axes[:at], Fixed(1), *value.axes[at:])
    gone = {d for d in places(a.get("dim"), len(value.axes)) if value.shape[d] == 1}
    return _without(value.axes, gone, False)


@kind("expand")
def expand(walk: Walk, a: dict[str, Any]) -> Axes:
    """A repeated entry is equal everywhere along the new axis, which is therefore free."""
    axes, shape = a["self"].axes, walk.node.meta["val"].shape
    axes = (Fixed(1),) * (len(shape) - len(axes)) + axes
    return tuple(axis if axis.size == n else walk.units.free(n) for axis, n in zip(axes, shape, strict=True))


@rule("copy")
def copy(walk: Walk, a: dict[str, Any]) -> Axes:
    """What was there before does not matter."""
    return expand(walk, {"self": a["src"]})


@kind("repeat")
def repeat(walk: Walk, a: dict[str, Any]) -> Axes:
    axes, times = a["self"].axes, a["repeats"]
    axes = (Fixed(1),) * (len(times) - len(axes)) + axes
    return tuple(product([walk.units.free(n), axis]) for n, axis in zip(times, axes, strict=True))


@kind("join")
def cat(walk: Walk, a: dict[str, Any]) -> Axes:
    shapes = [value.axes for value in a["tensors"] if value.shape != (0,)]
    at = a["dim"] % len(shapes[0])
    for axes in shapes[1:]:
        for d, (left, right) in enumerate(zip(shapes[0], axes, strict=True)):
            if d != at:
                walk.unify(left, right)
    joined = total([axes[at] for axes in shapes])
    return tuple(joined if d == at else axis for d, axis in enumerate(shapes[0]))


@rule("split", "split_with_sizes", "chunk", "split_copy", "split_with_sizes_copy")
def split(walk: Walk, a: dict[str, Any]) -> list[Axes]:
    axes, at = a["self"].axes, a["dim"] % len(a["self"].axes)
    sizes = [part.shape[at] for part in walk.node.meta["val"]]
    found = walk.units.pieces(axes[at], sizes, walk.why("it is cut into pieces"))
    return [(*axes[:at], piece, *axes[at + 1 :]) for piece in found]


@rule("slice", "slice_copy")
def slice_(walk: Walk, a: dict[str, Any]) -> Axes:
    axes, at = a["self"].axes, a["dim"] % len(a["self"].axes)
    start, stop, step = slice(a["start"], a["end"], a["step"]).indices(axes[at].size)
    size = walk.node.meta["val"].shape[at]
    if step == 1:
        told = walk.why("it is cut into pieces")
        part = walk.units.pieces(axes[at], [start, size, axes[at].size - start - size], told)[1]
    elif start < step and size * step == axes[at].size:  # rows of `step`, of each the same one
        told = walk.why(f"one in {step} of its units is taken")
        part, column = walk.units.split(axes[at], (size, step), told)
        walk.units.freeze(column, told)
    else:
        (whole,) = walk.freeze(axes[at], f"one in {step} of its units is taken")
        part = Fixed(size, whole.why)
    return (*axes[:at], part, *axes[at + 1 :])


@rule("slice_scatter")
def slice_scatter(walk: Walk, a: dict[str, Any]) -> Axes | None:
    axes: Axes = a["self"].axes
    source, at = a["src"].axes, a["dim"] % len(axes)
    if a["step"] != 1:
        return None
    start, _, _ = slice(a["start"], a["end"], 1).indices(axes[at].size)
    size = source[at].size
    told = walk.why("a piece of it is written")
    part = walk.units.pieces(axes[at], [start, size, axes[at].size - start - size], told)[1]
    for d, (own, new) in enumerate(zip(axes, source, strict=True)):
        walk.unify(part if d == at else own, new)
    return axes


@rule("select", "select_copy")
def select(walk: Walk, a: dict[str, Any]) -> Axes:
    axes, at = a["self"].axes, a["dim"] % len(a["self"].axes)
    walk.freeze(axes[at], "one of its units is picked by its number")
    return (*axes[:at], *axes[at + 1 :])


@rule("unfold", "unfold_copy")
def unfold(walk: Walk, a: dict[str, Any]) -> Axes:
    """Windows along one axis, and the places in each behind all others."""
    axes, at = list(a["self"].axes), a["dimension"] % len(a["self"].axes)
    (still,) = walk.freeze(axes[at], "windows depend on its order")
    axes[at] = Fixed(walk.node.meta["val"].shape[at], still.why)
    return (*axes, Fixed(a["size"], still.why))


@rule("as_strided", "as_strided_copy")
def as_strided(walk: Walk, a: dict[str, Any]) -> Axes | None:
    """Axes that no window cuts go through; all others depend on their order."""
    lain, axes, size = operand(walk.node).meta["val"], a["self"].axes, 1
    before = [*zip(lain.shape, lain.stride(), strict=True)]
    after = [*zip(a["size"], a["stride"], strict=True)]
    for n, stride in sorted((pair for pair in before if pair[0] > 1), key=lambda pair: pair[1]):
        if stride != size:  # there are gaps in it
            return None
        size *= n
    if a.get("storage_offset"):
        return None
    through: dict[int, int] = {}
    for j, (n, stride) in enumerate(after):
        within = sum((m - 1) * its for m, its in after if its < stride)
        whole = all(its % (n * stride) == 0 for k, (_, its) in enumerate(after) if its >= stride and k != j)
        if n > 1 and (n, stride) in before and whole and within < stride:
            through[j] = before.index((n, stride))
    cut = tuple(axis for k, axis in enumerate(axes) if k not in through.values())
    still = walk.freeze(cut, "windows depend on its order")
    why = still[0].why if still else ""
    return tuple(axes[through[j]] if j in through else Fixed(n, why) for j, (n, _) in enumerate(after))


@rule("unbind", "unbind_copy")
def unbind(walk: Walk, a: dict[str, Any]) -> list[Axes]:
    return [select(walk, a)] * a["self"].shape[a["dim"]]


@rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def fft(walk: Walk, a: dict[str, Any]) -> Axes:
    """Along these dimensions the order counts; along the others it does not."""
    axes, shape = list(a["self"].axes), walk.node.meta["val"].shape
    for d in places(a["dim"], len(axes)):
        (still,) = walk.freeze(axes[d], "a Fourier transform depends on its order")
        axes[d] = Fixed(shape[d], still.why)
    return tuple(axes)


@rule("view_as_real", "view_as_real_copy")
def view_as_real(walk: Walk, a: dict[str, Any]) -> Axes:
    return (*a["self"].axes, Fixed(2))


@rule("view_as_complex", "view_as_complex_copy")
def view_as_complex(walk: Walk, a: dict[str, Any]) -> Axes:
    *axes, pair = a["self"].axes
    walk.freeze(pair, "they are real and imaginary parts")
    return tuple(axes)


@kind("pad")
def pad(walk: Walk, a: dict[str, Any]) -> Axes | None:
    """Added entries are equal, so free; taken ones are cut off."""
    axes = list(a["self"].axes)
    if a.get("mode", "constant") != "constant":
        return None
    told = walk.why("it is cut by a negative padding")
    for k in range(len(a["pad"]) // 2):
        at = len(axes) - 1 - k
        before, after = a["pad"][2 * k], a["pad"][2 * k + 1]
        cut = [max(0, -before), axes[at].size - max(0, -before) - max(0, -after), max(0, -after)]
        middle = walk.units.pieces(axes[at], cut, told)[1]
        axes[at] = total([walk.units.free(max(0, before)), middle, walk.units.free(max(0, after))])
    return tuple(axes)


@rule("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(walk: Walk, a: dict[str, Any]) -> Axes | None:
    *outer, c, h, w = a["self"].axes
    if "unshuffle" in walk.operation:
        r = a["downscale_factor"]
        h0, h1 = walk.units.split(h, (h.size // r, r), walk.why("pixels are shuffled"))
        w0, w1 = walk.units.split(w, (w.size // r, r), walk.why("pixels are shuffled"))
        return (*outer, product([c, h1, w1]), h0, w0)
    r = a["upscale_factor"]
    c0, c1, c2 = walk.units.split(c, (c.size // r**2, r, r), walk.why("pixels are shuffled"))
    return (*outer, c0, product([h, c1]), product([w, c2]))
