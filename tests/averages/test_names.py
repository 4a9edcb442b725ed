"""The same tensors under other names: prefixes of wrappers, and one tensor that is stored twice."""

from __future__ import annotations

import pytest
import torch

import rebasin_cli
from rebasin_cli.averages.names import agreed, exchanged
from rebasin_cli.averages.parts import parts_of
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.tensors import LazyTensors, plan_of
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.errors import SpecError

BODY = {"layers.0.w": (3, 4), "layers.0.b": (3,), "layers.1.w": (3, 3)}


def drawn(shapes, prefix="", seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {f"{prefix}{name}": torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def both(wanted, given, more_first=(), more_other=()):
    first = drawn(BODY, wanted) | drawn(dict(more_first), seed=1)
    return first, drawn(BODY, given, seed=2) | drawn(dict(more_other), seed=3)


@pytest.mark.parametrize(
    ("wanted", "given", "says"),
    [
        ("model.", "", "model 2: 'model.' is put before 3 names, as in model 1"),
        ("", "encoder.", "model 2: 'encoder.' is taken off in 3 names, as in model 1"),
        ("module.model.", "net.", "'net.' is exchanged for 'module.model.' in 3 names"),
        ("model.transformer.", "transformer.", "'model.' is put before"),
        ("a.b.model.c.", "a.b.net.c.", "'a.b.net.' is exchanged for 'a.b.model.'"),
    ],
)
@pytest.mark.parametrize("lazily", [False, True])
def test_a_prefix_is_exchanged_for_that_of_the_first_model(wanted, given, says, lazily):
    first, other = both(wanted, given, {"head.weight": (2, 3)}, {"head.weight": (2, 3)})
    shapes, dtypes = ({name: each[k] for name, each in plan_of(other).items()} for k in (1, 0))
    model = LazyTensors(shapes, dtypes, other.__getitem__) if lazily else other
    (_, found), told = agreed([first, model])
    assert says in told[0] and len(told) == 1
    assert {*found} == {*first} and torch.equal(found["head.weight"], other["head.weight"])
    for name in BODY:
        assert torch.equal(found[wanted + name], other[given + name])
    mean = rebasin_cli.average([first, other])
    assert torch.equal(
        mean[f"{wanted}layers.0.w"], (first[f"{wanted}layers.0.w"] + other[f"{given}layers.0.w"]) / 2
    )


def test_a_prefix_before_all_names_is_exchanged_also_where_some_are_names_of_the_other_model():
    first = drawn({"a.a.w": (3, 3), "a.w": (3, 3)})
    other = drawn({"a.w": (3, 3), "w": (3, 3)}, seed=1)
    for one, two, pairs in ((first, other, {"a.a.w": "a.w", "a.w": "w"}), (other, first, None)):
        (_, found), told = agreed([one, two])
        for name, old in (pairs or {"a.w": "a.a.w", "w": "a.w"}).items():
            assert torch.equal(found[name], two[old]), told


def test_what_lies_beside_keeps_its_name_but_for_further_layers():
    first, other = both("model.", "", {"lm_head.w": (5, 3)}, {"layers.2.w": (3, 3), "score.w": (1, 3)})
    (_, found), _ = agreed([first, other])
    assert {*found} - {*first} == {"model.layers.2.w", "score.w"}
    with pytest.raises(SpecError) as refused:
        parts_of([first, found])
    assert len(refused.value.problems) == 3, "two that the second has beyond, one that it lacks"


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"encoder.w": (3, 4)}, {"decoder.w": (3, 4)}),  # two parts
        ({"x.w": (3, 4), "y.w": (3, 4)}, {"w": (3, 4)}),  # which of the two?
        ({"model.w": (3, 4)}, {"w": (3, 5)}),  # another size
        ({"model.w": (3, 4)}, {"w": (3, 4, 1)}),
        ({"model.a": (2,), "model.b": (2,), "model.c": (2,)}, {"a": (2,)}),  # a small part
        ({"model.a": (2,)}, {"a": (2,), "b": (2,)}),
        ({"w": (3, 4), "model.w": (3, 4)}, {"w": (3, 4), "net.v": (3, 4)}),
    ],
)
def test_nothing_is_exchanged_where_something_else_may_be_meant(first, other):
    first, other = drawn(first), drawn(other, seed=1)
    (_, found), told = agreed([first, other])
    assert found is other and not any("is put" in line or "in 1" in line for line in told)
    with pytest.raises(SpecError):
        rebasin_cli.average([first, other])


def test_names_of_two_parts_are_told():
    _, told = agreed([drawn({"encoder.w": (3, 4)}), drawn({"decoder.w": (3, 4)})])
    assert "with 'encoder.' in place of 'decoder.'" in told[0] and "nothing is exchanged" in told[0]


