"""A recipe's text: strict YAML, `${NAME}`, and --set."""

import pytest

from rebasin_cli.commands.recipes import reader
from rebasin_cli.errors import UsageError

MERGE = "steps:\n  - merge: {models: [a.safetensors, b.safetensors], out: %s}\n"


def test_values_know_their_paths_and_lines():
    root = reader.read("steps:\n  - merge:\n      seed: 3\n", {}, reader.Problems())
    seed = root.value["steps"].value[0].value["merge"].value["seed"]
    assert (seed.value, seed.path, seed.where) == (3, "steps[1].merge.seed", "line 3")


@pytest.mark.parametrize(
    "text, value",
    [
        ("true", True),
        ("no", "no"),
        ("on", "on"),
        ("1e-3", "1e-3"),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("0.5", 0.5),
        ("~", None),
        ("'3'", "3"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_only_plain_numbers_and_true_and_false_are_more_than_text(text, value):
    assert reader.read(f"a: {text}", {}, reader.Problems()).value["a"].value == value


@pytest.mark.parametrize(
    "text, says",
    [
        ("a: [", "not YAML"),
        ("- a", "no recipe"),
        ("a: &x [*x]", "levels deep"),
        ("[" * 3000, "not YAML"),
        ("a: 1\n" * 400_000, "1,048,576"),
        ("a: \ud800x\0", "not YAML"),
        ("x: &a [1,1,1,1,1,1,1,1,1]\n" + "\n".join(
            f"{chr(98 + k)}x: &{chr(98 + k)} [{','.join(['*' + chr(97 + k)] * 9)}]" for k in range(8)
        ), "20,000 values"),
    ],
)  # fmt: skip
def test_what_is_no_recipe_at_all(text, says):
    with pytest.raises(UsageError, match=says):
        reader.read(text, {}, reader.Problems())


def test_variables_are_expanded_only_where_they_are_written_so(lines):
    found = lines(MERGE % '"$HOME/${RUN}-$${X}-${TAG:-latest}.safetensors"', environment={"RUN": "r1"})
    assert found == ["merge a.safetensors b.safetensors --out $HOME/r1-${X}-latest.safetensors"]


def test_a_nul_character_is_a_problem_wherever_it_stands(recipe):
    for text in (MERGE % '"x\\0y"', 'junit: "\\0"\n' + MERGE % "o.safetensors"):
        _, problems = recipe(text)
        assert any("holds a NUL character" in problem for problem in problems)


def test_what_a_variable_holds_is_not_read_again(lines):
    found = lines(MERGE % '"${RUN}"', environment={"RUN": "${HOME}: [x].safetensors"})
    assert found == ["merge a.safetensors b.safetensors --out ${HOME}: [x].safetensors"]


def test_a_variable_that_is_not_there_is_a_problem_with_its_line(recipe):
    _, problems = recipe(MERGE % '"${RUN}"')
    assert problems == [
        "line 2: steps[1].merge.out: the environment has no RUN; set it, or write ${RUN:-VALUE} for where "
        "it is not set"
    ]


def test_a_key_that_stands_twice_is_a_problem(recipe):
    _, problems = recipe(
        "steps:\n  - merge:\n      models: [a.safetensors, b.safetensors]\n      seed: 1\n      seed: 2"
    )
    assert "line 5: steps[1].merge.seed: stands here and in line 4" in problems


def test_anchors_are_not_merged(recipe):
    _, problems = recipe(
        "x: &x {seed: 1}\nsteps:\n  - align:\n      <<: *x\n      models: [a.safetensors, b.safetensors]"
    )
    assert any("anchors are not merged" in problem for problem in problems)


@pytest.mark.parametrize(
    "assignment, line",
    [
        ("steps.merge.method=wm", "merge a.safetensors b.safetensors --out o.safetensors --method wm"),
        ("steps.1.share=0.5", "merge a.safetensors b.safetensors --out o.safetensors --share 0.5"),
        (
            "steps.merge.merge.ascent=false",
            "merge a.safetensors b.safetensors --out o.safetensors --no-ascent",
        ),
        ("defaults.method=am", "merge a.safetensors b.safetensors --out o.safetensors --method am"),
        (
            "steps.merge.models=[b.safetensors, a.safetensors]",
            "merge b.safetensors a.safetensors --out o.safetensors",
        ),
        ("output_dir=x", "merge a.safetensors b.safetensors --out x/o.safetensors"),
    ],
)
def test_set_puts_a_value_into_its_place(recipe, assignment, line):
    made, problems = recipe(MERGE % "o.safetensors", assignments=[assignment])
    assert problems == [] and " ".join(made.steps[0].line()) == line


def test_a_set_value_that_lies_too_deep_is_told(recipe):
    _, problems = recipe("steps: []", assignments=[".".join("a" * 3_000) + "=1"])
    assert any("expected KEY=VALUE" in text for text in problems)


def test_what_is_wrong_with_a_set_value_names_it(recipe):
    _, problems = recipe(MERGE % "o.safetensors", assignments=["steps.merge.seed=3"])
    assert len(problems) == 1
    assert problems[0].startswith("--set steps.merge.seed=3: steps[1].merge.seed: `merge` has no 'seed'")


@pytest.mark.parametrize(
    "assignment, says",
    [
        ("nothing", "expected KEY=VALUE"),
        ("a..b=1", "expected KEY=VALUE"),
        ("steps.other.method=wm", "there is no 'other' among merge"),
        ("steps.merge.method.x=1", "holds no keys"),
        ("steps.merge.method=[", "is not YAML"),
        ("steps.merge.method=${NOPE}", "the environment has no NOPE"),
    ],
)
def test_set_says_what_it_cannot_do(recipe, assignment, says):
    text = MERGE % "o.safetensors" + "  - align: {models: [a.safetensors, b.safetensors], method: wm}\n"
    if "method.x" in assignment:
        text = text.replace("out:", "method: wm, out:")
    _, problems = recipe(text, assignments=[assignment])
    assert len(problems) == 1 and problems[0].startswith(f"--set {assignment}") and says in problems[0]
