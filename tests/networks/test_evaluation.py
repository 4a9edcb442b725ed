"""Evaluation: what the figures mean, and what is refused."""

import copy
import functools
import math
import random
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from rebasin_cli.datasets.batches import First, Keyed
from rebasin_cli.datasets.loaders import LoaderData
from rebasin_cli.errors import DataError, NetworkError, RebasinError, UsageError
from rebasin_cli.networks import evaluation, pairing
from rebasin_cli.networks.calibration import calibrated
from rebasin_cli.networks.evaluation import Scores, evaluate
from rebasin_cli.networks.forward import evaluating
from rebasin_cli.networks.losses import OWN, Loss, metrics_of
from rebasin_cli.runtime.ranks import Ranks
from rebasin_cli.types import Quantity


class Fixed(nn.Module):
    """The logits of each sample are its inputs."""

    def forward(self, x):
        return x


def logits_of(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log().float()


def test_loss_and_accuracy_are_means_over_samples_not_over_batches():
    rows = logits_of((0.5, 0.5), (0.9, 0.1), (0.2, 0.8))
    targets = torch.tensor([1, 0, 0])
    split = evaluate(Fixed(), [(rows[:2], targets[:2]), (rows[2:], targets[2:])])
    whole = evaluate(Fixed(), [(rows, targets)])
    expected = -(math.log(0.5) + math.log(0.9) + math.log(0.2)) / 3
    assert split.loss == pytest.approx(expected, rel=1e-6)
    assert whole.loss == pytest.approx(split.loss, rel=1e-12)
    assert (split.accuracy, split.samples) == (pytest.approx(1 / 3), 3)


def test_sums_are_kept_in_float64():
    rows, targets = torch.tensor([[0.0, 1e8], [0.0, 2.0]]), torch.tensor([0, 0])
    for batches in ([(rows, targets)], list(zip(rows.split(1), targets.split(1), strict=True))):
        one = nn.functional.cross_entropy(rows[1:], targets[1:]).item()
        assert evaluate(Fixed(), batches).loss == (1e8 + one) / 2


def test_calibration_error_compares_confidence_with_accuracy_in_each_bin():
    # 0.6 lies in the bin (8/15, 9/15], 0.9 in (13/15, 14/15]
    rows = logits_of((0.59, 0.41), (0.59, 0.41), (0.9, 0.1), (0.9, 0.1))
    targets = torch.tensor([0, 1, 0, 0])
    expected = (2 * abs(0.5 - 0.59) + 2 * abs(1.0 - 0.9)) / 4
    assert evaluate(Fixed(), [(rows, targets)]).ece == pytest.approx(expected, abs=1e-6)
    batches = [(rows[i : i + 1], targets[i : i + 1]) for i in range(4)]
    assert evaluate(Fixed(), batches).ece == pytest.approx(expected, abs=1e-6)


def test_a_confidence_on_the_edge_of_two_bins_belongs_to_the_lower_one():
    """Bins are open below and closed above: of four, ½ is in (¼, ½], and 1 in the last."""
    rows = torch.tensor([[0.0, 0.0], [0.0, -math.inf], [math.log(3), 0.0]], dtype=torch.float64)
    found = calibrated(rows, torch.tensor([0, 0, 1]), 4)
    assert found["samples"] == [0, 1, 1, 1]
    assert found["confidence"][1] == 0.5 and found["accuracy"][1:] == [1, 0, 1]
    assert found["ece"] == pytest.approx((0.5 + 0.75 + 0) / 3)
    halves = calibrated(rows[:1], torch.tensor([1]), 2)
    assert halves["samples"] == [1, 0] and halves["ece"] == 0.5


def test_a_perfectly_sure_and_right_network_has_no_calibration_error():
    rows = torch.eye(3) * 100
    assert evaluate(Fixed(), [(rows, torch.arange(3))]) == Scores(
        pytest.approx(0), {"accuracy": 1.0}, 3, pytest.approx(0)
    )


def test_the_network_is_measured_in_evaluation_mode_and_gets_its_modes_back():
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.9), nn.Linear(8, 2))
    network.train()
    network[1].eval()  # a frozen norm
    before = network[1].running_mean.clone()
    batches = [(torch.rand(6, 4), torch.zeros(6, dtype=torch.int64))]
    assert evaluate(network, batches) == evaluate(network, batches)
    assert torch.equal(network[1].running_mean, before)
    assert [module.training for module in network] == [True, False, True, True]


def test_modes_come_back_even_if_the_network_fails():
    network = nn.Linear(3, 2).train()
    with pytest.raises(ZeroDivisionError), evaluating(network):
        assert not network.training
        _ = 1 / 0
    assert network.training


def test_a_dict_becomes_keywords_and_a_tuple_arguments():
    class Two(nn.Module):
        def forward(self, a, b):
            return a - b

    rows, targets = torch.eye(2) * 9, torch.tensor([0, 1])
    for inputs in ({"b": torch.zeros(2, 2), "a": rows}, (rows, torch.zeros(2, 2)), [rows, torch.zeros(2, 2)]):
        assert evaluate(Two(), [(inputs, targets)]).accuracy == 1.0


@pytest.mark.parametrize(
    "wrap, output",
    [
        (lambda x: {"logits": x, "other": -x}, "logits"),
        (lambda x: (-x, x), 1),
        (lambda x: (-x, x), "-1"),
        (lambda x: SimpleNamespace(logits=x), "logits"),
        (lambda x: {"items": x}, "items"),
    ],
)
def test_output_selects_the_logits_by_key_or_index(wrap, output):
    class Wrapped(nn.Module):
        def forward(self, x):
            return wrap(x)

    batches = [(torch.eye(2), torch.tensor([0, 1]))]
    assert evaluate(Wrapped(), batches, output=output).accuracy == 1.0
    with pytest.raises(NetworkError, match="--output KEY"):
        evaluate(Wrapped(), batches)
    with pytest.raises(NetworkError, match="which has no 'absent'"):
        evaluate(Wrapped(), batches, output="absent")


def test_own_loss_and_metric_are_weighted_by_samples():
    def equal(outputs, targets):
        return (outputs == targets).float().mean()

    batches = [(torch.ones(1, 2), torch.ones(1, 2)), (torch.ones(3, 2), torch.zeros(3, 2))]
    scores = evaluate(
        Fixed(),
        batches,
        loss=nn.functional.mse_loss,
        metric=equal,
    )
    assert (scores.loss, scores.metrics, scores.samples) == (0.75, {"equal": 0.25}, 4)
    assert math.isnan(scores.ece)


