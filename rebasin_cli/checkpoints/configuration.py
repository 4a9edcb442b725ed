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
    r"^_|^(architectures|auto_map|bos|dtype|eos|finetuning|generation|license|max_length|pad|padding_side|"
    r"pretrain(?!ed_window)\w*|problem|return|task|torch\w*|transformers|use_cache|version)(_|$)|"
    r"dropout|pdrop|drop_path|drop_rate|^output_(hidden|attentions|scores|router|past)|layerdrop|"
    r"implementation|label|loss|(?<!original_)max_position|num_classes|quantization|token_id|vocab_size|"
    r"(^|_)(augment|checkpointing|class|efficient|flash|init|initializer|jitter|mask|name|path|processor|std|"
    r"tie|upcast|url|xformers)(_|$)|(^|_)(fused?|fast_path|triton)(_|$)|^use_\w*kernels?$|^(chunk_size_feed_forward|cache_type|tokenizer_type)$"
)
DECIDES = re.compile(
    r"(^|_)(aa|act|activations?|alibi|alpha|architecture|att|attention|attn|atrous|bidirectional|bound|causal|"
    r"center|clip|decoder|depths?|dilations?|distance|downsample|eps|epsilon|factor|feature_layers?|"
    r"feed_forward|flip|fn|freq|func|function|gated|global|glu|groups?|heads?|interleaved?|iters|iterations|"
    r"kernels?|l2norm|layernorm|layer_types|layers|limits?|local|loops?|m?rope|mode|moe_k|multi_query|"
    r"multipliers?|norms?|normali[sz]e|original_max|paddings?|parallel|passes|per_tok(en)?|policy|pool\w*|"
    r"positional|positions?|prenorm|rates|renormalize|repeats|residuals?|rotary|(m|re)?scal\w*|shift|"
    r"sinusoidal|slope|soft\w*|strategy|strides?|summary|theta|threshold|topk|top_k|windows?)(_|$)|"
    r"_temperature$|^temperature_|(?<!^model)_types?$"
)
# What changes nothing where both say that it is switched off
SWITCHES = {
    "use_sliding_window": re.compile("sliding_window|max_window_layers"),
    "alibi": re.compile("alibi_"),
}
OF_A_NETWORK = re.compile(r"config$|^(de|en)coder$")  # parts of a configuration that are one themselves


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
        key: Difference(value, its, _decides(key))
        for key, value, its in _pairs(first or {}, other or {})
        if value != its
    }


def _decides(key: str) -> bool:
    """Whether the key or a part that it stands in (`rope_scaling.type`) is of what is computed."""
    *parts, last = key.split(".")
    return any(DECIDES.search(part) for part in [*(p for p in parts if not OF_A_NETWORK.search(p)), last])


def _pairs(first: Config, other: Config, within: str = "") -> Iterator[tuple[str, Any, Any]]:
    off = [word for key, word in SWITCHES.items() if first.get(key) is False and other.get(key) is False]
    for key, value in first.items():
        if key not in other or SAYS_NOTHING.search(key) or any(word.match(key) for word in off):
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
