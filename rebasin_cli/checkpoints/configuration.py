"""`config.json`, as it lies beside the weights of a model: what its publisher says of the network."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime import files

CONFIG = "config.json"
LARGEST = 1 << 24  # bytes of a configuration
DEEPEST = 4  # parts within parts of a configuration
Config = dict[str, Any]
# Keys, by their parts: of what changes nothing that is computed in evaluation, and of labels and words
SAYS_NOTHING = re.compile(
    r"^_|^(architectures|auto_map|bos|dtype|eos|finetuning|generation|license|max_length|pad|pretrain\w*|"
    r"problem|return|task|torch\w*|transformers|use_cache|version)(_|$)|dropout|pdrop|drop_path|drop_rate|"
    r"^output_(hidden|attentions|scores|router|past)|layerdrop|implementation|label|loss|max_position|"
    r"num_classes|quantization|token_id|vocab_size|"
    r"(^|_)(augment|checkpointing|class|init|initializer|mask|name|path|processor|std|tie|url)(_|$)"
)
DECIDES = re.compile(
    r"(^|_)(act|activations?|alibi|architecture|attn|causal|decoder|dilations?|distance|eps|epsilon|factor|"
    r"flip|freq|func|gated|glu|groups?|heads?|interleaved?|kernels?|layernorm|layer_types|multi_query|"
    r"multiplier|norms?|normali[sz]e|parallel|per_tok|pool\w*|positions?|residuals?|rope|rotary|scal\w*|"
    r"shift|soft\w*|strides?|theta|topk|top_k|window)(_|$)"
)


@dataclass(frozen=True)
class Difference:
    """Two values of one key; `decides` where another function is computed with each."""

    first: Any
    other: Any
    decides: bool


def read(content: bytes) -> Config | None:
    """The configuration; None where it is none."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def differences(first: Config | None, other: Config | None) -> dict[str, Difference]:
    """What two configurations say otherwise, by key (`text_config.hidden_act`); no tensor's shape tells it.

    What only one of them says is not compared, since versions of a package leave out different defaults, nor
    what changes nothing that is computed: names, dropouts, first values, tokens of generation, labels.
    """
    return {
        key: Difference(value, its, bool(DECIDES.search(key.rpartition(".")[2])))
        for key, value, its in _pairs(first or {}, other or {})
        if value != its
    }


def _pairs(first: Config, other: Config, within: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key, value in first.items():
        if key not in other or SAYS_NOTHING.search(key):
            continue
        its = other[key]
        if isinstance(value, dict) and isinstance(its, dict) and within.count(".") < DEEPEST:
            yield from _pairs(value, its, f"{within}{key}.")
        else:
            yield f"{within}{key}", value, its


def beside(model: Path) -> Config | None:
    """The configuration in a model's folder, if there is one."""
    path = (model if model.is_dir() else model.parent) / CONFIG
    try:
        return read(files.content(path, LARGEST))
    except OSError:
        return None
