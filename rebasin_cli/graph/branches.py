"""What other values would let run: a network is recorded again, with other answers to what it asks."""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import TracebackType

from .answers import Answers
from .program import Program

GROWTH, TOTAL = 4, 16  # how many times the operations of the first run another, and all may have


def explored(first: Answers, size: int, record: Callable[[Answers], Program]) -> tuple[list[Program], bool]:
    """What `record` gives for the answers that the `first` run of this size did not get.

    And whether these are all that there may be: everything asked for a truth, and nothing failed but where
    the network itself raises.
    """
    found: list[Program] = []
    known, left = {*first.asked}, [{place: way} for place, way in first.ways]
    certain = all(kind == "bool" for kind in first.asked.values())
    total = TOTAL * size
    while left and total > 0:
        answers = Answers(left.pop(0), min(GROWTH * size, total))
        try:
            found.append(record(answers))
            total -= len(found[-1].graph.nodes)
        except Exception as cause:  # whatever the network raises on such
            certain, total = certain and refuses(cause), total - size
        new = [(place, way) for place, way in answers.ways if place not in known]
        certain = certain and all(answers.asked[place] == "bool" for place, _ in new)
        known.update(place for place, _ in new)
        left += [{**answers.forced, place: way} for place, way in new]
    return found, certain and not left


def refuses(cause: BaseException) -> bool:
    """Whether the network's own `raise` or `assert` ended it: such inputs have no outputs."""
    last: TracebackType | None = cause.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or "/torch/" in (file := last.tb_frame.f_code.co_filename) or "/rebasin_cli/" in file:
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
