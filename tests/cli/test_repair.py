"""rebasin repair."""

import numpy as np
import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint

from .conftest import same, tensors


@pytest.fixture
def merged(trained, done):
    """A merged by a permutation with B, and what it was made of."""
    done("align", *trained, "-o", "b.safetensors")
    done("merge", trained[0], "b.safetensors", "--method", "none", "--repair", "none", "-o", "m.safetensors")
    return "m.safetensors", trained[0], "b.safetensors"


@pytest.mark.parametrize("repair", ["repair", "rescale", "reshift"])
def test_the_same_as_repairing_while_merging(merged, trained, done, repair):
    model, a, b = merged
    outcome = done("repair", model, "--endpoints", a, b, "--repair", repair)
    assert "written              m_repaired.safetensors" in outcome.out
    assert (
        f"repair               {repair}" in outcome.out and "head: it is the network's output" in outcome.out
    )
    done("merge", *trained, "--method", "wm", "--repair", repair, "-o", "whole.safetensors")
    assert same("m_repaired.safetensors", "whole.safetensors")
    told = open_checkpoint("m_repaired.safetensors").metadata
    assert told["rebasin.command"] == "repair" and told["rebasin.data"] == "digits"
    assert '"lambda": 0.5' in told["rebasin.options"]


def test_a_refit_is_the_same_as_while_merging(merged, trained, done):
    model, a, b = merged
    outcome = done(
        "repair", model, "--endpoints", a, b, "--repair", "refit", "--repair-samples", "300", "--ridge", "0.1"
    )
    assert "2 layers fitted to the mean of what the models compute there, on 300 samples" in outcome.err
    assert "inputs that are always 0 stay as averaged" in outcome.err  # corners of digits
    assert "repair               refit" in outcome.out
    asked = ("--repair", "refit", "--repair-samples", "300", "--ridge", "0.1")
    found = done("merge", *trained, "--method", "wm", *asked, "-o", "whole.safetensors", "--json").json()
    assert found["repair"] == "refit" and found["repaired_layers"] == 2 and found["left"] == {}
    assert same("m_repaired.safetensors", "whole.safetensors")
    told = open_checkpoint("whole.safetensors").metadata["rebasin.options"]
    assert '"repair": "refit"' in told and '"ridge": 0.1' in told and '"samples": 300' in told
    done("merge", *trained, "--repair", "refit", "-o", "other.safetensors")
    assert not same("other.safetensors", "whole.safetensors")
    assert '"samples": 1000' in open_checkpoint("other.safetensors").metadata["rebasin.options"]


def test_a_distillation_is_the_same_as_while_merging(merged, trained, done):
    model, a, b = merged
    asked = ("--repair", "distill", "--repair-samples", "200")
    outcome = done("repair", model, "--endpoints", a, b, *asked)
    assert "compute there, and trained towards their outputs, on 200 samples" in outcome.err
    planned = done("merge", *trained, *asked, "--dry-run", "--json").json()
    refit = done("merge", *trained, "--repair", "refit", "--dry-run", "--json").json()
    assert planned["repair_layers"] == refit["repair_layers"]
    assert planned["repair_bytes"] > refit["repair_bytes"]
    found = done("merge", *trained, "--method", "wm", *asked, "-o", "whole.safetensors", "--json").json()
    assert found["repair"] == "distill" and found["repaired_layers"] == 2
    assert same("m_repaired.safetensors", "whole.safetensors")
    told = open_checkpoint("whole.safetensors").metadata["rebasin.options"]
    assert '"repair": "distill"' in told and '"ridge": 0.01' in told and '"samples": 200' in told
    done("merge", *trained, "--repair", "refit", "--repair-samples", "200", "-o", "refit.safetensors")
    assert not same("refit.safetensors", "whole.safetensors")


@pytest.mark.parametrize("how", ["refit", "distill"])
def test_a_refit_looks_at_no_label(merged, done, tmp_path, how):
    model, a, b = merged
    rng = np.random.default_rng(0)
    shown = rng.integers(0, 256, (64, 1, 8, 8), dtype=np.uint8)
    for name in ("one", "two"):
        labels = rng.integers(0, 10, 64)
        np.savez(tmp_path / "noise.npz", x_train=shown, y_train=labels, x_test=shown, y_test=labels)
        asked = ("--repair", how, "--data", "npz:noise.npz")
        done("repair", model, "--endpoints", a, b, *asked, "-o", f"{name}.safetensors")
    assert same("one.safetensors", "two.safetensors")


def test_a_network_with_batchnorm_is_refitted_norms_too(resnets, done):
    merge = ("merge", *resnets, "--method", "none", "--data", "npz:pictures.npz", "--repair", "refit")
    planned = done(*merge, "--dry-run", "-o", "m.safetensors", "--json").json()
    outcome = done(*merge, "-o", "m.safetensors", "--json")
    assert outcome.json()["repaired_layers"] == len(planned["repair_layers"]) == 22
    assert planned["repair_left"] == outcome.json()["left"] == {}
    assert 1 << 30 < planned["repair_bytes"] < 2 << 30
    merged, ends = tensors("m.safetensors"), [tensors(path) for path in resnets]
    for name in ("layer1.0.bn1.running_mean", "layer3.2.bn2.running_var", "conv1.weight", "fc.bias"):
        mean = (ends[0][name] + ends[1][name]) / 2
        assert merged[name].isfinite().all() and not torch.equal(merged[name], mean)


