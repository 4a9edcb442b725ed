"""The house: who may import whom, what stands on the top floor, and who may print (docs/contributing.md)."""

import ast
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from . import types_left

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "rebasin_cli"

# From the top floor down. A file imports from its own room and from those below it, never from above.
FLOORS = """
    cli  commands  commands.recipes  commands.merging  commands.verbs  session  api
    lab  lab.teacher  lab.batched  lab.engine
    measure  reports
    learning.curves
    matchers  matchers.portfolio  matchers.polish
    matchers.relaxed
    matchers.straight_through  matchers.activations  matchers.descent
    matchers.accounts
    repair
    inference  inference.text  inference.groups  inference.rules  inference.axes
    proof  graph
    learning
    networks  symmetry  spec
    groups.kinds  groups
    averages
    nets  datasets.sets  datasets  checkpoints  runtime  registry  version  types  errors
""".split()
ENTRANCES = {"__init__", "__main__"}  # they open the doors, and belong to no floor
# Files that import each other, wherever in a file and for whatever: this list only shrinks.
CIRCLES = []
PROTOCOLS = {"matchers"}  # what stands in the folder's __init__ is for the rooms within it, too


def name_of(path):
    parts = path.relative_to(HOUSE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {name_of(path): path for path in sorted(HOUSE.rglob("*.py"))}


def room_of(module):
    """The innermost room that a module lies in."""
    return max((room for room in FLOORS if f"{module}.".startswith(f"{room}.")), key=len, default=None)


@cache
def nodes_of(path):
    """What a file calls and imports: the files are parsed once for all tests."""
    kinds = (ast.Call, ast.Import, ast.ImportFrom)
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)]


@cache
def imports_of(module):
    """(line, module) of all that a file imports from this package, wherever in the file it does so."""
    path = MODULES[module]
    here = path.relative_to(ROOT).parts[:-1]
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            whole = [alias.name.removeprefix("rebasin_cli.") for alias in node.names]
            found |= {(node.lineno, name) for name in whole if name in MODULES and name not in ENTRANCES}
        if not isinstance(node, ast.ImportFrom):
            continue
        package = [*here[: len(here) - (node.level - 1)]] if node.level else []
        base = [*package, *(node.module or "").split(".")] if node.module else package
        if base[:1] != ["rebasin_cli"]:
            continue
        for alias in node.names:
            whole, parent = ".".join([*base[1:], alias.name]), ".".join(base[1:])
            found.add((node.lineno, whole if whole in MODULES else parent))
    return sorted(found)


def of_its_folder(module, other):
    """Whether `other` is the protocol that stands at the entrance of the folder which `module` lies in."""
    return other in PROTOCOLS and module.startswith(f"{other}.")


def test_nothing_new_stands_on_the_top_floor():
    files = {path.stem for path in HOUSE.glob("*.py")}
    assert files == ENTRANCES | {"api", "errors", "types", "version"}
    folders = {path.name for path in HOUSE.iterdir() if (path / "__init__.py").exists()}
    assert folders == {room for room in FLOORS if "." not in room} - files


def test_nothing_but_what_belongs_there_is_kept_beside_the_house():
    """A script that somebody needed once, or an output, is not committed with what he meant to commit."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    kept = {name.partition("/")[0] for name in listed.stdout.split("\0") if name}
    folders = {".ci", ".github", "benchmarks", "docs", "rebasin_cli", "specs", "tests"}
    files = {".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "mkdocs.yml"}
    assert kept - folders - files == {"constraints.txt", "pyproject.toml"}


def test_no_import_goes_up():
    rooms = {module: room_of(module) for module in sorted(MODULES.keys() - ENTRANCES)}
    assert [module for module, room in rooms.items() if room is None] == [], "see docs/contributing.md"
    up = [
        f"{module}:{line} imports {other}, which is in the room above ({room_of(other)})"
        for module, room in rooms.items()
        for line, other in imports_of(module)
        if other and not of_its_folder(module, other) and FLOORS.index(room_of(other)) < FLOORS.index(room)
    ]
    assert not up, "\n".join(up)


def test_what_other_rooms_import_has_no_underscore():
    """An underscore before a file's name says that it is private to its room."""
    private = {name for name in MODULES if name.rpartition(".")[2].startswith("_")} - ENTRANCES
    taken = [
        f"{module}:{line} imports {other}"
        for module in sorted(MODULES.keys() - ENTRANCES)
        for line, other in imports_of(module)
        if other in private and room_of(other) != room_of(module)
    ]
    assert private and not taken, "\n".join(taken)


def circles_of(imports):
    """The sets of files that import each other, directly or through others: {file: what it imports}."""
    left = {module: {other for other in others if other != module} for module, others in imports.items()}
    while done := {module for module, others in left.items() if not others & left.keys()}:
        left = {module: others for module, others in left.items() if module not in done}
    below = {module: reached(left, module) for module in left}  # of a few
    found = [{other for other in below[module] if module in below[other]} for module in left]
    return [circle for k, circle in enumerate(found) if circle and circle not in found[:k]]


def reached(imports, module):
    """All that a file imports, and what that imports, and so on."""
    found, new = set(), {module}
    while new:
        new = {other for each in new for other in imports[each] if other in imports} - found
        found |= new
    return found


