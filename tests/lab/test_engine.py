"""Claims and verdicts, parameters, pages."""

import math

import pytest

from rebasin_cli.errors import UsageError
from rebasin_cli.lab import registry
from rebasin_cli.lab.engine import claims, page, parameters
from rebasin_cli.lab.engine.bench import Bench
from rebasin_cli.lab.engine.claims import Claim, Line, Panel
from rebasin_cli.lab.engine.page import disagreements
from rebasin_cli.reports import pictures
from rebasin_cli.reports.formats.markdown import escape


@pytest.mark.parametrize(
    ("expected", "between", "verdict"),
    [
        ((0, 1), (0.2, 0.8), "confirmed"),
        ((0, 1), (0, 1), "confirmed"),
        ((0, 1), (0.5, 1.01), "undecided"),
        ((0, 1), (-1, 2), "undecided"),
        ((0, 1), (1.01, 2), "refuted"),
        ((0, 1), (-2, -0.01), "refuted"),
        ((0, math.inf), (0.1, 9), "confirmed"),
        (claims.BELOW, (-0.2, 0.1), "undecided"),
        ((2, 2), (2, 2), "confirmed"),
        ((2, 2), (2.3, 2.3), "refuted"),
        ((0, 1), (), "undecided"),
        ((0, 1), (math.nan, math.nan), "undecided"),
    ],
)
def test_the_verdict_is_decided_by_the_interval(expected, between, verdict):
    assert Claim("P", "", "", expected, 0.5, between).verdict == verdict


def test_the_mean_of_runs_has_students_interval():
    found = claims.mean("P", "", "", (0, 1), [1.0, 2.0, 3.0])
    assert found.estimate == 2 and found.interval == pytest.approx((2 - 2.4841377, 2 + 2.4841377))
    assert claims.mean("P", "", "", (0, 1), [1.0]).verdict == "undecided"
    assert claims.mean("P", "", "", (1, 1), [1.0, 1.0]).verdict == "confirmed"


def test_a_share_has_wilsons_interval():
    assert claims.share("P", "", "", (0, 1), 7, 10).interval == pytest.approx((0.39677, 0.89220), abs=1e-4)
    low, high = claims.share("P", "", "", (0, 1), 10, 10).interval
    assert high == pytest.approx(1) and low == pytest.approx(0.72247, abs=1e-4)


def test_the_bootstrap_draws_rows_together():
    """A difference of two columns that rise together is sure, however far the columns vary."""
    rows = [(float(k), float(k) + 1) for k in range(20)]
    estimate, between = claims.bootstrap(rows, lambda m: m[..., 1] - m[..., 0], seed=0)
    assert estimate == pytest.approx(1) and between == pytest.approx((1, 1))
    estimate, (low, high) = claims.bootstrap(rows, lambda m: m[..., 0], seed=0)
    assert estimate == 9.5 and low < 9.5 - 1 and high > 9.5 + 1


YAML = """
minutes: {small: 1, full: 2}
parameters:
  pairs: {type: int, min: 2, small: 5, full: 10, help: Pairs.}
  rates: {type: floats, min: 0, small: [0.5, 1], full: [1.5], help: Rates.}
  data: {type: text, choices: [digits, mnist], small: digits, full: mnist, help: Data.}
"""


@pytest.fixture
def declared(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(YAML)
    return parameters.declared(path)


def test_parameters_are_those_of_the_scale_but_for_what_is_set(declared):
    assert declared.values("small") == {"pairs": 5, "rates": [0.5, 1.0], "data": "digits"}
    set_ = declared.values("full", ["pairs=3", "rates=1, 2.5", "data=digits"])
    assert set_ == {"pairs": 3, "rates": [1.0, 2.5], "data": "digits"}


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("pairs=1", "at least 2"),
        ("pairs=x", "not of type int"),
        ("pairs", "sets nothing"),
        ("pears=3", "pairs"),
        ("rates=1,-1", "at least 0"),
        ("rates=", "not of type float"),
        ("data=cifar", "unknown data"),
    ],
)
def test_what_cannot_be_set_is_refused(declared, assignment, says):
    with pytest.raises(UsageError) as error:
        declared.values("small", [assignment])
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("help: Pairs.", "hlp: Pairs."),
        ("small: 5", "small: 1"),
        ("type: int", "type: number"),
        ("full: 2}", "}"),
    ],
)
def test_a_file_that_declares_no_parameters_says_why(tmp_path, old, new):
    path = tmp_path / "x.yaml"
    path.write_text(YAML.replace(old, new, 1))
    with pytest.raises(UsageError):
        parameters.declared(path)


