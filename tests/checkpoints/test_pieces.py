"""Folders of shards, pieces of models as frameworks leave them, and files of other formats."""

import io
import json
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

from rebasin_cli.checkpoints import pieces
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.families import _factors_of_one
from rebasin_cli.checkpoints.folder import as_safetensors
from rebasin_cli.checkpoints.locate import locate, read_index
from rebasin_cli.checkpoints.pieces import escapes
from rebasin_cli.errors import CheckpointError

W = torch.arange(6.0).reshape(2, 3)
NET = {"l.weight": W, "l.bias": torch.ones(2)}


def write(folder, files):
    """Files by name: tensors, or text, or bytes; a name with a slash lies in a folder within."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, (str, bytes)):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        elif name.endswith(".safetensors"):
            safetensors.torch.save_file(content, path)
        elif name.endswith(".json"):
            path.write_text(json.dumps(content))
        else:
            torch.save(content, path)
    return folder


def shards(names, count=None, stem="model", suffix=".safetensors", first=1):
    count = count or len(names)
    return {
        f"{stem}-{number:05d}-of-{count:05d}{suffix}": {name: W}
        for number, name in enumerate(names, first)
        if name
    }


def refused(path, **options):
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path, **options)
    return caught.value


@pytest.mark.parametrize("suffix", [".safetensors", ".bin", ".pt"])
def test_all_shards_of_a_folder_are_read_whether_or_not_there_is_an_index(tmp_path, suffix):
    for first in (0, 1):
        folder = write(tmp_path / str(first), shards("abc", suffix=suffix, first=first))
        write(folder, {"optimizer.bin": {"state": {}, "param_groups": []}, "training_args.bin": {"lr": 1}})
        checkpoint = open_checkpoint(folder)
        assert list(checkpoint) == ["a", "b", "c"] and torch.equal(checkpoint["b"], W)
        assert torch.equal(checkpoint.rows("c", 1, 2), W[1:]) and checkpoint.format == "sharded"
        kind, file = locate(folder)
        assert kind == "sharded" and list(read_index(file)) == ["a", "b", "c"]
    index = {"weight_map": {"b": f"whole{suffix}"}}
    write(tmp_path / "1", {f"pytorch_model{suffix}.index.json": index, f"whole{suffix}": {"b": W}})
    assert list(open_checkpoint(tmp_path / "1")) == ["b"]  # a folder is what its index names


def test_shards_of_torch_files_in_wrappers_and_envelopes_are_read(tmp_path):
    names = {"x-00001-of-00002.bin": {"module.a": W}, "x-00002-of-00002.bin": {"state_dict": {"module.b": W}}}
    assert list(open_checkpoint(write(tmp_path, names))) == ["a", "b"]
    tied = {"x-00001-of-00002.bin": {"module.a": W, "module.c": W}}
    assert open_checkpoint(write(tmp_path, tied)).tied == (("a", "c"),)


def test_shards_that_are_not_one_whole_set_are_refused(tmp_path):
    cases = {
        "one missing": (shards(["a", None, "c"]), "holds 2 of the 3 files", "model-00002-of-00003"),
        "one beyond": (shards("abcd", 3), "holds 3 of the 3", "model-00004-of-00003.safetensors  is beyond"),
        "of two counts": (shards("ab") | shards("abc"), "several sets", "2 of 2 files"),
        "of two names": (shards("ab") | shards("ab", stem="x"), "several sets", "x-…-of-00002"),
        "and a whole": (shards("ab") | {"model.safetensors": NET}, "several sets", "model.safetensors"),
        "with one name twice": (shards("aa"), "tensors of the same names", "a  is in model-00001"),
        "very many": (shards("a", 999_999), "one of 999,999 files", ""),
    }
    for number, (what, (files, message, problem)) in enumerate(cases.items()):
        error = refused(write(tmp_path / str(number), files))
        assert message in error.message and problem in "\n".join((*error.problems, "")), (what, error)
        assert ".safetensors" not in (error.hint or "").replace("model.safetensors", ""), what


def test_one_shard_is_no_model(tmp_path):
    write(tmp_path, shards("ab") | shards("a", stem="alone"))
    error = refused(tmp_path / "model-00001-of-00002.safetensors")
    assert "one of the 2 files" in error.message and error.hint == f"Give all of them: {tmp_path}"
    write(tmp_path, {"model.safetensors.index.json": {"weight_map": {}}})
    assert refused(tmp_path / "model-00002-of-00002.safetensors").hint.endswith(".index.json")
    assert list(open_checkpoint(tmp_path / "alone-00001-of-00001.safetensors")) == ["a"]


def test_an_index_with_a_byte_order_mark_is_read_and_one_that_names_a_tensor_twice_is_not(tmp_path):
    name, other = shards("ab")
    write(tmp_path, shards("ab"))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name, "b": other}}), encoding="utf-8-sig")
    for path in (tmp_path, index, index.rename(tmp_path / "index.txt")):
        assert list(open_checkpoint(path if path.exists() else tmp_path / "index.txt")) == ["a", "b"]
    index.write_text(f'{{"weight_map": {{"a": "{name}", "a": "{other}"}}}}')
    assert "'a' appears twice" in refused(index).message
    index.write_text(json.dumps({"weight_map": {"a": "index.txt.bin"}}))
    (tmp_path / "index.txt.bin").write_text("{}")
    assert "index.txt.bin  is an index itself" in refused(index).problems


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_an_index_that_names_some_of_the_shards_of_a_set_is_no_model(tmp_path, suffix):
    first, second = (f"model-0000{number}-of-00002{suffix}" for number in (1, 2))
    index = f"model{suffix}.index.json"
    for there in ({first: {"l.weight": W}}, {first: {"l.weight": W}, second: {"l.bias": W[0]}}):
        write(tmp_path, {**there, index: {"weight_map": {"l.weight": first}}})
        with pytest.raises(CheckpointError, match="names 1 of the 2 files that make the model") as caught:
            open_checkpoint(tmp_path)
        assert list(caught.value.problems) == [f"{second}  is missing"]
    write(tmp_path, {index: {"weight_map": {"l.weight": first, "l.bias": second}}})
    assert set(open_checkpoint(tmp_path).shapes) == {"l.weight", "l.bias"}


def test_two_hundred_shards_take_no_longer_than_their_headers(tmp_path):
    for suffix in (".safetensors", ".bin"):
        folder = write(tmp_path / suffix, shards([f"n{number}" for number in range(200)], suffix=suffix))
        started = time.monotonic()
        assert len(open_checkpoint(folder)) == 200
        assert time.monotonic() - started < 10


# A folder, and in it what is given: the words of the message, and of the next step.
DCP = {"m/.metadata": b"\x80\x02", "m/__0_0.distcp": b"PK\x03\x04", "m/__1_0.distcp": b"PK\x03\x04"}
EMPTY = {"module": {"l.weight": torch.empty(0), "n": torch.ones(3)}, "param_shapes": []}
ZERO3 = {"mp_rank_00_model_states.pt": EMPTY, "zero_pp_rank_0_mp_rank_00_optim_states.pt": {"x": 1}}
MEGATRON = {f"run/iter_0000010/mp_rank_0{n}/model_optim_rng.pt": {"model": NET} for n in (0, 1)}
PIECES = {
    "DCP without metadata": ({"m/__0_0.distcp": b"PK"}, "m", "its .metadata is missing", "written last"),
    "a file of DCP": (DCP, "m/__0_0.distcp", "a part of a folder of torch.distributed", "Give the folder"),
    "its metadata": (DCP, "m/.metadata", "a part of a folder of torch.distributed", "Give the folder"),
    "two of Accelerate's FSDP": (
        {f"m/pytorch_model_fsdp_{n}/.metadata": b"x" for n in (0, 1)},
        "m",
        "2 folders of torch.distributed",
        "pytorch_model_fsdp_0",
    ),
    "flat parameters": ({"a.pt": {"l._flat_param": W[0], "flat_param": W[0]}}, "a.pt", "FSDP", "FULL_STATE"),
    "a rank of FSDP": ({"pytorch_model_fsdp_rank0.bin": NET}, "pytorch_model_fsdp_rank0.bin", "FSDP", "FULL"),
    "ZeRO-3": (ZERO3, "mp_rank_00_model_states.pt", "names of 1 parameters without", "zero_to_fp32"),
    "its folder": (
        {f"r/global_step5/{k}": v for k, v in ZERO3.items()},
        "r/global_step5",
        "without",
        "/r whole/",
    ),
    "its run": ({f"r/global_step5/{k}": v for k, v in ZERO3.items()}, "r", "DeepSpeed", "zero_to_fp32"),
    "its optimizer": (ZERO3, "zero_pp_rank_0_mp_rank_00_optim_states.pt", "DeepSpeed", "zero_to_fp32"),
    "a pipeline's layer": (
        {"layer_03-model_00-model_states.pt": NET},
        "layer_03-model_00-model_states.pt",
        "DeepSpeed",
        "zero_to_fp32",
    ),
    "weights of no values in safetensors": (
        {"model.safetensors": NET | {"e.weight": torch.empty(0)}},
        "model.safetensors",
        "without their values",
        "zero_to_fp32",
    ),
    "weights of one value": (
        {"a.pt": {f"l{n}.weight": torch.ones(1) for n in range(4)}},
        "a.pt",
        "names of 4 parameters",
        "zero_to_fp32",
    ),
    "several ranks of tensors": (
        {"mp_rank_00_model_states.pt": {"module": NET, "mp_world_size": 2}},
        "mp_rank_00_model_states.pt",
        "DeepSpeed",
        "zero_to_fp32",
    ),
    "Megatron": (
        MEGATRON,
        "run/iter_0000010/mp_rank_00/model_optim_rng.pt",
        "2 ranks",
        "tools/checkpoint/convert",
    ),
    "Megatron's iteration": (MEGATRON, "run/iter_0000010", "2 ranks", "--target-tensor-parallel-size 1"),
    "Megatron's run": (
        MEGATRON | {"run/latest_checkpointed_iteration.txt": "10"},
        "run",
        "a run of Megatron",
        "iter_0000010",
    ),
    "verl": (
        {f"model_world_size_2_rank_{n}.pt": NET for n in (0, 1)},
        "",
        "verl",
        "verl.model_merger",
    ),
    "Llama": ({f"consolidated.0{n}.pth": NET for n in (0, 1)}, "", "cut within its tensors", "convert_llama"),
    "half of Llama": ({"consolidated.01.pth": NET}, "consolidated.01.pth", "cut within", "convert_llama"),
    "other ranks": (
        {f"ckpt_tp{n}.pt": NET for n in (0, 1)},
        "ckpt_tp0.pt",
        "one tp of several",
        "data parallel",
    ),
    "parts of a rank": (
        {f"model-rank-0-part-{n}.safetensors": {f"w{n}": W} for n in (0, 1)},
        "",
        "of several that lie there",
        "Save the whole",
    ),
    "shards that are counted alone": (
        {f"hf_model_000{n}_0.pt": {f"w{n}": W} for n in (1, 2)},
        "",
        "no two have a tensor in common",
        "weight_map",
    ),
    "steps of a run": ({f"step_{n}.pt": NET for n in (1, 2)}, "", "holds 2 files of torch.save", "Name one"),
    "a pipeline of diffusers": (
        {"model_index.json": {"unet": ["d", "U"], "vae": ["d", "V"]}, "root.safetensors": NET}
        | {f"{part}/model.safetensors": NET for part in ("unet", "vae")},
        "",
        "a pipeline",
        "/unet",
    ),
    "modules of sentence-transformers": (
        {"modules.json": [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "../x"}, 3]}
        | {"model.safetensors": NET, "2_Dense/model.safetensors": NET, "1_Pooling/config.json": {}},
        "",
        "several modules",
        "/2_Dense",
    ),
    "a list of modules that is none": (
        {"modules.json": "{", "model.safetensors": NET},
        "",
        "not valid JSON",
        "again",
    ),
    "a folder of runs": ({"c-1/model.safetensors": NET, "c-2/a.pt": NET}, "", "holds no weights", "/c-1 or"),
}


@pytest.mark.parametrize("what", PIECES)
def test_a_piece_of_a_model_is_refused_with_the_way_to_the_whole(tmp_path, what):
    files, given, message, step = PIECES[what]
    error = refused(write(tmp_path, files) / given)
    assert message in error.message and step in error.hint, error


def test_more_tensors_without_values_than_any_model_has_are_refused():
    names = {f"w{k}": (0, 3) for k in range(100_001)}
    with pytest.raises(CheckpointError, match="a.pt holds 100,001 tensors without values"):
        pieces.check_values(Path("a.pt"), names)
    pieces.check_values(Path("a.pt"), names | {"w0": (1, 3)})


def test_what_is_whole_is_read_though_it_is_called_like_a_piece(tmp_path):
    zero2 = {"module": NET, "mp_world_size": 1, "optimizer": None, "param_shapes": []}
    cases = {
        "z2": {"mp_rank_00_model_states.pt": zero2, "zero_pp_rank_0_mp_rank_00_optim_states.pt": {"a": W}},
        "llama": {"consolidated.00.pth": NET, "params.json": {}, "tokenizer.model": "x"},
        "verl": {"model_world_size_1_rank_0.pt": NET, "optim_world_size_1_rank_0.pt": {"a": W}},
        "rank": {"model_rank0.pt": NET},
        "lora": {"a_rank16.safetensors": NET},
        "list": {"model_index.json": ["x"], "modules.json": {"path": 3}, "x/c": "", "model.safetensors": NET},
        "sbert": {
            "modules.json": [{"path": ""}, {"path": "1_P"}],
            "1_P/c.json": {},
            "model.safetensors": NET,
        },
        "tuned": {"global_step5/x.pt": NET, "zero_to_fp32.py": "", "latest": "", "pytorch_model.bin": NET},
        "both": {"model.safetensors": NET, "pytorch_model.bin": NET | {"x": W}, "optimizer.bin": {"y": W}},
    }
    for what, files in cases.items():
        assert set(open_checkpoint(write(tmp_path / what, files))) == set(NET), what
    write(tmp_path, {"r/l_rank8.pt": NET, "r/l_rank16.pt": NET})
    assert set(open_checkpoint(tmp_path / "r/l_rank8.pt")) == set(NET)
    one = {"m/mp_rank_00/model_optim_rng.pt": {"model": {"language_model": {"encoder": NET}}}}
    assert len(open_checkpoint(write(tmp_path, one) / "m/mp_rank_00/model_optim_rng.pt")) == 2


def test_near_names_are_those_of_models(tmp_path):
    names = ("model-optimizer.pt", "model.optim.pt", "meta.pt", "model_rng_state.pth", "training_args.bin")
    write(tmp_path, dict.fromkeys((*names, *shards("ab")), b"x"))
    for asked in (*names, "model-00003-of-00002.safetensors"):
        assert refused(tmp_path / f"{asked[:-3]}x{asked[-3:]}").hint is None, asked
    write(tmp_path, {"model.pt": NET})
    assert refused(tmp_path / "modle.pt").hint == f"Did you mean {tmp_path / 'model.pt'}?"


def zipped(*names):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return held.getvalue()


def tarred(name):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return held.getvalue()


FOREIGN = {
    "ppo.zip": (zipped("data", "policy.pth", "policy.optimizer.pth"), "Stable-Baselines3", "unzip"),
    "m.zip": (zipped("readme", "best model.pth"), "an archive with weights in it", "'best model.pth'"),
    "m.keras": (zipped("config.json", "model.weights.h5"), "a Keras model", "safetensors"),
    "m.pt2": (zipped("m/archive_format", "m/data/weights/0"), "torch.export", "PyTorch weights"),
    "m.npz": (zipped("a.npy"), "a NumPy archive", "safetensors.numpy"),
    "m.nemo": (tarred("model_weights.ckpt"), "NeMo", "tar -xf"),
    "z.nemo": (b"\x1f\x8b\x08\x00", "NeMo", "tar -xf"),
    "m.bin": (tarred("w.pt"), "a tar archive", "tar -xf"),
    "m.msgpack": (b"\x82\xa6params\x80", "MessagePack", "flatten_dict"),
    "m.onnx": (b"\x08\x07\x12\x07pytorch", "ONNX", "PyTorch weights"),
    "m.tflite": (b"\x1c\x00\x00\x00TFL3", "TensorFlow Lite", "PyTorch weights"),
    "m.gguf": (b"GGUF\x03\x00", "GGUF", "original"),
    "m.ckpt-9.data-00000-of-00001": (b"\x00\x01\x02" * 99, "TensorFlow checkpoint", "safetensors"),
    "m.ckpt-9.index": (b"\x00\x01\x02" * 99, "TensorFlow checkpoint", "safetensors"),
    "o/manifest.ocdbt": (b"x", "Orbax", "flatten_dict"),
    "s/saved_model.pb": (b"x", "SavedModel", "safetensors"),
    "t/tf_model.h5": (b"x", "weights of TensorFlow", "from_tf"),
    "f/flax_model.msgpack": (b"x", "weights of Flax", "from_flax"),
    "c/model.ckpt-9.data-00000-of-00001": (b"x", "a checkpoint of TensorFlow", "safetensors"),
    "g/model.Q4.gguf": (b"GGUF", "GGUF", "original"),
    "n/model.nemo": (b"x", "NeMo", "tar -xf"),
}


def test_files_and_folders_of_other_formats_are_named_with_the_next_step(tmp_path):
    for name, (content, what, step) in FOREIGN.items():
        write(tmp_path, {name: content})
        error = refused(tmp_path / name.partition("/")[0])
        assert what in error.message and step in error.hint, (name, error)


def test_shards_are_called_what_loaders_look_for():
    assert as_safetensors("pytorch_model-00001-of-00002.bin") == "model-00001-of-00002.safetensors"
    assert as_safetensors("x/unet-00001-of-00002.safetensors") == "unet-00001-of-00002.safetensors"
    for name in (
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model.bin.index.json",
        "model.safetensors.index.json",
    ):
        assert as_safetensors(name, whole=True) == "model.safetensors"


@pytest.mark.parametrize(
    ("file", "wrong"),
    [("a.bin", 0), ("sub/a.bin", 0), ("/a.bin", 1), ("../a.bin", 1), ("sub/../a.bin", 1), ("a.txt", 1)]
    + [("a\\b.bin", 1), ("a\0.bin", 1), (3, 1)],
)
def test_a_name_in_an_index_stays_within_its_folder(file, wrong):
    assert escapes(file, {".bin"}) == bool(wrong)


def test_two_factors_have_in_common_what_is_no_longer_than_their_other_axes():
    assert _factors_of_one((8, 2), (2, 9)) and _factors_of_one((2, 8), (9, 2))
    assert not _factors_of_one((8, 2), (9, 8)) and not _factors_of_one((2,), (2,))
