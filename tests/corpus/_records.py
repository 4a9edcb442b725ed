"""What rebasin writes of itself into files, right in every part: records, reports, folds."""

import copy
import json

import torch

from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.reports import Curve, Report, Row, barrier_of
from rebasin_cli.reports.formats import json as reports

MADE = {
    "rebasin.command": "merge",
    "rebasin.version": "1",
    "rebasin.method": "none",
    "rebasin.options": "{}",
    "rebasin.inputs": json.dumps(["a" * 64, "b" * 64]),
    "rebasin.spec": "mlp",
}
SPEC = 'tensors:\n  g: "."\n  c: "."\n  w: "h ."\n  b: "h"\n  v: ". h"\n  d: "."\n'
SHAPES = {"g": (6,), "c": (6,), "w": (4, 6), "b": (4,), "v": (4, 4), "d": (4,)}
FOLDS = {
    "norms": [
        {"weight": "g", "bias": "c", "readers": [{"weight": "w", "bias": "b", "axis": 1}], "free": False},
    ],
    "values": [
        {
            "part": {"tensor": "b", "start": 0, "length": 4},
            "reader": {"weight": "v", "bias": "d", "axis": 1},
            "size": 2,
            "times": 1,
        }
    ],
    "keys": [{"tensor": "b", "start": 1, "length": 2}],
    "means": [["w", 0]],
    "left": [["what", "why"]],
}  # fmt: skip


def everywhere(value, path=()):
    """Every place in nested dictionaries and lists, of lists the first two items."""
    if path:
        yield path
    inside = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    for key, item in inside:
        yield from everywhere(item, (*path, key))


def changed(values, path, new):
    found = copy.deepcopy(values)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return found


def report():
    curve = Curve((0.0, 0.5, 1.0), (0.1, 0.2, 0.1), {"accuracy": (0.9, 0.8, 0.9)}, 100)
    row = Row("naive", curves={"test": curve}, barriers={"test": barrier_of(curve)}, shipped=True)
    inputs = tuple(
        {"file": f"{name}.safetensors", "sha256": name * 64, "recorded": {"rebasin.command": "align"}}
        for name in "ab"
    )
    ends = tuple({"name": name, "test": {"loss": 0.1, "accuracy": 0.9, "ece": 0.1}} for name in "AB")
    whole = Report(
        "1", "rebasin barrier", 0, inputs, {"name": "mlp"}, {"name": "digits", "samples": {"test": 100}},
        {"method": "wm", "history": [{"step": 1, "held_out_loss": 0.1}]}, {"status": "proven"}, ends, (row,),
    )  # fmt: skip
    return json.loads(reports.render(whole))


def write_record(**changed):
    """`m.safetensors`, which records that it was merged."""
    meta = MADE | {f"rebasin.{key}": text for key, text in changed.items()}
    write_safetensors("m.safetensors", {"w": torch.ones(2)}, metadata=meta, force=True)


def write_elements(folds, spec=SPEC):
    """`e.perm.safetensors`, for a model of `SHAPES`."""
    meta = {"rebasin.kind": "group elements", "rebasin.groups.spec": spec, "rebasin.groups.folds": folds}
    write_safetensors("e.perm.safetensors", {"h": torch.arange(4)}, metadata=meta, force=True)
