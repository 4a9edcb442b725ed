"""Somebody else's dictionary of axes becomes a spec of ours, or an error that says why not."""

import json

import pytest
import torch
import yaml

from rebasin_cli import nets
from rebasin_cli.errors import SpecError, UsageError
from rebasin_cli.inference.text.foreign import from_axes, read
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse

MLP = {
    "layers.0.weight": ["P_0", None],
    "layers.0.bias": ["P_0"],
    "layers.1.weight": ["P_1", "P_0"],
    "layers.1.bias": ["P_1"],
    "head.weight": [None, "P_1"],
    "head.bias": [None],
}
SHAPES = {
    "layers.0.weight": (8, 4), "layers.0.bias": (8,), "layers.1.weight": (6, 8), "layers.1.bias": (6,),
    "head.weight": (3, 6), "head.bias": (3,),
}  # fmt: skip


def fitted(text, shapes):
    return fit(parse(text, name="imported"), shapes)


def resnet20():
    """The dictionary that git-re-basin keeps for such a network, in our names."""

    def norm(name, p):
        counters = {f"{name}.num_batches_tracked": [None]}  # one axis too many, as some of them have it
        return {
            f"{name}.{part}": [p] for part in ("weight", "bias", "running_mean", "running_var")
        } | counters

    found = {"conv1.weight": ["P_bg0", None, None, None]} | norm("bn1", "P_bg0")
    for stage, (into, out) in enumerate(
        [("P_bg0", "P_bg0"), ("P_bg0", "P_bg1"), ("P_bg1", "P_bg2")], start=1
    ):
        for block in range(3):
            name, inner = f"layer{stage}.{block}", f"P_layer{stage}.{block}_inner"
            found[f"{name}.conv1.weight"] = [inner, into if block == 0 else out, None, None]
            found |= norm(f"{name}.bn1", inner)
            found[f"{name}.conv2.weight"] = [out, inner, None, None]
            found |= norm(f"{name}.bn2", out)
            if block == 0 and stage > 1:
                found[f"{name}.downsample.0.weight"] = [out, into, None, None]
                found |= norm(f"{name}.downsample.1", out)
    return found | {"fc.weight": [None, "P_bg2"], "fc.bias": [None]}


def test_a_residual_networks_dictionary_becomes_our_own_spec_in_families():
    network = nets.build("resnet20", input_shape=(3, 32, 32), classes=5, width=0.25)
    shapes = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    text = from_axes(resnet20(), shapes)
    found, known = fitted(text, shapes), fit(library.load("resnet20"), shapes)
    assert found.log10_symmetries() == known.log10_symmetries()
    assert found.statistics == known.statistics
    assert 'layer{i}.{j}.bn1.weight: "P_layer{i}.{j}_inner"' in text
    assert len(text.splitlines()) < len(shapes) / 2


def test_without_tensors_every_line_is_written_out():
    said = yaml.safe_load(from_axes(MLP))
    assert said["tensors"]["layers.1.weight"] == "P_1 P_0" and said["tensors"]["head.bias"] == "."
    assert len(said["tensors"]) == 6 and "statistics" not in said


@pytest.mark.parametrize("wrapped", [MLP, {"axes_to_perm": MLP, "perm_to_axes": {}}])
def test_both_ways_to_keep_it_are_read(wrapped):
    assert fitted(from_axes(wrapped, SHAPES), SHAPES).words == {"P_0": 8, "P_1": 6}


@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: {"perm_to_axes": d}])
def test_the_other_direction_says_the_same(wrap):
    backward = {}
    for tensor, words in MLP.items():
        for axis, word in enumerate(words):
            if word is not None:
                backward.setdefault(word, []).append([tensor, axis])
    assert fitted(from_axes(wrap(backward), SHAPES), SHAPES).tensors == fitted(from_axes(MLP), SHAPES).tensors
    with pytest.raises(UsageError, match="how many axes") as caught:
        from_axes(wrap(backward))
    assert "--checkpoint" in caught.value.hint


def test_statistics_are_found_by_their_names_and_counters_have_no_axes():
    mapping = {"bn.weight": ["p"], "bn.running_mean": ["p"], "bn.num_batches_tracked": []}
    said = yaml.safe_load(from_axes(mapping))
    assert said["statistics"] == {"bn.running_mean": "p", "bn.num_batches_tracked": ""}
    del mapping["bn.num_batches_tracked"]  # a tensor without axes need not be mentioned
    shapes = {"bn.weight": (4,), "bn.running_mean": (4,), "bn.num_batches_tracked": ()}
    assert fitted(from_axes(mapping, shapes), shapes).tensors["bn.num_batches_tracked"] == ()


