"""Options that are declared once, and read from the source without importing anything."""

import importlib
import math
import sys
from pathlib import Path

import pytest

from rebasin_cli.errors import UsageError
from rebasin_cli.matchers import am, registry
from rebasin_cli.matchers.portfolio.align import options_of
from rebasin_cli.registry import Registry, operations, option
from rebasin_cli.registry.options import MAY_READ, MAY_RUN, PLAIN, READS, UNSAID, Option, made, of_module
from rebasin_cli.registry.source import constant, declared, documentation, fields, pairs, stated

SOURCES = {
    "__init__": "import nothing_that_there_is  # fails where it is imported\n",
    "base": """
from dataclasses import dataclass
from rebasin_cli.registry import option

WAYS = {"slow": print, "quick": len}
LEAST = 2

@dataclass(frozen=True)
class Common:
    rounds: int = option(7, "So many rounds.", min=LEAST)
""",
    "method": """
from dataclasses import dataclass
import nothing_that_there_is
from rebasin_cli.registry import option
from . import base
from .base import LEAST as FEW, WAYS

PLAIN = "as it is"
WORDS = ("a", "b")
ALL = (*WORDS, "c", *WORDS)

@dataclass(frozen=True)
class Options(base.Common):
    \"\"\"What it takes.\"\"\"

    way: str = option("slow", "In which way.", choices=WAYS, effect="length")
    few: "int | None" = FEW
    word: str = PLAIN
    rate: float | None = option(None, "How fast.", flag="--rate-of-it", metavar="RATE")
    ready: bool = option(True, "Whether it is ready.")
    parts: tuple = ()

    def later(self):
        return self
""",
    "operation": """
from dataclasses import dataclass
import nothing_that_there_is
from rebasin_cli.registry.options import REQUIRED, again, argument, gathered, option

@dataclass(frozen=True)
class Where:
    PANEL = "Where"

    place: str = option("here", "Where.")
    sure: bool = option(False, "Whether it is sure.", everywhere=True)

@dataclass(frozen=True)
class Kind:
    place: str = option("there", "Of which kind.")
    size: int = option(1, "How large.", panel="Sizes")
    many: int = 5

@dataclass(frozen=True, kw_only=True)
class Do_it(Where, Kind):
    \"\"\"What it does.\"\"\"

    COMMON = ("size",)

    files: tuple = argument("A B", "Files.")
    number: int = option(REQUIRED, "Of what there is no default.")
    many: int = option(7, "So many.")
    kept: bool | None = again(Where.sure, None, help="Whether it is kept.")
    size: int = again(Kind.size, 3)
    other: int = Kind.many
    options: dict = gathered("methods")

class Nothing:
    pass

def do_it(asked):
    pass

def kind_(asked):
    pass
""",
    "computed": "from dataclasses import dataclass\n\n@dataclass\nclass Options:\n    size: int = 2 * 3\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "somebodys"
    folder.mkdir()
    for name, source in SOURCES.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "somebodys"]:
        del sys.modules[name]


def test_declarations_are_read_through_bases_imports_and_constants_and_nothing_is_imported(package):
    found = {option.name: option for option in declared("somebodys.method")}
    assert list(found) == ["rounds", "way", "few", "word", "rate", "ready"]  # bases first; no tuple
    assert not any(name.startswith("somebodys") for name in sys.modules)
    rounds, way, rate = found["rounds"], found["way"], found["rate"]
    assert (rounds.default, rounds.min, rounds.help, rounds.flag) == (7, 2, "So many rounds.", "--rounds")
    assert (way.choices, way.effect, way.type) == (("slow", "quick"), "length", str)
    assert (found["few"].default, found["few"].type, found["few"].help) == (2, int, "")
    assert found["word"].default == "as it is"
    assert (rate.type, rate.default, rate.flag, rate.metavar) == (float, None, "--rate-of-it", "RATE")
    assert found["ready"].type is bool and found["ready"].default is True


def test_what_only_running_can_tell_is_left_to_the_import(package):
    (package / "__init__.py").write_text("")
    assert declared("somebodys.computed") is None
    (size,) = of_module(importlib.import_module("somebodys.computed"))
    assert (size.name, size.default, size.type) == ("size", 6, int)
    assert declared("somebodys.no_such_module") is None and declared("nowhere.at_all") is None
    assert of_module(object()) == ()


def test_constants_are_read_too(package):
    assert constant("somebodys.method", "PLAIN") == "as it is"
    assert constant("somebodys.method", "NOTHING") is None
    assert constant("somebodys.method", "ALL") == ("a", "b", "c", "a", "b")


