"""mergekit's words: in a merge step they mean what they mean there, and a whole file of its may be a recipe.

What rebasin cannot do is refused by name. Of its merge methods `linear` and `slerp` are plain averages of
aligned weights; the others change weights in ways that rebasin does not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import UsageError
from .reading import Problems, Value

METHODS = ("linear", "slerp")
_TOP = {"models", "merge_method", "base_model", "parameters", "dtype", "out_dtype", "name"}
_CANNOT = {
    "slices": "layers are not cut and stacked here",
    "modules": "one model is merged, not several modules",
    "tokenizer_source": "vocabularies are not merged; all models need the same one",
    "tokenizer": "vocabularies are not merged; all models need the same one",
    "chat_template": "it belongs to the tokenizer; copy it with its files",
}


def is_mergekit(root: Value) -> bool:
    return "merge_method" in root.value and "steps" not in root.value


def as_recipe(root: Value, problems: Problems) -> Value:
    """A mergekit file as a recipe of one merge, without alignment and without repair.

    Raises UsageError for keys that rebasin has nothing for: what stands below others may hang on them.
    """
    before = len(problems)
    for key, value in root.items():
        if key in _CANNOT:
            problems.add(value, _CANNOT[key])
        elif key not in _TOP:
            problems.add(value, f"rebasin does not know mergekit's {key!r}")
    if len(problems) > before:
        _check_method(root.value["merge_method"], problems)
        raise UsageError(
            "this file of mergekit asks for what rebasin does not do",
            problems=problems.in_order(),
            hint="Of its files rebasin runs those with `models`, averaged by linear or slerp",
        )
    body = {key: value for key, value in root.items() if key in _TOP - {"name"}}
    body |= {key: _like(root, key, "none") for key in ("method", "repair")}
    step = {"merge": replace(root, value=body, path="merge")}
    if "name" in root.value:
        step["name"] = root.value["name"]
    steps = replace(root, value=[replace(root, value=step, path="steps[1]")], path="steps")
    return replace(root, value={"steps": steps})


def merge_options(body: Mapping[str, Value], problems: Problems) -> dict[str, Value]:
    """The options of a merge step in our words: `base_model`, `merge_method`, `dtype`, `parameters`."""
    found = dict(body)
    method = found.pop("merge_method", None)
    if method is not None:
        _check_method(method, problems)
        found.setdefault("interpolation", method)
    base = found.pop("base_model", None)
    parameters = found.pop("parameters", None)
    models = found.get("models")
    if models is not None and models.is_list:
        files, weights = _weighted(models, parameters, problems)
        found["models"] = replace(models, value=files)
        if method is not None and method.value == "slerp":
            weights = _slerp(found, base, parameters, problems)
        elif parameters is not None:
            _only(parameters, {"weight", "normalize"}, problems)
        if weights:
            if "weights" in found:
                problems.add(found["weights"], "the models have weights of their own already")
            found["weights"] = _like(models, "weights", weights)
    elif parameters is not None:
        problems.add(parameters, "expected a list of models that they are for")
    if base is not None and _matters(base, found):
        found.setdefault("reference", base)
    dtype = found.pop("dtype", None)
    if dtype is not None:  # sums are in float32 or better, whatever it says; so it is what is written
        found.setdefault("out_dtype", dtype)
    return found


def _check_method(method: Value, problems: Problems) -> None:
    if method.value not in METHODS:
        problems.add(method, f"rebasin has {' and '.join(METHODS)}, not {method.value!r}")


def _matters(base: Value, body: Mapping[str, Value]) -> bool:
    """Whether the base model is what the others are aligned to, or one of those that are averaged.

    Where a method aligns, one that is none of the models is refused: as a file that is not there, or by
    `merge` itself. Else it is of no use: nothing is said of vocabularies.
    """
    method, models = body.get("method"), body.get("models")
    aligns = method is None or method.value != "none"
    return aligns or any(_same(base, item) for item in (models.value if models and models.is_list else ()))


def _same(one: Value, other: Value) -> bool:
    """Whether two values name one model: by the same words, or the same file."""
    words = (one.plain(), other.plain())
    if words[0] == words[1] or not all(isinstance(text, str) and text for text in words):
        return words[0] == words[1]
    return all(map(os.path.exists, words)) and os.path.samefile(*words)


def _weighted(
    models: Value, parameters: Value | None, problems: Problems
) -> tuple[list[Value], list[float] | None]:
    """Files and weights of `- model: FILE` with `weight:` or `parameters: {weight: …}`."""
    files, given = [], []
    shared = _number(parameters.value.get("weight"), problems) if _maps(parameters) else None
    for item in models.value:
        if not item.is_map:
            files.append(item)
            given.append(shared)
            continue
        _only(item, {"model", "weight", "parameters"}, problems)
        if "model" not in item.value:
            problems.add(item, "expected `model:`")
            continue
        files.append(item.value["model"])
        own = item.value.get("weight")
        if _maps(below := item.value.get("parameters")):
            _only(below, {"weight"}, problems)
            own = below.value.get("weight", own)
        given.append(shared if own is None else _number(own, problems))
    if all(weight is None for weight in given):
        return files, None
    if None in given:
        problems.add(models, "some models have a weight and others have none")
        return files, None
    return files, _normalized(given, models, parameters, problems)


def _normalized(
    weights: list[float], models: Value, parameters: Value | None, problems: Problems
) -> list[float] | None:
    """mergekit divides by the sum unless told otherwise; so do we, and what does not add up is refused."""
    asked = parameters.value.get("normalize") if _maps(parameters) else None
    total = sum(weights)
    if asked is not None and asked.value is False and abs(total - 1) > 1e-6:
        problems.add(models, f"the weights add up to {total:g}; rebasin makes averages, which add up to 1")
        return None
    if not total > 0:
        problems.add(models, f"the weights add up to {total:g}")
        return None
    return [weight / total for weight in weights]


def _slerp(
    body: dict[str, Value], base: Value | None, parameters: Value | None, problems: Problems
) -> list[float] | None:
    """Weights of two models at `t`, from the base model at 0 to the other one at 1."""
    models = body["models"]
    t = _number(parameters.value.get("t"), problems) if _maps(parameters) else None
    if t is None:
        problems.add(parameters or models, "slerp needs `parameters: {t: …}`, one number from 0 to 1")
        return None
    _only(parameters, {"t"}, problems)
    if not 0 <= t <= 1:
        problems.add(parameters, f"t is {t:g}, expected 0 to 1")
        return None
    if len(models.value) == 1 and base is not None:
        body["models"] = replace(models, value=[base, *models.value])
    elif base is not None:
        first = [item for item in models.value if _same(item, base)]
        if not first:
            problems.add(base, "expected one of the two models")
        others = [item for item in models.value if not _same(item, base)]
        body["models"] = replace(models, value=first + others)
    return [1 - t, t]


def _number(value: Value | None, problems: Problems) -> float | None:
    if value is None:
        return None
    if isinstance(value.value, bool) or not isinstance(value.value, int | float):
        kind = "a list (a gradient over layers, or filters)" if value.is_list else repr(value.plain())
        problems.add(value, f"expected one number for all tensors, not {kind}")
        return None
    return float(value.value)


def _only(value: Value, known: set[str], problems: Problems) -> None:
    for key, item in value.items() if value.is_map else ():
        if key not in known:
            problems.add(item, f"rebasin has no {key!r} here; known: {', '.join(sorted(known))}")


def _maps(value: Value | None) -> bool:
    return value is not None and value.is_map


def _like(at: Value, key: str, value: Any) -> Value:
    """A value that was not written, in the place of another one."""
    plain = (
        [Value(item, f"{key}[{n}]", at.where) for n, item in enumerate(value)]
        if isinstance(value, list)
        else value
    )
    return Value(plain, key, at.where)
