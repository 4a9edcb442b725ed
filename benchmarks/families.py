"""Infer and prove networks that nobody had looked at, most of timm and transformers, against counts by hand.

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
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import torch
from _fresh_structures import FRESH
from _odd_structures import ODD
from _structures import STRUCTURES
from packages import torchvision
from torch import nn
from torch.nn.utils import prune

from rebasin_cli.errors import RebasinError
from rebasin_cli.inference import infer
from rebasin_cli.proof import prove as proving

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
FULL = {"layer_types": ["full_attention"] * LAYERS}
LATENT = {  # attention whose keys and values are compressed
    "n_routed_experts": EXPERTS, "topk_group": 1, "moe_intermediate_size": HIDDEN, "kv_lora_rank": 12,
    "q_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
CAUSAL = {  # row: (class before "ForCausalLM", class before "Config", its options beside SIZES)
    "Mixtral": ("Mixtral", GROUPED | MIXTURE),
    "GPT-OSS": ("GptOss", GROUPED | MIXTURE | FULL),
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
    "Gemma 2": ("Gemma2", GROUPED | FULL),
    "Phi-3": ("Phi3", {"num_key_value_heads": 2}),
    "OLMo": ("Olmo", {"num_key_value_heads": 2}),
    "Cohere 2": ("Cohere2", {"num_key_value_heads": 2} | FULL),
    "SmolLM3": ("SmolLM3", {"num_key_value_heads": 2}),
    "Arcee": ("Arcee", GROUPED),
    "Helium": ("Helium", GROUPED),
    "GLM-4": ("Glm4", GROUPED),
    "Seed-OSS": ("SeedOss", GROUPED),
    "Apertus": ("Apertus", {"num_key_value_heads": 2}),
    "ERNIE 4.5": ("Ernie4_5", GROUPED),
    "EXAONE 4": ("Exaone4", {"num_key_value_heads": 2, "sliding_window": None} | FULL),
    "GPT-Neo": ("GPTNeo", {"num_layers": LAYERS, "num_heads": HEADS,
                           "attention_types": [[["global"], LAYERS]]}),
    "CodeGen": ("CodeGen", {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "rotary_dim": 4}),
    "Persimmon": ("Persimmon", {}),
    "BioGPT": ("BioGpt", {}),
    "Llama": ("Llama", GROUPED),
    "Mistral": ("Mistral", GROUPED),
    "GPT-NeoX": ("GPTNeoX", {}),
    "GPT-BigCode": ("GPTBigCode", {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_inner": HIDDEN,
                                   "n_positions": 64}),
    "Phi": ("Phi", {}),
    "XGLM": ("XGLM", {"d_model": WIDTH, "num_layers": LAYERS, "attention_heads": HEADS, "ffn_dim": HIDDEN}),
    "OLMo3": ("Olmo3", {"num_key_value_heads": 2} | FULL),
    "BitNet": ("BitNet", {"num_key_value_heads": 2}),
    "Doge": ("Doge", {"num_key_value_heads": 2}),
    "NanoChat": ("NanoChat", {"num_key_value_heads": 2}),
    "HunYuan": ("HunYuanDenseV1", GROUPED),
    "DiffLlama": ("DiffLlama", {"num_key_value_heads": 2, "head_dim": 8}),
    "GraniteMoE": ("GraniteMoe", MIXTURE | {"num_key_value_heads": 2}),
    "JetMoE": ("JetMoe", MIXTURE | {"num_key_value_heads": 2, "kv_channels": 8}),
    "Qwen2-MoE": ("Qwen2Moe", MIXTURE | {"num_key_value_heads": 2, "moe_intermediate_size": HIDDEN,
                                         "shared_expert_intermediate_size": HIDDEN}),
    "GLM-4 MoE": ("Glm4Moe", GROUPED | MIXTURE | {"n_routed_experts": EXPERTS, "n_group": 1, "topk_group": 1,
                                                  "moe_intermediate_size": HIDDEN,
                                                  "first_k_dense_replace": 1}),
    "ERNIE 4.5 MoE": ("Ernie4_5_Moe", GROUPED | {"moe_intermediate_size": HIDDEN, "moe_k": 2,
                                                 "moe_num_experts": EXPERTS, "moe_layer_start_index": 1}),
    "DeepSeek V2": ("DeepseekV2", MIXTURE | LATENT | {"n_group": 1}),
    "DeepSeek V3": ("DeepseekV3", MIXTURE | LATENT | {"n_group": 2, "head_dim": 4}),
    "MiniMax": ("MiniMax", GROUPED | MIXTURE | {"layer_types": ["linear_attention", "full_attention"],
                                                "block_size": 8}),
    "Jamba": ("Jamba", MIXTURE | {"num_key_value_heads": 2, "mamba_d_state": 4, "mamba_dt_rank": 4,
                                  "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
                                  "expert_layer_offset": 1}),
    "Bamba": ("Bamba", {"num_key_value_heads": 2, "mamba_d_state": 4, "mamba_n_heads": 8, "mamba_d_head": 8,
                        "mamba_n_groups": 1, "mamba_chunk_size": 8, "attn_layer_indices": [1]}),
    "Mamba 2": ("Mamba2", {"state_size": 4, "expand": 2, "num_heads": 8, "head_dim": 8, "n_groups": 2,
                           "chunk_size": 8}),
    "Falcon Mamba": ("FalconMamba", {"state_size": 4, "expand": 2, "time_step_rank": 4}),
    "RecurrentGemma": ("RecurrentGemma", {"lru_width": WIDTH, "attention_window_size": 16, "head_dim": 8,
                                          "num_key_value_heads": 1,
                                          "block_types": ("recurrent", "attention")}),
    "RWKV": ("Rwkv", {"attention_hidden_size": WIDTH, "context_length": 64}),
    "LFM2": ("Lfm2", {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]}),
    "Qwen3-Next": ("Qwen3Next", GROUPED | MIXTURE | {
        "moe_intermediate_size": HIDDEN, "shared_expert_intermediate_size": HIDDEN,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
    }),
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
    "RemBERT": ("RemBertForMaskedLM", "RemBertConfig", SIZES | {"input_embedding_size": 24,
                                                                "output_embedding_size": 40}),
    "DeBERTa v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", SIZES),
    "ESM": ("EsmForMaskedLM", "EsmConfig", SIZES | {"position_embedding_type": "absolute"}),
    "Nyströmformer": ("NystromformerForMaskedLM", "NystromformerConfig", SIZES | {
        "num_landmarks": 64, "segment_means_seq_len": 64}),
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
    "EfficientFormer": ("efficientformer_l1", {}, 224),
    "PoolFormer": ("poolformer_s12", {}, 64),
    "RepVGG": ("repvgg_a0", {}, 64),
    "MobileOne": ("mobileone_s0", {}, 64),
    "EdgeNeXt": ("edgenext_xx_small", {}, 64),
    "PVT v2": ("pvt_v2_b0", {}, 64),
    "Twins": ("twins_svt_small", {"img_size": 64}, 64),
    "InceptionNeXt": ("inception_next_atto", {}, 64),
    "StarNet": ("starnet_s1", {}, 64),
    "HGNet": ("hgnetv2_b0", {}, 64),
}  # fmt: skip


def vision(name: str) -> Case:
    timm = importlib.import_module("timm")
    model, options, side = TIMM[name]
    network = timm.create_model(model, num_classes=5, **options)
    return network, (torch.randn(2, 3, side, side),), {}, None


# ------------------------------------------------------------------------- of no package: written down here


class Operator(nn.Module):
    """A Fourier neural operator: in each layer complex weights on a few frequencies, beside a convolution."""

    def __init__(self, channels: int = 16, modes: int = 3) -> None:
        super().__init__()
        self.lift, self.modes = nn.Conv1d(2, channels, 1), modes
        shape = channels, channels, modes
        self.spectral = nn.ParameterList(torch.randn(shape, dtype=torch.cfloat) for _ in range(LAYERS))
        self.skips = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(LAYERS))
        self.hidden, self.head = nn.Conv1d(channels, HIDDEN, 1), nn.Conv1d(HIDDEN, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lift(x)
        for weight, skip in zip(self.spectral, self.skips, strict=True):
            low = torch.fft.rfft(x)[..., : self.modes]
            mixed = torch.fft.irfft(torch.einsum("bix,iox->box", low, weight), n=x.shape[-1])
            x = nn.functional.gelu(mixed + skip(x))
        return self.head(nn.functional.gelu(self.hidden(x)))


class Flow(nn.Module):
    """Couplings of a normalising flow: each changes the half that the one before looked at."""

    def __init__(self, half: int = 3, count: int = 4) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(half, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2 * half))
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=-1)
        for net in self.nets:
            scale, shift = net(a).chunk(2, dim=-1)
            a, b = b * scale.tanh().exp() + shift, a
        return torch.cat([a, b], dim=-1)


class Standardised(nn.Conv2d):
    """Kernels standardised by the statistics of a norm in training, as NFNets do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.weight.reshape(1, self.out_channels, -1)
        kernel = nn.functional.batch_norm(rows, None, None, training=True, momentum=0.0)
        return self._conv_forward(x, kernel.view_as(self.weight), self.bias)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden, self.head = (
            nn.EmbeddingBag(99, WIDTH),
            nn.Linear(WIDTH, HIDDEN),
            nn.Linear(HIDDEN, 5),
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.words(words)).relu())


