"""rebasin eval."""

import numpy as np
import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors

from .conftest import fresh, tensors


def test_loss_accuracy_and_calibration(trained, done):
    told = done("eval", trained[0], "--json").json()
    assert told["data"] == "digits" and told["split"] == "test" and told["samples"] == 360
    assert told["accuracy"] > 0.6 and told["loss"] < 1.6 and 0 <= told["ece"] <= 1
    train = done("eval", trained[0], "--split", "train", "--json", "-q")
    assert train.json()["samples"] == 1437 and train.err == ""


def test_bins_of_the_calibration_error(trained, done):
    told = done("eval", trained[0], "--bins", 10, "--json").json()
    assert told["bins"] == 10 and sum(told["reliability"]["samples"]) == 360
    assert all(
        (sure is None) == (not count)
        for count, sure in zip(*list(told["reliability"].values())[:2], strict=True)
    )
    weighted = [
        count * abs(sure - right)
        for count, sure, right in zip(*told["reliability"].values(), strict=True)
        if count
    ]
    assert told["ece"] == pytest.approx(sum(weighted) / 360)
    assert len(told["reliability"]["samples"]) == 10
    default = done("eval", trained[0], "--json").json()
    assert default["bins"] == len(default["reliability"]["samples"]) == 15
    one = done("eval", trained[0], "--bins", 1, "--json").json()
    mean_confidence, accuracy = (one["reliability"][name][0] for name in ("confidence", "accuracy"))
    assert one["ece"] == pytest.approx(abs(mean_confidence - accuracy)) and one["ece"] <= told["ece"] + 1e-12
    assert "reliability" not in done("eval", trained[0]).out


def test_limit(trained, done):
    assert done("eval", trained[0], "--limit", 50, "--json").json()["samples"] == 50


def test_the_wrong_normalisation_is_noticed(trained, refused, done):
    wrong = ["eval", trained[0], "--normalize", "5/0.01"]
    says = ("the models do not do what they were trained for", "--normalize", "--skip-checks")
    refused(6, *wrong, says=says)
    assert done(*wrong, "--skip-checks", "--json").json()["accuracy"] < 0.6


def test_another_normalisation_that_fits_better_is_pointed_out(tmp_path, done):
    """Labels that say whether a picture is bright: of inputs moved, the threshold is another."""
    inputs = np.random.default_rng(0).integers(0, 256, (300, 1, 4, 4), dtype=np.uint8)
    inputs[::2] //= 2
    labels = np.arange(300) % 2
    np.savez(tmp_path / "bright.npz", x_train=inputs, y_train=labels, x_test=inputs, y_test=labels)
    (tmp_path / "theirs.py").write_text(
        "from torch import nn\nimport torch\n"
        "class Bright(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.at = nn.Parameter(torch.tensor(0.375))\n"
        "    def forward(self, x):\n"
        "        over = (x.flatten(1).mean(1) - self.at)[:, None]\n"
        "        return torch.cat([-over, over], 1)\n"
    )
    write_safetensors("bright.safetensors", {"at": torch.tensor(0.375)})
    wanted = ["eval", "bright.safetensors", "--net", "theirs.py:Bright", "--data", "npz:bright.npz"]
    assert "warning" not in done(*wanted).err
    shifted = done(*wanted, "--normalize", "0.4/0.3", "--skip-checks").err
    assert "warning" not in shifted  # nobody wants to know
    shifted = done(*wanted, "--normalize", "0.4/0.3").err
    assert (
        "bright.safetensors loses clearly less with --normalize unit (0.0/1.0) than normalised 0.4/0.3: "
        in (shifted)
    )


