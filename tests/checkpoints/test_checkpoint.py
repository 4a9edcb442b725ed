"""Reading checkpoints: what is understood, what is refused, and that nothing runs, hangs or fills memory."""

import doctest
import gc
import json
import os
import resource
import struct
import time
import tracemalloc
import warnings
import zipfile

import pytest
import safetensors.torch
import torch
from torch import nn

from rebasin_cli.checkpoints import checkpoint as checkpoint_module
from rebasin_cli.checkpoints import tensors as tensors_module
from rebasin_cli.checkpoints import torch_file, validation
from rebasin_cli.checkpoints.checkpoint import digest, open_checkpoint, validate
from rebasin_cli.checkpoints.safetensors_format import SafetensorsFile
from rebasin_cli.checkpoints.storages import check_zip
from rebasin_cli.checkpoints.stored import StoredFile
from rebasin_cli.checkpoints.tensors import LazyTensors, chunks
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.errors import CheckpointError, UsageError

WEIGHTS = {
    "fc1.weight": torch.arange(6.0).reshape(2, 3),
    "fc1.bias": torch.tensor([0.5, -1.0]).bfloat16(),
    "bn.num_batches_tracked": torch.tensor(7),
}
EMA = {name: tensor + 1 for name, tensor in WEIGHTS.items()}


def same(checkpoint, expected):
    return list(checkpoint) == list(expected) and all(
        torch.equal(checkpoint[name], tensor) and checkpoint[name].dtype == tensor.dtype
        for name, tensor in expected.items()
    )


def saved(tmp_path, content, name="a.pt", **options):
    torch.save(content, tmp_path / name, **options)
    return tmp_path / name


def raw_safetensors(tmp_path, header, data=b"", name="a.safetensors"):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / name).write_bytes(struct.pack("<Q", len(text)) + text + data)
    return tmp_path / name


def entry(start, stop, shape=None, dtype="F32"):
    return {
        "dtype": dtype,
        "shape": [(stop - start) // 4] if shape is None else shape,
        "data_offsets": [start, stop],
    }


# What is read


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.bin", "a.ckpt", "no_extension", "wrong.safetensors"])
def test_a_torch_file_is_read_whatever_its_extension(tmp_path, name):
    checkpoint = open_checkpoint(saved(tmp_path, WEIGHTS, name))
    assert same(checkpoint, WEIGHTS)
    assert (checkpoint.format, checkpoint.envelope, checkpoint.notes) == ("torch", "", ())
    assert checkpoint.shapes["fc1.weight"] == (2, 3) and checkpoint.dtypes["fc1.bias"] is torch.bfloat16


def test_a_torch_file_of_the_old_format_is_read(tmp_path):
    assert same(open_checkpoint(saved(tmp_path, WEIGHTS, _use_new_zipfile_serialization=False)), WEIGHTS)


@pytest.mark.parametrize("name", ["a.safetensors", "a.pt", "no_extension"])
def test_a_safetensors_file_is_read_whatever_its_extension(tmp_path, name):
    safetensors.torch.save_file(WEIGHTS, tmp_path / name, metadata={"format": "pt"})
    checkpoint = open_checkpoint(str(tmp_path / name))
    assert same(checkpoint, {key: WEIGHTS[key] for key in checkpoint}) and len(checkpoint) == len(WEIGHTS)
    assert (checkpoint.format, checkpoint.metadata) == ("safetensors", {"format": "pt"})


def test_every_dtype_scalars_and_empty_tensors_are_read(tmp_path):
    dtypes = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32"]
    dtypes += ["int16", "int8", "uint8", "bool", "uint16", "complex64"]
    expected = {dtype: torch.ones(3).to(getattr(torch, dtype)) for dtype in dtypes}
    expected |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4)}
    safetensors.torch.save_file(expected, tmp_path / "a.safetensors")
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    for name, tensor in expected.items():
        assert checkpoint[name].shape == tensor.shape and checkpoint[name].dtype == tensor.dtype
        assert torch.equal(
            checkpoint[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
        )


def test_a_tensor_at_an_odd_offset_is_read(tmp_path):
    header = {"a": entry(0, 1, [1], "U8"), "b": entry(1, 9)}
    path = raw_safetensors(tmp_path, header, b"\x05" + struct.pack("<2f", 1.5, -2.0))
    tensor = open_checkpoint(path)["b"]
    assert tensor.tolist() == [1.5, -2.0] and tensor.data_ptr() % 4 == 0


def test_changing_a_tensor_never_changes_the_file(tmp_path):
    safetensors.torch.save_file({"w": torch.ones(4)}, tmp_path / "a.safetensors")
    for path in (tmp_path / "a.safetensors", saved(tmp_path, {"w": torch.ones(4)})):
        open_checkpoint(path)["w"].zero_()
        assert open_checkpoint(path)["w"].tolist() == [1, 1, 1, 1]


def test_unknown_names_are_key_errors_and_membership_reads_nothing(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, WEIGHTS))
    with pytest.raises(KeyError):
        checkpoint["fc2.weight"]
    object.__setattr__(checkpoint, "read", None)
    assert "fc1.weight" in checkpoint and "fc2.weight" not in checkpoint
    assert len({checkpoint, checkpoint}) == 1 and "3 tensors" in repr(checkpoint)


def test_one_small_tensor_of_a_sparse_four_gigabyte_file_is_read_at_once(tmp_path):
    huge = 4 << 30
    text = json.dumps({"huge": entry(0, huge), "small": entry(huge, huge + 8)}).encode()
    text += b" " * (-len(text) % 8)  # aligned, as every recent writer does
    path = tmp_path / "a.safetensors"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.seek(huge, os.SEEK_CUR)
        file.write(struct.pack("<2f", 1.0, 2.0))
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    checkpoint = open_checkpoint(path)
    assert checkpoint["small"].tolist() == [1.0, 2.0]
    assert checkpoint.rows("huge", 12345, 12346).tolist() == [0]
    assert time.monotonic() - started < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="the system does not list mapped files")
