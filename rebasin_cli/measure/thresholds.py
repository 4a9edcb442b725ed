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

from ..errors import UsageError, near
from ..registry import options


@dataclass(frozen=True)
class Figure:
    """What a gate may ask for: as a gate names it, as a sentence does, and what else it may be called."""

    name: str
    sentence: str
    unit: str = ""  # accuracies are 0–1
    larger: bool = False  # is better
    also: tuple[str, ...] = ()


# By the names of the form with colons; words of one figure may stand in any order.
FIGURES = {
    "chord": Figure(
        "barrier",
        "loss barrier (chord)",
        " nats",
        also=("barrier chord", "loss barrier", "loss chord", "loss barrier chord"),
    ),
    "midpoint": Figure(
        "barrier midpoint", "loss barrier (midpoint)", " nats", also=("loss barrier midpoint",)
    ),
    "loss": Figure("loss", "loss at λ=½", " nats"),
    "accuracy": Figure("accuracy", "accuracy at λ=½", larger=True),
    "accuracy_drop": Figure("accuracy drop", "the fall of accuracy at λ=½ below the mean of the endpoints"),
    "accuracy_chord": Figure(
        "accuracy barrier", "accuracy barrier (chord)", also=("accuracy chord", "accuracy barrier chord")
    ),
    "accuracy_midpoint": Figure("accuracy barrier midpoint", "accuracy barrier (midpoint)"),
}
SHIPPED = "shipped"  # the row that `merge` would write, whatever a search makes it
SPLITS = ("test", "train")

# Limits that have, or had, an option of their own: the gates that they are.
OPTIONS = {
    "max_barrier": "test barrier <= {}",
    "min_accuracy": "test accuracy >= {}",
    "max_accuracy_drop": "test accuracy drop <= {}",
}
GONE = ("min_accuracy", "max_accuracy_drop")

_DEFINITIONS = {
    frozenset(words.split()): key
    for key, figure in FIGURES.items()
    for words in (key, figure.name, *figure.also)
}
_WORDS = {word: word for words in _DEFINITIONS for word in words}
LANGUAGE = (*SPLITS, *_WORDS)
_WORDS |= {"(chord)": "chord", "(midpoint)": "midpoint"}  # as a report writes them
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

    @property
    def figure(self) -> Figure:
        return FIGURES[self.definition]

    def asks(self, limit: float) -> bool:
        """Whether its text asks for this limit, of an option's by the digits that it shows."""
        return self.limit == (float(f"{limit:g}") if self.text.startswith("--") else limit)

    @property
    def parted(self) -> str:
        """The same between colons, where nothing can be read in two ways."""
        sign = ">=" if self.figure.larger else "<="
        return f"{self.row}:{self.split}:{self.definition}{sign}{self.limit:.12g}"


def parse_gate(text: str) -> Threshold:
    """What a gate asks for. Raises UsageError that says what is wrong, and what there is.

    >>> parse_gate("aligned + reset test barrier <= 0.05").parted
    'aligned + reset:test:chord<=0.05'
    >>> parse_gate("accuracy drop <= 1%").parted
    'shipped:test:accuracy_drop<=0.01'
    """
    option, _, value = text.strip().partition(" ")
    if told := gone(option, value.strip()):
        raise UsageError(f"--gate {shown(text)}: {told}")
    gate = _read(text)
    check_limit(f"--gate {shown(text)}", gate.limit, gate.figure)
    return gate


def asked(texts: Iterable[str], *, max_barrier: float | None = None) -> tuple[Threshold, ...]:
    """All gates of a command line: that of --max-barrier first. Raises as `parse_gate` does."""
    first = [] if max_barrier is None else [of_option("max_barrier", max_barrier)]
    return (*first, *map(parse_gate, texts))


def of_option(key: str, limit: float) -> Threshold:
    """The gate that an option is. Raises UsageError for limits that cannot be meant."""
    gate = replace(_read(OPTIONS[key].format(0)), text=f"{_flag(key)} {limit:g}", limit=limit, words="")
    check_limit(_flag(key), gate.limit, gate.figure)
    return gate


def stored(text: str) -> Threshold:
    """The gate of a report, whatever its limit; of options that are no more, too. Raises UsageError."""
    option, _, value = text.partition(" ")
    for key, form in OPTIONS.items():
        if option == _flag(key):
            return replace(_read(form.format(value)), text=text, words="")
    return _read(text)


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


def _read(text: str) -> Threshold:
    left, sign, right = compared(text, partial(wrong, text))
    named, parts = _named(text, left)
    return Threshold(text.strip(), *named, limit_of(text, left, sign, right, FIGURES[named[2]]), parts)


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


