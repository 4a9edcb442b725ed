"""What a report keeps of single samples, and the digests that say which samples these are."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets.batches import checked, size_of, tensors_in
from ..datasets.loaders import LoaderData
from ..networks.evaluation import Scores
from ..types import Batches

MOST = 100_000  # samples: a report of more would be too large to keep
LOOKED_AT = 64  # values of a tensor of a sample that its digest is made of, or up to twice as many
LARGEST = 60_000.0  # nearly the largest number of two bytes


def kept(middle: Scores | None, ends: Iterable[Scores], batches: Batches) -> dict[str, Any]:
    """Of the shipped row at λ = ½, of every test sample: the height of its loss above the chord, its metrics.

    With a digest that says which samples these are. Numbers have two bytes (enough for an error, not for a
    mean). {} where single samples have no finite scores, and of more than `MOST` samples.
    """
    scores = [score for score in (middle, *ends) if score is not None]
    each = [losses for score in scores if (losses := score.sampled("loss")) is not None]
    if middle is None or len(scores) < 3 or len(each) < len(scores):
        return {}
    at, a, b = each
    columns = {"chord": at - (a + b) / 2}
    columns |= {key: values for key in middle.metrics if (values := middle.sampled(key)) is not None}
    columns = {key: values for key, values in columns.items() if bool(torch.isfinite(values).all())}
    if len(at) > MOST or "chord" not in columns:
        return {}
    packed = {name: _packed(column) for name, column in columns.items()}
    return {"samples": digest(batches), "count": len(at)} | packed


def digest(batches: Batches) -> str:
    """SHA-256 of the samples in their order, however they are batched: some values of each tensor of each."""
    hashes: list[Any] = []
    for pair in checked(batches):
        for place, tensor in enumerate(tensors_in(pair)):
            if place == len(hashes):
                hashes.append(hashlib.sha256())
            rows = tensor.detach()
            rows = rows.reshape(len(rows), math.prod(rows.shape[1:])) if rows.ndim else rows.reshape(1, 1)
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
        count = size_of(pair[1], pair[0])
        rows = [_rows(tensor, count) for tensor in tensors_in(pair)]
        for shown in range(count):
            one = hashlib.sha256()
            for row in rows:
                one.update(row[shown if len(row) == count else 0])
            total += int.from_bytes(one.digest(), "big")
    return f"{total % (1 << 256):064x}"


def _rows(tensor: Tensor, count: int) -> np.ndarray:
    """The bytes of every sample's part, (samples, bytes); of a tensor that is one for all, one row."""
    tensor = tensor.detach().cpu()
    wide = (tensor.float() if tensor.is_floating_point() else tensor.long()).numpy()
    parts = count if wide.ndim and wide.size and len(wide) % count == 0 else 1
    return np.ascontiguousarray(wide).reshape(parts, -1).view(np.uint8)


def _packed(column: Tensor) -> str:
    values = column.double().clamp(-LARGEST, LARGEST).numpy().astype("<f2")
    return base64.b64encode(values.tobytes()).decode("ascii")
