"""What an operation asks of its session: its options as whole subjects, and the method that is meant."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from ..checkpoints import torch_writer as provenance_beside
from ..checkpoints.digests import files_below
from ..checkpoints.locate import locate, read_index
from ..datasets.downloads import all_data
from ..errors import CheckpointError, UsageError
from ..matchers import registry
from ..registry import references
from ..registry.operations import UNNAMED
from ..runtime.files import Inputs
from ..runtime.sizes import parse_size
from ..spec import library
from .method_options import start_file
from .request import Search, Subjects
from .search_options import REAL, TWIN, Repair
from .subjects import Bounded, Data, Loading, Network

T = TypeVar("T")


def of(asked: Any, subject: type[T], **more: Any) -> T:
    """A subject of an operation: what it does not take has its default, `more` is said of what it means."""
    known = {each.name for each in fields(asked)} - more.keys()
    named = [each.name for each in fields(subject) if each.name in known]  # type: ignore[arg-type]
    return subject(**{name: getattr(asked, name) for name in named}, **more)


def subjects_of(asked: Any) -> Subjects:
    """All subjects of an operation, as a session takes them."""
    return Subjects(
        loading=of(asked, Loading),
        network=of(asked, Network),
        data=of(asked, Data),
        search=search_of(asked),
        repair=of(asked, Repair),
        bounded=of(asked, Bounded),
    )


def search_of(asked: Any) -> Search:
    """The search that an operation asks for: of several methods (`compare`) the command's own affair."""
    known = {each.name for each in fields(asked)}
    named = getattr(asked, "method", Search.method)
    options = meant(getattr(asked, "options", {}), named)
    more: dict[str, Any] = {"options": options, "prove": not getattr(asked, "no_prove", False)}
    more["real"] = getattr(asked, "prove", TWIN) == REAL
    if "method" in known:
        more |= method(named, options)
    return of(asked, Search, **more)


def method(named: str | tuple[str, ...] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The method of a search. Where none is `named`, the first that may be meant and has these options."""
    if named is not None:
        return {"method": named if isinstance(named, str) else "none"}
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


def meant(given: Mapping[str, Any], named: str | Iterable[str] | None) -> dict[str, Any]:
    """Options of methods in the types that the chosen methods mean: a text may be a size, or a number."""
    chosen = dict(given)
    if not chosen:
        return chosen
    methods = [named] if isinstance(named, str) else list(named or UNNAMED)
    known = {option.name: option for m in methods if m in registry.names() for option in registry.options(m)}
    for name, value in chosen.items():
        option = known.get(name)
        if option is not None and isinstance(value, str):
            size = option.kind == "bytes"
            chosen[name] = parse_size(value, option.flag) if size else option.read(value)
    return chosen


def inputs_of(paths: Sequence[Path], asked: Subjects, more: Iterable[Path | None] = ()) -> Inputs:
    """Models with their shards, the spec with what it includes, a search's start, data and code; and `more`.

    Of data sets that have names, their files below the folder of all data. Not in it: what the user's own
    code opens.
    """
    files = [file for model in paths for file in of_model(model)]
    files += [*of_spec(asked.loading.spec), *of_code(asked), *of_data(asked.data.data_root)]
    texts = [asked.data.data, asked.data.held_out]
    named = [found for text in texts if text and (found := references.named_in(text)) is not None]
    return Inputs(
        files=(*files, *(path for path in named if not os.path.isdir(path))),
        models=tuple(model for model in paths if os.path.isdir(model)),
        data=tuple(path for path in named if os.path.isdir(path)),
    ).and_files([asked.loading.config, start_file(asked.search), *more])


def of_model(model: Path) -> list[Path]:
    """A model's file with what lies beside it, the shards of an index, and all files of a folder."""
    try:
        kind, file = locate(model)
        shards = read_index(file).values() if kind == "sharded" else ()
    except (CheckpointError, OSError):  # told where it is opened
        return [model]
    beside = files_below(model) if os.path.isdir(model) else []
    if kind == "torch" and os.path.lexists(about := provenance_beside.of(file)):
        beside = [*beside, about]
    return [*beside, file, *(file.parent / shard for shard in sorted(set(shards)))]


def of_spec(named: str | None) -> list[Path]:
    """The files of a spec that is named as one: `spec.yaml`."""
    if named is None or not (named.endswith((".yaml", ".yml")) or "/" in named):
        return []
    return library.files_of(Path(named))


def of_data(root: Path | None) -> list[Path]:
    """The files of data sets that have names: below this folder, or where they are looked for without one."""
    return references.of_data_sets(root or all_data())


def of_code(asked: Subjects) -> list[Path]:
    """The user's own code: `net.py:factory`, `loader.py:load`."""
    texts = [asked.network.net, asked.data.loss, *asked.data.metric, asked.data.data, asked.data.held_out]
    return [file for text in texts if text for file in references.files_of(text)]
