"""What a model's files say beside its weights: how it computes, what rows are, how values are scaled.

Training programs keep that in the dictionary that they save (`hyper_parameters`, `args`, `class_to_idx`),
or as JSON in the metadata of safetensors. They call things as they like: only names that leave no doubt
are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..runtime import files
from . import configuration
from .checkpoint import Checkpoint

DEEPEST = 5  # dictionaries within dictionaries
MOST = 1 << 20  # entries that are looked at, and characters of JSON
OURS = "rebasin."
PLAIN = bool | int | float | str
PREPROCESSOR = "preprocessor_config.json"
# Of what no shape of a tensor tells, and a network computes by
COMPUTES = re.compile(
    r"(n|num)_?(attention_|attn_|kv_|key_value_|query_|encoder_|decoder_)?heads?(_kv)?|nhead|"
    r"((encoder|decoder)_)?attention_heads|((hidden|mlp|ff|ffn)_)?act(ivation)?(_?(fn|func|function|type|layer))?|"
    r"non_?linearity|rope_(theta|base|scaling|type)|rotary_(base|theta)|((layer|rms|batch|group)_?)?norm_eps(ilon)?|"
    r"(bn|ln)_eps(ilon)?|norm_first|pre_?norm|post_?norm|normalize_before|(is_)?causal|bidirectional|"
    r"padding_mode|(beta|noise)_schedule|prediction_type|num_train_timesteps|diffusion_steps|n_fft|hop_length|"
    r"win_length|n_mels|num_mels|num_mel_bins|sampling_rate|do_normalize|do_rescale|rescale_factor"
)
# Parts of a configuration that say how a model was trained or measured, and not what it is
OF_TRAINING = re.compile(
    r"optim|sched|data|loader|aug|transform|loss|train|callback|log|eval|test|teacher|metric|result|score|reward"
)
NAMED = re.compile(
    r"class|label|categor|names$|vocab|token|word|char|alphabet|stoi|itos|idx|2id|id2|to_id|to_ix"
)
OF_CLASSES = re.compile(r"class|label|categor|names$")
DEVIATIONS = ("std", "stddev", "scale", "sigma")
LARGEST = 1e30  # number that is a mean or a deviation
FAR = 0.1  # of a deviation, by which two scalings differ that are not two measurements of one
Pair = tuple[list[float], list[float]]  # means, and deviations


def settings(model: Checkpoint) -> dict[str, Any]:
    """What the network computes by, by the dotted names: numbers and truths, or text without its package."""
    found: dict[str, Any] = {}
    for path, value in _entries(model):
        if COMPUTES.fullmatch(path[-1].casefold().replace("-", "_")) and isinstance(value, PLAIN):
            told = _value(value) if isinstance(value, str) else value
            found |= {".".join(path): told} if isinstance(told, PLAIN) else {}
    return found


def _value(text: str) -> Any:
    """What a command line's text means: a number, a truth, None; else a name, in small letters."""
    text = text.strip().casefold()
    try:
        return json.loads({"none": "null", "": "null"}.get(text, text))
    except (ValueError, RecursionError):
        return text.rpartition(".")[2]


def numberings(model: Checkpoint) -> dict[str, dict[str, int]]:
    """The numbers of names, of classes and words and whatever else, by the dotted names of what says them."""
    found = {}
    for path, value in _entries(model):
        if isinstance(value, list | tuple) and OF_CLASSES.search(path[-1].casefold()):
            value = [str(name) if isinstance(name, int) else name for name in value]  # classes may be numbers
        found[".".join(path)] = _by_number(value)
    return {key: numbers for key, numbers in found.items() if numbers}


def moved(key: str, here: dict[str, int], there: dict[str, int]) -> bool:
    """Whether names have other numbers there; where `key` says nothing of names, all of them are the same."""
    if NAMED.search(key.casefold()) is None and (
        here.keys() != there.keys() or {*here.values()} != {*there.values()}
    ):
        return False
    return any(there.get(name, k) != k for name, k in here.items())


def scalings(model: Checkpoint) -> dict[str, Pair]:
    """Means and deviations that inputs or targets were scaled by, by the dotted names of the means."""
    plain = dict(_entries(model))
    found = {}
    for path, means in plain.items():
        if (
            other := deviation(path[-1], [its[-1] for its in plain if its[:-1] == path[:-1]], "mu")
        ) is not None:
            one, two = _numbers(means), _numbers(plain[(*path[:-1], other)])
            if one and len(one) == len(two) and min(two) > 0:
                found[".".join(path)] = one, two
    return found


def deviation(name: str, among: Collection[str], *more: str) -> str | None:
    """The deviations' name that goes with a name of means (`y_mean`, `y_std`); None where there is none.

    `more` are words for means beside that one.
    """
    for word in ("mean", *more):
        if re.search(rf"(?:^|[._]){word}$", name):
            return next((its for end in DEVIATIONS if (its := name.removesuffix(word) + end) in among), None)
    return None


def far(one: Pair, other: Pair) -> bool:
    """Whether two scalings are further apart than those of two samples of the same values."""
    if len(one[0]) != len(other[0]):
        return True
    return any(
        abs(a - b) > FAR * min(s, t) or max(s, t) > (1 + FAR) * min(s, t)
        for a, b, s, t in zip(one[0], other[0], one[1], other[1], strict=True)
    )


def _entries(model: Checkpoint) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every plain value beside the weights that may be of the model, with the keys that lead to it."""
    left = [MOST]
    beside: dict[str, Any] = dict(model.beside)
    for key, text in model.metadata.items():
        if not key.startswith(OURS):
            beside[key] = _parsed(text)
        elif key == f"{OURS}beside" and isinstance(own := _parsed(text), dict):
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
    given: Mapping[Any, Any], path: tuple[str, ...], left: list[int]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in given.items():
        left[0] -= 1
        if left[0] < 0:
            return
        if not isinstance(key, str):
            continue
        word = key.casefold()
        yield (*path, key), value
        if isinstance(value, Mapping) and len(path) < DEEPEST and not OF_TRAINING.search(word):
            if not (NAMED.search(word) and _by_number(value)):
                yield from _within(value, (*path, key), left)


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
