"""The rules of `regret.py`, and what each costs on the recorded cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from _regret_cases import FIRST, LOOKS, read
from _rows import line

# -------------------------------------------------------------------------------------------------- rules

Row = dict[str, Any]
Rule = Callable[[Row], int]


def able(row: Row) -> list[int]:
    """The candidates that `auto` has, the default first."""
    return [k for k, one in enumerate(row["candidates"]) if row.get("within", SETS["all candidates"])(*one)]


def values(row: Row, look: str, figure: str) -> list[float]:
    found = row["looks"][look].get(figure) or row["looks"][look]["loss"]  # a regression has no temperature
    return [math.inf if value is None else value for value in found]


def error(row: Row, look: str, figure: str, one: int, other: int) -> float:
    kind = "apart errors" if figure == "apart" else "errors"
    first, second = sorted((one, other))
    return row["looks"][look][kind][first][second - first - 1] or 0.0


def least(look: str, figure: str = "loss", sure: float = 0.0, per: float = 0.0) -> Rule:
    """The least figure, if it is surely less than the default's, by errors and a share of that."""

    def rule(row: Row) -> int:
        seen, (default, *others) = values(row, look, figure), able(row)
        best = min((default, *others), key=lambda k: seen[k])
        if best == default:
            return default
        gain = seen[default] - seen[best]
        return (
            best
            if gain > max(sure * error(row, look, figure, default, best), per * seen[default])
            else default
        )

    return rule


def total(*parts: tuple[float, str, str]) -> Rule:
    """The least sum of figures (weight, look, figure); of other losses than cross-entropy the loss alone."""

    def rule(row: Row) -> int:
        known = parts if row["data"] != "function" else [part for part in parts if part[2] == "loss"]
        seen = [(weight, values(row, look, figure)) for weight, look, figure in known]
        return min(able(row), key=lambda k: sum(weight * one[k] for weight, one in seen))

    return rule


def pulled(weight: float, look: str = "train", apart: str = "") -> Rule:
    """The least of the loss and so many times the distance to the ends, there or at another look."""
    return total((1.0, look, "loss"), (weight, apart or look, "apart"))


def doubted(look: str, sure: Rule, doubtful: Rule) -> Rule:
    """One rule, and another where ends lose more than chance at a look: they are sure of wrong answers."""

    def rule(row: Row) -> int:
        seen, chances = row["looks"][look], {"mnist": 10, "cifar": 10, "characters": 30}
        ends = [math.inf if value is None else value for value in seen["ends"]]
        chance = math.log(chances[row["data"]]) if row["data"] in chances else math.inf
        return (doubtful if sum(ends) / len(ends) > chance else sure)(row)

    return rule


def simplest(look: str, figure: str = "loss", sure: float = 1.0) -> Rule:
    """The first in order (repairs that change least come first) that the least does not surely beat."""

    def rule(row: Row) -> int:
        seen, order = values(row, look, figure), ("none", "reset", "repair", "refit", "distill")
        there = sorted(able(row), key=lambda k: order.index(row["candidates"][k][1]))
        best = min(there, key=lambda k: seen[k])
        near = (
            k for k in there if k == best or seen[k] - seen[best] <= sure * error(row, look, figure, k, best)
        )
        return next(near)

    return rule


def before(row: Row) -> int:
    """As 0.2.0 chose: 0.03 nats and two errors against no repair, 0.01 against a repair, matched falls."""
    seen, matched = values(row, "train", "loss"), values(row, "train", "matched")
    (first, *others), how = able(row), [how for _, how in row["candidates"]]
    order, found = ("none", "reset", "repair", "refit", "distill"), first
    for k in others:
        fits = order.index(how[k]) > order.index(how[found]) and how[found] not in ("refit", "distill")
        margin = (0.03 if how[found] in ("none", "reset") else 0.01) if fits else 0.0
        default = row["candidates"][found] == row["candidates"][first] or (
            row["candidates"][found][0] == "wm" and how[found] == "repair"
        )
        sure = 2.0 if default or how[k] != how[found] else 0.0
        if row["data"] == "function":
            margin = 0.0
        gain = seen[found] - seen[k]
        if gain > max(margin, sure * error(row, "train", "loss", found, k)) and matched[k] < matched[found]:
            found = k
    return found


