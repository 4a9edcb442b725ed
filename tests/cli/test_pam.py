"""pam as a user runs it: aligned, interrupted, taken up again, and on to a curve."""

import json

from rebasin_cli.checkpoints.checkpoint import open_checkpoint

SHORT = ("--method", "pam", "--epochs", 2, "--limit", 300, "--batch-size", 50, "--data", "digits")


def test_pam_aligns_two_models_and_says_how_it_rounded(trained, done):
    few = ("--samples", 5, "--scored", 200, "--init", "identity")
    outcome = done("align", *trained, *SHORT, *few, "-o", "out.safetensors")
    assert (
        "pam from identity, 12 steps, mean loss of the line" in outcome.out
        and "draws below it: " in outcome.out
    )
    options = json.loads(open_checkpoint("out.safetensors").metadata["rebasin.options"])
    assert options["samples"] == 5 and options["epochs"] == 2 and options["batch_size"] == 50
    told = done("align", *trained, *SHORT, *few, "-o", "again.safetensors", "--json").json()["match"]
    rounded = told["rounded"]
    assert options["rounded"] == rounded["chosen"] and told["objective_after"] == -rounded["loss"]
    assert rounded["loss"] <= rounded["loss_start"] and rounded["draws"] == 5


def test_an_interrupted_pam_goes_on_to_the_same_bytes(trained, done, interrupted, refused, tmp_path):
    line = ("align", *trained, *SHORT, "--samples", 3)
    done(*line, "-o", "whole.safetensors", "--log", "whole.jsonl")
    assert interrupted(*line, "-o", "out.safetensors", after=5, task="matching") == {"out.search.safetensors"}
    refused(2, *line, "--nu", 5, "-o", "out.safetensors", "--resume", says="is from another search")
    assert "going on after step 5" in done(*line, "-o", "out.safetensors", "--resume").err
    for name in ("safetensors", "perm.safetensors"):
        whole, out = (tmp_path / f"{stem}.{name}" for stem in ("whole", "out"))
        assert whole.read_bytes() == out.read_bytes()
    steps = [json.loads(row) for row in (tmp_path / "whole.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps] == list(range(1, 13)) and all(row["loss"] > 0 for row in steps)


def test_its_permutation_goes_on_to_a_curve(trained, done, tmp_path):
    done("align", *trained, *SHORT, "--samples", 3, "-o", "b.safetensors")
    how = ("--epochs", 1, "--limit", 100, "--data", "digits", "-o", "ab.curve.safetensors")
    told = done("curve", *trained, "--perm", "b.perm.safetensors", *how, "--json").json()
    assert told["curve"]["steps"] == 1
    done("merge", *trained, "--curve", "ab.curve.safetensors", "--at", 1, "-o", "end.safetensors")
    assert open_checkpoint("end.safetensors").digest() == open_checkpoint("b.safetensors").digest()


def test_pam_says_what_it_needs_and_what_it_is_not_for(pair, trained, refused, done):
    refused(
        2, "align", *pair, "-m", "pam", "-o", "x.safetensors", says="the method pam runs the network on data"
    )
    refused(
        2, "align", *trained, "-m", "wm", "--nu", 3, "-o", "x.safetensors", says=("--nu", "It is for pam")
    )
    plan = done("align", *trained, "-m", "pam", "--dry-run", "--json").json()
    assert plan["not_estimated"] == "the training of pam (20 epochs)" and plan["search_parts"]["moved"] > 0
