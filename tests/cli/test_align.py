"""rebasin align."""

import errno
import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors

from .conftest import contents, fresh, same, tensors

WRONG_SPEC = """
tensors:
  layers.{i}.weight: "h{i} h{i-1|.}"
  layers.0.bias: "."
  layers.1.bias: "h1"
  layers.2.bias: "h2"
  head.weight: ". h{last}"
  head.bias: "."
net: rebasin_cli.nets.mlp:from_shapes
"""


def test_writes_the_model_and_its_permutation(pair, done, tmp_path):
    outcome = done("align", *pair, "-o", "out.safetensors")
    assert {"out.safetensors", "out.perm.safetensors"} < set(contents(tmp_path))
    assert (
        "(give yours with --net): outputs differ by" in outcome.out and "out.perm.safetensors" in outcome.out
    )
    assert "spec: mlp, found from the tensors" in outcome.err
    written = open_checkpoint("out.safetensors")
    assert list(written) == sorted(tensors(pair[1])) and not same("out.safetensors", pair[1])
    assert written.metadata["rebasin.command"] == "align"
    assert written.metadata["rebasin.proof"] == "proven (assumed network)"


def test_the_proof_says_whose_network_it_is_about(pair, trained, done):
    assumed = "proven on rebasin's own MLP, assumed from the tensors' names (give yours with --net): outputs"
    assert assumed in done("align", *pair).out
    assert "proven: outputs" in done("align", *pair, "--net", "mlp", "--force").out
    assert open_checkpoint("b_aligned.safetensors").metadata["rebasin.proof"] == "proven"
    assert "proven: outputs" in done("align", *trained, "-o", "of_trained.safetensors").out
    assert open_checkpoint("of_trained.safetensors").metadata["rebasin.proof"] == "proven"


ELSEWHERE = """
import sys
from rebasin_cli.__main__ import main

for command, out in (("align", "there"), ("merge", "merged_there")):
    try:
        main([command, "a.safetensors", "b.safetensors", "-o", f"{out}.safetensors", "-q"])
    except SystemExit as end:
        assert not end.code
try:
    import uarray
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The folder where another process aligned and merged what `pair` holds, and what it printed.

    Its strings hash by another seed, which only an interpreter that starts can be given. In its folder lies
    a file that is called like a package which SciPy would use if it were there.
    """
    folder = tmp_path_factory.mktemp("elsewhere")
    for k, name in enumerate("ab"):
        fresh(folder / f"{name}.safetensors", seed=k, width=12, depth=3)
    (folder / "uarray.py").write_text("open('was_run', 'w')")
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    command = [sys.executable, "-P", "-c", ELSEWHERE]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return folder, ran.stdout


def test_files_in_the_working_directory_are_not_run(elsewhere):
    """SciPy and others look for optional packages by names such as uarray; one may lie here by chance."""
    folder, told = elsewhere
    assert (folder / "there.safetensors").exists()
    assert not (folder / "was_run").exists() and "No module named 'uarray'" in told


def test_the_users_code_finds_what_lies_beside_it_and_nothing_else_does(pair, done, tmp_path):
    (tmp_path / "sizes.py").write_text("SIZES = [64, 12, 12, 12, 10]")
    (tmp_path / "mine.py").write_text(
        "from rebasin_cli.nets.mlp import MLP\nfrom sizes import SIZES\ndef net():\n    return MLP(SIZES)\n"
    )
    done("align", *pair, "--net", "mine.py:net")
    assert str(tmp_path) not in sys.path


def test_a_spec_calls_nothing_of_rebasin_but_networks(pair, refused, tmp_path):
    for name in ("rebasin_cli.__main__:main", "rebasin_cli.nets:build"):
        (tmp_path / "own.yaml").write_text(WRONG_SPEC.replace("rebasin_cli.nets.mlp:from_shapes", name))
        refused(2, "align", *pair, "--spec", "own.yaml", says=(name, "--trust-code"))


def test_names_its_output_after_the_model(pair, done, tmp_path):
    done("align", *pair)
    assert (tmp_path / "b_aligned.safetensors").exists()
    assert (tmp_path / "b_aligned.perm.safetensors").exists()


