"""Specs of other packages' networks: found by names and shapes, as free as inference finds, function kept.

Sizes and depths are drawn for these tests; no spec was read off them.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rebasin_cli.checkpoints import configuration
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.errors import NoSpecFits
from rebasin_cli.graph.float64 import in_float64
from rebasin_cli.inference import infer
from rebasin_cli.spec import library
from rebasin_cli.spec.spec import FittedSpec
from rebasin_cli.symmetry import permutation

TEXT = {"vocab_size": 53, "hidden_size": 40, "intermediate_size": 28, "num_hidden_layers": 4}
TEXT |= {"num_attention_heads": 5, "max_position_embeddings": 33, "use_cache": False}
TEXT |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10}
GPT2 = {"vocab_size": 53, "n_embd": 35, "n_inner": 24, "n_layer": 4, "n_head": 5, "n_positions": 33}
GPT2 |= {"use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGES = {"image_size": 24, "patch_size": 8, "hidden_size": 40, "intermediate_size": 28}
IMAGES |= {"num_hidden_layers": 4, "num_attention_heads": 5}
T5 = {"vocab_size": 53, "d_model": 26, "d_ff": 30, "d_kv": 6, "num_layers": 4, "num_heads": 5}
T5 |= {"use_cache": False, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1}
TOWER = {**TEXT, "projection_dim": 14}
CLIP = {"text_config": TOWER, "vision_config": {**IMAGES, "projection_dim": 14}, "projection_dim": 14}
WHISPER = {"vocab_size": 53, "d_model": 40, "encoder_layers": 4, "decoder_layers": 3}
WHISPER |= {"encoder_attention_heads": 5, "decoder_attention_heads": 4, "num_mel_bins": 9}
WHISPER |= {"encoder_ffn_dim": 28, "decoder_ffn_dim": 31, "max_source_positions": 7, "use_cache": False}
WHISPER |= {"max_target_positions": 17, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WHISPER |= {"decoder_start_token_id": 3}


@dataclass(frozen=True)
class Case:
    """A network of a package: its class or name there, how it is made, and what is known of its spec.

    `less`: why the spec says less than inference finds; `more`: why more.
    """

    spec: str
    package: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    less: str = ""
    side: int = 32
    more: str = ""


def hub(spec: str, name: str, settings: Mapping[str, Any], less: str = "") -> Case:
    return Case(spec, "transformers", name, settings, less)


ROTARY = "rotary positions tell a part of a head's units apart, which no shape says"
CASES = {
    "llama": hub("llama", "LlamaForCausalLM", GROUPED),
    "llama, tied, one key a query": hub("llama", "LlamaForCausalLM", {**TEXT, "tie_word_embeddings": True}),
    "llama, biases": hub("llama", "LlamaForCausalLM", {**GROUPED, "attention_bias": True, "mlp_bias": True}),
    "llama, classes": hub("llama", "LlamaForSequenceClassification", {**GROUPED, "num_labels": 3}),
    "llama without head": hub("llama_base", "LlamaModel", GROUPED),
    "mistral": hub("llama", "MistralForCausalLM", GROUPED),
    "qwen2": hub(
        "llama",
        "Qwen2ForCausalLM",
        {k: v for k, v in GROUPED.items() if k != "head_dim"} | {"hidden_size": 48},
    ),
    "qwen3": hub("llama", "Qwen3ForCausalLM", GROUPED),
    "gemma": hub("llama", "GemmaForCausalLM", GROUPED),
    "gemma2": hub("llama", "Gemma2ForCausalLM", GROUPED),
    "gemma3": hub("llama", "Gemma3ForCausalLM", GROUPED),
    "phi": hub("phi", "PhiForCausalLM", TEXT, ROTARY),
    "phi3": hub(
        "phi3", "Phi3ForCausalLM", {k: v for k, v in GROUPED.items() if k != "head_dim"}, "attention stays"
    ),
    "gpt-neox": hub("gpt_neox", "GPTNeoXForCausalLM", TEXT, ROTARY),
    "gpt2": hub("gpt2", "GPT2LMHeadModel", GPT2),
    "gpt2, classes": hub("gpt2", "GPT2ForSequenceClassification", {**GPT2, "num_labels": 3}),
    "gpt2 without head": hub("gpt2_base", "GPT2Model", GPT2),
    "bert": hub("bert", "BertForMaskedLM", TEXT),
    "bert, of texts": hub("bert_sequences", "BertForSequenceClassification", {**TEXT, "num_labels": 3}),
    "bert, of words": hub("bert_words", "BertForTokenClassification", {**TEXT, "num_labels": 3}),
    "bert, questions": hub("bert", "BertForQuestionAnswering", TEXT),
    "bert, first training": hub("bert", "BertForPreTraining", TEXT, "what the pooler writes stays"),
    "bert without head": hub("bert_base", "BertModel", TEXT),
    "roberta": hub("bert", "RobertaForMaskedLM", TEXT),
    "roberta, of texts": hub("bert", "RobertaForSequenceClassification", {**TEXT, "num_labels": 3}),
    "xlm-roberta, of words": hub("bert_words", "XLMRobertaForTokenClassification", {**TEXT, "num_labels": 3}),
    "distilbert": hub(
        "distilbert",
        "DistilBertForSequenceClassification",
        {"vocab_size": 53, "dim": 40, "hidden_dim": 28, "n_layers": 4, "n_heads": 5, "pad_token_id": 0},
    ),
    "distilbert, of words": hub(
        "distilbert",
        "DistilBertForTokenClassification",
        {"vocab_size": 53, "dim": 40, "hidden_dim": 28, "n_layers": 3, "n_heads": 4, "pad_token_id": 0},
    ),
    "t5, tied": hub("t5_tied", "T5ForConditionalGeneration", T5),
    "t5": hub(
        "t5",
        "T5ForConditionalGeneration",
        {**T5, "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"},
        "both stacks have one stream, also where their embeddings are not one",
    ),
    "t5 without head": hub("t5_base", "T5Model", T5),
    "whisper": hub("whisper", "WhisperForConditionalGeneration", WHISPER),
    "whisper without head": hub(
        "whisper_base", "WhisperModel", WHISPER, "both streams stay, of which one is an output"
    ),
    "vit": hub("hf_vit", "ViTForImageClassification", {**IMAGES, "num_labels": 3}),
    "vit without head": hub("hf_vit_base", "ViTModel", IMAGES),
    "deit": hub("hf_vit", "DeiTForImageClassification", {**IMAGES, "num_labels": 3}),
    "dinov2": hub("dinov2", "Dinov2ForImageClassification", {**IMAGES, "mlp_ratio": 2, "num_labels": 3}),
    "dinov2 without head": hub(
        "dinov2_base", "Dinov2Model", {**IMAGES, "mlp_ratio": 2, "use_swiglu_ffn": True}
    ),
    "clip": hub("clip", "CLIPModel", CLIP),
    "clip, images": hub("clip", "CLIPVisionModelWithProjection", CLIP["vision_config"]),
    "clip, images without a head": hub("clip_tower", "CLIPVisionModel", CLIP["vision_config"]),
    "clip, text without a head": hub("clip_tower", "CLIPTextModel", TOWER),
}
CASES |= {
    f"{package} {name}": Case(spec, package, name, settings, side=side)
    for package, spec, name, side, settings in [
        (
            "torchvision",
            "torchvision_vit",
            "VisionTransformer",
            32,
            {
                "image_size": 32,
                "patch_size": 8,
                "num_layers": 3,
                "num_heads": 4,
                "hidden_dim": 32,
                "mlp_dim": 24,
            },
        ),
        ("torchvision", "torchvision_convnext", "convnext_tiny", 64, {}),
        ("torchvision", "torchvision_efficientnet", "efficientnet_b1", 64, {}),
        ("torchvision", "torchvision_mobilenet_v2", "mobilenet_v2", 64, {"width_mult": 0.5}),
        ("torchvision", "torchvision_mobilenet_v3_large", "mobilenet_v3_large", 64, {}),
        ("torchvision", "torchvision_mobilenet_v3_small", "mobilenet_v3_small", 64, {}),
        (
            "torchvision",
            "torchvision_swin",
            "SwinTransformer",
            64,
            {
                "patch_size": [4, 4],
                "window_size": [4, 4],
                "embed_dim": 24,
                "depths": [2, 1, 3, 1],
                "num_heads": [2, 4, 4, 6],
            },
        ),
        ("torchvision", "resnext", "resnext50_32x4d", 64, {}),
        (
            "torchvision",
            "densenet",
            "DenseNet",
            64,
            {"growth_rate": 5, "block_config": (3, 1, 2, 4), "num_init_features": 6, "num_classes": 3},
        ),
        ("timm", "densenet", "densenet121", 64, {"growth_rate": 6, "block_config": (2, 4, 12, 3)}),
        (
            "timm",
            "timm_vit",
            "vit_tiny_patch16_224",
            32,
            {"img_size": 32, "depth": 3, "embed_dim": 48, "num_heads": 4},
        ),
        (
            "timm",
            "timm_vit",
            "vit_small_patch14_dinov2",
            28,
            {"img_size": 28, "depth": 3, "embed_dim": 48, "num_heads": 4, "num_classes": 5},
        ),
        (
            "timm",
            "timm_vit",
            "vit_base_patch32_clip_224",
            64,
            {"img_size": 64, "depth": 3, "embed_dim": 48, "num_heads": 4, "num_classes": 5},
        ),
        ("timm", "timm_convnext", "convnext_atto", 64, {}),
        ("timm", "timm_convnext", "convnextv2_femto", 64, {}),
        ("timm", "timm_convnext", "convnext_tiny", 64, {"depths": (1, 2, 3, 1), "dims": (8, 12, 20, 28)}),
        ("timm", "timm_efficientnet", "efficientnet_b1", 64, {}),
        ("timm", "timm_efficientnet", "mobilenetv2_050", 64, {}),
        ("timm", "timm_mobilenet_v3_large", "mobilenetv3_large_075", 64, {}),
        ("timm", "timm_mobilenet_v3_small", "mobilenetv3_small_100", 64, {}),
        (
            "timm",
            "timm_swin",
            "swin_tiny_patch4_window7_224",
            64,
            {
                "img_size": 64,
                "window_size": 4,
                "embed_dim": 24,
                "depths": (2, 1, 3, 1),
                "num_heads": (2, 4, 4, 6),
            },
        ),
        ("timm", "resnext", "resnext50_32x4d", 64, {"base_width": 2}),
    ]
}
CASES |= {
    f"hf {name}": Case(
        "hf_convnext",
        "transformers",
        name,
        {"depths": [1, 2, 3, 1], "hidden_sizes": [8, 12, 20, 28], "num_labels": 3, "image_size": 64},
    )
    for name in ("ConvNextForImageClassification", "ConvNextV2ForImageClassification")
}
UNET = {"block_out_channels": (16, 32, 64, 64), "norm_num_groups": 4, "cross_attention_dim": 24}
CUTS = "where norms of groups cut a skip at other places, inference holds all blocks of it to one order"
CASES |= {
    f"unet {version}": Case(
        "unet", "diffusers", "UNet2DConditionModel", {**UNET, **settings}, side=8, more=CUTS
    )
    for version, settings in {
        "1": {"attention_head_dim": 8},
        "2": {"attention_head_dim": [2, 4, 8, 4], "use_linear_projection": True, "in_channels": 9},
    }.items()
}
XL = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
}
CASES["unet xl"] = Case(
    "unet_xl",
    "diffusers",
    "UNet2DConditionModel",
    XL
    | {
        "block_out_channels": (16, 32, 64),
        "norm_num_groups": 4,
        "cross_attention_dim": 24,
        "attention_head_dim": [2, 4, 8],
        "transformer_layers_per_block": [1, 2, 3],
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + 10,
    },
    side=8,
    more=CUTS,
)
INSIDE = ("encoder_last_hidden_state", "past_key_values")  # of an output: records on its way
# One of each kind; the others over again, or large.
SHORT = (
    "llama",
    "qwen3",
    "gpt2",
    "bert, of texts",
    "t5, tied",
    "vit",
    "timm convnext_tiny",
    "timm mobilenetv2_050",
    "torchvision DenseNet",
    "unet 1",
)
each_case = pytest.mark.parametrize(
    "key", [pytest.param(key, marks=() if key in SHORT else pytest.mark.sweep) for key in CASES]
)


def package(name: str) -> Any:
    pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)
    return importlib.import_module(name)


@pytest.fixture(scope="module", autouse=True)
def _images_without_operators():
    """transformers and timm import torchvision, whose compiled part may not fit this torch."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    try:
        from benchmarks.packages import torchvision

        torchvision()
    except ImportError:
        pass


