"""What a person sees: results on stdout, progress and remarks on stderr."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import typer

from ..errors import RebasinError
from ..runtime.text import line, many
from ..types import Quantity

# typer's base of all that is wrong with arguments: click's, or a copy of it within typer.
ClickException: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class LogLines(logging.Handler):
    """What the library logs, for a person: a download begins."""

    def __init__(self, say: Callable[[str], None]):
        super().__init__(logging.INFO)
        self.say = say
        self.said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if (text := record.getMessage()) not in self.said:  # a network and its copies may say the same
            self.said.add(text)
            self.say(text)


class Screen:
    """A bar on a terminal; elsewhere a line now and then, or for every step with `verbose`."""

    EVERY = 10.0  # seconds between lines where there is no terminal

    def __init__(self, *, quiet: bool = False, verbose: bool = False):
        self.quiet, self.verbose = quiet, verbose
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._spoken = time.monotonic()

    def say(self, text: str) -> None:
        if self.quiet:
            return
        if self._bars is not None:
            self._bars.console.print(line(text), highlight=False, markup=False)
        else:
            print(line(text), file=sys.stderr, flush=True)

    def step(self, task: str, done: int, total: int | None, detail: str) -> None:
        if self.quiet:
            return
        if self.verbose or not sys.stderr.isatty():
            now = time.monotonic()
            if self.verbose or now - self._spoken > self.EVERY:
                self._spoken = now
                of = f"/{total}" if total else ""
                print(line(f"{task} {done}{of}  {detail}".rstrip()), file=sys.stderr, flush=True)
            return
        detail = line(detail)
        if self._bars is None:
            self._start()
        if task not in self._tasks:
            self._tasks[task] = self._bars.add_task(task, total=total, detail=detail)
        self._bars.update(self._tasks[task], completed=done, total=total, detail=detail)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._bars.start()

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars, self._tasks = None, {}


@contextmanager
def screen(quiet: bool = False, verbose: bool = False, command: str = "") -> Iterator[Any]:
    """A `Listener` on the terminal; the bars are gone however the command ends.

    An error tells every single problem with `verbose`, else what is alike in one line.
    What a network or a loader of the user's prints meanwhile goes to stderr: stdout is the result's.
    """
    from ..runtime.memory import collect
    from ..session.listener import Listener

    collect()
    shown = Screen(quiet=quiet, verbose=verbose)
    log, lines = logging.getLogger("rebasin"), LogLines(shown.say)
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        with redirect_stdout(sys.stderr):
            yield Listener(shown.say, shown.step, command)
    except RebasinError as error:
        error.whole = error.whole or verbose
        raise
    finally:
        log.removeHandler(lines)
        log.setLevel(level)
        shown.close()


def result(values: Mapping[str, Any]) -> None:
    """The outcome of a command on stdout, a line a fact."""
    for name, value in values.items():
        if (told := _line(name, value)) is not None:
            put(f"{name.replace('_', ' '):<20} {told}")


def put(*texts: str) -> None:
    """Lines on stdout, for a person: nothing in one can begin another one, or command a terminal."""
    if texts:
        typer.echo("\n".join(map(line, texts)))


def numbers(value: Any) -> Any:
    """The same with its NaN and infinities as numbers again."""
    if isinstance(value, Mapping):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value


def _scored(score: Mapping[str, Any]) -> str:
    metrics = (score.get("measured") or {}).get("metrics", [{"name": "accuracy"}])
    figures = ((name, score.get(name)) for name in ("loss", *(Quantity(m["name"]).key for m in metrics)))
    return ", ".join(f"{name} {value:.4f}" for name, value in figures if isinstance(value, float))


def _line(name: str, value: Any) -> str | None:
    if value is None or value == {}:
        return None
    if name.endswith("_bytes"):
        return f"{value / 1e6:,.0f} MB" if value >= 10e6 else f"{value / 1e3:,.0f} kB"
    if (tell := TOLD.get(name)) is not None:
        return tell(value)
    if name == "spec" and isinstance(value, Mapping):
        return (
            f"{value['name']}, {many(value['words'], 'permutation')}, "
            f"10^{value['log10_symmetries']:.1f} symmetries"
        )
    if name == "gates" and isinstance(value, list):
        from ..reports.verdicts import mark, of_values

        return "; ".join(f"{mark(gate)}  {gate.name}" for gate in of_values(value))
    if isinstance(value, Mapping):
        numbers = {key: f"{item:.6g}" for key, item in value.items() if isinstance(item, float)}
        return ", ".join(f"{key}: {item}" for key, item in {**value, **numbers}.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:,.1f} minutes"


def _work(number: float) -> str:
    from ..matchers.polish.length import multiplications

    return multiplications(number)


def _candidate(one: Mapping[str, Any]) -> str:
    """What `auto` will try, for how much at most, and why."""
    most = [
        f", {told(one[name])} at most"
        for name, told in (("multiplications_at_most", _work), ("seconds_at_most", _duration))
        if name in one
    ]
    return f"{one['method']}{''.join(most)} ({one['why']})"


def _sizes(parts: Mapping[str, int]) -> dict[str, str]:
    """Each in the unit of their sum, rounded so that what is shown adds up to what is shown of that."""
    unit, name = (1e6, "MB") if sum(parts.values()) >= 10e6 else (1e3, "kB")
    shown, total = {}, 0
    for part, size in parts.items():
        before, total = round(total / unit), total + size
        shown[part] = f"{round(total / unit) - before:,} {name}"
    return shown


def _proof(proof: Mapping[str, Any]) -> str:
    from ..reports.accounts import outputs_in_words

    if proof["status"] == "proven":
        on = f" on {proof['network']}" if proof.get("made_before") else ""
        on = f" on {proof['network']} (give yours with --net)" if proof.get("assumed") else on
        precision = proof.get("precision", "float64")
        told = f"proven{on}: outputs differ by {proof['largest_difference']:.1e} relative, in {precision}"
    else:
        told = f"{proof['status']}: {proof['reason']}"
    return f"{told}; {outputs}" if (outputs := outputs_in_words(proof)) else told


def _match(match: Mapping[str, Any]) -> str:
    from ..reports.accounts import polished_in_words, tried_in_words

    if "sweeps" not in match:
        return str(match["method"])
    if "chosen" in match:
        repair = f" + {match['repair']}" if match.get("repair", "none") != "none" else ""
        return f"{match['method']}, {match['chosen']}{repair}: {tried_in_words(match)}"
    polished = f"; polished by {polished_in_words(match['polished'])}" if "polished" in match else ""
    return _searched(match) + polished


def _searched(match: Mapping[str, Any]) -> str:
    from ..reports.accounts import rounded_in_words

    if "rounded" in match:  # the objective is a loss, negative
        start = f" from {match['init']}" if "init" in match else ""
        return (
            f"{match['method']}{start}, {many(match['sweeps'], 'step')}, {rounded_in_words(match['rounded'])}"
        )
    if "history" in match:  # the objective is a loss, negative
        start = f" from {match['init']}" if "init" in match else ""
        return (
            f"{match['method']}{start}, {many(match['sweeps'], 'step')}, held-out loss "
            f"{-match['objective_before']:.6g} → {-match['objective_after']:.6g}"
        )
    end = "" if match["converged"] else ", stopped before it had converged"
    mix = f" with mix {match['mixed']['mix']:g}" if "mixed" in match else ""
    text = (
        f"{match['method']}{mix}, {many(match['sweeps'], 'sweep')}, "
        f"objective {match['objective_before']:.6g} → {match['objective_after']:.6g}{end}"
    )
    if match.get("gap") is None:
        return text
    what = "element of the groups" if match.get("bounded") else "permutation"
    if match["gap"] < 1e-6:
        return f"{text}; no {what} is better"
    return f"{text}; no {what} exceeds {match['upper_bound']:.6g} ({match['gap']:.2%} more)"


def _curve(curve: Mapping[str, Any] | str) -> str:
    if isinstance(curve, str):  # its file
        return curve
    rounds = [
        f"round {number}: loss {its['loss']:.6g}, {many(its['moved'], 'unit')} moved"
        for number, its in enumerate(curve.get("rounds", ()), start=2)
    ]
    told = _line("", {key: value for key, value in curve.items() if key != "rounds"}) or ""
    return "; ".join([told, *rounds])


# Facts with a way of their own to be told, by their names, whichever command's they are.
TOLD: dict[str, Callable[[Any], str | None]] = {
    "scores": lambda all: "; ".join(f"{s['data']} {s['split']}, {_scored(s)}" for s in all) or None,
    "search_parts": lambda parts: ", ".join(f"{part} {size}" for part, size in _sizes(parts).items()),
    "times": lambda times: ", ".join(f"{word} {_duration(seconds)}" for word, seconds in times.items()),
    "proof": _proof,
    "match": _match,
    "curve": _curve,
    "tries": lambda all: ", ".join(f"{t['model']} {t['loss']:.4f}{' kept' * t['kept']}" for t in all),
    "budget_multiplications": _work,
    "budget_seconds": _duration,
    "candidates": lambda all: "; ".join(map(_candidate, all)),
    "assignment_sizes": lambda sizes: ", ".join(f"{count} of {size}" for size, count in sizes.items()),
}