@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_nothing_that_is_looked_at_is_mapped(tmp_path, name):
    """A mapped file that is cut short kills the process."""
    path = tmp_path / name
    torch.save(WEIGHTS, path) if name == "a.pt" else safetensors.torch.save_file(WEIGHTS, path)
    checkpoint = open_checkpoint(path)
    tensor = checkpoint["fc1.weight"]
    gc.collect()  # torch.load leaves a cycle
    with open("/proc/self/maps") as maps:
        assert str(path) not in maps.read()
    assert float(tensor[1, 2]) == 5 and checkpoint["fc1.weight"].data_ptr() != tensor.data_ptr()


LARGE = {f"{k}.weight": torch.full((256, 64), float(k)) for k in range(8)}


def kept(path, form):
    """A checkpoint of several pages, the same content in each form."""
    if form == "safetensors":
        safetensors.torch.save_file(LARGE, path)
    else:
        torch.save(LARGE, path, _use_new_zipfile_serialization=form == "zip")
    return path


@pytest.mark.parametrize("form", ["safetensors", "zip"])
@pytest.mark.parametrize("change", ["cut", "emptied", "longer", "written", "replaced", "gone"])
def test_a_file_that_changes_after_it_was_opened_is_told(tmp_path, form, change):
    path = kept(tmp_path / "a", form)
    checkpoint = open_checkpoint(path)
    assert float(checkpoint["7.weight"][0, 0]) == 7
    assert float(checkpoint.rows("7.weight", 0, 1)[0, 0]) == 7  # and what was read with it is known
    time.sleep(0.02)  # times are kept in ticks
    if change == "replaced":
        kept(tmp_path / "b", form).replace(path)
    elif change == "gone":
        path.unlink()
    else:
        with open(path, "r+b") as file:
            size = path.stat().st_size
            if change in ("cut", "emptied"):
                file.truncate(5000 if change == "cut" else 0)
            else:
                file.seek(size if change == "longer" else size - 100)
                file.write(b"x")
    for read in (
        lambda: checkpoint["7.weight"],
        lambda: checkpoint.rows("7.weight", 0, 1),
        checkpoint.digest,
    ):
        with pytest.raises(CheckpointError, match="a changed while it was read"):
            read()


def test_an_old_torch_file_is_read_whole_and_stays_what_it_was(tmp_path):
    path = kept(tmp_path / "a.pt", "old")
    checkpoint = open_checkpoint(path)
    path.unlink()
    assert float(checkpoint["7.weight"][0, 0]) == 7


@pytest.mark.parametrize("form", ["safetensors", "zip", "old"])
def test_parts_of_a_tensor_are_read_without_the_rest(tmp_path, form):
    checkpoint = open_checkpoint(kept(tmp_path / "a", form))
    part = checkpoint.rows("3.weight", 10, 12)
    assert torch.equal(part, LARGE["3.weight"][10:12])
    assert form == "old" or part.untyped_storage().nbytes() == 2 * 64 * 4


