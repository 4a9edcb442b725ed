"""rebasin kin."""

from pathlib import Path

import torch

from rebasin_cli.checkpoints.writer import write_safetensors

from .conftest import tensors


def written(path, model):
    write_safetensors(path, model, force=True)
    return path


def test_strangers_and_a_copy(pair, done):
    a = tensors(pair[0])
    copy = {name: tensor + 0.2 * tensors(pair[1])[name] for name, tensor in a.items()}
    told = done("kin", *pair, "--json").json()
    assert told["verdict"] != "derived in place" and told["in_place"]["p"] > 0.001
    assert told["in_place"]["draws"] == 999 and told["seed"] == 0 and told["left_out"]
    told = done("kin", pair[0], written("copy.safetensors", copy), "--json").json()
    assert told["verdict"] == "derived in place" and told["in_place"]["p"] == 0.001
    assert "derived in place" in done("kin", pair[0], "copy.safetensors").out


def test_a_verdict_may_fail_a_run(pair, run):
    missed = run("kin", pair[0], pair[0], "--fail-on", "derived")
    assert missed.code == 1 and "the verdict is derived in place" in missed.err
    assert run("kin", pair[0], pair[0], "--fail-on", "no-evidence").code == 0


def test_what_has_an_order_by_another_model_is_not_called_derived(pair, done):
    done("align", *pair, "-o", "aligned.safetensors")
    done("merge", *pair, "--method", "wm", "--repair", "none", "-o", "merged.safetensors")
    for moved in ("aligned.safetensors", "merged.safetensors"):
        told = done("kin", pair[0], moved, "--json").json()
        assert told["verdict"] == "undecided" or told["in_place"]["p"] > 0.001
        assert "derived" not in told["verdict"]
    done("merge", *pair, "--method", "none", "--repair", "none", "-o", "mean.safetensors")
    assert done("kin", pair[0], "mean.safetensors", "--json").json()["verdict"] == "derived in place"


def test_a_page_and_references(pair, relabelled, done):
    done("kin", *pair, "--reference", relabelled, "--html", "kin.html")
    page = Path("kin.html").read_text()
    assert "layers.1.weight" in page and "Kin: " in page and "of references" in page


def test_refusals(pair, refused):
    codes = tensors(pair[1])
    codes["layers.1.weight"] = codes["layers.1.weight"].to(torch.int8)
    written("codes.safetensors", codes)
    refused(3, "kin", pair[0], "codes.safetensors", says="layers.1.weight in codes.safetensors  int8")
    refused(2, "kin", *pair, "--draws", "100", says="Draw more: --draws 999")
    refused(2, "kin", *pair, "--fail-on", "kin", says="derived")


def test_a_file_that_no_spec_fits_is_named_once(run):
    odd = written("odd.safetensors", {"pos": torch.randn(3, 4), "w": torch.randn(4, 4)})
    refused = run("kin", odd, odd)
    assert refused.code and refused.err.count("odd.safetensors") == 1