def test_every_command_that_measures_endpoints_says_what_they_lose_less_with(trained, tmp_path, done, run):
    """Files that say nothing of what they were trained on, which was digits in 0–1."""
    bare = [
        str(write_bare(tmp_path / f"{n}.safetensors", tensors(p))) for n, p in zip("ab", trained, strict=True)
    ]
    wrong, few = ["--data", "digits", "--normalize", "-2/0.5"], ["--limit", "300"]
    said = "lose clearly less with --normalize unit (0.0/1.0) than normalised -2.0/0.5: "
    commands = {
        "barrier": ["--method", "wm", "--points", "3", "--repair", "none"],
        "compare": ["--method", "wm"],
        "merge": ["--method", "am", "-o", "m.safetensors"],
        "doctor": [],
        "signature": [],
        "curve": ["-o", "c.curve.safetensors", "--epochs", "1"],
    }
    for command, more in commands.items():
        told = run(command, *bare, *wrong, *few, *more).err
        assert told.count(said) == 1, (command, told)
        right = [word if word != "-2/0.5" else "unit" for word in wrong]
        if command == "doctor":
            assert "warning" not in done(command, *bare, *right, *few).err
    assert said not in run("doctor", *bare, *wrong, *few, "--skip-checks").err
    alone = run("eval", bare[0], *wrong)
    assert "a.safetensors loses clearly less with --normalize unit" in alone.err
    stopped = run("eval", trained[0], *wrong)  # it is below what its file records
    assert stopped.code == 6 and "Give --normalize unit; measure all the same" in stopped.err
    assert "warning" not in done("eval", trained[0]).err  # its file says what it was trained with


def write_bare(path, values):
    write_safetensors(path, values)
    return path


def test_what_a_bare_name_means_is_said(trained, done):
    assert "inputs normalised 0.0/1.0\n" in done("eval", trained[0]).err  # as its file says
    write_safetensors("bare.safetensors", tensors(trained[0]))
    told = done("eval", "bare.safetensors", "--data", "digits").err
    assert "normalised 0.0/1.0 (unit, its default; --normalize dataset: 0.3054/0.3761)" in told


def test_training_samples_are_held_against_what_the_file_records(trained, tmp_path, done):
    recorded = open_checkpoint(trained[0]).metadata | {"rebasin.train_accuracy": "0.9999"}
    write_safetensors("proud.safetensors", tensors(trained[0]), metadata=recorded)
    measured = ["--split", "train", "--limit", 600]
    assert "warning: the accuracy is" in done("eval", "proud.safetensors", *measured).err
    assert "warning" not in done("eval", trained[0], *measured).err


def test_a_model_at_chance_is_noticed(tmp_path, refused):
    fresh(tmp_path / "untrained.safetensors", width=8, depth=1)
    refused(6, "eval", "untrained.safetensors", "--data", "digits", says="chance is 0.1000")


def test_a_merged_model_may_be_at_chance(tmp_path, done):
    path = fresh(tmp_path / "untrained.safetensors", width=8, depth=1)
    write_safetensors("merged.safetensors", tensors(path), metadata={"rebasin.command": "merge"})
    assert done("eval", "merged.safetensors", "--data", "digits", "--json").json()["accuracy"] < 0.2


def test_metric_and_loss_of_ones_own(trained, done, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def loss(outputs, targets): return 7.5\ndef metric(outputs, targets): return 0.25\n"
    )
    own = ["--loss", "mine.py:loss", "--metric", "mine.py:metric"]
    told = done("eval", trained[0], *own, "--json").json()
    assert (told["metric"], told["loss"]) == (0.25, 7.5) and not {"accuracy", "ece"} & told.keys()
    assert told["measured"]["loss"]["name"] == "loss" and told["measured"]["loss"]["unit"] == ""
    assert [metric["name"] for metric in told["measured"]["metrics"]] == ["metric"]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--data", "digits", "--split", "tset"], 2, "Did you mean test?"),
        (["--data", "digist"], 2, "Did you mean digits"),
        ([], 2, ("no data set is named, and the checkpoints record none", "--data")),
        (["--data", "digits", "--normalize", "7"], 2, "is no normalization"),
        (["--data", "digits", "--metric", "nofile.py:metric"], 2, "nofile.py: no such file"),
        *(
            (["--data", "digits", "--loss", name], 2, f"such as torch.nn.functional:{known},")
            for name, known in (
                ("mse", "mse_loss"),
                ("nn.SmoothL1Loss", "smooth_l1_loss"),
                ("my", "mse_loss"),
            )
        ),
        (["--data", "digits", "--loss", "ce"], 2, "cross-entropy is what is measured without it"),
        (["--data", "digits", "--metric", "accuracy"], 2, "accuracy is what is measured without it"),
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