class Experts(nn.Module):
    """Experts that are modules of a list, weighed by a router: they could change places with its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 5)) for _ in range(EXPERTS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.router(x).softmax(-1)
        return sum(shares[:, k : k + 1] * expert(x) for k, expert in enumerate(self.experts))


class Picked(Experts):
    """The same with a router that takes the best two for each input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, which = self.router(x).softmax(-1).topk(2)
        shares = torch.zeros(len(x), EXPERTS, dtype=x.dtype).scatter(1, which, best)
        return sum(shares[:, k : k + 1] * expert(x) for k, expert in enumerate(self.experts))


def by_hooks() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = nn.utils.weight_norm(nn.Linear(WIDTH, HIDDEN))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(HIDDEN, 5))


def pruned() -> nn.Module:
    first = prune.random_unstructured(nn.Linear(WIDTH, HIDDEN), "weight", 0.5)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(HIDDEN, 5))


def standardised() -> nn.Module:
    grouped = Standardised(16, 24, 3, padding=1, groups=4)
    return nn.Sequential(
        Standardised(3, 16, 3, padding=1), nn.ReLU(), grouped, nn.ReLU(), nn.Conv2d(24, 5, 8), nn.Flatten()
    )


def shuffled() -> nn.Module:
    """Groups of 4, shuffled as 2, read in groups of 6: neither divides the other."""
    first, second = nn.Conv2d(3, 24, 1, groups=1), nn.Conv2d(24, 24, 1, groups=4)
    return nn.Sequential(
        first, nn.ReLU(), second, nn.ChannelShuffle(2), nn.ReLU(), nn.Conv2d(24, 24, 1, groups=6), nn.ReLU(),
        nn.Conv2d(24, 5, 8), nn.Flatten(),
    )  # fmt: skip


