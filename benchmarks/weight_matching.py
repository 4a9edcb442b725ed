"""Weight matching against Algorithm 1 written plainly, in one run: time ratio and objective.

    python benchmarks/weight_matching.py [--rows NAME,…] [--runs 3] [--pairs a.safetensors:b.safetensors …]
    python benchmarks/weight_matching.py --before CHECKOUT    # wm of another version in place of the baseline
    python benchmarks/weight_matching.py --below --runs 5 --rows trained --pairs …
    python benchmarks/weight_matching.py --table --before CHECKOUT --ste-mm FOLDER --runs 5 --rows … --pairs …

The baseline solves every layer in random order in each sweep, with scipy in float64 and full products, and
stops when no layer improves by more than 1e-12 (Ainsworth et al. 2022, Algorithm 1). It multiplies with
torch, as wm does. It is measured in four forms: products in float64 or in float32, every layer solved in
every sweep or those left out that nothing changed for since. Runs of all alternate with seeds 0, 1, …, each
of one call or of as many as take 0.3 seconds; printed are medians of the wall on all threads, and ratios of
medians (larger is faster). Then wm and every form of less than 5 seconds, or the fastest, alternate once more
on one thread, in processor seconds, which other programs of the machine change little. "fair ratio" is that
of those: the fastest form's over wm's; and wm's objective is set against that form's (larger is better).
"products once" are every word's products, made once, and no assignment: no search that multiplies them all
takes less. One of more than 50 seconds is not repeated; one that --limit stops, at the end of a sweep,
has "≥".

With --before each version runs in a process of its own, in turns: whether orders are the same with seeds 0,
1, …, and the least processor seconds of one thread, which others disturb least. Where the checkout has an
engine for groups alone (0.2.0), it is given the pair without groups, and its orders are compared with those
of `--effort fast`. With --below each seed is one run of wm and one of the quickest form, and a row says
in how many wm's objective is below the baseline's, by more than rounding.

With --table wm of a checkout and of this one, each in a process of its own, the quickest form of the baseline
and, of mlps, STE-MM's program with its own solver (github.com/e5-a/STE-MM in FOLDER; its lap_uv/src/main.cpp
compiled with -O3 -march=native to srcs/lap_uv.so) take turns, seed by seed: medians over seeds of the least
processor seconds of one thread, of as many calls as take 0.3 seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from _rows import (
    BRIEF,
    SHORT,
    TRANSFORMER,
    TRANSFORMER_SPEC,
    Case,
    Tensors,
    alternated,
    begin,
    cases,
    change,
    heading,
    median,
    on_one_thread,
    parser,
    row,
    timed,
)
from safetensors.torch import save_file
from scipy.optimize import linear_sum_assignment

from rebasin_cli.matchers import wm
from rebasin_cli.matchers.descent.pair import Pair
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec.atoms import atoms
from rebasin_cli.spec.notation import Word
from rebasin_cli.spec.spec import FittedSpec
from rebasin_cli.symmetry import permutation
from rebasin_cli.symmetry.permutation import Permutations

Ask = Callable[[int, str, int], tuple[str, float]]

ROUNDING = 1e-7  # of an objective, which is no difference
SWEEPS = 100  # at most, as in the authors' program: in float32 rounding may go round in circles
FORMS = {
    "float64": (torch.float64, False),
    "float32": (torch.float32, False),
    "float64, skipping": (torch.float64, True),
    "float32, skipping": (torch.float32, True),
}


def plain(
    fitted: FittedSpec, a: Tensors, b: Tensors, limit: float, seed: int, *, skipping: bool
) -> tuple[Permutations, bool]:
    """Algorithm 1 as a reader of the paper would write it; whether it came to its end within the limit.

    Products are of the type that the models have. With `skipping` a word is left out of a sweep where no
    word of its atoms has moved since it was solved.
    """
    began = time.perf_counter()
    parts = list(atoms(fitted))
    perms = permutation.identity(fitted.words)
    words, sweep, improved = sorted(perms), 0, True
    beside = {word: {w for p in parts if word in p.words for w in p.words if w} - {word} for word in words}
    stale = set(words)
    while improved and sweep < SWEEPS and time.perf_counter() - began < limit:
        improved = False
        order = torch.randperm(len(words), generator=generator(seed, f"plain sweep {sweep}"))
        sweep += 1
        for word in (words[k] for k in order.tolist()):
            if skipping and word not in stale:
                continue
            similarity = torch.zeros((fitted.words[word],) * 2, dtype=next(iter(a.values())).dtype)
            for part in parts:
                for axis in (d for d, here in enumerate(part.words) if here == word):
                    x, y = (part.view(model[part.tensor]) for model in (a, b))
                    for d, other in enumerate(part.words):
                        if other is not None and d != axis:
                            y = y.index_select(d, perms[other])
                    x, y = (z.movedim(axis, 0).reshape(len(similarity), -1) for z in (x, y))
                    similarity += x @ y.T
            rows, columns = map(torch.from_numpy, linear_sum_assignment(similarity.numpy(), maximize=True))
            found, before = similarity[rows, columns].double(), similarity[rows, perms[word]].double()
            improved |= (found.sum() - before.sum()).item() > 1e-12
            stale.discard(word)
            if not torch.equal(columns, perms[word]):
                twice = any(part.words.count(word) > 1 for part in parts)  # its own order counts as well
                stale |= beside[word] | ({word} if twice else set())
            perms[word] = columns
    return perms, not improved or sweep == SWEEPS


def products(case: Case, seed: int) -> None:
    """Every word's similarity as the models stand, as wm makes it."""
    pair, still = Pair(case.a, case.b, case.fitted), permutation.identity(case.fitted.words)
    with pair.computing():
        for word in pair.words:
            pair.matrix(word, still)


