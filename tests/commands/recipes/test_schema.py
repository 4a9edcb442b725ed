"""The schema, and recipes of command lines: of the real command line."""

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest
import yaml

from rebasin_cli.commands.recipes import reader, schema
from rebasin_cli.commands.recipes.from_line import recipe_of
from rebasin_cli.commands.recipes.recipe import parse
from rebasin_cli.commands.recipes.vocabulary import vocabulary
from rebasin_cli.errors import UsageError
from rebasin_cli.registry.options import READS, WRITES

WORDS = vocabulary()
SCHEMA = schema.schema(WORDS)
# Files that are read, by the names of their options; all others are written, or this list is not current.
READ = {"perm", "curve", "baseline", "reference", "copy_from", "endpoints", "recipe", "barrier", "checkpoint"}
LINES = [
    "rebasin merge a.pt b.pt -m ste-mm --data cifar10 --epochs 3 --weights 0.3,0.7 -o m.safetensors",
    "rebasin barrier a.pt b.pt --gate 'naive:test:chord<=1' --gate 'aligned:test:loss<=2' --report r --full",
    "rebasin repair m.pt --endpoints a.pt b.pt --repair bias",
    "rebasin train mlp --data digits -o a.safetensors --no-augment --width 16",
    "rebasin spec infer --net net.py:make --input 1x3x8x8 -o s.yaml",
    "rebasin align a.pt b.pt --weights-prior uniforms --memory 2GB --seed=4",
    "rebasin average 'x${HOME}.pt' merge.pt --copy-from merge",
    "rebasin merge a.pt '$${b}.pt' --out='-${x}.safetensors'",
    "rebasin repair repair.pt --endpoints='x${HOME}.pt' b.pt --repair bias",
    "rebasin train 'net.py:${x}' --data digits -oa.safetensors --lr 0.1",
    "rebasin spec check mlp spec-check.pt",
    "rebasin merge hf:org/name a.pt -mnone -qvoo.safetensors",
]


@pytest.fixture(scope="module")
def check():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA).is_valid


def test_every_option_that_names_a_file_says_whether_it_is_read_or_written():
    for command in WORDS.values():
        for option in command.options.values():
            if option.kind == "path" and option.key != "data_root":
                assert option.brings == (READS if option.key in READ else WRITES), (command.name, option.key)


@pytest.mark.parametrize("line", LINES)
def test_the_recipe_of_a_command_line_satisfies_the_schema_and_is_that_line_again(
    check, line, tmp_path, monkeypatch
):
    files = ["a.pt", "b.pt", "m.pt", "net.py", "x${HOME}.pt", "$${b}.pt", "hf:org/name", "spec-check.pt"]
    for name in [*files, "merge", "merge.pt", "repair.pt"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    monkeypatch.chdir(tmp_path)
    text = recipe_of(line, WORDS)
    assert check(yaml.safe_load(text))
    problems = reader.Problems()
    made = parse(reader.read(text, {"HOME": "elsewhere", "x": "y", "b": "c"}, problems), WORDS, problems)
    assert problems == []
    typed = [word.partition("=")[2] or word for word in shlex.split(line)]
    assert {path.name for path in made.steps[0].reads} <= {Path(word).name for word in typed} | {"net.py"}
    again = recipe_of("rebasin " + " ".join(f"'{word}'" for word in made.steps[0].line()), WORDS)
    told, once = yaml.safe_load(again)["steps"][0], yaml.safe_load(text)["steps"][0]
    command = next(iter(once))
    assert told[command] == once[command] | ({"out": told[command]["out"]} if "out" in told[command] else {})


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"steps": []},
        {"steps": [{"algin": {}}]},
        {"steps": [{"align": {}, "merge": {}}]},
        {"steps": [{"align": {"sed": 1}}]},
        {"steps": [{"align": {"seed": -1}}]},
        {"steps": [{"align": {"models": [3]}}]},
        {"steps": [{"repair": {"endpoints": ["a"]}}]},
        {"steps": [{"align": None}], "x": 1},
        {"steps": [{"align": None}], "rebasin": 2},
        {"steps": [{"align": None}], "defaults": {"sed": 1}},
        {"steps": [{"align": None}], "inputs": {"x": {"url": "https://x"}}},
        {"steps": [{"align": {"force": True}}]},
    ],
)
def test_the_schema_refuses(check, recipe):
    assert not check(recipe)


def test_the_schema_accepts_variables_and_mergekits_words(check):
    assert check({"steps": [{"align": {"seed": "${SEED}"}}]})
    models = [{"model": "a", "parameters": {"weight": 0.3}}, {"model": "b", "weight": 0.7}, "c"]
    assert check({"steps": [{"merge": {"models": models, "base_model": "a", "merge_method": "slerp"}}]})
    json.dumps(SCHEMA, allow_nan=False)