def test_with_the_permutation_that_was_used(merged, trained, done):
    model, a, b = merged
    done("repair", model, "--endpoints", a, b, "-o", "one.safetensors")
    done("repair", model, "--endpoints", *trained, "--perm", "b.perm.safetensors", "-o", "two.safetensors")
    assert same("one.safetensors", "two.safetensors")


def test_endpoints_and_the_merged_model_stay_as_they_are(merged, done):
    before = [tensors(path) for path in merged]
    done("repair", merged[0], "--endpoints", *merged[1:], "--json")
    assert all(
        torch.equal(t, tensors(p)[n]) for p, b in zip(merged, before, strict=True) for n, t in b.items()
    )


def test_auto_is_measured_where_the_user_asked_for_it_though_only_names_tell_the_network(pair, done):
    done("align", *pair, "-o", "moved.safetensors")
    done("merge", pair[0], "moved.safetensors", "--method", "none", "--repair", "none", "-o", "m.safetensors")
    asked = ("--repair", "auto", "--data", "digits", "--json")
    outcome = done("repair", "m.safetensors", "--endpoints", pair[0], "moved.safetensors", *asked)
    assert outcome.json()["held_out_loss"].keys() == {"none", "repair"}
    whole = done("merge", pair[0], "moved.safetensors", "--method", "none", "--data", "digits", "--force")
    assert "only the tensors' names tell the network" in whole.err  # there it is a default


def test_biases_of_a_merged_model(merged, done):
    model, a, b = merged
    outcome = done("repair", model, "--endpoints", a, b, "--repair", "bias", "--json").json()
    assert outcome["repair"] == "bias" and outcome["repaired_layers"] == 2


def test_batchnorm_is_reset(resnets, done):
    done("merge", *resnets, "--repair", "none", "--method", "none", "-o", "m.safetensors")
    data = ["--data", "npz:pictures.npz"]
    outcome = done("repair", "m.safetensors", "--endpoints", *resnets, *data)
    assert "reset takes the place of repair" in outcome.err and "repair               reset" in outcome.out


def test_what_is_refused(merged, trained, refused):
    model, a, b = merged
    repair = ("repair", model, "--endpoints")
    refused(4, *repair, *trained, says=("does not lie between the endpoints at λ = 0.5", "--perm FILE"))
    refused(2, *repair, a, b, "--lambda", "1", says="--lambda 1 is not between")
    refused(2, *repair, a, b, "--repair", "repare", says="Did you mean repair")
    refused(2, *repair, a, b, "--repair", "none", says="unknown repair")
    refused(2, *repair, a, b, "-o", model, says="is read by this very command")
    refused(2, *repair, a, b, "--repair", "reset", says="no running statistics to reset")
    refused(
        2, *repair, a, b, "--repair-samples", "9", says="--repair-samples is for --repair refit or distill"
    )
    refused(2, *repair, a, b, "--ridge", "0.1", says="--ridge is for --repair refit or distill")
    refused(2, *repair, a, b, "--data", "digitz", says="Did you mean digits?")
    refused(3, *repair, a, "nowhere.safetensors", says="nowhere.safetensors")


def test_auto_leaves_a_model_that_no_repair_makes_better(merged, trained, done):
    model, a, b = merged
    outcome = done("repair", model, "--endpoints", a, b, "--repair", "auto", "-o", "auto.safetensors")
    assert "repair: --repair auto chose " in outcome.err
    done("merge", trained[0], trained[0], "--repair", "none", "-o", "own.safetensors")
    ends = ("--endpoints", trained[0], trained[0])
    outcome = done("repair", "own.safetensors", *ends, "--repair", "auto", "-o", "same.safetensors")
    assert "--repair auto chose none" in outcome.err and same("own.safetensors", "same.safetensors")


def test_a_temperature_is_baked_in_on_request(merged, trained, done):
    model, a, b = merged
    repair = ("repair", model, "--endpoints", a, b)
    done(*repair, "-o", "plain.safetensors")
    told = done(*repair, "--bake-temperature", "-o", "sure.safetensors", "--json").json()["temperature"]
    plain, sure = tensors("plain.safetensors"), tensors("sure.safetensors")
    assert told["layer"] == "head" and told["loss_after"] < told["loss_before"]
    for name in plain:
        torch.testing.assert_close(sure[name], plain[name] / told["value"] if "head" in name else plain[name])
    options = [
        open_checkpoint(f"{name}.safetensors").metadata["rebasin.options"] for name in ("plain", "sure")
    ]
    assert "temperature" not in options[0] and f'"value": {told["value"]}' in options[1]
    how = ("--method", "wm", "--repair", "repair", "--bake-temperature")
    done("merge", *trained, *how, "-o", "whole.safetensors")
    assert same("sure.safetensors", "whole.safetensors")


def test_a_refit_without_data_says_that_it_needs_some_but_no_labels(pair, done, refused):
    says = ("--repair refit fits layers on training samples", "need no labels")
    refused(2, "merge", *pair, "--repair", "refit", "-o", "m.safetensors", says=says)


def test_auto_without_data_says_that_it_lacks_some(pair, done, refused):
    done("align", *pair, "-o", "moved.safetensors")
    done("merge", pair[0], "moved.safetensors", "--method", "none", "--repair", "none", "-o", "m.safetensors")
    says = ("no data set is named", "--data")
    refused(
        2,
        "repair",
        "m.safetensors",
        "--endpoints",
        pair[0],
        "moved.safetensors",
        "--repair",
        "auto",
        says=says,
    )
