"""Low-rank adapters in files: which factors a module has, and by what their product is multiplied.

    A/adapter_config.json, A/adapter_model.safetensors      a folder as peft writes it
    a.safetensors                                           up, down and alpha, as sd-scripts writes them
    a.safetensors                                           A and B of a pipeline's parts, as diffusers does

What a module adds to its weight is `scale · up · down`. Nothing of a configuration is believed that the
tensors do not bear out, and what says more than that (DoRA, biases, whatever is not known here) is a problem.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..runtime import files
from . import peft
from .checkpoint import Checkpoint
from .locate import locate
from .safetensors_format import read_header

# The factors of a module by the ends of their names: (down, up), in the form that has them.
ENDS = {
    "peft": {
        (".lora_A.weight", ".lora_B.weight"): "",
        (".lora_embedding_A", ".lora_embedding_B"): "embedding",
    },
    "sd-scripts": {
        (".lora_down.weight", ".lora_up.weight"): "",
        (".lora.down.weight", ".lora.up.weight"): "",
    },
    "diffusers": {(".lora_A.weight", ".lora_B.weight"): ""},
}
IN_FILES = ("sd-scripts", "diffusers")  # the forms that need no configuration
PART = re.compile(r"(unet|prior|transformer(_\d)?|text_encoder(_\d)?|diffusion_model)\.")  # of a pipeline
METADATA = "lora_adapter_metadata"  # where diffusers says more, a peft configuration for each part
ALPHA, MID, DORA = ".alpha", ".lora_mid.weight", ".dora_scale"


@dataclass(frozen=True)
class Module:
    """What is added to the weight of one module: `scale · up · down`.

    `down` and `up` name the tensors: (r, n) and (m, r) of linear layers and embeddings, (r, c, k, …) and
    (m, r, 1, …) of convolutions. Where there is a `mid` (r, r, k, …) between, `down` is (r, c, 1, …).
    `name` is the module's as the base has it.
    """

    name: str
    down: str
    up: str
    rank: int
    scale: float
    embedding: bool = False
    alpha: str | None = None  # the tensor that says it, where one does
    mid: str | None = None

    def factors(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The factors as matrices (m, r) and (r, n), float64, the scale in the first one."""
        up, down = tensors[self.up].double().flatten(1), tensors[self.down].double().flatten(1)
        if self.mid is not None:
            down = torch.einsum("rs...,sc->rc...", tensors[self.mid].double(), down).flatten(1)
        return up * self.scale, down


@dataclass(frozen=True)
class Adapter:
    """An adapter: its `modules` by name, its peft `config` (None of an sd-scripts file), `whole` tensors.

    `whole` are of modules that were trained themselves (`modules_to_save`), or saved with the adapter.
    """

    path: Path
    weights: Checkpoint
    form: str
    modules: Mapping[str, Module]
    config: Mapping[str, Any] | None = None
    whole: tuple[str, ...] = ()

    def shape(self, name: str) -> tuple[int, ...]:
        """Of what is added to a module: what it puts out, what it reads, and its kernel."""
        module, shapes = self.modules[name], self.weights.shapes
        puts, (reads, *kernel) = shapes[module.up][0], shapes[module.down][1:]
        return (puts, reads, *(kernel if module.mid is None else shapes[module.mid][2:]))


def is_adapter(path: Path) -> bool:
    """Whether a path is an adapter, by its configuration or the names of its tensors; reads no values."""
    try:
        if peft.config_beside(path) is not None:
            return True
        if path.suffix != ".safetensors" and not path.is_dir():
            return False
        kind, inside = locate(path)
        if kind != "safetensors":
            return False
        with files.opened(inside) as file:
            names, _ = read_header(file, inside)
    except (CheckpointError, OSError, ValueError):  # told where it is opened
        return False
    return beyond_factors(names) == []


def file_of(path: Path) -> str:
    """The name of the file that has the weights of an adapter."""
    return locate(path)[1].name


def beyond_factors(names: Collection[str]) -> list[str] | None:
    """Those of the names that are no factors of a form that files alone have; None where none is a factor."""
    if (form := _form(names)) is None:
        return None
    ends = tuple(end for pair in ENDS[form] for end in pair)
    return [name for name in names if not name.endswith((*ends, ALPHA, MID, DORA))]


def _form(names: Collection[str]) -> str | None:
    """Which of the forms a file without a configuration has; None for none."""
    for form in IN_FILES:
        ends = tuple(end for pair in ENDS[form] for end in pair)
        if any(name.endswith(ends) for name in names):
            return form if form == "sd-scripts" or all(map(PART.match, names)) else None
    return None


