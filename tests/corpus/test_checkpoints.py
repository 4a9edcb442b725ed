"""Bad checkpoints: each ends with its exit code and a message that names the file, and leaves nothing."""

import json
import math
import os
import signal
import time
import zipfile

import pytest
import torch

from ..cli.conftest import contents, rebasin
from . import _files as f

LONG = "n" * 5_000_000


def quantised():
    return torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)


def _numbers(shape, dtype=torch.float32):
    return torch.zeros(shape).to(dtype)


def raw(header, data=b""):
    return lambda path: f.raw(path, header, data)


def entry(**changed):
    return raw(f.header_of(**changed), b"\0" * 8)


def records(change, **options):
    return lambda path: f.rezipped(path, change, **options)


def index(weight_map):
    return lambda path: f.index_of(path, weight_map)


def holding(content):
    def make(path):
        path.write_bytes(content)
        return path

    return make


def listing(text):
    def make(path):
        path.with_suffix(".json").write_text(text)
        return path.with_suffix(".json")

    return make


# name: (who makes the file in a folder, words that the message must hold)
SAFETENSORS = {
    "empty": (lambda p: p.write_bytes(b"") and p or p, ["is empty (0 bytes)"]),
    "one byte": (holding(b"\0"), ["cut off"]),
    "seven bytes": (holding(b"\0" * 7), ["cut off"]),
    "a length and nothing": (holding(b"\x08" + b"\0" * 7), ["cut off"]),
    "a length of 2^64 - 1": (holding(b"\xff" * 8 + b"{}"), ["cut off or no safetensors"]),
    "a length of 2^63": (holding(b"\0" * 7 + b"\x80{}"), ["cut off or no safetensors"]),
    "a header of 0 bytes": (holding(b"\0" * 8), ["not valid JSON"]),
    "a header beyond the limit": (
        lambda p: f.sparse_file(p, 100_000_100, (100_000_010).to_bytes(8, "little") + b"{"),
        ["a header of 100,000,010 bytes; at most 100,000,000"],
    ),
    "a header of blanks": (raw(b" " * 1000), ["not valid JSON"]),
    "a header that is no JSON": (raw(b"{nonsense"), ["not valid JSON"]),
    "a header in UTF-16": (raw('{"a": 1}'.encode("utf-16")), ["not valid JSON"]),
    "a header with a bad byte": (raw(b'{"a\xff": {}}'), ["not valid JSON"]),
    "a list": (raw([]), ["not an object"]),
    "a number": (raw(7), ["not an object"]),
    "null": (raw(None), ["not an object"]),
    "no tensors": (raw({}), ["holds no tensors"]),
    "metadata alone": (raw({"__metadata__": {"a": "b"}}), ["holds no tensors"]),
    "100,000 brackets": (raw(b"[" * 100_000), ["not valid JSON"]),
    "100,000 braces": (raw(b'{"a":' * 100_000), ["not valid JSON"]),
    "a name twice": (raw(b'{"w":1,"w":2}'), ["'w' appears twice"]),
    "a key of an entry twice": (
        raw(b'{"w":{"dtype":"F32","dtype":"F64","shape":[2],"data_offsets":[0,8]}}', b"\0" * 8),
        ["'dtype' appears twice"],
    ),
    "metadata twice": (raw(b'{"__metadata__":{},"__metadata__":{}}'), ["appears twice"]),
    "NaN as a number": (raw(b'{"w":NaN}'), ["header is damaged"]),
    "an integer of 5,000 digits": (
        raw(b'{"w":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}'),
        ["not valid JSON"],
    ),
    "an entry that is a list": (raw({"w": []}), ["should have dtype, shape and data_offsets"]),
    "an entry that is text": (raw({"w": "F32"}), ["should have dtype, shape and data_offsets"]),
    "no dtype": (raw({"w": {"shape": [2], "data_offsets": [0, 8]}}), ["should have dtype"]),
    "no shape": (raw({"w": {"dtype": "F32", "data_offsets": [0, 8]}}), ["should have dtype"]),
    "no offsets": (raw({"w": {"dtype": "F32", "shape": [2]}}), ["should have dtype"]),
    "an unknown dtype": (entry(dtype="F4"), ["dtype 'F4' is not one of"]),
    "F8 without a kind": (entry(dtype="F8"), ["dtype 'F8' is not one of"]),
    "F8_E8M0": (entry(dtype="F8_E8M0"), ["'F8_E8M0' is not one of"]),
    "a dtype in small letters": (entry(dtype="f32"), ["'f32' is not one"]),
    "a dtype that is a number": (entry(dtype=32), ["dtype 32 is not one"]),
    "a dtype of 5 MB": (entry(dtype=LONG), ["characters …"]),
    "a shape of 2^63": (entry(shape=[2**63]), ["shape should be a list of at most 64"]),
    "a shape of 2^62 twice": (raw(f.header_of(shape=[2**62, 2**62])), ["beyond any memory"]),
    "a shape of 2^40": (entry(shape=[2**40]), ["data_offsets [0, 8] span 8"]),
    "a shape beside 0": (
        raw(f.header_of(shape=[0, 2**62, 2**62], data_offsets=[0, 0])),
        ["beyond any memory"],
    ),
    "a negative shape": (entry(shape=[-2]), ["shape should be a list"]),
    "a fractional shape": (entry(shape=[2.0]), ["shape should be a list"]),
    "a shape of true": (entry(shape=[True]), ["shape should be a list"]),
    "a shape that is no list": (entry(shape=2), ["shape should be a list"]),
    "a shape of 65 axes": (entry(shape=[1] * 64 + [2]), ["at most 64"]),
    "a shape of 100,000 axes": (entry(shape=[1] * 100_000), ["at most 64"]),
    "offsets backwards": (entry(data_offsets=[8, 0]), ["span -8"]),
    "offsets below 0": (entry(data_offsets=[-8, 0]), ["two counts of bytes"]),
    "offsets of 2^63": (entry(data_offsets=[2**63, 2**63 + 8]), ["two counts of bytes"]),
    "offsets beyond the file": (entry(data_offsets=[2**40, 2**40 + 8]), ["belong to nothing"]),
    "three offsets": (entry(data_offsets=[0, 4, 8]), ["two counts of bytes"]),
    "offsets as text": (entry(data_offsets=["0", "8"]), ["two counts"]),
    "overlapping tensors": (
        raw({"v": f.ONE, "w": {**f.ONE, "data_offsets": [4, 12]}}, b"\0" * 12),
        ["overlap"],
    ),
    "the same bytes twice": (raw({"v": f.ONE, "w": f.ONE}, b"\0" * 8), ["overlap those of v"]),
    "a hole": (
        raw({"v": f.ONE, "w": {**f.ONE, "data_offsets": [16, 24]}}, b"\0" * 24),
        ["8 bytes between v and it belong to nothing"],
    ),
    "bytes at the end": (raw({"w": f.ONE}, b"\0" * 9), ["1 bytes after the last tensor"]),
    "cut off by a byte": (raw({"w": f.ONE}, b"\0" * 7), ["is cut off"]),
    "metadata with a number": (raw({"__metadata__": {"a": 1}, "w": f.ONE}, b"\0" * 8), ["text to text"]),
    "metadata that is a list": (raw({"__metadata__": [], "w": f.ONE}, b"\0" * 8), ["text to text"]),
    "metadata that is null": (raw({"__metadata__": None, "w": f.ONE}, b"\0" * 8), ["text to text"]),
    "a name of 5 MB": (raw({LONG: []}), ["characters …"]),
    "10,000 wrong entries": (
        raw({f"w{k}": [] for k in range(10_000)}),
        ["w{i}  should have", "(10,000 such)"],
    ),
}