def test_a_function_without_arguments_makes_the_metric_and_its_numbers_may_be_numpys():
    def metric():
        return lambda outputs, targets: np.float32((outputs.argmax(1) == targets).float().mean())

    batches = [(torch.eye(3), torch.tensor([0, 1, 1]))]
    (found,) = evaluate(nn.Identity(), batches, metric=metric).metrics.values()
    assert found == pytest.approx(2 / 3)


def test_a_loss_that_gives_no_tensor_cannot_be_learnt_by():
    loss = Loss.of(lambda outputs, targets: 0.5)
    with pytest.raises(NetworkError, match="batch 0: .* is float; expected a tensor with one number"):
        loss(torch.eye(3), torch.tensor([0, 1, 1]))


def test_positions_are_classified_where_outputs_have_them():
    outputs = torch.eye(2).expand(3, 2, 2) * 50
    scores = evaluate(Fixed(), [(outputs, torch.tensor([[0, 1]] * 3))])
    assert (scores.accuracy, scores.samples) == (1.0, 3)
    assert scores.loss == pytest.approx(0)


def test_calibration_is_over_all_targets_of_a_sample():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(4, 3, 5, generator=generator)
    targets = torch.randint(3, (4, 5), generator=generator)
    flat = evaluate(Fixed(), [(outputs.movedim(1, -1).flatten(0, 1), targets.flatten())])
    whole = evaluate(Fixed(), [(outputs, targets)], each=True)
    assert whole.ece == pytest.approx(flat.ece, abs=1e-9) and flat.ece > 0.1
    assert whole.samples == 4 and sum(whole.bins[0]) == 20
    torch.testing.assert_close(whole.each["loss"].mean().item(), flat.loss, rtol=1e-6, atol=0)


def test_outputs_that_are_no_numbers_cost_infinitely_much_and_are_wrong():
    class Broken(nn.Module):
        def forward(self, x):
            return x / 0 * 0

    scores = evaluate(Broken(), [(torch.ones(2, 2), torch.tensor([0, 0]))])
    assert (scores.loss, scores.accuracy) == (math.inf, 0.0)


@pytest.mark.parametrize("shape", [(), (3,)], ids=["one target a sample", "three targets a sample"])
def test_small_outputs_of_many_batches_give_the_figures_of_each_batch_to_the_bit(shape, monkeypatch):
    """Scored as one, or every batch by itself; some targets do not count, and one batch is shorter."""
    rng = torch.Generator().manual_seed(0)
    inputs = torch.randn(70, 5, *shape, generator=rng)
    targets = torch.randint(0, 5, (70, *shape), generator=rng)
    targets[torch.rand(targets.shape, generator=rng) < 0.2] = -100
    batches = list(zip(inputs.split(16), targets.split(16), strict=True))
    calls = []
    monkeypatch.setattr(evaluation, "fill", lambda *given, fill=evaluation.fill: calls.append(fill(*given)))
    together = evaluate(Fixed(), batches, each=True)
    assert len(calls) == 1
    monkeypatch.setattr(evaluation, "TOGETHER", 1)
    alone = evaluate(Fixed(), batches, each=True)
    assert len(calls) == 1 + len(batches)
    assert together.figures == alone.figures and repr(together.bins) == repr(alone.bins)
    assert together.classes == alone.classes and together.sizes == alone.sizes == (16, 16, 16, 16, 6)
    for name, values in alone.each.items():
        torch.testing.assert_close(together.each[name], values, rtol=0, atol=0, equal_nan=True)
    if not shape:
        assert torch.equal(together.numbers, targets)


def test_a_network_that_gives_every_batch_in_the_same_memory_is_measured_as_each_was():
    class Reuses(nn.Module):
        def forward(self, x):
            self.kept = x.clone() if not hasattr(self, "kept") else self.kept.copy_(x)
            return self.kept

    rows = torch.eye(4).repeat(3, 1) * 9
    right = list(zip(rows.split(4), torch.arange(4).repeat(3).split(4), strict=True))
    wrong = [(inputs.flip(0), targets) for inputs, targets in right[:1]]
    assert evaluate(Reuses(), [*right, *wrong]).accuracy == pytest.approx(0.75)


def test_empty_batches_do_not_count_but_no_samples_at_all_is_an_error():
    empty = (torch.ones(0, 2), torch.ones(0, dtype=torch.int64))
    full = (torch.eye(2), torch.tensor([0, 1]))
    assert evaluate(Fixed(), [full, empty]) == evaluate(Fixed(), [full])
    for batches in ([], [empty]):
        with pytest.raises(DataError, match="no samples"):
            evaluate(Fixed(), batches)


@pytest.mark.parametrize(
    "inputs, targets, error, message",
    [
        (torch.eye(2), torch.tensor([0, 2]), DataError, "0…2, but the network knows 2 classes"),
        (torch.eye(2), torch.tensor([-7, 0]), DataError, "-7…0"),
        (torch.eye(2), torch.tensor([0.0, 1.0]), DataError, "targets are float32"),
        (torch.eye(2), torch.tensor([[0, 1]]), DataError, "has 2 inputs and 1 targets"),
        (torch.ones(2), torch.tensor([0, 1]), NetworkError, "do not fit"),
        (torch.eye(2), 1, DataError, "targets are int"),
        (torch.tensor([[math.nan, 1.0]]), torch.tensor([0]), DataError, "batch 1 of the data has NaN"),
    ],
)
def test_batches_that_cannot_be_classified_are_refused_with_their_number(inputs, targets, error, message):
    good = (torch.eye(2), torch.tensor([0, 1]))
    with pytest.raises(error, match=message) as raised:
        evaluate(Fixed(), [good, (inputs, targets)])
    assert "batch 1" in str(raised.value) or "targets are" in str(raised.value)


def test_a_network_that_fails_is_a_network_error_with_what_it_was_given():
    with pytest.raises(NetworkError, match=r"float32 \(2, 2\): RuntimeError"):
        evaluate(nn.Linear(3, 2), [(torch.eye(2), torch.tensor([0, 1]))])


