"""Configurations of networks as folders hold them: read and never believed, and made small for twins.

What a configuration says of code is left out. A small one has fewer layers and units, and the real number of
heads: what may be permuted is the same rule for both. It is changed by the names that configurations of
transformers have; where none is known, there is none.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import NetworkError
from ...registry.regular import content

CONFIG = "config.json"
MOST = 1 << 20  # bytes of a file

_LAYERS = (
    *("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers"),
    "num_decoder_layers",
)
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads")
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim")
_HIDDEN = (
    *("intermediate_size", "n_inner", "d_ff", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim"),
    *("moe_intermediate_size", "shared_expert_intermediate_size"),
)
_HEAD = ("head_dim", "d_kv")
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_target_positions")
_PARTS = ("text_config", "vision_config", "audio_config")
_CODE = re.compile(
    r"^auto_map$|implementation|^use_kernels$|^kernel_config$"
)  # code that is named, some of it of a hub
_OBJECTS = {**dict.fromkeys(_LAYERS, 1 << 12), "num_labels": 1 << 20, "_num_labels": 1 << 20}  # at most


@dataclass(frozen=True)
class Size:
    """What a twin has of each: layers, units a head, words, positions, and what else is counted.

    `hidden` units of an MLP are some more than twice the width where it is 0.
    """

    layers: int
    units: int
    words: int
    places: int
    others: int
    hidden: int = 0


# Units a head are multiples of 8: some turn a quarter of them in pairs.
SIZES = (Size(3, 8, 97, 64, 16), Size(3, 16, 89, 48, 20), Size(4, 24, 101, 80, 28))


def with_heads(units: int) -> Size:
    """A twin with heads as large as this."""
    return Size(2, units, 103, 56, 24, hidden=36)


@dataclass(frozen=True)
class Configuration:
    """What a file says, less what it says of code: of a class of a package."""

    file: Path
    package: str
    named: str
    values: dict[str, Any]


def read(place: Path) -> Configuration:
    """The configuration in a folder, or in a file. Raises NetworkError for what names no class."""
    file = place / CONFIG if place.is_dir() else place
    try:
        found = json.loads(content(file, MOST), object_hook=_plain)
    except (OSError, ValueError, RecursionError) as cause:
        raise NetworkError(f"{file} is no configuration that can be read: {cause}") from None
    values = dict(found) if isinstance(found, dict) else {}
    many, kind = values.get("architectures"), values.get("model_type")
    names = {
        "diffusers": values.get("_class_name"),
        "transformers": many[0] if isinstance(many, list) and many and isinstance(kind, str) else None,
        "timm": values.get("architecture"),
    }
    for package, named in names.items():
        if isinstance(named, str) and named:
            return Configuration(file, package, named, values)
    raise NetworkError(
        f"{file} names no class of a network",
        hint='transformers writes it as "architectures": ["LlamaForCausalLM"] beside "model_type", '
        'diffusers as "_class_name", timm as "architecture". Add it if you know it, or give the network: '
        "--net file.py:factory",
    )


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    for name, most in _OBJECTS.items():
        if isinstance(count := found.get(name), int) and count > most:
            raise ValueError(f"{name} is {count:,}, and at most {most:,} are made")
    return {name: value for name, value in found.items() if not _CODE.search(name)}


def made_small(config: Any, size: Size) -> Any:
    """A small configuration of the same class; None where nothing says what is to be fewer."""
    config = copy.deepcopy(config)
    parts = [part for name in _PARTS if (part := getattr(config, name, None)) is not None]
    return (
        config
        if any([_shrink(part, size) or _shrink_stages(part, size) for part in (config, *parts)])
        else None
    )


def units_of_head(config: Any) -> int:
    """0 where it does not tell."""
    heads, width = _number(config, _HEADS), _number(config, _WIDTHS)
    return _number(config, _HEAD) or (width // heads if heads and width else 0)


def _number(config: Any, names: tuple[str, ...]) -> int | None:
    found = (getattr(config, name, None) for name in names)
    return next((n for n in found if isinstance(n, int)), None)


def _put(config: Any, names: tuple[str, ...], value: int) -> None:
    for name in names:
        if isinstance(getattr(config, name, None), int):
            with contextlib.suppress(AttributeError):  # it follows from others
                setattr(config, name, value)


def _shrink(config: Any, size: Size) -> bool:
    """Fewer layers and units, in place; False where it has no number of heads and units to tell of."""
    heads, layers = _number(config, _HEADS), _number(config, _LAYERS)
    if heads is None or layers is None or _number(config, _WIDTHS) is None:
        return False
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == layers:
            setattr(config, name, (value * size.layers)[: size.layers])
    _put(config, _WIDTHS, heads * size.units)
    _put(config, _HIDDEN, size.hidden or 2 * heads * size.units + size.units)
    _put(config, _HEAD, size.units)
    _put(config, _POSITIONS, size.places)
    _put(config, _LAYERS, size.layers)
    _put(config, ("vocab_size",), size.words)
    _put(config, ("projection_dim", "max_source_positions"), size.others)
    if isinstance(patch := getattr(config, "patch_size", None), int):
        _put(config, ("image_size",), 2 * patch)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(token := getattr(config, name, None), int) and token >= size.words:
            setattr(config, name, size.words - 1)
    return True


def _shrink_stages(config: Any, size: Size) -> bool:
    """The same for windows of attention in stages, each of which has twice the units of the one before."""
    heads, depths = getattr(config, "num_heads", None), getattr(config, "depths", None)
    if not (
        isinstance(heads, (list, tuple)) and depths and isinstance(getattr(config, "embed_dim", None), int)
    ):
        return False
    if any(its != heads[0] << stage for stage, its in enumerate(heads)):
        return False
    config.embed_dim = heads[0] * size.units
    config.hidden_size = config.embed_dim << len(depths) - 1
    config.depths = [min(depth, size.layers) for depth in depths]
    return True
