"""rebasin merge."""

import errno
import json
import os

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.spec import library

from .conftest import contents, fresh, same, tensors


def mixture(*paths, weights):
    models = [tensors(path) for path in paths]
    return {name: sum(w * m[name] for w, m in zip(weights, models, strict=True)) for name in models[0]}


def close(path, expected):
    found = tensors(path)
    return all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)


@pytest.fixture
def three(pair, tmp_path):
    return [*pair, fresh(tmp_path / "c.safetensors", seed=2, width=12, depth=3)]


def test_the_mean_of_the_reference_and_the_aligned_model(pair, done):
    outcome = done("merge", *pair)
    done("align", *pair, "-o", "aligned.safetensors")
    assert close("merged.safetensors", mixture(pair[0], "aligned.safetensors", weights=(0.5, 0.5)))
    assert "written              merged.safetensors" in outcome.out and "proven" in outcome.out


def test_a_model_and_its_relabelling_merge_to_the_model(pair, relabelled, done):
    done("merge", pair[1], relabelled)
    assert same("merged.safetensors", pair[1])


def test_weights(pair, done):
    done("merge", *pair, "--weights", "0.7,0.3", "--method", "none")
    assert close("merged.safetensors", mixture(*pair, weights=(0.7, 0.3)))
    told = open_checkpoint("merged.safetensors").metadata
    assert told["rebasin.method"] == "none" and '"weights": [0.7, 0.3]' in told["rebasin.options"]


def test_slerp_keeps_norms_that_the_mean_shrinks(pair, done):
    done("merge", *pair, "--method", "none", "-o", "mean.safetensors")
    done("merge", *pair, "--method", "none", "--interpolation", "slerp", "-o", "slerp.safetensors")
    ends = [tensors(path)["layers.1.weight"].norm() for path in pair]
    assert tensors("slerp.safetensors")["layers.1.weight"].norm() >= min(ends) - 1e-4
    assert tensors("mean.safetensors")["layers.1.weight"].norm() < 0.9 * min(ends)


def test_with_a_permutation_of_ones_own(pair, done, tmp_path):
    done("align", *pair, "-o", "aligned.safetensors")
    outcome = done("merge", *pair, "--perm", "aligned.perm.safetensors", "-o", "given.safetensors")
    done("merge", *pair, "-o", "searched.safetensors")
    assert same("given.safetensors", "searched.safetensors")
    assert "given permutations" in outcome.out and "proven" in outcome.out
    told = open_checkpoint("given.safetensors").metadata
    assert told["rebasin.method"] == "given" and '"permutation": "' in told["rebasin.options"]


def test_a_permutation_of_ones_own_needs_no_data_whatever_the_method(pair, done):
    done("align", *pair, "-o", "aligned.safetensors")
    given = ("--perm", "aligned.perm.safetensors", "--method", "am")
    assert "given permutations" in done("merge", *pair, *given, "-o", "given.safetensors").out


@pytest.mark.parametrize("method", ["wm", "merge-many"])
def test_many_models(three, done, method):
    outcome = done("merge", *three, "--method", method, "--json").json()
    assert outcome["models"] == 3 and outcome["match"]["method"] == method
    assert not close("merged.safetensors", mixture(*three, weights=(1 / 3,) * 3))


@pytest.mark.parametrize("more", [(), ("--method", "none"), ("--dry-run",)])
def test_models_of_two_functions_are_refused_before_they_are_aligned(pair, refused, tmp_path, more):
    for k, path in enumerate(pair):
        write_safetensors(path, tensors(path) | {"grid": (k + 1) * torch.linspace(-1, 1, 9)}, force=True)
    lines = ["layers.{i}.weight: 'h{i} h{i-1|.}'", "layers.{i}.bias: 'h{i}'", "head.weight: '. h{last}'"]
    lines += ["head.bias: '.'", "grid: '.'"]
    (tmp_path / "own.yaml").write_text("\n  ".join(["tensors:", *lines]) + "\n")
    told = refused(4, "merge", *pair, "--spec", "own.yaml", *more, says=("grid", "ignore: in the spec: grid"))
    assert f"other values in {pair[1]} than in {pair[0]}" in told.err and "searching" not in told.err


