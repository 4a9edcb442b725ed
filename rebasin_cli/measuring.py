"""The barrier report in memory: both models, naive and aligned, with and without reset, on every split."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import accounts, barriers, networks, permutation, repair
from .api import align, resolve_spec
from .barriers import Measure
from .errors import DataError, UsageError, unknown
from .evaluation import Scores, evaluate
from .permutation import permuted
from .reports import Report, Row
from .spec.spec import FittedSpec, Spec
from .version import version

Tensors = Mapping[str, torch.Tensor]

POINTS, REPAIRED_POINTS = 25, 11  # of naive and aligned rows; of rows that re-estimate statistics


def barrier(
    a: Tensors,
    b: Tensors,
    spec: str | Path | Spec | FittedSpec | None = None,
    *,
    network: nn.Module,
    test: Iterable[Any],
    train: Iterable[Any] | None = None,
    reset_batches: Iterable[Any] | None = None,
    method: str = "wm",
    permutations: permutation.Permutations | None = None,
    points: int = POINTS,
    repaired_points: int = REPAIRED_POINTS,
    repair_with: str = "reset",
    output: str | int | None = None,
    scores: Measure | None = None,
    device: str = "cpu",
    seed: int = 0,
    check: Callable[[Mapping[str, Sequence[Scores]]], Any] | None = None,
    measured: Callable[[], None] = lambda: None,
    **align_options: Any,
) -> Report:
    """Measure the path from `a` to `b`, naive and aligned, with and without reset; see `Report`.

    `train` and `test` are the splits to measure on; `reset_batches` (default: `train`) feed the BatchNorm
    reset, whose rows appear where the network has running statistics; `repair_with="none"` only says that
    the row without is the one to ship, "repair", "rescale" or "reshift" gives other networks such rows;
    `output` picks one of several outputs by key or index. `check` sees the endpoints' scores before anything
    else is measured and may raise. `network` is overwritten. `seconds` are wall time.

    Raises SpecError, UsageError, CheckpointError, DataError, NetworkError.
    """
    began = time.perf_counter()
    if repair_with not in repair.REPAIRS:
        raise unknown("repair", repair_with, repair.REPAIRS)
    fitted = resolve_spec(spec, [a, b])
    networks.check(network, fitted.shapes)
    batches = reset_batches if reset_batches is not None else train
    word = word_of_repair(repair_with, statistics=networks.has_running_statistics(network))
    if word and batches is None:
        raise UsageError(
            "the network has running statistics: give training batches to re-estimate them on"
            if word == "reset"
            else f"{word} measures channels: give training batches"
        )
    scores = scores or functools.partial(evaluate, output=output, device=device)
    splits = {"train": train, "test": test} if train is not None else {"test": test}
    network = network.to(device)
    ends = [_scores(network, tensors, splits, scores) for tensors in (a, b)]
    if check is not None:
        check({split: [end[split] for end in ends] for split in splits})

    alignment = None
    if permutations is not None:
        permutation.check(permutations, fitted.words, within=fitted.within)
    elif method != "none":
        align_options = {"data": train} | align_options
        alignment = align(
            a,
            b,
            fitted,
            method=method,
            seed=seed,
            network=network,
            output=output,
            device=device,
            **align_options,
        )
        permutations = alignment.permutations[0]
    aligned = b if permutations is None else permuted(b, fitted, permutations)

    plan = rows_to_measure(
        aligned=permutations is not None,
        reset=bool(word),
        ship_reset=repair_with != "none",
        word=word or "reset",
    )
    rows: list[Row] = []
    for name, shipped in plan.items():
        moved, repaired = name.startswith("aligned"), " + " in name
        other = aligned if moved else b
        path = barriers.Path(
            name,
            a,
            other,
            repaired_points if repaired else points,
            _mending(word, [a, other], batches, device) if repaired else None,
            fitted.ignored,
            shipped=shipped,
            control=repaired and not moved,
            takes_place=repaired and word != "reset",
        )
        known = {0.0: ends[0]} if moved and not repaired else {0.0: ends[0], 1.0: ends[1]}
        rows.append(barriers.measure(path, network, splits, known=known, scores=scores, progress=measured))
    return Report(
        rebasin=version(),
        command="barrier",
        seed=seed,
        inputs=({"file": "A"}, {"file": "B"}),
        spec=accounts.describe_spec(fitted),
        data={
            "samples": {split: row.samples for split, row in rows[0].curves.items()},
            "points": {row.name: len(row.curves["test"].lambdas) for row in rows},
        },
        match=accounts.describe_match(alignment, given=permutations is not None),
        proof=accounts.describe_proof(
            alignment.proof if alignment else None, "no alignment was searched" if not alignment else ""
        ),
        endpoints=tuple(
            {"name": name} | {s: {"loss": end[s].loss, "accuracy": end[s].accuracy} for s in splits}
            for name, end in zip(("A", "B"), ends, strict=True)
        ),
        rows=tuple(rows),
        seconds=time.perf_counter() - began,
    )


def word_of_repair(repair_with: str, *, statistics: bool) -> str:
    """What repaired rows are called, "" where there are none. Raises UsageError for what is not measured."""
    if repair_with == "bias":
        raise UsageError(
            "calibrated biases are not measured along a path",
            hint="Merge with --repair bias, and measure the result with rebasin eval",
        )
    if statistics:
        return "reset"
    return repair_with if repair_with in repair.MATCHES else ""


def _mending(word: str, ends: Sequence[Tensors], batches: Any, device: str) -> Callable[..., Any]:
    """The repair of one row: of a network, or of a network and λ."""
    if word == "reset":
        return functools.partial(repair.reset, batches=batches, device=device)
    known: dict[Any, Any] = {}

    def match(network: nn.Module, t: float) -> None:
        weights = [1 - t, t]
        repair.renormalize(network, ends, batches, match=word, weights=weights, known=known, device=device)

    return match


def rows_to_measure(
    *, aligned: bool, reset: bool, ship_reset: bool = True, word: str = "reset"
) -> dict[str, bool]:
    """Names of the rows of a report, and which one is what `merge` would ship.

    `aligned`: there are permutations; `reset`: there are repaired rows, by the name of `word`.
    """
    names = [
        "naive",
        *["aligned"] * aligned,
        *[f"aligned + {word}"] * (aligned and reset),
        *[f"naive + {word}"] * reset,
    ]
    shipped = ("aligned" if aligned else "naive") + (f" + {word}" if reset and ship_reset else "")
    return {name: name == shipped for name in names}


def _scores(
    network: nn.Module, tensors: Tensors, splits: Mapping[str, Any], scores: Measure
) -> dict[str, Scores]:
    networks.load(network, tensors)
    found = {split: scores(network, batches) for split, batches in splits.items()}
    if any(not score.samples for score in found.values()):
        raise DataError("the data holds no samples")
    return found
