"""Folders of torch.distributed.checkpoint (DCP): every value as torch reads it, none of their code run."""

import os
import pickle
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as md

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_distributed
from rebasin_cli.errors import CheckpointError, OutputExists, RebasinError, UnsafeCheckpoint
from tests import processes

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore:torch.distributed is disabled")

WORKER = Path(__file__).with_name("distributed_worker.py")


def tensors():
    made = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.randn(7, 4, generator=made),
        "a.bias": torch.randn(7, generator=made).bfloat16(),
        "b.weight": torch.randn(6, 5, generator=made).t(),
        "c.weight": torch.randn(2, 3, 4, 4, generator=made).to(memory_format=torch.channels_last),
        "d.weight": torch.randn(4, 4, generator=made).to(torch.float8_e4m3fn),
        "part": torch.randn(10, generator=made)[2:5],
        "none.weight": torch.zeros(0, 3),
        "scale": torch.tensor(3.0),
        "num_batches_tracked": torch.tensor(5),
        "mask": torch.tensor([True, False]),
    }


def save(folder, state):
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def same(found, expected):
    """Whether all tensors are the same bit for bit, whole and by rows."""
    assert dict(found.shapes) == {name: tuple(tensor.shape) for name, tensor in expected.items()}
    for name, tensor in expected.items():
        bits = tensor.contiguous().reshape(-1).view(torch.uint8)
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].contiguous().reshape(-1).view(torch.uint8), bits), name
        if tensor.ndim:
            cuts = [0, len(tensor) // 3, len(tensor) // 2, len(tensor)]
            rows = [found.rows(name, *cut) for cut in zip(cuts, cuts[1:], strict=False)]
            joined = torch.cat([part.reshape(-1).view(torch.uint8) for part in rows])
            assert torch.equal(joined, bits), name


def cut(folder, state, chunks, files=2):
    """A folder as several ranks would write it, and its metadata.

    Of each tensor its chunks, (offsets, sizes), go to files by turns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listed, storage = {}, {}
    streams = [open(folder / f"__{rank}_0.distcp", "wb") for rank in range(files)]
    for name, tensor in state.items():
        its = chunks.get(name, [([0] * tensor.ndim, list(tensor.shape))])
        properties = md.TensorProperties.create_from_tensor(tensor)
        listed[name] = md.TensorStorageMetadata(
            properties, tensor.shape, [md.ChunkStorageMetadata(*map(torch.Size, part)) for part in its]
        )
        for number, (offsets, sizes) in enumerate(its):
            stream = streams[number % files]
            start = stream.tell()
            part = tensor[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
            torch.save(part.clone(), stream)
            info = filesystem._StorageInfo(f"__{number % files}_0.distcp", start, stream.tell() - start)
            storage[md.MetadataIndex(name, offsets, number)] = info
    for stream in streams:
        stream.close()
    made = md.Metadata(listed, storage_data=storage)
    write(folder, made)
    return made


def write(folder, metadata):
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def test_a_folder_is_read_as_torch_reads_it(tmp_path):
    state = tensors()
    save(tmp_path / "run", state)
    found = open_checkpoint(tmp_path / "run")
    assert found.format == "dcp" and not found.notes
    same(found, state)


@pytest.mark.parametrize(
    "chunks",
    [
        [([0, 0], [3, 4]), ([3, 0], [3, 4]), ([6, 0], [1, 4])],
        [([0, 0], [7, 1]), ([0, 1], [7, 3])],
        [([0, 0], [4, 4]), ([4, 0], [3, 2]), ([4, 2], [3, 2]), ([7, 0], [0, 4]), ([7, 0], [0, 4])],
        [([2, 0], [5, 3]), ([0, 0], [2, 3]), ([0, 3], [7, 1])],
    ],
    ids=["rows", "columns", "a grid with empty ranks", "no grid"],
)
def test_chunks_are_put_together(tmp_path, chunks):
    state = {"a.weight": tensors()["a.weight"], "a.bias": torch.ones(7)}
    cut(tmp_path / "run", state, {"a.weight": chunks})
    same(open_checkpoint(tmp_path / "run"), state)


NET = {"l.weight": torch.arange(6.0).reshape(2, 3), "l.bias": torch.ones(2)}
PARTS = {"model.l.weight": NET["l.weight"], "head.weight": torch.ones(2, 2)}
CALLED = {"model.l.weight": torch.ones(3), "net.l.weight": torch.ones(2, 2)}
ALIKE = {"model.l.weight": torch.ones(3), "net.l.weight": torch.zeros(3)}
MORE = {name: tensor + 1 for name, tensor in NET.items()}
OPTIMIZER = {"state": {"l.weight": {"exp_avg": torch.zeros(2, 3)}}, "param_groups": [{"lr": 0.1}]}
# What was saved, the key that is asked for, and the weights that are found.
LAYOUTS = {
    "a state dict": (NET, None, NET),
    "a model with its optimizer": ({"model": NET, "optimizer": OPTIMIZER}, None, NET),
    "an object of state": ({"app": {"model": NET, "optim": OPTIMIZER}, "step": 3}, None, NET),
    "the model's names at the top": ({**NET, "optimizer": OPTIMIZER, "train_state": [1]}, None, NET),
    "wrapped": ({"state_dict": {f"module._orig_mod.{name}": NET[name] for name in NET}}, None, NET),
    "a moving average beside it": ({"model": NET, "ema": MORE}, None, NET),
    "the moving average": ({"model": NET, "ema": MORE}, "ema", MORE),
    "a model with its schedule": ({"model": NET, "lr_scheduler": {"rates": torch.ones(2)}}, None, NET),
    "a part that is called model": (PARTS, None, PARTS),
    "parts that are called as folders of runs are": (CALLED, None, CALLED),
    "such parts of one size": (ALIKE, None, ALIKE),
    "one such part alone": ({"model.l.weight": NET["l.bias"]}, None, {"model.l.weight": NET["l.bias"]}),
    "states of layers": ({"model": {**NET, "l._extra_state": {"scale": torch.ones(2)}}}, None, NET),
}


@pytest.mark.parametrize("told", [True, False], ids=["", "names alone"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_are_found_among_what_was_saved(tmp_path, layout, told):
    state, key, expected = LAYOUTS[layout]
    save(tmp_path / "run", state)
    if not told:  # as planners do that flatten nothing
        if "_extra_state" in str(state) or "ema" in str(state):
            pytest.skip("names alone do not tell")
        metadata = dcp.FileSystemReader(tmp_path / "run").read_metadata()
        metadata.planner_data = None
        write(tmp_path / "run", metadata)
    same(open_checkpoint(tmp_path / "run", key=key), expected)


@pytest.mark.parametrize("below", ["pytorch_model_fsdp_0", "model", "distcp"])
def test_a_folder_below_is_found(tmp_path, below):
    save(tmp_path / "run" / below, NET)
    save(tmp_path / "run" / "optimizer_0", OPTIMIZER)
    same(open_checkpoint(tmp_path / "run"), NET)
    save(tmp_path / "run" / "pytorch_model_fsdp_1", NET)
    if below != "pytorch_model_fsdp_0":
        return
    with pytest.raises(CheckpointError, match="2 folders of torch") as refused:
        open_checkpoint(tmp_path / "run")
    assert "Name one of them" in refused.value.hint


def test_links_lead_no_farther_than_the_cache_of_a_hub(tmp_path):
    cache = tmp_path / "models--a--b"
    folder = save(cache / "snapshots" / "1a2b", NET)
    (cache / "blobs").mkdir()
    for path in [*folder.iterdir()]:
        path.rename(cache / "blobs" / path.name)
        path.symlink_to(f"../../blobs/{path.name}")
    same(open_checkpoint(folder), NET)
    items = (cache / "blobs" / "__0_0.distcp").rename(tmp_path / "outside.distcp")
    (cache / "blobs" / "__0_0.distcp").symlink_to(items)
    with pytest.raises(CheckpointError, match="leads out of the folder|does not hold"):
        open_checkpoint(folder)


def test_a_tensor_in_megatrons_flat_form_is_no_weight(tmp_path):
    metadata = cut(tmp_path / "run", {**NET, "flat": torch.ones(4)}, {})
    metadata.mcore_data = {"flat": {"nd_reformulated_orig_global_shape": (2, 2)}, "l.bias": {}}
    write(tmp_path / "run", metadata)
    same(open_checkpoint(tmp_path / "run"), NET)


def test_items_of_safetensors_are_read(tmp_path):
    state = {name: tensor.contiguous() for name, tensor in tensors().items() if tensor.numel()}
    writer = dcp.FileSystemWriter(
        tmp_path / "run", serialization_format=filesystem.SerializationFormat.SAFETENSORS
    )
    dcp.save(state, storage_writer=writer, no_dist=True)
    same(open_checkpoint(tmp_path / "run"), state)
    metadata = pickle.loads((tmp_path / "run" / ".metadata").read_bytes())
    (rows, columns), chunks = state["d.weight"].shape, metadata.state_dict_metadata["d.weight"].chunks
    (where,) = (key for key in metadata.storage_data if key.fqn == "d.weight")
    info, half = metadata.storage_data.pop(where), rows // 2
    assert rows == 2 * half
    sizes = torch.Size((half, columns))
    chunks[:] = [replace(chunks[0], offsets=torch.Size((k, 0)), sizes=sizes) for k in (0, half)]
    for k in (0, half):
        metadata.storage_data[replace(where, offset=torch.Size((k, 0)), index=None)] = info
    (tmp_path / "run" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError) as refused:
        open_checkpoint(tmp_path / "run")
    assert "has one name for several parts of d.weight" in str(refused.value)


def test_metadata_of_old_versions_is_read(tmp_path):
    metadata = cut(tmp_path / "run", NET, {})
    for name in ("planner_data", "storage_meta", "version"):
        vars(metadata).pop(name)
    written = pickle.dumps(metadata, protocol=2)
    now, old = (f"torch.distributed.{of}.metadata" for of in ("checkpoint", "_shard.sharded_tensor"))
    for name, then in (("TensorProperties",) * 2, ("_MEM_FORMAT_ENCODING", "MEM_FORMAT_ENCODING")):
        assert f"c{now}\n{name}\n".encode() in written
        written = written.replace(f"c{now}\n{name}\n".encode(), f"c{old}\n{then}\n".encode())
    (tmp_path / "run" / ".metadata").write_bytes(written)
    same(open_checkpoint(tmp_path / "run"), NET)


def test_a_file_that_changes_is_not_read_on(tmp_path):
    save(tmp_path / "run", NET)
    found = open_checkpoint(tmp_path / "run")
    os.utime(tmp_path / "run" / "__0_0.distcp", ns=(1, 1))
    with pytest.raises(CheckpointError, match="changed while it was read"):
        found["l.weight"]


def test_what_is_written_is_read_back_by_torch(tmp_path):
    state = {name: tensor.contiguous() for name, tensor in tensors().items()}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        told = []
        files = write_distributed(
            tmp_path / name / ".metadata",
            state if name == "one" else dict(reversed(state.items())),
            metadata={"a": "b"},
            tell=told.append,
        )
    assert {path.name for path in files} == {"__0_0.distcp", ".metadata", ".metadata.rebasin.json"}
    for path in files:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
    for name, values in (("net", NET), ("more", MORE)):  # of the same sizes
        (tmp_path / name).mkdir()
        write_distributed(tmp_path / name / ".metadata", values)
    assert len({(tmp_path / name / ".metadata").read_bytes() for name in ("net", "more")}) == 2
    found = open_checkpoint(tmp_path / "two")
    assert found.metadata == {"a": "b"} and told == [found.digest()]
    same(found, state)
    empty = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    dcp.load(empty, checkpoint_id=tmp_path / "two", no_dist=True)
    same(found, empty)


def test_an_earlier_folder_gives_way_whole(tmp_path):
    folder = tmp_path / "run"
    cut(folder, NET, {"l.weight": [([0, 0], [1, 3]), ([1, 0], [1, 3])]}, files=3)
    with pytest.raises(OutputExists):
        write_distributed(folder / ".metadata", MORE)
    same(open_checkpoint(folder), NET)
    with pytest.raises(CheckpointError, match="NaN"):
        write_distributed(
            folder / ".metadata", {"l.weight": torch.tensor([float("nan")])}, force=True, finite=["l.weight"]
        )
    same(open_checkpoint(folder), NET)
    write_distributed(folder / ".metadata", MORE, force=True)
    same(open_checkpoint(folder), MORE)
    assert sorted(os.listdir(folder)) == [".metadata", ".metadata.rebasin.json", "__0_0.distcp"]


# Folders that somebody made to harm


class Runs:
    """Its pickle makes a file."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def first(metadata, which=filesystem._StorageInfo):
    """The item of l.weight."""
    return next(info for index, info in metadata.storage_data.items() if index.fqn == "l.weight")


def changed(**fields):
    def change(folder, metadata):
        vars(first(metadata)).update(fields)

    return change


def chunks(*parts, size=None):
    def change(folder, metadata):
        its = metadata.state_dict_metadata["l.weight"]
        its.chunks = [md.ChunkStorageMetadata(offsets, sizes) for offsets, sizes in parts]
        its.size = torch.Size(size or its.size)
        info = first(metadata)
        for index in [index for index in metadata.storage_data if index.fqn == "l.weight"]:
            del metadata.storage_data[index]
        for offsets, _ in parts:
            if all(type(one) is int for one in offsets):
                metadata.storage_data[md.MetadataIndex("l.weight", offsets)] = info

    return change


def size(*value):
    def change(folder, metadata):
        metadata.state_dict_metadata["l.weight"].size = value

    return change


def bytes_of(change):
    def apply(folder, metadata):
        path = folder / ".metadata"
        path.write_bytes(change(path.read_bytes()))
        return True

    return apply


def item(write_item):
    """The item of l.weight alone in a file, as this writes it."""

    def change(folder, metadata):
        path = folder / "__9_0.distcp"
        with open(path, "wb") as file:
            write_item(file)
        vars(first(metadata)).update(relative_path=path.name, offset=0, length=path.stat().st_size)

    return change


def linked(target):
    def change(folder, metadata):
        (folder / "__0_0.distcp").rename(folder.parent / "outside.distcp")
        (folder / "__0_0.distcp").symlink_to(target)

    return change


def fifo(name):
    def change(folder, metadata):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        return True

    return change


def packed(file):
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10_000_000)