LAYOUTS = {
    "turned": torch.arange(12.0).reshape(3, 4).t(),
    "part": torch.arange(20.0).reshape(4, 5)[1:3, 1:4],
    "every other": torch.arange(10)[::2],
    "repeated": torch.tensor([1.5]).expand(3, 4),
    "parameter": nn.Parameter(torch.ones(2, 2)),
    "scalar": torch.tensor(3.0),
    "empty": torch.empty(0, 3),
    "channels last": torch.arange(48.0).reshape(1, 3, 4, 4).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_a_torch_file_are_read_however_they_lie(tmp_path, zipped):
    shared = torch.arange(6.0)
    given = LAYOUTS | {"one": shared, "tied": shared, "half of it": shared[3:]}
    checkpoint = open_checkpoint(saved(tmp_path, given, _use_new_zipfile_serialization=zipped))
    assert same(checkpoint, given)
    assert checkpoint.tied == (("one", "tied"),)
    for name, tensor in given.items():
        if tensor.ndim and len(tensor):
            assert torch.equal(checkpoint.rows(name, 1, len(tensor)), tensor[1:]), name
    assert checkpoint.digest() == digest(given)


def test_a_set_of_weights_among_others_of_the_same_sizes_is_found_in_the_file(tmp_path):
    """The places of all storages are known by those of all records."""
    both = {"model": LARGE, "ema": {name: tensor + 100 for name, tensor in LARGE.items()}}
    path = saved(tmp_path, both)
    assert same(open_checkpoint(path), LARGE) and same(open_checkpoint(path, key="ema"), both["ema"])


def test_a_torch_file_with_values_that_nothing_refers_to_is_read(tmp_path):
    """Which record is which cannot be told then by their order alone."""
    path = saved(tmp_path, LARGE)
    with zipfile.ZipFile(path, "a") as archive:
        folder = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{folder}/data/99", b"x" * 65536)
    assert same(open_checkpoint(path), LARGE)


def test_a_torch_file_of_a_machine_that_turns_bytes_round_is_read(tmp_path):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(saved(tmp_path, {"w": torch.tensor([1.5, -2.0])}, "b.pt")) as archive:
        with zipfile.ZipFile(path, "w") as turned:
            for name in archive.namelist():
                data = archive.read(name)
                if name.endswith("data/0"):
                    data = struct.pack(">2f", 1.5, -2.0)
                turned.writestr(name, b"big" if name.endswith("byteorder") else data)
    assert open_checkpoint(path)["w"].tolist() == [1.5, -2.0]


# Folders and indices


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    both = {"rebasin.seed": "1", "format": "pt"}
    safetensors.torch.save_file({"a": torch.ones(2)}, folder / names[0], metadata=both | {"shard": "1"})
    safetensors.torch.save_file({"b": torch.zeros(3)}, folder / names[1], metadata=both)
    index = {"metadata": {"total_size": 20}, "weight_map": {"a": names[0], "b": names[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def rewrite_index(folder, **weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_folder_and_its_index_are_the_same_checkpoint(sharded):
    for path in (sharded, sharded / "model.safetensors.index.json"):
        checkpoint = open_checkpoint(path)
        assert same(checkpoint, {"a": torch.ones(2), "b": torch.zeros(3)})
        assert (checkpoint.format, checkpoint.path) == ("sharded", path)
        assert checkpoint.metadata == {"rebasin.seed": "1", "format": "pt"}  # what all shards say


def test_only_files_that_the_index_names_are_opened(sharded):
    (sharded / "broken.safetensors").write_bytes(b"not a checkpoint")
    (sharded / "model-00002-of-00002.safetensors").unlink()
    (sharded / "model-00001-of-00002.safetensors").rename(sharded / "one.safetensors")
    rewrite_index(sharded, a="one.safetensors")
    assert list(open_checkpoint(sharded)) == ["a"]


def test_a_tensor_that_the_index_does_not_name_makes_the_rest_a_part(sharded):
    safetensors.torch.save_file(
        {"b": torch.zeros(3), "c": torch.ones(1)}, sharded / "model-00002-of-00002.safetensors"
    )
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(sharded)
    assert raised.value.problems == ("c  is in model-00002-of-00002.safetensors, and not in the index",)


def test_missing_shards_and_tensors_are_all_named(sharded):
    (sharded / "model-00001-of-00002.safetensors").rename(sharded / "one.safetensors")
    rewrite_index(sharded, a="one.safetensors", x="one.safetensors", b="gone.safetensors")
    with pytest.raises(CheckpointError, match="does not fit") as caught:
        open_checkpoint(sharded)
    assert caught.value.problems == (
        "gone.safetensors  is missing",
        "x  is not in one.safetensors",
    )


@pytest.mark.parametrize(
    "file",
    ["../a.safetensors", "/etc/a.bin", "x/../../a.safetensors", "..\\a.safetensors", "a.json", "a.py", 3],
)
def test_an_index_cannot_lead_out_of_its_folder(sharded, file):
    safetensors.torch.save_file({"a": torch.ones(2)}, sharded.parent / "a.safetensors")
    rewrite_index(sharded, a=file)
    with pytest.raises(CheckpointError, match="no weights in its own folder") as caught:
        open_checkpoint(sharded)
    assert caught.value.problems == (repr(file),)


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, '{"a": 1}', '{"weight_map": {}}', '{"weight_map": ["a"]}', "\udcff"]
)
def test_a_broken_index_is_an_error(sharded, text):
    (sharded / "model.safetensors.index.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    for path in (sharded, sharded / "model.safetensors.index.json"):
        with pytest.raises(CheckpointError, match="not valid JSON|is no index|not UTF-8"):
            open_checkpoint(path)


def test_a_folder_with_one_safetensors_file_is_that_file(tmp_path):
    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    safetensors.torch.save_file({"h": torch.arange(2)}, tmp_path / "model.perm.safetensors")  # not weights
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint) == ["a"] and checkpoint.format == "safetensors"


def test_a_folder_with_several_files_and_no_index_asks_for_one(tmp_path):
    for name in ("a.safetensors", "b.safetensors"):
        safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / name)
    with pytest.raises(CheckpointError, match="holds 2 .safetensors files and no index") as caught:
        open_checkpoint(tmp_path)
    assert (
        caught.value.problems == ("a.safetensors", "b.safetensors") and "a.safetensors" in caught.value.hint
    )


def test_a_folder_with_one_torch_file_is_that_file(tmp_path):
    saved(tmp_path, WEIGHTS, "pytorch_model.bin")
    saved(tmp_path, {"state": {}, "param_groups": []}, "optimizer.bin")
    for name in ("scheduler.bin", "training_args.bin", "rng_state.pth", "meta.pt"):
        saved(tmp_path, {"seed": 1}, name)
    checkpoint = open_checkpoint(tmp_path)
    assert same(checkpoint, WEIGHTS) and (checkpoint.path, checkpoint.format) == (tmp_path, "torch")
    saved(tmp_path, WEIGHTS, "other.pt")
    with pytest.raises(CheckpointError, match="holds 2 files of torch.save") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.problems == ("other.pt", "pytorch_model.bin")


# Envelopes and names


@pytest.mark.parametrize(
    "key", ["state_dict", "model_state_dict", "model", "net", "module", "ema", "state_dict_ema", "model_ema"]
)
def test_the_usual_envelopes_are_opened_and_reported(tmp_path, key):
    content = {"another": EMA, "epoch": 3, key: WEIGHTS, "optimizer": {"state": {0: EMA}}}
    checkpoint = open_checkpoint(saved(tmp_path, content))
    assert same(checkpoint, WEIGHTS)
    assert (checkpoint.envelope, checkpoint.alternatives) == (key, ("another",))
    assert checkpoint.notes == (
        f"the weights are those under {key!r}",
        "also there, for --key: another",
        "left out: optimizer (an optimizer's state)",
        "plain values beside the weights: epoch",
    )


def test_of_several_envelopes_the_first_in_the_documented_order_is_taken(tmp_path):
    path = saved(
        tmp_path, {"model_ema": EMA, "ema": {"shadow": EMA, "decay": 0.9}, "model": WEIGHTS, "teacher": EMA}
    )
    checkpoint = open_checkpoint(path)
    assert same(checkpoint, WEIGHTS)
    assert checkpoint.envelope == "model"
    assert checkpoint.alternatives == ("ema.shadow", "model_ema", "teacher")
    assert "also there, for --key: ema.shadow, model_ema, teacher" in checkpoint.notes


@pytest.mark.parametrize(
    ("key", "envelope"),
    [("model_ema", "model_ema"), ("ema", "ema.shadow"), ("ema.shadow", "ema.shadow"), ("a.b.c", "a.b.c")],
)
def test_key_chooses_another_one_however_deep(tmp_path, key, envelope):
    content = {"model_ema": EMA, "ema": {"shadow": EMA}, "model": WEIGHTS, "a.b": {"c": EMA}}
    checkpoint = open_checkpoint(saved(tmp_path, content), key=key)
    assert same(checkpoint, EMA)
    assert checkpoint.envelope == envelope
    assert "model" in checkpoint.alternatives and envelope not in checkpoint.alternatives


def test_an_unknown_key_is_answered_with_near_ones(tmp_path):
    path = saved(tmp_path, {"model": WEIGHTS, "ema": {"shadow": EMA}, "epoch": 3})
    with pytest.raises(UsageError, match="unknown key in .*a.pt: 'modle'") as caught:
        open_checkpoint(path, key="modle")
    assert caught.value.hint == "Did you mean model?"
    with pytest.raises(UsageError, match="'epoch' is an int without named tensors") as caught:
        open_checkpoint(path, key="epoch")
    assert caught.value.hint == "Keys with tensors: model, ema.shadow."


def test_a_key_where_there_is_nothing_to_choose_is_a_usage_error(tmp_path):
    safetensors.torch.save_file(WEIGHTS, tmp_path / "a.safetensors")
    for path in (tmp_path / "a.safetensors", saved(tmp_path, WEIGHTS)):
        with pytest.raises(UsageError):
            open_checkpoint(path, key="model")


def test_an_unusual_envelope_is_taken_only_when_it_is_the_only_one(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, {"weights": WEIGHTS, "step": torch.tensor(3)}))
    assert same(checkpoint, WEIGHTS) and checkpoint.envelope == "weights"
    both = open_checkpoint(saved(tmp_path, {"generator": WEIGHTS, "critic": EMA}))
    assert len(both) == 2 * len(WEIGHTS) and both.envelope == ""


def test_a_dictionary_that_holds_itself_is_no_endless_search(tmp_path):
    content = {"epoch": 1}
    content["model"] = content["state_dict"] = content
    with pytest.raises(CheckpointError, match="holds no named tensors"):
        open_checkpoint(saved(tmp_path, content))


@pytest.mark.parametrize("content", [torch.ones(3), [torch.ones(3)], {}, {"epoch": 3}, 5, {0: torch.ones(2)}])
def test_a_file_without_named_tensors_is_an_error_that_says_what_it_holds(tmp_path, content):
    with pytest.raises(CheckpointError, match="holds no named tensors") as caught:
        open_checkpoint(saved(tmp_path, content))
    assert caught.value.problems


def test_entries_that_are_no_tensors_are_skipped_and_reported(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, WEIGHTS | {"version": 2, "fc1._extra_state": None}))
    assert same(checkpoint, WEIGHTS)
    assert checkpoint.skipped == {"version": "int", "fc1._extra_state": "NoneType"}


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module."]
)
def test_wrapper_prefixes_are_stripped_however_often_nested(tmp_path, prefix):
    wrapped = {prefix + name: tensor for name, tensor in WEIGHTS.items()}
    checkpoint = open_checkpoint(saved(tmp_path, wrapped))
    assert same(checkpoint, WEIGHTS)
    assert set(checkpoint.stripped) == {f"{part}." for part in prefix.split(".") if part}
    safetensors.torch.save_file(wrapped, tmp_path / "a.safetensors")
    assert set(open_checkpoint(tmp_path / "a.safetensors")) == set(WEIGHTS)


