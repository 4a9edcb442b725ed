"""Folders as hubs hold them, each by its own name: aligned, merged, and read back by the package of each.

    python benchmarks/hub.py [--rows NAME;…] [--kept FILE] [--again] [--before TREE]

Folders are made with the real packages, of small configurations of full structure with random weights, two
seeds each, and `rebasin align A/ B/ -o OUT/` and `rebasin merge A/ B/ -o OUT/` run on the folders alone.
"seconds" and "memory" are those of the command `align` with nothing kept, in a process of its own that has
imported the packages (which takes the seconds that the last line tells): processor time on one thread, and
the largest resident size. "words" and "digits" are the words of the spec and the decimal logarithm of the
number of its symmetries. "aligned": how far the outputs of the aligned folder, loaded by `from_pretrained`,
are from those of the folder that it was made of, relative to the largest of them; "merged": how far the
weights of the merged folder, loaded so, are from the mean of A and the aligned B; "outputs": how far its
outputs are from those of a network that was given this mean. Outputs are those that are
the network's function, without caches and other records of its inside; of a weight that a network makes of
several tensors, as weight norm does, the mean is that of the weight. "before" is how the same command ends in
the program of another tree: its exit code and the first line that it says.

Rows with "file" are of `torch.save` and `torch.load`; of adapters the command is `merge --method none`, and
"outputs" compares with the base to which the mean of what each adapter adds was added.

Rows with "as large as it is" take the configuration of a network that people use, and shapes without
values: the spec of its twins is fitted to them, and nothing is written.

Every row is a process of its own; what was found is kept in a file, so that a run that was stopped goes on.
Exits with 1 if a row has no figures.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from packages import torchvision

from rebasin_cli.__main__ import main as run
from rebasin_cli.networks import hub
from rebasin_cli.networks.returned import Kept
from rebasin_cli.session.twins import spec_of
from rebasin_cli.spec.fits import fit

HEADING = (
    *("date", "what", "command", "before", "seconds", "memory, MB", "words", "digits", "after"),
    *("aligned", "merged", "outputs"),
)

TEXT = {
    "vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = TEXT | {"num_key_value_heads": 2}
GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
SIDE = 32
VISION = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "image_size": SIDE, "patch_size": 8,
}  # fmt: skip
T5 = {"d_model": 48, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
BART = {
    "vocab_size": 50, "d_model": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
SOUND = {
    "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
MIXTURE = GROUPED | {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {  # row: class of transformers, its configuration
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Llama, tied": ("LlamaForCausalLM", GROUPED | {"tie_word_embeddings": True}),
    "Mistral": ("MistralForCausalLM", GROUPED),
    "Qwen2": ("Qwen2ForCausalLM", GROUPED),
    "Qwen3": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 16}),
    "Phi-3": ("Phi3ForCausalLM", GROUPED),
    "Gemma 2": ("Gemma2ForCausalLM", GROUPED | {"head_dim": 16}),
    "OLMo2": ("Olmo2ForCausalLM", GROUPED),
    "GPT-2": ("GPT2LMHeadModel", GPT2),
    "GPT-NeoX": ("GPTNeoXForCausalLM", TEXT),
    "GPT-J": ("GPTJForCausalLM", GPT2 | {"rotary_dim": 4}),
    "OPT": ("OPTForCausalLM", TEXT | {"ffn_dim": 40, "word_embed_proj_dim": 48}),
    "BLOOM": ("BloomForCausalLM", TEXT | {"n_layer": 2, "n_head": 4}),
    "Falcon": ("FalconForCausalLM", TEXT),
    "Mixtral": ("MixtralForCausalLM", MIXTURE),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", MIXTURE | {"moe_intermediate_size": 40, "head_dim": 12}),
    "Mamba": ("MambaForCausalLM", TEXT | {"state_size": 4, "expand": 2, "time_step_rank": 4}),
    "BERT": ("BertForMaskedLM", TEXT),
    "BERT, classifier": ("BertForSequenceClassification", TEXT | {"num_labels": 3}),
    "RoBERTa": ("RobertaForMaskedLM", TEXT),
    "DistilBERT": ("DistilBertForSequenceClassification", {
        "vocab_size": 50, "dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "pad_token_id": 0}),
    "ELECTRA": ("ElectraForMaskedLM", TEXT | {"embedding_size": 24}),
    "ALBERT": ("AlbertForMaskedLM", TEXT | {"embedding_size": 24}),
    "DeBERTa v2": ("DebertaV2ForSequenceClassification", TEXT),
    "T5": ("T5ForConditionalGeneration", T5 | {"decoder_start_token_id": 0}),
    "BART": ("BartForConditionalGeneration", BART),
    "Whisper": ("WhisperForConditionalGeneration", BART | {
        "num_mel_bins": 20, "max_source_positions": 30, "max_target_positions": 32}),
    "wav2vec 2.0": ("Wav2Vec2ForCTC", TEXT | SOUND),
    "ViT": ("ViTForImageClassification", VISION),
    "DeiT": ("DeiTForImageClassification", VISION),
    "DINOv2": ("Dinov2ForImageClassification", VISION),
    "Swin": ("SwinForImageClassification", {
        "image_size": 64, "patch_size": 2, "embed_dim": 24, "depths": [1, 2], "num_heads": [2, 4],
        "window_size": 4}),
    "Swinv2": ("Swinv2ForImageClassification", {
        "image_size": 64, "patch_size": 2, "embed_dim": 24, "depths": [1, 2], "num_heads": [2, 4],
        "window_size": 4}),
    "ConvNeXt": ("ConvNextForImageClassification", {
        "hidden_sizes": [12, 16, 24, 32], "depths": [1, 1, 2, 1], "image_size": SIDE}),
    "ResNet": ("ResNetForImageClassification", {
        "embedding_size": 8, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 2, 1, 1]}),
    "SegFormer": ("SegformerForImageClassification", {
        "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4],
        "image_size": 64}),
    "CLIP": ("CLIPModel", {
        "text_config": TEXT | {"projection_dim": 24}, "vision_config": VISION | {"projection_dim": 24},
        "projection_dim": 24}),
    "Gemma": ("GemmaForCausalLM", GROUPED | {"head_dim": 16}),
    "Phi": ("PhiForCausalLM", GROUPED),
    "StableLM": ("StableLmForCausalLM", GROUPED | {"partial_rotary_factor": 0.5}),
    "Starcoder2": ("Starcoder2ForCausalLM", GROUPED),
    "Cohere": ("CohereForCausalLM", GROUPED),
    "Granite": ("GraniteForCausalLM", GROUPED),
    "MPT": ("MptForCausalLM", {"d_model": 48, "n_heads": 4, "n_layers": 2, "vocab_size": 50}),
    "XLM-RoBERTa": ("XLMRobertaForMaskedLM", TEXT),
    "MPNet": ("MPNetForMaskedLM", TEXT),
    "Pegasus": ("PegasusForConditionalGeneration", BART),
    "HuBERT": ("HubertForCTC", TEXT | SOUND),
    "BEiT": ("BeitForImageClassification", VISION),
    "MobileNet v1": ("MobileNetV1ForImageClassification", {"image_size": SIDE, "depth_multiplier": 0.25}),
    "MobileNet v2": ("MobileNetV2ForImageClassification", {"image_size": SIDE, "depth_multiplier": 0.35}),
    "EfficientNet": ("EfficientNetForImageClassification", {
        "image_size": SIDE, "width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320}),
    "RegNet": ("RegNetForImageClassification", {
        "embedding_size": 8, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1], "groups_width": 8}),
    "PoolFormer": ("PoolFormerForImageClassification", {
        "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}),
    "SigLIP": ("SiglipModel", {"text_config": TEXT | {"projection_size": 48}, "vision_config": VISION}),
}  # fmt: skip
TIMM = {  # row: its name, its options
    "timm, ResNet": ("resnet18", {"num_classes": 10}),
    "timm, ConvNeXt": ("convnext_atto", {"num_classes": 10}),
    "timm, MobileNet v3": ("mobilenetv3_small_050", {"num_classes": 10}),
    "timm, EfficientNet": ("efficientnet_lite0", {"num_classes": 10}),
    "timm, DenseNet": ("densenet121", {"num_classes": 10}),
    "timm, ViT": ("vit_tiny_patch16_224", {"num_classes": 10}),
    "timm, RegNet": ("regnetx_002", {"num_classes": 10}),
    "timm, MLP-Mixer": ("mixer_s32_224", {"num_classes": 10}),
}
DIFFUSERS = {
    "diffusers, UNet": ("UNet2DModel", {
        "sample_size": 16, "block_out_channels": [16, 32], "layers_per_block": 1, "norm_num_groups": 8,
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]}),
    "diffusers, VAE": ("AutoencoderKL", {
        "block_out_channels": [16, 32], "norm_num_groups": 8, "latent_channels": 4,
        "down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}),
}  # fmt: skip
IMAGE = (2, 3, 64, 64)
# row: its network, the shape of a batch, options of the command
FILES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], list[str]]] = {
    "MLP of numbers, file": (lambda: dense(), (4, 784), []),
    "MLP of own names, file": (lambda: Dense(), (4, 20), []),
    "CNN of own names, norms, file": (lambda: Convolutions(), IMAGE, []),
    "torchvision, MobileNet v2, file": (lambda: of_torchvision("mobilenet_v2"), IMAGE, []),
    "torchvision, DenseNet, file": (lambda: of_torchvision("densenet121"), IMAGE, []),
    "torchvision, EfficientNet, file": (lambda: of_torchvision("efficientnet_b0"), IMAGE, []),
    "torchvision, ResNeXt, file": (lambda: of_torchvision("resnext50_32x4d"), IMAGE, []),
    "torchvision, Swin, file": (lambda: of_torchvision("swin_t"), IMAGE, []),
    "torchvision, ShuffleNet, file": (
        lambda: of_torchvision("shufflenet_v2_x0_5"), IMAGE, ["--net", "torchvision:shufflenet_v2_x0_5"]),
    "torchvision, MNASNet, file": (
        lambda: of_torchvision("mnasnet0_5"), IMAGE, ["--net", "torchvision:mnasnet0_5"]),
}  # fmt: skip
ADAPTERS = {"peft, LoRA of Llama": {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 4}}
LLAMA = {"vocab_size": 128256, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3.2 1B": ("LlamaForCausalLM", LLAMA | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "head_dim": 64, "tie_word_embeddings": True}),
    "Llama 2 7B": ("LlamaForCausalLM", {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}),
    "Mistral 7B": ("MistralForCausalLM", {}),
    "Qwen3 0.6B": ("Qwen3ForCausalLM", {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True, "vocab_size": 151936}),
    "BERT base": ("BertForMaskedLM", {}),
    "RoBERTa base": ("RobertaForMaskedLM", {
        "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "GPT-2 small": ("GPT2LMHeadModel", {}),
    "ViT-B/16": ("ViTForImageClassification", {}),
    "DINOv2-B": ("Dinov2Model", {"image_size": 518, "patch_size": 14}),
    "Swinv2-T": ("Swinv2ForImageClassification", {
        "image_size": 256, "embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24],
        "window_size": 8, "num_labels": 1000}),
    "T5-small": ("T5ForConditionalGeneration", {"decoder_start_token_id": 0}),
    "ResNet-50": ("ResNetForImageClassification", {"num_labels": 1000}),
}  # fmt: skip
ROWS = [*SMALL, *TIMM, *DIFFUSERS, *FILES, *ADAPTERS, *LARGE]


def dense() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(784, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    )


class Dense(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layer = torch.nn.Linear(20, 48)
        self.norm = torch.nn.LayerNorm(48)
        self.hidden_layer = torch.nn.Linear(48, 32)
        self.output_layer = torch.nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.input_layer(x)))
        return self.output_layer(torch.relu(self.hidden_layer(x)))


class Convolutions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_a = torch.nn.Conv2d(3, 16, 3)
        self.bn_a = torch.nn.BatchNorm2d(16)
        self.conv_b = torch.nn.Conv2d(16, 24, 3)
        self.bn_b = torch.nn.BatchNorm2d(24)
        self.fc_a = torch.nn.Linear(24 * 16, 40)
        self.fc_b = torch.nn.Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn_b(self.conv_b(torch.relu(self.bn_a(self.conv_a(x))))))
        x = torch.nn.functional.adaptive_avg_pool2d(x, 4).flatten(1)
        return self.fc_b(torch.relu(self.fc_a(x)))


def of_torchvision(name: str) -> torch.nn.Module:
    torchvision()
    return importlib.import_module("torchvision.models").get_model(name, num_classes=10)


# ------------------------------------------------------------------------------------------------ folders


def drawn(network: torch.nn.Module) -> torch.nn.Module:
    """Fresh norms, biases and statistics would hide an order that is wrong."""
    with torch.no_grad():
        for tensor in network.parameters():
            tensor.add_(torch.randn_like(tensor) * 0.1)
        for name, tensor in network.named_buffers():
            if name.endswith("running_mean"):
                tensor.add_(torch.randn_like(tensor) * 0.1)
            elif name.endswith("running_var"):
                tensor.add_(torch.rand_like(tensor))
    return network.eval()


def made(row: str, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    if row in TIMM:
        name, options = TIMM[row]
        return drawn(importlib.import_module("timm").create_model(name, pretrained=False, **options))
    if row in DIFFUSERS:
        name, options = DIFFUSERS[row]
        return drawn(getattr(importlib.import_module("diffusers"), name)(**options))
    if row in FILES:
        return drawn(FILES[row][0]())
    return drawn(transformer(*SMALL[row]))


def transformer(name: str, options: dict[str, Any]) -> torch.nn.Module:
    kind = getattr(importlib.import_module("transformers"), name)
    return kind(kind.config_class(**options))


def save(network: torch.nn.Module, folder: Path, row: str) -> None:
    if row in FILES:
        torch.save(network.state_dict(), folder)
        return
    folder.mkdir()
    if row in TIMM:
        hub = importlib.import_module("timm.models._hub")
        hub.save_for_hf(network, folder, safe_serialization=True)
        (folder / "pytorch_model.bin").unlink(missing_ok=True)
    else:
        network.save_pretrained(folder)


def load(folder: Path, row: str, kind: type) -> torch.nn.Module:
    if row in FILES:
        network = made(row, 0)
        network.load_state_dict(torch.load(folder, weights_only=True))
        return network
    if row in TIMM:
        timm = importlib.import_module("timm")
        return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return kind.from_pretrained(folder).eval()


def outputs(network: torch.nn.Module, row: str, folder: Path) -> list[torch.Tensor]:
    """What of all that it returns for a batch by its own configuration is its function."""
    draws = torch.Generator().manual_seed(0)
    if row in FILES:
        batch: Any = torch.randn(FILES[row][1], generator=draws)
    else:
        name = hub.of_folder(folder)
        assert name is not None
        batch = hub.build(name).example_batch(draws)
    with torch.no_grad():
        found = network(**batch) if isinstance(batch, dict) else network(batch)
    return [one for one in Kept().of(found).tensors if one.is_floating_point()]


def weights(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Its tensors; in place of those that a weight is made of, the weight."""
    found = dict(network.state_dict())
    for name, module in network.named_modules():
        for own in getattr(module, "parametrizations", {}):
            parts = f"{name}.parametrizations.{own}."
            found = {key: tensor for key, tensor in found.items() if not key.startswith(parts)}
            found[f"{name}.{own}"] = getattr(module, own).detach()
    return found


