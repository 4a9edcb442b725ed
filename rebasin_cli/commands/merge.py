"""`rebasin merge`: one model from two or many."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..averages.weights import parse
from ..errors import UsageError
from ..registry.options import READS, again, argument
from ..registry.results import IN_JSON_ONLY, UNSET, Plan, Result, Unset
from ..runtime.ranks import ALONE, Ranks
from ..runtime.text import some
from ..session.asked import of, subjects_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, OutModel, Screen, Weights
from ..session.request import Subjects
from ..session.search_options import (
    Grouping,
    Interruptible,
    Method,
    Methods,
    Polishing,
    Proving,
    Repair,
    Repairing,
)
from ..session.session import Session
from ..session.subjects import Bounded, Choice, Choosing, DataSet, Loading, Network, Samples, Scoring
from .merging import adapters, aligned, curved, plain, soups
from .merging.average import Average, Averaging, Mean
from .verbs import search
from .verbs.outputs import Output, check_outputs, output_of
from .verbs.provenance import attested

PANEL = "Align and merge"
TOGETHER = True

Way = Callable[[Session, Output, Average], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Merge(
    Averaging,
    Loading,
    Bounded,
    Network,
    DataSet,
    Samples,
    Choosing,
    Methods,
    Grouping,
    Polishing,
    Repairing,
    Interruptible,
    Weights,
    Screen,
):
    """Align models to the first (or to one another: --method merge-many, universe) and average them.

    Networks with BatchNorm need data: their running statistics are re-estimated on training samples.
    Others may gain from a repair: with data and a known network, --repair auto takes what lowers the loss.
    With data, --method ste-mm learns all permutations together, by the loss of mixtures; it takes longest.

    --method none averages models as they are, as rebasin average does, which has more for that.

    Example: rebasin merge a.pt b.pt c.pt --method merge-many -o merged.safetensors
    """

    COMMON = (
        "out",
        "method",
        "repair",
        "data",
        "net",
        "spec",
        "weights",
        "json",
        "force",
    )

    models: tuple[Path, ...] = argument(
        "A B …", "Two models or more; the first is the reference.", role=READS
    )
    out: str = again(
        OutModel.out,
        "merged.safetensors",
        help="Where to write, as safetensors; into a folder in the shards of the first model.",
    )
    method: str | None = Method.method
    repair: str = Repair.repair
    bake_temperature: bool = Repair.bake_temperature
    loss: str | None = Scoring.loss
    metric: tuple[str, ...] = Scoring.metric
    choose: str = Choice.choose
    skip_checks: bool = Scoring.skip_checks
    prove: str = Proving.prove
    no_prove: bool = Proving.no_prove
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json


@dataclass(frozen=True)
class MergeResult(Result):
    """What was `written`, the model first, and how it was made.

    With a search: `spec`, `match`, `proof` and `times` (seconds). On a curve: its `curve` and the point `at`.
    An average of models as they are: its weights, how many tensors were averaged, which were `copied` and
    why, which `heads` and `extra` tensors were treated how, which were `left_out`. Of adapters: how many
    modules they adapt; the largest sum of their ranks (`summed_rank`), the largest `rank` that was written,
    the `ranks` of all modules; `relative_error`, ‖written − sum‖ / ‖sum‖ of all modules together in the
    Frobenius norm, with the rounding to what is stored, and that of the `worst` modules. A soup: the models
    in it, its loss on so many `samples` and that of the best single model, all `tries`, each with its
    metrics, and what was `measured`. Last what was repaired in how many norms or layers, which were `left`
    and why, `held_out_loss` where a repair was chosen, `held_out` where that was by a metric, the
    `temperature` that was baked in.
    """

    written: list[str]
    spec: Mapping[str, Any] | Unset = UNSET
    match: Mapping[str, Any] | Unset = UNSET
    proof: Mapping[str, Any] | Unset = UNSET
    times: Mapping[str, float] | Unset = UNSET
    curve: str | Unset = UNSET
    at: float | Unset = UNSET
    models: int | Unset = UNSET
    method: str | Unset = UNSET
    interpolation: str | Unset = UNSET
    weights: Mapping[str, float] | list[float] | Unset = UNSET
    averaged_tensors: int | Unset = UNSET
    adapted_modules: int | Unset = UNSET
    summed_rank: int | Unset = UNSET
    rank: int | Unset = UNSET
    relative_error: float | Unset = UNSET
    worst: Mapping[str, float] | Unset = UNSET
    ranks: Mapping[str, int] | Unset = field(default=UNSET, metadata=IN_JSON_ONLY)
    schedule: str | Unset = UNSET
    copied: Mapping[str, str] | Unset = UNSET
    heads: Mapping[str, str] | Unset = UNSET
    extra: Mapping[str, str] | Unset = UNSET
    left_out: list[str] | Unset = UNSET
    soup: list[str] | Unset = UNSET
    loss: float | Unset = UNSET
    best_single: str | Unset = UNSET
    best_single_loss: float | Unset = UNSET
    samples: int | Unset = UNSET
    tries: list[Mapping[str, Any]] | Unset = UNSET
    measured: Mapping[str, Any] | Unset = field(default=UNSET, metadata=IN_JSON_ONLY)
    repair: str | Unset = UNSET
    repaired_norms: int | Unset = UNSET
    repaired_layers: int | Unset = UNSET
    dead_channels: int | Unset = UNSET
    passes: int | Unset = UNSET
    left: Mapping[str, str] | Unset = UNSET
    added: list[str] | Unset = UNSET
    held_out: Mapping[str, Any] | Unset = UNSET
    held_out_loss: Mapping[str, float] | Unset = UNSET
    temperature: Mapping[str, Any] | Unset = UNSET


def run(asked: Merge, listener: Listener = SILENT, ranks: Ranks = ALONE) -> MergeResult | Plan:
    """Merge models in the way that fits what was asked for, and write one model."""
    return merged(asked.models, asked, listener, subjects_of(asked), ranks)


def merged(
    models: Sequence[Path], asked: Mean, listener: Listener, subjects: Subjects, ranks: Ranks
) -> MergeResult | Plan:
    """One model of several. Of models as they are it is the same file whichever command makes it.

    Several `ranks` call this alike.
    """
    output: Output = ranks.first(output_of, asked)
    paths, mean = of(asked, Average, weights=parse(asked.weights)).in_order(models)
    if asked.weights is None:
        _tell_repeated(paths, listener.say)
    if adapters.asked(paths):
        if ranks.size > 1:
            listener.say("adapters are small: the first process averages them, the others wait")
        return ranks.alone(_of_adapters, paths, mean, output, listener, subjects)
    alone = mean.asks_for_no_spec(subjects) and not mean.curve  # then there is nothing to average
    mean.check(len(paths), fewest=1 if alone else 2)
    curved.check(mean, subjects.search, len(paths))
    output = ranks.first(mean.placed, output, paths)
    curves = filter(None, [mean.curve])
    session = Session("merge", paths, listener, subjects, perm=mean.perm, curves=curves, ranks=ranks)
    reads = session.reads.and_files([mean.curve, *mean.sources()])
    ranks.first(lambda: check_outputs(output, reads, as_torch=True))
    search.check(session, output, or_none=True)
    way = _way(session, mean)
    if session.chosen_by != "loss" and way in (plain.merge, soups.merge):
        by = "--soup greedy takes what lowers the loss" if mean.soup else "models are averaged as they are"
        raise UsageError(
            f"--choose {session.asked.data.choose}: {by}", hint="Leave it out, or align: --method auto"
        )
    if way in (soups.merge, curved.merge):
        done = session.by_first("soups and curves are not shared", lambda alone: way(alone, output, mean))
    else:
        done = way(session, output, mean)
    return ranks.last(_result, session, output, done, mean.copy_from)


def _tell_repeated(paths: Sequence[Path], say: Callable[[str], None]) -> None:
    """Say which models are one file, by its own name or another, where nobody gave it a larger weight."""
    files: dict[tuple[int, int], list[str]] = {}
    for path in filter(os.path.exists, paths):  # what is not there is told where it is opened
        there = os.stat(path)
        files.setdefault((there.st_dev, there.st_ino), []).append(str(path))
    for names in files.values():
        if len(names) > 1:
            called = some([*dict.fromkeys(names)], 3)
            say(f"warning: {called}: one file that is named {len(names)} times, and counts as often")


def _of_adapters(
    paths: Sequence[Path], mean: Average, output: Output, listener: Listener, subjects: Subjects
) -> MergeResult | Plan:
    output = adapters.placed_output(output, paths, mean.base)
    session = Session("merge", paths, listener, subjects)
    adapters.check(session, mean, output)
    reads = session.reads.and_files(mean.sources())
    if mean.base is not None:
        reads = replace(reads, models=(*reads.models, mean.base))
    check_outputs(output, reads, as_torch=mean.base is not None)
    return _result(session, output, adapters.merge(session, output, mean), mean.base)


def _result(
    session: Session, output: Output, done: dict[str, Any], copied: Path | None
) -> MergeResult | Plan:
    done = attested(session, output, done, copied=copied)
    return Plan(done) if output.dry_run else MergeResult(**done)


def _way(session: Session, mean: Average) -> Way:
    """A point of a trained curve, models as they are, a soup of some of them; else aligned to the first."""
    if mean.curve is not None:
        return curved.merge
    if len(session.paths) == 1 or plain.suffices(session, mean):
        return plain.merge
    return soups.merge if mean.soup else aligned.merge
