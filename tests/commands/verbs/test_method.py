"""Which method searches where nobody named one, whether it runs a network, and what is said of that."""

import pytest

from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands.verbs import search as method
from rebasin_cli.errors import CheckpointError, DataError
from rebasin_cli.nets.mlp import MLP
from rebasin_cli.session.listener import Listener
from rebasin_cli.session.request import Search, Subjects
from rebasin_cli.session.session import Session
from rebasin_cli.session.subjects import Data, Network

OPEN = {"method": "wm", "open": True}  # where nobody named one


@pytest.fixture
def session(tmp_path):
    """A session on a model of digits, and what it says."""

    def session(data=None, net="mlp", perm=None, recorded=None, **search):
        path, said = tmp_path / "model.safetensors", []
        metadata = {} if recorded is None else {"rebasin.data": recorded}
        write_safetensors(path, MLP([64, 8, 10]).state_dict(), metadata=metadata, force=True)
        asked = Subjects(search=Search(**search), network=Network(net=net), data=Data(data=data))
        return Session("merge", [path, path], Listener(say=said.append), asked, perm=perm), said

    return session


def test_where_nobody_named_a_method_auto_chooses_if_it_can_run_the_network(session, tmp_path):
    for how, chosen, told in (
        ({"data": "digits", **OPEN}, "auto", "method: auto, the best by held-out loss"),
        ({"recorded": "digits", **OPEN}, "auto", "method: auto"),
        ({"data": "digits", "method": "wm"}, "wm", ""),  # it was named
        ({"data": "digits", "method": "am"}, "am", ""),
        ({**OPEN}, "wm", ""),  # no data
        ({"data": "digits", "polish": "1x", **OPEN}, "wm", ""),
        ({"data": "digits", "groups": "all", **OPEN}, "wm", ""),
        ({"data": "digits", "net": None, **OPEN}, "wm", "by weights alone: only the tensors' names tell"),
        ({"recorded": "imagefolder:/gone", **OPEN}, "wm", ""),
    ):
        asked, said = session(**how)
        found = method.chosen(asked)
        assert found.asked.search.method == chosen, how
        heard = [text for text in said if text.startswith("method: ")]
        assert (told in heard[0] and len(heard) == 1) if told else heard == [], (how, heard)
        assert (found is asked) == (chosen != "auto") and (chosen != "auto" or not found.asked.search.open)
    given, _ = session(data="digits", perm=tmp_path / "p.perm.safetensors", **OPEN)
    assert method.chosen(given) is given and given.method == "given"


def test_what_the_user_named_has_to_work_and_what_is_recorded_may_fail(session, monkeypatch):
    def gone(*given, **how):
        raise DataError("it is gone")

    monkeypatch.setattr(method.samples, "open_splits", gone)
    monkeypatch.setattr(method, "no_network", lambda session: "")
    for data, net in (("digits", None), (None, "mlp"), ("digits", "mlp")):
        with pytest.raises(DataError, match="it is gone"):
            method.nothing_to_run(session(data, net, recorded="mnist", **OPEN)[0])
    asked, said = session(None, None, recorded="mnist", **OPEN)
    assert method.nothing_to_run(asked) == "it is gone"
    assert method.chosen(asked) is asked and said == ["method: wm, by weights alone: it is gone"]


def test_a_method_or_swaps_at_the_end_run_the_network(session, tmp_path):
    for how, runs in (
        ({"method": "wm"}, False),
        ({"method": "am"}, True),
        ({"method": "wm", "polish": "1x"}, True),
        ({"method": "wm", "polish": "1x", "perm": tmp_path / "p"}, False),  # nothing is searched
    ):
        assert method.runs_network(session(**how)[0]) is runs, how
    assert method.goes_without(Search(method="auto"))
    assert not method.goes_without(Search(method="am"))
    assert not method.goes_without(Search(method="auto", polish="1x"))


def test_a_command_that_merges_nothing_says_which_method_it_takes(session, tmp_path):
    for how, told in (
        (OPEN, True),
        ({"method": "wm"}, False),
        ({"method": "none", "open": True}, False),
        ({"perm": tmp_path / "p", **OPEN}, False),
    ):
        asked, said = session(**how)
        method.tell(asked)
        assert any("wm, by weights alone, as --method names no other" in text for text in said) is told, how
    wrong = Session("align", [tmp_path / "gone"], Listener(say=said.append), Subjects(search=Search(**OPEN)))
    said.clear()
    with pytest.raises(CheckpointError):  # what is wrong with the models comes first
        method.tell(wrong)
    assert said == []
