"""Types of numbers as people write them: "bf16"."""

from __future__ import annotations

import torch

from ..errors import unknown

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


def parse_dtype(text: str) -> torch.dtype:
    """A floating-point dtype for `out_dtype`: "float32", "bf16", "fp16", "half", … Raises UsageError."""
    name = text.strip().lower().removeprefix("torch.")
    name = _SHORT.get(name, name)
    if name not in DTYPE_NAMES:
        raise unknown("dtype", text, DTYPE_NAMES)
    return DTYPE_NAMES[name]
