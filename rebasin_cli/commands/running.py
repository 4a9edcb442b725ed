"""Names to a network that runs: which one it is, whose, and a batch that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from .. import nets, networks
from ..checkpoints.checkpoint import Checkpoint
from ..datasets import open_data
from ..errors import NetworkError, UsageError
from ..networks import inputs
from ..runtime.seeds import generator
from ..spec.spec import FittedSpec
from .settings import Settings


def find_network(fitted: FittedSpec, settings: Settings, say: Callable[[str], None]) -> nn.Module | None:
    """The network on the CPU, in float32; None where nobody names one.

    Raises NetworkError for one that cannot be made, or that has other tensors.
    """
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
    """As `find_network`; raises UsageError where nobody names one."""
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
