"""Writing: complete or not at all, the same bytes every time, and readable by others."""

import collections
import contextlib
import errno
import json
import os
import resource
import stat
import time
import weakref

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from rebasin_cli.checkpoints import destination, disk, tensor_writer, validation, writer
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.destination import check_output
from rebasin_cli.checkpoints.disk import recover
from rebasin_cli.checkpoints.safetensors_format import SafetensorsFile
from rebasin_cli.checkpoints.tensors import CHUNK, LazyTensors
from rebasin_cli.checkpoints.units import parse_dtype
from rebasin_cli.checkpoints.validation import digest
from rebasin_cli.checkpoints.writer import (
    write_distributed,
    write_safetensors,
    write_text_atomic,
)
from rebasin_cli.errors import CheckpointError, OutputExists, ResourceError, UsageError
from rebasin_cli.runtime import files
from rebasin_cli.runtime.sizes import parse_size

DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
DTYPES += ["int64", "int32", "int16", "int8", "uint8", "bool"]

WEIGHTS = {
    "fc.weight": torch.arange(12.0).reshape(3, 4),
    "fc.bias": torch.ones(3),
    "bn.num_batches_tracked": torch.tensor(7),
}
PROVENANCE = {"rebasin.seed": "1", "rebasin.method": "wm", "ä": "ö ∀"}


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


# Files that others can read


def test_every_dtype_is_read_back_by_the_library(tmp_path):
    tensors = {dtype: torch.tensor([[1.0, 0.0], [1.0, 1.0]]).to(getattr(torch, dtype)) for dtype in DTYPES}
    tensors |= {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "one": torch.ones(1, dtype=torch.uint8),
    }
    path = tmp_path / "out.safetensors"
    assert write_safetensors(path, tensors, metadata=PROVENANCE) == [path]
    loaded = safetensors.torch.load_file(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name].float(), tensor.float())
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt", **PROVENANCE}
        assert torch.equal(file.get_tensor("float32"), tensors["float32"])
    checkpoint = open_checkpoint(path)
    assert checkpoint.metadata == {"format": "pt", **PROVENANCE}
    assert all(torch.equal(checkpoint[name].float(), tensor.float()) for name, tensor in tensors.items())


