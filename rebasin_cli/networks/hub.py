"""Networks of installed packages by their own names, and small twins of them that a spec is read off.

    transformers:FOLDER      the class that FOLDER/config.json names, with that configuration
    timm:convnext_tiny       a model of timm
    torchvision:resnet50     a model of torchvision

Only classes of the installed package are made: code that a folder or a hub brings is never run, and what a
configuration says of such code is left out. A twin is the same
class with fewer layers and units and the real number of heads; what may be permuted is the same rule for
both. Its configuration is changed by the names that those of transformers have; where none is known, there is
no twin.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import NetworkError, UsageError
from ..registry import user_code
from ..registry.regular import content

PACKAGES = ("transformers", "timm", "torchvision")
CONFIG = "config.json"
TOKENS, MOST = 6, 1 << 20
LARGEST = 400_000_000  # parameters of a network that is made for its spec alone

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
_CODE = ("auto_map", "attn_implementation", "_attn_implementation", "experts_implementation")
_OBJECTS = {**dict.fromkeys(_LAYERS, 1 << 12), "num_labels": 1 << 20, "_num_labels": 1 << 20}  # at most


@dataclass(frozen=True)
class Size:
    """What a twin has of each: layers, units a head, words, positions, and what else is counted."""

    layers: int
    units: int
    words: int
    places: int
    others: int


SIZES = (Size(3, 8, 97, 64, 16), Size(3, 12, 89, 48, 20), Size(4, 20, 101, 80, 28))


def is_name(text: str) -> bool:
    """Whether `text` names a network of an installed package."""
    package, _, name = text.partition(":")
    # timm takes places of a hub, too
    own = name if package == "transformers" else re.fullmatch(r"[\w.]+", name)
    return package in PACKAGES and bool(own)


def of_folder(path: Path) -> str | None:
    """What a model's folder, or a file in it, names as its network: by a configuration beside the weights."""
    folder = path if path.is_dir() else path.parent
    try:
        read = _read(folder / CONFIG)
    except NetworkError:
        return None
    return f"transformers:{folder}" if read.get("model_type") else None


def _read(file: Path) -> dict[str, Any]:
    """A configuration that names a class, less what it says of code. Raises NetworkError for all else."""
    try:
        found = json.loads(content(file, MOST), object_hook=_plain)
    except (OSError, ValueError, RecursionError) as cause:
        raise NetworkError(f"{file} is no configuration that can be read: {cause}") from None
    named = found.get("architectures") if isinstance(found, dict) else None
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise NetworkError(f"{file} names no class of a network")
    return dict(found)


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    for name, most in _OBJECTS.items():
        if isinstance(count := found.get(name), int) and count > most:
            raise ValueError(f"{name} is {count:,}, and at most {most:,} are made")
    return {name: value for name, value in found.items() if name not in _CODE}


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as cause:
        raise UsageError(
            f"{package} is not installed ({cause})", hint="Install it with: pip install 'rebasin-cli[hub]'"
        ) from None


def is_installed(name: str) -> bool:
    """Whether the package is there, and knows the class; nothing is imported where it is not."""
    package, _, rest = name.partition(":")
    if importlib.util.find_spec(package) is None:
        return False
    if package != "transformers":
        return True
    read = _read(Path(rest) / CONFIG)
    return isinstance(getattr(_imported(package), str(read["architectures"][0]), None), type)


def digest(name: str, *more: str) -> str:
    """Of all that its spec depends on: name or configuration, the version of its package, and `more`."""
    package, _, rest = name.partition(":")
    said: Any = rest
    if package == "transformers":
        said = {k: v for k, v in _read(Path(rest) / CONFIG).items() if k not in ("dtype", "torch_dtype")}
    whole = [package, _imported(package).__version__, torch.__version__, said, *more]
    with user_code(f"{name} cannot be told from others"):  # it may be nested too deep
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def build(name: str, *, most: float = math.inf) -> nn.Module:
    """The network with values drawn at random, and an `example_batch`.

    Raises UsageError; NetworkError, also where a configuration asks for more than `most` parameters.
    """
    package, _, rest = name.partition(":")
    module = _imported(package)
    with user_code(f"{name} cannot be built"), torch.random.fork_rng(devices=[]):
        if package == "transformers":
            network: nn.Module = _of_config(*_configured(module, Path(rest)), most)
        elif package == "timm":
            made: Any = module.create_model(rest, pretrained=False)
            made.example_batch = _images(tuple(made.pretrained_cfg["input_size"]))
            network = made
        else:
            made = module.models.get_model(rest, weights=None)
            made.example_batch = _images((3, 299, 299) if rest == "inception_v3" else (3, 224, 224))
            network = made
    return network.eval()


