"""mergekit's words, and whole files of its."""

import pytest

from rebasin_cli.commands.recipes import familiar, reader
from rebasin_cli.commands.recipes.recipe import parse
from rebasin_cli.errors import UsageError

from .conftest import VOCABULARY

LINEAR = """
models:
  - model: a.safetensors
    parameters: {weight: 0.3}
  - model: b.safetensors
    parameters: {weight: 0.9}
merge_method: linear
"""
PLAIN = "merge a.safetensors b.safetensors --method none --repair none"


@pytest.fixture
def mergekit():
    def mergekit(text):
        problems = reader.Problems()
        root = reader.read(text, {}, problems)
        assert familiar.is_mergekit(root)
        made = parse(familiar.as_recipe(root, problems), VOCABULARY, problems)
        return [" ".join(step.line()) for step in made.steps], problems.in_order()

    return mergekit


def test_a_linear_merge_divides_by_the_sum_of_its_weights(mergekit):
    found, problems = mergekit(LINEAR + "dtype: bfloat16\n")
    line = f"{PLAIN} --interpolation linear --weights 0.25,0.75 --out-dtype bfloat16 --out merge.safetensors"
    assert problems == [] and sorted(found[0].split()) == sorted(line.split())


@pytest.mark.parametrize(
    "models", ["[{model: b.safetensors}]", "[{model: b.safetensors}, {model: a.safetensors}]"]
)
def test_slerp_goes_from_the_base_model_to_the_other_one(mergekit, models):
    found, problems = mergekit(
        f"models: {models}\nbase_model: a.safetensors\nmerge_method: slerp\nparameters: {{t: 0.25}}"
    )
    assert problems == []
    assert found[0].startswith("merge a.safetensors b.safetensors") and "--weights 0.75,0.25" in found[0]


def test_in_a_step_its_words_mean_the_same(lines):
    text = (
        "steps:\n  - merge: {models: [{model: a.safetensors, weight: 1}, {model: b.safetensors, weight: 3}],"
        " method: wm, base_model: b.safetensors, dtype: float16}"
    )
    assert lines(text) == [
        "merge a.safetensors b.safetensors --method wm --weights 0.25,0.75 --reference b.safetensors "
        "--out-dtype float16 --out merge.safetensors"
    ]


@pytest.mark.parametrize(
    "text, says",
    [
        (LINEAR.replace("linear", "ties"), "line 7: merge_method: rebasin has linear, slerp or task"),
        (LINEAR + "parameters: {normalize: false}", "the weights add up to 1.2"),
        (LINEAR + "parameters: {density: 0.5}", "rebasin has no 'density' here"),
        (LINEAR.replace("0.9", "[0.1, 0.2]"), "one number for all tensors, not a list (a gradient"),
        (LINEAR.replace("0.9", "-0.3"), "the weights add up to 0"),
        (LINEAR.replace("parameters: {weight: 0.9}", ""), "some models have a weight and others have none"),
        (LINEAR.replace("  - model: b.safetensors", "  - path: b.safetensors"), "rebasin has no 'path' here"),
        (LINEAR.replace("linear", "slerp"), "slerp needs `parameters: {t: …}`"),
        ("models: [{model: a.safetensors}, {model: b.safetensors}]\nmerge_method: slerp\nparameters: {t: 2}",
         "t is 2, expected 0 to 1"),
        ("models: [{model: a.safetensors}, {model: b.safetensors}]\nmerge_method: slerp\nbase_model: c\n"
         "parameters: {t: 0.5}", "expected one of the two models"),
    ],
)  # fmt: skip
def test_what_rebasin_cannot_do_is_refused_by_name(mergekit, text, says):
    _, problems = mergekit(text)
    assert any(says in problem for problem in problems), problems


SLICES = """
slices:
  - sources: [{model: a.safetensors, layer_range: [0, 4]}, {model: b.safetensors, layer_range: [0, 4]}]
merge_method: METHOD
base_model: a.safetensors
parameters: {t: 0.5}
"""
CUT = "line 3: slices: layers are not cut and stacked here"


