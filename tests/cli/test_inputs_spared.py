"""With --force nothing but a model takes the place of what its command reads, and only that of a model."""

import shutil

import pytest

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writing import write_safetensors

from .conftest import contents


@pytest.fixture
def made(trained, done, tmp_path):
    """Two models, B aligned with its permutation, a curve, and a model in shards."""
    done("align", *trained, "-o", "b_aligned.safetensors")
    done("curve", *trained, "--epochs", 1, "--limit", 64, "-o", "ab.curve.safetensors")
    model = open_checkpoint(trained[1])
    write_safetensors("parts.safetensors", dict(model), metadata=dict(model.metadata), shard_size=2000)
    (tmp_path / "link.html").symlink_to(trained[0])
    return trained


CURVE, PERM = "ab.curve.safetensors", "b_aligned.perm.safetensors"
CASES = [
    (("plane", "{a}", "{b}", "--json-file", "{b}"), "b.safetensors"),
    (("plane", "{a}", "{b}", "--curve", CURVE, "--plot", CURVE), CURVE),
    (("plane", "{a}", "{b}", "--perm", PERM, "--html", PERM), PERM),
    (("plane", "{a}", "parts.safetensors.index.json", "--html", "{part}"), "parts-00002"),
    (("barrier", "{a}", "{b}", "--json-file", "{a}"), "a.safetensors"),
    (("barrier", "{a}", "{b}", "--html", "link.html"), "link.html"),
    (("barrier", "{a}", "{b}", "--curve", CURVE, "--markdown", CURVE), CURVE),
    (("barrier", "{a}", "{a}", "--pair", "{a},{b}", "--png", "{b}"), "b.safetensors"),
    (("barrier", "{a}", "{b}", "--step-summary", "{b}"), "b.safetensors"),
    (("compare", "{a}", "{b}", "--html", "{b}"), "b.safetensors"),
    (("signature", "{a}", "{b}", "--curve", CURVE, "--plot", CURVE), CURVE),
    (("signature", "{a}", "{b}", "--html", "{a}"), "a.safetensors"),
    (("doctor", "{a}", "{b}", "--html", "{a}"), "a.safetensors"),
    (("verify", "{a}", "{b}", "--out", "{b}"), "b.safetensors"),
    (("merge", "{a}", "{b}", "--curve", CURVE, "--at", 0.5, "-o", CURVE), CURVE),
    (("merge", "{a}", "{b}", "--perm", PERM, "-o", PERM), PERM),
    (("apply", PERM, "{b}", "-o", PERM), PERM),
    (("curve", "{a}", CURVE, "-o", CURVE), CURVE),
    (("card", "{a}", "-o", "{a}"), "a.safetensors"),
]  # fmt: skip


def test_what_is_read_is_never_replaced(made, refused, tmp_path):
    parts = sorted(tmp_path.glob("parts-*.safetensors"))
    names = {"a": made[0], "b": made[1], "part": parts[1]}
    before = contents(tmp_path)
    for line, named in CASES:
        words = [str(word).format(**names) for word in line]
        command = (*words, "--data", "digits") if words[0] not in ("verify", "card", "apply") else words
        refused(2, *command, "--force", says=(named, "is read by this very command", "Name another file"))
    assert contents(tmp_path) == before


def test_a_model_may_still_take_the_place_of_one_that_it_is_made_of(made, done, tmp_path):
    shutil.copy(made[1], tmp_path / "mine.safetensors")
    done("align", made[0], "mine.safetensors", "-o", "mine.safetensors", "--force")
    assert open_checkpoint("mine.safetensors").digest() == open_checkpoint("b_aligned.safetensors").digest()
