"""Plain tensors are read although something else lies beside them, and nothing that a file names is run."""

import argparse
import collections
import datetime
import enum
import functools
import importlib.util
import io
import logging
import os
import pathlib
import pickle
import random
import sys
import zipfile

import numpy
import pytest
import torch
from torch import nn

from rebasin_cli.checkpoints import containers, torch_file
from rebasin_cli.checkpoints.checkpoint import digest, open_checkpoint
from rebasin_cli.checkpoints.pickled import Storage, _tensor
from rebasin_cli.errors import CheckpointError, ResourceError, UnsafeCheckpoint, UsageError

WEIGHTS = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.tensor([0.5, -1.0]).bfloat16()}

SCRIPT = '''
import collections, dataclasses, enum, torch
from torch import nn

class EasyDict(dict):
    def __init__(self, **given):
        super().__init__(given)
        self.__dict__ = self

class Slots:
    __slots__ = ("inner", "parent")
    def __getstate__(self):
        return {"inner": self.inner, "parent": self.parent}
    def __setstate__(self, state):
        raise RuntimeError("this is code")

class Node:
    def __init__(self, content, parent=None):
        self._content, self._parent = content, parent
        for inner in content.values():
            if isinstance(inner, Node):
                inner._parent = self
    def __getattr__(self, name):
        raise RuntimeError("this is code")
    def __hash__(self):
        raise RuntimeError("this is code")
    def __reduce_ex__(self, protocol):
        return object.__reduce_ex__(self, 2)

@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 3
    names: tuple = ("a", "b")

class Colour(enum.Enum):
    RED = 1

class Weights(dict):
    pass

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())
        self.head = nn.Linear(3, 3, bias=False)
        self.head.weight = self.body[0].weight
        self.register_buffer("mask", torch.ones(3))
        self.register_buffer("passing", torch.ones(3), persistent=False)
        self.register_parameter("none", None)
        self.config, self.cache = Config(), torch.zeros(9)

class Optimizer:
    def __init__(self, network):
        self.state = collections.defaultdict(dict)
        self.param_groups = [{"params": list(network.parameters()), "lr": 0.1}]
        for parameter in network.parameters():
            self.state[parameter] = {"step": torch.tensor(1.0), "exp_avg": torch.ones_like(parameter)}

class Trainer:
    def __init__(self):
        self.model = Net()
        self.optimizer = Optimizer(self.model)
        self.best, self.me = Config(), self

class Own(nn.Module):
    """One that keeps its weights in a way of its own."""
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
    def __getstate__(self):
        return {"packed": self.weight}
    def __setstate__(self, state):
        raise RuntimeError("this is code")

class Quantised(torch.Tensor):
    pass

class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("this is code")

def loss(x):
    return x

def rebuild(weights):
    raise RuntimeError("this is code")

class Reduced:
    def __init__(self, weights):
        self.weights = weights
    def __reduce__(self):
        return rebuild, (self.weights,)
'''


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A training script, importable while files are saved; `gone()` ends that."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "training_script.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    module = importlib.import_module("training_script")

    def gone():
        sys.path.remove(str(tmp_path / "own"))
        del sys.modules["training_script"]
        importlib.invalidate_caches()
        assert importlib.util.find_spec("training_script") is None

    module.gone = gone
    yield module
    sys.modules.pop("training_script", None)


def files(folder, content, name="a"):
    """The same content in the zip format and in the old one."""
    for zipped in (True, False):
        path = folder / f"{name}-{zipped}.pt"
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        yield path


def same(checkpoint, expected):
    assert list(checkpoint) == list(expected)
    for name, tensor in expected.items():
        assert checkpoint[name].dtype == tensor.dtype and torch.equal(checkpoint[name], tensor), name


