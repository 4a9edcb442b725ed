"""From values to steps: names, files, outputs, options, and every problem with its line."""

import json
from pathlib import Path

import pytest

TWO = "[a.safetensors, b.safetensors]"


def test_steps_name_inputs_and_one_another(recipe):
    made, problems = recipe(
        f"""
inputs: {{first: a.safetensors, second: {{path: b.safetensors}}}}
defaults: {{seed: 3}}
output_dir: out
steps:
  - align: {{models: [first, second], method: wm}}
  - name: mean
    merge: {{models: [first, align], out: m.safetensors}}
  - barrier: {{models: [first, mean], report: r, gate: ["x", "y"]}}
  - barrier: {{models: {TWO}, report: s}}
"""
    )
    assert [" ".join(step.line()) for step in made.steps][:2] == [
        "align a.safetensors b.safetensors --method wm --seed 3 --out out/align.safetensors",
        "merge a.safetensors out/align.safetensors --out out/m.safetensors",
    ]
    assert [step.name for step in made.steps] == ["align", "mean", "barrier", "barrier-2"]
    assert [step.needs for step in made.steps] == [(), ("align",), ("mean",), ()]
    assert made.steps[0].writes == {
        "": Path("out/align.safetensors"),
        "perm": Path("out/align.perm.safetensors"),
    }
    assert made.steps[2].writes["report"] == Path("out/r/report.json")
    assert [problem for problem in problems if "gate" not in problem] == []


def test_a_glob_is_in_the_order_of_its_numbers(lines):
    assert lines("steps:\n  - merge: {models: step*.safetensors}") == [
        "merge step2.safetensors step10.safetensors --out merge.safetensors"
    ]


def test_the_file_that_an_earlier_step_writes_needs_that_step(recipe):
    made, problems = recipe(
        f"steps:\n  - merge: {{models: {TWO}, out: m.safetensors}}\n"
        "  - align: {models: [a.safetensors, ./m.safetensors]}"
    )
    assert problems == [] and made.steps[1].needs == ("merge",)


def test_lists_of_numbers_are_one_value(lines):
    text = f"steps:\n  - merge: {{models: {TWO}, weights: [0.25, 0.75]}}"
    assert lines(text) == ["merge a.safetensors b.safetensors --weights 0.25,0.75 --out merge.safetensors"]


def test_values_that_begin_with_a_dash_are_no_options(lines):
    text = f'steps:\n  - merge: {{models: {TWO}, weights: "-1,2", between: {TWO}}}'
    assert lines(text) == [
        "merge a.safetensors b.safetensors --weights=-1,2 --between a.safetensors b.safetensors "
        "--out merge.safetensors"
    ]


def test_what_a_step_depends_on_is_read_too(recipe, tmp_path):
    (tmp_path / "net.py").write_text("")
    (tmp_path / "pictures").mkdir()
    text = "steps:\n  - align: {models: %s, data: %s}\n    depends: [net.py]"
    made, _ = recipe(text % (TWO, "net.py:load"))
    assert [str(path) for path in made.steps[0].reads] == [
        "a.safetensors",
        "b.safetensors",
        "net.py",
    ]
    made, _ = recipe(text % (TWO, "imagefolder:pictures"))
    assert made.steps[0].listed == (Path("pictures"),)


def test_what_a_file_includes_or_imports_is_read_too(recipe, tmp_path, monkeypatch):
    """And files of data sets with names: by their names, sizes and times."""
    code = {
        "net.py": "import helper, os, numpy\nfrom own import part\n",
        "helper.py": "from own.deep import thing  # and a circle: \nimport net\n",
        "own/__init__.py": "",
        "own/part.py": "from . import other\nfrom ..outside import x\n",
        "own/other.py": "this is no Python",
        "own/deep.py": "",
        "own/unseen.py": "",
        "own.yaml": "include: base\ntensors: {}\n",
        "base.yaml": "{include: 'deep', tensors: {}}\n",
        "deep.yaml": "include: own\n",
        "data/mnist/train-images-idx3-ubyte": "",
        "data/other/large": "",
    }
    for name, content in code.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("REBASIN_DATA", "data")
    text = "steps:\n  - align: {models: %s, data: %s}\n    depends: [own.yaml]"
    for reference in ("net.py:load", "net:load"):
        made, problems = recipe(text % (TWO, reference))
        assert problems == []
        read = {str(path) for path in made.steps[0].reads}
        assert read == {*TWO.strip("[]").split(", ")} | code.keys() - {"own/unseen.py", *DATA}
        assert made.steps[0].listed == (Path(DATA[0]),)


