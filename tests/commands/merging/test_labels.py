"""Rows that stand for other classes or words in another model are not averaged by number."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import rebasin
from tests.commands.merging.test_configs import model

CLASSES = {"id2label": {"0": "neg", "1": "pos"}}
TURNED = {"id2label": {"0": "POS", "1": "NEG"}}
WORDS = ["[PAD]", "the", "cat"]


def pieces(words):
    """As SentencePiece writes them: in field 1 a piece each, its word, a score and a kind; last, options."""
    each = [
        b"\x0a" + bytes([len(word)]) + word + b"\x15\0\0\x80\xbf\x18\1" for word in map(str.encode, words)
    ]
    return b"".join(b"\x0a" + bytes([len(piece)]) + piece for piece in each) + b"\x12\3abc"


FILES = {
    "vocab.txt": lambda words: "\n".join(words),
    "vocab.json": lambda words: json.dumps({word: k for k, word in enumerate(words)}),
    "tokenizer.json": lambda words: json.dumps({"model": {"vocab": [[word, -1.0] for word in words]}}),
    "tokenizer.model": pieces,
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
        content = FILES[file](its)
        (tmp_path / folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    done = average(tmp_path, a, b)
    assert done.code == code and ("word '[PAD]'  is 0 in" in done.err) == bool(code)


def test_words_without_an_embedding(tmp_path):
    config = {"vocab_size": 3, "architectures": ["Wav2Vec2ForCTC"]}
    a, b = two(tmp_path, (config, config), body=4, lm_head=3)
    for folder, its in ((a, WORDS), (b, WORDS[::-1])):
        (tmp_path / folder / "vocab.json").write_text(FILES["vocab.json"](its))
    assert average(tmp_path, a, b).code == 4
    assert average(tmp_path, a, b, "--ignore", "lm_head*").code == 0


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


@pytest.mark.parametrize("end", [b"\x0a\x7fab", b"\xff", b"\x0b\x01", b"\x0a\x02\x0a\x09"])
def test_a_broken_model_of_pieces_numbers_no_words(tmp_path, end):
    a, b = two(tmp_path, ({}, {}), embed=4)
    (tmp_path / a / "tokenizer.model").write_bytes(pieces(WORDS))
    (tmp_path / b / "tokenizer.model").write_bytes(pieces(WORDS[::-1]) + end)
    assert average(tmp_path, a, b).code == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"hidden_act": "gelu"}, {"hidden_act": "relu"}),
        ({"rms_norm_eps": 1e-5}, {"rms_norm_eps": 1e-6}),
        ({"rope_scaling": {"factor": 2.0}}, {"rope_scaling": {"factor": 8.0}}),
        ({"rope_scaling": None}, {"rope_scaling": {"factor": 8.0}}),
        ({"sliding_window": None}, {"sliding_window": 4096}),
        tuple({"use_sliding_window": True, "sliding_window": size} for size in (None, 4096)),
        ({"use_sliding_window": True}, {"use_sliding_window": False}),
        ({"conv_kernel": 4}, {"conv_kernel": 2}),
        ({"do_layer_norm_before": True}, {"do_layer_norm_before": False}),
        ({"text_config": {"hidden_act": "gelu"}}, {"text_config": {"hidden_act": "quick_gelu"}}),
        ({"norm_num_groups": 8}, {"norm_num_groups": 4}),
        ({"num_hidden_layers": 12}, {"num_hidden_layers": 6}),  # of ALBERT all layers are one
        ({"rope_scaling": {"type": "yarn"}}, {"rope_scaling": {"type": "linear"}}),
        ({"rope_scaling": {"beta_fast": 32.0}}, {"rope_scaling": {"beta_fast": 16.0}}),
        tuple({"rope_scaling": {"original_max_position_embeddings": size}} for size in (4096, 8192)),
        ({"pretrained_window_sizes": [0, 0]}, {"pretrained_window_sizes": [12, 12]}),
        ({"feed_forward_proj": "relu"}, {"feed_forward_proj": "gelu"}),
        ({"attention_type": "block_sparse"}, {"attention_type": "original_full"}),
        ({"attention_layers": ["global", "local"]}, {"attention_layers": ["global", "global"]}),
        ({"downsample_in_first_stage": True}, {"downsample_in_first_stage": False}),
        ({"vision_feature_layer": -1}, {"vision_feature_layer": -2}),
        ({"readout_type": "add"}, {"readout_type": "ignore"}),
        ({"num_experts_per_token": 2}, {"num_experts_per_token": 4}),
        ({"swiglu_limit": 7.0}, {"swiglu_limit": None}),
        ({"leaky_relu_slope": 0.1}, {"leaky_relu_slope": 0.2}),
        ({"tf_padding": True}, {"tf_padding": False}),
        ({"model_args": {"aa_layer": "avg"}}, {"model_args": {"aa_layer": "blur"}}),
    ],
)
def test_another_function_of_equal_shapes_is_refused(tmp_path, first, second):
    a, b = two(tmp_path, (first, second), body=4)
    done = average(tmp_path, a, b)
    assert done.code == 4 and f"in {a}" in done.err and "name it with --config" in done.err
    assert average(tmp_path, a, b, "--config", f"{a}/config.json").code == 0


def test_what_may_be_another_function_is_told_and_what_is_none_is_not(tmp_path):
    same = {"attention_dropout": 0.1, "torch_dtype": "float32", "_name_or_path": "x", "use_cache": True}
    same |= {"use_mamba_kernels": True, "fused_add_norm": True, "use_sliding_window": False, "alibi": False}
    same |= {"sliding_window": 8, "max_window_layers": 2, "alibi_bias_max": 8, "use_fast_path": True}
    other = {"use_mamba_kernels": False, "fused_add_norm": False, "use_sliding_window": False, "alibi": False}
    other |= {"sliding_window": None, "max_window_layers": 1, "alibi_bias_max": 4, "use_fast_path": False}
    same |= {"chunk_size_feed_forward": 0, "use_flash_attention": True, "max_position_embeddings": 8}
    other |= {"chunk_size_feed_forward": 8, "use_flash_attention": False, "max_position_embeddings": 9}
    other |= {"attention_dropout": 0.0, "torch_dtype": "float16", "_name_or_path": "y", "use_cache": False}
    a, b = two(tmp_path, (same | {"use_bias": True}, other | {"use_bias": False}), body=4)
    done = average(tmp_path, a, b)
    assert done.code == 0 and f"config.json: use_bias is True in {a}, False in {b}: taken as one" in done.err
    assert not any(word in done.err for word in ("dropout", "dtype", "chunk", "flash", "max_position"))
    assert not any(word in done.err for word in ("kernels", "fused", "window", "alibi", "fast"))


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"label2id": {"neg": 0, "pos": 1}}, {"label2id": {"neg": 1, "pos": 0}}),
        (CLASSES, {"label2id": {"neg": "1", "pos": "0"}}),
        ({"id2label": ["neg", "pos"]}, {"id2label": ["pos", "neg"]}),
        ({"id2label": {"0": 3, "1": 7}}, {"id2label": {"0": 7, "1": 3}}),
        ({"id2label": ["label_a", "label_b"]}, {"id2label": ["label_b", "label_a"]}),
        ({"label_names": ["neg", "pos"]}, {"pretrained_cfg": {"label_names": ["pos", "neg"]}}),
    ],
)
def test_classes_however_they_are_written(tmp_path, first, second):
    a, b = two(tmp_path, (first, second), body=3, classifier=2)
    assert average(tmp_path, a, b).code == 4
    again = two(tmp_path / "again", (first, first), body=3, classifier=2)
    assert average(tmp_path, *again).code == 0


def test_the_order_of_keys_is_not_that_of_classes(tmp_path):
    a, b = two(tmp_path, (CLASSES, {"id2label": {"1": "pos", "0": "neg"}}), classifier=2)
    done = average(tmp_path, a, b)
    assert done.code == 0 and "other classes" not in done.err


def test_a_head_may_have_a_row_for_no_class(tmp_path):
    a, b = two(tmp_path, (CLASSES, TURNED), body=4, class_labels_classifier=3)
    assert average(tmp_path, a, b).code == 4


def test_a_layer_with_as_many_units_as_there_are_classes_is_no_head(tmp_path):
    """It was refused, and the advice was to keep the layer of the first."""
    a, b = two(tmp_path, (CLASSES, TURNED), body=2, classifier=2)
    assert "--ignore body" not in average(tmp_path, a, b).err
    assert average(tmp_path, a, b, "--ignore", "classifier.*").code == 0


@pytest.mark.parametrize(
    ("config", "rows", "options", "code"),
    [
        ({"vocab_size": 4}, {"word_embeddings": 4, "position_embeddings": 9}, (), 4),
        ({"vocab_size": 4}, {"word_embeddings": 4, "position_embeddings": 9}, ("--ignore", "word*"), 0),
        ({}, {"word_embeddings": 4, "position_embeddings": 9}, ("--ignore", "word*"), 0),
        ({"text_config": {"vocab_size": 4}}, {"body": 3, "lm_head": 4}, (), 4),
        ({"vocab_size": 4}, {"body": 3, "encoder": 4}, (), 4),
        ({"vocab_size": 4}, {"body": 4, "lm_head": 4}, ("--ignore", "lm_head*"), 0),
    ],
)
def test_which_rows_are_of_words(tmp_path, config, rows, options, code):
    a, b = two(tmp_path, (config, config), **rows)
    for folder, words in ((a, WORDS), (b, WORDS[::-1])):
        (tmp_path / folder / "vocab.txt").write_text("\n".join(words))
    assert average(tmp_path, a, b, *options).code == code


def test_words_that_were_added_are_compared(tmp_path):
    a, b = two(tmp_path, ({}, {}), embed=5)
    for folder, added in ((a, ("<x>", "<y>")), (b, ("<y>", "<x>"))):
        (tmp_path / folder / "vocab.txt").write_text("\n".join(WORDS))
        (tmp_path / folder / "added_tokens.json").write_text(
            json.dumps(dict(zip(added, (3, 4), strict=True)))
        )
    assert average(tmp_path, a, b).code == 4


def test_a_pipelines_tokenizer_lies_beside_its_encoder(tmp_path):
    for name, words in (("a", WORDS), ("bb", WORDS[::-1])):
        model(tmp_path / name / "text_encoder_2", {}, embed=4)
        (tmp_path / name / "tokenizer_2").mkdir()
        (tmp_path / name / "tokenizer_2" / "vocab.txt").write_text("\n".join(words))
    folders = [str(tmp_path / name / "text_encoder_2") for name in ("a", "bb")]
    assert average(tmp_path, *folders).code == 4
