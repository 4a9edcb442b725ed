"""rebasin average, or merge --method none: plain averages, soups, folders of shards, heads that differ."""

import itertools
import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rebasin_cli.averages import weights as schedules
from rebasin_cli.checkpoints import destination, writer
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.nets.mlp import MLP
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.symmetry import permutation

from .conftest import contents, fresh, rebasin, tensors


def strange(seed, dtype=torch.float32, **more):
    """A model that no built-in spec knows."""
    rng = torch.Generator().manual_seed(seed)
    layers = {
        f"blocks.{k}.{name}.weight": torch.randn(*shape, generator=rng).to(dtype)
        for k in range(3)
        for name, shape in (("attention", (8, 8)), ("gate", (16, 8)), ("norm", (8,)))
    }
    return layers | {"position_ids": torch.arange(4), "steps": torch.tensor(seed)} | more


@pytest.fixture
def run_of_three(tmp_path):
    paths = [tmp_path / f"step-{step}.safetensors" for step in (1000, 200, 30)]
    for seed, path in enumerate(paths):
        write_safetensors(path, strange(seed))
    return paths


def mean(models, weights):
    return {name: sum(w * m[name] for w, m in zip(weights, models, strict=True)) for name in models[0]}


def agree(path, expected, names=None):
    found = tensors(path)
    for name in names or [name for name in found if name.startswith("blocks")]:
        torch.testing.assert_close(found[name], expected[name])


def test_any_models_with_equal_tensors_are_averaged_without_a_spec(run_of_three, done):
    outcome = done("merge", *run_of_three, "--method", "none")
    agree("merged.safetensors", mean([strange(seed) for seed in range(3)], [1 / 3] * 3))
    assert torch.equal(tensors("merged.safetensors")["steps"], torch.tensor(0))
    assert "copied from" in outcome.err and "(integers): steps, position_ids" in outcome.err.replace(
        "position_ids, steps", "steps, position_ids"
    )
    assert "these differ among the models: steps" in outcome.err
    told = open_checkpoint("merged.safetensors").metadata
    assert "rebasin.spec" not in told and told["rebasin.method"] == "none"
    assert len(json.loads(told["rebasin.inputs"])) == 3