def test_a_planted_relabelling_comes_back(pair, relabelled, done):
    done("align", pair[1], relabelled, "-o", "back.safetensors")
    assert same("back.safetensors", pair[1])


def test_two_processes_write_the_same_bytes(pair, done, tmp_path, elsewhere):
    done("align", *pair, "-o", "here.safetensors")
    done("merge", *pair, "-o", "merged_here.safetensors")
    for kind in ("{}.safetensors", "merged_{}.safetensors", "{}.perm.safetensors"):
        here, there = tmp_path / kind.format("here"), elsewhere[0] / kind.format("there")
        assert here.read_bytes() == there.read_bytes()


def test_provenance_has_neither_paths_nor_times(pair, done, tmp_path):
    done("align", *pair, "-o", "one.safetensors")
    (tmp_path / "deep").mkdir()
    done("align", *pair, "-o", "deep/other.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "deep/other.safetensors").read_bytes()
    assert str(tmp_path) not in str(open_checkpoint("one.safetensors").metadata)


def test_torch_files_in_envelopes_with_prefixes(pair, done, tmp_path):
    for name, path in zip("xy", pair, strict=True):
        state = {f"module.{key}": tensor for key, tensor in tensors(path).items()}
        torch.save({"epoch": 3, "model_state_dict": state}, tmp_path / f"{name}.pt")
    outcome = done("align", "x.pt", "y.pt", "-o", "torch.safetensors")
    assert "the weights are those under 'model_state_dict'" in outcome.err and "module." in outcome.err
    done("align", *pair, "-o", "plain.safetensors", "-q")
    assert same("torch.safetensors", "plain.safetensors")


def test_json_on_stdout_and_everything_else_on_stderr(pair, done):
    outcome = done("align", *pair, "--json", "-v")
    told = outcome.json()
    assert told["written"] == ["b_aligned.safetensors", "b_aligned.perm.safetensors"]
    assert told["spec"]["words"] == 3 and told["proof"]["status"] == "proven"
    assert told["match"]["objective_after"] > told["match"]["objective_before"]
    assert "matching 1" in outcome.err and "objective" in outcome.err


def test_quiet_is_silent_on_stderr(pair, done):
    assert done("align", *pair, "-q").err == ""


def test_dry_run_prints_the_plan_and_writes_nothing(pair, done, tmp_path):
    before = contents(tmp_path)
    outcome = done("align", *pair, "--dry-run")
    for words in ("tensors              8", "permutations         3", "assignment sizes     3 of 12", "peak"):
        assert words in outcome.out
    assert contents(tmp_path) == before


@pytest.mark.parametrize("command", ["align", "merge", "kin", "verify"])
@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("--data nope", "unknown data set"),
        ("--data npz:gone.npz", "gone.npz"),
        ("--data gone.py:load", "gone.py"),
        ("--data mnist --data-root gone", "gone"),
        ("--net gone.py:net", "gone.py"),
        ("--net torch.nn:Absent", "Absent"),
    ],
)
def test_a_dry_run_finds_what_is_named(pair, run, tmp_path, command, named, says):
    if command == "verify" and "--data" in named:
        pytest.skip("verify reads no data")
    before = contents(tmp_path)
    told = run(command, *pair, "--dry-run", *named.split())
    assert told.code in (2, 6) and says in told.err and contents(tmp_path) == before


def test_shards_and_dtype(pair, done, tmp_path):
    outcome = done("align", *pair, "-o", "s.safetensors", "--out-shard-size", "2KB", "--out-dtype", "bf16")
    assert (tmp_path / "s.safetensors.index.json").exists() and "s-00001-of-" in outcome.out
    assert set(open_checkpoint("s.safetensors.index.json").dtypes.values()) == {torch.bfloat16}


def test_no_prove_is_recorded(pair, done):
    assert "skipped: --no-prove" in done("align", *pair, "--no-prove").out
    assert open_checkpoint("b_aligned.safetensors").metadata["rebasin.proof"] == "skipped"


