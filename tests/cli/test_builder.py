"""Operations as commands: what is declared is typed, and what is typed is the value that was meant."""

import json
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from rebasin_cli.cli import builder
from rebasin_cli.cli.perform import show
from rebasin_cli.commands.recipes.vocabulary import Command
from rebasin_cli.errors import GateNotMet, UsageError
from rebasin_cli.registry import operations
from rebasin_cli.registry.options import REQUIRED
from rebasin_cli.registry.results import Plan, Result

EVERY = operations.every()


def another(option):
    """A value of an option that is not its default."""
    if option.choices:
        return str(option.choices[-1])
    if option.type is bool:
        return not (option.default or option.off)
    if option.type in (int, float):
        low = option.min if option.min is not None else 1
        return option.type(low + 1 if option.max is None or low + 1 <= option.max else low)
    return option.type("-a b")  # of what begins with a dash nothing is taken for an option


def value_of(option):
    value = another(option)
    if option.positional and not option.many and option.default is not REQUIRED:
        return value
    return (value,) * (option.count or 2) if option.many else value


@pytest.fixture
def typed(monkeypatch):
    """The value that a command line stands for."""

    def typed(operation, words):
        found = []
        monkeypatch.setattr(
            builder, "run", lambda operation, given, line: found.append(operation.made(given))
        )
        app = typer.Typer()
        app.command("it")(builder.command(operation))
        app.callback()(lambda: None)
        typer.main.get_command(app)(["it", *words], standalone_mode=False, obj=words)
        return found[0]

    return typed


@pytest.mark.parametrize("name", EVERY)
def test_a_value_is_told_as_a_command_line_that_stands_for_it(name, typed):
    operation = EVERY[name]
    alone = {option.name: value_of(option) for option in operation.options if option.default is REQUIRED}
    for given in (alone, {option.parameter: value_of(option) for option in operation.options}):
        asked = operation.made(given)
        line = operation.line(asked)
        assert line[: len(operation.words)] == list(operation.words)
        assert "None" not in line  # what may be left out
        back = typed(operation, line[len(operation.words) :])
        if given is alone:  # a file that begins with a dash is told as one in this folder
            assert operation.line(back) == line
        else:
            told = {
                one.name: (getattr(back, one.name), getattr(asked, one.name))
                for one in operation.options
                if not one.positional and not one.within
            }
            assert [name for name, (was, now) in told.items() if was != now] == []


@pytest.mark.parametrize("name", EVERY)
def test_a_step_of_a_recipe_is_the_value_of_its_operation(name):
    operation = EVERY[name]
    command = Command(operation)
    arguments = [
        str(text)
        for option in operation.options
        if option.positional
        for text in (value_of(option) if option.many else (value_of(option),))
    ]
    said = {option.key: value_of(option) for option in operation.options if not option.positional}
    said = {key: list(map(str, value)) if isinstance(value, tuple) else value for key, value in said.items()}
    said = {key: str(value) if isinstance(value, Path) else value for key, value in said.items()}
    wanted = operation.made({option.parameter: value_of(option) for option in operation.options})
    assert command.made(arguments, said) == wanted


def test_what_a_step_writes_that_names_no_file_ends_as_its_command_says():
    ends = {"canon": ".safetensors", "curve": ".curve.safetensors", "dream": ".npz", "doctor": None}
    assert {name: Command(EVERY[name]).ending for name in ends} == ends


def test_help_and_names_are_read_without_importing_the_command():
    merge = EVERY["merge"]
    options = {option.name: option for option in merge.options}
    assert merge.help.startswith("Align models to the first") and merge.panel == "Align and merge"
    assert options["models"].positional and options["models"].many and options["models"].default is REQUIRED
    assert options["out"].also == ("-o",) and options["out"].default == "merged.safetensors"
    assert options["effort"].within == "options" and options["effort"].parameter == "options_effort"
    assert "wm" in options["method"].help and "{methods}" not in options["method"].help


def test_of_what_methods_declare_only_what_was_given_is_told():
    """A switch that is off is no option of a method that lacks it."""
    merge, models = EVERY["merge"], (Path("a"), Path("b"))
    off = {"options_as_published": False, "options_effort": None, "options_ascent": False}
    assert merge.made({"models": models, **off}).options == {"ascent": False}  # which is on by itself
    said = {"as_published": False, "effort": "high"}
    assert Command(merge).made(["a", "b"], said).options == {"effort": "high"}


def test_a_report_that_nobody_typed_a_command_for_names_the_one_that_would_make_it():
    from rebasin_cli.commands.compare import Compare
    from rebasin_cli.commands.verbs.report_files import written_of
    from rebasin_cli.session.listener import Listener

    asked = Compare(models=(Path("a b"), Path("c")), method=("wm", "am"), points=3, options={"cost": "l2"})
    line = "rebasin compare 'a b' c --method wm --method am --points 3 --cost l2"
    assert written_of(asked).command == line
    assert written_of(asked, Listener(command="as typed")).command == "as typed"


