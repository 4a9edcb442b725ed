"""A vocabulary of two commands, and files to name: no command line, no torch."""

from pathlib import Path

import pytest

from rebasin_cli.commands.recipes import reader
from rebasin_cli.commands.recipes.recipe import parse
from rebasin_cli.commands.recipes.vocabulary import Command
from rebasin_cli.registry.operations import Operation
from rebasin_cli.registry.options import MAY_READ, READS, REQUIRED, WRITES, Option


def argument(name, **more):
    return Option(name, Path, REQUIRED, positional=True, role=READS, **more)


def command(name, *options):
    operation = Operation((name,), "", name)
    vars(operation).update(
        {"help": f"{name}.", "options": options}
    )  # which are read off its source otherwise
    return Command(operation)


ALIGN = command(
    "align",
    argument("reference"),
    argument("model"),
    Option("out", Path, None, flag="--out", role=WRITES, ending=".safetensors"),
    Option("method", str, None, flag="--method", kind="method"),
    Option("data", str, None, flag="--data", kind="data", role=MAY_READ),
    Option("seed", int, None, flag="--seed", min=0, max=9),
    Option("force", bool, None, flag="--force"),
    Option("resume", bool, None, flag="--resume"),
)
MERGE = command(
    "merge",
    argument("models", many=True),
    Option("out", Path, None, flag="--out", role=WRITES, ending=".safetensors"),
    Option("method", str, None, flag="--method", kind="method"),
    Option("repair", str, None, flag="--repair", kind="repair"),
    Option("interpolation", str, None, flag="--interpolation", kind="interpolation"),
    Option("weights", str, None, flag="--weights"),
    Option("reference", Path, None, flag="--reference", role=READS),
    Option("out_dtype", str, None, flag="--out-dtype", kind="dtype"),
    Option("share", float, None, flag="--share", min=0, max=1),
    Option("ascent", bool, None, flag="--ascent", off="--no-ascent"),
    Option("between", Path, None, flag="--between", many=True, count=2, role=READS),
    Option("force", bool, None, flag="--force"),
)
BARRIER = command(
    "barrier",
    argument("a"),
    argument("b"),
    Option("report", Path, None, flag="--report", role=WRITES),
    Option("gate", str, None, flag="--gate", kind="gate", many=True),
)
VOCABULARY = {command.name: command for command in (ALIGN, MERGE, BARRIER)}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REBASIN_DATA", raising=False)
    for name in ("a", "b", "step2", "step10"):
        (tmp_path / f"{name}.safetensors").write_text(name)


@pytest.fixture
def recipe():
    """The recipe that a text says, and what is wrong with it."""

    def recipe(text, *, environment=None, assignments=(), fetch=None):
        problems = reader.Problems()
        root = reader.read(text, environment or {}, problems)
        root = reader.with_set(root, list(assignments), environment or {}, problems)
        return parse(root, VOCABULARY, problems, fetch=fetch), problems.in_order()

    return recipe


@pytest.fixture
def lines(recipe):
    """The command lines of a recipe without problems."""

    def lines(text, **how):
        made, problems = recipe(text, **how)
        assert problems == []
        return [" ".join(step.line()) for step in made.steps]

    return lines
