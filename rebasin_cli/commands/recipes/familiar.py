"""mergekit's words: in a merge step they mean what they mean there, and a whole file of its may be a recipe.

What rebasin cannot do is refused by name. Of its merge methods `linear` and `slerp` are plain averages, and
`task_arithmetic` is one whose weights may be negative: θ + λ Σ w_k (θ_k − θ) is a sum of models that adds up
to 1 with the base model's own weight. The others change weights in ways that rebasin does not.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from ...errors import RebasinError, UsageError
from ...runtime import files
from .reader import MAX_BYTES, Problems, Value, read

METHODS = ("linear", "slerp", "task_arithmetic")
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
            hint=f"Of its files rebasin runs those with `models`, merged by {_either(METHODS)}",
        )
    body = {key: value for key, value in root.items() if key in _TOP - {"name"}}
    body |= {key: _like(root, key, "none") for key in ("method", "repair")}
    step = {"merge": replace(root, value=body, path="merge")}
    if "name" in root.value:
        step["name"] = root.value["name"]
    steps = replace(root, value=[replace(root, value=step, path="steps[1]")], path="steps")
    return replace(root, value={"steps": steps})


def instead(error: RebasinError, arguments: Sequence[str]) -> RebasinError:
    """The error for a file of mergekit where a model or a spec should stand; else the same error.

    It says what the file asks for as a command line, or what of it rebasin does not do.
    """
    told = "\n".join((error.message, *error.problems, error.hint or ""))
    for word in arguments[1:] if arguments and arguments[0] not in ("run", "card") else ():
        path = Path(word.partition("=")[2] if word.startswith("--") else word)
        if path.name in told or "at least two models" in told:
            root = _read(path)
            if root is not None:
                return _refusal(error, path, root)
    return error


def _read(path: Path) -> Value | None:
    """The file of mergekit, if it is one."""
    try:
        if path.suffix not in (".yml", ".yaml"):
            return None
        root = read(files.text(path, str(path), most=MAX_BYTES), {}, Problems())
    except UsageError:
        return None
    return root if is_mergekit(root) else None


def _refusal(error: RebasinError, path: Path, root: Value) -> RebasinError:
    problems = Problems()
    try:
        line = _line(as_recipe(root, problems), problems)
    except UsageError as refused:
        problems[:] = refused.problems
    what = f"{path} is a file of mergekit, not a model or a spec"
    if problems:
        hint = f"rebasin cannot do what it asks; it runs files with `models`, merged by {_either(METHODS)}"
        return type(error)(what, problems=problems.in_order(), hint=hint)
    return type(error)(
        what, hint=f"What it asks for is: {line}; or as it stands: rebasin run {shlex.quote(str(path))}"
    )


def _line(recipe: Value, problems: Problems) -> str:
    """The command line of a recipe that `as_recipe` made, whether its models are there or not."""
    step = recipe.value["steps"].value[0].value["merge"]
    options = {key: value.plain() for key, value in merge_options(step.value, problems).items()}
    words = ["rebasin", "merge", *map(str, options.pop("models", ()))]
    if options.get("interpolation") == "linear":
        del options["interpolation"]
    for key, value in options.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words.append(f"--{key.replace('_', '-')}" + f"={text}" * text.startswith("-"))
        words += [] if text.startswith("-") else [text]
    return shlex.join(words)


def merge_options(body: Mapping[str, Value], problems: Problems) -> dict[str, Value]:
    """The options of a merge step in our words: `base_model`, `merge_method`, `dtype`, `parameters`."""
    found = dict(body)
    method = found.pop("merge_method", None)
    if method is not None:
        _check_method(method, problems)
        if method.value in METHODS:
            how = "slerp" if method.value == "slerp" else "linear"
            found.setdefault("interpolation", replace(method, value=how))
    base = found.pop("base_model", None)
    parameters = found.pop("parameters", None)
    models = found.get("models")
    if models is not None and models.is_list:
        files, given = _weighted(models, parameters, problems)
        found["models"] = replace(models, value=files)
        if method is not None and method.value == "slerp":
            weights = _slerp(found, base, parameters, problems)
        elif method is not None and method.value == "task_arithmetic":
            weights, base = _task(found, given, base, parameters, problems), None
        elif method is not None and method.value not in METHODS:
            weights = None  # whatever they mean there
        else:
            weights = _normalized(given, models, parameters, problems) if given else None
            if parameters is not None:
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


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _check_method(method: Value, problems: Problems) -> None:
    if method.value not in METHODS:
        problems.add(method, f"rebasin has {_either(METHODS)}, not {method.plain()!r}")


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
        return bool(words[0] == words[1])
    return all(map(os.path.exists, words)) and os.path.samefile(*words)


def _weighted(
    models: Value, parameters: Value | None, problems: Problems
) -> tuple[list[Value], list[float | None] | None]:
    """Files and weights of `- model: FILE` with `weight:` or `parameters: {weight: …}`, as they are there."""
    files: list[Value] = []
    given: list[float | None] = []
    shared = _number(_below(parameters).get("weight"), problems)
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
        below = item.value.get("parameters")
        if below is not None and below.is_map:
            _only(below, {"weight"}, problems)
            own = below.value.get("weight", own)
        given.append(shared if own is None else _number(own, problems))
    if all(weight is None for weight in given):
        return files, None
    return files, given


def _normalized(
    weights: list[float | None], models: Value, parameters: Value | None, problems: Problems
) -> list[float] | None:
    """mergekit divides by the sum unless told otherwise; so do we, and what does not add up is refused."""
    numbers = [weight for weight in weights if weight is not None]
    if len(numbers) < len(weights):
        problems.add(models, "some models have a weight and others have none")
        return None
    asked = _below(parameters).get("normalize")
    total = sum(numbers)
    if asked is not None and asked.value is False and abs(total - 1) > 1e-6:
        problems.add(models, f"the weights add up to {total:g}; rebasin makes averages, which add up to 1")
        return None
    if not total > 0:
        problems.add(models, f"the weights add up to {total:g}")
        return None
    return [weight / total for weight in numbers]


def _slerp(
    body: dict[str, Value], base: Value | None, parameters: Value | None, problems: Problems
) -> list[float] | None:
    """Weights of two models at `t`, from the base model at 0 to the other one at 1."""
    models = body["models"]
    t = _number(_below(parameters).get("t"), problems)
    if t is None or parameters is None:
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


def _task(
    body: dict[str, Value],
    given: list[float | None] | None,
    base: Value | None,
    parameters: Value | None,
    problems: Problems,
) -> list[float] | None:
    """Weights of the base model, which comes first, and of the others: they add up to 1, some below 0.

    A base model that stands among the others, too, is its own difference of 0.
    """
    models = body["models"]
    if base is None:
        problems.add(models, "task_arithmetic needs `base_model:`")
        return None
    shared = {"weight", "normalize", "lambda"}
    _only(parameters, shared, problems) if parameters is not None else None
    pairs = zip(models.value, given or [None] * len(models.value), strict=True)
    others = [(model, weight) for model, weight in pairs if not _same(model, base)]
    if not others or any(weight is None for _, weight in others):
        problems.add(models, "task_arithmetic needs a weight for every model")
        return None
    weights = [Fraction(repr(weight)) for _, weight in others]
    below = _below(parameters)
    scale = 1.0 if "lambda" not in below else _number(below["lambda"], problems)
    if scale is None:
        return None
    scaled = Fraction(repr(scale))
    if "normalize" in below and below["normalize"].value is True:
        if sum(weights) == 0:
            problems.add(models, "the weights add up to 0")
            return None
        scaled /= sum(weights)
    body["models"] = replace(models, value=[base, *(model for model, _ in others)])
    shares = [scaled * weight for weight in weights]
    found = [1 - sum(shares), *shares]
    return [int(share) if share == int(share) else float(share) for share in found]


def _number(value: Value | None, problems: Problems) -> float | None:
    if value is None:
        return None
    if isinstance(value.value, bool) or not isinstance(value.value, int | float):
        kind = "a list (a gradient over layers, or filters)" if value.is_list else repr(value.plain())
        problems.add(value, f"expected one number for all tensors, not {kind}")
        return None
    try:
        number = float(value.value)
    except OverflowError:  # a whole number of 400 digits
        number = math.inf
    if not math.isfinite(number):
        problems.add(value, "expected a finite number")
        return None
    return number


def _only(value: Value, known: set[str], problems: Problems) -> None:
    for key, item in value.items() if value.is_map else ():
        if key not in known:
            problems.add(item, f"rebasin has no {key!r} here; known: {', '.join(sorted(known))}")


def _below(value: Value | None) -> dict[str, Value]:
    """The keys of a mapping; none of anything else."""
    return value.value if value is not None and value.is_map else {}


def _like(at: Value, key: str, value: Any) -> Value:
    """A value that was not written, in the place of another one."""
    plain = (
        [Value(item, f"{key}[{n}]", at.where) for n, item in enumerate(value)]
        if isinstance(value, list)
        else value
    )
    return Value(plain, key, at.where)
