"""What a command holds, reads and writes, known from headers: told in plans, refused where it cannot fit.

One function, `needs`, gives the figures of `--dry-run` and of the check before a command runs. They are of
one process; of several ranks each holds its share of the models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ... import matchers
from ...checkpoints import destination
from ...checkpoints.checkpoint import Checkpoint
from ...errors import ResourceError
from ...matchers.descent.blocks import TURNED, wide
from ...measure import matrices
from ...repair.options import SAMPLES
from ...runtime import memory
from ...session.session import Session
from .outputs import Output
from .tensor_bytes import (
    BY_ROWS,
    FLOWING,
    asked_for,
    between_solves,
    bytes_of,
    bytes_of_tensor,
    largest_tensor,
    moved_by_rows,
    numbers_of,
    of_method,
    similarities,
    while_written,
    written_bytes,
)

BASE = 290 << 20  # bytes of a process that has done the least
SCRATCH = TURNED + (168 << 20)  # slabs of products, small tensors with another axis first, freed memory
SORTED = 8  # times the largest tensor: of two, their numbers, those in order, and what sorting takes
IN_TWO_TYPES = 48  # bytes a number: of two tensors, those in order, where each was, and both in float64
RAN = {"barrier": 16, "signature": 16, "canon": 24, "doctor": 28, "merge": 16, "repair": 24}  # a parameter
SEARCHES = ("align", "merge", "barrier", "signature", "compare", "curve", "plane")
PROOF = 12  # bytes a parameter: the network in float32 and in float64
VALUE = 48  # bytes a value that is compared: in float64, its deviations, and what draws move
FILES = "files"  # the part that is the models, as they are stored
PASSING = "files, read again"  # the part that is what of them is not held, while it is asked for
NEARLY = 0.95  # of the memory that there is, for what is not in the plan: an estimate is one


@dataclass(frozen=True)
class Needs:
    """Bytes of memory at most, by what holds them (`parts`); bytes that are read and written.

    `spare` of the part "files" need not be held: what is `bounded` does not, and reads them whenever they are
    asked for, in one sweep `again` bytes, and `passing` are there at a time. `proof` is what comes before the
    search, and is gone by then.
    """

    parts: Mapping[str, int]
    read: int
    written: int
    spare: int = 0
    again: int = 0
    proof: int = 0
    passing: int = 0
    bounded: bool = False

    @property
    def search(self) -> int:
        """Memory without the proof."""
        return sum(self.parts.values())

    @property
    def memory(self) -> int:
        """Memory at most."""
        return max(self.search, BASE + self.proof)

    @property
    def least(self) -> int:
        """Memory with nothing held that can be read again."""
        spared = 0 if self.bounded else self.passing
        return max(self.search - max(0, self.spare - spared), BASE + self.proof)

    def within(self, most: int | None) -> Needs:
        """The same with as few of the models held as `most` bytes ask for."""
        if most is None or self.search <= most or self.spare <= self.passing:
            return self
        spared = min(self.spare, self.search + self.passing - most)
        passing = {PASSING: self.passing} if self.passing else {}
        parts = {**self.parts, FILES: self.parts[FILES] - spared, **passing}
        again = round(spared / self.spare * self.again)
        return replace(self, parts=parts, spare=self.spare - spared, again=again, bounded=True)

    def facts(self) -> dict[str, Any]:
        """As a plan tells them."""
        told = {"search_bytes": self.search, "search_parts": dict(self.parts), "proof_bytes": self.proof}
        told |= {"peak_bytes": self.memory, "read_bytes": self.read, "written_bytes": self.written}
        return told | ({"read_again_bytes": self.again} if self.bounded else {})


def check(session: Session, output: Output | None = None, *, searching: bool | None = None) -> None:
    """Refuse what cannot fit, before any tensor is read; say where it fits, and not beside what is there now.

    `searching` is as in `needs`. Groups are looked for on the network itself, so what orders alone take is
    held to the bound before. Raises ResourceError with the option that makes it fit.
    """
    if session.grouped and session.form is None:
        first = session.ungrouped
        session.ranks.each(lambda: refuse(first, needs(first, output, searching=searching), output))
    session.ranks.each(lambda: refuse(session, needs(session, output, searching=searching), output))


def refuse(session: Session, whole: Needs, output: Output | None = None) -> None:
    """Raise ResourceError where what a session needs is more than `--max-memory` says, or than there is.

    An estimate may be too high: who says that so much may be held, more than there is, is not refused.
    """
    most, there, now = session.most, memory.limit(), memory.free()
    found, least = whole.within(most), sized(whole.least)
    if most is not None and found.memory > most:
        raise ResourceError(
            f"--max-memory {session.asked.bounded.max_memory}: this command takes {least} at least "
            f"({_largest(found)})",
            hint=f"Give --max-memory {least}{_instead(found)}",
        )
    if most is None and there is not None and found.memory > there[0]:
        room, message = int(NEARLY * there[0]), f"this command takes {sized(found.memory)} of memory"
        hint = f"That is an estimate: --max-memory {least} tries it all the same{_instead(found)}"
        if found.least <= room:
            hint = f"Give --max-memory {sized(room, up=False)}: tensors that do not fit are read again"
        raise ResourceError(f"{message} ({_largest(found)}), and {there[1]} has {sized(there[0])}", hint=hint)
    if output is not None:
        destination.check_space(destination.existing(output.path.parent), found.written)
    if now is not None and found.memory > now:
        session.say(
            f"plan: takes {sized(found.memory)} of memory, and {sized(now)} are free now (--max-memory SIZE)"
        )


def room(session: Session) -> int | None:
    """Bytes of tensors that a search may keep; None where all of them fit."""
    if session.most is None:
        return None
    found = needs(session, searching=True).within(session.most)
    return None if FILES in found.parts and not found.bounded else found.parts.get(FILES, 0)


def kept_similarities(session: Session) -> int | None:
    """Bytes of similarities that are kept between solves, where a bound leaves less than what is usual.

    None for what the method does by itself.
    """
    if session.most is None or getattr(session.options, "memory", 0) is not None:
        return None
    return between_solves(session)


def needs(session: Session, output: Output | None = None, *, searching: bool | None = None) -> Needs:
    """What the command of a session holds, reads and writes, from headers alone: no tensor is read.

    `searching`: whether it searches, where that is not as its command does always.
    """
    models, fitted, command = session.named, session.fitted, session.command
    searching = command in SEARCHES if searching is None else searching
    numbers, largest = numbers_of(fitted.shapes.values())
    parts = {"Python and PyTorch": BASE}
    if runs_network(session) and command in RAN:
        parts["networks"] = RAN[command] * numbers
    if command == "repair" and session.asked.repair.repair in SAMPLES:
        inputs = max((math.prod(shape[1:]) for shape in fitted.shapes.values() if shape[1:]), default=0)
        parts["products"] = 3 * 8 * inputs**2  # of a layer's inputs in float64, and what solving takes
    stored = sum(map(bytes_of, models))
    read, written = 2 * stored, 0 if output is None else written_bytes(session, output)
    at_work = 4 * max(
        model.dtypes[n].itemsize * math.prod(s) for model in models for n, s in model.shapes.items()
    )
    if command == "apply" and not session.grouped:
        at_work = moved_by_rows(session, output)
    elif command == "verify" and models[0].dtypes != models[1].dtypes:
        at_work = max(at_work, IN_TWO_TYPES * largest)
    elif command == "verify" and not (searching or fitted.groups or session.grouped or fitted.stacks):
        beside = 0 if models[0].format in BY_ROWS else largest_tensor(models[0])
        at_work = moved_by_rows(session, output) + beside
    if not searching or session.method in ("none", "given"):
        at_work = 4 * 8 * largest if command == "canon" else at_work
        return Needs(parts | {"tensors at work": at_work}, read, written)
    exactly = command == "verify" and fitted.groups  # what turns is found in float64
    size = 8 if exactly else wide(models, list(fitted.tensors)).itemsize
    matcher, units = matchers.registry.get(session.method), max(fitted.words.values(), default=0)
    own, held = of_method(session, matcher, numbers), stored // session.ranks.size
    scratch = min(SCRATCH, 4 * size * numbers)
    if session.method == "wm" and command != "verify":
        similar = between_solves(session) + similarities(session, size)
        then = while_written(session, output)  # when matrices and scratch space are free again
        at_work, passing = max(0, then - similar - scratch), min(at_work, held)
    else:
        similar, passing = 2 * size * units**2 + between_solves(session), 0
        at_work += size * largest
    parts |= {FILES: held, "tensors at work": at_work, "similarities": similar} | own
    parts["scratch space"] = scratch + (matrices.memory(fitted.shapes.values()) if command == "doctor" else 0)
    if turning := session.asked.search.groups == "all" and not matcher.NEEDS:
        del parts[FILES]  # as they are compared, and four copies in float64 as elements act on one
        parts |= {"models": size * len(models) * numbers, "tensors at work": 4 * 8 * largest}
    return Needs(
        parts,
        read + (0 if output is None else bytes_of(models[-1])),
        written,
        spare=0 if turning or matcher.NEEDS else parts[FILES],
        again=sum(
            bytes_of_tensor(model, name) * asked_for(axes)
            for model in models
            for name, axes in fitted.tensors.items()
        ),
        proof=PROOF * numbers if proves(session) else 0,
        passing=passing,
    )


def check_compared(session: Session) -> Needs:
    """As `check`, and what it found, of models whose tensors are compared one by one, by no spec."""
    models = session.named
    parts = {"Python and PyTorch": BASE, "tensors at work": SORTED * max(map(largest_tensor, models))}
    whole = Needs(parts, 4 * sum(map(bytes_of, models)), 0)  # looked at, compared, and sorted
    refuse(session, whole)
    return whole


def of_run(session: Session) -> Needs:
    """What running the networks of a session takes, one after the other, each in float32: by no spec."""
    models = session.named
    numbers, _ = numbers_of(models[0].shapes.values())
    parts = {"Python and PyTorch": BASE, "networks": 8 * numbers}  # as it was made, and with its weights
    return Needs(
        parts | {"tensors at work": max(map(largest_tensor, models))}, 2 * sum(map(bytes_of, models)), 0
    )


def of_compared(models: Sequence[Checkpoint], values: int) -> Needs:
    """What comparing so many values of each model takes: of more of them a part is read."""
    numbers = sum(numbers_of(model.shapes.values())[0] for model in models)
    parts = {"Python and PyTorch": BASE, "values": VALUE * min(len(models) * values, numbers)}
    return Needs(parts, sum(map(bytes_of, models)), 0)


def of_digests(model: Checkpoint, file: int) -> Needs:
    """What the digests of a model's values and of the bytes of its `file` take."""
    parts = {"Python and PyTorch": BASE, "pieces": min(FLOWING, 4 * bytes_of(model))}
    return Needs(parts, bytes_of(model) + file, 0)


