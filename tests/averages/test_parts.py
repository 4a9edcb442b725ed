"""What becomes of each tensor: averaged, copied, joined, left out, refused."""

import pytest
import torch

from rebasin_cli.averages.kinship import alike
from rebasin_cli.averages.parts import parts_of
from rebasin_cli.averages.tensors import combined
from rebasin_cli.errors import CheckpointError, SpecError, UsageError


def model(seed, classes=3, **more):
    rng = torch.Generator().manual_seed(seed)
    return {
        "body.weight": torch.randn(4, 5, generator=rng),
        "head.weight": torch.randn(classes, 4, generator=rng),
        "head.bias": torch.randn(classes, generator=rng),
        "body.num_batches_tracked": torch.tensor(seed),
        "position_ids": torch.arange(3),
        "mask": torch.tensor([True, False]),
        **more,
    }


def merged(models, weights=None, **choices):
    own = {name: choices.pop(name) for name in ("ignore", "extra") if name in choices}
    source, heads = choices.get("source"), choices.get("heads")
    parts = parts_of(models, source=source, heads=heads, **own)
    return dict(combined(models, parts, weights, **choices)), parts


def test_floating_point_is_averaged_and_integers_are_the_first_models():
    a, b = model(0), model(7)
    found, parts = merged([a, b])
    assert list(found) == list(a)
    torch.testing.assert_close(found["body.weight"], (a["body.weight"] + b["body.weight"]) / 2)
    assert found["body.num_batches_tracked"] == 0
    assert set(parts.copied) == {"body.num_batches_tracked", "position_ids", "mask"}
    assert not alike([a, b], "body.num_batches_tracked") and alike([a, b], "position_ids")


def test_what_is_ignored_is_copied_from_the_source():
    a, b, c = model(0), model(1), model(2)
    found, parts = merged([a, b], ignore=["head.*", "position_ids"], source=c)
    assert torch.equal(found["head.bias"], c["head.bias"])
    assert found["body.num_batches_tracked"] == 2
    assert parts.copied["head.weight"] == "ignored" and parts.copied["mask"] == "integers"
    torch.testing.assert_close(found["body.weight"], (a["body.weight"] + b["body.weight"]) / 2)


def test_what_is_ignored_may_differ_in_shape_or_be_absent():
    a, b = model(0), model(1, classes=9, lora=torch.ones(2))
    found, parts = merged([a, b], ignore=["head.*", "lora"])
    assert torch.equal(found["head.weight"], a["head.weight"]) and parts.dropped == ("lora",)


def test_only_equal_shapes_are_averaged():
    a, b = model(0), model(1) | {"body.weight": torch.zeros(4, 6)}
    with pytest.raises(SpecError, match="do not have the same tensors") as raised:
        parts_of([a, b], heads="concat", extra="keep")
    assert raised.value.problems == ("body.weight  is float32 4×5 in model 1, float32 4×6 in model 2",)


def test_every_difference_is_told_at_once_and_what_can_be_done():
    a, b = model(0), model(1, classes=5, more=torch.ones(1)) | {"mask": torch.ones(2)}
    with pytest.raises(SpecError) as raised:
        parts_of([a, b])
    assert [line.split()[0] for line in raised.value.problems] == ["head.weight", "head.bias", "mask", "more"]
    assert "--extra" in raised.value.hint and "--heads" in raised.value.hint


def logits(tensors, x):
    return x @ tensors["body.weight"].T @ tensors["head.weight"].T + tensors["head.bias"]


def test_concatenated_heads_give_the_logits_of_both():
    a, b = model(0, classes=3), model(1, classes=5)
    b["body.weight"] = a["body.weight"].clone()
    found, parts = merged([a, b], heads="concat")
    x = torch.randn(6, 5)
    torch.testing.assert_close(logits(found, x), torch.cat([logits(a, x), logits(b, x)], 1))
    assert parts.heads == ("head.weight", "head.bias")


def test_one_heads_rows_or_none():
    a, b = model(0, classes=3), model(1, classes=5)
    for heads, kept in (("keep-a", a), ("keep-b", b)):
        found, _ = merged([a, b], heads=heads)
        assert torch.equal(found["head.weight"], kept["head.weight"])
        assert torch.equal(found["head.bias"], kept["head.bias"])
    found, parts = merged([a, b], heads="drop")
    assert "head.weight" not in found and parts.dropped == ("head.weight", "head.bias")


