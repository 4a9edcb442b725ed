"""Pieces of a model: one shard, one rank, one stage, or names without values, and how to get the whole.

Frameworks that train on many devices leave such files. Their names tell which they are; where the names
do not, the content does.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import CheckpointError

# `model-00001-of-00002.safetensors`: what stands before, which one, of how many, what stands after.
SHARD = re.compile(
    r"(?P<stem>.*?)[-_.]?(?P<number>[0-9]{1,6})[-_]of[-_](?P<count>[0-9]{1,6})"
    r"(?P<suffix>\.(safetensors|bin|pt|pth|ckpt))"
)
METADATA, DISTCP = ".metadata", ".distcp"
DCP = "dcp"  # the form of a folder of torch.distributed.checkpoint, which has files of these names

MOST_EMPTY = 100_000  # tensors without values: the largest models have as many with values, and few without

# What a run keeps for itself: never the weights, whatever a name looks like.
_STATES = re.compile(
    r"(optim(izer)?s?|scheduler|lr_scheduler|scaler|rng|rng_states?|random_states?|training_args|trainer_state"
    r"|extra_state|distrib_optim)([-_.0-9].*)?"
    r"|(meta|metadata|common|args|config|log|history|dataloader|sampler)\.\w+"
    r"|.*[-_.](optim(izer)?|scheduler|rng_state|optim_states?)\.\w+",
    re.IGNORECASE,
)
_RANK = re.compile(r"(^|.*[-_.])(?P<word>rank|shard|tp|pp|mp)[-_.]?(?P<number>[0-9]+)(?=[-_.])")
_PART = re.compile(r".*(?P<word>rank[-_.]?[0-9]+[-_.]part)[-_.]?(?P<number>[0-9]+)(?=[-_.])")

_ZERO = re.compile(r"((bf16|fp16)_)?zero_pp_rank_[0-9]+_mp_rank_[0-9]+_(optim|model)_states\.pt")
_MP_RANK = re.compile(r"mp_rank_[0-9]+_model_states\.pt")
_LAYER = re.compile(r"layer_[0-9]+[-_].*model_states\.pt")
_LLAMA = re.compile(r"consolidated\.(?P<number>[0-9]+)\.(pth|pt)")
_VERL = re.compile(r"(model|optim|extra_state)_world_size_(?P<count>[0-9]+)_rank_(?P<number>[0-9]+)\.pt")
_FSDP = re.compile(r"pytorch_model_fsdp_rank[0-9]+.*")
_MEGATRON = re.compile(r"(model_optim_rng|model_rng|distrib_optim)\.pt")
MEGATRON_RANK = re.compile(r"mp_rank_[0-9]+(_[0-9]+)*")


_ALL = (SHARD, _RANK, _PART, _ZERO, _MP_RANK, _LAYER, _LLAMA, _VERL, _FSDP, _MEGATRON)


def escapes(file: object, suffixes: Collection[str]) -> bool:
    """Whether what should name a file of weights, in its own folder or below, does not, by its words alone.

    A file may well be a link to elsewhere, as in a Hugging Face cache.
    """
    if not isinstance(file, str) or "\\" in file or "\0" in file:
        return True
    parts = PurePosixPath(file)
    return parts.is_absolute() or ".." in parts.parts or parts.suffix not in suffixes


def is_state(name: str) -> bool:
    """Whether a file of this name is of a run, and not its weights."""
    return _STATES.fullmatch(name) is not None or is_distributed(name)


def is_distributed(name: str) -> bool:
    """Whether a file of this name is of a folder of DCP, and nothing without the others."""
    return name.endswith((DISTCP, METADATA))


def suspicious(name: str) -> bool:
    """Whether `of` may have something to say about a file of this name."""
    return any(pattern.match(name) for pattern in _ALL)


def of(folder: Path, name: str, names: Collection[str]) -> CheckpointError | None:
    """What to say of a file whose name, and those beside it, tell that it is a piece of a model."""
    path = folder / name
    if name.endswith(DCP):
        return distributed(path, folder)
    if match := SHARD.fullmatch(name):
        if int(match["count"]) <= 1:
            return None
        index = next(
            (other for other in sorted(names) if other.endswith(f"{match['suffix']}.index.json")), None
        )
        return CheckpointError(
            f"{path} is one of the {int(match['count'])} files that make a model, and no model by itself",
            hint=f"Give all of them: {folder / index if index else folder}",
        )
    if _ZERO.fullmatch(name) or _LAYER.fullmatch(name):
        return deepspeed(path, folder)
    if _MP_RANK.fullmatch(name):
        return deepspeed(path, folder) if _several(_MP_RANK, names) or _several(_LAYER, names) else None
    if match := _LLAMA.fullmatch(name):
        alone = int(match["number"]) == 0 and not _several(_LLAMA, names)
        return None if alone else llama(path, folder)
    if match := _VERL.fullmatch(name):
        return verl(path, folder) if int(match["count"]) > 1 else None
    if _FSDP.fullmatch(name):
        return CheckpointError(
            f"{path} is what one rank of FSDP held, a piece of a model",
            hint="Resume the run there and save with the state dict type FULL_STATE_DICT.",
        )
    if _MEGATRON.fullmatch(name) and MEGATRON_RANK.fullmatch(folder.resolve().name):
        return megatron(path, folder.resolve().parent)
    for pattern in (_RANK, _PART):
        if (match := pattern.match(name)) and _are_ranks(match, names):
            return CheckpointError(
                f"{path} is the file of one {match['word']} of several that lie there: a piece of a model",
                hint="Save the whole model with the program that made them. Where each of these files holds "
                "all of it (data parallel), copy one under another name and give that.",
            )
    return None


def _are_ranks(match: re.Match[str], names: Collection[str]) -> bool:
    """Whether files beside it are counted from 0 without a gap; `l_rank8.pt` and `l_rank16.pt` are not."""
    before, after = match.string[: match.start("number")], match.string[match.end("number") :]
    pattern = re.compile(f"{re.escape(before)}([0-9]+){re.escape(after)}")
    numbers = {int(found[1]) for other in names if (found := pattern.fullmatch(other))}
    return len(numbers) > 1 and numbers == set(range(len(numbers)))


def _several(pattern: re.Pattern[str], names: Collection[str]) -> bool:
    return sum(pattern.fullmatch(name) is not None for name in names) > 1


def deepspeed(what: Path, folder: Path) -> CheckpointError:
    """Of ZeRO and pipelines: every rank's or layer's own file, in the `folder` of a step."""
    return CheckpointError(
        f"{what} holds a piece of a model, as DeepSpeed leaves it on every rank", hint=_zero_to_fp32(folder)
    )


def _zero_to_fp32(folder: Path) -> str:
    """The folder of the run is the one above `global_step…`."""
    run = folder.parent if folder.name.startswith("global_step") else folder
    return (
        "Make the whole with DeepSpeed, and give that: "
        f"python -m deepspeed.utils.zero_to_fp32 {_quoted(run)} whole/"
    )


def distributed(what: Path, folder: Path) -> CheckpointError:
    """Of torch.distributed.checkpoint (DCP), as FSDP and Megatron write it: a file, or not all of it."""
    if (folder / METADATA).is_file():
        return CheckpointError(
            f"{what} is a part of a folder of torch.distributed.checkpoint (DCP)",
            hint=f"Give the folder: {folder}",
        )
    return CheckpointError(
        f"{what} is of torch.distributed.checkpoint (DCP), and its {METADATA} is missing",
        hint="It is written last: the run may have ended before, or one rank's files alone were copied.",
    )


def megatron(what: Path, iteration: Path) -> CheckpointError | None:
    """None where there is one rank, whose file holds all."""
    try:
        ranks = [each.name for each in iteration.iterdir() if MEGATRON_RANK.fullmatch(each.name)]
    except OSError:
        return None
    if len(ranks) <= 1:
        return None
    return CheckpointError(
        f"{what} holds a piece of a model: Megatron has cut it over {len(ranks)} ranks",
        hint="Make one rank of them with Megatron, and give its file: python tools/checkpoint/convert.py "
        f"--model-type GPT --load-dir {_quoted(iteration.parent)} --save-dir whole/ "
        "--target-tensor-parallel-size 1 --target-pipeline-parallel-size 1",
    )


def llama(what: Path, folder: Path) -> CheckpointError:
    """Of Meta's own format for several devices: `consolidated.00.pth` and on, slices of every matrix."""
    return CheckpointError(
        f"{what} is of a model that is cut within its tensors, as Llama's own files are",
        hint="Make the whole with transformers' convert_llama_weights_to_hf.py "
        f"(--input_dir {_quoted(folder)} --output_dir whole/), and give whole/",
    )


