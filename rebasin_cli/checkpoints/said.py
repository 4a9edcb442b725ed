"""What a model's files say beside its weights: how it computes, what rows are, how values are scaled.

Training programs keep that in the dictionary that they save (`hyper_parameters`, `args`, `class_to_idx`),
or as JSON in the metadata of safetensors. They call things as they like: only names that leave no doubt
are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
CLASSES = (
    "class_to_idx id2label label2id idx_to_class idx2class class2idx idx2label label2idx label_to_idx "
    "class_names label_names classes categories names labels characters charset alphabet chars"
).split()
WORDS = (
    "vocab vocabulary stoi itos token2id word2id char2id id2token id2word id2char token2idx word2idx "
    "char2idx idx2token idx2word idx2char token_to_idx word_to_idx char_to_idx token_to_id char_to_id "
    "idx_to_char word_to_ix char_to_ix chars characters"
).split()
DEVIATIONS = ("std", "stddev", "scale", "sigma")
LARGEST = 1e30  # number that is a mean or a deviation
FAR = 0.1  # of a deviation, by which two scalings differ that are not two measurements of one
Pair = tuple[list[float], list[float]]  # means, and deviations


def settings(model: Checkpoint) -> dict[str, Any]:
    """What the network computes by, by the dotted names: numbers and truths, or text without its package."""
    found = {}
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


def classes(model: Checkpoint) -> dict[str, int]:
    """The number of each class; none where nothing is said of them."""
    return _numbered(model, CLASSES)


def words(model: Checkpoint) -> dict[str, int]:
    """The number of each word, or character; none where nothing is said of them."""
    return _numbered(model, WORDS)


def scalings(model: Checkpoint) -> dict[str, Pair]:
    """Means and deviations that inputs or targets were scaled by, by the dotted names of the means."""
    plain = dict(_entries(model))
    found = {}
    for path, means in plain.items():
        if (other := deviation(path[-1], [*(its[-1] for its in plain if its[:-1] == path[:-1])])) is not None:
            one, two = _numbers(means), _numbers(plain[(*path[:-1], other)])
            if one and len(one) == len(two) and min(two) > 0:
                found[".".join(path)] = one, two
    return found


def deviation(name: str, among: Collection[str]) -> str | None:
    """The deviations' name that goes with a name of means (`y_mean`, `y_std`); None where there is none."""
    if not re.search(r"(?:^|[._])mean$", name):
        return None
    return next((its for word in DEVIATIONS if (its := name.removesuffix("mean") + word) in among), None)


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
        if isinstance(value, Mapping) and key not in CLASSES and key not in WORDS:
            if len(path) < DEEPEST and not OF_TRAINING.search(key.casefold()):
                yield from _within(value, (*path, key), left)
        else:
            yield (*path, key), value


def _parsed(text: str) -> Any:
    if text[:1] in ("{", "[") and len(text) <= MOST:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    return text


def _numbered(model: Checkpoint, names: Sequence[str]) -> dict[str, int]:
    there: dict[str, dict[str, int]] = {}
    for path, value in _entries(model):
        if (key := path[-1].casefold()) in names and (found := _by_number(value)):
            there.setdefault(key, found)
    return next((there[name] for name in names if name in there), {})


def _by_number(value: Any) -> dict[str, int]:
    """The number of each name: of a list, of names by number, or of numbers by name. None that has two."""
    if isinstance(value, Mapping):
        pairs = [*value.items()]
        if all(isinstance(k, int) and isinstance(name, str) for k, name in pairs):
            pairs = [(name, k) for k, name in pairs]
        elif all(isinstance(k, str) and k.isdecimal() and isinstance(name, str) for k, name in pairs):
            pairs = [(name, int(k)) for k, name in pairs]
    elif isinstance(value, str | list | tuple):
        pairs = [(name, k) for k, name in enumerate(value)]
    else:
        return {}
    right = all(isinstance(name, str) and type(k) is int for name, k in pairs)
    found = dict(pairs) if right else {}
    return found if len(found) == len(pairs) > 1 else {}


def _numbers(value: Any) -> list[float]:
    """A number or a list of numbers as a list; empty for anything else."""
    listed = value if isinstance(value, list | tuple) else [value]
    right = all(isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < LARGEST for x in listed)
    return [float(x) for x in listed] if right else []
