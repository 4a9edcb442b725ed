"""Whatever a person may name as a file: a pipe, a device, a folder is refused at once."""

import os

from tests.cli.conftest import contents, fresh, rebasin

TWO = ("a.safetensors", "b.safetensors")
NONE = ["pipe", "/dev/zero", "/proc/kmsg", "dir"]


def lines(x, spec):
    """Command lines that would read `x`."""
    yield "merge", x, TWO[1], "-o", "m.safetensors"
    yield "merge", *TWO, "--perm", x, "-o", "m.safetensors"
    yield "average", *TWO, "-o", "m/", "--copy-files", "--copy-from", x
    yield "align", *TWO, "--spec", spec, "-o", "m.safetensors"
    yield "align", *TWO, "--net", f"{x}.py:build", "-o", "m.safetensors"
    yield "apply", x, TWO[0], "-o", "m.safetensors"
    yield "barrier", *TWO, "--data", "digits", "--baseline", x
    yield "barrier", *TWO, "--data", "digits", "--curve", x
    for kind in ("npz", "text", "imagefolder"):
        yield "barrier", *TWO, "--data", f"{kind}:{x}"
    yield "run", x
    yield "card", TWO[0], "--recipe", x, "-o", "m.md"
    yield "card", TWO[0], "--barrier", x, "-o", "m.md"
    yield "spec", "import", x
    yield "spec", "check", spec, TWO[0]
    yield "inspect", x
    yield "merge-driver", x, *TWO
    yield "merge-driver", TWO[0], x, TWO[1]
    yield "merge-driver", *TWO, x
    yield "eval", x, "--data", "digits"


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    for k, name in enumerate(TWO):
        fresh(tmp_path / name, seed=k, width=12, depth=1)
    (tmp_path / "dir").mkdir()
    before = contents(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for name in NONE:
        for line in lines(name, name if "/" in name else f"./{name}"):
            outcome = rebasin(*line)
            assert outcome.code in (2, 3, 4, 5, 6), (line, outcome)
            assert "Traceback" not in outcome.err and outcome.err.count("rebasin: ") == 1, (line, outcome)
    (tmp_path / "pipe").unlink()
    assert contents(tmp_path) == before