def test_a_loss_that_fails_is_named():
    def strange(outputs, targets):
        raise KeyError("weights")

    with pytest.raises(NetworkError, match="strange fails on batch 0: KeyError"):
        evaluate(Fixed(), [(torch.eye(2), torch.tensor([0, 1]))], loss=strange)


def test_a_loader_that_fails_is_a_data_error_with_the_batch():
    class Loader:
        def __iter__(self):
            yield torch.eye(2), torch.tensor([0, 1])
            raise FileNotFoundError("b.png")

    with pytest.raises(DataError, match="batch 1: FileNotFoundError: b.png"):
        evaluate(Fixed(), Loader())
    with pytest.raises(DataError, match="batch 0: TypeError"):
        evaluate(Fixed(), 3)


def test_each_samples_figures_are_kept_and_their_means_are_the_scores():
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(4, (30,), generator=torch.Generator().manual_seed(1))
    scores = evaluate(Fixed(), [(rows[:20], targets[:20]), (rows[20:], targets[20:])], each=True)
    assert all(len(each) == 30 and each.dtype == torch.float32 for each in scores.each.values())
    assert scores.each["loss"].mean().item() == pytest.approx(scores.loss, rel=1e-5)
    assert scores.each["accuracy"].mean().item() == pytest.approx(scores.accuracy)
    assert evaluate(Fixed(), [(rows, targets)]).each is None
    own = evaluate(Fixed(), [(rows, targets)], each=True, loss=lambda outputs, targets: 1.0)
    assert own.sampled("loss") is None  # a batch's mean says nothing of single samples
    assert own.sizes == (30,) and len(own.each["loss"]) == 1 and len(own.each["accuracy"]) == 30


def test_each_of_samples_with_many_targets_is_their_mean():
    outputs = torch.tensor([[[4.0, 4.0], [0.0, 0.0]]] * 3)  # (N, classes, T)
    targets = torch.tensor([[0, 1]] * 3)
    scores = evaluate(Fixed(), [(outputs, targets)], each=True)
    assert [each[0].item() for each in scores.each.values()] == pytest.approx([scores.loss, 0.5])


def test_targets_that_do_not_count_have_no_part_in_their_samples_mean():
    outputs = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([[0, 1, 2, 3, 0], [1, 2, -100, -100, 3], [-100, -100, -100, -100, 2]])
    each = evaluate(Fixed(), [(outputs, targets)], each=True).each
    for k, (rows, its) in enumerate(zip(outputs.mT, targets, strict=True)):
        counted = its != -100
        loss = nn.functional.cross_entropy(rows[counted], its[counted]).item()
        assert each["loss"][k].item() == pytest.approx(loss)
        right = (rows[counted].argmax(1) == its[counted]).double().mean().item()
        assert each["accuracy"][k].item() == pytest.approx(right)


def leaving_out(number):
    return functools.partial(nn.functional.cross_entropy, ignore_index=number)


@pytest.mark.parametrize("loss", [leaving_out, lambda k: nn.CrossEntropyLoss(ignore_index=k)])
@pytest.mark.parametrize("number", [255, -1, 0])
def test_what_the_own_loss_leaves_out_does_not_count_in_accuracy(loss, number):
    outputs, targets = torch.randn(6, 4, 5), torch.randint(1, 4, (6, 5))
    without = targets.clone()
    without[3:, 1], targets[3:, 1] = -100, number  # the first batch has all of its targets
    alike, found = (
        evaluate(nn.Identity(), [(x[:3], y[:3]), (x[3:], y[3:])], loss=given)
        for x, y, given in ((outputs, without, leaving_out(-100)), (outputs, targets, loss(number)))
    )
    assert found.figures == alike.figures and found.classes == alike.classes


def of_those_below_four(outputs, targets):
    return nn.functional.cross_entropy(outputs, torch.where(targets < 4, targets, -100))


@pytest.mark.parametrize("late", [False, True])
def test_one_number_that_is_no_class_does_not_count_and_of_several_accuracy_is_left_out(late):
    outputs, targets = torch.randn(8, 4), torch.arange(8) % 4
    batch, before = 4 * late, [(outputs[:4], targets[:4])] * late
    for numbers, right in ((254, 254), True), ((254, 255), False):
        targets[batch : batch + 2] = torch.tensor(numbers)
        batches = [*before, (outputs[batch:], targets[batch:])]
        found = evaluate(nn.Identity(), batches, loss=of_those_below_four, each=True)
        assert ("accuracy" in found.metrics) == right and bool(found.classes) == right
        assert ("accuracy" in found.each) == right
    counts = outputs[targets < 4].argmax(1) == targets[targets < 4]
    targets[targets > 4] = 255
    found = evaluate(nn.Identity(), [(outputs, targets)], loss=of_those_below_four)
    assert found.accuracy == pytest.approx(counts.double().mean().item())


class Several(nn.Module):
    """Two outputs, of which a loss of one's own takes what it needs."""

    def forward(self, x):
        return {"main": x, "aux": -x}


def of_main(outputs, targets):
    return nn.functional.cross_entropy(outputs["main"], targets)


def of_truths(outputs, targets):
    return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.float())


def of_ranks(outputs, targets):
    above = targets[:, None] > torch.arange(outputs.shape[1])
    return nn.functional.binary_cross_entropy_with_logits(outputs, above.float())


@pytest.mark.parametrize(
    ("network", "loss", "columns", "classes"),
    [(Several(), of_main, 4, 4), (nn.Identity(), of_truths, 1, 2), (nn.Identity(), of_ranks, 4, 5)],
)
def test_integers_that_are_no_class_numbers_of_the_outputs_have_no_accuracy(network, loss, columns, classes):
    outputs, targets = torch.randn(10, columns), torch.arange(10) % classes
    found = evaluate(network, [(outputs, targets)], loss=loss)
    assert [*found.metrics] == [] and found.loss == pytest.approx(loss(network(outputs), targets).item())


def test_the_bins_of_a_reliability_diagram():
    rows = logits_of((0.59, 0.41), (0.59, 0.41), (0.9, 0.1), (0.9, 0.1))
    samples, confidence, accuracy = evaluate(Fixed(), [(rows, torch.tensor([0, 1, 0, 0]))]).bins
    assert [k for k, count in enumerate(samples) if count] == [8, 13] and samples[8] == 2
    assert (confidence[8], confidence[13]) == (pytest.approx(0.59), pytest.approx(0.9))
    assert (accuracy[8], accuracy[13]) == (0.5, 1.0) and math.isnan(accuracy[0])


