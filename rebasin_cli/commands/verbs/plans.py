"""What a command is about to do, before it does it: sizes, memory, minutes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from ... import datasets, networks
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.locate import check_made
from ...datasets import once
from ...datasets.batches import tensors_in
from ...matchers.auto import budget_of
from ...matchers.portfolio.candidates import candidates
from ...measure.settings import ATTACKED, ENSEMBLE, FINE_TUNED, Planned
from ...networks.folding import folded
from ...networks.forward import fed, returned
from ...networks.layout import in_parts, laid
from ...repair.costs import TRACING, distillation_passes, refit_products, repair_passes
from ...repair.options import REFIT_SAMPLES, SAMPLES
from ...session import samples
from ...session.listener import SILENT
from ...session.samples import Splits
from ...session.session import Session
from ...spec.spec import FittedSpec
from .needs import Needs, needs
from .outputs import Output
from .proof import Proof
from .search import nothing_to_run
from .symmetries import Wide


def of_search(session: Session, output: Output | None = None) -> dict[str, Any]:
    """Tensors, permutations, sizes and memory of a session's search; what `auto` tries. No tensor is read."""
    tries: dict[str, Any] = {}
    if session.method == "auto":
        able = not nothing_to_run(session)
        wide = Wide.of(session, Proof({}), able=able) if session.command == "merge" else None
        wider = wide is not None and not wide.refusal
        count, budget = len(session.named), session.options.budget
        tries = plan_trials(session.fitted, count, budget, able=able, wider=wider)
    return tries | _sizes(session, output)


def of_reading(
    session: Session, output: Output | None = None, *, searching: bool | None = None
) -> dict[str, Any]:
    """The same of what searches for nothing, or only where it has to; of orders where groups are unknown.

    `searching` is as in `needs`.
    """
    ordered = session.ungrouped if session.grouped and session.form is None else session
    return _planned(ordered, output, searching)


def look(session: Session) -> None:
    """Find what the user names beside the models, which a plan does not take: the network is made, the data
    set is there. Samples are read where a share of them is held out: there may be too few.

    Raises UsageError, DataError, NetworkError as the command would.
    """
    if session.asked.network.net is not None:
        _ = session.network
    data = session.asked.data
    if data.data is not None:
        check_made(Path(data.data.partition(":")[2].partition("?")[0]))
        datasets.find(data.data, data.data_root)
    if session.has_data and session.held_out is not None and session.held_out.fraction is not None:
        samples.open_splits(session.named, data, session.seed, SILENT.say, wanted=["test"])


def of_models(models: Sequence[Checkpoint], whole: Needs) -> dict[str, Any]:
    """What needs no spec: models, the first one's sizes, and what it takes."""
    sizes = [*models[0].shapes.values()]
    return {
        "models": len(models),
        "tensors": len(sizes),
        "parameters": sum(map(math.prod, sizes)),
        **whole.facts(),
    }


def _planned(session: Session, output: Output | None, searching: bool | None = None) -> dict[str, Any]:
    """Models, sizes, and what `needs` says, from headers alone."""
    fitted = session.fitted
    look(session)
    return {
        "models": len(session.named),
        "tensors": len(fitted.shapes),
        "parameters": sum(math.prod(shape) for shape in fitted.shapes.values()),
        "spec": fitted.spec.name,
        "permutations": len(fitted.words),
        **needs(session, output, searching=searching).within(session.most).facts(),
    }


def _sizes(session: Session, output: Output | None) -> dict[str, Any]:
    """Tensors, permutations, assignment sizes, and what `needs` says, without running anything.

    Of memory, what the network's activations take is not known. Of what a method that trains takes in time
    `not_estimated` says so.
    """
    fitted = session.fitted
    sizes = sorted(fitted.words.values(), reverse=True)
    return {
        "method": session.method,
        "log10_symmetries": round(fitted.log10_symmetries(), 1),
        "assignment_sizes": {str(size): sizes.count(size) for size in dict.fromkeys(sizes)},
        **_planned(session, output),
    } | not_estimated([(session.method, session.options)])


def plan_trials(
    fitted: FittedSpec, models: int, budget: str, *, able: bool, wider: bool = False
) -> dict[str, Any]:
    """What `auto` will try, in this order, for at most which seconds or multiplications, and why."""
    found, length = candidates(fitted, models, able=able, wider=wider), budget_of(budget)
    unit = "seconds" if length.work is None else "multiplications"
    left = (length.seconds or 0.0) if length.work is None else length.work
    rows = [
        {"method": one.name, f"{unit}_at_most": round(one.share * left, 1), "why": one.why} for one in found
    ]
    return {f"budget_{unit}": left, "candidates": rows if able else [{"method": "wm", "why": found[0].why}]}


