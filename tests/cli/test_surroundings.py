"""Networks and loaders whose code moves elsewhere, and closes what it does not own."""

import json
import os

from .test_main import shell

CODE = """
import os, sys
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
    out, err = shell(f"{line}fails; echo $?")
    assert out == "6\n" and "it is broken" in err and "Traceback" not in err
