"""A vocabulary of two commands, and files to name: no command line, no torch."""

import pytest

from rebasin_cli.commands.recipes import reading
from rebasin_cli.commands.recipes.recipe import parse
from rebasin_cli.commands.recipes.vocabulary import Command, Parameter
from rebasin_cli.registry.options import MAY_READ, READS, WRITES

ALIGN = Command(
    ("align",),
    "Align.",
    (
        Parameter("reference", "path", required=True, role=READS),
        Parameter("model", "path", required=True, role=READS),
        Parameter("out", "path", "--out", role=WRITES, ending=".safetensors"),
        Parameter("method", str, "--method"),
        Parameter("data", str, "--data", role=MAY_READ),
        Parameter("seed", int, "--seed", min=0, max=9),
        Parameter("force", bool, "--force"),
        Parameter("resume", bool, "--resume"),
    ),
)
MERGE = Command(
    ("merge",),
    "Merge.",
    (
        Parameter("models", "path", many=True, required=True, role=READS),
        Parameter("out", "path", "--out", role=WRITES, ending=".safetensors"),
        Parameter("method", str, "--method"),
        Parameter("repair", str, "--repair"),
        Parameter("interpolation", str, "--interpolation"),
        Parameter("weights", str, "--weights"),
        Parameter("reference", "path", "--reference", role=READS),
        Parameter("out_dtype", str, "--out-dtype"),
        Parameter("share", float, "--share", min=0, max=1),
        Parameter("ascent", bool, "--ascent", "--no-ascent"),
        Parameter("between", "path", "--between", many=True, count=2, role=READS),
        Parameter("force", bool, "--force"),
    ),
)
BARRIER = Command(
    ("barrier",),
    "Measure.",
    (
        Parameter("a", "path", required=True, role=READS),
        Parameter("b", "path", required=True, role=READS),
        Parameter("report", "path", "--report", role=WRITES),
        Parameter("gate", str, "--gate", many=True),
    ),
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
        problems = reading.Problems()
        root = reading.read(text, environment or {}, problems)
        root = reading.with_set(root, list(assignments), environment or {}, problems)
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
