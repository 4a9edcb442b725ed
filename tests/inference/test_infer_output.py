"""All that a network returns stays, but for records of its inside and what the user names."""

import dataclasses
import logging
import threading
import types
from collections import namedtuple

import pytest
import torch
from torch import nn

from rebasin_cli import align, infer_spec
from rebasin_cli.errors import NetworkError, NotProven, UsageError
from rebasin_cli.inference.rules.walk import OUTPUT, UNUSED
from rebasin_cli.measure import report
from rebasin_cli.proof.prove import prove
from rebasin_cli.spec.notation import words_of

Both = namedtuple("Both", ["logits", "hidden"])
X = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two hidden layers; `wrap` makes of logits, both hidden layers and an extra head what is returned."""

    def __init__(self, wrap=lambda logits, one, two, more: {"logits": logits, "hidden": (one, two)}):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 4)
        self.extra = nn.Linear(5, 4)
        self.wrap = wrap

    def forward(self, x):
        one = torch.relu(self.one(x))
        two = torch.relu(self.two(one))
        return self.wrap(self.head(two), one, two, self.extra(one + two))


def why(found, place):
    return [frozen.why for frozen in found.reasons if place in frozen.places]


def test_without_output_every_output_stays():
    found = infer_spec(Net(), X)
    assert found.fitted.words == {} and why(found, "one.weight axis 0") == [OUTPUT]


@dataclasses.dataclass
class Told:
    """What a network may return, known to nobody."""

    logits: torch.Tensor
    inner: object = None
    note: str = "no tensor"


class DynamicCache:
    def __init__(self, *tensors):
        self.layers = list(tensors)


class Slotted:
    __slots__ = ("logits", "more")

    def __init__(self, logits, more):
        self.logits, self.more = logits, more


INSIDE = [  # what is returned, and what of it is no part of the function
    (lambda logits, one, two, more: {"logits": logits, "hidden_states": (one, two)}, ["hidden_states"]),
    (
        lambda logits, one, two, more: {"logits": logits, "decoder_hidden_states": [one]},
        ["decoder_hidden_states"],
    ),
    (
        lambda logits, one, two, more: {"logits": logits, "cross_attentions": one, "n": 3},
        ["cross_attentions"],
    ),
    (
        lambda logits, one, two, more: {"logits": logits, "past_key_values": ((one, two),)},
        ["past_key_values"],
    ),
    (lambda logits, one, two, more: {"out": {"logits": logits, "kv_cache": {"k": two}}}, ["out.kv_cache"]),
    (lambda logits, one, two, more: Told(logits, {"mems": one}), ["inner.mems"]),
    (lambda logits, one, two, more: (logits, DynamicCache(one, two)), ["1"]),
    (lambda logits, one, two, more: Slotted([logits], DynamicCache(one)), ["more"]),
    (
        lambda logits, one, two, more: types.SimpleNamespace(a=logits, hidden_states=(two,)),
        ["hidden_states"],
    ),
]


def test_records_of_the_inside_are_no_part_of_the_function_whatever_holds_them():
    for wrap, left in INSIDE:
        found = infer_spec(Net(wrap), X)
        assert sorted(found.fitted.words.values()) == [5, 5], left
        assert found.proof.largest_difference < 1e-12
        assert list(found.not_kept) == left == list(found.proof.not_kept)
        assert why(found, "head.weight axis 0") == [OUTPUT]


NAMED = [
    (lambda logits, one, two, more: {"logits": logits, "hidden": (one, two)}, ["hidden"], ["logits"]),
    (lambda logits, one, two, more: (one, None, 3, logits), ["0"], ["3"]),
    (lambda logits, one, two, more: (one, {"two": [two]}, logits), ["1.two", "0"], ["2"]),
    (lambda logits, one, two, more: (logits, {"deep": {"two": two, "one": one}}), ["-1"], ["0"]),
    (lambda logits, one, two, more: Both(logits, one), ["hidden"], ["logits"]),
    (lambda logits, one, two, more: Both(logits, one), ["1"], ["logits"]),
    (lambda logits, one, two, more: Told(logits, Told(two, one)), ["inner"], ["logits"]),
    (
        lambda logits, one, two, more: {"a": {"logits": logits, "two": two}, "b": [two]},
        ["two", "b"],
        ["a.logits"],
    ),
    (lambda logits, one, two, more: {"a.b": two, "logits": logits}, ["a.b"], ["logits"]),
]


def test_what_the_user_names_is_not_kept_and_all_else_is():
    for wrap, names, kept in NAMED:
        assert len(infer_spec(Net(wrap), X).fitted.words) < 2, names
        found = infer_spec(Net(wrap), X, not_kept=names)
        assert sorted(found.fitted.words.values()) == [5, 5], names
        assert list(found.kept) == kept == list(found.proof.kept)
        prove(Net(wrap), found.fitted, X, not_kept=names)
        with pytest.raises(NotProven, match="--not-kept"):
            prove(Net(wrap), found.fitted, X)


def test_what_is_measured_is_kept_and_so_is_all_else():
    wraps = [
        (lambda logits, one, two, more: {"logits": logits, "hidden": (one, two)}, "logits"),
        (lambda logits, one, two, more: (one, None, 3, logits, two), 3),
        (lambda logits, one, two, more: Both(logits, (one, two)), "logits"),
    ]
    for wrap, output in wraps:
        found = infer_spec(Net(wrap), X, output=output)
        assert not found.fitted.words and why(found, "one.weight axis 0") == [OUTPUT]
    measured = infer_spec(Net(INSIDE[0][0]), X, output="hidden_states")
    assert not measured.fitted.words and measured.kept == ("logits", "hidden_states")


def test_what_only_sounds_like_a_record_stays():
    names = [
        "hidden_state",
        "last_hidden_state",
        "pooler_output",
        "attention",
        "past",
        "cached",
        "cache_logits",
    ]
    for name in names:
        found = infer_spec(Net(lambda logits, one, two, more, name=name: {"logits": logits, name: two}), X)
        assert found.kept == ("logits", name) and list(found.fitted.words.values()) == [5], name


def test_a_network_that_returns_records_alone_means_them():
    assert infer_spec(Net(lambda logits, one, two, more: DynamicCache(logits)), X).kept == ("layers",)
    found = infer_spec(Net(lambda logits, one, two, more: {"hidden_states": [logits, two]}), X)
    assert list(found.fitted.words.values()) == [5] and found.kept == ("hidden_states",)


def test_a_spec_that_breaks_the_other_head_is_refused_whatever_is_measured():
    """Right for the first head: it moves the trunk's units, and not the other head's weights with them."""
    network = Net(lambda logits, one, two, more: (logits, more))
    alone = Net(lambda logits, one, two, more: logits)
    wrong = infer_spec(alone, X).fitted
    assert wrong.words and alone.extra.weight.shape == network.extra.weight.shape
    assert prove(alone, wrong, X).largest_difference < 1e-12
    for output in (None, 0, 1):
        with pytest.raises(NotProven) as refused:
            prove(network, wrong, X, output=output)
        assert "of the outputs these change: 1" in refused.value.problems
        found = infer_spec(network, X, output=output)
        assert list(found.fitted.words.values()) == [5]  # both layers are added in the other head
    told = prove(network, wrong, X, output=0, not_kept=["1"])
    assert told.not_seen == ("extra.weight", "extra.bias") and told.not_kept == ("1",)


def test_what_is_computed_for_outputs_that_are_not_kept_ties_nothing_and_is_not_seen():
    """The extra head adds both hidden layers, whose units would be one word."""
    found = infer_spec(Net(lambda logits, one, two, more: (logits, more)), X, not_kept=["1"])
    assert list(found.fitted.words.values()) == [5, 5]
    assert why(found, "extra.weight axis 1") == [UNUSED] == ["not seen by any kept output"]
    assert not [word for axis in found.fitted.tensors["extra.weight"] for word in words_of(axis)]
    assert found.proof.not_seen == ("extra.weight", "extra.bias")


class Auxiliary(Net):
    """In training, a head that evaluation does not run; one bias has no effect, but is computed with."""

    def forward(self, x):
        one = torch.relu(self.one(x))
        two = torch.relu(self.two(one))
        logits = self.head(two)
        logits = logits - (self.extra.bias - self.extra.bias).sum()
        return (logits, self.extra(two)) if self.training else logits


def test_heads_of_training_stay_and_are_named():
    found = infer_spec(Auxiliary(), X)
    assert found.proof.not_seen == ("extra.weight",)
    assert {*found.proof.without_effect} == {"extra.weight", "extra.bias"}
    assert not [word for axis in found.fitted.tensors["extra.weight"] for word in words_of(axis)]


class Untraceable(Net):
    """Left to the exporter, which knows nobody's objects."""

    def forward(self, x):
        one = torch.relu(self.one(x))
        one = one + torch.randn(0, device=x.device).sum()
        two = torch.relu(self.two(one))
        return self.wrap(self.head(two), one, two, self.extra(one + two))


