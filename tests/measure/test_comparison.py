"""Comparing merges of many models in memory, and what is written of it."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import rebasin_cli
from rebasin_cli import nets
from rebasin_cli.averages.means import average
from rebasin_cli.errors import UsageError
from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.measure import formats
from rebasin_cli.measure.compared import SCHEMA
from rebasin_cli.measure.comparison import compare, points_to_measure
from rebasin_cli.measure.sharpness import sharpness
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.reports.formats import html, markdown
from rebasin_cli.reports.formats.json import dump
from rebasin_cli.reports.pictures import png
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.symmetry.permutation import permuted


def networks_of(name, count=3, **options):
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        found.append(nets.build(name, classes=3, **options))
    return found


MLP = {"input_shape": (1, 3, 3), "width": 8, "depth": 2}
TEN = {"input_shape": (3, 10, 10), "width": 1 / 16}


def batches(shape, seed=0, count=3, size=10):
    rng = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, *shape, generator=rng), torch.randint(0, 3, (size,), generator=rng))
        for _ in range(count)
    ]


def setting(name="mlp", count=3, **options):
    options = options or MLP
    models = [dict(network.state_dict()) for network in networks_of(name, count, **options)]
    network = nets.build(name, classes=3, **options)
    fitted = fit(library.load(name), {n: tuple(t.shape) for n, t in models[0].items()})
    return models, fitted, network


METHODS = ["none", "wm", "merge-many", "universe"]


@pytest.fixture(scope="module")
def found():
    models, fitted, network = setting()
    data = batches((1, 3, 3))
    return compare(
        models,
        fitted,
        network=network,
        test=data,
        train=batches((1, 3, 3), 1),
        methods=METHODS,
        points=4,
        curved={"test": data},
        probes=3,
        seed=5,
        without_reference=True,
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [2, 3])
def test_the_mean_of_the_first_models_is_what_a_merge_of_them_gives(found, method, count):
    models, fitted, network = setting()
    seed = {} if method == "none" else {"seed": 5}
    merged = rebasin_cli.merge(models[:count], fitted, method=method, **seed).tensors
    network.load_state_dict(dict(merged))
    for split, seed in (("test", 0), ("train", 1)):
        expected = evaluate(network, batches((1, 3, 3), seed))
        (at,) = (m.mean[split] for m in found.methods[METHODS.index(method)].merged if m.models == count)
        assert at.loss == pytest.approx(expected.loss) and at.metrics["accuracy"] == expected.accuracy
        ends = [end[split].loss for end in found.endpoints[:count]]
        assert at.ends_loss == pytest.approx(sum(ends) / count)
        assert at.gap == pytest.approx(expected.loss - sum(ends) / count)


@pytest.mark.parametrize("count", [2, 3])
def test_the_mean_without_the_reference_is_that_of_the_others_as_they_were_matched(found, count):
    models, fitted, network = setting()
    matched = align(models[:count], fitted, method="wm", seed=5)
    moved = [dict(permuted(m, fitted, p)) for m, p in zip(models[1:], matched.permutations, strict=False)]
    network.load_state_dict(average(moved) if count > 2 else moved[0])
    expected = evaluate(network, batches((1, 3, 3)))
    merged = found.methods[METHODS.index("wm")].merged[count - 2]
    at = merged.without["test"]
    assert at.loss == pytest.approx(expected.loss) and at.metrics["accuracy"] == expected.accuracy
    assert at.ends_loss == pytest.approx(sum(e["test"].loss for e in found.endpoints[1:count]) / (count - 1))
    assert at.loss != pytest.approx(merged.mean["test"].loss)


def test_sharpness_is_of_the_merge_of_so_many(found):
    models, fitted, network = setting()
    for merged in found.methods[METHODS.index("wm")].merged:
        of = rebasin_cli.merge(models[: merged.models], fitted, method="wm", seed=5).tensors
        network.load_state_dict(dict(of))
        wanted = sharpness(network, batches((1, 3, 3)), probes=3, seed=5).value
        assert merged.sharpness["test"].value == pytest.approx(wanted, rel=1e-3)
    table = next(t for t in formats.tables(found) if t.title == "Sharpness")
    assert [row.cells[0] for row in table.rows[3:5]] == ["2 models, their mean", "  none, merged"]
    ends = [bent["test"].value for bent in found.endpoint_sharpness[:2]]
    assert float(table.rows[3].cells[1].partition(" ")[0]) == pytest.approx(sum(ends) / 2, rel=1e-2)


def test_everything_is_there(found):
    assert [method.name for method in found.methods] == METHODS
    for method in found.methods:
        assert len(method.midpoints) == 3 and len(method.points) == 4
        assert len(method.geometry.distances) == len(method.geometry.angles) == 3
        for merged in method.merged:
            assert set(merged.sharpness) == {"test"} and merged.sharpness["test"].probes == 3
    assert found.methods[0].geometry == found.given != found.methods[1].geometry
    assert found.cycles.overall > 0 and set(found.cycles.by_word) == {"h0", "h1"}
    assert len(found.endpoint_sharpness) == 3 and found.repair == "none"
    assert len({method.merged[-1].sharpness["test"].value for method in found.methods}) > 1


def test_matching_brings_models_nearer_than_unrelated_points(found):
    def near(geometry):
        return max(geometry.distances)

    for method in found.methods[1:]:
        assert near(method.geometry) < min(found.null.distances)
    assert near(found.shuffled) > near(found.methods[-1].geometry)


def test_the_mean_without_the_reference_has_rows_of_its_own(found):
    means = next(t for t in formats.tables(found) if t.title.startswith("Merged, test"))
    assert [row.cells[0] for row in means.rows[:5]][1:3] == ["  none", "  none, without the first"]
    assert all(
        "wm, without the first" in render(formats.document(found)) for render in (markdown.text, html.page)
    )


def test_points_are_counted_before_they_are_measured():
    models, fitted, network = setting()
    seen = []
    compare(
        models,
        fitted,
        network=network,
        test=batches((1, 3, 3)),
        methods=["none", "wm"],
        points=3,
        cycles=False,
        measured=lambda: seen.append(1),
    )
    assert len(seen) == sum(points_to_measure(3, 2, 3)) == 3 + 2 * (2 + 3 + 3)


def test_once_matches_all_models_one_time():
    models, fitted, network = setting()
    counts = {}
    for once in (True, False):
        seen = []
        compared = compare(
            models,
            fitted,
            network=network,
            test=batches((1, 3, 3)),
            methods=["merge-many"],
            once=once,
            points=0,
            cycles=False,
            progress=lambda method, state, seen=seen: seen.append((method, len(state.permutations))),
        )
        counts[once] = {models for _, models in seen}
        (method,) = compared.methods
        assert [m.models for m in method.merged] == [2, 3] and not method.points
    assert counts == {True: {3}, False: {2, 3}}


def test_statistics_are_measured_anew_at_every_mixture():
    models, fitted, network = setting("tinyten", 2, **TEN)
    data = batches((3, 10, 10))
    args = {"network": network, "test": data, "train": batches((3, 10, 10), 1), "points": 1, "cycles": False}
    compared = compare(models, fitted, methods=["none", "wm"], **args)
    assert compared.repair == "reset"
    for method in compared.methods:
        merged = rebasin_cli.merge(
            models,
            fitted,
            method=method.name,
            network=network,
            train=batches((3, 10, 10), 1),
            prove=False,
        )
        network.load_state_dict(dict(merged.tensors))
        at = method.merged[0].mean["test"]
        assert at.loss == pytest.approx(evaluate(network, data).loss, rel=1e-5)
        assert method.midpoints[0]["test"].loss == pytest.approx(at.loss, rel=1e-5)
    without = compare(models, fitted, methods=["none"], repair_with="none", **args)
    assert without.repair == "none"
    assert without.methods[0].merged[0].mean["test"].loss != compared.methods[0].merged[0].mean["test"].loss
    for end, model in zip(compared.endpoints, models, strict=True):  # those are as they were given
        network.load_state_dict(model)
        assert end["test"].loss == pytest.approx(evaluate(network, data).loss)


def test_what_makes_no_sense_is_refused():
    models, fitted, network = setting()
    data = batches((1, 3, 3))
    with pytest.raises(UsageError, match="at least two models"):
        compare(models[:1], fitted, network=network, test=data)
    with pytest.raises(UsageError, match="unknown method"):
        compare(models, fitted, network=network, test=data, methods=["universal"])
    with pytest.raises(UsageError, match="not with rescale"):
        compare(models, fitted, network=network, test=data, repair_with="rescale")
    bn, spec, ten = setting("tinyten", 2, **TEN)
    with pytest.raises(UsageError, match="running statistics"):
        compare(bn, spec, network=ten, test=batches((3, 10, 10)))


def test_models_are_untouched():
    models, fitted, network = setting()
    before = [{name: t.clone() for name, t in model.items()} for model in models]
    compare(models, fitted, network=network, test=batches((1, 3, 3)), points=1, cycles=False)
    for model, copy in zip(models, before, strict=True):
        assert all(torch.equal(model[name], tensor) for name, tensor in copy.items())
    assert isinstance(network, nn.Module)


# ------------------------------------------------------------------------------------------- formats


def test_json_holds_the_schema_and_every_figure(found):
    read = json.loads(dump(found.to_dict()), parse_constant=pytest.fail)
    assert next(iter(read)) == "schema" and read["schema"] == SCHEMA == "rebasin.compare/3"
    merged = read["methods"][2]["merged"][1]
    assert (
        merged["models"] == 3 and merged["mean"]["test"]["gap"] == found.methods[2].merged[1].mean["test"].gap
    )
    assert merged["match"]["method"] == "merge-many" and merged["match"]["sweeps"] >= 1
    assert len(read["null"]["angles"]) == 3 and read["cycles"]["overall"] == found.cycles.overall
    assert read["methods"][1]["merged"][0]["sharpness"]["test"]["error"] > 0


def test_markdown_shows_every_table_and_says_what_the_null_is_for(found):
    text = markdown.text(formats.document(found))
    for title in ("The models", "Merged, test", "Merged, train", "Distances and angles", "Sharpness"):
        assert f"### {title}" in text
    assert "null: independent points" in text and "regular simplex" in text and "says nothing" in text
    at = found.methods[3].merged[1].mean["test"]
    assert f"| universe | {at.loss:.4f} | {at.metrics['accuracy']:.4f} | {at.gap:.4f} |" in text
    assert "0 by construction" in text and f"{found.cycles.overall:.4f}" in text


def test_text_from_outside_is_escaped(found):
    text = markdown.text(formats.document(replace(found, inputs=({"file": "a|b<i>.pt"}, *found.inputs[1:]))))
    assert "a\\|b\\<i\\>.pt" in text


def test_the_picture_is_the_same_every_time(found):
    one = png(formats.document(found))
    assert one == png(formats.document(found)) and one.startswith(b"\x89PNG")


def test_tables_are_rectangular(found):
    for table in formats.tables(found):
        assert {len(row.cells) for row in table.rows} == {len(table.columns)}


def test_the_headline_names_the_method_of_least_loss(found):
    losses = {m.name: m.merged[-1].mean["test"].loss for m in found.methods}
    assert formats.headline(found).startswith(
        f"{min(losses, key=losses.get)}: test loss {min(losses.values()):.4f}"
    )


def test_change():
    assert formats.change(0.57, 1.0) == "-43.0 %" and formats.change(2.0, 1.0) == "+100.0 %"
    assert formats.change(math.inf, 1.0) == formats.change(1.0, 0.0) == "—"


def losing(found, by):
    """The same, where what was not aligned loses `by` times as much as anything else."""
    rest = [
        loss
        for method in found.methods[1:]
        for merged in method.merged
        for loss in (merged.mean["test"].loss, merged.mean["test"].ends_loss)
    ]
    merged = [
        replace(one, mean=one.mean | {"test": replace(one.mean["test"], loss=by * max(rest))})
        for one in found.methods[0].merged
    ]
    return replace(found, methods=(replace(found.methods[0], merged=tuple(merged)), *found.methods[1:])), max(
        rest
    )


def drawn(found, monkeypatch):
    """The panels of the picture."""
    from matplotlib.figure import Figure

    figures, add_axes = [], Figure.add_axes

    def kept(self, *args, **kwargs):
        figures.append(self)
        return add_axes(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "add_axes", kept)
    png(formats.document(found))
    return figures[0].axes


def test_what_was_not_aligned_leaves_the_axis_where_it_would_press_the_others_down(found, monkeypatch):
    far, most = losing(found, 7)
    loss, accuracy = drawn(far, monkeypatch)
    assert most < loss.get_ylim()[1] < 2 * most
    assert [text.get_text() for text in loss.texts] == [f"{7 * most:.3g}"] * 2 and not accuracy.texts
    labels = loss.get_legend_handles_labels()[1]
    assert labels[0] == "none (↑ beyond the axis)" and labels[2] == "wm"
    near, most = losing(found, 2.9)
    loss, _ = drawn(near, monkeypatch)
    assert loss.get_ylim()[1] > 2.9 * most and not loss.texts
    assert loss.get_legend_handles_labels()[1][0] == "none"
    alone = replace(far, methods=far.methods[:1])
    assert drawn(alone, monkeypatch)[0].get_ylim()[1] > 7 * most
    endless, most = losing(found, math.inf)
    assert drawn(endless, monkeypatch)[0].get_ylim()[1] < 2 * most


def test_the_sharpness_of_a_merge_is_that_of_its_own_statistics():
    """The merge's BatchNorm is reset before it is measured; the endpoints keep what they came with."""
    models, fitted, network = setting("tinyten", 2, **TEN)
    data, train = batches((3, 10, 10)), batches((3, 10, 10), 1)
    args = {"network": network, "test": data, "train": train, "points": 0, "cycles": False}
    compared = compare(models, fitted, methods=["none"], curved={"test": data}, probes=2, **args)
    merged = rebasin_cli.merge(models, fitted, method="none", network=network, train=train, prove=False)
    network.load_state_dict(dict(merged.tensors))
    wanted = sharpness(network, data, probes=2, seed=compared.seed).value
    found = compared.methods[0].merged[-1].sharpness
    assert found["test"].value == pytest.approx(wanted, rel=1e-3)
    network.load_state_dict(models[0])
    own = sharpness(network, data, probes=2, seed=compared.seed).value
    assert compared.endpoint_sharpness[0]["test"].value == pytest.approx(own, rel=1e-3)