def test_dtype_shards_and_dry_run(pair, done, tmp_path):
    before = contents(tmp_path)
    plan = done("merge", *pair, "--dry-run", "--json").json()
    assert plan["tensors"] == 8 and plan["assignment_sizes"] == {"12": 3} and plan["peak_bytes"] > 10_000
    assert contents(tmp_path) == before
    outcome = done("merge", *pair, "--out-dtype", "float16", "--out-shard-size", "1.5kB").out
    merged = open_checkpoint("merged.safetensors.index.json")
    assert set(merged.dtypes.values()) == {torch.float16} and "merged-00002-of-" in outcome


def test_half_precision_models_are_averaged_in_float32(tmp_path, done):
    paths = [fresh(tmp_path / f"{k}.safetensors", seed=k, dtype=torch.bfloat16, width=8) for k in range(2)]
    done("merge", *paths, "--method", "none")
    wide = [{name: t.float() for name, t in tensors(path).items()} for path in paths]
    expected = {name: ((wide[0][name] + wide[1][name]) / 2).bfloat16() for name in wide[0]}
    assert all(torch.equal(t, expected[name]) for name, t in tensors("merged.safetensors").items())


def test_merging_batchnorm_without_data_is_refused(resnets, refused, done):
    says = ("averaging them makes a broken model", "--data NAME", "--repair none")
    refused(2, "merge", *resnets, says=says)
    outcome = done("merge", *resnets, "--repair", "none", "--no-prove")
    assert "repair               none" in outcome.out


def test_batchnorm_statistics_are_measured_again_and_it_says_so(resnets, done):
    outcome = done("merge", *resnets, "--data", "npz:pictures.npz", "-o", "reset.safetensors")
    assert "repair: statistics of 21 norms re-estimated on 64 samples" in outcome.err
    assert "repair               reset" in outcome.out and "repaired norms       21" in outcome.out
    done("merge", *resnets, "--repair", "none", "--no-prove", "-o", "none.safetensors")
    reset, plain = tensors("reset.safetensors"), tensors("none.safetensors")
    changed = {name.rpartition(".")[2] for name in plain if not torch.equal(reset[name], plain[name])}
    assert changed == {"running_mean", "running_var", "num_batches_tracked"}
    done("merge", *resnets, "--data", "npz:pictures.npz", "-o", "again.safetensors")
    assert same("again.safetensors", "reset.safetensors")


def test_the_data_set_that_the_models_record_is_taken(trained, done):
    told = done("merge", *trained, "--method", "wm", "--repair", "none").err
    assert "data:" not in told  # nothing to measure
    recorded = open_checkpoint("merged.safetensors").metadata
    assert recorded["rebasin.data"] == "digits" and "rebasin.test_accuracy" not in recorded


def test_code_is_never_run_on_a_files_own_word(resnets, refused, tmp_path):
    """A checkpoint that says `rebasin.data: os:system` must not get its way."""
    from rebasin_cli.checkpoints.writer import write_safetensors

    (tmp_path / "evil.py").write_text("open('executed', 'w')\n")
    for path in resnets:
        write_safetensors(path, tensors(path), metadata={"rebasin.data": "evil.py:loader"}, force=True)
    refused(2, "merge", *resnets, says="--data NAME")
    refused(
        2,
        "barrier",
        *resnets,
        says=("records evil.py:loader", "not enough to open a path or run code", "--data"),
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--weights", "0.5,0.3,0.2"], "3 weights for 2 models"),
        (["--weights", "0.5,0.6"], "the weights add up to 1.1, expected 1"),
        (["--weights", "0.5;0.5"], "is no number"),
        (["--weights", "nan,1"], "weights"),
        (["--interpolation", "slrp"], "Did you mean slerp or slerp-whole?"),
        (["--method", "merge_many"], "Did you mean merge-many?"),
        (["--repair", "rest"], "Did you mean reset"),
        (["--repair", "reset"], "no running statistics to reset"),
        (["--repair", "repair"], "no data set is known"),
        (["--repair", "rescale", "--allow-new-bias", "--data", "digits"], "--allow-new-bias is for"),
        (["--device", "cudo"], "Did you mean cuda"),
        (["--data", "digitz", "--spec", "mlp", "--repair", "reset"], "no running statistics"),
    ],
)
def test_an_option_that_makes_no_sense(pair, refused, monkeypatch, options, says):
    monkeypatch.setattr(
        "rebasin_cli.commands.verbs.search.find", lambda *_: pytest.fail("it was searched all the same")
    )
    refused(2, "merge", *pair, *options, says=says)


