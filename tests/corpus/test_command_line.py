"""Bad command lines: each ends with its exit code and one message, and leaves nothing behind."""

import os

import pytest

from ..cli.conftest import contents, fresh, rebasin
from . import _files as f

ALIGN, MERGE = ("align", "a.safetensors", "b.safetensors"), ("merge", "a.safetensors", "b.safetensors")
BARRIER = ("barrier", "a.safetensors", "b.safetensors", "--data", "digits")
COMPARE = ("compare", "a.safetensors", "b.safetensors", "--data", "digits")
SIGNATURE = ("signature", "a.safetensors", "b.safetensors", "--data", "digits")
EVAL = ("eval", "a.safetensors", "--data", "digits")

# (arguments, exit code, words that the message must hold)
OUTPUTS = [
    ((*ALIGN, "-o", ""), 2, "is empty"),
    ((*ALIGN, "-o="), 2, ""),
    ((*ALIGN, "--out="), 2, "--out= is empty"),
    ((*ALIGN, "-o", "."), 2, ". is a folder, not a file"),
    ((*ALIGN, "-o", ".."), 2, "is a folder, not a file"),
    ((*ALIGN, "-o", "/"), 2, "/ is a folder, not a file"),
    ((*ALIGN, "-o", "out"), 2, "weights are written as safetensors"),
    ((*ALIGN, "-o", "out.npz"), 2, "Use out.npz.safetensors"),
    ((*ALIGN, "-o", ".safetensors"), 2, "weights are written as safetensors"),
    ((*ALIGN, "-o", "a.safetensors"), 2, "a.safetensors is read by this very command"),
    ((*ALIGN, "-o", "./sub/../a.safetensors"), 2, "is read by this very command"),
    ((*ALIGN, "-o", "b.safetensors"), 2, "b.safetensors is read by this very command"),
    ((*ALIGN, "-o", "nowhere/o.safetensors"), 5, "no such folder"),
    ((*ALIGN, "-o", "a.safetensors/o.safetensors"), 5, "a.safetensors is no folder"),
    ((*ALIGN, "-o", "n" * 300 + ".safetensors"), 5, "File name too long"),
    ((*ALIGN, "-o", "n" * 249 + ".safetensors"), 5, "File name too long"),  # the permutation's
    ((*ALIGN, "-o", "/dev/null"), 2, "is not a regular file"),
    ((*ALIGN, "-o", "/dev/full"), 2, "is not a regular file"),
    ((*ALIGN, "-o", "null.safetensors"), 2, "is a link, and none is followed"),
    ((*ALIGN, "-o", "pipe.safetensors"), 2, "is not a regular file"),
    ((*ALIGN, "-o", "loop.safetensors"), 2, "is a link, and none is followed"),
    ((*ALIGN, "-o", "lost.safetensors"), 2, "is a link, and none is followed"),
    ((*ALIGN, "-o", "/proc/o.safetensors"), 5, "cannot be written"),
    ((*ALIGN, "-o", "a\nrebasin: done.x"), 2, "a rebasin: done.x"),
    ((*ALIGN, "-o", "\x1b[2J.x"), 2, "�[2J.x"),
    ((*ALIGN, "-o", "\udcff.x"), 2, "�.x"),
    ((*MERGE, "-o", ""), 2, "is empty"),
    ((*MERGE, "-o", "a.safetensors"), 2, "a.safetensors is read by this very command"),
    (("apply", "p.safetensors", "a.safetensors", "-o", "/"), 2, "is a folder"),
    (("apply", "p.safetensors", "a.safetensors", "-o", ""), 2, "is empty"),
    (("verify", "a.safetensors", "b.safetensors", "-o", "."), 2, "is a folder"),
    ((*BARRIER, "--report", "a.safetensors"), 2, "is a file, not a folder"),
    ((*BARRIER, "--report", "a.safetensors/x"), 5, "a.safetensors is no folder"),
    ((*BARRIER, "--json-file", "."), 2, "is a folder"),
    ((*BARRIER, "--json-file", "/"), 2, "is a folder"),
    ((*BARRIER, "--json-file", "/dev/null"), 2, "is not a regular file"),
    ((*BARRIER, "--json-file", "n" * 300), 5, "File name too long"),
    ((*BARRIER, "--report", ""), 2, "is empty"),
]
NUMBERS = [
    ((*ALIGN, "--memory="), 2, "--memory= is empty"),
    ((*ALIGN, "--memory", ""), 2, "is empty"),
    ((*ALIGN, "--memory", "1e99"), 2, "is not a size"),
    ((*ALIGN, "--memory", "nan"), 2, "is not a size"),
    ((*ALIGN, "--memory", "-1"), 2, "is not a size"),
    ((*ALIGN, "--memory", "0"), 2, "is not a size"),
    ((*ALIGN, "--memory", "9" * 30), 2, "is not a size"),
    ((*ALIGN, "--memory", "9" * 400), 2, "is not a size"),
    ((*ALIGN, "--memory", "9" * 5000), 2, "is not a size"),
    ((*ALIGN, "--memory", "9" * 18 + "TB"), 2, "is not a size"),
    ((*ALIGN, "--out-shard-size", "1e23"), 2, "is not a size"),
    ((*ALIGN, "--out-shard-size", "9" * 400 + "GB"), 2, "is not a size"),
    ((*ALIGN, "--out-shard-size", "٣"), 2, "is not a size"),
    ((*ALIGN, "--out-dtype", "float3"), 2, "unknown dtype"),
    ((*ALIGN, "--out-dtype", "int8"), 2, "unknown dtype"),
    ((*ALIGN, "--seed", "nan"), 2, "--seed"),
    ((*ALIGN, "--seed", "1e3"), 2, "--seed"),
    ((*ALIGN, "--seed", "9" * 5000), 2, "--seed"),
    ((*ALIGN, "--seed", "-1"), 2, "--seed"),
    ((*ALIGN, "--seed", str(2**63)), 2, "--seed"),
    ((*ALIGN, "--max-sweeps", "-1"), 2, "--max-sweeps"),
    ((*ALIGN, "--max-sweeps", "1e23"), 2, "--max-sweeps"),
    ((*ALIGN, "--max-sweeps", "9" * 30), 2, "--max-sweeps"),
    ((*ALIGN, "--tolerance", "nan"), 2, "--tolerance"),
    ((*ALIGN, "--tolerance", "inf"), 2, "--tolerance"),
    ((*ALIGN, "--tolerance", "-1"), 2, "--tolerance"),
    ((*ALIGN, "--checkpoint-every", "0"), 2, "--checkpoint-every"),
    ((*ALIGN, "--checkpoint-every", "9" * 30), 2, "--checkpoint-every"),
    ((*ALIGN, "--method", "dual", "--data", "digits", "--mix", "nan"), 2, "--mix"),
    ((*ALIGN, "--method", "dual", "--data", "digits", "--mix", "1e23"), 2, "--mix"),
    ((*ALIGN, "--method", "ste", "--data", "digits", "--lr", "nan"), 2, ""),
    ((*ALIGN, "--method", "ste", "--data", "digits", "--lr", "inf"), 2, ""),
    ((*ALIGN, "--method", "ste", "--data", "digits", "--epochs", "9" * 30), 2, "--epochs"),
    ((*ALIGN, "--method", "universe", "--gain", "inf"), 2, "--gain"),
    ((*MERGE, "--weights", "nan,1"), 2, "'nan' is no number"),
    ((*MERGE, "--weights", "inf,-inf"), 2, "'inf' is no number"),
    ((*MERGE, "--weights", "1e308,1e308"), 2, "add up"),
    ((*MERGE, "--weights", "0.5"), 2, "1 weights for 2 models"),
    ((*MERGE, "--weights", ","), 2, "lacks a number"),
    ((*MERGE, "--weights", "half,half"), 2, "is no number"),
    ((*MERGE, "--limit", "0"), 2, "--limit"),
    ((*MERGE, "--limit", "9" * 30), 2, "--limit"),
    ((*EVAL, "--limit", "9" * 30), 2, "--limit"),
    ((*EVAL, "--batch-size", "0"), 2, "--batch-size"),
    ((*EVAL, "--batch-size", "9" * 30), 2, "--batch-size"),
    ((*EVAL, "--output", "9" * 20), 6, ""),
    ((*EVAL, "--output", "9" * 5000), 6, ""),
    ((*EVAL, "--output", "-1"), 6, ""),
    ((*EVAL, "--normalize", "nan/nan"), 2, "is no normalization"),
    ((*EVAL, "--normalize", "0/0"), 2, ""),
    ((*EVAL, "--normalize", "1e999/1"), 2, ""),
    ((*EVAL, "--device", "cuda:" + "9" * 30), 2, ""),
    ((*EVAL, "--device", "tpu"), 2, ""),
    ((*BARRIER, "--points", "1"), 2, "--points"),
    ((*BARRIER, "--points", "9" * 30), 2, "--points"),
    ((*BARRIER, "--max-barrier", "nan"), 2, "--max-barrier"),
    ((*BARRIER, "--gate", "accuracy >= inf"), 2, "the limit is inf"),
    ((*BARRIER, "--gate", "nan"), 2, ""),
    ((*COMPARE, "--points", "-1"), 2, "--points"),
    ((*COMPARE, "--points", "9" * 30), 2, "--points"),
    ((*COMPARE, "--sharpness", "--probes", "9" * 30), 2, "--probes"),
    ((*SIGNATURE, "--stability", "9" * 5000 + ",1"), 2, "is not two counts"),
    (("spec", "show", "mlp", "--width", "1e23"), 2, "--width"),
    (("spec", "show", "mlp", "--width", "nan"), 2, "--width"),
    (("spec", "show", "mlp", "--width", "inf"), 2, "--width"),
    (("spec", "show", "mlp", "--width", "0"), 2, ""),
    (("spec", "show", "mlp", "--width", "-3"), 2, ""),
    (("spec", "show", "mlp", "--depth", "9" * 30), 2, "--depth"),
    (("spec", "show", "mlp", "--depth", "-1"), 2, ""),
    (("spec", "show", "resnet20", "--width", "1e23"), 2, "--width"),
    (("spec", "show", "mlp", "--classes", "9" * 30), 2, "--classes"),
    (("spec", "show", "mlp", "--input", "1x" + "9" * 30), 2, ""),
]  # fmt: skip
WORDS = [
    (("",), 2, "is empty"),
    (("nonsense",), 2, "No such command"),
    (("\x1b]0;t\x07",), 2, "No such command"),
    (("a\nrebasin: all is well",), 2, "No such command"),
    (("x" * 1_000_000,), 2, "No such command"),
    (("--nonsense",), 2, "No such option"),
    (("--\x1b[2J",), 2, "No such option"),
    ((*ALIGN, "--\udcff"), 2, "No such option"),
    ((*ALIGN, "-" + "x" * 1_000_000), 2, "No such option"),
    ((*ALIGN, "-\0"), 2, "No such option"),
    ((*ALIGN, "extra"), 2, ""),
    (("align",), 2, "Missing argument"),
    (("align", ""), 2, "is empty"),
    (("align", "", ""), 2, "is empty"),
    (("inspect", ""), 2, "is empty"),
    ((*ALIGN, "--spec", ""), 2, "is empty"),
    ((*ALIGN, "--spec="), 2, "--spec= is empty"),
    ((*ALIGN, "--key", ""), 2, "is empty"),
    ((*ALIGN, "--method", "wmm"), 2, "Did you mean wm"),
    ((*ALIGN, "--method", "\x1b[31mwm"), 2, "unknown method"),
    ((*ALIGN, "--method", "w" * 1_000_000), 2, "characters …"),
    ((*ALIGN, "--method", "../wm"), 2, "unknown method"),
    ((*ALIGN, "--method", "wm.py"), 2, "unknown method"),
    ((*ALIGN, "--spec", "nowhere.yaml"), 2, "no such file"),
    ((*ALIGN, "--spec", "/dev/zero"), 4, "it is no regular file"),
    ((*ALIGN, "--spec", "."), 2, ""),
    ((*ALIGN, "--spec", "pipe.safetensors"), 2, ""),
    ((*ALIGN, "--key", "ema"), 2, "--key"),
    ((*ALIGN, "--log", "a.safetensors"), 2, "--log"),
    (("apply", "a.safetensors", "b.safetensors"), 3, "is not a permutation file"),
    (("apply", "/dev/zero", "b.safetensors"), 3, "is not a regular file"),
    (("merge", "a.safetensors"), 2, "at least two models"),
    ((*MERGE, "--reference", "c.safetensors"), 2, "is none of the models"),
    ((*MERGE, "--interpolation", "cubic"), 2, "unknown interpolation"),
    ((*MERGE, "--perm", "a.safetensors"), 3, "is not a permutation file"),
    ((*BARRIER, "--baseline", "nowhere.json"), 2, "no such file"),
    ((*BARRIER, "--max-barrier", "0_05"), 2, "not a number"),
    ((*BARRIER, "--gate=accuracy drop <= 0_05"), 2, "not a number"),
    ((*BARRIER, "--max-accuracy-drop=0_05"), 2, "is a gate now: --gate"),
    ((*BARRIER, "--gate", "aligned:test:chord<=0_05"), 2, "is not a number"),
    ((*BARRIER, "--limit", "1_000"), 2, "not a number"),
    ((*BARRIER, "--seed", "١"), 2, "not a number"),
    ((*BARRIER, "--attack", "0_1"), 2, "cannot read eps=0_1"),
    ((*BARRIER, "--normalize", "0_5/1"), 2, "is no normalization"),
    ((*BARRIER, "--held-out", "0_1"), 2, "is no fraction"),
    ((*BARRIER, "--baseline", "a.safetensors"), 2, "not a JSON report"),
    ((*BARRIER, "--baseline", "/dev/full"), 2, ""),
    ((*BARRIER, "--baseline", "."), 2, "cannot be read"),
    ((*BARRIER, "--pair", "a.safetensors"), 2, "is not two files"),
    (("list", "nonsense"), 2, ""),
    (("list", "\x1b[2J"), 2, ""),
    (("spec", "show", "\x1b[2J"), 2, ""),
    (("spec", "show", "m" * 1_000_000), 2, ""),
]


