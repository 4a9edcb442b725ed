"""Spec files that are broken, hostile or endless: exit 4 (2 for a name), told in bounded time."""

from __future__ import annotations

import os
import time

import pytest
import torch

from rebasin_cli.checkpoints.writer import write_safetensors

REST = "  layers.0.bias: h0\n  head.weight: . h0\n  head.bias: .\n"
GOOD = "tensors:\n  layers.0.weight: h0 .\n" + REST


def axes(text):
    """A spec whose first tensor has these axes."""
    return f"tensors:\n  layers.0.weight: '{text}'\n{REST}"


NINES = "9" * 5000
SPECS = {  # the text: the words
    "a size of 5,000 digits": (axes(f"h0 {NINES}"), "5003 characters and 0 parentheses; at most 2000"),
    "a factor of 5,000 digits": (axes(f"h0 (c5 {NINES})"), "at most 2000"),
    "a factor of 1,000 digits": (axes(f"h0 (c5 {'9' * 1000})"), "a size of 1000 digits"),
    "a size of 19 digits": (axes("h0 " + "9" * 19), "a size of 19 digits"),
    "a size of 18 digits": (axes("h0 " + "9" * 18), "does not fit"),
    "a product beyond numbers": (axes("h0 (" + "999999999999999999 " * 60 + ")"), "does not fit"),
    "a product of an unknown": (axes("h0 (_ " + "999999999999999999 " * 60 + ")"), "does not fit"),
    "a sum beyond numbers": (axes("h0 " + " + ".join(["999999999999999999"] * 60)), "does not fit"),
    "a size under sizes of 5,000 digits": (f"{GOOD}sizes:\n  h0: {NINES}\n", "not a whole number above 0"),
    "a size under sizes of 0": (f"{GOOD}sizes:\n  h0: 0\n", "not a whole number above 0"),
    "a size under sizes of -1": (f"{GOOD}sizes:\n  h0: -1\n", "not a whole number above 0"),
    "a size under sizes of 1e9": (f"{GOOD}sizes:\n  h0: 1e9\n", "not a whole number above 0"),
    "a size under sizes of .inf": (f"{GOOD}sizes:\n  h0: .inf\n", "not a whole number above 0"),
    "a size under sizes that is a list": (f"{GOOD}sizes:\n  h0: [1]\n", "not a whole number above 0"),
    "a rank of 5,000 digits": (
        f"tensors:\n  ? layers.0.weight[{'9' * 900}]\n  : h0 .\n{REST}",
        "cannot read the tensor name",
    ),
    "a rank of 999": (f"tensors:\n  layers.0.weight[999]: h0 .\n{REST}", "does not fit"),
    "an offset of 5,000 digits": (axes(f"h{{i-{NINES}}} ."), "at most 2000"),
    "an offset of 1,000 digits": (axes(f"h{{i-{'9' * 1000}}} ."), "cannot read the slot"),
    "2,001 characters of axes": (axes("a " * 1001), "2002 characters"),
    "a million characters of axes": (axes("a" * 1_000_000), "at most 2000"),
    "101 parentheses": (axes("(" * 101 + "a" + ")" * 101), "101 parentheses"),
    "900 parentheses": (axes("(" * 900), "900 parentheses"),
    "100 parentheses": (axes("(" * 100 + "h0" + ")" * 100 + " ."), ""),
    "parentheses that never close": (axes("(((h0"), '"(" is never closed'),
    "17 slots": (
        "tensors:\n  '" + "".join(f"{{s{k}}}." for k in range(17)) + "x': .\n",
        "more than 16 slots",
    ),
    "a slot without an end": ("tensors:\n  'layers.{i.weight': .\n", "cannot read the tensor name"),
    "a slot within a slot": ("tensors:\n  'layers.{{i}}.weight': .\n", "cannot read the tensor name"),
    "a list without an order": (
        "tensors:\n  'layers.{}.weight': . h0 .\n" + REST,
        "whose order is the first",
    ),
    "a list without its axis": ("tensors:\n  'layers.{}.weight': h0 .\n" + REST, "has 3 axes 1×6×64"),
    "a slot of one sign": ("tensors:\n  'layers.{-}.weight': .\n", "cannot read the tensor name"),
    "no text": ("", "is not a spec"),
    "a number": ("3\n", "is not a spec"),
    "a list": ("- a\n- b\n", "is not a spec"),
    "nothing in it": ("tensors:\n", "is not a mapping"),
    "an unknown key": (GOOD + "exec: x\n", 'unknown key "exec"'),
    "another schema": ("schema: 2\n" + GOOD, "schema is 2"),
    "a schema of text": ("schema: [1]\n" + GOOD, "this version reads schema 1"),
    "a key twice": (GOOD + "  head.bias: .\n", "stands here and in line"),
    "tabs": ("tensors:\n\tx: .\n", "is not YAML"),
    "quotes that never end": ("tensors:\n  'x: .\n", "is not YAML"),
    "a NUL": ("tensors:\n  x\0: .\n", "is not YAML"),
    "a control character": ("tensors:\n  x\x1b]52;c;aGk=\x07: .\n", "is not YAML"),
    "two documents": (GOOD + "---\n" + GOOD, "is not YAML"),
    "an alias that is nowhere": ("tensors: *x\n", "is not YAML"),
    "an object": ("tensors: !!python/object/apply:os.mkdir [ran]\n", "is not a mapping"),
    "an object as axes": ("tensors:\n  x: !!python/name:os.system\n", "not text"),
    "a merge key": ("base: &a {x: .}\ntensors:\n  <<: *a\n", "unknown key"),
    "axes that are a number": ("tensors:\n  x: 3\n", "not text; quote it"),
    "axes that are null": ("tensors:\n  x:\n", "not text; quote it"),
    "a name that is a number": ("tensors:\n  3: .\n", "is not text; quote it"),
    "a name that is a list": ("tensors:\n  ? [a]\n  : .\n", "is not text; quote it"),
    "a net that is a list": ("net: [a]\n" + GOOD, "not text; quote it"),
    "lists 5,000 deep": ("tensors: " + "[" * 5000, "too many things lie within one another"),
    "mappings 5,000 deep": ("tensors: " + "{a: " * 5000, "too many things lie within one another"),
    "mappings 5,000 deep by indents": ("".join(" " * k + "a:\n" for k in range(2000)), "too many things"),
    "aliases that grow": (
        "a: &a [x]\n"
        + "".join(f"{chr(98 + k)}: &{chr(98 + k)} [*{chr(97 + k)}, *{chr(97 + k)}]\n" for k in range(24)),
        "unknown key",
    ),
    "an alias within itself": ("tensors: &a\n  x: *a\n", "not text"),
    "five million characters": ("#" * 5_000_000, "at most 4,194,304 are read"),
    "a surrogate in a name": ('tensors:\n  "\\ud800": .\n', ""),
    "a surrogate in axes": ('tensors:\n  x: "\\udfff"\n', "cannot read"),
    "a surrogate in an include": ('include: "\\ud800"\n', "is not a spec"),
    "a surrogate under ignore": (GOOD + 'ignore: ["\\ud800"]\n', ""),
    "an include of itself": ("include: own\n" + GOOD, 'include "own" is not a spec'),
    "an include in a circle": ("include: other\n" + GOOD, "its includes go in a circle"),
    "an include of another folder": ("include: ../secret\n" + GOOD, 'include "../secret" is not a spec'),
    "an include below": ("include: below/secret\n" + GOOD, 'include "below/secret" is not a spec'),
    "an include of the root": ("include: /etc/passwd\n" + GOOD, "is not a spec"),
    "an include with a NUL": ('include: "a\\0"\n' + GOOD, "is not a spec"),
    "an include of 5,000 letters": (f"include: {'a' * 5000}\n" + GOOD, "is not a spec"),
    "an include of nothing": ('include: ""\n' + GOOD, "is not a spec"),
    "an include of a pipe": ("include: pipe\n" + GOOD, "is not a spec"),
    "a long chain of includes": ("include: c1\n" + GOOD, "more than 50 specs include one another"),
}
RIGHT = {"100 parentheses", "a surrogate under ignore"}


