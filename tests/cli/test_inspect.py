"""rebasin inspect."""

import hashlib

import torch

from rebasin_cli.checkpoints.writer import write_safetensors

from .conftest import tensors


def test_what_is_in_a_file_and_where_it_comes_from(pair, done):
    done("merge", *pair, "--weights", "0.25,0.75")
    outcome = done("inspect", "merged.safetensors").out
    for words in (
        "merged.safetensors: safetensors, 8 tensors, 1,222 numbers",
        "architecture  mlp",
        "rebasin.command              merge",
        '"weights": [0.25, 0.75]',
        "rebasin.proof                proven",
        "layers.1.weight                                  float32   12×12",
    ):
        assert words in outcome
    told = done("inspect", "merged.safetensors", "--json").json()
    assert told["provenance"]["rebasin.seed"] == "0" and len(told["sha256"]) == 64
    assert told["tensors"]["head.weight"] == {"shape": [10, 12], "dtype": "float32"}


def test_digests_of_what_it_holds_and_of_its_bytes(pair, done, tmp_path):
    path = tmp_path / "again.safetensors"
    write_safetensors(path, tensors(pair[0]), metadata={"told": "other bytes"})
    one, other = (done("inspect", str(file), "--json").json() for file in (pair[0], path))
    assert one["sha256"] == other["sha256"]
    for told, file in ((one, pair[0]), (other, path)):
        assert told["file_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert one["file_sha256"] != other["file_sha256"]
    assert f"file sha256   {one['file_sha256']}, of the bytes" in done("inspect", str(pair[0])).out


def test_the_digest_of_the_bytes_is_a_pin_of_a_recipe(pair, done, refused, tmp_path):
    recipe = "inputs: {a: {path: a.safetensors, sha256: PIN}}\nsteps: [inspect: {models: [a]}]\n"
    told = done("inspect", "a.safetensors", "--json").json()
    (tmp_path / "recipe.yaml").write_text(recipe.replace("PIN", told["file_sha256"]))
    done("run", "recipe.yaml", "--dry-run")
    (tmp_path / "recipe.yaml").write_text(recipe.replace("PIN", told["sha256"]))
    refused(2, "run", "recipe.yaml", "--dry-run", says="not the one that is pinned")


def test_a_folder_has_the_digest_of_its_values_alone(pair, done, tmp_path):
    (tmp_path / "m").mkdir()
    write_safetensors(tmp_path / "m" / "a.safetensors", tensors(pair[0]))
    told = done("inspect", "m", "--json").json()
    assert told["sha256"] == done("inspect", str(pair[0]), "--json").json()["sha256"]
    assert told["file_sha256"] is None and "file sha256" not in done("inspect", "m").out


def test_envelopes(pair, done, tmp_path):
    state = tensors(pair[0])
    torch.save({"epoch": 1, "state_dict": state, "ema": {"shadow": state}}, tmp_path / "a.pt")
    outcome = done("inspect", "a.pt").out
    assert "the weights are those under 'state_dict'" in outcome and "for --key: ema.shadow" in outcome
    assert done("inspect", "a.pt", "--key", "ema.shadow", "--json").json()["envelope"] == "ema.shadow"


def test_what_cannot_be_merged_can_be_looked_at(tmp_path, done):
    write_safetensors(tmp_path / "odd.safetensors", {"w": torch.ones(2, 2, dtype=torch.int8)})
    assert "no built-in spec fits" in done("inspect", "odd.safetensors").out
    torch.save({"w": torch.ones(2, dtype=torch.complex128)}, tmp_path / "odd.pt")
    assert "note          no digest: w is torch.complex128" in done("inspect", "odd.pt").out


def test_a_missing_file(refused):
    refused(3, "inspect", "nowhere.pt", says="nowhere.pt: no such file")
