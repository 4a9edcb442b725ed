"""What a CI server's cache brings back, whole or in part: what is not all there runs again."""

import json
import shutil

import pytest

from .conftest import contents

RECIPE = """
inputs: {first: a.safetensors, second: b.safetensors}
defaults: {seed: 0}
output_dir: out
steps:
  - name: aligned
    align: {models: [first, second]}
  - name: merged
    merge: {models: [first, aligned], method: none, repair: none}
"""


@pytest.fixture
def kept(pair, tmp_path, done):
    """The folder of a run, `result` and how a run in a new checkout, with what was kept, ends."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    done("run", "recipe.yaml")
    made = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def again(change, *arguments):
        """The steps' statuses after `change` of a copy of what was kept; outputs are as they were made."""
        place = tmp_path / "kept"
        for name in (".rebasin", "out"):
            shutil.copytree(tmp_path / name, place / name)
        change(place)
        for name in (".rebasin", "out"):  # new inodes and times, as a server unpacks it
            shutil.move(tmp_path / name, tmp_path / f"whole{name}")
            if (place / name).exists():
                shutil.copytree(place / name, tmp_path / name)
        told = done("run", "recipe.yaml", "--json", *arguments).json()
        assert {
            path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.is_file()
        } == made
        for name in (".rebasin", "out"):
            shutil.rmtree(tmp_path / name)
            shutil.move(tmp_path / f"whole{name}", tmp_path / name)
        shutil.rmtree(place)
        return [step["status"] for step in told["steps"]]

    return again


def _each(folder, change):
    for path in folder.glob("*.json"):
        path.write_text(change(path.read_text()))


def _another(text):
    """A record that somebody made to ask for nothing."""
    told = json.loads(text)
    return json.dumps(told | {"outputs": {}})


@pytest.mark.sweep
def test_what_is_restored_in_part_is_made_again_and_never_wrongly_unchanged(kept, monkeypatch):
    both, none = ["unchanged", "unchanged"], ["done", "done"]
    assert kept(lambda place: None) == both
    assert kept(lambda place: shutil.rmtree(place / "out")) == none
    assert kept(lambda place: (place / "out/aligned.safetensors").unlink()) == ["done", "unchanged"]
    assert kept(lambda place: (place / "out/merged.safetensors").unlink()) == ["unchanged", "done"]
    assert kept(lambda place: shutil.rmtree(place / ".rebasin/files")) == both
    assert kept(lambda place: shutil.rmtree(place / ".rebasin/steps")) == none
    for change in (lambda text: text[: len(text) // 2], lambda text: "", lambda text: "[]", _another):
        assert kept(lambda place, change=change: _each(place / ".rebasin/steps", change)) == none
        assert kept(lambda place, change=change: _each(place / ".rebasin/files", change)) == both
    with monkeypatch.context() as patch:
        patch.setattr("rebasin_cli.commands.recipes.cache.versions", lambda: {"rebasin": "0.0.1"})
        assert kept(lambda place: None) == none
    assert kept(lambda place: None) == both


def test_outputs_without_any_record_are_refused_and_not_taken_for_this_runs(kept, tmp_path, run, done):
    shutil.rmtree(tmp_path / ".rebasin")
    before = contents(tmp_path / "out")
    ended = run("run", "recipe.yaml")
    assert ended.code == 2 and "--force" in ended.err and "unchanged" not in ended.out
    assert contents(tmp_path / "out") == before
    told = done("run", "recipe.yaml", "--force", "--json").json()
    assert [step["status"] for step in told["steps"]] == ["done", "done"]


def test_an_output_that_was_changed_since_is_refused_and_one_with_anothers_content_too(kept, tmp_path, run):
    shutil.copy(tmp_path / "out/aligned.safetensors", tmp_path / "out/merged.safetensors")
    ended = run("run", "recipe.yaml")
    assert ended.code == 2 and "merged.safetensors" in ended.err


def test_the_key_of_a_run_is_printed_and_nothing_is_run(pair, tmp_path, done, run):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    before = contents(tmp_path)
    first = done("run", "recipe.yaml", "--key")
    assert first.out == done("run", "recipe.yaml", "--key").out != ""
    assert done("run", "recipe.yaml", "--key", "--set", "defaults.seed=1").out != first.out
    assert run("run", "recipe.yaml", "--key", "--set", "defaults.sed=1").code == 2
    assert contents(tmp_path) == before


def test_documents_in_a_folder_of_another_job_are_its_own(pair, tmp_path, tmp_path_factory, done):
    """A job that waited for another one in the same folder does not remove what that one has just written."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    done("run", "recipe.yaml", "--result", first / "result.json", "--junit", tmp_path / "gates.xml")
    done("run", "recipe.yaml", "--result", second / "result.json")
    assert (first / "result.json").exists() and (second / "result.json").exists()
    assert not (tmp_path / "gates.xml").exists()  # beside the cache it could be taken for this run's
