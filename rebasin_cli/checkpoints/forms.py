"""The table of families of stored tensors: how they are named, shaped and typed, and what to do with each.

`KINDS` are what there is, `FORMS` how their tensors are named. `families` finds them in a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

Shape = tuple[int, ...]
Planned = tuple[torch.dtype, Shape]

CONVERT = (
    "Average the models as they were before they were quantised, or write their weights as bfloat16 or "
    "float32 first"
)
KEEP = "Take one model's"
PLAIN_FIRST = "Load each model, call {call}, and save its state_dict"
REMOVING = 'torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")'


@dataclass(frozen=True)
class Kind:
    """`name` as messages say it, what the tensors are together, and `next`: what to do where they differ.

    `exact`: the mean of what they stand for can be written in their form (`averages.together`). Of all
    others one role in `free` may differ among models, if no other does: the product is linear in it.
    """

    name: str
    means: str
    next: str
    exact: bool = False
    free: frozenset[str] = frozenset()


_KINDS = (
    Kind(
        "spectral norm",
        "weight_orig over its largest singular value, which u and v tell",
        PLAIN_FIRST.format(call=f"torch.nn.utils.remove_spectral_norm(layer), or {REMOVING}"),
        exact=True,
    ),
    Kind(
        "weight norm",
        "the direction of weight_v times the length weight_g",
        PLAIN_FIRST.format(call=f"torch.nn.utils.remove_weight_norm(layer), or {REMOVING}"),
        exact=True,
    ),
    Kind(
        "pruning mask",
        "a weight times its mask",
        PLAIN_FIRST.format(call='torch.nn.utils.prune.remove(layer, "weight")'),
        exact=True,
    ),
    Kind("mask", "a weight times its mask", "Set to 0 what is masked, in each model", exact=True),
    Kind("codebook", "sums over counts", KEEP, exact=True),
    Kind("codebook without vectors", "sums over counts", KEEP, exact=True),
    Kind("running moments", "a mean and a variance around it", KEEP, exact=True),
    Kind(
        "adapter",
        "factors of what is added to a base model's weights",
        "Merge each adapter into its base first (with peft: model.merge_and_unload(), then "
        "save_pretrained), and merge the models that this gives. LoRA alone (with adapter_config.json, "
        "or lora_up and lora_down) is averaged as what it adds: rebasin average A/ B/ -o merged/",
    ),
    Kind(
        "parametrization",
        "a weight computed from several tensors",
        PLAIN_FIRST.format(call=REMOVING),
        free=frozenset({"weight"}),
    ),
    Kind(
        "old spectral norm",
        "weight_orig over its largest singular value, of which half is stored",
        "Load each model with a newer torch and save it again",
    ),
    Kind(
        "low-rank factor",
        "the product U · diag(S) · V",
        "Multiply them out in each model first",
        free=frozenset({"U", "S", "V"}),
    ),
    Kind(
        "quantiser",
        "a step and a zero point",
        "Average the models without their quantisers, and calibrate the mean anew",
        free=frozenset({"scale"}),
    ),
    Kind("scaled float8", "codes times scales", CONVERT, free=frozenset({"codes"})),
    *(
        Kind(name, "codes and their scales", CONVERT)
        for name in ("bitsandbytes", "GPTQ or AWQ", "compressed-tensors", "packed")
    ),
    Kind("quantised", "codes of numbers", CONVERT),
)
KINDS = {kind.name: kind for kind in _KINDS}

WEIGHTS = (
    "spectral norm",
    "weight norm",
    "pruning mask",
    "old spectral norm",
    "parametrization",
)  # of a layer


@dataclass(frozen=True)
class Form:
    """How a kind's tensors are named: one stem, and an ending a role.

    `beside` are further roles, of which at least `some` have to be there. `fits` is asked with the planned
    tensors by role. The stem and `stands_for` are the name of what they mean together, which a form that is
    for a `weight` alone does not find stored as well.
    """

    kind: str
    endings: Mapping[str, str]
    fits: Callable[[Mapping[str, Planned]], bool]
    beside: Mapping[str, str] = field(default_factory=dict)
    some: int = 0
    stands_for: str = ""
    weight: bool = False


# -------------------------------------------------------------------------------------------- whether it fits


def axes_of(weight: Shape, u: int, v: int) -> list[int]:
    """The axes that spectral norm may have as its rows: u has that size, and v the size of all others."""
    whole = math.prod(weight)
    return [axis for axis, size in enumerate(weight) if size == u and whole == u * v]


def spectral(its: Mapping[str, Planned]) -> bool:
    """Whether u and v fit the weight."""
    (_, weight), (_, u), (_, v) = its["weight"], its["u"], its["v"]
    return len(weight) > 1 and len(u) == len(v) == 1 and bool(axes_of(weight, u[0], v[0])) and _floats(its)


def _one_vector(its: Mapping[str, Planned]) -> bool:
    (_, weight), (_, u) = its["weight"], its["u"]
    return len(weight) > 1 and math.prod(u) == weight[0] and _floats(its)


def normed(its: Mapping[str, Planned]) -> bool:
    """Lengths along one axis of the directions, or one length for all."""
    (_, g), (_, v) = its["g"], its["v"]
    if not _floats(its) or not v:
        return False
    wide = [axis for axis, size in enumerate(g) if size > 1]
    return not g or (len(g) == len(v) and len(wide) <= 1 and all(g[axis] == v[axis] for axis in wide))


def same_shape(its: Mapping[str, Planned]) -> bool:
    """Whether a mask fits the weight."""
    (dtype, weight), (_, mask) = its["weight"], its["mask"]
    return weight == mask and len(weight) > 0 and dtype.is_floating_point


def _matrices(its: Mapping[str, Planned]) -> bool:
    return same_shape(its) and len(its["weight"][1]) > 1


def _codebook(its: Mapping[str, Planned]) -> bool:
    (_, sums), (_, counts) = its["sums"], its["counts"]
    if "embed" in its and its["embed"][1] != sums:
        return False
    return len(sums) > 1 and _floats(its) and (counts == sums[:-1] or (len(sums) == 2 and counts == sums[1:]))


def _moments(its: Mapping[str, Planned]) -> bool:
    (one, mean), (other, variance), (_, count) = its["mean"], its["variance"], its["count"]
    return mean == variance and one.is_floating_point and other.is_floating_point and math.prod(count) == 1


def _factors(its: Mapping[str, Planned]) -> bool:
    (_, u), (_, s), (_, v) = its["U"], its["S"], its["V"]
    return len(u) == len(v) == 2 and len(s) == 1 and u[1] == s[0] and s[0] in v and _floats(its)


def _zeroed(its: Mapping[str, Planned]) -> bool:
    """A floating-point step and an integer zero, one for all or one a channel."""
    return its["scale"][0].is_floating_point and not its["zero"][0].is_floating_point


def _coded(its: Mapping[str, Planned]) -> bool:
    """Integers; or float8 with a scale that is none, as there is not where a whole file was cast to it."""
    code, shape = its["codes"]
    if not code.is_floating_point:
        return not code.is_complex and len(shape) > 1
    return _float8(its) and any(dtype != code for role, (dtype, _) in its.items() if role != "codes")


def _float8(its: Mapping[str, Planned]) -> bool:
    return its["codes"][0].is_floating_point and its["codes"][0].itemsize == 1


def scaled(its: Mapping[str, Planned]) -> bool:
    """Whether float8 codes have a scale."""
    return _float8(its) and _coded(its)


def _floats(its: Mapping[str, Planned]) -> bool:
    return all(dtype.is_floating_point for dtype, _ in its.values())


# -------------------------------------------------------------------------------------------------- the forms


def _named(*endings: str) -> dict[str, str]:
    return {ending: ending for ending in endings}


_SCALES = _named(
    *(".weight_scale", ".weight_scale_inv", ".weight_scales", ".weight_scale_2", ".scale_weight", ".scale"),
    *(".scale_input", ".input_scale", ".output_scale", ".activation_scale", ".k_scale", ".v_scale"),
)
_BITSANDBYTES = _named(
    *(".SCB", ".weight_format", ".weight.absmax", ".weight.quant_map", ".weight.nested_absmax"),
    *(".weight.nested_quant_map", ".weight.quant_state.bitsandbytes__nf4"),
    ".weight.quant_state.bitsandbytes__fp4",
)
_COMPRESSED = _named(
    *(".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight_global_scale"),
    *(".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale"),
)
_PACKED = {
    ".q_weight": (".q_scale", ".q_scale_max", ".q_groups", ".q_perm", ".q_invperm", ".q_group_map"),
    ".W_q": (".scale", ".zero", ".meta", ".nbits", ".group_size", ".axis", ".shape"),
    ".Qidxs": (".SU", ".SV", ".Wscale"),
    ".codes": (".codebooks", ".scales"),
    ".indices": (".centroids", ".weight_scale", ".weight_bias"),
    ".weight._data": (".weight._scale", ".weight._shift", ".input_scale", ".output_scale"),
    "._weight_qdata": ("._weight_scale", "._weight_zero_point", "._weight_scale_and_zero"),
    "_blocks": ("_scales",),
    ".weight": (".scales", ".biases", ".weight_scale", ".weight_scale_inv", ".weight_scale_2")
    + (".weight_scales", ".scale_weight", ".input_scale", ".weight_zero_point", ".scale", ".zero_point"),
}

FORMS: Sequence[Form] = (
    *(
        Form("spectral norm", {"weight": ending, "u": "_u", "v": "_v"}, spectral)
        for ending in ("_orig", "_bar")
    ),
    Form(
        "spectral norm",
        {"weight": ".weight", "u": ".u0", "s": ".sv0"},
        lambda its: _one_vector(its) and "u1" not in its,
        {"u1": ".u1"},
        stands_for=".weight",
    ),
    Form("old spectral norm", {"weight": "_orig", "u": "_u"}, _one_vector),
    Form("weight norm", {"g": "_g", "v": "_v"}, normed, weight=True),
    Form("pruning mask", {"weight": "_orig", "mask": "_mask"}, same_shape),
    *(
        Form("mask", {"weight": ".weight", "mask": ending}, _matrices, stands_for=".weight")
        for ending in (".weight_mask", ".mask")
    ),
    Form("codebook", {"embed": ".embed", "sums": ".embed_avg", "counts": ".cluster_size"}, _codebook),
    Form(
        "codebook",
        {"embed": "_embedding.weight", "sums": "_ema_w", "counts": "_ema_cluster_size"},
        _codebook,
    ),
    *(
        Form("codebook without vectors", {"sums": ending, "counts": ".cluster_usage"}, _codebook)
        for ending in (".embedding_sum", ".embed_sum")
    ),
    *(
        Form("running moments", {"mean": f".{of}mean", "variance": f".{of}var", "count": ".count"}, _moments)
        for of in ("", "running_")
    ),
    Form("low-rank factor", {"U": ".U", "S": ".S", "V": ".V"}, _factors),
    Form("bitsandbytes", {"codes": ".weight"}, _coded, _BITSANDBYTES, 1, ".weight"),
    Form(
        "GPTQ or AWQ",
        {"codes": ".qweight"},
        _coded,
        _named(".qzeros", ".scales", ".g_idx", ".wscales"),
        1,
        ".weight",
    ),
    Form("compressed-tensors", {"codes": ".weight_packed"}, _coded, _COMPRESSED, 1, ".weight"),
    Form("scaled float8", {"codes": ".weight"}, scaled, _SCALES, 1, ".weight"),
    *(Form("packed", {"codes": codes}, _coded, _named(*scales), 1) for codes, scales in _PACKED.items()),
    *(
        Form("quantiser", {"scale": f"{before}scale", "zero": f"{before}zero_point"}, _zeroed)
        for before in (".", "_")
    ),
)
