"""What a command takes is told from headers, held to a bound, and refused before a tensor is read."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rebasin_cli.checkpoints import validation
from rebasin_cli.checkpoints.safetensors_format import SafetensorsFile
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands.verbs import needs, tensor_bytes
from rebasin_cli.errors import ResourceError
from rebasin_cli.registry import operations
from rebasin_cli.runtime import memory
from rebasin_cli.symmetry import stored
from rebasin_cli.symmetry.elements import Elements

from .conftest import fresh

SPEC = """\
tensors:
  tables.{i}: ". r"
  up: "h r"
  down: "r h"
"""
TABLES, ROWS, WIDTH, HIDDEN = 12, 4096, 128, 256


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two models of tall tables: their tensors do not fit where only their similarities do."""
    folder = tmp_path_factory.mktemp("tall")
    units, hidden = torch.randperm(WIDTH), torch.randperm(HIDDEN)
    shapes = {f"tables.{k}": (ROWS, WIDTH) for k in range(TABLES)}
    shapes |= {"up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
    a = {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}
    b = {name: (tensor + 0.1 * torch.randn(tensor.shape)).bfloat16() for name, tensor in a.items()}
    b = {name: tensor[:, units] if name.startswith("tables") else tensor for name, tensor in b.items()}
    b |= {"up": b["up"][hidden][:, units], "down": b["down"][units][:, hidden]}
    write_safetensors(folder / "a.safetensors", a)
    write_safetensors(folder / "b.safetensors", {name: tensor.contiguous() for name, tensor in b.items()})
    return folder


@pytest.fixture
def tall(written, tmp_path):
    """These models in this test's folder, and a spec."""
    (tmp_path / "tall.yaml").write_text(SPEC)
    for name in ("a.safetensors", "b.safetensors"):
        os.link(written / name, tmp_path / name)
    return ["a.safetensors", "b.safetensors", "--spec", "tall.yaml"]


@pytest.fixture
def unread(monkeypatch):
    """No tensor may be read."""

    def read(*arguments, **more):
        raise AssertionError("a tensor was read")

    for owner, name in ((SafetensorsFile, "tensor"), (SafetensorsFile, "rows"), (validation, "_chunks")):
        monkeypatch.setattr(owner, name, read)


COMMANDS = {
    "align": ("align", *("a.safetensors", "b.safetensors"), "--spec", "tall.yaml", "-o", "out.safetensors"),
    "merge": ("merge", *("a.safetensors", "b.safetensors"), "--spec", "tall.yaml", "-o", "out.safetensors"),
    "average": ("average", "a.safetensors", "b.safetensors", "-o", "out.safetensors"),
    "verify": ("verify", "a.safetensors", "b.safetensors", "--spec", "tall.yaml"),
    "doctor": ("doctor", "a.safetensors", "b.safetensors", "--spec", "tall.yaml"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_fit_is_refused_before_a_tensor_is_read(tall, unread, run, command):
    told = run(*COMMANDS[command], "--max-memory", "50MB")
    assert told.code == 5 and not os.path.exists("out.safetensors")
    assert re.search(
        r"--max-memory 50MB: this command takes [\d.]+MB at least \(.*Python and PyTorch", told.err
    )
    assert "Give --max-memory" in told.err


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_machine_lacks_is_refused_before_a_tensor_is_read(tall, unread, run, monkeypatch, command):
    monkeypatch.setattr(memory, "limit", lambda: (10**8, "this machine"))
    told = run(*COMMANDS[command])
    assert told.code == 5 and "of memory" in told.err and "this machine has 100MB" in told.err


def test_the_option_that_makes_it_fit_is_named_and_works(tall, run, monkeypatch):
    there = needs.BASE + (20 << 20)
    monkeypatch.setattr(needs, "SCRATCH", 0)
    monkeypatch.setattr(tensor_bytes, "FLOWING", 0)
    monkeypatch.setattr(needs, "NEARLY", 1)
    monkeypatch.setattr(memory, "limit", lambda: (there, "this machine"))
    told = run(*COMMANDS["align"])
    option = re.search(r"Give (--max-memory \S+): tensors that do not fit are read again", told.err)
    assert told.code == 5 and option, told.err
    assert run(*COMMANDS["align"], *option[1].split()).code == 0


PAIR = ("m.safetensors", "n.safetensors")
NET = ("--net", "mlp", "--input", "1x64")
BEFORE_VALUES = {  # what is run, or looked for, on values: the line, and whether it takes a bound
    "canon": (("canon", "m.safetensors", *NET, "-o", "out.safetensors"), True),
    "groups": (("align", *PAIR, *NET, "--groups", "all", "-o", "out.safetensors"), True),
    "doctor by tensors": (("doctor", "odd.safetensors", "odd.safetensors"), True),
    "eval": (("eval", "m.safetensors", "--net", "mlp", "--data", "digits"), False),
    "auto": (("merge", *PAIR, "--net", "mlp", "--data", "digits", "-o", "out.safetensors"), True),
}


@pytest.mark.parametrize("line, bounded", BEFORE_VALUES.values(), ids=BEFORE_VALUES)
def test_memory_comes_before_values(tmp_path, unread, run, monkeypatch, line, bounded):
    for k, name in enumerate(PAIR):
        fresh(tmp_path / name, seed=k, width=24, depth=3)
    write_safetensors(tmp_path / "odd.safetensors", {"x": torch.randn(7, 3, 2)})
    monkeypatch.setattr("rebasin_cli.networks.load", None)  # nor a network be given one
    monkeypatch.setattr(memory, "limit", lambda: (10**8, "this machine"))
    told = run(*line)
    assert told.code == 5 and "this machine has 100" in told.err and not os.path.exists("out.safetensors")
    if bounded:
        told = run(*line, "--max-memory", "50MB")
        assert told.code == 5 and "--max-memory 50MB: this command takes" in told.err


@pytest.mark.parametrize(
    "command",
    [pytest.param(it, marks=[pytest.mark.sweep] * (it not in ("align", "average"))) for it in COMMANDS],
)
def test_an_estimate_that_is_too_high_has_not_the_last_word(tall, run, monkeypatch, command):
    monkeypatch.setattr(memory, "limit", lambda: (10**8, "this machine"))
    told = run(*COMMANDS[command])
    option = re.search(r"(--max-memory \S+) tries it", told.err)
    assert told.code == 5 and option, told.err
    assert run(*COMMANDS[command], *option[1].split()).code in (0, 1)


def test_a_bound_changes_no_byte_and_what_is_kept_is_within_it(tall, run, monkeypatch):
    monkeypatch.setattr(needs, "SCRATCH", 0)
    monkeypatch.setattr(tensor_bytes, "FLOWING", 0)
    read = []
    original = SafetensorsFile.tensor
    monkeypatch.setattr(
        SafetensorsFile, "tensor", lambda self, name: read.append(name) or original(self, name)
    )
    found = {}
    for bound in (None, "315MB"):
        read.clear()
        out = f"{bound}.safetensors"
        assert run("align", *tall, "-o", out, *(["--max-memory", bound] if bound else [])).code == 0
        names = (out, f"{bound}.perm.safetensors")
        found[bound] = [Path(name).read_bytes() for name in names], len(read)
    (whole, once), (bounded, often) = found.values()
    assert whole == bounded and often > 1.4 * once


def test_a_plan_reads_no_tensor_and_its_parts_add_up(tall, unread, done):
    told = done(*COMMANDS["align"], "--dry-run", "--json").json()
    stored = 2 * 2 * (TABLES * ROWS * WIDTH + 2 * HIDDEN * WIDTH)
    assert (
        told["search_parts"]["files"] == stored and sum(told["search_parts"].values()) == told["search_bytes"]
    )
    assert told["read_bytes"] == 2.5 * stored and told["written_bytes"] == stored // 2 + 8 * (WIDTH + HIDDEN)
    least = told["search_bytes"] - stored + 4 * 2 * ROWS * WIDTH  # of what is read again four are there
    bound = done(*COMMANDS["align"], "--dry-run", "--json", "--max-memory", str(least + 1000)).json()
    assert bound["search_parts"]["files"] <= 1000 and bound["read_again_bytes"] > 0.9 * stored


PLANNED = COMMANDS | {  # what the lines above leave out: written, not written, on a network
    "apply": ("apply", "p.safetensors", "b.safetensors", "--spec", "tall.yaml", "-o", "out.safetensors"),
    "apply as dcp": ("apply", "p.safetensors", "b.safetensors", "--spec", "tall.yaml", "--out-format", "dcp"),
    "canon": ("canon", "m.safetensors", "--net", "mlp", "--input", "1x64", "-o", "out.safetensors"),
    "verify by groups": ("verify", *("m.safetensors", "n.safetensors"), "--net", "mlp", "--groups", "all"),
    "signature": ("signature", *("m.safetensors", "n.safetensors"), "--net", "mlp", "--data", "digits"),
    "doctor by tensors": ("doctor", "odd.safetensors", "odd.safetensors"),
    "repair": ("repair", "m.safetensors", "--endpoints", *("m.safetensors", "n.safetensors"))
    + ("--net", "mlp", "--data", "digits", "--repair", "refit", "-o", "out.safetensors"),
    "eval": ("eval", "m.safetensors", "--against", "n.safetensors", "--net", "mlp", "--data", "digits"),
    "kin": ("kin", *("m.safetensors", "n.safetensors"), "--net", "mlp"),
    "inspect": ("inspect", "a.safetensors"),
}


@pytest.mark.parametrize("command", PLANNED)
def test_every_command_that_takes_a_bound_tells_what_it_takes_and_stops(
    tall, tmp_path, run, done, monkeypatch, request, command
):
    for k, name in enumerate(("m.safetensors", "n.safetensors")):
        fresh(tmp_path / name, seed=k, width=24, depth=3)
    write_safetensors(tmp_path / "odd.safetensors", {"x": torch.randn(7, 3, 2)})
    if command.startswith("apply"):
        perm = {"r": torch.randperm(WIDTH), "h": torch.randperm(HIDDEN)}
        stored.save(Path("p.safetensors"), elements=Elements(perm), metadata={})
    before = sorted(os.listdir())
    request.getfixturevalue("unread")
    told = done(*PLANNED[command], "--dry-run", "--json").json()
    assert sorted(os.listdir()) == before
    assert told["peak_bytes"] >= told["search_bytes"] == sum(told["search_parts"].values()) > needs.BASE
    sizes = [os.stat(word).st_size for word in PLANNED[command] if os.path.exists(word)]
    assert told["read_bytes"] > max(sizes) // 2
    assert (told["written_bytes"] > 0) == ("-o" in PLANNED[command] or "dcp" in PLANNED[command])
    shown = run(*PLANNED[command], "--dry-run")
    assert shown.code == 0 and re.search(r"peak.bytes", shown.out)


def test_every_command_with_a_bound_has_a_dry_run():
    named = [{option.name for option in one.options} for one in operations.every().values()]
    bounded = [names for names in named if "max_memory" in names]
    assert len(bounded) > 8 and all("dry_run" in names for names in bounded)


def test_a_disk_without_room_is_told_before_a_tensor_is_read(tall, unread, run, monkeypatch):
    class Full:
        total, free = 1, 5

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Full)
    told = run(*COMMANDS["align"])
    assert told.code == 5 and "the disk has 5 bytes free" in told.err


@pytest.mark.parametrize("text", ["0GB", "many", "8 elephants"])
def test_what_is_no_size_is_refused(tall, unread, run, text):
    told = run("doctor", *tall, "--max-memory", text)
    assert told.code == 2 and f"--max-memory: '{text}' is not a size" in told.err


def test_an_average_of_small_models_is_planned_as_small(run):
    for name in "ab":
        write_safetensors(f"{name}.safetensors", {"w": torch.randn(8, 8)})
    line = ("average", "a.safetensors", "b.safetensors", "-o", "out.safetensors", "--repair", "none")
    assert run(*line, "--max-memory", "310MB").code == 0


GB, MB = 10**9, 10**6
FILES_OF_1_GB = {"parts": {"Python and PyTorch": needs.BASE, "files": GB, "scratch space": 10 * MB}}
FILES_OF_1_GB |= {"read": 0, "written": 0, "spare": GB}
REFUSED = {  # bytes of a bound, of the machine, of a proof: what the hint is
    "a machine that has room for some": (None, 1200 * MB, 0, "Give --max-memory 1.1GB: tensors that"),
    "a machine that is nearly too small": (None, 320 * MB, 0, "--max-memory 314.1MB tries it all the same"),
    "a proof beyond the machine": (
        None,
        400 * MB,
        GB,
        "--max-memory 1.4GB tries it all the same, or --no-prove, if",
    ),
    "a bound below the least": (314 * MB, 9 * GB, 0, "Give --max-memory 314.1MB"),
    "a bound below the proof": (500 * MB, 9 * GB, GB, "Give --max-memory 1.4GB, or --no-prove, if"),
}


def session_of(most):
    said = []
    asked = SimpleNamespace(bounded=SimpleNamespace(max_memory=most))
    return SimpleNamespace(most=most, asked=asked, say=said.append), said


@pytest.mark.parametrize("most, there, proof, hint", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_says_what_would_fit(monkeypatch, most, there, proof, hint):
    monkeypatch.setattr(memory, "limit", lambda: (there, "this machine"))
    with pytest.raises(ResourceError) as refused:
        needs.refuse(session_of(most)[0], needs.Needs(**FILES_OF_1_GB, proof=proof))
    assert hint in refused.value.hint and ("--no-prove" in refused.value.hint) == bool(proof)


@pytest.mark.parametrize("most", [None, 400 * MB])
@pytest.mark.parametrize("free", [None, 350 * MB, 2 * GB])
def test_what_fits_and_not_beside_what_is_there_now_is_told(monkeypatch, most, free):
    monkeypatch.setattr(memory, "limit", lambda: (9 * GB, "this machine"))
    monkeypatch.setattr(memory, "free", lambda: free)
    session, said = session_of(most)
    needs.refuse(session, needs.Needs(**FILES_OF_1_GB))
    if free == 350 * MB:
        size = "1.4GB" if most is None else "400MB"
        assert said == [f"plan: takes {size} of memory, and 350MB are free now (--max-memory SIZE)"]
    else:
        assert not said


def test_a_bound_spares_no_more_of_the_models_than_it_asks_for():
    whole = needs.Needs(**FILES_OF_1_GB, again=4 * GB)
    half = whole.within(whole.search - GB // 2)
    assert half.search == whole.search - GB // 2 and half.parts["files"] == half.spare == GB // 2
    assert half.again == 2 * GB and half.least == whole.least and half.bounded
    assert whole.within(whole.search) == whole == whole.within(None)
