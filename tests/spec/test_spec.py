"""Specs are read in two steps, and each tells every problem at once."""

import math

import pytest
import torch

from rebasin_cli import nets
from rebasin_cli.errors import NoSpecFits, SpecError, UsageError
from rebasin_cli.spec import library, parser, sizes
from rebasin_cli.spec.atoms import atoms
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import Fixed, Product, Sum, Word
from rebasin_cli.spec.parser import parse, refers_to
from rebasin_cli.spec.patterns import pattern_of
from rebasin_cli.spec.spec import Block, Entry
from rebasin_cli.symmetry import permutation


def read(text: str, **options):
    return parse(text, name="test", source="test.yaml", **options)


def fitted(text: str, **shapes: tuple[int, ...]):
    return fit(read(text), {name.replace("__", "."): shape for name, shape in shapes.items()})


def problems(run) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        run()
    return caught.value.problems


# ------------------------------------------------------------------------------------------------ parse


def test_units_are_told_with_what_they_lie_within():
    text = 'tensors:\n  w: "(h d*) ."\n  v: "h"\n  u: "(2 e*)"\n  t: "one"\n'
    fitted = fit(parse(text, name="x"), {"w": (12, 5), "v": (3,), "u": (8,), "t": (1,)})
    told = {word: fitted.units(word) for word in fitted.words}
    assert told == {"h": "3 units", "d": "3 × 4 units within h", "e": "2 × 4 units", "one": "1 unit"}


def test_a_spec_says_net_names_description_and_lines():
    spec = read(
        "schema: 1\nnet: package.module:Net\nnames: [one, two]\ndescription: a test\nignore: ['pos.*']\n"
        "tensors:\n  w: 'a .'\n  b?: 'a'\nstatistics:\n  m[1]?: 'a'\n"
    )
    assert (spec.net, spec.names, spec.description, spec.ignore) == (
        "package.module:Net",
        ("one", "two"),
        "a test",
        ("pos.*",),
    )
    assert [(e.name, e.rank, e.optional, e.statistic, e.line) for e in spec.entries] == [
        ("w", None, False, False, 7),
        ("b", None, True, False, 8),
        ("m", 1, True, True, 10),
    ]


def test_parsing_tells_every_problem_at_once_with_its_line():
    found = problems(
        lambda: read(
            "schema: 2\n"
            "tensor: nothing\n"
            "tensors:\n"
            "  a: '('\n"
            "  b: 3\n"
            "  7: 'h'\n"
            "  c: 'h'\n"
            "  c: 'h'\n"
            "  d.{i}: 'h{j}'\n"
            "  'e f': 'h'\n"
            "names: text\n"
        )
    )
    assert len(found) == 9 and set(found) == {
        'line 2: unknown key "tensor"; known: '
        "classes, description, groups, ignore, include, names, net, schema, sizes, statistics, stays, "
        "tensors, unlike, within, without",
        "schema is 2; this version reads schema 1",
        'line 8: "c" stands here and in line 7',
        'line 4: a: "(": "(" is never closed',
        "line 5: \"b\" is '3', not text; quote it",
        "line 6: the key '7' is not text; quote it",
        'line 9: d.{i}: "h{j}" uses {j}, which the name does not bind',
        'line 10: cannot read the tensor name "e f"',
        "line 11: names is not a list",
    }


@pytest.mark.parametrize(
    "value",
    ["3", "0.5", "true", "null", "~", "", "[a, b]", "{a: b}", "2020-01-01"],
    ids=lambda v: v or "empty",
)
def test_axes_that_are_not_text_are_refused(value):
    (problem,) = problems(lambda: read(f"tensors:\n  w: {value}\n"))
    assert problem.startswith('line 2: "w" is ') and problem.endswith("not text; quote it")


@pytest.mark.parametrize("key", ["3", "true", "null", "1.5", "[a]", "{i}.weight"])
def test_names_that_are_not_text_are_refused(key):
    with pytest.raises(SpecError):
        read(f"tensors:\n  w: 'a'\n  {key}: 'a'\n")


@pytest.mark.parametrize("more, line", [("  w: 'b'", 3), ("  w?: 'b'", 3), ("statistics:\n  w: 'b'", 4)])
def test_a_tensor_has_one_line(more, line):
    (problem,) = problems(lambda: read(f"tensors:\n  w: 'a'\n{more}\n"))
    assert problem == f'line {line}: "w" stands here and in line 2'


def test_a_key_stands_once():
    (problem,) = problems(lambda: read("tensors:\n  w: 'a'\ntensors:\n  v: 'a'\n"))
    assert problem == 'line 3: "tensors" stands here and in line 1'


def test_lines_of_other_ranks_are_other_lines():
    spec = read("tensors:\n  w[1]?: 'a'\n  w[2]?: 'a .'\n")
    assert fit(spec, {"w": (3, 4)}).tensors == {"w": (Word("a"), Fixed(4))}
    assert fit(spec, {"w": (3,)}).tensors == {"w": (Word("a"),)}


@pytest.mark.parametrize("name", ["w.{i-1}.x", "w.{1}.x", "w.{i.x", "w.i}", "w[a]", "w??"])
def test_names_that_cannot_be_read_are_refused(name):
    (problem,) = problems(lambda: read(f"tensors:\n  '{name}': 'a'\n"))
    assert problem == f'line 2: cannot read the tensor name "{name}"'