WEIGHTS = (0.5, 1.0, 2.0, 4.0, 8.0)  # of the distance
RULES: dict[str, Rule] = {
    "never: wm, not repaired": lambda row: able(row)[0],
    "before: 0.03 nats and 2 errors, train": before,
    **{f"least loss: {look}": least(look) for look in LOOKS},
    "least loss at the best temperature: train": least("train", "matched"),
    **{f"least distance: {look}": least(look, "apart") for look in LOOKS[:4]},
    **{
        f"least loss, {k:g} errors: {look}": least(look, sure=k)
        for look in ("train", "tenth")
        for k in (1, 2)
    },
    "first within 1 error of the least: train": simplest("train"),
    **{f"loss + {w:g} × distance: {look}": pulled(w, look) for look in ("train", "tenth") for w in WEIGHTS},
    **{f"loss (train) + 2 × distance ({look})": pulled(2, apart=look) for look in LOOKS[1:5]},
    **{
        f"loss + 2 × distance: train; loss: noise 1 where ends lose more than chance: {look}": doubted(
            look, pulled(2), least("noise 1")
        )
        for look in ("noise 1", "mixed 0.5")
    },
}


def crossed(rows: Sequence[Row]) -> tuple[list[float], dict[str, float]]:
    """The regret of every case by the weight that is best on the others' data and nets, and these weights."""
    found, taken = [], {}
    for row in rows:
        kind = kind_of(row)
        if kind not in taken:
            others = [it for it in rows if kind_of(it) != kind]
            taken[kind] = min(WEIGHTS, key=lambda w: sum(regrets(others, pulled(w))[0]))
        found.append(regrets([row], pulled(taken[kind]))[0][0])
    return found, taken


def kind_of(row: Row) -> str:
    """What recipes have in common that are left out together."""
    return f"{row['data']} {row['net']}"


def regrets(
    rows: Sequence[Row], rule: Rule, figure: str = "loss"
) -> tuple[list[float], list[float], list[bool]]:
    """Nats (or squares) and points above the least, and whether that is above 0.003 by more than 2 errors."""
    found, points, wrong = [], [], []
    for row in rows:
        seen, there = values(row, "test", figure), able(row)
        chosen, best = rule(row), min(there, key=lambda k: seen[k])
        found.append(seen[chosen] - seen[best])
        right = row["looks"]["test"].get("right")
        points.append(0.0 if right is None else 100 * (max(right[k] for k in there) - right[chosen]))
        wrong.append(chosen != best and found[-1] > 0.003 + 2 * error(row, "test", "loss", chosen, best))
    return found, points, wrong


SETS: dict[str, Callable[[str, str], bool]] = {
    "all candidates": lambda method, how: method not in ("none", FIRST),
    "without distillation": lambda method, how: method != "none" and how != "distill",
    "wm, repaired or not": lambda method, how: method == "wm" and how in ("none", "repair"),
    "methods, not repaired": lambda method, how: method != "none" and how in ("none", "reset"),
}


def rules() -> None:
    """A table for every set of candidates: all, and those that a command may have."""
    for name, within in SETS.items():
        rows = [row for every in read() if len(able(row := every | {"within": within})) > 1]
        print(f"\n{name}: {len(rows)} cases\n")
        table(rows)


def table(rows: Sequence[Row]) -> None:
    columns = (
        "mean regret",
        "points",
        "within 0.003",
        "over 0.01",
        "largest",
        "surely wrong",
        "cooled, mean",
    )
    line("rule", *columns, "cooled, largest")
    print("|---" * (len(columns) + 2) + "|")
    for name, rule in RULES.items():
        regret, points, wrong = regrets(rows, rule)
        cooled = regrets(rows, rule, "matched")[0]
        line(
            name,
            f"{sum(regret) / len(rows):.4f}",
            f"{sum(points) / len(rows):.2f}",
            f"{sum(it <= 0.003 for it in regret) / len(rows):.0%}",
            sum(it > 0.01 for it in regret),
            f"{max(regret):.4f}",
            sum(wrong),
            f"{sum(cooled) / len(rows):.4f}",
            f"{max(cooled):.4f}",
        )
    regret, weights = crossed(rows)
    within = sum(it <= 0.003 for it in regret) / len(rows)
    told = f"{min(weights.values()):g} … {max(weights.values()):g}"
    print(f"\nweight by other kinds ({told}): {sum(regret) / len(rows):.4f}, {within:.0%}, {max(regret):.4f}")
