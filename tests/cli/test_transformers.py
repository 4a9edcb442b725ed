"""Transformers and text through the commands that take --data and a network."""

import functools

import pytest

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.learning.training import train

from .conftest import fresh, tensors

TEXT = "she sells sea shells by the sea shore, and the shells she sells are sea shells. "
SMALL = {"width": 8, "depth": 1, "heads": 2, "epochs": 12, "learning_rate": 0.03, "batch_size": 8}
DATA = "text:a.txt?window=16"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two models, trained once for so many epochs: where it is measured, what they learn means something."""
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text(TEXT * 30, encoding="utf-8")

    @functools.cache
    def trained(epochs):
        how = SMALL | {"epochs": epochs}
        return [train("gpt", f"text:{path}?window=16", **how, seed=seed) for seed in (1, 2)]

    return trained


def written(results, folder):
    (folder / "a.txt").write_text(TEXT * 30, encoding="utf-8")
    for name, result in zip("12", results, strict=True):
        metadata = result.metadata | {"rebasin.data": DATA}
        write_safetensors(folder / f"{name}.safetensors", result.tensors, metadata=metadata)
    return "1.safetensors", "2.safetensors"


@pytest.fixture
def pair(trained, tmp_path):
    return written(trained(SMALL["epochs"]), tmp_path)


@pytest.fixture
def novices(trained, tmp_path):
    return written(trained(1), tmp_path)


@pytest.mark.sweep
def test_language_models_are_aligned_merged_measured_and_doubted(done, pair):
    options = ("--data", DATA, "--limit", 60)
    aligned = done("align", *pair, "--method", "am", *options, "-o", "b.safetensors")
    assert "proven: outputs differ by" in aligned.out
    done("merge", *pair, "--data", DATA, "-o", "m.safetensors")
    told = open_checkpoint("m.safetensors").metadata
    assert told["rebasin.vocabulary"] == "".join(sorted(set(TEXT))) and told["rebasin.net"] == "gpt"
    assert tensors("m.safetensors")["blocks.0.attn.scale"].tolist() == pytest.approx([0.5, 0.5])

    ends = [done("eval", model, "--data", DATA, "--json").json() for model in pair]
    report = done("barrier", *pair, *options, "--json").json()
    windows = (len(TEXT * 30) // 10 - 1) // 16
    assert ends[0]["samples"] == report["data"]["samples"]["test"] == windows == 14
    for end, row in zip(ends, report["endpoints"], strict=True):
        assert row["test"]["loss"] == pytest.approx(end["loss"], rel=1e-5)
        assert end["loss"] < 2.5 and end["ece"] > 0
        low, high = row["test"]["intervals"]["loss"]
        assert low < end["loss"] < high
    assert report["data"]["unit"] == "windows of 16 characters" and report["data"]["normalization"] is None
    assert any("a sample is a window of 16 characters" in note for note in report["notes"])

    doctor = done("doctor", *pair, *options)
    assert "hidden0" in doctor.out


@pytest.mark.sweep
def test_another_text_is_read_with_the_characters_of_the_model(done, refused, pair, tmp_path):
    (tmp_path / "b.txt").write_text(TEXT[::-1].replace(",", "") * 30, encoding="utf-8")
    other = done("eval", pair[0], "--data", "text:b.txt?window=16", "--skip-checks", "--json").json()
    own = done("eval", pair[0], "--data", DATA, "--json").json()
    assert other["loss"] > own["loss"]  # backwards
    (tmp_path / "c.txt").write_text(TEXT.upper() * 30, encoding="utf-8")
    says = ("characters that the model's vocabulary of 15 has not", "'A'  U+0041")
    refused(6, "eval", pair[0], "--data", "text:c.txt", says=says)


def test_models_of_different_vocabularies_are_no_pair(done, refused, novices, tmp_path):
    (tmp_path / "b.txt").write_text(TEXT.replace("b", "x") * 30, encoding="utf-8")
    small = ("--width", 8, "--depth", 1, "--heads", 2, "--epochs", 1)
    done("train", "gpt", "--data", "text:b.txt?window=16", *small, "-o", "3.safetensors", "-q")
    says = ("texts of different characters", "3.safetensors  15 characters", "Train them on one text")
    refused(2, "barrier", novices[0], "3.safetensors", "--data", DATA, says=says)
    refused(2, "merge", novices[0], "3.safetensors", "-o", "m.safetensors", says=says)
    refused(2, "merge", novices[0], "3.safetensors", "--method", "none", "-o", "m.safetensors", says=says)


def test_a_path_that_a_file_records_is_not_opened(refused, novices):
    refused(2, "eval", novices[0], says="A file's word is not enough to open a path")


def test_vision_transformers_are_proven_and_merged(done):
    for seed in (1, 2):
        options = {"width": 16, "depth": 1, "norm": "rms", "activation": "swiglu", "positions": "rope"}
        fresh(f"{seed}.safetensors", "vit", seed=seed, **options)
    done("spec", "prove", "vit_rope", "1.safetensors")
    merged = done("merge", "1.safetensors", "2.safetensors", "-o", "m.safetensors", "--repair", "none")
    assert "vit_rope" in merged.out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("vit", "--heads", 3), "3 heads do not divide a width of 64"),
        (("vit", "--patch", 3), "patches of 3×3 do not divide images of 8×8"),
        (("mlp", "--patch", 2), "mlp has no option --patch"),
        (("gpt",), "gpt reads text, and digits is images"),
    ],
)
def test_options_that_fit_no_net_are_refused(refused, options, says):
    refused(2, "train", *options, "--data", "digits", "-o", "a.safetensors", says=says)