def test_objects_are_looked_into_by_the_exporter_too():
    for wrap, left in INSIDE:
        found = infer_spec(Untraceable(wrap), X)
        assert sorted(found.fitted.words.values()) == [5, 5] and list(found.not_kept) == left
        assert "forward" not in vars(Untraceable(wrap))


def closed(logits, one, two, extra):
    return {"logits": logits, "later": (part for part in (one, two))}


def deep(logits, one, two, more):
    found = two
    for _ in range(200):
        found = [found]
    return {"logits": logits, "deep": found}


def test_what_is_returned_deeper_than_anybody_looks_is_not_taken_for_nothing():
    with pytest.raises(NetworkError, match="type list, in which"):
        infer_spec(Net(deep), X)
    assert infer_spec(Net(deep), X, not_kept=["deep"]).kept == ("logits",)


def test_programs_data_in_an_output_are_no_obstacle():
    """Loggers, locks, modules, numbers, itself: what an object of a program may know beside its tensors."""

    def wrap(logits, one, two, more):
        found = types.SimpleNamespace(logits=logits, log=logging.getLogger("x"), lock=threading.RLock())
        found.me, found.net, found.loss, found.nothing = found, nn.Linear(2, 2), 0.5, [None, {}]
        return found

    found = infer_spec(Net(wrap), X)
    assert found.kept == ("logits",) and not found.not_kept and len(found.fitted.words) == 2


