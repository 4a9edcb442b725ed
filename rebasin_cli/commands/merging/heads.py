"""Two models whose classifiers differ in size, aligned by all that they share.

While permutations are searched the heads hold zeros, which say nothing: so units are matched by the body
alone. Then the second model's head has its inputs permuted as the body says, and both are put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...averages.combining import joined_head
from ...averages.parts import parts_of
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.tensors import LazyTensors, plan_of, rows
from ...errors import SpecError, UsageError
from ...session import method_options
from ...session.models import naming
from ...session.session import Session
from ...spec.fitting import fit
from ...spec.spec import Spec
from ...symmetry.permutation import permuted
from ...types import Permutations


@dataclass(frozen=True)
class Heads:
    """The heads of two models by name, `how` they are put together, and the models as they are."""

    names: tuple[str, ...]
    how: str
    models: tuple[Checkpoint, Checkpoint]

    def put_back(
        self, merged: Mapping[str, Tensor], spec: Spec, found: Permutations | None, weights: Any
    ) -> LazyTensors:
        """The merged tensors with the heads of both; the second's in the order of the first's units."""
        a, second = self.models
        b = second if found is None else permuted(second, fit(spec, second.shapes), found)
        weights = list(weights or (0.5, 0.5))
        made = {}
        for name in self.names:
            if self.how != "drop":
                made[name] = joined_head([a[name], b[name]], weights, self.how, a.dtypes[name])
        plan = {name: planned for name, planned in plan_of(merged).items() if name not in self.names}
        plan |= {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in made.items()}

        def part(name: str, start: int, stop: int) -> Tensor:
            return made[name][start:stop] if name in made else rows(merged, name, start, stop)

        return LazyTensors(
            {name: shape for name, (_, shape) in plan.items()},
            {name: dtype for name, (dtype, _) in plan.items()},
            lambda name: made[name] if name in made else merged[name],
            part,
        )


def set_aside(session: Session, how: str | None) -> tuple[Session, Heads | None]:
    """The session without the heads that differ, and these; None where none differs, or nobody asks.

    Raises UsageError for methods and repairs that run the network, which has one head, SpecError where the
    spec permutes the rows of a head.
    """
    if how is None:
        return session, None
    if session.asked.search.groups != "permutations":
        raise UsageError(
            "--heads: --groups all folds norms into heads, and turns what they read",
            hint="Leave one of them out",
        )
    with naming(session.paths):
        parts = parts_of(session.models, heads=how)
    names = parts.dropped if how == "drop" else parts.heads
    if not names:
        session.say(f"--heads {how} changes nothing: no head differs")
        return session, None
    if method_options.needs_data(session.method):
        raise UsageError(
            f"--heads: the method {session.asked.search.method} runs a network with one head on data",
            hint="Match by weights alone: --method wm",
        )
    asked = session.asked.repair
    if asked.repair not in ("auto", "none", "reset") or asked.bake_temperature:
        raise UsageError(
            "--heads: this repair is measured by what a network with one head computes",
            hint="Choose --repair none, or reset for BatchNorm",
        )
    a, b = session.models
    apart = session.over([_without(model, names, a) for model in (a, b)], session.asked)
    if not apart.fitted.statistics:
        apart.asked = replace(session.asked, repair=replace(asked, repair="none"))
    with naming(session.paths):
        if fit(apart.fitted.spec, b.shapes).words != apart.fitted.words:
            raise SpecError(f"{apart.fitted.spec.source} permutes the rows of a head that differs")
    session.say(f"heads set aside while aligning: {', '.join(names)}")
    return apart, Heads(names, how, (a, b))


def _without(model: Checkpoint, names: tuple[str, ...], like: Checkpoint) -> Checkpoint:
    """The model with zeros in these tensors, in the shapes of another; its digest stays its own."""

    def read(name: str) -> Tensor:
        return torch.zeros(like.shapes[name], dtype=model.dtypes[name]) if name in names else model.read(name)

    def part(name: str, start: int, stop: int) -> Tensor:
        return read(name)[start:stop] if name in names else model.read_rows(name, start, stop)

    shapes = model.shapes | {name: like.shapes[name] for name in names}
    masked = replace(model, shapes=shapes, read=read, read_rows=part)
    masked.__dict__["_digest"] = model.digest()
    return masked
