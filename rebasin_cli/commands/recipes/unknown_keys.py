"""Keys that a recipe does not know where they stand: where they belong, or what may have been meant.

A key of a step among a command's options, an option beside its command or at the top, names of steps as keys:
each is told with the form that is expected, in the person's own words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import near
from ...measure.thresholds import instead
from .reader import OF_A_STEP, Problems, Value
from .vocabulary import PARTS, Command, moved_key

SHOWN = 3  # steps of a form that is shown


def unknown_option(key: str, command: Command, value: Any = None) -> str:
    """Of a key among the options of a command."""
    if command.has("gate") and (gate := instead(key, value)):
        return _as_gate(key, gate)
    if told := moved_key(command.name, key):
        return told
    if key in OF_A_STEP:
        return (
            f"`{key}` ({OF_A_STEP[key]}) is of the step, not an option of `{command.name}`: it stands beside "
            f"the command, as in `- {{{key}: …, {command.name}: {{…}}}}`"
        )
    return f"`{command.name}` has no {key!r}; {near(key, command.keys())}"


def unknown_at_the_top(key: str, top: Iterable[str], commands: Mapping[str, Command]) -> str:
    """Of a key of the recipe as a whole."""
    if key in OF_A_STEP:
        return f"`{key}` ({OF_A_STEP[key]}) is of a step: it stands beside its command, under `steps:`"
    if key in commands:
        return f"a command is a step: `steps:` with `- {key}: {{…}}` below it"
    if any(command.has(word) for command in commands.values() for word in (key, key.replace("-", "_"))):
        return (
            f"an option of commands: it stands under `defaults:`, or in a step as in `COMMAND: {{{key}: …}}`"
        )
    return f"unknown key; {near(key, top)}"


def _as_gate(key: str, gate: str) -> str:
    return f"{key!r} is a gate now: `gate: {gate}`"


def unknown_default(key: str, known: Iterable[str], value: Any = None) -> str:
    """Of a key under `defaults:`."""
    if gate := instead(key, value):
        return _as_gate(key, gate)
    if key in OF_A_STEP:
        return f"`{key}` ({OF_A_STEP[key]}) is of one step: it stands beside its command"
    return f"no command has this option; {near(key, known)}"


def no_step(step: Value, commands: Mapping[str, Command], problems: Problems) -> None:
    """Of a step that does not say one command."""
    keys = [key for key in step.value if key not in OF_A_STEP] if step.is_map else []
    named = [key for key in keys if key in commands]
    if len(named) == 1:  # its options stand beside it
        command = commands[named[0]]
        for key in [key for key in keys if key != command.name]:
            if key.replace("-", "_") in command.keys():
                what = f"stands among the options of `{command.name}`: `{command.name}: {{{key}: …}}`"
            else:
                what = f"a step has no such key; {near(key, [*OF_A_STEP, *command.keys()])}"
            problems.add(step.value[key], what)
        return
    told = "expected one command a step, such as `- merge: {models: [a, b]}`"
    if len(named) > 1:
        told = f"expected one command a step; write {_each(f'- {name}: {{…}}' for name in named)}"
    elif len(keys) == 1:
        told = f"no command {keys[0]!r}; {near(keys[0], commands)}"
    problems.add(step, told)


def not_a_list(steps: Value, commands: Mapping[str, Command]) -> str:
    """Of `steps:` that holds names, or commands, as its keys."""
    if not steps.is_map or not steps.value:
        return "expected `steps:` with a list of commands"
    form = _each(_as_item(name, body, commands) for name, body in steps.items())
    return f"expected a list, not names: write its steps as {form}"


def _as_item(name: str, body: Value, commands: Mapping[str, Command]) -> str:
    if name in commands:
        return f"- {name}: {{…}}"
    within = [key for key in body.value if key in commands] if body.is_map else []
    return f"- {{name: {name}, {within[0] if within else 'COMMAND'}: {{…}}}}"


def _each(items: Iterable[str]) -> str:
    """Items of a list, quoted; of many the first."""
    items = [f"`{item}`" for item in items]
    return ", ".join(items[:SHOWN]) + ", …" * (len(items) > SHOWN)


def parted(given: Mapping[str, Value], problems: Problems) -> dict[str, Value]:
    """Options by their keys, each part as the option that it is."""
    found: dict[str, Value] = {}
    for key, value in given.items():
        if key not in PARTS or not value.is_map:
            found[key] = value
            continue
        known = PARTS[key]
        for word, part in value.items():
            if word not in known:
                problems.add(part, f"`{key}` has no part {word!r}; {near(word, known)}")
            elif known[word] != key and known[word] in given:
                problems.add(part, f"stands here and as {known[word]!r}")
            else:
                found[known[word]] = part
        if "file" not in value.value:
            problems.add(value, f"`{key}` lacks its file: {form(key)}")
    return found


def overridden(given: Mapping[str, Value], default: Value) -> bool:
    """Whether a default is a part of an option that a step says itself: then it is of another file."""
    return any(key in given and default.path.startswith(f"defaults.{key}.") for key in PARTS)


def form(key: str, file: str = "FILE") -> str:
    """How an option is written whose file may be missing on a first run."""
    return f"`{key}: {{file: {file}, missing: accept}}`"
