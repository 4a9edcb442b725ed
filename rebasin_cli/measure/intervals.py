"""How sure the rows of a report are, and what they differ by: intervals over test samples, and over pairs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..networks.evaluation import Scores
from ..reports import LOST, Difference, OverPairs, Report, Row
from ..runtime.seeds import generator

CONFIDENCE = 0.95
RESAMPLES = 1_000
SLAB = 32 << 20  # bytes of resampled counts held at a time
SPLIT = "test"
FEWEST_BATCHES = 8  # of which an interval is drawn, where a loss gives means alone
Draws = dict[str, torch.Tensor]


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

    `ends` and `middles` (by row) hold the scores of single samples in the data's order, or of batches;
    without them differences have no intervals. Compared are every row with naive, and with the one that is
    shipped.
    """
    scored = dict(zip("AB", ends, strict=True)) | dict(middles)  # no row is called so
    keys = list(ends[0].figures) if ends else []
    draws: dict[str, Draws] = {name: {} for name in scored}
    for key in keys:
        for name, means in _drawn(scored, key, seed).items():
            draws[name][key] = means
    sure = bool(middles) and all("loss" in draws[name] for name in "AB"[: len(ends)])

    def intervals(name: str) -> dict[str, tuple[float, ...]]:
        found = {key: interval(means) for key, means in draws.get(name, {}).items()}
        if name not in ("A", "B") and "loss" in found and sure:
            chord = (draws["A"]["loss"] + draws["B"]["loss"]) / 2
            found["chord"] = interval(draws[name]["loss"] - chord)
        return {figure: both for figure, both in found.items() if both}

    sured = []
    for row in rows:
        middle = dict(row.middle)
        if SPLIT in middle:
            middle[SPLIT] = dataclasses.replace(middle[SPLIT], intervals=intervals(row.name))
        sured.append(dataclasses.replace(row, middle=middle))
    return Compared(sured, (intervals("A"), intervals("B")), _differences(rows, draws), sure)


def _drawn(scored: Mapping[str, Scores], key: str, seed: int) -> Draws:
    """Means of one figure over samples drawn anew, or over batches where nothing else is known.

    {} where there is not the same to draw from for both endpoints, or one sample alone; without the rows
    where there is not.
    """
    known = {name: score.each[key] for name, score in scored.items() if score.each and key in score.each}
    if not {"A", "B"} <= known.keys():
        return {}
    count, sizes = len(known["A"]), scored["A"].sizes
    batched = key in scored["A"].batched
    if count < 2 or count < FEWEST_BATCHES and batched or (batched and count != len(sizes)):
        return {}
    same = {name: values for name, values in known.items() if len(values) == count}
    weights = torch.tensor(sizes, dtype=torch.float64) if batched else None
    means = resampled_means(torch.stack(list(same.values()), dim=1), weights, seed=seed)
    return {name: means[:, place] for place, name in enumerate(same)}


def _differences(rows: Sequence[Row], draws: Mapping[str, Draws]) -> tuple[Difference, ...]:
    at = {row.name: value for row in rows if (value := row.curves[SPLIT].at(0.5)) is not None}
    shipped = next((row.name for row in rows if row.shipped), "naive")
    pairs = [(name, "naive") for name in at if name != "naive"]
    pairs += [(name, shipped) for name in at if name not in ("naive", shipped)] if shipped != "naive" else []
    found = []
    for name, other in pairs:
        if other not in at:
            continue
        figures = {key: value - at[other][key] for key, value in at[name].items()}
        one, two = draws.get(name, {}), draws.get(other, {})
        apart = {key: interval(one[key] - two[key]) for key in figures if key in one and key in two}
        sure = {key: both for key, both in apart.items() if both}
        found.append(Difference(name, other, SPLIT, figures, sure))
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
        | {key: {row.name: lost for row in report.rows if (lost := row.lost(key))} for key in LOST}
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
            columns = {key: [figure[key] for figure in figures] for key in figures[0]}
            mean = {key: math.fsum(values) / len(values) for key, values in columns.items()}
            sure = {key: both for key, values in columns.items() if (both := t_interval(values))}
            found.append(OverPairs(name, split, len(reports), mean, sure))
    return tuple(found)


def _figures(report: Report, name: str, split: str) -> dict[str, float]:
    """Loss and metrics at λ = ½ and the chord barrier of a row; {} where it was not measured."""
    row = next((row for row in report.rows if row.name == name), None)
    if row is None or split not in row.curves or (at := row.curves[split].at(0.5)) is None:
        return {}
    return at | {"chord": row.barriers[split].chord}


def resampled_means(values: Tensor, weights: Tensor | None = None, *, seed: int) -> Tensor:
    """The means of every column over samples drawn anew, with replacement, float64 (RESAMPLES, columns).

    All columns of `values` (samples, columns) see the same draws, so differences of columns are paired.
    `weights` (samples,) are given where the rows are means of so many. Columns that hold NaN or infinities
    give NaN. Memory is bounded whatever the number of samples.

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
        if weights is not None:
            counts *= weights
        means.append(counts @ known / (count if weights is None else counts.sum(1, keepdim=True)))
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


def share_interval(right: int, count: int) -> tuple[float, float]:
    """(low, high): Wilson's 95 % interval of a share, 0–1, also of few and of none.

    Wilson 1927, doi:10.1080/01621459.1927.10502953.

    >>> [round(end, 3) for end in share_interval(0, 10)]
    [0.0, 0.278]
    """
    z, share = 1.959964, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (low if right else 0.0), (high if right < count else 1.0)  # to the last bit
