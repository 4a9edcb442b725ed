"""What else arrives under a checkpoint's name: other formats, and the next step for each."""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Collection
from pathlib import Path

from ..errors import CheckpointError

_FROM_THERE = "Save the weights as safetensors where it was made."
_EXPORTED = "Give the PyTorch weights that it was made from."
_QUANTISED = "Give the weights that it was converted from: its own are quantised and packed."

# By their first bytes (after spaces).
_HEADS = {
    b"version https://git-lfs": ("a Git LFS pointer, not the weights", "Fetch them with: git lfs pull"),
    b"<": ("a web page or XML", "Download the file itself, not the page about it."),
    b"\x89HDF": ("an HDF5 file (Keras)", _FROM_THERE),
    b"GGUF": ("a GGUF file: quantised weights", "Use the original weights."),
    b"lmgg": ("a GGML file", _QUANTISED),
    b"tjgg": ("a GGML file", _QUANTISED),
    b"\x93NUMPY": ("a NumPy array", _FROM_THERE),
    b"\x1f\x8b": ("gzip-compressed", "Decompress it first."),
    b"BZh": ("bzip2-compressed", "Decompress it first."),
    b"\xfd7zXZ": ("xz-compressed", "Decompress it first."),
    b"\x28\xb5\x2f\xfd": ("zstd-compressed", "Decompress it first."),
    b"7z\xbc\xaf": ("a 7z archive", "Unpack it first."),
    b"Rar!": ("a RAR archive", "Unpack it first."),
}
# By bytes further in: (where, which).
_WITHIN = {
    (4, b"TFL3"): ("a TensorFlow Lite file", _EXPORTED),
    (4, b"ET12"): ("an ExecuTorch program", _EXPORTED),
}
# By its extension, where the content is of no format that is read here.
_SUFFIXES = {
    ".onnx": ("an ONNX file, a graph with its weights", _EXPORTED),
    ".msgpack": (
        "a MessagePack file (Flax)",
        "Write its arrays where Flax is: safetensors.flax.save_file("
        "flax.traverse_util.flatten_dict(params, sep='.'), 'weights.safetensors')",
    ),
    ".tflite": ("a TensorFlow Lite file", _EXPORTED),
    ".gguf": ("a GGUF file: quantised weights", "Use the original weights."),
    ".pb": ("a TensorFlow graph", _FROM_THERE),
    ".engine": ("a TensorRT engine", _EXPORTED),
    ".plan": ("a TensorRT engine", _EXPORTED),
    ".mlmodel": ("a Core ML model", _EXPORTED),
}
_TAR = 257, b"ustar"


def of_head(path: Path, head: bytes) -> CheckpointError | None:
    """What a file is by its first 512 bytes, or else by its extension; None of what is not known."""
    if path.suffix == ".nemo" or head[_TAR[0] :].startswith(_TAR[1]):
        return _archive(path)
    for prefix, (what, hint) in _HEADS.items():
        if head.lstrip().startswith(prefix):
            return _no(path, what, hint)
    for (start, magic), (what, hint) in _WITHIN.items():
        if head[start:].startswith(magic):
            return _no(path, what, hint)
    if path.suffix.lower() in _SUFFIXES:
        return _no(path, *_SUFFIXES[path.suffix.lower()])
    if ".ckpt" in path.name and (".data-" in path.name or path.suffix in (".index", ".meta")):
        return _no(path, "a part of a TensorFlow checkpoint", _FROM_THERE)
    return None


def _archive(path: Path) -> CheckpointError:
    quoted = shlex.quote(str(path))
    if path.suffix == ".nemo":
        return _no(
            path,
            "an archive of NeMo",
            f"Unpack it and give the weights in it: tar -xf {quoted} model_weights.ckpt (tar -tf lists them)",
        )
    return _no(path, "a tar archive", f"Unpack it and give the weights in it: tar -xf {quoted}")


def of_zip(path: Path) -> CheckpointError | None:
    """What a zip file is that another program than torch.save wrote; None of torch's, and of damaged ones."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
        return None
    if any(name.rpartition("/")[2] in ("data.pkl", "constants.pkl") for name in names):
        return None
    quoted, held = shlex.quote(str(path)), set(names)
    if "policy.pth" in held:
        return _no(
            path,
            "a model of Stable-Baselines3",
            f"Take the weights out of it and give them: unzip {quoted} policy.pth",
        )
    if "model.weights.h5" in held:
        return _no(path, "a Keras model", _FROM_THERE)
    if any(name.endswith(("/archive_format", "archive_format")) or "/weights/" in name for name in held):
        return _no(path, "an archive of torch.export, a program with its weights", _EXPORTED)
    if names and all(name.endswith(".npy") for name in names):
        return _no(
            path,
            "a NumPy archive",
            "Write it as safetensors: "
            "safetensors.numpy.save_file(dict(numpy.load(FILE)), 'weights.safetensors')",
        )
    weights = [name for name in names if name.endswith((".pt", ".pth", ".bin", ".ckpt", ".safetensors"))]
    if weights:
        return _no(
            path,
            "an archive with weights in it",
            f"Take them out and give them: unzip {quoted} {shlex.quote(weights[0])}",
        )
    return None


def of_folder(folder: Path, files: Collection[str], folders: Collection[str]) -> CheckpointError | None:
    """What a folder without weights of ours is; None of what is not known."""
    if {"_CHECKPOINT_METADATA", "manifest.ocdbt", "_METADATA", "d"} & {*files, *folders} and (
        "manifest.ocdbt" in files or "_CHECKPOINT_METADATA" in files or "_METADATA" in files
    ):
        return _no(
            folder,
            "a checkpoint of Orbax (JAX)",
            "Restore it where it was made, and write its arrays: safetensors.flax.save_file("
            "flax.traverse_util.flatten_dict(params, sep='.'), 'weights.safetensors')",
        )
    if "saved_model.pb" in files:
        return _no(folder, "a SavedModel of TensorFlow", _FROM_THERE)
    if "tf_model.h5" in files or "flax_model.msgpack" in files:
        other = "from_tf" if "tf_model.h5" in files else "from_flax"
        what = "TensorFlow" if other == "from_tf" else "Flax"
        return _no(
            folder,
            f"a model with the weights of {what}",
            f"Convert it with transformers: AutoModel.from_pretrained({str(folder)!r}, {other}=True)"
            ".save_pretrained('converted')",
        )
    if any(".ckpt" in name and ".data-" in name for name in files):
        return _no(folder, "a checkpoint of TensorFlow", _FROM_THERE)
    for suffix in (".nemo", ".gguf", ".onnx", ".msgpack", ".tflite", ".keras", ".h5"):
        for name in sorted(files):
            if name.endswith(suffix):
                if suffix == ".nemo":
                    return _archive(folder / name)
                what, hint = _SUFFIXES.get(suffix, ("a Keras model", _FROM_THERE))
                return CheckpointError(
                    f"{folder} holds no weights that are read here: {name} is {what}", hint=hint
                )
    return None


def _no(path: Path, what: str, hint: str) -> CheckpointError:
    return CheckpointError(f"{path} is no checkpoint: it is {what}", hint=hint)
