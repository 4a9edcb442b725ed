"""Experts that are tensors of their own change places: every command, from the files to the files."""

from pathlib import Path

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation, stored
from tests import mixtures

NOISE = 0.1  # of a tensor's standard deviation


def shapes_of(model):
    return {name: tuple(tensor.shape) for name, tensor in model.items()}


def drawn(seed, dtype=torch.float32, **how):
    torch.manual_seed(seed)
    return {name: t.to(dtype) for name, t in mixtures.Mixture(**how).state_dict().items()}


def planted(model, noise=0.0, seed=1):
    """The model in another order, and the order that takes it back."""
    fitted = fit(parse(mixtures.SPEC, name="mixture"), shapes_of(model))
    rng = torch.Generator().manual_seed(seed)
    perms = permutation.random(fitted.words, rng, within=fitted.within)
    moved = dict(permutation.permuted(model, fitted, perms))
    for name, tensor in moved.items():
        wide = tensor.float()
        own = noise * wide.std() * torch.randn(wide.shape, generator=rng)
        moved[name] = (wide + own).to(tensor.dtype)
    return moved, permutation.invert(perms)


def outputs(model):
    network = mixtures.Mixture().double()
    network.load_state_dict({name: tensor.double() for name, tensor in model.items()})
    with torch.no_grad():
        return network(torch.arange(26).view(2, 13) % mixtures.TOKENS)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def pair(request, tmp_path):
    a = drawn(0, request.param)
    b, back = planted(a, NOISE)
    write_safetensors(Path("a.safetensors"), a)
    write_safetensors(Path("b.safetensors"), b)
    Path("moe.yaml").write_text(mixtures.SPEC)
    Path("mixture.py").write_text(Path(mixtures.__file__).read_text())
    return a, b, back


GIVEN = ("a.safetensors", "b.safetensors", "--spec", "moe.yaml")
PROVEN = ("--net", "mixture.py:Mixture", "--input", "2x7:int13")


def read(path):
    return {name: tensor.clone() for name, tensor in open_checkpoint(Path(path)).items()}


def test_a_planted_order_of_experts_and_of_units_within_each_comes_back_under_noise(pair, done):
    a, b, back = pair
    told = done("align", *GIVEN, *PROVEN, "-o", "out.safetensors", "--json").json()
    assert told["proof"]["status"] == "proven"
    found = stored.load(Path("out.perm.safetensors")).elements.permutations
    assert found.keys() == back.keys()
    assert all(torch.equal(found[word], back[word]) for word in back)
    out = read("out.safetensors")
    assert list(out) == sorted(b) and all(out[n].dtype == b[n].dtype for n in b)
    assert {name: t.shape for name, t in out.items()} == {name: t.shape for name, t in b.items()}
    assert not torch.equal(out["layers.0.experts.3.w1.weight"], b["layers.0.experts.3.w1.weight"])
    before, after = outputs(b), outputs(out)
    assert (before - after).abs().max() <= 1e-12 * before.abs().max()


def test_apply_moves_another_model_alike_and_back_again(pair, done):
    a, b, _ = pair
    done("align", *GIVEN, "-o", "out.safetensors")
    moved = ("out.perm.safetensors", "b.safetensors", "--spec", "moe.yaml", "-o", "again.safetensors")
    done("apply", *moved)
    again, out = read("again.safetensors"), read("out.safetensors")
    assert all(torch.equal(again[name], out[name]) for name in out)
    back = ("out.perm.safetensors", "out.safetensors", "--invert", "--spec", "moe.yaml")
    done("apply", *back, "-o", "back.safetensors")
    assert all(torch.equal(tensor, b[name]) for name, tensor in read("back.safetensors").items())


@pytest.mark.sweep
def test_verify_and_merge_know_the_order_too(pair, done, run):
    a, _, _ = pair
    moved, _ = planted(a)
    write_safetensors(Path("moved.safetensors"), moved)
    told = done("verify", "a.safetensors", "moved.safetensors", "--spec", "moe.yaml", "--json").json()
    assert told["answer"] == "yes" and told["largest_difference"] == 0
    assert run("verify", *GIVEN, "--json").json()["answer"] == "no"
    merged = ("a.safetensors", "moved.safetensors", "--spec", "moe.yaml", "-o", "merged.safetensors")
    done("merge", *merged)
    assert all(torch.equal(tensor, a[name]) for name, tensor in read("merged.safetensors").items())
    third, _ = planted(a, seed=2)
    write_safetensors(Path("third.safetensors"), third)
    three = ("a.safetensors", "moved.safetensors", "third.safetensors", "--spec", "moe.yaml")
    done("merge", *three, "--method", "merge-many", "-o", "three.safetensors")
    close = {torch.float32: 1e-6, torch.bfloat16: 1e-2}[a["head.weight"].dtype]
    for name, tensor in read("three.safetensors").items():
        assert (tensor - a[name]).abs().max() <= close * a[name].abs().max()