def test_other_numbers_of_rows_are_exchanged_and_then_refused_as_such():
    first, other = both("model.", "", {"model.emb.weight": (5, 4)}, {"emb.weight": (6, 4)})
    (_, found), _ = agreed([first, other])
    with pytest.raises(
        SpecError, match="model.emb.weight  is float32 5×4 in model 1, float32 6×4 in model 2"
    ):
        parts_of([first, found])


def test_many_names_are_exchanged_at_once():
    names = {f"layers.{k}.w": (1,) for k in range(20_000)}
    wanted, given = drawn(names, "a.b.model."), drawn(names, "net.")
    assert exchanged(plan_of(wanted), plan_of(given)).matched == 20_000


# ------------------------------------------------------------------------------------------------ ties

TIED = {"lm_head.weight": "embed.weight"}


def tied(seed, **more):
    body = drawn({"embed.weight": (6, 4), "layer.weight": (4, 4), "norm.weight": (4,)}, seed=seed) | more
    return body, body | {"lm_head.weight": body["embed.weight"].clone()}


@pytest.mark.parametrize("extra", ["error", "keep", "keep-a", "drop"])
def test_a_tensor_that_one_file_stores_twice_is_averaged_as_one(extra):
    (once, _), (_, twice) = tied(0), tied(1)
    mean = (once["embed.weight"] + twice["embed.weight"]) / 2
    for models, names in (
        ((once, twice), {*once}),
        ((twice, once), {*twice}),
        ((twice, once, twice), {*twice}),
    ):
        weights = None if len(models) == 2 else [0.25, 0.5, 0.25]
        found = rebasin_cli.average(models, weights, extra=extra)
        assert {*found} == names
        assert all(
            torch.equal(found[name], mean) for name in ("embed.weight", "lm_head.weight") if name in names
        )


def test_ties_of_files_are_told_and_keep_their_digest(tmp_path):
    (once, _), (_, twice) = tied(0), tied(1)
    write_safetensors(tmp_path / "a.safetensors", twice)
    write_safetensors(tmp_path / "b.safetensors", once)
    a, b = (open_checkpoint(tmp_path / f"{name}.safetensors") for name in "ab")
    (_, found), told = agreed([a, b], ["A", "B"])
    assert told == ["B: lm_head.weight is embed.weight here, to which it is tied in A"]
    assert found.tied == (("embed.weight", "lm_head.weight"),) and found.digest() == b.digest()
    assert torch.equal(found.rows("lm_head.weight", 1, 3), once["embed.weight"][1:3])
    (_, found), told = agreed([b, a], ["B", "A"])
    assert told == ["A: lm_head.weight is stored twice, and once in B: it is left out"]
    assert [*found] == [*once] and found.digest() == a.digest()


@pytest.mark.parametrize("extra", ["error", "keep", "keep-a"])
def test_two_that_differ_are_never_half_averaged_and_half_copied(extra):
    (once, _), (_, twice) = tied(0), tied(1)
    twice["lm_head.weight"] = twice["lm_head.weight"] + 1
    with pytest.raises(SpecError, match="may use embed.weight for it; elsewhere they are two") as refused:
        rebasin_cli.average([twice, once], extra=extra)
    assert "--ignore lm_head.weight" in refused.value.hint
    found = rebasin_cli.average([twice, once], extra=extra, ignore=["lm_head.*"])
    assert torch.equal(found["lm_head.weight"], twice["lm_head.weight"]), "by its own name"
    assert "lm_head.weight" not in rebasin_cli.average([twice, once], extra="drop")


def test_equal_values_that_nobody_learnt_are_no_tie():
    filters = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]).expand(4, 1, 3, 3).clone()
    for values in (torch.ones(4, 4), torch.eye(4), torch.eye(40) * 3, filters, torch.zeros(4, 4)):
        once, _ = tied(0, **{"a.weight": values})
        twice = once | {"b.weight": values.clone()}
        for models in ([twice, once], [once, twice]):
            with pytest.raises(SpecError, match="b.weight  is absent in model"):
                rebasin_cli.average(models)


def test_one_tensor_under_two_names_is_a_tie_whatever_its_values():
    once, _ = tied(0, **{"a.weight": torch.eye(4)})
    twice = once | {"b.weight": once["a.weight"]}
    assert torch.equal(rebasin_cli.average([twice, once])["b.weight"], torch.eye(4))


