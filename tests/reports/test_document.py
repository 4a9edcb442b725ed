"""What holds of any document in every format: nothing in it is markup, and all that it holds is shown."""

import html.parser
import io
import math

import numpy as np
from PIL import Image

from rebasin_cli.reports import pictures
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
    Table,
    Tone,
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


def test_words_above_a_picture_end_within_it():
    panel = Panel("loss", "", "", [Line("naive", [0, 1], [0.0, 1.0])])
    for panels in (1, 3):
        said = "Alignment explains most of what was gained over the naive mean; repair would gain more. " * 9
        drawn = pictures.png(Document("title", [said], [Figure("", [panel] * panels, "")]))
        pixels = np.asarray(Image.open(io.BytesIO(drawn)).convert("L"))
        assert (pixels[:90, :-12] < 128).any() and (pixels[:, -12:] > 250).all()
