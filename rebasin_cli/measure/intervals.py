"""How sure the rows of a report are, and what they differ by: intervals over test samples, and over pairs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..networks.evaluation import Scores
from ..reports import Difference, OverPairs, Report, Row
from ..runtime.seeds import generator

CONFIDENCE = 0.95
RESAMPLES = 1_000
SLAB = 32 << 20  # bytes of resampled counts held at a time
SPLIT = "test"
FIGURES = ("loss", "accuracy", "chord")


@dataclass(frozen=True)
class Compared:
    """The rows with their intervals, the endpoints' intervals by figure, and the differences of rows.

    `sure`: whether there was anything to draw from.
    """

    rows: list[Row]
    ends: tuple[dict[str, tuple[float, ...]], ...]
    differences: tuple[Difference, ...]
    sure: bool


def compare(
    rows: Sequence[Row], ends: Sequence[Scores], middles: Mapping[str, Scores], *, seed: int
) -> Compared:
    """Bootstrap 95 % intervals at λ = ½ on test data, of all rows at once and so paired.

    `ends` and `middles` (by row) hold the scores of single samples in the data's order; without them
    differences have no intervals. Compared are every row with naive, and with the one that is shipped.
    """
    known = {name: score.each for name, score in middles.items() if score.each is not None}
    own = {name: end.each for name, end in zip("AB", ends, strict=True) if end.each is not None}
    sure = bool(known) and len(own) == len(ends)
    draws: dict[str, torch.Tensor] = {}
    if sure:
        named = own | known  # no row is called so
        means = resampled_means(torch.cat(list(named.values()), dim=1), seed=seed)
        draws = dict(zip(named, means.split(2, dim=1), strict=True))

    def intervals(name: str) -> dict[str, tuple[float, ...]]:
        if name not in draws:
            return {}
        found = {"loss": interval(draws[name][:, 0]), "accuracy": interval(draws[name][:, 1])}
        if name not in ("A", "B"):
            found["chord"] = interval(draws[name][:, 0] - (draws["A"][:, 0] + draws["B"][:, 0]) / 2)
        return {figure: both for figure, both in found.items() if both}

    sured = []
    for row in rows:
        middle = dict(row.middle)
        if SPLIT in middle:
            middle[SPLIT] = dataclasses.replace(middle[SPLIT], intervals=intervals(row.name))
        sured.append(dataclasses.replace(row, middle=middle))
    return Compared(sured, (intervals("A"), intervals("B")), _differences(rows, draws), sure)


def _differences(rows: Sequence[Row], draws: Mapping[str, torch.Tensor]) -> tuple[Difference, ...]:
    at = {row.name: value for row in rows if (value := row.curves[SPLIT].at(0.5)) is not None}
    shipped = next((row.name for row in rows if row.shipped), "naive")
    pairs = [(name, "naive") for name in at if name != "naive"]
    pairs += [(name, shipped) for name in at if name not in ("naive", shipped)] if shipped != "naive" else []
    found = []
    for name, other in pairs:
        if other not in at:
            continue
        sure: list[tuple[float, ...]] = [()] * 2
        if name in draws and other in draws:
            sure = [interval(draws[name][:, k] - draws[other][:, k]) for k in range(2)]
        loss, accuracy = (one - two for one, two in zip(at[name], at[other], strict=True))
        found.append(Difference(name, other, SPLIT, loss, accuracy, *sure))
    return tuple(found)


def with_pairs(first: Report, others: Sequence[Report]) -> Report:
    """The first report, with the figures of all of them and the means over pairs."""
    every = [first, *others]
    accounts = tuple(
        {
            "inputs": [{key: model.get(key) for key in ("file", "sha256")} for model in report.inputs],
            "shipped": report.shipped.name,
            "rows": {
                row.name: {
                    split: figures for split in row.curves if (figures := _figures(report, row.name, split))
                }
                for row in report.rows
            },
        }
        for report in every
    )
    words = dict.fromkeys(word for report in every for word in report.times)
    times = {word: math.fsum(report.times.get(word, 0.0) for report in every) for word in words}
    return dataclasses.replace(first, pairs=accounts, over_pairs=over_pairs(every), times=times)


def over_pairs(reports: Sequence[Report]) -> tuple[OverPairs, ...]:
    """Every row that all reports have at λ = ½ with its mean over them, and Student's 95 % interval.

    Last comes "shipped", what `merge` would write of each pair, where that is not the same row of all.
    The reports are of several pairs of models, measured alike; "chord" is the barrier along the path. With
    fewer than two reports there are no intervals. The pairs should share no model: those that do are not
    independent, and the interval is too narrow.
    """
    names = {row.name: [row.name] * len(reports) for row in (reports[0].rows if reports else ())}
    shipped = [report.shipped.name for report in reports]
    if len(set(shipped)) > 1:
        names["shipped"] = shipped
    found = []
    for name, rows in names.items():
        for split in reports[0].rows[0].curves:
            figures = [_figures(report, row, split) for report, row in zip(reports, rows, strict=True)]
            if not all(figures):
                continue
            columns = {key: [figure[key] for figure in figures] for key in FIGURES}
            mean = {key: math.fsum(values) / len(values) for key, values in columns.items()}
            sure = {key: both for key, values in columns.items() if (both := t_interval(values))}
            found.append(OverPairs(name, split, len(reports), mean, sure))
    return tuple(found)


def _figures(report: Report, name: str, split: str) -> dict[str, float]:
    """Loss and accuracy at λ = ½ and the chord barrier of a row; {} where it was not measured."""
    row = next((row for row in report.rows if row.name == name), None)
    if row is None or split not in row.curves or (at := row.curves[split].at(0.5)) is None:
        return {}
    return dict(zip(FIGURES, (*at, row.barriers[split].chord), strict=True))


def resampled_means(values: Tensor, *, seed: int) -> Tensor:
    """The means of every column over samples drawn anew, with replacement, float64 (RESAMPLES, columns).

    All columns of `values` (samples, columns) see the same draws, so differences of columns are paired.
    Columns that hold NaN or infinities give NaN. Memory is bounded whatever the number of samples.

    Efron and Tibshirani 1993, chapters 6 and 13.
    """
    count = len(values)
    finite = torch.isfinite(values).all(0)
    known = torch.where(finite, values, 0).double()
    draws = generator(seed, "bootstrap")
    slab = max(1, min(RESAMPLES, SLAB // (16 * count)))  # int64 draws and float64 counts
    means = []
    for start in range(0, RESAMPLES, slab):
        rows = min(slab, RESAMPLES - start)
        drawn = torch.randint(count, (rows, count), generator=draws)
        counts = torch.zeros(rows, count, dtype=torch.float64)
        counts.scatter_add_(1, drawn, torch.ones(1, 1, dtype=torch.float64).expand(rows, count))
        means.append(counts @ known / count)
    return torch.where(finite, torch.cat(means), math.nan)


def interval(draws: Tensor) -> tuple[float, ...]:
    """(low, high) that 95 % of the draws (n,) lie within, equally many beyond either end; () with NaN."""
    if bool(draws.isnan().any()):
        return ()
    tail = (1 - CONFIDENCE) / 2
    low, high = torch.quantile(draws, torch.tensor([tail, 1 - tail], dtype=draws.dtype)).tolist()
    return low, high


def t_interval(values: Sequence[float]) -> tuple[float, ...]:
    """(low, high): Student's 95 % interval of the mean; () of fewer than two values, or not all finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return ()
    from scipy.stats import t

    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * math.sqrt(variance / len(values))
    return mean - half, mean + half
