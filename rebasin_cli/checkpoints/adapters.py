"""Low-rank adapters in files: which factors a module has, and by what their product is multiplied.

    A/adapter_config.json, A/adapter_model.safetensors      a folder as peft writes it
    a.safetensors                                           up, down and alpha, as sd-scripts writes them

What a module adds to its weight is `scale · up · down`. Nothing of a configuration is believed that the
tensors do not bear out, and what says more than that (DoRA, biases, whatever is not known here) is a problem.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from ..runtime import files
from ..runtime.text import once
from .checkpoint import Checkpoint
from .safetensors_format import read_header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LARGEST = 1 << 24  # bytes of a configuration
DEEPEST = 100  # modules in modules
SHOWN = 60  # characters of a value that is wrong
PREFIX = "base_model.model."  # before every name, as peft saves a model

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
}
ALPHA = ".alpha"
# What these say concerns training, or loading, and not what the adapter computes.
HARMLESS = frozenset(
    "alpha_pattern auto_mapping base_model_name_or_path bias corda_config eva_config exclude_modules "
    "fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config "
    "lora_alpha lora_dropout lora_ga_config megatron_config megatron_core modules_to_save peft_type "
    "peft_version qalora_group_size r rank_pattern revision runtime_config target_modules task_type "
    "use_rslora velora_config ensure_weight_tying layer_replication".split()
)
# What more an adapter may compute, by the key that says so.
MORE = {
    "use_dora": "DoRA: magnitudes beside the factors",
    "kasa_config": "KaSA: singular values beside the factors",
    "lora_bias": "lora_bias: biases beside the factors",
    "target_parameters": "target_parameters: factors of parameters that are no module's weight",
    "trainable_token_indices": "trainable_token_indices: rows of an embedding beside the factors",
    "use_qalora": "QA-LoRA: its inputs are pooled",
    "alora_invocation_tokens": "activated LoRA: it acts behind some tokens alone",
    "arrow_config": "Arrow: a router of adapters",
}
# Of these the base is another one once the adapter is loaded: its weights lose what the factors begin with.
CHANGES_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")
PLAIN = re.compile(r"[\w.-]+")  # a pattern that is a name
LONGEST = 500  # characters of a pattern, and of a name that one with quantifiers is matched against
MATCHES = 50_000_000  # of names with patterns
STEPS = 2_000_000_000  # of names with patterns that have quantifiers: each may take a name's length squared


@dataclass(frozen=True)
class Module:
    """What is added to the weight of one module: `scale · up · down`.

    `down` and `up` name the tensors: (r, n) and (m, r) of linear layers and embeddings, (r, c, k, …) and
    (m, r, 1, …) of convolutions. `name` is the module's as the base has it.
    """

    name: str
    down: str
    up: str
    rank: int
    scale: float
    embedding: bool = False
    alpha: str | None = None  # the tensor that says it, where one does

    def factors(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The factors as matrices (m, r) and (r, n), float64, the scale in the first one."""
        return (
            tensors[self.up].double().flatten(1) * self.scale,
            tensors[self.down].double().flatten(1),
        )


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


def config_beside(path: Path) -> Path | None:
    """The configuration of the adapter that a path is, or whose weights it is; None where there is none."""
    folder = path if path.is_dir() else path.parent
    of_it = path.is_dir() or path.name.startswith("adapter_model.")
    return folder / CONFIG if of_it and (folder / CONFIG).is_file() else None


def is_adapter(path: Path) -> bool:
    """Whether a path is an adapter, by its configuration or the names of its tensors; reads no values."""
    try:
        if config_beside(path) is not None:
            return True
        if path.suffix != ".safetensors" or not path.is_file():
            return False
        with files.opened(path) as file:
            names, _ = read_header(file, path)
    except (CheckpointError, OSError, ValueError):  # told where it is opened
        return False
    ends = tuple(end for pair in ENDS["sd-scripts"] for end in pair)
    return any(name.endswith(ends) for name in names) and all(
        name.endswith((*ends, ALPHA, ".dora_scale", ".lora_mid.weight")) for name in names
    )