def test_a_distribution_is_its_tensors():
    before = torch.distributions.Distribution._validate_args
    found = infer_spec(Net(lambda logits, one, two, more: torch.distributions.Normal(logits, more.exp())), X)
    assert found.kept == ("loc", "scale") and torch.distributions.Distribution._validate_args == before


def test_an_object_that_nobody_can_look_into_is_told_with_the_next_step():
    with pytest.raises(NetworkError, match="type generator, in which") as refused:
        infer_spec(Net(closed), X)
    assert refused.value.hint.endswith("--not-kept later")
    assert sorted(infer_spec(Net(closed), X, not_kept=["later"]).fitted.words.values()) == [5, 5]


def test_names_of_nothing_and_of_everything_are_refused():
    network = Net()
    both = prove, infer_spec(network, X).fitted, X
    for call in (
        lambda **how: infer_spec(network, X, **how),
        lambda **how: both[0](network, *both[1:], **how),
    ):
        with pytest.raises(UsageError, match="--not-kept absent: .* nothing of that name") as refused:
            call(not_kept=["hidden", "absent"])
        assert refused.value.problems == ("it returns logits, hidden, hidden.0, hidden.1",)
        with pytest.raises(UsageError, match="leaves nothing"):
            call(not_kept=["hidden", "logits"])
        with pytest.raises(UsageError, match="that is what --output logits measures"):
            call(not_kept=["logits"], output="logits")
    with pytest.raises(UsageError) as refused:
        infer_spec(Net(lambda logits, one, two, more: logits), X, not_kept=["0"])
    assert refused.value.problems == ("it returns float32 (2, 4)",)


