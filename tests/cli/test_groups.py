"""rebasin canon, and --groups all of align, merge, barrier and spec."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands.verbs import symmetries
from tests.transformers import Rotary, drawn, outputs, transformer, wide

from .conftest import rebasin, tensors

NET = ("--net", "tests.transformers:transformer")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """a, b, the canonical form c of a, and b aligned to it: made once, each command traces the network."""
    folder = tmp_path_factory.mktemp("groups")
    for name, seed in (("a", 0), ("b", 1)):
        state = {key: tensor.float() for key, tensor in drawn(transformer(), seed).items()}
        write_safetensors(folder / f"{name}.safetensors", state)
    told = rebasin("canon", folder / "a.safetensors", *NET, "-o", folder / "c.safetensors", "--json")
    aligned = ("c.safetensors", "b.safetensors", "al.safetensors")
    c, b, al = (folder / name for name in aligned)
    assert rebasin("align", c, b, *NET, "--groups", "all", "-o", al).code == 0
    return folder, told


@pytest.fixture
def models(made, tmp_path):
    for file in made[0].iterdir():
        shutil.copy(file, tmp_path / file.name)
    return "a.safetensors", "b.safetensors"


def function(file):
    return outputs(transformer(), {name: tensor.double() for name, tensor in tensors(file).items()})


def alike(one, other):
    return (function(one) - function(other)).abs().max() <= 1e-5 * function(one).abs().max()


def test_a_canonical_form_computes_the_same_and_says_what_it_did(models, made):
    told = made[1].json()
    assert alike("c.safetensors", models[0]) and told["outputs_differ"] < 1e-12
    assert 1e-9 < told["as_rounded"] < 1e-5  # float32
    assert told["folded"] == {"norms": 3, "key_biases": 1, "value_biases": 1, "means": 7}
    assert told["left"] == [] and told["balanced"][0] == "blocks.0.dim"
    assert (tensors("c.safetensors")["norm.weight"] == 1).all()


def test_groups_take_no_place_of_a_spec_that_ignores_tensors(models, done, refused, tmp_path):
    done("spec", "infer", *NET, "--checkpoint", "a.safetensors", "-o", "own.yaml")
    own = tmp_path / "own.yaml"
    kept = [line for line in own.read_text().splitlines() if ".bias" not in line]
    own.write_text("\n".join(["ignore: ['*.bias']", *kept]) + "\n")
    line = ("merge", *models, *NET, "--spec", "own.yaml", "--method", "wm", "-o", "m.safetensors")
    refused(2, *line, "--groups", "all", says=("ignores no tensors", "*.bias", "Write the groups into"))
    assert not (tmp_path / "m.safetensors").exists()


def test_an_adapter_moved_by_groups_does_what_it_did(models, done, refused):
    """Every layer adapted, with biases that would be folded into factors left out of the base."""
    state = {
        name: tensor * 0 if name.endswith(("norm1.bias", "norm2.bias", "norm.bias", "v.bias")) else tensor
        for name, tensor in tensors("b.safetensors").items()
    }
    write_safetensors("plain.safetensors", state)
    rng, factors = torch.Generator().manual_seed(0), {}
    weights = [name for name, its in state.items() if name.endswith(".weight") and its.ndim == 2]
    for name in weights:
        outputs, inputs = state[name].shape
        module = f"base_model.model.{name.removesuffix('.weight')}"
        factors[f"{module}.lora_A.weight"] = torch.randn(2, inputs, generator=rng)
        factors[f"{module}.lora_B.weight"] = torch.randn(outputs, 2, generator=rng)
    Path("lora").mkdir()
    write_safetensors("lora/adapter_model.safetensors", factors)
    modules = sorted({name.split(".")[-2] for name in weights})
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 1, "bias": "none", "target_modules": modules}
    Path("lora/adapter_config.json").write_text(json.dumps(config))
    done("align", "c.safetensors", "plain.safetensors", *NET, "--groups", "all", "-o", "p.safetensors")
    done("apply", "p.perm.safetensors", "lora", "--base", "plain.safetensors", "-o", "moved/")
    for base, adapter, out in (("plain", "lora", "was"), ("p", "moved", "is"), ("p", "lora", "not")):
        arguments = ("--weights", "1", "--base", f"{base}.safetensors", "-o", f"{out}.safetensors")
        done("average", adapter, *arguments)
    assert alike("is.safetensors", "was.safetensors") and not alike("not.safetensors", "was.safetensors")
    assert not alike("was.safetensors", "plain.safetensors")
    says = ("factors of the same rank", "blocks.0.v.bias, which is not 0", "reads norm.bias")
    refused(4, "apply", "al.perm.safetensors", "lora", "--base", "b.safetensors", "-o", "no/", says=says)


def test_what_is_aligned_with_groups_computes_what_it_did(models, refused):
    refused(2, "align", *models, *NET, "--groups", "all", "-o", "x.safetensors", says="rebasin canon")
    assert alike("al.safetensors", models[1])
    near, far = (sum((tensors("c.safetensors")[n] * t).sum() for n, t in tensors(f).items() if t.ndim > 1)
                 for f in ("al.safetensors", models[1]))  # fmt: skip
    assert near > 10 * far.abs()


def test_elements_are_applied_to_other_weights_without_the_network(models, done, refused):
    done("apply", "al.perm.safetensors", models[1], "-o", "again.safetensors")
    for name, tensor in tensors("al.safetensors").items():
        assert torch.allclose(tensor, tensors("again.safetensors")[name], atol=1e-6)
    done("apply", "al.perm.safetensors", "al.safetensors", "--invert", "-o", "back.safetensors")
    assert alike("back.safetensors", models[1])
    refused(3, "apply", "al.perm.safetensors", "al.safetensors", "-o", "no.safetensors", says="already")


def test_integers_are_not_rotated(models, done, refused):
    state = tensors(models[1]) | {"blocks.0.up.weight": torch.ones(16, 8, dtype=torch.int8)}
    write_safetensors("int8.safetensors", state)
    says = "blocks.0.up.weight  int8"
    refused(3, "apply", "al.perm.safetensors", "int8.safetensors", "-o", "no.safetensors", says=says)


def test_a_merge_with_groups_is_the_mean_of_both_canonical_forms(models, done):
    done("merge", *models, *NET, "--groups", "all", "--repair", "none", "-o", "m.safetensors")
    for name, tensor in tensors("m.safetensors").items():
        mean = (tensors("c.safetensors")[name] + tensors("al.safetensors")[name]) / 2
        assert torch.allclose(tensor, mean, atol=1e-6), name


@pytest.mark.sweep
def test_an_inferred_spec_with_groups_is_taken_as_any_spec(models, done, refused):
    done("spec", "infer", "--net", NET[1], "--groups", "all", "-o", "t.yaml")
    merge = ("merge", *models, *NET, "--groups", "all", "--repair", "none", "-o")
    done(*merge, "m.safetensors", "--spec", "t.yaml")
    done(*merge, "n.safetensors")
    assert all(torch.equal(t, tensors("n.safetensors")[n]) for n, t in tensors("m.safetensors").items())
    with open("t.yaml") as file:
        text = file.read()
    with open("wrong.yaml", "w") as file:
        file.write(text.replace('"stream": O1', '"stream": O'))
    says = '"stream" is O (any rotation): a random element of it alone changes them'
    refused(4, *merge, "x.safetensors", "--spec", "wrong.yaml", says=says)


def test_explain_says_the_group_of_each_word_and_why_it_is_no_larger(done):
    told = done("spec", "explain", "--net", NET[1], "--groups", "all").out
    assert "O1: any rotation that keeps the vector of ones" in told
    assert "no larger: gelu" in told and "GL: any invertible matrix" in told
    for orders in ((), ("--groups", "permutations")):
        assert "O1" not in done("spec", "explain", "--net", NET[1], *orders).out
        assert "O1" not in done("spec", "infer", "--net", NET[1], *orders).out


@pytest.mark.parametrize(
    "more, says",
    [
        (("--method", "pam"), "the method pam finds permutations only"),
        (("--groups", "some"), "some"),
        (("--polish", "1steps"), "--polish swaps units"),
        (("--method", "none"), "--method none makes none"),
    ],
)
def test_what_cannot_be_searched_with_groups_is_refused_first(models, refused, more, says):
    groups = () if "--groups" in more else ("--groups", "all")
    refused(2, "merge", *models, *NET, *groups, *more, "-o", "x.safetensors", says=says)


def test_without_a_network_groups_cannot_be_told(models, refused):
    refused(4, "canon", models[0], "-o", "x.safetensors", says="--net")


DATA = """
import torch
def samples(split="train", **_):
    x = torch.randn(60, 5, 6, generator=torch.Generator().manual_seed(0))
    samples = torch.utils.data.TensorDataset(x, torch.arange(60) % 3)
    return torch.utils.data.DataLoader(samples, batch_size=20)
