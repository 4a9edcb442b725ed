"""`--input` to arguments: what a network is called with, where only the user knows."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UsageError

HOW = (
    "Write [NAME=]SHAPE[:KIND], the batch first, commas between several, names last: 1x3x224x224, or "
    "input_ids=2x16:int30522,attention_mask=2x16:bool. "
    "KIND is float, bool, int30522 (whole numbers below that) or int (0 and 1). "
    "What is no tensor is NAME=True, NAME=False or NAME=None: use_cache=False"
)
LARGEST = 2**63 - 1  # an int64

_TENSOR = re.compile(
    r"((?P<name>[^\W\d]\w*)=)?(?P<shape>[\dx×X]+)(:(?P<kind>float|bool|int(?P<below>\d+)?))?"
)

_FLAG = re.compile(r"(?P<name>[^\W\d]\w*)=(?P<value>true|false|none)", re.IGNORECASE)
VALUES = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Flag:
    """An argument by keyword that is no tensor: `use_cache=False`."""

    name: str
    value: bool | None
    plain = False


@dataclass(frozen=True)
class Wanted:
    """One tensor, by keyword where it has a name: of whole numbers below `below`, else of floats.

    `truth`: of booleans.
    """

    shape: tuple[int, ...]
    name: str | None = None
    below: int | None = None
    truth: bool = False

    @property
    def plain(self) -> bool:
        """Whether its shape says it all."""
        return self == Wanted(self.shape)


def parse(text: str) -> tuple[Wanted | Flag, ...]:
    """`2x3x8x8`, or `input_ids=2x16:int99,mask=2x16:bool,use_cache=False`: the arguments in their order.

    Raises UsageError that names everything which cannot be read, and shows the form.
    """
    found: list[Wanted | Flag] = []
    problems = []
    for item in (part.strip() for part in text.split(",")):
        one = _parse_one(item)
        if isinstance(one, str):
            problems.append(f"{item!r}  {one}")
            continue
        if one.name is not None and one.name in [other.name for other in found]:
            problems.append(f"{item!r}  is the second {one.name}")
        if one.name is None and found and found[-1].name is not None:
            problems.append(f"{item!r}  has no name, and comes after one that has")
        found.append(one)
    if problems:
        raise UsageError(f"--input {text!r} cannot be read", problems=problems, hint=HOW)
    return tuple(found)


def _parse_one(item: str) -> Wanted | Flag | str:
    """An argument, or what is wrong with it."""
    if read := _FLAG.fullmatch(item):
        return Flag(read["name"], VALUES[read["value"].lower()])
    if not (read := _TENSOR.fullmatch(item)) or (shape := shape_of(read["shape"])) is None:
        return "is no tensor"
    below = int(read["below"] or 2)
    if not 0 < below <= LARGEST:
        return "has whole numbers below 1 … 2^63 - 1 and no others"
    kind = read["kind"] or "float"
    return Wanted(shape, read["name"], None if kind == "float" else below, kind == "bool")


def shape_of(text: str) -> tuple[int, ...] | None:
    """`1x3x224x224` or `1×3×224×224` as sizes; None where it is no shape, or no memory could hold it."""
    parts = re.split("[xX×]", text)
    if not all(re.fullmatch("[0-9]+", part) and int(part) for part in parts):
        return None
    shape = tuple(map(int, parts))
    return shape if math.prod(shape) <= LARGEST // 8 else None


def draw(
    wanted: Sequence[Wanted | Flag], generator: torch.Generator
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The tensors by position, and those by keyword with what is no tensor. Floats are uniform in [0, 1)."""
    args: list[torch.Tensor] = []
    kwargs: dict[str, Any] = {}
    for one in wanted:
        if isinstance(one, Flag):
            kwargs[one.name] = one.value
            continue
        tensor = _draw_one(one, generator)
        if one.name is None:
            args.append(tensor)
        else:
            kwargs[one.name] = tensor
    return tuple(args), kwargs


def _draw_one(one: Wanted, generator: torch.Generator) -> torch.Tensor:
    if one.below is None:
        return torch.rand(one.shape, generator=generator)
    tensor = torch.randint(one.below, one.shape, generator=generator)
    if one.below == 2:
        tensor[..., 0] = 1  # most are masks, and one that lets nothing through makes NaN
    return tensor.bool() if one.truth else tensor