def test_what_is_lacking_is_advised_and_no_more():
    rows, floats = torch.zeros(4, 3), torch.zeros(4, 1)

    def mine(outputs, targets):
        return 1.0

    with pytest.raises(DataError, match="targets are float32") as caught:
        evaluate(Fixed(), [(rows, floats)], metric=mine)
    assert "give --loss module" in caught.value.hint and "--metric" not in caught.value.hint
    assert evaluate(Fixed(), [(rows, floats)], loss=mine).metrics == {}  # accuracy would mean nothing
    with pytest.raises(DataError, match="targets are float32") as caught:
        evaluate(Fixed(), [(rows, floats)])
    assert "--loss module:function and --metric module:function" in caught.value.hint
    assert evaluate(Fixed(), [(rows, floats)], loss=mine, metric=mine).metrics == {"mine": 1}


def test_classes_in_the_last_axis_are_found_by_the_targets():
    """As language models return them; where both axes fit, it is the second, as always."""
    last, targets = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    one, other = (evaluate(Fixed(), [(each, targets)]) for each in (last, last.movedim(-1, 1)))
    assert (one.loss, one.metrics) == (other.loss, other.metrics)
    assert evaluate(Fixed(), [(torch.zeros(2, 5, 5), torch.zeros(2, 5, dtype=torch.int64))]).samples == 2


def test_a_dictionary_is_a_batch_of_inputs_by_name_and_of_targets():
    class Named(nn.Module):
        def forward(self, rows, more):
            return rows + more

    rows, targets = torch.eye(2), torch.tensor([0, 1])
    expected = evaluate(Fixed(), [(2 * rows, targets)])
    assert evaluate(Named(), [{"rows": rows, "more": rows, "labels": targets}]) == expected
    assert evaluate(Fixed(), [{"image": 2 * rows, "label": targets}]) == expected  # alone, by no name
    keyed = LoaderData("mine", "test", [{"image": 2 * rows, "kind": targets}], keyed=Keyed("kind"))
    assert evaluate(Fixed(), keyed) == expected
    absent = LoaderData("mine", "test", [{"image": rows, "kind": targets}], keyed=Keyed("sort"))
    with pytest.raises(DataError, match="has no 'sort': it has 'image', 'kind'"):
        evaluate(Fixed(), absent)
    with pytest.raises(DataError, match="targets are NoneType"):
        evaluate(Fixed(), [{"image": rows}])


# what a user brings


ROWS = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(4, (30,), generator=torch.Generator().manual_seed(1))
IN_SEVENS = list(zip(ROWS.split(7), TARGETS.split(7), strict=True))


