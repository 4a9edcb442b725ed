"""A proof asks the network alone: whoever proves needs nothing of what reads specs off graphs."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from rebasin_cli.nets import build
from tests.test_house import MODULES, imports_of, reached

ALIGN = """
import sys
from rebasin_cli.__main__ import main
sys.argv = ["rebasin", "align", "a.safetensors", "b.safetensors", "--out", "c.safetensors"]
try:
    main()
except SystemExit as ended:
    assert not ended.code
print(*sorted(name for name in sys.modules if name.startswith("rebasin_cli.")))
"""


def test_proving_needs_no_inference():
    imports = {module: {other for _, other in imports_of(module)} for module in MODULES}
    needed = reached(imports, "proof.prove")
    assert "proof.trials" in needed and not {name for name in needed if name.startswith("inference")}


@pytest.mark.sweep
def test_align_proves_and_imports_no_inference(tmp_path):
    """In an interpreter of its own: this one has imported all."""
    for name in "ab":
        torch.manual_seed(ord(name))
        network = build("mlp", input_shape=(1, 8, 8), classes=4)
        save_file(network.state_dict(), tmp_path / f"{name}.safetensors")
    run = subprocess.run([sys.executable, "-c", ALIGN], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0 and "proven on" in run.stdout, run.stderr
    imported = run.stdout.splitlines()[-1].split()
    assert "rebasin_cli.proof.prove" in imported
    assert [name for name in imported if name.startswith("rebasin_cli.inference")] == []