def test_plain_weights_are_read_beside_objects_of_any_class(tmp_path, script):
    """And what was not read is said in one line, with the class."""
    attributes = script.EasyDict(lr=0.1, inner=script.EasyDict(b=1))
    slots = script.Slots()
    slots.inner, slots.parent = 1, slots
    beside = {
        "a namespace": (argparse.Namespace(arch="x"), "argparse.Namespace"),
        "a tree of nodes": (script.Node({"a": script.Node({"b": 1})}), "training_script.Node"),
        "an easy dictionary": (attributes, "training_script.EasyDict"),
        "slots": (slots, "training_script.Slots"),
        "a dataclass": (script.Config(), "training_script.Config"),
        "an enum": (script.Colour.RED, "training_script.Colour"),
        "a class": (script.Net, "training_script.Net"),
        "a function": (script.loss, "training_script.loss"),
        "a partial": (functools.partial(script.loss, 1), "functools.partial"),
        "a logger": (logging.getLogger("training"), "logging.getLogger"),
        "a path": (pathlib.PurePosixPath("a/b"), "pathlib.PurePosixPath"),
        "a date": (datetime.datetime(2026, 1, 1), "datetime.datetime"),
        "a generator": (random.Random(0), "random.Random"),
        "an http status": (enum.IntEnum, "enum.IntEnum"),
    }
    for content, _ in beside.values():
        with pytest.raises(pickle.UnpicklingError):
            torch.load(io.BytesIO(_bytes({"x": content})), weights_only=True)
    made = [
        (kind, path)
        for name, (content, kind) in beside.items()
        for path in files(tmp_path, {"model": WEIGHTS, "it": content}, name)
    ]
    script.gone()
    for kind, path in made:
        checkpoint = open_checkpoint(path)
        same(checkpoint, WEIGHTS)
        assert checkpoint.notes[1:] == (f"not read: it ({kind})",), path
    assert len(made) == 2 * len(beside)


def _bytes(content, **options):
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def test_a_class_as_a_key_and_objects_within_lists_are_told(tmp_path, script):
    content = {"model": WEIGHTS, "by_class": {script.Net: 1, script.Colour.RED: [script.Config(), 2]}}
    for path in list(files(tmp_path, content)):
        unread = open_checkpoint(path).unread
        assert unread[0] == "by_class.training_script.Net (a key)" and len(unread) == 3
    many = {"model": WEIGHTS, "log": {str(k): script.Config() for k in range(9)}}
    torch.save(many, tmp_path / "many.pt")
    *_, note = open_checkpoint(tmp_path / "many.pt").notes
    assert note.startswith("not read: log.0 (training_script.Config), ") and note.endswith(" … 4 more")


def test_a_whole_network_of_unknown_classes_is_its_state_dict(tmp_path, script):
    network = script.Net()
    expected = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert "passing" not in expected and "mask" in expected
    made = [*files(tmp_path, network, "bare"), *files(tmp_path, {"model": network, "epoch": 3}, "enveloped")]
    made += files(tmp_path, nn.DataParallel(network), "wrapped")
    script.gone()
    for path in made:
        checkpoint = open_checkpoint(path)
        same(checkpoint, expected)
        assert checkpoint.tied == (("body.0.weight", "head.weight"),)
        where = "all of model (training_script.Net)" if "enveloped" in path.name else "all of "
        assert checkpoint.unread[0].startswith(where) and checkpoint.unread[0].endswith(" but its tensors")


def test_a_network_in_an_object_with_its_optimiser_is_found(tmp_path, script):
    trainer = script.Trainer()
    expected = trainer.model.state_dict()
    made = list(files(tmp_path, trainer))
    script.gone()
    for path in made:
        checkpoint = open_checkpoint(path)
        same(checkpoint, expected)
        assert checkpoint.envelope == "model" and checkpoint.tied
        assert "best (training_script.Config)" in checkpoint.unread


def test_a_network_in_a_list_with_its_optimiser_is_found(tmp_path, script):
    network = script.Net()
    made = [*files(tmp_path, [network, script.Config(), script.Optimizer(network)], "list")]
    made += files(tmp_path, (WEIGHTS, {"lr": 0.1}), "tuple")
    script.gone()
    for path in made:
        checkpoint = open_checkpoint(path)
        same(checkpoint, WEIGHTS if "tuple" in path.name else network.state_dict())
        assert checkpoint.envelope == "0"


def test_a_traced_network_is_its_state_dict(tmp_path):
    network = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    for path in files(tmp_path, network):
        same(open_checkpoint(path), network.state_dict())


