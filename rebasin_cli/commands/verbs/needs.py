"""What a command holds, reads and writes, known from headers: told in plans, refused where it cannot fit.

One function, `needs`, gives the figures of `--dry-run` and of the check before a command runs. They are of
one process; of several ranks each holds its share of the models.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ... import matchers
from ...checkpoints import destination
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.tensors import CHUNK
from ...errors import ResourceError
from ...matchers.descent.blocks import TURNED, wide
from ...matchers.descent.similarity import KEEP
from ...matchers.wm import SOFT_MEMORY
from ...measure import matrices
from ...repair.options import SAMPLES
from ...runtime import memory
from ...session.session import Session
from ...spec.notation import Axis, words_of
from .outputs import Output

BASE = 290 << 20  # bytes of a process that has done the least
SCRATCH = TURNED + (168 << 20)  # slabs of products, small tensors with another axis first, freed memory
BLOCKS = 48 << 20  # of what is averaged or permuted in blocks: buffers, and freed memory that is kept
SORTED = 8  # times the largest tensor: of two, their numbers, those in order, and what sorting takes
IN_TWO_TYPES = 48  # bytes a number: of two tensors, those in order, where each was, and both in float64
BY_ROWS = ("safetensors", "sharded")  # files whose tensors are read by rows wherever rows stay
FLOWING = 8 * CHUNK  # what is read, made, digested and written a piece at a time
RAN = {
    "barrier": 16,
    "signature": 16,
    "canon": 24,
    "doctor": 28,
    "merge": 16,
    "repair": 24,
}  # bytes a parameter
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
    return _kept(session)


def needs(session: Session, output: Output | None = None, *, searching: bool | None = None) -> Needs:
    """What the command of a session holds, reads and writes, from headers alone: no tensor is read.

    `searching`: whether it searches, where that is not as its command does always.
    """
    models, fitted, command = session.named, session.fitted, session.command
    searching = command in SEARCHES if searching is None else searching
    numbers, largest = _numbers(fitted.shapes.values())
    parts = {"Python and PyTorch": BASE}
    if runs_network(session) and command in RAN:
        parts["networks"] = RAN[command] * numbers
    if command == "repair" and session.asked.repair.repair in SAMPLES:
        inputs = max((math.prod(shape[1:]) for shape in fitted.shapes.values() if shape[1:]), default=0)
        parts["products"] = 3 * 8 * inputs**2  # of a layer's inputs in float64, and what solving takes
    stored = sum(map(bytes_of, models))
    read, written = 2 * stored, 0 if output is None else _written(session, output)
    at_work = 4 * max(
        model.dtypes[n].itemsize * math.prod(s) for model in models for n, s in model.shapes.items()
    )
    if command == "apply" and not session.grouped:
        at_work = _moved_by_rows(session, output)
    elif command == "verify" and models[0].dtypes != models[1].dtypes:
        at_work = max(at_work, IN_TWO_TYPES * largest)
    elif command == "verify" and not (searching or fitted.groups or session.grouped or fitted.stacks):
        beside = 0 if models[0].format in BY_ROWS else _largest_tensor(models[0])
        at_work = _moved_by_rows(session, output) + beside
    if not searching or session.method in ("none", "given"):
        at_work = 4 * 8 * largest if command == "canon" else at_work
        return Needs(parts | {"tensors at work": at_work}, read, written)
    exactly = command == "verify" and fitted.groups  # what turns is found in float64
    size = 8 if exactly else wide(models, list(fitted.tensors)).itemsize
    matcher, units = matchers.registry.get(session.method), max(fitted.words.values(), default=0)
    own, held = _of_method(session, matcher, numbers), stored // session.ranks.size
    scratch = min(SCRATCH, 4 * size * numbers)
    if session.method == "wm" and command != "verify":
        similar = _kept(session) + _similarities(session, size)
        then = _while_written(session, output)  # when matrices and scratch space are free again
        at_work, passing = max(0, then - similar - scratch), min(at_work, held)
    else:
        similar, passing = 2 * size * units**2 + _kept(session), 0
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
            _bytes(model, name) * _words(axes) for model in models for name, axes in fitted.tensors.items()
        ),
        proof=PROOF * numbers if proves(session) else 0,
        passing=passing,
    )


def check_compared(session: Session) -> Needs:
    """As `check`, and what it found, of models whose tensors are compared one by one, by no spec."""
    models = session.named
    parts = {"Python and PyTorch": BASE, "tensors at work": SORTED * max(map(_largest_tensor, models))}
    whole = Needs(parts, 4 * sum(map(bytes_of, models)), 0)  # looked at, compared, and sorted
    refuse(session, whole)
    return whole


def of_run(session: Session) -> Needs:
    """What running the networks of a session takes, one after the other, each in float32: by no spec."""
    models = session.named
    numbers, _ = _numbers(models[0].shapes.values())
    parts = {"Python and PyTorch": BASE, "networks": 8 * numbers}  # as it was made, and with its weights
    return Needs(
        parts | {"tensors at work": max(map(_largest_tensor, models))}, 2 * sum(map(bytes_of, models)), 0
    )


def of_compared(models: Sequence[Checkpoint], values: int) -> Needs:
    """What comparing so many values of each model takes: of more of them a part is read."""
    numbers = sum(_numbers(model.shapes.values())[0] for model in models)
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


def _similarities(session: Session, size: int) -> int:
    """Bytes of matrices beside those that stay between solves: the one at work, and another ranks' sums.

    Of a word on two axes of a tensor also its gradients, here and at the step's end, and their sums.
    """
    fitted = session.fitted
    twice = {word for axes in fitted.tensors.values() for word in _twice(axes)}
    most = max(fitted.words.values(), default=0)
    beside = 4 * max((fitted.words[word] for word in twice), default=0) ** 2
    return size * (max(most**2, beside) + (session.ranks.size > 1) * most**2)


def _twice(axes: Sequence[Axis]) -> set[str]:
    """The words that lie on several of these axes."""
    words = [word for axis in axes for word in {*words_of(axis)}]
    return {word for word in words if words.count(word) > 1}


def _while_written(session: Session, output: Output | None) -> int:
    """Bytes of what is made and written a tensor at a time, when the search has ended."""
    if output is None:
        return 0
    largest, stored = max(map(_largest_tensor, session.named)), sum(map(bytes_of, session.named))
    pieces = FLOWING if session.command == "align" else FLOWING + BLOCKS
    return min(pieces, 4 * stored) + (1 + 2 * output.distributed) * largest


def _largest_tensor(model: Checkpoint) -> int:
    """Bytes, as it is stored."""
    return max((_bytes(model, name) for name in model), default=0)


def _moved_by_rows(session: Session, output: Output | None) -> int:
    """Bytes of tensors while one is permuted: whole where its rows move, or where the file has no rows."""
    model, fitted = session.named[-1], session.fitted

    def whole(name: str) -> bool:
        axes = fitted.tensors.get(name, ())
        moves = bool(axes) and next(words_of(axes[0]), None) is not None
        return moves or name in fitted.places or bool(fitted.within) or model.format not in BY_ROWS

    distributed = output is not None and output.distributed
    read = max((_bytes(model, name) for name in model if whole(name)), default=0)
    return FLOWING + 2 * read + distributed * 2 * _largest_tensor(model)


def _numbers(shapes: Iterable[tuple[int, ...]]) -> tuple[int, int]:
    """How many there are, and in the largest tensor."""
    sizes = [*map(math.prod, shapes)]
    return sum(sizes), max(sizes, default=0)


def _words(axes: Sequence[Axis]) -> int:
    """How often a sweep asks for a tensor: once for every word on its axes."""
    return len({word for axis in axes for word in words_of(axis)})


def _bytes(model: Checkpoint, name: str) -> int:
    return math.prod(model.shapes[name]) * model.dtypes[name].itemsize if name in model else 0


def bytes_of(model: Checkpoint) -> int:
    """Bytes of a model's tensors, as they are stored."""
    return sum(_bytes(model, name) for name in model)


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


