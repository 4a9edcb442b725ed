"""A package of somebody else's, installed into a fresh environment and used from the command line.

Processes are the point here: entry points are found by an interpreter that starts with them installed. One of
them runs all commands but those that need another beginning.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).with_name("plugin_example")
pytestmark = pytest.mark.sweep  # two interpreters and a training; in one: test_docs.py, registry


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment with the example in it, and behind it all that this one has, rebasin included."""
    folder = tmp_path_factory.mktemp("plugin")
    built = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(EXAMPLE, folder / "source", ignore=built)
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    scheme = {"base": str(venv), "platbase": str(venv)}
    site = Path(sysconfig.get_path("purelib", vars=scheme))
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lines = [*here, *(f"import site; site.addsitedir({path!r})" for path in here)]
    (site / "behind.pth").write_text("\n".join(lines) + "\n")
    python = venv / "bin" / "python"
    build = "from setuptools import build_meta; print(build_meta.build_wheel('..'))"
    made = subprocess.run(
        [str(python), "-c", build], cwd=folder / "source", check=True, capture_output=True, text=True
    )
    with zipfile.ZipFile(folder / made.stdout.split()[-1]) as wheel:  # pip takes five interpreters for it
        wheel.extractall(site)
    return folder, python


COMMANDS = """
import contextlib, io, json, sys
from rebasin_cli.__main__ import main

for line in sys.stdin:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(json.loads(line))
        except SystemExit as left:
            code = left.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


@contextlib.contextmanager
def started(environment, **more):
    """An interpreter of that environment, which runs commands until it is no longer asked."""
    folder, python = environment
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("REBASIN", "PYTHONPATH"))}
    variables |= {"COLUMNS": "200", "OMP_NUM_THREADS": "1"} | more
    process = subprocess.Popen(
        [str(python), "-c", COMMANDS],
        cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def rebasin(*arguments, code=0):
        process.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        process.stdin.flush()
        found, out, err = json.loads(process.stdout.readline())
        assert found == code, err
        return err if code else out

    with process:
        yield rebasin
        process.stdin.close()


@pytest.fixture(scope="module")
def rebasin(environment):
    with started(environment) as rebasin:
        for seed in (1, 2):
            net = ("one-layer", "--data", "stripes", "--width", 12, "--epochs", 20, "--lr", "0.05")
            rebasin("train", *net, "-q", "--seed", seed, "-o", f"{seed}.safetensors")
        yield rebasin


MODELS = ("1.safetensors", "2.safetensors", "--trust-code")


def test_all_that_it_adds_is_listed_with_its_options(rebasin):
    told = json.loads(rebasin("list", "--json"))
    names = {kind: {thing["name"]: thing for thing in things} for kind, things in told.items()}
    assert {"restarts", "by-norm"} <= names["methods"].keys() and "stripes" in names["data"]
    assert "one-layer" in names["nets"] and "points" in names["reports"] and "one_layer" in names["specs"]
    options = {option["name"]: option for option in names["methods"]["restarts"]["options"]}
    assert list(options) == ["max_sweeps", "starts", "keep", "effort", "hurry"]
    assert options["starts"] == {
        "name": "starts", "flag": "--starts", "type": "int", "default": 3,
        "help": "Search from this many seeds.", "min": 1,
    }  # fmt: skip
    assert "--keep        best|worst (best)" in rebasin("list", "methods", "--verbose")


def test_its_options_are_listed_with_the_method(rebasin):
    text = rebasin("list", "methods", "restarts")
    assert "--starts      int 1… (3)" in text and "Search from this many seeds." in text
    assert "How hard each search looks." in text  # effort: one name, two sentences
    assert "--starts" not in rebasin("align", "--help-all")
    assert "--points-file" in rebasin("barrier", "--help-all")  # --points is barrier's own


def test_its_options_reach_the_search_and_the_provenance(rebasin):
    asked = ("--method", "restarts", "--starts", 5, "--keep", "worst")
    assert "restarts, 5 sweeps" in rebasin("align", *MODELS, *asked, "-o", "worst.safetensors")
    recorded = json.loads(rebasin("inspect", "worst.safetensors", "--json"))["metadata"]
    assert recorded["rebasin.method"] == "restarts"
    options = json.loads(recorded["rebasin.options"])
    assert options == {"keep": "worst", "starts": 5, "max_sweeps": None, "effort": None}
    hurried = rebasin("align", *MODELS, *asked, "--hurry", "--max-sweeps", 50, "-o", "first.safetensors")
    assert "restarts, 1 sweep," in hurried
    assert "by-norm" in rebasin("align", *MODELS, "--method", "by-norm", "-o", "norms.safetensors")


def test_what_makes_no_sense_is_refused_with_the_methods_that_have_it(rebasin):
    assert "It is for restarts" in rebasin("align", *MODELS, "--starts", 2, code=2)
    assert "Invalid value for '--starts'" in rebasin(
        "align", *MODELS, "-m", "restarts", "--starts", 0, code=2
    )
    assert "Did you mean best?" in rebasin("align", *MODELS, "-m", "restarts", "--keep", "beste", code=2)


def test_its_report_its_spec_and_its_network_work(rebasin, environment):
    folder, _ = environment
    report = ("--report", "report", "--points-file", "alone.csv", "--limit", 100, "--skip-checks", "-q")
    rebasin("barrier", *MODELS, "--method", "restarts", "--starts", 2, *report)
    table = (folder / "report" / "points.csv").read_text()
    assert table.startswith("row,split,lambda,loss\nnaive,train,0.0,")
    assert table == (folder / "alone.csv").read_text()
    assert "one_layer, 1 permutation" in rebasin("merge", *MODELS, "--repair", "none")


LINE = "rebasin align --method restarts --st"


def test_its_options_are_completed(environment):
    folder, python = environment
    words = {"_REBASIN_COMPLETE": "complete_bash", "COMP_WORDS": LINE, "COMP_CWORD": "4"}
    command = [str(python), "-m", "rebasin_cli"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ | words)
    assert "--starts" in done.stdout.split(), done


BROKEN = """
[rebasin_cli.matchers]
broken = nowhere.at_all
leaving = rude.leaving
misdeclared = rude.misdeclared
rude = rude.method
[rebasin_cli.reports]
broken = nowhere.at_all
leaving = rude.leaving
"""
DECLARES = """
from dataclasses import dataclass
from rebasin_cli.registry import option