def test_a_state_dict_of_a_class_of_its_own_is_read(tmp_path, script):
    made = [*files(tmp_path, script.Weights(WEIGHTS), "bare")]
    made += files(tmp_path, {"state_dict": script.Weights(WEIGHTS)}, "enveloped")
    made += files(tmp_path, script.EasyDict(model=WEIGHTS, epoch=1), "easy")
    script.gone()
    for path in made:
        same(open_checkpoint(path), WEIGHTS)


def test_a_lightning_checkpoint_with_objects_of_its_own_is_read(tmp_path, script):
    content = {
        "epoch": 1,
        "pytorch-lightning_version": "2.0.0",
        "state_dict": {f"model.{name}": tensor for name, tensor in WEIGHTS.items()},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(1.0)}},
        "hparams_name": "kwargs",
        "hyper_parameters": {"config": script.Config(), "model": script.loss, "path": pathlib.Path("a")},
    }
    made = list(files(tmp_path, content))
    script.gone()
    for path in made:
        checkpoint = open_checkpoint(path)
        same(checkpoint, WEIGHTS)
        assert checkpoint.stripped == ("model.",)
        assert checkpoint.unread[0] == "hyper_parameters.config (training_script.Config)"


def test_numbers_and_arrays_of_numpy_are_data(tmp_path):
    array = numpy.arange(6, dtype=">f4").reshape(2, 3, order="F")
    content = {"model": {"w": array, "n": numpy.arange(3)}, "loss": numpy.float64(0.5)}
    content |= {"log": [numpy.float32(1.5)], "on": numpy.bool_(True), "z": numpy.complex64(1j)}
    content["odd"] = numpy.array([None, 1], dtype=object)
    for path in files(tmp_path, content):
        checkpoint = open_checkpoint(path)
        same(checkpoint, {"w": torch.from_numpy(array.astype("f4")), "n": torch.arange(3)})
        assert [one.split()[0] for one in checkpoint.unread] == ["odd"]
        saved = torch_file.load(path).saved
        assert (saved["loss"], saved["log"], saved["on"], saved["z"]) == (0.5, [1.5], True, 1j)
        assert type(saved["loss"]) is float and type(saved["on"]) is bool
    for core in (b"numpy.core.multiarray", b"numpy._core.multiarray"):  # NumPy 1 and 2
        payload = pickle.dumps(content, protocol=2).replace(b"numpy._core.multiarray", core)
        (tmp_path / "plain.pkl").write_bytes(payload)
        same(
            open_checkpoint(tmp_path / "plain.pkl"),
            {"w": torch.from_numpy(array.astype("f4")), "n": torch.arange(3)},
        )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_tensors_in_a_pickle_that_torch_save_did_not_write_are_read(tmp_path, protocol):
    shared = torch.rand(2, 3)
    content = {
        "model": {"w": shared, "v": shared.T, "p": nn.Parameter(torch.ones(2))},
        "at": pathlib.Path("x"),
    }
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(content, protocol=protocol))
    checkpoint = open_checkpoint(tmp_path / "a.pkl")
    same(checkpoint, {name: tensor.detach() for name, tensor in content["model"].items()})


def kinds():
    """Tensors of every plain kind, and other values that PyTorch's own reader of weights knows."""
    dtypes = "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 bool"
    dtypes += " uint16 uint32 uint64 complex64 complex128"
    tensors = {name: torch.randint(0, 2, (3, 4)).to(getattr(torch, name)) for name in dtypes.split()}
    base, large = torch.arange(24.0), torch.rand(4, 3, 2)
    tensors |= {"part": base[3:9], "turned": base.view(4, 6).T, "every other": base[::2], "tied": base[3:9]}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "repeated": base[:1].expand(3, 5)}
    tensors |= {"parameter": nn.Parameter(large), "with attributes": nn.Parameter(large[1])}
    tensors["with attributes"].note = "kept"
    tensors["buffer"] = torch.ones(2)
    tensors["buffer"].note = "kept"
    others = {"set": {1, 2}, "bytes": b"\xff\0", "array": bytearray(b"a"), "size": large.shape, "z": 1 + 2j}
    others |= {"dtype": torch.float32, "device": torch.device("cpu"), "n": None, "big": 1 << 80, "no": -5}
    others |= {"ordered": collections.OrderedDict(a=1), "count": collections.Counter("aab"), "t": (1, (2, 3))}
    return {"model": tensors, "beside": others}


