"""What a folder is: the model that its index, its list of modules or its files make; several; or another's.

A folder is never read as one part of what it holds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence, Set
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import CheckpointError, RebasinError
from ..runtime import files
from ..runtime.files import TORCH_SUFFIXES
from . import foreign, pieces
from .safetensors_format import COPY_AGAIN
from .two_formats import FEW, MODELS, check_rest, names_in

INDEX = ".safetensors.index.json"
PERMUTATION = ".perm.safetensors"
OLD_SUFFIXES = tuple(f"{suffix}.tar" for suffix in TORCH_SUFFIXES)  # which are no archives; read where named
MAX_LIST = 1 << 20  # bytes of a list of modules
MAX_SHARDS = 100_000
SHOWN = 8  # folders within that are looked into

_TORCH_INDEX = re.compile(r".*\.(bin|pt|pth|ckpt)\.index\.json")
_PIPELINE, _MODULES = "model_index.json", "modules.json"


def in_folder(folder: Path) -> tuple[str, Path]:
    """ "sharded" and the index, or the first of shards without one; else the format and the file.

    Of a folder of DCP that is its metadata. Raises CheckpointError where the folder is not one model that
    can be read.
    """
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    names = [entry.name for entry in entries if entry.is_file()]
    folders = [entry.name for entry in entries if entry.is_dir()]
    _check_modules(folder, names, folders)
    # `align` writes its permutation beside the weights
    weights = [name for name in names if name.endswith(".safetensors") and not name.endswith(PERMUTATION)]
    if found := _one(folder, [name for name in names if name.endswith(INDEX)], weights, "safetensors"):
        others = [name for name in names if name.endswith(TORCH_SUFFIXES) and not pieces.is_state(name)]
        others = [name for name in others if _set_of(name) or Path(name).stem in MODELS]
        check_rest(folder, [name for name in weights if not pieces.is_state(name)], others)
        return found
    if found := _distributed(folder, names, folders):
        return found
    others = [name for name in names if name.endswith(TORCH_SUFFIXES)]
    if found := _one(folder, [name for name in names if _TORCH_INDEX.fullmatch(name)], others, "torch"):
        return found
    if pieces.METADATA in names:
        return pieces.DCP, folder / pieces.METADATA
    if found := _one_below(folder, [name for name in folders if not pieces.is_state(name)]):
        return found
    raise _nothing(folder, names, folders)


def is_model(folder: Path, name: str) -> bool:
    """Whether a name is one to propose: no state of a run, no shard, nothing hidden."""
    if name.startswith(".") or pieces.is_state(name) or pieces.suspicious(name):
        return False
    known = name.endswith((".safetensors", *TORCH_SUFFIXES, *OLD_SUFFIXES, ".index.json"))
    return known or "." not in name or (folder / name).is_dir()


def shards_of(first: Path) -> list[Path]:
    """All shards of the set that this one is of, in their order. CheckpointError where one is missing."""
    match = pieces.SHARD.fullmatch(first.name)
    assert match is not None  # `in_folder` gave it
    kind = _set_of(first.name)
    found = {int(_number(name)): name for name in os.listdir(first.parent) if _set_of(name) == kind}
    _check_whole(first.parent, found.values())
    return [first.parent / found[number] for number in sorted(found)]


def as_safetensors(name: str, *, whole: bool = False) -> str:
    """What a file is called where its tensors are written as safetensors; `whole`: the model it is part of.

    Loaders look for "model.safetensors" where they look for "pytorch_model.bin".
    """
    name = PurePosixPath(name).name.removesuffix(".index.json")
    match = pieces.SHARD.fullmatch(name)
    stem, middle = PurePosixPath(name).stem, ""
    if match:
        stem, middle = match["stem"], name[match.end("stem") : match.start("suffix")]
    stem = "model" if stem == "pytorch_model" else stem
    return f"{stem}.safetensors" if whole else f"{stem}{middle}.safetensors"


def _set_of(name: str) -> tuple[str, int, str] | None:
    match = pieces.SHARD.fullmatch(name)
    return (match["stem"], int(match["count"]), match["suffix"]) if match else None


def _number(name: str) -> str:
    match = pieces.SHARD.fullmatch(name)
    return match["number"] if match else "0"


def _one(folder: Path, indices: Sequence[str], weights: Sequence[str], kind: str) -> tuple[str, Path] | None:
    """The one model of a format in this folder; None where there is none."""
    if len(indices) == 1:
        return "sharded", folder / indices[0]
    if indices:
        raise _several(folder, indices, "indices")
    weights = [name for name in weights if not pieces.is_state(name)]
    sets: dict[tuple[str, int, str], list[str]] = {}
    alone = []
    for name in weights:
        if (shards := _set_of(name)) and shards[1] > 1:
            sets.setdefault(shards, []).append(name)
        else:
            alone.append(name)
    for name in alone:
        if pieces.suspicious(name) and (wrong := pieces.of(folder, name, weights)):
            raise wrong
    if sets and len(sets) + len(alone) > 1:
        move = "all but one of them elsewhere, and give the folder."
        raise CheckpointError(
            f"{folder} holds several sets of weights, and no index that says which is the model",
            problems=[_told(shards, names) for shards, names in sets.items()] + alone,
            hint=f"Name {folder / alone[0]}, or move {move}" if alone else f"Move {move}",
        )
    if sets:
        ((_, names),) = sets.items()
        _check_whole(folder, names)
        return "sharded", folder / min(names, key=lambda name: int(_number(name)))
    if len(alone) > 1:
        raise _several(folder, alone, f"{_WORDS[kind]} and no index")
    return (kind, folder / alone[0]) if alone else None


_WORDS = {"safetensors": ".safetensors files", "torch": "files of torch.save"}


def _several(folder: Path, names: Sequence[str], what: str) -> CheckpointError:
    if _are_pieces(folder, names):
        return CheckpointError(
            f"{folder} holds {len(names)} {what}, and no two have a tensor in common, "
            "as the pieces of one model have not",
            problems=names,
            hint="Save the whole with the program that made them, or beside them an index that has the file "
            f'of each: {folder / f"model{INDEX}"} with {{"weight_map": {{tensor: file}}}}',
        )
    return CheckpointError(
        f"{folder} holds {len(names)} {what}",
        problems=names,
        hint=f"Name one of them, such as {folder / min(names, key=len)}.",  # others are variants of it
    )


def _are_pieces(folder: Path, names: Sequence[str]) -> bool:
    """Whether files that are called alike but for numbers have no name of a tensor in common."""
    if len(names) > FEW or len({re.sub("[0-9]+", "#", name) for name in names}) > 1:
        return False
    seen: set[str] = set()
    try:
        for name in names:
            here = set(names_in(folder / name))
            if seen & here:
                return False
            seen |= here
    except (RebasinError, OSError):  # told where they are opened
        return False
    return True


def _below(folder: Path, folders: Iterable[str]) -> list[str]:
    """The folders in these, such as a hub's cache keeps a model in: the newest first."""
    found: dict[str, float] = {}
    for name in folders:
        try:
            inside = [entry for entry in os.scandir(folder / name) if entry.is_dir()]
            found |= {f"{name}/{entry.name}": entry.stat().st_mtime for entry in inside[:100]}
        except OSError:
            continue
    return sorted(found, key=lambda name: (-found[name], name))


