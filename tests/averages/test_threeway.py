"""A three-way merge of tensors: what one side changed is taken, what both changed is mixed or a conflict."""

import itertools

import pytest
import torch
from torch import nn

from rebasin_cli.averages.threeway import merged_text, mixed, three_way
from rebasin_cli.errors import UsageError

W = torch.tensor([1.0, 2.0])
BASE = {"kept": W, "mine": W, "other": W, "both": W, "ids": torch.arange(2)}
OURS = BASE | {"mine": W + 1, "both": W + 4}
THEIRS = BASE | {"other": W + 2, "both": W + 2}


def merge(base, ours, theirs, **choices):
    found = three_way(base, ours, theirs, **choices)
    assert not found.conflicts, found.conflicts
    return dict(mixed(base, ours, theirs, found))


def conflicts(base, ours, theirs, **choices):
    return three_way(base, ours, theirs, **choices).conflicts


def test_what_one_side_changed_is_taken():
    found = merge(BASE, OURS, THEIRS)
    assert list(found) == list(BASE)
    assert torch.equal(found["kept"], W) and torch.equal(found["mine"], W + 1)
    assert torch.equal(found["other"], W + 2)


@pytest.mark.parametrize("both, added", [(None, 3), ("average", 3), ("sum", 6), ("ours", 4), ("theirs", 2)])
def test_what_both_changed_is_mixed_as_asked(both, added):
    assert torch.equal(merge(BASE, OURS, THEIRS, both=both)["both"], W + added)


def test_what_both_changed_may_be_a_conflict():
    assert conflicts(BASE, OURS, THEIRS, both="conflict") == {"both": "changed by both"}
    with pytest.raises(UsageError, match="Did you mean average"):
        three_way(BASE, OURS, THEIRS, both="averages")


def test_the_same_change_on_both_sides_is_no_conflict():
    assert torch.equal(merge(BASE, OURS, OURS, both="conflict")["both"], W + 4)
    assert torch.equal(merge(BASE, OURS, OURS, both="sum")["both"], W + 4)


def test_a_change_is_one_of_bits_dtype_or_shape():
    zero = {"w": torch.tensor([0.0])}
    assert str(merge(zero, {"w": torch.tensor([-0.0])}, zero)["w"].item()) == "-0.0"
    half = {"both": W.half()}
    assert merge(BASE, BASE, BASE | half)["both"].dtype == torch.float16
    longer = {"both": torch.ones(3)}
    assert merge(BASE, BASE | longer, BASE)["both"].shape == (3,)
    assert "3 in ours" in conflicts(BASE, BASE | longer, THEIRS)["both"]
    nan = {"w": torch.tensor([float("nan")])}
    assert torch.isnan(merge(nan, nan, nan)["w"]).all()


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


def test_tensors_come_and_go():
    found = three_way(BASE, OURS | {"new": W}, without(THEIRS, "kept"))
    assert found.taken["new"] == "ours" and found.removed == ("kept",)
    assert conflicts(BASE, OURS, without(THEIRS, "mine")) == {"mine": "changed by ours, removed by theirs"}
    assert conflicts(BASE, without(OURS, "other"), THEIRS) == {"other": "changed by theirs, removed by ours"}
    assert three_way(BASE, without(OURS, "other"), THEIRS, both="ours").removed == ("other",)
    assert "other" not in merge(BASE, without(OURS, "other"), THEIRS, both="ours")
    one, other = BASE | {"new": W}, BASE | {"new": W + 1}
    assert "added by both" in conflicts(BASE, one, other, both="sum")["new"]
    assert torch.equal(merge(BASE, one, other)["new"], W + 0.5)


def test_without_an_ancestor_only_what_is_equal_is_merged_unless_asked():
    assert set(conflicts({}, OURS, THEIRS)) == {"mine", "other", "both"}
    assert torch.equal(merge({}, OURS, THEIRS, both="average")["both"], W + 3)
    assert set(merge({}, {"a": W, "c": W}, {"b": W, "c": W})) == {"a", "b", "c"}


