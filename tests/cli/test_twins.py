"""Folders as `save_pretrained` writes them: the spec of a small twin, and what is written loads again."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.conftest import rebasin

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

DOCS = Path(__file__).parents[2] / "docs"
SMALL = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4}
TEXT = {**SMALL, "vocab_size": 50}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PIXELS = {**SMALL, "image_size": 16, "patch_size": 4}
# Units a head are none of those that the twins have.
T5 = {"d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
WHISPER = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "vocab_size": 50,
    "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16, "decoder_start_token_id": 1,
}  # fmt: skip
SWIN = {
    "image_size": 32, "patch_size": 2, "embed_dim": 12, "depths": [1, 2], "num_heads": [2, 4],
    "window_size": 4,
}  # fmt: skip
CLIP = {
    "text_config": TEXT | ENDS | {"projection_dim": 12}, "vision_config": PIXELS | {"projection_dim": 12},
    "projection_dim": 12,
}  # fmt: skip
KINDS = {
    "llama": ("LlamaForCausalLM", {**TEXT, "num_key_value_heads": 2}),
    "tied heads": ("LlamaForCausalLM", {**TEXT, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", {**TEXT, "num_key_value_heads": 2, "head_dim": 8}),
    "qwen2": ("Qwen2ForCausalLM", {**TEXT, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3ForCausalLM", {**TEXT, "num_key_value_heads": 2, "head_dim": 12}),
    "phi3": ("Phi3ForCausalLM", {**TEXT, "num_key_value_heads": 2, "hidden_size": 48, "pad_token_id": 0}),
    "gpt-neox": ("GPTNeoXForCausalLM", TEXT | {"hidden_size": 96}),
    "odd quarters": ("GPTNeoXForCausalLM", TEXT | {"hidden_size": 48}),  # of 12 units it turns 4
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 4, "n_head": 4, "vocab_size": 50}),
    "opt": ("OPTForCausalLM", TEXT | ENDS | {"ffn_dim": 40, "word_embed_proj_dim": 32}),
    "bert": ("BertForSequenceClassification", TEXT),
    "bert before": ("BertForPreTraining", TEXT),
    "roberta": ("RobertaForMaskedLM", TEXT),
    "t5": ("T5ForConditionalGeneration", T5 | {"decoder_start_token_id": 0}),
    "whisper": ("WhisperForConditionalGeneration", WHISPER | ENDS),
    "vit": ("ViTForImageClassification", PIXELS),
    "dinov2": ("Dinov2ForImageClassification", PIXELS),
    "swin": ("SwinForImageClassification", SWIN),
    "swinv2": ("Swinv2ForImageClassification", SWIN),
    "clip": ("CLIPModel", CLIP),
    "convnext": ("ConvNextForImageClassification", {"hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 2, 1],
                                                    "image_size": 32}),
    "resnet": ("ResNetForImageClassification", {"embedding_size": 6, "hidden_sizes": [8, 12, 16, 20],
                                                "depths": [1, 2, 1, 1]}),
}  # fmt: skip

WHOLE = ("convnext", "resnet", "odd quarters")  # as large as they are
CORE = ("tied heads", "bert", "vit")
ROWS = [kind if kind in CORE else pytest.param(kind, marks=pytest.mark.sweep) for kind in KINDS]


def saved(folder, kind, seed):
    name, settings = KINDS[kind]
    made = getattr(transformers, name)
    torch.manual_seed(seed)
    network = made(made.config_class(**settings))
    with torch.no_grad():  # fresh norms and biases would hide an order that is wrong
        for tensor in network.parameters():
            tensor.add_(torch.randn_like(tensor) * 0.1)
    network.save_pretrained(folder)
    return network.eval()


def batch_of(network):
    from rebasin_cli.networks.hub import batches

    return batches.of_transformers(network, network.config)(torch.Generator().manual_seed(0))


def first(network):
    with torch.no_grad():
        return next(iter(network(**batch_of(network)).values()))


def every(network):
    with torch.no_grad():
        return list(network(**batch_of(network)).values())


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("kind", ROWS)
def test_an_aligned_folder_computes_the_same_and_a_merge_is_the_mean(kind, tmp_path, done):
    networks = [saved(tmp_path / name, kind, seed) for seed, name in enumerate("ab")]
    a, b, out = tmp_path / "a", tmp_path / "b", tmp_path / "out"
    aligned = done("align", a, b, "-o", f"{out}/")
    title = f"transformers' {KINDS[kind][0]}"
    assert f"proven on {'' if kind in WHOLE else 'a small twin of '}{title}" in aligned.out
    loaded = type(networks[1]).from_pretrained(out).eval()
    before, after = first(networks[1]), first(loaded)
    assert torch.allclose(before, after, atol=1e-4 * before.abs().max().item())
    moved = [n for n, t in loaded.state_dict().items() if not torch.equal(t, networks[1].state_dict()[n])]
    assert moved
    done("merge", a, b, "--repair", "none", "--copy-files", "-o", f"{tmp_path / 'merged'}/")
    mean = type(networks[1]).from_pretrained(tmp_path / "merged").state_dict()
    for name, tensor in mean.items():
        if tensor.dtype == torch.int64:
            continue
        both = (networks[0].state_dict()[name] + loaded.state_dict()[name]) / 2
        assert torch.allclose(tensor, both, atol=1e-6), name


def test_what_was_found_is_kept_and_the_real_size_is_proven_on_request(tmp_path, done):
    for seed, name in enumerate("ab"):
        saved(tmp_path / name, "llama", seed)
    a, b = tmp_path / "a", tmp_path / "b"
    done("align", a, b, "-o", tmp_path / "one.safetensors")
    again = done("align", a, b, "-o", tmp_path / "two.safetensors")
    assert "spec: inferred from" not in again.err
    for k, how in enumerate((["--net", f"transformers:{a}"], ["--prove", "real"])):
        real = done("align", a, b, *how, "-o", tmp_path / f"real{k}.safetensors")
        assert "proven: outputs differ by" in real.out


def test_heads_that_a_class_does_not_read_move_with_the_class_that_reads_them(tmp_path, done):
    """As BERT's own files: the configuration says BertForMaskedLM, the file has what it was trained with."""
    networks = [saved(tmp_path / name, "bert before", seed) for seed, name in enumerate("ab")]
    for name in "ab":
        file = tmp_path / name / "config.json"
        file.write_text(file.read_text().replace("BertForPreTraining", "BertForMaskedLM"))
    aligned = done("align", tmp_path / "a", tmp_path / "b", "-o", f"{tmp_path / 'out'}/")
    assert "proven on a small twin of transformers' BertForPreTraining" in aligned.out
    loaded = type(networks[1]).from_pretrained(tmp_path / "out").eval()
    for one, other in zip(every(networks[1]), every(loaded), strict=True):
        assert torch.allclose(one, other, atol=1e-4 * one.abs().max().item())


