"""A spec for a person to read: fitted to a checkpoint, or to a fresh network of the name it goes by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import nets, networks
from ...checkpoints import writer
from ...checkpoints.checkpoint import Checkpoint, open_checkpoint
from ...checkpoints.configuration import beside
from ...errors import SpecError, UsageError
from ...registry import user_code
from ...registry.options import PLAIN, READS, WRITES, option
from ...session.models import naming
from ...session.network import parse_shape
from ...session.subjects import MOST, Loading
from ...spec import chain, library
from ...spec.fits import fit
from ...spec.spec import FittedSpec, Spec
from ...types import Shapes

LARGE, SMALL, DIGIT = (3, 224, 224), (3, 32, 32), (1, 28, 28)
FLATTENING = ("mlp", "two_layer")  # take inputs of any shape
INPUTS = {"mlp": DIGIT, "two_layer": DIGIT, "vgg": LARGE, "resnet": LARGE, "googlenet": LARGE}


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """Of what sizes the network is that a spec is shown on."""

    width: float | None = option(
        None, "Without a checkpoint: width of the spec's own network.", min=0, max=1e6
    )
    depth: int | None = option(None, "Without a checkpoint: hidden layers of an mlp.", min=0, max=10_000)
    input: str | None = option(
        None,
        "Without a checkpoint: input, batch first: 1x3x224x224.",
        metavar="SHAPE",
        kind="input",
        role=PLAIN,
    )
    classes: int | None = option(None, "Without a checkpoint: number of classes.", min=1, max=MOST)


@dataclass(frozen=True, kw_only=True)
class Own:
    """A network of one's own, and what it is to hold."""

    checkpoint: Path | None = option(
        None, "What the network is to hold: its shapes are given to it.", metavar="FILE", role=READS
    )
    out: Path | None = option(
        None, "Write it here; else it is printed.", also=("-o",), metavar="FILE", role=WRITES
    )


def fit_named(
    name: str,
    checkpoint: Path | None = None,
    loading: Loading = Loading(),  # noqa: B008 (frozen)
    fresh: Fresh = Fresh(),  # noqa: B008 (frozen)
    net: str | None = None,
) -> FittedSpec:
    """A spec fitted to a checkpoint; without one, to `net`, or the network of that name (no values made).

    Raises UsageError where neither is there, SpecError where it does not fit.
    """
    if name == chain.NAME and checkpoint is not None:
        return library.resolve_spec(name, [opened(checkpoint, loading)])
    spec = library.load(name)
    if checkpoint is not None:
        try:
            return fit(spec, opened(checkpoint, loading).shapes, beside(checkpoint))
        except SpecError as error:
            raise SpecError(
                f"{error.message} {checkpoint}", problems=error.problems, hint=error.hint
            ) from None
    if net is not None and net not in nets.variants():
        own = networks.from_reference(net, None)
        with user_code(f"{net} does not say which tensors it has"):
            shapes = {key: tuple(tensor.shape) for key, tensor in own.state_dict().items()}
        with naming([Path(net)]):
            return fit(spec, shapes)
    return fit(spec, _fresh_shapes(name, spec, fresh))


def _fresh_shapes(name: str, spec: Spec, fresh: Fresh) -> Shapes:
    known = nets.variants()
    name = name if name in known else next((alias for alias in spec.names if alias in known), name)
    if name not in known:
        raise UsageError(
            f"{spec.source} names no network of ours to show it on", hint="Give a checkpoint as well"
        )
    kind = known[name].__name__.rsplit(".", 1)[1]
    shape: tuple[int, ...] = INPUTS.get(kind, SMALL)
    if fresh.input:
        like = None if kind in FLATTENING else shape
        shape = parse_shape(fresh.input, like=like)[1:]
    classes = fresh.classes or (1000 if shape[-1] >= 64 else 10)
    network = nets.without_values(
        name, input_shape=shape, classes=classes, width=fresh.width, depth=fresh.depth
    )
    return {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}


def headline(fitted: FittedSpec) -> str:
    return (
        f"{len(fitted.words)} permutations, 10^{fitted.log10_symmetries():.1f} symmetries, "
        f"{100 * fitted.moved_share():.1f} % of the parameters move"
    )


def describe(fitted: FittedSpec) -> dict[str, Any]:
    fitted = fitted.stacked  # each list as the one tensor that its line reads
    return {
        "spec": fitted.spec.name,
        "source": fitted.spec.source,
        "net": fitted.spec.net,
        "words": fitted.words,
        "log10_symmetries": fitted.log10_symmetries(),
        "moved_share": fitted.moved_share(),
        "tensors": {name: " ".join(map(str, axes)) for name, axes in fitted.tensors.items()},
        "statistics": sorted(fitted.statistics),
        "ignored": sorted(fitted.ignored),
    }


def lines(fitted: FittedSpec) -> Iterator[str]:
    fitted = fitted.stacked
    yield f"{fitted.spec.name}: {headline(fitted)}"
    yield f"log10 symmetries: {fitted.log10_symmetries():.1f}"
    yield f"network: {fitted.spec.net or 'none named'}"
    yield ""
    yield "permutations:"
    for word in fitted.words:
        yield f"  {word:<32} {fitted.units(word)}"
    yield ""
    yield "tensors (. stays, a number states the size of what stays):"
    for name, axes in fitted.tensors.items():
        mark = "  statistic" if name in fitted.statistics else ""
        yield f'  {name:<44} "{" ".join(map(str, axes))}"{mark}'
    for name in sorted(fitted.ignored):
        yield f"  {name:<44} ignored"


def shapes_of(checkpoint: Path | None, loading: Loading) -> Shapes | None:
    """What the network is to hold; None where no checkpoint says it."""
    return None if checkpoint is None else opened(checkpoint, loading).shapes


def opened(checkpoint: Path, loading: Loading) -> Checkpoint:
    return open_checkpoint(checkpoint, key=loading.key, unsafe_load=loading.unsafe_load)


def delivered(text: str, out: Path | None, force: bool) -> dict[str, Any]:
    """A spec's text, written to a file where one is named."""
    if out is None:
        return {"text": text}
    return {"written": [str(writer.write_text_atomic(out, text, force=force))]}