def test_a_compiled_submodule_is_stripped_inside_a_name(tmp_path):
    checkpoint = open_checkpoint(
        saved(tmp_path, {"encoder._orig_mod.fc.weight": torch.ones(2), "head": torch.ones(1)})
    )
    assert list(checkpoint) == ["encoder.fc.weight", "head"]


def test_a_network_that_calls_one_part_module_keeps_its_names(tmp_path):
    content = {"module.fc.weight": torch.ones(2), "head.weight": torch.ones(1)}
    checkpoint = open_checkpoint(saved(tmp_path, content))
    assert list(checkpoint) == list(content) and checkpoint.stripped == ()


def test_an_averaged_model_is_read_without_its_counter(tmp_path):
    model = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    checkpoint = open_checkpoint(saved(tmp_path, model.state_dict()))
    assert list(checkpoint) == ["weight", "bias"]
    assert checkpoint.skipped == {"n_averaged": "the counter of an averaged model"}


def test_lightning_checkpoints_lose_their_common_prefix_and_others_do_not(tmp_path):
    wrapped = {f"model.{name}": tensor for name, tensor in WEIGHTS.items()}
    lightning = {"pytorch-lightning_version": "2.4.0", "epoch": 1, "state_dict": wrapped}
    for key in (None, "state_dict"):
        checkpoint = open_checkpoint(saved(tmp_path, lightning), key=key)
        assert same(checkpoint, WEIGHTS) and checkpoint.stripped == ("model.",)
    assert list(open_checkpoint(saved(tmp_path, {"state_dict": wrapped}))) == list(wrapped)
    lightning["state_dict"] = {"model.model.weight": torch.ones(1)}  # a network with a part of that name
    assert list(open_checkpoint(saved(tmp_path, lightning))) == ["model.weight"]
    lightning["state_dict"] = wrapped | {"loss.weight": torch.ones(1)}
    assert list(open_checkpoint(saved(tmp_path, lightning))) == [*wrapped, "loss.weight"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_prefixes_that_would_merge_two_names_are_an_error(tmp_path, prefix):
    with pytest.raises(CheckpointError, match="share a name") as caught:
        open_checkpoint(saved(tmp_path, {"fc.weight": torch.ones(2), f"{prefix}fc.weight": torch.ones(2)}))
    assert caught.value.problems == (f"fc.weight and {prefix}fc.weight  are both fc.weight",)


def test_tensors_that_share_storage_are_reported_as_tied(tmp_path):
    shared, packed = torch.ones(3, 3), torch.arange(8.0)
    content = {
        "embed": shared,
        "head": shared,
        "turned": shared.T,
        "a": packed[:4],
        "b": packed[4:],
        "c": torch.ones(3, 3),
    }
    content |= {"empty": torch.empty(0), "void": torch.empty(0)}
    for zipped in (True, False):
        checkpoint = open_checkpoint(saved(tmp_path, content, _use_new_zipfile_serialization=zipped))
        assert checkpoint.tied == (("embed", "head"),) and "tied: embed = head" in checkpoint.notes
        assert checkpoint.under({"e": "embed", "x": "a"}).tied == ()
        assert checkpoint.under({"e": "embed", "h": "head", "x": "a", "y": "a"}).tied == (
            ("e", "h"),
            ("x", "y"),
        )


# What is refused


def test_a_missing_file_is_answered_with_near_names(tmp_path):
    saved(tmp_path, WEIGHTS, "resnet20_a.pt")
    with pytest.raises(CheckpointError, match="no such file") as caught:
        open_checkpoint(tmp_path / "resnet20-a.pt")
    assert caught.value.hint == f"Did you mean {tmp_path / 'resnet20_a.pt'}?"
    with pytest.raises(CheckpointError, match="no such file") as caught:
        open_checkpoint(tmp_path / "nowhere" / "a.pt")
    assert caught.value.hint == f"There is no folder {tmp_path / 'nowhere'} either."
    with pytest.raises(CheckpointError, match="no such file"):
        open_checkpoint(tmp_path / "resnet20_a.pt" / "a.pt")


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(tmp_path / "a.pt")


@pytest.mark.parametrize("form", ["safetensors", "zip", "old"])
def test_a_pipe_in_the_place_of_a_file_that_was_looked_at_is_not_waited_for(tmp_path, form, monkeypatch):
    """It comes between the look and the opening: every opening looks for itself."""
    path = kept(tmp_path / "a", form)
    checkpoint, stored = open_checkpoint(path), StoredFile(path)
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr("rebasin_cli.checkpoints.checkpoint.locate", lambda _: (checkpoint.format, path))
    monkeypatch.setattr("rebasin_cli.checkpoints.stored._identity", lambda _: stored._was)
    with pytest.raises(CheckpointError, match="no regular file"):
        stored.fill(torch.empty(2), 0)
    with pytest.raises(CheckpointError, match="no regular file"):
        open_checkpoint(path)
    for read in (check_zip, torch_file.load, SafetensorsFile):
        with pytest.raises((OSError, CheckpointError), match="no regular file"):
            read(path)


def test_a_file_that_may_not_be_read_is_a_checkpoint_error(tmp_path, monkeypatch):
    path = saved(tmp_path, WEIGHTS)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.json"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "a Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"\x89HDF\r\n\x1a\n" + bytes(99), "HDF5"),
        (b"hello, this is some text", "no checkpoint|header should be|not valid JSON"),
        (b"\x00", "no checkpoint|is cut off|not valid JSON"),
        (b"\x80\x04N.", "no checkpoint"),
        (b"\x80\x02\x8a", "no checkpoint"),
    ],
)
def test_what_is_no_checkpoint_is_named(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(tmp_path / name)
    assert str(tmp_path / name) in caught.value.message


@pytest.mark.parametrize("cut", [0, 3, 8, 9, 60, -9, -1])
def test_a_truncated_safetensors_file_is_an_error_wherever_it_is_cut(tmp_path, cut):
    safetensors.torch.save_file(WEIGHTS, tmp_path / "a.safetensors")
    whole = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(whole[:cut])
    said = "is empty" if cut == 0 else "begins with 8 bytes" if cut == 3 else "is cut off"
    with pytest.raises(CheckpointError, match=said) as caught:
        open_checkpoint(tmp_path / "a.safetensors")
    assert caught.value.hint == "Copy or download the file again."


def test_a_truncated_header_that_begins_like_a_pickle_is_still_called_truncated(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 0x0280) + b'{"a": ')
    with pytest.raises(CheckpointError, match="is cut off"):
        open_checkpoint(tmp_path / "a.safetensors")


