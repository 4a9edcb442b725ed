"""Files and names to values: models, spec, network, data. What can be refused early is refused here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import inputs, matchers, nets, networks, permutation
from .api import INTERPOLATIONS, resolve_spec
from .checkpoint import Checkpoint, open_checkpoint, validate
from .datasets import open_data
from .datasets._batches import map_tensors
from .errors import CheckpointError, NetworkError, SpecError, UsageError, unknown
from .merging import average
from .randomness import generator
from .ranks import ALONE, Ranks
from .repair import MATCHES, REPAIRS
from .spec.notation import Axis
from .spec.spec import FittedSpec, Shapes
from .tensors import LazyTensors, digest

if TYPE_CHECKING:
    from .spec.infer import Inferred


@dataclass(frozen=True)
class Settings:
    """The options that several commands share, as the user wrote them; None is "find out"."""

    spec: str | None = None
    net: str | None = None
    trust_code: bool = False
    key: str | None = None
    unsafe_load: bool = False
    data: str | None = None
    data_root: Path | None = None
    normalize: str | None = None
    limit: int | None = None
    batch_size: int = 500
    loss: str | None = None
    metric: str | None = None
    output: str | None = None
    input: str | None = None
    device: str = "auto"
    seed: int = 0
    method: str = "wm"
    max_sweeps: int | None = None
    effort: str | None = None
    memory: int | None = None
    bound: bool = False
    cost: str | None = None
    at: str | None = None
    sites: str | None = None
    mix: float | None = None
    epochs: int | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    share: float | None = None
    init: str | None = None
    precision: str | None = None
    mixture: str | None = None
    parameter: str | None = None
    weights_prior: str | None = None
    checkpoint_every: int | None = None
    log: Path | None = None
    prove: bool = True
    repair: str = "auto"
    new_bias: bool = False
    bake_temperature: bool = False
    full: bool = False
    skip_checks: bool = False


def read_models(
    paths: Sequence[Path], settings: Settings, say: Callable[[str], None], ranks: Ranks = ALONE
) -> list[Checkpoint]:
    """Open checkpoints and check their values. Says what was chosen on opening.

    Several `ranks` look at the values of a share each: that reads whole files, which may lie far away.
    """
    models = []
    for path in paths:
        model = open_checkpoint(path, key=settings.key, unsafe_load=settings.unsafe_load)
        for note in model.notes:
            say(f"{path}: {note}")
        validate(_share(model, ranks), name=str(path))
        if not len(model):
            raise CheckpointError(f"{path} holds no tensors")
        models.append(model)
    return models


def _share(model: Checkpoint, ranks: Ranks) -> Mapping[str, torch.Tensor]:
    """The tensors that are this rank's to look at."""
    if ranks.size == 1:
        return model
    mine = ranks.share(list(model.shapes), [math.prod(shape) for shape in model.shapes.values()])
    return LazyTensors(
        {name: shape for name, shape in model.shapes.items() if name in mine},
        {name: dtype for name, dtype in model.dtypes.items() if name in mine},
        model.read,
    )


def fit_spec(models: Sequence[Checkpoint], settings: Settings, say: Callable[[str], None]) -> FittedSpec:
    """The spec of these models: named, found or inferred; SpecError with the files where it does not fit."""
    with naming([model.path for model in models]):
        spec = infer_spec(models[0].shapes, settings, say).spec if settings.spec == "infer" else settings.spec
        fitted = resolve_spec(spec, models)
        for model in models:
            check_tied(model, fitted)
    if settings.spec is None:
        words = len(fitted.words)
        many = "1 permutation" if words == 1 else f"{words} permutations"
        say(f"spec: {fitted.spec.name}, found from the tensors ({many})")
    return fitted