NEEDS, MANY, DECLARES = frozenset(), False, frozenset()

@dataclass(frozen=True)
class Options:
"""


RUDE = """
    seed: int = option(0, "Of its own.")
    batch_size: int = option(128, "Of its own.")
    force: float = option(1.0, "How hard.")
    verbose: bool = option(False, "Talk.")
    rate: float | None = option(None, "How fast.", flag="--lr")
    hush: bool = option(False, "Be quiet.", flag="--quiet")
    level: int = option(1, "One of two.", choices=(1, 2))

def match(problem, options):
    from rebasin_cli.matchers import wm
    return wm.match(problem)
"""


@pytest.fixture(scope="module")
def beside(rebasin, environment):
    """An interpreter with another package beside the example: broken modules, and one that is rude."""
    folder = environment[0] / "beside"
    info, code = folder / "rude-1.0.dist-info", folder / "rude"
    info.mkdir(parents=True)
    code.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rude\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(BROKEN)
    misdeclared = DECLARES + '    starts: int = option(3, "So many.", minimum=1)\n'
    modules = {"__init__": "", "leaving": "import sys; sys.exit(3)\n"}
    modules |= {"misdeclared": misdeclared, "method": DECLARES + RUDE}
    for name, source in modules.items():
        (code / f"{name}.py").write_text(source)
    with started(environment, PYTHONPATH=str(folder)) as beside:
        yield beside


def test_a_package_that_cannot_be_imported_harms_nobody_but_its_own(beside):
    assert "--starts" in beside("list", "methods", "restarts")
    assert "--points-file" in beside("barrier", "--help-all")
    beside("inspect", MODELS[0], "--json")
    for name, why in (
        ("broken", "nowhere.at_all"),
        ("leaving", "SystemExit"),
        ("misdeclared", "minimum"),
    ):
        said = beside("align", *MODELS, "--method", name, code=2)
        assert "cannot be imported" in said and why in said
    assert beside("list", "methods", "--verbose").count("cannot be imported") == 3


def test_names_and_flags_that_a_command_has_stay_the_commands(beside):
    """Whatever others call their options: those that clash are Python's alone, and ours work as ever."""
    beside("align", *MODELS, "--seed", 1, "--force", "-q", "-o", "wm.safetensors")
    beside("align", *MODELS, "--method", "rude", "--level", 2, "--force", "-v", "-o", "rude.safetensors")
    assert "unknown level 3" in beside("align", *MODELS, "-m", "rude", "--level", 3, "--force", code=2)
    trained = ("--method", "ste", "--epochs", 1, "--lr", "0.001", "--limit", 50)
    beside("align", *MODELS, *trained, "--force", "-q", "-o", "ste.safetensors")
    assert "1|2 (1)" in beside("list", "methods", "--verbose")