def test_parts_that_are_known_are_not_made_again():
    made, kept = [], []
    bench = Bench({}, known={"square 2": 4}, keep=lambda known: kept.append(dict(known)))

    def square(number):
        made.append(number)
        return number**2

    assert bench.each("square", [1, 2, 3], square) == [1, 4, 9]
    assert made == [1, 3] and kept[-1] == {"square 2": 4, "square 1": 1, "square 3": 9}


def test_a_page_shows_each_claim_with_its_verdict():
    told = [
        claims.exact("P", "it is 2", "the number", (2, 2), 3.0).plain(),
        claims.mean("G", "it is above 0", "the mean", claims.ABOVE, [1.0, 1.1, 0.9]).plain(),
    ]
    made = {
        "name": "x",
        "title": "X",
        "paper": "P",
        "about": "",
        "claims": told,
        "tables": [],
        "notes": ["n|m"],
    }
    made |= {
        "command": "rebasin lab run x",
        "parameters": {"k": [1, 2]},
        "versions": {"rebasin": "0.9", "torch": "2"},
        "seed": 0,
    }
    made |= {
        "threads": 1,
        "scale": "small",
        "date": "2026-01-01",
        "times": {"seconds": 3.0},
        "faster": "nothing",
    }
    text = page.page(made)
    assert "| P | it is 2 | the number | 2 | 3 | exact | **refuted** |" in text
    assert "| ≥ 0 | 1 | 0.7516 … 1.248 | confirmed |" in text
    assert "| `k` | 1, 2 |" in text and "```sh\nrebasin lab run x\n```" in text
    other = made | {"command": "rebasin lab run x --scale full", "scale": "full", "times": {"seconds": 400.0}}
    parts = other | {"command": "rebasin lab run x --scale full --set k=1"}
    others = {"full/x": other, "mnist/x": parts}
    listed = page.index([made], "# The lab\n", minutes={"x": 300}, others=others)
    assert "| [x](x.md) | X | P | 1 confirmed, 1 refuted | 0.9, 2026-01-01 | 3 | 5 h | nothing |" in listed
    assert "| P | it is 2 | the number | 2 | 3 | exact | [x](x.md) |" in listed
    assert "| P | it is 2 | the number | 2 | 3 | exact | [full/x](full/x.md) |" in listed
    assert "| P | it is 2 | the number | 2 | 3 | exact | refuted | [full/x](full/x.md) |" in listed
    assert "refuted | [mnist/x]" not in listed  # at the papers' scale with none of their numbers replaced
    assert (
        "| [full/x](full/x.md) | `rebasin lab run x --scale full` | 1 confirmed, 1 refuted | 7 min |"
        in listed
    )


def test_every_disagreement_is_listed_and_names_an_experiment_that_there_is():
    listed = page.index([], "# The lab\n", minutes={}, others={})
    for paper, says, known, name in disagreements():
        assert f"| {' | '.join(map(escape, (paper, says, known)))} |" in listed
        assert not name or (name in registry.names() and f"[{name}]({name}.md)" in listed)


@pytest.mark.parametrize(
    ("points", "labels"),
    [([15, 100], ["20", "30", "50", "70", "100"]), ([1, 64], ["1", "2", "5", "10", "20", "50"])],
)
def test_logarithmic_axes_have_plain_numbers(points, labels):
    from matplotlib.figure import Figure

    figure = Figure()
    panel = figure.subplots()
    pictures._draw(panel, Panel("", "", "", [Line("", points, [1e-6, 1.0])], log="xy"), legend=False)
    figure.draw_without_rendering()

    def shown(axis):
        low, high = axis.get_view_interval()
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        return [tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high]

    assert shown(panel.xaxis) == labels
    assert {"1e-06", "0.001", "1"} <= set(shown(panel.yaxis))
