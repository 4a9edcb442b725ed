"""A user's own objects, by reference: `file.py:name` or `package.module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UsageError, unknown

OURS = __package__.partition(".")[0] + "."


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
        elif module_name.startswith(OURS):  # needs nothing that lies in the working directory
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
