"""What a text refers to: a user's own object (`file.py:name`, `package.module:name`), or a file in it."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol

from ..errors import RebasinError, UsageError, unknown
from .regular import SMALL, content, opened
from .source import constant
from .user_code import user_code

HINT = "Name it on the command line, with --set, if you have read it (docs/security.md)"
MOST_SOURCE = 1 << 22  # bytes of one that is looked through
_UNPARSED = (ValueError, SyntaxError, RecursionError, MemoryError)
DATA = "REBASIN_DATA"  # the variable of the environment that names the folder of all data sets
MOST_FILES = 300  # of a user's own code, that are looked through


def is_reference(text: str) -> bool:
    """Whether `text` names a user's own object: `file.py:name` or `package.module:name`."""
    module, colon, name = text.rpartition(":")
    return (
        bool(colon)
        and name.isidentifier()
        and (module.endswith(".py") or "." in module or module.isidentifier())
    )


def unnamed(file: str, flag: str, what: str, hint: str) -> UsageError:
    """What to say of a file that is named without what is meant in it: `what` is the word for that.

    The names that its source defines are listed; nothing in it is run.
    """
    path = Path(file)
    if not path.exists():
        return UsageError(f"{file}: no such file", hint=f"Expected {flag} file.py:{what}")
    try:
        body = ast.parse(content(path, MOST_SOURCE)).body
    except OSError as cause:
        return UsageError(f"{file} cannot be read: {cause.strerror or cause}")
    except _UNPARSED:  # told when it is imported
        body = []
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]
    return UsageError(
        f"{flag} {file} names a file, and no {what} in it",
        problems=[f"it defines {', '.join(names)}"] if names else (),
        hint=f"Write {flag} {file}:{names[0] if len(names) == 1 else what.upper()}. {hint}",
    )


def import_reference(text: str, *, error: type[RebasinError]) -> Any:
    """Import `file.py:name` or `package.module:name`: this runs the user's code.

    Failures of the user's code are raised as `error` with their one-line reason and place.
    """
    check_reference(text)
    module_name, _, attribute = text.rpartition(":")
    path, missing = Path(module_name), object()
    if not module_name:
        raise UsageError(
            f"{text!r} names no module", hint="Write package.module:name, or file.py:name for a file."
        )
    if module_name.endswith(".py"):
        _check_source(path)
    is_file, file = module_name.endswith(".py"), path.absolute()
    folders = _folders_of(path) if is_file else [Path().absolute()]  # their code may go elsewhere
    with user_code(f"importing {module_name} failed", error, hint=_relative(path) if is_file else None):
        with ExitStack() as stack:
            for folder in folders:
                stack.enter_context(findable(folder))
            module = _import_file(file) if is_file else _import_module(module_name)
        found = getattr(module, attribute, missing)  # may run the module's own __getattr__
        names = [name for name in dir(module) if not name.startswith("_")] if found is missing else []
    if found is missing:
        raise unknown(f"name in {module_name}:", attribute, names)
    return found


def _package_of(file: Path) -> list[str]:
    """The names of the packages that a file lies in, the outermost first."""
    names: list[str] = []
    for folder in file.absolute().parents:
        if not (folder / "__init__.py").is_file() or not folder.name.isidentifier():
            break
        names.insert(0, folder.name)
    return names


def _folders_of(file: Path) -> list[Path]:
    """Where what a file imports may lie: beside it, where its outermost package begins, and here."""
    beside = file.absolute().parent
    return [*dict.fromkeys((beside, file.absolute().parents[len(_package_of(file))], Path().absolute()))]


def _relative(file: Path) -> str | None:
    """What to do for a file in no package that imports from one."""
    if _package_of(file) or not any(
        isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(_tree(file))
    ):
        return None
    return (
        "It imports from the package that it lies in (from .… import …): put an empty __init__.py beside it, "
        f"or name it as a module from the folder above: {file.absolute().parent.name}.{file.stem}:NAME"
    )


def _tree(file: Path) -> ast.AST:
    """What its source says; nothing where it cannot be read, which is told when it is imported."""
    try:
        return ast.parse(content(file, MOST_SOURCE))
    except (OSError, *_UNPARSED):
        return ast.Module([], [])


def _check_source(path: Path) -> None:
    """Raise UsageError where Python would wait for a file, or read without end."""
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as cause:
        raise UsageError(f"{path} cannot be read: {cause.strerror or cause}") from None
    if size > SMALL:
        raise UsageError(f"{path} cannot be read: it has {size:,} bytes, and no source has that many")


def named_in(text: str) -> Path | None:
    """The file or folder that lies there, of `npz:digits.npz`, `imagefolder:DIR?size=32`, `net.py:build`."""
    plain = text.partition("?")[0]
    parts = (plain, plain.rpartition(":")[0], plain.partition(":")[2])
    return next((Path(part) for part in parts if part and os.path.exists(part)), None)


def data_folder(named: Path | None = None) -> Path | None:
    """The folder of all data sets: the one that is named, else that of the environment; None without one."""
    told = os.environ.get(DATA)
    return named or (Path(told) if told else None)


