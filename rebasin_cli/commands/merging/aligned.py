"""Models aligned to the first, averaged and repaired: what `rebasin merge` does unless told otherwise."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...averages.parts import check_still, parts_of
from ...averages.tensors import joined_head
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.tensors import LazyTensors, plan_of, rows
from ...errors import SpecError, UsageError
from ...repair.means import repaired_mean
from ...session import method_options
from ...session.method_options import how_it_went
from ...session.models import naming
from ...session.session import Session
from ...spec.fits import fit
from ...spec.notation import words_of
from ...spec.spec import Spec
from ...symmetry.permutation import permuted
from ...types import Permutations
from ..verbs import endpoints, needs, plans, provenance, repairs, search, symmetries
from ..verbs.outputs import Output, write, write_as_planned
from ..verbs.proof import prove
from ..verbs.ranks import check_same
from ..verbs.repairs import RepairPlan
from . import configs, declared
from .average import Average


def merge(session: Session, output: Output, mean: Average) -> dict[str, Any]:
    """Align all models to the reference, average them, repair what averaging broke; write one model."""
    mean.check_aligned()
    if not session.asked.data.skip_checks:
        its = session.named
        declared.check(its, [*its[0].shapes], session.say, by_number=mean.heads == "average")
    session = session if mean.heads else search.chosen(session)
    session, aside = set_aside(session, mean.heads)
    needs.check(session, output)
    search.check_needs(session)
    _check_still(session)
    if not session.moved:
        endpoints.tell(session.named, session.say)
    repair = repairs.planned(session)
    if output.dry_run:
        return plans.of_search(session, output) | repairs.describe(session, repair)
    why = repairs.not_shared(session, repair)
    if session.method == "auto" or session.grouped or why:
        why = "groups are searched by one process" if session.grouped else why
        why = "auto goes by the clock" if session.method == "auto" else why
        return session.by_first(why, lambda alone: _merge(alone, output, mean, aside, repair))
    check_same(session, {"the spec": lambda: (session.fitted.spec.name, session.fitted.spec.digest)})
    return _merge(session, output, mean, aside, repair)


def _check_still(session: Session) -> None:
    """Raise SpecError, before an hour of searching, for tables and integers that differ and no word moves."""
    fitted = session.fitted
    moved = {name for name, axes in fitted.tensors.items() if any(any(words_of(axis)) for axis in axes)}
    with naming(session.paths):
        check_still(
            session.named, [n for n in fitted.shapes if n not in moved], dict.fromkeys(fitted.ignored, "")
        )


def _merge(
    session: Session, output: Output, mean: Average, aside: Heads | None, repair: RepairPlan
) -> dict[str, Any]:
    """The same, once it is known what is done; of several ranks each has all models, and writes its share."""
    repair, of_given = repairs.opened(session, repair), session.of_given
    inputs, proof = repairs.to_try(repair, session.asked.repair, search.inputs(session)), prove(session)
    wide = symmetries.Wide.of(session, proof, able=bool(inputs))
    with search.resumable(session, output) as state:
        found = search.find(session, state, given=inputs, wider=None if wide is None else wide.open)
        session, proof = (wide and wide.taken(found)) or (session, proof)
        repair = repairs.chosen(session, repair, found)
        models = session.standing(found)
        with naming(session.paths):
            averaged, done = repaired_mean(
                models,
                session.fitted,
                mean.numbers,
                interpolation=mean.interpolation,
                repairs=None if repair.how == "none" else repairs.of(session, repair, models),
                network=repair.network,
                held=repair.splits.get("held"),
                unseen=session.unseen,
                output=session.output,
                done=repair.done,
            )
        tensors, options, account = repairs.finish(session, repair, averaged, done)
        options |= {"weights": list(mean.weights or []), "interpolation": mean.interpolation}
        options |= of_given | how_it_went(found)
        options |= {"heads": aside.how} if aside else {}
        describe = functools.partial(provenance.of_session, session, options=options, proof=proof.account)
        meta = session.ranks.first(describe, like=session.models)
        how: dict[str, Any] = {"say": session.say, "ranks": session.ranks}
        if aside is None:
            output = configs.fitted(output, session.models, session.models[0].shapes, session.say)
            added = done.repaired.added if done.repaired else ()
            written = write(output, tensors, session.models[0], meta, added=added, **how)
        else:
            order = session.element(found).permutations
            whole = aside.put_back(tensors, session.fitted.spec, order, mean.numbers)
            output = configs.fitted(output, aside.models, whole.shapes, session.say, heads=aside.how)
            written = write_as_planned(output, whole, meta, around=session.models[0], **how)
    return search.summary(session, found, proof, written=written) | {"models": len(session.paths)} | account


@dataclass(frozen=True)
class Heads:
    """The heads of two models by name, `how` they are put together, and the models as they are."""

    names: tuple[str, ...]
    how: str
    models: tuple[Checkpoint, Checkpoint]

    def put_back(
        self, merged: Mapping[str, Tensor], spec: Spec, order: Permutations, weights: Any
    ) -> LazyTensors:
        """The merged tensors with the heads of both; the second's in the order of the first's units."""
        a, second = self.models
        b = permuted(second, fit(spec, second.shapes), order)
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
    if session.grouped:
        raise UsageError(
            "--heads: groups beyond permutations fold norms into heads, and turn what these read",
            hint="Leave one of them out",
        )
    with naming(session.paths):
        parts = parts_of(session.named, heads=how)
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
    a, b = session.named
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
