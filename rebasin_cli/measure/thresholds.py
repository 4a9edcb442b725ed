"""The language of gates, `[ROW] [SPLIT] FIGURE <=|>= X`, read before anything is measured.

    test barrier <= 0.05                      of the row that would be shipped
    aligned + reset train accuracy >= 90%     of a row, on training data
    aligned + reset:train:accuracy>=0.9       the same; between colons a row may be called anything

Words stand in any order, the name of a row in one piece. Where no row is named it is the one that would be
shipped, where no split is, `test`. A barrier is the chord's unless it says `midpoint`. `parse_gate` reads
what people type, `stored` what reports hold, of options that are no more, too.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

from ..errors import UsageError, near
from ..registry import options
from ..reports import Report
from ..reports.format import FLIPS
from ..types import ACCURACY, CROSS_ENTROPY, Quantity


@dataclass(frozen=True)
class Figure:
    """What a gate may ask for: as a gate names it, as a sentence does, and what else it may be called.

    It is of the loss, or of the metric of this `key`: its `value`, its `drop` below the endpoints, or its
    barrier (`chord`, `midpoint`), the largest drop of a class (`class_drop`), or the
    share of negative flips (`flips`). `larger` is better; `needs` is said where it was not measured.
    """

    name: str
    sentence: str
    unit: str = ""
    larger: bool = False
    share: bool = False  # it lies in 0–1, and a limit may be in per cent
    key: str = "loss"
    what: str = "value"
    also: tuple[str, ...] = ()
    needs: str = ""


# How barriers may be named, after the name of their metric; of the loss that may be left out.
BARRIERS = {"chord": ("barrier", "barrier chord", "chord"), "midpoint": ("barrier midpoint",)}


def _barriers(name: str, of: dict[str, Any], *before: str) -> dict[str, Figure]:
    found = {}
    for what, forms in BARRIERS.items():
        first, *also = [f"{each}{form}" for form in forms for each in before]
        key = what if of["key"] == "loss" else f"{of['key']}_{what}"
        found[key] = Figure(first, f"{name} barrier ({what})", what=what, also=tuple(also), **of)
    return found


def figures_of(loss: Quantity, metrics: Sequence[Quantity]) -> dict[str, Figure]:
    """All figures of a report by the names of the form with colons; words may stand in any order."""
    unit = loss.in_unit
    found = _barriers("loss", {"unit": unit, "key": "loss"}, "", "loss ")
    found["loss"] = Figure("loss", "loss at λ=½", unit)
    for metric in metrics:
        key, name, larger = metric.key, metric.name, metric.larger_is_better
        below = "fall of {} at λ=½ below" if larger else "rise of {} at λ=½ above"
        of: dict[str, Any] = {"unit": metric.in_unit, "share": metric.is_share, "key": key}
        worse, other = ("drop", "rise")[:: 1 if larger else -1]
        also = () if larger else (f"{key} {other}",)
        lost = f"the {below.format(name)} the mean of the endpoints"
        found[key] = Figure(key, f"{name} at λ=½", larger=larger, **of)
        found[f"{key}_drop"] = Figure(f"{key} {worse}", lost, what="drop", also=also, **of)
        found |= _barriers(name, of, f"{key} ")
    if ACCURACY in metrics:
        found["class_accuracy_drop"] = Figure(
            "class accuracy drop",
            "the largest fall of a class's accuracy at λ=½ below the mean of the endpoints",
            share=True,
            key=ACCURACY.key,
            what="class_drop",
        )
    if any(metric.is_share for metric in metrics):  # 0 or 1 of each sample, as far as can be said before
        found["negative_flips"] = Figure(
            FLIPS, f"{FLIPPED} at λ=½", what="flips", also=("forgotten",), **OF_FLIPS
        )
    return found


FLIPPED = "the share of samples right in every endpoint and wrong"
RIGHT = "a --metric that gives 0 or 1 for every sample, in a tensor (N,)"
OF_FLIPS: dict[str, Any] = {"share": True, "key": FLIPS, "needs": f"it needs {RIGHT}"}


class Language:
    """What gates are written in: the figures of a loss and of metrics, and the words that name them."""

    def __init__(self, loss: Quantity = CROSS_ENTROPY, metrics: Sequence[Quantity] = (ACCURACY,)):
        self.figures = figures_of(loss, metrics)
        self.definitions = {
            frozenset(words.split()): key
            for key, figure in self.figures.items()
            for words in (key, figure.name, *figure.also)
        }
        self.words = {word: word for words in self.definitions for word in words}
        self.all = (*SPLITS, *self.words)
        self.metrics = tuple(metrics)
        self.words |= {"(chord)": "chord", "(midpoint)": "midpoint"}  # as a report writes them

    @classmethod
    def of(cls, report: Report) -> Language:
        return cls(report.loss, report.metrics)

    @property
    def names(self) -> list[str]:
        return [figure.name for figure in self.figures.values()]


SHIPPED = "shipped"  # the row that `merge` would write, whatever a search makes it
SPLITS = ("test", "train")

# Limits that have, or had, an option of their own: the gates that they are.
OPTIONS = {
    "max_barrier": "test barrier <= {}",
    "min_accuracy": "test accuracy >= {}",
    "max_accuracy_drop": "test accuracy drop <= {}",
}
GONE = ("min_accuracy", "max_accuracy_drop")

PLAIN = Language()  # of cross-entropy and accuracy
_SIGN = re.compile(r"<=|>=|=<|=>|==|[<>=≤≥≦≧⩽⩾]")
_MEANT = dict.fromkeys(("=<", "≤", "≦", "⩽"), "<=") | dict.fromkeys(("=>", "≥", "≧", "⩾"), ">=")
_TURNED = {"<=": ">=", ">=": "<=", "<": ">", ">": "<"}
ALIKE = 0.8  # from where on a word is taken for one of the language that is misspelt
LONG = 200  # characters of a gate that are shown
MOST = 40  # words that one may have


@dataclass(frozen=True)
class Threshold:
    """A gate before it is measured: which figure, and how small (accuracy: how large) it has to be.

    `words` is what stands before the limit, "" where colons part it.
    """

    text: str
    row: str
    split: str
    definition: str
    limit: float
    words: str = ""
    figure: Figure = Figure("loss", "loss at λ=½")

    def asks(self, limit: float) -> bool:
        """Whether its text asks for this limit, of an option's by the digits that it shows."""
        return self.limit == (float(f"{limit:g}") if self.text.startswith("--") else limit)

    @property
    def parted(self) -> str:
        """The same between colons, where nothing can be read in two ways."""
        sign = ">=" if self.figure.larger else "<="
        return f"{self.row}:{self.split}:{self.definition}{sign}{self.limit:.12g}"


