"""What processes that work together have to agree on, before they do: each fact is one of its own."""

from dataclasses import dataclass

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.safetensors_format import SafetensorsFile
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands import eval as command
from rebasin_cli.commands.verbs import ranks
from rebasin_cli.nets.mlp import MLP
from rebasin_cli.runtime.ranks import ALONE, Ranks
from rebasin_cli.session.listener import Listener
from rebasin_cli.session.request import Search, Subjects
from rebasin_cli.session.session import Session
from rebasin_cli.session.subjects import Network


class Told(BaseException):
    """The facts, which are all that is wanted."""


@dataclass(frozen=True)
class Telling(Ranks):
    size: int = 2

    def check_same(self, facts):
        raise Told(facts)


def told(work, *given, **how):
    with pytest.raises(Told) as found:
        work(*given, **how)
    return found.value.args[0]


def apart(one, other):
    """The names of the facts that differ."""
    return {name for name in {**one, **other} if one.get(name) != other.get(name)}


def state(**changed):
    torch.manual_seed(0)
    return dict(MLP([64, 8, 10]).state_dict()) | changed


@pytest.fixture
def models(tmp_path):
    def models(folder, **changed):
        (tmp_path / folder).mkdir(exist_ok=True)
        paths = [tmp_path / folder / f"{name}.safetensors" for name in ("a", "b")]
        for path, more in zip(paths, ({}, changed), strict=True):
            write_safetensors(path, state(**more), force=True)
        return paths

    return models


def facts(paths, search=(), network=(), more=(), all_of=Telling()):  # noqa: B008 (it is frozen)
    asked = Subjects(search=Search(**dict(search)), network=Network(**dict(network)))
    return ranks.check_same(Session("align", paths, Listener(), asked, ranks=all_of), dict(more))


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"search": {"method": "am"}}, "an option"),
        ({"search": {"prove": False}}, "an option"),
        ({"search": {"groups": "all"}}, "an option"),
        ({"search": {"options": {"max_sweeps": 3}}}, "an option"),
        ({"network": {"seed": 1}}, "an option"),
        ({"network": {"device": "cpu"}}, "an option"),
        ({"more": {"the data": lambda: 4}}, "the data"),
    ],
)
def test_ranks_agree_on_every_option_of_a_search(models, how, what):
    plain = {"more": {"the data": lambda: 3}}
    paths = models("one")
    one, other = (told(facts, paths, **plain | more) for more in ({}, how))
    assert apart(one, other) == {what}


def test_ranks_agree_on_their_versions(models, monkeypatch):
    before = told(facts, models("one"))
    monkeypatch.setattr(ranks, "version", lambda: "0.0")
    assert apart(before, told(facts, models("one"))) == {"the version of rebasin"}
    monkeypatch.undo()
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert apart(before, told(facts, models("one"))) == {"the version of torch"}


def test_ranks_agree_on_their_models_wherever_these_lie(models):
    before, name = told(facts, models("one")), next(iter(state()))
    assert apart(before, told(facts, models("two"))) == set()
    values = state()[name]
    for changed in (values + 1, values.half(), values[:, :32]):
        assert apart(before, told(facts, models("three", **{name: changed}))) == {"model 2"}
    assert apart(before, told(facts, models("four", more=torch.ones(2)))) == {"model 2"}


def test_of_a_large_tensor_a_few_rows_are_read_to_tell_models_apart(tmp_path, monkeypatch):
    values = torch.arange(1200 * 1024, dtype=torch.float32).view(1200, 1024)
    changed = values.clone()
    changed[600] += 1
    for name, tensor in (("a", values), ("b", changed)):
        write_safetensors(tmp_path / f"{name}.safetensors", {"w": tensor, "b": torch.ones(3)})
    read = []
    original = SafetensorsFile.rows
    monkeypatch.setattr(
        SafetensorsFile, "rows", lambda *given: read.append(given[3] - given[2]) or original(*given)
    )
    whole = SafetensorsFile.tensor
    monkeypatch.setattr(
        SafetensorsFile,
        "tensor",
        lambda self, name: pytest.fail("read whole") if name == "w" else whole(self, name),
    )
    models = [open_checkpoint(tmp_path / f"{name}.safetensors") for name in "aab"]

    def digest(model):
        session = Session("align", [], Listener(), Subjects(), ranks=Telling())
        return told(ranks.check_same, session, {}, [model])["model 1"]

    one, same, other = map(digest, models)
    assert one == same != other and sum(read) <= 3 * 32


def test_one_process_is_asked_for_nothing(models):
    facts(models("one"), more={"the data": lambda: pytest.fail("asked")}, all_of=ALONE)


MINE = """
import torch


def loader(split):
    return [*zip(torch.full((6, 64), {value}).split({size}), torch.arange(6).split({size}))]


def loss(outputs, targets):
    return outputs.sum(1)


def metric(outputs, targets):
    return outputs.mean(1)
"""


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"split": "train"}, {"the data"}),
        ({"limit": 2}, {"the data"}),
        ({"data": "sizes.py:loader"}, {"the data"}),  # the same samples in other batches
        ({"data": "other.py:loader"}, {"the data"}),  # as many samples, of other values
        ({"bins": 3}, {"an option of the measure"}),
        ({"skip_checks": True}, {"an option of the measure"}),
        ({"output": "logits"}, {"an option of the measure"}),
        ({"loss": "mine.py:loss"}, {"the code of --loss, --metric or --net"}),
        ({"metric": ("mine.py:metric",)}, {"the code of --loss, --metric or --net"}),
        ({"against": ("b.safetensors",)}, {"model 2"}),
        ({"loss": "copy/mine.py:loss"}, set()),  # the same code elsewhere
        ({"loss": "copy/other.py:loss"}, {"the code of --loss, --metric or --net"}),
    ],
)
def test_ranks_agree_on_what_is_measured(models, tmp_path, monkeypatch, how, what):
    models(".")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copy").mkdir()
    for folder in (".", "copy"):
        for name, value, size in (("mine", 1.0, 3), ("other", 2.0, 3), ("sizes", 1.0, 2)):
            (tmp_path / folder / f"{name}.py").write_text(MINE.format(value=value, size=size))

    def asked(**how):
        more = {"data": "mine.py:loader", "skip_checks": False, "net": "mlp"} | how
        return told(command.run, command.Eval(model="a.safetensors", **more), ranks=Telling())

    base = {"loss": "mine.py:loss"} if "copy" in str(how) else {}
    assert apart(asked(**base), asked(**how)) == what