def drawn(network: torch.nn.Module) -> torch.nn.Module:
    """The same with values that tell every unit from every other."""
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.is_floating_point() and "inv_freq" not in name:
                noise = torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
                tensor.copy_(1 + 0.3 * noise.abs() if tensor.ndim == 1 else 0.4 * noise)
    return network.eval()


def built(case: Case, folder: Path) -> tuple[torch.nn.Module, dict[str, torch.Tensor], dict[str, Any]]:
    """The network, the tensors of its file, and the configuration beside them."""
    module = package(case.package)
    torch.manual_seed(1)
    if case.package == "transformers":
        kind = getattr(module, case.name)
        config = kind.config_class(**case.settings)
        for name, value in case.settings.items():  # some are overruled, and taken from a file all the same
            if name == "tie_word_embeddings":
                setattr(config, name, value)
        network = drawn(kind(config))
        network.save_pretrained(folder)
        file = open_checkpoint(folder)
        return network, {n: file[n] for n in file}, configuration.beside(folder) or {}
    if case.package == "diffusers":
        network = drawn(getattr(module, case.name)(**case.settings))
        return network, dict(network.state_dict()), dict(network.config)
    if case.package == "timm":
        network = module.create_model(case.name, pretrained=False, **case.settings)
    elif case.settings and case.name[0].isupper():
        network = getattr(module.models, case.name)(**case.settings)
    else:
        network = module.models.get_model(case.name, weights=None, **case.settings)
    drawn(network)
    return network, dict(network.state_dict()), {}


