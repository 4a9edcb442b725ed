"""Rows that stand for other classes or words in another model are not averaged by number."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import rebasin
from tests.commands.merging.test_configs import model

CLASSES = {"id2label": {"0": "neg", "1": "pos"}}
TURNED = {"id2label": {"0": "POS", "1": "NEG"}}
WORDS = ["[PAD]", "the", "cat"]
FILES = {
    "vocab.txt": lambda words: "\n".join(words),
    "vocab.json": lambda words: json.dumps({word: k for k, word in enumerate(words)}),
    "tokenizer.json": lambda words: json.dumps({"model": {"vocab": [[word, -1.0] for word in words]}}),
}


def two(tmp_path, configs, **rows):
    for name, config in zip(("a", "bb"), configs, strict=True):
        model(tmp_path / name, config, **rows)
    return str(tmp_path / "a"), str(tmp_path / "bb")


def average(tmp_path, a, b, *options):
    done = rebasin("average", a, b, "-o", tmp_path / "o.safetensors", *options)
    assert (tmp_path / "o.safetensors").exists() == (done.code == 0)
    return done


@pytest.mark.parametrize(
    ("second", "options", "code"),
    [
        (TURNED, (), 4),
        (TURNED, ("--ignore", "classifier.*"), 0),
        (TURNED, ("--skip-checks",), 0),
        (CLASSES, (), 0),
        ({"id2label": {"0": "LABEL_1", "1": "LABEL_0"}}, (), 0),
    ],
)
def test_classes_in_another_order(tmp_path, second, options, code):
    a, b = two(tmp_path, (CLASSES, second), body=3, classifier=2)
    done = average(tmp_path, a, b, *options)
    assert done.code == code
    if code:
        assert "class 'neg'  is 0 in" in done.err and "--ignore classifier.weight" in done.err


@pytest.mark.parametrize(
    ("second", "told"),
    [(("cat", "dog"), "neg, pos in {a}, cat, dog in"), (("neg", "so"), "pos in {a}, so in")],
)
def test_other_classes_are_told(tmp_path, second, told):
    a, b = two(tmp_path, (CLASSES, {"id2label": dict(enumerate(second))}), classifier=2)
    done = average(tmp_path, a, b)
    assert done.code == 0 and f"other classes: {told.format(a=a)} {b}: rows" in done.err


def test_a_class_between_others_moves_those_after_it(tmp_path):
    model(tmp_path / "a", CLASSES, classifier=2)
    model(tmp_path / "bb", {"id2label": {"0": "neg", "1": "so", "2": "pos"}}, classifier=3)
    paths = str(tmp_path / "a"), str(tmp_path / "bb")
    assert average(tmp_path, *paths, "--heads", "average").code == 4
    assert average(tmp_path, *paths, "--heads", "concat").code == 0


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("words", "code"), [(WORDS[::-1], 4), (WORDS, 0), ([*WORDS, "dog"], 0)])
def test_words_in_another_order(tmp_path, file, words, code):
    a, b = two(tmp_path, ({}, {}), embed=4)
    for folder, its in ((a, WORDS), (b, words)):
        (tmp_path / folder / file).write_text(FILES[file](its))
    done = average(tmp_path, a, b)
    assert done.code == code and ("word '[PAD]'  is 0 in" in done.err) == bool(code)


def test_a_last_line_that_ends_is_no_word(tmp_path):
    a, b = two(tmp_path, ({}, {}), embed=4)
    for folder, its in ((a, WORDS), (b, [*WORDS, "dog"])):
        (tmp_path / folder / "vocab.txt").write_text("\n".join([*its, ""]))
    assert average(tmp_path, a, b).code == 0


@pytest.mark.parametrize(
    ("first", "options", "code"),
    [
        ({"word_embeddings": 4, "position_embeddings": 2}, ("--ignore", "word_embeddings*"), 0),
        ({"word_embeddings": 4, "position_embeddings": 2}, ("--ignore", "position*"), 4),
        ({"embed": 4, "lm_head": 4}, ("--ignore", "embed*"), 4),
        ({"embed": 3}, ("--heads", "keep-a"), 0),
        ({"embed": 3}, ("--heads", "average"), 4),
    ],
)
def test_words_count_where_their_rows_are_averaged(tmp_path, first, options, code):
    model(tmp_path / "a", {}, body=2, **first)
    model(tmp_path / "bb", {}, body=2, **{name: 4 if name == "embed" else n for name, n in first.items()})
    for folder, its in (("a", WORDS), ("bb", WORDS[::-1])):
        (tmp_path / folder / "vocab.txt").write_text("\n".join(its))
    assert average(tmp_path, str(tmp_path / "a"), str(tmp_path / "bb"), *options).code == code


@pytest.mark.parametrize("what", ["class", "word"])
def test_a_first_model_that_says_nothing_hides_no_others(tmp_path, what):
    paths = []
    for name, config, words in (("a", {}, None), ("bb", CLASSES, WORDS), ("ccc", TURNED, WORDS[::-1])):
        model(tmp_path / name, config if what == "class" else {}, embed=4, classifier=2)
        if words and what == "word":
            (tmp_path / name / "vocab.txt").write_text("\n".join(words))
        paths.append(tmp_path / name)
    done = rebasin("average", *paths, "-o", tmp_path / "o.safetensors")
    assert done.code == 4 and f"in {paths[1]}" in done.err and not (tmp_path / "o.safetensors").exists()


@pytest.mark.parametrize(
    ("content", "file"),
    [
        ('{"model": {"vocab": [5, ["the"], []]}, "added_tokens": 5}', "tokenizer.json"),
        ("[[]]", "tokenizer.json"),
        ('{"eng": {"a": 1}}', "vocab.json"),
        ("\r\n".join(WORDS), "vocab.txt"),
    ],
)
def test_what_numbers_no_words_refuses_nothing(tmp_path, content, file):
    a, b = two(tmp_path, ({}, {}), embed=4)
    (tmp_path / a / "vocab.txt").write_text(FILES["vocab.txt"](WORDS))
    (tmp_path / b / file).write_text(content, newline="")
    assert average(tmp_path, a, b).code == 0


def test_other_numbers_of_heads(tmp_path):
    a, b = two(tmp_path, ({"num_attention_heads": 2}, {"num_attention_heads": 4}), body=4)
    done = average(tmp_path, a, b)
    assert done.code == 4 and f"num_attention_heads  is 2 in {a}, 4 in {b}" in done.err
    assert average(tmp_path, a, b, "--config", f"{a}/config.json").code == 0


def test_positions_are_no_tied_words(tmp_path):
    config = {"tie_word_embeddings": True, "vocab_size": 6}
    a, b = two(tmp_path, (config, config), word_embeddings=6, position_embeddings=4, output=4)
    done = rebasin("average", a, b, "--copy-files", "-o", f"{tmp_path / 'o'}/")
    assert done.code == 0 and "tie_word" not in done.err
    assert json.loads((tmp_path / "o" / "config.json").read_text())["tie_word_embeddings"] is True