def twice(folder, metadata):
    items = metadata.storage_data
    items[md.MetadataIndex("l.weight", torch.Size([0, 0]))] = first(metadata)
    other = md.MetadataIndex("l.weightx", torch.Size([0, 0]))
    items[other] = first(metadata)
    written = pickle.dumps(metadata, protocol=2).replace(
        b"X\x09\x00\x00\x00l.weightx", b"X\x08\x00\x00\x00l.weight"
    )
    (folder / ".metadata").write_bytes(written)
    return True


def planner(value):
    def change(folder, metadata):
        metadata.planner_data = value

    return change


def in_metadata(folder, metadata):
    metadata.planner_data = Runs(folder.parent / "ran")


def in_key(folder, metadata):
    metadata.state_dict_metadata["x"] = Runs(folder.parent / "ran")


def in_index(folder, metadata):
    first(metadata).relative_path = Runs(folder.parent / "ran")


def in_item(folder, metadata):
    item(lambda file: torch.save(Runs(folder.parent / "ran"), file))(folder, metadata)


def raw_pickle(folder, metadata):
    item(lambda file: pickle.dump(Runs(folder.parent / "ran"), file))(folder, metadata)


def properties(value):
    def change(folder, metadata):
        metadata.state_dict_metadata["l.weight"].properties = value

    return change


