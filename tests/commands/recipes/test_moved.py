"""Options that another command has now: recipes and lines that have them are told what to write."""

import shlex

import pytest

from rebasin_cli.commands.recipes import vocabulary


def test_a_key_that_went_is_told_with_its_command(recipe):
    _, problems = recipe("steps:\n  - merge: {models: [a.safetensors, b.safetensors], ignore: '*.bias'}")
    assert len(problems) == 1 and "'ignore' is of `average` now" in str(problems[0])
    assert vocabulary.moved_key("align", "ignore") is None
    assert vocabulary.moved_key("merge", "weights") is None


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("merge a b --method none --ignore '*.x' -o c", "average a b --ignore '*.x' -o c"),
        ("merge -mnone a b --extra=keep", "average a b --extra=keep"),
        ("merge a b --method=none --copy-from none", "average a b --copy-from none"),
        ("merge a none -m none --ignore x 'b c'", "average a none --ignore x 'b c'"),
        ("merge a b --extra", "average a b --extra"),
        ("merge a ignore --weights 1,0", None),
        ("merge", None),
        ("", None),
        ("average a b --ignore x", None),
    ],
)
def test_a_line_is_told_as_the_line_to_type(line, typed):
    told = vocabulary.moved_line(shlex.split(line))
    assert told is None if typed is None else told.endswith(f"Type: rebasin {typed}")


def test_a_flag_is_told_once_however_often_it_was_typed():
    told = vocabulary.moved_line(shlex.split("merge a b --ignore x --extra=keep --ignore=y"))
    assert told.startswith("--ignore and --extra: of rebasin average now.")