"""


def test_elements_that_are_learned_are_written_with_the_model(models, done, tmp_path):
    (tmp_path / "data.py").write_text(DATA)
    how = ("--method", "ste", "--epochs", "2", "--groups", "all", "--data", "data.py:samples")
    told = done("align", "c.safetensors", models[1], *NET, *how, "-o", "st.safetensors", "--json").json()
    assert told["match"]["sweeps"] == 4 and alike("st.safetensors", models[1])
    assert not torch.allclose(
        tensors("st.safetensors")["embed.weight"], tensors("al.safetensors")["embed.weight"]
    )
    done("apply", "st.perm.safetensors", models[1], "-o", "again.safetensors")
    for name, tensor in tensors("st.safetensors").items():
        assert torch.allclose(tensor, tensors("again.safetensors")[name], atol=1e-5), name


def test_many_models_are_merged_with_groups(models, done, refused):
    three = (*models, "al.safetensors")  # the last is the second in another frame
    line = ("merge", *three, *NET, "--groups", "all", "--repair", "none", "-o", "m.safetensors")
    refused(2, *line, says="the method wm matches two models")
    told = done(*line, "--method", "merge-many", "--effort", "fast", "--json").json()
    done("merge", *models, *NET, "--groups", "all", "--repair", "none", "-o", "two.safetensors")
    assert told["models"] == 3 and told["match"]["sweeps"] >= 2
    ends = [tensors(name)["head.weight"] for name in ("c.safetensors", "two.safetensors", "m.safetensors")]
    assert (ends[2] - ends[0]).norm() > 1.1 * (ends[1] - ends[0]).norm()  # B counts twice


@pytest.mark.sweep
def test_many_models_are_merged_through_the_universe(models, done):
    """What is written computes what it did, in float32, and lies where one mean of all is."""
    line = ("c.safetensors", models[1], *NET, "--groups", "all", "--method", "universe", "--effort", "fast")
    told = done("align", *line, "-o", "u.safetensors", "--json").json()
    assert alike("u.safetensors", models[1]) and told["match"]["converged"]
    done("apply", "u.perm.safetensors", models[1], "-o", "again.safetensors")
    for name, tensor in tensors("u.safetensors").items():
        assert torch.allclose(tensor, tensors("again.safetensors")[name], atol=1e-6), name


@pytest.mark.sweep
def test_three_models_are_merged_through_the_universe(models, done):
    line = (*NET, "--groups", "all", "--method", "universe", "--effort", "fast")
    three = ("merge", *models, "al.safetensors", *line, "--repair", "none", "-o", "m.safetensors")
    assert done(*three, "--json").json()["models"] == 3


def test_a_plan_with_groups_counts_what_is_compared(models, done):
    plan = ("merge", *models, *NET, "--groups", "all", "--dry-run", "--json")
    for method, sums in (("wm", 0), ("merge-many", 20)):
        told = done(*plan, "--method", method).json()
        parts = told["search_parts"]
        assert (
            parts["models"] == 2 * 4 * told["parameters"]
            and parts.get("sums", 0) == sums * told["parameters"]
        )
        assert "files" not in parts and sum(parts.values()) == told["search_bytes"]


def test_outputs_that_changed_are_not_written(models, refused, monkeypatch):
    """What is turned is compared with what it was, on the models' own weights: A, and B as it was moved."""
    line = ("merge", *models, *NET, "--groups", "all", "--repair", "none", "-o", "x.safetensors")
    says = "the canonical form or its turning changes the outputs"
    whole = symmetries.acts.acted

    def off(tensors, fitted, elements):
        return {n: t * 1.01 if n == "head.weight" else t for n, t in whole(tensors, fitted, elements).items()}

    with monkeypatch.context() as patch:
        patch.setattr(symmetries.acts, "acted", off)
        refused(4, *line, says=says)
    form = symmetries.canonical

    def wrong(model, fitted, folds):
        found = form(model, fitted, folds)
        return dataclasses.replace(found, changed={**found.changed, "head.weight": 2 * model["head.weight"]})

    monkeypatch.setattr(symmetries, "canonical", wrong)
    refused(4, *line, says=says)
    assert "x.safetensors" not in {file.name for file in Path().iterdir()}