DATA = ("data/mnist/train-images-idx3-ubyte", "data/other/large")


def test_where_data_sets_lie_is_known_to_recipes():
    from rebasin_cli.datasets.downloads import LAID_OUT
    from rebasin_cli.datasets.sets import cifar10, cifar100, fashion_mnist

    both = (cifar10.LAYOUT, cifar100.LAYOUT)
    folders = [folder for layout in both for folder in (layout.binary_folder, layout.pickle_folder)]
    for folder in [*folders, *fashion_mnist.FOLDERS]:
        assert any(Path(f"{folder}/x").match(glob) for glob in LAID_OUT), folder
    for name in ("t10k-images-idx3-ubyte.gz", *(layout.archive for layout in both)):
        assert any(Path(name).match(glob) for glob in LAID_OUT), name


@pytest.mark.parametrize(
    "text, says",
    [
        ("x: 1", "unknown key; known: "),
        ("rebasin: 7", "reads notation 1, not 7"),
        ("inputs: [a]", "inputs: expected keys with values"),
        ("inputs: {x: nowhere.pt}", "line 1: inputs.x: nowhere.pt: no such file"),
        ("inputs: {x: a.safetensor}", "did you mean a.safetensors"),
        ("inputs: {x: 'none*.pt'}", "no file is called like none*.pt"),
        ("inputs: {'x y': a.safetensors}", "a name is letters, digits"),
        ("inputs: {x: 3}", "expected a path, a glob"),
        ("inputs: {x: {path: a.safetensors, sha256: 12}}", "64 digits"),
        ("inputs: {x: {path: a.safetensors, sha256: '" + "0" * 64 + "'}}", "not the one that is pinned"),
        ("inputs: {x: {file: a}}", "expected path: and sha256:"),
        ("inputs: {x: 'http://h/a.pt'}", "not safe from changes on the way"),
        ("inputs: {x: 'https://h/a.pt'}", "needs its digest"),
        ("inputs: {x: {url: 'https://h/a.pt', sha256: '" + "0" * 64 + "'}}", "--download allows to fetch it"),
        ("inputs: {x: 'hf:org/name'}", "expected hf:org/name@COMMIT"),
        ("inputs: {x: 'hf:org/name@main'}", "name the commit"),
        ("defaults: {colour: red}", "no command has this option"),
        ("defaults: {out: x}", "two steps would write one file"),
        ("defaults: {data: mnist}", "no step of this recipe has this option"),
        ("output_dir: 3", "expected the name of a file or folder"),
        ("depends: x", "`depends` (further files that its result depends on) is of a step: it stands beside"),
        ("merge: {}", "a command is a step: `steps:` with `- merge: {…}` below it"),
        ("seed: 3", "an option of commands: it stands under `defaults:`, or in a step"),
        ("defaults: {depends: x}", "is of one step: it stands beside its command"),
        ("steps: [{merge: {models: AB, depends: x}}]", "as in `- {depends: …, merge: {…}}`"),
        ("steps: [{merge: {models: AB, time_limit: 5m}}]", "(how long it may take, such as 90s, 20m or 2h)"),
        ("steps: [{merge: {models: AB, name: x}}]", "is of the step, not an option of `merge`"),
        ("steps: [{merge: {models: AB}, out-dtype: float16}]",
         "steps[1].out-dtype: stands among the options of `merge`: `merge: {out-dtype: …}`"),
        ("steps: [{merge: {models: AB}, nmae: x}]", "a step has no such key; did you mean name?"),
        ("steps: {one: {merge: {}}, two: {name: x}, barrier: {}, four: 4}",
         "`- {name: one, merge: {…}}`, `- {name: two, COMMAND: {…}}`, `- barrier: {…}`, …"),
        ("steps: {}", "expected `steps:` with a list"),
        ("steps: []", "expected `steps:` with a list"),
        ("steps: [3]", "expected one command a step"),
        ("steps: [{name: x}]", "expected one command a step"),
        ("steps: [{align: {}, merge: {}}]", "one command a step; write `- align: {…}`, `- merge: {…}`"),
        ("steps: [{algin: {}}]", "no command 'algin'; did you mean align?"),
        ("steps: [{align: [a]}]", "expected the command's options as keys"),
        ("steps: [{align: }]", "`align` takes 2 models, and here are 0"),
        ("steps: [{align: {models: a.safetensors}}]", "`align` takes 2 models, and here are 1"),
        ("steps: [{align: {models: 'step*'}, name: 3}]", "a name is letters"),
        ("steps: [{align: {models: AB, sed: 3}}]", "`align` has no 'sed'; did you mean seed?"),
        ("steps: [{align: {models: AB, force: true}}]", "`align` has no 'force'"),
        ("steps: [{merge: {models: AB, out-dtype: float16, out_dtype: float32}}]", "stands here and as"),
        ("steps: [{merge: {models: AB, weights: [0.5]}}]", "1 weights for 2 models"),
        ("steps: [{merge: {models: AB, weights: [0.5, 0.4]}}]", "In the same proportions: 5/9,4/9"),
        ("steps: [{merge: {models: ['none*'], weights: [0.5, 0.4]}}]", "none*"),
        ("steps: [{merge: {models: AB, interpolation: cubic}}]", "unknown 'cubic'; known: linear, slerp"),
        ("steps: [{merge: {models: AB, repair: blah}}]", "unknown 'blah'"),
        ("steps: [{merge: {models: a.safetensors}}]", "`merge` takes 2 or more models, and here are 1"),
        ("steps: [{barrier: {models: AB, gate: []}}]", "expected at least one"),
        ("steps: [{merge: {models: [., a.safetensors], out: m.safetensors}}]", "written into by"),
        ("steps: [{merge: {models: AB, out: x.safetensors}}, {merge: {models: AB, out: y/../x.safetensors}}]",
         "y/../x.safetensors is written by step 'merge' too"),
        ("steps: [{align: {models: AB, seed: 10}}]", "a whole number from 0 to 9, not 10"),
        ("steps: [{align: {models: AB, seed: 1.5}}]", "a whole number from 0 to 9, not 1.5"),
        ("steps: [{align: {models: AB, seed: true}}]", "a whole number from 0 to 9, not True"),
        ("steps: [{align: {models: AB, seed: [1]}}]", "a whole number from 0 to 9, not a list"),
        ("steps: [{align: {models: AB, seed: }}]", "a whole number from 0 to 9, not nothing"),
        ("steps: [{align: {models: AB, method: }}]", "text, not nothing"),
        ("steps: [{align: {models: AB, method: ''}}]", "expected a name, not nothing"),
        ("steps: [{align: {models: AB, method: wmm}}]", "unknown method 'wmm'; did you mean wm"),
        ("steps: [{align: {models: AB, data: minst}}]", "unknown data set 'minst'; did you mean mnist"),
        ("steps: [{align: {models: AB, data: 'nowhere.py:load'}}]", "nowhere.py: no such file"),
        ("steps: [{merge: {models: AB, share: nan}}]", "a finite number"),
        ("steps: [{merge: {models: AB, share: .inf}}]", "a number from 0 to 1, not '.inf'"),
        ("steps: [{merge: {models: AB, ascent: 1}}]", "true or false, not 1"),
        ("steps: [{merge: {models: AB, out_dtype: float33}}]", "unknown dtype"),
        ("steps: [{merge: {models: AB, between: [a.safetensors]}}]", "expected 2 values, and here are 1"),
        ("steps: [{barrier: {models: AB, gate: 'x<=1'}}]", "names no figure; rows: those of the report; "),
        ("steps: [{barrier: {models: AB, min_accuracy: 0.9}}]", "`gate: test accuracy >= 0.9`"),
        ("steps: [{barrier: {models: AB, max-accuracy-drop: [x]}}]", "`gate: test accuracy drop <= X`"),
        ("steps: [{merge: {models: AB, min_accuracy: 0.9}}]", "`merge` has no 'min_accuracy'"),
        ("defaults: {min_accuracy: 0.9}", "`gate: test accuracy >= 0.9`"),
        ("steps: [{merge: {models: [x, a.safetensors]}, name: m}, {merge: {models: AB}, name: x}]",
         "step 'x' has not run here yet"),
        ("steps: [{merge: {models: AB}, name: m}, {merge: {models: AB, out: n.safetensors}, name: m}]",
         "'m' is the name of line 1"),
        ("steps: [{merge: {models: AB, out: x.safetensors}}, {align: {models: AB, out: x.safetensors}}]",
         "x.safetensors is written by step 'merge' too"),
        ("steps: [{merge: {models: AB, out: a.safetensors}}]", "a.safetensors is read here, and written by"),
        ("steps: [{merge: {models: AB, out: x.xml}}]\njunit: x.xml", "x.xml is written by step 'merge' too"),
    ],
)  # fmt: skip
def test_every_problem_is_told(recipe, text, says):
    text = text if "steps" in text else f"{text}\nsteps: [{{merge: {{models: AB}}}}]"
    _, problems = recipe(text.replace("AB", TWO))
    assert len(problems) == 1 and says in problems[0] and problems[0].startswith("line "), problems


