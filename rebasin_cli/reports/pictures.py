"""The figures of a document, drawn: all of them as one PNG, or each panel as an SVG that a page colours.

Equal documents give equal bytes with one version of matplotlib, whatever the user's settings of it are. A
panel of a page is drawn in the colours of a light one; `svg` puts variables in their place, which the page's
style sheet gives two values (`colors`), and lets every point tell what it is.
"""

from __future__ import annotations

import hashlib
import html
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..runtime.text import clean
from .document import Color, Document, Figure, Line, On, Panel, Surface, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe & Ito's palette, told apart with every common kind of colour blindness; light page, dark page.
PALETTE: tuple[Color, ...] = (
    ("#D55E00", "#F28A3C"),
    ("#0072B2", "#56B4E9"),
    ("#009E73", "#2FD0A2"),
    ("#CC79A7", "#E29CC3"),
    ("#6E7781", "#9AA4AF"),
    ("#1F2328", "#E6EDF3"),
    ("#A0522D", "#D9A074"),
    ("#6A3D9A", "#B79AE0"),
    ("#8A7000", "#F0E442"),
)
MARKERS = "os^Dv+psv"
FILLED = {"+": "P", "x": "X"}  # matplotlib's crosses of thin lines have no fill
INK, FAINT, GRID, EDGE, PAPER = "#24292e", "#59636e", "#e4e7eb", "#b8bec5", "#ffffff"
CHORD: Color = ("#9aa1a9", "#6b7480")
VARIABLES = {INK: "ink", FAINT: "faint", GRID: "line", EDGE: "edge", PAPER: "panel"}  # of the style sheet
FONT = "DejaVu Sans"  # comes with matplotlib, so that every machine draws the same
DASHED, DOTTED = (0, (4, 2.5)), (0, (1, 2))
MANY = 40  # points of a line: from there on it has no markers of its own choice
TICKS = ((15, (1, 2, 3, 5, 7)), (1000, (1, 2, 5)), (math.inf, (1,)))  # up to a factor between the ends
WIDE, HIGH, DPI = 4.9, 3.6, 130  # inches of a panel with what stands around it
LEFT, RIGHT, HEAD, FOOT = 0.62, 0.16, 0.4, 0.62  # of these inches, beside the axes
PAD = 0.16  # inches beside what is drawn for a page
LINE, LETTER, SAID = 0.19, 0.07, 0.077  # inches of a line of words, of a letter of the legend, of a headline
TITLE, BOLD = 0.24, 0.118  # inches of a line of the title, of a letter of it
MOST = 3  # panels a row
FLAT = 4.0  # times as wide as high: from there on the axes of a surface have two scales
HEADING: dict[str, Any] = {"fontsize": 13, "fontweight": "bold"}
HEADLINE: dict[str, Any] = {"fontsize": 9.5, "va": "top", "linespacing": 1.35}
STYLE: dict[str, Any] = {
    **{"font.family": FONT, "font.size": 9, "text.color": INK, "text.parse_math": False},
    **{
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.titlecolor": INK,
        "axes.titlepad": 8,
    },
    **{"axes.labelcolor": FAINT, "axes.edgecolor": EDGE, "axes.axisbelow": True, "axes.facecolor": "none"},
    **{"axes.grid": True, "axes.grid.axis": "y", "grid.color": GRID, "grid.linewidth": 0.8},
    **{f"axes.spines.{side}": False for side in ("left", "top", "right")},
    **{f"{axis}tick.{key}": 0 for axis in "xy" for key in ("major.size", "minor.size")},
    **{f"{axis}tick.labelcolor": FAINT for axis in "xy"},
    **{"legend.frameon": False, "legend.fontsize": 8.5, "svg.fonttype": "none", "svg.hashsalt": "rebasin"},
}