def test_an_operation_is_read_as_the_class_would_be_made(package):
    at = "somebodys.operation"
    found = fields(at, "Do_it", own_first=True)
    assert list(found) == [*"number many kept size other options place sure".split()]
    assert list(fields(at, "Do_it")) == [*"place size many sure number kept other options".split()]
    assert found["options"] == "methods" and found["place"].default == "here"  # the first base has the word
    told = {name: (one.default, one.help, one.panel) for name, one in found.items() if name != "options"}
    assert told["many"] == (7, "So many.", "") and told["size"] == (3, "How large.", "Sizes")
    assert told["other"] == (5, "", "") and told["place"][2] == told["sure"][2] == "Where"
    kept = found["kept"]
    assert (kept.flag, kept.off, kept.default, kept.help) == (
        "--kept",
        "--no-kept",
        None,
        "Whether it is kept.",
    )
    assert kept.everywhere and kept.panel == "Where"  # what is said anew is all that differs
    assert "number" not in [one.name for one in declared(at, "Do_it")]  # it has to be given
    assert pairs(at) == ["Kind", "Do_it"] and documentation(at, "Do_it") == "What it does."
    assert stated(at, "Do_it", "COMMON") == ("size",) and stated(at, "Kind", "PANEL") is None
    assert not any(name.startswith("somebodys") for name in sys.modules)


@pytest.mark.parametrize("method", registry.names(own=True))
def test_the_source_says_of_our_methods_what_the_dataclass_says(method):
    read, imported = Registry("matchers", "method").options(method), of_module(registry.get(method))
    assert {option.name: option for option in read} == {option.name: option for option in imported}
    for each in read:
        assert each.help.endswith("."), f"{method}: {each.name} explains nothing"
        assert not each.choices or each.default is None or each.default in each.choices


def test_an_effect_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="effect is 'nice'"):
        option(1, "One.", effect="nice")


def test_options_may_be_a_mapping_of_what_differs():
    assert options_of("am", {"cost": "l2"}) == am.Options(cost="l2")
    assert options_of("am") == am.Options() and options_of("am", am.Options(at="pre")).at == "pre"


@pytest.mark.parametrize(
    "given, says",
    [
        ({"cost": "l3"}, "unknown cost 'l3'"),
        ({"limit": 0}, "--limit 0: expected at least 1"),
        ({"epochs": 1}, "--epochs: the method am has no such option"),
        ({"learning_rate": 1.0}, "--lr: the method am has no such option"),
        ({"limit": 2.5}, "--limit 2.5 is not of type int"),
        ({"limit": True}, "--limit True is not of type int"),
        ({"limit": None}, "--limit None is not of type int"),
    ],
)
def test_what_a_declaration_rules_out_is_refused(given, says):
    with pytest.raises(UsageError, match=says) as caught:
        options_of("am", given)
    assert "epochs" not in given or caught.value.hint == "It is for pam, ste, ste-mm"


def test_what_a_method_does_besides_is_no_option():
    with pytest.raises(UsageError, match="--descent: the method dual has no such option"):
        options_of("dual", {"descent": 1})
    assert options_of("ste", {"share": None, "learning_rate": 1}).learning_rate == 1


def test_a_range_has_two_ends():
    with pytest.raises(UsageError, match="--mix 1.5: expected at most 1"):
        options_of("dual", {"mix": 1.5})


def test_an_option_that_methods_read_differently_has_a_role_only_where_one_word_covers_it():
    def together(*roles):
        said = {f"m{n}": Option("x", str, None, flag="--x", role=role) for n, role in enumerate(roles)}
        return operations._together("x", said, "options").brings

    assert together(PLAIN, PLAIN) == PLAIN
    assert together(PLAIN, MAY_RUN) == together(MAY_RUN, PLAIN) == MAY_RUN
    assert together(MAY_RUN, READS) == together(PLAIN, MAY_READ, MAY_RUN) == UNSAID
    assert together(PLAIN, UNSAID) == UNSAID


def test_what_a_value_may_bring_about_follows_from_what_it_is_where_nothing_is_said():
    for one, brings in {
        Option("n", int, 1): PLAIN,
        Option("x", float, 1.0): PLAIN,
        Option("size", str, "1GB", kind="bytes"): PLAIN,
        Option("way", str, "a", choices=("a", "b")): PLAIN,
        Option("start", str, "a", choices=("a", "b"), kind="start"): MAY_READ,  # or a permutation file
        Option("file", Path, None): READS,
        Option("word", str, None): UNSAID,
        Option("ready", bool, False): UNSAID,
        Option("n", int, 1, role=MAY_RUN): MAY_RUN,
    }.items():
        assert one.brings == brings, one.name


def test_a_text_is_read_as_its_type():
    for of, text, value in (
        *((bool, "true", True), (bool, "False", False), (int, "12", 12), (float, "1e-3", 1e-3)),
        *((str, "1", "1"), (Path, "a b", Path("a b"))),
    ):
        read = Option("x", of, None, flag="--x").read(text)
        assert read == value and type(read) is type(value)
    for of, text in ((bool, "maybe"), (int, "1.5"), (int, ""), (float, "low")):
        with pytest.raises(UsageError, match=f"--x '{text}' is not of type {of.__name__}"):
            Option("x", of, None, flag="--x").read(text)


