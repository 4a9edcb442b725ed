"""Every page as people open it: in Chromium, on a screen of 360 and of 1440 pixels, in the dark, on paper.

In a process, for what a page looks like only a browser knows; it is started once for the whole file. Without
Chromium (`apt-get install chromium`) these tests are skipped.
"""

import dataclasses
import shutil
import subprocess

import pytest

from rebasin_cli.measure import comparison, formats
from rebasin_cli.reports import accounts
from rebasin_cli.reports import doctor as doctors
from rebasin_cli.reports import plane as planes
from rebasin_cli.reports import signature as signatures
from rebasin_cli.reports.formats import html
from rebasin_cli.types import ACCURACY, CROSS_ENTROPY

from ..measure.test_comparison import batches, setting
from . import browser as browsers
from .test_reports import bare, example, learnt, nasty

pytestmark = pytest.mark.skipif(browsers.found() is None, reason="there is no Chromium here")


def compared():
    models, fitted, network = setting()
    how = {"network": network, "test": batches((1, 3, 3)), "methods": ["wm", "none"], "points": 2}
    found = comparison.compare(models, fitted, **how)
    about = {"command": "rebasin compare a.pt b.pt c.pt", "notes": ("of the loader's data the first",)}
    return dataclasses.replace(found, **about)


def signature():
    words = [dict(word) for word in example().signature]
    shares = {word["word"]: [0.5, 1.0] for word in words}
    stable = {"samples": [100, 200], "words": shares, "overall": [0.5, 1.0]}
    about = {"match": {"method": "am"}, "samples": 200, "data": "digits", "times": {"match": 1.0}}
    return {"signature": words, "stability": stable} | about


def long_signature():
    """As of a deep network: a table that has to scroll."""
    (word, *_) = example().signature
    words = [dict(word) | {"word": f"layer{k}.a.long.name.of.a.word{k}"} for k in range(80)]
    return signature() | {"signature": words, "stability": None, "times": {}}


def doctor():
    fact = {"value": 1.0, "says": "Midway, activations keep 40% of their spread.", "warns": True}
    middle = {"naive": 0.2, "aligned": 0.7}
    row = dict(example().signature[0]) | {"dead_a": 1, "dead_b": 2, "midpoint": middle}
    figures = {"cosine": 0.1, "aligned_cosine": 0.5, "norm_ratio": 1.0}
    return {
        "files": [f"/a/very{'/long/path' * 8}/model-000123.safetensors", "b.pt"],
        "spec": {"name": "mlp"},
        "verdict": "align-and-repair",
        "advice": "Align them, and repair the merge.",
        "next": "rebasin barrier a.pt b.pt --report report --repair repair",
        "facts": {"midpoint": fact, "calm": fact | {"warns": False}},
        "words": [row],
        "tensors": [{"tensor": f"layers.{k}.weight"} | figures for k in range(40)],
        "unseen": ["no data: Name data with --data NAME"],
    }


def plane():
    places = [-1.0, 0.0, 1.0, 2.0]
    values = [[x * x + y * y + 0.1 for x in places] for y in places]
    point = {"x": 0.0, "y": 0.0, "loss": 0.1, "accuracy": 0.9}
    return {
        "inputs": [{"file": "a.pt"}, {"file": "b.pt"}],
        "data": {"split": "test", "samples": 100, "name": "digits", "reset": False},
        "measured": accounts.describe_quantities((CROSS_ENTROPY, ACCURACY)),
        "x": places,
        "y": places,
        "loss": values,
        "accuracy": [[1 / (1 + value) for value in row] for row in values],
        "ceiling": 4.0,
        "points": [point | {"name": "A"}, point | {"name": "B", "x": 1.0}],
        "lines": [{"name": "A to B", "points": [(0.0, 0.0), (1.0, 0.0)]}],
        "curves": [{"name": "curve", "points": [(0.0, 0.0), (0.5, 1.0), (1.0, 0.0)], "away": 0.01}],
        "command": "rebasin plane a.pt b.pt",
        "times": {"total": 1.0},
    }