# ------------------------------------------------------------------------------------------------ figures


def command(work: Path, *words: str) -> dict[str, Any]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(work):
        try:
            run(list(words))
        except SystemExit as stop:
            code = int(stop.code or 0)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def small(row: str, work: Path, before: Path | None) -> dict[str, Any]:
    networks = [made(row, seed) for seed in range(2)]
    end, options = (".pt", FILES[row][2]) if row in FILES else ("/", [])
    a, b, aligned, merged = ((work / f"{name}{end}") for name in ("a", "b", "aligned", "merged"))
    for network, at in zip(networks, (a, b), strict=True):
        save(network, at, row)
    words = ["align", f"a{end}", f"b{end}", *options, "-o", f"aligned{end}"]
    found = apart(ran, words, work) | earlier(words, before, work)
    if "why" in found:
        return found
    loaded = load(aligned, row, type(networks[1]))
    pairs = zip(outputs(networks[1], row, a), outputs(loaded, row, a), strict=True)
    found["aligned"] = max(apart_by(x, y) for x, y in pairs)
    merge = ["merge", f"a{end}", f"b{end}", *options, "--repair", "none", "-o", f"merged{end}"]
    told = command(work, *merge, *([] if row in FILES else ["--copy-files"]))
    if told["code"]:
        return found | {"why": f"merge: {told['err'].strip()}"}
    written, (one, other) = load(merged, row, type(networks[1])), (weights(networks[0]), weights(loaded))
    mean = {name: (t + other[name]) / 2 for name, t in one.items() if t.is_floating_point()}
    found["merged"] = max(float((t - mean[n]).abs().max()) for n, t in weights(written).items() if n in mean)
    give(loaded, mean)
    pairs = zip(outputs(loaded, row, a), outputs(written, row, a), strict=True)
    return found | {"outputs": max(apart_by(x, y) for x, y in pairs)}


