"""A proof says whose network it ran on."""

from dataclasses import dataclass, field

import pytest

from rebasin_cli.commands.verbs.proof import prove
from rebasin_cli.runtime.ranks import Ranks
from rebasin_cli.session.request import Subjects
from rebasin_cli.session.session import Session
from rebasin_cli.session.subjects import Loading, Network


def account_of_proof(models, *, spec=None, net=None):
    asked = Subjects(loading=Loading(spec=spec), network=Network(net=net))
    session = Session("align", [model.path for model in models], asked=asked)
    return prove(session).account


def test_a_proof_says_whose_network_it_ran_on(record):
    plain, trained = record(), record(net="mlp")
    assumed = account_of_proof([plain, trained])
    assert assumed["status"] == "proven" and assumed["assumed"]
    assert assumed["network"] == "rebasin's own MLP, assumed from the tensors' names"
    assert account_of_proof([plain], spec="mlp")["assumed"]  # a spec tells what is permuted, not computed
    given = account_of_proof([plain], net="mlp")
    assert given["network"] == "given with --net" and not given["assumed"]
    recorded = account_of_proof([trained, trained])
    assert recorded["network"] == "recorded in the checkpoints" and not recorded["assumed"]


def test_a_record_of_another_network_is_no_record_of_this_one(record):
    for name in ("vgg16", "nonsense"):
        assert account_of_proof([record(net=name)])["assumed"]


@dataclass(frozen=True)
class OneByOne(Ranks):
    """The first of two, who meet in nothing while the first does a step by itself: the other is not there."""

    size: int = 2
    inside: list[bool] = field(default_factory=list)

    def first(self, step, *given, **how):
        self.inside.append(True)
        try:
            return step(*given, **how)
        finally:
            self.inside.pop()

    def each(self, step, *given, **how):
        assert not self.inside, "the other rank waits elsewhere"
        return step(*given, **how)

    def all(self, value):
        assert not self.inside, "the other rank waits elsewhere"
        return [value]


@pytest.mark.parametrize("net", [None, "mlp"])
def test_the_first_rank_proves_without_the_others_whatever_came_before(record, net):
    asked = Subjects(network=Network(net=net))
    session = Session("align", [record().path, record().path], asked=asked, ranks=OneByOne())
    assert prove(session).account["status"] == "proven"