@pytest.mark.parametrize("zipped", [True, False])
def test_plain_files_are_what_the_reader_of_pytorch_makes_of_them(tmp_path, zipped):
    """Bit for bit, with sizes, strides and ties."""
    content = kinds()
    if not zipped:  # PyTorch writes these into the old format, and cannot read them
        apart = {
            name: content["model"].pop(name) for name in [*content["model"]] if "8_" in name or "uint" in name
        }
        same(open_checkpoint(saved(tmp_path, apart, "old")), apart)
    path = saved(tmp_path, content, "zip" if zipped else "old")
    expected, got = torch.load(path, weights_only=True), torch_file.load(path).saved
    assert {key: value for key, value in got["beside"].items()} == expected["beside"]
    assert got["model"].keys() == expected["model"].keys()
    for name, tensor in expected["model"].items():
        mine = got["model"][name]
        assert mine.dtype == tensor.dtype and mine.shape == tensor.shape and mine.stride() == tensor.stride()
        assert mine.storage_offset() == tensor.storage_offset() or not tensor.numel(), name
        assert mine.untyped_storage().tolist() == tensor.untyped_storage().tolist() or not tensor.numel(), (
            name
        )
    places = {name: tensor.untyped_storage().data_ptr() for name, tensor in got["model"].items()}
    assert places["part"] == places["turned"] == places["tied"] != places["parameter"]


# What needs its code


def sprung(path, weights=None):
    os.mkdir(path)
    return weights


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, *args):
        self.args = args

    def __reduce__(self):
        return sprung, tuple(map(str, self.args[:1])) + self.args[1:]


WAYS = ["zip", "old", "2", "3", "4", "5"]


def saved(tmp_path, content, how):
    path = tmp_path / f"{how}.pt"
    if how.isdigit():
        path.write_bytes(pickle.dumps(content, protocol=int(how)))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    return path


@pytest.mark.parametrize("how", WAYS)
def test_code_beside_weights_is_not_run_and_named(tmp_path, how):
    """Not even where it may be: it is not needed."""
    path = saved(tmp_path, {"state_dict": dict(WEIGHTS), "trap": Trap(tmp_path / "sprung")}, how)
    for unsafe in (False, True):
        checkpoint = open_checkpoint(path, unsafe_load=unsafe)
        same(checkpoint, WEIGHTS)
        assert checkpoint.unread == (f"trap ({__name__}.sprung)",) and not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("how", WAYS)
def test_weights_behind_code_are_refused_and_read_with_unsafe_load(tmp_path, how):
    path = saved(tmp_path, {"state_dict": Trap(tmp_path / "sprung", WEIGHTS)}, how)
    with pytest.raises(UnsafeCheckpoint, match="would run code, so it was not read") as caught:
        open_checkpoint(path)
    assert f"wants to import {__name__}.sprung" in caught.value.problems
    assert "python -c" not in caught.value.hint and "--unsafe-load" in caught.value.hint
    assert not (tmp_path / "sprung").exists()
    same(open_checkpoint(path, unsafe_load=True), WEIGHTS)
    assert (tmp_path / "sprung").exists()


def test_weights_that_cannot_be_told_are_refused_where_others_would_be_taken(tmp_path, script):
    """`model` comes before `ema`; the optimiser's state is no model."""
    hidden = script.Reduced(WEIGHTS)
    contents = {
        "behind": {"model": hidden, "ema": WEIGHTS},
        "optimiser": {"model": hidden, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}},
        "alone": hidden,
        "within": {"state_dict": WEIGHTS | {"own": script.Quantised(torch.ones(2))}},
        "all": {"state_dict": {"own": torch.ones(2).as_subclass(script.Quantised)}},
        "wrapped": {"state_dict": WEIGHTS | {"own": script.Wrapped(torch.ones(2))}},
        "network": script.Own(),
        "part": nn.Sequential(nn.Linear(2, 2), script.Own()),
    }
    made = [(name, path) for name, content in contents.items() for path in files(tmp_path, content, name)]
    beside = list(files(tmp_path, {"model": WEIGHTS, "ema": hidden}, "beside"))
    script.gone()
    for name, path in made:
        with pytest.raises(UnsafeCheckpoint, match="it was not read"):
            print(name, open_checkpoint(path).notes)
    for path in beside:
        same(open_checkpoint(path), WEIGHTS)
        assert open_checkpoint(path).unread == ("ema (training_script.rebuild, with tensors)",)
    assert list(open_checkpoint(made[0][1], key="ema")) == list(WEIGHTS)


