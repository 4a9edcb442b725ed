"""`rebasin spec`: specs listed, shown, checked, proven, inferred, explained and imported.

One that is shown is fitted to a checkpoint, or to a fresh network of the name it goes by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import RebasinError, SpecError, UsageError
from ..registry.options import MAY_READ, PLAIN, READS, REQUIRED, again, argument, option
from ..registry.results import NAMED, ON_SCREEN_ONLY, UNSET, Result, Unset
from ..reports.accounts import describe_kept, describe_proof, outputs_in_words
from ..session.asked import inputs_of, of
from ..session.listener import SILENT, Listener
from ..session.method_options import check_groups
from ..session.models import naming
from ..session.network import find_network, need_inputs, none_named, origin
from ..session.outcomes import Answer, Screen, Weights
from ..session.request import Subjects
from ..session.search_options import Grouping, Proving
from ..session.specs import infer_spec
from ..session.subjects import Loading, Network
from ..spec import library
from ..spec.fits import fit
from ..spec.parser import parse
from .verbs.report_files import check_files
from .verbs.specs import Fresh, Own, delivered, describe, fit_named, headline, lines, opened, shapes_of

GROUP = "Permutation specs: list, show, check, prove, infer, explain, import."
PANEL = "Look"
ONLY_LOOKS = True


@dataclass(frozen=True, kw_only=True)
class List:
    """List the built-in specs and the names that find them."""


@dataclass(frozen=True)
class ListResult(Result):
    """Of every built-in spec its "name", "description" and further "names"."""

    specs: list[Mapping[str, Any]]


def list_(asked: List, listener: Listener = SILENT) -> ListResult:
    """The specs that are shipped."""
    known = library.builtin().items()
    return ListResult(
        [{"name": name, "description": it.description, "names": list(it.names)} for name, it in known]
    )


@dataclass(frozen=True, kw_only=True)
class Show:
    """Show every tensor's axes, the permutations with their sizes, and the number of symmetries.

    Example: rebasin spec show resnet20 --width 4
    """

    spec: str = argument("SPEC", "A built-in name or a YAML file.", kind="spec", role=MAY_READ)
    checkpoint: Path | None = argument("CHECKPOINT", "Fit it to this file.", default=None, role=READS)
    width: float | None = Fresh.width
    depth: int | None = Fresh.depth
    input: str | None = Fresh.input
    classes: int | None = Fresh.classes
    json: bool = Answer.json


@dataclass(frozen=True, kw_only=True)
class ShowResult(Result):
    """A spec by the tensors that it fits: sizes of its words, the share of parameters that move (0–1), and
    the axes of each tensor. `lines` are the same for a person, not in JSON.
    """

    lines: tuple[str, ...] = field(default=(), metadata=ON_SCREEN_ONLY)
    spec: str
    source: str
    net: str | None
    words: Mapping[str, Any]
    log10_symmetries: float
    moved_share: float
    tensors: Mapping[str, str]
    statistics: list[str]
    ignored: list[str]


def show(asked: Show, listener: Listener = SILENT) -> ShowResult:
    """A spec as it fits a checkpoint or a fresh network. Raises UsageError, SpecError."""
    fitted = fit_named(asked.spec, asked.checkpoint, fresh=of(asked, Fresh))
    return ShowResult(lines=tuple(lines(fitted)), **describe(fitted))


@dataclass(frozen=True, kw_only=True)
class Check:
    """Check whether a spec covers a checkpoint, and say everything that does not fit.

    Example: rebasin spec check my.yaml b.safetensors
    """

    spec: str = argument("SPEC", "A built-in name or a YAML file.", kind="spec", role=MAY_READ)
    checkpoint: Path = argument("CHECKPOINT", role=READS)
    key: str | None = Loading.key
    unsafe_load: bool = Loading.unsafe_load


@dataclass(frozen=True)
class CheckResult(Result):
    """That it fits, in a sentence: what does not ends with an error."""

    text: str


def check(asked: Check, listener: Listener = SILENT) -> CheckResult:
    """Whether a spec covers a checkpoint. Raises SpecError that tells of all that does not fit."""
    try:
        fitted = fit_named(asked.spec, asked.checkpoint, of(asked, Loading))
    except RebasinError as error:
        error.whole = True
        raise
    return CheckResult(f"{fitted.spec.source} fits {asked.checkpoint}: {headline(fitted)}")


@dataclass(frozen=True, kw_only=True)
class Prove:
    """Prove that a spec preserves the network's function: permute at random, compare outputs in float64.

    All words together, and each by itself.

    Example: rebasin spec prove resnet20 a.safetensors
    """

    spec: str = argument("SPEC", "A built-in name or a YAML file.", kind="spec", role=MAY_READ)
    checkpoint: Path | None = argument("CHECKPOINT", default=None, role=READS)
    net: str | None = Network.net
    trust_code: bool = Network.trust_code
    input: str | None = Network.input
    output: str | None = Network.output
    not_kept: tuple[str, ...] = Network.not_kept
    width: float | None = Fresh.width
    depth: int | None = Fresh.depth
    key: str | None = Loading.key
    unsafe_load: bool = Loading.unsafe_load
    seed: int = Network.seed
    json: bool = Answer.json


@dataclass(frozen=True)
class ProveResult(Result):
    """The proof; how many words; and the largest difference of the outputs, relative, when one word alone is
    permuted (`differences`, the largest first).
    """

    spec: str
    proof: Mapping[str, Any]
    words: int
    differences: Mapping[str, float]


def prove(asked: Prove, listener: Listener = SILENT) -> ProveResult:
    """The proof, word by word. Raises NotProven, NetworkError, UsageError without inputs."""
    loading, network = of(asked, Loading), of(asked, Network)
    fitted = fit_named(asked.spec, asked.checkpoint, loading, of(asked, Fresh, input=None), asked.net)
    if (module := find_network(fitted, network, listener.say)) is None:
        raise none_named(fitted)
    batch = need_inputs(module, network)
    from ..proof import prove as proving  # what only looks needs none, and it takes half a second to import

    found = proving.prove(module, fitted, batch, seed=network.seed, each_word=True, **network.outputs)
    models = [] if asked.checkpoint is None else [opened(asked.checkpoint, loading)]
    return ProveResult(
        spec=fitted.spec.name,
        proof=describe_proof(found) | origin(module, fitted, models, network),
        words=len(found.words),
        differences=dict(sorted(found.words.items(), key=lambda item: -item[1])),
    )


@dataclass(frozen=True, kw_only=True)
class Infer:
    """Infer a spec from a network: follow its units through the graph, and prove what was found.

    Units that stay are named with the reason. The result is an ordinary spec, to read and to edit.

    Example: rebasin spec infer --net model.py:build --input 1x3x224x224 -o spec.yaml
    """

    net: str = again(
        Network.net, REQUIRED, help="Network: file.py:factory, package.module:factory.", panel=""
    )
    checkpoint: Path | None = Own.checkpoint
    input: str | None = Network.input
    output: str | None = Network.output
    not_kept: tuple[str, ...] = Network.not_kept
    groups: str = Grouping.groups
    no_prove: bool = Proving.no_prove
    out: Path | None = Own.out
    seed: int = Network.seed
    force: bool = Weights.force
    quiet: bool = Screen.quiet


@dataclass(frozen=True, kw_only=True)
class Written(Result):
    """A spec's `text`, or where it was `written`."""

    written: list[str] | Unset = UNSET
    text: str | Unset = UNSET


