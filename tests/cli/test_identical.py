"""Two identical runs leave identical files and figures, but for one field with their times."""

import re

import pytest

MEASURE = ("barrier", "compare", "signature", "doctor", "eval")
MAKE = ("align", "merge", "repair", "train")


def without_times(outcome):
    found = outcome.json()
    found.pop("times", None)
    return found


def command(name, a, b):
    out = ("-o", "out.safetensors", "--force")
    return {
        "barrier": ("barrier", a, b, "--limit", 50, "--budget", "30G", "--points", 5),
        "compare": ("compare", a, b, "--limit", 50, "--points", 1),
        "signature": ("signature", a, b, "--limit", 50),
        "doctor": ("doctor", a, b),
        "eval": ("eval", a),
        "align": ("align", a, b, *out),
        "merge": ("merge", a, b, "--budget", "30G", *out),
        "repair": ("repair", "merged.safetensors", "--endpoints", a, b, "--perm", "b.perm.safetensors", *out),
        "train": ("train", "mlp", "--data", "digits", "--epochs", 1, "--width", 4, "--depth", 1, *out),
    }[name]


@pytest.mark.sweep
@pytest.mark.parametrize("name", MEASURE + MAKE)
def test_json_of_identical_runs_differs_in_times_only(name, trained, done):
    if name == "repair":
        done("align", *trained, "-o", "b.safetensors", "-q")
        done("merge", *trained, "--method", "wm", "-o", "merged.safetensors", "-q")
    line = (*command(name, *trained), "-q", "--json")
    one, two = done(*line), done(*line)
    assert without_times(one) == without_times(two)
    if name not in ("doctor", "eval", "train", "repair"):  # these tell no times
        assert one.json()["times"]


@pytest.mark.parametrize("name", ["barrier", "compare"])
def test_a_plan_has_its_estimate_in_the_same_field(name, trained, done):
    line = (*command(name, *trained), "--dry-run", "-q", "--json")
    assert without_times(done(*line)) == without_times(done(*line))
    assert done(*line).json()["times"]["estimated"] > 0


@pytest.mark.parametrize("name", ["barrier", "compare"])
@pytest.mark.sweep
def test_files_of_identical_runs_differ_in_the_line_of_times_only(name, trained, done, tmp_path):
    found = []
    for _ in range(2):
        done(*command(name, *trained), "--report", "r", "--force", "-q")
        files = {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir()}
        files.pop("junit.xml", None)  # its times are attributes, as JUnit wants them
        text = {file for file in files if not file.endswith(".png")}
        for file in text:
            whole = files[file]
            line = rb'^.*("times": |\btook\b).*\n'
            files[file], count = re.subn(line, b"", whole, flags=re.MULTILINE)
            assert count == 1, file
        found.append(files)
    assert len(text) >= 2 and found[0] == found[1]
