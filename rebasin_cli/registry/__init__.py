"""Names to things: a folder is a registry, entry points add to it, references name a user's own.

`Registry("matchers", "method").names()` lists the modules in `rebasin_cli/matchers/` (file `merge_many.py` is
`merge-many`) and whatever other packages declare under the entry point group `rebasin_cli.matchers`.
Nothing is imported before it is chosen: summaries and options are read from the source, not from the module.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from ..errors import RebasinError, UsageError, unknown
from .options import PLAIN, Option, of_module, option
from .references import import_reference, is_reference, unnamed
from .source import constant as stated
from .source import declared
from .user_code import user_code

__all__ = [
    "PLAIN",
    "Option",
    "Registry",
    "entry_points",
    "import_reference",
    "is_reference",
    "option",
    "unnamed",
    "user_code",
]


# Where a subpackage holds other modules, too: the folder of ours.
WITHIN = {"reports": ("formats",), "datasets": ("sets",), "groups": ("kinds",)}


class Registry:
    """The modules of one folder by name.

    `folder` is the subpackage ("matchers"), `kind` the word used in messages ("method").
    """

    def __init__(self, folder: str, kind: str):
        self.folder, self.kind = folder, kind
        within = WITHIN.get(folder, ())
        self.path = Path(__file__).parents[1].joinpath(folder, *within)
        self.group = f"rebasin_cli.{folder}"
        self.package = ".".join((self.group, *within))

    def own(self) -> dict[str, str]:
        """The modules of this folder by name: `rebasin_cli.nets.mlp` is `mlp`. No other package is asked."""
        stems = _modules(self.path, self.path.stat().st_mtime_ns)
        return {stem.replace("_", "-"): f"{self.package}.{stem}" for stem in stems}

    def _entry_points(self) -> dict[str, importlib.metadata.EntryPoint]:
        return {point.name: point for point in entry_points(self.group)}

    def names(self, *, own: bool = False) -> list[str]:
        """All names, or only those of this folder with `own`, for which no other package is asked."""
        return sorted({*self.own(), *({} if own else self._entry_points())})

    def get(self, name: str) -> Any:
        """The module or object registered as `name`.

        Raises UsageError with the nearest names, and where another package's module cannot be imported.
        """
        own = self.own()
        if name in own:
            return importlib.import_module(own[name])
        points = self._entry_points()
        if name not in points:
            raise unknown(self.kind, name, self.names())
        what = f"the {self.kind} {name} comes from {points[name].value}, which cannot be imported"
        with user_code(what, UsageError, hint="Mend that package, or remove it"):
            return points[name].load()

    def summary(self, name: str) -> str:
        """First line of the module's docstring, read without importing it."""
        if name not in (own := self.own()):
            return f"from {self._entry_points()[name].value}"
        source = self.path / (own[name].rsplit(".", 1)[1] + ".py")
        return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]

    def constant(self, name: str, constant: str) -> Any:
        """A constant that the module of `name` states, None where it states none. Raises as `get` does."""
        if name in (own := self.own()):
            return stated(own[name], constant)
        point = self._entry_points().get(name)
        if point is not None and not point.attr and (found := stated(point.module, constant)):
            return found
        return getattr(self.get(name), constant, None)

    def options(self, name: str) -> tuple[Option, ...]:
        """What the `Options` of `name` declare, from its source where that can be read, else imported.

        Raises as `get` does.
        """
        if name in (own := self.own()):
            found = declared(own[name])
        else:
            point = self._entry_points().get(name)
            found = None if point is None or point.attr else declared(point.module)
        return of_module(self.get(name)) if found is None else found

    def every_option(self) -> dict[str, tuple[Option, ...]]:
        """The options of all names; of a package that cannot be imported none, since nothing failed yet."""
        found = {}
        for name in self.names():
            try:
                found[name] = self.options(name)
            except RebasinError:
                found[name] = ()
        return found


@functools.lru_cache(maxsize=32)
def _modules(folder: Path, changed: int) -> tuple[str, ...]:
    """The names of a folder's modules; `changed` is when files came or went there last."""
    return tuple(file.stem for file in sorted(folder.glob("[!_]*.py")))


def entry_points(group: str) -> importlib.metadata.EntryPoints:
    """What other packages declare under this group. All packages are read once, for all groups."""
    return _of_group(group, tuple(sys.path))


@functools.cache
def _of_group(group: str, paths: tuple[str, ...]) -> importlib.metadata.EntryPoints:
    found: importlib.metadata.EntryPoints = _every_entry_point(paths).select(group=group)
    return found


@functools.cache
def _every_entry_point(paths: tuple[str, ...]) -> Any:
    return importlib.metadata.entry_points()  # of another type before Python 3.12
