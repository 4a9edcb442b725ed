"""The weights that commands write: their names."""

from pathlib import Path

import pytest

from rebasin_cli.commands.verbs.outputs import default_path


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("deep/b.pt", "b_aligned.safetensors"),
        ("b.safetensors", "b_aligned.safetensors"),
        ("b.safetensors.index.json", "b_aligned.safetensors"),
        ("llama-3.1/", "llama-3.1_aligned.safetensors"),
        ("v1.0", "v1.0_aligned.safetensors"),
    ],
)
def test_an_output_is_named_after_its_model(model, expected):
    assert default_path(Path(model), "aligned") == Path(expected)


def test_a_folder_without_a_name_has_one_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    assert default_path(Path("."), "aligned") == Path("model_aligned.safetensors")
