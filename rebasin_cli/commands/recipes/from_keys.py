"""From the keys of a step to the `Step`: what its values mean as options, as files, as names of steps."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...registry import options as numbers
from ...registry import references
from ...registry.options import (
    MAY_READ,
    MAY_RUN,
    PAIR,
    PLAIN,
    READS,
    REPLACES,
    REQUIRED,
    UNSAID,
    WRITES,
    Option,
)
from ...runtime.files import is_missing, meant
from . import familiar, unknown_keys, value_checks
from .files import beside, beside_torch, opened, report_files
from .inputs import ELSEWHERE, Files, Finder
from .limits import Limits
from .reader import Problems, Value
from .steps import Step
from .vocabulary import ACCEPTED, MAY_BE_MISSING, MERGES, MODELS, Command, wrong


@dataclass
class Names:
    """What a name in a recipe stands for: files given, and outputs of the steps so far."""

    finder: Finder
    inputs: dict[str, Files] = field(default_factory=dict)
    outputs: dict[str, tuple[str, Path]] = field(default_factory=dict)  # "merged.report" → its step, the file
    makers: dict[str, str] = field(default_factory=dict)  # of the outputs' real paths: the step
    later: set[str] = field(default_factory=set)  # steps that come after
    written: set[str] = field(default_factory=set)  # real paths of all outputs
    downloads: list[Mapping[str, str]] = field(default_factory=list)  # addresses with digests

    @property
    def limits(self) -> Limits | None:
        """Those of a recipe of a stranger's."""
        return self.finder.limits

    @property
    def problems(self) -> Problems:
        return self.finder.problems

    def find(self, value: Value, known: Iterable[str] = ()) -> Files:
        """As the finder does; what was fetched is noted."""
        found = self.finder.find(value, known)
        self.downloads += found.downloads
        return found

    def add(self, step: str, writes: Mapping[str, Path]) -> None:
        """The outputs of one more step, by the names that later ones may call them."""
        for suffix, path in writes.items():
            self.outputs[f"{step}.{suffix}" if suffix else step] = step, path
            self.makers.setdefault(os.path.realpath(path), step)


