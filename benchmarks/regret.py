"""What a choice between merges costs: candidates of many kinds of networks, rules, and test data.

    python benchmarks/regret.py record [--least 0] [--most 400]   adds cases to regret.jsonl, or goes on
    python benchmarks/regret.py rules                             tables of rules, from the recorded cases
    python benchmarks/regret.py gains                             what a second gains; one end alone
    python benchmarks/regret.py budgets                           fewer searches, by what each gains
    python benchmarks/regret.py floor                             what chance does to any choice

A case is a pair or three of networks that `rebasin train` does not make: a recipe of its own each (plain SGD,
no decay, dropout, norms, few samples, augmentation, label noise, convolutions, a transformer, regression,
characters) on images of 14×14, characters, or a function. Its candidates are methods with repairs; its truth
is what each loses on nine tenths of the test split. Rules may look at training samples that repairs and
methods were not given ("train", a tenth, as `auto` holds out), at these with noise or mixed ("noise 0.5",
"noise 1", "mixed 0.3", "mixed 0.5"), and at the tenth of the test split ("tenth"), at each: every candidate's
loss, its loss at its best temperature, its distance to the ends' mean output (from probabilities in nats, of
regression squared), its accuracy, and the standard errors of all differences of the first and the third.
Candidates of cases from 100 on have processor seconds (search, repair), and among them is the first end
alone, distilled towards all. Those that say how many samples were "tested" also have what learns and swaps
as candidates, from the best before, and all test samples there are as their truth.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
from _regret_cases import FIRST, METHODS, read, record
from _regret_rules import Row, able, error, kind_of, rules, values
from _rows import line
from torch import Tensor

from rebasin_cli.matchers.portfolio import contest
from rebasin_cli.matchers.portfolio import gains as gains_of

STEPS = {  # what comes after what
    "wm, repair": (("wm", "none"), ("wm", "repair")),
    "wm, refit": (("wm", "none"), ("wm", "refit")),
    "wm, refit ": (("wm", "reset"), ("wm", "refit")),
    "wm, distill after a refit": (("wm", "refit"), ("wm", "distill")),
    "am, refit beside wm's": (("wm", "refit"), ("am", "refit")),
    "dual, refit beside wm's": (("wm", "refit"), ("dual", "refit")),
    "am, refit after a distillation": (("wm", "distill"), ("am", "refit")),
    "am, distill beside wm's": (("wm", "distill"), ("am", "distill")),
    "dual, distill beside wm's": (("wm", "distill"), ("dual", "distill")),
    **{
        f"{name}, {how} beside wm's": (("wm", how), (name, how))
        for name in ("ste", "polish")
        for how in ("refit", "distill")
    },
}


def cost(row: Row, look: str = "train") -> list[float]:
    """What a choice goes by."""
    parts = zip(values(row, look, "loss"), values(row, look, "apart"), strict=True)
    return [loss + (0 if row["data"] == "function" else 2 * apart) for loss, apart in parts]


def gains() -> None:
    """What each step gains a second, of held-out cost and on test data; one end alone beside the merge."""
    rows = [row for row in read() if "seconds" in row]
    line("network", "step", "cases", "nats a second", "gained on test", "by more than 0.003", "most")
    print("|---" * 7 + "|")
    for net in dict.fromkeys(row["net"] for row in rows):
        for step, pair in STEPS.items():
            gained(net, step, pair, [row for row in rows if row["net"] == net])
    one_end(rows)


def gained(net: str, step: str, pair: Any, rows: Sequence[Row]) -> None:
    found = []
    for row in rows:
        there = [tuple(it) for it in row["candidates"]]
        if not {*pair} <= {*there}:
            continue
        before, after = map(there.index, pair)
        searched, repaired = row["seconds"][after]
        took = repaired + searched * (pair[0][0] != pair[1][0])
        test = values(row, "test", "loss")
        found.append(((cost(row)[before] - cost(row)[after]) / max(took, 1e-3), test[before] - test[after]))
    if not found:
        return
    second, test = (sorted(it) for it in zip(*found, strict=True))
    middle = len(found) // 2
    line(
        net,
        step.strip(),
        len(found),
        f"{second[middle]:.3f}",
        f"{test[middle]:.4f}",
        f"{sum(it > 0.003 for it in test) / len(test):.0%}",
        f"{test[-1]:.4f}",
    )


Parts = tuple[dict[tuple[str, str], int], list[float], float]


def parts(row: Row) -> Parts:
    """Where each candidate is, what it costs, and what the ends' mean answer loses, if that is known."""
    whole = row["looks"]["train"]["ensemble"] if row["data"] != "function" else -math.inf
    return {(method, how): k for k, (method, how) in enumerate(row["candidates"])}, cost(row), whole


def quick(at: dict[tuple[str, str], int], method: str) -> list[int]:
    return [k for (name, how), k in at.items() if name == method and how != "distill"]