def test_what_cannot_be_merged_so(three, refused, done):
    refused(2, "merge", three[0], says="at least two models")
    refused(2, "merge", *three, "--interpolation", "slerp", says="slerp joins two models, not 3")
    done("align", *three[:2], "-o", "out.safetensors")
    says = ("--perm is for the second of two models", "rebasin apply")
    refused(2, "merge", *three, "--perm", "out.perm.safetensors", says=says)
    refused(2, "merge", *three, "-o", "out.safetensors", says="out.safetensors exists")
    refused(3, "merge", *three[:2], "--perm", three[0], says="is not a permutation file")


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        ("digitz", 2, ("unknown data set 'digitz'", "Did you mean digits?")),
        ("npz:nowhere.npz", 6, "nowhere.npz: no such file"),
        ("mnist", 6, "mnist"),
        ("mine.py:absent", 2, "absent"),
        ("mine.py:raises", 6, "mine.py:raises failed on 'train': KeyError: 'disk'"),
        ("mine.py:late", 6, "the data failed at batch 1: ValueError: torn"),
        ("mine.py:wrong", 6, "the network fails on inputs float32 (4, 7)"),
        ("mine.py:single", 6, "batch 0 of the data is float32 (4, 3, 8, 8)"),
        ("mine.py:once", 6, "can be read only once"),
        ("mine.py:number", 6, "expected a function loader(split)"),
    ],
)
def test_data_that_fails(resnets, refused, tmp_path, monkeypatch, data, code, says):
    (tmp_path / "mine.py").write_text(
        "import torch\nnumber = 3\n"
        "def batch(*shape): return torch.zeros(4, *shape), torch.zeros(4, dtype=torch.int64)\n"
        "def raises(split): raise KeyError('disk')\n"
        "def wrong(split): return [batch(7)]\n"
        "def single(split): return [batch(3, 8, 8)[0]]\n"
        "def once(split): return iter([batch(3, 8, 8)])\n"
        "class late:\n    def __init__(self, split): pass\n"
        "    def __iter__(self):\n        yield batch(3, 8, 8)\n        raise ValueError('torn')\n"
    )
    monkeypatch.setattr(
        "rebasin_cli.datasets.downloads.urlopen", lambda *a, **k: pytest.fail(), raising=False
    )
    options = ["--data-root", tmp_path] if data == "mnist" else []
    refused(code, "merge", *resnets, "--data", data, *options, says=says)