@pytest.mark.parametrize("length", [2**60, 2**64 - 1, 100_000_001])
def test_a_header_that_claims_to_be_huge_allocates_nothing(tmp_path, length):
    with open(tmp_path / "a.safetensors", "wb") as file:
        file.write(struct.pack("<Q", length) + b"{}")
        file.truncate(200_000_000)  # sparse
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="header"):
        open_checkpoint(tmp_path / "a.safetensors")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


GOOD = {"a": entry(0, 8), "b": entry(8, 16)}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (GOOD | {"b": entry(4, 12)}, "b  its bytes overlap those of a"),
        (GOOD | {"b": entry(12, 20)}, "b  4 bytes between a and it belong to nothing"),
        (GOOD | {"b": entry(8, 2**62)}, "the tensors end|its tensors end"),
        (GOOD | {"b": entry(8, 24)}, "its tensors end at byte"),
        ({"a": entry(0, 8)}, "8 bytes after the last tensor"),
        (GOOD | {"b": entry(16, 8, [2])}, "needs 8 bytes, data_offsets .* span -8"),
        (GOOD | {"b": entry(8, 16, [3])}, "needs 12 bytes"),
        (GOOD | {"b": entry(8, 16, [2.0])}, "shape should be"),
        (GOOD | {"b": entry(8, 16, [True, 2])}, "shape should be"),
        (GOOD | {"b": entry(8, 16, [-2])}, "shape should be"),
        (GOOD | {"b": entry(8, 16, [1] * 65)}, "shape should be"),
        (GOOD | {"b": entry(8, 8, [0, 2**62, 2**62])}, "beyond any memory"),
        (GOOD | {"b": entry(-8, 0, [2])}, "data_offsets should be"),
        (GOOD | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [8]}}, "data_offsets should be"),
        (GOOD | {"b": entry(8, 16, dtype="F4")}, "dtype 'F4' is not one of"),
        (GOOD | {"b": entry(8, 16, dtype=["F32"])}, "is not one of"),
        (GOOD | {"b": {"shape": [2]}}, "should have dtype, shape and data_offsets"),
        (GOOD | {"b": 5}, "should have dtype"),
        (GOOD | {"__metadata__": {"a": 1}}, "should map text to text"),
        (GOOD | {"__metadata__": []}, "should map text to text"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (b"[1, 2]", "JSON, but not an object"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' * 100_000, "not valid JSON"),
        (b"{nonsense}", "not valid JSON"),
        (b"\xff\xfe{}", "header"),
        (b"{" + b'"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_a_damaged_safetensors_header_is_an_error_that_says_what_is_wrong(tmp_path, header, said):
    path = raw_safetensors(tmp_path, header, bytes(16))
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(path)


def test_all_problems_of_a_header_are_listed(tmp_path):
    path = raw_safetensors(tmp_path, {"a": entry(0, 8, [3]), "b": entry(8, 16, [4])}, bytes(16))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert [problem[0] for problem in caught.value.problems] == ["a", "b"]


def test_a_safetensors_file_without_tensors_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="holds no tensors"):
        open_checkpoint(raw_safetensors(tmp_path, {}))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("cut", [10, 20, 60, 0.5, -5])
def test_a_truncated_torch_file_is_an_error_wherever_it_is_cut(tmp_path, zipped, cut):
    path = saved(tmp_path, {"w": torch.ones(300)}, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut) if isinstance(cut, float) else cut])
    with pytest.raises(CheckpointError, match="cut off|no checkpoint"):
        open_checkpoint(path)


