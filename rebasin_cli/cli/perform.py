"""An operation performed in this process, and what it found on the screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from ..errors import Elsewhere, RebasinError
from ..registry.operations import Operation
from ..registry.options import PLAIN, WRITES
from ..registry.results import Result
from ..runtime.launchers import by_torchrun, is_first
from ..runtime.text import many
from . import reports
from .screen import put, result, screen

if TYPE_CHECKING:  # which import torch
    from ..runtime.ranks import Ranks
    from ..session.listener import Listener


def inspected(done: Any) -> None:
    """What a file holds: about it, its metadata, its tensors."""
    seen = done.values()
    guess = seen["architecture"]
    dtypes = ", ".join(f"{count} × {dtype}" for dtype, count in seen["dtypes"].items())
    tensors = many(len(seen["tensors"]), "tensor")
    put(f"{seen['file']}: {seen['format']}, {tensors}, {seen['parameters']:,} numbers")
    put(f"dtypes        {dtypes}")
    for note in seen["notes"]:
        put(f"note          {note}")
    if guess["spec"]:
        words = f"{many(guess['permutations'], 'permutation')}, 10^{guess['log10_symmetries']} symmetries"
        put(f"architecture  {guess['spec']} ({guess['description']}): {words}")
    else:
        put(f"architecture  {guess['reason']}")
    for name, digest, of in (
        ("sha256", seen["sha256"], "of all values, whatever file holds them"),
        ("file sha256", seen["file_sha256"], "of the bytes, as a recipe pins them"),
    ):
        if digest:
            put(f"{name:<12}  {digest}, {of}")
    for name, value in seen["metadata"].items():
        put(f"{name:<28} {value}")
    typer.echo()
    put(
        *(
            f"{name:<48} {tensor['dtype']:<9} {'×'.join(map(str, tensor['shape'])) or 'scalar'}"
            for name, tensor in seen["tensors"].items()
        )
    )


def listed(done: Any) -> None:
    """What there is to name, with the options of methods where they were asked for."""
    from ..commands.list import option_lines

    for name, things in done.kinds.items():
        put(f"{name}:")
        for thing in things:
            put(f"  {thing['name']:<24} {thing['summary']}")
            if done.verbose and "broken" in thing:
                put(f"      {thing['broken']}")
            for line in option_lines(thing.get("options", ())) if done.verbose else ():
                put(f"      {line}")


def experiments(done: Any) -> None:
    """Every experiment in a line."""
    for each in done.experiments:
        put(f"{each['name']:<20} {each['title']} ({each['paper']})")


def experiment(done: Any) -> None:
    """What one does, and its parameters."""
    put(f"{done.title} ({done.paper})")
    put(done.about)
    put("minutes: " + ", ".join(f"{scale} {minutes:g}" for scale, minutes in done.minutes.items()))
    for row in done.parameters:
        choices = f" ({', '.join(row['choices'])})" if row.get("choices") else ""
        put(f"  {row['name']} {row['type']}: {row['help']}{choices}")
        put(f"      small {_text(row['small'])}; full {_text(row['full'])}")


def ran(done: Any) -> None:
    """The claims of what was run, or the plan."""
    for each in done.experiments:
        _made(each) if "claims" in each else _planned(each)


def toured(done: Any) -> None:
    """What was measured, where it is written, and what to try next."""
    reports.whole(done.measured.report)
    typer.echo()
    put(f"The report is in {done.report}: open {done.report / 'report.html'}")
    put("Try next:", *(f"  {command}" for command in done.next))


def _planned(plan: Mapping[str, Any]) -> None:
    put(f"── {plan['experiment']}: about {plan['minutes']:g} minutes")
    for name, value in plan["parameters"].items():
        put(f"  {name:<18} {_text(value)}")


def _made(made: Mapping[str, Any]) -> None:
    put(f"── {made['name']}: {made['title']}")
    for claim in made["claims"]:
        between = claim["interval"]
        sure = f" ({between[0]:.4g} … {between[1]:.4g})" if between and between[0] != between[1] else ""
        number = "–" if claim["estimate"] is None else f"{claim['estimate']:.4g}{sure}"
        put(f"  {claim['verdict']:<10} {claim['source']}: {claim['says']}. {claim['about']}: {number}")
    for path in made["written"]:
        put(f"  written    {path}")


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def specs(done: Any) -> None:
    """Every built-in spec in a line."""
    for each in done.specs:
        also = f"  also: {', '.join(each['names'])}" if each["names"] else ""
        put(f"{each['name']:<22} {each['description']}{also}")


def spec_shown(done: Any) -> None:
    """A spec, a tensor a line."""
    for line in done.lines:
        put(line)


def spec_proven(done: Any) -> None:
    """The proof, and each word by itself."""
    result({name: value for name, value in done.values().items() if name != "differences"})
    put("largest difference when one word alone is permuted, relative to the outputs:")
    for word, difference in done.differences.items():
        put(f"  {word:<32} {difference:.1e}")


def spec_written(done: Any) -> None:
    """The text of a spec, or what was written."""
    if done.written:
        result(done.values())
    else:
        typer.echo(done.text, nl=False)


def spec_explained(done: Any) -> None:
    """Why each axis stays, or where another spec differs."""
    from ..inference.text import reasons

    result({name: done.told[name] for name in ("spec", "inferred", "outputs") if name in done.told})
    typer.echo()
    told = done.told
    shown = reasons.comparison(told) if done.compared else reasons.lines(told, tensors=done.tensors)
    for line in shown:
        put(line)


SCREEN = ("quiet", "verbose")  # what a process may tell as it likes
# Results with a way of their own to be shown to a person, by their file and class; what stands beside JSON.
OWN_WAYS: dict[str, Callable[..., None]] = {
    "inspect.InspectResult": inspected,
    "list.ListResult": listed,
    "lab.ListResult": experiments,
    "lab.ShowResult": experiment,
    "lab.RunResult": ran,
    "spec.ListResult": specs,
    "spec.ShowResult": spec_shown,
    "spec.CheckResult": lambda done: put(done.text),
    "spec.ProveResult": spec_proven,
    "spec.InferResult": spec_written,
    "spec.ExplainResult": spec_explained,
    "spec.ImportResult": spec_written,
    "demo.DemoResult": toured,
    "gate.GateResult": lambda done: reports.brief(done.report),
}
BESIDE_JSON: dict[str, Callable[..., None]] = dict.fromkeys(
    ("barrier.BarrierResult", "gate.GateResult"), lambda done: reports.beside_json(done.report)
)


def perform(operation: Operation, asked: Any, command: str) -> Result | None:
    """What the operation finds; it tells on the terminal what it does. Reports name `command` as theirs.

    Of several processes only the first has a result. They share the work of an operation that can be shared;
    what only looks each does by itself, and the first alone writes what it was asked to write; all else the
    first one does while the others wait.
    """
    quiet, verbose = getattr(asked, "quiet", False), getattr(asked, "verbose", False)
    if operation.together or (by_torchrun() and not operation.only_looks):
        return _together(operation, asked, command, quiet=quiet, verbose=verbose)
    if not (first := is_first()):
        written = {one.name: one.default for one in operation.options if one.role == WRITES}
        asked = replace(asked, **written)
    with screen(quiet or not first, verbose, command) as listener:
        done: Result = operation.run(asked, listener)
    return done if first else None


def by_first(operation: Operation, given: Mapping[str, Any], step: Callable[..., None]) -> None:
    """`step(given)` by the first of torchrun's processes, while the others wait."""
    if not by_torchrun():
        step(given)
        return
    from ..runtime.devices import from_environment

    with from_environment() as ranks:
        _check_asked(ranks, operation, given)
        ranks.alone(step, given)