def test_files_do_not_import_each_other():
    """Not within a room either, and not for a checker alone: who reads one of them has to read both."""
    imports = {module: {other for _, other in imports_of(module)} for module in MODULES}
    found = circles_of(imports)
    new = [sorted(circle) for circle in found if not any(circle <= known for known in CIRCLES)]
    assert not new, f"these import each other: {new}"
    mended = [sorted(known) for known in CIRCLES if not any(circle <= known for circle in found)]
    assert not mended, f"strike them off the list: {mended}"


def test_proving_needs_no_inference():
    """A proof asks the network alone. As an interpreter shows it: tests/cli/test_main.py."""
    needed = reached(
        {module: {other for _, other in imports_of(module)} for module in MODULES}, "proof.prove"
    )
    assert "proof.trials" in needed and not {name for name in needed if name.startswith("inference")}


def test_a_circle_of_imports_is_noticed():
    three = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e", "f"}, "f": {"g"}, "g": {"e"}}
    assert circles_of(three) == [{"b", "c"}, {"e", "f", "g"}]
    joined = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}
    assert circles_of(joined) == [{"a", "b"}, {"c", "d"}]


def test_an_import_that_goes_up_is_noticed():
    """The check above would be worth nothing if it saw no imports."""
    assert ("errors", "cli") == (FLOORS[-1], FLOORS[0])
    seen = {other for module in MODULES for _, other in imports_of(module)}
    assert {"session.session", "matchers", "checkpoints.tensors", "runtime.ranks"} <= seen
    assert room_of("matchers.descent.pair") == "matchers.descent" and room_of("matchers.wm") == "matchers"


@pytest.mark.parametrize(
    "package, rooms",
    [
        ("typer", {"cli"}),
        ("rich", {"cli", "reports.formats.terminal"}),
        ("print", {"cli", "runtime.signals"}),
    ],
)
def test_only_the_screen_prints(package, rooms):
    """`print` is the function; the others are packages."""
    for module, path in MODULES.items():
        if module in ENTRANCES or module.split(".")[0] in rooms or module in rooms:
            continue
        for node in nodes_of(path):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            taken = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            taken += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert package != called and package not in {name.split(".")[0] for name in taken}, (
                f"{module}:{node.lineno} uses {package}"
            )


def test_the_wheel_holds_every_folder_and_what_lies_beside_the_code():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in HOUSE.rglob("__init__.py")}
    assert folders <= {*told["packages"]}
    templates = [*(HOUSE / "reports" / "templates").iterdir()]
    patterns = told["package-data"]["rebasin_cli.reports"]
    kept = [path for pattern in patterns for path in (HOUSE / "reports").glob(pattern)]
    assert templates and {*templates} == {*kept}


def test_every_room_says_what_is_in_it():
    for module, path in MODULES.items():
        if path.name == "__init__.py" and module not in ENTRANCES:
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{module} says nothing"


def test_the_floors_are_those_that_the_page_draws():
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    drawn = page.partition("<!-- floors -->")[2].partition("<!-- end -->")[0]
    names = re.findall(r"([a-z_]+(?:/[a-z_]+)*)(?:/|\.py)(?=\s)", drawn)
    assert [name.replace("/", ".") for name in names] == [room for room in FLOORS if room != "version"]


def test_what_types_are_left_is_a_list_of_files_that_are_there():
    """That no file has more errors than the list says is the work of `make types`."""
    left = types_left.read()
    gone = [name for name in left if not (ROOT / name).is_file()]
    assert not gone, f"strike them off tests/types_left.txt, or: make types WRITE=--write: {gone}"
    assert [*left] == sorted(left)
    assert all(strict >= 0 and lax >= 0 and strict + lax > 0 for strict, lax in left.values())


# Files of ours, and files that were looked at before: all else that a person names goes through
# `registry.regular`, which opens regular files only, or is written.
OPENERS = {
    *("registry.regular", "runtime.files", "runtime.streams"),
    "runtime.memory",  # what the kernel says of memory
    *(
        "registry",
        "registry.source",
        "registry.operations",
        "lab.engine.parameters",
        "datasets.sets.alice",
        "datasets.sets.digits",
    ),
    *("checkpoints.torch_file", "checkpoints.safetensors_format", "checkpoints.storages"),
    *("checkpoints.stored", "checkpoints.stages", "commands.recipes.records", "commands.recipes.downloads"),
}


def test_whatever_a_person_names_is_opened_in_one_way():
    """By names of calls: `Path.open` is not told from the `open` of an archive, and not looked for."""
    for module, path in MODULES.items():
        for node in nodes_of(path):
            if not isinstance(node, ast.Call) or module in OPENERS:
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            plain = isinstance(node.func, ast.Name) and name == "open"
            first = node.args[0] if node.args else None
            named = isinstance(first, ast.Name) and first.id == "path"
            loads = name == "load" and named and ast.unparse(node.func) in ("np.load", "torch.load")
            assert not (plain or loads or name in ("read_bytes", "read_text", "fromfile")), (
                f"{module}:{node.lineno} opens a file by itself: see registry/regular.py"
            )


def test_files_that_the_way_of_an_option_names_are_there():
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    way = page.partition("## How one option gets")[2].partition("\n## ")[0]
    named = re.findall(r"`([a-z_/]+\.py)`", way)
    assert named and [name for name in named if not (ROOT / "rebasin_cli" / name).is_file()] == []