def png(document: Document) -> bytes:
    """Title, headline and all figures side by side, each with at most three panels a row."""
    figures = [block for block in document.shown(On.PICTURE) if isinstance(block, Figure)]
    across = [min(len(figure.panels), MOST) for figure in figures]
    wide = WIDE * max(sum(across), 1.6)
    each = wide / max(sum(across), 1)  # inches of a panel
    letters = int((wide - LEFT - RIGHT) / BOLD)
    title = textwrap.wrap(drawable(document.name or document.title, 2 * letters), letters, max_lines=2)
    parts = (drawable(plain(line), 4000) for line in document.headline)
    said = [text for part in parts for text in sentences(part, int((wide - LEFT - RIGHT) / SAID), lines=2)]
    keys = [_keys(figure, each * columns) for figure, columns in zip(figures, across, strict=True)]
    rows = max((math.ceil(len(figure.panels) / MOST) for figure in figures), default=0)
    below = max((len(lines) for lines in keys), default=0) * LINE
    top = HIGH * rows + below
    more = TITLE * max(len(title) - 1, 0)
    high = top + 0.5 + more + LINE * len(said)
    with _canvas(wide, high) as (figure, draw):
        figure.text(LEFT / wide, 1 - (0.3 + more) / high, "\n".join(title), **HEADING)
        figure.text(LEFT / wide, 1 - (0.42 + more) / high, "\n".join(said), **HEADLINE)
        left = 0.0
        for told, columns, lines in zip(figures, across, keys, strict=True):
            for number, panel in enumerate(told.panels):
                row, column = divmod(number, MOST)
                x, y = left + each * column + LEFT, top - HIGH * (row + 1) + FOOT
                box = (x / wide, y / high, (each - LEFT - RIGHT) / wide, (HIGH - FOOT - HEAD) / high)
                _draw(figure.add_axes(box), panel, legend=not told.legend)
            if lines:
                middle = (left + each * columns / 2) / wide, (below + 0.06) / high
                _legend(figure, told.legend, len(lines[0]), middle)
            left += each * columns
        return draw("png")


def _keys(figure: Figure, width: float) -> list[Sequence[Line]]:
    """The legend below panels of so many inches, in rows of about one length."""
    keys, longest = list(figure.legend), max((len(_label(line)) for line in figure.legend), default=0)
    columns = max(1, int(width / (0.75 + LETTER * longest)))
    rows = math.ceil(len(keys) / columns)
    columns = math.ceil(len(keys) / max(rows, 1))
    return [keys[k : k + columns] for k in range(0, len(keys), columns or 1)]


def svg(panel: Panel, label: str) -> str:
    """One panel for a page, without its title; `label` says what it is to those who cannot see it."""
    with _canvas(WIDE, HIGH * 0.8, dpi=72, paper="none") as (figure, draw):
        figure.set_layout_engine("constrained", w_pad=PAD)  # a narrow page has larger letters
        where = figure.subplots()
        _draw(where, panel, legend=False, titled=False)
        drawn = draw("svg").decode("utf-8")
        width, height = (72 * inches for inches in figure.get_size_inches())
        told = [
            f'<circle class="hit" cx="{x:.1f}" cy="{height - y:.1f}" r="5"><title>{_text(said)}</title>'
            "</circle>"
            for line in panel.lines
            for point, said in zip(zip(line.x, line.y, strict=True), line.tells, strict=False)
            for x, y in [where.transData.transform((point[0], min(point[1], panel.top or math.inf)))]
            if said and math.isfinite(x) and math.isfinite(y)
        ]
    mark = "d" + hashlib.sha256(drawn.encode()).hexdigest()[:6]
    body = drawn[drawn.index("<g ", drawn.index("<svg")) : drawn.rindex("</svg>")]
    body = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{mark}-", body)  # ids are the whole page's
    for color, name in (VARIABLES | {color[0]: name for name, color in colors([panel])}).items():
        body = re.sub(re.escape(color), f"var(--{name})", body, flags=re.IGNORECASE)
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{_text(label)}">'
    return "\n".join([head, body.strip(), *told, "</svg>"])


def colors(panels: Iterable[Panel]) -> list[tuple[str, Color]]:
    """The variables of these panels' lines, with their two colours."""
    drawn = (_color(line, place) for panel in panels for place, line in enumerate(panel.lines))
    return sorted({_name(color): color for color in drawn}.items())


def key(line: Line, place: int) -> tuple[str, str]:
    """(variable of its colour, its sign) of a line in a page's legend."""
    marker = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "+": "✚", "x": "✖", "p": "⬟"}.get(
        _marker(line, place), ""
    )
    side = (
        "" if not line.joined else "╌" if line.dashed else "┈" if line.dotted else "━" if line.heavy else "─"
    )
    return _name(_color(line, place)), f"{side}{marker or side}{side}"


def _color(line: Line, place: int) -> Color:
    return line.color or PALETTE[place % len(PALETTE)]


def _name(color: Color) -> str:
    return f"c{color[0][1:].lower()}"


def _text(value: str) -> str:
    return html.escape(clean(value))


