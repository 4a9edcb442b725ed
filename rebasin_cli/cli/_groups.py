"""Options that go together, and a decorator that gives them to a command.

    @app.command()
    @g.shared(g.LOADING, g.NETWORK)
    def command(model: Path, **options: Any) -> None: ...

The command gets what was given under the names of these options; help shows them after its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, Signature, signature
from typing import Any, get_args, get_type_hints

from ..commands.settings import Settings
from . import _options as o

Group = dict[str, tuple[Any, Any]]  # parameter: its annotation and default
DEFAULTS = {field.name: field.default for field in fields(Settings)}


def _group(**hints: Any) -> Group:
    """Options with the defaults of `Settings`; what is none of these is False for a switch, else None."""
    return {
        name: (hint, DEFAULTS.get(name, False if get_args(hint)[0] is bool else None))
        for name, hint in hints.items()
    }


LOADING = _group(spec=o.Spec, key=o.Key, unsafe_load=o.UnsafeLoad)
NETWORK = _group(
    net=o.Net,
    trust_code=o.TrustCode,
    input=o.Input,
    output=o.OutputKey,
    device=o.Device,
    seed=o.Seed,
)
DATA = _group(data=o.Data, data_root=o.DataRoot, normalize=o.Normalize)
SAMPLES = _group(limit=o.Limit, batch_size=o.BatchSize)
SCORES = _group(loss=o.Loss, metric=o.Metric, skip_checks=o.SkipChecks)
SEARCH = _group(
    max_sweeps=o.MaxSweeps,
    effort=o.Effort,
    memory=o.Memory,
    cost=o.Cost,
    at=o.At,
    sites=o.Sites,
    mix=o.Mix,
)
STRAIGHT_THROUGH = _group(
    epochs=o.Epochs,
    optimizer=o.Optimizer,
    learning_rate=o.LearningRate,
    share=o.Share,
    init=o.Init,
    precision=o.Precision,
    mixture=o.Mixture,
    parameter=o.Parameter,
)
FOR_MANY = STRAIGHT_THROUGH | _group(weights_prior=o.WeightsPrior)
KEPT = _group(checkpoint_every=o.CheckpointEvery, log=o.Log, resume=o.Resume)
WRITTEN = _group(force=o.Force, out_dtype=o.OutDtype, out_shard_size=o.OutShardSize)
TOLD = _group(quiet=o.Quiet, verbose=o.Verbose)


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
