"""Numbers as people type them, and no others."""

import math

import pytest

from rebasin_cli.registry.options import is_number, real, whole, with_unit


def test_a_time_is_told_with_its_unit():
    assert [with_unit(time) for time in ("3", "1.5", "20m")] == ["3 s", "1.5 s", "20m"]


def test_numbers_are_digits_with_a_point_or_an_exponent():
    for text, value in {
        "0.05": 0.05,
        " 5 ": 5.0,
        "-.5": -0.5,
        "1e-3": 1e-3,
        "+2E2": 200.0,
    }.items():
        assert real(text) == value and is_number(text)
    assert math.isnan(real("nan")) and real("-inf") == -math.inf and whole("-007") == -7


def test_what_python_alone_reads_as_a_number_is_none():
    for text in ("0_05", "1_000", "٠.٥", "１", "infinity", "0x1", "1__0", "", ".", "e5", "1,5", "1" * 5_000):
        with pytest.raises(ValueError, match="not a number"):
            real(text)
        with pytest.raises(ValueError, match="not a whole number"):
            whole(text)
    with pytest.raises(ValueError, match="not a whole number"):
        whole("1.0")