def test_a_cross_entropy_of_ones_own_gives_the_same_figures_to_the_bit():
    def mine(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    one, other = (evaluate(Fixed(), IN_SEVENS, loss=loss, each=True) for loss in (None, mine))
    assert one.loss == other.loss and torch.equal(one.each["loss"], other.each["loss"])
    assert (one.metrics, math.isnan(other.ece)) == (other.metrics, True)
    assert other.quantities[0].name == "mine" and not other.quantities[0].unit


def test_what_is_learnt_by_is_the_mean_of_what_counts_in_32_bits():
    loss, some = Loss(), torch.where(torch.arange(30) < 10, TARGETS, -100)
    whole = nn.functional.cross_entropy(ROWS[:10], TARGETS[:10])
    torch.testing.assert_close(loss(ROWS, some), whole)
    half = (30 * ROWS).bfloat16()
    assert torch.equal(loss(half, TARGETS), loss(half.float(), TARGETS)) and loss(half, TARGETS) > 1
    rows = ROWS.clone().requires_grad_()
    nothing = loss(rows, torch.full((30,), -100))
    nothing.backward()
    assert nothing == 0 and not rows.grad.any()


class MeanOfLargest:
    """A metric over the whole set, which no mean over batches gives: the mean of the three largest."""

    name, unit, larger_is_better, range = "largest", "V", False, (-10, 10)

    def __init__(self):
        self.reset()

    def update(self, outputs, targets):
        self.seen.append(outputs[:, 0])

    def compute(self):
        return torch.cat(self.seen).topk(3).values.mean()

    def reset(self):
        self.seen = []


@pytest.mark.parametrize("size", [1, 7, 30])
def test_a_metric_over_the_whole_set_is_the_same_however_it_is_batched(size):
    batches = list(zip(ROWS.split(size), TARGETS.split(size), strict=True))
    scores = evaluate(Fixed(), batches, metric=MeanOfLargest, each=True)
    assert scores.metrics == {"largest": ROWS[:, 0].topk(3).values.mean().item()}
    assert scores.quantities[1] == Quantity("largest", "V", False, (-10.0, 10.0))
    assert scores.sampled("largest") is None and scores.sampled("loss") is not None


def test_several_metrics_and_one_of_several_figures_are_all_reported():
    class Both(MeanOfLargest):
        name = "both"

        def compute(self):
            return {"precision": 0.25, "recall": torch.tensor(0.5)}

    def right(outputs, targets):
        return (outputs.argmax(1) == targets).double()

    scores = evaluate(Fixed(), IN_SEVENS, metric=[right, Both()])
    assert list(scores.metrics) == ["right", "precision", "recall"] and scores.metrics["recall"] == 0.5
    assert scores.metrics["right"] == evaluate(Fixed(), IN_SEVENS).accuracy
    with pytest.raises(UsageError, match="two metrics are called right"):
        evaluate(Fixed(), IN_SEVENS, metric=[right, right])


@pytest.mark.parametrize(
    ("objects", "figures"), [(1, {"a b": 0.25, "a  b ": 0.5}), (2, {"f1": 0.25})], ids=["one object", "two"]
)
def test_two_figures_that_reports_have_one_name_for_are_refused(objects, figures):
    class Several(MeanOfLargest):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def compute(self):
            return figures

    with pytest.raises(UsageError, match=f"two metrics are called {[*figures][0].replace(' ', '_')}"):
        evaluate(Fixed(), IN_SEVENS, metric=[Several(f"m{k}") for k in range(objects)])


@pytest.mark.parametrize("other", [{"a": 1.0}, {"a": 1.0, "b": 2.0, "c": 3.0}], ids=["fewer", "more"])
def test_figures_that_a_metric_computes_of_one_model_alone_are_no_row_of_a_report(other):
    def scored(figures):
        metric = MeanOfLargest()
        metric.compute = lambda: figures
        return evaluate(Fixed(), IN_SEVENS, metric=metric)

    found = scored({"a": 1.0, "b": 2.0})
    assert [*found.by_name(["b", "a", "loss"]).items()] == [("b", 2.0), ("a", 1.0), ("loss", found.loss)]
    alone = "c" if "c" in other else "b"
    with pytest.raises(NetworkError, match=f"a metric computes {alone} of one model, and not of another"):
        scored(other).by_name(found.figures)


def into_outputs(outputs, targets):
    return outputs.neg_()[:, 0]


def into_targets(outputs, targets):
    return outputs[:, 0] + targets.add_(1)


class Updating(MeanOfLargest):
    def update(self, outputs, targets):
        into_outputs(outputs, targets)


@pytest.mark.parametrize("what", ["outputs", "targets"])
@pytest.mark.parametrize("asked", ["loss", "metric"])
def test_a_loss_or_metric_that_writes_into_what_others_read_is_refused(asked, what):
    batches = [(ROWS.clone(), TARGETS.clone())]
    with pytest.raises(NetworkError, match=f"into_{what} writes into the {what} of batch 0"):
        evaluate(nn.Identity(), batches, **{asked: globals()[f"into_{what}"]})


def test_an_object_that_writes_into_outputs_is_refused_whatever_the_caller_keeps_of_tensors():
    with torch.inference_mode(), pytest.raises(NetworkError, match="in update, writes into the outputs"):
        evaluate(nn.Linear(ROWS.shape[1], 5), [(ROWS.clone(), TARGETS)], metric=Updating)


class Shifting(nn.Module):
    """Writes into its inputs."""

    def forward(self, rows):
        return rows.sub_(0.5).square()


def test_a_network_that_writes_into_its_inputs_is_measured_on_the_inputs_as_they_are():
    batches = [(ROWS[k : k + 10].clone(), TARGETS[k : k + 10]) for k in (0, 10)]
    expected = nn.functional.cross_entropy((ROWS[:20] - 0.5).square(), TARGETS[:20]).item()
    network = Shifting()
    for _ in range(2):  # the first run tells
        assert evaluate(network, batches).loss == pytest.approx(expected, rel=1e-6)
        assert torch.equal(torch.cat([rows for rows, _ in batches]), ROWS[:20])


def test_a_network_that_writes_into_its_inputs_later_on_is_refused():
    class Later(nn.Module):
        def forward(self, rows):
            return rows.mul_(2) if rows.max() > 100 else rows * 2

    batches = [(ROWS[:10].clone(), TARGETS[:10]), (ROWS[:10] + 200, TARGETS[:10])]
    with pytest.raises(NetworkError, match="writes into its inputs .*, and did not at first"):
        evaluate(Later(), batches)


def test_the_loss_sees_all_that_the_network_returned_and_targets_as_they_are():
    class Two(nn.Module):
        def forward(self, rows):
            return {"boxes": rows, "scores": [rows[:, 0]]}

    seen = []

    def loss(outputs, targets):
        seen.append(targets)
        assert isinstance(outputs, dict) and isinstance(outputs["scores"], list)
        return outputs["boxes"].square().mean(1)

    wanted = [{"boxes": torch.zeros(k, 4)} for k in (3, 0)]
    assert evaluate(Two(), [(ROWS[:2], wanted)], loss=loss).samples == 2
    assert isinstance(seen[0], list) and [len(each["boxes"]) for each in seen[0]] == [3, 0]
    assert evaluate(Two(), [(ROWS, None)], loss=loss).samples == 30 and seen[1] is None
    assert evaluate(Two(), First([(ROWS[:2], wanted)] * 2, 3), loss=loss).samples == 3


def test_a_mean_is_asked_one_sample_at_a_time_where_that_was_asked_for():
    alone = Loss.of(nn.functional.cross_entropy, alone=True)
    scores = evaluate(Fixed(), [(ROWS.double(), TARGETS)], loss=alone, each=True)
    expected = evaluate(Fixed(), [(ROWS, TARGETS)], each=True)
    assert torch.allclose(scores.sampled("loss"), expected.sampled("loss"))


class Broken:
    def update(self, outputs, targets):
        pass

    def compute(self):
        return 0.0


class Raising(MeanOfLargest):
    def compute(self):
        raise ZeroDivisionError("no positives")


def nan(outputs, targets):
    return outputs.mean() * math.nan


def long(outputs, targets):
    return torch.zeros(3)


def wide(outputs, targets):
    return torch.zeros_like(outputs)


def praised(outputs, targets):
    return outputs.mean()


def called_otherwise(outputs, targets):
    return outputs.mean()


praised.higher_is_better, called_otherwise.name = True, "ECE"


@pytest.mark.parametrize(
    "given, told",
    [
        ({"loss": nan}, "nan is NaN on batch 0, where all outputs are numbers|look for a logarithm"),
        ({"loss": long}, r"batch 0: long is float32 \(3,\), and the batch has 7 samples|one number a sample"),
        ({"loss": wide}, r"batch 0: wide is float32 \(7, 4\)|flatten"),
        ({"loss": lambda outputs, targets: "much"}, "batch 0: <lambda> is str|one number"),
        ({"loss": praised}, "the loss praised says that larger is better|A loss is smaller"),
        ({"metric": called_otherwise}, "a metric cannot be called 'ECE'|`name` of its own"),
        ({"metric": Broken}, "the metric Broken has no reset|update"),
        ({"metric": Raising}, "largest fails in compute: ZeroDivisionError: no positives"),
    ],
)
def test_what_a_user_brings_and_what_is_wrong_with_it(given, told):
    with pytest.raises(RebasinError) as caught:
        evaluate(Fixed(), IN_SEVENS, **given)
    for part in told.split("|"):
        assert re.search(part, str(caught.value)), str(caught.value)


@dataclass(frozen=True)
class Thread(Ranks):
    """Ranks that are threads of this process: what each has is copied to all."""

    box: tuple = ()

    def all(self, value):
        had, barrier = self.box
        had[self.rank] = copy.deepcopy(value)
        barrier.wait(60)
        return copy.deepcopy([had[rank] for rank in range(self.size)])


def together(batches, size=3, **how):
    """What so many ranks find, each with the same batches."""
    box = {}, Barrier(size)
    ranks = [Thread(rank, size, box) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        return [*threads.map(lambda rank: evaluate(Fixed(), batches, each=True, ranks=rank, **how), ranks)]


def test_ranks_find_bit_for_bit_what_one_process_does_in_the_order_of_batches():
    rng = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(size, 4, generator=rng), torch.randint(4, (size,), generator=rng))
        for size in (3, 1, 4, 1, 5, 2, 6)
    ]
    alone = evaluate(Fixed(), batches, each=True, bins=4)
    for found in together(batches, bins=4):
        assert found.figures == alone.figures and found.ece == pytest.approx(alone.ece, rel=1e-12)
        assert [row[0] for row in (found.bins, alone.bins)] == [alone.bins[0]] * 2 and len(alone.bins[0]) == 4
        assert (found.sizes, found.classes, found.samples) == (alone.sizes, alone.classes, alone.samples)
        assert torch.equal(found.numbers, alone.numbers)
        assert all(torch.equal(found.each[name], alone.each[name]) for name in alone.each)
    few = evaluate(Fixed(), batches[:1], each=True)
    assert [found.figures for found in together(batches[:1])] == [few.figures] * 3


