"""Text as samples: windows, vocabularies, and what is refused."""

import pytest
import torch

from rebasin_cli.datasets import open_data
from rebasin_cli.errors import DataError, UsageError

SENTENCE = "the quick brown fox jumps over the lazy dog, and so on. "


def written(path, text=SENTENCE * 50, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return f"text:{path}"


def read(data):
    """The text of a split, and what comes next at each of its characters."""
    return tuple(
        "".join(data.vocabulary[k] for k in part.flatten().tolist())
        for part in (data.source.inputs, data.source.targets)
    )


def test_every_character_of_a_split_is_predicted_once_from_those_of_its_window(tmp_path):
    text = SENTENCE * 50
    reference = written(tmp_path / "a.txt")
    cut = len(text) - len(text) // 10
    for split, part in (("train", text[:cut]), ("test", text[cut:])):
        data = open_data(reference, split)
        inputs, targets = read(data)
        assert data.samples == (len(part) - 1) // 64 and data.source.inputs.shape == (data.samples, 64)
        assert part.startswith(inputs) and part[1:].startswith(targets)
        assert len(targets) == len(inputs) > len(part) - 66


def test_batches_are_numbers_of_characters_and_nothing_normalises_them(tmp_path):
    data = open_data(written(tmp_path / "a.txt"), "test", batch_size=2)
    inputs, targets = next(iter(data))
    assert inputs.dtype == targets.dtype == torch.int64 and inputs.shape == targets.shape == (2, 64)
    assert data.normalization is None and data.classes == len(set(SENTENCE))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert torch.equal(data.example(2), inputs)
    with pytest.raises(UsageError, match="is text, which nothing normalises"):
        open_data(written(tmp_path / "b.txt"), "test", normalize="unit")


def test_a_subset_keeps_windows_whole_and_the_vocabulary(tmp_path):
    data = open_data(written(tmp_path / "a.txt"), "train")
    some = data.subset(3, 1).mixed(0).with_batch_size(2)
    assert some.samples == 3 and some.vocabulary == data.vocabulary
    every = {tuple(row) for row in torch.cat([data.source.inputs, data.source.targets], 1).tolist()}
    found = {tuple(row) for pair in some for row in torch.cat(pair, 1).tolist()}
    assert len(found) == 3 and found <= every


def test_windows_have_the_length_that_is_asked_for(tmp_path):
    reference = written(tmp_path / "a.txt")
    assert open_data(f"{reference}?window=16", "train").source.inputs.shape[1] == 16


def test_the_vocabulary_is_that_of_both_splits(tmp_path):
    text = "ab" * 900 + "é€😀" * 70
    train, test = (open_data(written(tmp_path / "a.txt", text), split) for split in ("train", "test"))
    assert train.vocabulary == test.vocabulary == "abé€😀" and train.classes == test.classes == 5
    assert set(read(test)[0]) == set("é€😀")


def test_a_byte_order_mark_is_no_character(tmp_path):
    data = open_data(written(tmp_path / "a.txt", encoding="utf-8-sig"), "test")
    assert data.vocabulary == "".join(sorted(set(SENTENCE)))


def test_a_models_vocabulary_numbers_another_text(tmp_path):
    own = open_data(written(tmp_path / "a.txt"), "test")
    other = open_data(written(tmp_path / "a.txt"), "test", vocabulary="Zz" + own.vocabulary[::-1])
    assert read(other) == read(own) and other.classes == own.classes + 2
    assert not torch.equal(other.source.inputs, own.source.inputs)


def test_characters_that_a_model_does_not_know_are_named(tmp_path):
    with pytest.raises(
        DataError, match="has 2 characters that the model's vocabulary of 27 has not"
    ) as refused:
        open_data(written(tmp_path / "a.txt"), "test", vocabulary="abcdefghijklmnopqrstuvwxyz ")
    assert refused.value.problems == ("','  U+002C", "'.'  U+002E")


def test_characters_of_the_other_split_alone_need_not_be_known(tmp_path):
    text = "ab" * 900 + "#" + "ab" * 100
    assert open_data(written(tmp_path / "a.txt", text), "train", vocabulary="ab").classes == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"abc\xff" * 500, "is not UTF-8: byte 3 is 0xff"),
        (b"ab" * 300, "is too short: 600 characters"),
        (b"", "is too short: 0 characters"),
        (b"a" * 5000, "has one character only, 'a'"),
    ],
)
def test_files_that_hold_no_text_to_learn_are_refused(tmp_path, content, says):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError) as refused:
        open_data(f"text:{tmp_path / 'a.txt'}", "train")
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("reference", "error", "says"),
    [
        ("text:nowhere.txt", DataError, "nowhere.txt: no such file"),
        ("text:.", DataError, "no such file"),
        ("text:a.txt?window=0", UsageError, "expected 1 to 65536 characters"),
        ("text:a.txt?size=3", UsageError, "unknown option 'size=3' of text"),
        ("text", UsageError, "text needs to know where"),
    ],
)
def test_references_that_name_no_text_are_refused(reference, error, says):
    with pytest.raises(error) as refused:
        open_data(reference, "train")
    assert says in str(refused.value)


def test_alice_is_inside_the_package():
    train, test = (open_data("alice", split) for split in ("train", "test"))
    assert (train.samples, test.samples, train.classes) == (2084, 231, 70)
    assert "Down the Rabbit-Hole" in read(train)[0][:80] and read(test)[0].endswith("the happy summer da")
    assert train.vocabulary == test.vocabulary