def test_where_memory_tells_of_ties_equal_values_do_not(tmp_path):
    (once, _), (_, twice) = tied(0), tied(1)
    shared = twice | {"lm_head.weight": twice["embed.weight"]}
    torch.save(twice, tmp_path / "apart.pt")
    torch.save(shared, tmp_path / "shared.pt")
    torch.save(shared | {"a": torch.eye(4), "b": torch.eye(4)}, tmp_path / "more.pt")
    torch.save(once | {"a": torch.eye(4)}, tmp_path / "once.pt")
    apart, one, more, other = (
        open_checkpoint(tmp_path / f"{name}.pt") for name in ("apart", "shared", "more", "once")
    )
    (_, found), told = agreed([one, once])
    assert "lm_head.weight" in found and len(told) == 1
    (_, found), told = agreed([more, other])
    assert {*found} == {*more} - {"b"} and len(told) == 1
    assert agreed([apart, once]) == ([apart, once], [])
    with pytest.raises(SpecError, match="for it; elsewhere they are two"):
        rebasin_cli.average([apart, once])


def test_a_tie_is_one_in_all_models_that_have_both_tensors():
    (once, _), (_, twice), (_, more) = tied(0), tied(1), tied(2)
    assert "lm_head.weight" in agreed([twice, once, more])[0][1]
    more["lm_head.weight"] = more["lm_head.weight"] * 2
    for models in ([twice, once, more], [once, twice, more], [twice, more, once]):
        called = ["it" if model is more else "another" for model in models]
        (line,) = agreed(models, called)[1]
        assert line.startswith("embed.weight and lm_head.weight are ") and "in it" in line


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_one_tensor_here_and_two_there_is_told(tmp_path, suffix):
    write = write_safetensors if suffix == "safetensors" else lambda path, tensors: torch.save(tensors, path)
    for name, seed, apart in (("a", 0, 0), ("b", 1, 1), ("c", 2, 0)):
        body, _ = tied(seed)
        write(tmp_path / f"{name}.{suffix}", body | {"lm_head.weight": body["embed.weight"] + apart})
    if suffix == "pt":
        for name, seed in (("a", 0), ("c", 2)):
            body, _ = tied(seed)
            torch.save(body | {"lm_head.weight": body["embed.weight"]}, tmp_path / f"{name}.pt")
    a, b, c = (open_checkpoint(tmp_path / f"{name}.{suffix}") for name in "abc")
    line = "embed.weight and lm_head.weight are one tensor in {}, and two in {}: they are taken as two"
    assert agreed([a, b, c], "ABC")[1] == [line.format("A and C", "B")]
    assert agreed([b, a], "BA")[1] == [line.format("A", "B")]
    assert agreed([a, c])[1] == agreed([b, b])[1] == []


def test_every_name_of_a_tensor_is_compared_and_who_has_none_of_them_is_not_named(tmp_path):
    names = ("a.weight", "b.weight", "c.weight")
    one, body = torch.randn(6, 4), {"norm.weight": torch.ones(4)}
    torch.save(body | dict.fromkeys(names, one), tmp_path / "shared.pt")
    torch.save(body | dict.fromkeys(names[:2], one) | {"c.weight": one + 1}, tmp_path / "apart.pt")
    models = [*(open_checkpoint(tmp_path / f"{name}.pt") for name in ("shared", "apart")), body]
    line = "a.weight and c.weight are one tensor in A, and two in B: they are taken as two"
    assert agreed(models, "ABC")[1] == [line]
    (_, twice), (other, _) = tied(0), tied(1)
    twice["lm_head.weight"] = twice["lm_head.weight"] + 1
    assert agreed([twice, {"layer.weight": other["layer.weight"]}])[1] == []


def test_a_tie_of_another_vocabulary_stays_one():
    (_, twice), (once, _) = tied(0), tied(1)
    once["embed.weight"] = torch.randn(8, 4)
    found = rebasin_cli.average([twice, once], heads="average", extra="keep")
    assert found["embed.weight"].shape == (8, 4)
    assert torch.equal(found["embed.weight"], found["lm_head.weight"])


def test_a_tie_is_found_among_many_tensors_that_only_one_file_has():
    (once, _), (_, twice) = tied(0), tied(1)
    more = {f"more.{k}.weight": torch.randn(6, 4) for k in range(200)}
    head = twice.pop("lm_head.weight")
    found = rebasin_cli.average([more | twice | {"lm_head.weight": head}, once], extra="keep")
    assert torch.equal(found["embed.weight"], found["lm_head.weight"])


def test_ties_in_eight_bits_are_compared():
    (once, _), (_, twice) = tied(0), tied(1)
    once, twice = ({n: t.to(torch.float8_e4m3fn) for n, t in each.items()} for each in (once, twice))
    assert {*agreed([twice, once])[0][1]} == {*twice}
