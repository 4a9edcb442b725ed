"""The command as a whole: help, version, exit codes, streams, and what is not imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from rebasin_cli.cli import _built, whole
from rebasin_cli.registry import Registry
from rebasin_cli.version import version
from tests import processes

from .conftest import rebasin, same

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name, text):
    """REBASIN_GOLDEN=write writes them anew."""
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if os.environ.get("REBASIN_GOLDEN") == "write":
        (GOLDEN / name).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


@pytest.fixture
def eighty(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    monkeypatch.setenv("NO_COLOR", "1")


def test_help(eighty, done):
    golden("help.txt", done("--help").out)


def test_the_error_for_models_that_differ(pair, refused, tmp_path):
    from .conftest import fresh

    fresh("wide.safetensors", width=16, depth=3)
    pair[0].rename("narrow.safetensors")
    golden("error_architecture.txt", refused(4, "merge", "narrow.safetensors", "wide.safetensors").err)


def test_the_error_for_a_spec_that_does_not_fit(refused, tmp_path):
    from .conftest import fresh

    fresh("a.safetensors", width=16, depth=3)
    (tmp_path / "two.yaml").write_text(
        'tensors:\n  layers.{i}.weight: "h{i} h{i-1|.}"\n  head.weight: "h0 ."\n'
    )
    golden("error_spec.txt", refused(4, "spec", "check", "two.yaml", "a.safetensors").err)


@pytest.mark.parametrize("command", sorted(typer.main.get_command(whole()).commands))
def test_every_command_explains_itself(done, command):
    out = done(command, "-h").out
    assert "Usage: rebasin " + command in out
    assert command in ("spec", "demo", "list", "lab") or "Example: rebasin " + command in out


def test_a_command_is_built_without_the_others():
    every = typer.main.get_command(whole()).commands
    assert all(list(_built(word).commands) == [word] for word in every)
    assert _built("algin").commands.keys() == _built("").commands.keys() == every.keys()


def test_version(done):
    assert done("--version").out == f"rebasin {version()}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["align", "--nonsense"], "No such option: --nonsense"),
        (["algin"], "No such command 'algin'"),
        (["align", "a"], "Missing argument"),
        (["train", "mlp", "-o", "a.safetensors"], "Missing option '--data'"),
        (["align", "a", "b", "--seed", "x"], "--seed"),
        (["align", "a", "b", "--seed", "-1"], "--seed"),
        (["align", "a", "b", "--seed", str(2**70)], "--seed"),
        (["eval", "a", "--limit", "0"], "--limit"),
        (["spec", "shew", "mlp"], "No such command 'shew'"),
        ([], ""),
    ],
)
def test_usage_errors_end_with_2(run, arguments, says):
    outcome = run(*arguments)
    told = " ".join(outcome.err.replace("│", " ").split())  # typer draws a box around it
    assert outcome.code == 2 and says in told and "Traceback" not in told


def test_debug_shows_the_traceback(monkeypatch, run):
    monkeypatch.setenv("REBASIN_DEBUG", "1")
    outcome = run("inspect", "nowhere.pt")
    assert outcome.code == 3 and "Traceback" in outcome.err and "errors.CheckpointError: " in outcome.err


def _process(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


LIGHT = """
import sys
from rebasin_cli.__main__ import main
for arguments in {lines!r}:
    sys.argv = ["rebasin", *arguments]
    try:
        main()
    except SystemExit:
        pass
    reads = {{"yaml"}} if arguments == ["list"] else set()  # which lists specs, too
    heavy = {{"torch", "numpy", "scipy", "yaml", "safetensors", "matplotlib"}} & set(sys.modules) - reads
    print("HEAVY", arguments, sorted(heavy))