@pytest.mark.parametrize("text", ["", "- a\n", "text", "a: [", "a: 1\n--- \nb: 2\n", "\0"])
def test_what_is_no_mapping_of_yaml_is_no_spec(text):
    with pytest.raises(SpecError, match=r"test\.yaml is not"):
        read(text)


@pytest.mark.parametrize("text", ["names: [a]\n", "tensors:\n", "tensors: [w]\n"])
def test_a_spec_without_tensors_is_refused(text):
    assert any("tensors" in problem for problem in problems(lambda: read(text)))


def test_sizes_are_whole_numbers_of_words():
    assert read("sizes:\n  heads: 12\n  b.{i}.d: 64\ntensors:\n  w: 'a'\n").sizes == {
        "heads": 12,
        "b.{i}.d": 64,
    }
    found = problems(
        lambda: read(
            "tensors:\n  w: 'a'\nsizes:\n  a: '3'\n  b: 0\n  c: 1.5\n  d: -2\n  e: 0x10\n  f: [3]\n"
            "  g*: 3\n  h{i-1}: 3\n  k: 4\n  k: 4\n"
        )
    )
    assert found == (
        *(
            f'line {line}: the size of "{word}" is {what}, not a whole number above 0'
            for line, word, what in [
                (4, "a", "'3'"),
                (5, "b", "'0'"),
                (6, "c", "'1.5'"),
                (7, "d", "'-2'"),
                (8, "e", "'0x10'"),
                (9, "f", "…"),
            ]
        ),
        'line 10: cannot read the word "g*"',
        'line 11: cannot read the word "h{i-1}"',
        'line 13: "k" stands here and in line 12',
    )
    assert problems(lambda: read("tensors:\n  w: 'a'\nsizes: [a]\n")) == (
        "line 3: `sizes:` is not a mapping of words to their sizes",
    )


def test_an_included_spec_gives_its_sizes_and_own_ones_win():
    base = read("sizes: {a: 3, b: 4}\ntensors:\n  w: '(a b)'\n")
    assert read("include: base\nsizes: {b: 5}\n", include={"base": base}.get).sizes == {"a": 3, "b": 5}


def test_an_included_spec_gives_its_lines_and_own_lines_win():
    base = read("net: m:Base\nignore: ['x*']\ntensors:\n  w: 'a .'\n  b: 'a'\n")
    spec = read("include: base\nignore: ['y*']\ntensors:\n  b?: '.'\n  c: 'a'\n", include={"base": base}.get)
    assert fit(spec, {"w": (2, 3), "c": (2,)}).words == {"a": 2}
    assert fit(spec, {"w": (2, 3), "b": (9,), "c": (2,)}).tensors["b"] == (Fixed(9),)
    assert (spec.net, spec.ignore) == ("m:Base", ("x*", "y*"))
    other = read("net: m:Base\nignore: ['x*']\ntensors:\n  w: 'a .'\n  b: 'a'\n  d?: 'a'\n")
    changed = read(
        "include: base\nignore: ['y*']\ntensors:\n  b?: '.'\n  c: 'a'\n", include={"base": other}.get
    )
    assert spec.digest != changed.digest


def test_includes_are_looked_up_beside_the_file_and_among_the_built_in_ones(tmp_path):
    (tmp_path / "base.yaml").write_text("tensors:\n  w: 'a .'\n")
    (tmp_path / "mine.yaml").write_text("include: base\ntensors:\n  v: '. a'\n")
    assert fit(library.load(str(tmp_path / "mine.yaml")), {"w": (2, 3), "v": (4, 2)}).words == {"a": 2}
    (tmp_path / "more.yaml").write_text("include: mlp\ntensors:\n  extra: '.'\n")
    assert {entry.name for entry in library.load(str(tmp_path / "more.yaml")).entries} >= {
        "head.weight",
        "extra",
    }


@pytest.mark.parametrize("other", ["one", "two", "nowhere"])
def test_includes_that_lead_nowhere_or_in_a_circle_are_errors(tmp_path, other):
    (tmp_path / "one.yaml").write_text(f"include: {other}\n")
    (tmp_path / "two.yaml").write_text("include: one\n")
    with pytest.raises(SpecError, match="circle" if other == "two" else "is not a spec"):
        library.load(str(tmp_path / "one.yaml"))