@pytest.mark.parametrize("then", [pytest.param("nothing", marks=pytest.mark.sweep), "wm"])
def test_activations_find_what_was_planted(models, done, tmp_path, then):
    """B is A in another order and another frame, by elements that stand in a file."""
    (tmp_path / "data.py").write_text(DATA)
    done("apply", "al.perm.safetensors", models[0], "-o", "moved.safetensors")
    how = ("--method", "am", "--then", then, "--groups", "all", "--data", "data.py:samples")
    done("align", "c.safetensors", "moved.safetensors", *NET, *how, "-o", "found.safetensors")
    assert alike("found.safetensors", models[0])
    for name, tensor in tensors("c.safetensors").items():
        assert torch.allclose(tensor, tensors("found.safetensors")[name], atol=1e-4), name


@pytest.mark.sweep
def test_dual_tells_which_mix_it_took_and_why_and_goes_on_where_it_was(models, done, interrupted, tmp_path):
    (tmp_path / "data.py").write_text(DATA)
    line = ("align", "c.safetensors", models[1], *NET, "--method", "dual", "--groups", "all")
    line += ("--data", "data.py:samples")
    outcome = done(*line, "-o", "whole.safetensors")
    told = json.loads(open_checkpoint("whole.safetensors").metadata["rebasin.options"])
    assert f"dual with mix {told['mix']:g}, " in outcome.out
    assert "mean square that the mean lacks of both models' outputs 0.3: " in outcome.err
    assert interrupted(*line, "-o", "out.safetensors", after=1, task="matching") == {"out.search.safetensors"}
    match = done(*line, "-o", "out.safetensors", "--resume", "--json").json()["match"]
    assert match["mixed"]["mix"] == told["mix"] and len(match["mixed"]["lacks"]) == 5
    assert match["mixed"]["joined"] <= min(match["mixed"]["lacks"].values())
    whole, out = (tmp_path / f"{stem}.safetensors" for stem in ("whole", "out"))
    assert whole.read_bytes() == out.read_bytes()


