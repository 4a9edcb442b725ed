"""Weight matching of the largest networks, here or on a GPU: seconds, beside what its authors report.

    python benchmarks/large.py [--device cuda] [--rows "resnet20 32x,resnet50"] [--runs 3]

Two random initialisations, and one of them with every word permuted at random and noise. The seconds of Git
Re-Basin's authors are theirs for trained networks, on an NVIDIA V100 (Ainsworth et al. 2022, appendix A.2).
On another device than the CPU the CPU runs too, and "equal" is the share of units that both match alike. The
transformer has two layers of width 4096 and hidden width 16384.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import _rows
from _rows import Case, Tensors, begin, described, heading, median, parser, planted, random_net, row, timed

from rebasin_cli.matchers import MatchResult, wm

AUTHORS = {"resnet20 32x": 194, "resnet50": 33}  # seconds


def transformer(seed: int) -> Tensors:
    return _rows.random_transformer(seed, layers=2, width=4096, hidden=16384)


MAKERS: dict[str, Callable[..., Tensors]] = {
    "resnet20 32x": partial(random_net, "resnet20", (3, 32, 32), 32),
    "resnet50": partial(random_net, "resnet50", (3, 224, 224), 1),
    "transformer 2x4096": transformer,
}


def search(case: Case, device: str, runs: int) -> tuple[float, MatchResult]:
    """Median seconds, with copying the models to the device, and the result with seed 0."""
    found = [timed(wm.match, case.problem(seed, device)) for seed in range(runs)]
    return median(seconds for seconds, _ in found), found[0][1]


def main() -> None:
    found = parser(__doc__, rows=False)
    found.add_argument("--rows", default=",".join(MAKERS))
    found.add_argument("--device", default="cpu")
    arguments = begin(found)
    heading("row", "device", "wm, s", "authors, s", "ratio", "cpu, s", "equal", "objective")
    for name in (text.strip() for text in arguments.rows.split(",")):
        a = MAKERS[name](seed=0)
        fitted = described(a, _rows.TRANSFORMER_SPEC if name.startswith("transformer") else None)
        for kind in _rows.KINDS:
            b = planted(fitted, a) if kind == "planted" else MAKERS[name](seed=1)
            case = Case(f"{name} {kind}", fitted, a, b)
            seconds, result = search(case, arguments.device, arguments.runs)
            theirs = AUTHORS.get(name)
            cells = [f"{seconds:.2f}", theirs or "", f"{theirs / seconds:.1f}" if theirs else ""]
            cells += beside(case, result, arguments.runs) if arguments.device != "cpu" else ["", ""]
            row(case.name, arguments.device, *cells, f"{result.objective_after:.6g}")


def beside(case: Case, result: MatchResult, runs: int) -> list[str]:
    """Seconds of the CPU, and the share of units that it matches alike."""
    seconds, expected = search(case, "cpu", runs)
    alike = [
        (result.permutations[0][word] == perm).double() for word, perm in expected.permutations[0].items()
    ]
    return [f"{seconds:.2f}", f"{sum(map(sum, alike)) / sum(map(len, alike)):.2%}"]


if __name__ == "__main__":
    main()