def test_a_spec_that_changes_the_function_is_refused(pair, refused, done, tmp_path):
    (tmp_path / "wrong.yaml").write_text(WRONG_SPEC)
    says = (
        "wrong.yaml does not preserve the network's function",
        'permuting "h0" alone',
        "Nothing was written",
    )
    refused(4, "align", *pair, "--spec", "wrong.yaml", says=says)


def test_code_that_a_spec_names_needs_trust(pair, refused, done, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from rebasin_cli.nets.mlp import from_shapes\n"
        "def net(shapes):\n    return from_shapes(shapes)\n"
        "def fixed():\n    from rebasin_cli.nets.mlp import MLP\n    return MLP([64, 12, 12, 12, 10])\n"
    )
    spec = WRONG_SPEC.replace('"."\n  layers.1', '"h0"\n  layers.1').replace(
        "rebasin_cli.nets.mlp:from_shapes", "mine.py:net"
    )
    (tmp_path / "mine.yaml").write_text(spec)
    refused(2, "align", *pair, "--spec", "mine.yaml", says=("mine.py:net", "--trust-code"))
    outcome = done("align", *pair, "--spec", "mine.yaml", "--trust-code", "--force")
    assert "network: MLP from mine.py:net" in outcome.err and "proven" in outcome.out
    for factory in ("net", "fixed"):
        outcome = done("align", *pair, "--net", f"mine.py:{factory}", "--force")
        assert f"network: MLP from mine.py:{factory}" in outcome.err and "proven" in outcome.out


@pytest.mark.parametrize(
    ("code", "body", "says"),
    [
        (6, "raise RuntimeError('no such GPU')", "RuntimeError: no such GPU"),
        (6, "import sys; sys.exit(0)", "importing mine.py failed: SystemExit"),
        (6, "def net(): raise ValueError('7')", "mine.py:net failed to build the network: ValueError: 7"),
        (6, "def net(): return 3", "mine.py:net returned int"),
        (6, "import torch\ndef net(): return torch.nn.Linear(2, 2)", "is not the network of this checkpoint"),
        (2, "def nett(): return 3", "Did you mean nett?"),
    ],
)
def test_a_network_that_fails(pair, refused, tmp_path, code, body, says):
    (tmp_path / "mine.py").write_text(body)
    refused(code, "align", *pair, "--net", "mine.py:net", says=says)


# what cannot be read


def _cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def _edit(path, change):
    changed = tensors(path)
    change(changed)
    write_safetensors(path, changed, force=True)


def _nan(t):
    t["layers.1.weight"][2, 3] = float("nan")


def _int8(t):
    t["layers.1.weight"] = t["layers.1.weight"].to(torch.int8)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda p: p.unlink(), ("b.safetensors: no such file",)),
        (lambda p: p.write_bytes(b""), ("b.safetensors is empty (0 bytes)", "Copy or download")),
        (lambda p: _cut(p, 5), ("b.safetensors is cut off",)),
        (lambda p: _cut(p, 100), ("b.safetensors is cut off",)),
        (lambda p: _cut(p, p.stat().st_size - 1), ("b.safetensors is cut off", "its tensors end at byte")),
        (lambda p: p.write_bytes(struct.pack("<Q", 2**60) + b"{}"), ("1,152,921,504,606,846,976 bytes",)),
        (lambda p: _edit(p, _nan), ("b.safetensors cannot be used", "1 NaN of 144 values, first at [2, 3]")),
        (lambda p: _edit(p, _int8), ("layers.1.weight  int8 of shape [12, 12], which looks quantised",)),
    ],
    ids=["missing", "empty", "length", "header", "tensors", "huge header", "nan", "int8"],
)
def test_an_unreadable_checkpoint(pair, refused, broken, says):
    broken(pair[1])
    refused(3, "align", *pair, says=says)


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_a_pickle_that_would_run_code(pair, refused, tmp_path):
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "evil.bin").write_bytes(pickle.dumps(Evil(), protocol=2))
    refused(3, "align", pair[0], "evil.pt", says=("evil.pt", "--unsafe-load"))
    refused(3, "align", pair[0], "evil.bin", says="evil.bin")
    assert not (tmp_path / "executed").exists()


