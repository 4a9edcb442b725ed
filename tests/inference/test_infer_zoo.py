"""Networks of torchvision and transformers, where these are installed: inferred and proven.

`benchmarks/inference.py` builds them, and has many more.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from rebasin_cli.inference import infer
from rebasin_cli.networks import hub

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import inference  # noqa: E402

WORDS = {  # network: how many permutations it has, counted by hand
    "mobilenet_v3_small": 27,
    "resnext50_32x4d": 53,
    "swin_t": 52,
    "GPT-2": 9,  # a stream; in each of two layers heads, what keys share, values and hidden units
    "Llama": 9,  # rotary embeddings hold keys, but key-value heads have an order of query heads each
    "T5": 21,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WORDS)
def test_it_has_all_permutations_that_were_counted(name):
    vision = name in inference.VISION
    package = "torchvision" if vision else "transformers"
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    torch.manual_seed(0)
    network, args, kwargs, not_kept = (inference.vision if vision else inference.text)(name)
    found = infer(network.eval(), args, kwargs, not_kept=not_kept)
    assert len(found.fitted.words) == WORDS[name] and found.proof.largest_difference <= inference.LIMIT
    assert not any("refused" in frozen.why for frozen in found.reasons)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "words"),
    # one stream; a layer of windows has heads, and in each what keys share, values, what the keys of places
    # share that see all, and hidden units; one of a decoder has heads twice, keys and values, hidden units
    [("LongformerForMaskedLM", 1 + 2 * 5), ("LEDForConditionalGeneration", 1 + 2 * 5 + 7)],
)
def test_sliding_windows_have_all_permutations_that_were_counted(name, words):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    try:
        kind = getattr(transformers, name)
    except (ImportError, RuntimeError) as cause:
        pytest.skip(f"transformers cannot be imported whole: {cause}")
    torch.manual_seed(0)
    shared = {"vocab_size": 50, "attention_window": [4, 4], "pad_token_id": 0, "use_cache": False}
    own = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    own |= {"max_position_embeddings": 40}
    if name.startswith("LED"):
        own = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2}
        own |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}
        own |= {"max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32}
    config = kind.config_class(**shared, **own)
    network = kind(config).eval()
    batch = hub.batches.of_transformers(network, config)(torch.Generator().manual_seed(0))
    found = infer(network, (), batch)
    assert len(found.fitted.words) == words and found.proof.largest_difference <= inference.LIMIT
    del batch["global_attention_mask"]  # then what such places read did not run
    alone = infer(network, (), batch)
    assert any("values decide whether" in frozen.why for frozen in alone.reasons)
    assert not any(size == 16 for size in alone.fitted.sizes.values())
