"""What a record says may be anybody's word: only documents beside the cache are removed for it."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from rebasin_cli.commands.recipes import aside
from rebasin_cli.commands.recipes.aside import Aside
from rebasin_cli.commands.recipes.cache import Cache
from rebasin_cli.commands.recipes.documents import Documents
from rebasin_cli.commands.recipes.remembered import Left, Made, Remembered
from rebasin_cli.runtime.files import NOTHING

RECIPE = Path("r.yaml")
SUMMARY = "## rebasin run r.yaml: done\n"
DOCUMENTS = {
    "gates.xml": '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="rebasin" tests="0" />\n',
    "result.json": '{\n  "recipe": "r.yaml"\n}\n',
    "run.intoto.json": '{\n  "_type": "https://in-toto.io/Statement/v1"\n}\n',
    "summary.md": SUMMARY,
}
PERSONS = ("../diary.md", "notes.txt", "empty", "a.safetensors", "r.yaml", "log.xml")


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with documents, files of a person's, and a record that names all of them."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name, text in {**dict.fromkeys(PERSONS, "mine"), "../diary.md": SUMMARY, "empty": ""}.items():
        Path(name).write_text(text)
    for name, text in DOCUMENTS.items():
        Path(name).write_text(text)
    Path("log.xml").write_text('<?xml version="1.0" encoding="UTF-8"?>\n<log />\n')
    cache = Cache(Path(".rebasin"))
    remembered = Remembered(cache, RECIPE, ())
    home = f"{tmp_path / 'diary.md'}"
    named = {name: digest(name) for name in (*PERSONS, *DOCUMENTS, home)}
    made = [["../diary.md", "../diary.md", False], ["../x/y", "..", False]]
    cache.made(Path("../diary.md"))
    cache.put("documents", remembered.name, {"recipe": remembered.recipe, "documents": named, "made": made})
    return cache


@pytest.mark.parametrize(
    "begin", [lambda cache: Documents(RECIPE, cache).forget(), lambda cache: aside.forget(["r.yaml"])]
)
def test_of_what_a_record_names_only_documents_beside_the_cache_are_removed(work, begin):
    begin(work)
    assert all(Path(name).is_file() for name in PERSONS)
    assert not any(Path(name).exists() for name in DOCUMENTS)
    assert not Path("../not-passed").exists()


def test_nothing_is_believed_of_records_beside_a_strangers_recipe(work):
    aside.forget(["r.yaml", "--untrusted"])
    assert all(Path(name).is_file() for name in (*PERSONS, *DOCUMENTS))


def test_what_is_remembered_comes_back_with_files_beside_the_cache_alone(work):
    remembered = Remembered(work, RECIPE, ("x=1",))
    here, there = (Path(name) for name in ("out/a.safetensors", "../out/a.safetensors"))
    remembered.keep(Left({here: "1", there: "2"}, [Made(here, here), Made(there, there)]))
    assert remembered.last() == Left({here: "1"}, [Made(here, here)])


def test_what_another_job_is_making_is_not_put_aside(work):
    made = Made(Path("a.safetensors"), Path("a.safetensors"))
    with work.making([made.path]) as written:
        written.append(made.path)
    with work.held(work.name_of(made.path), lambda: None):
        assert Aside(work, NOTHING).put([made]) == [] and made.path.is_file()
    assert Aside(work, NOTHING).put([made]) == [] and made.aside.is_file() and not made.path.exists()


def test_a_run_that_is_ended_before_it_is_up_leaves_nothing_of_the_one_before(work):
    ends = """
import builtins, os, signal, sys
real = builtins.__import__
def importing(name, *more, **named):
    if name == "cli":
        os.kill(os.getpid(), signal.SIGTERM)
    return real(name, *more, **named)
builtins.__import__ = importing
from rebasin_cli.__main__ import main
main(["run", "r.yaml"])
"""
    ended = subprocess.run([sys.executable, "-c", ends], capture_output=True, text=True)
    assert ended.returncode == 143 and "terminated" in ended.stderr, ended.stderr
    assert not any(Path(name).exists() for name in DOCUMENTS)
    assert all(Path(name).is_file() for name in PERSONS)