def compare(case: Case, runs: int, limit: float) -> None:
    tasks = {"wm": lambda seed: (wm.match(case.problem(seed)).permutations[0], True)}
    tasks["products"] = partial(products, case)
    for name, (dtype, skipping) in FORMS.items():
        models = [{n: t.to(dtype) for n, t in model.items()} for model in (case.a, case.b)]
        tasks[name] = partial(plain, case.fitted, *models, limit, skipping=skipping)
    taken = alternated(tasks, runs)
    times = {who: median(seconds for seconds, _ in found) for who, found in taken.items()}
    fast, once, quickest = times.pop("wm"), times.pop("products"), min(FORMS, key=times.get)
    again = ["wm", *(who for who in FORMS if times[who] < SHORT or who == quickest)]
    alone = alternated(
        {who: partial(on_one_thread, tasks[who]) for who in again}, runs, clock=time.process_time
    )
    own = {who: median(seconds for seconds, _ in found) for who, found in alone.items()}
    best = min(again[1:], key=own.get)
    low, high = (median(case.reached(perms) for _, (perms, _) in alone[who]) for who in (best, "wm"))
    least = {who: "" if all(ended for _, (_, ended) in taken[who]) else "≥ " for who in FORMS}
    row(
        *(case.name, len(taken[best]), f"{fast:.3f}", f"{once:.3f}"),
        *(f"{least[who]}{times[who]:.3f} ({least[who]}{times[who] / fast:.1f})" for who in FORMS),
        *(f"{own['wm']:.4f}", f"{least[best]}{own[best]:.4f}", f"{least[best]}{own[best] / own['wm']:.2f}"),
        *(f"{low:.6g}", change(high, low)),
    )


SEARCHES = """
import hashlib, json, sys, time
import torch
from safetensors.torch import load_file
from rebasin_cli.matchers import Problem, wm
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
try:
    from rebasin_cli.matchers.grouped.matching import match as groups
except ImportError:
    groups = None
torch.set_num_threads(1)
a, b = map(load_file, sys.argv[1:3])
shapes = {name: tuple(tensor.shape) for name, tensor in a.items()}
fitted = fit(parse(sys.argv[3], name="benchmark"), shapes) if sys.argv[3:] else library.find(shapes)
ways = {"normal": wm.match, "fast": lambda problem: wm.match(problem, wm.Options(effort="fast"))}
ways |= {} if groups is None else {"groups": lambda problem: groups(problem, 100)}
for line in sys.stdin:
    name, seed = line.split()
    seconds = []
    while name in ways and sum(seconds) < 0.3:
        began = time.process_time()
        orders = ways[name](Problem(fitted, (a, b), int(seed))).permutations[0]
        seconds.append(time.process_time() - began)
    told = b"".join(orders[w].numpy().tobytes() for w in sorted(orders)) if seconds else b""
    digest = hashlib.sha256(told).hexdigest() if seconds else ""
    print(json.dumps([digest, min(seconds, default=0.0)]), flush=True)
"""


