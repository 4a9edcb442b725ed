"""rebasin apply."""

from pathlib import Path

import torch
from torch import nn

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors

from .conftest import fresh, same, tensors


def test_the_permutation_beside_the_output_makes_that_output(pair, done):
    done("align", *pair, "-o", "aligned.safetensors")
    outcome = done("apply", "aligned.perm.safetensors", pair[1], "-o", "again.safetensors")
    assert same("again.safetensors", "aligned.safetensors") and "written" in outcome.out
    told = open_checkpoint("again.safetensors").metadata
    assert told["rebasin.command"] == "apply" and '"permutation": "' in told["rebasin.options"]


def test_invert_undoes(pair, done):
    done("align", *pair, "-o", "aligned.safetensors")
    done("apply", "aligned.perm.safetensors", "aligned.safetensors", "--invert", "-o", "back.safetensors")
    assert same("back.safetensors", pair[1]) and not same("aligned.safetensors", pair[1])


def test_averaged_weights_in_the_same_file(pair, done, tmp_path):
    """Align on the weights, apply to their moving average."""
    averaged = {name: tensor / 2 for name, tensor in tensors(pair[1]).items()}
    torch.save({"state_dict": tensors(pair[1]), "ema": {"shadow": averaged}}, tmp_path / "b.pt")
    done("align", pair[0], "b.pt", "-o", "aligned.safetensors")
    done("apply", "aligned.perm.safetensors", "b.pt", "--key", "ema.shadow")
    halves, wholes = tensors(tmp_path / "b_permuted.safetensors"), tensors("aligned.safetensors")
    assert all(torch.equal(2 * halves[name], wholes[name]) for name in wholes)


def test_averaged_weights_of_one_model_are_aligned_to_another_file(pair, done, refused, tmp_path):
    averaged = {name: tensor / 2 for name, tensor in tensors(pair[1]).items()}
    torch.save({"state_dict": tensors(pair[1]), "ema": {"shadow": averaged}}, tmp_path / "two.pt")
    torch.save(tensors(pair[0]), tmp_path / "one.pt")
    torch.save({"state_dict": tensors(pair[0]), "cfg": {"depth": 2}}, tmp_path / "under.pt")
    write_safetensors(tmp_path / "averaged.safetensors", averaged)
    done("align", pair[0], "averaged.safetensors", "-o", "expected.safetensors")
    shadow = ("two.pt", "--key", "ema.shadow", "--force", "-o")
    for first in (pair[0], "one.pt", "under.pt"):
        outcome = done("align", first, *shadow, "aligned.safetensors")
        assert "holds one set of weights, which is taken: --key ema.shadow is for the others" in outcome.err
        assert same("aligned.safetensors", "expected.safetensors")
    refused(2, "align", "one.pt", "two.pt", "--key", "emma", says="unknown key in two.pt: 'emma'")
    refused(2, "align", "one.pt", pair[0], "--key", "ema", says="has no key 'ema'")


def test_what_is_no_permutation_for_this_model_is_refused(pair, refused, done, tmp_path):
    done("align", *pair, "-o", "aligned.safetensors")
    perm = "aligned.perm.safetensors"
    refused(
        3, "apply", pair[0], pair[1], says=("a.safetensors is not a permutation file", "*.perm.safetensors")
    )
    refused(3, "apply", "nowhere.safetensors", pair[1], says="nowhere.safetensors: no such file")
    refused(2, "apply", perm, pair[1], "-o", "aligned.safetensors", says="aligned.safetensors exists")
    fresh(tmp_path / "wide.safetensors", width=16, depth=3)
    refused(3, "apply", perm, "wide.safetensors", says=(perm, '"h0" has (12,)', "expected (16,)"))
    fresh(tmp_path / "other.safetensors", "two_layer", width=16)
    refused(
        4, "apply", perm, "other.safetensors", says=(f"{perm} was found with another spec (mlp)", "--spec")
    )
    torch.save({"place": torch.ones(3, 4)}, "odd.pt")
    outcome = refused(4, "apply", perm, "odd.pt", says=("no built-in spec fits", "rebasin spec infer --net"))
    assert "Give the network" not in outcome.err


