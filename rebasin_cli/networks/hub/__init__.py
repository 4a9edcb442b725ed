"""Networks of installed packages by their own names, and small twins of them that a spec is read off.

    transformers:FOLDER      the class that FOLDER/config.json names, with that configuration
    diffusers:FOLDER         the same, of diffusers
    timm:FOLDER              the same, of timm
    timm:convnext_tiny       a model of timm
    torchvision:resnet50     a model of torchvision

Only classes of the installed package are made: code that a folder or a hub brings is never run. In place of a
folder stands the file of the configuration. A twin is the same class with fewer layers and units.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.util
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import NetworkError, UsageError
from ...registry import user_code
from ...types import Shapes
from ..tied import groups
from . import batches
from .configurations import CONFIG, SIZES, Configuration, Size, made_small, read, units_of_head, with_heads
from .file_names import under_names_of_files

__all__ = ["CONFIG", "SIZES", "Size", "with_heads"]
PACKAGES = ("transformers", "diffusers", "timm", "torchvision")
CLASS = "?class="  # before the name of another class than a configuration's own
_FILES = (
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "checkpoint_path",
    "cache_dir",
    "scriptable",
)
LARGEST = 400_000_000  # parameters of a network that is made for its spec alone


def is_name(text: str) -> bool:
    """Whether `text` names a network of an installed package."""
    package, _, name = text.partition(":")
    if package in ("transformers", "diffusers"):
        return bool(name)
    # timm takes places of a hub, too
    own = re.fullmatch(r"[\w.]+", name) or (package == "timm" and _is_place(name))
    return package in PACKAGES and bool(own)


def _is_place(name: str) -> bool:
    place = Path(name)
    return "/" in name and (place / CONFIG if place.is_dir() else place).is_file()


def of_folder(path: Path) -> str | None:
    """What a model's folder, or a file in it, names as its network: by a configuration beside the weights.

    None where there is none, or none that names a class.
    """
    try:
        return named_by(path if path.is_dir() else path.parent)
    except NetworkError:
        return None


def named_by(place: Path) -> str:
    """The name of the network of a configuration, in a folder or a file. Raises NetworkError."""
    package = read(place).package
    # without a slash it would be the name of a model
    within = f"./{place}" if package == "timm" and "/" not in str(place) else place
    return f"{package}:{within}"


def _configuration(name: str) -> Configuration | None:
    """That of a name with a place; None for a name that is none. Raises NetworkError."""
    package, _, rest = name.partition(":")
    if package == "torchvision" or (package == "timm" and re.fullmatch(r"[\w.]+", rest)):
        return None
    place, _, other = rest.partition(CLASS)
    found = read(Path(place))
    if found.package != package:
        raise NetworkError(
            f"{found.file} is a configuration of {found.package}, not of {package}",
            hint=f"Name it so: --net {found.package}:{rest}",
        )
    return replace(found, named=other) if other else found


def trained_first(name: str) -> str | None:
    """The class that networks of this kind are first trained as: files have its heads beside what they name.

    BertForPreTraining of a folder that says BertForMaskedLM; None where there is no other.
    """
    if not name.startswith("transformers:") or CLASS in name or (said := _configuration(name)) is None:
        return None
    try:
        known: Any = importlib.import_module("transformers.models.auto.modeling_auto")
        named = known.MODEL_FOR_PRETRAINING_MAPPING_NAMES.get(said.values["model_type"])
    except (ImportError, AttributeError):
        return None
    return f"{name}{CLASS}{named}" if isinstance(named, str) and named != said.named else None


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as cause:
        raise UsageError(
            f"{package} is not installed ({cause})", hint="Install it with: pip install 'rebasin-cli[hub]'"
        ) from None


def is_installed(name: str) -> bool:
    """Whether the package is there, and knows the class; nothing is imported where it is not."""
    package = name.partition(":")[0]
    if importlib.util.find_spec(package) is None:
        return False
    said = _configuration(name)
    return said is None or package == "timm" or _class_of(_imported(package), said) is not None


def digest(name: str, *more: str) -> str:
    """Of all that its spec depends on: name or configuration, the version of its package, and `more`."""
    package, _, rest = name.partition(":")
    said: Any = rest
    if (found := _configuration(name)) is not None:
        said = {k: v for k, v in found.values.items() if k not in ("dtype", "torch_dtype")}
    whole = [package, _imported(package).__version__, torch.__version__, said, *more]
    with user_code(f"{name} cannot be told from others"):  # it may be nested too deep
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def build(name: str, shapes: Shapes | None = None, *, most: float = math.inf) -> nn.Module:
    """The network with values drawn at random, under the names of its files, and an `example_batch`.

    `shapes` are those of the file, whose names may be those of an earlier version; a name without a
    configuration takes its number of classes from them.

    Raises UsageError; NetworkError, also where a configuration asks for more than `most` parameters.
    """
    package, _, rest = name.partition(":")
    module, said = _imported(package), _configuration(name)
    with user_code(f"{name} cannot be built"), torch.random.fork_rng(devices=[]):
        if package == "transformers" and said is not None:
            network = _of_transformers(*_configured(module, said), most, shapes)
        elif package == "diffusers" and said is not None:
            network = _of_diffusers(module, said, most)
        elif package == "timm":
            network = _of_timm(module, rest, said, most, shapes)
        else:
            network = _of_name(partial(module.models.get_model, rest, weights=None), most, shapes)
            draw = batches.images((3, 299, 299) if rest == "inception_v3" else (3, 224, 224))
            network.example_batch = draw  # type: ignore[assignment]
    return network.eval()


def names_in_file(name: str, shapes: Shapes) -> tuple[dict[str, str], list[str]]:
    """What a file with these tensors calls those that the package would write now, and what nobody reads.

    Names by the file's; nothing where they are the same. No memory is taken.
    """
    found: Any = _without_values(name, shapes)
    return getattr(found, "written", {}), getattr(found, "unread", [])


def ties(name: str, shapes: Shapes) -> list[tuple[str, ...]]:
    """Of each tensor that the network has under several names, all of them in such a file.

    No memory is taken.
    """
    found = _without_values(name, shapes)
    return [] if found is None else groups(found)


def _without_values(name: str, shapes: Shapes) -> nn.Module | None:
    """The network of transformers on the meta device; None for other packages."""
    package = name.partition(":")[0]
    if package != "transformers" or (said := _configuration(name)) is None:
        return None
    with user_code(f"{name} cannot be built"), torch.device("meta"):
        kind, config = _configured(_imported(package), said)
        return under_names_of_files(kind(config), shapes)


def twin(name: str, size: Size) -> nn.Module | None:
    """The same network made small; None where none can be made of it."""
    package = name.partition(":")[0]
    if package != "transformers" or (said := _configuration(name)) is None:
        return None
    module = _imported(package)
    with user_code(f"{name} cannot be built"):
        kind, config = _configured(module, said)
        small = made_small(config, size)
    if small is None:
        return None
    try:
        with torch.random.fork_rng(devices=[]):
            return _of_transformers(kind, small, LARGEST).eval()
    except Exception:  # of another's code, for a configuration that nobody has written
        return None


def units(name: str) -> int:
    """Units of each head by the configuration; 0 where it does not tell."""
    package = name.partition(":")[0]
    if package != "transformers" or (said := _configuration(name)) is None:
        return 0
    with user_code(f"{name} cannot be built"):
        return units_of_head(_configured(_imported(package), said)[1])


def title(name: str) -> str:
    """`transformers' LlamaForCausalLM`."""
    package, _, rest = name.partition(":")
    said = _configuration(name)
    rest = rest if said is None else said.named
    return f"{package}' {rest}" if package.endswith("s") else f"{package}'s {rest}"


def example(network: nn.Module, generator: torch.Generator) -> Any:
    """A batch that the network itself draws; None where it cannot."""
    draw = getattr(network, "example_batch", None)
    return draw(generator) if callable(draw) else None


def _class_of(module: Any, said: Configuration) -> Any:
    """The class that the package itself has; None where it has none of this name that can be made."""
    kind: Any = getattr(module, said.named, None) if said.named.isidentifier() else None
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        return None
    whole = getattr(kind, "config_class", None) if said.package == "transformers" else kind
    return kind if hasattr(whole, "from_dict" if said.package == "transformers" else "from_config") else None


def _known_class(module: Any, said: Configuration) -> Any:
    if (kind := _class_of(module, said)) is None:
        raise NetworkError(
            f"{said.file} names the class {said.named}, which is no network of the installed "
            f"{module.__name__} {module.__version__}",
            hint="Code of a folder is never run. Give the network: --net file.py:factory",
        )
    return kind


def _configured(module: Any, said: Configuration) -> tuple[Any, Any]:
    """The class and the configuration of transformers; only what the package itself has."""
    kind = _known_class(module, said)
    config = kind.config_class.from_dict(said.values)
    if said.named.endswith("ForSequenceClassification") and config.pad_token_id is None:
        config.pad_token_id = 0  # batches are padded by nothing else
    return kind, config


def _limited(make: Callable[[], nn.Module], most: float) -> nn.Module:
    """What `make` makes, unless it has more than `most` parameters: they are counted without memory."""
    if most < math.inf:
        _without_memory(make, most)
    return make()


def _without_memory(make: Callable[[], nn.Module], most: float) -> nn.Module:
    with torch.device("meta"):
        network = make()
    count = sum(tensor.numel() for tensor in network.parameters())
    if count > most:
        raise NetworkError(f"its configuration asks for {count:,} parameters, more than {most:,}")
    return network


def _of_transformers(kind: Any, config: Any, most: float, shapes: Shapes | None = None) -> nn.Module:
    own = _limited(lambda: kind(copy.deepcopy(config)), most)
    network = under_names_of_files(own, shapes)
    network.example_batch = batches.of_transformers(own, config)  # type: ignore[assignment]
    return network


def _of_diffusers(module: Any, said: Configuration, most: float) -> nn.Module:
    kind = _known_class(module, said)
    network = _limited(lambda: kind.from_config(said.values), most)
    network.example_batch = batches.of_diffusers(network, network.config)  # type: ignore[assignment]
    return network


def _of_name(make: Callable[..., nn.Module], most: float, shapes: Shapes | None) -> nn.Module:
    """A network that only a name tells, with as many classes as the file has."""
    with contextlib.suppress(Exception):  # of another's code: it may need values, or know no classes
        if shapes is not None and (classes := _classes(_without_memory(make, most), shapes)):
            other = partial(make, num_classes=classes)
            _without_memory(other, most)
            make = other
    return _limited(make, most)


def _classes(network: nn.Module, shapes: Shapes) -> int | None:
    """Of the file, where nothing but the number of outputs of some layers differs, in all of them alike."""
    own = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    others = [(own[name], shape) for name, shape in shapes.items() if name in own and own[name] != shape]
    if any(len(shape) != len(its) or not shape or shape[1:] != its[1:] for shape, its in others):
        return None
    pairs = {(shape[0], its[0]) for shape, its in others}
    return pairs.pop()[1] if len(pairs) == 1 else None


def _of_timm(
    module: Any, name: str, said: Configuration | None, most: float, shapes: Shapes | None
) -> nn.Module:
    options: dict[str, Any] = {}
    if said is not None:
        name, values = said.named, said.values
        if not module.is_model(name):
            raise NetworkError(
                f"{said.file} names the model {name}, which the installed timm {module.__version__} has not"
            )
        own = values.get("model_args")
        options = (
            {key: value for key, value in own.items() if key not in _FILES} if isinstance(own, dict) else {}
        )
        options |= {key: values[key] for key in ("num_classes", "global_pool") if key in values}
    make = partial(module.create_model, name, pretrained=False, **options)
    made: Any = _limited(make, most) if said is not None else _of_name(make, most, shapes)
    size = made.pretrained_cfg["input_size"]
    if said is not None and isinstance(told := said.values.get("pretrained_cfg"), dict):
        size = told.get("input_size", size)
    made.example_batch = batches.images(tuple(size))
    network: nn.Module = made
    return network
