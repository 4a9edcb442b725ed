"""The key of a CI server's cache: other where the answer may be other, the same where nothing is."""

from rebasin_cli.commands.recipes import statements

RECIPE = """
inputs: {first: a.safetensors, second: b.safetensors}
defaults: {seed: 0}
steps:
  - align: {models: [first, second]}
  - merge: {models: [first, align], method: none}
"""


def test_a_key_is_of_what_is_asked_and_of_the_files_that_are_read(recipe, tmp_path, monkeypatch):
    def key(text=RECIPE):
        made, problems = recipe(text)
        assert not problems
        return statements.of(made).split("-")

    asked, inputs = first = key()
    assert len(asked) == len(inputs) == statements.DIGITS and set(asked + inputs) <= set("0123456789abcdef")
    assert key() == first
    reseeded = key(RECIPE.replace("seed: 0", "seed: 1"))
    assert reseeded[0] != asked and reseeded[1] == inputs
    for place, name, value in (
        (statements, "versions", lambda: {"rebasin": "another"}),
        (statements.sys, "version_info", (3, 99)),
        (statements.platform, "machine", lambda: "another"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            other = key()
        assert other[0] != asked and other[1] == inputs, name
    (tmp_path / "align.safetensors").write_text("what a step made, and a cache brought back")
    assert key() == first
    (tmp_path / "b.safetensors").write_text("another model")
    assert key()[0] == asked and key()[1] != inputs
