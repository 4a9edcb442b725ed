"""*Parse*: is this a recipe? Every step as a command with files and options, every problem with its line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import unknown_keys
from .from_keys import Maker, Names
from .inputs import Fetch, Finder
from .limits import MOST_STEPS, Limits
from .reader import Problems, Value, step_command
from .steps import Step
from .unknown_keys import parted
from .vocabulary import Command

SCHEMA = 1
TOP = {
    "rebasin": "The version of this notation: 1.",
    "description": "A sentence for who reads the file.",
    "inputs": "Names for models and other files: a path, a glob, a folder, hf: or https:.",
    "defaults": "Options of every step whose command has them.",
    "output_dir": "The folder of outputs that are named without one.",
    "steps": "The commands, in order.",
    "junit": "Write the gates of all steps into this JUnit file.",
    "step_summary": "Append the gates of all steps to this Markdown file.",
    "attest": "Write an in-toto statement on all weights that were written.",
}


@dataclass(frozen=True)
class Recipe:
    steps: tuple[Step, ...]
    downloads: tuple[Mapping[str, str], ...] = ()
    junit: Path | None = None
    step_summary: Path | None = None
    attest: Path | None = None

    @property
    def beside(self) -> list[Path]:
        """Files of the run as a whole that are written anew; a summary is added to."""
        return [path for path in (self.junit, self.attest) if path is not None]

    @property
    def files(self) -> list[Path]:
        """Everything that a run may leave."""
        return [*(path for step in self.steps for path in step.writes.values()), *self.beside]


def parse(
    root: Value,
    vocabulary: Mapping[str, Command],
    problems: Problems,
    *,
    fetch: Fetch | None = None,
    limits: Limits | None = None,
) -> Recipe:
    """The recipe that these values say; what is wrong with it goes to `problems`.

    `fetch` brings a file of elsewhere here (an address and its digest); without it such files are refused.
    `limits` are those of a recipe of a stranger's: a file that they refuse is in no recipe.
    """
    for key, value in root.items():
        if key not in TOP:
            problems.add(value, unknown_keys.unknown_at_the_top(key, TOP, vocabulary))
    _check_version(root, problems)
    names = Names(Finder(problems, fetch, limits))
    for name, value in _map(root, "inputs", problems).items():
        if problem := _bad_name(name):
            problems.add(value, problem)
        names.inputs[name] = names.find(value)
    folder = Path(_text(root, "output_dir", problems) or ".")
    if limits is not None and (why := limits.wrong_folder(root.value.get("output_dir"))) is not None:
        problems.add(root.value.get("output_dir", root), why)
        limits.nowhere = True
    defaults = {key.replace("-", "_"): value for key, value in _map(root, "defaults", problems).items()}
    defaults = parted(defaults, problems)
    _check_defaults(defaults, vocabulary, problems)
    steps = _steps(root, vocabulary, names, defaults, folder)
    if not problems:
        _check_used(defaults, steps, problems)
    files = {key: _text(root, key, problems) for key in ("junit", "step_summary", "attest")}
    if limits is not None:
        for key in [key for key, text in files.items() if text]:
            if limits.nowhere:
                del files[key]
            elif (why := limits.wrong_output(root.value[key], folder)) is not None:
                problems.add(root.value[key], why)
                del files[key]
    written = {key: folder / text for key, text in files.items() if text}
    _check_collisions(steps, written, root, problems)
    return Recipe(tuple(steps), tuple(names.downloads), **written)


def _check_version(root: Value, problems: Problems) -> None:
    version = root.value.get("rebasin")
    if version is not None and version.value != SCHEMA:
        problems.add(version, f"this version of rebasin reads notation {SCHEMA}, not {version.value!r}")


def _map(root: Value, key: str, problems: Problems) -> dict[str, Value]:
    value = root.value.get(key)
    if value is None or value.value is None:
        return {}
    if not value.is_map:
        problems.add(value, "expected keys with values")
        return {}
    found: dict[str, Value] = value.value
    return found


def _text(root: Value, key: str, problems: Problems) -> str | None:
    value = root.value.get(key)
    if value is None:
        return None
    if not isinstance(value.value, str) or not value.value:
        problems.add(value, "expected the name of a file or folder")
        return None
    return value.value


def _bad_name(name: Any) -> str | None:
    plain = name.replace("_", "").replace("-", "") if isinstance(name, str) else ""
    return None if plain.isalnum() else "a name is letters, digits, - and _"


def _check_defaults(
    defaults: Mapping[str, Value], commands: Mapping[str, Command], problems: Problems
) -> None:
    for key, value in defaults.items():
        options = [c.options[key] for c in commands.values() if key in c.keys() and c.has(key)]
        if not options:
            known = {key for command in commands.values() for key in command.keys() if command.has(key)}
            problems.add(value, unknown_keys.unknown_default(key, known, value.value))
        elif key == "out":
            problems.add(value, "two steps would write one file; name it in the step")


def _steps(
    root: Value,
    vocabulary: Mapping[str, Command],
    names: Names,
    defaults: Mapping[str, Value],
    folder: Path,
) -> list[Step]:
    given, problems = root.value.get("steps"), names.problems
    if given is None or not given.is_list or not given.value:
        problems.add(given or root, unknown_keys.not_a_list(given or root, vocabulary))
        return []
    limits = names.limits
    if limits is not None and len(given.value) > MOST_STEPS:
        problems.add(given, f"with --untrusted a recipe has at most {MOST_STEPS} steps, and here are more")
        return []
    titles = _titles(given.value, names)
    names.written = _planned(given.value, folder, titles)
    found: list[Step] = []
    for number, (step, title) in enumerate(zip(given.value, titles, strict=True)):
        names.later = set(titles[number:])
        word = step_command(step)
        command = vocabulary.get(word) if word else None
        if limits is not None and command is not None and (why := limits.wrong_command(command)):
            problems.add(step, why)
        if command is None:
            unknown_keys.no_step(step, vocabulary, problems)
            continue
        made = Maker(title, command, step, names, folder).made(defaults)
        names.add(title, made.writes)
        found.append(made)
    return found


def _titles(steps: Sequence[Value], names: Names) -> list[str]:
    """The name of every step: its own, else its command's, with a number where another one has it."""
    own = [step.value.get("name") if step.is_map else None for step in steps]
    taken: dict[str, Value] = {}
    for name in (name for name in own if name is not None):
        if bad := _bad_name(name.value):
            names.problems.add(name, bad)
        elif name.value in taken or name.value in names.inputs:
            other = taken.get(name.value)
            whose = "an input" if other is None else other.where
            names.problems.add(name, f"{name.value!r} is the name of {whose}")
        else:
            taken[name.value] = name
    titles: list[str] = []
    for step, name in zip(steps, own, strict=True):
        base = (step_command(step) or "step").replace(" ", "-")
        title, number = base, 1
        while name is None and (title in titles or title in taken or title in names.inputs):
            number += 1
            title = f"{base}-{number}"
        titles.append(title if name is None else str(name.value))
    return titles