def of_data_sets(root: Path) -> list[Path]:
    """The files of the data sets that have names, as far as they lie below a folder of data."""
    globs = constant("rebasin_cli.datasets.downloads", "LAID_OUT")
    return sorted({file for glob in globs for file in root.glob(glob) if file.is_file()})


def files_of(text: str) -> list[Path]:
    """The files of a user's own code that `text` names: the module's, and those beside it that it imports.

    Read off their sources, and nothing is run: what is installed, or made up as it runs, is not among them.
    """
    if not is_reference(text):
        return []
    module, _, _ = text.rpartition(":")
    is_file = module.endswith(".py")
    folders = _folders_of(Path(module)) if is_file else [Path()]
    here, found = Path().absolute(), list[Path]()
    waiting = [Path(module)] if is_file else _modules(Path(), module.split("."))
    while waiting:
        path = waiting.pop()
        path = path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path
        if path in found or not os.path.isfile(path) or len(found) >= MOST_FILES:
            continue
        found.append(path)
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    waiting += [
                        file for folder in folders for file in _modules(folder, alias.name.split("."))
                    ]
            elif isinstance(node, ast.ImportFrom):
                parents = [*path.absolute().parents]
                above = parents[: node.level] if node.level else []
                waiting += [each / "__init__.py" for each in parents[: len(_package_of(path)) * bool(above)]]
                words = node.module.split(".") if node.module else []
                for base in above[-1:] or folders:
                    waiting += _modules(base, words)
                    for alias in node.names:
                        waiting += _modules(base, [*words, alias.name])
    return found


def _modules(folder: Path, words: Sequence[str]) -> list[Path]:
    """The files that importing `a.b` would read below a folder: packages on the way, and the module."""
    found, place = [], folder
    for word in words:
        place = place / word
        found += [file for file in (place.with_name(f"{word}.py"), place / "__init__.py") if file.is_file()]
    return found


@contextmanager
def findable(folder: Path) -> Iterator[None]:
    """Let the user's code import what lies in `folder`, after everything that is installed.

    Only meanwhile: optional imports of other packages would find files there later.
    """
    if (beside := str(folder.resolve())) in sys.path:
        yield
        return
    _set_apart(beside)
    sys.path.append(beside)
    try:
        yield
    finally:
        if beside in sys.path:
            sys.path.remove(beside)


_folders: set[str] = set()  # that code was found in


def _set_apart(folder: str) -> None:
    """Forget modules of other folders that are called as one in this folder: two loaders may each have a
    `helper`, and each has to get its own. Who has imported one keeps it.
    """
    others = _folders - {folder}
    _folders.add(folder)
    top = [(name, module) for name, module in sys.modules.items() if "." not in name] if others else []
    for name, module in top:
        if type(module) is not ModuleType:
            continue
        known = vars(module)  # a module's own `__getattr__` is not asked
        paths = known.get("__path__")
        place = next(iter(paths), None) if isinstance(paths, Iterable) else known.get("__file__")
        if not isinstance(place, str) or os.path.dirname(place) not in others:
            continue
        here = os.path.join(folder, name)
        if os.path.isfile(f"{here}.py") or os.path.isdir(here):
            for part in [part for part in sys.modules if part == name or part.startswith(f"{name}.")]:
                del sys.modules[part]


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):  # "a/b" would be looked for as a file
        raise UsageError(
            f"{name!r} is no module", hint="Write package.module:name, or file.py:name for a file."
        )
    return importlib.import_module(name)


class _AsItStands(importlib.machinery.SourceFileLoader):
    """Runs what the file says now: bytecode kept beside it may be of a text as long, of the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_file(path: Path) -> ModuleType:
    name = ".".join([*_package_of(path), f"_rebasin_user_{path.stem}"])  # with it relative imports work
    loader = _AsItStands(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # with a loader there is one
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles in the user's file look themselves up
    loader.exec_module(module)
    return module


class Allowed(Protocol):
    """`references` are the code that may be imported (None: any), such as `net.py:build`."""

    @property
    def references(self) -> Collection[str] | None: ...

    @property
    def unsafe_load(self) -> bool: ...

    @property
    def downloads(self) -> bool: ...


class _All:
    references, unsafe_load, downloads = None, True, True


class _Now:
    allowed: Allowed = _All()


@contextmanager
def only(allowed: Allowed) -> Iterator[None]:
    """Within, nothing else is imported, unpickled or fetched."""
    before, _Now.allowed = _Now.allowed, allowed
    try:
        yield
    finally:
        _Now.allowed = before


def check_reference(text: str) -> None:
    """Raise UsageError for code that may not be imported."""
    known = _Now.allowed.references
    if known is not None and text not in known:
        raise UsageError(f"{text} is code, and --untrusted imports none of a recipe's", hint=HINT)


def check_unpickling(what: object) -> None:
    """Raise UsageError where no file may run code of its own."""
    if not _Now.allowed.unsafe_load:
        raise UsageError(f"{what} would run code of its own, and --untrusted lets none", hint=HINT)


def may_download() -> bool:
    return _Now.allowed.downloads