def _told(shards: tuple[str, int, str], names: Sequence[str]) -> str:
    stem, count, suffix = shards
    return f"{stem}-…-of-{count:05d}{suffix}  {len(names)} of {count} files"


def check_named(index: Path, names: Iterable[str]) -> None:
    """Raise CheckpointError where an index names some of the shards of a set: half a model by its words."""
    sets: dict[tuple[str, tuple[str, int, str]], list[str]] = {}
    for name in set(names):
        file = PurePosixPath(name)
        if shards := _set_of(file.name):
            sets.setdefault((str(file.parent), shards), []).append(file.name)
    for (parent, _), its in sets.items():
        _check_whole(index.parent / parent, its, f"{index} names", "")


def check_alone(folder: Path, index: Path, named: Set[str]) -> None:
    """Raise CheckpointError for a whole model beside the shards of its own name.

    Loaders differ in which they take: transformers reads model.safetensors before its index.
    """
    whole = folder / index.name.removesuffix(".index.json")
    if index.name.endswith(".index.json") and whole.name not in named and whole.is_file():
        raise CheckpointError(
            f"{folder} holds two models: {whole.name}, and the shards that {index.name} names",
            hint=f"Name the one that is meant: {whole} or {index}; the other one is from another time.",
        )


def _check_whole(folder: Path, names: Iterable[str], holds: str = "", last: str = ", and no index") -> None:
    """Raise CheckpointError where shards of a set are missing. They are counted from 1, or from 0."""
    names = sorted(names)
    match = pieces.SHARD.fullmatch(names[0])
    assert match is not None
    count, there = int(match["count"]), {int(_number(name)) for name in names}
    if count > MAX_SHARDS:
        raise CheckpointError(f"{folder / names[0]}: one of {count:,} files by its name")
    wanted = set(range(count)) if 0 in there else set(range(1, count + 1))
    if there == wanted:
        return
    width = len(match["number"])
    start, end = match.start("number"), match.end("number")
    missing = [f"{names[0][:start]}{number:0{width}d}{names[0][end:]}" for number in sorted(wanted - there)]
    beyond = [name for name in names if int(_number(name)) not in wanted]
    raise CheckpointError(
        f"{holds or f'{folder} holds'} {len(there & wanted)} of the {count} files that make the model{last}",
        problems=[*(f"{name}  is missing" for name in missing), *(f"{name}  is beyond" for name in beyond)],
        hint=COPY_AGAIN.replace("the file", "the missing files"),
    )