def test_code_of_a_folder_is_never_run(tmp_path):
    for seed, name in enumerate("ab"):
        saved(tmp_path / name, "llama", seed)
        file = tmp_path / name / "config.json"
        config = json.loads(file.read_text())
        config |= {"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModel": "own.OwnForCausalLM"}}
        file.write_text(json.dumps(config))
        (tmp_path / name / "own.py").write_text("raise SystemExit('run')\n")
    outcome = rebasin("align", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "c.safetensors")
    assert outcome.code == 0 and "twin" not in outcome.out + outcome.err  # by names and shapes alone
    named = rebasin("align", tmp_path / "a", tmp_path / "b", "--net", f"transformers:{tmp_path / 'a'}")
    assert named.code == 6 and "names the class OwnForCausalLM" in named.err


def test_a_configuration_of_another_network_tells_nothing_of_these_tensors(tmp_path, done):
    for seed, name in enumerate("ab"):
        saved(tmp_path / name, "mistral", seed)
        bert = TEXT | {"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_key_value_heads": 4}
        (tmp_path / name / "config.json").write_text(json.dumps(bert))
    told = done("align", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "o.safetensors").err
    assert "nothing that it says is taken" in told and "heads stay" in told


def test_a_class_that_is_no_network_is_none(tmp_path, refused):
    saved(tmp_path / "a", "mistral", 0)
    file = tmp_path / "base.json"
    file.write_text(json.dumps({"model_type": "mistral", "architectures": ["PreTrainedModel"]}))
    net = f"transformers:{file}"
    says = [f"{file} names the class PreTrainedModel, which is no network of the installed transformers"]
    refused(6, "align", tmp_path / "a", tmp_path / "a", "--net", net, "-o", tmp_path / "o.pt", says=says)
    file.write_text(json.dumps({"model_type": "mistral"}))
    says = [f"{file} names no class of a network", '"architectures": ["LlamaForCausalLM"]']
    refused(6, "align", tmp_path / "a", tmp_path / "a", "--net", net, "-o", tmp_path / "o.pt", says=says)


def test_a_network_larger_than_its_tensors_is_not_built(tmp_path):
    for seed, name in enumerate("ab"):
        saved(tmp_path / name, "llama", seed)
        file = tmp_path / name / "config.json"
        large = {"num_attention_heads": 10**6, "hidden_size": 8 * 10**6}
        file.write_text(json.dumps(json.loads(file.read_text()) | large))
    named = rebasin("align", tmp_path / "a", tmp_path / "b", "--net", f"transformers:{tmp_path / 'a'}")
    assert named.code == 6 and "parameters, more than 400,000,000" in named.err


