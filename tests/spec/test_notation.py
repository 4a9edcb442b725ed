"""One axis expression: what it parses to, how it is printed, what its slots stand for."""

import pytest

from rebasin_cli.errors import SpecError
from rebasin_cli.spec.notation import Fixed, Product, Rest, Sum, Word, parse_axes, starred_of, words_of
from rebasin_cli.spec.patterns import fill, natural

A, B, D = Word("a"), Word("b"), Word("d", each=True)


@pytest.mark.parametrize(
    "text, axes",
    [
        ("", ()),
        (".", (Fixed(),)),
        ("a .", (A, Fixed())),
        ("a b . .", (A, B, Fixed(), Fixed())),
        ("a ...", (A, Rest())),
        ("... a", (Rest(), A)),
        ("a 16", (A, Fixed(16))),
        ("(a 49)", (Product((A, Fixed(49))),)),
        ("(a _) .", (Product((A, Fixed())), Fixed())),
        ("(3 a)", (Product((Fixed(3), A)),)),
        ("(a b)", (Product((A, B)),)),
        ("(a)", (A,)),
        ("(a (b 4))", (Product((A, Product((B, Fixed(4))))),)),
        ("a + b + 16", (Sum((A, B, Fixed(16))),)),
        ("a+b", (Sum((A, B)),)),
        ("b a + b .", (B, Sum((A, B)), Fixed())),
        ("(a + b 4)", (Product((Sum((A, B)), Fixed(4))),)),
        ("(a 4) + b", (Sum((Product((A, Fixed(4))), B)),)),
        ("layer1.0-out_x", (Word("layer1.0-out_x"),)),
        ("h{i-1|.}", (Word("h{i-1|.}"),)),
        ("u{s}.{b-1|a + b}", (Word("u{s}.{b-1|a + b}"),)),
        ("{i}", (Word("{i}"),)),
        ("(a d*)", (Product((A, D)),)),
        ("(a d*) b* . .", (Product((A, D)), Word("b", each=True), Fixed(), Fixed())),
        ("a + d*+b", (Sum((A, D, B)),)),
        ("blocks.{i}.d*", (Word("blocks.{i}.d", each=True),)),
        ("d{i-1|e*}*", (Word("d{i-1|e*}", each=True),)),
    ],
)
def test_an_expression_means_its_axes(text, axes):
    assert parse_axes(text) == axes


@pytest.mark.parametrize(
    "text", ["a b", "(c 49) .", "(c _)", "a + (b 4) + 16", "(a + b 4)", "... a", "(3 (a 2))", "(a d*) e*"]
)
def test_axes_print_as_what_they_were_read_from(text):
    assert " ".join(map(str, parse_axes(text))) == text


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("(a", "never closed"),
        ("a)", '")" without "("'),
        ("()", "empty parentheses"),
        ("+ a", "needs a segment on both sides"),
        ("a +", "needs a segment on both sides"),
        ("(a +)", "needs a segment on both sides"),
        ("a + + b", "needs a segment on both sides"),
        ("a ... ...", "may stand once"),
        ("(a ...)", "cannot stand inside parentheses"),
        ("a + ...", "cannot be a segment"),
        ("... + a", "cannot be a segment"),
        ("0", "a size of 0"),
        ("a $ b", 'cannot read "$ b"'),
        ("16a", 'cannot read "16a"'),
        ("..", 'cannot read ".."'),
        ("h{", 'cannot read "{"'),
        ("h{i*2}", 'cannot read the slot "{i*2}"'),
        ("h{i+0}", 'cannot read the slot "{i+0}"'),
        ("h{last-1}", 'cannot read the slot "{last-1}"'),
        ("h{<last}", 'cannot read the slot "{<last}"'),
        ("h{<i-1}", 'cannot read the slot "{<i-1}"'),
        ("h{all}.{<i}", "has two slots of several values"),
        ("h{i-1|a b}", "expected one axis, found 2"),
        ("h{i-1|...}", '"..." cannot be a fallback'),
        ("h{i-1|(a}", "never closed"),
        ("(heads *)", 'cannot read "*)"'),
        ("d*e", 'cannot read "*e"'),
        ("d**", 'cannot read "*"'),
        ("h{i-1|d**}", 'cannot read "*"'),
    ],
)
def test_a_text_that_is_no_expression_is_refused_with_its_reason(text, complaint):
    with pytest.raises(SpecError) as caught:
        parse_axes(text)
    assert complaint in caught.value.message


@pytest.mark.parametrize(
    "text, outer",
    [
        ("(a d*)", A),
        ("(3 a 2 e* d*)", A),  # integers and other starred words are passed over
        ("(a b d*)", B),  # the nearest
        ("(d* a)", None),  # it stands before
        ("(a (2 d*) + b)", A),
        ("(2 (a (3 (4 d*))))", A),
        ("((a 2) d*)", A),
        ("(a + b d*)", None),  # of a sum it would not be known which
        ("(12 d*)", Fixed(12)),
        ("(12 (2 d*))", Fixed(12)),
        ("(a + (12 d*) b)", Fixed(12)),
        ("(12 a + (2 d*))", Fixed(12)),
        ("(a + b 12 d*)", None),  # not the leading number
        ("a + d*", None),
        ("d*", None),
    ],
)
def test_a_starred_word_lies_within_the_nearest_word_before_it_or_the_leading_number(text, outer):
    (axis,) = parse_axes(text)
    assert ("d", outer) in starred_of(axis)


