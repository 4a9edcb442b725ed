"""The options of a command, by the names of its parameters, as the settings that commands on files take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ._groups import METHOD, OF_FORMAT, OF_METHOD

UNNAMED = ("wm", "auto")  # what is meant where no method is named


def settings_of(options: Mapping[str, Any], *subjects: str, **own: Any) -> dict[str, Any]:
    """The settings by `subjects`, such as "loading" and "search", from `options` and the command's `own`."""
    from dataclasses import fields

    from ..session import subjects as settings

    given = {**options, **own}
    found = {}
    for subject in subjects:
        kind = getattr(settings, subject.capitalize())
        named = {field.name: field.default for field in fields(kind) if field.name in given}
        chosen = {
            name: tuple(given[name] or ()) if isinstance(default, tuple) else given[name]
            for name, default in named.items()
        }
        if subject == "search":
            chosen["options"] = _of_method(given)
            chosen |= _method(given["method"], chosen["options"])
            chosen["prove"] = not given.get("no_prove", False)
        found[subject] = kind(**chosen)
    return found


def _method(named: str | list[str] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The method of a search. Where none is `named`, the first that may be meant and has these options."""
    from ..matchers import registry

    if named is not None:
        return {"method": named if isinstance(named, str) else "none"}  # of several the command's own
    if not options:
        return {"method": UNNAMED[0], "open": True}
    known = {method: {option.name for option in registry.options(method)} for method in UNNAMED}
    having = [method for method, names in known.items() if {*options} <= names]
    if not having and {*options} <= {name for names in known.values() for name in names}:
        apart = [f"{_flags({*options} & names)} for {method}" for method, names in known.items()]
        raise UsageError(
            f"no method has all of these options: {', '.join(apart)}", hint="Leave those of one of them out"
        )
    return {"method": next(iter(having), UNNAMED[0])}


def _flags(names: Iterable[str]) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _of_method(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those options of methods that were set, in the types that the chosen methods mean."""
    from ..checkpoints.writing import parse_size
    from ..matchers import registry

    chosen = {}
    for parameter, (_, default) in METHOD.items():
        value = given.get(parameter)
        if value is not None and not (value is False and default is False):  # it was given
            chosen[parameter.removeprefix(OF_METHOD)] = value
    if not chosen:
        return {}
    methods = given["method"] or UNNAMED
    methods = [methods] if isinstance(methods, str) else methods
    known = {option.name: option for m in methods if m in registry.names() for option in registry.options(m)}
    for name, value in chosen.items():
        option = known.get(name)
        if option is not None and option.kind == "bytes":
            chosen[name] = parse_size(value)
        elif option is not None and isinstance(value, str):
            chosen[name] = option.read(value)
    return chosen


def output_of(out: str | Path, options: Mapping[str, Any], **own: Any) -> Any:
    """The options about the output as an `outputs.Output`; in a folder where a text names one."""
    from ..checkpoints.writing import parse_dtype, parse_size
    from ..commands.verbs.outputs import Output

    size, dtype = options["out_shard_size"], options["out_dtype"]
    path = Path(out)
    if isinstance(out, str) and path.name not in ("", ".."):  # nobody means a model by "." or "/"
        own |= {"folder": path} if out.endswith("/") or path.is_dir() else {}
    return Output(
        path,
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
    from ..commands.verbs.outputs import Written

    asked = {name: path for name, path in options.items() if name.startswith(OF_FORMAT) and path}
    files = {name.removeprefix(OF_FORMAT).replace("_", "-"): Path(path) for name, path in asked.items()}
    return Written(folder, files, command=command_line(context), **own)
