"""Options that go together, and a decorator that gives them to a command.

    @app.command()
    @g.shared(g.LOADING, g.NETWORK)
    def command(model: Path, **options: Any) -> None: ...

The command gets what was given under the names of these options; help shows them after its own. The options
of methods, repairs and report formats are not written here: they are read off what declares them, those of
other packages too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ..errors import RebasinError
from ..registry import Option, Registry
from ..registry.source import constant, declared
from . import _options as o

Group = dict[str, tuple[Any, Any]]  # parameter: its annotation and default
OF_METHOD, OF_FORMAT = "method_", "file_"  # how parameters begin that were read off declarations
DEFAULTS = {
    "missing_baseline": constant("rebasin_cli.session.subjects", "REFUSE"),
    "baseline_tolerance": constant("rebasin_cli.reports", "TOLERANCE"),
}
DEFAULTS |= {"device": "auto", "seed": 0, "batch_size": 500, "groups": "permutations", "bins": 15}


def _group(**hints: Any) -> Group:
    """What is not in `DEFAULTS` is False for a switch, else None."""
    return {
        name: (hint, DEFAULTS.get(name, False if get_args(hint)[0] is bool else None))
        for name, hint in hints.items()
    }


def _generated(options: Sequence[Option], *, panel: str, help: str) -> tuple[Any, Any]:
    """The annotation and default of what several declare alike: everything that one of them allows."""
    kinds = {str if option.kind == "bytes" else option.type for option in options}
    kind = kinds.pop() if len(kinds) == 1 else str
    flags, default = list(dict.fromkeys(option.flag for option in options)), None
    if kind is bool and any(option.default for option in options):
        flags = [f"{flag}/--no-{flag.removeprefix('--')}" for flag in flags]
    elif kind is bool:
        default = False
    choices = list(dict.fromkeys(str(choice) for option in options for choice in option.choices))
    metavar = next((option.metavar for option in options if option.metavar), "|".join(choices) or None)
    told: dict[str, Any] = {"autocompletion": lambda: choices} if choices else {}
    if kind in (int, float):
        lows, highs = [option.min for option in options], [option.max for option in options]
        told |= {"min": None if None in lows else min(lows), "max": None if None in highs else max(highs)}
    shown = typer.Option(
        *flags, help=help, metavar=metavar, rich_help_panel=panel, show_default=False, **told
    )
    return Annotated[kind if default is False else kind | None, shown], default


def of_methods(every: Mapping[str, Iterable[Option]]) -> Group:
    """The options of all methods, those of the same methods together; one line for one name.

    Where methods mean different types by a name, what is given is read as the chosen method's.
    """
    having: dict[str, dict[str, Option]] = {}
    for method, known in every.items():
        for option in known:
            having.setdefault(option.name, {})[method] = option
    return {
        OF_METHOD + name: _generated(tuple(of.values()), panel=f"Options of {', '.join(of)}", help=_help(of))
        for name, of in sorted(having.items(), key=lambda item: (-len(item[1]), tuple(item[1])))
    }


def _help(of: Mapping[str, Option]) -> str:
    """One sentence where all methods say the same; else each, with the names of its methods."""
    saying: dict[str, list[str]] = {}
    for method, option in of.items():
        saying.setdefault(_sentence(option), []).append(method)
    if len(saying) == 1:
        return next(iter(saying))
    return " ".join(f"{', '.join(methods)}: {sentence}" for sentence, methods in saying.items())


def _sentence(option: Option) -> str:
    default = f" ({option.shown_default})" if option.shown_default else ""
    return option.help.removesuffix(".") + default + "." if option.help else default.strip()


def of_formats(reports: Registry) -> Group:
    """An option for every report format that has a file name, to write it alone."""
    group: Group = {}
    for name in reports.names():
        try:
            named, help = (reports.constant(name, constant) for constant in ("FILENAME", "HELP"))
        except RebasinError:  # of a package that cannot be imported: it harms who asks for it
            continue
        if named:
            help = help or f"Write the report as {name}."
            group[OF_FORMAT + name.replace("-", "_")] = _format(f"--{name}", help)
    return group


def _format(flag: str, help: str) -> tuple[Any, Any]:
    return _generated([Option("", str, None, flag=flag, metavar="FILE")], panel="Report", help=help)


LOADING = _group(spec=o.Spec, key=o.Key, unsafe_load=o.UnsafeLoad)
NETWORK = _group(
    net=o.Net,
    trust_code=o.TrustCode,
    input=o.Input,
    output=o.OutputKey,
    device=o.Device,
    seed=o.Seed,
)
KEPT = _group(not_kept=o.NotKept)
DATA = _group(data=o.Data, data_root=o.DataRoot, normalize=o.Normalize)
SAMPLES = _group(limit=o.Limit, batch_size=o.BatchSize)
CHOOSING = _group(held_out=o.HeldOut)
POLISHING = _group(polish=o.Polish)
GROUPS = _group(groups=o.Groups)
BINS = _group(bins=o.Bins)
SCORES = _group(loss=o.Loss, metric=o.Metric, skip_checks=o.SkipChecks)
METHOD = of_methods(Registry("matchers", "method").every_option())
REPAIR = {
    option.name: _generated([option], panel=o.SEARCH, help=_sentence(option))
    for option in declared("rebasin_cli.session.subjects", "Repairing") or ()
}
RIDGE = {name: REPAIR[name] for name in ("ridge",) if name in REPAIR}
RESUMABLE = _group(checkpoint_every=o.CheckpointEvery, log=o.Log, resume=o.Resume)
FORMATS = of_formats(Registry("reports", "report format"))
WRITTEN = _group(force=o.Force, out_dtype=o.OutDtype, out_shard_size=o.OutShardSize, attest=o.Attest)
GATES = _group(
    max_barrier=o.MaxBarrier,
    gate=o.Gates,
    baseline=o.Baseline,
    missing_baseline=o.MissingBaseline,
    baseline_tolerance=o.BaselineTolerance,
)
MEASURING = _group(no_prove=o.NoProve, force=o.Force, dry_run=o.DryRun)
JUDGING = _group(force=o.Force, quiet=o.Quiet)
SCREEN = _group(quiet=o.Quiet, verbose=o.Verbose)


def shared(*groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Put the groups' options into the signature of a command that takes `**options`.

    Options that were read off declarations come last, and a flag that the command has already stays the
    command's: a method's `limit` is --limit. The file of a report format is then --json-file.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[name])
            for name, parameter in signature(command).parameters.items()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        taken = {flag for parameter in parameters for flag in _flags(parameter.name, parameter.annotation)}
        items = [item for group in groups for item in group.items()]
        for name, (hint, default) in sorted(
            items, key=lambda item: item[0].startswith((OF_METHOD, OF_FORMAT))
        ):
            flags = _flags(name, hint)
            if taken & flags and name.startswith(OF_FORMAT):
                (flag,), told = flags, get_args(hint)[1]
                hint, default = _format(f"{flag}-file", told.help)
                flags = _flags(name, hint)
            if taken & flags:
                continue
            taken |= flags
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
        command.__signature__ = Signature(parameters)
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _flags(name: str, hint: Any) -> set[str]:
    """What a parameter is on the command line: its flags, or those that typer makes of its name."""
    declared = []
    for told in get_args(hint)[1:]:  # typer takes the first of them for a default
        declared += [getattr(told, "default", None), *(getattr(told, "param_decls", None) or ())]
    flags = [text for text in declared if isinstance(text, str) and text.startswith("-")]
    return {flag for text in flags for flag in text.split("/")} or {f"--{name.replace('_', '-')}"}
