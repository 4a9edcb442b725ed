"""Options that go together, and a decorator that gives them to a command.

    @app.command()
    @g.shared(g.LOADING, g.NETWORK)
    def command(model: Path, **options: Any) -> None: ...

The command gets what was given under the names of these options; help shows them after its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

from . import _options as o

Group = Mapping[str, tuple[Any, Any]]  # parameter: its annotation and default

LOADING: Group = {"spec": (o.Spec, None), "key": (o.Key, None), "unsafe_load": (o.UnsafeLoad, False)}
NETWORK: Group = {
    "net": (o.Net, None),
    "trust_code": (o.TrustCode, False),
    "input": (o.Input, None),
    "output": (o.OutputKey, None),
    "device": (o.Device, "auto"),
    "seed": (o.Seed, 0),
}
DATA: Group = {
    "data": (o.Data, None),
    "data_root": (o.DataRoot, None),
    "normalize": (o.Normalize, None),
}
SAMPLES: Group = {
    "limit": (o.Limit, None),
    "batch_size": (o.BatchSize, 500),
}
SCORES: Group = {"loss": (o.Loss, None), "metric": (o.Metric, None), "skip_checks": (o.SkipChecks, False)}
SEARCH: Group = {
    "max_sweeps": (o.MaxSweeps, None),
    "effort": (o.Effort, None),
    "memory": (o.Memory, None),
    "cost": (o.Cost, None),
    "at": (o.At, None),
    "sites": (o.Sites, None),
    "mix": (o.Mix, None),
}
STRAIGHT_THROUGH: Group = {
    "epochs": (o.Epochs, None),
    "optimizer": (o.Optimizer, None),
    "learning_rate": (o.LearningRate, None),
    "share": (o.Share, None),
    "init": (o.Init, None),
    "precision": (o.Precision, None),
    "mixture": (o.Mixture, None),
    "parameter": (o.Parameter, None),
}
FOR_MANY: Group = {**STRAIGHT_THROUGH, "weights_prior": (o.WeightsPrior, None)}
KEPT: Group = {
    "checkpoint_every": (o.CheckpointEvery, None),
    "log": (o.Log, None),
    "resume": (o.Resume, False),
}
WRITTEN: Group = {
    "force": (o.Force, False),
    "out_dtype": (o.OutDtype, None),
    "out_shard_size": (o.OutShardSize, None),
}
TOLD: Group = {"quiet": (o.Quiet, False), "verbose": (o.Verbose, False)}


def shared(*groups: Group) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Put the groups' options into the signature of a command that takes `**options`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[name])
            for name, parameter in signature(command).parameters.items()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        more = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for group in groups
            for name, (hint, default) in group.items()
        ]
        command.__signature__ = Signature([*own, *more])
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *more]}
        return command

    return decorate