@pytest.mark.parametrize("change", [{"title": None}, {"tied": 3}, {"text": "x: ["}, {"proof": {}}], ids=str)
def test_a_kept_record_that_is_damaged_is_made_again(change, tmp_path, done, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for seed, name in enumerate("ab"):
        saved(tmp_path / name, "bert", seed)
    done("align", tmp_path / "a", tmp_path / "b", "--dry-run")
    (file,) = (tmp_path / "cache/rebasin/specs").iterdir()
    good = file.read_text()
    file.write_text(json.dumps(json.loads(good) | change))
    done("align", tmp_path / "a", tmp_path / "b", "--dry-run")
    assert file.read_text() == good


def test_a_plain_file_takes_the_configuration_that_is_named(tmp_path, done, refused):
    for seed, name in enumerate("ab"):
        saved(tmp_path / name, "vit", seed)
        (tmp_path / name / "model.safetensors").rename(tmp_path / f"{name}.safetensors")
    files = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    aligned = done("align", *files, "--config", tmp_path / "a/config.json", "-o", tmp_path / "c.safetensors")
    assert "proven on a small twin of transformers' ViTForImageClassification" in aligned.out
    (tmp_path / "other.json").write_text("{}")
    refused(6, "align", *files, "--config", tmp_path / "other.json", says=["names no class of a network"])


def test_a_file_of_an_earlier_version_keeps_its_names(tmp_path, done):
    """As the hub's own GPT-2 is written: the network within, and masks that nobody reads any more."""
    networks = [saved(tmp_path / name, "gpt2", seed) for seed, name in enumerate("ab")]
    for name, network in zip("ab", networks, strict=True):
        state = network.transformer.state_dict()
        state |= {f"h.{k}.attn.bias": torch.ones(1, 1, 8, 8).tril() for k in range(4)}
        save_file(state, tmp_path / name / "model.safetensors", metadata={"format": "pt"})
    aligned = done("align", tmp_path / "a", tmp_path / "b", "-o", f"{tmp_path / 'out'}/")
    assert "proven on a small twin of transformers' GPT2LMHeadModel" in aligned.out
    assert load_file(tmp_path / "out/model.safetensors").keys() == state.keys()
    loaded = type(network).from_pretrained(tmp_path / "out").eval()
    before, after = first(networks[1]), first(loaded)
    assert torch.allclose(before, after, atol=1e-4 * before.abs().max().item())
    assert not torch.equal(loaded.state_dict()["lm_head.weight"], network.state_dict()["lm_head.weight"])
    real = done("align", tmp_path / "a", tmp_path / "b", "--prove", "real", "-o", tmp_path / "c.safetensors")
    assert "proven: outputs differ by" in real.out


@pytest.mark.sweep
def test_the_lines_of_the_page_run_from_folders_alone(tmp_path, monkeypatch):
    """Eight small networks are trained, in a process as the page has it."""
    page = (DOCS / "transformers.md").read_text()
    section = page.partition("## Folders from the hub")[2]
    block = section.partition("a test runs them -->")[2].partition("```sh\n")[2].partition("```")[0]
    first_line, *lines = [line for line in block.splitlines() if line]
    assert first_line == "python tiny_folders.py" and len(lines) > 10
    shutil.copy(DOCS / "examples/tiny_folders.py", tmp_path)
    runpy.run_path(str(tmp_path / "tiny_folders.py"), run_name="__main__")
    above = "".join(re.findall(r"(?ms)^```text\n(.*?)^```$", section)).splitlines()
    assert len(above) == 3
    (tmp_path / "first").mkdir()
    for name in ("llamaA", "llamaB"):
        shutil.copytree(tmp_path / name, tmp_path / "first" / name)
    for place, line in [("first", line) for line in above] + [(".", line) for line in lines]:
        monkeypatch.chdir(tmp_path / place)
        program, *arguments = shlex.split(line)
        outcome = rebasin(*arguments)
        assert program == "rebasin" and outcome.code == 0, (line, outcome.err)
    kinds = ["LlamaForCausalLM"] * 2 + ["BertForSequenceClassification", "ViTForImageClassification"]
    for name, kind in zip(("tuned", "llama", "bert", "vit"), kinds, strict=True):
        network = getattr(transformers, kind).from_pretrained(tmp_path / name).eval()
        assert first(network).isfinite().all(), name


def test_a_configuration_of_other_sizes_is_told_before_the_network_is_inferred(tmp_path, refused):
    saved(tmp_path / "a", "convnext", 0)
    file = tmp_path / "a/config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_sizes": [8, 12, 16, 24]}))
    says = ["(24,) in the network, (20,) in the checkpoint"]
    told = refused(4, "align", tmp_path / "a", tmp_path / "a", "--net", f"transformers:{file}", says=says)
    assert "inferred from transformers" not in told.err
