"""Sizes and types as people write them: "2GB", "bf16"."""

from __future__ import annotations

import re

import torch

from ..errors import UsageError, unknown

DTYPE_NAMES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
_SHORT = {
    **{"f64": "float64", "fp64": "float64", "double": "float64"},
    **{"f32": "float32", "fp32": "float32", "float": "float32", "single": "float32"},
    **{"f16": "float16", "fp16": "float16", "half": "float16"},
    **{"bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"},
}
_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{ending}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for ending, base in (("b", 1000), ("", 1000), ("ib", 1024))
}


def parse_size(text: str, flag: str = "") -> int:
    """Bytes: "2GB" is 2·10⁹, "2GiB" is 2·2³⁰, "1.5 GB" and a bare number work.

    Raises UsageError, which names the option that it was given with (`flag`).
    """
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([a-z]*)\s*", text.lower())
    size = int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if not 1 <= size < 2**63:
        raise UsageError(
            f"{flag}{': ' * bool(flag)}{text!r} is not a size",
            hint="Expected a number with a unit, such as 500MB, 2GB or 2GiB.",
        )
    return size


def parse_dtype(text: str) -> torch.dtype:
    """A floating-point dtype for `out_dtype`: "float32", "bf16", "fp16", "half", … Raises UsageError."""
    name = text.strip().lower().removeprefix("torch.")
    name = _SHORT.get(name, name)
    if name not in DTYPE_NAMES:
        raise unknown("dtype", text, DTYPE_NAMES)
    return DTYPE_NAMES[name]
