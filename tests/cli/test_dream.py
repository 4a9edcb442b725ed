"""`rebasin dream`: a data set of what models imagine, for commands that look at data."""

import json

import numpy as np
import pytest

from .conftest import fresh


def test_dreams_are_a_data_set_for_other_commands(trained, done, tmp_path):
    told = done("dream", *trained, "--images", 40, "--json").json()
    assert told["written"] == ["dreams.npz"] and told["use"] == "--data npz:dreams.npz"
    assert (told["images"], told["test_images"], told["classes"]) == (40, 4, 10)
    assert 0.8 < told["seen_as_their_class"] <= 1
    with np.load(tmp_path / "dreams.npz", allow_pickle=False) as arrays:
        assert arrays["x_train"].shape == (40, 1, 8, 8) and arrays["x_test"].shape == (4, 1, 8, 8)
        assert arrays["y_train"].tolist() == [k % 10 for k in range(40)]
        about = json.loads(str(arrays["about"]))
    assert told["classes"] == 10 and len(about["inputs"]) == 2 and about["steps"] == 30
    done("merge", *trained, "--method", "am", "--data", "npz:dreams.npz", "-o", "m.safetensors")
    score = done("eval", trained[0], "--data", "npz:dreams.npz", "--split", "train", "--json").json()
    assert score["accuracy"] > 0.8


def test_the_same_seed_writes_the_same_bytes(trained, done, tmp_path):
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        done("dream", *trained, "--images", 10, "--steps", 2, "--seed", seed, "-o", f"{name}.npz")
    one, again, other = ((tmp_path / f"{name}.npz").read_bytes() for name in ("one", "again", "other"))
    assert one == again != other


def test_form_and_pixels_are_those_of_the_data_set_that_models_record(trained, done, tmp_path):
    told = done("dream", *trained, "--images", 50)
    assert "images: 1×8×8, as digits has them, which the models record" in told.err
    assert "0.3054/0.3761" in told.err
    with np.load(tmp_path / "dreams.npz") as arrays:
        images = arrays["x_train"].astype(float)
    assert images.mean() == pytest.approx(0.3054, abs=1e-3)
    assert images.std() == pytest.approx(0.3761, abs=1e-3)
    done("dream", *trained, "--images", 50, "--pixels", "-1/2", "--input", "1x64", "-o", "others.npz")
    with np.load(tmp_path / "others.npz") as arrays:
        images = arrays["x_train"].astype(float)
    assert images.shape == (50, 64)
    assert images.mean() == pytest.approx(-1, abs=1e-2) and images.std() == pytest.approx(2, abs=1e-2)


def test_few_steps_are_warned_of(trained, done):
    told = done("dream", *trained, "--images", 20, "--steps", 1)
    assert "of the images are seen as their class by all" in told.err and "try more --steps" in told.err


def test_without_steps_the_images_are_noise_whatever_the_models(trained, done, tmp_path):
    told = done("dream", *trained, "--images", 60, "--steps", 0)
    assert "noise with the spectrum of photographs" in told.err and "try more --steps" not in told.err
    assert "nan" not in told.err
    done("dream", trained[0], "--images", 60, "--steps", 0, "-o", "alone.npz")
    with np.load(tmp_path / "dreams.npz") as both, np.load(tmp_path / "alone.npz") as alone:
        assert np.array_equal(both["x_train"], alone["x_train"])
        steps = np.square(np.diff(both["x_train"], axis=-1)).mean() / both["x_train"].var()
    assert steps < 1  # of white noise it is 2


def test_what_is_there_is_not_overwritten(trained, done, refused, tmp_path):
    (tmp_path / "dreams.npz").write_bytes(b"mine")
    refused(2, "dream", *trained, "--images", 1, says="dreams.npz exists")
    done("dream", *trained, "--images", 1, "--force")


@pytest.mark.parametrize(
    "arguments, code, saying",
    [
        (["-o", "dreams.safetensors"], 2, "images are written as .npz"),
        (["--input", "2x8:int30"], 2, "dreams are images or vectors"),
        (["--pixels", "0.1"], 2, "--pixels '0.1': expected MEAN/STD"),
        (["--pixels", "dataset"], 2, "expected MEAN/STD"),
        (["--pixels", "0,1,2/1,1,1"], 2, "have 3 channels, the images (1, 8, 8)"),
        (["--input", "1x3x8"], 2, "neither images"),
    ],
)
def test_what_cannot_be_is_told(trained, refused, arguments, code, saying):
    refused(code, "dream", *trained, *arguments, says=saying)


def test_models_of_other_shapes_are_refused(trained, refused, tmp_path):
    wider = fresh(tmp_path / "wider.safetensors", width=24, depth=1)
    refused(4, "dream", trained[0], wider, says="wider.safetensors")


RECIPE = """
rebasin: 1
inputs: {{a: {}, b: {}}}
output_dir: out
steps:
  - name: imagined
    dream: {{models: [a, b], images: 20, steps: 5}}
  - merge: {{models: [a, b], method: am, data: "{}", repair: none}}
"""


@pytest.mark.parametrize("data", ["npz:imagined", "npz:out/imagined.npz"])
def test_a_step_of_a_recipe_looks_at_what_an_earlier_one_imagined(trained, done, tmp_path, data):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(RECIPE.format(*trained, data))
    assert "── merge: after imagined" in done("run", recipe, "--dry-run").out
    done("run", recipe)
    assert (tmp_path / "out/imagined.npz").exists() and (tmp_path / "out/merge.safetensors").exists()
    recipe.write_text(recipe.read_text().replace("steps: 5", "steps: 6"))
    again = done("run", recipe).out
    assert "── imagined: done" in again and "── merge: done" in again