def parse_gate(text: str, language: Language = PLAIN) -> Threshold:
    """What a gate asks for, of these figures. Raises UsageError that says what is wrong, and what there is.

    >>> parse_gate("aligned + reset test barrier <= 0.05").parted
    'aligned + reset:test:chord<=0.05'
    >>> parse_gate("accuracy drop <= 1%").parted
    'shipped:test:accuracy_drop<=0.01'
    """
    option, _, value = text.strip().partition(" ")
    if told := gone(option, value.strip()):
        raise UsageError(f"--gate {shown(text)}: {told}")
    gate = _read(text, language)
    check_limit(f"--gate {shown(text)}", gate.limit, gate.figure)
    return gate


def asked(
    texts: Iterable[str], *, max_barrier: float | None = None, language: Language = PLAIN
) -> tuple[Threshold, ...]:
    """All gates of a command line: that of --max-barrier first. Raises as `parse_gate` does."""
    first = [] if max_barrier is None else [of_option("max_barrier", max_barrier, language)]
    return (*first, *(parse_gate(text, language) for text in texts))


def of_option(key: str, limit: float, language: Language = PLAIN) -> Threshold:
    """The gate that an option is. Raises UsageError for limits that cannot be meant."""
    gate = replace(
        _read(OPTIONS[key].format(0), language), text=f"{_flag(key)} {limit:g}", limit=limit, words=""
    )
    check_limit(_flag(key), gate.limit, gate.figure)
    return gate


def stored(text: str, language: Language = PLAIN) -> Threshold:
    """The gate of a report, whatever its limit; of options that are no more, too. Raises UsageError."""
    option, _, value = text.partition(" ")
    for key, form in OPTIONS.items():
        if option == _flag(key):
            return replace(_read(form.format(value), language), text=text, words="")
    return _read(text, language)