@pytest.mark.parametrize(
    "line, says",
    [
        ("rebasin merg a b", "a recipe has no command 'merg'"),
        ("rebasin demo", "a recipe has no command 'demo'"),
        ("", "a recipe has no command ''"),
        ("rebasin merge 'a", "this is no command line"),
        ("rebasin merge a b --metod wm", "has no --metod"),
        ("rebasin merge a b --method", "--method lacks its value"),
        ("rebasin merge a b -zm wm", "has no -z"),
        ("rebasin repair m --endpoints a", "--endpoints lacks its value"),
        ("rebasin merge a b --force=yes", "--force takes no value"),
        ("rebasin merge a b --seed x", "--seed 'x': expected a whole number"),
        ("rebasin merge a b --seed 1_0", "--seed '1_0': expected a whole number"),
        ("rebasin merge a b --ridge 0_5", "--ridge '0_5': expected a number"),
        ("rebasin eval a --limit １２", "--limit '１２': expected a whole number"),
        ("rebasin train mlp other --data digits -o a", "takes no 'other'"),
        ("rebasin eval a b", "`eval` takes 1 model, and here are 2"),
        ("rebasin eval --data digits", "`eval` takes 1 model, and here are 0"),
        ("rebasin merge a b > log.txt", "'>' is for a shell"),
        ("rebasin merge a b 2>&1", "'2>&1' is for a shell"),
        ("rebasin merge a b && rebasin eval c", "'&&' is for a shell"),
        ("rebasin merge a b --weights 0.5", "1 weights for 2 models"),
        ("rebasin average a b --weights 0.5,0.6", "add up to 1"),
        ("rebasin barrier a b --gate 'x <= 1'", "^--gate 'x <= 1': names no figure"),
        ("rebasin average a", "`average` takes 2 or more models, and here are 1"),
        ("rebasin plane a b c d", "`plane` takes 2 to 3 models, and here are 4"),
        ("rebasin spec check mlp", "`rebasin spec check` lacks CHECKPOINT"),
        ("rebasin spec infer -o s.yaml", "`rebasin spec infer` lacks --net"),
        ("rebasin train mlp -o a", "`rebasin train` lacks --data"),
        ("rebasin barrier a b --min-accuracy 0.9", "is a gate now: --gate 'test accuracy >= 0.9'"),
        ("rebasin barrier a b --max-accuracy-drop=1%", "--gate 'test accuracy drop <= 1%'"),
        ("rebasin merge a b --min-accuracy 0.9", "has no --min-accuracy"),
    ],
)
def test_what_is_no_command_line_is_told(line, says):
    with pytest.raises(UsageError, match=says):
        recipe_of(line, WORDS)


@pytest.mark.parametrize(
    "words, key, value",
    [
        ("-mnone", "method", "none"),
        ("-m none", "method", "none"),
        ("-qmnone", "method", "none"),
        ("-oo.safetensors", "out", "o.safetensors"),
        ("-o merged/", "out", "merged/"),
        ("--out=merged/", "out", "merged/"),
        ("-o=m.safetensors", "out", "=m.safetensors"),  # as the command line reads it
    ],
)
def test_short_flags_are_read_as_the_command_line_reads_them(words, key, value):
    step = yaml.safe_load(recipe_of(f"rebasin merge a b {words}", WORDS))["steps"][0]
    assert step["merge"] == {"models": ["a", "b"], key: value}


def test_what_a_recipe_leaves_to_the_run_is_told():
    told = []
    assert "force" not in recipe_of("rebasin merge a b -q --force --resume -m wm", WORDS, told.append)
    assert told == ["left out, since it is `rebasin run` that takes it: -q, --force, --resume"]
    recipe_of("rebasin merge a b", WORDS, told.append)
    assert len(told) == 1


@pytest.mark.parametrize(
    "command, key, value, right, says",
    [
        ("merge", "method", "wmm", "wm", "unknown method 'wmm'; did you mean wm"),
        ("merge", "effort", "hihg", "high", "unknown 'hihg'; did you mean high"),
        ("eval", "gate", "ecee <= 1", "ece <= 1", "unknown figure 'ecee'"),
        ("eval", "input", "1xx3", "1x3", "1xx3"),
        ("eval", "normalize", "unti", "dataset", "unti"),
        ("barrier", "attack", "8/x", "8/255", "8/x"),
    ],
)
def test_what_only_a_later_step_would_refuse_is_told_before_the_first_one(
    command, key, value, right, says, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / name).write_text("x")
    given = {"models": ["a", "b"][: WORDS[command].counts()[0]]}

    def problems(value):
        found = reader.Problems()
        text = yaml.safe_dump({"steps": [{command: given | {key: value}}]})
        parse(reader.read(text, {}, found), WORDS, found)
        return found

    assert problems(right) == []
    assert len(problems(value)) == 1 and f"{key}: " in problems(value)[0] and says in problems(value)[0]
    with pytest.raises(UsageError, match=f"--{key}.*{re.escape(says)}"):
        recipe_of(f"rebasin {command} {' '.join(given['models'])} --{key} '{value}'", WORDS)


def test_weights_of_adapters_have_any_sum(tmp_path, monkeypatch):
    """As on the command line; those of models add up to 1, and of what a step makes, its command tells."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        Path(name).mkdir()
        Path(name, "adapter_config.json").write_text("{}")
        Path(name, "adapter_model.safetensors").write_bytes(b"")
    text = recipe_of("rebasin average a b --weights 1,1 -o both/", WORDS)
    again = text + "- name: less\n  average: {models: [average, a], weights: [1, -1], out: less/}\n"
    problems = reader.Problems()
    made = parse(reader.read(again, {}, problems), WORDS, problems)
    assert [*problems] == [] and [len(step.arguments) for step in made.steps] == [2, 2]
    Path("m.safetensors").write_bytes(b"")
    for line in ("average a m.safetensors --weights 1,1", "merge a b --method wm --weights 1,1"):
        with pytest.raises(UsageError, match="add up to 2"):
            recipe_of(line, WORDS)
