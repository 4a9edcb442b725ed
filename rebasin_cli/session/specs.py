"""The spec of a command's models: named, found, or inferred from their network; with groups where asked."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import networks
from ..averages.kinship import kinship
from ..checkpoints import configuration
from ..checkpoints.adapters import ENDS, is_adapter
from ..checkpoints.checkpoint import Checkpoint
from ..errors import NetworkError, NoSpecFits, NotProven, SpecError, UsageError
from ..networks import hub
from ..networks.forward import fed
from ..reports import accounts
from ..spec.chain import NAME as CHAIN
from ..spec.fits import fit
from ..spec.library import PLAIN, resolve_spec
from ..spec.sizes import CONFIG
from ..spec.spec import FittedSpec, Spec
from ..symmetry.folds import Folds
from ..symmetry.form import check_numbers
from ..types import Shapes
from .listener import SILENT
from .models import check_one, naming
from .network import find_network, need_inputs, none_named
from .request import Subjects
from .samples import data_reference
from .subjects import Data, Loading, Network
from .twins import spec_of

if TYPE_CHECKING:
    from ..inference import Inferred

FOUND = "found from the tensors"
REASONS = 8  # that an error names
SHOWN = 5  # of what configurations say otherwise
_PLACE = re.compile(r"\.[0-9]+$")  # of a list, in a name of a configuration


def fit_spec(
    models: Sequence[Checkpoint],
    loading: Loading,
    network: Network,
    data: Data,
    say: Callable[[str], None],
    *,
    averaged: bool = False,
    offers_net: bool = True,
) -> FittedSpec:
    """The spec of these models: named, found, or inferred where `--net` says how.

    Found are built-in specs alone; where none fits, it is inferred. SpecError names the files. `averaged` is
    as `resolve_spec` takes it; without `offers_net` the command takes no `--net`.
    """
    if loading.spec in (None, CHAIN):
        _refuse_adapters(models)
    how = FOUND
    with naming([model.path for model in models]):
        try:
            spec = _inferred(models, network, data, say) if loading.spec == "infer" else loading.spec
            settings = configuration.beside(loading.config or models[0].path)
            if spec is None:
                spec, other = _of_hub(models[0], loading, network, say)
                settings = None if other else settings
                how = f"proven on {spec.proof['network']}" if spec is not None else how
            fitted = resolve_spec(
                spec,
                models,
                averaged=averaged,
                chains=network.net is None,
                settings=settings,
            )
        except NoSpecFits as error:
            if network.net is None:
                shape = data_reference(models, data) is None
                raise _wants_network(error, models, shape, offers_net) from None
            inferred = _inferred(models, network, data, say, instead=True)
            fitted = resolve_spec(inferred, models, averaged=averaged)
            how = f"no built-in spec fits, so it is inferred from {network.net}"
        for model in models:
            _check_tied(model, fitted)
        if loading.config is None:
            check_configurations(models, say)
    if loading.spec is None or fitted.spec.unproven:
        words = len(fitted.words)
        many = "1 permutation" if words == 1 else f"{words} permutations"
        if fitted.spec.net is None and network.net is None and how == FOUND:
            said = [f"{name.removeprefix(CONFIG)} = {size}" for name, size in fitted.told.items()]
            rests = f" and {', '.join(said)}, as {configuration.CONFIG} says" if said else ""
            how += f"' names, and not proven: right for the networks that have them{rests} (--net proves it)"
        if fitted.spec.unproven:
            how = f"unproven: {fitted.spec.unproven}; to prove it: --net file.py:factory"
        say(f"spec: {fitted.spec.name}, {how} ({many})")
    for line in _left_open(fitted):
        say(f"spec: {line}")
    return fitted


def _refuse_adapters(models: Sequence[Checkpoint]) -> None:
    """Raise SpecError for factors of low rank, which would be read as layers one behind the other."""
    ends = tuple(end for pairs in ENDS.values() for pair in pairs for end in pair)
    for model in models:
        if any(name.endswith(ends) for name in model) and is_adapter(model.path):
            raise SpecError(
                f"{model.path} is an adapter, no model: its tensors are factors of what it adds to one",
                hint="Adapters are averaged with rebasin average, and moved with their base by rebasin apply",
            )


def check_configurations(models: Sequence[Checkpoint], say: Callable[[str], None]) -> None:
    """Raise SpecError where what lies beside the weights says that they compute other functions of one shape.

    Other activations, scales, numbers of heads. What may not change the function is said.
    """
    first, *others = (configuration.beside(model.path) for model in models)
    deciding, told = [], []
    for k, other in enumerate(others, start=2):
        for key, found in configuration.differences(first, other).items():
            if found.decides:
                deciding.append(f"{key}  is {found.first} in model 1, {found.other} in model {k}")
            else:
                told.append(
                    f"{key} is {found.first} in {models[0].path}, {found.other} in {models[k - 1].path}"
                )
    if deciding:
        raise SpecError(
            "the models do not have the same architecture",
            problems=deciding,
            hint=f"Each {configuration.CONFIG} beside them says so. If that of the first is right for all, "
            "name it with --config",
        )
    if told:
        more = "; …" * (len(told) > SHOWN)
        say(f"{configuration.CONFIG}: {'; '.join(told[:SHOWN])}{more}: taken as one function")


def _left_open(fitted: FittedSpec) -> list[str]:
    """What a spec holds still since nothing tells it, and who would, a sentence each."""
    told = []
    if fitted.untold:
        asked = (name for name in fitted.untold if name.startswith(CONFIG))
        keys = (_PLACE.sub("", name.removeprefix(CONFIG)) for name in asked)
        names = " or ".join(dict.fromkeys(keys))
        grouped = " and groups of norms" * ("group" in names)
        told.append(
            f"heads{grouped} stay, since nothing tells their number: a {configuration.CONFIG} beside the "
            f"weights that fits them would ({names}), or `sizes:` in a spec that includes {fitted.spec.name}"
        )
    if fitted.beside:
        more = " or ".join(f"--spec {name}" for name in fitted.beside)
        told.append(f"it moves what each fitting spec does; others move more: {more}, if that is the network")
    return told


def _of_hub(
    model: Checkpoint, loading: Loading, network: Network, say: Callable[[str], None]
) -> tuple[Spec | None, bool]:
    """The spec of a network that an installed package has: of `--net`, or by the configuration in a folder.

    And whether that configuration is of another network, so that it tells nothing of these tensors. Where the
    package is not installed, or the configuration of a folder tells no spec, it is any file of tensors; a
    configuration that is named has to name a class, and to tell its spec where that is installed.
    """
    if network.net is not None:
        return (spec_of(network.net, model.shapes, say) if hub.is_name(network.net) else None), False
    named = loading.config is not None
    name = hub.named_by(loading.config) if loading.config is not None else hub.of_folder(model.path)
    if name is None or not hub.is_installed(name):
        if named:
            say(f"spec: no twin by {loading.config}, whose class is of no package that is installed")
        return None, False
    try:
        return spec_of(name, model.shapes, say), False
    except (SpecError, NetworkError, NotProven) as error:
        if named:
            raise
        why = "; ".join((error.message, *error.problems[:1]))
        other = isinstance(error, SpecError) and bool(error.problems)  # that of its twins, or its own
        not_taken = "; nothing that it says is taken, and --config FILE names the right one" * other
        say(f"spec: none from {name.partition(':')[2]}/config.json: {why}{not_taken}")
        return None, other


def _wants_network(
    error: NoSpecFits, models: Sequence[Checkpoint], shape: bool, offers_net: bool
) -> NoSpecFits:
    """The same with the next step: no spec at all for models that are kin, else the network tells it.

    `shape`: that of its inputs is needed, too, since no data are named. Without `offers_net` the spec is
    written first.
    """
    recorded = {model.metadata.get("rebasin.spec") for model in models} - {None}
    found = [] if recorded else [kinship(models[0], other) for other in models[1:]]
    if found and all(each.verdict == "kin" for each in found):
        files = " ".join(shlex.quote(str(model.path)) for model in models)
        return NoSpecFits(
            error.message.partition("; the nearest is")[0].partition(", and their")[0],
            hint=f"The models are kin (cosine {min(each.cosine for each in found):.2g}), as copies that were "
            "fine-tuned are: average them as they are, which takes no spec: "
            f"rebasin average {files}. To align them all the same, give the network: "
            "--net file.py:factory",
        )
    was = f"They record a spec named {recorded.pop()}, which is not built in. " if len(recorded) == 1 else ""
    plain = f"{PLAIN} " if PLAIN in (error.hint or "") else ""
    hint = f"{was}{plain}"
    if offers_net:
        hint += "Give the network, and the spec is inferred from it: --net file.py:factory; "
        hint += "or write one (docs/specs.md): --spec FILE.yaml"
    else:
        hint += (
            "Write one, rebasin spec infer --net file.py:factory -o FILE.yaml, and name it: --spec FILE.yaml"
        )
    if shape:
        hint += ". Without an example_shape of its own the network needs one: --input 1x3x224x224"
    if part := next((model.largest_part for model in models if model.parts), None):
        hint = f"Choose one of the parts, such as --key {part}. {hint}"
    return NoSpecFits(error.message, problems=error.problems, hint=hint)


def _inferred(
    models: Sequence[Checkpoint],
    network: Network,
    data: Data,
    say: Callable[[str], None],
    *,
    instead: bool = False,
) -> Spec:
    """The spec that the network tells, run on the data that is named or recorded.

    `instead` of a built-in one: nobody asked for it.
    """
    data = dataclasses.replace(data, data=data_reference(models, data))
    try:
        return infer_spec(models[0].shapes, network, data, say, models=models).spec
    except UsageError as error:
        if not instead:
            raise
        why = "no built-in spec fits these tensors, so one is inferred from the network"
        raise UsageError(error.message, problems=(*error.problems, why), hint=error.hint) from None


def infer_spec(
    shapes: Shapes | None,
    network: Network,
    data: Data | None,
    say: Callable[[str], None],
    *,
    prove: bool = True,
    strict: bool = True,
    groups: bool = False,
    models: Sequence[Checkpoint] = (),
) -> Inferred:
    """The spec read off the network of `--net`, as large as these tensors where the factory asks for shapes.

    `data` is None where a command takes none; `models` are to be the network's. Raises UsageError where the
    network or its input is not named, NetworkError where it cannot be traced. If `strict`, NotProven where
    the proof refused a part of it, SpecError where nothing may move.
    """
    from ..inference import infer  # torch.export takes a second to import

    if network.net is None:
        raise UsageError(
            "a spec is inferred from the network, and none is named",
            hint="Give yours with --net file.py:factory (a function that returns the torch.nn.Module)",
        )
    module = networks.from_reference(network.net, shapes)
    check_one(module, models)
    batch = fed(module.float(), need_inputs(module, network, data), "cpu", quiet=True)
    args, kwargs = ((), batch) if isinstance(batch, Mapping) else (batch, {})
    found = infer(module, args, kwargs, prove=prove, groups=groups, **network.outputs)
    torn = found.proof.not_in_training if found.proof is not None else ()
    if told := accounts.outputs_in_words(accounts.describe_kept(found.kept, found.not_kept, (), torn)):
        say(f"outputs: {told}")
    for frozen in found.reasons:
        say(f"stays: {', '.join(frozen.places[:3])}{' …' * (len(frozen.places) > 3)}: {frozen.why}")
    for one in found.missed:
        places = f"{', '.join(one.places[:3])}{' …' * (len(one.places) > 3)}"
        say(f"stays although it could move: {places}: {one.told}")
    if strict and found.refused:
        raise NotProven(
            f"the spec inferred from {network.net} does not hold: the proof refused a part of it",
            problems=[f"{', '.join(frozen.places[:3])}  {frozen.why}" for frozen in found.refused],
            hint="Nothing was written. See it as it was inferred with: rebasin spec infer --no-prove",
        )
    if strict and not found.fitted.words:
        raise SpecError(
            f"nothing of {network.net} may be permuted",
            problems=[f"{', '.join(frozen.places[:3])}  {frozen.why}" for frozen in found.reasons[:REASONS]],
            hint=f"See why, axis by axis, with: rebasin spec explain --net {network.net} --tensors",
        )
    return found


def with_groups(
    plain: FittedSpec, models: Sequence[Checkpoint], asked: Subjects, say: Callable[[str], None]
) -> tuple[FittedSpec, Folds]:
    """The spec with groups, and what is folded: from the spec where it gives some, else from the network.

    Raises UsageError where no network is named, NetworkError where it cannot be traced, CheckpointError where
    a model has integers or quantised numbers that would be folded or turned.
    """
    fitted, folds = _with_groups(plain, asked, say)
    for model in models:
        with naming([model.path]):
            check_numbers(model.dtypes, fitted, folds)
    return fitted, folds


def _with_groups(plain: FittedSpec, asked: Subjects, say: Callable[[str], None]) -> tuple[FittedSpec, Folds]:
    from ..inference.inferring import folds_of, infer  # torch.export takes a second to import

    quiet = SILENT.say if asked.network.net else say
    module = find_network(plain, asked.network, quiet, named=asked.loading.spec is not None)
    if module is None:
        raise none_named(plain)
    batch = fed(module, need_inputs(module, asked.network, asked.data), "cpu", quiet=True)
    if plain.groups:
        return plain, folds_of(module, batch, **asked.network.outputs).of(plain.shapes)
    if plain.spec.ignore:
        raise UsageError(
            f"--groups all reads a spec off the network, and ignores no tensors, as {plain.spec.name} does",
            problems=[*plain.spec.ignore][:REASONS],
            hint=f"Write the groups into {plain.spec.name} (docs/specs.md), or leave --spec out",
        )
    args, kwargs = ((), batch) if isinstance(batch, Mapping) else (batch, {})
    found = infer(module, args, kwargs, prove=False, groups=True, **asked.network.outputs)
    kinds = ", ".join(f"{word} {kind}" for word, kind in list(found.fitted.groups.items())[:4])
    more = " …" * (len(found.fitted.groups) > 4)
    say(
        f"groups: {kinds}{more}"
        if kinds
        else "groups: permutations only, see rebasin spec explain --groups all"
    )
    for what, why in found.folds.left:
        say(f"not folded: {what}: {why}")
    spec = dataclasses.replace(found.fitted.spec, net=plain.spec.net)
    return fit(spec, plain.shapes), found.folds.of(plain.shapes)


def _check_tied(model: Checkpoint, fitted: FittedSpec) -> None:
    """Tied tensors must be permuted alike. Raises SpecError where the spec knows nothing of the tie."""
    problems = []
    for group in model.tied:
        axes: dict[tuple[Any, Any], str] = {}
        for name in group:
            axes.setdefault((fitted.tensors.get(name), fitted.places.get(name)), name)
        if len(axes) > 1:
            said = (
                f'{name} is "{" ".join(map(str, a)) if a else "ignored"}"'
                + (f" at {place[1]} of {place[0]}" if place else "")
                for (a, place), name in axes.items()
            )
            problems.append(f"{' = '.join(group)} share storage, but {', '.join(said)}")
    if problems:
        raise SpecError(
            f"{fitted.spec.source} permutes tensors differently that are tied in {model.path}",
            problems=problems,
            hint="Save them untied (a clone of each), or write a spec that permutes them alike",
        )