def test_ranks_add_up_batches_in_their_order_whoever_measured_them():
    """1 + 10¹⁶ + 1 − 10¹⁶ is 0, and 2 where both ones come first, as of the first of two ranks."""
    batches = [(torch.full((1, 2), value).double(), torch.zeros(1)) for value in (1.0, 1e16, 1.0, -1e16)]
    for found in together(batches, 2, loss=lambda outputs, targets: outputs[:, 0]):
        assert found.loss == 0


def test_a_figure_that_one_rank_has_of_batches_alone_is_of_no_samples():
    """As of a loss that loses its axis where a batch has one sample."""
    batches = [(torch.zeros(size, 2), torch.zeros(size)) for size in (2, 1)]
    for found in together(batches, 2, loss=lambda outputs, targets: outputs[:, 0].squeeze()):
        assert found.batched == {"loss"} and found.sampled("loss") is None


@pytest.mark.parametrize(
    "others", [(torch.tensor([0, 1]), torch.rand(2, 3)), (torch.tensor([0, 255]), torch.tensor([0, -1]))]
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_accuracy_that_means_nothing_in_one_batch_or_of_all_together_is_told_by_no_rank(others, ranks):
    batches = [(torch.zeros(2, 3), targets) for targets in others]
    for order in (batches, batches[::-1]):
        for found in together(order, ranks, loss=lambda outputs, targets: outputs[:, 0]):
            assert found.metrics == {} and len(found.quantities) == 1
            assert found.each.keys() == {"loss"} and found.classes == () and found.numbers is None


def test_an_object_that_lists_its_figures_computes_no_others():
    class Whole:
        def reset(self): ...

        def update(self, outputs, targets): ...

        def compute(self): ...

    listed = Whole()
    listed.name, listed.figures = "listed", ("one", "two")
    every = metrics_of([Whole(), listed, lambda outputs, targets: outputs.mean(1)])
    assert [metric.is_open for metric in every] == [True, False, False]
    assert [figure.name for figure in every[1].figures] == ["one", "two"]


def test_outputs_are_logits_by_cross_entropy_alone_however_it_is_given():
    smooth = functools.partial(nn.functional.cross_entropy, label_smoothing=0.1)
    for loss in (None, smooth, functools.partial(smooth, reduction="sum"), nn.CrossEntropyLoss()):
        assert Loss.of(loss).of_logits, loss
    for loss in (nn.functional.mse_loss, functools.partial(nn.functional.mse_loss), nn.MSELoss()):
        assert not Loss.of(loss).of_logits, loss


def _apart(outputs, targets):
    return ((outputs - targets) ** 2).mean()


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    "function",
    [
        _apart,
        nn.functional.l1_loss,
        nn.MSELoss(),
        lambda o, t: _apart(o, t).sqrt(),
        lambda o, t: float(_apart(o, t)),
    ],
)
def test_a_figure_of_all_outputs_with_all_targets_is_refused(function):
    column, row = torch.randn(30, 1), torch.randn(30)
    for given in ({"loss": function}, {"loss": lambda o, t: (o[:, 0] - t).abs(), "metric": function}):
        with pytest.raises(NetworkError, match=r"broadcast to \(30, 30\)") as wrong:
            evaluate(Fixed(), [(column, row)], **given)
        assert "squeeze" in wrong.value.hint
    found = evaluate(Fixed(), [(column, row[:, None])], loss=function).loss
    assert found == pytest.approx(float(function(column, row[:, None])))


def _crosses(o, t):
    return nn.functional.cross_entropy(o, t, reduction="none")


SUMS = {
    "loss": nn.CrossEntropyLoss(reduction="sum"),
    "disguised": lambda o, t: 1 + _crosses(o, t).sum(),
    "divided": lambda o, t: _crosses(o, t).sum() / 60 - 7,
    "counted": lambda o, t: float((o.argmax(1) == t).sum()),
    "half": lambda o, t: _crosses(o.half(), t).sum(),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_a_batch_is_refused_however_it_is_disguised(name):
    outputs, classes = torch.randn(30, 3), torch.arange(30) % 3
    for option in ("loss", "metric"):
        with pytest.raises(NetworkError, match="adds up over the samples of a batch") as wrong:
            evaluate(Fixed(), [(outputs, classes)], **{"loss": _crosses, option: SUMS[name]})
        assert 'reduction="mean"' in wrong.value.hint


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    "function",
    [
        lambda o, t: _apart(o[:, :1], t),
        lambda o, t: nn.functional.l1_loss(o.sum(1, keepdim=True), t),
        lambda o, t: float((o[:, :1] < t).double().mean()),
    ],
)
def test_what_is_broadcast_within_a_function_is_refused_by_what_it_does(function):
    wide, row = torch.randn(30, 4), torch.randn(30)
    for option in ("loss", "metric"):
        with pytest.raises(NetworkError, match="compares all with all, though"):
            evaluate(Fixed(), [(wide, row)], **{"loss": lambda o, t: (o[:, 0] - t).abs(), option: function})


