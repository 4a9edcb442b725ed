"""The configuration of adapters that peft wrote: what it says of ranks and scales, and the one of an output.

Nothing that is not known here may change what an adapter computes; what may is a problem, a line each.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..runtime import files
from ..runtime.text import once

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LARGEST = 1 << 24  # bytes of a configuration
DEEPEST = 100  # modules in modules
SHOWN = 60  # characters of a value that is wrong
PREFIX = "base_model.model."  # before every name, as peft saves a model
# What these say concerns training, or loading, and not what the adapter computes.
HARMLESS = frozenset(
    "alpha_pattern auto_mapping base_model_name_or_path bias corda_config eva_config exclude_modules "
    "fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config "
    "lora_alpha lora_dropout lora_ga_config megatron_core modules_to_save peft_type "
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
    "megatron_config": "Megatron: layers that are split over processes",
}
# Inputs that were learnt: no weights, and nothing that can be merged into any.
PROMPTS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT")
# How factors began. The base is another one once the adapter of the second kind is loaded: its weights lose
# what the factors began with.
LEAVES_BASE = ("gaussian", "eva", "orthogonal", "mica")
CHANGES_BASE = ("pissa", "olora", "corda", "lora_ga", "loftq")
PLAIN = re.compile(r"[\w.-]+")  # a pattern that is a name
LONGEST = 500  # characters of a pattern, and of a name that one with quantifiers is matched against
MATCHES = 50_000_000  # of names with patterns
STEPS = 2_000_000_000  # of names with patterns that have quantifiers: each may take a name's length squared


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _lists(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(of, value))


def _is_pair(value: Any) -> bool:
    return _lists(_is_whole)(value) and len(value) == 2


def _either(*kinds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(kind(value) for kind in kinds)


# What a value is where it is not null: keys, how that is told, and the test.
_KINDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    (
        "use_rslora fan_in_fan_out inference_mode ensure_weight_tying",
        "true or false",
        lambda value: isinstance(value, bool),
    ),
    ("base_model_name_or_path revision task_type peft_version megatron_core", "a text", _is_text),
    (
        "target_modules exclude_modules layers_pattern",
        "names or a pattern",
        _either(_is_text, _lists(_is_text)),
    ),
    ("modules_to_save", "names", _lists(_is_text)),
    ("layers_to_transform", "whole numbers", _either(_is_whole, _lists(_is_whole))),
    ("layer_replication", "pairs of whole numbers", _lists(_is_pair)),
    ("lora_dropout", "a number from 0 to 1", _is_share),
    ("qalora_group_size", "a whole number", _is_whole),
    ("init_lora_weights", "true, false or a name", lambda value: isinstance(value, bool | str)),
    (
        "auto_mapping corda_config eva_config lora_ga_config loftq_config runtime_config velora_config",
        "names and values",
        lambda value: isinstance(value, Mapping),
    ),
)


def config_beside(path: Path) -> Path | None:
    """The configuration of the adapter that a path is, or whose weights it is; None where there is none."""
    folder = path if path.is_dir() else path.parent
    of_it = path.is_dir() or path.name.startswith("adapter_model.")
    return folder / CONFIG if of_it and not files.is_missing(folder / CONFIG) else None


def read(path: Path) -> dict[str, Any]:
    """What a configuration says, by its keys. Raises CheckpointError where it is none."""
    try:
        content = files.text(path, str(path), most=LARGEST, error=CheckpointError)
        parsed = json.loads(content, object_pairs_hook=once)
        json.dumps(parsed, indent=2, allow_nan=False)  # as it will be written
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{path} is not valid JSON: {cause}") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path} is no configuration of an adapter: expected names and values")
    return parsed


@dataclass(frozen=True)
class Settings:
    """What a configuration says of scales, and the modules that it saves whole."""

    rank: int | None = None
    alpha: float | None = None
    rooted: bool = False
    ranks: _Patterns | None = None
    alphas: _Patterns | None = None
    saved: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: Mapping[str, Any] | None, names: Collection[str], problems: list[str]) -> Settings:
        """Of an adapter whose tensors have these names; what is wrong or not known joins the `problems`."""
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
        wrong = {
            key: told
            for keys, told, fits in _KINDS
            for key in keys.split()
            if config.get(key) is not None and not fits(config[key])
        }
        problems += [
            f"{CONFIG}: {key} is {_told(config[key])}, expected {told}" for key, told in wrong.items()
        ]
        begun = config.get("init_lora_weights")
        if isinstance(begun, str) and begun.lower().startswith(CHANGES_BASE):
            problems.append(
                f"{CONFIG}: init_lora_weights is {_told(begun)}: loading it changes the base. Save it "
                "with path_initial_model_for_weight_conversion"
            )
        elif isinstance(begun, str) and begun.lower() not in LEAVES_BASE:
            problems.append(f"{CONFIG}: init_lora_weights is {_told(begun)}, which is not known here")
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
        saved = () if "modules_to_save" in wrong else config.get("modules_to_save") or ()
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
        # Plain names, by their length: a dot in one matches any character.
        self._of_length: dict[int, list[tuple[int, re.Pattern[str], Any]]] = {}
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


# ------------------------------------------------------------------------------------------------- the output


def config_of_moved(config: Mapping[str, Any]) -> bytes:
    """The configuration of an adapter whose base was permuted: no longer of the model that it names."""
    return _encoded(dict(config) | {key: None for key in ("base_model_name_or_path", "revision")})


def _encoded(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def config_of(configs: Sequence[Mapping[str, Any]], ranks: Mapping[str, int]) -> bytes:
    """The configuration of an adapter with these ranks by module: alpha is the rank, so every scale is 1.

    All but what says how a module is found, and how large its factors are, is the first adapter's.
    """
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