TORCH = {
    "a pickle that runs a command": (
        lambda p: f.pickled(p, f.Runs(os.system, "touch ran")),
        ["would run code", "posix.system"],
    ),
    "a zip file whose pickle runs a command": (
        lambda p: f.torch_file(p, {"w": f.Runs(os.system, "touch ran")}),
        ["would run code", "posix.system"],
    ),
    "a whole network without weights": (
        lambda p: f.torch_file(p, torch.nn.ReLU()),
        ["a whole pickled network"],
    ),
    "packed quantised weights": (
        lambda p: f.torch_file(p, {"a": torch.ones(2), "p": (quantised(), torch.ones(2))}),
        ["p.0  is quantised"],
    ),
    "eval": (lambda p: f.pickled(p, f.Runs(eval, "open('ran', 'w')")), ["would run code", ".eval"]),
    "a function of ours": (
        lambda p: f.torch_file(p, {"w": f.Runs(json.loads, "1")}),
        ["would run code", "json.loads"],
    ),
    "an empty zip file": (lambda p: (zipfile.ZipFile(p, "w").close(), p)[1], ["begins with"]),
    "a NumPy archive": (
        lambda p: (zipfile.ZipFile(p, "w").writestr("w.npy", b"x"), p)[1],
        ["a NumPy archive"],
    ),
    "no data.pkl": (records(lambda n, d: None if n.endswith("data.pkl") else (n, d)), ["torch.save did not"]),
    "TorchScript": (records(lambda n, d: (n.replace("data.pkl", "constants.pkl"), d)), ["TorchScript"]),
    "no storages": (records(lambda n, d: None if "/data/" in n else (n, d)), ["damaged or cut off"]),
    "one storage less": (
        records(lambda n, d: None if n.endswith("/data/1") else (n, d)),
        ["damaged or cut off"],
    ),
    "shorter storages": (records(lambda n, d: (n, d[:4] if "/data/" in n else d)), ["damaged"]),
    "empty storages": (records(lambda n, d: (n, b"" if "/data/" in n else d)), ["damaged"]),
    "compressed storages": (
        records(lambda n, d: (n, d), compression=zipfile.ZIP_DEFLATED),
        ["records are compressed"],
    ),
    "an empty pickle": (
        records(lambda n, d: (n, b"" if n.endswith("data.pkl") else d)),
        ["damaged or cut off"],
    ),
    "half a pickle": (
        records(lambda n, d: (n, d[: len(d) // 2] if n.endswith("data.pkl") else d)),
        ["damaged"],
    ),
    "an unknown order of bytes": (
        records(lambda n, d: (n, b"middle" if n.endswith("byteorder") else d)),
        ["damaged"],
    ),
    "a number": (lambda p: f.torch_file(p, 7), ["holds no named tensors"]),
    "one tensor": (lambda p: f.torch_file(p, torch.ones(2)), ["holds no named tensors"]),
    "a list of tensors": (lambda p: f.torch_file(p, [torch.ones(2)]), ["holds no named tensors"]),
    "an empty dictionary": (lambda p: f.torch_file(p, {}), ["holds no named tensors"]),
    "numbers for names": (lambda p: f.torch_file(p, {1: torch.ones(2)}), ["holds no named tensors"]),
    "a sparse tensor": (lambda p: f.torch_file(p, {"w": torch.eye(3).to_sparse()}), ["is sparse"]),
    "a sparse tensor by rows": (
        lambda p: f.torch_file(p, {"w": torch.eye(3).to_sparse_csr()}),
        ["is sparse"],
    ),
    "a nested tensor": (
        lambda p: f.torch_file(p, {"w": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}),
        [],
    ),
    "a jagged nested tensor": (
        lambda p: f.torch_file(
            p, {"w": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)}
        ),
        [],
    ),
    "a tensor without values": (
        lambda p: f.torch_file(p, {"w": torch.ones(2, device="meta")}),
        ["has no values"],
    ),
    "a value repeated 2^40 times": (
        lambda p: f.torch_file(p, {"w": torch.ones(1).expand(2**40)}),
        ["far more than are stored"],
    ),
    "a dictionary within itself": (
        lambda p: f.torch_file(p, (lambda d: d.update(d=d) or d)({})),
        ["no named"],
    ),
    "the old format, cut off": (
        lambda p: (
            f.torch_file(p, f.MLP, _use_new_zipfile_serialization=False),
            os.truncate(p, p.stat().st_size - 100),
            p,
        )[2],
        ["damaged or cut off"],
    ),
    "the zip format, cut off": (
        lambda p: (f.torch_file(p, f.MLP), os.truncate(p, p.stat().st_size - 100), p)[2],
        ["cut off or damaged"],
    ),
}

OTHERS = {
    "a web page": (holding(b"<!doctype html>"), ["a web page"]),
    "a Git LFS pointer": (holding(b"version https://git-lfs.github.com/spec/v1\n"), ["LFS"]),
    "gzip": (holding(b"\x1f\x8b" + b"\0" * 20), ["gzip"]),
    "HDF5": (holding(b"\x89HDF\r\n\x1a\n" + b"\0" * 20), ["HDF5"]),
    "GGUF": (holding(b"GGUF" + b"\0" * 20), ["GGUF"]),
    "NumPy": (holding(b"\x93NUMPY" + b"\0" * 20), ["NumPy array"]),
    "noise": (holding(bytes(range(100, 200))), ["is no checkpoint"]),
    "an escape": (holding(b"\x1b]52;c;eA==\x07"), ["is no checkpoint"]),
    "a loop of links": (f.looped, []),
    "a link to nowhere": (
        lambda p: (p.symlink_to("nowhere"), p)[1],
        ["bad.pt is a link to nowhere, which is not there"],
    ),
    "a pipe": (lambda p: (os.mkfifo(p), p)[1], ["is not a regular file"]),
    "an empty folder": (lambda p: (p.mkdir(), p)[1], ["holds no weights"]),
    "an index of nothing": (index({}), ["no weight_map"]),
    "an index that is a list": (listing("[]"), ["no weight_map"]),
    "an index of numbers": (index({"a": 7}), ["no weights in its own folder"]),
    "an index of files elsewhere": (index({"a": "../x.safetensors"}), ["in its own folder"]),
    "an index of absolute files": (index({"a": "/etc/x.safetensors"}), ["in its own folder"]),
    "an index of a pickle": (index({"a": "x.pkl"}), ["in its own folder"]),
    "an index of a shard that is missing": (index({"a": "x.safetensors"}), ["x.safetensors  is missing"]),
    "an index of itself": (index({"a": "model.safetensors.index.json"}), ["in its own folder"]),
    "an index of 100,000 brackets": (listing("[" * 100_000), ["not valid JSON"]),
}

INPUTS = {
    "no file": ("nowhere.safetensors", ["no such file"]),
    "no folder": ("nowhere/a.safetensors", ["no such file", "no folder"]),
    "below a file": ("a.safetensors/b.safetensors", ["no such file"]),
    "a device without end": ("/dev/zero", ["is not a regular file"]),
    "a full device": ("/dev/full", ["is not a regular file"]),
    "nothing": ("/dev/null", ["is not a regular file"]),
    "the root folder": ("/", ["holds no weights"]),
    "a name of 300 letters": ("n" * 300, ["File name too long"]),
    "a path of 5,000 letters": ("n/" * 2500, ["File name too long"]),
    "a name that is no text": ("a\udcff.pt", ["no such file"]),
}


@pytest.fixture
def told(tmp_path):
    """Run a command that should be refused; exit code, one message, no traceback, nothing left."""

    def told(code, *arguments, says=()):
        before = {} if "/dev" in str(arguments) else contents(tmp_path)
        outcome = rebasin(*arguments)
        assert (outcome.code, outcome.out) == (code, ""), (outcome.code, outcome.err[:2000])
        lines = [line for line in outcome.err.splitlines() if not line.startswith(("spec: ", "method: "))]
        assert lines[0].startswith("rebasin: ") and "Traceback" not in outcome.err
        assert len(outcome.err) < 100_000 and all(c == "\n" or c.isprintable() for c in outcome.err)
        for words in says:
            assert words in outcome.err, outcome.err[:2000]
        assert not before or contents(tmp_path) == before
        assert not (tmp_path / "ran").exists()
        return outcome

    return told


@pytest.mark.parametrize("what", SAFETENSORS)
def test_a_bad_safetensors_file_is_refused(tmp_path, told, what):
    make, says = SAFETENSORS[what]
    told(3, "inspect", make(tmp_path / "bad.safetensors"), says=["bad.safetensors", *says])


@pytest.mark.filterwarnings("ignore:.*(beta state|prototype stage|Quantization|quantize)")
@pytest.mark.parametrize("what", TORCH)
def test_a_bad_torch_file_is_refused(tmp_path, told, what):
    make, says = TORCH[what]
    path = make(tmp_path / "bad.pt")
    told(3, "apply", path, path, says=["bad.pt"])
    told(3, "inspect", path, says=["bad.pt", *says])


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_no_checkpoint_is_refused(tmp_path, told, what):
    make, says = OTHERS[what]
    told(3, "inspect", make(tmp_path / "bad.pt"), says=says)


@pytest.mark.parametrize("what", INPUTS)
def test_an_input_that_is_not_there_is_refused(tmp_path, told, what):
    f.safetensors(tmp_path / "a.safetensors", f.MLP)
    path, says = INPUTS[what]
    told(3, "inspect", path, says=says)
    if path != "/":  # in which the output would lie
        told(3, "align", "a.safetensors", path, "-o", "o.safetensors", says=says)
        told(3, "merge", path, "a.safetensors", says=says)


VALUES = {
    "a quiet NaN": (f.bits(0x7FC00000), "1 NaN"),
    "a signalling NaN": (f.bits(0x7F800001), "1 NaN"),
    "a negative NaN": (f.bits(0xFFC00000), "1 NaN"),
    "a NaN with a payload": (f.bits(0x7FFFFFFF), "1 NaN"),
    "infinity": (math.inf, "1 infinite"),
    "minus infinity": (-math.inf, "1 infinite"),
}


@pytest.mark.parametrize("what", VALUES)
@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_a_value_that_is_no_number_is_refused(tmp_path, told, what, form):
    value, says = VALUES[what]
    f.safetensors(tmp_path / "a.safetensors", f.MLP)
    path, tensors = tmp_path / f"bad.{form}", f.with_value(value)
    f.safetensors(path, tensors) if form == "safetensors" else f.torch_file(path, tensors)
    told(3, "align", "a.safetensors", path, says=["bad", "layers.0.weight", says, "first at [0, 5]"])


NUMBERS = {
    "complex weights": (torch.complex64, "complex"),
    "int8 weights": (torch.int8, "looks quantised"),
    "uint8 weights": (torch.uint8, "looks quantised"),
    "int64 weights": (torch.int64, "an integer weight"),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_weights_that_cannot_be_averaged_are_refused(tmp_path, told, what):
    dtype, says = NUMBERS[what]
    f.safetensors(tmp_path / "a.safetensors", f.MLP)
    f.safetensors(tmp_path / "bad.safetensors", f.MLP | {"head.weight": _numbers((10, 12), dtype)})
    told(3, "merge", "a.safetensors", "bad.safetensors", says=["head.weight", says])


NAMES = {
    "OSC 52": "\x1b]52;c;cm0gLXJm\x07",
    "a cleared screen": "\x1b[2J",
    "a forged line": "w\nrebasin: all is well",
    "a carriage return": "w\rrebasin: all is well",
    "an annotation": "::error file=x::forged",
    "an annotation after spaces": "   ::error::forged",
    "another direction": "\u202etxt.exe",
    "NUL": "w\0",
    "a name of 5 MB": LONG,
    "an empty name": "",
    "a name like a key": "__metadata",
    "a template": "{i}{j}%s%n$(touch ran)`touch ran`",
    "markup": "[red]w[/red][link=http://x]",
}


@pytest.mark.parametrize("what", NAMES)
def test_names_are_shown_as_names(tmp_path, told, what):
    """A tensor of any name can be looked at, and told in an error; in JSON it is what it is."""
    name = NAMES[what]
    f.safetensors(tmp_path / "a.safetensors", f.MLP)
    path = f.safetensors(tmp_path / "b.safetensors", f.MLP | {name: torch.ones(2)}, {"note": name})
    shown = rebasin("inspect", path)
    assert shown.code == 0 and len(shown.out) < 50_000, shown.err[:2000]
    assert all(c == "\n" or c.isprintable() for c in shown.out + shown.err)
    assert not any(line.lstrip().startswith(("::", "rebasin: all")) for line in shown.out.splitlines())
    found = rebasin("inspect", path, "--json").json()
    assert name in found["tensors"] and found["metadata"]["note"] == name
    outcome = told(4, "align", "a.safetensors", path)
    assert not any(line.lstrip().startswith("::") for line in outcome.err.splitlines())


def test_a_file_name_is_shown_as_a_name(tmp_path, told):
    for name in ("\x1b]0;t\x07.pt", "a\nrebasin: all is well", "\udcff.pt", "::error::x"):
        (tmp_path / name).write_bytes(b"noise, and more noise")
        told(3, "inspect", name, says=["is no checkpoint"])


@pytest.mark.sweep
@pytest.mark.parametrize("at", range(8, 300, 3))
def test_one_turned_bit_of_a_header_is_refused_or_harmless(tmp_path, at):
    """Never a traceback; where a file can still be read, its values are those of the file."""
    for bit in range(8):
        path = f.flipped(tmp_path / "bad.safetensors", at, bit)
        outcome = rebasin("inspect", path)
        assert outcome.code in (0, 3) and "Traceback" not in outcome.err, (at, bit, outcome.err)


@pytest.mark.parametrize("form", ["safetensors", "pt"])
@pytest.mark.parametrize("change", ["cut short", "replaced", "gone"])
def test_an_input_that_changes_while_a_command_runs_is_told(tmp_path, monkeypatch, form, change):
    """Mapped, as it once was, the first of these killed the process without a word."""
    paths = [tmp_path / f"{name}.{form}" for name in "ab"]
    for path in paths:
        f.safetensors(path, f.MLP) if form == "safetensors" else f.torch_file(path, f.MLP)
    changed = iter([True])

    def step(*_):
        if next(changed, False):
            path = paths[1]
            if change == "cut short":
                os.truncate(path, 200)
            elif change == "gone":
                path.unlink()
            else:
                f.safetensors(tmp_path / "new", f.MLP)
                (tmp_path / "new").replace(path)

    monkeypatch.setattr("rebasin_cli.cli.screen.Screen.step", step)
    outcome = rebasin("align", *paths, "-o", "out.safetensors", "--no-prove")
    assert outcome.code == 3 and f"b.{form} changed while it was read" in outcome.err, outcome.err
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "out"))]


@pytest.mark.sweep
@pytest.mark.parametrize(("size", "number", "code"), [(0, 101_000, 3), (1, 51_000, 0)])
def test_very_many_tensors_are_looked_at_in_bounded_time_and_empty_ones_refused(tmp_path, size, number, code):
    many = {f"w{k}": torch.zeros(size) for k in range(number)}
    signal.alarm(0)
    path = f.safetensors(tmp_path / "many.safetensors", many)
    signal.alarm(300)
    began = time.process_time()
    outcome = rebasin("inspect", path)
    assert outcome.code == code, outcome.err
    assert time.process_time() - began < 20  # what grows with the square takes minutes
    told = (
        "no built-in spec is tried on 51,000 tensors",
        "101,000 tensors without values, and at most 100,000",
    )
    assert told[0] in outcome.out if size else told[1] in outcome.err
