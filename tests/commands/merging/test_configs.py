"""What `config.json` says where a merge changed rows."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands.merging.configs import fitted, labels_of
from rebasin_cli.commands.verbs.outputs import Output
from tests.cli.conftest import rebasin

NAMED = {"id2label": {"0": "cat", "1": "dog"}, "label2id": {"cat": 0, "dog": 1}}
OTHER = {"id2label": {"0": "x", "1": "y", "2": "z"}, "label2id": {"x": 0, "y": 1, "z": 2}}


def model(folder, config, **rows):
    folder.mkdir(parents=True)
    rng = torch.Generator().manual_seed(len(folder.name))
    tensors = {f"{name}.weight": torch.randn(size, 4, generator=rng) for name, size in rows.items()}
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return open_checkpoint(folder)


def after(tmp_path, configs, rows, written, heads, *, copied=True):
    """The copied configuration, and what is told."""
    named = zip(("a", "bb"), configs, rows, strict=True)
    models = [model(tmp_path / name, config, **sizes) for name, config, sizes in named]
    shapes = {f"{name}.weight": (size, 4) for name, size in written.items()}
    content = (tmp_path / "a" / "config.json").read_bytes()
    output = Output(tmp_path / "o.safetensors", copies={"config.json": content} if copied else {})
    told: list[str] = []
    done = fitted(output, models, shapes, told.append, heads=heads)
    return json.loads(done.copies["config.json"]) if copied else None, told


def test_a_longer_vocabulary_is_written_into_the_copy(tmp_path):
    rows = ({"embed": 6, "lm_head": 6}, {"embed": 8, "lm_head": 8})
    config, told = after(tmp_path, ({"vocab_size": 6, "n": 6},) * 2, rows, rows[1], "average")
    assert config == {"vocab_size": 8, "n": 6}
    assert told == [
        'config.json: "vocab_size" is 8, not 6: embed.weight, lm_head.weight had 6 rows and has 8'
    ]


def test_a_vocabulary_below_text_config_too(tmp_path):
    rows = ({"embed": 6}, {"embed": 8})
    config, _ = after(tmp_path, ({"text_config": {"vocab_size": 6}},) * 2, rows, {"embed": 8}, "keep-b")
    assert config == {"text_config": {"vocab_size": 8}}


@pytest.mark.parametrize(
    ("heads", "new", "labels"),
    [
        ("keep-b", 3, ["x", "y", "z"]),
        ("concat", 5, ["cat", "dog", "x", "y", "z"]),
        ("average", 3, None),  # is the third row z's, and the first cat's or x's?
        ("keep-b", 4, None),  # B's configuration does not fit B
    ],
)
def test_labels_are_those_of_the_rows(tmp_path, heads, new, labels):
    rows = ({"classifier": 2}, {"classifier": 3})
    given = (NAMED | {"num_labels": 2}, OTHER)
    config, told = after(tmp_path, given, rows, {"classifier": new}, heads)
    if labels is None:
        assert config == given[0] and f'write {new} labels into "id2label"' in told[0]
    else:
        assert labels_of(config) == labels and config["num_labels"] == new
        assert config["label2id"] == {label: k for k, label in enumerate(labels)}
        assert len(told) == 1


def test_labels_without_names_are_numbered_anew(tmp_path):
    kind = {"architectures": ["BertForSequenceClassification"]}
    rows = ({"classifier": 2}, {"classifier": 2})
    config, _ = after(tmp_path, (kind, kind), rows, {"classifier": 4}, "concat")
    assert labels_of(config) == ["LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"]


def test_a_label_of_both_is_two(tmp_path):
    rows = ({"classifier": 2}, {"classifier": 2})
    config, told = after(tmp_path, (NAMED, NAMED), rows, {"classifier": 4}, "concat")
    first = labels_of(NAMED)
    assert labels_of(config) == [*first, *(f"{label} (2)" for label in first)] and len(told) == 1
    assert config["label2id"] == {label: k for k, label in enumerate(labels_of(config))}


@pytest.mark.parametrize(
    "named",
    [{"id2label": {"0": 3, "1": 5}}, {"id2label": ["3", "5"]}, {"label2id": {"5": 1, "3": 0}}],
)
def test_labels_in_other_forms(named):
    assert labels_of(named) == ["3", "5"]


@pytest.mark.parametrize(
    "config", [{"vocab_size": 2, **NAMED}, {"vocab_size": 100}, {}, {"vocab_size": True}]
)
def test_what_may_be_either_or_neither_is_told(tmp_path, config):
    rows = ({"w": 2}, {"w": 3})
    found, told = after(tmp_path, (config, config), rows, {"w": 3}, "keep-b")
    assert found == config and told == [
        "config.json: change what stands there for 2: w.weight had 2 rows and has 3"
    ]


def test_what_is_not_copied_is_told_too(tmp_path):
    rows = ({"embed": 6}, {"embed": 8})
    _, told = after(tmp_path, ({"vocab_size": 6},) * 2, rows, {"embed": 8}, "keep-b", copied=False)
    assert len(told) == 1 and 'in a copy of it, "vocab_size" is 8, not 6' in told[0]


def test_an_embedding_that_is_tied_no_more_is_told_as_such(tmp_path):
    rows = ({"embed": 6, "lm_head": 6},) * 2
    config, told = after(tmp_path, ({"tie_word_embeddings": True},) * 2, rows, rows[0], None)
    assert config == {"tie_word_embeddings": False} and "lm_head.weight and embed.weight differ" in told[0]


def test_a_head_that_is_left_out_is_tied_where_the_other_model_ties_it_else_told(tmp_path):
    rows = ({"embed": 6, "lm_head": 6}, {"embed": 6})
    untied, tied = ({"tie_word_embeddings": value} for value in (False, True))
    config, told = after(tmp_path / "a", (untied, tied), rows, rows[1], None)
    assert config == tied and "lm_head.weight is not written, and embed.weight is" in told[0]
    config, told = after(tmp_path / "b", (untied, untied), rows, rows[1], None)
    assert config == untied and "lm_head.weight is not written: it would begin at random" in told[0]
    assert after(tmp_path / "c", (untied, tied), rows, rows[0], None) == (untied, [])


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", "[" * 5000, '{"vocab_size": "6"}', '{"id2label": [], "num_labels": 1e9}']
)
def test_odd_configurations_end_nothing(tmp_path, text):
    one = model(tmp_path / "a", {}, embed=6)
    (tmp_path / "a" / "config.json").write_text(text)
    output = Output(tmp_path / "o.safetensors", copies={"config.json": text.encode()})
    done = fitted(output, [one, one], {"embed.weight": (8, 4)}, lambda line: None, heads="concat")
    assert done.copies == output.copies


def test_a_merge_in_one_order_unties_the_configuration_where_one_model_has_two(tmp_path):
    (tmp_path / "net.yaml").write_text('tensors:\n  embed.weight: ". h"\n  lm_head.weight: ". h"\n')
    for name, rows in (("a", {"embed": 6, "lm_head": 6}), ("bb", {"embed": 6, "lm_head": 6})):
        model(tmp_path / name, {"tie_word_embeddings": name == "a"}, **rows)
    file = tmp_path / "a" / "model.safetensors"
    tied = load_file(file)
    write_safetensors(file, tied | {"lm_head.weight": tied["embed.weight"].clone()}, force=True)
    found = rebasin(
        *("merge", tmp_path / "a", tmp_path / "bb", "--spec", tmp_path / "net.yaml", "--method", "wm"),
        *("--copy-files", "-o", f"{tmp_path / 'o'}/"),
    )
    assert found.code == 0 and "are one tensor in" in found.err, found.err
    assert json.loads((tmp_path / "o" / "config.json").read_text()) == {"tie_word_embeddings": False}