def instead(key: str, value: object = None) -> str | None:
    """The gate to write for an option that is no more, by its key in recipes; None for any other key."""
    known = isinstance(value, int | float | str) and value != ""
    return OPTIONS[key].format(value if known else "X") if key in GONE else None


def gone(flag: str, value: str = "") -> str | None:
    """What to type for an option that is no more; None for any other flag."""
    gate = instead(flag.removeprefix("--").replace("-", "_"), value)
    return f"{flag} is a gate now: --gate {gate!r}" if gate and flag.startswith("--") else None


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _read(text: str, language: Language) -> Threshold:
    left, sign, right = compared(text, partial(wrong, text, language=language))
    named, parts = _named(text, left, language)
    figure = language.figures[named[2]]
    return Threshold(text.strip(), *named, limit_of(text, left, sign, right, figure), parts, figure)


def compared(text: str, wrong: Callable[[str], UsageError]) -> tuple[str, str, str]:
    """What is compared, the sign, and the limit, wherever it stands; raises what is `wrong` with the text."""
    signs = _SIGN.findall(text)
    if not signs:
        raise wrong("has no comparison, <= or >=")
    if len(signs) > 1:
        raise wrong(f"has {len(signs)} comparisons, {' and '.join(signs[:3])}: give a gate for each")
    left, right = (part.strip() for part in text.split(signs[0]))
    sign = _MEANT.get(signs[0], signs[0])
    if _is_value(left) and not _is_value(right):
        left, right, sign = right, left, _TURNED.get(sign, sign)
    if not left:
        raise wrong("names no figure")
    return left, sign, right


def joined(text: str, metrics: Iterable[Quantity]) -> str:
    """The same with each metric's name, of several words too, as its key, which is one word.

    >>> joined("test absolute  error <= 1", [Quantity("absolute error")])
    'test absolute_error <= 1'
    """
    text = " ".join(text.split())
    for metric in sorted(metrics, key=lambda metric: -len(metric.name)):
        name = re.escape(" ".join(metric.name.split()))
        text = re.sub(rf"(?<![\w-]){name}(?![\w-])", metric.key, text, flags=re.IGNORECASE)
    return text


def limit_of(text: str, left: str, sign: str, right: str, figure: Figure) -> float:
    """The number that a figure is held against. Raises UsageError for the wrong side of it, and for none."""
    wanted, better = (">=", "larger") if figure.larger else ("<=", "smaller")
    if sign != wanted:
        found = _SIGN.findall(text)[0]
        told = f"--gate {shown(text)}: {figure.sentence} is better when {better}, found {found!r}"
        raise UsageError(told, hint=f"Write '{left} {wanted} {right}'")
    return _limit(text, right, figure)


def _named(text: str, left: str, language: Language) -> tuple[tuple[str, str, str], str]:
    """Row, split and definition; and the words that they were read from, where they are words."""
    fails = partial(wrong, text, language=language)
    left = joined(left, language.metrics)
    parts = left.rsplit(":", 2)
    if len(parts) == 3:
        row, split, name = (" ".join(part.replace("+", " + ").split()) for part in parts)
        if not (row and split and name):
            raise fails("lacks a name beside a colon: ROW:SPLIT:FIGURE")
        said = frozenset(language.words.get(word, word) for word in name.casefold().split())
        definition = language.definitions.get(said)
        if definition is None:
            raise fails(f"unknown figure {shown(name)}", name, [*language.figures, *language.names])
        return (row, split, definition), ""
    words = left.replace("+", " + ").split()
    if len(words) > MOST:
        raise fails(f"has {len(words)} words")
    plain = [word.casefold() for word in words]
    own = [place for place, word in enumerate(plain) if word not in language.words and word not in SPLITS]
    others = [words[place] for place in own]
    splits = [word for word in plain if word in SPLITS]
    figures = [language.words[word] for word in plain if word in language.words]
    for word in others:
        if meant := difflib.get_close_matches(word.casefold(), language.all, n=1, cutoff=ALIKE):
            raise fails(f"{shown(word)} looks like {meant[0]!r}, misspelt", meant[0], meant)
    definition = language.definitions.get(frozenset(figures)) if len({*figures}) == len(figures) else None
    if definition is None:
        told = f"{shown(' '.join(figures))} is no figure" if figures else "names no figure"
        raise fails(told, " ".join(figures or others), language.names)
    if len(splits) > 1:
        raise fails(f"names {len(splits)} splits, {' and '.join(splits)}")
    if own and own[-1] - own[0] >= len(own):
        pieces = " ".join(words[own[0] : own[-1] + 1])
        told = f"the name of a row stands in one piece, and {pieces!r} has words of the language within"
        raise fails(f"{told}; if that is its name, write {pieces}:test:{definition}")
    return (" ".join(others) or SHIPPED, splits[0] if splits else SPLITS[0], definition), " ".join(words)