@pytest.mark.sweep
def test_a_report_has_the_best_order_and_a_random_element_beside(models, done, tmp_path):
    (tmp_path / "data.py").write_text(DATA)
    report = done(
        "barrier", *models, *NET, "--groups", "all", "--data", "data.py:samples", "--skip-checks", "--json"
    )
    rows = {row["name"]: row for row in report.json()["rows"]}
    assert {"naive", "aligned", "aligned (permutations)", "random group element"} <= rows.keys()
    assert rows["aligned (permutations)"]["control"] and not rows["aligned"]["control"]


def test_more_than_an_order_is_no_start_of_a_search_for_permutations(models, refused):
    line = ("--init", "al.perm.safetensors", "--data", "digits", "-o", "x.safetensors", "--method")
    for method, says in (("ste", "holds more than an order"), ("pam", "--method ste --groups all")):
        refused(2, "align", *models, *NET, *line, method, says=says)


def test_verify_finds_that_a_turned_model_is_the_same(models, done, run):
    how = (*NET, "--groups", "all", "--json")
    done("apply", "al.perm.safetensors", models[0], "-o", "moved.safetensors")
    told = done("verify", "c.safetensors", "moved.safetensors", *how, "-o", "back.perm.safetensors").json()
    assert told["answer"] == "yes" and told["largest_difference"] < 1e-6
    assert "stream: O1" in told["groups"]
    done("apply", "back.perm.safetensors", "moved.safetensors", "-o", "back.safetensors")
    for name, tensor in tensors("c.safetensors").items():
        assert torch.allclose(tensor, tensors("back.safetensors")[name], atol=1e-4), name
    other = run("verify", *models, *how, "-o", "no.perm.safetensors")
    assert other.code == 1 and other.json()["reason"] == "the outputs differ"