def adapters(row: str, work: Path, before: Path | None) -> dict[str, Any]:
    """Two adapters of one base: the merged one adds the mean of what they add."""
    peft: Any = importlib.import_module("peft")

    def base() -> torch.nn.Module:
        return made("Llama", 0)

    for seed, name in enumerate("ab"):
        torch.manual_seed(seed + 1)
        config = peft.LoraConfig(init_lora_weights=False, **ADAPTERS[row])
        peft.get_peft_model(base(), config).save_pretrained(work / name)
    words = ["merge", "a", "b", "--method", "none", "-o", "merged/"]
    found = apart(ran, words, work) | earlier(words, before, work)
    if "why" in found:
        return found
    one, other, merged = (
        peft.PeftModel.from_pretrained(base(), work / name).merge_and_unload().eval()
        for name in ("a", "b", "merged")
    )
    mean = {name: (t + other.state_dict()[name]) / 2 for name, t in one.state_dict().items()}
    found["merged"] = max(float((t - mean[n]).abs().max()) for n, t in merged.state_dict().items())
    give(one, mean)
    batch = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        return found | {"outputs": apart_by(one(batch).logits, merged(batch).logits)}


def apart_by(x: torch.Tensor, y: torch.Tensor) -> float:
    """How far, relative to the largest."""
    return float((x - y).abs().max() / x.abs().max())


