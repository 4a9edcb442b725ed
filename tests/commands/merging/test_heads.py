"""Heads that differ are set aside: what is aligned without them is another session."""

import torch

from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands.merging import aligned
from rebasin_cli.nets.mlp import MLP
from rebasin_cli.session.request import Subjects
from rebasin_cli.session.session import Session
from rebasin_cli.session.subjects import Loading


def test_the_session_that_heads_are_taken_out_of_stays_as_it_was(tmp_path):
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, classes in zip(paths, (3, 2), strict=True):
        write_safetensors(path, MLP([4, 5, classes]).state_dict())
    session = Session("merge", paths, asked=Subjects(Loading(spec="mlp")))
    apart, aside = aligned.set_aside(session, "concat")
    assert set(aside.names) == {"head.weight", "head.bias"} and apart is not session
    assert all(
        model["head.weight"].shape == (3, 5) and not model["head.weight"].any() for model in apart.models
    )
    assert [tuple(model["head.bias"].shape) for model in session.models] == [(3,), (2,)]
    assert (session.asked.repair.repair, apart.asked.repair.repair) == ("auto", "none")  # one head is not run
    assert aligned.set_aside(session, None) == (session, None)
    merged = {name: torch.zeros(shape) for name, shape in apart.models[0].shapes.items()}
    order = apart.element(None).permutations
    assert aside.put_back(merged, apart.fitted.spec, order, None)["head.weight"].shape == (5, 5)
