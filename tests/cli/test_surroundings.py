"""Networks and loaders whose code moves elsewhere, and closes what it does not own."""

import json
import os

from .test_main import shell

CODE = """
import os, sys, torch
from rebasin_cli.nets.mlp import MLP
os.makedirs({there!r}, exist_ok=True)
os.chdir({there!r})
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
    """In a process: descriptors of its own are closed. Never 1, which is a gate that was not met."""
    (tmp_path / "own.py").write_text(CODE.format(there=str(tmp_path / "elsewhere")))
    a, b = (os.path.relpath(path, tmp_path) for path in trained)
    line = f"cd {tmp_path}; rebasin barrier {a} {b} --skip-checks --method wm --points 3 --data own.py:"
    out, err = shell(f"{line}load --json-file r.json --json; echo $?")
    assert out.splitlines()[-1] == "0", err
    assert json.loads(out[: out.rindex("}") + 1]) == json.loads((tmp_path / "r.json").read_text())
    assert os.listdir(tmp_path / "elsewhere") == ["own"] and "theirs" in err
    for code in ("closed_files", "forked"):
        out, err = shell(f"{line}{code} --json; echo $?")
        assert out.splitlines()[-1] == "0", err
        assert json.loads(out[: out.rindex("}") + 1])["schema"]  # one report
    out, err = shell(f"{line}closed_all --json; echo $?")
    assert out in ("5\n", "6\n")  # nobody can be told, and what nobody sees is not done
    out, err = shell(f"{line}fails; echo $?")
    assert out == "6\n" and "it is broken" in err and "Traceback" not in err