@contextmanager
def searching(case: Case, before: Path) -> Iterator[Ask]:
    """Asks wm of a checkout (0) or of this one (1): a digest of its orders, and seconds."""
    here = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("a.safetensors", "b.safetensors")]
        for file, model in zip(files, (case.a, case.b), strict=True):
            save_file({name: tensor.contiguous() for name, tensor in model.items()}, file)
        files += [TRANSFORMER_SPEC] if case.name.startswith(TRANSFORMER) else []
        running = [
            subprocess.Popen(
                [sys.executable, "-c", SEARCHES, *files],
                env={**os.environ, "PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"},
                **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": folder},
            )
            for checkout in (before, here)
        ]

        def ask(who: int, effort: str, seed: int) -> tuple[str, float]:
            running[who].stdin.write(f"{effort} {seed}\n")
            running[who].stdin.flush()
            return tuple(json.loads(running[who].stdout.readline()))

        yield ask
        for process in running:
            process.communicate()


def versions(case: Case, runs: int, before: Path) -> None:
    """A row of what wm of a checkout and of this one find, with `runs` seeds, and their seconds, in turns."""
    cells, alike = [], []
    with searching(case, before) as ask:
        for effort in ("normal", "fast"):
            said: tuple[list[Any], list[Any]] = ([], [])
            for seed in range(runs):
                for who in (0, 1) if seed % 2 == 0 else (1, 0):
                    said[who].append(ask(who, effort, seed))
                if effort == "fast":
                    alike.append((ask(0, "groups", seed)[0], said[1][-1][0]))
            same = sum(old == new for (old, _), (new, _) in zip(*said, strict=True))
            old, new = (min(seconds for _, seconds in all_) for all_ in said)
            cells += [f"{same} of {runs}", f"{old:.3f}", f"{new:.3f}", f"{new / old - 1:+.1%}"]
    alike = [old == new for old, new in alike if old]
    row(case.name, *cells, f"{sum(alike)} of {len(alike)}" if alike else "")


def below(case: Case, runs: int, limit: float) -> None:
    """How often wm's objective is below plain's with the same seed, and what both take of a processor."""
    dtype, skipping = FORMS["float32, skipping"]
    models = [{n: t.to(dtype) for n, t in model.items()} for model in (case.a, case.b)]
    forms = {
        "wm": lambda seed: wm.match(case.problem(seed)).permutations[0],
        "plain": lambda seed: plain(case.fitted, *models, limit, seed, skipping=skipping)[0],
    }
    seconds: dict[str, list[float]] = {who: [] for who in forms}
    changes = []
    for seed in range(runs):
        found = {
            who: timed(partial(on_one_thread, form), seed, clock=time.process_time)
            for who, form in forms.items()
        }
        for who, (taken, _) in found.items():
            seconds[who].append(taken)
        wms, plains = (case.reached(perms) for _, perms in found.values())
        changes.append(wms / plains - 1)
    times = (f"{median(seconds[who]):.4f}" for who in forms)
    under = sum(change < -ROUNDING for change in changes)
    row(case.name, runs, under, f"{min(changes):+.4%}", f"{median(changes):+.4%}", *times)


def ste_mm(case: Case, folder: Path, seed: int) -> Permutations:
    """Weight matching as STE-MM's program does it, of tensors whose axes carry one word each."""
    sys.path.insert(0, str(folder / "srcs"))
    for unused in ("tqdm", "sinkhorn", "sinkhorn.rebasinnet.graph.auto_graph"):
        sys.modules.setdefault(unused, MagicMock())
    from search.weight_matching import permutation_spec_from_axes_to_perm
    from search.weight_matching_uv import weight_matching_uv

    axes = {
        name: tuple(axis.name if isinstance(axis, Word) else None for axis in its)
        for name, its in case.fitted.tensors.items()
    }
    torch.manual_seed(seed)
    search = weight_matching_uv(permutation_spec_from_axes_to_perm(axes))
    search.fit(dict(case.a), dict(case.b))
    return {word: perm.long() for word, perm in search.perm.items()}