def _together(operation: Operation, asked: Any, command: str, *, quiet: bool, verbose: bool) -> Result | None:
    from ..runtime import devices
    from ..runtime.devices import from_environment

    device = devices.choose(asked.device) if operation.together and hasattr(asked, "device") else "cpu"
    with from_environment(device) as ranks:
        first = ranks.rank == 0
        _check_asked(ranks, operation, vars(asked))
        with screen(quiet or not first, verbose, command) as listener:
            if operation.together:
                done: Result = operation.run(asked, listener, ranks)
                missed = _missed(done)
            else:
                listener.say(f"rebasin {operation.name} is not shared: the first of {ranks.size} does it")
                done, missed = _by_first(operation, asked, listener, ranks)
    if first or missed is None:
        return done if first else None
    raise Elsewhere(*missed)


def _by_first(
    operation: Operation, asked: Any, listener: Listener, ranks: Ranks
) -> tuple[Any, tuple[str, int] | None]:
    """What the first rank finds, None on others; and what of it all end with."""
    found: list[Result] = []

    def run() -> tuple[str, int] | None:
        found.append(operation.run(asked, listener))
        return _missed(found[0])

    missed = ranks.alone(run)
    return (found[0] if found else None), missed


def _missed(done: Result) -> tuple[str, int] | None:
    """What a result ends its command with, and the exit code; None where all is well."""
    try:
        done.end()
    except RebasinError as missed:
        return missed.message, missed.exit_code
    return None if done.yes else ("the answer is no", 1)


def _check_asked(ranks: Ranks, operation: Operation, values: Mapping[str, Any]) -> None:
    """Raise UsageError where ranks were asked for other things; where their files are may differ."""
    ranks.check_same({"the command": operation.name})
    facts: dict[str, Any] = {}
    for one in operation.options if ranks.size > 1 else ():
        value = values[one.within].get(one.name) if one.within in values else values.get(one.parameter)
        if one.brings == PLAIN or (one.type is bool and one.name not in SCREEN):
            facts[one.flag or one.name] = repr(value)
        elif one.many:
            facts[f"the number of {one.flag or one.name}"] = len(value or ())
    ranks.check_same(facts)


def show(done: Result, asked: Any) -> None:
    """What it found, on stdout: as JSON, or in its own way, or a line a fact."""
    if getattr(asked, "json", False):
        typer.echo(done.json(), nl=False)
        if (beside := BESIDE_JSON.get(_name(done))) and not getattr(asked, "quiet", False):
            beside(done)
    else:
        show_on_screen(done)


def show_on_screen(done: Result) -> None:
    """The same for a person."""
    if (told := done.document()) is not None:
        from ..reports.formats import terminal

        terminal.show(told)
        return
    if (own := OWN_WAYS.get(_name(done))) is not None:
        own(done)
    else:
        result(done.shown())


def _name(done: Result) -> str:
    return f"{type(done).__module__.rpartition('.')[2]}.{type(done).__name__}"
