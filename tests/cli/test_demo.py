"""rebasin demo, made small: the real one is for `make demo`."""

import shlex

import pytest

from .conftest import contents

WRITTEN = {"a", "b", "b_aligned", "b_aligned.perm", "merged"}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("rebasin_cli.commands.demo.EPOCHS", 25)
    monkeypatch.setattr("rebasin_cli.commands.demo.WIDTH", 16)


def test_the_whole_story_and_every_command_that_it_suggests(done, tmp_path):
    outcome = done("demo", "-o", "my demo", "-q")
    assert {f"{name}.safetensors" for name in WRITTEN} | {"report"} <= set(contents(tmp_path / "my demo"))
    assert (tmp_path / "my demo" / "report" / "report.html").exists()
    assert "aligned" in outcome.out and outcome.err == ""
    suggested = [line.strip() for line in outcome.out.partition("Try next:")[2].splitlines() if line.strip()]
    assert len(suggested) == 6
    for command in suggested[:3] + suggested[4:5]:
        assert done(*shlex.split(command)[1:]).out


def test_what_is_there_is_not_overwritten(refused, tmp_path):
    (tmp_path / "rebasin-demo").mkdir()
    (tmp_path / "rebasin-demo" / "merged.safetensors").write_text("precious")
    refused(2, "demo", says=("rebasin-demo/merged.safetensors exists", "--force"))


def test_a_file_in_the_way(refused, tmp_path):
    (tmp_path / "rebasin-demo").write_text("")
    refused(2, "demo", says="rebasin-demo is a file, not a folder")
    refused(5, "demo", "-o", "/proc/self/demo", says="cannot be written")


@pytest.mark.parametrize(
    "task", [*(pytest.param(task, marks=pytest.mark.sweep) for task in ("seed 2", "matching")), "measuring"]
)
def test_ctrl_c_leaves_nothing(interrupted, task):
    assert interrupted("demo", task=task) == set()
