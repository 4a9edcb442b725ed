"""What a page of kin says of the tensors that it did not look at."""

import pytest

from rebasin_cli.reports import kin
from rebasin_cli.reports.formats import markdown

FOUND = {
    "verdict": "no sign",
    "why": "nothing is alike",
    "in_place": None,
    "relabelled": None,
    "effect": {"rho": float("nan")},
    "spec": {"name": "mlp"},
    "seed": 0,
    "files": ["a", "b"],
    "notes": [],
}


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ({}, ""),
        ({"x": "too small"}, "1 tensor: too small"),
        ({"x": "too small", "y": "too small"}, "2 tensors; all: too small"),
        ({"x": "too small", "y": "constant", "z": "too small"}, "3 tensors; 2 of them: too small"),
    ],
)
def test_what_was_left_out_is_counted_and_the_commonest_reason_told(left, told):
    text = markdown.text(kin.document(FOUND | {"left_out": left}), level=1)
    rows = [line for line in text.splitlines() if "left out" in line and "tensor" in line]
    assert len(rows) == bool(told) and all(told in row for row in rows)
