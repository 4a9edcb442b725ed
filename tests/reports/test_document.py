"""What holds of any document in every format: nothing in it is markup, and all that it holds is shown."""

import html.parser
import io
import itertools
import math
import re

import numpy as np
import pytest
from PIL import Image

from rebasin_cli.reports import pictures, plane, signature
from rebasin_cli.reports.document import (
    Badge,
    Code,
    Column,
    Command,
    Document,
    Facts,
    Figure,
    Fold,
    Kind,
    Line,
    Link,
    Notes,
    On,
    Panel,
    Row,
    Small,
    Table,
    Tone,
    coded,
    shown,
)
from rebasin_cli.reports.formats import html as page
from rebasin_cli.reports.formats import markdown, terminal

HOSTILE = '</text><script>x</script>" onload="#d55e00 href="#a" url(#b) --> |`\x1b[2J\n::error::'


def hostile():
    lines = [
        Line(HOSTILE, [0, 1], [math.inf, 1.0], tells=[HOSTILE, HOSTILE]),
        Line(HOSTILE, [], []),
        Line(HOSTILE, [1], [0.0], errors=[math.nan], names=[HOSTILE]),
    ]
    panel = Panel(HOSTILE, HOSTILE, HOSTILE, lines, ticks=[(0, HOSTILE)])
    table = Table(
        HOSTILE,
        [Column(HOSTILE, Kind.TEXT), Column(HOSTILE)],
        [Row([HOSTILE, Code(HOSTILE)], remarks=[HOSTILE])],
        note=HOSTILE,
        remark=HOSTILE,
    )
    blocks = [
        Figure(HOSTILE, [panel], HOSTILE, legend=lines, note=HOSTILE, file="a b).png"),
        *(table, Notes(HOSTILE, [HOSTILE]), Facts(HOSTILE, [(HOSTILE, Code(HOSTILE))])),
        Command(HOSTILE, f"{HOSTILE}\n```\nx", HOSTILE),
        Fold(HOSTILE, [Notes(HOSTILE, [HOSTILE])], open=True, on=On.ALL),
        Fold(HOSTILE, [Notes(HOSTILE, [HOSTILE], strong=frozenset({0})), Facts(HOSTILE, [(HOSTILE, "")])]),
    ]
    said = (Code(HOSTILE), Link(HOSTILE, "javascript:x"))
    return Document(HOSTILE, [HOSTILE, said], blocks, Badge(HOSTILE, Tone.MISSED))


class _Tags(html.parser.HTMLParser):
    def handle_starttag(self, tag, attributes):
        assert tag not in ("script", "a") and not any(name.startswith("on") for name, _ in attributes), tag


def test_no_text_of_a_document_is_markup_or_a_command_in_any_format():
    document = hostile()
    texts = [page.page(document), markdown.text(document), terminal.text(document)]
    assert not any("\x1b" in text for text in texts)
    _Tags().feed(texts[0])
    assert "javascript:" not in texts[1] and "(a%20b%29.png)" in texts[1]
    assert not any(line.lstrip().startswith("::") for line in texts[2].splitlines())
    assert pictures.png(document).startswith(b"\x89PNG")


def test_a_format_shows_the_blocks_and_columns_that_are_meant_for_it():
    columns = [Column("a", Kind.TEXT), Column("only on a page", on=On.PAGE)]
    table = Table("t", columns, [Row(["x", "1"])])
    document = Document("d", ["said"], [table, Notes("n", ["for paper"], on=On.WRITTEN), Facts("none", [])])
    texts = [page.page(document), markdown.text(document), terminal.text(document)]
    assert ["only on a page" in text for text in texts] == [True, False, False]
    assert ["for paper" in text for text in texts] == [True, True, False]
    assert not any("none" in text.partition("</head>")[2] for text in texts[:1])
    assert [type(block).__name__ for block in shown(document.blocks, On.TERMINAL)] == ["Table"]