def test_a_whole_module_is_read_as_its_state_dict_and_not_unpickled(pair, done, tmp_path):
    network = torch.nn.Module()
    for name, tensor in load_file(pair[1]).items():
        *parts, last = name.split(".")
        module = network
        for part in parts:
            module._modules.setdefault(part, torch.nn.Module())
            module = module._modules[part]
        module.register_buffer(last, tensor)
    network.evil = Evil()
    torch.save(network, tmp_path / "whole.pt")
    outcome = done("align", pair[0], "whole.pt", "-o", "whole.safetensors")
    assert "whole.pt: not read: all of torch.nn.modules.module.Module but its tensors" in outcome.err
    done("align", *pair, "-o", "plain.safetensors")
    files = [load_file(tmp_path / f"{name}.safetensors") for name in ("whole", "plain")]
    assert all(torch.equal(tensor, files[1][name]) for name, tensor in files[0].items())
    assert not (tmp_path / "executed").exists()


# what does not fit


def test_another_architecture(pair, resnets, refused):
    refused(4, "align", pair[0], resnets[0], says=("the same architecture", "absent in", "ra.safetensors"))


def test_another_width(pair, refused, tmp_path):
    fresh(tmp_path / "wide.safetensors", width=16, depth=3)
    says = ("layers.{i}.bias  is 12 in", "a.safetensors, 16 in", "wide.safetensors")
    refused(4, "align", pair[0], "wide.safetensors", says=says)


def test_other_classes(pair, refused, tmp_path):
    fresh(tmp_path / "few.safetensors", width=12, depth=3, classes=7)
    refused(4, "align", pair[0], "few.safetensors", says="head.bias  is 10 in")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("layers.1.bias"), "layers.1.bias  is 12 in"),
        (lambda t: t.update({"extra.weight": torch.ones(3)}), "extra.weight  is absent in"),
    ],
)
def test_a_missing_and_an_extra_tensor(pair, refused, change, says):
    _edit(pair[1], change)
    refused(4, "align", *pair, says=says)


def test_tensors_that_no_spec_knows(pair, refused):
    for path in pair:
        _edit(path, lambda t: t.update({"extra.weight": torch.ones(3)}))
    says = (
        "a.safetensors: no built-in spec fits these 9 tensors; the nearest is mlp",
        "extra.weight",
        "--spec",
    )
    refused(4, "align", *pair, says=says)


def test_a_spec_with_an_unknown_key(pair, refused, tmp_path):
    (tmp_path / "odd.yaml").write_text('tensor:\n  a: "h"\ntensors:\n  b: "h"\n')
    refused(
        4, "align", *pair, "--spec", "odd.yaml", says=("odd.yaml is not a valid spec", 'unknown key "tensor"')
    )


def test_a_word_with_two_sizes(pair, refused, tmp_path):
    spec = WRONG_SPEC.replace('head.bias: "."', 'head.bias: "h0"')
    (tmp_path / "two.yaml").write_text(spec)
    says = ("two.yaml does not fit", "a.safetensors", '"h0", 12 units', '"h0", 10 units')
    refused(4, "align", *pair, "--spec", "two.yaml", says=says)


# what makes no sense


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--method", "vm"], "Did you mean wm"),
        (["--method", "none"], "leaves nothing to do"),
        (["--spec", "mpl"], "Did you mean mlp?"),
        (["--spec", "no/such.yaml"], "no/such.yaml: no such file"),
        (["--net", "mpl"], "Did you mean mlp?"),
        (["--net", "nofile.py:net"], "nofile.py: no such file"),
        (["--input", "1x-3"], "cannot be read"),
        (["--out-dtype", "int8"], "unknown dtype 'int8'"),
        (["--out-shard-size", "big"], "is not a size"),
        (["-o", "out.npz"], "Use out.npz.safetensors"),
        (["--key", "ema"], "nothing to choose with --key"),
        (["--resume"], "there is no b_aligned.search.safetensors"),
    ],
)
def test_an_option_that_makes_no_sense(pair, refused, option, says):
    refused(2, "align", *pair, *option, says=says)


@pytest.mark.parametrize("exists", ["b_aligned.safetensors", "b_aligned.perm.safetensors"])
def test_an_output_that_exists(pair, refused, done, tmp_path, exists):
    (tmp_path / exists).write_text("precious")
    refused(2, "align", *pair, says=(f"{exists} exists", "--force"))
    done("align", *pair, "--force")