def test_the_mean_of_heads_is_that_of_the_classes_that_both_have():
    a, b = model(0, classes=3), model(1, classes=5)
    for pair, weights in (((a, b), [0.25, 0.75]), ((b, a), [0.75, 0.25])):
        found, _ = merged(list(pair), weights, heads="average")
        torch.testing.assert_close(found["head.bias"][:3], 0.25 * a["head.bias"] + 0.75 * b["head.bias"][:3])
        assert torch.equal(found["head.bias"][3:], b["head.bias"][3:])


def test_heads_are_for_two_models():
    with pytest.raises(UsageError, match="two models, not 3"):
        parts_of([model(0)] * 3, heads="concat")
    with pytest.raises(UsageError, match="keep-a"):
        parts_of([model(0)] * 2, heads="keep_a")


@pytest.mark.parametrize(
    "extra, kept", [("keep-a", {"of_a"}), ("keep", {"of_a", "of_b", "of_bc"}), ("drop", set())]
)
def test_tensors_that_not_all_have(extra, kept):
    models = [model(0, of_a=torch.ones(1)), model(1, of_b=torch.ones(2), of_bc=torch.ones(3)), model(2)]
    models[2]["of_bc"] = torch.zeros(3)
    found, parts = merged(models, extra=extra)
    assert {name for name in found if name.startswith("of_")} == kept
    assert set(parts.dropped) == {"of_a", "of_b", "of_bc"} - kept
    if "of_bc" in kept:
        assert torch.equal(found["of_bc"], torch.ones(3)), "the first that has it"
    with pytest.raises(SpecError, match="same tensors"):
        parts_of(models)


@pytest.mark.parametrize("variance", ["moving_variance", "moving_var"])
def test_running_statistics_of_other_frameworks_are_known_by_their_names(variance):
    norm = {"bn.moving_mean": torch.zeros(2), f"bn.{variance}": torch.ones(2), "bn.gamma": torch.ones(2)}
    assert parts_of([norm, norm]).statistics == ("bn.moving_mean", f"bn.{variance}")


def test_running_statistics_come_in_pairs():
    norm = {"bn.running_mean": torch.zeros(2), "bn.running_var": torch.ones(2)}
    assert parts_of([norm, norm]).statistics == ("bn.running_mean", "bn.running_var")
    alone = {"bn.running_mean": torch.zeros(2), "other.running_var": torch.ones(2)}
    assert parts_of([alone, alone]).statistics == ()
    top = {"running_mean": torch.zeros(2), "running_var": torch.ones(2)}
    assert len(parts_of([top, top]).statistics) == 2


def test_quantised_weights_are_told_from_other_integers():
    packed = model(0) | {"q.weight": torch.zeros(4, 4, dtype=torch.int8)}
    assert parts_of([packed, packed]).copied["q.weight"] == "quantised"


def test_models_without_anything_to_average_are_refused():
    counts = {"n": torch.tensor(1)}
    with pytest.raises(SpecError, match="nothing to average"):
        parts_of([counts, counts])


def test_a_wider_dtype_keeps_what_the_stored_one_would_lose():
    a, b = ({"w": torch.tensor([x], dtype=torch.bfloat16)} for x in (1.0, 1.0078125))
    found, _ = merged([a, b], dtype=torch.float32)
    assert found["w"].dtype == torch.float32 and found["w"].item() == 1.00390625


def test_parts_of_a_tensor_are_the_tensor():
    a, b = model(0, classes=3), model(1, classes=5)
    lazy = combined([a, b], parts_of([a, b], heads="concat"), heads="concat")
    for name in ("head.weight", "body.weight", "position_ids"):
        assert torch.equal(lazy.rows(name, 1, 3), lazy[name][1:3])
    slerp = combined([a, a], parts_of([a, a]), interpolation="slerp")
    assert torch.equal(slerp.rows("body.weight", 1, 3), a["body.weight"][1:3])