def read(weights: Checkpoint) -> tuple[Adapter, list[str]]:
    """The adapter that these tensors are, and all that keeps it from being factors of low rank alone.

    Raises CheckpointError where its configuration is none at all.
    """
    path = weights.path
    beside = config_beside(path)
    problems: list[str] = []
    config = None if beside is None else _config(beside)
    form = "sd-scripts" if config is None else "peft"
    settings = _Settings.of(config, weights, problems)
    modules: dict[str, Module] = {}
    used: set[str] = set()
    for (down_end, up_end), kind in ENDS[form].items():
        for stem in _stems(weights, (down_end, up_end)):
            down, up = stem + down_end, stem + up_end
            alpha = stem + ALPHA if config is None and stem + ALPHA in weights else None
            used |= {down, up, *([alpha] if alpha else [])}
            missing = [name for name in (down, up) if name not in weights]
            if missing:
                problems.append(f"{stem}  has no {missing[0][len(stem) + 1 :]}")
                continue
            if why := _mismatch(weights, down, up, bool(kind)):
                problems.append(f"{stem}  {why}")
                continue
            rank = weights.shapes[down][0]
            name = stem.removeprefix(PREFIX)
            scale = settings.scale(name, rank, problems)
            if alpha is not None:
                scale = _alpha(weights, alpha, problems) / rank
            found = Module(name, down, up, rank, scale, bool(kind), alpha)
            if name in modules:
                problems.append(f"{name}  has factors twice")
            modules[name] = found
    whole = tuple(name for name in weights if name not in used)
    problems += [f"{name}  is no factor of a module" for name in whole if not settings.names(name)]
    problems += [
        f"{name}  is {str(weights.dtypes[name]).removeprefix('torch.')}: no number that can be averaged"
        for name in (name for module in modules.values() for name in (module.up, module.down))
        if weights.dtypes[name].itemsize == 1 or not weights.dtypes[name].is_floating_point
    ]
    if not modules and not problems:
        problems.append("it holds no factors (lora_A and lora_B, or lora_down and lora_up)")
    return Adapter(path, weights, form, modules, config, whole), problems


def _stems(names: Iterable[str], ends: tuple[str, str]) -> list[str]:
    """What stands before these ends, in the order of the names."""
    return [*dict.fromkeys(name[: -len(end)] for name in names for end in ends if name.endswith(end))]


def _mismatch(weights: Checkpoint, down: str, up: str, embedding: bool) -> str:
    """What keeps two tensors from being factors of one weight; "" where nothing does."""
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
    return ""


def _alpha(weights: Checkpoint, name: str, problems: list[str]) -> float:
    if math.prod(weights.shapes[name]) != 1:
        problems.append(f"{name}  should be one number")
        return 0.0
    value = float(weights[name].double())
    if not math.isfinite(value):
        problems.append(f"{name}  is {value}")
    return value


# ----------------------------------------------------------------------------------------------- the settings


