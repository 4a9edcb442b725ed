"""`torchrun … -m rebasin_cli align`: two processes write what one writes, and end together."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes

from .conftest import contents, fresh

DRIVER = Path(__file__).with_name("torchrun_driver.py")


def torchrun(*command, **environment):
    """Two processes on this machine, on a port that is free: exit code, stdout and stderr."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"} | environment
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launch, *map(str, command)], env=env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.sweep  # in `make test` two ranks write what one writes, without the launcher: below
def test_two_processes_write_what_one_writes(pair, done, tmp_path):
    one = done("align", *pair, "-o", "one.safetensors", "--json").json()
    code, out, err = torchrun("-m", "rebasin_cli", "align", *pair, "-o", "two.safetensors", "--json")
    assert code == 0, err
    two = json.loads(out)  # printed once
    assert err.count("spec: mlp, found") == 1
    assert two["proof"] == one["proof"] and two["match"]["sweeps"] == one["match"]["sweeps"]
    assert two["match"]["objective_after"] == pytest.approx(one["match"]["objective_after"], rel=1e-6)
    for kind in ("safetensors", "perm.safetensors"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    assert not [name for name in contents(tmp_path) if "search" in name or "tmp" in name]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What happened in every command of the driver: {name: [[exit code, stderr] of rank 0, of rank 1]}."""
    folder = tmp_path_factory.mktemp("together")
    for k, name in enumerate("ab"):
        fresh(folder / f"{name}.safetensors", seed=k, width=12, depth=3)
        fresh(folder / f"{name}_wide.safetensors", seed=k, width=13, depth=3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # As Slurm names them, since torchrun's own names are tried where ranks are
    place = {"SLURM_STEP_NODELIST": "127.0.0.[1-2]", "SLURM_STEP_NUM_TASKS": "2", "MASTER_PORT": port}

    logs = folder.with_name(f"{folder.name}-log")
    ranks = [
        processes.script(DRIVER, folder, log=logs.with_suffix(f".{k}"), SLURM_PROCID=str(k), **place)
        for k in (0, 1)
    ]
    try:
        assert [rank.wait() for rank in ranks] == [0, 0], [rank.err for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    ranks = [json.loads((folder / f"rank{k}.json").read_text()) for k in (0, 1)]
    return {name: [rank[name] for rank in ranks] for name in ranks[0]} | {"folder": folder}


def test_two_ranks_write_what_one_process_writes(told, done, tmp_path):
    folder = told["folder"]
    done("align", folder / "a.safetensors", folder / "b.safetensors", "-o", tmp_path / "one.safetensors")
    for kind in ("safetensors", "perm.safetensors"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (folder / f"whole.{kind}").read_bytes()


def test_an_output_that_is_an_input_is_told_once(told):
    (first, message, left), other = told["exists"]
    assert first == 2 and "a.safetensors is read by this very command" in message and left == []
    assert other[:2] == [2, ""]


def test_a_file_that_one_machine_does_not_have(told):
    first, (code, message, left) = told["missing"]
    assert first[:2] == [3, ""] and first[2] == left == []
    assert code == 3 and message.startswith("rebasin: rank 1 of 2: nowhere.safetensors")


def test_files_that_differ_between_machines(told):
    (code, message, left), other = told["differ"]
    assert code == 2 and left == [] and other[:2] == [2, ""]
    assert "rank 1  model 2 differs from that of rank 0" in message


def test_a_full_disk(told):
    (code, message, left), other = told["full"]
    assert code == 5 and "No space left on device" in message and left == []
    assert other[:2] == [5, ""]


def test_ctrl_c_keeps_the_search_once_and_all_resume(told):
    (code, message, left), (other, hint, _) = told["interrupted"]
    assert code == other == 130 and left == ["out.search.safetensors"]
    assert "interrupted after sweep 2; the search is kept" in message
    assert "rank 1 of 2: stopped, because rank 0 failed: interrupted" in hint
    (code, message, left), other = told["resumed"]
    assert code == 0 and "going on after sweep 2" in message and other[:2] == [0, ""]
    assert left == ["out.perm.safetensors", "out.safetensors"]
    folder = told["folder"]
    assert (folder / "out.safetensors").read_bytes() == (folder / "whole.safetensors").read_bytes()


def test_ranks_measure_what_one_process_does(told, done):
    first, other = told["figures"]
    line = ("eval", told["folder"] / "a.safetensors", "--data", "digits", "--batch-size", 50, "--skip-checks")
    alone, together = done(*line, "--json").json(), json.loads(first)
    for name in ("loss", "accuracy", "ece"):
        assert together[name] == pytest.approx(alone[name], rel=1e-10), name
    assert together["classes"] == alone["classes"] and together["samples"] == 360 and other == ""
    assert [code for code, *_ in told["measured"]] == [0, 0]


def test_a_gate_that_is_missed_is_told_once_and_ends_all(told):
    (code, message, _), other = told["missed"]
    assert code == 1 and "accuracy" in message and other[:2] == [1, ""]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("others", "--limit"),
        ("batches", "--batch-size"),
        ("gates", "--gate"),
        ("against", "the number of --against"),
        ("commands", "the command"),
        ("losses", "the code of --loss, --metric or --net"),
    ],
)
def test_what_is_measured_otherwise_on_another_rank_is_refused(told, name, what):
    (code, message, _), other = told[name]
    assert code == 2 and f"rank 1  {what} differs from that of rank 0" in message and other[:2] == [2, ""]


def test_a_dry_run(told):
    first, other = told["plan"]
    code, message, left = first
    assert [code, left] == [0, []] and other == [0, "", []]
    assert message.startswith("spec: mlp, found from the tensors (3 permutations)\nmethod: wm, ")


@pytest.mark.sweep
def test_a_rank_that_is_killed_ends_the_others(pair, tmp_path):
    before = contents(tmp_path)
    code, out, err = torchrun(DRIVER, tmp_path, KILLED="1")
    assert code == 1 and out == ""  # torchrun's own code: it does not hand on ours
    assert err.count("rebasin: rank 0 of 2: ") == 1 and "Nothing was written" in err
    assert "exitcode  : 5 " in err and "exitcode  : -9 " in err
    assert re.search(r"interrupted after sweep [12]; the search is kept in out\.search\.safetensors", err)
    assert set(contents(tmp_path)) - set(before) == {"out.search.safetensors", "swept"}
    for place in ("ranks.py", "processes.py", "rendezvous.py"):
        assert f"rebasin_cli/runtime/{place}" not in err  # no traceback of ours
    assert "rebasin_cli/cli" not in err


def test_tasks_of_a_job_run_each_by_itself(pair, done, tmp_path, monkeypatch):
    for name, value in {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}.items():
        monkeypatch.setenv(name, value)
    done("kin", *pair, "--html", "own.html")
    assert (tmp_path / "own.html").exists() and "64" in done("inspect", pair[0]).out


def test_harmless_commands_do_not_care(done, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "wm" in done("list", "methods").out
    assert "--device" in done("align", "--help-all").out
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "runs in one process" not in done("merge", "--help").out


def test_of_processes_that_only_look_the_first_alone_prints_and_writes(pair, done, tmp_path, monkeypatch):
    axes = tmp_path / "axes.json"
    axes.write_text(json.dumps({"fc.weight": ["P_0", None], "fc.bias": ["P_0"], "out.weight": [None, "P_0"]}))
    lines = {
        "inferred.yaml": ["spec", "infer", "--net", "mlp", "--checkpoint", pair[0], "--input", "1x64"],
        "imported.yaml": ["spec", "import", axes],
        "page.html": ["doctor", *pair],
    }
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        for name, line in lines.items():
            out = done(*line, "--html" if name.endswith("html") else "-o", name).out
            assert (out != "", (tmp_path / name).exists()) == (rank == "0", rank == "0"), name
