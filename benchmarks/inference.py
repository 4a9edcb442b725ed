"""Infer and prove the specs of well-known networks: a Markdown table, one row a network.

    python benchmarks/inference.py [--rows NAME,…] [--all] [--write benchmarks/results.md]

Networks have random weights; they come from torchvision (one or more of every family of classifiers, all of
them with --all) and transformers (small ones of full structure), which only this script needs. "symmetries"
is the decimal logarithm of their number, "move" the share of the parameters that some permutation moves,
"error" the largest relative difference of any output in float64 after random permutations. Seconds are those
of one processor with OMP_NUM_THREADS=1. Exits with 1 if a network is not proven.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from packages import torchvision
from torch import nn

from rebasin_cli.errors import RebasinError
from rebasin_cli.inference import infer
from rebasin_cli.inference.rules.walk import INPUT, OUTPUT
from rebasin_cli.inference.text.spec_text import Inferred
from rebasin_cli.proof import prove as proving

HEADING = (
    "network", "words", "symmetries, log10", "move", "error", "seconds", "with proof", "what stays",
)  # fmt: skip
VISION = (
    "alexnet", "vgg11", "vgg16_bn", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2",
    "regnet_x_400mf", "regnet_y_400mf", "densenet121", "googlenet", "inception_v3", "squeezenet1_0",
    "mobilenet_v2", "mobilenet_v3_small", "mnasnet0_5", "shufflenet_v2_x0_5", "efficientnet_b0",
    "efficientnet_v2_s", "convnext_tiny", "vit_b_16", "swin_t", "swin_v2_t", "maxvit_t",
)  # fmt: skip
SIDES = {"inception_v3": 139, "alexnet": 128, "vit": 224, "maxvit": 224}  # pixels; others 64
LIMIT = 1e-9
BEGIN, END = "<!-- inferred specs -->", "<!-- end of inferred specs -->"  # where a page has the table
SECTION = """Written by `python benchmarks/inference.py --write benchmarks/results.md` on {date}, with
{versions}, on one thread, with random weights; the networks of
transformers are small ones of two layers.