def test_what_a_network_prints_goes_to_stderr(tmp_path, trained, done):
    (tmp_path / "loud.py").write_text(
        "from rebasin_cli.nets.mlp import MLP\n"
        'print("imported")\n'
        "def net():\n"
        '    print("made")\n'
        "    return MLP([64, 16, 10])\n"
    )
    outcome = done("eval", trained[0], "--net", "loud.py:net", "--data", "digits", "--json")
    assert outcome.json()["samples"] == 360
    assert "imported\n" in outcome.err and "made\n" in outcome.err


def test_gates_end_it_with_exit_code_1_after_the_figures(trained, run, done):
    figures = done("eval", trained[0], "--json").json()
    assert "gates" not in figures
    spare = [f"ece <= {figures['ece'] + 0.01}", f"accuracy >= {100 * figures['accuracy']}%"]
    asked = [word for gate in spare for word in ("--gate", gate)]
    met = done("eval", trained[0], *asked, "--json").json()["gates"]
    assert [(gate["text"], gate["met"]) for gate in met] == [(gate, True) for gate in spare]
    assert [gate["measured"] for gate in met] == [figures["ece"], figures["accuracy"]]
    missed = run("eval", trained[0], *asked, "--gate", "test loss <= 0.01")
    assert missed.code == 1 and f"{figures['loss']:.6g}" in missed.out
    assert f"✓ met  {spare[0]}" in missed.out and "✗ not met  test loss <= 0.01" in missed.out
    assert "1 of 3 gates not met" in missed.err and "test: loss is" in missed.err
    assert "wanted at most 0.01 nats" in missed.err
    train = run("eval", trained[0], "--split", "train", "--gate", "loss <= 0.01", "--json")
    assert train.code == 1 and train.json()["gates"][0]["detail"].startswith("train: loss is ")


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ("barrier <= 0.05", ("unknown figure 'barrier'", "figures: loss, accuracy, ece")),
        ("acuracy >= 0.9", ("Did you mean accuracy?", "figures: loss, accuracy, ece")),
        ("ece 0.05", ("has no comparison", "figures: loss, accuracy, ece")),
        ("test <= 0.05", "names no figure"),
        ("ece >= 0.05", "expected calibration error is better when smaller, found '>='"),
        ("ece <= 5", "Expected calibration error is 0–1: did you mean 0.05?"),
        ("loss <= low", "'low' is not a number"),
        ("train loss <= 1", "names train, and one split is measured, test"),
    ],
)
def test_a_bad_gate_is_refused_before_anything_is_opened(refused, gate, says):
    refused(2, "eval", "nowhere.safetensors", "--gate", gate, says=says)


def test_a_loss_of_ones_own_has_no_calibration_to_hold_a_gate_against(refused, tmp_path):
    (tmp_path / "mine.py").write_text("def loss(outputs, targets): return 0.0\n")
    says = ("with --loss no ece is measured", "figures: loss, accuracy, class accuracy\n")
    refused(2, "eval", "nowhere.safetensors", "--loss", "mine.py:loss", "--gate", "ece <= 0.1", says=says)


def test_a_step_of_a_recipe_has_gates_that_are_told_one_by_one(trained, run, refused, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    step = f"rebasin: 1\nsteps:\n- eval: {{models: ['{trained[0]}'], gate: ['%s', 'loss <= 9']}}\n"
    recipe.write_text(step % "barrier <= 0.1")
    refused(2, "run", recipe, says="figures: loss, accuracy, ece")
    recipe.write_text(step % "ece <= 0.000001")
    missed = run("run", recipe, "--junit", "gates.xml")
    assert missed.code == 1 and "1 of 2 gates not met" in missed.err and "✓ met  loss <= 9" in missed.out
    cases = (tmp_path / "gates.xml").read_text()
    assert 'tests="2"' in cases and 'failures="1"' in cases and "loss &lt;= 9" in cases
    recipe.write_text(step % "ece <= 0.9")
    assert run("run", recipe).code == 0
    again = run("run", recipe)
    assert again.code == 0 and "unchanged" in again.out and "✓ met  ece <= 0.9" in again.out