def give(network: torch.nn.Module, mean: dict[str, torch.Tensor]) -> None:
    """These weights to a network, also those that it makes of others."""
    own = network.state_dict()
    with torch.no_grad():
        for name, tensor in mean.items():
            if name in own:
                own[name].copy_(tensor)
            else:
                module, _, weight = name.rpartition(".")
                setattr(network.get_submodule(module), weight, tensor)


def ran(words: list[str], work: Path) -> dict[str, Any]:
    """What the command takes, and what it says of the spec."""
    told = command(work, *words)
    if told["code"]:
        return {"why": f"exit {told['code']}: {told['err'].strip()}"}
    spec, proof = (re.search(rf"(?m)^{key} +(.+)$", told["out"]) for key in ("spec", "proof"))
    found = used() | {"on": proof[1].partition(":")[0] if proof else "written"}
    if spec and (counts := re.search(r"(\d+) permutations?, 10\^([\d.]+)", spec[1])):
        found |= {"words": int(counts[1]), "log10": float(counts[2])}
        if proof and not found["on"].startswith("proven on"):
            found["on"] = f"{spec[1].partition(',')[0]}, {proof[1]}"
    return found


def earlier(words: list[str], tree: Path | None, work: Path) -> dict[str, str]:
    """The command, and how it ends in the program of another tree."""
    found = {"command": " ".join(words)}
    if tree is None:
        return found
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "rebasin_cli", *words[:-1], f"before-{words[-1]}"],
        cwd=work, env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, check=False, text=True,
    )  # fmt: skip
    said = next((line for line in done.stderr.splitlines() if line.startswith("rebasin:")), "")
    return found | {"before": f"exit {done.returncode} {said.removeprefix('rebasin: ')}".strip()}