def test_words_are_written_in_our_characters_and_stay_apart():
    mapping = {"a": ["P/1", "P_1"], "b": ["0 x", "{i}"], "c": ["P 1", "0 x"]}
    said = yaml.safe_load(from_axes(mapping))["tensors"]
    assert said == {"a": "P_1.2 P_1", "b": "h0_x h_i_", "c": "P_1.3 h0_x"}


def problems(mapping, shapes=None):
    with pytest.raises(SpecError) as caught:
        from_axes(mapping, shapes)
    return "\n".join([caught.value.message, *caught.value.problems, caught.value.hint or ""])


def test_tensors_that_the_dictionary_leaves_out_are_named():
    told = problems({name: words for name, words in MLP.items() if "bias" not in name}, SHAPES)
    for name in ("layers.0.bias", "layers.1.bias", "head.bias"):
        assert f"{name}  " in told
    assert "null for every axis that stays" in told


def test_names_of_flax_are_not_guessed():
    told = problems({"Dense_0/kernel": [None, "P_0"], "Dense_0/bias": ["P_0"]}, SHAPES)
    assert "no tensor of the 6" in told and "Dense_0/kernel" in told and "layers.0.weight" in told
    assert "Rename them" in told
    assert 'Dense_{i}/kernel: "' not in from_axes({"Dense_0/kernel": [None, "P_0"]})


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ([1, 2], "not a dictionary of axes but list"),
        ({}, "it is empty"),
        ({"a": "P"}, "a  is 'P', not a list"),
        ({"a": ["P", 3]}, "a  axis 1 is 3, neither a word nor null"),
        ({"a": [""]}, "a  axis 0 is ''"),
        ({3: ["P"]}, "3 is not the name"),
        ({"a b": ["P"]}, 'cannot speak of a tensor called "a b"'),
        ({"a": ["P"], "b": [["a", 0]]}, "b  axis 0 is ['a', 0]"),
    ],
)
def test_what_is_no_dictionary_of_axes(mapping, said):
    assert said in problems(mapping)


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"P": [["nobody", 0]]}, "nobody  is in the dictionary, not in the checkpoint"),
        ({"P": [["head.bias", 1]]}, 'head.bias  has 1 axes; "P" is said to be on axis 1'),
        ({"P": [["head.bias", 0]], "Q": [["head.bias", 0]]}, 'is said to be "P" and "Q"'),
        (MLP | {"head.bias": ["P_1"]}, 'axis 0 is "P_1", 3 units'),
        (MLP | {"head.bias": [None, None]}, "head.bias  has 1 axes"),
    ],
)
def test_what_does_not_fit_the_tensors(mapping, said):
    assert said in problems(mapping, SHAPES)


def test_files_are_read_strictly(tmp_path):
    path = tmp_path / "axes.json"
    path.write_text(json.dumps(MLP))
    assert read(path) == MLP
    (tmp_path / "axes.yaml").write_text(yaml.safe_dump(MLP))
    assert read(tmp_path / "axes.yaml") == MLP
    for name, text, said in [
        ("twice.json", '{"a": [], "a": []}', "'a' appears twice"),
        ("twice.yaml", "a: []\na: []\n", "'a' appears twice"),
        ("broken.json", "{", "is not JSON"),
        ("broken.yaml", "a: [", "is not YAML"),
        ("odd.yaml", "? [a]\n: b\n", "is not YAML"),
        ("aliases.yaml", "a: &x []\nb: [*x, *x]\n", "line 2: aliases are not expanded"),
        ("tagged.yaml", "a: !!python/name:os.system\n", "is not YAML"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(SpecError, match=said):
            read(tmp_path / name)
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path / "nowhere.json")


def test_an_imported_spec_matches_models():
    import rebasin_cli

    generator = torch.Generator().manual_seed(0)
    a = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    spec = parse(from_axes(MLP, SHAPES), name="imported")
    order = torch.randperm(8, generator=generator)
    b = a | {
        "layers.0.weight": a["layers.0.weight"][order],
        "layers.0.bias": a["layers.0.bias"][order],
        "layers.1.weight": a["layers.1.weight"][:, order],
    }
    aligned = rebasin_cli.align(a, b, spec).tensors
    assert all(torch.equal(aligned[name], a[name]) for name in a)