def _check_modules(folder: Path, names: Sequence[str], folders: Sequence[str]) -> None:
    """Raise CheckpointError where a list of modules says that there are several models."""
    if _PIPELINE in names:
        listed = _json(folder / _PIPELINE)
        parts = [name for name in listed if name in folders and _holds_weights(folder / name)]
        if parts or not folders:
            raise _modules(folder, "a pipeline (diffusers)", parts)
    if _MODULES in names:
        listed = _json(folder / _MODULES)
        paths = (
            [its.get("path") for its in listed if isinstance(its, dict)] if isinstance(listed, list) else []
        )
        parts = [path for path in paths if isinstance(path, str) and path in folders]
        parts = [path for path in parts if _holds_weights(folder / path)]
        if parts:
            raise _modules(folder, "several modules (sentence-transformers)", parts)


def _modules(folder: Path, what: str, parts: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        f"{folder} holds {what}: it is no single model",
        problems=[f"{folder / part}" for part in parts],
        hint=f"Merge one after the other, such as {folder / parts[0]}." if parts else None,
    )


def _json(path: Path) -> dict[str, Any] | list[Any]:
    try:
        parsed = json.loads(files.text(path, str(path), most=MAX_LIST, error=CheckpointError))
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(
            f"{path} is not valid JSON, and says what the folder holds", hint=COPY_AGAIN
        ) from cause
    return parsed if isinstance(parsed, (dict, list)) else {}


def _holds_weights(folder: Path) -> bool:
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_file()]
    except OSError:
        return False
    suffixes = (".safetensors", *TORCH_SUFFIXES)
    return any(name.endswith(suffixes) and not pieces.is_state(name) for name in names)


def _distributed(folder: Path, names: Sequence[str], folders: Sequence[str]) -> tuple[str, Path] | None:
    """What frameworks leave that train on many devices: a folder of DCP, or an error of what is none."""
    if any(name.endswith(pieces.DISTCP) for name in names):
        if pieces.METADATA not in names:
            raise pieces.distributed(folder, folder)
        return pieces.DCP, folder / pieces.METADATA
    if found := _one_below(folder, [name for name in folders if name.startswith("pytorch_model_fsdp_")]):
        return found
    if wrong := _piece_of_run(folder, names, folders):
        raise wrong
    return None


def _one_below(folder: Path, folders: Sequence[str]) -> tuple[str, Path] | None:
    """The one folder of DCP among these; a run keeps its optimizer in another beside it."""
    there = [folder / name for name in folders if (folder / name / pieces.METADATA).is_file()]
    if len(there) > 1:
        raise CheckpointError(
            f"{folder} holds {len(there)} folders of torch.distributed.checkpoint (DCP)",
            problems=[str(one) for one in there],
            hint=f"Name one of them, such as {there[0]}.",
        )
    return (pieces.DCP, there[0] / pieces.METADATA) if there else None


def _piece_of_run(folder: Path, names: Sequence[str], folders: Sequence[str]) -> CheckpointError | None:
    if "zero_to_fp32.py" in names or any(name.startswith("global_step") for name in folders):
        whole = [name for name in names if name.endswith(TORCH_SUFFIXES) and is_model(folder, name)]
        return None if whole else pieces.deepspeed(folder, folder)
    ranks = [name for name in folders if pieces.MEGATRON_RANK.fullmatch(name)]
    if "latest_checkpointed_iteration.txt" in names:
        iterations = sorted(name for name in folders if name.startswith("iter_"))
        hint = f"Give that of one iteration, such as {folder / iterations[-1]}." if iterations else None
        return CheckpointError(f"{folder} holds the checkpoints of a run of Megatron", hint=hint)
    if len(ranks) > 1:
        return pieces.megatron(folder, folder)
    if ranks:
        file = folder / ranks[0] / "model_optim_rng.pt"
        return CheckpointError(
            f"{folder} is an iteration of a run of Megatron, on one rank", hint=f"Give its file: {file}"
        )
    return None


def _nothing(folder: Path, names: Sequence[str], folders: Sequence[str]) -> CheckpointError:
    if other := foreign.of_folder(folder, names, folders):
        return other
    within = [name for name in names if name.endswith(OLD_SUFFIXES) and is_model(folder, name)]
    within += [name for name in folders[:100] if _holds_weights(folder / name)]
    within = within or [name for name in _below(folder, folders[:100]) if _holds_weights(folder / name)]
    kinds = (".safetensors", *TORCH_SUFFIXES)
    links = [
        name for name in sorted(os.listdir(folder)) if name.endswith(kinds) and not pieces.is_state(name)
    ]
    if lost := [name for name in links if not (folder / name).exists()]:
        return CheckpointError(
            f"{folder} holds links to weights that are not there",
            problems=[f"{name}  leads to {os.readlink(folder / name)}" for name in lost],
            hint="Download or copy the model again.",
        )
    return CheckpointError(
        f"{folder} holds no weights: no .safetensors file, none of torch.save, and no index of them",
        hint=f"Did you mean {' or '.join(str(folder / name) for name in within[:3])}?" if within else None,
    )