def rezip(path, change=lambda name, data: data, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(name, change(name, data))
    return path


def test_a_torch_file_that_claims_more_values_than_it_has_is_an_error(tmp_path):
    path = saved(tmp_path, {"w": torch.ones(300)})

    def claim(name, data):  # 300 becomes 2³¹ − 1 in the pickle
        return data.replace(b"M\x2c\x01", b"J\xff\xff\xff\x7f")

    with pytest.raises(CheckpointError, match="damaged or cut off"):
        open_checkpoint(rezip(path, claim))
    path = saved(tmp_path, {"w": torch.ones(300)}, _use_new_zipfile_serialization=False)
    path.write_bytes(claim("", path.read_bytes()))
    with pytest.raises(CheckpointError, match="damaged or cut off"):
        open_checkpoint(path)


def test_values_that_no_tensor_takes_have_to_be_there_too(tmp_path):
    """A storage of 300 numbers, of which a tensor is the first 100, and 250 are left."""
    path = saved(tmp_path, {"w": torch.ones(300)[:100]})
    assert same(open_checkpoint(path), {"w": torch.ones(100)})
    with pytest.raises(CheckpointError, match="damaged or cut off"):
        open_checkpoint(rezip(path, lambda name, data: data[:1000] if name.endswith("/data/0") else data))


def test_a_tensor_that_repeats_one_value_without_end_is_an_error(tmp_path):
    assert same(open_checkpoint(saved(tmp_path, {"w": torch.ones(1).expand(10)})), {"w": torch.ones(10)})
    with pytest.raises(CheckpointError, match="cannot be used") as caught:
        open_checkpoint(saved(tmp_path, {"w": torch.ones(1).expand(2**50)}))
    assert caught.value.problems == ("w  claims 4,503,599,627,370,496 bytes, far more than are stored",)


def test_a_shape_beyond_64_bits_is_an_error(tmp_path):
    def claim(name, data):  # (1, 1) becomes (2⁴⁰, 2⁴⁰) in the pickle
        return data.replace(b"K\x01K\x01\x86", (b"\x8a\x06" + bytes(5) + b"\x01") * 2 + b"\x86", 1)

    path = saved(tmp_path, {"w": torch.ones(1).as_strided((1, 1), (0, 0))})
    with pytest.raises(CheckpointError, match="damaged or cut off"):
        open_checkpoint(rezip(path, claim))


def test_a_compressed_torch_file_is_refused_rather_than_misread(tmp_path):
    path = rezip(saved(tmp_path, {"w": torch.ones(3000)}), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="records are compressed") as caught:
        open_checkpoint(path)
    assert "torch.save" in caught.value.hint


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"x/constants.pkl": b"", "x/data.pkl": b""}, "TorchScript"),
        ({"w.npy": b"", "b.npy": b""}, "a NumPy archive"),
        ({"readme.txt": b""}, "a zip file that torch.save did not write; it holds readme.txt"),
    ],
)
def test_other_zip_files_are_named(tmp_path, members, said):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(tmp_path / "a.pt")


def test_sparse_and_meta_tensors_are_refused(tmp_path):
    content = {"s": torch.eye(3).to_sparse(), "m": torch.empty(3, device="meta"), "w": torch.ones(2)}
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(saved(tmp_path, content))
    assert [problem.split()[0] for problem in caught.value.problems] == ["s", "m"]


# Values


def test_validation_accepts_finite_weights_and_integer_buffers():
    extra = {"position_ids": torch.arange(4)[None], "attn.bias": torch.ones(2, 2, dtype=torch.bool)}
    extra |= {
        "count": torch.tensor(3, dtype=torch.uint8),
        "f8.weight": torch.ones(2, 2).to(torch.float8_e4m3fn),
    }
    validate(WEIGHTS | extra | {"empty": torch.empty(0, 3), "scalar": torch.tensor(1.0)})


