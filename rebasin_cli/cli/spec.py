"""`rebasin spec`: list, show, check, prove, infer, explain and import permutation specs."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from . import _options as o
from . import app
from ._show import put, result, screen

spec_app = typer.Typer(
    no_args_is_help=True, help="Permutation specs: list, show, check, prove, infer, explain, import."
)
app.add_typer(spec_app, name="spec", rich_help_panel="Look")

Name = Annotated[str, typer.Argument(metavar="SPEC", help="A built-in name or a YAML file.")]
Width = Annotated[
    float | None, typer.Option(min=0, max=1e6, help="Without a checkpoint: width of the spec's own network.")
]
Depth = Annotated[
    int | None, typer.Option(min=0, max=10_000, help="Without a checkpoint: hidden layers of an mlp.")
]
Shape = Annotated[
    str | None,
    typer.Option("--input", metavar="SHAPE", help="Without a checkpoint: input, batch first: 1x3x224x224."),
]
Classes = Annotated[
    int | None, typer.Option(min=1, max=o.MOST, help="Without a checkpoint: number of classes.")
]
OwnNet = Annotated[
    str, typer.Option("--net", metavar="REF", help="Network: file.py:factory, package.module:factory.")
]
Held = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What the network is to hold: its shapes are given to it."),
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it here; else it is printed.")
]


@spec_app.command("list")
def list_() -> None:
    """List the built-in specs and the names that find them."""
    from ..spec import library

    for name, spec in library.builtin().items():
        also = f"  also: {', '.join(spec.names)}" if spec.names else ""
        put(f"{name:<22} {spec.description}{also}")


@spec_app.command()
def show(
    spec: Name,
    checkpoint: Annotated[
        Path | None, typer.Argument(metavar="CHECKPOINT", help="Fit it to this file.")
    ] = None,
    width: Width = None,
    depth: Depth = None,
    input: Shape = None,
    classes: Classes = None,
    json: o.Json = False,
) -> None:
    """Show every tensor's axes, the permutations with their sizes, and the number of symmetries.

    Example: rebasin spec show resnet20 --width 4
    """
    from ..commands import spec as overview

    fitted = overview.fit_named(spec, checkpoint, width=width, depth=depth, input=input, classes=classes)
    if json:
        typer.echo(json_module.dumps(overview.describe(fitted), indent=2))
        return
    for line in overview.lines(fitted):
        put(line)


@spec_app.command()
def check(
    spec: Name,
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT")],
    key: o.Key = None,
    unsafe_load: o.UnsafeLoad = False,
) -> None:
    """Check whether a spec covers a checkpoint, and say everything that does not fit.

    Example: rebasin spec check my.yaml b.safetensors
    """
    from ..commands import spec as overview

    with screen(verbose=True):  # all that does not fit
        fitted = overview.fit_named(spec, checkpoint, key=key, unsafe_load=unsafe_load)
    put(f"{fitted.spec.source} fits {checkpoint}: {overview.headline(fitted)}")


@spec_app.command()
def prove(
    spec: Name,
    checkpoint: Annotated[Path | None, typer.Argument(metavar="CHECKPOINT")] = None,
    net: o.Net = None,
    trust_code: o.TrustCode = False,
    input: o.Input = None,
    output: o.OutputKey = None,
    not_kept: o.NotKept = None,
    width: Width = None,
    depth: Depth = None,
    key: o.Key = None,
    unsafe_load: o.UnsafeLoad = False,
    seed: o.Seed = 0,
    json: o.Json = False,
) -> None:
    """Prove that a spec preserves the network's function: permute at random, compare outputs in float64.

    All words together, and each by itself.

    Example: rebasin spec prove resnet20 a.safetensors
    """
    from ..commands import spec as overview
    from ..session.subjects import Loading, Network

    sizes = {"width": width, "depth": depth, "net": net}
    fitted = overview.fit_named(spec, checkpoint, key=key, unsafe_load=unsafe_load, **sizes)
    run = {"loading": Loading(key=key, unsafe_load=unsafe_load)}
    run["network"] = Network(
        net=net,
        trust_code=trust_code,
        input=input,
        output=output,
        not_kept=tuple(not_kept or ()),
        seed=seed,
    )
    with screen() as listener:
        done = overview.prove(fitted, listener.say, checkpoint=checkpoint, **run)
    result(done if json else {k: v for k, v in done.items() if k != "differences"}, json)
    if not json:
        put("largest difference when one word alone is permuted, relative to the outputs:")
        for word, difference in done["differences"].items():
            put(f"  {word:<32} {difference:.1e}")


@spec_app.command()
def infer(
    net: OwnNet,
    checkpoint: Held = None,
    input: o.Input = None,
    output: o.OutputKey = None,
    not_kept: o.NotKept = None,
    groups: o.Groups = "permutations",
    no_prove: o.NoProve = False,
    out: Out = None,
    seed: o.Seed = 0,
    force: o.Force = False,
    quiet: o.Quiet = False,
) -> None:
    """Infer a spec from a network: follow its units through the graph, and prove what was found.

    Units that stay are named with the reason. The result is an ordinary spec, to read and to edit.

    Example: rebasin spec infer --net model.py:build --input 1x3x224x224 -o spec.yaml
    """
    from ..commands import spec as overview
    from ..session.subjects import Network

    network = Network(net=net, input=input, output=output, not_kept=tuple(not_kept or ()), seed=seed)
    with screen(quiet) as listener:
        done = overview.infer(
            network,
            listener.say,
            checkpoint=checkpoint,
            groups=groups,
            prove=not no_prove,
            out=out,
            force=force,
        )
    if out is None:
        typer.echo(done["text"], nl=False)
    else:
        result({key: value for key, value in done.items() if key not in ("text", "missed")}, False)


@spec_app.command()
def explain(
    net: OwnNet,
    checkpoint: Held = None,
    input: o.Input = None,
    output: o.OutputKey = None,
    not_kept: o.NotKept = None,
    groups: o.Groups = "permutations",
    spec: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Compare this spec with what the network allows."),
    ] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="Every tensor too, axis by axis.")] = False,
    key: o.Key = None,
    unsafe_load: o.UnsafeLoad = False,
    seed: o.Seed = 0,
    json: o.Json = False,
) -> None:
    """Explain what inference finds: each word with its axes, and for each axis that stays why it does.

    With --spec: where that spec has the same freedom, where less, and where it moves what inference keeps.

    Example: rebasin spec explain --net model.py:build --input 1x3x224x224
    """
    from ..commands import spec as overview
    from ..inference import explaining
    from ..session.subjects import Loading, Network

    network = Network(net=net, input=input, output=output, not_kept=tuple(not_kept or ()), seed=seed)
    with screen():
        loading = Loading(spec=spec, key=key, unsafe_load=unsafe_load)
        told = overview.explain(network, checkpoint=checkpoint, loading=loading, groups=groups)
    if json:
        result(told, True)
        return
    result({name: told[name] for name in ("spec", "inferred", "outputs") if name in told}, False)
    typer.echo()
    shown = explaining.lines(told, tensors=tensors) if spec is None else explaining.comparison(told)
    for line in shown:
        put(line)


@spec_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A dictionary of axes, JSON or YAML.")],
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="CKPT", help="Check it against these tensors, and write families.")
    ] = None,
    out: Out = None,
    key: o.Key = None,
    unsafe_load: o.UnsafeLoad = False,
    force: o.Force = False,
) -> None:
    """Import a git-re-basin style dictionary: tensor → a word or null for each axis, or word → places.

    Names of tensors and the order of their axes are kept as they are.

    Example: rebasin spec import axes.json --checkpoint a.safetensors -o own.yaml
    """
    from ..commands import spec as overview
    from ..session.subjects import Loading

    loading = Loading(key=key, unsafe_load=unsafe_load)
    done = overview.import_axes(file, checkpoint=checkpoint, loading=loading, out=out, force=force)
    if out is None:
        typer.echo(done["text"], nl=False)
    else:
        result({key: value for key, value in done.items() if key != "text"}, False)