def test_the_file_is_byte_for_byte_what_the_library_writes(tmp_path):
    write_safetensors(tmp_path / "ours.safetensors", WEIGHTS)
    safetensors.torch.save_file(WEIGHTS, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_the_same_content_gives_the_same_bytes_in_any_order(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", WEIGHTS, metadata=PROVENANCE)
    backwards, metadata = dict(reversed(WEIGHTS.items())), dict(reversed(PROVENANCE.items()))
    write_safetensors(tmp_path / "b.safetensors", backwards, metadata=metadata)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_every_tensor_is_aligned_to_its_dtype(tmp_path):
    tensors = {"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(3), "c": torch.ones(1).half()}
    write_safetensors(tmp_path / "out.safetensors", tensors, metadata={"odd": "x"})
    data = (tmp_path / "out.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0
    for name, tensor in tensors.items():
        assert header[name]["data_offsets"][0] % tensor.element_size() == 0


def test_views_and_tied_tensors_are_written_as_separate_copies(tmp_path, monkeypatch):
    monkeypatch.setattr("rebasin_cli.checkpoints.tensors.chunks.__defaults__", (16,))
    shared = torch.arange(20.0).reshape(4, 5)
    tensors = {
        "embed": shared,
        "head": shared,
        "turned": shared.T,
        "part": shared[1:, ::2],
        "wide": shared[0].expand(3, 5),
    }
    tensors["parameter"] = torch.nn.Parameter(torch.ones(2))
    write_safetensors(tmp_path / "out.safetensors", tensors)
    loaded = safetensors.torch.load_file(tmp_path / "out.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_a_metadata_value_that_is_no_unicode_is_escaped(tmp_path):
    write_safetensors(tmp_path / "out.safetensors", WEIGHTS, metadata={"file": os.fsdecode(b"\xff.pt")})
    assert open_checkpoint(tmp_path / "out.safetensors").metadata["file"] == "\\udcff.pt"
    with pytest.raises(TypeError):
        write_safetensors(tmp_path / "other.safetensors", WEIGHTS, metadata={"seed": 1})


def test_a_checkpoint_is_copied_without_holding_it(tmp_path):
    torch.save({"state_dict": WEIGHTS}, tmp_path / "a.pt")
    write_safetensors(tmp_path / "b.safetensors", open_checkpoint(tmp_path / "a.pt"))
    assert open_checkpoint(tmp_path / "b.safetensors").digest() == open_checkpoint(tmp_path / "a.pt").digest()


def test_lazy_tensors_are_made_once_and_one_is_gone_before_the_next(tmp_path):
    alive, made = set(), []

    def get(name):
        assert not alive
        values = np.ones(1000, dtype=np.float32)
        alive.add(name)
        made.append(name)
        weakref.finalize(values, alive.discard, name)  # when no tensor uses this memory any more
        return torch.from_numpy(values)

    names = [f"w{number}" for number in range(5)]
    tensors = LazyTensors(dict.fromkeys(names, (1000,)), dict.fromkeys(names, torch.float32), get)
    write_safetensors(tmp_path / "out.safetensors", tensors)
    assert made == names


def test_a_lazy_tensor_with_rows_is_written_and_digested_without_making_the_whole(tmp_path):
    whole, sizes = torch.arange(float(CHUNK // 2 + 64)).reshape(-1, 64), []  # two chunks and a row

    def get(name):
        raise AssertionError("the whole tensor should not be made")

    def rows(name, start, stop):
        sizes.append(whole[start:stop].nbytes)
        return whole[start:stop]

    tensors = LazyTensors({"w": tuple(whole.shape)}, {"w": whole.dtype}, get, rows)
    write_safetensors(tmp_path / "out.safetensors", tensors)
    assert sum(sizes) == whole.nbytes and max(sizes) <= CHUNK
    assert torch.equal(open_checkpoint(tmp_path / "out.safetensors")["w"], whole)
    assert digest(tensors) == digest({"w": whole})


def test_a_lazy_tensor_without_rows_is_made_once_for_all_its_parts(tmp_path):
    whole, made = torch.arange(float(CHUNK // 2)).reshape(-1, 64), []
    tensors = LazyTensors(
        {"w": tuple(whole.shape)}, {"w": whole.dtype}, lambda name: made.append(name) or whole
    )
    write_safetensors(tmp_path / "out.safetensors", tensors)
    assert made == ["w"]


def test_a_lazy_tensor_of_another_precision_is_converted_to_the_planned_dtype(tmp_path):
    plan = LazyTensors(
        {"w": (2,)}, {"w": torch.bfloat16}, lambda _: torch.tensor([1.0, 1.0039], dtype=torch.float64)
    )
    write_safetensors(tmp_path / "out.safetensors", plan)
    loaded = safetensors.torch.load_file(tmp_path / "out.safetensors")["w"]
    assert torch.equal(loaded, torch.tensor([1.0, 1.0039]).bfloat16()) and loaded.dtype is torch.bfloat16


@pytest.mark.parametrize("made", [torch.ones(3), torch.ones(2, 1), torch.ones(2, dtype=torch.int64)])
def test_a_lazy_tensor_that_breaks_its_promise_leaves_nothing(tmp_path, made):
    with pytest.raises(ValueError, match="was announced"):
        write_safetensors(
            tmp_path / "out.safetensors", LazyTensors({"w": (2,)}, {"w": torch.float32}, lambda _: made)
        )
    assert listing(tmp_path) == []


# Output dtypes


MIXED = {
    "bn.num_batches_tracked": torch.tensor(7),  # wider than weights: it stands first in the file
    "a.weight": torch.arange(200_000.0).view(500, 400) / 4,
    "bn.weight": torch.ones(400),
    "half": torch.arange(5.0).half(),
    "z.count": torch.arange(3),
    "empty": torch.zeros(0, 3),
}


@pytest.mark.parametrize("given", [{}, {"out_dtype": torch.float16}])
def test_the_digest_is_told_while_tensors_are_written_in_another_order(tmp_path, given):
    told = []
    write_safetensors(tmp_path / "m.safetensors", MIXED, tell=told.append, **given)
    assert told == [open_checkpoint(tmp_path / "m.safetensors").digest()]


def test_what_waits_to_the_end_is_digested_too_however_large(tmp_path):
    told, late = [], {"a.weight": torch.ones(3), "z.table": torch.arange(validation.SMALL)}
    write_safetensors(tmp_path / "m.safetensors", late, tell=told.append)
    assert told == [open_checkpoint(tmp_path / "m.safetensors").digest()]


def test_a_digest_is_not_told_where_too_much_would_wait_or_files_are_several(tmp_path, monkeypatch):
    told = []
    write_safetensors(tmp_path / "m.safetensors", MIXED, tell=told.append, shard_size=500_000)
    monkeypatch.setattr(validation, "AHEAD", 8 + 24)
    write_safetensors(tmp_path / "enough.safetensors", MIXED, tell=told.append)
    assert len(told) == 1
    monkeypatch.setattr(validation, "AHEAD", 8 + 23)
    write_safetensors(tmp_path / "little.safetensors", MIXED, tell=told.append)
    assert len(told) == 1


def test_out_dtype_converts_floating_point_only(tmp_path):
    tensors = WEIGHTS | {"mask": torch.ones(2, dtype=torch.bool), "wide": torch.ones(2, dtype=torch.float64)}
    write_safetensors(tmp_path / "out.safetensors", tensors, out_dtype=torch.bfloat16)
    checkpoint = open_checkpoint(tmp_path / "out.safetensors")
    kept = {"bn.num_batches_tracked": torch.int64, "mask": torch.bool}
    assert checkpoint.dtypes == {name: kept.get(name, torch.bfloat16) for name in checkpoint}
    assert torch.equal(checkpoint["fc.weight"], WEIGHTS["fc.weight"].bfloat16())


@pytest.mark.parametrize(
    ("dtype", "value"), [("float16", 70000.0), ("float8_e4m3fn", -500.0), ("bfloat16", 3.4e38)]
)
def test_a_value_beyond_the_output_dtype_is_an_error_not_an_infinity(tmp_path, dtype, value):
    tensors = {"w": torch.tensor([1.0, float("inf"), value])}
    with pytest.raises(UsageError, match="w holds .* beyond") as caught:
        write_safetensors(tmp_path / "out.safetensors", tensors, out_dtype=getattr(torch, dtype))
    assert "--out-dtype" in caught.value.hint and listing(tmp_path) == []


def test_infinities_and_nan_stay_what_they_are_in_another_dtype(tmp_path):
    values = torch.tensor([float("inf"), float("-inf"), float("nan")])
    write_safetensors(tmp_path / "out.safetensors", {"w": values}, out_dtype=torch.float16)
    loaded = safetensors.torch.load_file(tmp_path / "out.safetensors")["w"]
    assert torch.equal(loaded[:2].float(), values[:2]) and loaded[2].isnan()


def test_float8_can_be_narrowed_and_widened(tmp_path):
    eight = torch.tensor([1.0, 57344.0]).to(torch.float8_e5m2)
    write_safetensors(tmp_path / "a.safetensors", {"w": eight}, out_dtype=torch.float32)
    assert safetensors.torch.load_file(tmp_path / "a.safetensors")["w"].tolist() == [1.0, 57344.0]
    with pytest.raises(UsageError, match="57344"):
        write_safetensors(tmp_path / "b.safetensors", {"w": eight}, out_dtype=torch.float8_e4m3fn)


def test_tensors_that_the_format_cannot_hold_are_all_named(tmp_path):
    with pytest.raises(UsageError) as caught:
        write_safetensors(
            tmp_path / "out.safetensors",
            {"z": torch.ones(1, dtype=torch.complex128), "__metadata__": torch.ones(1), "w": torch.ones(1)},
        )
    assert [problem.split()[0] for problem in caught.value.problems] == ["z", "__metadata__"]
    assert listing(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("bf16", torch.bfloat16),
        ("torch.float32", torch.float32),
        (" FP16", torch.float16),
        ("half", torch.float16),
        ("double", torch.float64),
        ("float8_e5m2", torch.float8_e5m2),
    ],
)
def test_dtypes_are_parsed_by_their_usual_names(text, dtype):
    assert parse_dtype(text) is dtype


def test_an_unknown_dtype_is_answered_with_near_ones():
    with pytest.raises(UsageError, match="unknown dtype 'bfloat61'") as caught:
        parse_dtype("bfloat61")
    assert "Did you mean bfloat16" in caught.value.hint
    with pytest.raises(UsageError, match="unknown dtype 'int64'"):
        parse_dtype("int64")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2 * 10**9),
        ("2GiB", 2 * 2**30),
        ("1.5 MB", 1_500_000),
        ("500k", 500_000),
        ("7", 7),
        ("1tb", 10**12),
        ("10 b", 10),
    ],
)
def test_sizes_are_parsed_with_their_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-2GB", "0", "0.1", "2 apples", "2G B", "1e9", "nan", "2GBB"])
def test_what_is_no_size_is_a_usage_error(text):
    with pytest.raises(UsageError, match="is not a size") as caught:
        parse_size(text)
    assert "2GB" in caught.value.hint


# Shards

SIX = {f"layers.{number}.weight": torch.full((10,), float(number)) for number in range(6)}  # 40 bytes each


def test_shards_are_named_and_indexed_as_hugging_face_does(tmp_path):
    files = write_safetensors(tmp_path / "out.safetensors", SIX, metadata=PROVENANCE, shard_size=100)
    names = [f"out-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    assert [file.name for file in files] == [*names, "out.safetensors.index.json"]
    assert listing(tmp_path) == sorted([*names, "out.safetensors.index.json"])
    index = json.loads((tmp_path / "out.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 240}
    assert index["weight_map"] == {name: names[number // 2] for number, name in enumerate(SIX)}
    for name in names:
        assert len(safetensors.torch.load_file(tmp_path / name)) == 2
    for path in (tmp_path, tmp_path / "out.safetensors.index.json"):
        checkpoint = open_checkpoint(path)
        assert checkpoint.metadata == {"format": "pt", **PROVENANCE}
        assert all(torch.equal(checkpoint[name], SIX[name]) for name in SIX)


def test_shards_are_byte_identical_when_repeated(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_safetensors(tmp_path / folder / "out.safetensors", SIX, metadata=PROVENANCE, shard_size=100)
    for name in listing(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_tensor_larger_than_a_shard_gets_its_own(tmp_path):
    tensors = {"a": torch.ones(1), "b": torch.ones(100), "c": torch.ones(1), "d": torch.ones(1)}
    files = write_safetensors(tmp_path / "out.safetensors", tensors, shard_size=8)
    assert [list(SafetensorsFile(file).entries) for file in files[:-1]] == [["a"], ["b"], ["c", "d"]]
    files = write_safetensors(
        tmp_path / "first.safetensors", {"a": torch.ones(100), "b": torch.ones(1)}, shard_size=8
    )
    assert [list(SafetensorsFile(file).entries) for file in files[:-1]] == [["a"], ["b"]]


def test_what_fits_in_one_shard_is_one_plain_file(tmp_path):
    assert write_safetensors(tmp_path / "out.safetensors", SIX, shard_size=240) == [
        tmp_path / "out.safetensors"
    ]
    assert listing(tmp_path) == ["out.safetensors"]


def test_shard_sizes_are_those_of_the_output_dtype(tmp_path):
    files = write_safetensors(tmp_path / "out.safetensors", SIX, shard_size=60, out_dtype=torch.float16)
    assert len(files) == 3  # two shards of three tensors of 20 bytes, and the index


@pytest.mark.parametrize(
    "there", ["out.safetensors", "out.safetensors.index.json", "out-00001-of-00007.safetensors"]
)
@pytest.mark.parametrize("shard_size", [None, 100])
def test_an_earlier_output_of_either_form_is_not_shadowed_without_force(tmp_path, there, shard_size):
    (tmp_path / there).write_text("old")
    with pytest.raises(OutputExists, match=there):
        check_output(tmp_path / "out.safetensors")
    with pytest.raises(OutputExists, match=there):
        write_safetensors(tmp_path / "out.safetensors", SIX, shard_size=shard_size)
    assert listing(tmp_path) == [there]
    files = write_safetensors(tmp_path / "out.safetensors", SIX, shard_size=shard_size, force=True)
    assert listing(tmp_path) == sorted(file.name for file in files)
    assert open_checkpoint(tmp_path).digest() == digest(SIX)


NEGATED = {name: -tensor - 1 for name, tensor in SIX.items()}


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt])
@pytest.mark.parametrize(("before", "after"), [(None, 100), (100, None), (100, 100), (100, 60)])
@pytest.mark.parametrize("late", [False, True])
def test_an_older_output_is_there_again_if_renaming_fails(
    tmp_path, monkeypatch, failure, before, after, late
):
    path, replace = tmp_path / "out.safetensors", os.replace

    def contents():
        return {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    write_safetensors(path, SIX, metadata={"made": "before"}, shard_size=before)
    old = contents()
    for fails in range(1, 30):
        calls = iter(range(1, 100))

        def failing(source, target, fails=fails, calls=calls):
            number = next(calls)
            if late:
                replace(source, target)
            if number == fails:
                raise failure
            if not late:
                replace(source, target)

        with monkeypatch.context() as patch, contextlib.suppress(ResourceError, KeyboardInterrupt):
            patch.setattr(writer.os, "replace", failing)
            write_safetensors(path, SIX, shard_size=after, force=True)
            break
        assert contents() == old
    assert fails > 3 and not any(name.endswith(".tmp") for name in listing(tmp_path))
    assert open_checkpoint(tmp_path).metadata == {"format": "pt"}


@pytest.mark.parametrize("fails", [1, 2, 3, 4, 5])
def test_shards_appear_all_or_not_at_all(tmp_path, monkeypatch, fails):
    calls, replace = [], os.replace

    def failing(source, target):
        calls.append(str(target))
        if len(calls) == fails:
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(writer.os, "replace", failing)
    with pytest.raises(ResourceError, match="Input/output error"):
        write_safetensors(tmp_path / "out.safetensors", SIX, shard_size=100)
    assert listing(tmp_path) == []
    journal, *names = [target for target in calls if not target.endswith((".undo", ".tmp"))]
    assert journal.endswith(".redo") and names == sorted(names)  # the index comes last


# All or nothing


@pytest.mark.parametrize(
    "failure", [KeyboardInterrupt, RuntimeError, OSError(errno.ENOENT, "an input is gone")]
)
@pytest.mark.parametrize("shard_size", [None, 100])
@pytest.mark.parametrize("old", [None, b"old"])
def test_an_exception_leaves_the_folder_as_it_was(tmp_path, failure, shard_size, old):
    path = tmp_path / "out.safetensors"
    if old:
        path.write_bytes(old)

    def get(name):
        if name == "layers.4.weight":
            raise failure
        return SIX[name]

    lazy = LazyTensors({name: (10,) for name in SIX}, dict.fromkeys(SIX, torch.float32), get)
    with pytest.raises(
        failure if isinstance(failure, type) else OSError
    ):  # an input's failure is not the disk's
        write_safetensors(path, lazy, shard_size=shard_size, force=True)
    assert listing(tmp_path) == (["out.safetensors"] if old else [])
    assert not old or path.read_bytes() == old


def test_the_output_has_no_name_until_it_is_complete(tmp_path):
    seen = []

    def get(name):
        seen.append(listing(tmp_path))
        return SIX[name]

    lazy = LazyTensors({name: (10,) for name in SIX}, dict.fromkeys(SIX, torch.float32), get)
    write_safetensors(tmp_path / "out.safetensors", lazy)
    assert all(len(names) == 2 and all(name.startswith(".rebasin-") for name in names) for names in seen)
    assert listing(tmp_path) == ["out.safetensors"]


def test_data_reach_the_disk_before_the_name_does(tmp_path, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(writer.os, "fsync", lambda number: (events.append("fsync"), fsync(number)))
    monkeypatch.setattr(writer.os, "replace", lambda *names: (events.append("replace"), replace(*names)))
    write_safetensors(tmp_path / "out.safetensors", WEIGHTS)
    assert events == ["fsync", "replace", "fsync"]  # the file, its name, the folder


@contextlib.contextmanager
def files_of_at_most(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [100, 8192, 100_000])
def test_a_disk_that_refuses_more_bytes_leaves_nothing(tmp_path, size):
    with files_of_at_most(size), pytest.raises(ResourceError, match="cannot be written: File too large"):
        write_safetensors(tmp_path / "out.safetensors", {"a": torch.ones(20_000), "b": torch.ones(20_000)})
    assert listing(tmp_path) == []


@pytest.mark.parametrize("size", [100, 8192, 100_000])
def test_so_does_one_that_refuses_a_folder_of_dcp(tmp_path, size):
    tensors = {"a": torch.ones(20_000), "b": torch.ones(20_000)}
    with files_of_at_most(size), pytest.raises(ResourceError, match="cannot be written: File too large"):
        write_distributed(tmp_path / ".metadata", tensors)
    assert listing(tmp_path) == []


def test_what_is_added_to_a_file_is_added_whole_or_not_at_all(tmp_path):
    summary = tmp_path / "summary.md"
    for before in (b"", b"of another step\n" * 4):
        if before:
            summary.write_bytes(before)
        with files_of_at_most(100), pytest.raises(OSError, match="too large"):
            files.append(summary, b"x" * 200)
        assert listing(tmp_path) == (["summary.md"] if before else [])
    assert summary.read_bytes() == before
    files.append(summary, b"x" * 200)
    assert summary.read_bytes() == before + b"x" * 200


def test_a_disk_that_refuses_the_index_leaves_no_shard(tmp_path):
    tensors = {f"w{number}": torch.ones(1) for number in range(100)}
    path = tmp_path / f"{'long' * 50}.safetensors"  # which the index says for every tensor
    with files_of_at_most(9_000), pytest.raises(ResourceError, match="cannot be written"):
        write_safetensors(path, tensors, shard_size=200)
    assert listing(tmp_path) == []
    assert write_safetensors(path, tensors, shard_size=200)[-1].stat().st_size > 9_000


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_a_resource_error_and_leaves_nothing(tmp_path, monkeypatch, call):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer.os, call, full)
    with pytest.raises(ResourceError, match="No space left on device") as caught:
        write_safetensors(tmp_path / "out.safetensors", WEIGHTS)
    assert "Free some space" in caught.value.hint and caught.value.exit_code == 5
    assert listing(tmp_path) == []


def test_too_little_free_space_is_found_before_a_value_is_computed(tmp_path, monkeypatch):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(destination.shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 239, 239))

    def get(name):
        raise AssertionError("no tensor should be asked for")

    lazy = LazyTensors({name: (10,) for name in SIX}, dict.fromkeys(SIX, torch.float32), get)
    with pytest.raises(ResourceError, match="239 bytes free, the output needs 240"):
        write_safetensors(tmp_path / "out.safetensors", lazy)
    assert listing(tmp_path) == []
    # a disk that does not tell
    monkeypatch.setattr(destination.shutil, "disk_usage", lambda _: usage(0, 0, 0))
    write_safetensors(tmp_path / "out.safetensors", SIX)


@pytest.mark.parametrize("turned", [False, True])
def test_conversion_and_copies_need_memory_for_a_chunk_only(tmp_path, monkeypatch, turned):
    sizes, convert = [], tensor_writer._converted

    def recorded(chunk, dtype, name):
        sizes.append(chunk.nbytes)
        return convert(chunk, dtype, name)

    monkeypatch.setattr(tensor_writer, "_converted", recorded)
    tensor = torch.zeros(CHUNK * 3 // 8).reshape(1 << 11, -1)  # one chunk and a half
    write_safetensors(
        tmp_path / "out.safetensors", {"w": tensor.T if turned else tensor}, out_dtype=torch.float16
    )
    assert sum(sizes) == tensor.nbytes and max(sizes) <= CHUNK


# Asked before the work begins


def test_an_existing_output_is_refused_without_force(tmp_path):
    path = tmp_path / "out.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(OutputExists, match="exists") as caught:
        check_output(path)
    assert "--force" in caught.value.hint and caught.value.exit_code == 2
    with pytest.raises(OutputExists):
        write_safetensors(path, WEIGHTS)
    assert path.read_bytes() == b"old"
    assert check_output(path, force=True) == path
    assert path.read_bytes() == b"old" and listing(tmp_path) == ["out.safetensors"]
    write_safetensors(path, WEIGHTS, force=True)
    assert len(open_checkpoint(path)) == 3


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("out.pt", "out.safetensors"),
        ("out.ckpt", "out.safetensors"),
        ("out", "out.safetensors"),
        ("out.v2", "out.v2.safetensors"),
        ("safetensors", "safetensors.safetensors"),
    ],
)
def test_an_output_that_is_not_named_safetensors_is_refused(tmp_path, name, better):
    with pytest.raises(UsageError, match="written as safetensors") as caught:
        check_output(tmp_path / name)
    assert caught.value.hint == f"Use {tmp_path / better}."
    with pytest.raises(UsageError):
        write_safetensors(tmp_path / name, WEIGHTS)
    for torch_name, as_torch in (
        *(
            ("out.pth.tar", "out.pth"),
            ("out.pt.gz", "out.pt"),
            ("out.PTH", "out.pth"),
            ("out.Bin", "out.bin"),
        ),
        *(("out", "out.pth"), ("out.SafeTensors", "out.pth"), ("out.txt", "out.txt.pth")),
    ):
        with pytest.raises(UsageError, match="weights are written as safetensors, or as torch") as caught:
            check_output(tmp_path / torch_name, suffixes=(".safetensors", ".pt", ".pth", ".bin", ".ckpt"))
        bare = tmp_path / as_torch
        used = f"Use {bare.with_suffix('.safetensors')}, or {bare} for a file of torch.save ("
        if torch_name == "out.txt":
            used = f"Use {tmp_path / 'out.txt.safetensors'}, or {bare} for a file of torch.save ("
        assert caught.value.hint.startswith(used) and ".ckpt are, too)" in caught.value.hint
    assert listing(tmp_path) == []


def test_a_folder_is_no_output_even_with_force(tmp_path):
    (tmp_path / "out.safetensors").mkdir()
    for path in (tmp_path, tmp_path / "out.safetensors"):
        with pytest.raises(UsageError, match="is a folder"):
            check_output(path, force=True)


def test_a_device_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "out.safetensors")
    for path, text in ((tmp_path / "out.safetensors", False), ("/dev/null", True)):
        with pytest.raises(UsageError, match="not a regular file"):
            check_output(path, force=True, text=text)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_missing_folder_is_a_resource_error_that_says_how_to_make_it(tmp_path):
    with pytest.raises(ResourceError, match="no such folder") as caught:
        check_output(tmp_path / "runs" / "out.safetensors")
    assert caught.value.hint == f"Make it first: mkdir -p {tmp_path / 'runs'}" and caught.value.exit_code == 5
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="file is no folder"):
        check_output(tmp_path / "file" / "out.safetensors")


def test_a_folder_that_cannot_be_written_is_a_resource_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(writer.os, "open", refuse)
    with pytest.raises(ResourceError, match="Read-only file system") as caught:
        check_output(tmp_path / "out.safetensors")
    assert "can be written" in caught.value.hint


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that even root cannot write")
def test_a_folder_that_even_root_cannot_write_is_a_resource_error():
    with pytest.raises(ResourceError):
        check_output("/proc/self/out.safetensors")


def test_a_relative_path_is_returned_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [str(file) for file in write_safetensors("out.safetensors", WEIGHTS)] == ["out.safetensors"]
    assert listing(tmp_path) == ["out.safetensors"]


def test_no_link_is_followed_to_write_but_that_of_a_folder(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "latest.safetensors").symlink_to(tmp_path / "runs" / "1.safetensors")
    (tmp_path / "here").symlink_to("runs")
    with pytest.raises(UsageError, match="is a link, and none is followed"):
        write_safetensors(tmp_path / "latest.safetensors", WEIGHTS, force=True)
    write_safetensors(tmp_path / "here" / "2.safetensors", WEIGHTS)
    assert listing(tmp_path / "runs") == ["2.safetensors"]


def test_the_output_may_replace_its_own_input(tmp_path):
    path = tmp_path / "a.safetensors"
    write_safetensors(path, WEIGHTS)
    source = open_checkpoint(path)
    negated = LazyTensors(source.shapes, source.dtypes, lambda name: -source[name])
    write_safetensors(path, negated, force=True)
    assert torch.equal(open_checkpoint(path)["fc.weight"], -WEIGHTS["fc.weight"])
    with pytest.raises(CheckpointError, match="changed while it was read"):
        source["fc.weight"]


def test_the_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    write_safetensors(tmp_path / "out.safetensors", WEIGHTS)
    assert (tmp_path / "out.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


# Text


@pytest.mark.parametrize("content", ["größer\n", b"\x89PNG\r\n"])
def test_text_and_bytes_are_written_as_they_are(tmp_path, content):
    path = write_text_atomic(tmp_path / "report.md", content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    with pytest.raises(OutputExists):
        write_text_atomic(path, "new")
    write_text_atomic(path, "new", force=True)
    assert path.read_text() == "new" and listing(tmp_path) == ["report.md"]


def test_text_on_a_full_disk_leaves_the_old_text(tmp_path):
    (tmp_path / "report.json").write_text("old")
    with files_of_at_most(100), pytest.raises(ResourceError):
        write_text_atomic(tmp_path / "report.json", "x" * 1000, force=True)
    assert (tmp_path / "report.json").read_text() == "old" and listing(tmp_path) == ["report.json"]


def test_a_disk_that_fails_for_good_among_the_renames_is_settled_by_the_next_run(tmp_path, monkeypatch):
    path, replace = tmp_path / "out.safetensors", os.replace
    for working in range(1, 12):
        for file in tmp_path.iterdir():
            file.unlink()
        write_safetensors(path, SIX, metadata={"made": "before"}, shard_size=100)
        old = open_checkpoint(tmp_path).digest()
        calls = iter(range(1, 100))

        def failing(source, target, working=working, calls=calls):
            if next(calls) > working:
                raise OSError(errno.EIO, "Input/output error")
            replace(source, target)

        with monkeypatch.context() as patch, contextlib.suppress(ResourceError):
            patch.setattr(writer.os, "replace", failing)
            write_safetensors(path, NEGATED, shard_size=60, force=True)
            break
        recover(tmp_path)
        assert open_checkpoint(tmp_path).digest() in (old, digest(NEGATED))
        assert not [name for name in listing(tmp_path) if name.startswith(".")]
    assert working > 3


def journal(folder, kind, **told):
    path = folder / f".rebasin-{'0' * 16}.{kind}"
    path.write_text(json.dumps(told) if told else "")
    return path


@pytest.mark.parametrize(
    "told",
    [
        {"new": [["../x", "out"]], "old": []},
        {"new": [[f".rebasin-{'0' * 16}-0.tmp", "../out"]], "old": []},
        {"new": [[f".rebasin-{'0' * 16}-0.tmp", "/out"]], "old": []},
        {"new": [], "old": [["precious", "elsewhere"]]},
        {"new": [[f".rebasin-{'1' * 16}-0.tmp", "precious"]], "old": []},
        {"new": "x", "old": 7},
        {"old": []},
        {"new": [[1, 2, 3]], "old": []},
    ],
)
@pytest.mark.parametrize("kind", ["redo", "undo"])
def test_a_journal_names_nothing_but_files_of_its_own_folder(tmp_path, told, kind):
    """Somebody else may write into a shared folder."""
    (tmp_path / "precious").write_text("kept")
    made = journal(tmp_path, kind, **told)
    recover(tmp_path)
    assert (tmp_path / "precious").read_text() == "kept" and made.exists()


def test_files_of_other_users_and_links_are_left_alone(tmp_path, monkeypatch):
    (tmp_path / "precious").write_text("kept")
    (tmp_path / f".rebasin-{'0' * 16}.lock").symlink_to("precious")
    (tmp_path / f".rebasin-{'1' * 16}-0.tmp").write_text("theirs")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    recover(tmp_path)
    assert len(listing(tmp_path)) == 3 and (tmp_path / "precious").read_text() == "kept"


def test_who_tries_whether_a_folder_can_be_written_is_not_taken_for_killed(tmp_path, caplog):
    """Another job may tidy up at any moment."""
    caplog.set_level("INFO", "rebasin")
    patch, remove = pytest.MonkeyPatch(), disk.remove

    def tidied_first(files):
        patch.undo()
        assert len(listing(tmp_path)) == 1
        recover(tmp_path)
        remove(files)

    patch.setattr(disk, "remove", tidied_first)
    disk.probe(tmp_path)
    assert listing(tmp_path) == [] and caplog.messages == []


def test_what_versions_without_locks_left_goes_after_a_day(tmp_path):
    for name, age in ((".rebasin-0123456789ab.tmp", 100_000), (".rebasin-ba9876543210.tmp", 100)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    write_safetensors(tmp_path / "out.safetensors", WEIGHTS)
    assert listing(tmp_path) == [".rebasin-ba9876543210.tmp", "out.safetensors"]


def test_what_is_to_be_finite_is_looked_at_on_its_way(tmp_path):
    """By name, in every floating dtype; nothing stays behind."""
    path, nan, inf = tmp_path / "a.safetensors", float("nan"), float("inf")
    for values, told in (
        (torch.tensor([[1.0, nan], [inf, -inf]]), "1 NaN and 2 infinite of 4 values, first at [0, 1]"),
        (torch.tensor([0.0, inf]).half(), "1 infinite of 2 values, first at [1]"),
        (torch.tensor([nan]).to(torch.float8_e4m3fn), "1 NaN of 1 values, first at [0]"),
        (torch.tensor(nan).bfloat16(), "1 NaN of 1 values, first at []"),
        (torch.full((1 << 20, 2), 1.0).index_fill_(0, torch.tensor([1 << 19]), inf), "first at [524288, 0]"),
    ):
        for shards in (None, 4):
            with pytest.raises(CheckpointError, match="w would hold NaN or infinite") as caught:
                write_safetensors(path, {"v": torch.ones(2), "w": values}, finite={"w"}, shard_size=shards)
            assert told in caught.value.problems[0] and not list(tmp_path.iterdir())
    write_safetensors(path, {"v": torch.tensor([nan]), "n": torch.tensor([1])}, finite={"w", "n"})
    assert list(tmp_path.iterdir()) == [path]
