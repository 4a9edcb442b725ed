"""The files that a result was made of."""

import dataclasses

from rebasin_cli.commands.verbs import provenance
from rebasin_cli.commands.verbs.outputs import Output
from rebasin_cli.session.request import Subjects
from rebasin_cli.session.session import Session
from rebasin_cli.session.subjects import Network
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit


def test_the_code_that_a_found_spec_names_is_a_parent_where_it_may_have_run(tmp_path, record, monkeypatch):
    model, code, spec = record().path, tmp_path / "mine.py", library.load("mlp")
    code.write_text("make = None\n")
    theirs = dataclasses.replace(spec, net=f"{code}:make")  # as of a package that brings a spec of its own
    monkeypatch.setattr(library, "find", lambda shapes, settings: fit(theirs, shapes))
    merged = Output(tmp_path / "merged.safetensors")
    for network, opened, there in (
        (Network(trust_code=True), True, True),
        (Network(trust_code=True), False, False),
        (Network(), True, False),
        (Network(net="mlp", trust_code=True), True, False),
    ):
        session = Session("merge", [model, model], asked=Subjects(network=network))
        if opened:  # by another session of the same command, as without heads
            assert session.over(session.models, session.asked).fitted.spec is theirs
        found = provenance.parents(session, merged)
        assert model in found and (code in found) == there