def test_what_a_result_does_not_have_is_told_to_nobody():
    from rebasin_cli.commands.eval import EvalResult

    figures = {"file": "a", "data": "digits", "split": "test", "loss": 1.0, "metrics": {"accuracy": 0.5}}
    done = EvalResult(**figures, samples=3, ece=0.1, bins=1, reliability={"samples": [3.0]})
    assert "held_out" not in done.values() and list(done.values())[:3] == ["file", "data", "split"]
    assert "reliability" in done.values() and "reliability" not in done.shown()
    again = EVERY["eval"].result(done.values())
    assert again == done


def test_a_format_whose_flag_a_command_has_itself_is_written_by_another():
    for name in ("barrier", "gate", "compare", "plane"):
        flags = [option.flag for option in EVERY[name].options if not option.positional]
        assert {"--json", "--json-file"} <= set(flags) and len(flags) == len(set(flags))


def test_formats_of_a_package_that_cannot_be_imported_harm_nobody_else(monkeypatch):
    def constant(name, which, known=operations.FORMATS.constant):
        if name == "broken":
            raise UsageError("it cannot be imported")
        return known(name, which)

    monkeypatch.setattr(operations.FORMATS, "names", lambda: ["broken", "markdown"])
    monkeypatch.setattr(operations.FORMATS, "constant", constant)
    assert [one.flag for one in operations.GATHERED["formats"]("formats")] == ["--markdown"]


class Answer(Result):
    """A result that is no, warns, and then ends with an error; all of that where `said` tells."""

    def __init__(self, said, yes=True, wrong=None):
        vars(self).update(said=said, answer=yes, wrong=wrong)

    @property
    def yes(self):
        return self.answer

    def warnings(self):
        return self.said.append("warnings") or ()

    def shown(self):
        return self.said.append("shown") or {}

    def end(self):
        self.said.append("end")
        if self.wrong is not None:
            raise self.wrong


def test_what_was_found_is_shown_and_warned_of_before_the_answer_ends_the_command(monkeypatch):
    """A gate that is missed hides neither the figures nor the gates that nothing was held against."""
    command = EVERY["inspect"]
    for how, ended in (
        ({}, None),
        ({"yes": False}, typer.Exit),
        ({"wrong": GateNotMet("1 of 1 gates not met")}, GateNotMet),
    ):
        said = []
        monkeypatch.setattr("rebasin_cli.cli.perform.perform", lambda *given: Answer(said, **how))  # noqa: B023
        given = {option.parameter: value_of(option) for option in command.options} | {"json": False}
        with pytest.raises(ended) if ended else nullcontext():
            builder.run(command, given, "as typed")
        assert said == ["shown", "warnings", "end"]
    monkeypatch.setattr("rebasin_cli.cli.perform.perform", lambda *given: None)  # not the first of several
    builder.run(command, given, "as typed")


def test_a_report_names_the_command_as_it_was_typed(monkeypatch):
    seen = []
    monkeypatch.setattr(builder, "run", lambda operation, given, line: seen.append(line))
    app = typer.Typer()
    app.command("it")(builder.command(EVERY["inspect"]))
    app.callback()(lambda: None)
    words = ["it", "a b.pt", "--json"]
    typer.main.get_command(app)(words, standalone_mode=False, obj=words)
    assert seen == ["rebasin it 'a b.pt' --json"]


def test_json_is_what_was_found_in_plain_values_and_one_line_break(capsys):
    within = Plan({"n": [1, None], "at": Path("a/b")})
    done = Plan({"loss": math.nan, "all": (within, {3: math.inf, "yes": True})})
    show(done, SimpleNamespace(json=True))
    values = {"loss": "nan", "all": [{"n": [1, None], "at": "a/b"}, {"3": "inf", "yes": True}]}
    assert capsys.readouterr().out == json.dumps(values, indent=2) + "\n"
    show(within, SimpleNamespace(json=False))
    assert "{" not in capsys.readouterr().out and operations.of("nothing") == ()


def test_what_has_to_be_given_is_asked_for_and_short_names_are_the_same(typed):
    align = EVERY["align"]
    assert typed(align, ["a", "b", "-o", "c", "-m", "am"]) == typed(
        align, ["a", "b", "--out", "c", "--method", "am"]
    )
    for name, words, lacks in (
        ("align", ["a"], "model"),
        ("align", [], "reference"),
        ("repair", ["m"], "endpoints"),
    ):
        with pytest.raises(Exception, match=f"Missing parameter: {lacks}"):
            typed(EVERY[name], words)