def infer_spec(shapes: Shapes | None, settings: Settings, say: Callable[[str], None]) -> Inferred:
    """The spec read off the network of `--net`, as large as these tensors where the factory asks for shapes.

    Raises UsageError where the network or its input is not named, NetworkError where it cannot be traced.
    """
    from .spec.infer import infer  # torch.export takes a second to import

    if settings.net is None:
        raise UsageError(
            "a spec is inferred from the network, and none is named",
            hint="Give yours with --net file.py:factory (a function that returns the torch.nn.Module)",
        )
    network = networks.from_reference(settings.net, shapes)
    batch = map_tensors(lambda t: t.float() if t.is_floating_point() else t, need_inputs(network, settings))
    args, kwargs = ((), batch) if isinstance(batch, Mapping) else (batch, {})
    found = infer(network.float(), args, kwargs, output=settings.output)
    for frozen in found.reasons:
        say(f"stays: {', '.join(frozen.places[:3])}{' …' * (len(frozen.places) > 3)}: {frozen.why}")
    return found


@contextmanager
def naming(paths: Sequence[Path]) -> Iterator[None]:
    """Put file names into what the core raises, once: into its message, and for "model 1", "model 2" …"""
    try:
        yield
    except (SpecError, CheckpointError) as error:
        names = {f"in model {k}": f"in {path}" for k, path in enumerate(paths, start=1)}
        problems = [
            re.sub(r"in model \d+\b", lambda found: names.get(found[0], found[0]), problem)
            for problem in error.problems
        ]
        message, first = error.message, str(paths[0])
        if message.endswith("does not fit"):
            message = f"{message} {first}"
        elif len(paths) == 1 or "no built-in spec" in message or "do not fit" in message:
            message = f"{first}: {message}"
        hint = error.hint or (
            f"See what a file holds with: rebasin inspect {first}" if len(paths) > 1 else None
        )
        raise type(error)(message, problems=problems, hint=hint) from None


def check_tied(model: Checkpoint, fitted: FittedSpec) -> None:
    """Tied tensors must be permuted alike. Raises SpecError where the spec knows nothing of the tie."""
    problems = []
    for group in model.tied:
        axes: dict[tuple[Axis, ...] | None, str] = {}
        for name in group:
            axes.setdefault(fitted.tensors.get(name), name)
        if len(axes) > 1:
            said = (f'{name} is "{" ".join(map(str, a)) if a else "ignored"}"' for a, name in axes.items())
            problems.append(f"{' = '.join(group)} share storage, but {', '.join(said)}")
    if problems:
        raise SpecError(
            f"{fitted.spec.source} permutes tensors differently that are tied in {model.path}",
            problems=problems,
            hint="Save them untied (a clone of each), or write a spec that permutes them alike",
        )


def read_permutation(path: Path, fitted: FittedSpec) -> tuple[dict[str, Any], dict[str, str]]:
    """A saved permutation for this very spec, and what an output records of it.

    Raises SpecError if it was found with another spec, CheckpointError if it does not fit.
    """
    found, made = permutation.load(path)
    if made.get("rebasin.spec_sha256") not in (None, fitted.spec.digest):
        raise SpecError(
            f"{path} was found with another spec ({made.get('rebasin.spec')}) than {fitted.spec.source}",
            hint="Name the same one with --spec",
        )
    with naming([path]):
        permutation.check(found, fitted.words, within=fitted.within)
    return found, {"permutation": digest(found)}


def check_method(settings: Settings, *, or_none: bool = False) -> None:
    """Raise UsageError for a method that there is not, before anything is read."""
    if settings.method == "none" and or_none:
        return
    if settings.method == "none":
        raise UsageError("--method none leaves nothing to do", hint="Choose one of: rebasin list methods")
    known = [*matchers.registry.names(), *["none"] * or_none]
    if settings.method not in known:
        raise unknown("method", settings.method, known)


def check_merge(models: int, weights: Sequence[float] | None, interpolation: str, *, given: bool) -> None:
    """Raise UsageError for what cannot be merged so, before an hour of searching."""
    if models < 2:
        raise UsageError("merging takes at least two models", hint="rebasin merge A B …")
    if interpolation not in INTERPOLATIONS:
        raise unknown("interpolation", interpolation, INTERPOLATIONS)
    if interpolation == "slerp" and models != 2:
        raise UsageError(f"slerp joins two models, not {models}", hint="Use --interpolation linear")
    if given and models != 2:
        raise UsageError(
            f"--perm is for the second of two models, not of {models}",
            hint="Apply it first: rebasin apply PERM MODEL -o aligned.safetensors",
        )
    if weights is not None:
        average([{}] * models, weights)  # only its checks