def test_a_folder_that_cannot_be_written(pair, refused):
    refused(5, "align", *pair, "-o", "/proc/self/out.safetensors", says="/proc/self cannot be written")
    refused(5, "align", *pair, "-o", "nowhere/out.safetensors", says="mkdir -p nowhere")


@pytest.mark.parametrize("full_at", [1, 3])
def test_a_full_disk_leaves_nothing(pair, refused, monkeypatch, full_at):
    """Whether it is full with the first file or with the second; the folder is flushed in between."""
    files = iter(range(1, 100))
    real = os.fsync

    def fsync(descriptor):
        if next(files) == full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    refused(5, "align", *pair, says=("No space left on device", "nothing was written"))


def test_out_of_memory(pair, refused, monkeypatch):
    def greedy(*args, **kwargs):
        torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr("rebasin_cli.commands.verbs.search.find", greedy)
    refused(5, "align", *pair, says="out of memory")


# Ctrl-C


def test_ctrl_c_keeps_the_search_and_resume_gives_the_same_bytes(pair, done, interrupted, tmp_path):
    done("align", *pair, "-o", "whole.safetensors")
    left = interrupted("align", *pair, "-o", "out.safetensors", after=2)
    assert left == {"out.search.safetensors"}
    outcome = done("align", *pair, "-o", "out.safetensors", "--resume")
    assert "going on after sweep 2" in outcome.err
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert (tmp_path / "out.perm.safetensors").read_bytes() == (
        tmp_path / "whole.perm.safetensors"
    ).read_bytes()
    assert not (tmp_path / "out.search.safetensors").exists()


def test_ctrl_c_while_writing_keeps_the_search(pair, done, interrupted, tmp_path, monkeypatch):
    done("align", *pair, "-o", "whole.safetensors")
    with monkeypatch.context() as patch:
        calls = iter([lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt)])
        from rebasin_cli.checkpoints import writer

        real = writer.write_safetensors
        patch.setattr(writer, "write_safetensors", lambda *a, **k: next(calls, real)(*a, **k))
        left = interrupted("align", *pair, "-o", "out.safetensors", after=10_000)
    assert left == {"out.search.safetensors"}
    done("align", *pair, "-o", "out.safetensors", "--resume")
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def test_a_kept_search_of_other_models_is_refused(pair, refused, interrupted, tmp_path):
    interrupted("align", *pair, "-o", "out.safetensors")
    says = ("is from another search", "rebasin.seed  was 0, now 1", "anew with --force")
    refused(2, "align", *pair, "-o", "out.safetensors", "--resume", "--seed", 1, says=says)
    (tmp_path / "out.search.safetensors").write_bytes(pair[0].read_bytes())
    refused(3, "align", *pair, "-o", "out.safetensors", "--resume", says="is not a kept search")


def test_a_kept_search_that_was_changed_is_refused_whatever_was_changed(pair, refused, interrupted, tmp_path):
    interrupted("align", *pair, "-o", "out.safetensors")
    path = tmp_path / "out.search.safetensors"
    kept = open_checkpoint(path)
    said, state = dict(kept.metadata), {name: kept[name].clone() for name in kept}
    longer = {name: torch.cat([one, one]) for name, one in state.items()}
    for metadata, held in (
        (said | {"rebasin.notes": "5"}, state),
        (said | {"rebasin.notes": "[" * 100_000}, state),
        (said | {"rebasin.sweep": "7"}, state),
        (said, state | {"own/more": torch.ones(2)}),
        (said, longer),
    ):
        write_safetensors(path, held, metadata=metadata, force=True)
        refused(3, "align", *pair, "-o", "out.safetensors", "--resume", says="is damaged")


