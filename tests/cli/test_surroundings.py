"""Networks and loaders whose code moves elsewhere, and closes what it does not own."""

import json
import os

from tests import processes

from .test_main import shell

CODE = """
import os, sys, torch
from rebasin_cli.nets.mlp import MLP
os.makedirs({there!r}, exist_ok=True)
os.chdir({there!r})
if not os.path.exists("own"):  # others read it at the same time
    open("own", "w").write("x")
print("theirs")

def spoiled():
    for spoil in (sys.stdout.buffer.close, sys.stdout.close, sys.stdout.detach, sys.__stdout__.close,
                  sys.__stderr__.close, lambda: os.close(1), lambda: os.close(2)):
        try:
            spoil()
        except Exception:
            pass
    sys.stdout, sys.stderr = None, None

def closed_files(split):
    os.closerange(3, 4000)
    return [(torch.rand(8, 1, 8, 8), torch.arange(8))]

def closed_all(split):
    os.closerange(3, 4000)  # as daemons do
    return load(split)

def forked(split):
    if child := os.fork():  # it comes back twice
        os.waitpid(child, 0)
    return load(split)

def load(split):
    import torch
    assert open("own").read() == "x"
    spoiled()
    return [(torch.rand(8, 1, 8, 8), torch.arange(8))]

def fails(split):
    spoiled()
    raise ValueError("it is broken")
"""


def test_outputs_lie_where_they_were_named_and_results_are_shown(trained, tmp_path):
    """In processes, whose descriptors are closed. Never 1, which is a gate that was not met.

    The first is an interpreter of its own, which says what it makes of its streams at its very end.
    """
    (tmp_path / "own.py").write_text(CODE.format(there=str(tmp_path / "elsewhere")))
    a, b = (os.path.relpath(path, tmp_path) for path in trained)
    line = ("barrier", a, b, "--skip-checks", "--method", "wm", "--points", "3", "--data")
    words = " ".join(line)
    out, err = shell(f"cd {tmp_path}; rebasin {words} own.py:load --json-file r.json --json; echo $?")
    assert out.splitlines()[-1] == "0", err
    assert json.loads(out[: out.rindex("}") + 1]) == json.loads((tmp_path / "r.json").read_text())
    assert os.listdir(tmp_path / "elsewhere") == ["own"] and "theirs" in err
    codes = ("closed_files", "forked", "closed_all", "fails")
    log = tmp_path.with_name(f"{tmp_path.name}-log")
    # What closes them is the loader: any command that reads it does.
    line = ("eval", a, "--skip-checks", "--data")
    ends = [processes.rebasin(*line, f"own.py:{code}", "--json", log=f"{log}-{code}") for code in codes]
    for code, end in zip(codes, ends, strict=True):
        ended = end.wait()
        if code in ("closed_files", "forked"):
            assert ended == 0 and json.loads(end.out)["loss"], end.err  # one result
        else:  # nobody can be told, and what nobody sees is not done
            assert ended in ((5, 6) if code == "closed_all" else (6,)) and end.out == "", end.err
    assert "it is broken" in end.err and "Traceback" not in end.err