def test_all_problems_are_told_at_once_in_the_order_of_their_lines(recipe):
    _, problems = recipe(
        "steps:\n  - align: {models: a.safetensors, sed: 1}\ninputs: {x: nowhere}\nrebasin: 2\n"
    )
    assert [problem.partition(":")[0] for problem in problems] == ["line 2", "line 2", "line 3", "line 4"]


def test_a_glob_does_not_mean_what_the_recipe_makes_itself(lines, tmp_path):
    text = "steps:\n  - merge: {models: '*.safetensors'}"
    before = lines(text)
    for name in ("merge", "merge.search", "other.perm"):
        (tmp_path / f"{name}.safetensors").write_text("")
    assert lines(text) == before


def test_a_default_may_be_written_as_its_flag(lines):
    text = f"defaults: {{out-dtype: float16}}\nsteps: [{{merge: {{models: {TWO}}}}}]"
    assert "--out-dtype float16" in lines(text)[0]


def test_a_folder_as_output_keeps_its_slash(recipe):
    made, problems = recipe(f"output_dir: o\nsteps: [{{merge: {{models: {TWO}, out: m/}}}}]")
    assert problems == [] and made.steps[0].line()[-1] == "o/m/"


def test_a_model_that_became_shards_is_named_by_its_index(recipe, tmp_path):
    made, _ = recipe(
        f"steps: [{{merge: {{models: {TWO}, out: m.safetensors}}}}, "
        "{align: {models: [a.safetensors, merge]}}]"
    )
    assert made.steps[1].found() == made.steps[1]
    shards = {"weight_map": {"w": "m-00001-of-00001.safetensors"}}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps(shards))
    found = made.steps[1].found()
    assert found.line()[2] == "m.safetensors.index.json"
    assert [path.name for path in found.reads][1:] == [
        "m.safetensors.index.json",
        "m-00001-of-00001.safetensors",
    ]


def test_what_an_option_may_be_is_told_by_its_kind_and_not_by_its_key():
    from rebasin_cli.averages import means, parts
    from rebasin_cli.commands.recipes import value_checks
    from rebasin_cli.commands.recipes.vocabulary import vocabulary
    from rebasin_cli.errors import near
    from rebasin_cli.repair import REPAIRS

    there = {"repair": ["auto", *REPAIRS], "interpolation": means.INTERPOLATIONS}
    there |= {"heads": parts.HEADS, "extra": parts.EXTRA}
    for key, names in there.items():
        option = vocabulary()["average"].options[key]
        assert [value_checks.wrong(option, name) for name in names] == [None] * len(names)
        assert value_checks.wrong(option, "cubic") == f"unknown 'cubic'; {near('cubic', names)}"
    assert (
        value_checks.wrong(vocabulary()["train"].options["heads"], "4") is None
    )  # of a transformer: a number
    every = [
        option for command in vocabulary().values() for option in command.parameters if not option.within
    ]
    assert {option.kind for option in every} == {"", *value_checks.CHECKS}