def test_of_millions_of_numbers_none_is_further_than_rounding_by_chance():
    """What is folded again moves by the mean of many roundings, and wide networks have many such means."""
    rng = torch.Generator().manual_seed(0)
    own = torch.zeros(3_000_000)
    moved, *again = (torch.randn(own.shape, generator=rng) for _ in range(1 + symmetries.DRAWS))
    for times in (1, 100):
        found = symmetries.near(own, times * moved, symmetries.allowed(own, again, symmetries.ALONE))
        assert found == (times == 1)


@pytest.mark.parametrize(
    ("network", "dtype"),
    [pytest.param(wide, torch.float32, marks=pytest.mark.sweep), (Rotary, torch.float16)],
)
def test_verify_finds_a_turned_model_that_is_wide_or_of_another_type(done, tmp_path, network, dtype):
    net = ("--net", f"tests.transformers:{network.__name__}")
    for name, seed in (("a", 0), ("b", 1)):
        state = {key: tensor.float() for key, tensor in drawn(network(), seed).items()}
        write_safetensors(tmp_path / f"{name}.safetensors", state)
    done("canon", "a.safetensors", *net, "-o", "c.safetensors")
    quick = ("--groups", "all", "--effort", "fast")  # any element does
    done("align", "c.safetensors", "b.safetensors", *net, *quick, "-o", "al.safetensors")
    done("apply", "al.perm.safetensors", "a.safetensors", "-o", "moved.safetensors")
    stored = {name: tensor.to(dtype) for name, tensor in tensors("moved.safetensors").items()}
    write_safetensors(tmp_path / "stored.safetensors", stored)
    told = done("verify", "c.safetensors", "stored.safetensors", *net, "--groups", "all", "--json").json()
    assert told["answer"] == "yes" and told["largest_difference"] < 8 * torch.finfo(dtype).eps


@pytest.mark.sweep
def test_effort_and_tolerance_act_on_elements_too(models, done):
    line = (
        "align",
        "c.safetensors",
        models[1],
        *NET,
        "--groups",
        "all",
        "--json",
        "-o",
        "e.safetensors",
        "--force",
    )
    heights = [
        done(*line, "--effort", effort, "--tolerance", 1e-9).json()["match"]["objective_after"]
        for effort in ("fast", "normal", "high")
    ]
    assert heights == sorted(heights)


@pytest.mark.sweep
def test_a_bound_is_of_elements_where_words_have_groups(models, done):
    line = ("merge", *models, *NET, "--repair", "none", "--bound")
    for groups, what in (("all", "element of the groups"), ("permutations", "permutation")):
        assert f"no {what} exceeds" in done(*line, "--groups", groups, "-o", f"{groups}.safetensors").out


def test_coarse_numbers_are_no_excuse_for_another_network(models, run):
    rough = {name: tensor.bfloat16() for name, tensor in tensors(models[0]).items()}
    rng = torch.Generator().manual_seed(0)
    other = {
        name: (t + 0.1 * t.float().std(correction=0) * torch.randn(t.shape, generator=rng)).bfloat16()
        for name, t in rough.items()
    }
    write_safetensors(Path("rough.safetensors"), rough)
    write_safetensors(Path("other.safetensors"), other)
    told = run("verify", "rough.safetensors", "other.safetensors", *NET, "--groups", "all", "--json")
    assert told.code == 1 and told.json()["answer"] == "no"
    told = run("verify", "rough.safetensors", "rough.safetensors", *NET, "--groups", "all", "--json")
    assert told.code == 0 and told.json()["answer"] == "yes"


