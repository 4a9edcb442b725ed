"""What a recipe of a stranger's may say: `rebasin run --untrusted`.

It names no code and trusts nobody. It reads files of the working folder by plain relative names, and writes
below an output folder of its own in there; it gets those variables that the command line names. What the
command line itself says with --set is the user's word, and held to none of this. Every value is judged before
it is used for anything: whether a file is there, and what lies beside it, is told to nobody.
"""

from __future__ import annotations

import functools
import glob
import os
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

from ...errors import UsageError
from ...registry import Registry
from ...registry import references as allowed
from ...registry.options import DATA, MAY_READ, MAY_RUN, REPLACES, TRUSTS, UNSAID, Option
from .files import is_inside
from .reader import Value, is_secret
from .vocabulary import Command

MOST_BYTES = 1 << 18  # of a recipe
MOST_STEPS = 100
MOST_FILES = 10_000  # that one name stands for
MOST_DATA = 1_000_000  # files of a folder of data
OF_A_PLACE = ("npz", "imagefolder", "text")  # data sets of ours that are named with a file or a folder
HINT = (
    "--untrusted: a recipe names no code, files of this folder alone, and variables of --allow-env "
    "(docs/security.md); --set defaults.OPTION=VALUE and --set steps.NAME.OPTION=VALUE say what you "
    "have read and want all the same"
)
LINK = "is a link that leads out of this folder, or to what is hidden"
UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # letters that a reader does not see
MODULES = (".py", ".pyc", ".pyi", ".so", ".pyd")


def _noted(judge: Callable[..., str | None]) -> Callable[..., str | None]:
    """A judgement of which it is known that it was against the recipe."""

    @functools.wraps(judge)
    def noting(limits: Limits, *given: Any) -> str | None:
        why = judge(limits, *given)
        limits.refused |= why is not None
        return why

    return noting