def limit_of(text: str, left: str, sign: str, right: str, figure: Figure) -> float:
    """The number that a figure is held against. Raises UsageError for the wrong side of it, and for none."""
    wanted, better = (">=", "larger") if figure.larger else ("<=", "smaller")
    if sign != wanted:
        found = _SIGN.findall(text)[0]
        told = f"--gate {shown(text)}: {figure.sentence} is better when {better}, found {found!r}"
        raise UsageError(told, hint=f"Write '{left} {wanted} {right}'")
    return _limit(text, right, figure)


def _named(text: str, left: str) -> tuple[tuple[str, str, str], str]:
    """Row, split and definition; and the words that they were read from, where they are words."""
    parts = left.rsplit(":", 2)
    if len(parts) == 3:
        row, split, name = (" ".join(part.replace("+", " + ").split()) for part in parts)
        if not (row and split and name):
            raise wrong(text, "lacks a name beside a colon: ROW:SPLIT:FIGURE")
        definition = _DEFINITIONS.get(frozenset(_WORDS.get(word, word) for word in name.casefold().split()))
        if definition is None:
            raise wrong(text, f"unknown figure {shown(name)}", name, [*FIGURES, *_names()])
        return (row, split, definition), ""
    words = left.replace("+", " + ").split()
    if len(words) > MOST:
        raise wrong(text, f"has {len(words)} words")
    plain = [word.casefold() for word in words]
    own = [place for place, word in enumerate(plain) if word not in _WORDS and word not in SPLITS]
    others = [words[place] for place in own]
    splits = [word for word in plain if word in SPLITS]
    figures = [_WORDS[word] for word in plain if word in _WORDS]
    for word in others:
        if meant := difflib.get_close_matches(word.casefold(), LANGUAGE, n=1, cutoff=ALIKE):
            raise wrong(text, f"{shown(word)} looks like {meant[0]!r}, misspelt", meant[0], meant)
    definition = _DEFINITIONS.get(frozenset(figures)) if len({*figures}) == len(figures) else None
    if definition is None:
        told = f"{shown(' '.join(figures))} is no figure" if figures else "names no figure"
        raise wrong(text, told, " ".join(figures or others), _names())
    if len(splits) > 1:
        raise wrong(text, f"names {len(splits)} splits, {' and '.join(splits)}")
    if own and own[-1] - own[0] >= len(own):
        pieces = " ".join(words[own[0] : own[-1] + 1])
        told = f"the name of a row stands in one piece, and {pieces!r} has words of the language within"
        raise wrong(text, f"{told}; if that is its name, write {pieces}:test:{definition}")
    return (" ".join(others) or SHIPPED, splits[0] if splits else SPLITS[0], definition), " ".join(words)


def _names() -> list[str]:
    return [figure.name for figure in FIGURES.values()]


def wrong(
    text: str,
    told: str,
    name: str = "",
    known: Sequence[str] = (),
    *,
    rows: Sequence[str] = (),
    splits: Sequence[str] = SPLITS,
) -> UsageError:
    """The error for a gate that cannot be held: what is wrong, all that there is, the nearest of `known`."""
    hint = near(name, known, most=3) if name else ""
    if not hint.startswith("did you mean"):
        hint = "write [ROW] [SPLIT] FIGURE <= X, such as 'test barrier <= 0.05'"
    return UsageError(
        f"--gate {shown(text)}: {told}", problems=vocabulary(rows, splits), hint=hint[0].upper() + hint[1:]
    )


def vocabulary(rows: Sequence[str] = (), splits: Sequence[str] = SPLITS) -> list[str]:
    """What a gate may be made of, a line each; `rows` where they are known."""
    return [
        f"rows: {', '.join(rows or ['those of the report'])}; {SHIPPED} where none is named",
        f"splits: {', '.join(splits)}; {SPLITS[0]} where none is named",
        f"figures: {', '.join(_names())}",
    ]


def misread(gate: Threshold, rows: Iterable[str]) -> Iterator[UsageError]:
    """An error for a gate whose words are also the name of a row that has words of the language in it."""
    for row in rows:
        named = row.casefold().split()
        own = any(word in _WORDS or word in SPLITS for word in named)
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
    if value.endswith("%") and figure.unit:
        raise UsageError(
            f"--gate {shown(text)}: {figure.sentence} is in{figure.unit}, not in per cent",
            hint="Write a number, such as 0.05",
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
    if not figure.unit and not -1 <= limit <= 1:
        told = f"{'Accuracy' if 'accuracy' in figure.sentence else figure.sentence.capitalize()} is 0–1"
        hint = f"{told}: did you mean {limit / 100:g}?" if 1 < limit <= 100 else f"{told}."
        raise UsageError(f"{where}: the limit is {limit:g}", hint=hint)
