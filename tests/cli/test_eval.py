"""rebasin eval."""

import pytest

from rebasin_cli.checkpoints.writing import write_safetensors

from .conftest import fresh, tensors


def test_loss_accuracy_and_calibration(trained, done):
    told = done("eval", trained[0], "--json").json()
    assert told["data"] == "digits" and told["split"] == "test" and told["samples"] == 360
    assert told["accuracy"] > 0.6 and told["loss"] < 1.6 and 0 <= told["ece"] <= 1
    train = done("eval", trained[0], "--split", "train", "--json", "-q")
    assert train.json()["samples"] == 1437 and train.err == ""


def test_limit(trained, done):
    assert done("eval", trained[0], "--limit", 50, "--json").json()["samples"] == 50


def test_the_wrong_normalisation_is_noticed(trained, refused, done):
    wrong = ["eval", trained[0], "--normalize", "5/0.01"]
    says = ("the models do not do what they were trained for", "--normalize", "--skip-checks")
    refused(6, *wrong, says=says)
    assert done(*wrong, "--skip-checks", "--json").json()["accuracy"] < 0.6


def test_a_model_at_chance_is_noticed(tmp_path, refused):
    fresh(tmp_path / "untrained.safetensors", width=8, depth=1)
    refused(6, "eval", "untrained.safetensors", "--data", "digits", says="chance is 0.1000")


def test_a_merged_model_may_be_at_chance(tmp_path, done):
    path = fresh(tmp_path / "untrained.safetensors", width=8, depth=1)
    write_safetensors("merged.safetensors", tensors(path), metadata={"rebasin.command": "merge"})
    assert done("eval", "merged.safetensors", "--data", "digits", "--json").json()["accuracy"] < 0.2


def test_metric_and_loss_of_ones_own(trained, done, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def loss(outputs, targets): return float('nan')\ndef metric(outputs, targets): return 0.25\n"
    )
    own = ["--loss", "mine.py:loss", "--metric", "mine.py:metric"]
    told = done("eval", trained[0], *own, "--json").json()
    assert told["accuracy"] == 0.25 and told["loss"] == "inf" and told["ece"] == "nan"


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--data", "digits", "--split", "tset"], 2, "Did you mean test?"),
        (["--data", "digist"], 2, "Did you mean digits"),
        ([], 2, ("no data set is named, and the checkpoints record none", "--data")),
        (["--data", "digits", "--normalize", "7"], 2, "is no normalization"),
        (["--data", "digits", "--metric", "nofile.py:metric"], 2, "nofile.py: no such file"),
        (["--data", "digits", "--output", "logits"], 6, "which has no 'logits'"),
        (["--data", "npz:pictures.npz"], 6, "the network fails on inputs float32"),
    ],
)
def test_refusals(tmp_path, resnets, refused, options, code, says):
    fresh(tmp_path / "model.safetensors", width=8, depth=1)
    refused(code, "eval", "model.safetensors", *options, says=says)


def test_more_classes_than_the_network_knows(tmp_path, refused):
    fresh(tmp_path / "few.safetensors", width=8, depth=1, classes=7)
    refused(6, "eval", "few.safetensors", "--data", "digits", says="the network knows 7 classes")