@pytest.fixture(autouse=True)
def folder(tmp_path):
    """Two models, and names that are no files."""
    for k, name in enumerate("ab"):
        fresh(tmp_path / f"{name}.safetensors", seed=k, width=12, depth=1)
    (tmp_path / "sub").mkdir()
    (tmp_path / "null.safetensors").symlink_to("/dev/null")
    (tmp_path / "lost.safetensors").symlink_to("nowhere/x.safetensors")
    f.looped(tmp_path / "loop.safetensors")
    return tmp_path


def _name(row):
    return " ".join(row[0])[:80] or "nothing"


@pytest.mark.parametrize(
    ("arguments", "code", "says"), OUTPUTS + NUMBERS + WORDS, ids=map(_name, OUTPUTS + NUMBERS + WORDS)
)
def test_a_bad_command_line_is_refused(folder, arguments, code, says):
    if "pipe.safetensors" in arguments:
        os.mkfifo(folder / "pipe.safetensors")
    before = {} if "pipe.safetensors" in arguments else contents(folder)
    outcome = rebasin(*arguments)
    told = " ".join(outcome.err.replace("│", " ").split())  # typer draws a box around it
    assert outcome.code == code, (outcome.code, told[:2000])
    assert says in told and "Traceback" not in told and outcome.out == "", told[:2000]
    assert len(outcome.err) < 50_000 and all(c == "\n" or c.isprintable() for c in outcome.err)
    assert not any(line.startswith("rebasin: all") for line in outcome.err.splitlines())
    assert not before or contents(folder) == before