@dataclass(frozen=True)
class _Settings:
    """What a configuration says of scales, and the modules that it saves whole."""

    rank: int | None = None
    alpha: float | None = None
    rooted: bool = False
    ranks: _Patterns | None = None
    alphas: _Patterns | None = None
    saved: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: Mapping[str, Any] | None, names: Collection[str], problems: list[str]) -> _Settings:
        if config is None:
            return cls()
        kind = config.get("peft_type")
        if kind != "LORA":
            problems.append(f"{CONFIG}: peft_type is {_told(kind)}, expected LORA")
            return cls()
        problems += [f"{CONFIG}: {what}" for key, what in MORE.items() if config.get(key)]
        problems += [
            f"{CONFIG}: {_told(key)} is {_told(value)}, which is not known here"
            for key, value in config.items()
            if value and key not in HARMLESS and key not in MORE
        ]
        if config.get("bias", "none") != "none":
            problems.append(f"{CONFIG}: bias is {_told(config['bias'])}, expected none")
        begun = config.get("init_lora_weights", True)
        if isinstance(begun, str) and begun.lower().startswith(CHANGES_BASE):
            problems.append(
                f"{CONFIG}: init_lora_weights is {_told(begun)}: loading it changes the base. Save it "
                "with path_initial_model_for_weight_conversion"
            )
        for key in ("use_rslora", "fan_in_fan_out"):
            if not isinstance(config.get(key, False), bool | None):
                problems.append(f"{CONFIG}: {key} is {_told(config[key])}, expected true or false")
        rank, alpha = config.get("r", 8), config.get("lora_alpha", 8)
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            problems.append(f"{CONFIG}: r is {_told(rank)}, expected a whole number from 1 on")
            rank = None
        ranks, alphas = (_patterns(config, key, problems) for key in ("rank_pattern", "alpha_pattern"))
        squares = sum(min(len(name), LONGEST) ** 2 for name in names)
        matches, steps = (ranks.count + alphas.count) * len(names), (ranks.slow + alphas.slow) * squares
        if matches > MATCHES or steps > STEPS:
            problems.append(f"{CONFIG}: rank_pattern and alpha_pattern have too many patterns")
            ranks = alphas = _Patterns({})
        saved = config.get("modules_to_save") or ()
        if not isinstance(saved, list | tuple) or not all(isinstance(name, str) for name in saved):
            problems.append(f"{CONFIG}: modules_to_save is {_told(saved)}, expected names")
            saved = ()
        wanted = config.get("target_modules")
        if not (wanted is None or isinstance(wanted, str)):
            if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
                problems.append(f"{CONFIG}: target_modules is {_told(wanted)}, expected names or a pattern")
        for key in ("base_model_name_or_path", "revision", "task_type"):
            if not isinstance(config.get(key), str | None):
                problems.append(f"{CONFIG}: {key} is {_told(config[key])}, expected a text")
        if (number := _number(alpha)) is None:
            problems.append(f"{CONFIG}: lora_alpha is {_told(alpha)}, expected a finite number")
        return cls(rank, number, config.get("use_rslora") is True, ranks, alphas, frozenset(saved))

    def scale(self, name: str, rank: int, problems: list[str]) -> float:
        """By what the product of a module is multiplied; 1 where nothing says anything."""
        if self.rank is None or self.alpha is None or self.ranks is None or self.alphas is None:
            return 1.0
        wanted, alpha = self.ranks.get(name, self.rank), self.alphas.get(name, self.alpha)
        if wanted != rank:
            problems.append(f"{name}  has the rank {rank}, {CONFIG} says {_told(wanted)}")
        return float(alpha) / (math.sqrt(rank) if self.rooted else rank)

    def names(self, tensor: str) -> bool:
        """Whether a tensor that is no factor belongs to what was saved whole."""
        parts = tensor.removeprefix(PREFIX).split(".")[:DEEPEST]
        ends = range(1, len(parts) + 1)
        return "base_layer" in parts or any(
            ".".join(parts[start:end]) in self.saved for end in ends for start in range(end)
        )


class _Patterns:
    """Numbers by patterns of modules' names: the first that is found at the end of a name counts, as in peft.

    Patterns come from strangers: few are matched against a name, and none that may take long is taken.
    """

    def __init__(self, given: Mapping[str, Any]):
        self._of_length: dict[
            int, list[tuple[int, re.Pattern[str], Any]]
        ] = {}  # plain names, whose dots match all
        self._others: list[tuple[int, re.Pattern[str], Any]] = []
        for place, (pattern, value) in enumerate(given.items()):
            if PLAIN.fullmatch(pattern):
                self._of_length.setdefault(len(pattern), []).append((place, re.compile(pattern), value))
            else:
                self._others.append((place, re.compile(rf"(.*\.)?({pattern})$"), value))
        self.count, self.slow = len(given), len(self._others)

    def get(self, name: str, otherwise: Any) -> Any:
        found = []
        starts = [0, *(dot.end() for dot in re.finditer(r"\.", name))]
        for start in starts:
            of_length = self._of_length.get(len(name) - start, ())
            found += [(place, value) for place, key, value in of_length if key.fullmatch(name, start)]
        if len(name) <= LONGEST:
            found += [(place, value) for place, key, value in self._others if key.match(name)]
        return min(found, key=lambda one: one[0])[1] if found else otherwise