{table}"""


# a network, what it is called with by position and by name, and which of its outputs are not kept
Case = tuple[nn.Module, tuple, Mapping[str, Any], tuple[str, ...]]
# A CLIP of logits alone: what both towers gave is returned beside them
TOWERS = ("logits_per_text", "text_embeds", "image_embeds", "text_model_output", "vision_model_output")


def vision(name: str) -> Case:
    options = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    network = torchvision().models.get_model(name, weights=None, **options)
    side = next((pixels for start, pixels in SIDES.items() if name.startswith(start)), 64)
    return network, (torch.randn(2, 3, side, side),), {}, ()


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
WORDS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ROTARY = SMALL | WORDS | {"max_position_embeddings": 64}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
BART = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "decoder_start_token_id": 2,
}  # fmt: skip
PIXELS = SMALL | {"image_size": 32, "patch_size": 8}
TEXTS = {  # row: (class, configuration, its options)
    "BERT": ("BertForSequenceClassification", "BertConfig", SMALL | WORDS),
    "RoBERTa": ("RobertaForMaskedLM", "RobertaConfig", SMALL | WORDS),
    "DistilBERT": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 99},
    ),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config", GPT2 | WORDS),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", ROTARY),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", ROTARY | {"num_key_value_heads": 2}),
    "Mistral": ("MistralForCausalLM", "MistralConfig", ROTARY | {"num_key_value_heads": 2}),
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", ROTARY | {"num_key_value_heads": 1, "head_dim": 16}),
    "Phi": ("PhiForCausalLM", "PhiConfig", ROTARY),
    "T5": ("T5ForConditionalGeneration", "T5Config", T5 | WORDS),
    "BART": ("BartForConditionalGeneration", "BartConfig", BART | WORDS | {"max_position_embeddings": 64}),
    "Whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        BART | WORDS | {"num_mel_bins": 20, "max_source_positions": 30, "max_target_positions": 40},
    ),
    "CLIP": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": ROTARY, "vision_config": PIXELS, "projection_dim": 48},
    ),
    "ViT": ("ViTForImageClassification", "ViTConfig", PIXELS),
    "DeiT": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", PIXELS),
}


def text(name: str) -> Case:
    with contextlib.suppress(ImportError):  # transformers imports it where it is installed
        torchvision()
    transformers = importlib.import_module("transformers")

    model, configuration, options = TEXTS[name]
    network = getattr(transformers, model)(getattr(transformers, configuration)(**options))
    ids, images = torch.randint(3, 99, (2, 7)), torch.randn(2, 3, 32, 32)
    inputs = {
        "T5": {"input_ids": ids, "decoder_input_ids": ids[:, :5], "use_cache": False},
        "BART": {"input_ids": ids, "decoder_input_ids": ids[:, :5], "use_cache": False},
        "Whisper": {
            "input_features": torch.randn(2, 20, 60), "decoder_input_ids": ids[:, :5], "use_cache": False,
        },
        "CLIP": {"input_ids": ids, "pixel_values": images},
        "ViT": {"pixel_values": images},
        "DeiT": {"pixel_values": images},
    }.get(name, {"input_ids": ids})  # fmt: skip
    if getattr(network.config, "use_cache", False):
        inputs["use_cache"] = False
    return network, (), inputs, TOWERS if name == "CLIP" else ()


def classifiers() -> list[str]:
    """Every classifier of torchvision."""
    models = torchvision().models
    return models.list_models(module=models)


def measured(case: Case, reasons: bool = False) -> tuple[list[str], bool]:
    """A row but for its name, and whether the network was proven."""
    network, args, kwargs, not_kept = case
    network.eval()
    start = time.process_time()
    found = infer(network, args, kwargs, not_kept=not_kept, prove=False)
    seconds = time.process_time() - start
    if reasons:
        for frozen in found.reasons:
            print(frozen.why, "::", len(frozen.places), *frozen.places[:6])
        print(found.text)
    try:
        proof = proving.prove(network, found.fitted, kwargs or args, not_kept=not_kept, tolerance=LIMIT)
        error, proven = f"{proof.largest_difference:.0e}", True
    except RebasinError as cause:
        error, proven = f"not proven: {cause.message}", False
    return [
        str(len(found.fitted.words)),
        f"{found.fitted.log10_symmetries():,.0f}",
        f"{found.fitted.moved_share():.1%}",
        error,
        f"{seconds:.1f}",
        f"{time.process_time() - start:.1f}",
        what_stays(found),
    ], proven


def what_stays(found: Inferred) -> str:
    """Reasons other than inputs and outputs, with the number of axes, most frequent first."""
    counts: Counter = Counter()
    for frozen in found.reasons:
        if frozen.why not in (INPUT, OUTPUT):
            counts[re.sub(r" \([^()]*:\d+: .*\)$", "", frozen.why).removeprefix("it is ")] += len(
                frozen.places
            )
    told = (f"{why.replace('|', '/')[:60]} ({count})" for why, count in counts.most_common(4))
    return "; ".join(told) or "–"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", metavar="NAME,…", help="only these networks")
    parser.add_argument("--all", action="store_true", help="every classifier of torchvision")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a page that has the last table")
    parser.add_argument("--reasons", action="store_true", help="print every spec and every reason, too")
    return parser.parse_args()


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def section(rows: Sequence[Sequence[str]]) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "transformers"))
    table = "\n".join(map(line, [HEADING, ["---"] * len(HEADING), *rows]))
    return SECTION.format(date=date.today(), versions=versions, table=table)


def write(path: Path, text: str) -> None:
    """Put the text where the page has the last one."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    arguments = options()
    makers: dict[str, Callable[[str], Case]] = dict.fromkeys(VISION, vision)
    if arguments.all:
        makers |= dict.fromkeys(classifiers(), vision)
    makers |= dict.fromkeys(TEXTS, text)
    if arguments.rows:
        makers = {name: makers.get(name, vision) for name in arguments.rows.split(",")}
    rows, wrong = [], []
    print(line(HEADING), line(["---"] * len(HEADING)), sep="\n", flush=True)
    for name, make in makers.items():
        torch.manual_seed(0)
        try:
            row, proven = measured(make(name), arguments.reasons)
        except (RebasinError, ImportError) as cause:
            row, proven = [f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"], False
        wrong += [] if proven else [name]
        rows.append([name, *row])
        print(line(rows[-1]), flush=True)
        gc.collect()  # a network refers to itself, and the next one wants its memory
    if arguments.write:
        write(arguments.write, section(rows))
    sys.exit(f"not proven: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
