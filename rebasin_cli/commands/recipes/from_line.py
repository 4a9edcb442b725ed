"""A command line as a recipe of one step that equals it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from ...errors import UsageError
from .vocabulary import MODELS, OF_THE_RUN, Command, Parameter, near


def recipe_of(line: str, vocabulary: Mapping[str, Command]) -> str:
    """The YAML of a recipe with this command as its one step. Raises UsageError for what is no such line."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"this is no command line: {error}") from None
    words = words[1:] if words[:1] == ["rebasin"] else words
    named = [
        command for command in vocabulary.values() if tuple(words[: len(command.words)]) == command.words
    ]
    if not named:
        word = words[0] if words else ""
        raise UsageError(f"a recipe has no command {word!r}", hint=near(word, vocabulary).capitalize())
    command = max(named, key=lambda one: len(one.words))
    arguments, options = _read(command, words[len(command.words) :])
    body: dict[str, Any] = {}
    if command.takes_models:
        body[MODELS] = arguments
    else:
        body |= _placed(command, arguments)
    body |= options
    steps = {"rebasin": 1, "steps": [{command.name: body}]}
    return yaml.dump(steps, sort_keys=False, allow_unicode=True, width=100)


def _read(command: Command, words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    flags = {option.flag: option for option in command.options.values()}
    short = {flag: option for option in command.options.values() for flag in option.short}
    off = {option.off: option for option in command.options.values() if option.off}
    arguments: list[str] = []
    found: dict[str, Any] = {}
    rest, plain = list(words), False
    while rest:
        word = rest.pop(0)
        if plain or not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        if word == "--":
            plain = True
            continue
        flag, equals, given = word.partition("=") if word.startswith("--") else (word, "", "")
        option = flags.get(flag) or short.get(flag) or off.get(flag)
        if option is None:
            raise UsageError(f"`rebasin {command.name}` has no {flag}", hint=near(flag, flags).capitalize())
        if option.kind is bool:
            value: Any = flag not in off
        elif option.count and len(rest) >= option.count and not equals:
            found[option.key], rest = rest[: option.count], rest[option.count :]
            continue
        elif equals or rest:
            value = _value(option, given if equals else rest.pop(0))
        else:
            raise UsageError(f"{flag} lacks its value")
        if option.key in OF_THE_RUN:
            continue
        found[option.key] = [*found.get(option.key, []), value] if option.many else value
    return arguments, found


def _value(option: Parameter, text: str) -> Any:
    value: Any = text.replace("${", "$${")
    if option.kind in (int, float):
        try:
            value = option.kind(text)
        except ValueError:
            raise UsageError(f"{option.flag} {text!r}: expected {option.expected}") from None
    if problem := option.wrong(value):
        raise UsageError(f"{option.flag}: {problem}")
    return value


def _placed(command: Command, given: Sequence[str]) -> dict[str, Any]:
    """Arguments by their names, in their order."""
    rest, found = list(given), {}
    for argument in command.arguments:
        if argument.many and rest:
            found[argument.key], rest = rest, []
        elif rest:
            found[argument.key] = rest.pop(0)
    if rest:
        raise UsageError(f"`rebasin {command.name}` takes no {rest[0]!r}")
    return found