def read(weights: Checkpoint) -> tuple[Adapter, list[str]]:
    """The adapter that these tensors are, and all that keeps it from being factors of low rank alone.

    Raises CheckpointError where its configuration is none at all.
    """
    path = weights.path
    beside = peft.config_beside(path)
    problems: list[str] = []
    config = None if beside is None else peft.read(beside)
    form = "peft" if config is not None else _form(weights) or IN_FILES[0]
    settings = {"": peft.Settings.of(config, weights, problems)} | _told(weights, problems)
    modules: dict[str, Module] = {}
    if config is not None and config.get("peft_type") != "LORA":  # which is the one problem
        return Adapter(path, weights, form, modules, config), problems
    used: set[str] = set()
    for (down_end, up_end), kind in ENDS[form].items():
        for stem in _stems(weights, (down_end, up_end)):
            down, up = stem + down_end, stem + up_end
            alpha, mid = (
                stem + end if config is None and stem + end in weights else None for end in (ALPHA, MID)
            )
            used |= {name for name in (down, up, alpha, mid) if name is not None}
            missing = [name for name in (down, up) if name not in weights]
            if missing:
                problems.append(f"{stem}  has no {missing[0][len(stem) + 1 :]}")
                continue
            if why := _mismatch(weights, down, up, mid, bool(kind)):
                problems.append(f"{stem}  {why}")
                continue
            rank = weights.shapes[down][0]
            name = stem.removeprefix(peft.PREFIX)
            part = name.partition(".")[0]
            told = settings.get(part if config is None else "", settings[""])
            scale = told.scale(name.removeprefix(f"{part}.") if config is None else name, rank, problems)
            if alpha is not None:
                scale = _alpha(weights, alpha, problems) / rank
            found = Module(name, down, up, rank, scale, bool(kind), alpha, mid)
            if name in modules:
                problems.append(f"{name}  has factors twice")
            modules[name] = found
    whole = tuple(name for name in weights if name not in used)
    problems += [f"{name}  is {_no_factor(name)}" for name in whole if not settings[""].names(name)]
    problems += [
        f"{name}  is {str(weights.dtypes[name]).removeprefix('torch.')}: no number that can be averaged"
        for name in (name for its in modules.values() for name in (its.up, its.down, its.mid) if name)
        if weights.dtypes[name].itemsize == 1 or not weights.dtypes[name].is_floating_point
    ]
    if not modules and not problems:
        problems.append("it holds no factors (lora_A and lora_B, or lora_down and lora_up)")
    return Adapter(path, weights, form, modules, config, whole), problems


def _no_factor(name: str) -> str:
    return peft.MORE["use_dora"] if name.endswith(DORA) else "no factor of a module"


def _told(weights: Checkpoint, problems: list[str]) -> dict[str, peft.Settings]:
    """What the metadata of diffusers says, a configuration for each part of the pipeline."""
    try:
        told = json.loads(weights.metadata.get(METADATA, "{}"))
        told = {str(key): value for key, value in dict(told).items()}
    except (ValueError, TypeError, RecursionError):
        problems.append(f"{METADATA}  in its metadata is no JSON of names and values")
        return {}
    parts = dict.fromkeys(key.partition(".")[0] for key in told)
    configs = {
        part: {key[len(part) + 1 :]: value for key, value in told.items() if key.startswith(f"{part}.")}
        for part in parts
    }
    return {part: peft.Settings.of(config, weights, problems) for part, config in configs.items()}


def _stems(names: Iterable[str], ends: tuple[str, str]) -> list[str]:
    """What stands before these ends, in the order of the names."""
    return [*dict.fromkeys(name[: -len(end)] for name in names for end in ends if name.endswith(end))]


def _mismatch(weights: Checkpoint, down: str, up: str, mid: str | None, embedding: bool) -> str:
    """What keeps two tensors, or three, from being factors of one weight; "" where nothing does."""
    a, b = weights.shapes[down], weights.shapes[up]
    told = f"{'×'.join(map(str, b))} and {'×'.join(map(str, a))}"
    if len(a) < 2 or len(a) != len(b) or (embedding and len(a) != 2) or 0 in (*a, *b):
        return f"its factors are {told}: no matrices"
    if any(size != 1 for size in b[2:]):
        return f"its factors are {told}: the upper one should have a kernel of 1"
    if a[0] != b[1]:
        grouped = len(a) > 2 and a[0] % b[1] == 0
        return f"its factors are {told}: " + (
            "those of a grouped convolution" if grouped else f"the ranks {b[1]} and {a[0]} do not meet"
        )
    if mid is not None:
        between = weights.shapes[mid]
        if (
            between[:2] != (a[0], a[0])
            or len(between) != len(a)
            or 0 in between
            or any(s != 1 for s in a[2:])
        ):
            return f"its factors are {told}: {'×'.join(map(str, between))} does not stand between them"
    return ""


def _alpha(weights: Checkpoint, name: str, problems: list[str]) -> float:
    if math.prod(weights.shapes[name]) != 1:
        problems.append(f"{name}  should be one number")
        return 0.0
    value = float(weights[name].double())
    if not math.isfinite(value):
        problems.append(f"{name}  is {value}")
    if not value:
        problems.append(f"{name}  is 0: for sd-scripts that means the rank, for others that nothing is added")
    return value