def reference_first(
    paths: Sequence[Path], reference: Path | None, weights: Sequence[float] | None
) -> tuple[Sequence[Path], Sequence[float] | None]:
    """The models, and their weights, in an order that begins with the reference. Raises UsageError."""
    if reference is None or not paths or paths[0] == reference:
        return paths, weights
    if reference not in paths:
        raise UsageError(
            f"--reference {reference} is none of the models",
            problems=[str(path) for path in paths],
            hint="Name one of those that are merged, written alike",
        )
    if weights is not None and len(weights) != len(paths):
        average([{}] * len(paths), weights)  # its error
    first = list(paths).index(reference)
    order = [first, *(k for k in range(len(paths)) if k != first)]
    return [paths[k] for k in order], weights and [weights[k] for k in order]


def check_pairs(
    pairs: Sequence[tuple[Path, Path]], fitted: FittedSpec, settings: Settings, *, given: bool
) -> None:
    """Raise for further pairs that cannot be measured as the first one is, before an hour of measuring."""
    if pairs and given:
        raise UsageError(
            "a permutation file (--perm, --init) is for one pair of models, and --pair names more",
            hint="Align each first (rebasin align), then measure with --method none",
        )
    for pair in pairs:
        models = read_models(pair, settings, lambda text: None)
        other = fit_spec(models, settings, lambda text: None)
        if other.spec.digest != fitted.spec.digest or other.shapes != fitted.shapes:
            raise UsageError(
                f"--pair {pair[0]},{pair[1]}: these have another architecture than the first pair",
                hint="A mean over pairs is one over models that differ in nothing but their training",
            )


def find_network(fitted: FittedSpec, settings: Settings, say: Callable[[str], None]) -> nn.Module | None:
    """The network on the CPU, in float32; None where nobody names one."""
    try:
        network = networks.resolve(settings.net, fitted.spec, fitted.shapes, trust_code=settings.trust_code)
    except NetworkError as error:
        if settings.net or settings.spec:
            raise
        raise NetworkError(  # nobody said that it was such a network: only the tensors' names did
            f"{error.message}; {fitted.spec.source} was found from their names",
            problems=error.problems,
            hint="If yours is another network, give it with --net file.py:factory and --spec FILE.yaml",
        ) from None
    if network is not None and (settings.net or not fitted.spec.net.startswith(networks.OWN)):
        say(f"network: {type(network).__name__} from {settings.net or fitted.spec.net}")
    return None if network is None else network.float()


def need_network(fitted: FittedSpec, settings: Settings, say: Callable[[str], None]) -> nn.Module:
    network = find_network(fitted, settings, say)
    if network is None:
        raise UsageError(
            f"{fitted.spec.source} names no network, and this needs one",
            hint="Give yours with --net file.py:factory (a function that returns the torch.nn.Module)",
        )
    return network


def origin(
    network: nn.Module, fitted: FittedSpec, models: Sequence[Checkpoint], settings: Settings
) -> dict[str, Any]:
    """Whose network a proof ran on, for its account: the one that `find_network` gave.

    `assumed` where only the tensors' names tell: the user's may compute something else with the same tensors.
    """
    if settings.net is not None:
        return {"network": "given with --net", "assumed": False}
    if not fitted.spec.net.startswith(networks.OWN):
        return {"network": f"named by {fitted.spec.source}", "assumed": False}
    own = f"rebasin's own {type(network).__name__}"
    if not models:
        return {"network": own, "assumed": False}
    if all(nets.is_from(model.metadata.get("rebasin.net"), fitted.spec.net) for model in models):
        return {"network": "recorded in the checkpoint" + "s" * (len(models) > 1), "assumed": False}
    return {"network": f"{own}, assumed from the tensors' names", "assumed": True}