def batch_of(network: torch.nn.Module, case: Case) -> Any:
    if case.package == "transformers":
        from rebasin_cli.networks import hub

        return hub.batches.of_transformers(network, network.config)(torch.Generator().manual_seed(3))
    rng = torch.Generator().manual_seed(3)
    if case.package == "diffusers":
        size = (2, case.settings.get("in_channels", 4), case.side, case.side)
        words = torch.rand(2, 5, case.settings["cross_attention_dim"], generator=rng)
        given = {
            "sample": torch.rand(size, generator=rng),
            "timestep": torch.tensor([3, 500]),
            "encoder_hidden_states": words,
        }
        if "addition_embed_type" in case.settings:
            sizes = torch.tensor([[8.0, 9, 0, 1, 8, 8], [7, 9, 1, 0, 8, 6]])
            given["added_cond_kwargs"] = {"text_embeds": torch.rand(2, 10, generator=rng), "time_ids": sizes}
        return given
    return torch.rand(2, 3, case.side, case.side, generator=rng)


def answers(
    case: Case, network: torch.nn.Module, tensors: Mapping[str, torch.Tensor], folder: Path
) -> list[torch.Tensor]:
    """What the network answers with these tensors, read as its package reads a file, in float64."""
    batch = batch_of(network, case)
    if case.package == "transformers":
        from safetensors.torch import save_file

        save_file(
            {n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
        )
        network = type(network).from_pretrained(folder)
        given = {"return_dict": True} | batch
    else:
        network = copy.deepcopy(network)
        network.load_state_dict(dict(tensors))
        given = batch
    network = network.double().eval()
    doubled = torch.utils._pytree.tree_map(
        lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, given
    )
    with torch.no_grad(), in_float64():
        found = network(**doubled) if isinstance(doubled, dict) else network(doubled)
    kept = (
        [value for name, value in found.items() if name not in INSIDE]
        if isinstance(found, Mapping)
        else found
    )
    return [leaf for leaf in torch.utils._pytree.tree_leaves(kept) if isinstance(leaf, torch.Tensor)]


def freedom(fitted: FittedSpec) -> tuple[list[tuple[int, int]], float]:
    """How many blocks of how many units words have; words of one unit have no freedom."""
    blocks = [
        (fitted.within[w].count, fitted.within[w].size) if w in fitted.within else (1, n)
        for w, n in fitted.words.items()
    ]
    return sorted(b for b in blocks if b[1] > 1), pytest.approx(fitted.log10_symmetries())


def check_function(
    case: Case, network: torch.nn.Module, tensors: dict, fitted: FittedSpec, folder: Path
) -> None:
    rng = torch.Generator().manual_seed(5)
    random = permutation.carried(permutation.random(fitted.words, rng, within=fitted.within), fitted.within)
    moved = permutation.permuted(tensors, fitted, random)
    moved = {name: moved[name] for name in tensors}
    assert any(not torch.equal(moved[n], tensors[n]) for n in tensors)
    before = answers(case, network, tensors, folder)
    after = answers(case, network, moved, folder)
    assert len(before) == len(after) > 0
    for one, other in zip(before, after, strict=True):
        assert (one[:1] - one[1:]).abs().max() > 1e-6 * one.abs().max()  # else it says nothing
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9 * float(one.abs().max()))