def test_a_large_number_hides_no_other_where_outputs_and_weights_are_compared(models, run):
    """One output of 1e7 made 1 relative to it nothing; so did one weight in its tensor."""
    large = tensors(models[0])
    large["head.bias"][0] = 1e7
    for name, change, answer in [
        ("head.bias", [0, 1.0], "no"),
        ("head.bias", [0, 1e-7], "yes"),
        ("place", [0, 0], "yes"),
    ]:
        other = {key: tensor.clone() for key, tensor in large.items()}
        other[name].view(-1)[:2] += torch.tensor(change)
        write_safetensors(Path("large.safetensors"), large, force=True)
        write_safetensors(Path("other.safetensors"), other, force=True)
        told = run("verify", "large.safetensors", "other.safetensors", *NET, "--groups", "all", "--json")
        assert told.json()["answer"] == answer, (name, change, told.out)


def test_what_overflows_when_norms_are_folded_is_told(models, refused):
    large = {name: tensor.half() for name, tensor in tensors(models[0]).items()}
    large["norm.weight"] = torch.full_like(large["norm.weight"], 6e4)
    large["head.weight"] = torch.full_like(large["head.weight"], 1e3)
    write_safetensors(Path("large.safetensors"), large)
    line = ("canon", "large.safetensors", *NET, "-o", "x.safetensors")
    refused(3, *line, says="head.weight would hold 6")


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_elements_that_make_no_numbers_are_refused_before_anything_is_written(models, refused, scale):
    found = open_checkpoint("al.perm.safetensors")
    scaled = {name: t * scale if name == "blocks.0.dim:map" else t for name, t in found.items()}
    metadata = {key: text for key, text in found.metadata.items() if key != "rebasin.weights"}
    write_safetensors(Path("x.perm.safetensors"), scaled, metadata=metadata)
    for line in (("x.perm.safetensors", models[1]), ("x.perm.safetensors", models[1], "--invert")):
        refused(3, "apply", *line, "-o", "x.safetensors", says="more than float32 holds")


def test_float8_is_permuted_where_no_group_acts_and_refused_where_one_does(models, done, refused):
    """Any one tensor of a model: what folds or turns it refuses it, else its bits stay."""
    whole = {file: tensors(file) for file in models}
    for name in ("place", "head.weight", "norm.weight", "blocks.0.up.bias"):
        for file in models:
            rough = whole[file] | {name: whole[file][name].to(torch.float8_e4m3fn)}
            write_safetensors(Path(file), rough, force=True)
        for line in (("canon", models[0]), ("apply", "al.perm.safetensors", models[1])):
            more = NET if line[0] == "canon" else ()
            refused(3, *line, *more, "-o", "x.safetensors", says=(f"{name}  float8_e4m3fn", "permuted, not"))


def test_elements_bring_their_own_spec(models, refused):
    line = ("apply", "al.perm.safetensors", models[1], "--spec", "mlp", "-o", "x.safetensors")
    refused(2, *line, says="brings the spec")


GIVEN = ("--perm", "al.perm.safetensors")


def test_elements_that_are_given_take_the_place_of_a_search(models, done):
    """What was found once is merged, measured and searched on from as it was found, without a network."""
    done("merge", "c.safetensors", models[1], *GIVEN, "--repair", "none", "-o", "m.safetensors")
    done("merge", *models, *GIVEN, "--repair", "none", "-o", "n.safetensors")  # a in canonical form is c
    for name, tensor in tensors("m.safetensors").items():
        mean = (tensors("c.safetensors")[name] + tensors("al.safetensors")[name]) / 2
        assert torch.allclose(tensor, mean, atol=1e-6), name
        assert torch.allclose(tensor, tensors("n.safetensors")[name], atol=1e-6), name