"""
HELPING = [["--help"], ["--version"], ["barrier", "--help"], ["list", "methods"], ["list"]]
COMPLETING = {"_REBASIN_COMPLETE": "complete_bash", "COMP_WORDS": "rebasin al", "COMP_CWORD": "1"}


@pytest.mark.parametrize(("lines", "environment"), [(HELPING, {}), ([[]], COMPLETING)])
def test_help_and_completion_import_nothing_heavy(lines, environment):
    """In a process each, for in this one everything is imported."""
    ran = _process(LIGHT.format(lines=lines), **environment)
    told = [line for line in ran.stdout.splitlines() if line.startswith("HEAVY")]
    assert told == [f"HEAVY {line} []" for line in lines], ran.stdout + ran.stderr
    if environment:
        assert "align" in ran.stdout


IMPORTED = """
import sys
from rebasin_cli.__main__ import main
for arguments, heavy in {commands!r}:
    try:
        main(arguments)
    except SystemExit as stop:
        assert not stop.code, arguments
    print("HEAVY", arguments, sorted({{"torch._dynamo", "sympy", *heavy}} & set(sys.modules)))
    if "align" in arguments:
        print("PROVEN", "rebasin_cli.proof.prove" in sys.modules)
import torch
from rebasin_cli import nets
from rebasin_cli.inference import infer
infer(nets.build("resnet20", input_shape=(3, 8, 8), classes=10, width=0.25), torch.rand(2, 3, 8, 8))
print("HEAVY infer", sorted({{"torch._dynamo", "sympy"}} & set(sys.modules)))
"""


def test_commands_import_no_more_than_they_need(pair):
    """In a process, one for all: what a later command may import, an earlier one may not.

    PyTorch's compiler takes two seconds, scipy half a one. What traces a network, infers its spec, repairs,
    trains and measures does without the compiler, too, which would draw initial values on the meta device; a
    proof asks the network alone, and needs nothing of what reads specs off graphs.
    """
    ours = [f"rebasin_cli.{room}" for room in ("inference", "proof", "repair", "measure", "graph")]
    plain, few = ["scipy", "matplotlib"], ["--data", "digits", "--limit", "200"]
    a, b = map(str, pair)

    def written(command, *how):
        return [command, a, b, *how, "-q", "--force", "-o", "written.safetensors"]

    commands = [(["inspect", a], [*plain, *ours, "rebasin_cli.session.session"])]
    commands += [(["spec", "show", name], [*plain, ours[0]]) for name in ("resnet20", "vgg16", "vit")]
    commands += [
        (written("merge", "--method", "none", "--repair", "none"), [*plain, ours[0]]),
        (written("align"), [*plain, ours[0]]),  # with the proof
        (["eval", a, "--data", "digits", "--skip-checks"], plain),
        (written("align", "--method", "ste-mm", *few, "--epochs", "1"), plain),
        (written("merge", "--method", "am", *few, "--repair", "repair"), []),  # traced, repaired, measured
        (["barrier", a, b, "--method", "am", *few, "--points", "3", "--skip-checks"], []),
        (
            [
                "train",
                "mlp",
                "--data",
                "digits",
                "--epochs",
                "1",
                "-q",
                "--force",
                "-o",
                "written.safetensors",
            ],
            [],
        ),
        (written("merge", "--method", "none", "--repair", "distill", "--repair-samples", "60", *few[:2]), []),
    ]
    ran = _process(IMPORTED.format(commands=commands), OMP_NUM_THREADS="1")
    told = [line for line in ran.stdout.splitlines() if line.startswith(("HEAVY", "PROVEN"))]
    assert told.pop(told.index("PROVEN True")) and told.pop(told.index("PROVEN True"))
    assert told == [*(f"HEAVY {line} []" for line, _ in commands), "HEAVY infer []"], ran.stdout + ran.stderr


def test_errors_and_results_go_to_their_streams(tmp_path):
    """As a process: exit code, no traceback, and nothing on stdout but the result."""
    ran = processes.rebasin("merge", "x.pt", "y.pt", log=tmp_path.with_name(f"{tmp_path.name}-log"))
    assert (ran.wait(), ran.out, ran.err) == (3, "", "rebasin: x.pt: no such file\n")


def test_a_terminal_that_knows_no_arrows(tmp_path):
    """In a process, whose streams get their encoding when it starts."""
    ran = _process(
        "from rebasin_cli.__main__ import main; main(['barrier', '--help-all'])",
        PYTHONIOENCODING="ascii",
    )
    assert ran.returncode == 0 and "\\u03bb = \\xbd" in ran.stdout, ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_stdout():
    """In a process: its stdout is that device, flushed when it ends."""
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "rebasin_cli", "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ran.returncode == 5 and "No space left on device" in ran.stderr and "Traceback" not in ran.stderr


def shell(text, **environment):
    """A line of bash, where `rebasin` is this package; exit codes of all parts of a pipe are echoed last."""
    ran = subprocess.run(
        ["bash", "-c", text.replace("rebasin", f"{sys.executable} -m rebasin_cli")],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    return ran.stdout, ran.stderr


PARTS = "echo ${PIPESTATUS[@]} >&2"


@pytest.mark.parametrize(
    ("line", "codes"),
    [
        ("rebasin list methods | true", "141 0"),
        pytest.param("rebasin list --json | true", "141 0", marks=pytest.mark.sweep),
        pytest.param("rebasin --help | true", "141 0", marks=pytest.mark.sweep),
        ("rebasin list nonsense | true", "2 0"),  # its own code is told, whoever reads
        pytest.param("rebasin inspect nowhere.pt 2>&1 | true", "3 0", marks=pytest.mark.sweep),
        # Nobody has to read stderr.
        pytest.param("rebasin list 2>&1 >/dev/null | true", "0 0", marks=pytest.mark.sweep),
    ],
)
def test_a_reader_that_leaves(line, codes):
    """In processes: a pipe that nobody reads. Never 1, which is a gate that was not met."""
    out, err = shell(f"{line}; {PARTS}")
    assert (out, err.split("\n")[-2:]) == ("", [codes, ""]) and "Traceback" not in err, err


@pytest.mark.sweep  # an interpreter each, as the one below
@pytest.mark.parametrize(
    ("redirected", "code", "written"),
    [
        ("2>&-", 0, True),
        (">&- 2>&-", 5, True),
        ("<&- >&- 2>/dev/null", 5, True),
        ("2>/dev/full", 0, True),
    ],
)
def test_a_closed_or_full_stderr_stops_nothing(pair, tmp_path, redirected, code, written):
    """In a process: descriptors are closed by who starts it."""
    out, err = shell(
        f"cd {tmp_path}; rebasin align a.safetensors b.safetensors -o o.safetensors {redirected}; echo $?"
    )
    assert out.split()[-1] == str(code), (out, err)
    assert (tmp_path / "o.safetensors").exists() is written
    assert same(tmp_path / "o.safetensors", tmp_path / "o.safetensors")


def test_a_closed_stdout_is_told():
    """In a process: descriptors are closed by who starts it."""
    _, err = shell("rebasin list methods >&-; echo $? >&2")
    assert err.startswith("rebasin: stdout is closed: the result could not be shown\n") and err.endswith(
        "\n5\n"
    )


@pytest.mark.parametrize(("name", "code"), [("HUP", 129), ("TERM", 143)])
def test_a_signal_keeps_the_state_of_a_search(name, code, pair, tmp_path, monkeypatch):
    number = getattr(signal, f"SIG{name}")
    if signal.getsignal(number) is signal.SIG_IGN:  # as under nohup, where it shall be ignored
        pytest.skip(f"SIG{name} is ignored here")
    monkeypatch.setattr("rebasin_cli.cli.screen.Screen.step", lambda *args: os.kill(os.getpid(), number))
    outcome = rebasin("align", *pair, "-o", "out.safetensors")
    assert outcome.code == code and "the search is kept in out.search.safetensors" in outcome.err
    assert not (tmp_path / "out.safetensors").exists()


def test_a_hangup_that_is_ignored_stays_ignored(pair, tmp_path, monkeypatch):
    """As nohup does it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        step = lambda *args: os.kill(os.getpid(), signal.SIGHUP)  # noqa: E731
        monkeypatch.setattr("rebasin_cli.cli.screen.Screen.step", step)
        assert rebasin("align", *pair, "-o", "out.safetensors").code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_no_color(pair, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in rebasin("align", *pair).out


@pytest.mark.parametrize("command", ["align", "merge", "barrier"])
def test_help_names_every_method(done, command):
    shown = done(command, "--help").out
    assert all(name in shown for name in Registry("matchers", "method").names(own=True))
