"""What names with slots speak of: as a regular expression would say it, in bounded time."""

import random
import re
import time

import pytest

from rebasin_cli.errors import SpecError
from rebasin_cli.spec.patterns import Pattern, pattern_of


def by_expression(name, text):
    """What a regular expression that tries everything finds."""
    seen = set()

    def group(slot):
        again = slot[1] in seen
        seen.add(slot[1])
        return f"(?P={slot[1]})" if again else f"(?P<{slot[1]}>[A-Za-z0-9_]+)"

    found = re.fullmatch(re.sub(r"\\\{(\w+)\\\}", group, re.escape(name)), text)
    return None if found is None else found.groupdict()


def test_it_finds_what_a_regular_expression_finds():
    rng = random.Random(0)
    matched = ambiguous = 0
    for _ in range(20_000):
        parts = rng.choices(["{a}", "{b}", "{c}", "x", "y", ".", "x."], k=rng.randint(1, 6))
        name, text = "".join(parts), "".join(rng.choices("xxy.", k=rng.randint(0, 9)))
        found = pattern_of(name).match(text)
        assert found == by_expression(name, text), (name, text)
        matched += found is not None
        ambiguous += found is not None and Pattern(name)._expression is None
    assert matched > 500 and ambiguous > 100


@pytest.mark.parametrize(
    "name, text, found",
    [
        ("layer{s}.{b}.conv{k}.weight", "layer1.0.conv2.weight", {"s": "1", "b": "0", "k": "2"}),
        ("{a}{b}", "xyz", {"a": "xy", "b": "z"}),
        ("{a}_{b}", "x_y_z", {"a": "x_y", "b": "z"}),
        ("{a}x{a}", "yyxyy", {"a": "yy"}),
        ("{a}{a}", "xyxy", {"a": "xy"}),
        ("{a}{a}", "xyx", None),
        ("{a}", "x.y", None),
        ("a+b(c)", "a+b(c)", {}),
        ("a.b", "axb", None),
    ],
)
def test_examples(name, text, found):
    assert pattern_of(name).match(text) == found
    assert pattern_of(name).matches(text) == (found is not None)


@pytest.mark.parametrize(
    "name", ["{a}{b}{c}{d}{e}{f}x", "{a}_{b}_{c}_{d}_{e}_{f}.x", "{a}x{b}x{c}x{d}x{e}xz"]
)
def test_a_long_name_is_read_in_no_time(name):
    began = time.process_time()
    assert pattern_of(name).match("_x" * 1500 + "!") is None
    assert time.process_time() - began < 1


def test_what_would_take_for_ever_is_refused():
    with pytest.raises(SpecError, match="can be read in too many ways"):
        pattern_of("{a}{b}{c}{d}{a}{b}{c}{d}x").match("x" * 300 + "y" + "x" * 500)


def test_there_are_no_more_than_sixteen_slots():
    with pytest.raises(SpecError, match="more than 16 slots"):
        pattern_of("".join(f"{{s{k}}}." for k in range(17)))