PICTURES = (2, 3, 8, 8)
OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "Fourier operator": (Operator, lambda: torch.randn(2, 2, 12)),
    "flow of couplings": (Flow, lambda: torch.randn(2, 6)),
    "weight norm by hooks": (by_hooks, lambda: torch.randn(2, WIDTH)),
    "pruned": (pruned, lambda: torch.randn(2, WIDTH)),
    "standardised kernels": (standardised, lambda: torch.randn(PICTURES)),
    "EmbeddingBag": (Bag, lambda: torch.randint(99, (2, SEEN))),
    "experts in a list": (Experts, lambda: torch.randn(2, WIDTH)),
    "picked experts in a list": (Picked, lambda: torch.randn(2, WIDTH)),
    "shuffled groups of 4 and 6": (shuffled, lambda: torch.randn(PICTURES)),
    **{name: (one.make, one.inputs) for name, one in (STRUCTURES | ODD | FRESH).items()},
}


def own(name: str) -> Case:
    make, inputs = OWN[name]
    given = inputs()
    return make(), given if isinstance(given, tuple) else (given,), {}, None


# ------------------------------------------------------------------------------------------ counts by hand

HALF = WIDTH // HEADS  # units of a head
GATED = LAYERS * (f(2) + 2 * f(2) + 2 * f(HALF))  # 2 groups of key and value heads, 2 queries each, values
ATTENTION = LAYERS * (f(HEADS) + 2 * HEADS * f(HALF))  # heads; keys and values in an order of their own
ROUTED = LAYERS * (f(EXPERTS) + EXPERTS * f(HIDDEN))
TURNED = f(WIDTH) + GATED + LAYERS * f(HIDDEN)  # all units of queries and keys turn by their positions
HAND = {
    **dict.fromkeys(("Gemma 2", "Phi-3", "OLMo", "SmolLM3", "Arcee", "Seed-OSS"), TURNED),
    **dict.fromkeys(("Apertus", "ERNIE 4.5", "EXAONE 4", "Helium"), TURNED),
    "Cohere 2": TURNED + LAYERS * 2 * f(HALF),  # layers that see everything turn nothing
    "GLM-4": f(WIDTH) + GATED + LAYERS * (2 * f(4) + f(HIDDEN)),  # 4 of 8 turn
    "GPT-Neo": f(WIDTH) + ATTENTION + LAYERS * f(HIDDEN),
    "CodeGen": f(WIDTH) + LAYERS * (f(HEADS) + HEADS * (f(HALF) + f(4)) + f(4 * WIDTH)),
    "BioGPT": f(WIDTH) + ATTENTION + LAYERS * f(HIDDEN),
    "RemBERT": f(WIDTH) + f(24) + f(40) + ATTENTION + LAYERS * f(HIDDEN),
    "ESM": f(WIDTH) + ATTENTION + LAYERS * f(HIDDEN),
    "Fourier operator": 3 * f(16) + f(HIDDEN),
    "flow of couplings": 4 * f(HIDDEN),
    "weight norm by hooks": f(HIDDEN),
    "pruned": f(HIDDEN),
    "standardised kernels": f(4) + 4 * f(4) + 4 * f(6),  # what a group reads, and what it writes
    "EmbeddingBag": f(WIDTH) + f(HIDDEN),
    "experts in a list": f(EXPERTS) + EXPERTS * f(HIDDEN),
    "picked experts in a list": f(EXPERTS) + EXPERTS * f(HIDDEN),
    **{name: one.digits for name, one in (STRUCTURES | ODD | FRESH).items()},
    "Llama": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "Mistral": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "HunYuan": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "OLMo3": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "BitNet": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "NanoChat": f(WIDTH) + GATED + LAYERS * f(HIDDEN),
    "GraniteMoE": f(WIDTH) + GATED + ROUTED,
    "Qwen2-MoE": f(WIDTH) + GATED + ROUTED + LAYERS * f(HIDDEN),  # and an expert that all share
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
    **dict.fromkeys(TIMM, vision), **dict.fromkeys(OWN, own),
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
    except Exception as cause:  # of another version
        told |= {"error": type(cause).__name__, "refused": True}
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
    with contextlib.suppress(ImportError):  # timm and transformers import it where it is installed
        torchvision()
    rows, refused = options.rows.split(","), []
    before = _before(options.against, options.rows)
    if not options.json:
        print(f"| {' | '.join(HEADING)} |\n|{'---|' * len(HEADING)}", flush=True)
    for name in rows:
        told = figures(name)
        if options.json:
            print(json.dumps(told), flush=True)
            continue
        refused += [name] if told.get("refused") else []
        print(row(name, told, next(before, {})), flush=True)
    sys.exit(f"not proven: {', '.join(refused)}" if refused else 0)


def _before(python: str | None, rows: str) -> Iterator[dict[str, Any]]:
    """The figures of another installation, row by row, from one process of its own."""
    if python is not None:
        command = [*python.split(), __file__, "--json", "--rows", rows]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            yield from map(json.loads, process.stdout)


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
