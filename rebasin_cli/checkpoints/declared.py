"""What a model's files say beside its weights: how it computes, what rows are, how values are scaled.

Training programs keep that in the dictionary that they save (`hyper_parameters`, `args`, `class_to_idx`),
or as JSON in the metadata of safetensors. They call things as they like: only names that leave no doubt
are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime import files
from . import configuration
from .checkpoint import Checkpoint
from .declared_names import ARE_CLASSES, is_drawn, is_named, is_of_training, is_settings, may_number
from .scalings import Pair, deviation

Entries = Sequence[tuple[tuple[str, ...], Any]]  # values, with the keys that lead to each

DEEPEST = 7  # dictionaries within dictionaries
MOST = 1 << 20  # characters of JSON
ENTRIES = 1 << 17  # that are looked at
LONGEST = 200  # characters of a setting
OURS, BESIDE = "rebasin.", "rebasin.beside"  # metadata of our own, and where values beside weights are kept
PLAIN = bool | int | float | str
PREPROCESSOR = "preprocessor_config.json"
# Of what no shape of a tensor tells, and a network computes by
COMPUTES = re.compile(
    r"((encoder|decoder|enc|dec|text|vision|model|transformer)_)?"
    r"(n|num)_?(attention_|attn_|kv_|key_value_|query_|encoder_|decoder_)?heads?(_kv)?|nhead|heads|"
    r"((encoder|decoder)_)?attention_heads|((hidden|mlp|ff|ffn)_)?act(ivation)?(_?(fn|func|function|type|layer))?|"
    r"non_?linearity|rope_(theta|base|scaling|type)|rotary_(base|theta)|((layer|rms|batch|group)_?)?norm_eps(ilon)?|"
    r"(bn|ln)_eps(ilon)?|norm_first|pre_?norm|post_?norm|normalize_before|(is_)?causal|bidirectional|"
    r"padding_mode|(beta|noise)_schedule|prediction_type|num_train_timesteps|diffusion_steps|n_fft|hop_length|"
    r"win_length|n_mels|num_mels|num_mel_bins|sampling_rate|do_normalize|do_rescale|rescale_factor"
)
NUMBERS = {"heads": 1, "sampling_rate": 1000}  # what is one from here on: of other things before, and as text
# Words for text: one function has several names, and arguments that it has anyway
TRUTHS = dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(("false", "no", "off"), False)
SAME = {"swish": "silu", "lrelu": "leakyrelu", "linear": "identity", "vprediction": "v", "eps": "epsilon"}
SAME |= dict.fromkeys(("gelunew", "gelufast", "gelupytorchtanh", "geluapproximatetanh"), "gelutanh")
ANYWAY = re.compile(r"approximate='?none'?|inplace=\w+|negative_slope=0?\.010*\b|(alpha|beta)=1(\.0*)?\b")
LARGEST = 1e30  # number that is a mean or a deviation
ROUNDED = 1e-6  # by which two numbers differ that are one in another precision


@dataclass(frozen=True)
class Declared:
    """What a model's files say, each by the dotted names that lead to it.

    `settings` is what the network computes by: numbers and truths, or text without its package; `numberings`
    the numbers of names, of classes and words and whatever else; `scalings` the means and deviations that
    inputs or targets were scaled by, by the names of the means.
    """

    settings: Mapping[str, Any]
    numberings: Mapping[str, Mapping[str, int]]
    scalings: Mapping[str, Pair]


def of(model: Checkpoint) -> Declared:
    """What the files of this model say: read once, and the first 131,072 values of them."""
    entries = [*_entries(model)]
    return Declared(_settings(entries), _numberings(entries), _scalings(entries))


def _settings(entries: Entries) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in entries:
        name = path[-1].casefold().replace("-", "_")
        if COMPUTES.fullmatch(name) and isinstance(value, PLAIN):
            told = _value(value) if isinstance(value, str) else value
            if _is_setting(told, NUMBERS.get(name)):
                found[".".join(path)] = told
    return found


def _is_setting(told: Any, least: int | None) -> bool:
    if isinstance(told, int | float):
        return not abs(told) >= LARGEST and (least is None or told >= least)
    return isinstance(told, str) and least is None


def _value(text: str) -> Any:
    """What a command line's text means: a number, a truth, None; else a function's name, in small letters."""
    text = text.strip().casefold()
    if text in ("none", "null", "") or len(text) > LONGEST:
        return None
    if text in TRUTHS:
        return TRUTHS[text]
    with suppress(ValueError):
        return float(text)
    text = re.sub(r" at 0x[0-9a-f]+|^<?(class|function|built-in function|built-in method) ", "", text)
    name, _, given = text.partition("(")
    name = re.sub(r"\W", "", name.rpartition(".")[2]) + ANYWAY.sub("", given)
    name = re.sub(r"[\W_]", "", name)
    return SAME.get(name, name)


def same(one: Any, other: Any) -> bool:
    """Whether two settings are one; numbers may be rounded."""
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    if one != one or other != other:
        return bool(one != one and other != other)
    return bool(abs(one - other) <= ROUNDED * min(abs(one), abs(other)))


def _numberings(entries: Entries) -> dict[str, dict[str, int]]:
    found = {}
    for path, value in entries:
        if isinstance(value, str | list | tuple | Mapping) and may_number(path, value):
            if isinstance(value, list | tuple) and ARE_CLASSES.search(path[-1].casefold()):
                value = [str(its) if isinstance(its, int) and abs(its) < LARGEST else its for its in value]
            found[".".join(path)] = _by_number(value)
    return {key: numbers for key, numbers in found.items() if numbers}


def moved(key: str, here: Mapping[str, int], there: Mapping[str, int]) -> bool:
    """Whether names have other numbers there; where `key` says nothing of names, all of them are the same."""
    if not is_named(key) and (here.keys() != there.keys() or {*here.values()} != {*there.values()}):
        return False
    return any(there.get(name, k) != k for name, k in here.items())


def _scalings(entries: Entries) -> dict[str, Pair]:
    beside: dict[tuple[str, ...], dict[str, tuple[str, Any]]] = {}
    for path, value in entries:
        beside.setdefault(path[:-1], {})[path[-1].casefold().rstrip("_")] = path[-1], value
    found = {}
    for path, its in beside.items():
        settings = is_settings(path)
        for name, (called, means) in its.items():
            other = deviation(name, its, *([] if settings else ["mu"]))
            if other is None or (settings and other in ("scale", "sigma")):
                continue
            if is_drawn(path, called):
                continue
            one, two = _numbers(means), _numbers(its[other][1])
            if one and len(one) == len(two) and min(two) > 0:
                found[".".join((*path, called))] = one, two
    return found


def _entries(model: Checkpoint) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every plain value beside the weights that may be of the model, with the keys that lead to it."""
    left = [ENTRIES]
    beside: dict[str, Any] = dict(model.beside)
    for key, text in model.metadata.items():
        if not key.startswith(OURS):
            beside[key] = _parsed(text)
        elif key == BESIDE and isinstance(own := _parsed(text), dict):
            beside |= own
    beside |= _of_folder(model.path if model.path.is_dir() else model.path.parent)
    yield from _within(beside, (), left)


