"""What each operation of PyTorch is: one table, which inference, matching by activations and repair read.

An operation that only needs to be known is one row here. Names are those of `nodes.name_of`: without `aten::`
and without the overload; operations of other packages keep their own prefix (`mine::squareplus`). What has no
row and is tagged by PyTorch as pointwise is an activation; all else is not understood, and units that it
reads stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

Kind = Literal[
    "linear", "convolution", "product", "attention",  # sum over units
    "batch_norm", "layer_norm", "group_norm",  # by running statistics; over last axes; over sets of channels
    "activation", "plain", "adding", "scaling", "softmax",  # entry by entry
    "same", "cast", "dropout",  # what comes out is what went in, in evaluation
    "reshape", "permute", "axis", "expand", "repeat", "part", "parts", "join", "shift", "put", "pad",
    "pool", "resize", "mirror",  # look at neighbours in space, channel by channel
    "reduction", "order", "lookup", "constant", "other",
]  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """What all calls of one operation have in common.

    `kind` says how its result's axes follow from those that it reads (`inference.rules`), and what it does to
    a unit. The other fields are true where PyTorch's definition says so for every unit by itself, of the one
    tensor of values that it reads:

    `linear`        it gives the same mixture of entries for every unit, so it may change places with any
                    linear map of the units; without a constant that is added
    `homogeneous`   f(s·x) = s·f(x) for s > 0
    `odd`           f(−x) = −f(x)
    `pools`         one entry shows a unit that many entries showed: a mean, a sum, a maximum of them
    `space`         of a layer or of what looks at neighbours: how many axes of space come last
    `transposed`    of a convolution: its weight is (inputs, outputs, …)
    `whole`         tracing does not take it apart, though PyTorch could
    `steps`         what it gives is in steps, though floating: a count, a number that was rounded
    `distance`      it holds one value against another: only what lies between them decides
    """

    kind: Kind
    linear: bool = False
    homogeneous: bool = False
    odd: bool = False
    pools: bool = False
    space: int | None = None
    transposed: bool = False
    whole: bool = False
    steps: bool = False
    distance: bool = False

    @property
    def layer(self) -> bool:
        """Whether it multiplies by a weight and adds a bias: `linear`, and convolutions of a known rank."""
        return self.kind in ("linear", "convolution") and self.space is not None

    @property
    def norm(self) -> bool:
        return self.kind in ("batch_norm", "layer_norm", "group_norm")

    @property
    def reads_units(self) -> bool:
        """Whether it sums over products with units."""
        return self.kind in ("linear", "convolution", "product", "attention")

    @property
    def kept(self) -> bool:
        """Whether the numbers stay, and where they lie."""
        return self.kind in ("same", "cast")

    @property
    def rearranges(self) -> bool:
        """Whether every entry of the result is one of the one tensor that it reads."""
        return self.kept or self.kind in REARRANGING

    @property
    def moves(self) -> bool:
        """Whether it only moves entries about, resizes or pools them."""
        return self.rearranges or self.kind in MOVING or self.pools


REARRANGING = frozenset({"reshape", "permute", "axis", "expand", "repeat", "part", "parts"})
MOVING = frozenset({"dropout", "join", "shift", "pad", "pool", "resize", "mirror"})


def _spatial(names: str, kind: Kind, *, spaces: tuple[int, ...] = (1, 2, 3), **more: Any) -> Iterator[Any]:
    """Rows for each number of axes of space, which stands for the braces in the names."""
    for space in spaces:
        yield names.format(*[space] * names.count("{}")), Operation(kind, space=space, **more)


def _table(*rows: tuple[str, Operation]) -> dict[str, Operation]:
    return {name: operation for names, operation in rows for name in names.split()}


OPERATIONS = _table(
    # sums over units
    ("linear", Operation("linear", space=0, whole=True)),
    *_spatial("conv{}d", "convolution", whole=True),
    *_spatial("conv_transpose{}d", "convolution", transposed=True, whole=True),
    ("convolution", Operation("convolution")),  # transposed or not, of any rank
    ("matmul", Operation("product", whole=True)),
    ("mm bmm mv dot addmm baddbmm addbmm addmv", Operation("product")),
    ("_trilinear", Operation("other")),  # of three tensors
    ("_cdist_forward _euclidean_dist", Operation("other")),  # distances of rows
    ("scaled_dot_product_attention", Operation("attention", whole=True)),
    # norms
    ("batch_norm", Operation("batch_norm", whole=True)),
    ("_native_batch_norm_legit_no_training _native_batch_norm_legit native_batch_norm",
     Operation("batch_norm")),
    ("layer_norm", Operation("layer_norm", whole=True)),
    ("native_layer_norm rms_norm", Operation("layer_norm")),
    ("group_norm instance_norm", Operation("group_norm", whole=True)),
    # entry by entry
    # PyTorch tags many activations as pointwise: those need a row only for what else is true of them.
    ("relu relu_ leaky_relu abs", Operation("activation", homogeneous=True)),
    ("rrelu", Operation("activation", homogeneous=True, whole=True)),
    ("tanh sin erf atan asinh sinh", Operation("activation", odd=True)),
    ("_prelu_kernel softplus hardswish hardtanh elu gelu hardsigmoid mish silu celu log_sigmoid clamp",
     Operation("activation")),
    ("add sub rsub", Operation("adding")),
    ("mul div", Operation("scaling")),
    ("round floor ceil trunc sign sgn heaviside floor_divide", Operation("activation", steps=True)),
    ("gt ge lt le eq ne equal", Operation("activation", distance=True)),
    ("isclose allclose", Operation("other", distance=True)),
    ("histc histogram _histogramdd_from_bin_cts", Operation("other", steps=True)),
    ("neg positive", Operation("plain", linear=True)),
    ("where masked_fill nan_to_num", Operation("plain")),
    ("copy", Operation("plain", linear=True)),
    ("_softmax _log_softmax _safe_softmax softmax log_softmax", Operation("softmax")),
    # what went in comes out
    ("clone alias detach contiguous lift_fresh lift_fresh_copy view_of", Operation("same", linear=True)),
    ("_to_copy to", Operation("cast", linear=True)),
    ("dropout native_dropout", Operation("dropout", linear=True)),
    # moving entries
    ("view reshape _unsafe_view view_copy _reshape_copy flatten unflatten",
     Operation("reshape", linear=True)),
    ("permute permute_copy transpose transpose_copy t", Operation("permute", linear=True)),
    ("squeeze unsqueeze squeeze_copy unsqueeze_copy", Operation("axis", linear=True)),
    ("expand expand_copy broadcast_to", Operation("expand", linear=True)),
    ("repeat", Operation("repeat", linear=True)),
    ("slice slice_copy select select_copy", Operation("part", linear=True)),
    ("split split_with_sizes chunk unbind split_copy split_with_sizes_copy unbind_copy",
     Operation("parts", linear=True)),
    ("cat", Operation("join", linear=True)),
    ("flip", Operation("shift", linear=True)),
    ("roll", Operation("shift", linear=True, whole=True)),
    ("slice_scatter index_add index_copy", Operation("put", linear=True)),
    ("constant_pad_nd pad", Operation("pad")),
    # neighbours in space
    *_spatial("max_pool{}d max_pool{}d_with_indices adaptive_max_pool{}d", "pool", homogeneous=True,
              pools=True),
    *_spatial("grid_sampler_{}d", "pool", spaces=(2, 3), linear=True, pools=True),
    *_spatial("avg_pool{}d", "pool", linear=True, pools=True),
    *_spatial("_adaptive_avg_pool{}d", "pool", spaces=(2, 3), linear=True, pools=True),
    *_spatial("adaptive_avg_pool{}d", "pool", linear=True, pools=True, whole=True),
    *_spatial("upsample_nearest{}d", "resize", linear=True, whole=True),
    *_spatial("_upsample_nearest_exact{}d", "resize", linear=True),
    *_spatial("upsample_linear{}d", "resize", spaces=(1,), linear=True, whole=True),
    *_spatial("upsample_bilinear{}d upsample_bicubic{}d", "resize", spaces=(2,), linear=True, whole=True),
    *_spatial("_upsample_bilinear{}d_aa _upsample_bicubic{}d_aa", "resize", spaces=(2,), linear=True),
    *_spatial("upsample_trilinear{}d", "resize", spaces=(3,), linear=True, whole=True),
    *_spatial("reflection_pad{}d replication_pad{}d", "mirror", linear=True),
    # the rest
    ("sum mean", Operation("reduction", linear=True, pools=True)),
    ("amax amin max min", Operation("reduction", pools=True)),
    ("var std prod logsumexp any all linalg_vector_norm norm", Operation("reduction")),
    ("argmax argmin cumsum cumprod logcumsumexp cummax cummin sort", Operation("order")),
    ("embedding", Operation("lookup", linear=True, whole=True)),
    ("index index_select _unsafe_index gather", Operation("lookup", linear=True)),
    ("empty new_empty empty_like", Operation("constant")),  # which is written over before it is read
    ("full zeros ones new_zeros new_ones new_full scalar_tensor full_like zeros_like ones_like",
     Operation("constant")),
)  # fmt: skip

WHOLE = frozenset(name for name, operation in OPERATIONS.items() if operation.whole)
OTHER = Operation("other")
ACTIVATION = Operation("activation")


def operation_of(target: Any, name: str) -> Operation:
    """What an operation, such as `torch.ops.aten.relu.default`, named `name`, is."""
    if (found := OPERATIONS.get(name)) is not None:
        return found
    tags = getattr(target, "tags", ())
    pointwise = torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
    return ACTIVATION if pointwise else OTHER


def named(kind: Kind) -> tuple[str, ...]:
    """All operations of this kind."""
    return tuple(name for name, operation in OPERATIONS.items() if operation.kind == kind)