def verl(what: Path, folder: Path) -> CheckpointError:
    """Of verl's FSDP: `model_world_size_4_rank_0.pt` and on, each a slice of every tensor."""
    return CheckpointError(
        f"{what} holds what one rank had of a model, as verl leaves it",
        hint="Make the whole with verl, and give that: python -m verl.model_merger merge --backend fsdp "
        f"--local_dir {_quoted(folder)} --target_dir whole/",
    )


def check_content(path: Path, saved: Any) -> None:
    """Raise CheckpointError where what a torch file holds says that it is one rank's."""
    if not isinstance(saved, Mapping):
        return
    size = saved.get("mp_world_size")
    if type(size) is int and size > 1 and "module" in saved:
        raise deepspeed(path, path.parent)


def check_values(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError where names stand for values that are elsewhere, or for one rank's flat piece."""
    if (without := sum(0 in shape for shape in shapes.values())) > MOST_EMPTY:
        raise CheckpointError(
            f"{path} holds {without:,} tensors without values, and at most {MOST_EMPTY:,} are read",
            hint="No model has so many: save its weights anew where it was made.",
        )
    flat = [name for name in shapes if name.rpartition(".")[2].lstrip("_") == "flat_param"]
    if flat:
        raise CheckpointError(
            f"{path} holds flat parameters of FSDP: one rank's piece of all that a module has",
            problems=[f"{name}  {math.prod(shapes[name]):,} values" for name in flat],
            hint="Resume the run there and save with the state dict type FULL_STATE_DICT.",
        )
    parameters = {name: shape for name, shape in shapes.items() if name.rpartition(".")[2] in _PARAMETERS}
    no_units = any(len(shape) > 1 and 0 in shape for shape in parameters.values())  # a layer of none is whole
    empty = [name for name, shape in parameters.items() if shape == (0,) and not no_units]
    if len(parameters) >= 4 and all(shape in ((0,), (1,)) for shape in parameters.values()):
        empty = list(parameters)  # DeepSpeed once left one value of each
    if empty:
        raise CheckpointError(
            f"{path} holds the names of {len(empty)} parameters without their values, "
            "as DeepSpeed ZeRO-3 leaves them",
            problems=[f"{name}  has no values" for name in empty],
            hint=_zero_to_fp32(path if path.is_dir() else path.parent),
        )


_PARAMETERS = ("weight", "bias", "kernel", "embedding")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