def _of_folder(folder: Path) -> dict[str, Any]:
    """How inputs are prepared, as transformers and timm write it beside the weights."""
    found: dict[str, Any] = {}
    with suppress(OSError):
        found[PREPROCESSOR] = configuration.read(files.content(folder / PREPROCESSOR, MOST))
    timm = (configuration.beside(folder) or {}).get("pretrained_cfg")
    if isinstance(timm, dict):
        found[configuration.CONFIG] = {key: timm[key] for key in ("mean", "std") if key in timm}
    return found


def _within(
    given: Mapping[Any, Any], path: tuple[str, ...], left: list[int], depth: int = 0
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in given.items():
        left[0] -= 1
        if left[0] < 0:
            return
        if not isinstance(key, str):
            continue
        flat = key.split(".") if len(key) <= LONGEST else [key]  # settings in settings, written as one name
        parts = *path, *flat
        if any(map(is_of_training, parts[len(path) : -1])):
            continue
        yield parts, value
        if isinstance(value, Mapping) and depth < DEEPEST and not is_of_training(parts[-1]):
            if not (is_named(key) and _by_number(value)):
                yield from _within(value, parts, left, depth + 1)


def _parsed(text: str) -> Any:
    if text[:1] in ("{", "[") and len(text) <= MOST:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def _by_number(value: Any) -> dict[str, int]:
    """The number of each name: of a list, of names by number, or of numbers by name, from 0 or 1 on.

    Nothing where that is no numbering.
    """
    if isinstance(value, Mapping):
        pairs = [*value.items()]
        if all(isinstance(name, str) and str(k).isdecimal() for k, name in pairs):
            pairs = [(name, int(k)) for k, name in pairs]
    elif isinstance(value, str | list | tuple):
        pairs = [(name, k) for k, name in enumerate(value)]
    else:
        return {}
    if not all(isinstance(name, str) and type(k) is int for name, k in pairs):
        return {}
    found = dict(pairs)
    whole = 1 < len(found) == len(pairs) == len({*found.values()}) and min(found.values()) in (0, 1)
    return found if whole and max(found.values()) <= 2 * len(found) else {}


def _numbers(value: Any) -> list[float]:
    """A number or a list of numbers as a list; empty for anything else."""
    listed = value if isinstance(value, list | tuple) else [value]
    right = all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < LARGEST for x in listed)
    return [float(x) for x in listed] if right else []
