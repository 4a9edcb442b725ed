"""A folder is a registry; entry points add to it.

`Registry("matchers").names()` lists the modules in `rebasin_cli/matchers/` (file `merge_many.py` is
`merge-many`) and whatever other packages declare under the entry point group `rebasin_cli.matchers`.
Nothing is imported before it is chosen: summaries are read from the source, not from the module.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import UsageError, unknown


class Registry:
    """The modules of one folder by name.

    `folder` is the subpackage ("matchers"), `kind` the word used in messages ("method").
    """

    def __init__(self, folder: str, kind: str):
        self.folder, self.kind = folder, kind
        self.path = Path(__file__).parent / folder
        self.group = f"rebasin_cli.{folder}"

    def _own(self) -> dict[str, str]:
        files = sorted(self.path.glob("[!_]*.py"))
        return {file.stem.replace("_", "-"): f"{self.group}.{file.stem}" for file in files}

    def _entry_points(self) -> dict[str, importlib.metadata.EntryPoint]:
        return {point.name: point for point in importlib.metadata.entry_points(group=self.group)}

    def names(self, *, own: bool = False) -> list[str]:
        """All names, or only those of this folder with `own`, for which no other package is asked."""
        return sorted({*self._own(), *({} if own else self._entry_points())})

    def get(self, name: str) -> Any:
        """The module or object registered as `name`. Raises UsageError with the nearest names."""
        own = self._own()
        if name in own:
            return importlib.import_module(own[name])
        points = self._entry_points()
        if name in points:
            return points[name].load()
        raise unknown(self.kind, name, self.names())

    def summary(self, name: str) -> str:
        """First line of the module's docstring, read without importing it."""
        if name not in (own := self._own()):
            return f"from {self._entry_points()[name].value}"
        source = self.path / (own[name].rsplit(".", 1)[1] + ".py")
        return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def is_reference(text: str) -> bool:
    """Whether `text` names a user's own object: `file.py:name` or `package.module:name`."""
    module, colon, name = text.rpartition(":")
    return (
        bool(colon)
        and name.isidentifier()
        and (module.endswith(".py") or "." in module or module.isidentifier())
    )


def import_reference(text: str, *, error: type[Exception]) -> Any:
    """Import `file.py:name` or `package.module:name`: this runs the user's code.

    Failures of the user's code are raised as `error` with their one-line reason.
    """
    module_name, _, attribute = text.rpartition(":")
    path = Path(module_name)
    try:
        if module_name.endswith(".py"):
            with _findable(path.parent):
                module = _import_file(path)
        elif module_name.startswith(f"{__package__}."):  # needs nothing that lies in the working directory
            module = importlib.import_module(module_name)
        else:
            with _findable(Path()):
                module = importlib.import_module(module_name)
    except UsageError:
        raise
    except (Exception, SystemExit) as cause:
        raise error(f"importing {module_name} failed: {type(cause).__name__}: {cause}") from cause
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise unknown(f"name in {module_name}:", attribute, names)
    return getattr(module, attribute)


@contextmanager
def _findable(folder: Path) -> Iterator[None]:
    """Let the user's code import what lies in `folder`, after everything that is installed.

    Only meanwhile: optional imports of other packages would find files there later.
    """
    if (beside := str(folder.resolve())) in sys.path:
        yield
        return
    sys.path.append(beside)
    try:
        yield
    finally:
        if beside in sys.path:
            sys.path.remove(beside)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(f"_rebasin_user_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles in the user's file look themselves up
    spec.loader.exec_module(module)
    return module