def _of_method(session: Session, matcher: Any, numbers: int) -> dict[str, int]:
    """What the method says it holds beyond the models and similarities."""
    options = session.options
    own = matcher.memory(len(session.named), numbers, options) if hasattr(matcher, "memory") else {}
    own |= {"sums": each * numbers} if (each := getattr(matcher, "BYTES_A_PARAMETER", 0)) else {}
    if getattr(options, "effort", "") == "high":
        soft = 4 * sum(size**2 for size in session.fitted.words.values())
        own |= {"a soft start": soft} if soft <= max(getattr(options, "memory", 0) or 0, SOFT_MEMORY) else {}
    return own


def _kept(session: Session) -> int:
    """Bytes of similarities that stay between solves."""
    size = wide(session.named, list(session.fitted.tensors)).itemsize
    sizes = session.fitted.words.values()
    asked = getattr(session.options, "memory", None)
    if asked is None:
        asked = KEEP + size * max(sizes, default=0) ** 2
        if session.most is not None:  # the rest is for tensors, which every product needs
            asked = min(asked, session.most // 8)
    return min(asked, sum(size * each**2 for each in sizes))


def _written(session: Session, output: Output) -> int:
    """Bytes of the weights as they are written, with an order of the units beside what was aligned."""
    model, dtypes = session.named[-1 if session.command == "align" else 0], output.dtype
    weights = sum(
        math.prod(shape) * (dtypes if dtypes and dtype.is_floating_point else dtype).itemsize
        for shape, dtype in ((shape, model.dtypes[name]) for name, shape in model.shapes.items())
    )
    return weights + 8 * sum(session.fitted.words.values()) * (session.command == "align")


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