def test_more_than_two_models_with_a_longer_vocabulary_are_told_what_to_ignore():
    body = {"h.weight": torch.zeros(3, 3)}
    models = [
        body | {"embed.weight": torch.zeros(n, 3), "lm head.w": torch.zeros(n, 3)} for n in (5, 5, 6, 5)
    ]
    with pytest.raises(SpecError) as refused:
        parts_of(models)
    line = "--ignore embed.weight --ignore 'lm head.w' (the first model's, or that of --copy-from FILE)"
    assert refused.value.hint.endswith(line) and "--heads" not in refused.value.hint
    assert set(parts_of(models, ignore=["embed.weight", "lm head.w"]).copied.values()) == {"ignored"}
    narrow = [{f"w{k}": torch.zeros(n, 3) for k in range(9)} | {"v": torch.zeros(1)} for n in (5, 5, 6)]
    with pytest.raises(SpecError, match="See what a file holds"):
        parts_of(narrow)


def test_a_glob_that_names_nothing_is_refused_and_none_is_averaged_by_a_slip():
    models = [model(0), model(1)]
    assert parts_of(models, ignore=["head.*"]).copied["head.bias"] == "ignored"
    for ignore in (["haed.weight"], ["head.*", "haed.weight"]):
        with pytest.raises(UsageError, match="'haed.weight' names no tensor") as raised:
            parts_of(models, ignore=ignore)
        assert "Did you mean head.weight?" in raised.value.hint


@pytest.mark.parametrize("at", [0, 3, 9])
def test_of_many_models_the_one_that_differs_is_named_and_not_the_others(at):
    models = [model(k) for k in range(10)]
    models[at] = model(at, classes=5, extra=torch.ones(2))
    del models[at]["body.weight"]
    with pytest.raises(SpecError) as wrong:
        merged(models)
    assert set(wrong.value.problems) == {
        f"{name}  is {told}"
        for name, told in {
            "body.weight": f"absent in model {at + 1}, float32 4×5 elsewhere",
            "head.weight": f"float32 5×4 in model {at + 1}, float32 3×4 elsewhere",
            "head.bias": f"float32 5 in model {at + 1}, float32 3 elsewhere",
            "extra": f"float32 2 in model {at + 1}, absent elsewhere",
        }.items()
    }


def test_every_number_of_a_model_has_its_word_so_that_a_name_can_take_its_place():
    lacking = [{"a": torch.ones(2)}, {"a": torch.ones(2)}]
    with pytest.raises(SpecError) as wrong:
        merged([*lacking, *[{"a": torch.ones(2), "b": torch.ones(3)}] * 3])
    assert wrong.value.problems == ("b  is absent in model 1, model 2, float32 3 elsewhere",)


def test_a_mask_of_minus_infinity_is_the_same_in_the_average_or_there_is_none():
    mask = torch.full((6, 6), float("-inf")).triu(1)
    a, b = ({"attn_mask": mask.clone(), "w": torch.randn(3)} for _ in range(2))
    for weights in (None, [0.3, 0.7], [1.5, -0.5]):
        found, _ = merged([a, b], weights)
        assert torch.equal(found["attn_mask"], mask)
    assert merged([a, b], dtype=torch.bfloat16)[0]["attn_mask"].dtype == torch.bfloat16
    for other, told in ((mask.T.contiguous(), "tables"), (mask.masked_fill(mask == 0, -1.0), "attn_mask")):
        with pytest.raises((SpecError, CheckpointError), match=told):
            merged([a, b | {"attn_mask": other}])
    with pytest.raises(CheckpointError, match="1 infinite"):
        merged([a, b | {"w": torch.tensor([1.0, float("-inf"), 0])}])


def test_tensors_that_were_learnt_are_averaged_whatever_they_are_called():
    a, b = ({"rope.freqs": torch.rand(4), "anchors": torch.rand(2, 2), "w": torch.randn(4, 4)} for _ in "ab")
    with pytest.raises(SpecError, match="tables") as raised:
        parts_of([a, b])
    assert "--learnt GLOB" in raised.value.hint
    with pytest.raises(SpecError, match="tables"):
        parts_of([a, b], learnt=["anchors"])
    assert parts_of([a, b], learnt=["anchors", "rope.*"]).averaged == ("rope.freqs", "anchors", "w")
    with pytest.raises(UsageError, match="--learnt 'anchor' names no tensor"):
        parts_of([a, b], learnt=["anchor"])