def shares(rows: Sequence[Row]) -> dict[str, tuple[float, float, int]]:
    """Of what is left after wm and its quick repairs: what a search takes, alone and beside a distillation.

    The median, since of few cases one in which a distillation does harm would say it all.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        at, costs, whole = parts(row)
        first = min(costs[k] for k in quick(at, "wm"))
        left, trained = first - whole, min(first, costs[at["wm", "distill"]])
        for method in METHODS[2:]:
            if not (there := quick(at, method)) or not 0 < left < math.inf:
                continue
            best = min(costs[k] for k in there)
            both = min(best, costs[at[method, "distill"]]) if (method, "distill") in at else trained
            found.setdefault(method, []).append(
                (max(0.0, first - best) / left, max(0.0, trained - both) / left)
            )
    middle = {name: [median(each) for each in zip(*its, strict=True)] for name, its in found.items()}
    return {name: (alone, beside, len(found[name])) for name, (alone, beside) in middle.items()}


def replayed(
    row: Row, budget: float, known: Mapping[str, Any] | None, *, rated: bool = False
) -> tuple[float, float, int]:
    """What `auto` loses on test data, its seconds, and what it takes: all in turn, or by what is `known`.

    `rated`: what takes the largest share a second comes first.

    Searches in their order, each with its quick repairs, while the time of a distillation of the best is
    kept back; none where next to nothing is left.
    """
    at, costs, whole = parts(row)
    done, spent = quick(at, "wm"), row["seconds"]
    seconds = spent[done[0]][0] + sum(spent[k][1] for k in done)
    loss = values(row, "train", "loss")

    def best() -> int:
        return min(done, key=lambda k: costs[k])

    def idle() -> bool:
        few = known is not None and loss[best()] - whole < contest.LITTLE
        return few or costs[best()] - whole < contest.LITTLE

    last = spent[at["wm", "distill"]][1]
    kept = last if seconds + last <= budget and not idle() else 0.0

    def lasting(method: str) -> float:
        there = quick(at, method)
        return sum(spent[k][1] for k in there) + (spent[there[0]][0] if there else 0.0)

    order = ["merge-many", "dual", "am", "ste", "ste-mm", "polish"]
    if rated and known is not None:
        order.sort(key=lambda m: -known.get(m, (1, 1))[kept > 0] / max(lasting(m), 1e-3))
    for method in order:
        there, left, more = quick(at, method), costs[best()] - whole, lasting(method)
        if not there or left < contest.LITTLE or seconds + more + kept > budget:
            continue
        if known is not None and known.get(method, (1, 1))[kept > 0] * left < gains_of.NOISE:
            continue
        done, seconds = [*done, *there], seconds + more
        kept = 0.0 if idle() else kept
    end = at.get((row["candidates"][best()][0], "distill"))
    if kept and end is not None:
        done, seconds = [*done, end], seconds + spent[end][1]
    return values(row, "test", "loss")[best()], seconds, best()


def budgets() -> None:
    """Shares of what is left; and all searches in turn beside those that they let be worth their time."""
    rows = [row for row in read() if "seconds" in row]
    line("search", "cases", "of what is left", "beside a distillation")
    print("|---" * 4 + "|")
    for name, (alone, beside, cases) in shares(rows).items():
        line(name, cases, f"{alone:.2f}", f"{beside:.2f}")
    kinds = {kind_of(row): row["net"] for row in rows}
    others = {kind: shares([it for it in rows if kind_of(it) != kind]) for kind in kinds}
    alike = {
        kind: others[kind] | shares([it for it in rows if kind_of(it) != kind and it["net"] == net])
        for kind, net in kinds.items()
    }
    print()
    line(
        "cases", "budget, s", "searches", "regret", "within 0.003", "over 0.01", "seconds", "worse", "better"
    )
    print("|---" * 9 + "|")
    learning = [row for row in rows if "tested" in row]
    for name, some in (("all", rows), ("with what learns and swaps", learning)):
        for budget in (1.0, 2.0, 4.0, 8.0, math.inf):
            every = [replayed(row, budget, None) for row in some]
            fewer = [replayed(row, budget, others[kind_of(row)]) for row in some]
            ways = {"in turn": every, "worth their time": fewer}
            for told, known in (("by gain a second", others), ("that, by kind of network", alike)):
                ways[told] = [replayed(row, budget, known[kind_of(row)], rated=True) for row in some]
            for told, found in ways.items():
                lost = [
                    loss - min(values(row, "test", "loss")[k] for k in able(row))
                    for row, (loss, *_) in zip(some, found, strict=True)
                ]
                apart = [one - other for (one, *_), (other, *_) in zip(found, every, strict=True)]
                line(
                    f"{name}, {len(some)}",
                    f"{budget:g}",
                    told,
                    f"{sum(lost) / len(some):.4f}",
                    f"{sum(it <= 0.003 for it in lost) / len(some):.0%}",
                    sum(it > 0.01 for it in lost),
                    f"{sum(seconds for _, seconds, _ in found) / len(some):.2f}",
                    sum(it > 0.003 for it in apart),
                    sum(it < -0.003 for it in apart),
                )
    beside_weights(rows)


def beside_weights(rows: Sequence[Row]) -> None:
    """The seconds of `auto` in a minute beside those of `wm` with its repair, where that is what it takes."""
    few, more = list[float](), list[float]()
    for row in rows:
        _, seconds, taken = replayed(row, 60.0, gains_of.SHARES)
        method, how = row["candidates"][taken]
        if method == "wm" and how != "distill":
            _, costs, whole = parts(row)
            near = costs[taken] - whole < contest.LITTLE
            (few if near else more).append(seconds / max(sum(row["seconds"][taken]), 1e-3))
    print(f"\n`wm` with its repair is what {len(few) + len(more)} of {len(rows)} take; in its seconds:")
    for name, its in (("next to nothing was left", few), ("more was left, and nothing found", more)):
        print(f"{name}: {len(its)} cases, median {median(its):.1f}, most {max(its):.1f}")


UNSEEN = (75, 150, 300, 600, 1_200, 2_000, 3_000)
TENTH = 300  # samples, of nearly all cases


def floor() -> None:
    """How often the best candidate itself would be judged worse than another, on other test samples.

    Means on test data are taken for the truth, and drawn anew with the errors of all differences: real
    differences are smaller than measured ones, so this is the least that chance does. And what chance leaves
    of a choice by the least loss, on so many samples that no end has seen.
    """
    torch.manual_seed(0)
    over: dict[float, list[float]] = {0.003: [], 0.01: []}
    for row in (rows := read()):
        mean, drawn = again(row, "test", row.get("tested", 2_700) / 2_700)
        judged = drawn[:, mean.argmin()] - drawn.min(1).values
        for most, found in over.items():
            found.append((judged > most).double().mean().item())
    told = ", ".join(f"{sum(its) / len(rows):.1%} over {most:g}" for most, its in over.items())
    print(f"the best of {len(rows)} cases, judged on 2,700 other samples: {told}\n")
    line("unseen samples", "mean regret", "within 0.003", "over 0.01")
    print("|---" * 4 + "|")
    for samples in UNSEEN:
        lost = []
        for row in rows:
            mean, drawn = again(row, "tenth", TENTH / samples)
            lost.append(mean[drawn.argmin(1)] - mean.min())
        every = torch.cat(lost)
        near, far = (every <= 0.003).double().mean().item(), (every > 0.01).double().mean().item()
        line(f"{samples:,}", f"{every.mean().item():.4f}", f"{near:.1%}", f"{far:.1%}")


def again(row: Row, look: str, share: float) -> tuple[Tensor, Tensor]:
    """What each candidate loses on test data, and draws of it (2,000, candidates) with a look's errors.

    `share`: of the variances of its differences.
    """
    there = able(row)
    apart = torch.tensor(
        [[error(row, look, "loss", a, b) ** 2 if a != b else 0.0 for b in there] for a in there]
    ).double()
    apart *= share
    shared = (apart[:, :1] + apart[:1, :] - apart) / 2  # of differences to the first
    sizes, along = torch.linalg.eigh(shared)
    spread = along * sizes.clamp_min(0).sqrt()
    mean = torch.tensor([values(row, "test", "loss")[k] for k in there]).double()
    return mean, mean + torch.randn(2_000, len(there), dtype=torch.float64) @ spread.T


def one_end(rows: Sequence[Row]) -> None:
    """One end distilled towards all in place of the merge: where it costs less, or surely does."""
    taken: dict[str, list[float]] = {"where it costs less": [], "by 1 error": [], "by 2 errors": []}
    cases = 0
    for row in rows:
        there = [tuple(it) for it in row["candidates"]]
        if (FIRST, "distill") not in there or row["data"] == "function":
            continue
        cases, one, costs = cases + 1, there.index((FIRST, "distill")), cost(row)
        merge = min(able(row), key=lambda k: costs[k])
        wide = error(row, "train", "loss", one, merge) + 2 * error(row, "train", "apart", one, merge)
        test = values(row, "test", "loss")
        for sure, gains_ in enumerate(taken.values()):
            if costs[merge] - costs[one] > sure * wide:
                gains_.append(test[merge] - test[one])
    print(f"\none end, distilled towards all, in place of the merge of least cost: {cases} cases\n")
    line("taken", "cases", "gained on test, mean", "better", "worst", "most")
    print("|---" * 6 + "|")
    for name, its in taken.items():
        if its:
            mean, better = sum(its) / len(its), sum(it > 0 for it in its)
            line(name, len(its), f"{mean:.4f}", better, f"{min(its):.4f}", f"{max(its):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("record", "rules", "gains", "budgets", "floor"))
    parser.add_argument("--least", type=int, default=0, help="number of the first case")
    parser.add_argument("--most", type=int, default=300)
    parser.add_argument("--nets", nargs="+", default=["mlp", "cnn", "vit"], help="record only these")
    asked = parser.parse_args()
    if asked.what == "record":
        record(asked.least, asked.most, asked.nets)
    else:
        {"rules": rules, "gains": gains, "budgets": budgets, "floor": floor}[asked.what]()


if __name__ == "__main__":
    main()