@pytest.mark.parametrize(
    "function",
    [
        lambda o, t: float((o.argmax(1) == t).double().mean()),
        lambda o, t: float((o.argmax(1) == t).double().mean().sqrt()),
        lambda o, t: nn.functional.cross_entropy(o, t),
        lambda o, t: nn.functional.cross_entropy(o, t, weight=torch.tensor([1.0, 2.0, 9.0])),
        lambda o, t: o.mean(),
    ],
)
@pytest.mark.parametrize("alike", ["all", "the answer", "half"])
def test_a_network_that_answers_all_samples_alike_is_measured(function, alike):
    outputs = 0.01 * torch.randn(30, 3) * (alike != "all") + torch.tensor([0.0, 1.0, 0.0])
    if alike == "half":
        outputs[15:] = torch.tensor([1.0, 0.0, 0.0])
    targets = torch.arange(30) % 3
    assert evaluate(Fixed(), [(outputs, targets)], loss=lambda o, t: o[:, 0], metric=_named(function)).metrics


def test_a_sum_over_outputs_and_targets_of_any_structure_is_refused():
    class Two(nn.Module):
        def forward(self, x):
            return {"a": x, "b": (x[:, :1],)}

    batch = torch.randn(30, 3), [{"box": torch.randn(4)} for _ in range(30)]

    def added(o, t):
        return (o["b"][0][:, 0] - torch.stack([one["box"][0] for one in t])).abs().sum()

    with pytest.raises(NetworkError, match="adds up over the samples of a batch"):
        evaluate(Two(), [batch], loss=added)
    assert evaluate(Two(), [batch], loss=lambda o, t: added(o, t) / len(t)).loss > 0


def _recall(o, t):
    return ((o.argmax(1) == 1) & (t == 1)).sum() / (t == 1).sum().clamp(min=1)


def _precision(o, t):
    chosen = o.argmax(1) == 1
    return (chosen & (t == 1)).sum() / chosen.sum().clamp(min=1)


def _ranked(o, t):
    if len(t.unique()) < 2:
        raise ValueError("ROC AUC score is not defined in that case")
    return (o[t == 1, 1][:, None] >= o[t == 0, 1]).double().mean()


@pytest.mark.parametrize("place", [0, 40, 80])
def test_a_metric_of_one_class_is_no_sum_where_one_third_has_it(place):
    targets = torch.zeros(100, dtype=torch.int64)
    targets[place] = 1
    outputs = nn.functional.one_hot(targets, 2).float()
    assert evaluate(Fixed(), [(outputs, targets)], metric=_recall).metrics["recall"] == 1


@pytest.mark.parametrize("metric", [_precision, _ranked])
@pytest.mark.parametrize("samples", [16, 32])
def test_a_count_that_is_the_same_after_one_turn_by_chance_is_measured(metric, samples):
    for seed in range(60):
        torch.manual_seed(seed)
        batch = torch.randn(samples, 2), torch.randint(0, 2, (samples,))
        assert evaluate(Fixed(), [batch], metric=metric).metrics


def test_a_metric_that_refuses_targets_of_one_class_is_measured():
    batch = torch.ones(40, 2), torch.arange(40) // 20
    assert evaluate(Fixed(), [batch], metric=_ranked).metrics["ranked"] == 1


WEIGHTED = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 30.0]))
MEANS = {
    "plain": (nn.functional.cross_entropy, False),
    "alike": (lambda o, t: (0 * o).sum() + 2, False),
    "half": (lambda o, t: nn.functional.cross_entropy(o.bfloat16(), t), False),
    "of so many": (lambda o, t: torch.arange(30.0) @ _crosses(o, t) / 30, False),  # takes no other
    "weighted": (WEIGHTED, True),
    "masked": (lambda o, t: _crosses(o, t)[t > 0].mean(), True),
    "rooted": (lambda o, t: nn.functional.cross_entropy(o, t).sqrt(), True),
    "contrastive": (lambda o, t: nn.functional.cross_entropy(o @ o.T, torch.arange(len(o))), True),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_of_any_kind_is_measured_and_is_told_where_other_batches_change_it(name, caplog, monkeypatch):
    monkeypatch.setattr(pairing, "NAMED", set())
    outputs = torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
    classes = torch.arange(30) ** 2 % 7 % 3
    function, depends = MEANS[name]
    with caplog.at_level("INFO", "rebasin"):
        found = evaluate(Fixed(), [(outputs, classes)] * 2, loss=_named(function))
    assert found.loss == pytest.approx(float(function(outputs, classes)), rel=1e-4)
    assert [("judged of a batch is no mean" in line) for line in caplog.messages] == [True] * depends


def _named(function):
    def judged(o, t):
        return function(o, t)

    return judged


def test_the_loss_of_a_network_itself_is_told_where_other_batches_change_it(caplog, monkeypatch):
    class Masked(nn.Module):
        def forward(self, x, labels):
            return {"loss": nn.functional.cross_entropy(x, labels)}

    monkeypatch.setattr(pairing, "NAMED", set())
    labels = torch.arange(30) % 3
    for masked, told in ((labels, 0), (labels.where(torch.arange(30) > 8, -100), 1)):
        monkeypatch.setattr(evaluation, "_asked_in_parts", set())
        batch = {"x": torch.randn(30, 3), "labels": masked}, None
        with caplog.at_level("INFO", "rebasin"):
            evaluate(Masked(), [batch], loss=Loss(OWN, carried=True))
        assert sum("own loss of a batch is no mean" in line for line in caplog.messages) == told


def test_pytorchs_warning_is_told_unless_an_error_says_it_better():
    def broadcast(o, t):
        return nn.functional.mse_loss(o, t)

    column, row = torch.randn(30, 1), torch.randn(30)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pytest.raises(NetworkError, match="broadcast to"):
            evaluate(Fixed(), [(column, row)], loss=broadcast)
        assert not heard
        evaluate(Fixed(), [(column, row[:1].expand(30))], loss=broadcast)  # whose targets are all one
    assert any("Using a target size" in str(each.message) for each in heard)


@pytest.mark.parametrize(
    "function",
    [
        lambda outputs, targets: _apart(outputs.squeeze(1), targets),
        lambda outputs, targets: outputs.pow(2).mean(),  # takes no targets
        lambda outputs, targets: _apart(outputs[:, 0], targets) + 0 * _apart(outputs, targets),
    ],
)
def test_a_figure_that_pairs_as_it_should_is_measured(function):
    column, row = torch.randn(30, 1), torch.randn(30)
    assert evaluate(Fixed(), [(column, row)], loss=function).loss == pytest.approx(
        float(function(column, row))
    )


def test_what_a_loss_draws_is_drawn_alike_for_every_model_and_randomness_is_as_it_was():
    def noisy(outputs, targets):
        drawn = float(np.random.rand()) + random.random()
        return nn.functional.cross_entropy(outputs + torch.randn_like(outputs), targets) + drawn

    def right(outputs, targets):
        return (outputs.argmax(1) == targets).double() + torch.rand(len(targets))

    batches = [(torch.randn(12, 3), torch.arange(12) % 3) for _ in range(3)]
    torch.manual_seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    loss, metric = Loss.of(noisy), metrics_of(right)
    first = evaluate(Fixed(), batches, loss=loss, metric=metric)
    assert evaluate(Fixed(), batches, loss=loss, metric=metric) == first  # the first one is judged, too
    assert evaluate(Fixed(), batches, loss=noisy, metric=right) == first
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]
    assert len({round(evaluate(Fixed(), batches[:k], loss=loss).loss, 9) for k in (1, 2, 3)}) == 3


