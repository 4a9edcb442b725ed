"""The proof sees what counts, says what it cannot see, and leaves the network as it was."""

import copy
import math
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from rebasin_cli import infer_spec
from rebasin_cli.errors import NotProven
from rebasin_cli.networks.state import fresh, own_state
from rebasin_cli.proof import prove as proving
from rebasin_cli.proof.decisions import Decided
from rebasin_cli.proof.prove import prove
from rebasin_cli.proof.random_weights import PERIOD, Scaling, draw, stir
from rebasin_cli.runtime.seeds import generator

from .test_prove import SENTENCES, Attention, spec_for

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import mutations  # noqa: E402

X = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
HIDDEN = {"one.weight": "h .", "one.bias": "h", "two.weight": ". h", "two.bias": "."}


class Two(nn.Module):
    """Two layers; `between` is what comes between them."""

    def __init__(self, between=torch.relu):
        super().__init__()
        self.one, self.two, self.between = nn.Linear(3, 6), nn.Linear(6, 4), between

    def forward(self, x):
        return self.two(self.between(self.one(x)))


# ------------------------------------------------------------------------------------------ what it sees


@pytest.mark.parametrize(
    "caches, depth", [(False, 4), *(pytest.param(it, 8, marks=pytest.mark.sweep) for it in (False, True))]
)
def test_a_table_of_biases_that_stays_while_its_heads_move_is_refused(caches, depth):
    """Deep in a stream that grows from layer to layer, a softmax of weights of any size sees no bias."""
    network = mutations.Biased(caches=caches, depth=depth)
    inputs = torch.randn(2, 3, 4, 4)
    fitted = infer_spec(network, inputs).fitted
    axes = {name: " ".join(map(str, found)) for name, found in fitted.tensors.items()}
    assert prove(network, spec_for(network, axes, fitted.sizes), inputs).largest_difference < 1e-14
    for k in (0, depth - 1):
        with pytest.raises(NotProven):
            prove(network, spec_for(network, axes | {f"biases.{k}": ". ."}, fitted.sizes), inputs)


def test_weights_are_scaled_until_each_layer_gives_units_of_one_size():
    network = nn.Sequential(*(nn.Linear(8, 8) for _ in range(30))).double()
    x = torch.rand(16, 8, dtype=torch.float64)
    with own_state(network, torch.float64), torch.no_grad():
        draw(network, torch.Generator().manual_seed(0))
        for layer in network:
            layer.weight.mul_(100)
        assert network(x).abs().max() > 1e20
        with Scaling(network):
            first = network(x)
        assert 0.3 < network(x).std() < 3
        torch.testing.assert_close(first, network(x), rtol=1e-12, atol=0)


def test_drawn_numbers_do_not_repeat_where_another_tensor_begins():
    network = nn.Linear(1000, 1500)
    with own_state(network, torch.float64), torch.no_grad():
        draw(network, torch.Generator().manual_seed(0))
        values = network.weight.flatten()
        assert torch.equal(values[:100], values[PERIOD : PERIOD + 100])  # fewer are drawn than there are
        assert len(torch.unique(network.weight[:, 0])) == 1500


class Rough(Two):
    """From its run number `first` on large numbers cancel: four digits are rounding."""

    def __init__(self, first=1):
        super().__init__()
        runs = []  # not an attribute: those are as they were before every run
        self.first, self.runs = first, lambda: runs

    def forward(self, x):
        self.runs().append(None)
        if len(self.runs()) < self.first:
            return super().forward(x)
        return self.two(torch.relu(self.one(x)) + 1e4) - self.two.bias - 1e4 * self.two.weight.sum(1)


def test_rounding_is_measured_where_outputs_differ_by_more_than_the_least_that_there_is():
    proof = prove(Two(), spec_for(Two(), HIDDEN), X)
    assert proof.tolerance == proving.MARGIN * torch.finfo(torch.float64).eps
    proof = prove(Rough(), spec_for(Rough(), HIDDEN), X)
    assert 2.3e-13 < proof.largest_difference < proof.tolerance / 10