def test_validation_lists_every_bad_tensor_with_count_and_first_position():
    bad = torch.zeros(3, 4)
    bad[1, 2] = bad[2, 0] = float("nan")
    bad[2, 3] = float("-inf")
    half = torch.zeros(5, dtype=torch.bfloat16)
    half[4] = float("inf")
    turned = torch.zeros(4, 3).T
    turned[2, 1] = float("nan")
    eight = torch.full((2,), float("nan")).to(torch.float8_e5m2)
    tensors = {"a": bad, "fine": torch.ones(2), "b": half, "turned": turned, "eight": eight}
    tensors["scalar"] = torch.tensor(float("nan"))
    with pytest.raises(CheckpointError, match="^x.pt cannot be used") as caught:
        validate(tensors, name="x.pt")
    assert caught.value.problems == (
        "a  2 NaN and 1 infinite of 12 values, first at [1, 2]",
        "b  1 infinite of 5 values, first at [4]",
        "turned  1 NaN of 12 values, first at [2, 1]",
        "eight  2 NaN of 2 values, first at [0]",
        "scalar  1 NaN of 1 values, first at []",
    )
    assert "earlier checkpoint" in caught.value.hint


def test_validation_finds_the_first_position_across_chunks(monkeypatch):
    monkeypatch.setattr(tensors_module.chunks, "__defaults__", (16,))
    for tensor in (torch.zeros(5, 6), torch.zeros(6, 5).T, torch.zeros(5, 12)[:, ::2]):
        tensor[2, 4] = tensor[4, 4] = float("inf")
        tensor[3, 4] = tensor[4, 0] = float("nan")
        with pytest.raises(CheckpointError) as caught:
            validate({"w": tensor})
        assert caught.value.problems == ("w  2 NaN and 2 infinite of 30 values, first at [2, 4]",)


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("w", torch.zeros(2, dtype=torch.complex64), "complex"),
        ("table", torch.zeros(2, 2, dtype=torch.int8), "looks quantised"),
        ("table", torch.zeros(2, 2, dtype=torch.uint8), "looks quantised"),
        ("fc.weight", torch.zeros(2, 2, dtype=torch.int64), "an integer weight"),
        ("fc.qweight", torch.zeros(2, 2, dtype=torch.int32), "an integer weight"),
        ("fc.bias", torch.zeros(2, dtype=torch.int32), "an integer weight"),
    ],
)
def test_validation_refuses_weights_that_cannot_be_averaged(name, tensor, said):
    with pytest.raises(CheckpointError) as caught:
        validate({name: tensor})
    assert caught.value.problems[0].startswith(f"{name}  ") and said in caught.value.problems[0]
    assert "floating-point" in caught.value.hint


def test_quantised_tensors_of_torch_are_refused_in_files_and_in_memory(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but files of it are around
        content = {"w": torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)}
        path = saved(tmp_path, content)
    with pytest.raises(CheckpointError, match="quantised"):
        open_checkpoint(path)
    for refuses in (validate, digest):
        with pytest.raises(CheckpointError, match="quantised"):
            refuses(content)


def test_validation_calls_a_checkpoint_by_its_path(tmp_path):
    path = saved(tmp_path, {"w": torch.tensor([float("nan")])})
    with pytest.raises(CheckpointError, match=f"^{path} cannot be used"):
        validate(open_checkpoint(path))


def test_validation_asks_a_lazy_mapping_for_float_tensors_only_and_once():
    asked = []
    tensors = LazyTensors(
        {"w": (2,), "n": ()},
        {"w": torch.float32, "n": torch.int64},
        lambda name: asked.append(name) or torch.ones(2),
    )
    validate(tensors)
    assert asked == ["w"] and "w" in tensors and list(tensors) == ["w", "n"] and len(tensors) == 2
    with pytest.raises(KeyError):
        tensors["other"]


def test_a_checkpoint_is_looked_through_and_digested_in_one_reading(tmp_path, monkeypatch):
    content = {"b": torch.rand(300, 300), "a": torch.arange(9), "c": torch.rand(3).half()}
    found = open_checkpoint(saved(tmp_path, content))
    read, own = [], StoredFile.tensor
    monkeypatch.setattr(StoredFile, "tensor", lambda file, piece: read.append(piece) or own(file, piece))
    found.look()
    assert found.digest() == digest(content) and len(read) == 3
    content["b"][2, 1] = torch.nan
    with pytest.raises(CheckpointError, match="cannot be used"):
        open_checkpoint(saved(tmp_path, content)).look()


def test_one_thread_looks_through_values_beside_the_one_that_digests(monkeypatch):
    """With two threads: the second one would spin, and the digest wait for it."""
    finite, threads, before = validation.finite, [], torch.get_num_threads()
    monkeypatch.setattr(
        validation, "finite", lambda values: threads.append(torch.get_num_threads()) or finite(values)
    )
    torch.set_num_threads(2)
    try:
        validate({"w": torch.rand(9)}, digested=True)
        assert threads == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_digest_is_of_the_content_not_of_the_file(tmp_path):
    safetensors.torch.save_file(WEIGHTS, tmp_path / "a.safetensors")
    expected = digest(WEIGHTS)
    assert len(expected) == 64
    for path in (
        tmp_path / "a.safetensors",
        saved(tmp_path, WEIGHTS, "new.pt"),
        saved(
            tmp_path,
            {"state_dict": dict(reversed(WEIGHTS.items()))},
            "old.pt",
            _use_new_zipfile_serialization=False,
        ),
    ):
        assert open_checkpoint(path).digest() == expected


def test_the_digest_does_not_depend_on_memory_layout_or_chunks(monkeypatch):
    plain = torch.arange(30.0).reshape(5, 6)
    turned = plain.T.contiguous().T
    assert not turned.is_contiguous()
    expected = digest({"w": plain})
    assert digest({"w": turned}) == expected
    monkeypatch.setattr(tensors_module.chunks, "__defaults__", (16,))
    assert digest({"w": plain}) == digest({"w": turned}) == expected


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.tensor([1.0, 3.0])},
        {"v": torch.tensor([1.0, 2.0])},
        {"w": torch.tensor([[1.0, 2.0]])},
        {"w": torch.tensor([1.0, 2.0]).view(torch.int32)},
        {"w": torch.tensor([1.0]), "w2": torch.tensor([2.0])},
    ],
)
def test_the_digest_changes_with_value_name_shape_and_dtype(other):
    assert digest(other) != digest({"w": torch.tensor([1.0, 2.0])})


