"""The commands as values, for who makes them by hand."""

from pathlib import Path

import pytest
import torch

from rebasin_cli import pipeline
from rebasin_cli.errors import UsageError
from rebasin_cli.registry import operations


def test_texts_are_paths_and_wrong_types_are_refused_before_anything_is_read(tmp_path):
    models = (str(tmp_path / "a.pt"), tmp_path / "b.pt")
    for path in models:
        torch.save({"w": torch.ones(2)}, path)
    done = pipeline.merge(pipeline.Merge(models=models, method="none", out=tmp_path / "m.safetensors"))
    assert done.written == [str(tmp_path / "m.safetensors")]
    for wrong, told in (
        ({"models": models[0]}, "models '.*: expected several, as a tuple"),
        ({"models": (1, 2)}, "models 1 is not of type Path"),
        ({"seed": "x"}, "--seed 'x' is not of type int"),
        ({"seed": -1}, "--seed -1: expected at least 0"),
        ({"method": 5}, "--method 5 is not of type str"),
        ({"dry_run": "no"}, "--dry-run 'no' is not of type bool"),
        ({"seed": True}, "--seed True is not of type int"),
        ({"device": torch.device("cpu")}, "--device .* is not of type str"),
        ({"out": 3}, "--out 3 is not of type str"),
        ({"endpoints": 1}, "unexpected keyword"),
    ):
        with pytest.raises((UsageError, TypeError), match=told):
            pipeline.merge(pipeline.Merge(**{"models": models} | wrong))
    assert {path.name for path in tmp_path.iterdir()} == {"a.pt", "b.pt", "m.safetensors"}


def test_what_is_made_by_hand_becomes_what_the_command_line_would_have_made():
    from rebasin_cli.commands.repair import Repair

    asked = operations.checked(pipeline.Merge(models=["a", Path("b")], out=Path("m"), reference="a"))
    assert asked.models == (Path("a"), Path("b")) and asked.reference == Path("a")
    assert asked.out == "m" and type(asked.out) is str
    for endpoints in ("ab", ("a",), ("a", "b", "c"), None):
        with pytest.raises(UsageError, match="--endpoints .*: expected 2, as a tuple"):
            operations.checked(Repair(model="m", endpoints=endpoints))
    assert operations.checked(Repair(model="m", endpoints=["a", "b"])).endpoints == (Path("a"), Path("b"))
