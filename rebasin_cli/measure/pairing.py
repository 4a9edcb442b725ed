"""What a report keeps of single samples, so that a later one can be held against it pair by pair.

Two reports on the same samples share what makes a sample hard. The difference of their means is then far
surer than the two means are: its error is that of the differences, sample by sample.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets.batches import LoaderData, checked, size_of, tensors_in
from ..networks.evaluation import Scores
from ..reports import Report
from ..types import Batches

MOST = 100_000  # samples: a report of more would be too large to keep
LOOKED_AT = 64  # values of a tensor of a sample that its digest is made of, or up to twice as many
FIGURES = ("chord", "accuracy")
LARGEST = 60_000.0  # nearly the largest number of two bytes


def kept(middle: Scores | None, ends: Iterable[Scores], batches: Batches) -> dict[str, Any]:
    """Of the shipped row at λ = ½, of every test sample: the height of its loss above the chord, accuracy.

    With a digest that says which samples these are. Numbers have two bytes (enough for an error, not for a
    mean). {} where single samples have no finite scores, and of more than `MOST` samples.
    """
    scores = [score for score in (middle, *ends) if score is not None]
    each = [score.each for score in scores if score.each is not None]
    if len(scores) < 3 or len(each) < len(scores) or any(len(one) != len(each[0]) for one in each):
        return {}
    at, a, b = each
    heights = at[:, 0] - (a[:, 0] + b[:, 0]) / 2
    if len(at) > MOST or not bool(torch.isfinite(heights).all() and torch.isfinite(at[:, 1]).all()):
        return {}
    values = zip(FIGURES, (heights, at[:, 1]), strict=True)
    return {"samples": digest(batches), "count": len(at)} | {name: _packed(column) for name, column in values}


def digest(batches: Batches) -> str:
    """SHA-256 of the samples in their order, however they are batched: some values of each tensor of each."""
    hashes: list[Any] = []
    for pair in checked(batches):
        for place, tensor in enumerate(tensors_in(pair)):
            if place == len(hashes):
                hashes.append(hashlib.sha256())
            rows = tensor.detach().reshape(len(tensor), -1) if tensor.ndim else tensor.reshape(1, 1)
            some = rows[:, :: max(1, rows.shape[1] // LOOKED_AT)]
            some = some.float() if some.is_floating_point() else some.long()
            hashes[place].update(np.ascontiguousarray(some.cpu().numpy()).tobytes())
    return hashlib.sha256(b"".join(one.digest() for one in hashes)).hexdigest()


def digest_of_all(data: Iterable[Any]) -> str | None:
    """SHA-256 of all values of all samples, in whatever order and batches they come: which data these are.

    None for a user's own batches that are other ones each time they are read.
    """
    found = _sum_of_digests(data)
    return found if not isinstance(data, LoaderData) or _sum_of_digests(data) == found else None


def _sum_of_digests(batches: Batches) -> str:
    total = 0
    for pair in checked(batches):
        count = size_of(pair[1])
        rows = [_rows(tensor, count) for tensor in tensors_in(pair)]
        for number in range(count):
            one = hashlib.sha256()
            for row in rows:
                one.update(row[number if len(row) == count else 0])
            total += int.from_bytes(one.digest(), "big")
    return f"{total % (1 << 256):064x}"


def _rows(tensor: Tensor, count: int) -> np.ndarray:
    """The bytes of every sample's part, (samples, bytes); of a tensor that is one for all, one row."""
    tensor = tensor.detach().cpu()
    wide = (tensor.float() if tensor.is_floating_point() else tensor.long()).numpy()
    parts = count if wide.ndim and wide.size and len(wide) % count == 0 else 1
    return np.ascontiguousarray(wide).reshape(parts, -1).view(np.uint8)


def differences(old: Report, new: Report) -> dict[str, np.ndarray]:
    """`new` minus `old` of every sample by figure, float64; {} where they are not of the same samples."""
    one, two = old.each, new.each
    if not one.get("samples") or one["samples"] != two.get("samples"):
        return {}
    found = {}
    for name in FIGURES:
        a, b = _unpacked(one, name), _unpacked(two, name)
        if a is None or b is None or len(a) != len(b):
            return {}
        found[name] = b - a
    return found


def _packed(column: Tensor) -> str:
    values = column.double().clamp(-LARGEST, LARGEST).numpy().astype("<f2")
    return base64.b64encode(values.tobytes()).decode("ascii")


def _unpacked(each: Mapping[str, Any], name: str) -> np.ndarray | None:
    """None where a file says something else than `kept` did."""
    try:
        values = np.frombuffer(base64.b64decode(each[name], validate=True), dtype="<f2").astype(np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    whole = len(values) == each.get("count") and len(values) > 1 and bool(np.isfinite(values).all())
    return values if whole else None