def unnamed(folder, metadata):
    metadata.state_dict_metadata[3] = metadata.state_dict_metadata["l.weight"]


def shares(folder, metadata):
    vars(first(metadata)).update(offset=1)


def nowhere(folder, metadata):
    chunks(((0, 0), (1, 3)), ((1, 0), (1, 3)))(folder, metadata)
    index = next(index for index in metadata.storage_data if index.fqn == "l.weight")
    metadata.storage_data = {
        md.MetadataIndex("l.weight") if key == index else key: its
        for key, its in metadata.storage_data.items()
    }


W = NET["l.weight"]
HOSTILE = {
    "code in .metadata": (in_metadata, "wants to import posix.mkdir"),
    "code for a tensor": (in_key, "wants to import posix.mkdir"),
    "code for a path": (in_index, "wants to import posix.mkdir"),
    "code in an item": (in_item, "wants to import posix.mkdir"),
    "an item that is a pickle": (raw_pickle, "cut off or damaged"),
    "a path above": (changed(relative_path="../outside.distcp"), "no file of this folder"),
    "a path from the root": (changed(relative_path="/etc/passwd"), "no file of this folder"),
    "a path from the root, with suffix": (
        changed(relative_path="/tmp/x.distcp"),
        "no file of this folder",
    ),
    "a path with a backslash": (changed(relative_path="..\\x.distcp"), "no file of this folder"),
    "a path with a null": (changed(relative_path="x\0.distcp"), "no file of this folder"),
    "a path of another kind": (changed(relative_path="x.pt"), "no file of this folder"),
    "a path that is no text": (changed(relative_path=3), "no file of this folder"),
    "a path to nothing": (changed(relative_path="__7_0.distcp"), "is missing"),
    "a link that leads out": (linked("../outside.distcp"), "leads out of the folder"),
    "a link to a device": (linked("/dev/zero"), "leads out of the folder"),
    "a link to itself": (linked("__0_0.distcp"), "cannot be read"),
    "a pipe for items": (fifo("__0_0.distcp"), "its .metadata|cannot be read"),
    "a pipe for .metadata": (fifo(".metadata"), "its .metadata is missing"),
    "an offset that is negative": (changed(offset=-1), "lies at"),
    "an offset that is no number": (changed(offset=float("nan")), "lies at"),
    "an offset that is true": (changed(offset=True), "lies at"),
    "an offset beyond all files": (changed(offset=1 << 70), "lies at"),
    "an offset beyond the file": (changed(offset=1 << 40), "ends at byte"),
    "a length that is negative": (changed(length=-5), "lies at"),
    "a length beyond the file": (changed(length=1 << 40), "ends at byte"),
    "a length of nothing": (changed(length=0), "in an item of 0 bytes"),
    "items that share bytes": (shares, "share bytes"),
    "a transformed item": (changed(transform_descriptors=["zstd"]), "transformed"),
    "two items of one part": (twice, "two items are of the same part"),
    "chunks that overlap": (
        chunks(((0, 0), (2, 2)), ((0, 1), (2, 1))),
        "overlap",
    ),
    "chunks with a hole": (chunks(((0, 0), (1, 3))), "do not fill"),
    "a chunk that is twice there": (chunks(((0, 0), (2, 3)), ((0, 0), (2, 3))), "do not fill"),
    "two chunks, and one item that says nothing of its place": (nowhere, "lies in no file"),
    "a chunk beyond the shape": (chunks(((1, 0), (2, 3))), "reaches beyond"),
    "a chunk of other axes": (chunks(((0,), (2,))), "lies nowhere"),
    "a chunk of negative size": (chunks(((0, 0), (-2, -3))), "lies nowhere"),
    "a chunk without a place": (chunks(((0, float("nan")), (2, 3))), "lies nowhere"),
    "a shape of terabytes": (
        chunks(((0, 0), (1 << 40, 3)), size=(1 << 40, 3)),
        "in an item of",
    ),
    "a shape of a few kilobytes": (
        chunks(((0, 0), (300, 3)), size=(300, 3)),
        "in an item of",
    ),
    "a shape beyond memory": (
        chunks(size=(0, 1 << 50, 1 << 50)),
        "beyond any memory",
    ),
    "a shape that is negative": (size(-2, 3), "has no shape"),
    "a shape that is no shape": (size("2", 3), "has no shape"),
    "a shape of many axes": (size(*[1] * 100), "has no shape"),
    "an item of another shape": (item(lambda file: torch.save(W.t().clone(), file)), "and is torch.float32"),
    "an item of another dtype": (item(lambda file: torch.save(W.double(), file)), "and is torch.float64"),
    "an item that is a number": (item(lambda file: torch.save(3, file)), "and is no tensor"),
    "an item that is packed": (item(packed), "compressed"),
    "an item that is cut off": (item(lambda file: file.write(b"PK\x03\x04" + b"\0" * 90)), "does not end"),
    "an item without bytes": (item(lambda file: None), "in an item of 0 bytes"),
    "properties that are none": (properties("float32"), "has no dtype"),
    "a name that is no text": (unnamed, "a name is no text"),
    "keys that are none": (planner({"l.weight": (1.5,), "l.bias": ("b",)}), "keys that are none"),
    "keys of two values": (planner({"l.weight": ("b",), "l.bias": ("b",)}), "two values lie"),
    "keys within a value": (planner({"l.weight": ("b", "c"), "l.bias": ("b",)}), "two values|within another"),
    "keys without end": (planner({"l.weight": ("b",) * 1000}), "keys that are none"),
    ".metadata of nothing": (bytes_of(lambda old: b""), "exhausted"),
    ".metadata cut off": (bytes_of(lambda old: old[: len(old) // 2]), "damaged or cut off"),
    ".metadata that is something else": (bytes_of(lambda old: pickle.dumps({"a": 1})), "no metadata"),
    ".metadata without end": (
        bytes_of(lambda old: b"\x80\x02" + b"]q\x00" + b"h\x00a" * 2000 + b"h\x00"),
        "damaged or cut off",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_that_lies_is_refused_in_one_message_and_runs_nothing(tmp_path, name):
    change, told = HOSTILE[name]
    folder = tmp_path / "run"
    metadata = cut(folder, NET, {}, files=1)
    if not change(folder, metadata):
        write(folder, metadata)
    with pytest.raises(RebasinError, match=f"(?s){told}") as refused:
        found = open_checkpoint(folder)
        for tensor in found:
            found[tensor]
    text = "\n".join([refused.value.message, *refused.value.problems])
    assert refused.value.exit_code == 3 and len(text) < 1500
    assert isinstance(refused.value, UnsafeCheckpoint) == ("import" in told)
    assert not (tmp_path / "ran").exists()


@pytest.mark.sweep  # an interpreter of its own
def test_reading_needs_no_torch_distributed(tmp_path):
    save(tmp_path / "run", NET)
    code = (
        "import sys; from rebasin_cli.checkpoints.checkpoint import open_checkpoint as o; "
        f"c = o({str(tmp_path / 'run')!r}); [c[n] for n in c]; "
        "print(sorted(m for m in sys.modules if m.startswith('torch.distributed.checkpoint')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.sweep  # starts processes
@pytest.mark.parametrize("world", [1, 2, 4])
def test_what_ranks_wrote_is_read_as_torch_reads_it(tmp_path, world):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    place |= {"WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    logs = tmp_path.with_name(f"{tmp_path.name}-log")
    ranks = [
        processes.script(WORKER, tmp_path, log=logs.with_suffix(f".{k}"), RANK=str(k), **place)
        for k in range(world)
    ]
    assert [rank.wait() for rank in ranks] == [0] * world, [rank.err for rank in ranks]
    names = {"fsdp", "bf16", "tensors"} | ({"hsdp", "grid"} if world == 4 else set())
    for name in sorted(names):
        expected = torch.load(tmp_path / f"{name}-{world}.pt")
        folder = tmp_path / f"{name}-{world}"
        same(open_checkpoint(folder), expected)
        flat = {key: torch.empty_like(tensor) for key, tensor in expected.items()}
        state = (
            {"app": {"model": flat}} if name.endswith(("fsdp", "hsdp", "bf16", "sdp")) else {"model": flat}
        )
        dcp.load(state, checkpoint_id=folder, no_dist=True)
        same(open_checkpoint(folder), flat)