def test_an_order_of_an_inferred_spec_is_applied_with_the_spec_as_written(refused, done, tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def net():\n    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))\n"
    )
    for name, seed in (("a.pt", 1), ("b.pt", 2)):
        torch.manual_seed(seed)
        torch.save(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)).state_dict(), name)
    net = ("--net", "net.py:net", "--input", "2x5")
    done("align", "a.pt", "b.pt", *net, "--method", "wm", "-o", "aligned.pt")
    says = ("found with another spec (inferred)", "rebasin spec infer", "--spec spec.yaml")
    refused(4, "apply", "aligned.perm.safetensors", "b.pt", "-o", "again.pt", says=says)
    done("spec", "infer", *net, "-o", "spec.yaml")
    done("apply", "aligned.perm.safetensors", "b.pt", "--spec", "spec.yaml", "-o", "again.pt")
    aligned, again = torch.load("aligned.pt"), torch.load("again.pt")
    assert all(torch.equal(aligned[name], again[name]) for name in aligned)


def chain_of(names, seed, widths):
    """Tensors of linear layers in a row, weight before bias."""
    torch.manual_seed(seed)
    return {
        f"{name}.{leaf}": tensor.detach()
        for name, into, out in zip(names, widths, widths[1:], strict=False)
        for leaf, tensor in nn.Linear(into, out).named_parameters()
    }


def test_an_order_of_a_chain_is_applied_to_a_file_that_has_its_tensors_in_another_order(done):
    for name, seed in (("a", 1), ("b", 2)):
        made = chain_of(("enter", "mid", "out"), seed, (12, 9, 7, 3))
        write_safetensors(f"{name}.safetensors", dict(sorted(made.items())))
        torch.save(made, f"{name}.pt")
    assert [*torch.load("b.pt")] != [*tensors("b.safetensors")]
    done("align", "a.safetensors", "b.safetensors", "--spec", "chain", "-o", "aligned.safetensors")
    for spec in (("--spec", "chain"), ()):
        done("apply", "aligned.perm.safetensors", "b.pt", *spec, "-o", "again.pt", "--force")
        aligned, again = tensors("aligned.safetensors"), torch.load("again.pt")
        assert all(torch.equal(aligned[name], again[name]) for name in aligned)


def test_a_permutation_of_a_chain_that_an_earlier_version_wrote(done, refused):
    """Its spec had its lines as the file has its tensors."""
    for name, seed in (("a.safetensors", 1), ("b.safetensors", 2)):
        write_safetensors(name, dict(sorted(chain_of(("enter", "mid", "out"), seed, (12, 9, 7, 3)).items())))
    done("align", "a.safetensors", "b.safetensors", "--spec", "chain", "-o", "aligned.safetensors")
    perm, kept = tensors("aligned.perm.safetensors"), open_checkpoint("aligned.perm.safetensors").metadata
    then = "70768577c478ac22f0ef1b80ae6c69756a0a6791e98ccdc2be3392ed52055b1d"
    assert kept["rebasin.spec_sha256"] != then
    for name, digest in (("then", then), ("none", "0" * 64)):
        write_safetensors(f"{name}.safetensors", perm, metadata=kept | {"rebasin.spec_sha256": digest})
    done("apply", "then.safetensors", "b.safetensors", "--spec", "chain", "-o", "again.safetensors")
    aligned, again = tensors("aligned.safetensors"), tensors("again.safetensors")
    assert all(torch.equal(aligned[name], again[name]) for name in aligned)
    refused(4, "apply", "none.safetensors", "b.safetensors", "--spec", "chain", says="another spec (chain)")