def test_a_full_disk_leaves_nothing(pair, refused, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(
        5, "merge", *pair, says=("merged.safetensors cannot be written: No space left", "nothing was written")
    )


@pytest.mark.parametrize(
    ("method", "after"),
    [
        (["wm"], 3),
        (["wm"], 7),
        (["wm", "--max-sweeps", "1"], 1),
        (["wm", "--max-sweeps", "1"], 2),
        (["merge-many"], 1),
    ],
)
def test_ctrl_c_keeps_the_search_and_resume_gives_the_same_bytes(
    three, done, interrupted, tmp_path, method, after
):
    search = ("merge", *three, "--method", *method)
    done(*search, "-o", "whole.safetensors")
    left = interrupted(*search, "-o", "out.safetensors", after=after)
    assert left == {"out.search.safetensors"}
    done(*search, "-o", "out.safetensors", "--resume")
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert not (tmp_path / "out.search.safetensors").exists()


def test_a_network_of_ones_own_is_proven_on_its_data(resnets, done, tmp_path):
    """It does not say what it takes, as ours do."""
    (tmp_path / "mine.py").write_text(
        "from rebasin_cli import nets\n\n"
        "def net():\n"
        "    network = nets.build('resnet20', input_shape=(3, 8, 8), classes=10, width=0.25)\n"
        "    del network.example_shape\n"
        "    return network\n"
    )
    own = ["merge", *resnets, "--net", "mine.py:net", "--method", "wm"]
    assert "proven" in done(*own, "--data", "npz:pictures.npz", "-o", "a.safetensors").out
    assert "proven" in done(*own, "--repair", "none", "--input", "2x3x8x8", "-o", "b.safetensors").out
    unproven = done(*own, "--repair", "none", "-o", "c.safetensors").out
    assert "unavailable: the network does not say its input: give --input SHAPE or --data" in unproven


@pytest.mark.parametrize("repair", ["repair", "rescale", "reshift"])
def test_channels_are_matched_on_request_and_what_is_left_is_told(trained, done, repair):
    outcome = done("merge", *trained, "--method", "wm", "--repair", repair)
    assert "of the channels of 1 layer matched" in outcome.err and "samples, 3 passes" in outcome.err
    assert "not repaired: head: it is the network's output" in outcome.err
    assert f"repair               {repair}" in outcome.out and "repaired layers      1" in outcome.out
    done("merge", *trained, "--method", "wm", "--repair", "none", "-o", "plain.safetensors")
    merged, plain = tensors("merged.safetensors"), tensors("plain.safetensors")
    assert list(merged) == list(plain) and {t.dtype for t in merged.values()} == {torch.float32}
    changed = {name for name in plain if not torch.equal(merged[name], plain[name])}
    weight = set() if repair == "reshift" else {"layers.0.weight"}
    assert changed == {"layers.0.bias"} | weight
    assert (
        f'"repair": "{repair}", "repair_data"'
        in open_checkpoint("merged.safetensors").metadata["rebasin.options"]
    )


def test_biases_are_calibrated_without_data(pair, done):
    outcome = done("merge", *pair, "--repair", "bias", "--method", "none")
    assert "repair: biases of 4 layers calibrated, without data" in outcome.err
    merged, (a, b) = tensors("merged.safetensors"), [tensors(path) for path in pair]
    assert torch.allclose(merged["head.bias"], (a["head.bias"] + b["head.bias"]) / 2**4, atol=1e-6)
    assert torch.allclose(merged["head.weight"], (a["head.weight"] + b["head.weight"]) / 2, atol=1e-6)


def test_repair_of_batchnorm_is_a_reset_and_says_so(resnets, done, refused):
    data = ["--data", "npz:pictures.npz"]
    outcome = done("merge", *resnets, *data, "--repair", "repair", "-o", "repair.safetensors")
    assert "this network has BatchNorm: reset takes the place of repair" in outcome.err
    done("merge", *resnets, *data, "-o", "reset.safetensors")
    assert same("repair.safetensors", "reset.safetensors")
    for repair in ("rescale", "bias"):
        refused(
            2, "merge", *resnets, *data, "--repair", repair, says=f"--repair {repair} is for networks without"
        )


def test_new_biases_only_when_allowed(tmp_path, done):
    """Digits, a network without biases of its own."""
    (tmp_path / "mine.py").write_text(
        "from rebasin_cli.nets.mlp import MLP\ndef net(): return MLP([64, 6, 10], bias=False)\n"
    )
    import runpy

    from rebasin_cli.checkpoints.writer import write_safetensors

    for k in range(2):
        torch.manual_seed(k)
        write_safetensors(tmp_path / f"{k}.safetensors", runpy.run_path("mine.py")["net"]().state_dict())
    merge = ["merge", "0.safetensors", "1.safetensors", "--net", "mine.py:net", "--spec", "infer"]
    merge += ["--data", "digits", "--repair", "repair", "--method", "wm"]
    outcome = done(*merge, "-o", "kept.safetensors")
    assert "not repaired: layers.0: it has no bias of its own: only scaled" in outcome.err
    assert list(tensors("kept.safetensors")) == list(tensors("0.safetensors"))
    outcome = done(*merge, "--allow-new-bias", "-o", "more.safetensors")
    assert "new tensors, which the network did not have: layers.0.bias" in outcome.err
    assert "added                layers.0.bias" in outcome.out
    assert set(tensors("more.safetensors")) - set(tensors("0.safetensors")) == {"layers.0.bias"}


def test_auto_says_what_it_chose_and_by_which_losses(trained, done):
    outcome = done("merge", *trained, "--method", "wm", "--json")
    chosen = outcome.json()["repair"]
    assert f"repair: --repair auto chose {chosen}: the merged model's held-out loss is" in outcome.err
    assert set(outcome.json()["held_out_loss"]) == {"none", "repair"}
    options = json.loads(open_checkpoint("merged.safetensors").metadata["rebasin.options"])
    assert options["repair"] == chosen == options["repair_choice"]["chosen"]
    done("merge", *trained, "--method", "wm", "-o", "again.safetensors", "-q")
    assert same("merged.safetensors", "again.safetensors")


def test_a_name_that_no_file_can_have_is_said_before_any_work(pair, refused):
    long = "x" * 300
    refused(5, "merge", *pair, "-o", f"{long}.safetensors", says="File name too long")
    refused(3, "merge", pair[0], f"{long}.safetensors", "-o", "out.safetensors", says="File name too long")
    refused(5, "merge", *pair, "-o", f"{'x' * 236}.safetensors", says="File name too long")  # beside it


def test_auto_repairs_nothing_where_only_names_tell_the_network(pair, done):
    outcome = done("merge", *pair, "--data", "digits")
    assert "repair: --repair auto is none: only the tensors' names tell the network" in outcome.err
    assert "repair               none" in outcome.out


def test_a_dry_run_lists_what_a_repair_would_touch(trained, resnets, done):
    plan = done("merge", *trained, "--repair", "repair", "--dry-run", "--json").json()
    assert plan["repair_layers"] == ["layers.0"]
    assert plan["repair_left"] == {"head": "it is the network's output"}
    plan = done("merge", *resnets, "--data", "npz:pictures.npz", "--dry-run", "--json").json()
    assert plan["repair"] == "reset" and len(plan["repair_layers"]) == 21


def baked(path):
    return json.loads(open_checkpoint(path).metadata["rebasin.options"]).get("temperature")


@pytest.mark.parametrize("repair", ["none", "repair", "bias", "auto"])
def test_a_temperature_is_baked_in_on_request(trained, done, repair):
    merge = ("merge", *trained, "--method", "wm", "--repair", repair)
    done(*merge, "-o", "plain.safetensors")
    outcome = done(*merge, "--bake-temperature", "--json")
    told = outcome.json()["temperature"]
    assert told == baked("merged.safetensors") and told["layer"] == "head"
    assert baked("plain.safetensors") is None and told["loss_after"] <= told["loss_before"]
    assert f"temperature: logits divided by {told['value']:.4f}, in head: loss " in outcome.err
    plain, merged = tensors("plain.safetensors"), tensors("merged.safetensors")
    assert {name for name in plain if not torch.equal(plain[name], merged[name])} == {
        "head.weight",
        "head.bias",
    }
    network = fresh_network(plain)
    inputs = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    wanted = network(inputs) / told["value"]
    network.load_state_dict(merged)
    torch.testing.assert_close(network(inputs), wanted, rtol=1e-5, atol=1e-5)
    before, after = (done("eval", f"{name}.safetensors", "--json").json() for name in ("plain", "merged"))
    assert before["accuracy"] == after["accuracy"] and before["loss"] != after["loss"]


def fresh_network(state):
    from rebasin_cli import networks

    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    found = networks.resolve(None, library.load("mlp"), shapes)
    found.load_state_dict(state)
    return found.eval()


def test_a_temperature_that_has_no_place_is_refused_before_any_search(trained, refused, done, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from rebasin_cli.nets.mlp import MLP\n\n"
        "class Sure(MLP):\n    def forward(self, x): return super().forward(x).log_softmax(1)\n\n"
        "def net(): return Sure([64, 16, 10])\n"
    )
    merge = ("merge", *trained, "--net", "mine.py:net", "--bake-temperature", "-v")
    outcome = refused(
        2, *merge, says=("--bake-temperature: no single layer gives the logits", "_log_softmax")
    )
    assert "matching" not in outcome.err
    fresh(tmp_path / "x.safetensors", seed=1), fresh(tmp_path / "y.safetensors", seed=2)
    refused(2, "merge", "x.safetensors", "y.safetensors", "--bake-temperature", says="no data set is named")


def test_a_temperature_of_a_network_with_batchnorm(resnets, done):
    data = ["--data", "npz:pictures.npz"]
    outcome = done("merge", *resnets, *data, "--bake-temperature", "--json").json()
    assert outcome["repair"] == "reset" and outcome["temperature"]["value"] > 0


def test_what_a_method_and_the_statistics_lack_is_named_at_once(resnets, done, refused):
    """Whoever follows the first message needs no second one."""
    says = ("ste-mm runs the network on data: it lacks training samples", "so does the repair of BatchNorm")
    says += ("--data NAME", "--method wm --repair none")
    refused(2, "merge", *resnets, "--method", "ste-mm", "-o", "m.safetensors", says=says)
    done("merge", *resnets, "--method", "wm", "--repair", "none", "-o", "m.safetensors")
