"""Networks of torchvision and transformers, where these are installed: inferred and proven.

`benchmarks/inference.py` builds them, and has many more.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from rebasin_cli.inference import infer

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
    network, args, kwargs, output = (inference.vision if vision else inference.text)(name)
    found = infer(network.eval(), args, kwargs, output=output)
    assert len(found.fitted.words) == WORDS[name] and found.proof.largest_difference <= inference.LIMIT
    assert not any("refused" in frozen.why for frozen in found.reasons)
