"""Lines that read the tensors of a list as one: what they mean, and what is said where they do not fit."""

import math

import pytest

from rebasin_cli.errors import SpecError
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse

LINES = {
    "gate.weight": "experts .",
    "experts.{}.up.weight": "experts hidden* .",
    "experts.{}.up.bias": "experts hidden*",
    "experts.{}.down.weight": "experts . hidden*",
}


def text(lines=LINES, within="hidden: experts", statistics=()):
    """A spec of these lines; `statistics` are names of those that stand there."""
    rows = {section: "" for section in ("tensors", "statistics")}
    for name, axes in lines.items():
        rows["statistics" if name in statistics else "tensors"] += f'  {name}: "{axes}"\n'
    parts = [f"{section}:\n{own}" for section, own in rows.items() if own]
    return "".join(parts) + (f"within:\n  {within}\n" if within else "")


def shapes(experts=12, d=3, h=5):
    found = {"gate.weight": (experts, d)}
    for e in range(experts):
        found |= {f"experts.{e}.{k}": s for k, s in {"up.weight": (h, d), "up.bias": (h,)}.items()}
        found[f"experts.{e}.down.weight"] = (d, h)
    return found


def fitted(of=None, **how):
    return fit(parse(text(**how), name="s"), shapes() if of is None else of)


def refusal(of=None, **how):
    with pytest.raises(SpecError) as refused:
        fitted(of, **how)
    return refused.value.problems


def test_a_list_is_a_word_and_each_member_has_an_order_within():
    found = fitted()
    assert found.words == {"experts": 12, "hidden": 60}
    assert found.units("hidden") == "12 × 5 units within experts"
    assert found.log10_symmetries() == pytest.approx(
        math.log10(math.factorial(12)) + 12 * math.log10(math.factorial(5))
    )
    assert found.moved_share() == 1
    assert [str(axis) for axis in found.tensors["experts.7.down.weight"]] == ["3", "hidden*"]
    assert found.shapes == shapes()


def test_members_are_in_natural_order():
    found = fitted()
    assert found.stacks["experts.{}.up.bias"].members == tuple(f"experts.{e}.up.bias" for e in range(12))
    assert found.places["experts.10.up.bias"] == ("experts.{}.up.bias", 10)


def test_stacked_each_list_is_one_tensor_and_the_lists_are_gone():
    found = fitted(statistics=("experts.{}.up.bias",))
    whole = found.stacked
    assert whole.shapes == {
        "gate.weight": (12, 3), "experts.{}.up.weight": (12, 5, 3), "experts.{}.up.bias": (12, 5),
        "experts.{}.down.weight": (12, 3, 5),
    }  # fmt: skip
    assert [str(axis) for axis in whole.tensors["experts.{}.down.weight"]] == ["experts", "3", "hidden*"]
    assert whole.statistics == {"experts.{}.up.bias"} and not whole.stacks and whole.stacked is whole
    assert found.statistics == {f"experts.{e}.up.bias" for e in range(12)}
    assert whole.opened(found.stacks, found.shapes) == found
    plain = fit(parse(text({"gate.weight": "a b"}, within=""), name="s"), {"gate.weight": (2, 3)})
    assert plain.stacked is plain


def test_lists_of_layers_are_each_their_own():
    lines = {
        f"layers.{{i}}.{n}": a.replace("hidden", "h{i}").replace("experts", "e{i}") for n, a in LINES.items()
    }
    two = {f"layers.{k}.{n}": s for k, own in ((0, shapes(3)), (1, shapes(4))) for n, s in own.items()}
    found = fitted(two, lines=lines, within='h{i}: "e{i}"')
    assert found.words == {"e0": 3, "h0": 15, "e1": 4, "h1": 20}
    assert "layers.1.experts.{}.up.bias" in found.stacks


def test_modules_without_a_router_and_without_units_of_their_own():
    lines = {"b.{}.weight": "branches . ."}
    assert fitted({f"b.{k}.weight": (2, 3) for k in range(4)}, lines=lines, within="").words == {
        "branches": 4
    }


def test_a_missing_member_is_named_and_nothing_else():
    without = {name: shape for name, shape in shapes().items() if name != "experts.3.down.weight"}
    assert refusal(without) == (
        'experts.3.down.weight  is not in the checkpoint, but the list "experts" has experts.3.up.weight',
    )


def test_members_of_other_shapes_are_named():
    problems = refusal(shapes() | {"experts.3.up.weight": (4, 3)})
    assert problems[:3] == (
        "experts.0.up.weight  is 5×3",
        "experts.3.up.weight  is 4×3",
        '  these should be equal: "experts.{}.up.weight" reads them as one tensor',
    )


def test_a_router_of_another_size_is_named():
    problems = refusal(shapes() | {"gate.weight": (13, 3)})
    assert 'gate.weight  axis 0 is "experts", 13 units' in problems
    assert 'experts.{}.up.weight  axis 0 is "experts", 12 units' in problems


@pytest.mark.parametrize("first", [".", "(experts k)", "hidden*"])
def test_the_first_axis_is_the_order_of_the_list(first):
    problems = refusal(lines=LINES | {"experts.{}.up.bias": f"{first} hidden*"})
    assert any(f'whose order is the first axis: a word without a star, not "{first}"' in p for p in problems)


def test_a_line_counts_the_axis_of_the_list():
    problems = refusal(lines=LINES | {"experts.{}.up.bias": "experts"}, within="")
    assert any(p.startswith("experts.{}.up.bias  has 2 axes 12×5") for p in problems)


def test_the_order_of_a_list_has_no_group():
    spec = text({"b.{}.weight": "branches . ."}, within="") + "groups:\n  branches: signed\n"
    with pytest.raises(SpecError) as refused:
        fit(parse(spec, name="s"), {"b.0.weight": (2, 3), "b.1.weight": (2, 3)})
    assert "it is the order of a list: it can only be ordered" in refused.value.problems[0]


def test_one_empty_slot_a_name():
    with pytest.raises(SpecError) as refused:
        parse('tensors:\n  a.{}.b.{}.weight: "h . ."\n', name="s")
    assert refused.value.problems == ('line 2: "a.{}.b.{}.weight" has 2 empty slots; one list at a time',)


def test_an_optional_list_may_be_absent_and_a_named_one_may_not():
    lines = LINES | {"experts.{}.scale?": "experts"}
    assert fitted(lines=lines).words == fitted().words
    assert refusal(lines=LINES | {"experts.{}.scale": "experts"}) == (
        "experts.{}.scale  matches no tensor of the checkpoint",
    )