@pytest.fixture
def others(tmp_path):
    """Specs that others include."""
    (tmp_path / "other.yaml").write_text("include: own\n" + GOOD)
    (tmp_path / "below").mkdir()
    for path in (tmp_path / "below" / "secret.yaml", tmp_path.parent / "secret.yaml"):
        path.write_text(GOOD)
    os.mkfifo(tmp_path / "pipe.yaml")
    for k in range(60):
        (tmp_path / f"c{k}.yaml").write_text(f"include: c{k + 1}\n" + GOOD)


@pytest.mark.parametrize("case", SPECS)
def test_broken_specs_are_told(case, ends, two, others, tmp_path):
    text, says = SPECS[case]
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    began = time.process_time()
    out = () if case in RIGHT else ("-o", "out.safetensors")
    ends(0 if case in RIGHT else 4, "align", *two, "--spec", "own.yaml", *out, says=says)
    assert time.process_time() - began < 5 and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"tensors:\n  \x80: .\n", "tensors:\n  é: .\n".encode("utf-16")], ids=repr
)
def test_a_spec_that_is_not_utf_8_is_told(content, ends, two, tmp_path):
    (tmp_path / "own.yaml").write_bytes(content)
    ends(4, "align", *two, "--spec", "own.yaml", says="own.yaml cannot be read")