def test_where_a_later_trial_shows_more_rounding_the_first_is_judged_again():
    network = Rough(first=3)  # two runs are the first trial
    proof = prove(network, spec_for(network, HIDDEN), X)
    assert proof.tolerance > 1e-11 and proof.trials == 2
    assert proof.without_effect == (
        "two.bias",
    )  # which it had in the first trial, and not in its second turn


def test_what_is_not_drawn_is_the_networks_own_in_every_trial():
    seen = []

    class Masked(Two):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.tensor([True, True, True, True, False, False]))

        def forward(self, x):
            seen.append(self.mask.tolist())
            return self.two(torch.relu(self.one(x)) * self.mask)

    network = Masked()
    prove(network, spec_for(network, HIDDEN | {"mask": "h"}), X)
    assert seen[0] == seen[2] == network.mask.tolist() and seen[1] != seen[0] != seen[3]


def test_what_is_allowed_is_a_multiple_of_the_rounding_that_was_measured():
    proof = prove(Two(), spec_for(Two(), HIDDEN), X)
    assert proof.largest_difference < 1e-15 and 1e-13 < proof.tolerance < 1e-11
    slightly = Two(lambda x: torch.relu(x) + 1e-10 * x * torch.arange(6))
    assert prove(slightly, spec_for(slightly, HIDDEN), X, tolerance=1e-8).tolerance == 1e-8
    with pytest.raises(NotProven, match="allowed is [2-9]e-1[23]"):
        prove(slightly, spec_for(slightly, HIDDEN), X)


def test_a_tensor_without_any_effect_is_named():
    """A softmax does not see what is added to all keys alike."""
    axes = {"embed.weight": ". x", "head.weight": ". x", "head.bias": ".", "out.bias": "x"}
    axes |= {"out.weight": "x (2 v*)", "v.weight": "(2 v*) x", "v.bias": "(2 v*)"}
    axes |= {"q.weight": "(2 d*) x", "q.bias": "(2 d*)", "k.weight": "(2 d*) x", "k.bias": "(2 d*)"}
    network = Attention(2, 4, 4, width=8)
    assert prove(network, spec_for(network, axes), SENTENCES).without_effect == ("k.bias",)


def test_a_tensor_whose_effect_shows_in_no_trial_is_not_tested():
    """Beyond a threshold that only much larger values reach, these biases count."""

    class Hidden(Two):
        def __init__(self):
            super().__init__()
            self.far = nn.Parameter(torch.zeros(6))

        def forward(self, x):
            return self.two(torch.relu(self.one(x)) + torch.relu(self.far - 10))

    for word in ("h", "."):
        with pytest.raises(NotProven, match="1 of the network's tensors could not be tested") as caught:
            prove(Hidden(), spec_for(Hidden(), HIDDEN | {"far": word}), X)
        assert caught.value.problems[0].startswith("far  has an effect")
        assert caught.value.words == (("h",) if word == "h" else ())


class Unlearnt(torch.autograd.Function):
    """As reversible layers, which know no gradient in evaluation mode."""

    @staticmethod
    def forward(_, x):
        return x.relu()

    @staticmethod
    def backward(_, slopes):
        raise AssertionError("to train it, put it into training mode")


@pytest.mark.parametrize("between", [lambda x: torch.sign(x - 1) + 0.0, Unlearnt.apply])
def test_steps_without_a_gradient_are_looked_at_tensor_by_tensor(between):
    network = Two(between)
    inputs = torch.randn(64, 3)
    assert prove(network, spec_for(network, HIDDEN), inputs).without_effect == ()
    with pytest.raises(NotProven):
        prove(network, spec_for(network, HIDDEN | {"one.bias": "."}), inputs)