def test_what_is_no_kept_search_is_neither_replaced_nor_removed(pair, refused, done, interrupted, tmp_path):
    for precious in (b"precious", pair[0].read_bytes()):
        (tmp_path / "out.search.safetensors").write_bytes(precious)
        refused(2, "align", *pair, "-o", "out.safetensors", says="out.search.safetensors exists")
    (tmp_path / "out.search.safetensors").unlink()
    interrupted("align", *pair, "-o", "out.safetensors")
    refused(2, "align", *pair, "-o", "out.safetensors", says="exists: a search was interrupted")
    done("align", *pair, "-o", "out.safetensors", "--force")
    assert not (tmp_path / "out.search.safetensors").exists()


def test_activation_matching_brings_a_relabelled_model_back(trained, done, refused, tmp_path):
    from rebasin_cli.spec import library
    from rebasin_cli.spec.fits import fit
    from rebasin_cli.symmetry import permutation

    model = tensors(trained[0])
    fitted = fit(library.load("mlp"), {name: tuple(tensor.shape) for name, tensor in model.items()})
    perms = permutation.random(fitted.words, torch.Generator().manual_seed(5))
    write_safetensors(tmp_path / "c.safetensors", permutation.permuted(model, fitted, perms))
    pair = (trained[0], "c.safetensors")
    outcome = done(
        "align", *pair, "--method", "am", "--at", "both", "--data", "digits", "-o", "back.safetensors"
    )
    assert same("back.safetensors", trained[0]) and "match                am, 1 sweep" in outcome.out
    refused(
        2, "align", *pair, "--method", "am", "-o", "no.safetensors", says=("lacks training samples", "--data")
    )
    refused(
        2, "align", *pair, "--cost", "l2", "-o", "no.safetensors", says="--cost: the method wm has no such"
    )
    known = "Known: both, constrained, post, post-then-pre, pre"
    refused(2, "align", *pair, "--method", "am", "--at", "x", "-o", "no.safetensors", says=known)


def test_the_best_within_a_constraint_is_told_word_by_word(trained, done, tmp_path):
    line = ("align", *trained, "--method", "am", "--cost", "l2", "--data", "digits")
    outcome = done(*line, "--at", "constrained", "-o", "c.safetensors", "--json")
    (row,) = outcome.json()["match"]["constrained"]
    assert row["words"] == ["h0"] and row["before"] >= row["allowed"] and row["reached"] <= row["bound"]
    assert "constrained: h0: the best after the activation " in outcome.err
    for at in ("both", "post-then-pre"):
        done(*line, "--at", at, "-o", f"{at}.safetensors")
    one, other = (tmp_path / f"{at}.perm.safetensors" for at in ("both", "post-then-pre"))
    assert same(one, other)


def test_the_mix_of_both_similarities_is_an_option_of_dual_alone(trained, done, refused):
    perms = {}
    for name, options in {
        "wm": ["--method", "wm"],
        "none": ["--method", "dual", "--mix", "0"],
        "half": ["--method", "dual", "--data", "digits", "--limit", "200"],
    }.items():
        out = f"{name}.safetensors"
        outcome = done("align", *trained, *options, "-o", out, "--json").json()
        assert outcome["match"]["objective_after"] > outcome["match"]["objective_before"]
        perms[name] = tensors(f"{name}.perm.safetensors")
    assert all(torch.equal(perm, perms["wm"][word]) for word, perm in perms["none"].items())
    assert any(not torch.equal(perm, perms["wm"][word]) for word, perm in perms["half"].items())
    metadata = done("inspect", "none.safetensors").out
    assert "mix" in metadata
    refused(
        2, "align", *trained, "--mix", "0", "-o", "no.safetensors", says="--mix: the method wm has no such"
    )
    both = ["--method", "dual", "--at", "both", "--data", "digits"]
    refused(2, "align", *trained, *both, "-o", "no.safetensors", says="--at post-then-pre")


def test_the_seconds_of_the_proof_are_told_beside_those_of_the_search(pair, done):
    times = done("align", *pair, "-o", "one.safetensors", "--json").json()["times"]
    assert set(times) == {"match", "proof"} and times["proof"] > 0
    bare = done("align", *pair, "--no-prove", "-o", "two.safetensors", "--json").json()["times"]
    assert set(bare) == {"match"}