def twin(name: str, size: Size) -> nn.Module | None:
    """The same network made small; None where none can be made of it."""
    package, _, rest = name.partition(":")
    if package != "transformers":
        return None
    module = _imported(package)
    with user_code(f"{name} cannot be built"):
        kind, config = _configured(module, Path(rest))
    config = copy.deepcopy(config)
    if not any([_made_small(part, size) for part in (config, *_parts(config))]):
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            return _of_config(kind, config, LARGEST).eval()
    except Exception:  # of another's code, for a configuration that nobody has written
        return None


def title(name: str) -> str:
    """`transformers' LlamaForCausalLM`."""
    package, _, rest = name.partition(":")
    if package == "transformers":
        rest = str(_read(Path(rest) / CONFIG)["architectures"][0])
    return f"{package}' {rest}" if package.endswith("s") else f"{package}'s {rest}"


def _configured(module: Any, folder: Path) -> tuple[Any, Any]:
    """The class and the configuration of a folder; only what the package itself has."""
    read = _read(folder / CONFIG)
    named = read["architectures"][0]
    kind: Any = getattr(module, named, None) if named.isidentifier() else None
    if kind is None or not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise NetworkError(
            f"{folder / CONFIG} names the class {named}, which the installed {module.__name__} "
            f"{module.__version__} has not",
            hint="Code of a folder is never run. Give the network: --net file.py:factory",
        )
    configuration: Any = kind
    return kind, configuration.config_class.from_dict(read)


def _of_config(kind: Any, config: Any, most: float) -> nn.Module:
    if most < math.inf:
        with torch.device("meta"):  # no memory is taken
            count = sum(tensor.numel() for tensor in kind(copy.deepcopy(config)).parameters())
        if count > most:
            raise NetworkError(f"its configuration asks for {count:,} parameters, more than {most:,}")
    network: nn.Module = kind(config)
    network.example_batch = _example(network, config)  # type: ignore[assignment]
    return network


def _parts(config: Any) -> list[Any]:
    return [part for name in _PARTS if (part := getattr(config, name, None)) is not None]


def _number(config: Any, names: tuple[str, ...]) -> int | None:
    found = (getattr(config, name, None) for name in names)
    return next((n for n in found if isinstance(n, int)), None)


def _made_small(config: Any, size: Size) -> bool:
    """Fewer layers and units, in place; False where it has no number of heads and units to tell of."""
    heads, layers = _number(config, _HEADS), _number(config, _LAYERS)
    if heads is None or layers is None or _number(config, _WIDTHS) is None:
        return False
    width = heads * size.units

    def put(names: tuple[str, ...], value: int) -> None:
        for name in names:
            if isinstance(getattr(config, name, None), int):
                setattr(config, name, value)

    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == layers:
            setattr(config, name, (value * size.layers)[: size.layers])
    put(_WIDTHS, width)
    put(_HIDDEN, 2 * width + size.units)
    put(_HEAD, size.units)
    put(_POSITIONS, size.places)
    put(_LAYERS, size.layers)
    put(("vocab_size",), size.words)
    put(("projection_dim", "max_source_positions"), size.others)
    if isinstance(patch := getattr(config, "patch_size", None), int):
        put(("image_size",), 2 * patch)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(token := getattr(config, name, None), int) and token >= size.words:
            setattr(config, name, size.words - 1)
    return True


def _images(size: tuple[int, ...]) -> Callable[[torch.Generator], Any]:
    return lambda generator: torch.rand(2, *size, generator=generator)


def _example(network: nn.Module, config: Any) -> Callable[[torch.Generator], dict[str, Any]]:
    """A batch by what the class says that it takes first: token numbers, images, sound."""
    text, vision = getattr(config, "text_config", config), getattr(config, "vision_config", config)
    words, sizes = getattr(text, "vocab_size", 16), getattr(vision, "image_size", 224)
    channels = getattr(vision, "num_channels", 3)
    main = getattr(network, "main_input_name", "input_ids")
    more = bool(getattr(config, "is_encoder_decoder", False))
    both = text is not config and vision is not config

    def batch(generator: torch.Generator) -> dict[str, Any]:
        found: dict[str, Any] = {}
        length = min(TOKENS, getattr(text, "max_position_embeddings", TOKENS) or TOKENS)
        ids = torch.randint(3, max(4, words - 1), (2, length), generator=generator)
        if main == "pixel_values" or both:
            side = (sizes, sizes) if isinstance(sizes, int) else tuple(sizes)
            found["pixel_values"] = torch.rand(2, channels, *side, generator=generator)
        if main == "input_features":
            frames = 2 * config.max_source_positions
            found["input_features"] = torch.rand(2, config.num_mel_bins, frames, generator=generator)
        if main == "input_ids" or both:
            found["input_ids"] = ids
        if more:
            found["decoder_input_ids"] = ids
        return found

    return batch


def example(network: nn.Module, generator: torch.Generator) -> Any:
    """A batch that the network itself draws; None where it cannot."""
    draw = getattr(network, "example_batch", None)
    return draw(generator) if callable(draw) else None