def test_words_are_listed_in_order_with_repetitions():
    assert [word for axis in parse_axes("(a b) . b + (a 2)") for word in words_of(axis)] == [
        "a",
        "b",
        "b",
        "a",
    ]


def test_values_sort_as_a_reader_would():
    assert sorted(["10", "3b", "2", "3a", "x"], key=natural) == ["2", "3a", "3b", "10", "x"]


FOUND = {"h{}": {("0",), ("3",), ("6",), ("10",)}}


@pytest.mark.parametrize(
    "word, i, name",
    [
        ("h{i}", "6", "h6"),
        ("h{i-1}", "6", "h3"),
        ("h{i-1}", "10", "h6"),
        ("h{i-2}", "6", "h0"),
        ("h{i+1}", "6", "h10"),
        ("h{i+1}", "4", "h6"),
        ("h{i-1}", "4", "h3"),
        ("h{i-0}", "4", "h3"),
        ("h{i-0}", "3", "h3"),
        ("h{first}", "6", "h0"),
        ("h{last}", "6", "h10"),
    ],
)
def test_offsets_count_found_values(word, i, name):
    assert fill(word, {"i": i}, FOUND) == Word(name)


@pytest.mark.parametrize("word", ["h{i-1|.}", "h{i-2|.}", "h{i-0|.}"])
def test_a_fallback_stands_where_no_value_is_found(word):
    before_all = {"i": "-"} if "0" in word else {"i": "0"}
    found = FOUND if "0" not in word else {}
    assert fill(word, before_all, found) == Fixed()


def test_a_star_stays_with_the_word_and_a_fallback_says_itself():
    assert fill("h{i-1}", {"i": "3"}, FOUND, each=True) == Word("h0", each=True)
    assert fill("h{i-1|e}", {"i": "0"}, FOUND, each=True) == Word("e")
    assert fill("h{i-1|e*}", {"i": "0"}, FOUND) == Word("e", each=True)


def test_a_fallback_stands_where_too_few_values_are_found():
    assert fill("h{i-2|.}", {"i": "3"}, FOUND) == Fixed()
    assert fill("h{i+2|.}", {"i": "6"}, FOUND) == Fixed()


@pytest.mark.parametrize(
    "word, i, axis",
    [
        ("h{<i}", "6", Sum((Word("h0"), Word("h3")))),
        ("h{<i}", "3", Word("h0")),
        ("h{<i}", "0", Sum(())),
        ("h{<i|.}", "0", Fixed()),
        ("h{all}", "3", Sum((Word("h0"), Word("h3"), Word("h6"), Word("h10")))),
        ("g{all}", "3", Sum(())),
    ],
)
def test_a_slot_of_several_values_is_a_segment_of_each(word, i, axis):
    assert fill(word, {"i": i}, FOUND) == axis


def test_a_fallback_is_any_axis():
    assert fill("h{i-1|(c 49)}", {"i": "0"}, FOUND) == Product((Word("c"), Fixed(49)))
    assert fill("h{i+1|a + b}", {"i": "10"}, FOUND) == Sum((A, B))


def test_nothing_found_and_no_fallback_is_an_error_that_names_the_remedy():
    with pytest.raises(SpecError, match=r'"h\{i-1\}": no such value was found; a fallback'):
        fill("h{i-1}", {"i": "0"}, FOUND)


NESTED = {"u{}.{}": {("1", "0"), ("1", "1"), ("2", "0"), ("2", "5"), ("3", "0")}}


def test_segments_are_those_of_the_slots_beside():
    assert fill("u{s}.{<b}", {"s": "2", "b": "5"}, NESTED) == Word("u2.0")
    assert fill("u{s}.{all}", {"s": "2"}, NESTED) == Sum((Word("u2.0"), Word("u2.5")))
    assert fill("u{last}.{all}", {}, NESTED) == Word("u3.0")
    assert fill("u{s-1}.{all}", {"s": "2"}, NESTED) == Sum((Word("u1.0"), Word("u1.1")))


@pytest.mark.parametrize(
    "word, captured, name",
    [
        ("u{s}.{b-1}", {"s": "2", "b": "5"}, "u2.0"),
        ("u{s-1}.{b}", {"s": "3", "b": "0"}, "u2.0"),
        ("u{s}.{last}", {"s": "1"}, "u1.1"),
        ("u{s-1}.{last}", {"s": "3"}, "u2.5"),
        ("u{first}.{last}", {}, "u1.1"),
        ("u{last}.{last}", {}, "u3.0"),
    ],
)
def test_a_slot_moves_while_the_others_hold_still(word, captured, name):
    assert fill(word, captured, NESTED) == Word(name)


def test_the_previous_of_a_nested_value_does_not_cross_to_another_stage():
    assert fill("u{s}.{b-1|.}", {"s": "2", "b": "0"}, NESTED) == Fixed()
