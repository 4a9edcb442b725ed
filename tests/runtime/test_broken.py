"""An installation that is broken, and bugs: one message, and an exit code that is no gate's."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rebasin_cli.__main__ import main
from rebasin_cli.registry.user_code import REQUIRED
from rebasin_cli.runtime import broken

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def started(code, *arguments, **environment):
    """In a process: what is imported once stays so."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"REBASIN_DEBUG": "", "GITHUB_ACTIONS": ""} | environment,
        capture_output=True,
        text=True,
    )


RUN = "from rebasin_cli.__main__ import main; main()"


@pytest.mark.parametrize(
    ("package", "body", "says"),
    [
        ("torch", "raise OSError('libcudart.so.12: cannot open\\n::error::forged')", "libcudart.so.12"),
        ("torch", "import sys; sys.exit(1)", "SystemExit: 1"),
        ("typer", "def (", "SyntaxError"),
    ],
)
def test_a_package_that_fails_on_import_is_one_message_and_exit_code_70(package, body, says, tmp_path):
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(body)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    for name in "ab":
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
    line = (
        "align",
        str(tmp_path / "a.safetensors"),
        str(tmp_path / "b.safetensors"),
        "-o",
        str(tmp_path / "o"),
    )
    ended = started(RUN, *line, PYTHONPATH=path, GITHUB_ACTIONS="true")
    mark, what, hint = ended.stderr.splitlines()
    assert ended.returncode == 70 and "Traceback" not in ended.stderr
    assert mark.startswith("::error title=rebasin::this installation is broken: ") and "%0A" in mark
    assert what.startswith("rebasin: this installation is broken: ") and package in what and says in what
    assert "--force-reinstall rebasin-cli" in hint and sys.executable in hint


@pytest.mark.parametrize("module", ["errors", "cli", "runtime.streams", "runtime.broken"])
def test_so_is_a_module_of_our_own(module):
    lost = f"import sys; sys.modules['rebasin_cli.{module}'] = None; {RUN}"
    ended = started(lost, "--version")
    assert ended.returncode == 70 and "Traceback" not in ended.stderr
    assert ended.stderr.startswith("rebasin: this installation is broken: ") and module in ended.stderr


def ended(capsys, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("rebasin_cli.__main__.prepare", lambda: None)  # this process is not the command's
    monkeypatch.setattr("rebasin_cli.cli.execute", fails)
    with pytest.raises(SystemExit) as stop:
        main(["list"])
    return stop.value.code, capsys.readouterr().err


def test_a_bug_shows_its_traceback_and_has_no_gates_exit_code(capsys, monkeypatch):
    code, told = ended(capsys, monkeypatch, ZeroDivisionError("by ##[command] zero"))
    assert code == 70 and "Traceback" in told
    assert told.splitlines()[-2] == "rebasin: a bug: ZeroDivisionError: by # #[command] zero"


def test_another_python_is_told_before_anything_is_imported(capsys, monkeypatch):
    monkeypatch.setattr(broken, "OLDEST", (9, 9))
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 70 and "it needs Python 9.9 or newer" in capsys.readouterr().err


def test_what_is_required_is_what_pyproject_says():
    names = {"pyyaml": "yaml", "pillow": "PIL"}
    required = [text.partition(">=")[0].lower() for text in PROJECT["dependencies"]]
    assert {names.get(name, name) for name in required} == REQUIRED
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, broken.OLDEST))}"