def test_integers_cannot_be_mixed_but_a_norms_counter_is_the_larger_one():
    base = {"bn.num_batches_tracked": torch.tensor(10), "ids": torch.arange(2)}
    ours = base | {"bn.num_batches_tracked": torch.tensor(30)}
    theirs = base | {"bn.num_batches_tracked": torch.tensor(20)}
    for one, other in itertools.permutations([ours, theirs]):
        assert merge(base, one, other)["bn.num_batches_tracked"] == 30
    one, other = base | {"ids": torch.arange(2) + 1}, base | {"ids": torch.arange(2) + 2}
    assert "integers cannot be mixed" in conflicts(base, one, other)["ids"]
    assert torch.equal(merge(base, one, other, both="theirs")["ids"], other["ids"])


def test_running_statistics_that_both_changed_are_a_conflict_unless_asked():
    base = {"bn.running_mean": W, "bn.running_var": W}
    ours, theirs = ({name: W + step for name in base} for step in (1, 3))
    assert set(conflicts(base, ours, theirs)) == set(base)
    assert torch.equal(merge(base, ours, theirs, statistics=True)["bn.running_mean"], W + 2)
    assert torch.equal(merge(base, ours, base)["bn.running_mean"], W + 1)


def test_metadata_follows_the_same_rule_and_ours_wins():
    base = {"kept": "0", "mine": "0", "other": "0", "both": "0", "gone": "0"}
    ours = {"kept": "0", "mine": "1", "other": "0", "both": "1", "gone": "0"}
    theirs = {"kept": "0", "mine": "0", "other": "2", "both": "2", "new": "2"}
    merged = {"kept": "0", "mine": "1", "other": "2", "both": "1", "new": "2"}
    assert merged_text(base, ours, theirs) == merged


NORMED = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)).state_dict()
G, V = "parametrizations.weight.original0", "parametrizations.weight.original1"


def changed(name, by, of=NORMED):
    return of | {name: of[name] + by}


def weight(model):
    return torch._weight_norm(model[V], model[G], 0)


def test_tensors_that_mean_something_only_together_are_taken_from_one_side_or_mixed_as_that():
    assert torch.equal(merge(NORMED, NORMED, changed(G, 1))[G], NORMED[G] + 1)
    ours, theirs = changed(G, 1), changed(V, 2)
    found = merge(NORMED, ours, theirs)
    torch.testing.assert_close(weight(found), (weight(ours) + weight(theirs)) / 2)
    found = merge(NORMED, ours, theirs, both="sum")
    torch.testing.assert_close(weight(found), weight(ours) + weight(theirs) - weight(NORMED))
    for side, model in (("ours", ours), ("theirs", theirs)):
        found = merge(NORMED, ours, theirs, both=side)
        assert all(torch.equal(found[name], model[name]) for name in NORMED)
    assert conflicts(NORMED, ours, theirs, both="conflict") == {G: "changed by both", V: "changed by both"}


def test_families_that_cannot_be_mixed_are_a_conflict_of_all_their_tensors():
    adapter = {"q.lora_A.weight": torch.ones(2, 4), "q.lora_B.weight": torch.ones(4, 2), "w": W}
    ours, theirs = changed("q.lora_A.weight", 1, adapter), changed("q.lora_B.weight", 1, adapter)
    assert set(conflicts(adapter, ours, theirs)) == {"q.lora_A.weight", "q.lora_B.weight"}
    assert "factors of what is added" in conflicts(adapter, ours, theirs)["q.lora_A.weight"]
    assert not conflicts(adapter, ours, changed("w", 1, adapter))
    plain = {"weight": torch.ones(3, 2), "bias": NORMED["bias"]}
    assert set(conflicts(NORMED, changed(G, 1), plain)) == {G, V}
    assert [*merge(NORMED, NORMED, plain)] == ["bias", "weight"]


def test_codes_of_one_scale_are_mixed_and_codes_of_two_are_not():
    codes = {"l.weight": torch.ones(2, 2).to(torch.float8_e4m3fn), "l.weight_scale": torch.ones(1)}
    ours = codes | {"l.weight": (2 * torch.ones(2, 2)).to(torch.float8_e4m3fn)}
    theirs = codes | {"l.weight": (3 * torch.ones(2, 2)).to(torch.float8_e4m3fn)}
    assert merge(codes, ours, theirs)["l.weight"].float().unique().tolist() == [2.5]
    assert len(conflicts(codes, ours, theirs | {"l.weight_scale": 2 * torch.ones(1)})) == 2
    assert len(conflicts(codes, ours, changed("l.weight_scale", 1, codes))) == 2
