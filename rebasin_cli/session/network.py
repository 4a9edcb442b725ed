"""Names to a network that runs: which one it is, whose, and a batch that it takes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from .. import nets, networks
from ..checkpoints.checkpoint import Checkpoint
from ..datasets import open_data
from ..errors import NetworkError, UsageError
from ..learning import initial
from ..networks import hub, inputs
from ..runtime.seeds import generator
from ..spec.spec import FittedSpec
from ..types import Shapes
from .subjects import Data, Loading, Network


def find_network(
    fitted: FittedSpec, network: Network, say: Callable[[str], None], *, named: bool = False
) -> nn.Module | None:
    """The network on the CPU, in float32; None where nobody names one.

    `named`: the user named the spec. Raises NetworkError for one that cannot be made, or that has other
    tensors.
    """
    try:
        found = networks.resolve(network.net, fitted.spec, fitted.shapes, trust_code=network.trust_code)
    except NetworkError as error:
        if network.net or named:
            raise
        raise NetworkError(  # nobody said that it was such a network: only the tensors' names did
            f"{error.message}; {fitted.spec.source} was found from their names",
            problems=error.problems,
            hint="If yours is another network, give it with --net file.py:factory and --spec FILE.yaml",
        ) from None
    named_as = network.net or fitted.spec.net
    if found is not None and named_as and (network.net or nets.own_factory(named_as) is None):
        _tell(found, named_as, say)
    return None if found is None else found.float()


def begin_alike(fitted: FittedSpec, network: Network) -> frozenset[str]:
    """The tensors that two fresh networks, as `find_network` gives them, have equal."""

    def built() -> nn.Module:
        found = networks.resolve(network.net, fitted.spec, fitted.shapes, trust_code=network.trust_code)
        if found is None:
            raise none_named(fitted)
        return found

    return initial.begin_alike(built)


def given_network(shapes: Shapes, network: Network, say: Callable[[str], None]) -> nn.Module:
    """The network of `--net` for these tensors, which needs no spec; as `find_network` gives it."""
    if network.net is None:
        raise LookupError("no network is given with --net")
    found = networks.from_reference(network.net, shapes)
    _tell(found, network.net, say)
    return found.float()


def _tell(module: nn.Module, reference: str, say: Callable[[str], None]) -> None:
    say(f"network: {type(module).__name__} from {reference}")


FACTORY = "--net file.py:factory"


def named_network(path: Path, loading: Loading, network: Network) -> str | None:
    """What tells a network: `--net`, `--config`, or the configuration in a folder; None for none."""
    if network.net is not None:
        return network.net
    with suppress(NetworkError, OSError):  # `fit_spec` says it, and who opens it
        name = hub.named_by(loading.config) if loading.config is not None else hub.of_folder(path)
        return name if name is not None and hub.is_installed(name) else None
    return None


def none_named(fitted: FittedSpec, line: str = "") -> UsageError:
    """What to say where a network is needed and nobody names one; `line` is what to type."""
    return UsageError(
        f"{fitted.spec.source} names no network, and this needs one",
        hint=f"Give yours with {FACTORY} (a function that returns the torch.nn.Module)"
        + (f": {line}" if line else ""),
    )


def line_of(command: str, paths: Sequence[Path], *, data: bool) -> str:
    """What to type so that nothing else is asked for: the network, and `data` where none is named."""
    files = " ".join(shlex.quote(str(path)) for path in paths)
    more = " --data NAME" if data else ""
    return f"rebasin {command} {files} {FACTORY}{more}"


def origin(
    module: nn.Module, fitted: FittedSpec, models: Sequence[Checkpoint], network: Network
) -> dict[str, Any]:
    """Whose network a proof ran on, for its account: the one that `find_network` gave.

    `assumed` where only the tensors' names tell: the user's may compute something else with the same tensors.
    """
    if network.net is not None:
        return {"network": "given with --net", "assumed": False}
    if nets.own_factory(fitted.spec.net) is None:
        return {"network": f"named by {fitted.spec.source}", "assumed": False}
    own = f"rebasin's own {type(module).__name__}"
    if not models:
        return {"network": own, "assumed": False}
    net = fitted.spec.net or ""
    if all(nets.is_from(model.metadata.get("rebasin.net"), net) for model in models):
        return {"network": "recorded in the checkpoint" + "s" * (len(models) > 1), "assumed": False}
    return {"network": f"{own}, assumed from the tensors' names", "assumed": True}


def proof_inputs(
    module: nn.Module, network: Network, data: Data | None = None, splits: Mapping[str, Any] | None = None
) -> Any:
    """One batch for the proof: of `--input`, of the data, or None where the network knows its own.

    A tensor, a tuple, or a dict of keywords. Raises UsageError for an `--input` that cannot be read, and for
    a single shape of another rank than the network's `example_shape`.
    """
    if network.input is not None:
        wanted = inputs.parse(network.input)
        if len(wanted) == 1 and wanted[0].plain:
            parse_shape(network.input, like=getattr(module, "example_shape", None))
        args, kwargs = inputs.draw(wanted, generator(network.seed, "proof inputs"))
        return args[0] if len(args) == 1 and not kwargs else networks.batch_of(module, args, kwargs)
    if hasattr(module, "example_shape") or hasattr(module, "example_batch"):
        return None
    if splits:
        return next(iter(splits.values())).example()
    if data is not None and data.data is not None:
        return open_data(
            data.data, "test", root=data.data_root, normalize=data.normalize, targets=data.targets
        ).example()
    return None


def need_inputs(module: nn.Module, network: Network, data: Data | None = None) -> Any:
    """As `proof_inputs`, or drawn where the network knows its own. Raises UsageError without either.

    `data` is None where a command takes none.
    """
    batch = proof_inputs(module, network, data)
    if batch is None:
        batch = networks.example_inputs(module, generator(network.seed, "prove inputs"))
    if batch is None:
        raise UsageError(
            "the network does not say what it takes",
            hint="Give a shape with --input 1x3x224x224, token ids with --input 2x16:int30522, "
            "several with commas between"
            + ("" if data is None else "; or data to take it from: --data NAME"),
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