def test_unsafe_load_finds_classes_in_the_working_folder(tmp_path, script, monkeypatch):
    paths = list(
        files(tmp_path, {"state_dict": WEIGHTS | {"own": torch.ones(2).as_subclass(script.Quantised)}})
    )
    whole = list(files(tmp_path, script.Reduced(WEIGHTS), "whole"))
    source = (tmp_path / "own" / "training_script.py").read_text()
    script.gone()
    for path in paths:
        with pytest.raises(CheckpointError, match="No module named 'training_script'") as caught:
            open_checkpoint(path, unsafe_load=True)
        assert "must be importable" in caught.value.hint
    (tmp_path / "own" / "training_script.py").write_text(
        source.replace('raise RuntimeError("this is code")', "return Reduced(weights)")
    )
    monkeypatch.chdir(tmp_path / "own")
    importlib.invalidate_caches()
    for path in paths:
        assert list(open_checkpoint(path, unsafe_load=True)) == [*WEIGHTS, "own"]
    for path in whole:  # an object with the weights among its attributes
        same(open_checkpoint(path, unsafe_load=True), WEIGHTS)
    assert str(tmp_path / "own") not in sys.path


def test_unsafe_load_reads_a_safe_file_safely(tmp_path, monkeypatch):
    path = saved(tmp_path, WEIGHTS, "zip")
    monkeypatch.setattr("rebasin_cli.checkpoints.torch_file.load_by_its_code", None)
    same(open_checkpoint(path, unsafe_load=True), WEIGHTS)
    with pytest.raises(UsageError, match="unknown key"):
        open_checkpoint(saved(tmp_path, {"model": WEIGHTS}, "zip"), key="other", unsafe_load=True)


def test_a_network_deeper_than_any_is_refused_and_one_that_holds_itself_too(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "MAX_DEPTH", 9)  # pickle itself gives up below 200
    deep = nn.Linear(2, 2)
    for _ in range(10):
        deep = nn.Sequential(deep)
    torch.save(deep, tmp_path / "deep.pt")
    own = nn.Module()
    own.weight = nn.Parameter(torch.ones(2))
    own._modules["again"] = own
    torch.save(own, tmp_path / "own.pt")
    for name in ("deep.pt", "own.pt"):
        with pytest.raises(CheckpointError, match="deep in one another"):
            open_checkpoint(tmp_path / name)


def test_a_file_that_is_read_whole_has_to_fit_into_memory(tmp_path):
    """Sparse, it takes nothing of the disk."""
    for name, start in {"old.pt": torch_file.LEGACY, "plain.pt": pickle.dumps({})[:2]}.items():
        with open(tmp_path / name, "wb") as file:
            file.write(start)
            file.truncate(1 << 42)
        with pytest.raises(ResourceError, match="is read whole, which takes"):
            open_checkpoint(tmp_path / name)


def test_records_of_one_name_are_refused(tmp_path):
    """Two readers could take different ones."""
    path = saved(tmp_path, WEIGHTS, "zip")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        name = next(name for name in archive.namelist() if name.endswith("/data/0"))
        archive.writestr(name, bytes(24))
    with pytest.raises(CheckpointError, match="records of the same name"):
        open_checkpoint(path)


def test_the_digest_does_not_know_what_lies_beside(tmp_path):
    for path in files(tmp_path, {"model": WEIGHTS, "args": argparse.Namespace(a=1)}):
        assert open_checkpoint(path).digest() == digest(WEIGHTS)


def test_a_tensor_that_begins_within_its_storage_and_ends_behind_it_is_refused():
    """PyTorch would make the storage longer, and give what lies in memory there."""
    values = Storage(torch.arange(4.0).untyped_storage(), torch.float32)
    reader = argparse.Namespace(spend=lambda what: None)
    assert _tensor(reader, values, 2, (2,), (1,)).tolist() == [2, 3]
    with pytest.raises(pickle.UnpicklingError, match="reaches beyond what is stored"):
        _tensor(reader, values, 3, (2,), (1,))
