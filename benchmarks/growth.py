"""Time and memory of weight matching against width and depth, on random mlps: exponents, and a picture.

    python benchmarks/growth.py [--runs 3] [--plot benchmarks/growth.png] [--quick]

Every point is a process of its own, which matches independent pairs with seeds 0, 1, …; a run of more than
50 seconds is not repeated. Memory is the process's peak above what it held after matching a small pair, both
models included; Linux only. Exponents are least squares in log-log, over all points and over the last two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from _rows import Case, alternated, begin, described, heading, median, parser, random_net, row, warm_up

from rebasin_cli.matchers import wm

WIDTHS, DEPTHS = (256, 512, 1024, 2048, 4096), (4, 8, 16, 32, 64, 128)
DEPTH, WIDTH = 3, 256  # what stays while the other grows
SERIES = {
    f"width of {DEPTH} layers": [(width, DEPTH) for width in WIDTHS],
    f"layers of width {WIDTH}": [(WIDTH, depth) for depth in DEPTHS],
}


def resident(what: str) -> int:
    """Bytes of this process: "VmRSS" now, "VmHWM" at the peak since it was last forgotten. Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def point(width: int, depth: int, runs: int) -> None:
    """One point, in this process: prints median seconds, bytes at the peak and bytes of both models."""
    warm_up()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before = resident("VmRSS")
    a, b = (random_net("mlp", (1, 28, 28), width, seed, depth=depth) for seed in (0, 1))
    case = Case("point", described(a), a, b)
    found = alternated({"wm": lambda seed: wm.match(case.problem(seed))}, runs)["wm"]
    models = sum(4 * tensor.numel() for model in (a, b) for tensor in model.values())
    print(json.dumps([median(seconds for seconds, _ in found), resident("VmHWM") - before, models]))


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def draw(path: Path, found: dict[str, tuple[list[int], dict[str, list[float]]]]) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for row_of_axes, quantity in zip(axes, ("seconds", "peak memory, MB"), strict=True):
        for axis, (name, (sizes, values)) in zip(row_of_axes, found.items(), strict=True):
            exponent = slope(sizes, values[quantity])
            fit = np.exp(
                np.mean(np.log(values[quantity])) + exponent * (np.log(sizes) - np.mean(np.log(sizes)))
            )
            axis.loglog(sizes, values[quantity], "o", color="#0072B2", label="measured")
            axis.loglog(sizes, fit, "--", color="#D55E00", label=f"fit: exponent {exponent:.2f}")
            if "both models, MB" in values and quantity != "seconds":
                axis.loglog(sizes, values["both models, MB"], ":", color="#666666", label="both models")
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.minorticks_off()
            axis.set_xlabel(name)
            axis.set_ylabel(quantity)
            axis.legend(frameon=False)
    figure.suptitle("Weight matching of two random mlps")
    figure.savefig(path, dpi=110)


def main() -> None:
    found = parser(__doc__, rows=False)
    found.add_argument("--plot", type=Path, metavar="PNG", help="draw a picture of it")
    found.add_argument("--point", metavar="WIDTHxDEPTH", help="one point alone, as JSON")
    if "--point" in sys.argv:
        arguments = found.parse_args()
        point(*map(int, arguments.point.split("x")), arguments.runs)
        return
    arguments = begin(found)
    measured = {}
    heading("row", "wm, s", "peak memory, MB", "both models, MB")
    exponents = []
    for name, points in SERIES.items():
        sizes, values = [], {"seconds": [], "peak memory, MB": [], "both models, MB": []}
        for width, depth in points[: 3 if arguments.quick else None]:
            command = [sys.executable, __file__, "--point", f"{width}x{depth}", "--runs", str(arguments.runs)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            seconds, *sides = json.loads(done.stdout.splitlines()[-1])
            row(f"mlp {depth}x{width}", f"{seconds:.3f}", *(f"{side / 1e6:.0f}" for side in sides))
            sizes.append(depth if name.startswith("layers") else width)
            for key, value in zip(values, (seconds, *(side / 1e6 for side in sides)), strict=True):
                values[key].append(value)
        measured[name] = sizes, values
        for key in ("seconds", "peak memory, MB"):
            whole, last = slope(sizes, values[key]), slope(sizes[-2:], values[key][-2:])
            exponents.append((name, key, f"{whole:.2f}", f"{last:.2f}"))
    print()
    heading("against", "of", "exponent", "last two points")
    for each in exponents:
        row(*each)
    if arguments.plot:
        draw(arguments.plot, measured)


if __name__ == "__main__":
    main()