def test_a_network_that_draws_is_measured_alike_each_time():
    dropping = nn.Sequential(nn.Linear(3, 3), Dropping())
    batches = [(torch.randn(12, 3), torch.arange(12) % 3)]
    assert evaluate(dropping, batches) == evaluate(dropping, batches)


class Dropping(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5)


def test_a_function_is_judged_until_a_batch_told_and_then_asked_once():
    asked = []

    def mean(outputs, targets):
        asked.append(len(targets))
        return nn.functional.cross_entropy(outputs, targets)

    alike, told = (torch.zeros(12, 3), torch.zeros(12, dtype=torch.int64)), (ROWS_12, torch.arange(12) % 3)
    loss, counts = Loss.of(mean), []
    for batch in (alike, told, told, (*told[:1], told[1].flip(0))):
        asked.clear()
        evaluate(Fixed(), [batch, batch], loss=loss)
        counts.append(len(asked))
    assert counts == [7, 8, 2, 2]  # equal targets cannot be exchanged for one another
    asked.clear()
    evaluate(Fixed(), [(torch.randn(12, 4), told[1])], loss=loss)  # of another shape
    assert len(asked) == 7


ROWS_12 = torch.randn(12, 3, generator=torch.Generator().manual_seed(3))


def test_a_sum_is_refused_by_the_second_model_where_the_first_one_says_nothing():
    loss = Loss.of(lambda outputs, targets: (outputs[:, 0] - targets).square().sum())
    none, some = torch.zeros(12, 1), torch.randn(12, 1)
    evaluate(Fixed(), [(none, torch.zeros(12))], loss=loss)
    with pytest.raises(NetworkError, match="adds up"):
        evaluate(Fixed(), [(some, torch.zeros(12))], loss=loss)


@pytest.mark.parametrize("better, worst", [(True, -math.inf), (False, math.inf)])
def test_a_metric_of_outputs_that_are_no_numbers_is_infinitely_bad_and_of_others_does_not_count(
    better, worst, caplog, monkeypatch
):
    def off(outputs, targets):
        return torch.where(targets < 0, math.nan, (outputs[:, 0] - targets).abs())

    off.larger_is_better = better
    rows, targets = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0.0, -1.0, 1.0])
    monkeypatch.setattr("rebasin_cli.networks.losses._uncounted", set())
    caplog.set_level("INFO", "rebasin")
    free = Loss.of(lambda outputs, targets: outputs[:, 0] * 0)
    found = evaluate(Fixed(), [(rows, targets)], loss=free, metric=off)
    assert found.metrics == {"off": 1.5} and "off is NaN for 1 of 3 samples" in caplog.text
    for value in (3.0, 2.0):  # also of one whose target would not count
        broken = Broken(value)
        assert evaluate(broken, [(rows, targets)], loss=free, metric=off).metrics == {"off": worst}
        both = lambda outputs, targets: off(outputs["all"], targets)  # noqa: E731
        both.name, both.larger_is_better = "off", better
        loss = Loss.of(lambda outputs, targets: targets * 0)
        found = evaluate(Broken(value, keyed=True), [(rows, targets)], loss=loss, metric=both)
        assert found.metrics == {"off": worst}


class Broken(nn.Module):
    """NaN in place of one value."""

    def __init__(self, value, keyed=False):
        super().__init__()
        self.value, self.keyed = value, keyed

    def forward(self, x):
        found = torch.where(x == self.value, math.nan, x)
        return {"all": found, "mean": found[:, 0]} if self.keyed else found


@pytest.mark.parametrize("as_given", [lambda each: each.numpy(), lambda each: each.mean().numpy()])
def test_numbers_of_numpy_are_numbers(as_given):
    targets = torch.arange(12) % 3
    each = nn.functional.cross_entropy(ROWS_12, targets, reduction="none")
    found = evaluate(
        Fixed(),
        [(ROWS_12, targets)],
        loss=lambda o, t: as_given(nn.functional.cross_entropy(o, t, reduction="none")),
    )
    assert found.loss == pytest.approx(each.mean().item())


def test_a_function_that_fails_is_told_how_it_was_called():
    with pytest.raises(NetworkError) as told:
        evaluate(Fixed(), [(ROWS_12, torch.arange(12) % 3)], loss=lambda targets, outputs, more: None)
    assert told.value.hint == "It is called with outputs, float32 (12, 3), and then targets, int64 (12,)"


def test_inputs_that_a_network_does_not_take_are_named():
    class Named(nn.Module):
        def forward(self, pixels, mask=None):
            return pixels

    batch = {"pixels": ROWS_12, "index": torch.arange(12), "path": ["a"] * 12}
    with pytest.raises(NetworkError) as told:
        evaluate(Named(), [(batch, torch.arange(12) % 3)])
    assert told.value.hint == "Its forward takes pixels, mask: leave index and path out of the batches"