@dataclass(frozen=True, kw_only=True)
class InferResult(Written):
    """The spec that was inferred: its text or file, how many permutations it has, and the proof."""

    permutations: int
    spec: str
    proof: Mapping[str, Any]


def infer(asked: Infer, listener: Listener = SILENT) -> InferResult:
    """The spec of a network, its text and what it permutes; written to `out`, where that is given.

    Raises NotProven where the proof refuses a part of it, SpecError where nothing may move, OutputExists,
    UsageError, NetworkError, ResourceError.
    """
    network = of(asked, Network)
    if asked.out is not None:
        inputs = inputs_of([asked.checkpoint] if asked.checkpoint else [], Subjects(network=network))
        check_files([("spec", asked.out)], inputs, force=asked.force)
    shapes = shapes_of(asked.checkpoint, Loading())
    check_groups(asked.groups)
    prove, groups = not asked.no_prove, asked.groups == "all"
    found = infer_spec(shapes, network, None, listener.say, prove=prove, groups=groups)
    skipped = {"status": "skipped", "reason": "--no-prove"} | describe_kept(found.kept, found.not_kept)
    return InferResult(
        **delivered(found.text, asked.out, asked.force),
        permutations=len(found.fitted.words),
        spec=headline(found.fitted),
        proof=skipped if asked.no_prove else describe_proof(found.proof),
    )


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Explain what inference finds: each word with its axes, and for each axis that stays why it does.

    With --spec: where that spec has the same freedom, where less, and where it moves what inference keeps.

    Example: rebasin spec explain --net model.py:build --input 1x3x224x224
    """

    net: str = again(
        Network.net, REQUIRED, help="Network: file.py:factory, package.module:factory.", panel=""
    )
    checkpoint: Path | None = Own.checkpoint
    input: str | None = Network.input
    output: str | None = Network.output
    not_kept: tuple[str, ...] = Network.not_kept
    groups: str = Grouping.groups
    spec: str | None = option(
        None,
        "Compare this spec with what the network allows.",
        metavar="NAME|FILE",
        kind="spec",
        role=MAY_READ,
    )
    tensors: bool = option(False, "Every tensor too, axis by axis.", role=PLAIN)
    key: str | None = Loading.key
    unsafe_load: bool = Loading.unsafe_load
    seed: int = Network.seed
    json: bool = Answer.json


@dataclass(frozen=True)
class ExplainResult(Result):
    """Why each axis may move or stays; `compared` with a spec, where it differs.

    On a screen axis by axis, too, where `tensors` were asked for.
    """

    told: Mapping[str, Any] = field(metadata=NAMED)
    tensors: bool = field(default=False, metadata=ON_SCREEN_ONLY)
    compared: bool = field(default=False, metadata=ON_SCREEN_ONLY)


def explain(asked: Explain, listener: Listener = SILENT) -> ExplainResult:
    """Why every axis of a network may move or stays; with a spec, where that spec differs.

    Raises UsageError, NetworkError, SpecError, CheckpointError.
    """
    from ..inference.text import reasons  # torch.export takes a second to import

    network, loading = of(asked, Network), of(asked, Loading)
    given = None if loading.spec is None else library.load(loading.spec)
    shapes = shapes_of(asked.checkpoint, loading)
    check_groups(asked.groups)
    groups = asked.groups == "all"
    found = infer_spec(shapes, network, None, lambda _: None, strict=False, groups=groups)
    inferred = {"inferred": headline(found.fitted)}
    if told := outputs_in_words(describe_kept(found.kept, found.not_kept)):
        inferred["outputs"] = told
    if given is None:
        return ExplainResult(inferred | reasons.explain(found), asked.tensors)
    with naming([asked.checkpoint or Path(network.net or "")]):
        fitted = fit(given, found.fitted.shapes)
    named = {"spec": f"{given.source}: {headline(fitted)}"}
    return ExplainResult(named | inferred | reasons.compare(fitted, found), compared=True)


@dataclass(frozen=True, kw_only=True)
class Import:
    """Import a git-re-basin style dictionary: tensor → a word or null for each axis, or word → places.

    Names of tensors and the order of their axes are kept as they are.

    Example: rebasin spec import axes.json --checkpoint a.safetensors -o own.yaml
    """

    file: Path = argument("FILE", "A dictionary of axes, JSON or YAML.", role=READS)
    checkpoint: Path | None = option(
        None, "Check it against these tensors, and write families.", metavar="CKPT", role=READS
    )
    out: Path | None = Own.out
    key: str | None = Loading.key
    unsafe_load: bool = Loading.unsafe_load
    force: bool = Weights.force


@dataclass(frozen=True, kw_only=True)
class ImportResult(Written):
    """The spec that was imported: its text or file, and what it permutes where it was checked."""

    spec: str | Unset = UNSET


def import_(asked: Import, listener: Listener = SILENT) -> ImportResult:
    """The text of our spec for a dictionary of axes in a file; written to `out`, where that is given.

    Raises UsageError, SpecError, CheckpointError, OutputExists, ResourceError.
    """
    from ..inference.text import foreign  # with all of inference, which takes a second

    file, checkpoint, loading = asked.file, asked.checkpoint, of(asked, Loading)
    if asked.out is not None:
        inputs = inputs_of([checkpoint] if checkpoint else [], Subjects(loading), [file])
        check_files([("spec", asked.out)], inputs, force=asked.force)
    mapping = foreign.read(file)
    shapes = shapes_of(checkpoint, loading)
    try:
        text = foreign.from_axes(mapping, shapes, description=f"imported from {file.name}")
    except (SpecError, UsageError) as error:
        message = f"{file}: {error.message}"
        if error.message.endswith("does not fit"):
            message = f"{file} does not fit {checkpoint}"
        raise type(error)(message, problems=error.problems, hint=error.hint) from None
    told = UNSET if shapes is None else headline(fit(parse(text, name=file.stem), shapes))
    return ImportResult(**delivered(text, asked.out, asked.force), spec=told)