def test_a_spec_that_is_not_there_is_a_usage_error_with_the_nearest_name(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        library.load(str(tmp_path / "missing.yaml"))
    with pytest.raises(UsageError, match="Did you mean .*resnet50"):
        library.load("resnet5O")
    with pytest.raises(SpecError, match="cannot be read"):
        library.load(f"{tmp_path}/")


# -------------------------------------------------------------------------------------------------- fit


def test_fitting_gives_every_word_one_size_and_every_axis_its_length():
    spec = fitted("tensors:\n  w: 'a . ...'\n  v: '. a'\n  n: ''\n", w=(4, 3, 5, 5), v=(2, 4), n=())
    assert spec.words == {"a": 4}
    assert spec.tensors == {
        "w": (Word("a"), Fixed(3), Fixed(5), Fixed(5)),
        "v": (Fixed(2), Word("a")),
        "n": (),
    }


def test_fitting_tells_every_problem_at_once():
    found = problems(
        lambda: fitted(
            "tensors:\n  w: 'a b'\n  b: 'a'\n  c: 'b'\n  gone: 'a'\n  rows.{i}: 'a'\n  deep: 'a . .'\n"
            "  flat: '(a 7)'\n  size: '5'\n",
            w=(4, 3),
            b=(5,),
            c=(3,),
            extra=(2, 2),
            deep=(4, 1),
            flat=(27,),
            size=(6,),
        )
    )
    assert set(found) == {
        "extra  2×2 is in the checkpoint, not in the spec",
        "gone  is in the spec, not in the checkpoint",
        "rows.{i}  matches no tensor of the checkpoint",
        'deep  has 2 axes 4×1, the spec says "a . ."',
        'w  axis 0 is "a", 4 units',
        'b  axis 0 is "a", 5 units',
        "  these should be equal",
        'flat  axis 0 has 27 entries, the spec says "(a 7)" (a = 4)',
        'size  axis 0 has 6 entries, the spec says "5"',
    }


def test_a_word_with_two_sizes_reads_as_in_the_house_style():
    with pytest.raises(SpecError) as caught:
        fitted(
            "tensors:\n  layer1.0.conv1.weight: 'inner10 .'\n  layer1.0.bn1.weight: 'inner10'\n",
            layer1__0__conv1__weight=(16, 3),
            layer1__0__bn1__weight=(32,),
        )
    assert str(caught.value) == (
        "test.yaml does not fit\n"
        '  layer1.0.conv1.weight  axis 0 is "inner10", 16 units\n'
        '  layer1.0.bn1.weight  axis 0 is "inner10", 32 units\n'
        "    these should be equal"
    )


@pytest.mark.parametrize(
    "axes, length, resolved",
    [
        ("(a 5)", 20, Product((Word("a"), Fixed(5)))),
        ("(a _)", 20, Product((Word("a"), Fixed(5)))),
        ("(_ a)", 20, Product((Fixed(5), Word("a")))),
        ("(3 a _)", 24, Product((Fixed(3), Word("a"), Fixed(2)))),
        ("(a b)", 24, Product((Word("a"), Word("b")))),
        ("(a (b _))", 48, Product((Word("a"), Product((Word("b"), Fixed(2)))))),
        ("a + b", 10, Sum((Word("a"), Word("b")))),
        ("a + b + 16", 26, Sum((Word("a"), Word("b"), Fixed(16)))),
        ("a + .", 9, Sum((Word("a"), Fixed(5)))),
        ("(a + b _)", 30, Product((Sum((Word("a"), Word("b"))), Fixed(3)))),
        ("(a 2) + (b _)", 26, Sum((Product((Word("a"), Fixed(2))), Product((Word("b"), Fixed(3)))))),
        ("a + a", 8, Sum((Word("a"), Word("a")))),
    ],
)
def test_products_and_sums_work_out_what_is_left_open(axes, length, resolved):
    spec = fitted(f"tensors:\n  p: 'a b'\n  x: '{axes}'\n", p=(4, 6), x=(length,))
    assert spec.tensors["x"] == (resolved,)


@pytest.mark.parametrize(
    "axes, length", [("(a 5)", 21), ("(a _)", 21), ("a + b", 11), ("a + .", 4), ("(a _ _)", 16)]
)
def test_products_and_sums_that_cannot_be_so_long_are_errors(axes, length):
    (problem,) = problems(lambda: fitted(f"tensors:\n  p: 'a b'\n  x: '{axes}'\n", p=(4, 6), x=(length,)))
    assert problem.startswith(f'x  axis 0 has {length} entries, the spec says "{axes}" (a = 4')


def test_a_word_may_get_its_size_from_products_and_sums_alone():
    assert fitted("tensors:\n  x: '(a 5)'\n", x=(20,)).words == {"a": 4}
    assert fitted(
        "tensors:\n  x: '(a 5)'\n  y: 'a + b'\n  z: '(3 b + a)'\n", x=(20,), y=(11,), z=(33,)
    ).words == {
        "a": 4,
        "b": 7,
    }
    (problem,) = problems(lambda: fitted("tensors:\n  x: '(a b)'\n", x=(20,)))
    assert problem == 'x  axis 0 has 20 entries, the spec says "(a b)" (a = ?, b = ?)'


def test_sizes_tell_what_no_axis_does():
    spec = fitted("sizes: {a: 4}\ntensors:\n  x: '(a b)'\n", x=(20,))
    assert spec.words == {"a": 4, "b": 5}
    with pytest.raises(SpecError) as caught:
        fitted("tensors:\n  x: '(a b)'\n", x=(20,))
    assert caught.value.hint == "Sizes that no axis tells stand under `sizes:`"


def test_sizes_may_have_slots_and_an_exact_word_beats_them():
    text = "sizes:\n  l.{i}.a: 4\n  l.2.a: 2\ntensors:\n  w.{i}: '(l.{i}.a b{i})'\n"
    words = fitted(text, w__1=(20,), w__2=(20,)).words
    assert words == {"l.1.a": 4, "l.2.a": 2, "b1": 5, "b2": 10}
    (problem,) = problems(
        lambda: fitted(
            "sizes:\n  l.{i}.a: 4\n  l.1.{x}: 4\ntensors:\n  w.{i}: '(l.{i}.a b{i})'\n", w__1=(20,)
        )
    )
    assert problem == 'sizes  "l.1.a" is claimed by "l.{i}.a" and "l.1.{x}"'


def test_sizes_that_contradict_the_tensors_are_told_with_both_sides():
    text = "sizes:\n  a: 3\n  b: 4\n  c: 7\n  n{i}: 2\ntensors:\n  w: 'a'\n  x: '(b 2)'\n"
    assert problems(lambda: fitted(text, w=(5,), x=(9,))) == (
        'sizes  "c" is no word of these tensors',
        'sizes  "n{i}" is no word of these tensors',
        'sizes  is "a", 3 units',
        'w  axis 0 is "a", 5 units',
        "  these should be equal",
        'x  axis 0 has 9 entries, the spec says "(b 2)" (b = 4 by `sizes`)',
    )


def test_a_starred_word_has_as_many_units_as_all_blocks_together():
    spec = fitted(
        "sizes: {heads: 3, kv: 2, rep: 3}\n"
        "tensors:\n  w: '(heads d*) .'\n  f: '(12 (2 e*))'\n  q: '(kv rep* k*)'\n",
        w=(12, 5),
        f=(48,),
        q=(24,),
    )
    assert spec.words == {"heads": 3, "d": 12, "e": 24, "kv": 2, "rep": 6, "k": 8}
    assert spec.within == {
        "d": Block("heads", 3, 4),
        "e": Block(None, 12, 2),
        "rep": Block("kv", 2, 3),
        "k": Block("kv", 2, 4),
    }
    assert spec.sizes == {"heads": 3, "d": 4, "e": 2, "kv": 2, "rep": 3, "k": 4}
    assert fitted("sizes: {d: 4}\ntensors:\n  w: '(heads d*)'\n", w=(12,)).words == {"heads": 3, "d": 12}


def test_a_starred_word_has_symmetries_in_each_block():
    spec = fitted("sizes: {heads: 3}\ntensors:\n  w: '(heads d*)'\n", w=(12,))
    assert spec.log10_symmetries() == pytest.approx(math.log10(6 * 24**3))


GROUPED = "tensors:\n  one: '(g i*) .'\n  n: 'g'\n"


def test_a_starred_word_may_stand_on_another_axis_than_what_it_lies_within():
    spec = fitted(GROUPED + "  two: '(g o*) i* .'\n", one=(6, 3), n=(2,), two=(8, 3, 5))
    assert spec.words == {"g": 2, "i": 6, "o": 8}
    assert spec.within == {"i": Block("g", 2, 3), "o": Block("g", 2, 4)}
    text = "sizes:\n  g{i}: 2\ntensors:\n  one.{i}: '(g{i} i{i}*)'\n  two.{i}: 'i{i}* g{i}'\n"
    families = fitted(text, one__0=(6,), two__0=(3, 2), one__7=(8,), two__7=(4, 2))
    assert families.within == {"i0": Block("g0", 2, 3), "i7": Block("g7", 2, 4)}


STACKED = "tensors:\n  gate: 'e .'\n  up.{i}: 'e . (2 h{i}*)'\n  down.{i}: 'e h{i}* .'\nwithin:\n  h{i}: "
SHAPES = {"gate": (4, 3), "up__0": (4, 3, 12), "down__0": (4, 6, 3), "up__1": (4, 3, 4), "down__1": (4, 2, 3)}


def test_within_says_what_a_starred_word_lies_within_where_no_axis_does():
    spec = fitted(STACKED + "e\n", **SHAPES)
    assert spec.within == {"h0": Block("e", 4, 6), "h1": Block("e", 4, 2)}
    drawn = permutation.random(spec.words, torch.Generator().manual_seed(0), within=spec.within)
    up, down = torch.randn(4, 3, 12), torch.randn(4, 6, 3)
    moved = permutation.permuted({"up.0": up, "down.0": down}, spec, drawn)
    one, two = (
        torch.einsum("edch,ehk->edck", u.unflatten(-1, (2, 6)), d)
        for u, d in ((up, down), (moved["up.0"], moved["down.0"]))
    )
    torch.testing.assert_close(two, one[drawn["e"]])


def test_within_is_refused_where_it_names_no_such_word_or_an_axis_says_otherwise():
    told = problems(lambda: fitted(STACKED + "f\n", **SHAPES))
    assert told[:2] == tuple(f'within  "f", for "h{i}", is no word without a star' for i in (0, 1))
    text = "tensors:\n  w: '(g i*)'\n  n: 'e'\nsizes:\n  g: 2\nwithin:\n"
    told = problems(lambda: fitted(text + "  i: e\n", w=(6,), n=(3,)))
    assert told == ('w  axis 0 has "i*" within "g", `within:` says "e"',)
    told = problems(lambda: fitted(text + "  k: e\n", w=(6,), n=(3,)))
    assert told == ('within  "k" is no starred word of these tensors',)
    with pytest.raises(SpecError, match="not a valid spec") as refused:
        parse(STACKED.replace("h{i}: ", "h0: ") + "'e{i}'\n", name="x")
    assert refused.value.problems == ('line 6: "e{i}" has a slot that "h0" does not bind',)


ELSEWHERE = '"i*", which lies within "g": one other axis must have that once, and outside sums'
STARLESS = 'x  axis 0 has "i" without a star, one axis 0 has "i*"'
NOTHING = 'x  axis 0 has "j*", but no tensor says within what: "(heads j*)" would, or `within:`'
NUMBER = 'x  axis 1 has "k*" without the 2 it lies within: "(2 k*)"'


@pytest.mark.parametrize(
    "line, shape, found",
    [
        ("i*", (3,), [f"x  axis 0 has {ELSEWHERE}"]),
        ("(i* g)", (6,), [f"x  axis 0 has {ELSEWHERE}"]),
        ("i* g g", (3, 2, 2), [f"x  axis 0 has {ELSEWHERE}"]),
        ("i* g + 3", (3, 5), [f"x  axis 0 has {ELSEWHERE}"]),
        ("i .", (3, 2), [STARLESS]),
        ("j*", (3,), [NOTHING]),
        ("(2 k*) k* g", (10, 5, 2), [NUMBER]),
    ],
)
def test_starred_words_that_lie_within_nothing_are_told(line, shape, found):
    text = GROUPED + f"  x: '{line}'\n"
    assert list(problems(lambda: fitted(text, one=(6, 3), n=(2,), x=shape))) == found


@pytest.mark.parametrize("line, shape, other", [("(2 i*)", (6,), 2), ("(h i*) h", (12, 4), "h")])
def test_starred_words_that_lie_within_two_things_are_told(line, shape, other):
    text = GROUPED + f"  x: '{line}'\n"
    assert problems(lambda: fitted(text, one=(6, 3), n=(2,), x=shape)) == (
        'one  axis 0 has "i*" within "g"',
        f'x  axis 0 has "i*" within "{other}"',
        "  these should be equal",
    )


def test_the_rest_may_be_empty_but_not_less():
    assert fitted("tensors:\n  w: 'a ... .'\n", w=(2, 3)).tensors["w"] == (Word("a"), Fixed(3))
    (problem,) = problems(lambda: fitted("tensors:\n  w: 'a ... .'\n", w=(2,)))
    assert problem == 'w  has 1 axes 2, the spec says "a ... ."'


def test_a_family_serves_every_depth_by_found_values():
    text = "tensors:\n  l.{i}.w: 'h{i} h{i-1|.}'\n  n.{i}: 'h{i-0}'\n  head: '. h{last}'\n"
    spec = fitted(text, l__0__w=(3, 2), l__3__w=(4, 3), l__10__w=(5, 4), n__4=(4,), n__11=(5,), head=(7, 5))
    assert spec.words == {"h0": 3, "h3": 4, "h10": 5}
    assert spec.tensors["l.10.w"] == (Word("h10"), Word("h3"))
    assert spec.tensors["n.4"] == (Word("h3"),)
    assert spec.tensors["head"] == (Fixed(7), Word("h10"))


def test_a_family_reads_what_was_concatenated_before_it():
    text = "tensors:\n  l.{i}.w: 'h{i} 2 + h{<i}'\n  head: '. (h{all} 3)'\n"
    spec = fitted(text, l__0__w=(3, 2), l__3__w=(4, 5), l__10__w=(5, 9), head=(7, 36))
    assert spec.tensors["l.0.w"] == (Word("h0"), Fixed(2))
    assert spec.tensors["l.10.w"] == (Word("h10"), Sum((Fixed(2), Word("h0"), Word("h3"))))
    assert spec.tensors["head"][1] == Product((Sum((Word("h0"), Word("h3"), Word("h10"))), Fixed(3)))
    (problem,) = problems(lambda: fitted("tensors:\n  l.{i}: 'h{i} h{<i}'\n", l__0=(3, 2)))
    assert problem == 'l.0  "h{<i}": no such values were found, so no segment is left'


def test_captures_nest():
    text = "tensors:\n  s{s}.{b}.in: 'u{s}.{b} u{s}.{b-1|c{0}}'\n"
    with pytest.raises(SpecError):
        read(text)  # no slots inside a fallback
    text = "tensors:\n  s{s}.{b}.in: 'u{s}.{b} u{s}.{b-1|.}'\n  out: '. u{last}.{last}'\n"
    spec = fitted(text, s1__0__in=(2, 9), s1__1__in=(3, 2), s2__0__in=(4, 9), out=(1, 4))
    assert spec.words == {"u1.0": 2, "u1.1": 3, "u2.0": 4}
    assert spec.tensors["s2.0.in"] == (Word("u2.0"), Fixed(9))
    assert spec.tensors["out"] == (Fixed(1), Word("u2.0"))


def test_a_slot_that_stands_twice_takes_one_value():
    text = "tensors:\n  b{i}.c{i}: 'h{i}'\n"
    assert fitted(text, b1__c1=(2,)).words == {"h1": 2}
    assert "b1.c2  2 is in the checkpoint, not in the spec" in problems(lambda: fitted(text, b1__c2=(2,)))


def test_no_previous_value_and_no_fallback_is_a_problem_of_that_tensor():
    found = problems(lambda: fitted("tensors:\n  l.{i}: 'h{i} h{i-1}'\n", l__0=(3, 2), l__1=(3, 3)))
    assert found == ('l.0  "h{i-1}": no such value was found; a fallback would be written {…|.}',)


def test_an_exact_line_beats_a_family_and_two_families_are_an_error():
    exact = "tensors:\n  l.{i}: 'h{i}'\n  l.0: '.'\n"
    assert fitted(exact, l__0=(3,), l__1=(3,)).words == {"h1": 3}
    assert fitted(exact, l__0=(3,)).words == {}  # the family's only member has a line of its own
    found = problems(lambda: fitted("tensors:\n  l.{i}: 'h{i}'\n  '{x}.0?': '.'\n", l__0=(3,)))
    assert 'l.0  is claimed by "l.{i}" and "{x}.0"' in found


def test_a_rank_narrows_a_family():
    text = "tensors:\n  f.{i}.w[4]: 'c{i} c{i-1|.} . .'\n  f.{i}.w[1]?: 'c{i-0}'\n"
    spec = fitted(text, f__0__w=(4, 3, 1, 1), f__1__w=(4,), f__2__w=(5, 4, 1, 1))
    assert spec.tensors["f.1.w"] == (Word("c0"),)


def test_ignored_tensors_stay_and_need_no_line():
    spec = fitted("ignore: ['pos.*']\ntensors:\n  w: 'a'\n", w=(2,), pos__ids=(7,))
    assert spec.ignored == {"pos.ids"} and "pos.ids" not in spec.tensors


def test_statistics_are_marked_and_are_no_evidence():
    spec = fitted("tensors:\n  w: 'a .'\nstatistics:\n  m: 'a'\n", w=(2, 3), m=(2,))
    assert spec.statistics == {"m"}
    assert [atom.tensor for atom in atoms(spec)] == ["w"]
    assert [atom.tensor for atom in atoms(spec, evidence_only=False)] == ["m", "w"]


def test_symmetries_and_moved_share_are_counted():
    spec = fitted("tensors:\n  w: 'a .'\n  v: '.'\nstatistics:\n  m: 'a'\n", w=(5, 3), v=(15,), m=(5,))
    assert spec.log10_symmetries() == pytest.approx(2.0791812)  # log10 5!
    assert spec.moved_share() == 0.5


def test_the_nearest_spec_is_named_where_none_fits():
    shapes = {"layers.0.weight": (8, 4), "head.weight": (3, 8), "tail": (2,)}
    with pytest.raises(
        SpecError, match="no built-in spec fits these 3 tensors; the nearest is mlp"
    ) as caught:
        library.find(shapes)
    assert caught.value.problems == ("tail  2 is in the checkpoint, not in the spec",)


def test_the_spec_is_found_from_the_tensors():
    assert library.find({"layers.0.weight": (8, 4), "head.weight": (3, 8)}).words == {"h0": 8}


# ------------------------------------------------------------------------------------------- long specs


def calls(of, name, monkeypatch):
    """How often a method is called from here on."""
    whole, count = getattr(of, name), [0]

    def counted(*given, **named):
        count[0] += 1
        return whole(*given, **named)

    monkeypatch.setattr(of, name, counted)
    return count


def test_the_work_of_a_fit_grows_with_its_lines_alone(monkeypatch):
    """Twice the lines and tensors, twice the work: exact ones, families, and sizes that follow each other."""
    matched, solved = (
        calls(Entry, "match", monkeypatch),
        calls(sizes, "_solve", monkeypatch),
    )
    for lines in (
        lambda n: [(f"a{k}", f"h{k} h{k + 1}", (2, 2)) for k in range(n)],
        lambda n: [(f"b{k}.{{i}}", "h{i}", (2,)) for k in range(n)],
        lambda n: [(f"c{k}", f"(2 h{k}) + h{k + 1}", (6,)) for k in range(n)] + [(f"c{n}", f"h{n}", (2,))],
    ):
        work = []
        for n in (20, 40):
            matched[0] = solved[0] = 0
            made = lines(n)
            text = "tensors:\n" + "".join(f'  {name}: "{axes}"\n' for name, axes, _ in made)
            fit(read(text), {name.replace("{i}", "0"): shape for name, _, shape in made})
            work.append(matched[0] + solved[0])
        assert 0 < work[1] <= 2.2 * work[0], work


def test_long_specs_are_read_as_short_ones_and_too_long_ones_are_refused(monkeypatch):
    text = 'tensors:\n  w: "h ."\n  "b.{i}": "(2 h{i})"\nstatistics:\n  m: "h"\nsizes: {h: 3}\n'
    short = read(text)
    monkeypatch.setattr(parser, "SHORT", 0)
    assert read(text) == short
    for wrong in ("tensors: {w: h, w: h}", "tensors: [", "tensors: {1: h}"):
        told = problems(lambda wrong=wrong: read(wrong))
        assert told and "line" in told[0]
    for deep in ("[" * 10_000, "- " * 10_000, "{a: " * 10_000):  # libyaml would overflow the stack
        with pytest.raises(SpecError, match="lie within one another"):
            read(deep)
    monkeypatch.setattr(parser, "MOST_NODES", 5)
    with pytest.raises(SpecError, match="at most 5 names and axes are read"):
        read(text)


def test_what_a_spec_refers_to_is_found_however_it_is_written():
    for text, found in {
        "include: base\nnet: a.py:b\ntensors:\n  include: x\n": [("include", "base"), ("net", "a.py:b")],
        "{tensors: {a: b}, include: base}": [("include", "base")],
        '"\\x69nclude": "ba\\x73e"': [("include", "base")],
        "? include\n: base": [("include", "base")],
        "include: >-\n  base\nnet: !!str n.py:f": [("include", "base"), ("net", "n.py:f")],
        "? [include]\n: net\n? {a: b}\n: [c]\ninclude: z": [("include", "z")],
        "a: {include: x}\nb: [[], {net: y}]\nnet: c": [("net", "c")],
        "- include": [],
        "include: a\n]": [("include", "a")],
        "\x00": [],
    }.items():
        assert refers_to(text) == found, text


# ------------------------------------------------------------------------ what shapes do not tell

HEADS = "tensors:\n  q.{i}: '(heads.{i} dim.{i}*) s'\n  o.{i}: 's (heads.{i} dim.{i}*)'\n"


def test_a_size_may_be_looked_up_in_a_configuration_and_what_none_tells_stays():
    spec = read(HEADS + "sizes:\n  heads.{i}: config.part.n config.n\n")
    shapes = {"q.0": (12, 5), "o.0": (5, 12)}
    for settings, heads in (({"part": {"n": 3}, "n": 4}, 3), ({"n": 4}, 4)):
        found = fit(spec, shapes, settings)
        assert found.words["heads.0"] == heads and found.within["dim.0"].size == 12 // heads
        assert found.untold == () and [*found.told.values()] == [heads]
        assert fit(found.spec, shapes).words == found.words  # again, without the configuration
    for settings in (None, {}, {"n": "4"}, {"n": True}, {"n": 0}, {"part": 3}):
        found = fit(spec, shapes, settings)
        assert found.words == {"s": 5} and found.untold == ("config.part.n", "config.n") and not found.told
    assert problems(lambda: fit(spec, shapes, {"n": 5}))[0].startswith("q.0  axis 0 has 12 entries")
    own = read("include: base\nsizes:\n  heads.{i}: 6\n", include={"base": spec}.get)
    assert fit(own, shapes).words["heads.0"] == 6
    both = read(HEADS + "sizes:\n  heads.{i}: config.n\n  heads.0: 6\n")  # what is stated is not looked up
    assert fit(both, shapes, {"n": 3}).words["heads.0"] == 6


def test_what_no_configuration_tells_holds_all_that_its_axes_have():
    spec = read("tensors:\n  w: '(h d) s'\n  v: '(d e)'\n  u: '(e f)'\nsizes:\n  h: config.n\n")
    shapes = {"w": (12, 5), "v": (8,), "u": (6,)}
    assert fit(spec, shapes).words == {"s": 5}
    assert fit(spec, shapes, {"n": 3}).words == {"h": 3, "d": 4, "s": 5, "e": 2, "f": 3}


def test_a_configuration_and_a_shape_that_disagree_are_an_error():
    spec = read("tensors:\n  q: '(h d*)'\n  scale: 'h'\nsizes:\n  h: config.n\n")
    agree = fit(spec, {"q": (12,), "scale": (3,)}, {"n": 3})
    assert agree.words["h"] == 3 and not agree.told  # the shape says it, too
    found = problems(lambda: fit(spec, {"q": (12,), "scale": (3,)}, {"n": 4}))
    assert 'config.n is "h", 4 units' in found and 'scale  axis 0 is "h", 3 units' in found


def test_a_size_may_be_that_of_another_word_which_must_be_there():
    text = "tensors:\n  bias: 'h'\n  q: '(c d*)'\nsizes:\n  c: "
    assert fit(read(text + "h\n"), {"bias": (3,), "q": (12,)}).words["c"] == 3
    found = problems(lambda: fit(read(text + "x\n"), {"bias": (3,), "q": (12,)}))
    assert 'sizes  "c" is as large as "x", which is no word of these tensors' in found


def test_words_that_stay_say_that_axes_are_equally_long_and_no_more():
    text = "tensors:\n  w: '(kv d) s'\n  norm: 'd'\nstays: [d]\n"
    found = fitted(text, w=(12, 5), norm=(4,))
    assert found.words == {"kv": 3, "s": 5} and found.tensors["norm"] == (Fixed(4),)
    assert problems(lambda: fitted(text, w=(12, 5), norm=(5,)))
    inherited = read("include: base\nstays: [s]\n", include={"base": read(text)}.get)
    assert fit(inherited, {"w": (12, 5), "norm": (4,)}).words == {"kv": 3}


@pytest.mark.parametrize("line, found", [("stays: [dd]", 'stays  "dd"'), ("unlike: [s dd]", 'unlike  "dd"')])
def test_a_word_that_stays_or_differs_has_to_be_one_of_the_spec(line, found):
    text = "tensors:\n  w: '(kv d) s'\n  norm: 'd'\n  extra?: 'x'\nstays: [x]\n"
    assert fitted(text, w=(12, 5), norm=(4,)).words  # `x` is of a tensor that may be absent
    text = text.replace("stays: [x]\n", "") + line
    assert f"{found} is no word of this spec" in problems(lambda: fitted(text, w=(12, 5), norm=(4,)))


def test_lines_may_be_included_without_a_beginning_of_their_names():
    base = read("tensors:\n  model.w: 'a'\n  head: '. a'\n")
    spec = read("include: base\nwithout: model.\n", include={"base": base}.get)
    assert [entry.name for entry in spec.entries] == ["w", "head"]
    assert problems(lambda: read("include: base\nwithout: x.\n", include={"base": base}.get)) == (
        'without "x.": no line of what is included begins so',
    )


def test_a_slot_may_list_what_it_takes_and_the_name_that_leaves_least_open_is_taken():
    text = "tensors:\n  l.{i}: 's.{i-0}'\n  l.{i:0|2|10}: 's.{i}'\n  l.3: '.'\n"
    found = fitted(
        text, **{f"l__{k}": (k // 2 + 1 if k in (0, 1) else 5,) for k in (0, 1)}, l__2=(7,), l__3=(4,)
    )
    assert found.tensors["l.1"] == (Word("s.0"),) and found.words == {"s.0": 1, "s.2": 7}
    assert found.tensors["l.3"] == (Fixed(4),)
    assert (
        "l.1  is claimed by"
        in problems(lambda: fitted("tensors:\n  l.{i:1|2}: '.'\n  l.{j:1|3}: '.'\n", l__1=(3,)))[0]
    )
    assert problems(lambda: read("tensors:\n  l.{i:}: '.'\n")) == (
        'line 2: cannot read the tensor name "l.{i:}"',
    )
    assert (
        pattern_of("{a:x|yy}{b}z").match("xyz") is not None and pattern_of("{a:yy}{b}z").match("xbz") is None
    )


def test_words_that_must_differ_in_size_are_refused_where_they_do_not():
    text = "tensors:\n  a: 'x'\n  b: 'y x'\nunlike: [x y]\n"
    assert fitted(text, a=(3,), b=(4, 3)).words == {"x": 3, "y": 4}
    assert problems(lambda: fitted(text, a=(3,), b=(3, 3))) == (
        "x and y have 3 units each: something may be added around what is between them",
    )


def library_of(monkeypatch, **texts):
    specs = {}
    for name, text in texts.items():
        specs[name] = parser.parse(text, name=name, include=specs.get)
    monkeypatch.setattr(library, "builtin", lambda: specs)


def test_of_specs_that_fit_the_one_is_taken_that_all_others_hold(monkeypatch):
    whole = "tensors:\n  a: 'x'\n  b: 'y x'\n"
    library_of(monkeypatch, whole=whole, still="include: whole\nstays: [x]\n")
    found = library.find({"a": (3,), "b": (4, 3)})
    assert found.spec.name == "still" and found.beside == ("whole",)


def test_a_spec_with_the_words_of_another_at_other_axes_does_not_hold_it(monkeypatch):
    library_of(monkeypatch, one="tensors:\n  a: 'x'\n  b: '. x'\n", other="tensors:\n  a: '.'\n  b: 'x y'\n")
    with pytest.raises(SpecError, match="several readings"):
        library.find({"a": (3,), "b": (3, 3)})


def test_specs_that_say_the_same_by_other_words_are_one_reading(monkeypatch):
    plain = "tensors:\n  a: 'x .'\n  b: '. x'\n  c: '.'\n"
    grouped = "tensors:\n  a: '(g d*) .'\n  b: '. (g d*)'\n  c: 'g'\n"
    library_of(monkeypatch, grouped=grouped, plain="net: rebasin_cli.nets.mlp:MLP\n" + plain)
    assert library.find({"a": (6, 5), "b": (4, 6), "c": (1,)}).spec.name == "plain"
    with pytest.raises(SpecError, match="several readings"):
        library.find({"a": (6, 5), "b": (4, 6), "c": (2,)})


def test_specs_that_read_tensors_differently_are_refused_unless_a_configuration_names_the_class(monkeypatch):
    one = "classes: [One]\ntensors:\n  a: 'x'\n  b: '. x'\n"
    other = "classes: [Other]\ntensors:\n  a: '.'\n  b: 'y .'\n"
    library_of(monkeypatch, one=one, other=other)
    shapes = {"a": (3,), "b": (4, 3)}
    with pytest.raises(SpecError, match="several readings") as caught:
        library.find(shapes)
    assert caught.value.hint == "Say which: --spec one or --spec other"
    assert library.find(shapes, {"architectures": ["Other"]}).spec.name == "other"
    with pytest.raises(SpecError, match="no built-in spec fits"):
        library.find(shapes, {"architectures": ["Third"]})
    library_of(monkeypatch, any=one.replace("classes: [One]\n", ""), other=other)
    assert library.find(shapes, {"architectures": ["Other"]}).spec.name == "other"
    assert library.find(shapes, {"architectures": ["Third"]}).spec.name == "any"


def test_tensors_that_no_spec_is_near_to_are_told_why_they_are_no_chain_either():
    shapes = {"fc1.weight": (10, 5), "fc2.weight": (10, 7), "fc3.weight": (3, 10)}
    with pytest.raises(SpecError) as caught:
        library._found(shapes, None)
    assert caught.value.message == "no built-in spec fits these 3 tensors"
    assert caught.value.problems == (
        "no chain of layers: in no order of its layers does each take what the one before gives",
    )


def test_a_resnet_with_other_kernels_than_ours_can_be_named():
    with torch.device("meta"):
        tensors = nets.build("resnet20", input_shape=(3, 32, 32), classes=10).state_dict()
    shapes = {n: tuple(t.shape) for n, t in tensors.items()}
    assert library.find(shapes).spec.name == "resnet_cifar"
    shapes["conv1.weight"] = (*shapes["conv1.weight"][:2], 5, 5)
    with pytest.raises(NoSpecFits, match="the nearest is resnet_cifar") as caught:
        library.find(shapes)
    assert "conv1.weight is 5×5, expected 3×3" in caught.value.problems[0]
    assert "--spec resnet_cifar;" in caught.value.hint
    assert fit(library.load("resnet_cifar"), shapes).words


def test_units_that_are_none():
    def found(net, size):
        with torch.device("meta"):
            tensors = nets.build(net, input_shape=(3, 32, 32), classes=10).state_dict()
        return library.find({n: tuple(0 if d == size else d for d in t.shape) for n, t in tensors.items()})

    assert found("resnet101", 128).words["reduced2.0"] == 0
    with pytest.raises(SpecError, match="the nearest is vgg"):
        found("vgg11", 512)