class Maker:
    """One step on its way from values to a `Step`."""

    def __init__(self, name: str, command: Command, step: Value, names: Names, folder: Path):
        self.name, self.command, self.names, self.folder = name, command, names, folder
        self.step, self.problems, self.limits = step, names.problems, names.limits
        self.body = step.value[command.name]
        self.reads: list[Path] = []
        self.listed: list[Path] = []
        self.pins: dict[str, str] = {}
        self.needs: list[str] = []
        self.awaited: list[Path] = []
        self.accepted: set[str] = set()  # options whose files may be missing

    def made(self, defaults: Mapping[str, Value]) -> Step:
        given = self._given()
        shared = {
            key: value
            for key, value in defaults.items()
            if key not in given and key in self.command.keys() and self.command.has(key)
            if not unknown_keys.overridden(given, value)
        }
        every = {**given, **shared}
        self.accepted = {
            key for key, by in MAY_BE_MISSING.items() if by in every and every[by].value == ACCEPTED
        }
        before = len(self.problems)
        arguments = self._arguments(given)
        models = len(arguments) if len(self.problems) == before else 0  # else nobody knows how many
        copied = every.get("copy_files")
        if copied is not None and copied.value is True:  # configuration and tokenizer beside the models
            taken = [file for path in self.reads for file in beside(path)]
            if self.limits is not None:
                self._refuse(copied, self.limits.leads_out_beside(taken))
            self.reads += taken
        options: dict[str, Any] = {}
        judging: list[Path] = []
        for key, option in self.command.options.items():
            if option.default is REQUIRED and key not in every and option.ending is None:
                self.problems.add(self.step, f"`{self.command.name}` lacks {key!r}")
        for key, value in every.items():
            if self.command.has(key):
                known = len(self.reads)
                options[key] = self._option(self.command.options[key], value)
                if self.command.options[key].gate:
                    judging += self.reads[known:]
                    del self.reads[known:]
        if "weights" in given and isinstance(options.get("weights"), str):
            there = [text for text in arguments if self._made_earlier(text) is None]
            any_sum = models > 0 and value_checks.of_adapters(self.command.name, options.get("method"), there)
            if problem := value_checks.wrong_weights(options["weights"], models, any_sum=any_sum):
                self.problems.add(given["weights"], problem)
        if self.command.has("data"):
            named = options.get("data_root")
            root = references.data_folder(Path(named) if named else None)
            self.listed += references.of_data_sets(root) if root else []
        depends = self.step.value.get("depends")
        if depends is not None:
            self._files(depends)
        judging = [path for path in dict.fromkeys(judging) if path not in self.reads]
        writes = self._writes(options)
        replaced = {key: Path(text) for key, text in self._named(arguments).items()}
        return Step(
            self.name,
            self.command,
            tuple(arguments),
            options,
            (*dict.fromkeys(self.reads), *judging),
            tuple(self.listed),
            replaced | writes,
            tuple(dict.fromkeys(self.needs)),
            self.step.where,
            self.pins,
            self._time_limit(),
            tuple(judging),
            tuple(self.awaited),
            tuple(replaced.values()),
        )

    def _named(self, arguments: Sequence[str]) -> dict[str, str]:
        """Arguments that name what is replaced; other steps call the first by this one's name alone."""
        both = zip(self.command.arguments, arguments, strict=False)
        found = [text for option, text in both if option.brings == REPLACES]
        return {"" if not number else str(number): text for number, text in enumerate(found)}

    def _time_limit(self) -> str | None:
        value = self.step.value.get("time_limit")
        if value is None:
            return None
        if isinstance(value.value, bool) or numbers.seconds(str(value.value)) is None:
            self.problems.add(value, f"expected a time, such as 90s, 20m or 2h, not {value.value!r}")
        return str(value.value)

    def _given(self) -> dict[str, Value]:
        """The step's keys, in our words, as far as the command knows them."""
        if self.body.value is None:
            return {}
        if not self.body.is_map:
            self.problems.add(self.body, "expected the command's options as keys")
            return {}
        body: dict[str, Value] = {}
        for spelt, value in self.body.items():
            key = spelt.replace("-", "_")
            if key in body:
                self.problems.add(value, f"stands here and as {body[key].path.rpartition('.')[2]!r}")
            body[key] = value
        if self.command.name in MERGES:
            body = familiar.merge_options(body, self.problems)
        body = unknown_keys.parted(body, self.problems)
        known = self.command.keys()
        for key in [key for key in body if key not in known]:
            value = body.pop(key)
            self.problems.add(value, unknown_keys.unknown_option(key, self.command, value.value))
        return body

    def _arguments(self, given: Mapping[str, Value]) -> list[str]:
        command = self.command
        if not command.takes_models:
            found = []
            for argument in command.arguments:
                value = given.get(argument.key)
                if value is None:
                    if argument.default is REQUIRED:
                        self.problems.add(self.step, f"`{command.name}` lacks {argument.key!r}")
                    continue
                values = value.value if value.is_list else [value]
                found += [str(text) for item in values for text in self._texts(argument, item)]
            return found
        value, before = given.get(MODELS), len(self.problems)
        files = [] if value is None else [str(path) for path in self._files(value)]
        named = [] if value is None else [item.value for item in (value.value if value.is_list else [value])]
        known = [self.names.inputs.get(name) for name in named if isinstance(name, str)]
        told = len(self.problems) > before or any(files is not None and not files.paths for files in known)
        told = told or (self.body.value is not None and not self.body.is_map)
        if not told and (problem := command.wrong_count(len(files))):
            self.problems.add(value or self.step, problem)
        return files

    @property
    def own(self) -> bool:
        """Whether the step names a loss or a metric of its own."""
        return self.body.is_map and any(spelt in ("loss", "metric") for spelt, _ in self.body.items())

    def _option(self, option: Option, value: Value) -> Any:
        values = value.value if value.is_list and option.many else [value]
        if not values:
            self.problems.add(value, "expected at least one")
        found = [text for item in values for text in self._texts(option, item)]
        if option.count and found and len(found) != option.count:
            self.problems.add(value, f"expected {option.count} values, and here are {len(found)}")
        return found if option.many else found[0] if found else None

    def _texts(self, option: Option, value: Value) -> list[Any]:
        """One value as the command line has it; several where a name stands for several files."""
        if value.is_list or value.is_map:
            plain = value.plain()  # such as `weights: [0.3, 0.7]`
            joined = option.type is str and option.brings in (PLAIN, PAIR, UNSAID)
            if value.is_map or not joined or not all(_is_scalar(item) for item in plain):
                self.problems.add(value, wrong(option, plain) or "expected one value")
                return []
            value = replace(value, value=",".join(map(str, plain)))
        if self.limits is not None and self._refuse(value, self.limits.wrong(option, value)):
            return []
        named = value.value in self.names.outputs if isinstance(value.value, str) else False
        problem = wrong(option, value.value)
        if problem is None and not named:
            problem = value_checks.wrong(option, str(value.value), own=self.own)
        if problem:
            first = f"; on a first run: {unknown_keys.form(option.key)}" * (option.key in MAY_BE_MISSING)
            self.problems.add(value, problem + first * (value.value in (None, "")))
            return []
        if option.brings == READS:
            if option.key in MAY_BE_MISSING and self._is_missing(value):
                return self._without(option, value)
            return [str(path) for path in self._files(value)]
        if option.brings == REPLACES:
            return [str(value.value)]
        if option.brings == PAIR:
            two = [replace(value, value=text) for text in str(value.value).split(",")]
            return [",".join(str(path) for path in self._files(replace(value, value=two)))]
        if option.brings in (MAY_READ, MAY_RUN):
            return [self._maybe_file(value)]
        if option.brings == WRITES:
            text = str(value.value)
            if self.limits is not None:
                self._refuse(value, self.limits.wrong_output(value, self.folder))
            return [str(self.folder / text) + "/" * text.endswith("/")]
        return [value.value]

    def _is_missing(self, value: Value) -> bool:
        """Whether this is the plain name of a file, of no step and no input, and nothing is called so."""
        name, names = value.value, self.names
        if not isinstance(name, str) or glob.has_magic(name) or ELSEWHERE.match(name):
            return False
        known = name in names.outputs or name in names.inputs or name.partition(".")[0] in names.later
        if known or self._made_earlier(name) is not None:
            return False
        if self.limits is not None and self.limits.wrong_file(value) is not None:  # told where it is found
            return False
        return is_missing(Path(name))

    def _without(self, option: Option, value: Value) -> list[str]:
        """The option with a file that is not there, where that is accepted."""
        path = Path(value.value)
        if option.key not in self.accepted:
            how = unknown_keys.form(option.key, value.value)
            self.problems.add(value, f"{path}: no such file{meant(path)}; on a first run: {how}")
            return []
        self.awaited.append(path)
        return [str(path)]

    def _refuse(self, value: Value, why: str | None) -> bool:
        if why is not None:
            self.problems.add(value, why)
        return why is not None

    def _follow(self, value: Value, found: Sequence[Path]) -> None:
        """Refuse links that lead out, among what a value of a stranger's brings."""
        if self.limits is not None and not value.own:
            self._refuse(value, self.limits.leads_out(found))

    def _files(self, value: Value) -> list[Path]:
        """The files that a name, a path or a glob means, or several of them."""
        found: list[Path] = []
        for item in value.value if value.is_list else [value]:
            name = item.value
            if isinstance(name, str) and name in self.names.outputs:
                step, path = self.names.outputs[name]
                self.needs.append(step)
                found.append(path)
            elif isinstance(name, str) and name in self.names.inputs:
                found += self.names.inputs[name].paths
                self.pins |= {str(path): digest for path, digest in self.names.inputs[name].pins.items()}
            elif isinstance(name, str) and name.partition(".")[0] in self.names.later:
                self.problems.add(item, f"step {name.partition('.')[0]!r} has not run here yet")
            elif isinstance(name, str) and (made := self._made_earlier(name)) is not None:
                self.needs.append(made)
                found.append(Path(name))
            else:
                files = self.names.find(item, [*self.names.inputs, *self.names.outputs])
                self.pins |= {str(path): digest for path, digest in files.pins.items()}
                drawn = glob.has_magic(name) if isinstance(name, str) else False
                found += [
                    path
                    for path in files.paths  # what the recipe itself makes is not meant by a glob
                    if not (drawn and os.path.realpath(path) in self.names.written)
                ]
        self.reads += [part for path in found for part in opened(path)]
        return found

    def _made_earlier(self, text: str) -> str | None:
        """The step that writes this very file."""
        return self.names.makers.get(os.path.realpath(text))

    def _maybe_file(self, value: Value) -> str:
        """A reference such as file.py:loader, as it is; if there is such a file, the step depends on it."""
        text = str(value.value)
        kind, colon, rest = text.partition(":")  # npz:STEP, or npz:FILE that a step writes
        for before, name in (("", text), *[(f"{kind}:", rest)] * bool(colon)):
            named = name in self.names.outputs or name in self.names.inputs
            if named or (before and self._made_earlier(name)):
                return f"{before}{next(iter(self._files(Value(name, '', self.step.where))), name)}"
        path = references.named_in(text)
        if path is not None and path.is_dir():
            self.listed.append(path)
            self._follow(value, [path])
        else:  # package.module:name is no file of this name
            read = references.files_of(text) if path is None else opened(path)
            self._follow(value, read)
            self.reads += read
        return text

    def _writes(self, options: dict[str, Any]) -> dict[str, Path]:
        """What it leaves; an output that is not named gets the step's name."""
        if self.command.ending and options.get("out") is None:
            options["out"] = str(self.folder / f"{self.name}{self.command.ending}")
        found: dict[str, Path] = {}
        for key, option in self.command.options.items():
            named = option.default if isinstance(option.default, str | Path) else None
            if option.brings == WRITES and options.get(key) is None and named is not None:
                options[key] = str(self.folder / named)
            if option.brings != WRITES or not options.get(key):
                continue
            path = Path(options[key])
            found["" if key == "out" else key] = path
            if key == "out" and self.command.name == "align" and not options[key].endswith("/"):
                from ...symmetry import stored  # heavy

                found["perm"] = stored.beside(path)
            if key == "out" and (about := beside_torch(path)) is not None:
                found["metadata"] = about
            if key == "report":
                found |= report_files(self.command.name, path)
        return found


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)
