"""Files of a user's own code: regular ones of a possible size are read, and nothing waits for another."""

import os
import sys
from pathlib import Path

import pytest

from rebasin_cli.errors import NetworkError, UsageError
from rebasin_cli.registry import references
from rebasin_cli.registry.references import files_of, import_reference, unnamed
from tests.odd_files import KINDS, lay


@pytest.mark.parametrize("kind", KINDS)
def test_code_that_is_no_regular_file_or_far_too_long_is_told_in_one_message(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lay(tmp_path / "net.py", kind)
    with pytest.raises(UsageError, match="net.py cannot be read: it "):
        import_reference("net.py:build", error=NetworkError)
    told = unnamed("net.py", "--net", "factory", "")
    assert "net.py cannot be read: it " in told.message
    (tmp_path / "main.py").write_text("import net\nimport other\n")
    (tmp_path / "other.py").write_text("x = 1\n")
    found = files_of("main.py:build")
    assert {Path("main.py"), Path("other.py")} <= {*found}


def test_sources_are_looked_through_up_to_a_size(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for count, names in ((1, ["main.py", "other.py"]), (1 << 22, ["main.py"])):
        (tmp_path / "main.py").write_text("import other\n#" + "x" * count)
        (tmp_path / "other.py").write_text("")
        assert [path.name for path in files_of("main.py:build")] == names
    with pytest.raises(UsageError, match="absent.py: no such file"):
        import_reference("absent.py:build", error=NetworkError)


def test_imports_from_the_package_itself_are_looked_for_where_python_looks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {
        "net.py": "from . import beside\nfrom .. import above\nfrom ..near import deep\nimport top\n",
        **dict.fromkeys(["beside.py", "../above.py", "../near/deep.py", "top.py"], ""),
        **dict.fromkeys(["above.py", "near/deep.py", "../beside.py", "../../above.py"], ""),  # not meant
    }
    for name, text in texts.items():
        path = Path("whole/inner", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = {path.resolve().relative_to(tmp_path) for path in files_of("whole/inner/net.py:build")}
    names = ("inner/net.py", "inner/beside.py", "above.py", "near/deep.py", "inner/top.py")
    assert found == {Path("whole", name) for name in names}


def test_no_more_files_are_looked_through_than_so_many(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(references, "MOST_FILES", 3)
    for k in range(6):
        (tmp_path / f"part{k}.py").write_text(f"import part{k + 1}\n")
    assert len(files_of("part0.py:build")) == 3


def test_code_of_two_folders_that_call_a_module_alike_gets_its_own_each(tmp_path, monkeypatch):
    """A file, a package, and one without `__init__`; also where one is asked for again."""
    monkeypatch.chdir(tmp_path)
    for folder in "ab":
        for name in ("plain.py", "whole/__init__.py", "whole/part.py", "open_/part.py"):
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"WHERE = {folder!r}\n")
        code = "import plain, whole.part, open_.part\n"
        code += "def told(): return plain.WHERE + whole.WHERE + whole.part.WHERE + open_.part.WHERE\n"
        (tmp_path / folder / "net.py").write_text(code)
    found = [import_reference(f"{folder}/net.py:told", error=NetworkError) for folder in "aba"]
    assert [told() for told in found] == ["aaaa", "bbbb", "aaaa"]


def test_a_file_runs_as_it_stands_whatever_bytecode_lies_beside_it(tmp_path, monkeypatch):
    """One text is as long as the other, and was written in the same second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for text in ("VALUE = 'cents'\n", "VALUE = 'euros'\n"):
        (tmp_path / "mine.py").write_text(text)
        os.utime(tmp_path / "mine.py", (1_000_000_000, 1_000_000_000))
        assert import_reference("mine.py:VALUE", error=NetworkError) == text[9:14]
    assert not (tmp_path / "__pycache__").exists()


def test_a_file_in_a_package_imports_from_it_and_from_where_the_command_runs(tmp_path, monkeypatch):
    """`from .layers import`, `from ..parts import`, and the package's own name; by path from anywhere."""
    monkeypatch.chdir(tmp_path)
    files = {
        "lib/__init__.py": "",
        "lib/parts.py": "PART = 1",
        "lib/models/__init__.py": "ABOVE = 4",
        "lib/models/layers.py": "LAYER = 2",
        "lib/models/net.py": "from . import ABOVE\nfrom .layers import LAYER\nfrom ..parts import PART\n"
        "from lib.parts import PART as SAME\nALL = [LAYER, PART, SAME, ABOVE]",
        "here/sizes.py": "SIZE = 3",
        "nets/net.py": "from here.sizes import SIZE\nALL = [SIZE]",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    before = [*sys.path]
    assert import_reference("lib/models/net.py:ALL", error=NetworkError) == [2, 1, 1, 4]
    assert import_reference("nets/net.py:ALL", error=NetworkError) == [3]
    read = {path.as_posix() for path in files_of("lib/models/net.py:ALL")}
    assert read == {name for name in files if name.startswith("lib")}
    assert [path.as_posix() for path in files_of("nets/net.py:ALL")] == ["nets/net.py", "here/sizes.py"]
    monkeypatch.chdir(tmp_path / "here")
    assert import_reference("../lib/models/net.py:ALL", error=NetworkError) == [2, 1, 1, 4]
    assert sys.path == before


def test_a_file_in_no_package_that_imports_from_one_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.py").write_text("from .layers import LAYER\n")
    with pytest.raises(NetworkError, match="ImportError") as told:
        import_reference("models/net.py:LAYER", error=NetworkError)
    assert "__init__.py" in told.value.hint and "models.net:NAME" in told.value.hint
