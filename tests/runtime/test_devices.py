"""Which device is taken, and what several processes make of it, with the GPUs of other machines."""

import contextlib

import pytest
import torch

from rebasin_cli.errors import UsageError
from rebasin_cli.runtime import devices, launchers, processes, ranks


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many NVIDIA GPUs, and with Apple's or not."""

    def machine(cuda=0, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)

    return machine


def test_a_search_on_a_gpu_that_is_not_there_is_refused(machine):
    machine(cuda=0)
    for name in ("cuda", "cuda:1", "mps", torch.device("cuda")):
        with pytest.raises(UsageError, match="not available"):
            devices.for_search(name)
    with pytest.raises(UsageError, match="unknown device 'gpu'"):
        devices.for_search("gpu")
    assert devices.for_search(torch.device("cpu")) == "cpu"
    machine(cuda=1)
    with pytest.raises(UsageError, match="device cuda:1 is not available"):
        devices.for_search("cuda:1")


@pytest.mark.parametrize("there, found", [({}, "cpu"), ({"mps": True}, "mps"), ({"cuda": 2}, "cuda")])
def test_auto_is_the_best_that_there_is(machine, there, found):
    machine(**there)
    assert devices.choose("auto") == found
    assert devices.choose("cpu") == "cpu"


def test_a_gpu_may_be_named_by_its_number(machine):
    machine(cuda=2)
    assert devices.choose("cuda:1") == "cuda:1"
    for name, says in {
        "cuda:2": "not available",
        "cuda:x": "unknown device",
        "cpu:²": "unknown",
        "cudo": "Did you mean",
    }.items():
        with pytest.raises(UsageError) as caught:
            devices.choose(name)
        assert says in f"{caught.value} {caught.value.hint}"


def test_convolutions_on_a_gpu_are_in_float32(machine):
    machine(cuda=1)
    devices.choose("cpu")
    assert torch.backends.cudnn.allow_tf32
    devices.choose("cuda")
    assert not torch.backends.cudnn.allow_tf32


def test_processes_on_one_machine_take_a_gpu_each(machine, monkeypatch):
    machine(cuda=2)
    for name, value in {"WORLD_SIZE": "3", "RANK": "2", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    taken = []

    @contextlib.contextmanager
    def joined(device):
        taken.append(device)
        yield ranks.ALONE

    monkeypatch.setattr(processes, "joined", joined)
    for device in ("cuda", "cpu"):
        with devices.from_environment(device):
            assert devices.own(device) == taken[-1]
    assert taken == ["cuda:0", "cpu"]
    with pytest.raises(UsageError, match="of its own"), devices.from_environment("cuda:1"):
        pass


@pytest.mark.parametrize("gpus, processes_here, kind", [(2, 2, "cpu:gloo,cuda:nccl"), (1, 2, "gloo")])
def test_sums_go_through_nccl_where_each_process_has_a_gpu(machine, monkeypatch, gpus, processes_here, kind):
    machine(cuda=gpus)
    called = {}
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: called.update(device=torch.device(device)))
    monkeypatch.setattr(processes, "everyone", lambda *args: [*args[4:]] or [True])
    monkeypatch.setattr(
        processes.dist, "init_process_group", lambda kind, **kwargs: called.update(kwargs, kind=kind)
    )
    monkeypatch.setattr(
        processes.distributed_c10d, "_set_pg_timeout", lambda time: called.update(patience=time)
    )
    place = launchers.Place(launchers.TORCHRUN, rank=1, size=2, local_size=processes_here, job="")
    assert processes._meet(None, place, torch.device("cuda:1")) == (gpus == 2)
    assert called["device"].index == 1  # torch.cuda takes no device without a number
    assert called["patience"] == processes.patience()  # no longer that of a start
    assert called["kind"] == kind and called["rank"] == 1 and called["world_size"] == 2


def test_without_a_way_to_change_the_patience_it_is_that_of_a_command_from_the_start(monkeypatch):
    called = {}
    monkeypatch.setenv("REBASIN_TIMEOUT", "2h")
    monkeypatch.setattr(processes, "everyone", lambda *args: [True])
    monkeypatch.setattr(processes.dist, "init_process_group", lambda kind, **kwargs: called.update(kwargs))
    monkeypatch.delattr(processes.distributed_c10d, "_set_pg_timeout")
    place = launchers.Place(launchers.TORCHRUN, rank=1, size=2, local_size=2, job="")
    processes._meet(None, place, torch.device("cpu"))
    assert called["timeout"] == processes.patience() > place.patience


def test_a_search_knows_the_number_of_its_gpu(machine, monkeypatch):
    machine(cuda=2, mps=True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    found = {name: devices.for_search(name) for name in ("cuda", "cuda:0", "mps", "cpu")}
    assert found == {"cuda": "cuda:1", "cuda:0": "cuda:0", "mps": "cpu", "cpu": "cpu"}