def _planned(steps: Sequence[Value], folder: Path, titles: Sequence[str]) -> set[str]:
    """Where outputs of all steps will lie, as far as they say so themselves: no glob means these."""
    found = set()
    for step, title in zip(steps, titles, strict=True):
        body = step.value.get(step_command(step) or "") if step.is_map else None
        out = body.value.get("out") if body is not None and body.is_map else None
        name = out.value if out is not None and isinstance(out.value, str) else f"{title}.safetensors"
        stem = name.removesuffix(".safetensors")
        beside = ("", ".perm", ".search")
        found |= {os.path.realpath(folder / f"{stem}{more}.safetensors") for more in beside}
    return found


def _check_used(defaults: Mapping[str, Value], steps: Sequence[Step], problems: Problems) -> None:
    """A default that no step takes is a mistake: a gate among them would never be asked."""
    for key, value in defaults.items():
        if not any(step.command.has(key) for step in steps):
            problems.add(value, "no step of this recipe has this option")


def _check_collisions(
    steps: Sequence[Step], written: Mapping[str, Path], root: Value, problems: Problems
) -> None:
    """No file is written twice, none that is read before, and none that another step needs as it was."""
    made: dict[str, str] = {}
    for step in steps:
        for path in step.files:
            real = os.path.realpath(path)
            if real in made:
                problems.append(f"{step.where}: {step.name}: {path} is written by {made[real]} too")
            made.setdefault(real, f"step {step.name!r}")
    for key, own_path in written.items():
        real = os.path.realpath(own_path)
        if real in made:
            problems.add(root.value[key], f"{own_path} is written by {made[real]} too")
        made.setdefault(real, f"`{key}:`")
    _check_promoted(steps, problems)
    inside: dict[str, str] = {}  # who writes into a folder first
    for place, maker in made.items():
        while (place := os.path.dirname(place)) not in inside:
            inside[place] = maker
    for step in steps:
        own = {f"step {name!r}" for name in step.needs}
        for path in (*step.reads, *step.awaited):
            real = os.path.realpath(path)
            writer = made.get(real) or inside.get(real)
            if writer is not None and writer not in own:
                how = "written by" if real in made else "written into by"
                problems.append(f"{step.where}: {step.name}: {path} is read here, and {how} {writer}")


def _check_promoted(steps: Sequence[Step], problems: Problems) -> None:
    """What a step is held against is replaced in no run that holds something against it."""
    held = {os.path.realpath(path): step.name for step in steps for path in step.held_against}
    for step in steps:
        for path in step.replaces:
            if (name := held.get(os.path.realpath(path))) is not None:
                message = (
                    f"step {name!r} is held against {path} in this very run: replace it by a run of its own "
                    f"(`rebasin {step.command.name} …`), once this one has ended with 0"
                )
                problems.append(f"{step.where}: {step.name}: {message}")
