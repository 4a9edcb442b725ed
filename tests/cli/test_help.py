"""What help shows of a command with many options, where the rest is told, and what completion offers."""

import pytest
import typer

from rebasin_cli.cli import help as helping
from rebasin_cli.cli import whole
from rebasin_cli.registry import operations

EVERY = operations.every()


@pytest.fixture(autouse=True)
def at_a_hundred_columns(monkeypatch):
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)


@pytest.mark.parametrize("command", ["merge", "align", "barrier"])
def test_help_is_what_most_people_use(done, command):
    short, whole = done(command, "--help").out, done(command, "--help-all").out
    assert len(short.splitlines()) <= 60
    assert f"rebasin {command} --help-all" in short and "rebasin list methods NAME" in short
    assert "--help-all" in whole and f"rebasin {command} --help-all" not in whole
    assert f"Example: rebasin {command}" in short and "--effort" in short and "--max-sweeps" not in whole
    for one in EVERY[command].options:
        has_a_row = any(row.startswith(f"│ {one.flag} ") for row in whole.splitlines())
        elsewhere = one.everywhere or one.within == helping.OF_METHODS
        assert one.positional or has_a_row != elsewhere, one.flag
        assert not one.everywhere or one.flag in "".join(whole.splitlines()[-5:])


def test_what_is_common_is_an_option_of_the_command():
    for operation in EVERY.values():
        names = {one.name for one in operation.options if not one.everywhere and not one.positional}
        assert set(operation.common) <= names, operation.name


def test_what_is_everywhere_means_the_same_in_every_command():
    for flag, told in operations.everywhere().items():
        having = {name: one for name, of in EVERY.items() for one in of.options if one.flag == flag}
        meant = {name: (one.help, one.default) for name, one in having.items() if one.everywhere}
        assert set(meant.values()) == {(told.help, told.default)}, (flag, meant)


def test_a_method_and_an_option_are_told_by_their_names(done, refused):
    assert "--effort      fast|normal|high (normal)" in done("list", "methods", "wm").out
    assert "--as-published" not in done("list", "methods", "wm").out
    assert "--device" in done("list", "options").out and "auto, cpu" in done("list", "options", "device").out
    assert list(done("list", "methods", "wm", "--json").json()) == ["methods"]
    refused(2, "list", "methods", "wn", says="Did you mean wm?")


def test_completion_offers_the_options_of_the_method_that_is_named(completed):
    offered = completed("rebasin align a b --method ste --")
    assert {"--epochs", "--mixture", "--device", "--groups"} <= offered and "--effort" not in offered
    assert completed("rebasin merge a b --effort ") == {"fast", "normal", "high"}
    assert completed("rebasin merge a b --method m") == {"merge-many"}
    assert completed("rebasin merge a b --repair re") == {"reset", "repair", "rescale", "reshift", "refit"}
    assert completed("rebasin eval a --data cif") == {"cifar10", "cifar100"}
    assert "--effort" in completed("rebasin merge a b --eff")  # it may be wm that is meant


@pytest.fixture
def completed(monkeypatch, capsys):
    def completed(line):
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_REBASIN_COMPLETE", "complete_bash")
        with pytest.raises(SystemExit):
            typer.main.get_command(whole())(args=[], prog_name="rebasin")
        return set(capsys.readouterr().out.split())

    return completed


def test_git_s_own_command_is_there_and_not_listed(done):
    assert "merge-driver" not in done("--help").out
    assert "BASE" in done("merge-driver", "--help").out


def test_the_surface_fits_into_a_head():
    own = {
        name: [
            o.flag
            for o in one.options
            if not (o.positional or o.everywhere or o.within == helping.OF_METHODS)
        ]
        for name, one in EVERY.items()
    }
    assert len(own["merge"]) <= 40 and len(own["barrier"]) <= 40
    of_methods = {one.flag for options in operations.METHODS.every_option().values() for one in options}
    assert sum(map(len, own.values())) + len(operations.everywhere()) + len(of_methods) <= 450


@pytest.mark.parametrize("command", [("align", "--force"), ("signature", "--data", "digits")])
def test_a_method_that_nobody_named_is_told_where_nothing_is_merged(command, pair, done):
    line = (command[0], *pair, *command[1:])
    assert "method: wm, by weights alone" in done(*line).err
    assert "by weights alone" not in done(*line, "--method", "wm").err
