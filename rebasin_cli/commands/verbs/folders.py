"""Folders as Hugging Face lays them out: shards with an index, and the files that belong to a model."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ...checkpoints.folder import as_safetensors
from ...checkpoints.locate import locate, read_index
from ...errors import CheckpointError, UsageError
from ...runtime import files
from .outputs import Output

# What transformers reads beside the weights; no code, which nobody has looked at.
BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "chat_template*",
    "*processor_config.json",
)
LARGEST = 1 << 28  # bytes of such a file; what is larger is no configuration


def placed(output: Output, model: Path) -> Output:
    """The output, in a folder under the names of the model's own files where a folder was named.

    What belongs to a folder with a configuration goes with it.
    """
    if output.folder is None:
        return output
    return inside(output, model, copy_from=model if (model / "config.json").is_file() else None)


def inside(output: Output, model: Path, *, copy_from: Path | None = None) -> Output:
    """The output in its folder, laid out as `model` is: the same shards, or one file of the same name.

    `copy_from` is a model whose configuration and tokenizer are copied. `--out-shard-size` beats the layout.
    """
    folder = output.path
    try:
        kind, file = locate(model)
    except (CheckpointError, OSError):  # said better where the models are opened
        kind, file = "torch", model
    layout, name = None, "model.safetensors"
    if kind == "sharded":
        name = as_safetensors(file.name, whole=True)
        if output.shard_size is None:
            layout = {tensor: as_safetensors(shard) for tensor, shard in read_index(file).items()}
    elif kind == "safetensors" and model.is_dir():
        name = file.name
    copies = {}
    if copy_from is not None and not files.is_missing(copy_from):  # who opens it says it better
        copies = _beside(copy_from, output.dtype)
    if output.distributed:
        return replace(output, copies=copies)
    return replace(output, path=folder / name, layout=layout, folder=folder, copies=copies)


def _beside(model: Path, dtype: torch.dtype | None) -> dict[str, bytes]:
    """Names and contents of what belongs to a model in a folder. Raises UsageError where there is nothing."""
    folder = model if model.is_dir() else model.parent
    found = {}
    for path in sorted(folder.iterdir()):
        if not path.is_file() or not any(fnmatch.fnmatchcase(path.name, glob) for glob in BESIDE):
            continue
        if path.stat().st_size > LARGEST:
            raise UsageError(
                f"{path} is larger than any configuration", hint="Copy it yourself, if it belongs there"
            )
        found[path.name] = files.content(path, LARGEST)
    if not found:
        raise UsageError(
            f"--copy-files: {folder} holds no configuration and no tokenizer",
            hint="Leave it out, or name a folder that does with --copy-from",
        )
    if dtype is not None and "config.json" in found:
        found["config.json"] = _with_dtype(found["config.json"], dtype)
    return found


def _with_dtype(config: bytes, dtype: torch.dtype) -> bytes:
    """A configuration that names this dtype, where it named one; loaders would convert the weights back."""
    try:
        parsed = json.loads(config)
    except (ValueError, RecursionError):
        return config
    named = [key for key in ("torch_dtype", "dtype") if isinstance(parsed, dict) and key in parsed]
    if not named:
        return config
    parsed |= dict.fromkeys(named, str(dtype).removeprefix("torch."))
    return (json.dumps(parsed, indent=2) + "\n").encode()


def tell_differences(models: Sequence[Path], copies: Sequence[str], say: Callable[[str], None]) -> None:
    """Say which of the copied files are others in another model: a tokenizer may not be that of both."""
    for name in copies:
        there = [path / name for path in models if path.is_dir() and (path / name).is_file()]
        if len({files.content(path, LARGEST) for path in there}) > 1:
            say(f"{name} differs: {', '.join(map(str, there))}")
