"""Infer and prove networks of timm and transformers that nobody had looked at, against counts by hand.

    python benchmarks/families.py [--rows NAME,…] [--against PYTHON]

Small configurations of full structure with random weights. "by hand" is the decimal logarithm of the number
of symmetries as somebody counts them from the network's code (`HAND` says how); "before" is that of another
installation of rebasin, whose interpreter `--against` names. Seconds are of processor time on one thread, of
inference and of proof apart. Exits with 1 if a network is not proven.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from datetime import date
from typing import Any

import torch
from torch import nn

from rebasin_cli.errors import RebasinError
from rebasin_cli.inference import infer
from rebasin_cli.inference import prove as proving

HEADING = (
    "date", "network", "words", "before, log10", "log10", "by hand", "moved before", "moved", "error",
    "inference, s", "proof, s", "could move and stays",
)  # fmt: skip
Case = tuple[nn.Module, tuple, dict[str, Any], str | None]


def f(n: int) -> float:
    """log10(n!)"""
    return math.lgamma(n + 1) / math.log(10)


# ------------------------------------------------------------------------------------------- transformers

WIDTH, LAYERS, HEADS, HIDDEN, SEEN, EXPERTS = 32, 2, 4, 48, 7, 4
SIZES = {
    "vocab_size": 99, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
MIXTURE = {"num_local_experts": EXPERTS, "num_experts": EXPERTS, "num_experts_per_tok": 2}
CAUSAL = {  # row: (class before "ForCausalLM", class before "Config", its options beside SIZES)
    "Mixtral": ("Mixtral", GROUPED | MIXTURE),
    "GPT-OSS": ("GptOss", GROUPED | MIXTURE | {"layer_types": ["full_attention"] * LAYERS}),
    "OLMoE": ("Olmoe", MIXTURE | {"num_key_value_heads": 2}),
    "Qwen3-MoE": ("Qwen3Moe", GROUPED | MIXTURE | {"moe_intermediate_size": HIDDEN}),
    "PhiMoE": ("Phimoe", GROUPED | MIXTURE),
    "Qwen2": ("Qwen2", {"num_key_value_heads": 2}),
    "Qwen3": ("Qwen3", GROUPED),
    "OLMo2": ("Olmo2", {"num_key_value_heads": 2}),
    "StableLM": ("StableLm", {"num_key_value_heads": 2}),
    "StarCoder2": ("Starcoder2", {"num_key_value_heads": 2}),
    "Cohere": ("Cohere", {"num_key_value_heads": 2}),
    "GLM": ("Glm", GROUPED),
    "Granite": ("Granite", {"num_key_value_heads": 2}),
    "Nemotron": ("Nemotron", {"num_key_value_heads": 2}),
    "Falcon": ("Falcon", {}),
    "BLOOM": ("Bloom", {"n_layer": LAYERS, "n_head": HEADS}),
    "MPT": ("Mpt", {"d_model": WIDTH, "n_heads": HEADS, "n_layers": LAYERS, "max_seq_len": 64}),
    "GPT-J": ("GPTJ", {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "rotary_dim": 4}),
    "OPT": ("OPT", {"ffn_dim": HIDDEN, "word_embed_proj_dim": WIDTH}),
    "Mamba": ("Mamba", {"state_size": 4, "expand": 2, "time_step_rank": 4}),
}  # fmt: skip
MASKED = {
    "XLNet": ("XLNetLMHeadModel", "XLNetConfig", {"d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS,
                                                  "d_inner": HIDDEN, "vocab_size": 99}),
    "ELECTRA": ("ElectraForMaskedLM", "ElectraConfig", SIZES | {"embedding_size": 24}),
    "ALBERT": ("AlbertForMaskedLM", "AlbertConfig", SIZES | {"embedding_size": 24}),
    "MPNet": ("MPNetForMaskedLM", "MPNetConfig", SIZES),
    "SqueezeBERT": ("SqueezeBertForMaskedLM", "SqueezeBertConfig", SIZES | {"embedding_size": WIDTH}),
    "RoFormer": ("RoFormerForMaskedLM", "RoFormerConfig", SIZES | {"embedding_size": WIDTH}),
    "FNet": ("FNetForMaskedLM", "FNetConfig", SIZES),
}  # fmt: skip


def causal(name: str) -> Case:
    transformers = importlib.import_module("transformers")
    kind, options = CAUSAL[name]
    config = getattr(transformers, f"{kind}Config")(**SIZES | options)
    network = getattr(transformers, f"{kind}ForCausalLM")(config)
    given = {"input_ids": torch.randint(3, 99, (2, SEEN)), "use_cache": False}
    return network, (), given, "logits"


def masked(name: str) -> Case:
    transformers = importlib.import_module("transformers")
    model, configuration, options = MASKED[name]
    network = getattr(transformers, model)(getattr(transformers, configuration)(**options))
    return network, (), {"input_ids": torch.randint(3, 99, (2, SEEN))}, "logits"


def wav2vec2(_: str) -> Case:
    transformers = importlib.import_module("transformers")
    sizes = {name: value for name, value in SIZES.items() if name != "max_position_embeddings"}
    config = transformers.Wav2Vec2Config(
        **sizes, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    return transformers.Wav2Vec2ForCTC(config), (torch.randn(2, 400),), {}, "logits"


# --------------------------------------------------------------------------------------------------- timm

SMALL = {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 4}
TIMM = {  # row: (model, its options, pixels)
    "ConvNeXt V2": ("convnextv2_atto", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}, 64),
    "CaiT": ("cait_xxs24_224", SMALL | {"depth_token_only": 1}, 32),
    "XCiT": ("xcit_nano_12_p16_224", SMALL, 32),
    "DeiT III": ("deit3_small_patch16_224", SMALL, 32),
    "EVA-02": ("eva02_tiny_patch14_224", {"img_size": 28, "embed_dim": 32, "depth": 2, "num_heads": 4}, 28),
    "Visformer": ("visformer_tiny", SMALL | {"img_size": 64, "depth": (1, 1, 1)}, 64),
    "ResNeSt": ("resnest14d", {}, 64),
    "SKNet": ("skresnet18", {}, 64),
    "GhostNet": ("ghostnet_050", {}, 64),
    "HRNet": ("hrnet_w18_small", {}, 64),
    "Res2Net": ("res2net50_26w_4s", {}, 64),
    "DLA": ("dla34", {}, 64),
    "VoVNet": ("ese_vovnet19b_slim", {}, 64),
    "NFNet": ("dm_nfnet_f0", {}, 64),
    "LeViT": ("levit_128s", {}, 224),
}  # fmt: skip


def vision(name: str) -> Case:
    timm = importlib.import_module("timm")
    model, options, side = TIMM[name]
    network = timm.create_model(model, num_classes=5, **options)
    return network, (torch.randn(2, 3, side, side),), {}, None


# ------------------------------------------------------------------------------------------ counts by hand

HALF = WIDTH // HEADS  # units of a head
GATED = LAYERS * (f(2) + 2 * f(2) + 2 * f(HALF))  # 2 groups of key and value heads, 2 queries each, values
ATTENTION = LAYERS * (f(HEADS) + 2 * HEADS * f(HALF))  # heads; keys and values in an order of their own
ROUTED = LAYERS * (f(EXPERTS) + EXPERTS * f(HIDDEN))
HAND = {
    "Mixtral": f(WIDTH) + GATED + ROUTED,
    "GPT-OSS": f(WIDTH) + GATED + ROUTED,
    "OLMoE": f(WIDTH) + GATED + ROUTED,
    "Qwen3-MoE": f(WIDTH) + GATED + ROUTED,
    "PhiMoE": f(WIDTH) + GATED + ROUTED,
    "Qwen2": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "Qwen3": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "StarCoder2": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "Granite": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "StableLM": f(WIDTH) + GATED + LAYERS * (2 * f(6) + f(HIDDEN)),  # 2 of a head's 8 units turn
    "GLM": f(WIDTH) + GATED + LAYERS * (2 * f(4) + f(HIDDEN)),  # 4 of 8
    "Nemotron": f(WIDTH) + GATED + LAYERS * (2 * f(4) + f(HIDDEN)),
    "OLMo2": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "Falcon": f(WIDTH) + LAYERS * (f(HEADS) + f(HALF) + f(4 * WIDTH)),  # one key and value for all heads
    "BLOOM": f(WIDTH) + LAYERS * (2 * HEADS * f(HALF) + f(4 * WIDTH)),  # each head has a slope of its own
    "MPT": f(WIDTH) + LAYERS * (2 * HEADS * f(HALF) + f(4 * WIDTH)),
    "GPT-J": f(WIDTH) + LAYERS * (f(HEADS) + HEADS * (f(HALF) + f(4)) + f(4 * WIDTH)),  # 4 of 8 turn
    "OPT": f(WIDTH) + ATTENTION + LAYERS * f(HIDDEN),
    "XLNet": f(WIDTH) + ATTENTION + LAYERS * f(HIDDEN),
    "ELECTRA": f(WIDTH) + f(24) + ATTENTION + LAYERS * f(HIDDEN),
    "ALBERT": f(WIDTH) + f(24) + (ATTENTION + LAYERS * f(HIDDEN)) / LAYERS,  # one layer, used twice
    "MPNet": f(WIDTH) + f(HEADS) + LAYERS * 2 * HEADS * f(HALF) + LAYERS * f(HIDDEN),
    "wav2vec2": 2 * f(16) + f(4) + 4 * f(8) + ATTENTION + LAYERS * f(HIDDEN),
    "DeiT III": f(WIDTH) + ATTENTION + LAYERS * f(4 * WIDTH),
}


# ------------------------------------------------------------------------------------------------- figures

MAKERS: dict[str, Callable[[str], Case]] = {
    **dict.fromkeys(CAUSAL, causal), **dict.fromkeys(MASKED, masked), "wav2vec2": wav2vec2,
    **dict.fromkeys(TIMM, vision),
}  # fmt: skip


def figures(name: str) -> dict[str, Any]:
    """What is known of one network; `why` where there is nothing."""
    torch.manual_seed(0)
    try:
        network, args, kwargs, output = MAKERS[name](name)
        network.eval()
        began = time.process_time()
        found = infer(network, args, kwargs, output=output, prove=False)
        told = {
            "words": len(found.fitted.words),
            "log10": found.fitted.log10_symmetries(),
            "moved": found.fitted.moved_share(),
            "inference": time.process_time() - began,
            "missed": [one.told.partition(" (")[0] for one in getattr(found, "missed", ())],
        }
    except Exception as cause:  # of packages, too
        return {"why": f"{type(cause).__name__}: {str(cause).partition(chr(10))[0][:90]}"}
    began = time.process_time()
    try:
        proof = proving.prove(network, found.fitted, kwargs or args, output=output)
        told |= {"error": f"{proof.largest_difference:.0e} ({proof.precision})"}
    except RebasinError as cause:
        told |= {"error": f"not proven: {cause.message}", "refused": True}
    return told | {"proof": time.process_time() - began}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", metavar="NAME,…", default=",".join(MAKERS))
    parser.add_argument("--against", metavar="PYTHON", help="an interpreter with another rebasin")
    parser.add_argument("--json", action="store_true", help="figures alone, one network a line")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError):  # an older rebasin may lack what the other benchmark asks for
        importlib.import_module("inference").torchvision()
    rows, refused = options.rows.split(","), []
    if not options.json:
        print(f"| {' | '.join(HEADING)} |\n|{'---|' * len(HEADING)}", flush=True)
    for name in rows:
        told = figures(name)
        if options.json:
            print(json.dumps(told), flush=True)
            continue
        refused += [name] if told.get("refused") else []
        print(row(name, told, _before(options.against, name)), flush=True)
    sys.exit(f"not proven: {', '.join(refused)}" if refused else 0)


def _before(python: str | None, name: str) -> dict[str, Any]:
    if python is None:
        return {}
    command = [*python.split(), __file__, "--json", "--rows", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}


def row(name: str, told: dict[str, Any], before: dict[str, Any]) -> str:
    if "why" in told:
        return f"| {date.today()} | {name} | {told['why']} |"
    hand = HAND.get(name)
    cells = (
        date.today(), name, told["words"],
        f"{before['log10']:.1f}" if "log10" in before else before.get("why", ""),
        f"{told['log10']:.1f}",
        "" if hand is None else f"{hand:.1f}",
        f"{before['moved']:.1%}" if "moved" in before else "",
        f"{told['moved']:.1%}",
        told["error"],
        f"{told['inference']:.1f}",
        f"{told['proof']:.1f}",
        "; ".join(dict.fromkeys(told["missed"])),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