def wrong(
    text: str,
    told: str,
    name: str = "",
    known: Sequence[str] = (),
    *,
    rows: Sequence[str] = (),
    splits: Sequence[str] = SPLITS,
    language: Language = PLAIN,
) -> UsageError:
    """The error for a gate that cannot be held: what is wrong, all that there is, the nearest of `known`."""
    hint = near(name, known, most=3) if name else ""
    if not hint.startswith("did you mean"):
        hint = "write [ROW] [SPLIT] FIGURE <= X, such as 'test barrier <= 0.05'"
    return UsageError(
        f"--gate {shown(text)}: {told}",
        problems=vocabulary(rows, splits, language),
        hint=hint[0].upper() + hint[1:],
    )


def vocabulary(
    rows: Sequence[str] = (), splits: Sequence[str] = SPLITS, language: Language = PLAIN
) -> list[str]:
    """What a gate may be made of, a line each; `rows` where they are known."""
    return [
        f"rows: {', '.join(rows or ['those of the report'])}; {SHIPPED} where none is named",
        f"splits: {', '.join(splits)}; {SPLITS[0]} where none is named",
        f"figures: {', '.join(language.names)}",
    ]


def misread(gate: Threshold, rows: Iterable[str], language: Language = PLAIN) -> Iterator[UsageError]:
    """An error for a gate whose words are also the name of a row that has words of the language in it."""
    for row in rows:
        named = row.casefold().split()
        own = any(word in language.words or word in SPLITS for word in named)
        if own and f" {' '.join(named)} " in f" {gate.words.casefold()} ":
            other = replace(gate, row=row).parted
            told = f"--gate {shown(gate.text)}: there is a row {row!r}, which its words name as well"
            yield UsageError(told, hint=f"Write {gate.parted!r}, or such as {other!r}")


def shown(text: str) -> str:
    """A gate as it was typed, shortened where that is long."""
    return repr(text if len(text) <= LONG else text[:LONG] + "…")


def _is_value(text: str) -> bool:
    return options.is_number(text.rstrip("%"))


def _limit(text: str, value: str, figure: Figure) -> float:
    digits = value.removesuffix(figure.unit.strip()) if figure.unit else value.removesuffix("%")
    if value.endswith("%") and not figure.share and figure.unit.strip() != "%":
        told = f"in{figure.unit}, not in per cent" if figure.unit else "no share of 1"
        known = "" if figure.unit else "; or say in its file that it is a share: NAME.range = (0, 1)"
        raise UsageError(
            f"--gate {shown(text)}: {figure.sentence} is {told}",
            hint=f"Write a number, such as 0.05{known}",
        )
    try:
        limit = options.real(digits)
    except ValueError:
        told = f"{shown(value)} is not a number" if value else "lacks its number"
        raise UsageError(f"--gate {shown(text)}: {told}", hint="Write one such as 0.05") from None
    return limit if digits == value or figure.unit else float(Decimal(digits.strip()).scaleb(-2))


def check_limit(where: str, limit: float, figure: Figure) -> None:
    """Raise UsageError for a limit that cannot be meant of this figure."""
    if not math.isfinite(limit):
        raise UsageError(f"{where}: the limit is {limit}, expected a number")
    if figure.share and not -1 <= limit <= 1:
        told = f"{(figure.sentence if figure.key in ('loss', 'ece') else figure.key).capitalize()} is 0–1"
        hint = f"{told}: did you mean {limit / 100:g}?" if 1 < limit <= 100 else f"{told}."
        raise UsageError(f"{where}: the limit is {limit:g}", hint=hint)