def test_pictures_are_drawn_smaller_where_the_network_takes_those():
    sides = []

    class Seeing(nn.Module):
        def __init__(self, least):
            super().__init__()
            self.conv, self.head, self.least = nn.Conv2d(3, 4, 3), nn.Linear(4, 2), least

        def forward(self, x):
            sides.append(x.shape[-1])
            if x.shape[-1] < self.least:
                raise ValueError("too small")
            return self.head(torch.relu(self.conv(x)).mean((2, 3)))

    axes = {"conv.weight": "c . . .", "conv.bias": "c", "head.weight": ". c", "head.bias": "."}
    for least in (0, 96):
        sides.clear()
        prove(Seeing(least), spec_for(Seeing(0), axes), torch.rand(2, 3, 100, 100))
        assert 100 in sides and (64 in sides) and (sides.count(100) > 2) == (least > 0)


# ---------------------------------------------------------------------------------- networks as they come


class Opened(Two):
    def __init__(self):
        super().__init__()
        self.file = Path(__file__).open()


class Keeping(Two):
    """Keeps its last activation, with its history; a copy of it fails."""

    def forward(self, x):
        self.kept = self.one(x)
        return self.two(torch.relu(self.kept))


def pruned():
    network = Two()
    prune.l1_unstructured(network.one, "weight", 0.5)
    return network


def normed():
    network = Two()
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(network.one)
    return network


@pytest.mark.parametrize("make", [Opened, Keeping, pruned, normed])
def test_networks_that_cannot_be_copied_are_inferred_and_left_as_they_were(make):
    network = make()
    network(X)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    kept = dict(vars(network)), dict(vars(network.one))
    found = infer_spec(network, X)
    assert list(found.fitted.words.values()) == [6] and found.proof.largest_difference < 1e-14
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(a is b for a, b in zip(kept[0].values(), vars(network).values(), strict=True))
    assert all(a is b for a, b in zip(kept[1].values(), vars(network.one).values(), strict=True))
    if make is Opened:
        network.file.close()


