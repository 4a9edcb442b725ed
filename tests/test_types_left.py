"""The list of what mypy has left to say, and values that only look like what a name says."""

import subprocess

import pytest
import torch

from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.types import is_lazy

from . import types_left

SAID = """a.py:3: error: no  [misc]
a.py:3: note: more of it
b.py:1: error: no  [misc]
b.py:9: error: no  [misc]
"""


def test_a_file_may_have_as_many_errors_as_the_list_says():
    left = {"a.py": (1, 0), "b.py": (2, 1)}
    assert types_left.errors_of(SAID) == {"a.py": 1, "b.py": 2}
    assert types_left.differences(left, dict(left), SAID) == []
    new = types_left.differences({"a.py": (1, 0)}, left, SAID)
    assert new[0].startswith("b.py: 2 strict and 1 lax errors; 0 and 0 are left") and "  b.py:9" in new[2]
    fewer = types_left.differences(left | {"b.py": (3, 1), "gone.py": (1, 1)}, left, SAID)
    assert len(fewer) == 1 and "in 2 files" in fewer[0] and "b.py, gone.py" in fewer[0]


def test_either_count_may_be_what_there_is_more_of():
    for there in ((2, 1), (1, 2)):
        assert types_left.differences({"a.py": (1, 1)}, {"a.py": there}, SAID)[0].startswith("a.py: ")


@pytest.fixture
def types(tmp_path, monkeypatch):
    """How the command ends, and the list then, by what mypy says with strict settings and with lax ones."""

    def types(left, strict, lax, *arguments):
        file = tmp_path / "left.txt"
        file.write_text(types_left.HEAD + left)
        said = {True: strict, False: lax}
        monkeypatch.setattr(types_left, "LIST", file)
        monkeypatch.setattr(types_left, "read", lambda path=file, read=types_left.read: read(file))
        monkeypatch.setattr(types_left, "check", lambda cache, *, strict: said[strict])
        try:
            types_left.main([*arguments, "--cache", str(tmp_path)])
        except SystemExit as ended:
            return str(ended.code), file.read_text().removeprefix(types_left.HEAD)
        return "", file.read_text().removeprefix(types_left.HEAD)

    return types


def test_the_list_is_written_where_it_shrinks_and_grows_only_where_that_is_meant(types):
    list, one = "1 0 a.py\n2 1 b.py\n", "a.py:3: error: no\n"
    lax = "b.py:1: error: no\n"
    assert types(list, SAID, lax) == ("", list)
    ended, left = types(list, SAID, lax * 2)
    assert ended.startswith("b.py: 2 strict and 2 lax errors") and left == list
    assert "in 1 files" in types(list, one, "")[0]
    assert types(list, one, "", "--write") == ("", "1 0 a.py\n")
    for strict, more in ((SAID + one, lax), (SAID, lax * 2)):
        ended, left = types(list, strict, more, "--write")
        assert ended.startswith("the list would grow: it says 3 and 1") and left == list
        assert types(list, strict, more, "--grow")[1] != list


def test_nothing_lax_is_looked_for_where_all_is_strict(types):
    assert types("", "", None) == ("", "")
    assert "b.py: 2 strict and 1 lax errors" in types("", SAID, "b.py:1: error: no\n")[0]
    assert "in 1 files" in types("1 0 a.py\n", "", "")[0]


@pytest.mark.parametrize(("code", "out"), [(2, SAID), (1, "a.py: cannot be read\n"), (-9, "")])
def test_where_mypy_could_not_look_nothing_is_counted(monkeypatch, tmp_path, code, out):
    ended = subprocess.CompletedProcess([], code, out, "why")
    monkeypatch.setattr(types_left.subprocess, "run", lambda *given, **how: ended)
    with pytest.raises(SystemExit, match="why"):
        types_left.check(tmp_path, strict=False)
    ended.returncode, ended.stdout = 1, SAID
    assert types_left.check(tmp_path / "new", strict=False) == SAID


def test_only_what_knows_shapes_before_it_makes_tensors_is_lazy():
    tensors = {"w": torch.ones(2)}
    assert is_lazy(LazyTensors({"w": (2,)}, {"w": torch.float32}, tensors.__getitem__)) and not is_lazy(
        tensors
    )
