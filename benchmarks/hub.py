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
several tensors, as weight norm does, the mean is that of the weight. "before" is how the same `align` ends in
the program of another tree.

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
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.networks import hub
from rebasin_cli.networks.returned import Kept
from rebasin_cli.session.twins import spec_of
from rebasin_cli.spec.fits import fit

HEADING = (
    *("date", "folder", "before", "seconds", "memory, MB", "words", "digits", "proven", "aligned", "merged"),
    "outputs",
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
    "SigLIP": ("SiglipModel", {"text_config": TEXT | {"projection_size": 48}, "vision_config": VISION}),
}  # fmt: skip
TIMM = {  # row: its name, its options
    "timm, ResNet": ("resnet18", {"num_classes": 10}),
    "timm, ConvNeXt": ("convnext_atto", {"num_classes": 10}),
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
ROWS = [*SMALL, *TIMM, *DIFFUSERS, *LARGE]


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
    return drawn(transformer(*SMALL[row]))


def transformer(name: str, options: dict[str, Any]) -> torch.nn.Module:
    kind = getattr(importlib.import_module("transformers"), name)
    return kind(kind.config_class(**options))


def save(network: torch.nn.Module, folder: Path, row: str) -> None:
    if row in TIMM:
        hub = importlib.import_module("timm.models._hub")
        hub.save_for_hf(network, folder, safe_serialization=True)
        (folder / "pytorch_model.bin").unlink(missing_ok=True)
    else:
        network.save_pretrained(folder)


def load(folder: Path, row: str, kind: type) -> torch.nn.Module:
    if row in TIMM:
        timm = importlib.import_module("timm")
        return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return kind.from_pretrained(folder).eval()


def outputs(network: torch.nn.Module, folder: Path) -> list[torch.Tensor]:
    """What of all that it returns for a batch by its own configuration is its function."""
    name = hub.of_folder(folder)
    assert name is not None
    batch = hub.build(name).example_batch(torch.Generator().manual_seed(0))
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


def command(*words: object) -> dict[str, Any]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def small(row: str, work: Path, before: Path | None) -> dict[str, Any]:
    networks = [made(row, seed) for seed in range(2)]
    a, b, aligned, merged = (work / name for name in ("a", "b", "aligned", "merged"))
    for network, folder in zip(networks, (a, b), strict=True):
        folder.mkdir()
        save(network, folder, row)
    ended = {"before": earlier(before, work)} if before else {}
    found = apart(align, work) | ended
    if "why" in found:
        return found
    loaded = load(aligned, row, type(networks[1]))
    pairs = zip(outputs(networks[1], a), outputs(loaded, a), strict=True)
    found["aligned"] = max(float((x - y).abs().max() / x.abs().max()) for x, y in pairs)
    moved = {n for n, t in loaded.state_dict().items() if not torch.equal(t, networks[1].state_dict()[n])}
    found["moved"] = len(moved)
    plain = command("merge", a, b, "--copy-files", "--repair", "none", "-o", f"{merged}/")
    if plain["code"]:
        return found | {"why": f"merge: {plain['err'].strip()}"}
    written, (one, other) = load(merged, row, type(networks[1])), (weights(networks[0]), weights(loaded))
    mean = {name: (t + other[name]) / 2 for name, t in one.items() if t.is_floating_point()}
    found["merged"] = max(float((t - mean[n]).abs().max()) for n, t in weights(written).items() if n in mean)
    give(loaded, mean)
    pairs = zip(outputs(loaded, a), outputs(written, a), strict=True)
    return found | {"outputs": max(float((x - y).abs().max() / x.abs().max()) for x, y in pairs)}


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


def align(work: Path) -> dict[str, Any]:
    told = command("align", work / "a", work / "b", "-o", f"{work / 'aligned'}/")
    if told["code"]:
        return {"why": told["err"].strip()}
    found = used()
    name = hub.of_folder(work / "a")
    assert name is not None
    return found | spec(name, dict(open_checkpoint(work / "a").shapes))


def earlier(tree: Path, work: Path) -> str:
    """How the same command ends in the program of another tree."""
    words = [sys.executable, "-m", "rebasin_cli", "align", "a", "b", "-o", "before.safetensors"]
    done = subprocess.run(
        words, cwd=work, env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, check=False
    )
    return f"exit {done.returncode}"


def used() -> dict[str, float]:
    """By this process, which began when its packages were imported."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": time.process_time(), "memory": memory}


def spec(name: str, shapes: dict[str, Any]) -> dict[str, Any]:
    found = spec_of(name, shapes, lambda _: None)
    fitted = fit(found, shapes)
    on = str(found.proof["network"])
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
        return large(row, Path(work)) if row in LARGE else small(row, Path(work), before)


def line(row: str, told: dict[str, Any]) -> str:
    name = f"{row}, as large as it is" if row in LARGE else row
    if "why" in told:
        return f"| {told['date']} | {name} | {told.get('before', '')} | {' '.join(told['why'].split())} |"
    cells = (
        told["date"], name, told.get("before", ""), f"{told['seconds']:.1f}", told["memory"],
        told["words"], f"{told['log10']:.1f}", told["on"].partition(" of ")[0],
        *("" if row in LARGE else f"{told[name]:.0e}" for name in ("aligned", "merged", "outputs")),
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
    for package in ("transformers", "timm", "diffusers", "rebasin_cli.inference"):
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