def test_the_order_of_the_models_does_not_change_what_is_averaged(run_of_three, done):
    found = []
    for k, order in enumerate(itertools.permutations(run_of_three)):
        done("merge", *order, "--method", "none", "-o", f"{k}.safetensors", "-q")
        found.append(tensors(f"{k}.safetensors"))
    for other in found[1:]:
        for name in found[0]:
            assert name == "steps" or torch.equal(found[0][name], other[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_mean_of_a_model_with_itself_is_the_model(tmp_path, done, dtype):
    path = tmp_path / "a.safetensors"
    write_safetensors(path, strange(1, dtype))
    done("merge", path, path, path, "--method", "none")
    merged, model = tensors("merged.safetensors"), tensors(path)
    assert list(merged) == list(model)
    for name in model:
        assert torch.equal(merged[name], model[name]) and merged[name].dtype == model[name].dtype


@pytest.mark.parametrize("name", ["linear", "cosine", "minus-sqrt"])
def test_a_run_is_merged_in_the_order_of_its_steps(run_of_three, done, name):
    """Given in another order, and sorted as numbers: as letters, 1000 would come first."""
    outcome = done("merge", *run_of_three, "--method", "none", "--weights", name)
    weights = schedules.weights_of(name, 3)
    agree("merged.safetensors", mean([strange(seed) for seed in (2, 1, 0)], weights))
    line = next(line for line in outcome.err.splitlines() if line.startswith(f"weights by {name}"))
    assert line.index("step-30") < line.index("step-200") < line.index("step-1000")
    plan = ("merge", *run_of_three, "--method", "none", "--weights", name, "--dry-run", "--json")
    plan = done(*plan, "-o", "planned.safetensors").json()
    assert [round(weight, 6) for weight in weights] == list(plan["weights"].values())
    assert plan["schedule"] == name
    recorded = json.loads(open_checkpoint("merged.safetensors").metadata["rebasin.options"])
    assert recorded["schedule"] == name and recorded["weights"] == weights


def test_a_schedule_needs_names_that_tell_an_order(run_of_three, refused, tmp_path):
    last = shutil.copy(run_of_three[0], tmp_path / "last.safetensors")
    cosine = ("--method", "none", "--weights", "cosine")
    refused(2, "merge", run_of_three[1], last, *cosine, says=("tell no order", "last.safetensors"))
    says = "--reference puts a model first"
    refused(2, "merge", *run_of_three, *cosine, "--reference", run_of_three[0], says=says)
    none = ("--method", "none", "--weights")
    refused(2, "merge", *run_of_three, *none, "cosin", says="Did you mean cosine")


def test_the_plan_tells_sizes_and_writes_nothing(run_of_three, done, tmp_path):
    before = contents(tmp_path)
    plan = done("merge", *run_of_three, "--method", "none", "--dry-run", "--json").json()
    one = sum(tensor.nbytes for tensor in strange(0).values())
    assert plan["written_bytes"] == one and plan["read_bytes"] == 2 * 3 * one  # for digests, and the mean
    assert plan["free_bytes"] > 0 and plan["peak_bytes"] > 0 and plan["copied"]["steps"] == "integers"
    assert contents(tmp_path) == before


def test_a_disk_without_room_is_refused_before_the_models_are_read(run_of_three, refused, monkeypatch):
    monkeypatch.setattr(
        destination.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 100)
    )
    monkeypatch.setattr(
        "rebasin_cli.commands.merging.plain._digests", lambda *_: pytest.fail("it was read all the same")
    )
    refused(5, "merge", *run_of_three, "--method", "none", says="100 bytes free, the output needs")


def test_what_is_ignored_is_copied_from_a_file_of_ones_choice(run_of_three, done):
    a, b, c = run_of_three
    choice = ("--ignore", "*.norm.*", "--ignore", "blocks.0.*", "--copy-from", c)
    outcome = done("average", a, b, *choice)
    merged, source = tensors("merged.safetensors"), strange(2)
    for name in ("blocks.0.gate.weight", "blocks.2.norm.weight", "steps"):
        assert torch.equal(merged[name], source[name])
    agree("merged.safetensors", mean([strange(0), strange(1)], [0.5, 0.5]), ["blocks.1.gate.weight"])
    assert f"copied from {c} (ignored)" in outcome.err


def test_values_that_are_no_numbers_are_refused_with_their_place(run_of_three, refused):
    bad = strange(1)
    bad["blocks.1.gate.weight"][3, 2] = float("nan")
    write_safetensors(run_of_three[1], bad, force=True)
    says = (f"{run_of_three[1]} cannot be used", "blocks.1.gate.weight  1 NaN", "[3, 2]")
    refused(3, "merge", *run_of_three, "--method", "none", says=says)


def test_a_mean_beyond_the_range_of_its_dtype_is_refused(tmp_path, refused, done):
    paths = [tmp_path / f"{k}.safetensors" for k in range(2)]
    for path in paths:
        write_safetensors(path, {"w": torch.full((4,), 1e6)})
    says = ("w: the average is beyond the range of torch.float16", "--out-dtype bfloat16")
    refused(2, "merge", *paths, "--method", "none", "--out-dtype", "float16", says=says)
    done("merge", *paths, "--method", "none", "--out-dtype", "bfloat16")


def test_quantised_weights_are_copied_where_they_are_equal_and_else_refused(tmp_path, refused, done):
    packed = {"q.weight": torch.ones(4, 4, dtype=torch.int8), "scale": torch.ones(4)}
    paths = [tmp_path / f"{k}.safetensors" for k in range(2)]
    for path in paths:
        write_safetensors(path, packed)
    assert "(quantised): q.weight" in done("merge", *paths, "--method", "none").err
    write_safetensors(paths[1], packed | {"q.weight": torch.zeros(4, 4, dtype=torch.int8)}, force=True)
    says = ("quantised tensors differ", "q.weight", "--ignore GLOB")
    refused(4, "merge", *paths, "--method", "none", "-o", "out.safetensors", says=says)
    done("average", *paths, "--ignore", "q.weight", "-o", "out.safetensors")


def norms(seed):
    statistics = {"bn.running_mean": torch.zeros(8), "bn.running_var": torch.ones(8)}
    return strange(seed, **statistics, **{"bn.num_batches_tracked": torch.tensor(seed)})


def test_running_statistics_are_refused_without_a_spec_too(tmp_path, refused, done):
    paths = [tmp_path / f"{k}.safetensors" for k in range(2)]
    for seed, path in enumerate(paths):
        write_safetensors(path, norms(seed))
    says = ("averaging them makes a broken model", "--repair none")
    refused(2, "merge", *paths, "--method", "none", says=says)
    done("merge", *paths, "--method", "none", "--repair", "none")
    done("average", *paths, "--ignore", "*.running_*", "-o", "kept.safetensors")
    refused(2, "average", *paths, "-o", "mean.safetensors", says="--repair none")
    done("average", *paths, "--repair", "none", "-o", "mean.safetensors")


def test_data_and_specs_still_repair_what_is_averaged_unaligned(resnets, done):
    outcome = done("merge", *resnets, "--method", "none", "--data", "npz:pictures.npz")
    assert "re-estimated" in outcome.err and "repaired norms       21" in outcome.out


def test_models_of_different_tensors_are_refused_with_all_their_differences(tmp_path, refused):
    paths = [tmp_path / f"{k}.safetensors" for k in range(2)]
    write_safetensors(paths[0], strange(0))
    write_safetensors(paths[1], strange(1, lora=torch.ones(2)) | {"blocks.0.norm.weight": torch.ones(9)})
    says = (
        f"lora  is absent in {paths[0]}, float32 2 elsewhere",
        f"blocks.0.norm.weight  is float32 8 in {paths[0]}, float32 9 in {paths[1]}",
        "--extra keep|keep-a|drop",
        "--heads",
    )
    refused(4, "merge", *paths, "--method", "none", says=says)


# ------------------------------------------------------------------------------------- folders of shards


@pytest.fixture
def folders(tmp_path):
    found = []
    for seed, name in enumerate(("one", "two")):
        folder = tmp_path / name
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", strange(seed, torch.bfloat16), shard_size=400)
        (folder / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16", "seed": seed}))
        (folder / "tokenizer.json").write_text("{}")
        (folder / "modeling.py").write_text("raise SystemExit('code')")
        found.append(folder)
    return found


def weight_map(folder):
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def test_a_folder_of_shards_becomes_a_folder_of_the_same_shards(folders, done, tmp_path):
    outcome = done("merge", *folders, "--method", "none", "-o", "merged/", "--copy-files")
    merged = tmp_path / "merged"
    assert weight_map(merged) == weight_map(folders[0]) and len(set(weight_map(merged).values())) > 2
    names = {path.name for path in folders[0].iterdir()} - {"modeling.py"}
    assert {path.name for path in merged.iterdir()} == names
    assert (merged / "config.json").read_bytes() == (folders[0] / "config.json").read_bytes()
    assert "config.json differs" in outcome.err and "tokenizer.json differs" not in outcome.err
    wide = [{n: t.float() for n, t in strange(seed, torch.bfloat16).items()} for seed in range(2)]
    expected = {name: tensor.bfloat16() for name, tensor in mean(wide, [0.5, 0.5]).items()}
    agree(merged, expected)


def test_a_layout_of_ones_own_names_is_kept(folders, done, tmp_path):
    """Names as other tools choose them, and tensors that this tool would have put elsewhere."""
    for folder in folders:
        map_ = weight_map(folder)
        for path in folder.glob("*.safetensors*"):
            path.unlink()
        stored = strange(0, torch.bfloat16)
        files = {"a.safetensors": [], "b.safetensors": []}
        for k, name in enumerate(map_):
            files["ab"[k % 2] + ".safetensors"].append(name)
        for file, names in files.items():
            write_safetensors(folder / file, {name: stored[name] for name in names})
        index = {"weight_map": {name: file for file, names in files.items() for name in names}}
        (folder / "weights.safetensors.index.json").write_text(json.dumps(index))
    done("merge", *folders, "--method", "none", "-o", "merged/")
    written = tmp_path / "merged" / "weights.safetensors.index.json"
    assert json.loads(written.read_text())["weight_map"] == index["weight_map"]
    agree(tmp_path / "merged", strange(0, torch.bfloat16))


def test_a_configuration_names_the_dtype_that_is_written(folders, done, tmp_path):
    done("merge", *folders, "--method", "none", "-o", "merged/", "--copy-files", "--out-dtype", "float32")
    assert json.loads((tmp_path / "merged" / "config.json").read_text()) == {
        "torch_dtype": "float32",
        "seed": 0,
    }
    assert open_checkpoint(tmp_path / "merged").dtypes["blocks.0.gate.weight"] == torch.float32


def test_a_folder_that_holds_a_model_is_not_overwritten_without_force(folders, done, refused, tmp_path):
    merge = ("merge", *folders, "--method", "none", "-o", "merged/", "--copy-files")
    done(*merge)
    refused(2, *merge, says="exists")
    done(*merge, "--force", "--out-shard-size", "1GB")
    left = {path.name for path in (tmp_path / "merged").iterdir()}
    assert left == {"model.safetensors", "config.json", "tokenizer.json"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("mine")
    other = ("merge", *folders, "--method", "none", "-o", "other", "--copy-files")
    refused(2, *other, says="config.json exists")


def test_what_fails_on_the_way_leaves_no_folder(folders, refused, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.os, "fsync", full)
    refused(5, "merge", *folders, "--method", "none", "-o", "new/merged/", "--copy-files", says="No space")


@pytest.mark.parametrize("out", [".", "./", "/", ".."])
def test_a_folder_without_a_name_is_no_output(folders, refused, out):
    refused(2, "merge", *folders, "--method", "none", "-o", out, says="is a folder, not a file")


def test_aligned_models_go_into_folders_too(pair, done, tmp_path):
    done("merge", *pair, "-o", "merged/")
    done("merge", *pair, "-o", "merged.safetensors")
    merged, plain = (tmp_path / name for name in ("merged/model.safetensors", "merged.safetensors"))
    assert merged.read_bytes() == plain.read_bytes()


def test_ctrl_c_leaves_nothing(run_of_three, interrupted):
    merge = ("merge", *run_of_three, "--method", "none", "-o", "new/")
    assert interrupted(*merge, after=3) == set()


def test_files_are_copied_into_folders_only(folders, run_of_three, refused):
    none = ("--method", "none", "--copy-files")
    refused(2, "merge", *folders, *none, says="-o merged/")
    refused(2, "merge", *run_of_three, *none, "-o", "merged/", says="holds no configuration")


# ---------------------------------------------------------------------------------------- heads that differ


def network(path, like=None):
    stored = tensors(path)
    made = MLP([64, 12, 12, 12, len(stored["head.bias"])])
    made.load_state_dict(stored)
    return made.eval()


@pytest.fixture
def two_heads(tmp_path):
    """An MLP of 10 classes, and the same body in another order with a head of its own for 4 classes."""
    a = fresh(tmp_path / "a.safetensors", seed=0, width=12, depth=3)
    b = fresh(tmp_path / "b.safetensors", seed=1, width=12, depth=3, classes=4)
    body = {name: tensor for name, tensor in tensors(a).items() if not name.startswith("head")}
    other = tensors(b) | body
    write_safetensors(b, other, force=True)
    fitted = fit(library.load("mlp"), {name: tuple(tensor.shape) for name, tensor in other.items()})
    perms = permutation.random(fitted.words, torch.Generator().manual_seed(3))
    shuffled = tmp_path / "shuffled.safetensors"
    write_safetensors(shuffled, permutation.permuted(other, fitted, perms))
    return a, b, shuffled


def test_concatenated_heads_of_one_body_give_the_logits_of_both(two_heads, done):
    """Plainly where the bodies are equal, and aligned where they are equal up to the order of their units."""
    a, b, shuffled = two_heads
    done("merge", a, b, "--method", "none", "--heads", "concat", "-o", "plain.safetensors")
    outcome = done("merge", a, shuffled, "--heads", "concat", "-o", "aligned.safetensors")
    assert "heads set aside while aligning: head.weight, head.bias" in outcome.err.replace(
        "head.bias, head.weight", "head.weight, head.bias"
    )
    x = torch.randn(5, 64)
    both = torch.cat([network(a)(x), network(b)(x)], 1)
    for path in ("plain.safetensors", "aligned.safetensors"):
        torch.testing.assert_close(network(path)(x), both)


def test_models_whose_heads_differ_are_matched_by_weights_also_where_there_are_data(two_heads, done):
    """What runs the network, as `auto` does, runs one head."""
    a, _, shuffled = two_heads
    done("merge", a, shuffled, "--heads", "keep-a", "--repair", "none", "--net", "mlp", "--data", "digits")
    assert open_checkpoint("merged.safetensors").metadata["rebasin.method"] == "wm"


@pytest.mark.parametrize("heads, classes", [("keep-a", 10), ("keep-b", 4), ("average", 10), ("drop", 0)])
def test_heads_of_aligned_models(two_heads, done, heads, classes):
    a, b, shuffled = two_heads
    done("merge", a, shuffled, "--heads", heads, "-o", "out.safetensors")
    done("merge", a, b, "--method", "none", "--heads", heads, "-o", "plain.safetensors")
    out, plain = tensors("out.safetensors"), tensors("plain.safetensors")
    assert len(out.get("head.bias", ())) == classes and set(out) == set(plain)
    for name in out:
        torch.testing.assert_close(out[name], plain[name])


def test_heads_that_differ_are_refused_unless_one_says_how(two_heads, refused, done):
    a, b, shuffled = two_heads
    refused(4, "merge", a, b, "--method", "none", says=("head.bias", "--heads"))
    refused(4, "merge", a, shuffled, says="head.bias")
    refused(2, "merge", a, b, "--heads", "keep", says="Did you mean keep-")
    says = "runs a network with one head"
    refused(2, "merge", a, shuffled, "--heads", "concat", "--method", "am", "--data", "digits", says=says)
    says = "a network with one head computes"
    refused(2, "merge", a, shuffled, "--heads", "concat", "--repair", "bias", says=says)
    outcome = done("merge", a, a, "--method", "none", "--heads", "concat")
    assert "--heads concat changes nothing" in outcome.err


@pytest.mark.parametrize("option", [["--ignore", "x"], ["--extra", "keep"], ["--copy-from", "a"]])
def test_options_of_plain_averages_are_not_silently_ignored(pair, refused, option):
    refused(2, "average", *pair, *option, "--data", "digits", says=f"{option[0]} is for plain averages")


def test_an_average_is_the_file_that_merge_writes_by_no_method(run_of_three, done):
    done("average", *run_of_three, "--weights", "0.5,0.25,0.25", "-q")
    none = ("--method", "none", "--weights", "0.5,0.25,0.25", "-o", "none.safetensors", "-q")
    done("merge", *run_of_three, *none)
    assert Path("none.safetensors").read_bytes() == Path("merged.safetensors").read_bytes()


def test_what_only_averages_have_is_told_as_the_line_to_type(run_of_three, refused, done):
    asked = ("merge", *run_of_three, "-m", "none", "--ignore", "*.norm.*", "--extra=keep")
    error = refused(2, *asked, says="--ignore and --extra: of rebasin average now").err
    line = shlex.split(error.partition("Type: ")[2])
    assert line[:2] == ["rebasin", "average"] and "none" not in line
    done(*line[1:])


# --------------------------------------------------------------------------------------------- greedy soups


@pytest.fixture
def kin(trained, tmp_path):
    """Two trained MLPs that share no basin, and copies of the first with a little noise."""
    paths = [shutil.copy(path, tmp_path / path.name) for path in trained]
    for seed in range(2):
        torch.manual_seed(seed)
        noisy = {n: t + 0.3 * t.std() * torch.randn_like(t) for n, t in tensors(trained[0]).items()}
        paths.append(tmp_path / f"noisy{seed}.safetensors")
        write_safetensors(paths[-1], noisy, metadata=open_checkpoint(trained[0]).metadata)
    return [tmp_path / "a.safetensors", tmp_path / "b.safetensors", *paths[2:]]


def test_a_greedy_soup_keeps_what_helps_and_never_loses_to_the_best_model(kin, done):
    found = done("merge", *kin, "--method", "none", "--soup", "greedy", "--data", "digits", "--json").json()
    tried = {row["model"]: row for row in found["tries"]}
    assert set(tried) == set(map(str, kin)) and found["best_single"] == found["soup"][0]
    assert found["loss"] <= found["best_single_loss"] == min(row["alone"] for row in tried.values())
    kept = [row["model"] for row in found["tries"] if row["kept"]]
    assert kept == found["soup"]
    expected = mean([tensors(path) for path in found["soup"]], [1 / len(kept)] * len(kept))
    agree("merged.safetensors", expected, list(expected))
    running = found["best_single_loss"]
    for row in found["tries"][1:]:
        assert row["kept"] == (row["loss"] < running)
        running = min(running, row["loss"])
    score = done("eval", "merged.safetensors", "--data", "digits", "--json").json()
    assert score["loss"] == pytest.approx(found["loss"], abs=1e-6)


def test_a_soup_needs_a_network_and_data_and_equal_weights(kin, run_of_three, refused):
    soup = ("--method", "none", "--soup", "greedy")
    refused(2, "merge", *kin, *soup, "--weights", "0.25,0.25,0.25,0.25", says="Drop --weights")
    refused(4, "average", *run_of_three, "--soup", "greedy", says="--net file.py:factory --data NAME")
    refused(2, "merge", *kin, *soup[:3], "gredy", says="Did you mean greedy")
    refused(4, "merge", *run_of_three, *soup, "--data", "digits", says="no built-in spec fits")


def test_options_that_a_soup_or_an_average_has_no_use_for_are_refused(kin, refused):
    none = ("--method", "none")
    refused(2, "merge", *kin, *none, "--repair", "none", "--resume", says="keeps no state")
    refused(2, "merge", *kin, *none, "--repair", "none", "--max-sweeps", "3", says="has no such option")
    refused(2, "merge", *kin, *none, "--repair", "none", "--log", "x.jsonl", says="takes no steps")
    soup = (*none, "--soup", "greedy", "--data", "digits")
    refused(2, "merge", *kin, *soup, "--resume", says="a soup keeps no state")
    refused(2, "average", *kin, *soup[2:], "--extra", "keep", says="without --heads, --extra")
    refused(2, "merge", *kin, *soup, "--repair", "repair", says="--repair repair of its own")


def test_a_soup_of_a_network_of_ones_own_needs_no_spec(kin, done, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from rebasin_cli.nets.mlp import MLP\ndef net(): return MLP([64, 16, 10])\n"
    )
    own = ("--net", "mine.py:net", "--data", "digits", "--limit", "100")
    outcome = done("merge", *kin[:1], *kin[2:], "--method", "none", "--soup", "greedy", *own)
    assert "tries" in outcome.out and "kept" in outcome.out


def test_a_soup_may_be_aligned_first(kin, done):
    outcome = done("merge", *kin[:2], "--soup", "greedy", "--data", "digits", "--json").json()
    assert outcome["models"] == 2 and len(outcome["tries"]) == 2


def test_a_soup_of_batchnorm_networks_has_statistics_of_its_own(resnets, done):
    soup = ("--method", "none", "--soup", "greedy", "--data", "npz:pictures.npz", "--skip-checks")
    near = {n: t + 1e-3 * torch.randn_like(t) if t.ndim > 1 else t for n, t in tensors(resnets[0]).items()}
    write_safetensors("near.safetensors", near)
    found = done("merge", resnets[0], "near.safetensors", *soup, "--json").json()
    merged = tensors("merged.safetensors")
    assert len(found["soup"]) == 2, "nothing would be measured anew"
    assert not torch.equal(merged["bn1.running_mean"], near["bn1.running_mean"])
    done("merge", resnets[0], "near.safetensors", *soup, "--repair", "none", "-o", "none.safetensors")


# ------------------------------------------------------------------------------------------- what doctor says


def test_what_doctor_advises_for_kin_works(kin, done):
    told = done("doctor", kin[0], kin[2], "--json").json()
    assert told["verdict"] == "average" and "--method none" in told["next"]
    done(*told["next"].split()[1:])


@pytest.mark.parametrize("command", ["merge", "align"])
def test_copies_of_one_model_without_a_spec_are_sent_to_the_plain_average(command, done, refused, tmp_path):
    rng = torch.Generator().manual_seed(0)
    draw = {f"h.{k}.{part}.weight": (8, 8) for k in range(4) for part in ("q", "k", "v")}
    base = {name: torch.randn(shape, generator=rng) for name, shape in draw.items()}
    for name in ("a b", "c"):
        tuned = {n: t + 0.01 * torch.randn(t.shape, generator=rng) for n, t in base.items()}
        write_safetensors(tmp_path / f"{name}.safetensors", tuned)
    strangers = {n: torch.randn(t.shape, generator=rng) for n, t in base.items()}
    write_safetensors(tmp_path / "d.safetensors", strangers)
    line = "rebasin average 'a b.safetensors' c.safetensors"
    says = refused(4, command, "a b.safetensors", "c.safetensors", says=("The models are kin", line)).err
    assert len(says.splitlines()) == 2 and "nearest" not in says
    done(*shlex.split(line)[1:], "-o", "mean.safetensors")
    assert "near each" not in refused(4, command, "c.safetensors", "d.safetensors", says="--net").err


def test_the_configuration_in_a_folder_says_what_is_written(done, tmp_path):
    for name, rows in (("one", 6), ("two", 8)):
        (tmp_path / name).mkdir()
        made = {"model.embed.weight": torch.randn(rows, 4), "model.w": torch.randn(4, 4)}
        write_safetensors(tmp_path / name / "model.safetensors", made)
        (tmp_path / name / "config.json").write_text(json.dumps({"vocab_size": rows, "dtype": "float32"}))
    merge = ("merge", "one", "two", "--method", "none", "--heads", "average", "-o")
    outcome = done(*merge, "out/", "--copy-files", "--out-dtype", "bfloat16")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == {"vocab_size": 8, "dtype": "bfloat16"} and '"vocab_size" is 8, not 6' in outcome.err
    assert open_checkpoint(tmp_path / "out").shapes["model.embed.weight"] == (8, 4)
    assert "in a copy of it" in done(*merge, "o.safetensors").err


def test_what_means_something_only_together_is_averaged_as_that_or_refused(tmp_path, refused, done):
    torch.manual_seed(0)
    layer = torch.nn.utils.spectral_norm(torch.nn.Linear(6, 8)).eval()
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    paths = [tmp_path / f"{k}.safetensors" for k in range(2)]
    for sign, path in zip((1, -1), paths, strict=True):  # the signs of singular vectors mean nothing
        write_safetensors(path, state | {n: sign * state[n] for n in ("weight_u", "weight_v")})
    x = torch.randn(3, 6)
    wanted = layer(x)
    told = done("merge", *paths, "--method", "none", "-o", "mean.safetensors").err
    assert (
        "averaged as weight_orig over its largest singular value" in told
        and "(spectral norm): weight" in told
    )
    layer.load_state_dict(tensors("mean.safetensors"))
    torch.testing.assert_close(layer(x), wanted, rtol=1e-4, atol=1e-5)
    for rank, path in zip((2, 3), paths, strict=True):
        factors = {"q.lora_A.weight": torch.randn(rank, 4), "q.lora_B.weight": torch.randn(4, rank)}
        write_safetensors(path, factors, force=True)
    says = ("adapter tensors differ", "q.lora_A.weight, q.lora_B.weight", "merge_and_unload()")
    for more in (["--method", "none"], ["--method", "none", "--dry-run"], ["--heads", "average"], []):
        refused(4, "merge", *paths, *more, "-o", "out.safetensors", says=says)
    write_safetensors(paths[1], {"q.weight": torch.randn(4, 4)}, force=True)
    says = ("an adapter and a model that is none", f"in {paths[0]}", f"no adapter in {paths[1]}")
    refused(4, "merge", *paths, "--method", "none", "-o", "out.safetensors", says=says)


def test_one_model_is_written_as_it_is_and_nothing_else_is_made_of_it(done, refused):
    model = {
        "a.weight": torch.tensor([[-0.0, 1.5], [3e-45, 7.0]]),
        "n.weight_g": torch.rand(4, 1) + 1,
        "n.weight_v": torch.randn(4, 3),
        "b.running_mean": torch.randn(2).half(),
        "b.running_var": torch.rand(2).half(),
        "b.num_batches_tracked": torch.tensor(3),
    }
    torch.save(model, "one.pt")
    told = done("average", "one.pt", "-o", "one.safetensors").err
    assert "one model: written as it is" in told and "averaged as" not in told
    made = load_file("one.safetensors")
    assert made.keys() == model.keys()
    for name, own in model.items():
        assert made[name].dtype == own.dtype and made[name].numpy().tobytes() == own.numpy().tobytes(), name
    done("average", "one.pt", "-o", "half.pt", "--out-dtype", "bfloat16")
    assert torch.load("half.pt")["a.weight"].dtype == torch.bfloat16
    says = "at least two models"
    refused(2, "average", "one.pt", "--soup", "greedy", "-o", "no.pt", says=says)
    refused(2, "average", "one.pt", "--repair", "reset", "-o", "no.pt", says=says)
    refused(2, "merge", "one.pt", "-o", "no.pt", says=says)
    refused(2, "average", "one.pt", "--weights", "0.5", "-o", "no.pt", says="add up to 0.5")


def test_one_file_among_models_twice_by_any_name_is_told(run_of_three, done, tmp_path):
    first, second, _ = run_of_three
    (tmp_path / "best.safetensors").symlink_to(first)
    (tmp_path / "last.safetensors").hardlink_to(first)
    for name in ("last", "best"):
        told = f"{name}.safetensors: one file that is named 2 times, and counts as often"
        line = ("average", first, second, f"{name}.safetensors", "-o", "out.safetensors", "--force")
        assert told in done(*line).err
    assert "times" not in done(*line, "--weights", ".5,.25,.25").err  # who names weights means them
    agree("out.safetensors", mean([strange(k) for k in (0, 1, 0)], [0.5, 0.25, 0.25]))


def test_a_file_whose_name_reads_as_an_option_is_told_as_one(run_of_three):
    for name in ("-i.safetensors", "-ours.safetensors"):  # no option, and -o urs.safetensors
        Path(name).write_bytes(Path(run_of_three[0]).read_bytes())
        outcome = rebasin("average", name, *run_of_three)
        assert outcome.code == 2 and f"{name} is a file here, and reads as options" in outcome.err
        assert f"./{name}" in outcome.err and not Path("urs.safetensors").exists()
        line = ("average", "-o", f"out{name}", "--repair", "none", "--", name, run_of_three[1])
        assert rebasin(*line).code == 0
    assert "is a file" not in rebasin("average", "--nonsense", run_of_three[1]).err


def test_a_tensor_that_one_model_lacks_is_no_other_dtype(done):
    write_safetensors("a.safetensors", {"w": torch.ones(3)})
    write_safetensors("b.safetensors", {"w": torch.zeros(3), "n.num_batches_tracked": torch.tensor(1)})
    out = "average", "a.safetensors", "b.safetensors", "--extra", "keep"
    assert "dtypes" not in done(*out).err
    write_safetensors("b.safetensors", {"w": torch.zeros(3).half()}, force=True)
    assert "different dtypes" in done(*out, "--force").err