def test_files_in_shards_are_read_and_written(pair, done, tmp_path):
    _, b, _ = pair
    shards = ("--out-shard-size", "1KB")
    done("align", *GIVEN, "-o", "one.safetensors")
    done("align", "a.safetensors", "a.safetensors", "--spec", "moe.yaml", "-o", "a2.safetensors", *shards)
    done("align", *GIVEN, "-o", "many.safetensors", *shards)
    assert len(list(tmp_path.glob("many-*"))) > 2
    many, one = read("many.safetensors.index.json"), read("one.safetensors")
    assert many.keys() == b.keys() and all(torch.equal(many[name], one[name]) for name in b)
    sharded = ("a2.safetensors.index.json", "many.safetensors.index.json", "--spec", "moe.yaml")
    done("align", *sharded, "-o", "again.safetensors")
    assert all(torch.equal(tensor, one[name]) for name, tensor in read("again.safetensors").items())


def test_the_spec_is_inferred_where_the_graph_can_be_followed(pair, done):
    _, _, back = pair
    dense = ("--net", "mixture.py:dense", "--input", "2x7:int13")
    told = done("align", "a.safetensors", "b.safetensors", *dense, "-o", "out.safetensors", "--json").json()
    assert told["proof"]["status"] == "proven"
    found = stored.load(Path("out.perm.safetensors")).elements.permutations
    named = {word.replace("hidden", "experts.hidden"): perm for word, perm in back.items()}
    assert found.keys() == named.keys()
    assert all(torch.equal(found[word], named[word]) for word in named)


@pytest.mark.sweep
def test_groups_of_a_stream_leave_experts_an_order(pair, done):
    a, _, _ = pair
    if a["head.weight"].dtype != torch.float32:
        pytest.skip("one dtype will do")
    dense = ("--net", "mixture.py:dense", "--input", "2x7:int13", "--groups", "all")
    done("canon", "a.safetensors", "-o", "canon.safetensors", *dense[:4])
    done("align", "canon.safetensors", "b.safetensors", *dense, "-o", "out.safetensors")
    a, out = read("canon.safetensors"), read("out.safetensors")
    apart = sum(float((a[name] - out[name]).square().sum()) for name in a)
    assert apart < 3 * NOISE**2 * sum(float(tensor.square().sum()) for tensor in a.values())
    done("apply", "out.perm.safetensors", "b.safetensors", "-o", "applied.safetensors")
    applied = read("applied.safetensors")
    assert all((applied[n] - out[n]).abs().max() <= 1e-5 * out[n].abs().max() for n in out)
    before, after = outputs(read("b.safetensors")), outputs(out)
    assert (before - after).abs().max() <= 1e-5 * before.abs().max()


def test_what_does_not_fit_is_refused(pair, refused):
    a, b, _ = pair
    says = 'layers.1.experts.3.w2.weight  is not in the checkpoint, but the list "layers.1.experts" has'
    lacking = {name: t for name, t in a.items() if name != "layers.1.experts.3.w2.weight"}
    write_safetensors(Path("lacking.safetensors"), lacking)
    refused(4, "spec", "check", "moe.yaml", "lacking.safetensors", says=says)
    write_safetensors(Path("narrow.safetensors"), a | {"layers.0.experts.2.w1.weight": torch.zeros(5, 8)})
    says = ("layers.0.experts.2.w1.weight  is 5×8", "reads them as one tensor")
    refused(4, "align", "narrow.safetensors", "narrow.safetensors", "--spec", "moe.yaml", says=says)
    write_safetensors(Path("router.safetensors"), a | {"layers.0.gate.weight": torch.zeros(12, 8)})
    says = 'layers.0.gate.weight  axis 0 is "layers.0.experts", 12 units'
    refused(4, "spec", "check", "moe.yaml", "router.safetensors", says=says)
    mixed = b | {"layers.0.experts.2.w1.weight": b["layers.0.experts.2.w1.weight"].double()}
    write_safetensors(Path("mixed.safetensors"), mixed)
    says = ("several dtypes", "layers.0.experts.2.w1.weight  is float64")
    refused(3, "align", "a.safetensors", "mixed.safetensors", "--spec", "moe.yaml", says=says)
