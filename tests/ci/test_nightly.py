"""The script for a plain machine: it tells by exit code, releases what passed, ends when it is told to."""

import configparser
import os
import shutil

import pytest

from .runner import EXAMPLES, Shell, terminate

STUB = """\
if [ "$1" = promote ]; then echo "$*" > promoted; exit; fi
printf '%s\\n' "$@" > words
for number in $(seq 1 12); do echo "line $number"; done
mkdir -p out/report; echo made > out/merged.safetensors; echo old > out/old.safetensors
told='{"steps": [{"outputs": {"out/merged.safetensors": ""}}], "written": ["reports/junit.xml"]}'
echo "$told" > reports/result.json
[ -z "${SLOW:-}" ] || { trap 'exit 143' TERM; touch reached; while :; do sleep 0.05; done; }
exit "${CODE:-0}"
"""


@pytest.fixture
def night(tmp_path):
    """The script in a folder of its own, and how it ends there."""
    shell, place = Shell(tmp_path / "home", rebasin=STUB), tmp_path / "merge"
    place.mkdir()
    shutil.copy(EXAMPLES / "nightly.sh", place)
    return lambda signals=None, **more: (*shell.run("exec ./nightly.sh", place, signals, **more), place)


def test_it_releases_what_passed_whole_and_promotes_its_report(night):
    code, log, place = night()
    assert code == 0, log
    assert [path.name for path in (place / "released/current").iterdir()] == ["merged.safetensors"]
    assert (place / "promoted").read_text().split() == ["promote", "out/report/report.json", "baseline.json"]
    assert (place / "words").read_text().split()[:4] == ["run", "recipe.yaml", "--time-limit", "2h"]
    assert {path.name for path in (place / "released").iterdir()} == {
        "current",
        os.readlink(place / "released/current"),
    }


def test_every_exit_code_is_told_with_the_log_and_releases_nothing(night):
    said = {
        1: "a gate was not met",
        2: "the recipe",
        3: "a model, the data",
        5: "the machine lacks",
        6: "a model, the data",
        70: "failed",
        124: "out of time",
        137: "killed",
    }
    for number, words in said.items():
        code, log, place = night(CODE=str(number), NOTIFY="tee notified")
        assert code == number and f"merge: {words}" in log and "(exit code" in log
        assert (place / "notified").read_text().splitlines()[1:] == [f"line {n}" for n in range(3, 13)]
        assert not list((place / "released").iterdir()) and not (place / "promoted").exists()


def test_sigterm_is_handed_on_and_waited_for(night, tmp_path):
    code, log, place = night(terminate(tmp_path / "merge" / "reached"), SLOW="1")
    assert code == 143 and "the next run goes on" in log and not list((place / "released").iterdir())


def test_one_run_at_a_time(night, tmp_path):
    import fcntl

    with open(tmp_path / "merge" / ".nightly.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, log, place = night()
    assert code == 0 and "still goes on" in log and not (place / "words").exists()


def test_units_name_the_script_and_end_it_as_it_expects():
    units = {}
    for name in ("service", "timer"):
        units[name] = configparser.ConfigParser(interpolation=None)
        units[name].optionxform = str
        units[name].read(EXAMPLES / f"nightly.{name}")
    service = units["service"]["Service"]
    assert service["ExecStart"].endswith("/nightly.sh") and service["KillMode"] == "mixed"
    assert service["SuccessExitStatus"] == "124"
    assert units["timer"]["Timer"]["OnCalendar"] and units["timer"]["Install"]["WantedBy"] == "timers.target"