def test_an_order_of_a_chain_is_refused_where_the_file_tells_another_order_of_layers(done, refused):
    for name, seed in (("a.pt", 1), ("b.pt", 2)):
        torch.save(chain_of(("enter", "one", "another", "out"), seed, (9, 6, 6, 6, 2)), name)
    torch.save(chain_of(("enter", "another", "one", "out"), 2, (9, 6, 6, 6, 2)), "other.pt")
    done("align", "a.pt", "b.pt", "--spec", "chain", "-o", "aligned.pt")
    says = ("found with another spec (chain)", "save them in the order of that file")
    refused(4, "apply", "aligned.perm.safetensors", "other.pt", "--spec", "chain", "-o", "o.pt", says=says)


def test_a_permutation_that_is_no_bijection_is_refused(pair, refused, done):
    done("align", *pair, "-o", "aligned.safetensors")
    metadata = open_checkpoint("aligned.perm.safetensors").metadata
    broken = tensors("aligned.perm.safetensors")
    broken["h1"][0] = broken["h1"][1]
    write_safetensors("broken.perm.safetensors", broken, metadata=metadata)
    says = ("broken.perm.safetensors: these permutations do not fit", '"h1" is not a bijection')
    refused(3, "apply", "broken.perm.safetensors", pair[1], says=says)


def test_moments_of_a_network_with_batchnorm(resnets, done, tmp_path):
    """An optimiser has moments for parameters, not for running statistics."""
    done("align", *resnets, "-o", "aligned.safetensors")
    aligned, model = tensors("aligned.safetensors"), tensors(resnets[1])
    moments = {name: tensor for name, tensor in model.items() if name.endswith(("weight", "bias"))}
    torch.save({"exp_avg": moments}, tmp_path / "adam.pt")
    done("apply", "aligned.perm.safetensors", "adam.pt", "--key", "exp_avg", "-o", "m.safetensors")
    found = tensors("m.safetensors")
    assert set(found) == set(moments) and all(torch.equal(found[name], aligned[name]) for name in found)


def test_a_permutation_says_which_weights_it_was_written_with(pair, done, refused):
    """Those of different runs may come to lie beside each other: a copy, an older version."""
    done("align", *pair, "-o", "aligned.safetensors")
    together = "aligned.perm.safetensors and aligned.safetensors were written together"
    assert together in done("inspect", "aligned.safetensors").out
    assert together in done("inspect", "aligned.perm.safetensors").out
    done("align", *pair[::-1], "-o", "other.safetensors")
    Path("other.safetensors").replace("aligned.safetensors")
    apart = "aligned.perm.safetensors was written beside other weights than aligned.safetensors holds"
    assert apart in done("inspect", "aligned.safetensors").out
    assert apart in done("inspect", "aligned.perm.safetensors").out
    says = ("aligned.perm.safetensors was written beside other weights than", "sha256", "align again")
    refused(3, "apply", "aligned.perm.safetensors", "aligned.safetensors", "--invert", says=says)


def test_shards_and_another_dtype_are_known_to_their_permutation(pair, done):
    done("align", *pair, "-o", "aligned.safetensors", "--out-shard-size", "2kB", "--out-dtype", "bfloat16")
    assert "were written together" in done("inspect", "aligned.safetensors.index.json").out
    assert "were written together" in done("inspect", "aligned.perm.safetensors").out


def test_what_is_permuted_already_is_not_permuted_once_more(pair, done, refused):
    done("align", *pair, "-o", "aligned.safetensors")
    perm, says = (
        "aligned.perm.safetensors",
        "aligned.safetensors is permuted by aligned.perm.safetensors already",
    )
    refused(3, "apply", perm, "aligned.safetensors", says=says)
    refused(3, "merge", pair[0], "aligned.safetensors", "--perm", perm, says=(says, "--method none"))
    done("merge", *pair, "--perm", perm)


def test_a_broken_file_beside_is_no_matter_to_inspect(pair, done):
    done("align", *pair, "-o", "aligned.safetensors")
    Path("aligned.perm.safetensors").write_bytes(b"broken")
    assert "together" not in done("inspect", "aligned.safetensors").out