def used() -> dict[str, float]:
    """By this process, which began when its packages were imported."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": time.process_time(), "memory": memory}


def spec(name: str, shapes: dict[str, Any]) -> dict[str, Any]:
    found = spec_of(name, shapes, lambda _: None)
    fitted = fit(found, shapes)
    on = f"proven on {found.proof['network']}"
    return {"words": len(fitted.words), "log10": fitted.log10_symmetries(), "on": on}


def large(row: str, work: Path) -> dict[str, Any]:
    """Its spec, fitted to shapes without values."""
    name, options = LARGE[row]
    with torch.device("meta"):
        network: Any = transformer(name, options)
    kind = type(network)
    config = network.config
    config.architectures = [kind.__name__]
    config.save_pretrained(work)
    return apart(fitted, work, written_shapes(network))


def written_shapes(network: Any) -> dict[str, list[int]]:
    """The shapes of what `save_pretrained` would write, of a network without values."""
    loading = importlib.import_module("transformers.core_model_loading")
    state = dict(loading.revert_weight_conversion(network, network.state_dict()))
    for name in network.all_tied_weights_keys:
        state.pop(name, None)
    return {name: list(tensor.shape) for name, tensor in state.items()}


def fitted(work: Path, shapes: dict[str, list[int]]) -> dict[str, Any]:
    found = spec(f"transformers:{work}", {name: tuple(shape) for name, shape in shapes.items()})
    return found | used()


def apart(work: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """What `work` finds in a process of its own; `why` where it fails."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run_it() -> None:
        try:
            theirs.send(work(*given))
        except BaseException as cause:
            theirs.send({"why": f"{type(cause).__name__}: {cause}"})

    process = context.Process(target=run_it)
    process.start()
    theirs.close()
    try:
        return dict(ours.recv())
    except EOFError:
        return {"why": "it was killed"}
    finally:
        process.join()


