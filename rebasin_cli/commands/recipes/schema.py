"""The JSON Schema of recipes, for editors: made from the same vocabulary that a recipe is checked by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...registry.options import READS, Option
from .familiar import METHODS
from .reader import OF_A_STEP
from .recipe import TOP
from .vocabulary import MERGES, MODELS, OF_THE_RUN, PARTS, Command

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", Path: "string"}
_VARIABLE = {"type": "string", "pattern": r"\$\{"}  # what the environment tells may be of any type
_FILES = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_OF_A_STEP: dict[str, dict[str, Any]] = {
    "name": {"type": "string"},
    "depends": _FILES,
    "time_limit": {"type": ["string", "number"]},
}
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def schema(vocabulary: Mapping[str, Command]) -> dict[str, Any]:
    """A schema that every recipe which can be run satisfies. It knows no files, names or sums of weights."""
    commands = {name: _command(command) for name, command in vocabulary.items()}
    step = {
        "type": "object",
        "properties": {
            key: _OF_A_STEP[key] | {"description": f"{told.capitalize()}."} for key, told in OF_A_STEP.items()
        }
        | {name: {"$ref": f"#/$defs/{name}"} for name in commands},
        "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in commands],
    }
    shared = {
        key: option
        for command in vocabulary.values()
        for key, option in command.options.items()
        if key not in OF_THE_RUN and key != "out"
    }
    kinds: dict[str, dict[str, Any]] = {
        "rebasin": {"const": 1},
        "inputs": {"type": "object", "additionalProperties": {"$ref": "#/$defs/input"}},
        "defaults": {
            "type": "object",
            "properties": {key: _value(option, shared) for key, option in sorted(shared.items())},
            "additionalProperties": False,
        },
        "steps": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/step"}},
    }
    return {
        "$schema": DRAFT,
        "title": "A recipe of rebasin run",
        "type": "object",
        "properties": {
            key: kinds.get(key, {"type": "string"}) | {"description": told} for key, told in TOP.items()
        },
        "required": ["steps"],
        "additionalProperties": False,
        "$defs": {"input": _input(), "step": step, **commands},
    }


def _input() -> dict[str, Any]:
    pinned = {"type": "object", "additionalProperties": False}
    return {
        "anyOf": [
            *_FILES["anyOf"],
            pinned | {"properties": {"path": {"type": "string"}, "sha256": _SHA256}, "required": ["path"]},
            pinned
            | {"properties": {"url": {"type": "string"}, "sha256": _SHA256}, "required": ["url", "sha256"]},
        ]
    }


def _command(command: Command) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    if command.takes_models:
        few, many = command.counts()
        properties[MODELS] = _models(command) | {"description": f"{few}{'' if many else ' or more'} models."}
    else:
        properties |= {argument.key: _value(argument, {}) for argument in command.arguments}
    own = {key: option for key, option in command.options.items() if key not in OF_THE_RUN}
    properties |= {key: _value(option, own) for key, option in own.items()}
    if command.name in MERGES:
        properties |= {
            "merge_method": {
                "enum": list(METHODS),
                "description": "mergekit's word for interpolation.",
            },
            "base_model": {"type": "string", "description": "mergekit's word for reference."},
            "dtype": {"type": "string", "description": "mergekit's word; here as out_dtype."},
            "parameters": {"type": "object", "description": "mergekit's weight, normalize, lambda and t."},
        }
    return {
        "type": ["object", "null"],
        "description": command.help,
        "properties": properties,
        "additionalProperties": False,
    }


def _models(command: Command) -> dict[str, Any]:
    if command.name not in MERGES:
        return dict(_FILES)
    weight = {"type": "number"}
    weighted = {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "weight": weight,
            "parameters": {"type": "object", "properties": {"weight": weight}, "additionalProperties": False},
        },
        "required": ["model"],
        "additionalProperties": False,
    }
    item = {"anyOf": [{"type": "string"}, weighted]}
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": item}]}


def _value(option: Option, known: Mapping[str, Option]) -> dict[str, Any]:
    """What an option may be; one with parts also these, which are options that are `known`, too."""
    one: dict[str, Any] = {"type": _TYPES[option.type]}
    if option.type in (int, float):
        one |= {"minimum": option.min} if option.min is not None else {}
        one |= {"maximum": option.max} if option.max is not None else {}
    told = {"description": option.help} if option.help else {}
    choices = [one] if option.type in (str, Path) else [one, _VARIABLE]
    if option.type is str:
        choices.append({"type": "number"})  # `output: 0`
    if option.count:
        return {"type": "array", "items": one, "minItems": option.count, "maxItems": option.count} | told
    if option.many or option.brings == READS:
        some = {"type": ["number", "string"]} if option.many and option.type is str else one
        choices.append({"type": "array", "items": some})  # `not_kept: [0, aux]`
    elif option.type is str:
        choices.append({"type": "array", "items": {"type": ["number", "string"]}})  # `weights: [0.3, 0.7]`
    if option.key in PARTS and option.key in known:
        parts = {word: known[key] for word, key in PARTS[option.key].items()}
        kinds = {word: _value(part, {}) for word, part in parts.items()}
        of_parts = {"properties": kinds, "required": ["file"], "additionalProperties": False}
        choices.append({"type": "object", **of_parts})
    kind = choices[0] if len(choices) == 1 else {"anyOf": choices}
    return kind | told