def test_a_spec_without_an_end_is_told(ends, two):
    ends(4, "align", *two, "--spec", "/dev/zero", says="/dev/zero cannot be read: it is no regular file")


@pytest.mark.parametrize(
    "name, code, says",
    [
        ("", 2, "is empty"),
        ("mpl", 2, "Did you mean mlp?"),
        ("nowhere.yaml", 2, "no such file"),
        ("./nowhere", 2, "no such file"),
        (".", 2, "unknown spec"),
        ("./", 4, "cannot be read"),
        ("a\0.yaml", 4, "cannot be read"),
        ("a" * 5000 + ".yaml", 4, "characters …"),
        ("rebasin_cli.nets.mlp:from_shapes", 2, "unknown spec"),
        ("\ud800", 2, "unknown spec"),
        ("\ud800.yaml", 4, "cannot be read"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_spec_that_is_not_there_is_told(name, code, says, ends, two):
    ends(code, "align", *two, "--spec", name, says=says)


LINES = {
    "{a}{b}{c}{d}{e}{f}x": "x" * 3000,
    "{a}_{b}_{c}_{d}_{e}_{f}.x": "_x" * 1500,
    "{a}{b}{c}{d}{a}{b}{c}{d}x": "x" * 300 + "y" + "x" * 500,
    "{a}x{b}x{c}x{d}x{e}x{f}": "x" * 3000,
    "{a}.{b}.{c}": "x" * 100_000,
    "{a}{b}": "x" * 100_000,
}


@pytest.mark.parametrize("line", LINES)
def test_a_long_name_is_looked_for_in_bounded_time(line, ends, tmp_path):
    for name in "ab":
        write_safetensors(tmp_path / f"{name}.safetensors", {LINES[line] + "!": torch.zeros(3, 2)})
    (tmp_path / "own.yaml").write_text(f"tensors:\n  '{line}': h0 .\n")
    began = time.process_time()
    ends(4, "align", "a.safetensors", "b.safetensors", "--spec", "own.yaml", says="is in the checkpoint")
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "name",
    ["layers." + NINES + ".weight", "layer1." + NINES + ".conv1", "features." + NINES + ".weight"],
    ids=lambda name: name[:9],
)
def test_numbers_of_5000_digits_in_tensors_names_are_names(name, ends, tmp_path):
    for file in "ab":
        write_safetensors(tmp_path / f"{file}.safetensors", {name: torch.zeros(3, 2)})
    ends(4, "align", "a.safetensors", "b.safetensors", says="no built-in spec fits these 1 tensors")
    (tmp_path / "own.yaml").write_text(
        "tensors:\n  '{a}.{i}.{b}': h{i} .\n  '{a}.{i}.{b}.{c}?': h{i-1|.} .\n"
    )
    ends(
        0 if name.count(".") == 2 else 4,
        "align",
        "a.safetensors",
        "b.safetensors",
        "--spec",
        "own.yaml",
        "--dry-run",
    )