def test_names_are_not_told_by_their_colour_alone_and_figures_are_never_cut():
    rows = [
        Row(["a name that is longer than any terminal has room for, which is cut", "0.1234"], Tone.CHOSEN)
    ]
    table = Table("t", [Column("row", Kind.TEXT), Column("loss at λ=½")], rows)
    for width in (40, 60, 80, 120):
        text = terminal.text(Document("d", [], [table]), width=width)
        assert "0.1234" in text and "▸" in text and max(map(len, text.splitlines())) <= width


def test_where_columns_are_many_their_headings_take_a_word_a_line_and_names_stay_words():
    names = [f"{metric} at λ=½" for metric in ("loss", "class hit", "hazard err", "f1", "worst class")]
    columns = [Column("test", Kind.TEXT), *map(Column, [*names, "barrier midpoint", "barrier chord"])]
    rows = [Row(["naive", *["0.1234"] * 7]), Row(["aligned + repair", *["-0.1234"] * 4, *["0.1234"] * 3])]
    text = terminal.text(Document("d", [], [Table("t", columns, rows, headed=True)]), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "   aligned + repair" in text and text.count("-0.1234") == 4


def test_columns_that_leave_no_room_for_names_are_tables_below_each_other():
    """Each with the names of the rows, which stay whole, as every figure does."""
    columns = [Column("test, 95 %", Kind.TEXT), *(Column(f"metric {k}") for k in range(7))]
    rows = [
        Row([name, *[f"28.7{k}10–35.2{k}15" for k in range(7)]]) for name in ("naive", "aligned + repair")
    ]
    for headed in (True, False):
        text = terminal.text(Document("d", [], [Table("title", columns, rows, headed=headed)]), width=80)
        assert max(map(len, text.splitlines())) <= 80 and text.count("title") == (not headed)
        assert text.count("aligned + repair") == text.count("test, 95 %") > 1
        assert all(text.count(f"28.7{k}10–35.2{k}15") == 2 for k in range(7))


def test_a_picture_has_boxes_for_letters_that_its_font_lacks_and_no_others():
    assert pictures.drawable("ж ≤ ½ π → … – 漢", 40) == "ж ≤ ½ π → … – □"
    assert pictures.drawable("abcdefghij", 5) == "ab…ij"


def test_levels_of_a_metric_are_equal_steps_from_the_least_to_the_largest():
    found = plane.levels([[0.25, 1.0], [math.nan, 0.5]])
    assert (found[0], found[-1]) == (0.25, 1.0) and len(found) > 2
    assert [b - a for a, b in itertools.pairwise(found)] == pytest.approx(
        [0.75 / (len(found) - 1)] * (len(found) - 1)
    )
    assert plane.levels([[0.5]])[0] < plane.levels([[0.5]])[-1]  # a line needs two


def test_a_word_without_a_mean_or_a_deviation_is_not_drawn():
    known = {"mean": 0.5, "std": 0.1}
    words = [{"word": name, "before": its, "after": known} for name, its in
             {"a": known, "b": None, "c": {"mean": 0.5, "std": None}, "d": {"std": 0.1}}.items()]  # fmt: skip
    before, after = signature.drawn(words).panels[0].lines
    assert (len(before.x), len(after.x)) == (1, 4) and list(before.errors) == [0.1]


@pytest.mark.parametrize("title", ["title", "Wide mottos of many words: " * 6, "a/long/path/" * 30])
@pytest.mark.parametrize("panels", [1, 3])
def test_words_above_a_picture_end_within_it(title, panels):
    panel = Panel("loss", "", "", [Line("naive", [0, 1], [0.0, 1.0])])
    said = "Alignment explains most of what was gained over the naive mean; repair would gain more. " * 9
    drawn = pictures.png(Document(title, [said], [Figure("", [panel] * panels, "")]))
    pixels = np.asarray(Image.open(io.BytesIO(drawn)).convert("L"))
    assert (pixels[:90, :-12] < 128).any() and (pixels[:, -12:] > 250).all()


def test_a_line_that_falls_below_its_panel_crosses_no_words():
    figures = [
        Figure("", [Panel("", "", "", [Line("", [1, 2], [0.5, y])], "y", floor=0.1)], "") for y in (1, 1e-6)
    ]
    for figure in figures:
        pixels = np.asarray(Image.open(io.BytesIO(pictures.png(Document("t", [], [figure])))).convert("RGB"))
        below = pixels[-int(pictures.FOOT * pictures.DPI) + 15 :].astype(int)
        assert (below[..., 0] - below[..., 2] < 60).all()  # nothing in the line's colour


def whole():
    """A document with one of everything."""
    columns = [Column("row", Kind.TEXT), Column("loss at λ=½"), Column("all well", Kind.MARK)]
    rows = [
        Row(["naive", "nan", "-"], Tone.FAINT),
        Row([("by ", Code("a|b")), "0.5", ""], Tone.CHOSEN, remarks=["T = 1_0", "control"]),
        Row(["other", "0.25", "missed"], Tone.MISSED),
    ]
    gates = [Column("state", Kind.MARK), Column("gate", Kind.SENTENCE), Column("why", Kind.SENTENCE)]
    drawn = Line("line", [0, 1], [0.0, 1.0], tells=["here", ""], remark="T = 2")
    other = Line("", [0, 1], [1.0, 0.0], color=("#123456", "#abcdef"))
    figure = Figure("Drawn", [Panel("loss", "λ", "nats", [drawn])], "a line", note="n_n", file="a b.png")
    far = Facts("Far", [("c", Code("test:a<=1"))])
    blocks = [
        Table("Table", columns, rows, note="of *all*", remark="10 samples"),
        Table("Headed", columns[:2], [Row(["one", "1"])], remark="5 samples", headed=True),
        Table("Gates", gates, [Row(["met", "x <= 1", "is 0"], Tone.MET), Row(["no", "y", ""], Tone.MISSED)]),
        Facts("Facts", [("w_d", coded("run `rebasin merge` now"))]),
        Notes("Word", ["told"], word="note"),
        Notes("Notes", ["first", "second"], strong=frozenset({1})),
        Command("Again", "rebasin a", "as *typed*"),
        Command("File", "a: 1\nb: 2", language="yaml"),
        figure,
        Small(("what ", Code("T"), " is"), on=On.WRITTEN),
        Fold("Fold", [Notes("", ["within"]), Fold("Inner", [Facts("Deep", [("a", "b")])], on=On.ALL)]),
        Fold("Open", [Figure("", [Panel("p", "x", "y", [other])], "alt"), far], open=True, on=On.ALL),
        Fold("Nothing", [], on=On.ALL),
    ]
    said = ["one", "", ("two ", Link("there", "a b.json"))]
    return Document("Title", said, blocks, Badge("no", Tone.MISSED), name="t")


def test_markdown_says_all_of_a_document_with_its_own_marks():
    assert (
        markdown.text(whole(), level=1)
        == r"""# Title

one

**two [there](a%20b.json)**

## Table, 10 samples

| row | loss at λ=½ | all well |
| --- | ---: | --- |
| *naive* | *nan* | *-* |
| ▸ **by <code>a&#124;b</code>** *(T = 1\_0, control)* | **0.5** |  |
| other | 0.25 | **missed** |

<sub>of \*all\*</sub>

| **row** 5 samples | loss at λ=½ |
| --- | ---: |
| one | 1 |

## Gates

| state | gate | why |
| --- | --- | --- |
| met | x \<= 1 | is 0 |
| **no** | y |  |

## Facts

- w\_d: run `rebasin merge` now

## Word

- told

## Notes

- first
- **second**

## Again

```sh
rebasin a
```

as \*typed\*

## File

```yaml
a: 1
b: 2
```

## Drawn

![a line](a%20b.png)

<sub>n\_n</sub>

<sub>what `T` is</sub>

## Open

### Far

- c: `test:a<=1`
"""
    )


def test_a_terminal_says_it_in_words_that_need_no_colour():
    assert (
        terminal.text(whole(), width=72)
        == """\
 Title
 one
 two there

 Table, 10 samples
                                 loss
    row                        at λ=½   all well
 ───────────────────────────────────────────────
    naive                         nan   -
  ▸ by a|b  T = 1_0, control      0.5
    other                        0.25   missed
 of *all*

   row                                                             loss
   5 samples                                                     at λ=½
───────────────────────────────────────────────────────────────────────
   one                                                                1

 Gates
 met  x <= 1
      is 0
 NO   y

 w_d   run rebasin merge now
 note  told

 · first
 ! second
"""
    )


def test_what_is_to_be_copied_from_a_terminal_stays_on_its_line():
    line = "rebasin merge " + "a-model.safetensors " * 9 + "b"
    document = Document("t", [], [Command("Again", line, on=On.ALL), Notes("n", [line])])
    lines = terminal.text(document, width=40).splitlines()
    assert f" Again  {line}" in lines and f" · {line}" in lines


def test_the_headline_that_counts_is_bold_where_there_are_colours():
    lines = terminal.text(whole(), color=True).splitlines()
    bold = [line for line in lines[:3] if "\x1b[1m" in line]
    assert len(bold) == 2 and "Title" in bold[0] and "two there" in bold[1]
    (none,) = (line for line in lines if "naive" in line)
    assert re.search(r"\x1b\[[0-9;]*31m *nan", none)  # a figure that is none is red
    assert "\x1b" not in terminal.text(whole(), color=False)


def test_where_figures_leave_hardly_any_room_names_are_broken_and_not_cut():
    columns = [Column("row", Kind.TEXT), *(Column(name) for name in ("loss", "accuracy", "barrier"))]
    table = Table("t", columns, [Row(["aligned + reset", "0.1234", "0.9171", "1.0167"], last=True)])
    text = terminal.text(Document("d", [], [table]), width=38)
    assert "…" not in text and all(figure in text for figure in ("0.1234", "0.9171", "1.0167"))
    first = [line.strip(" .0123456789") for line in text.splitlines() if line.strip()]
    assert "".join(first).replace(" ", "").endswith("─aligned+reset"), first


def test_a_page_says_it_in_elements():
    text = page.page(whole())
    for said in (
        '<p class="badge missed">no</p>',
        "<p>one</p>\n<p><b>two there</b></p>",
        "<caption>Table</caption>",
        '<tr class="row">',
        "<h2>Table <small>10 samples</small></h2>",
        '<tr class="chosen"><th scope="row">▸ by <code>a|b</code> ',
        "<small>T\u00a0=\u00a01_0, control</small></th>",
        '<td class="n">0.5</td><td class="mark"></td></tr>',
        '<tr class="missed"><th scope="row">other</th>',
        "<dt>w_d</dt><dd>run <code>rebasin merge</code> now</dd>",
        "<li>first</li>\n<li><b>! second</b></li>",
        "a: 1\nb: 2</code></pre>",
        '<p class="legend">what <code>T</code> is</p>',
        "<details>\n<summary>Fold</summary>",
        "<summary>Inner</summary>",
        "<h2>Open</h2>",
        "<h3>Far</h3>",
        "<code>test:<wbr>a<wbr>&lt;=1</code>",
        'aria-label="loss: a line"',
        "<small>T\u00a0=\u00a02</small>",
        "<title>here</title>",
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"",
    ):
        assert said in text, said
    assert "Nothing" not in text and text.count("<details>") == 2 and text.count("<svg") == 2
    colors = re.findall(r"--(c[0-9a-f]{6}): (#\w+);", text)
    (first, one), (second, two), *dark = sorted(colors[:2]) + sorted(colors[2:])
    assert (first, one, dark[0]) == ("c123456", "#123456", ("c123456", "#abcdef"))
    assert dark[1][0] == second and dark[1][1] != two and len(dark) == 2


def test_words_in_backquotes_are_code_wherever_they_stand():
    for sentence, pieces in {
        "`a` b `c`": (Code("a"), " b ", Code("c")),
        "a `b` c": ("a ", Code("b"), " c"),
        "`a``b`": (Code("a"), Code("b")),
        "it's a ` alone": ("it's a ` alone",),
        "": (),
    }.items():
        found = coded(sentence)
        assert (found, [type(each) for each in found]) == (pieces, [type(each) for each in pieces])


def test_points_say_what_they_are_where_they_are_drawn():
    far = Line("l", [0, 2, 1, 1], [0.5, 1.5, math.inf, math.nan], tells=["one", "far", "out", "none"])
    drawn = pictures.svg(Panel("p", "x", "y", [far], top=1.0, floor=0.0), "alt")
    _, _, wide, high = map(float, re.search(r'viewBox="([^"]+)"', drawn)[1].split())
    hits = re.findall(r'class="hit" cx="([^"]+)" cy="([^"]+)" r="5"><title>(\w+)<', drawn)
    assert [told for *_, told in hits] == ["one", "far", "out"]  # what is no number is nowhere
    assert all(0 < float(x) < wide and 0 < float(y) < high for x, y, _ in hits)
    assert float(hits[1][1]) == float(hits[2][1]) < float(hits[0][1])  # beyond the top: at it


def test_a_panel_ends_where_it_says_and_its_words_leave_each_other_room():
    line = Line("l", [0, 1], [0.0, 1.0])
    told = {
        across: pictures.svg(Panel("p", "x", "y", [line], across=across), "") for across in (None, (0, 10))
    }
    assert ">10<" in told[0, 10] and ">10<" not in told[None]
    words = [[(k / 9, f"{k} {'a' * size}") for k in range(2, 8)] for size in (1, 16)]
    few, many = (pictures.svg(Panel("p", "x", "y", [line], ticks=ticks), "") for ticks in words)
    assert re.search(r"rotate\(-?40\b", many) and not re.search(r"rotate\(-?40\b", few)
    top = pictures.svg(Panel("p", "x", "y", [line], floor=-20, top=40), "")
    assert ">40<" in top and ">\N{MINUS SIGN}20<" in top


def test_a_key_shows_how_its_line_is_drawn():
    def sign(place=0, points=2, **how):
        return pictures.key(Line("l", range(points), [0.0] * points, **how), place)[1]

    assert [sign(), sign(1), sign(heavy=True)] == ["─●─", "─■─", "━●━"]
    assert [sign(dashed=True), sign(dotted=True), sign(points=999)] == ["╌╌╌", "┈┈┈", "───"]
    assert [sign(joined=False), sign(marker="D"), sign(marker="")] == ["●", "─◆─", "───"]
    lines = [Line("", [], [], color=(color, color)) for color in ("#bbbbbb", "#aaaaaa", "#bbbbbb")]
    names = [name for name, _ in pictures.colors([Panel("", "", "", lines[:1]), Panel("", "", "", lines)])]
    assert names == ["caaaaaa", "cbbbbbb"]


def test_neither_mentions_nor_addresses_work_and_short_pages_are_plain():
    said = markdown.text(Document("t", ["ask @somebody at www.a.b, https://c.d"], []))
    assert "@" not in said and "www." not in said and "://" not in said
    columns = [Column("", Kind.TEXT), Column("n")]
    few, many = (
        page.page(Document("t", ["alone"], [Table("t", columns, [Row(["a", "1"])] * rows)]))
        for rows in (2, 17)
    )
    assert "<p>alone</p>" in few and ">value</th>" in few  # a head that is read aloud
    assert 'class="scroll"' in few and 'class="scroll long"' in many


def test_a_line_far_above_the_axes_leaves_them_their_room():
    for far in (2.0, 1e6):
        lines = [Line("naive", [0, 1, 2], [0.1, far, 0.1]), Line("aligned", [0, 1, 2], [0.1, 0.2, 0.1])]
        assert pictures.svg(Panel("loss", "", "", lines, top=0.5), "loss")  # a collapsed layout is a warning