def _patterns(config: Mapping[str, Any], key: str, problems: list[str]) -> _Patterns:
    """A dictionary of patterns and numbers, without those that are wrong."""
    given = config.get(key) or {}
    if not isinstance(given, Mapping):
        problems.append(f"{CONFIG}: {key} is {_told(given)}, expected patterns of names with numbers")
        return _Patterns({})
    found = {}
    for pattern, value in given.items():
        whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not whole if key == "rank_pattern" else _number(value) is None:
            problems.append(
                f"{CONFIG}: {key} says {_told(value)} of {_told(pattern)}, which is no number for it"
            )
        elif not _is_quick(pattern):
            problems.append(f"{CONFIG}: {key} has the pattern {_told(pattern)}, which is too intricate")
        else:
            found[pattern] = value
    return _Patterns(found)


def _is_quick(pattern: str) -> bool:
    """Whether a regular expression can be matched against names without taking long."""
    if len(pattern) > LONGEST or PLAIN.fullmatch(pattern):
        return len(pattern) <= LONGEST
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return len(re.findall(r"[*+?{]", pattern)) <= 1 and not re.search(r"\)[*+?{]|\\[1-9]|\(\?", pattern)


def _number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _told(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _config(path: Path) -> dict[str, Any]:
    try:
        content = files.text(path, str(path), most=LARGEST, error=CheckpointError)
        parsed = json.loads(content, object_pairs_hook=once)
        json.dumps(parsed, indent=2, allow_nan=False)  # as it will be written
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{path} is not valid JSON: {cause}") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path} is no configuration of an adapter: expected names and values")
    return parsed


# ------------------------------------------------------------------------------------------------- the output


def config_of_moved(adapter: Adapter) -> bytes:
    """The configuration of an adapter whose base was permuted: no longer of the model that it names."""
    names_none = {key: None for key in ("base_model_name_or_path", "revision")}
    return _encoded(dict(adapter.config or {}) | names_none)


def _encoded(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def config_of(adapters: Sequence[Adapter], ranks: Mapping[str, int]) -> bytes:
    """The configuration of an adapter with these ranks: alpha is the rank, so that every scale is 1.

    All but what says how a module is found, and how large its factors are, is the first adapter's.
    """
    configs = [adapter.config or {} for adapter in adapters]
    common = max(sorted({*ranks.values()}), key=[*ranks.values()].count)
    others = {name: rank for name, rank in sorted(ranks.items()) if rank != common}
    if others and _meet_others(others, ranks):  # anchored, a name is nobody else's
        others = {f"^{re.escape(name)}": rank for name, rank in others.items()}
    lists = [config.get("target_modules") for config in configs]
    as_listed = all(isinstance(its, list) for its in lists) and not any(
        config.get(key)
        for config in configs
        for key in ("layers_to_transform", "exclude_modules", "layers_pattern")
    )
    targets = sorted({name for its in lists for name in its or ()} if as_listed else ranks)
    found = dict(configs[0]) | {
        "r": common,
        "lora_alpha": common,
        "use_rslora": False,
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": targets,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    # how training began, and which of the targets are meant, where these are not all
    begun = ("eva_config", "corda_config", "lora_ga_config", "loftq_config", "velora_config")
    chosen = ("exclude_modules", "layers_to_transform", "layers_pattern")
    found |= {key: {} if key == "loftq_config" else None for key in (*begun, *chosen) if key in found}
    return _encoded(found)


def _meet_others(patterns: Iterable[str], names: Iterable[str]) -> bool:
    """Whether one of these names is, as a pattern, found at the end of another one, too."""
    plain = {re.sub(r"\W|_", ".", name): name for name in patterns}
    for name in names:
        parts = re.sub(r"\W|_", ".", name)
        at = 0
        while at >= 0:
            if plain.get(parts[at:], name) != name:
                return True
            at = parts.find(".", at)
            at = at + 1 if at >= 0 else -1
    return False