@pytest.mark.sweep
def test_elements_that_are_given_span_a_plane_and_repair_what_was_merged_by_them(models, done, tmp_path):
    (tmp_path / "data.py").write_text(DATA)
    how = (*GIVEN, *NET, "--data", "data.py:samples")
    found = done("plane", *models, *how, "--points", 3, "--json").json()
    (a, b, moved), data = found["points"], how[-2:]
    ends = [done("eval", file, *NET, *data, "--json", "-q").json()["loss"] for file in models]
    assert [a["loss"], b["loss"]] == pytest.approx(ends, abs=1e-5) and moved["name"] == "πB"
    assert moved["loss"] == pytest.approx(ends[1], abs=1e-5) and moved["y"] > 0
    form, other = tensors("c.safetensors"), tensors("al.safetensors")  # the elements act on canonical forms
    apart = sum((tensor - other[name]).double().square().sum().item() for name, tensor in form.items())
    assert (a["x"], a["y"]) == (0, 0) and moved["x"] ** 2 + moved["y"] ** 2 == pytest.approx(apart, rel=1e-4)
    done("merge", *models, *GIVEN, "--repair", "none", "-o", "m.safetensors")
    done("repair", "m.safetensors", "--endpoints", *models, *how, "--repair", "refit", "-o", "r.safetensors")
    done("merge", *models, *how, "--repair", "refit", "-o", "whole.safetensors")
    whole, mean = tensors("whole.safetensors"), tensors("m.safetensors")
    assert all(torch.equal(tensor, whole[name]) for name, tensor in tensors("r.safetensors").items())
    assert any(not torch.equal(tensor, mean[name]) for name, tensor in whole.items())


def test_what_is_applied_is_what_was_aligned_to_the_last_bit(models, done):
    done("apply", "al.perm.safetensors", models[1], "-o", "again.safetensors")
    again = tensors("again.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in tensors("al.safetensors").items())


def test_a_search_with_groups_goes_on_from_elements(models, done, tmp_path):
    (tmp_path / "data.py").write_text(DATA)
    line = (
        "align",
        "c.safetensors",
        models[1],
        *NET,
        "--groups",
        "all",
        "--data",
        "data.py:samples",
        "--json",
    )
    how = ("--method", "ste", "--epochs", "1", "--init", "al.perm.safetensors")
    assert done(*line, *how, "-o", "x.safetensors").json()["match"]["init"] == "given"
    assert alike("x.safetensors", models[1])
    near, far = (
        sum((tensors("c.safetensors")[n] * t).sum() for n, t in tensors(f).items() if t.ndim > 1)
        for f in ("x.safetensors", models[1])
    )
    assert near > 5 * far.abs()


@pytest.mark.sweep
def test_elements_that_are_given_are_measured_beside_a_random_one(models, done, tmp_path):
    (tmp_path / "data.py").write_text(DATA)
    how = (*NET, "--data", "data.py:samples", "--skip-checks", "--json", "--points", "3")
    rows = done("barrier", *models, *GIVEN, *how).json()["rows"]
    given = {row["name"]: row["curves"]["test"]["loss"][1] for row in rows}
    assert "random group element" in given and "aligned (permutations)" not in given
    ends = done("barrier", "c.safetensors", "al.safetensors", "--method", "none", *how).json()["rows"]
    there = next(row["curves"]["test"]["loss"][1] for row in ends if row["name"] == "naive")
    assert given["aligned"] == pytest.approx(there, abs=1e-4)


@pytest.mark.sweep
def test_a_curve_runs_between_turned_models(models, done, tmp_path):
    (tmp_path / "data.py").write_text(DATA)
    how = (*NET, "--data", "data.py:samples")
    done("curve", *models, *GIVEN, *how, "--epochs", "1", "-o", "x.curve.safetensors")
    for at, end in (("0", "c.safetensors"), ("1", "al.safetensors")):
        done("merge", *models, "--curve", "x.curve.safetensors", "--at", at, "-o", f"{at}.safetensors")
        for name, tensor in tensors(end).items():
            assert torch.allclose(tensor, tensors(f"{at}.safetensors")[name], atol=1e-6), name
    line = ("barrier", *models, *how, "--curve", "x.curve.safetensors", "--method", "none", "--skip-checks")
    rows = done(*line, "--points", "3", "--json").json()["rows"]
    assert any(row["name"].startswith("curve (aligned)") for row in rows)
    line = ("barrier", *models, *how, "--curve", "x.curve.safetensors", "--skip-checks", "--points", 3)
    assert done(*line, "--json").json()["match"]["method"] == "wm"  # not auto: they are turned
