"""The options of a command, by the names of its parameters, as the settings that commands on files take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._groups import METHOD, OF_FORMAT, OF_METHOD


def settings_of(options: Mapping[str, Any], *subjects: str, **own: Any) -> dict[str, Any]:
    """The settings by `subjects`, such as "loading" and "search", from `options` and the command's `own`."""
    from dataclasses import fields

    from ..commands.job import settings

    given = {**options, **own}
    found = {}
    for subject in subjects:
        kind = getattr(settings, subject.capitalize())
        chosen = {field.name: given[field.name] for field in fields(kind) if field.name in given}
        if subject == "search":
            chosen["options"] = _of_method(given)
            chosen["method"] = given["method"] if isinstance(given["method"], str) else "none"  # of several
            chosen["prove"] = not given.get("no_prove", False)
        found[subject] = kind(**chosen)
    return found


def _of_method(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those options of methods that were set, in the types that the chosen methods mean."""
    from ..checkpoints.writing import parse_size
    from ..matchers import registry

    methods = given.get("method") or []
    methods = [methods] if isinstance(methods, str) else methods
    known = {option.name: option for m in methods if m in registry.names() for option in registry.options(m)}
    chosen = {}
    for parameter, (_, default) in METHOD.items():
        name, value = parameter.removeprefix(OF_METHOD), given.get(parameter)
        if value is None or (value is False and default is False):  # it was not given
            continue
        option = known.get(name)
        if option is not None and option.kind == "bytes":
            value = parse_size(value)
        elif option is not None and isinstance(value, str):
            value = option.read(value)
        chosen[name] = value
    return chosen


def output_of(out: Path, options: Mapping[str, Any], **own: bool) -> Any:
    """The options about the output as an `outputs.Output`."""
    from ..checkpoints.writing import parse_dtype, parse_size
    from ..commands.job.outputs import Output

    size, dtype = options["out_shard_size"], options["out_dtype"]
    return Output(
        out,
        options["force"],
        parse_size(size) if size else None,
        parse_dtype(dtype) if dtype else None,
        resume=options.get("resume", False),
        attest=options.get("attest"),
        **own,
    )


def command_line(context: Any) -> str:
    """What was typed, as a shell would take it again."""
    import shlex

    return shlex.join(["rebasin", *context.find_root().obj])


def report_of(context: Any, folder: Path | None, options: Mapping[str, Any], **own: Any) -> Any:
    """The options about reports as an `outputs.Written`."""
    from ..commands.job.outputs import Written

    asked = {name: path for name, path in options.items() if name.startswith(OF_FORMAT) and path}
    files = {name.removeprefix(OF_FORMAT).replace("_", "-"): Path(path) for name, path in asked.items()}
    return Written(folder, files, command=command_line(context), **own)