@pytest.mark.parametrize("run_before", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_networks_that_cache_in_evaluation_are_inferred(run_before):
    network, inputs = mutations.Biased(caches=True, depth=1).eval(), torch.randn(2, 3, 4, 4)
    if run_before:
        network(inputs)
    caches = dict(network.cache)
    found = infer_spec(network, inputs)
    assert found.proof is not None and not found.refused
    assert found.fitted.words == infer_spec(mutations.Biased(depth=1), inputs).fitted.words
    assert network.cache.keys() == caches.keys()
    assert all(network.cache[key] is caches[key] for key in caches)


def test_what_a_run_leaves_in_lists_and_new_attributes_is_taken_back():
    class Growing(Two):
        def __init__(self):
            super().__init__()
            self.log, self.nested = [1], {"a": [2]}

        def forward(self, x):
            self.log.append(x)
            self.nested["a"].append(x)
            self.new = x
            return super().forward(x)

    network = Growing()
    log, nested = network.log, network.nested["a"]
    with fresh(network, X) as refresh:
        for _ in range(2):
            network(X)
            assert len(log) == 2 and len(nested) == 2
            refresh()
            assert log == [1] and nested == [2] and not hasattr(network, "new")
    assert network.log is log and log == [1] and network.training


def test_tensors_that_share_memory_share_it_in_another_precision():
    network = Two()
    network.register_buffer("view", network.one.weight.data[1:3])
    with own_state(network, torch.float64), torch.no_grad():
        network.one.weight.fill_(7)
        assert network.view.dtype is torch.float64 and network.view.eq(7).all()
    assert network.view.dtype is torch.float32 and not network.view.eq(7).any()


def test_an_operation_without_float64_is_proven_in_float32_and_that_is_said():
    def single(x):
        if x.dtype is torch.float64:
            raise RuntimeError("expected Float32")
        return torch.relu(x)

    network = Two(single)
    proof = prove(network, spec_for(network, HIDDEN), X)
    assert proof.precision == "float32" and proof.largest_difference < 1e-5 < proof.tolerance < 1e-3
    for wrong in ({"one.bias": "."}, {"two.weight": ". ."}):
        with pytest.raises(NotProven):
            prove(network, spec_for(network, HIDDEN | wrong), X)


def test_buffers_that_the_network_writes_are_the_same_in_every_run():
    class Counting(Two):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return super().forward(x) * self.count

    network = Counting()
    assert prove(network, spec_for(network, HIDDEN | {"count": ""}), X).largest_difference < 1e-14
    assert network.count == 0


def test_two_words_of_two_units_each_are_told_apart():
    """Both are swapped whenever they are drawn, so only sets of words show which is which."""

    class Pairs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.out = (torch.nn.Linear(*sizes) for sizes in ((3, 2), (2, 2), (2, 3)))

        def forward(self, x):
            return self.out(torch.relu(self.two(torch.relu(self.one(x)))))

    right = {"one.weight": "a .", "one.bias": "a", "two.weight": "b a", "two.bias": "b", "out.weight": ". b"}
    right |= {"out.bias": "."}
    network, x = Pairs(), torch.randn(4, 3)
    assert prove(network, spec_for(network, right), x).largest_difference < 1e-12
    for wrong in ({"two.bias": "a"}, {"one.bias": "b"}, {"out.weight": ". a"}, {"two.weight": "a b"}):
        with pytest.raises(NotProven):
            prove(network, spec_for(network, right | wrong), x)


# -------------------------------------------------------------------------------------------- mutations


def test_the_tolerance_never_covers_a_network_that_amplifies_rounding():
    assert proving._tolerance(1.0, torch.float64) < 1e-7 and proving._tolerance(0.0, torch.float64) > 1e-13


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*projections.*:UserWarning")
@pytest.mark.parametrize("name", [*mutations.BUILT_IN, *mutations.OWN])
def test_no_mutant_of_a_right_spec_is_accepted(name):
    each = 3 if name in ("googlenet", "resnet50") else 8  # of a hundred layers
    counts = mutations.measured(name, each, seed=1)
    assert counts["mutants"] == each or counts["again"] or not counts["words"]  # small specs have few
    assert counts["wrong"] >= counts["mutants"] / 2
    assert not counts["right refused"] and not counts["accepted wrong"] and not counts["refused valid"]


def test_weights_near_their_own_keep_what_a_mask_forbids():
    net = nn.Linear(3, 3)
    mask = torch.tensor([0.0, -torch.inf, 1.0])
    net.register_buffer("mask", mask.clone())
    with torch.no_grad():
        for k in range(8):
            stir(net, generator(k, "near"))
    assert net.mask[:2].equal(mask[:2]) and not net.mask[2].equal(mask[2])


class Halved(Two):
    """A first call halves a weight, for all calls after it."""

    def __init__(self):
        super().__init__()
        self.done = False

    def forward(self, x):
        if not self.done:
            with torch.no_grad():
                self.two.weight.div_(2)
            self.done = True
        return super().forward(x)


def test_what_a_first_call_writes_into_weights_is_taken_back():
    network = Halved()
    assert prove(network, spec_for(network, HIDDEN), X).largest_difference < 1e-14
    assert not network.done
    for wrong in ({"one.bias": "."}, {"two.weight": ". ."}):
        with pytest.raises(NotProven):
            prove(network, spec_for(network, HIDDEN | wrong), X)
    assert infer_spec(network, X).proof is not None


class Halting(nn.Module):
    """As many steps as a unit of its own asks for: nothing that is computed from `stop` is an output."""

    def __init__(self, ends):
        super().__init__()
        self.first, self.step, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.stop, self.ends = nn.Linear(6, 1), ends

    def forward(self, x):
        state = self.first(x).relu()
        for _ in range(4):
            if self.ends(torch.sigmoid(self.stop(state))):
                break
            state = state + self.step(state).relu()
        return self.head(state)


STOPS = {
    "sometimes": lambda p: p.mean() > 0.9,
    "never": lambda p: p.mean() > 1,
    "never, the other way round": lambda p: torch.ones(()) < p.mean(),
    "never, by a number": lambda p: p.mean().item() > 1,
    "always, of all": lambda p: (p > 0.01).all(),
    "sometimes, of all": lambda p: (p > 0.5).all(),
    "sometimes, of any": lambda p: (p > 0.7).any(),
    "never, of any": lambda p: (p > 1).any(),
    "a count": lambda p: (p > 0.6).sum() > 2,
    "a share": lambda p: (p > 0.7).double().mean().item() > 0.5,
    "a length": lambda p: len(p[p > 0.6]) > 2,
    "places": lambda p: len((p.flatten() > 0.1).nonzero()) > 2,
    "equal truths": lambda p: torch.equal(p > 0.1, torch.ones_like(p, dtype=torch.bool)),
    "nearly": lambda p: torch.allclose(p, torch.full_like(p, 0.6), rtol=0.01),
    "steps": lambda p: (p / 0.5).round().sum() > 3,
    "whole numbers": lambda p: (p / 0.7).long().any(),
    "a floor": lambda p: (p // 0.7).sum() > 3,
    "a floor by its name": lambda p: torch.div(p, 0.7, rounding_mode="floor").sum() > 3,
    "a histogram": lambda p: torch.histc(p.detach(), 4)[3] > 3,
    "a list": lambda p: max(map(max, p.tolist())) > 1,
    "a list of truths": lambda p: any(map(any, (p > 0.9).tolist())),
    "numpy": lambda p: p.detach().numpy().max() > 1,
    "an array": lambda p: np.asarray(p.detach()).mean() > 1,
    "an array of truths": lambda p: np.asarray(p > 0.9).sum() > 3,
    "another package's tensor": lambda p: np.from_dlpack(p.detach()).max() > 1,
    "memory": lambda p: struct.unpack("d", bytes(p.detach().untyped_storage())[:8])[0] > 1,
    "a copy": lambda p: copy.deepcopy(p.detach() > 0.9).any(),
    "a number": lambda p: float(p.sum()) > 4,
    "a whole number": lambda p: int(p.sum()) > 3,
    "an index": lambda p: len([0, 1, 2][: (p.sum() / 4).long() + 1]) > 1,
    "a text": lambda p: f"{p.sum():.1f}" == "0.0",
    "membership": lambda p: 0.5 in p,
    "the larger of two": lambda p: max(p.sum(), torch.tensor(9.0)) > 9,
    "places of floats": lambda p: len(torch.relu(p - 0.9).nonzero()) > 2,
    "places by one argument": lambda p: len(torch.where(p > 0.9)[0]) > 2,
    "a count of floats": lambda p: torch.count_nonzero(torch.relu(p - 0.9)) > 2,
    "different floats": lambda p: len(p.unique()) < 2,
    "different in a row": lambda p: len(p.unique_consecutive()) < 2,
    "repeats": lambda p: len(torch.ones(4).repeat_interleave((p.flatten() * 1.2).long())) > 3,
    "counts": lambda p: len(torch.bincount((p.flatten() * 2).long())) > 2,
    "the place of the largest": lambda p: p.argmax().item() > 9,
    "sorted": lambda p: p.flatten().sort().indices[0].item() > 9,
    "bins": lambda p: torch.bucketize(p, torch.tensor([0.9, 0.95])).sum() > 3,
}


# Of each way on which the program sees it, one; the others go the same ways.
WAYS = {"never", "never, by a number", "a count", "places", "equal truths", "nearly", "steps", "bins"}
WAYS |= {"a floor by its name", "a histogram", "a list", "numpy", "an array", "another package's tensor"}
WAYS |= {"whole numbers", "memory", "a copy", "the place of the largest", "repeats"}
SEEN = [
    pytest.param(it, id=name, marks=[pytest.mark.sweep] * (name not in WAYS)) for name, it in STOPS.items()
]


@pytest.mark.parametrize("ends", SEEN)
def test_what_decides_when_a_loop_ends_is_seen_where_no_output_is_computed_from_it(ends):
    """Also where no trial makes it end sooner, or all make it end: no output shows anything then."""
    torch.manual_seed(0)
    right = {"first.weight": "h .", "first.bias": "h", "step.weight": "h h", "step.bias": "h"}
    right |= {"stop.weight": ". h", "stop.bias": ".", "head.weight": ". h", "head.bias": "."}
    network, x = Halting(ends), torch.randn(4, 5)
    assert prove(network, spec_for(network, right), x).without_effect == ()
    with pytest.raises(NotProven):
        prove(network, spec_for(network, right | {"stop.weight": ". ."}), x)


@pytest.mark.parametrize("chosen", [lambda above, h: h if above.any() else -h,
                                    lambda above, h: torch.where(above, h, -h)],
                         ids=["what runs", "what is taken"])  # fmt: skip
def test_units_that_are_compared_with_thresholds_of_their_own_move_with_these(chosen):
    """No unit ever reaches its threshold; which it is held against shows in the distance."""

    class Thresholds(Two):
        def __init__(self):
            super().__init__(lambda h: chosen(h > self.least + 9, h))
            self.least = nn.Parameter(torch.rand(6))

    torch.manual_seed(0)
    network = Thresholds()
    assert prove(network, spec_for(network, HIDDEN | {"least": "h"}), X).largest_difference < 1e-14
    with pytest.raises(NotProven):
        prove(network, spec_for(network, HIDDEN | {"least": "."}), X)


def test_what_a_gate_hides_in_one_trial_is_looked_at_in_others():
    """With these weights it is mostly shut, and nothing behind it counts."""

    class Gated(Halting):
        def forward(self, x):
            state = self.first(x).relu()
            for _ in range(4):
                state = state + (torch.sigmoid(self.stop(state)) > 0.9) * self.step(state).relu()
            return self.head(state)

    torch.manual_seed(0)
    right = {"first.weight": "h .", "first.bias": "h", "step.weight": "h h", "step.bias": "h"}
    right |= {"stop.weight": ". h", "stop.bias": ".", "head.weight": ". h", "head.bias": "."}
    network, x = Gated(None), torch.randn(4, 5)
    assert prove(network, spec_for(network, right), x).without_effect == ()
    with pytest.raises(NotProven):
        prove(network, spec_for(network, right | {"step.weight": ". h"}), x)


def test_what_decides_on_what_is_not_kept_says_nothing():
    """An unused head is held against a threshold, and no output of the function depends on that."""

    class Confident(Halting):
        def forward(self, x):
            state = self.first(x).relu()
            return {"logits": self.head(state), "sure": (self.stop(state) > 0.5).double()}

    right = {"first.weight": "h .", "first.bias": "h", "step.weight": ". .", "step.bias": "."}
    right |= {"stop.weight": ". .", "stop.bias": ".", "head.weight": ". h", "head.bias": "."}
    network, x = Confident(None), torch.randn(4, 5)
    spec = spec_for(network, right)
    assert "stop.weight" in prove(network, spec, x, not_kept=["sure"]).not_seen
    with pytest.raises(NotProven):
        prove(network, spec, x)


def test_numbers_that_decide_are_as_far_apart_as_they_can_be_where_there_are_more_or_fewer():
    """Or of another operation, or shape; in which order they decided is no difference."""

    def decided(*rows):
        return Decided(tuple(((name, (len(row),)), torch.tensor(row).double(), 2.0) for name, row in rows))

    one = decided(("gt", [1.0, 2.0]), ("gt", [1.5, 0.5]))
    assert one.difference(decided(("gt", [0.5, 1.5]), ("gt", [2.0, 1.0]))) == 0
    assert one.difference(decided(("gt", [0.5, 1.5]), ("gt", [2.0, 2.0]))) == pytest.approx(0.25)
    for other in (
        decided(),
        decided(("gt", [1.0, 2.0])),
        decided(("gt", [1.0, 2.0, 1.5, 0.5])),
        decided(("lt", [1.0, 2.0]), ("lt", [1.5, 0.5])),
    ):
        assert one.difference(other) == other.difference(one) == math.inf