@contextmanager
def _canvas(
    width: float, height: float, *, dpi: int = DPI, paper: str = PAPER
) -> Iterator[tuple[Any, Callable[[str], bytes]]]:
    """A figure of so many inches in our style, and what draws it: no pyplot, no setting of the user."""
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Drawing

    with matplotlib.style.context(["default", STYLE]):
        figure = Drawing(figsize=(width, height), dpi=dpi, facecolor=paper)

        def draw(kind: str) -> bytes:
            file = io.BytesIO()
            canvas: Any = FigureCanvasSVG(figure) if kind == "svg" else FigureCanvasAgg(figure)
            if kind == "svg":
                canvas.print_svg(file, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
            else:
                canvas.print_png(file, metadata={"Software": None})
            return file.getvalue()

        yield figure, draw


def _draw(where: Axes, panel: Panel, *, legend: bool, titled: bool = True) -> None:
    over = panel.surface is not None
    if panel.surface is not None:
        _surface(where, panel.surface)
    for place, line in enumerate(panel.lines):
        _line(where, line, place, ends=(panel.floor, panel.top), over=over)
    for x, said in panel.marks:
        where.axvline(x, color=CHORD[0], linewidth=1, linestyle=":", label=said)
    for axis in panel.log:
        (where.set_xscale if axis == "x" else where.set_yscale)("log")
        _numbered(where.xaxis if axis == "x" else where.yaxis)
    if panel.ticks:
        crowded = sum(len(text) + 1 for _, text in panel.ticks) > 60
        words = [drawable(text, 18) for _, text in panel.ticks]
        turned: dict[str, Any] = {"rotation": 40, "ha": "right"} if crowded else {}
        where.set_xticks([x for x, _ in panel.ticks], words, **turned)
    where.margins(x=0.02)
    if panel.across is not None:
        where.set_xlim(*panel.across)
    where.set_ylim(bottom=panel.floor, top=panel.top)
    if titled:
        where.set_title(drawable(panel.title, 60))
    where.set_xlabel(drawable(panel.x, 60))
    where.set_ylabel(drawable(panel.y, 60))
    if legend and len(where.get_legend_handles_labels()[0]):
        where.legend(loc="best")  # by default matplotlib warns where it is slow


def _line(
    where: Axes, line: Line, place: int, *, ends: tuple[float | None, float | None], over: bool
) -> None:
    (floor, top), color, label = ends, _color(line, place)[0], _label(line)
    if line.bars:
        where.bar(line.x, line.y, width=line.bars, color=color, alpha=0.55, label=label)
        return
    marker = _marker(line, place)
    style = _style(line, marker, INK if over else color)
    if over:
        from matplotlib.patheffects import withStroke

        style |= {"path_effects": [withStroke(linewidth=3, foreground=PAPER)], "clip_on": True}
    xy = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
    x, y = zip(*xy, strict=True) if xy else ((), ())
    if floor is not None and any(value < floor for value in y):
        style["clip_on"] = True  # what leaves the axes below crosses no words
    if line.errors:
        where.errorbar(line.x, line.y, line.errors, capsize=3, elinewidth=1.5, label=label, **style)
    else:
        (drawn,) = where.plot(x, y, label=label, **style)
        drawn.set_in_layout(top is None)  # what leaves the axes above asks for no room
    if line.between:
        low, high = zip(*line.between, strict=True)
        where.fill_between(line.x, low, high, color=color, alpha=0.15, linewidth=0)
    for at, name, away in zip(
        zip(line.x, line.y, strict=True), line.names, _outwards(where, line), strict=False
    ):
        where.annotate(
            drawable(name, 20), at, xytext=away, textcoords="offset points", ha="center", va="center",
            fontsize=11, fontweight="bold", path_effects=style.get("path_effects"), zorder=5,
        )  # fmt: skip
    for x_, y_ in xy:
        if top is not None and y_ > top:
            where.annotate(
                f"{y_:.3g}", (x_, top), xytext=(0, -20), textcoords="offset points", ha="center", va="top",
                color=color, fontsize=8, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
                arrowprops={"arrowstyle": "-|>", "color": color, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip


def _style(line: Line, marker: str, color: str) -> dict[str, Any]:
    """How a line is drawn, in its panel and in a legend."""
    linestyle = "none" if not line.joined else DOTTED if line.dotted else DASHED if line.dashed else "-"
    return {
        **{"color": color, "linestyle": linestyle, "marker": FILLED.get(marker, marker) or None},
        "linewidth": (2.8 if line.heavy else 1.4) * (0.6 if line.dashed or line.dotted else 1.0),
        "markersize": 6.5 if line.heavy or not line.joined else 4.5,
        "markerfacecolor": PAPER if line.hollow else color,
        "markeredgecolor": color if line.hollow else PAPER,
        **{"markeredgewidth": 0.7, "clip_on": False, "zorder": 3 + line.heavy},
    }


def _label(line: Line) -> str:
    """In a legend, "" for none; one that begins with "_" would be left out."""
    remark = f" ({drawable(line.remark, 30)})" if line.label and line.remark else ""
    return drawable(line.label, 30).lstrip("_") + remark


def _marker(line: Line, place: int) -> str:
    if line.marker is not None:
        return line.marker
    return MARKERS[place % len(MARKERS)] if len(line.x) <= MANY and not (line.dashed or line.dotted) else ""


def _legend(figure: Any, lines: Sequence[Line], columns: int, below: tuple[float, float]) -> None:
    """Below the panels, from this point of the figure downwards."""
    from matplotlib.lines import Line2D

    handles = []
    for place, line in enumerate(lines):
        style = _style(line, _marker(line, place), _color(line, place)[0])
        handles.append(Line2D([], [], label=_label(line), **style))
    where = {"loc": "upper center", "bbox_to_anchor": below, "borderaxespad": 0}
    legend = figure.legend(handles=handles, ncols=columns, handlelength=2.4, **where)
    for text, line in zip(legend.get_texts(), lines, strict=True):
        text.set_fontweight("bold" if line.heavy else "normal")


def _surface(where: Axes, found: Surface) -> None:
    from matplotlib.colors import BoundaryNorm

    low, high = found.levels[0], found.levels[-1]
    worst = low if found.high_is_good else high
    values = [[min(max(v, low), high) if math.isfinite(v) else worst for v in row] for row in found.values]
    norm = BoundaryNorm(found.levels, 256)
    drawn: dict[str, Any] = {
        "levels": found.levels,
        "cmap": "viridis" if found.high_is_good else "viridis_r",
        "norm": norm,
    }
    filled = where.contourf(found.x, found.y, values, **drawn)
    where.contour(found.x, found.y, values, levels=found.levels, colors="white", linewidths=0.4, alpha=0.6)
    bar = where.figure.colorbar(filled, ax=where)
    bar.set_ticks(found.levels[::2], labels=[f"{level:#.3g}" for level in found.levels[::2]])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    where.grid(False)
    where.tick_params(axis="x", pad=7)  # the first numbers of both axes stand at one corner
    where.locator_params(axis="x", nbins=5)
    where.set_aspect("equal" if alike(found) else "auto", adjustable="box")


def alike(found: Surface) -> bool:
    """Whether both axes can have one scale."""
    wide, tall = (its[-1] - its[0] for its in (found.x, found.y))
    return 1 / FLAT < wide / tall < FLAT


def _outwards(where: Axes, line: Line) -> list[tuple[float, float]]:
    """Where each point's name is written, in points from it: away from the others, as paths go to these."""
    if not line.names:
        return []
    (left, right), (low, high) = where.get_xlim(), where.get_ylim()
    places = [
        ((x - left) / (right - left), (y - low) / (high - low)) for x, y in zip(line.x, line.y, strict=True)
    ]
    x, y = (sum(values) / len(places) for values in zip(*places, strict=True))
    fars = [math.hypot(a - x, b - y) or 1.0 for a, b in places]
    return [(16 * (a - x) / far, 16 * (b - y) / far) for (a, b), far in zip(places, fars, strict=True)]


def _numbered(axis: Any) -> None:
    """Plain numbers along a logarithmic axis, as many as have room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    factor = high / low if low > 0 else math.inf
    axis.set_major_locator(LogLocator(subs=next(subs for most, subs in TICKS if factor <= most)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def sentences(text: str, width: int, *, lines: int) -> list[str]:
    """As many whole sentences as the lines hold; of a first one that is too long, its beginning."""
    parts = re.split(r"(?<=\.) (?=[A-Z])", text)
    for count in range(len(parts), 0, -1):
        said = textwrap.wrap(" ".join(parts[:count]), width)
        if len(said) <= lines:
            return said
    return textwrap.wrap(text, width, max_lines=lines, placeholder=" …")


def drawable(text: str, longest: int) -> str:
    """`text` in letters that the font has (Latin, Greek, Cyrillic), shortened in its middle."""
    text = "".join(c if ord(c) < 0x530 or c in "–—…→½¼¾≤≥π↑" else "\u25a1" for c in clean(text))
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"