def test_a_value_is_one_that_its_option_allows():
    for one, fine, wrong in (
        (Option("x", int, 1), (0, -5, 2**31 - 1), (True, 1.0, "1", None, 2**31)),
        (Option("x", int, 1, max=2**40), (2**40,), (2**40 + 1,)),
        (Option("x", int, 1, kind="bytes"), (2**50,), (1.5,)),
        (Option("x", int, None, min=1), (None, 1), (0,)),
        (Option("x", float, 1.0, min=0, max=1), (0, 1, 0.5), (-1e-9, 1.1, math.nan, math.inf, True)),
        (Option("x", float, 1.0), (1e300,), (-math.inf, math.nan, "1")),
        (Option("x", bool, False), (True, False), (1, None, "true")),
        (Option("x", Path, None), (Path("a"), None), ("a",)),
        (Option("x", str, "a", choices=("a", "b")), ("b",), ("c", "", None)),
        (Option("x", str, "a", choices=("a", "b"), kind="start"), ("b", "c.perm.safetensors"), (1,)),
    ):
        for value in fine:
            one.check(value)
        for value in wrong:
            with pytest.raises(UsageError):
                one.check(value)


def test_the_hint_of_a_field_says_what_it_takes_and_python_keeps_what_no_text_can_be():
    for hint, told in {
        "int": (int, False, 0),
        "int | None": (int, False, 0),
        "None | int": (int, False, 0),
        "Optional[float]": (float, False, 0),
        "typing.Optional[Path]": (Path, False, 0),
        "tuple[Path, ...]": (Path, True, 0),
        "tuple[Path, ...] | None": (Path, True, 0),
        "tuple[str, str, str]": (str, True, 3),
        "tuple[int, int]": (int, True, 2),
    }.items():
        one = made("so_many", hint, None, {})
        assert (one.type, one.many, one.count, one.flag) == (*told, "--so-many"), hint
    assert [made("x", hint, None, {}) for hint in ("int | str", "dict[str, int]", "tuple[Any, ...]")] == [
        *[None] * 3
    ]
    offs = {default: made("kept", "bool | None", default, {}).off for default in (None, True, False)}
    assert offs == {None: "--no-kept", True: "--no-kept", False: ""}
    assert made("x", "bool", True, {"flag": "--of-it"}).off == "--no-of-it"
    named = Option("x", int, 1, flag="--one-way", within="options-of")
    assert (named.key, named.parameter) == ("one_way", "options_of_x")
    assert Option("models", Path, None, positional=True).key == "models"


def test_an_option_of_several_methods_allows_whatever_one_of_them_allows():
    def together(**of):
        return operations._together(
            "so_many", {name: Option("so_many", **how) for name, how in of.items()}, "o"
        )

    def whole(**more):
        return {"type": int, "default": 1, "flag": "--n", **more}

    both = together(a=whole(min=1, max=5), b=whole(min=0, max=3))
    assert (both.min, both.max, both.default, both.within, both.shown) == (0, 5, None, "o", False)
    assert together(a=whole(min=1), b=whole(max=3)).min is None
    assert together(a=whole(min=1), b=whole(max=3)).max is None
    mixed = together(a=whole(min=1), b=whole(type=float, min=0.5))
    assert (mixed.type, mixed.min) == (str, None)  # read as the chosen method's
    assert together(a=whole(kind="bytes")).type is str
    words = together(
        a=whole(type=str, choices=("x", "y")), b=whole(type=str, choices=("y", "z"), flag="--of")
    )
    assert words.choices == ("x", "y", "z") and words.metavar == "x|y|z"
    assert (words.flag, words.also) == ("--n", ("--of",))
    off, on = ({"type": bool, "default": default, "flag": "--n"} for default in (False, True))
    assert [(one.default, one.off) for one in (together(a=off), together(a=off, b=on))] == [
        (False, ""),
        (None, "--no-n"),
    ]
    same, other = whole(help="So many."), whole(help="So large.", default=7)
    assert together(a=same, b=same).help == "So many (1)."
    assert together(a=same, b=other, c=same).help == "a, c: So many (1). b: So large (7)."
    assert together(a=same, b=other).panel == "Options of a, b"


def test_a_value_is_typed_so_that_it_is_read_back():
    for one, value, words in (
        (Option("x", int, 1, flag="--x"), 3, ["--x", "3"]),
        (Option("x", int, 1, flag="--x"), -3, ["--x=-3"]),
        (Option("x", Path, None, flag="--x"), Path("-a b"), ["--x=-a b"]),
        (Option("x", str, (), flag="--x", many=True), ("a", "-b"), ["--x", "a", "--x=-b"]),
        (Option("x", str, (), flag="--x", many=True), ["a"], ["--x", "a"]),
        (Option("x", str, (), flag="--x", many=True), (), []),
        (Option("x", Path, None, flag="--x", many=True, count=2), (Path("a"), Path("b")), ["--x", "a", "b"]),
        (Option("x", bool, False, flag="--x"), True, ["--x"]),
        (Option("x", bool, False, flag="--x"), False, []),
        (Option("x", bool, None, flag="--x", off="--no-x"), False, ["--no-x"]),
        (Option("x", Path, None, positional=True), Path("-a"), ["./-a"]),
        (Option("x", Path, None, positional=True, many=True), (Path("a"), Path("-b")), ["a", "./-b"]),
    ):
        assert one.typed(value) == words