@dataclass
class Limits:
    """Of one recipe, in the folder `home`; `variables` are those that the command line gives it."""

    variables: Collection[str] = ()
    downloads: bool = False
    home: str = field(default_factory=lambda: os.path.realpath(os.getcwd()))
    own: set[str] = field(default_factory=set)  # code and trust that the command line itself names
    nowhere: bool = False  # the output folder was refused
    refused: bool = False  # whether anything was

    def check_start(self, recipe: Path) -> None:
        """Raise UsageError where the recipe's folder has a hand in this process, or the recipe is a link."""
        if self.home == os.path.abspath(os.sep):
            raise UsageError(
                "--untrusted: every file lies below /", hint="Start it in a folder of the recipe's own"
            )
        for name, given in ((text.partition("=")[0], text) for text in self.variables):
            if not (given.isidentifier() and given.isascii()):
                raise UsageError(
                    f"--allow-env {name}{'=…' * (name != given)}: expected the name of a variable alone",
                    hint="Set it before: NAME=VALUE rebasin run … --allow-env NAME",
                )
            if is_secret(name):
                raise UsageError(
                    f"--allow-env {name}: it is a secret by its name, and a recipe may show it to anybody",
                    hint="Give what may be seen, under another name",
                )
        for place in map(_real, (place or "." for place in sys.path if os.path.exists(place or "."))):
            if self._is_inside(place):
                raise UsageError(
                    f"--untrusted: Python looks for modules in {place}, in the recipe's own folder",
                    hint="Install rebasin outside of this folder, and start the command `rebasin` itself, or "
                    "python -P -m rebasin_cli, without a PYTHONPATH that leads here",
                )
        if os.path.lexists(rc := os.path.join(self.home, "matplotlibrc")):
            raise UsageError(f"--untrusted: {rc} would tell matplotlib how to draw", hint="Remove it")
        if self._is_inside(os.path.abspath(recipe)) and not self._is_inside(_real(recipe)):
            raise UsageError(f"--untrusted: {recipe} is a link that leads out of this folder")

    @contextmanager
    def second_lock(self) -> Iterator[None]:
        """Within, no code is imported and nothing fetched but what the command line names."""
        with allowed.only(self):
            yield

    @property
    def references(self) -> Collection[str] | None:
        """The code that may be imported, None for any: a spec's own, which is not named here."""
        return None if "trust_code" in self.own else self.own

    @property
    def unsafe_load(self) -> bool:
        return "unsafe_load" in self.own

    # ----------------------------------------------------------------------------------- what is said

    @_noted
    def wrong_command(self, command: Command) -> str | None:
        if command.operation.said:
            return None
        return f"nobody has said yet what `{command.name}` may do in a recipe of a stranger's"

    @_noted
    def wrong(self, option: Option, value: Value) -> str | None:
        """What keeps this option from having this value; None where nothing does. No file is looked at."""
        text = str(value.value)
        if value.own:
            if option.brings == MAY_RUN:
                self.own.add(text)
            elif option.brings == TRUSTS and value.value is True:
                self.own.add(option.key)
            return None
        if option.brings == MAY_RUN:
            return self._wrong_code(option.key, text)
        if option.brings in (TRUSTS, DATA):
            flag = option.key.replace("_", "-")
            return None if value.value is False else f"only the command line may say --{flag}"
        if option.brings == REPLACES:
            return "it is no file of the recipe's own: only the command line may say what is replaced"
        if option.brings == MAY_READ:
            return self.wrong_name(text)
        return "nobody has said yet whether it may name a file or code" if option.brings == UNSAID else None

    def _wrong_code(self, key: str, text: str) -> str | None:
        """Data sets and networks by their names, data at a place within; else it may be code."""
        kind, colon, rest = text.partition(":")
        if key in ("data", "held_out"):
            if colon and kind in OF_A_PLACE:
                return self.wrong_name(rest) or self.wrong_name(rest.partition("?")[0])
            if not colon and not text.endswith(".py"):
                return self.wrong_name(text)  # what is unknown is told by its command, which imports nothing
            taken = "a data set by its name, npz:FILE, imagefolder:DIR or text:FILE"
        elif key == "set":
            given = text.partition("=")[2]
            if not (set(given) & set(":/\\") or given.endswith(".py")):
                return None
            taken = "a number, a word or the name of a data set"
        elif key == "net":
            if text in own_networks() or not (colon or "." in text or "/" in text):
                return None
            taken = "a network by its name, of rebasin or of an installed package"
        else:
            return f"{text} is code, and only the command line may name some"
        return f"{text} is code, or may be; expected {taken}"

    def wrong_name(self, text: str) -> str | None:
        """What keeps this from being the name of a file below this folder, by its spelling alone."""
        parts = text.removeprefix("./").rstrip("/").split("/")
        odd = [char for char in text if unicodedata.category(char) in UNSEEN]
        if os.path.isabs(text) or PureWindowsPath(text).drive or "\\" in text or ":" in text:
            why = "is no relative path"
        elif ".." in parts:
            why = "leads out of this folder"
        elif odd or "~" in text:
            why = f"holds {ascii(odd[0]) if odd else '~'}, which no plain name does"
        elif any(not part or part.startswith(".") for part in parts):
            why = "is hidden, or has an empty part"
        else:
            return None
        return f"{text!r} {why}; expected a plain name below the folder in which rebasin was started"

    # ----------------------------------------------------------------------------------- what is read

    @_noted
    def wrong_file(self, value: Value) -> str | None:
        """As `wrong_name`, of a file, a folder or a glob; links are followed as far as the name goes."""
        text = str(value.value)
        if value.own:
            return None
        if (why := self.wrong_name(text)) is not None:
            return why
        if not glob.has_magic(text):
            return self.leads_out([Path(text)])
        folder = os.path.dirname(text)
        if "**" in text or glob.has_magic(folder):
            return "of a glob only the last part is drawn, such as runs/*.safetensors"
        return None if self._is_open(_real(folder or ".")) else f"{folder} {LINK}"

    @_noted
    def leads_out(self, paths: Iterable[Path]) -> str | None:
        """Which of these is a link out of this folder, or has one in it; each with what lies beside it."""
        from ...checkpoints import torch_writer  # heavy
        from ...spec import library

        for number, path in enumerate(paths):
            if number >= MOST_FILES:
                return f"more than {MOST_FILES:,} files"
            if path.is_dir() and self._is_open(_real(path)):
                for count, place in enumerate(_below(path)):
                    if count >= MOST_DATA:
                        return f"{path} holds more than {MOST_DATA:,} files"
                    if place.is_symlink() and not self._is_open(_real(place)):
                        return f"{place} {LINK}"
            for place in (path, torch_writer.of(path)):
                if not self._is_open(_real(place)) and path not in library.known():
                    return f"{place} {LINK}"
        return None

    @_noted
    def leads_out_beside(self, paths: Iterable[Path]) -> str | None:
        """The same of files that are taken along from the folders of models, as far as these are in here."""
        return self.leads_out(path for path in paths if self._is_inside(os.path.abspath(path)))

    # -------------------------------------------------------------------------------- what is written

    @_noted
    def wrong_folder(self, value: Value | None) -> str | None:
        """What is wrong with `output_dir`."""
        if value is not None and value.own:
            return None
        if value is None or str(value.value).strip("./") == "":
            return (
                "with --untrusted a recipe writes into a folder of its own; say `output_dir: out`, or "
                "--set output_dir=out"
            )
        why = self.wrong_output(value, Path())
        return why and why.replace("below the output folder", "below the folder in which rebasin was started")

    @_noted
    def wrong_output(self, value: Value, folder: Path) -> str | None:
        """What keeps a file or a folder of this name from being written in `folder`."""
        text = str(value.value)
        if value.own:
            return None
        if (why := self.wrong_name(text)) is not None:
            return why.replace("the folder in which rebasin was started", "the output folder")
        place = folder
        for part in Path(text).parts:
            place /= part
            if os.path.islink(place):
                return f"{place} is a link, and none is followed to write"
        if Path(text).suffix in MODULES:
            return f"{text} would be found as a module"
        return None

    # ------------------------------------------------------------------------------------------- places

    def _is_inside(self, place: str) -> bool:
        return is_inside(place, self.home)

    def _is_open(self, place: str) -> bool:
        """Inside, and in no hidden folder: .git has the credentials of a checkout."""
        if not self._is_inside(place):
            return False
        return not any(
            part.startswith(".") for part in Path(os.path.relpath(place, self.home)).parts if part != "."
        )


def own_networks() -> set[str]:
    """The exact references of rebasin's own networks, as specs spell them."""
    return {f"{module}:from_shapes" for module in Registry("nets", "network").own().values()}


def _real(place: Any) -> str:
    found: str = os.path.realpath(place)
    return found


def _below(folder: Path) -> Iterator[Path]:
    """Everything below, without following links."""
    for root, folders, names in os.walk(folder):
        yield from (Path(root, name) for name in (*folders, *names))
