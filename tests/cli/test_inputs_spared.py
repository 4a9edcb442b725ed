"""With --force nothing takes the place of what its command reads, and only regular files are replaced."""

import os
import shutil

import pytest

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.spec import library

from .conftest import contents


@pytest.fixture
def made(trained, done, tmp_path):
    """Two models, B aligned with its permutation, a curve, and a model in shards."""
    done("align", *trained, "-o", "b_aligned.safetensors")
    done("curve", *trained, "--epochs", 1, "--limit", 64, "-o", "ab.curve.safetensors")
    model = open_checkpoint(trained[1])
    write_safetensors("parts.safetensors", dict(model), metadata=dict(model.metadata), shard_size=2000)
    (tmp_path / "link.html").symlink_to(trained[0])
    os.link(trained[1], tmp_path / "hard.html")
    few = ("--method", "wm", "--points", 3, "--limit", 64)
    done("barrier", *trained, "--data", "digits", *few, "--report", "rep")
    shutil.copy(library.folder() / "mlp.yaml", "base.yaml")
    (tmp_path / "own.yaml").write_text("include: base\n")
    (tmp_path / "helper.py").write_text("from rebasin_cli.nets.mlp import MLP as build\n")
    (tmp_path / "net.py").write_text("from helper import build\n")
    (tmp_path / "folder").mkdir()
    write_safetensors(tmp_path / "folder" / "model.safetensors", dict(model), metadata=dict(model.metadata))
    (tmp_path / "folder" / "config.json").write_text("{}")
    return trained


REPORT = "rep/report.json"
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
    (("align", "{a}", "{b}", "-o", "{b}"), "b.safetensors"),
    (("merge", "{a}", "{b}", "-o", "{a}"), "a.safetensors"),
    (("merge", "{a}", "{b}", "-o", "m.safetensors", "--attest", "{a}"), "a.safetensors"),
    (("merge", "{a}", "parts.safetensors.index.json", "-o", "parts.safetensors"), "parts"),
    (("merge", "folder/", "{a}", "--method", "none", "-o", "folder/"), "folder/model.safetensors"),
    (("merge", "folder/", "{a}", "--method", "none", "-o", "folder/more.safetensors"), "is in a folder that"),
    (("barrier", "{a}", "folder", "--json-file", "folder/config.json"), "config.json"),
    (("barrier", "{a}", "{b}", "--html", "hard.html"), "hard.html"),
    (("barrier", "{a}", "{b}", "--html", "./rep/../hard.html"), "hard.html"),
    (("barrier", "{a}", "{b}", "--baseline", REPORT, "--report", "rep"), REPORT),
    (("barrier", "{a}", "{b}", "--baseline", REPORT, "--json-file", REPORT), "report.json"),
    (("barrier", "{a}", "{b}", "--baseline", REPORT, "--step-summary", REPORT), "report.json"),
    (("barrier", "{a}", "{b}", "--spec", "own.yaml", "--html", "base.yaml"), "base.yaml"),
    (("barrier", "{a}", "{b}", "--net", "net.py:build", "--html", "helper.py"), "helper.py"),
    (("curve", "{a}", "{b}", "--log", "{b}", "-o", "new.curve.safetensors"), "b.safetensors"),
    (("spec", "infer", "--net", "mlp", "--checkpoint", "{a}", "-o", "{a}"), "a.safetensors"),
    (("card", "{a}", "--recipe", "own.yaml", "-o", "own.yaml"), "own.yaml"),
]  # fmt: skip


def test_what_is_read_is_never_replaced(made, refused, tmp_path):
    parts = sorted(tmp_path.glob("parts-*.safetensors"))
    names = {"a": made[0], "b": made[1], "part": parts[1]}
    before = contents(tmp_path)
    for line, named in CASES:
        words = [str(word).format(**names) for word in line]
        without = ("verify", "card", "apply", "spec")
        command = (*words, "--data", "digits") if words[0] not in without and "none" not in words else words
        refused(2, *command, "--force", says=(named, "read", "this very command", "Name another file"))
    assert contents(tmp_path) == before


NO_FILES = {
    "link.html": "is a link, and none is followed",
    "lost.html": "is a link, and none is followed",
    "rep": "is a folder, not a file",
    "rep/": "is a folder, not a file",
    "pipe.html": "is not a regular file",
    "/dev/null": "is not a regular file",
    "/dev/stdout": "is a link",
    "net.py": "is Python code",
    "lostdir/x.html": "is a link to nothing, not a folder",
}


def test_nothing_is_written_but_regular_files(trained, refused, tmp_path):
    (tmp_path / "rep").mkdir()
    (tmp_path / "net.py").touch()
    (tmp_path / "other").write_text("mine")
    (tmp_path / "link.html").symlink_to("other")
    (tmp_path / "lost.html").symlink_to("nowhere")
    (tmp_path / "lostdir").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.html")
    files = {path: path.lstat() for path in tmp_path.rglob("*")}
    for name, says in NO_FILES.items():
        for option in ("--html", "--step-summary"):
            refused(2 if "dir" not in name or option == "--html" else 5,
                    "barrier", *trained, "--data", "digits", option, name, "--force",
                    says=says if "dir" not in name or option == "--html" else "no folder")  # fmt: skip
        refused(2, "merge", *trained, "-o", "m.safetensors", "--attest", name, "--force", says=says)
    assert {path: path.lstat() for path in tmp_path.rglob("*")}.keys() == files.keys()
    assert (tmp_path / "other").read_text() == "mine"


def test_two_outputs_are_two_files(trained, refused):
    both = ("merge", *trained, "-o", "m.safetensors", "--attest")
    refused(2, *both, "./m.safetensors", says="cannot be both the weights and the statement")
    both = ("barrier", *trained, "--data", "digits", "--html", "x", "--step-summary")
    refused(2, *both, "x", says="cannot be both the html and the step summary")