def check_run(session: Session) -> None:
    """Refuse a network that cannot be held, before any tensor is read: no spec is asked for.

    It is run in float32, which is the least that it takes; integers are as they are stored. Raises
    ResourceError.
    """
    model = session.named[0]
    sizes = {name: 4 if dtype.is_floating_point else dtype.itemsize for name, dtype in model.dtypes.items()}
    least = sum(size * math.prod(model.shapes[name]) for name, size in sizes.items())
    session.ranks.each(memory.check_memory, f"the network of {model.path} takes", BASE + least)


def runs_network(session: Session) -> bool:
    """Whether a network is run on data, or in float64, beside the search and its proof."""
    if session.command in ("canon", "repair"):
        return True
    named = session.asked.network.net is not None or session.fitted.spec.net is not None
    if session.command == "merge" and session.asked.repair.repair == "none":
        return False
    return named and (session.has_data or session.command in ("barrier", "signature"))


def proves(session: Session) -> bool:
    """Whether the spec is proven on the network itself, as large as it is."""
    search, spec = session.asked.search, session.fitted.spec
    if not search.prove or not session.moved or session.command in ("doctor", "signature"):
        return False
    if spec.proof and session.asked.network.net is None and not search.real:
        return False
    return session.asked.network.net is not None or spec.net is not None


def _largest(found: Needs) -> str:
    """What holds most."""
    if BASE + found.proof > found.search:
        return f"the proof {sized(found.proof)}"
    parts = sorted(found.parts.items(), key=lambda part: -part[1])[:2]
    return ", ".join(f"{part} {sized(size)}" for part, size in parts)


def _instead(found: Needs) -> str:
    """Options beside the bound that make it less."""
    if BASE + found.proof >= found.least:
        return ", or --no-prove, if you know that the spec is right"
    return ""


def sized(size: int, *, up: bool = True) -> str:
    """A size that `--max-memory` takes, no smaller than it is (or no larger)."""
    unit, name = (10**9, "GB") if size >= 10**9 else (10**6, "MB")
    tenths = math.ceil(10 * size / unit) if up else math.floor(10 * size / unit)
    return f"{tenths / 10:g}{name}"