# --------------------------------------------------------------------------------------------------- rows


def figures(row: str, before: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # nothing of an earlier row is kept
        if row in LARGE:
            return large(row, Path(work)) | {"command": "spec of shapes"}
        return (adapters if row in ADAPTERS else small)(row, Path(work), before)


def line(row: str, told: dict[str, Any]) -> str:
    name = f"{row}, as large as it is" if row in LARGE else row
    first = (told["date"], name, f"`{told.get('command', '')}`", told.get("before", ""))
    if "why" in told:
        return f"| {' | '.join(map(str, first))} | {' '.join(told['why'].split())} |"
    ends = (f"{told[key]:.0e}" if key in told else "" for key in ("aligned", "merged", "outputs"))
    cells = (
        *first, f"{told['seconds']:.1f}", told["memory"], told.get("words", ""),
        f"{told['log10']:.1f}" if "log10" in told else "", told["on"].partition(" of ")[0], *ends,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", metavar="NAME;…", default=";".join(ROWS))
    parser.add_argument("--kept", metavar="FILE", type=Path, default=Path("hub.json"))
    parser.add_argument("--again", action="store_true", help="rows that are kept, too")
    parser.add_argument("--before", metavar="TREE", type=Path, help="sources of the program to compare with")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kept = json.loads(options.kept.read_text()) if options.kept.exists() else {}
    began = time.process_time()
    with contextlib.suppress(ImportError):  # transformers imports it where it is installed
        torchvision()
    for package in ("transformers", "timm", "diffusers", "peft", "rebasin_cli.inference"):
        importlib.import_module(package)
    imports = time.process_time() - began
    logs = importlib.import_module("transformers").logging
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    print(f"| {' | '.join(HEADING)} |\n|{'---|' * len(HEADING)}", flush=True)
    for row in options.rows.split(";"):
        if row not in kept or options.again:
            kept[row] = apart(figures, row, options.before) | {"date": str(date.today())}
            options.kept.write_text(json.dumps(kept, indent=1))
        print(line(row, kept[row]), flush=True)
    print(f"\nThe imports took {imports:.1f} s.")
    sys.exit(1 if any("why" in kept[row] for row in options.rows.split(";")) else 0)


if __name__ == "__main__":
    main()