def test_a_parameter_may_be_the_output():
    network = Net()
    network.wrap = lambda logits, one, two, more: (logits, network.extra.bias)
    found = infer_spec(network, X, not_kept=["0"])
    assert why(found, "extra.bias axis 0") == [OUTPUT] and why(found, "head.weight axis 0") == [UNUSED]


def test_rows_of_one_tensor_keep_all_of_it():
    found = infer_spec(
        Net(lambda logits, one, two, more: torch.stack([two, more @ more.mT @ two])), X, output=0
    )
    assert why(found, "two.weight axis 0") == [OUTPUT]


class Remembering(nn.Module):
    """Answers with the units of the previous call."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(3, 5), nn.Linear(5, 4)
        self.register_buffer("last", torch.rand(2, 5))

    def forward(self, x):
        logits = self.head(self.last)
        self.last.copy_(torch.relu(self.layer(x)))
        return logits + x.sum(), x


def test_buffers_that_are_written_move_with_what_is_written():
    """The next call reads them in the order in which this one wrote them."""
    found = infer_spec(Remembering(), X, output=0)
    (word,) = found.fitted.words
    axes = {name: [*map(str, its)] for name, its in found.fitted.tensors.items()}
    assert axes["layer.weight"][0] == axes["head.weight"][1] == axes["last"][1] == word


@pytest.mark.parametrize(
    ("wrap", "output", "said"),
    [
        (
            lambda logits, one, two, more: {"logits": logits, "hidden": one},
            "absent",
            r"returns \{logits: float32 \(2, 4\), hidden: float32 \(2, 5\)\}, which has no 'absent'",
        ),
        (lambda logits, one, two, more: (logits, one), 2, r"tuple of 2: .*, which has no 2"),
        (lambda logits, one, two, more: logits, "logits", r"float32 \(2, 4\), which has no 'logits'"),
        (lambda logits, one, two, more: (logits, None), 1, "where 1 holds no tensor"),
    ],
)
def test_an_output_that_there_is_not_is_the_networks_error(wrap, output, said):
    with pytest.raises(NetworkError, match=said):
        infer_spec(Net(wrap), X, output=output)


def test_align_and_barrier_keep_what_they_do_not_measure():
    network = Net()
    spec = infer_spec(network, X, not_kept=["hidden"]).fitted
    a, b = ({k: t.clone() for k, t in Net().state_dict().items()} for _ in range(2))
    aligned = align(a, b, spec, network=network, inputs=X, output="logits", not_kept=["hidden"])
    assert aligned.proof.largest_difference < 1e-12
    batches = [(X, torch.tensor([0, 1]))]
    found = align(
        a, b, spec, network=network, inputs=X, data=batches, output="logits", not_kept=["hidden"], method="am"
    )
    assert found.proof.kept == ("logits",)
    for method in ("wm", "am"):
        with pytest.raises(NotProven, match="--not-kept hidden"):
            align(a, b, spec, network=network, inputs=X, data=batches, output="logits", method=method)
    options = {"network": network, "test": batches, "points": 3, "inputs": X}
    made = report.barrier(a, b, spec, output="logits", not_kept=["hidden"], **options)
    assert made.proof["status"] == "proven" and made.proof["not_kept"] == ["hidden"]
    with pytest.raises(NotProven):
        report.barrier(a, b, spec, output="logits", **options)
    with pytest.raises(NetworkError, match="--output KEY"):
        report.barrier(a, b, spec, **options)