def test_every_spec_of_another_package_has_a_case():
    public = {name for name, spec in library.builtin().items() if spec.net is None}
    assert public - {"gpt2_bare"} == {case.spec for case in CASES.values()}


@each_case
def test_the_spec_is_found_has_the_freedom_that_inference_finds_and_keeps_the_function(key, tmp_path):
    case = CASES[key]
    network, tensors, settings = built(case, tmp_path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    fitted = library.find(shapes, settings)
    assert fitted.spec.name == case.spec
    assert fitted.untold == () or not settings
    check_function(case, network, tensors, fitted, tmp_path)

    batch = batch_of(network, case)
    args, kwargs = ((), batch) if isinstance(batch, dict) else ((batch,), {})
    direct = infer(network, args, kwargs, prove=False).fitted
    if case.less or fitted.untold:
        assert fitted.log10_symmetries() < direct.log10_symmetries()
    elif case.more:
        assert fitted.log10_symmetries() > direct.log10_symmetries()
    else:
        assert freedom(fitted) == freedom(direct)


@each_case
def test_without_a_configuration_it_holds_what_no_shape_tells_or_asks_which_reading(key, tmp_path):
    case = CASES[key]
    network, tensors, settings = built(case, tmp_path)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if case.spec == "bert_sequences":
        with pytest.raises(NoSpecFits, match="several readings") as caught:
            library.find(shapes)
        assert caught.value.hint == "Say which: --spec bert_sequences or --spec bert_words"
        return
    whole, alone = library.find(shapes, settings), library.find(shapes)
    assert alone.log10_symmetries() <= whole.log10_symmetries()
    check_function(case, network, tensors, alone, tmp_path)


SD = {"block_out_channels": (320, 640, 1280, 1280), "attention_head_dim": 8, "cross_attention_dim": 768}


def unet_shapes(**settings: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Shapes and configuration of a UNet by diffusers' own class, without any values."""
    kind = package("diffusers").UNet2DConditionModel
    with torch.device("meta"):
        network = kind(**{**SD, **settings})
    return {n: tuple(t.shape) for n, t in network.state_dict().items()}, dict(network.config)


@pytest.mark.parametrize(
    "settings", [{}, {"attention_head_dim": [5, 10, 20, 20], "use_linear_projection": True}], ids="12"
)
def test_the_unet_of_stable_diffusion_has_its_spec_as_large_as_it_is(settings):
    shapes, config = unet_shapes(**settings)
    assert sum(map(torch.Size.numel, map(torch.Size, shapes.values()))) > 850e6
    fitted = library.find(shapes, config)
    assert fitted.spec.name == "unet" and fitted.untold == ()
    assert fitted.log10_symmetries() > 300_000
    alone = library.find(shapes)  # without the numbers of groups and heads
    assert "config.norm_num_groups" in alone.untold and alone.words["up0.2"] == 1280
    assert not any(word.startswith(("skip", "inner", "dim")) for word in alone.words)


def test_the_unet_of_stable_diffusion_xl_has_its_spec_as_large_as_it_is():
    """By its published configuration, without any values."""
    published = XL | {"block_out_channels": (320, 640, 1280), "attention_head_dim": [5, 10, 20]}
    published |= {"transformer_layers_per_block": [1, 2, 10], "cross_attention_dim": 2048}
    published |= {"addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 2816}
    shapes, config = unet_shapes(**published)
    assert sum(map(torch.Size.numel, map(torch.Size, shapes.values()))) > 2.5e9
    fitted = library.find(shapes, config)
    assert fitted.spec.name == "unet_xl" and fitted.untold == ()
    assert fitted.words["heads.mid.0.9.1"] == 20 and fitted.words["heads.down.1.0.0.2"] == 10


@pytest.mark.parametrize(
    "settings",
    [
        {"block_out_channels": (64, 128, 256, 512)},
        {"block_out_channels": (64, 128, 128, 128)},
        {"block_out_channels": (64, 64, 64, 64)},
        {"layers_per_block": 3},
        {"resnet_time_scale_shift": "scale_shift"},
    ],
)
def test_a_unet_of_another_shape_is_not_read_by_it(settings):
    shapes, config = unet_shapes(**settings)
    with pytest.raises(NoSpecFits):
        library.find(shapes, config)


@pytest.mark.parametrize("name, words", [("densenet121", 120), ("densenet161", 160), ("densenet201", 200)])
def test_a_densenet_has_a_word_for_every_layer_as_large_as_it_is(name, words):
    with torch.device("meta"):
        network = package("torchvision").models.get_model(name, weights=None)
    fitted = library.find({n: tuple(t.shape) for n, t in network.state_dict().items()})
    assert fitted.spec.name == "densenet" and len(fitted.words) == words
