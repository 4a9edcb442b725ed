"""How far the figures of two reports are apart: `report.json` of `rebasin barrier --report`, by two versions.

    python benchmarks/same_figures.py BEFORE/report.json AFTER/report.json [--most 5]

Compared are all numbers of the rows: absolute differences of what is below 1, else relative ones. Rows or
figures that only one report has are an error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def figures(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Every number below a value, by where it stands."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from figures(below, f"{place}/{name}")
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from figures(below, f"{place}/{number}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place, value


def rows(path: Path) -> dict[str, float]:
    return dict(figures({row["name"]: row for row in json.loads(path.read_text())["rows"]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--most", type=int, default=5, help="how many of the largest are shown")
    asked = parser.parse_args()
    before, after = rows(asked.before), rows(asked.after)
    if alone := sorted(before.keys() ^ after.keys()):
        raise SystemExit(f"only one report has {', '.join(alone[:5])}")
    apart = sorted(
        ((abs(after[at] - was) / max(1.0, abs(was)), at) for at, was in before.items()), reverse=True
    )
    print(f"{len(apart):,} figures, {sum(difference > 0 for difference, _ in apart):,} differ")
    for difference, at in apart[: asked.most]:
        print(f"{difference:.1e}  {at.lstrip('/')}  {before[at]:.9g} → {after[at]:.9g}")


if __name__ == "__main__":
    main()
