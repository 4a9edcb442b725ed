"""Which rank writes which tensor of which file, and that a part that nobody wrote is no output."""

import pytest
import torch

from rebasin_cli.checkpoints import shards
from rebasin_cli.checkpoints.safetensors_format import nbytes
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.errors import ResourceError
from rebasin_cli.runtime.ranks import Ranks

PLANS = [{f"{k}.{i}": (torch.float32, (3 + 7 * i + k, 5)) for i in range(6)} for k in range(4)]


@pytest.mark.parametrize("files", [PLANS[:1], PLANS, [PLANS[0], {}]], ids=["one", "four", "an empty one"])
@pytest.mark.parametrize("machines", [["x"], ["x", "x"], ["x", "y"], ["x", "y", "x"], ["x", "", "y"]])
def test_every_tensor_is_written_by_one_rank_and_a_file_by_one_machine(files, machines):
    found = shards.shares(files, machines)
    assert len(found) == len(machines) and all(len(its) == len(files) for its in found)
    for k, plan in enumerate(files):
        assert sorted(name for its in found for name in its[k]) == sorted(plan)
        assert len({machine for its, machine in zip(found, machines, strict=True) if its[k]}) <= 1
    assert not any(name for its, machine in zip(found, machines, strict=True) if not machine for name in its)


def test_the_ranks_of_a_machine_have_about_as_many_bytes_and_so_have_machines():
    def loads(machines):
        sizes = [{name: nbytes(*planned) for name, planned in plan.items()} for plan in PLANS]
        found = shards.shares(PLANS, machines)
        return [sum(sizes[k][name] for k, names in enumerate(its) for name in names) for its in found]

    whole = sum(loads(["x"]))
    for machines in (["x", "x"], ["x", "y"], ["x", "x", "y", "y"]):
        assert max(loads(machines)) < 1.2 * whole / len(machines)


def test_a_tensor_that_no_rank_wrote_is_no_output(tmp_path, monkeypatch):
    tensors = {name: torch.ones(shape) for name, (_, shape) in PLANS[0].items()}
    together = Ranks(0, 2)  # whose only rank here is the first one
    write_safetensors(tmp_path / "whole.safetensors", tensors, ranks=together)
    write_safetensors(tmp_path / "alone.safetensors", tensors)
    assert len({path.read_bytes() for path in tmp_path.glob("*.safetensors")}) == 1
    all_of = shards.shares
    monkeypatch.setattr(shards, "shares", lambda *given: [[its - {"0.3"} for its in all_of(*given)[0]]])
    with pytest.raises(ResourceError, match="bytes were written, expected"):
        write_safetensors(tmp_path / "torn.safetensors", tensors, ranks=together)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.safetensors", "whole.safetensors"]