def proof_inputs(network: nn.Module, settings: Settings, splits: Mapping[str, Any] | None = None) -> Any:
    """One batch for the proof: of `--input`, of the data, or None where the network knows its own.

    A tensor, a tuple, or a dict of keywords. Raises UsageError for an `--input` that cannot be read, and for
    a single shape of another rank than the network's `example_shape`.
    """
    if settings.input is not None:
        wanted = inputs.parse(settings.input)
        if len(wanted) == 1 and wanted[0].plain:
            parse_shape(settings.input, like=getattr(network, "example_shape", None))
        args, kwargs = inputs.draw(wanted, generator(settings.seed, "proof inputs"))
        return args[0] if len(args) == 1 and not kwargs else networks.batch_of(network, args, kwargs)
    if hasattr(network, "example_shape"):
        return None
    if splits:
        return next(iter(splits.values())).example()
    if settings.data is not None:
        return open_data(
            settings.data, "test", root=settings.data_root, normalize=settings.normalize
        ).example()
    return None


def need_inputs(network: nn.Module, settings: Settings) -> Any:
    """As `proof_inputs`, or drawn where the network knows its own. Raises UsageError without either."""
    batch = proof_inputs(network, settings)
    if batch is None:
        batch = networks.example_inputs(network, generator(settings.seed, "prove inputs"))
    if batch is None:
        raise UsageError(
            "the network does not say what it takes",
            hint="Give a shape with --input 1x3x224x224, token ids with --input 2x16:int30522, "
            "several with commas between",
        )
    return batch


def parse_shape(text: str, *, like: Sequence[int] | None = None) -> tuple[int, ...]:
    """`1x3x224x224` to (1, 3, 224, 224), the batch first: one tensor of floats and nothing else.

    `like` is one input without the batch; a vector stands for anything that can be flattened. Raises
    UsageError, also for a shape of another rank.
    """
    if (shape := inputs.shape_of(text)) is None:
        raise UsageError(
            f"--input {text!r} is not a shape", hint="Write it like 1x3x224x224, the batch first"
        )
    if len(shape) < 2 or (like is not None and len(like) > 1 and len(shape) != len(like) + 1):
        wanted = "x".join(map(str, (1, *(like or (784,)))))
        raise UsageError(
            f"--input {text!r} is no batch of inputs: {len(shape)} sizes",
            hint=f"Write it like {wanted}, the batch first",
        )
    return shape


def choose_device(name: str) -> str:
    """`auto` is the first of cuda, mps and cpu that is there. Raises UsageError for one that is not."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, available in there.items() if available)
    if name.split(":")[0] not in there:
        raise unknown("device", name, ["auto", *there])
    if not there[name.split(":")[0]]:
        raise UsageError(f"device {name} is not available here", hint="Use --device cpu")
    return name


def choose_repair(fitted: FittedSpec, settings: Settings, *, has_data: bool) -> str:
    """ "reset" where there are running statistics and data, unless told otherwise.

    There "repair" is "reset" too. "auto" stays where it is to be chosen by held-out loss: with data, and
    without running statistics. Raises UsageError for running statistics without data, whose average
    describes neither model, and for a repair that this network or a lack of data rules out.
    """
    if settings.repair not in ("auto", *REPAIRS):
        raise unknown("repair", settings.repair, ["auto", *REPAIRS])
    if settings.new_bias and settings.repair not in ("repair", "reshift"):
        raise UsageError("--allow-new-bias is for --repair repair or reshift")
    if not fitted.statistics and settings.repair in (*MATCHES, "bias"):
        if settings.repair != "bias" and not has_data:
            raise UsageError(
                f"--repair {settings.repair} measures channels on training samples, and no data set is known",
                hint="Name one with --data, or choose --repair bias, which needs none",
            )
        return settings.repair
    if settings.repair == "auto" and not fitted.statistics and has_data:
        return "auto"
    if settings.repair == "none" or not fitted.statistics:
        if settings.repair == "reset":
            raise UsageError("--repair reset: this network has no running statistics to reset")
        return "none"
    if fitted.statistics and settings.repair not in ("auto", "reset", "repair"):
        raise UsageError(
            f"--repair {settings.repair} is for networks without BatchNorm, and this one has its statistics",
            hint="Re-estimate them with --repair reset",
        )
    if not has_data:
        raise UsageError(
            "this network has BatchNorm statistics, and averaging them makes a broken model",
            hint="Re-estimate them with --data NAME, or merge all the same with --repair none",
        )
    return "reset"