def test_a_folder_takes_the_names_of_the_models_own_files(pair, done, refused, tmp_path):
    for model, layout in zip(pair, ([0] * 8, [0, 0, 0, 0, 1, 1, 1, 1]), strict=True):
        tensors, folder = load_file(model), tmp_path / model.stem
        folder.mkdir()
        files = [f"part-{k}.safetensors" for k in layout]
        for file in {*files}:
            chosen = {name: t for (name, t), of in zip(tensors.items(), files, strict=False) if of == file}
            save_file(chosen, folder / file)
        index = {"weight_map": dict(zip(tensors, files, strict=False))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    done("align", *pair, "-o", "one.safetensors")
    done("align", "a", "b", "-o", "two/")
    made = sorted(path.name for path in Path("two").iterdir())
    assert made == [
        "model.perm.safetensors",
        "model.safetensors.index.json",
        "part-0.safetensors",
        "part-1.safetensors",
    ]
    one, two = open_checkpoint("one.safetensors"), open_checkpoint("two")
    assert one.digest() == two.digest()
    done("apply", "two/model.perm.safetensors", "b", "-o", "three/")
    assert open_checkpoint("three").digest() == one.digest()
    refused(2, "align", "a", "b", "-o", "two", says="exists")
    Path("bad.safetensors").write_bytes(b"")
    refused(3, "align", "a", "bad.safetensors", "-o", "four/", says="is empty")


@pytest.mark.sweep
def test_counters_of_another_dtype_are_written_as_the_reference_has_them_or_refused(resnets, done, refused):
    """One framework counts batches in int64, another in int32 or as floating point."""
    a, b = map(tensors, resnets)
    counters = [name for name in a if name.endswith("num_batches_tracked")]
    large = {name: torch.tensor(300) for name in counters}
    for dtype in (torch.int32, torch.float32, torch.uint16):
        write_safetensors(
            "other.safetensors", b | {name: t.to(dtype) for name, t in large.items()}, force=True
        )
        done("align", resnets[0], "other.safetensors", "-o", "aligned.safetensors", "--force")
        written = tensors("aligned.safetensors")
        assert counters and all(
            written[name] == 300 and written[name].dtype == a[name].dtype for name in counters
        )
    write_safetensors("few.safetensors", a | {name: a[name].to(torch.uint8) for name in counters})
    says = ("is uint16 in one model and uint8 in the reference", "cannot hold its values")
    refused(3, "align", "few.safetensors", "other.safetensors", "-o", "x.safetensors", says=says)


def test_models_whose_configurations_say_other_numbers_of_heads_are_not_aligned(done, refused, tmp_path):
    """No shape tells how many heads there are: in the order of another number B computes something else."""
    shapes = {
        "transformer.wte.weight": (11, 8), "transformer.wpe.weight": (7, 8),
        "transformer.h.0.ln_1.weight": (8,), "transformer.h.0.ln_1.bias": (8,),
        "transformer.h.0.attn.c_attn.weight": (8, 24), "transformer.h.0.attn.c_attn.bias": (24,),
        "transformer.h.0.attn.c_proj.weight": (8, 8), "transformer.h.0.attn.c_proj.bias": (8,),
        "transformer.h.0.ln_2.weight": (8,), "transformer.h.0.ln_2.bias": (8,),
        "transformer.h.0.mlp.c_fc.weight": (8, 10), "transformer.h.0.mlp.c_fc.bias": (10,),
        "transformer.h.0.mlp.c_proj.weight": (10, 8), "transformer.h.0.mlp.c_proj.bias": (8,),
        "transformer.ln_f.weight": (8,), "transformer.ln_f.bias": (8,),
    }  # fmt: skip
    for name, heads in (("a", 4), ("b", 2), ("c", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"n_head": heads, "part": {"head_dim": 3}}))
        save_file(
            {key: torch.randn(size) for key, size in shapes.items()}, tmp_path / name / "model.safetensors"
        )
    said = done("align", tmp_path / "a", tmp_path / "c", "-o", tmp_path / "fits.safetensors").err
    assert "right for the networks that have them and n_head = 4, as config.json says (--net" in said
    others = (tmp_path / "a", tmp_path / "b", "-o", tmp_path / "o.safetensors")
    refused(4, "align", *others, says=("n_head  is 4 in ", "--config"))
