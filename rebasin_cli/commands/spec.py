"""A spec for a person to read: fitted to a checkpoint, or to a fresh network of the name it goes by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .. import nets, networks
from ..checkpoints import writing
from ..checkpoints.checkpoint import Checkpoint, open_checkpoint
from ..errors import SpecError, UsageError
from ..inference import explaining
from ..inference import prove as proving
from ..registry import user_code
from ..reports._accounts import describe_kept, describe_proof, kept_in_words
from ..session.inputs import inputs_of
from ..session.method_options import GROUPS, check_groups
from ..session.models import infer_spec, naming
from ..session.network import find_network, need_inputs, none_named, origin, parse_shape
from ..session.subjects import Asked, Loading, Network
from ..spec import library
from ..spec.fitting import fit
from ..spec.parsing import parse
from ..spec.spec import FittedSpec
from ..types import Shapes
from .verbs.outputs import check_files

LARGE, SMALL, DIGIT = (3, 224, 224), (3, 32, 32), (1, 28, 28)
FLATTENING = ("mlp", "two_layer")  # take inputs of any shape
INPUTS = {"mlp": DIGIT, "two_layer": DIGIT, "vgg": LARGE, "resnet": LARGE, "googlenet": LARGE}


def fit_named(
    name: str,
    checkpoint: Path | None = None,
    *,
    key: str | None = None,
    unsafe_load: bool = False,
    width: float | None = None,
    depth: int | None = None,
    input: str | None = None,
    classes: int | None = None,
    net: str | None = None,
) -> FittedSpec:
    """A spec fitted to a checkpoint; without one, to `net`, or the network of that name (no values made).

    Raises UsageError where neither is there, SpecError where it does not fit.
    """
    spec = library.load(name)
    if checkpoint is not None:
        shapes = open_checkpoint(checkpoint, key=key, unsafe_load=unsafe_load).shapes
        try:
            return fit(spec, shapes)
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
    return fit(spec, _fresh_shapes(name, width, depth, input, classes))


def _fresh_shapes(
    name: str, width: float | None, depth: int | None, input: str | None, classes: int | None
) -> Shapes:
    known = nets.variants()
    spec = library.load(name)
    name = name if name in known else next((alias for alias in spec.names if alias in known), name)
    if name not in known:
        raise UsageError(
            f"{spec.source} names no network of ours to show it on", hint="Give a checkpoint as well"
        )
    kind = known[name].__name__.rsplit(".", 1)[1]
    shape: tuple[int, ...] = INPUTS.get(kind, SMALL)
    if input:
        like = None if kind in FLATTENING else shape
        shape = parse_shape(input, like=like)[1:]
    big = shape[-1] >= 64
    with torch.device("meta"):
        network = nets.build(
            name, input_shape=shape, classes=classes or (1000 if big else 10), width=width, depth=depth
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


def prove(
    fitted: FittedSpec,
    say: Callable[[str], None],
    *,
    checkpoint: Path | None = None,
    loading: Loading = Loading(),  # noqa: B008 (frozen)
    network: Network = Network(),  # noqa: B008
) -> dict[str, Any]:
    """The proof, word by word, as values; `checkpoint` is what the spec was fitted to.

    Raises NotProven, NetworkError, UsageError without inputs.
    """
    if (module := find_network(fitted, network, say)) is None:
        raise none_named(fitted)
    batch = need_inputs(module, network)
    found = proving.prove(module, fitted, batch, seed=network.seed, each_word=True, **network.outputs)
    models = []
    if checkpoint is not None:
        models = [_opened(checkpoint, loading)]
    return {
        "spec": fitted.spec.name,
        "proof": describe_proof(found) | origin(module, fitted, models, network),
        "words": len(found.words),
        "differences": dict(sorted(found.words.items(), key=lambda item: -item[1])),
    }


def infer(
    network: Network,
    say: Callable[[str], None],
    *,
    checkpoint: Path | None = None,
    groups: str = GROUPS[0],
    prove: bool = True,
    out: Path | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """The spec of `--net`, its text and what it permutes; written to `out`, where that is given.

    Raises NotProven where the proof refuses a part of it, SpecError where nothing may move, OutputExists,
    UsageError, NetworkError, ResourceError.
    """
    if out is not None:
        inputs = inputs_of([checkpoint] if checkpoint else [], Asked(network=network))
        check_files([("spec", out)], inputs, force=force)
    shapes = _shapes(checkpoint, Loading())
    check_groups(groups)
    found = infer_spec(shapes, network, None, say, prove=prove, groups=groups != GROUPS[0])
    done = _delivered(found.text, out, force)
    done |= {"permutations": len(found.fitted.words), "spec": headline(found.fitted)}
    done |= {"missed": explaining.forgone(found)}
    skipped = {"status": "skipped", "reason": "--no-prove"} | describe_kept(found.kept, found.not_kept)
    return done | {"proof": describe_proof(found.proof) if prove else skipped}


def explain(
    network: Network,
    *,
    checkpoint: Path | None = None,
    loading: Loading = Loading(),  # noqa: B008 (frozen)
    groups: str = GROUPS[0],
) -> dict[str, Any]:
    """Why every axis of `--net` may move or stays; with a spec in `loading`, where that spec differs.

    Raises UsageError, NetworkError, SpecError, CheckpointError.
    """
    given = None if loading.spec is None else library.load(loading.spec)
    shapes = _shapes(checkpoint, loading)
    check_groups(groups)
    found = infer_spec(shapes, network, None, lambda _: None, strict=False, groups=groups != GROUPS[0])
    inferred = {"inferred": headline(found.fitted)}
    if told := kept_in_words(found.kept, found.not_kept):
        inferred["outputs"] = told
    if given is None:
        return inferred | explaining.explain(found)
    with naming([checkpoint or Path(network.net or "")]):
        fitted = fit(given, found.fitted.shapes)
    return {"spec": f"{given.source}: {headline(fitted)}"} | inferred | explaining.compare(fitted, found)


def import_axes(
    file: Path,
    *,
    checkpoint: Path | None = None,
    loading: Loading = Loading(),  # noqa: B008 (frozen)
    out: Path | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """The text of our spec for a dictionary of axes in a file; written to `out`, where that is given.

    Raises UsageError, SpecError, CheckpointError, OutputExists, ResourceError.
    """
    from ..inference import importing  # with all of inference, which takes a second

    if out is not None:
        inputs = inputs_of([checkpoint] if checkpoint else [], Asked(loading), [file])
        check_files([("spec", out)], inputs, force=force)
    mapping = importing.read(file)
    shapes = _shapes(checkpoint, loading)
    try:
        text = importing.from_axes(mapping, shapes, description=f"imported from {file.name}")
    except (SpecError, UsageError) as error:
        message = f"{file}: {error.message}"
        if error.message.endswith("does not fit"):
            message = f"{file} does not fit {checkpoint}"
        raise type(error)(message, problems=error.problems, hint=error.hint) from None
    told = {} if shapes is None else {"spec": headline(fit(parse(text, name=file.stem), shapes))}
    return _delivered(text, out, force) | told


def _shapes(checkpoint: Path | None, loading: Loading) -> Shapes | None:
    """What the network is to hold; None where no checkpoint says it."""
    return None if checkpoint is None else _opened(checkpoint, loading).shapes


def _opened(checkpoint: Path, loading: Loading) -> Checkpoint:
    return open_checkpoint(checkpoint, key=loading.key, unsafe_load=loading.unsafe_load)


def _delivered(text: str, out: Path | None, force: bool) -> dict[str, Any]:
    """A spec's text, written to a file where one is named."""
    written = {} if out is None else {"written": [str(writing.write_text_atomic(out, text, force=force))]}
    return written | {"text": text}