@pytest.mark.parametrize(
    "text, says",
    [
        (SLICES.replace("METHOD", "slerp"), [CUT]),
        (
            SLICES.replace("METHOD", "ties"),
            [CUT, "line 4: merge_method: rebasin has linear, slerp or task_arithmetic, not 'ties'"],
        ),
        (LINEAR + "modules: {}", ["line 8: modules: one model is merged, not several modules"]),
        (
            LINEAR + "tokenizer_source: union\nchat_template: auto",
            [
                "line 8: tokenizer_source: vocabularies are not merged; all models need the same one",
                "line 9: chat_template: it belongs to the tokenizer; copy it with its files",
            ],
        ),
        (LINEAR + "colour: red", ["line 8: colour: rebasin does not know mergekit's 'colour'"]),
    ],
)
def test_a_key_that_rebasin_has_nothing_for_is_all_that_is_told(mergekit, text, says):
    with pytest.raises(UsageError, match="asks for what rebasin does not do") as refused:
        mergekit(text)
    assert list(refused.value.problems) == says


STEP = "steps:\n  - merge: {models: [a.safetensors, b.safetensors], base_model: BASE, METHOD}"


@pytest.mark.parametrize("base", ["./b.safetensors", "../HERE/b.safetensors", "b.safetensors"])
@pytest.mark.parametrize("method", ["method: wm", "seed: 1", "method: none"])
def test_a_base_model_is_known_by_its_file(recipe, tmp_path, base, method):
    base = base.replace("HERE", tmp_path.name)
    made, _ = recipe(STEP.replace("BASE", base).replace("METHOD", method))
    assert made.steps[0].options["reference"] == base.removeprefix("./")


def test_a_base_model_that_is_none_of_the_models_is_of_no_effect_only_where_nothing_is_aligned(
    recipe, lines, mergekit
):
    _, problems = recipe(STEP.replace("BASE", "missing-thing").replace("METHOD", "method: wm"))
    assert [problem.partition(": missing")[2] for problem in problems] == ["-thing: no such file"]
    aligned = lines(STEP.replace("BASE", "step2.safetensors").replace("METHOD", "method: wm"))
    assert "--reference step2.safetensors" in aligned[0]  # which `merge` refuses
    plain = lines(STEP.replace("BASE", "missing-thing").replace("METHOD", "method: none"))
    assert "--reference" not in plain[0]
    found, problems = mergekit(LINEAR + "base_model: org/missing")
    assert problems == [] and "--reference" not in found[0]


def test_slerp_knows_its_base_model_by_the_file(mergekit):
    found, problems = mergekit(
        "models: [b.safetensors, a.safetensors]\nbase_model: ./a.safetensors\nmerge_method: slerp\n"
        "parameters: {t: 0.25}"
    )
    assert problems == [] and found[0].startswith("merge a.safetensors b.safetensors")


TASKS = LINEAR.replace("linear", "task_arithmetic").replace("0.9", "-0.3") + "base_model: c.safetensors\n"


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        (TASKS, "1,0.3,-0.3"),
        (TASKS.replace("-0.3", "0.6"), "0.1,0.3,0.6"),
        (TASKS + "parameters: {lambda: 2}", "1,0.6,-0.6"),
        (TASKS.replace("-0.3", "0.9") + "parameters: {normalize: true, lambda: 0.5}", "0.5,0.125,0.375"),
        (TASKS.replace("    parameters: {weight: -0.3}", "") + "parameters: {weight: 0.5}", "0.2,0.3,0.5"),
    ],
)
def test_differences_from_a_base_model_are_one_sum_of_models(mergekit, tmp_path, text, weights):
    (tmp_path / "c.safetensors").touch()
    found, problems = mergekit(text)
    assert problems == []
    assert found[0].startswith("merge c.safetensors a.safetensors b.safetensors --method none")
    assert f"--weights {weights} " in f"{found[0]} " and "--interpolation linear" in found[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TASKS.replace("base_model: c.safetensors", ""), ["task_arithmetic needs `base_model:`"]),
        (TASKS.replace("parameters: {weight: 0.3}", ""), ["needs a weight for every model"]),
        (TASKS + "parameters: {density: 0.5}", ["rebasin has no 'density' here; known: lambda"]),
        (TASKS + "parameters: {normalize: true}", ["the weights add up to 0"]),
        (TASKS + "parameters: {lambda: .inf}", ["expected one number for all tensors"]),
        (TASKS + f"parameters: {{lambda: 1{'0' * 400}}}", ["expected a finite number"]),
    ],
)
def test_differences_that_rebasin_cannot_add_are_refused(mergekit, tmp_path, text, says):
    (tmp_path / "c.safetensors").touch()
    _, problems = mergekit(text)
    assert len(problems) == len(says) and all(map(str.__contains__, problems, says)), problems
