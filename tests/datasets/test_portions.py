"""Parts of a split: disjoint, whole, the same for all who share a seed."""

import pytest
import torch

from rebasin_cli.datasets import open_data
from rebasin_cli.datasets.portions import ClassSplit, Portion
from rebasin_cli.errors import UsageError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_parts_are_disjoint_and_whole():
    targets = torch.arange(10).repeat(100)
    mine, others = ClassSplit.parse("5:0.2,0.8").parts(targets, 10, generator())
    assert torch.equal(torch.cat([mine, others]).sort().values, torch.arange(1000))
    assert torch.bincount(targets[mine]).tolist() == [20] * 5 + [80] * 5
    assert torch.bincount(targets[others]).tolist() == [80] * 5 + [20] * 5
    assert mine.tolist() == sorted(mine.tolist())


def test_parts_of_a_data_set_go_by_the_split_seed_and_not_by_the_trainings():
    data = open_data("digits", "train")
    a, b = (
        Portion(classes_split="5:0.2,0.8", part=part).of(data, seed=7 if part == "a" else 8) for part in "ab"
    )
    assert a.samples + b.samples == data.samples
    rows = {tuple(row.flatten().tolist()) for row in a.source.inputs}
    assert not any(tuple(row.flatten().tolist()) in rows for row in b.source.inputs)
    other = Portion(classes_split="5:0.2,0.8", part="a", split_seed=1).of(data, seed=7)
    assert other.samples == a.samples and not torch.equal(other.source.inputs, a.source.inputs)


def test_a_share_of_a_part():
    data = open_data("digits", "train")
    whole = Portion(classes_split="5:0.2,0.8", part="a").of(data, 0)
    half = Portion(classes_split="5:0.2,0.8", part="a", subset=0.5).of(data, 0)
    assert half.samples == round(0.5 * whole.samples)
    others = Portion(classes_split="5:0.2,0.8", part="a", subset=0.5).of(data, 1)
    assert others.samples == half.samples and not torch.equal(others.source.inputs, half.source.inputs)
    assert Portion(subset=1e-9).of(data, 0).samples == 1 and Portion().of(data, 0) is data


@pytest.mark.parametrize(
    "text", ["", "5", "5:0.2", "5:0.2,0.8,0.1", "x:0.2,0.8", "0:0.2,0.8", "5:-1,0.8", "5:0.2,nan"]
)
def test_what_is_no_split_of_classes(text):
    with pytest.raises(UsageError, match="is no split of classes"):
        ClassSplit.parse(text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"classes_split": "5:0.2,0.8"}, "makes two parts"),
        ({"classes_split": "10:0.2,0.8", "part": "a"}, "has 10 classes"),
        ({"classes_split": "5:0,0", "part": "a"}, "leaves nothing for part a"),
        ({"part": "b"}, "--part is for --classes-split"),
        ({"split_seed": 3}, "--split-seed is for --classes-split"),
        ({"classes_split": "5:0.2,0.8", "part": "c"}, "unknown part"),
        ({"limit": 3, "subset": 0.5}, "both say how many"),
        ({"subset": 1.5}, "no share"),
    ],
)
def test_portions_that_make_no_sense(options, says):
    with pytest.raises(UsageError, match=says):
        Portion(**options).of(open_data("digits", "train"), 0)


def test_text_has_no_classes():
    with pytest.raises(UsageError, match="no classes"):
        Portion(classes_split="5:0.2,0.8", part="a").of(open_data("alice", "test"), 0)