def least(task: Callable[[int], Any], seed: int) -> tuple[float, Any]:
    """The least processor seconds of calls on one thread, and what the last one returns."""
    taken: list[tuple[float, Any]] = []
    while sum(seconds for seconds, _ in taken) < BRIEF:
        taken.append(timed(partial(on_one_thread, task), seed, clock=time.process_time))
    return min(seconds for seconds, _ in taken), taken[-1][1]


def in_turns(
    case: Case, runs: int, limit: float, before: Path, peer: Path | None
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The seconds of wm before and now and of the peers, and by how much wm's objectives are above theirs.

    Medians over seeds, by who; STE-MM's program is a peer of mlps, where there is its folder.
    """
    dtype, skipping = FORMS["float32, skipping"]
    models = [{n: t.to(dtype) for n, t in model.items()} for model in (case.a, case.b)]
    peers = {"plain": lambda seed: plain(case.fitted, *models, limit, seed, skipping=skipping)[0]}
    if peer is not None and case.name.startswith(("mlp", "trained mlp")):
        peers["STE-MM"] = partial(ste_mm, case, peer)
    seconds: dict[str, list[float]] = {who: [] for who in ("before", "now", *peers)}
    reached: dict[str, list[float]] = {who: [] for who in ("now", *peers)}
    with searching(case, before) as ask:
        for seed in range(runs):
            for who, version in enumerate(("before", "now")):
                seconds[version].append(ask(who, "normal", seed)[1])
            reached["now"].append(case.reached(wm.match(case.problem(seed)).permutations[0]))
            for who, task in peers.items():
                taken, perms = least(task, seed)
                seconds[who].append(taken)
                reached[who].append(case.reached(perms))
    middle = {who: median(its) for who, its in seconds.items()}
    above = {
        who: [now / its - 1 for now, its in zip(reached["now"], reached[who], strict=True)] for who in peers
    }
    return middle, above


def table(case: Case, runs: int, limit: float, before: Path, peer: Path | None) -> None:
    """A row of the seconds of wm before and now, and of both peers, and of objectives."""
    middle, above = in_turns(case, runs, limit, before, peer)
    row(
        case.name,
        *(f"{middle[who]:.4f}" if who in middle else "" for who in ("before", "now", "plain", "STE-MM")),
        *(
            f"{middle[who] / middle[version]:.2f}" if who in middle else ""
            for who in ("plain", "STE-MM")
            for version in ("before", "now")
        ),
        *(f"{min(above[who]):+.3%}" if who in above else "" for who in ("plain", "STE-MM")),
    )


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--before", type=Path, metavar="CHECKOUT", help="compare with wm of this version")
    found.add_argument("--limit", type=float, default=200, help="seconds for one run of the baseline")
    found.add_argument("--below", action="store_true", help="how often wm's objective is below plain's")
    found.add_argument("--table", action="store_true", help="wm before and now, and peers, in turns")
    found.add_argument("--ste-mm", type=Path, metavar="FOLDER", help="where STE-MM's program is")
    arguments = begin(found)
    if arguments.table:
        of = [f"{peer} / {who}" for peer in ("plain", "STE-MM") for who in ("before", "now")]
        heading(
            *("row", "wm before, s of processor", "now", "plain", "STE-MM"),
            *of,
            *("least against plain", "least against STE-MM"),
        )
        for case in cases(arguments):
            table(case, arguments.runs, arguments.limit, arguments.before, arguments.ste_mm)
        return
    if arguments.before:
        columns = ("same orders", "before, s", "now, s", "change")
        fast = ("fast: same orders", *columns[1:], "groups' engine before: orders of fast")
        heading("row", *columns, *fast)
        for case in cases(arguments):
            versions(case, arguments.runs, arguments.before)
        return
    if arguments.below:
        heading(
            "row", "seeds", "below plain", "worst", "median", "wm, s of processor", "plain, s of processor"
        )
        for case in cases(arguments):
            below(case, arguments.runs, arguments.limit)
        return
    forms = (f"plain {name}, s (ratio)" for name in FORMS)
    heading(
        "row",
        "plain runs",
        "wm, s",
        "products once, s",
        *forms,
        "one thread: wm, s of processor",
        "fastest plain",
        "fair ratio",
        "plain objective",
        "wm objective",
    )
    for case in cases(arguments):
        compare(case, arguments.runs, arguments.limit)


if __name__ == "__main__":
    main()