def test_the_digest_is_stable_over_versions():
    expected = "b05d6b6b547ad6d314189ebf7191ebb85d552b1cf056d444dc2188e0fa6691c9"
    assert digest({"w": torch.tensor([1.0, 2.0])}) == expected


@pytest.mark.parametrize(
    "layout", [lambda t: t, lambda t: t.permute(2, 0, 1), lambda t: t[:, ::2], lambda t: t.expand(3, 4, 6, 5)]
)
@pytest.mark.parametrize("size", [1, 4, 16, 100, 1 << 20])
def test_chunks_are_the_values_in_row_major_order(layout, size):
    tensor = layout(torch.arange(120.0).reshape(4, 6, 5))
    parts = list(chunks(tensor, size))
    for part in parts:  # a view, or a copy no larger than a chunk
        storage = part.untyped_storage()
        assert storage.data_ptr() == tensor.untyped_storage().data_ptr() or storage.nbytes() <= max(4, size)
    assert torch.equal(torch.cat(parts), tensor.flatten())
    assert all(part.ndim == 1 and part.is_contiguous() for part in parts)
    assert max(part.numel() for part in parts) <= max(1, size // 4)


def test_the_examples_in_docstrings_are_true():
    for module in (tensors_module, checkpoint_module):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2], ids=str)
def test_a_mask_of_minus_infinity_is_no_diverged_training(dtype):
    mask = torch.full((70, 70), float("-inf")).triu(1).to(dtype)
    validate({"attn_mask": mask, "flat": mask.reshape(-1)})
    for value in (float("inf"), float("nan"), 2.0):
        for at in ((0, 0), (3, 1), (69, 69)):
            wrong = mask.float()
            wrong[at] = value
            with pytest.raises(CheckpointError, match="cannot be used"):
                validate({"attn_mask": wrong.to(dtype)})


def _sharded(folder, tensors):
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", tensors, shard_size=40)
    return folder


def test_a_whole_model_beside_shards_of_its_name_is_one_of_two_and_each_can_be_named(tmp_path):
    new, old = ({"a": torch.full((8,), v), "b": torch.full((8,), v)} for v in (1.0, 2.0))
    both = _sharded(tmp_path / "both", new)
    index = both / "model.safetensors.index.json"
    assert torch.equal(open_checkpoint(both)["a"], new["a"])
    write_safetensors(tmp_path / "old.safetensors", old)
    (tmp_path / "old.safetensors").rename(both / "model.safetensors")
    with pytest.raises(CheckpointError, match="two models: model.safetensors, and the shards") as wrong:
        open_checkpoint(both)
    assert f"{both / 'model.safetensors'} or {index}" in wrong.value.hint
    assert torch.equal(open_checkpoint(index)["a"], new["a"])
    assert torch.equal(open_checkpoint(both / "model.safetensors")["a"], old["a"])


PARTS = {f"layers.{k}.weight": torch.full((3,), float(k)) for k in range(4)}
HALF, REST = dict([*PARTS.items()][:2]), dict([*PARTS.items()][2:])


TOWER = {name.replace("layers", "other"): tensor + 1 for name, tensor in HALF.items()}


@pytest.mark.parametrize("rest", [REST, TOWER])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00002-of-00002.bin", "model.pt"])
def test_half_a_model_in_another_format_is_never_left_out_in_silence(tmp_path, name, rest):
    write_safetensors(tmp_path / "model.safetensors", HALF)
    torch.save(rest, tmp_path / name)
    with pytest.raises(CheckpointError, match="two formats, with no tensor in common") as wrong:
        open_checkpoint(tmp_path)
    assert wrong.value.problems == ("model.safetensors", name)
    assert len(open_checkpoint(tmp_path / "model.safetensors").shapes) == 2


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("pytorch_model.bin", PARTS),  # the same, and what safetensors leave out: tied tensors
        ("pytorch_model.bin", {f"bert.{name}": tensor for name, tensor in HALF.items()}),
        ("model.bin", {name.removeprefix("layers."): tensor for name, tensor in HALF.items()}),
        ("model.bin", {name.replace("layers", "bert"): tensor.half() for name, tensor in HALF.items()}),
        ("learned_embeds.bin", {"<cat>": torch.ones(3)}),
        ("optimizer.bin", {"state": torch.ones(3)}),
        ("pytorch_model.bin", b"no pickle"),
    ],
)
def test_a_second_copy_or_what_is_no_model_beside_safetensors_hides_nothing(tmp_path, name, beside):
    write_safetensors(tmp_path / "model.safetensors", HALF)
    if isinstance(beside, bytes):
        (tmp_path / name).write_bytes(beside)
    else:
        torch.save(beside, tmp_path / name)
    assert open_checkpoint(tmp_path).shapes.keys() == HALF.keys()


def test_a_link_that_leads_nowhere_is_called_one(tmp_path):
    """As a cache leaves them whose contents were cleared."""
    folder = _sharded(tmp_path / "cached", {"a": torch.ones(8), "b": torch.ones(8)})
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.unlink()
    shard.symlink_to("../blobs/0")
    alone = tmp_path / "snapshot"
    alone.mkdir()
    (alone / "model.safetensors").symlink_to("../blobs/1")
    with pytest.raises(CheckpointError) as wrong:
        open_checkpoint(folder)
    assert wrong.value.problems == (f"{shard.name}  is a link that leads nowhere",)
    with pytest.raises(CheckpointError, match="holds links to weights that are not there") as wrong:
        open_checkpoint(alone)
    assert wrong.value.problems == ("model.safetensors  leads to ../blobs/1",)
    with pytest.raises(CheckpointError, match="is a link to ../blobs/1, which is not there"):
        open_checkpoint(alone / "model.safetensors")