PAGES = {
    "barrier": lambda: html.render(example()),
    "barrier of nasty names": lambda: html.render(nasty()),
    "barrier of nothing": lambda: html.render(bare()),
    "barrier of what was learnt": lambda: html.render(learnt([2.0, 1.0, 0.25, 0.3])),
    "compare": lambda: html.page(formats.document(compared())),
    "signature": lambda: html.page(signatures.document(signature(), ("a.pt", "b.pt"), "rebasin signature")),
    "signature of many words": lambda: html.page(
        signatures.document(long_signature(), ("a.pt", "b.pt"), "rebasin signature " + "a/long/path/" * 30)
    ),
    "doctor": lambda: html.page(doctors.document(doctor(), "rebasin doctor a.pt b.pt")),
    "plane": lambda: html.page(planes.document(plane())),
}
SIZES = [(360, False), (360, True), (1440, False), (1440, True)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = browsers.Browser(browsers.found(), tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=PAGES)
def page(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(PAGES[request.param](), encoding="utf-8")
    return path


WIDEST = "document.documentElement.scrollWidth"
UNFOLD = "document.querySelectorAll('details').forEach(one => one.open = true)"
# Text that is nearer to what lies behind it than WCAG's 4.5 : 1, as far as plain colours tell.
PALE = """(() => {
  const parts = color => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const found = parts(getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const pale = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest('title') || !element.getClientRects().length) continue;
    const style = getComputedStyle(element), drawn = element.closest('svg');
    const [one, two] = [light(parts(drawn ? style.fill : style.color)), light(behind(element))];
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) pale.push(`${element.tagName} ${element.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return pale;
})()"""


@pytest.mark.parametrize(("width", "dark"), SIZES)
def test_pages_are_readable_at_every_width_and_ask_for_nothing(page, browser, width, dark):
    browser.open(page, width=width, dark=dark)
    browser.evaluate(UNFOLD)
    assert browser.evaluate(WIDEST) <= width
    assert browser.evaluate(PALE) == []
    assert browser.said == []
    asked = [url for url in browser.asked if not url.startswith("data:")]
    assert asked == [page.resolve().as_uri()]
    assert browser.evaluate("parseInt(getComputedStyle(document.body).fontSize)") >= 16
    smallest = (
        "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
    )
    assert browser.evaluate(smallest) >= 10  # pixels of drawn letters, with their line


def test_a_dark_page_is_dark_and_paper_is_light(page, browser):
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0)"
    browser.open(page, dark=True)
    assert browser.evaluate(shade) < 150
    browser.open(page, width=700, dark=True, media="print")  # A4 between its margins
    assert browser.evaluate(shade) == 3 * 255
    assert browser.evaluate(PALE) == []
    assert browser.evaluate(
        "[...document.querySelectorAll('.scroll')].every(s => getComputedStyle(s).overflowX == 'visible')"
    )


def test_a_command_is_selected_as_a_whole_by_one_click(page, browser, request):
    browser.open(page)
    if not browser.evaluate("document.querySelectorAll('.command').length"):
        assert "barrier of nothing" in request.node.callspec.id  # a report that no command made
        return
    box = browser.evaluate(
        "(() => { const all = [...document.querySelectorAll('.command')], one = all[all.length - 1];"
        " one.scrollIntoView({block: 'center'}); const r = one.getBoundingClientRect();"
        " return {x: r.x + 40, y: r.y + r.height / 2, text: one.textContent}; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        where = {"x": box["x"], "y": box["y"], "button": "left", "clickCount": 1}
        browser.call("Input.dispatchMouseEvent", type=kind, **where)
    assert browser.evaluate("getSelection().toString()") == box["text"]


def test_a_page_is_told_to_those_who_cannot_see_it(page, browser):
    browser.open(page)
    assert browser.evaluate("document.documentElement.lang") == "en" and browser.evaluate("document.title")
    levels = browser.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    for every, told in (
        ("svg:not([aria-hidden])", "one.getAttribute('aria-label')"),
        ("th", "one.scope && one.textContent.trim()"),
        ("img", "one.alt"),
        (".scroll", "one.getAttribute('aria-label')"),
    ):
        assert browser.evaluate(f"[...document.querySelectorAll('{every}')].every(one => {told})"), every
    assert browser.evaluate("document.querySelectorAll('script, link, [onclick], [onload]').length") == 0


def test_a_point_tells_lambda_and_its_figure_where_it_is_pointed_at(browser, tmp_path):
    (tmp_path / "page.html").write_text(PAGES["barrier"](), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    found = browser.evaluate(
        "(() => { const told = []; for (const hit of document.querySelectorAll('svg .hit')) {"
        " hit.scrollIntoView({block: 'center'}); const r = hit.getBoundingClientRect();"
        " const top = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);"
        " told.push(top.querySelector('title')?.textContent); } return told; })()"
    )
    assert "aligned, test: λ = 0.25, loss 0.6200 nats" in found
    assert "aligned + reset, test: λ = 0.5, accuracy 0.9171" in found
    assert None not in found


def test_a_long_table_scrolls_below_its_head(browser, tmp_path):
    (tmp_path / "page.html").write_text(PAGES["signature of many words"](), encoding="utf-8")
    for width in (360, 1440):
        browser.open(tmp_path / "page.html", width=width)
        found = browser.evaluate(
            "(() => { const box = document.querySelector('.scroll.long'); box.scrollTop = 500;"
            " const head = box.querySelector('thead th').getBoundingClientRect();"
            " return {room: box.clientHeight, whole: box.scrollHeight, at: box.scrollTop,"
            " head: head.top - box.getBoundingClientRect().top, tab: box.tabIndex}; })()"
        )
        assert found["room"] < 900 < found["whole"] and found["at"] == 500
        assert abs(found["head"]) <= 1 and found["tab"] == 0


def test_a_printed_page_holds_all_figures_and_no_box_is_cut(browser, tmp_path):
    if shutil.which("pdftotext") is None:
        pytest.skip("there is no pdftotext here")
    (tmp_path / "page.html").write_text(PAGES["barrier"](), encoding="utf-8")
    browser.open(tmp_path / "page.html", dark=True, media="print")
    (tmp_path / "page.pdf").write_bytes(browser.pdf())
    told = ["pdftotext", "-layout", str(tmp_path / "page.pdf"), "-"]
    text = subprocess.run(told, capture_output=True, text=True, check=True).stdout
    for row in example().rows:
        accuracy = row.barriers["test"].metrics["accuracy"].chord
        assert f"{accuracy:z.4f}" in text  # the last column
    assert "rebasin barrier" in text


def test_a_script_or_a_picture_from_elsewhere_would_be_noticed(browser, tmp_path):
    """The checks above would be worth nothing if they saw nothing."""
    bad = PAGES["barrier"]().replace(
        "</main>",
        '<script>1</script><img alt="" src="https://example.org/x.png"><p style="width:2000px">x</p></main>',
    )
    bad = bad.replace("--ink: #1f2328", "--ink: #cccccc")
    (tmp_path / "page.html").write_text(bad, encoding="utf-8")
    browser.open(tmp_path / "page.html", width=360)
    assert browser.evaluate(WIDEST) > 360 and browser.evaluate(PALE) and browser.said
