"""A command line as a recipe of one step that equals it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import yaml

from ...errors import UsageError, near
from ...measure.thresholds import gone
from ...registry.options import PLAIN, READ, READS, REQUIRED, Option
from . import value_checks
from .inputs import ELSEWHERE
from .vocabulary import MERGES, MODELS, OF_THE_RUN, Command, expected, moved_line, wrong

OF_A_SHELL = re.compile(r"\d?[<>|&;]")  # how a word begins that a shell would not have handed on


def recipe_of(
    line: str, vocabulary: Mapping[str, Command], say: Callable[[str], None] = lambda text: None
) -> str:
    """The YAML of a recipe with this command as its one step. Raises UsageError for what is no such line.

    What is for `rebasin run` to decide, such as --force, is left out; `say` is told.
    """
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
    arguments, options, left = _read(command, words[len(command.words) :])
    if left:
        say(f"left out, since it is `rebasin run` that takes it: {', '.join(left)}")
    body: dict[str, Any] = {}
    if command.takes_models:
        problem = command.wrong_count(len(arguments))
        if problem is None and command.name in MERGES and "weights" in options:
            any_sum = value_checks.of_adapters(command.name, options.get("method"), arguments)
            problem = value_checks.wrong_weights(options["weights"], len(arguments), any_sum=any_sum)
        if problem:
            raise UsageError(problem)
        body[MODELS] = [_text(command, READS, text) for text in arguments]
    else:
        body |= _placed(command, arguments)
    body |= options
    for option in command.parameters:
        if option.default is REQUIRED and option.ending is None and option.key not in {*body, MODELS}:
            if not (option.positional and command.takes_models):
                raise UsageError(f"`rebasin {command.name}` lacks {option.flag or option.metavar}")
    steps = {"rebasin": 1, "steps": [{command.name: body}]}
    return yaml.dump(steps, sort_keys=False, allow_unicode=True, width=100)


def _read(command: Command, words: Sequence[str]) -> tuple[list[str], dict[str, Any], list[str]]:
    """Arguments, options by their keys, and the flags that were left out."""
    flags = {option.flag: option for option in command.options.values()}
    flags |= {option.off: option for option in command.options.values() if option.off}
    short = {flag: option for option in command.options.values() for flag in option.also}
    arguments: list[str] = []
    found: dict[str, Any] = {}
    left: list[str] = []
    rest, plain = list(words), False
    own = any(word.partition("=")[0] in ("--loss", "--metric") for word in words)
    while rest:
        word = rest.pop(0)
        if not plain and OF_A_SHELL.match(word):
            raise UsageError(
                f"{word!r} is for a shell: a step is one command, without what is done around it"
            )
        if plain or not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        if word == "--":
            plain = True
            continue
        flag, attached, more = _flag(word, {**flags, **short})
        option = flags.get(flag) or short.get(flag)
        if option is None and command.has("gate") and (told := gone(flag, more or "".join(rest[:1]))):
            raise UsageError(told)
        if told := moved_line([command.name, *words]):
            raise UsageError(told)
        if option is None:
            raise UsageError(f"`rebasin {command.name}` has no {flag}", hint=near(flag, flags).capitalize())
        if option.type is bool and attached:
            raise UsageError(f"{flag} takes no value")
        if option.type is bool and more:  # -qv
            rest.insert(0, f"-{more}")
        elif attached or more:
            rest.insert(0, more)
        if option.key in OF_THE_RUN:
            left.append(flag)
            continue
        if option.type is bool:
            found[option.key] = flag != option.off
            continue
        count = option.count or 1
        if len(rest) < count:
            raise UsageError(f"{flag} lacks its value")
        values, rest = [_value(command, option, text, own=own) for text in rest[:count]], rest[count:]
        if option.count:
            found[option.key] = values
        else:
            found[option.key] = [*found.get(option.key, []), *values] if option.many else values[0]
    return arguments, found, left


def _flag(word: str, known: Collection[str]) -> tuple[str, bool, str]:
    """A word's flag, whether a value is attached by `=`, and what follows: `--seed=3`, `-mwm`, `-qv`."""
    flag, equals, given = word.partition("=")
    if word.startswith("--") or word in known:
        return flag, bool(equals), given
    return word[:2], False, word[2:]


def _value(command: Command, option: Option, text: str, *, own: bool) -> Any:
    if option.type in (int, float):
        try:
            value = READ[option.type](text)
        except ValueError:
            raise UsageError(f"{option.flag} {text!r}: expected {expected(option)}") from None
    else:
        value = _text(command, option.brings, text)
    problem = wrong(option, value)
    if problem is None and option.brings == PLAIN:  # of a file only the run knows whether it is there
        problem = value_checks.wrong(option, text, own=own)
    if problem:
        raise UsageError(problem if problem.startswith(option.flag) else f"{option.flag}: {problem}")
    return value


def _text(command: Command, role: str, text: str) -> str:
    """A text that a recipe reads as this very text: no variable, no step's name, nothing from elsewhere."""
    own = command.name.replace(" ", "-")
    if role == READS and (text.partition(".")[0] == own or ELSEWHERE.match(text)):
        text = f"./{text}"
    return text.replace("${", "$${")


def _placed(command: Command, given: Sequence[str]) -> dict[str, Any]:
    """Arguments by their names, in their order."""
    rest = list(given)
    found: dict[str, Any] = {}
    for argument in command.arguments:
        if argument.many and rest:
            found[argument.key], rest = [_text(command, argument.brings, text) for text in rest], []
        elif rest:
            found[argument.key] = _text(command, argument.brings, rest.pop(0))
    if rest:
        raise UsageError(f"`rebasin {command.name}` takes no {rest[0]!r}")
    return found