def not_estimated(searches: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """What no plan knows the seconds of; `searches` are (method, options)."""
    told = [_unknown(method, options) for method, options in searches if method != "given"]
    told = [text for text in told if text]
    return {"not_estimated": " and ".join(told)} if told else {}


def _unknown(method: str, options: Any) -> str:
    """What a method does that takes nobody knows how long: it trains, or tries others."""
    if hasattr(options, "epochs"):
        return f"the training of {method} ({options.epochs} epoch{'' if options.epochs == 1 else 's'})"
    if hasattr(options, "budget"):
        return f"what {method} tries ({options.budget}) and the repair that it takes"
    return ""


def plan_report(
    session: Session, splits: Splits, rows: Sequence[Planned], *, pairs: int = 1, fits: str = ""
) -> dict[str, Any]:
    """Rows, points and estimated seconds of a barrier report; no estimate where inputs are no plain tensors.

    `rows` holds the points of each; points and seconds are those of all `pairs` together.
    """
    seconds = estimate_seconds(session, splits, rows, fits)
    return {
        "rows": {row.name: row.points for row in rows},
        "points": pairs * sum(row.points for row in rows),
        "samples": {split: data.samples for split, data in splits.items()},
        "times": estimated(None if seconds is None else pairs * seconds),
    } | ({"pairs": pairs} if pairs > 1 else {})


def estimated(seconds: float | None) -> dict[str, float]:
    """Where every result keeps what differs between two identical runs."""
    return {} if seconds is None else {"estimated": seconds}


def in_words(plan: Mapping[str, Any]) -> str:
    seconds = plan["times"].get("estimated")
    minutes = "" if seconds is None else f", about {max(seconds, 6) / 60:.1f} minutes of measuring"
    pairs = f" of {plan['pairs']} pairs" if "pairs" in plan else ""
    without = f", without {plan['not_estimated']}" if "not_estimated" in plan else ""
    return f"plan: {plan['points']} points in {len(plan['rows'])} rows{pairs}{minutes}{without}"


def estimate_seconds(session: Session, splits: Splits, rows: Sequence[Planned], fits: str) -> float | None:
    """Seconds that a report will take: one timed batch, times the samples that all rows read.

    A point at an end of the path is known. So are outputs at λ = ½ to what divides them by a temperature,
    and those of both ends to their mean, unless a loader makes batches anew. A reset reads its samples once a
    point; matching channels reads them about L/2 times a point and twice a row, for L layers in a row, and
    first traces the network. A repair that `fits` weights brings three
    models through the layers, each to its end twice, and adds up products; a distillation trains after that.
    """
    if (a_sample := seconds_a_sample(session, splits)) is None:
        return None
    a_whole = seconds_a_sample(session, splits, parts=False) or a_sample
    network, device = session.need_network(), session.device
    anew = any(once(data) is data for data in splits.values())
    sizes = {split: data.samples for split, data in splits.items()}
    measured = sum(sizes.get(split, 0) for split in ("train", "test"))
    resets = networks.has_running_statistics(network)
    samples, whole, refits = 2 * measured, 0.0, 0
    attacked = sum(min(sizes.get(split, 0), ATTACKED) for split in ("train", "test"))
    for row in rows:
        if row.attack is not None:
            samples += row.points * attacked * row.attack.passes
            whole += row.repaired * row.inner * sizes.get("reset", 0)
            continue
        networks_run = 2 if row.base == ENSEMBLE else 1
        samples += row.temperature * sizes.get("held", 0)
        if anew or not (row.temperature or row.base == ENSEMBLE):
            samples += row.inner * measured * networks_run
        if row.temperature and not anew:
            continue
        if row.base == FINE_TUNED or (row.repaired and fits in SAMPLES):
            refits += row.inner  # the one takes as long as the other
        elif row.repaired or row.resets:
            passes = row.inner if resets else row.inner * (repair_passes(network) - 2) + 2
            whole += passes * sizes.get("reset", 0)
    seconds = a_sample * samples + a_whole * whole
    if refits:
        shown = fed(network, splits["reset"].example(), device, quiet=True)
        more = refit_products(network, shown, device)
        size = sizes["reset"]
        seconds += refits * min(size, REFIT_SAMPLES if fits == "distill" else size) * (6 * a_whole + more)
        return (
            seconds + TRACING + refits * size * distillation_passes(2, size) * a_whole * (fits == "distill")
        )
    return seconds + TRACING * (any(row.repaired for row in rows) and not resets)


def seconds_a_sample(session: Session, splits: Splits, *, parts: bool = True) -> float | None:
    """One forward pass of a sample, by one timed batch; None where inputs are no plain tensors.

    `parts`: as what is measured is run; not so where norms need all of a batch.
    """
    some = next(iter(splits.values()))
    inputs = some.example(min(some.samples, some.batch_size or 100))
    if not isinstance(inputs, torch.Tensor):
        return None
    output, network = session.output, session.need_network().to(session.device).eval()
    inputs = fed(network, inputs, session.device)
    run, inputs = (in_parts, inputs) if parts else (returned, laid(network, inputs, output))
    with torch.inference_mode(), folded(network, inputs, output) if parts else nullcontext():
        in_parts(network, inputs, output)  # also sees whether there may be parts
        began = time.perf_counter()
        for found in tensors_in(run(network, inputs, output=output)):
            found.sum().item()  # a GPU has then done it, too
        return (time.perf_counter() - began) / len(inputs)
