"""The verdict on a refit: what is refit, what alignment, what one of the models does alone."""

import json

import pytest

from rebasin_cli.reports import Barrier, Curve, Heights, Report, Row
from rebasin_cli.reports.conclusion import _Step, conclude
from rebasin_cli.reports.path import logarithmic


def row(name, loss, accuracy=0.9, **more):
    curve = Curve((0.0, 0.5, 1.0), (0.1, loss, 0.1), {"accuracy": (0.95, accuracy, 0.95)}, 100)
    return Row(name, {"test": curve}, {"test": Barrier(loss, loss, {"accuracy": Heights(0.0, 0.0)})}, **more)


def verdict(losses, shipped="aligned + refit"):
    rows = tuple(row(name, loss, shipped=name == shipped) for name, loss in losses.items())
    ends = tuple(
        {"name": n, "test": {"loss": loss, "accuracy": 0.95}} for n, loss in (("A", 0.12), ("B", 0.11))
    )
    return conclude(Report("0", "barrier", 0, (), {}, {}, {}, {}, endpoints=ends, rows=rows))


def test_the_gain_is_shared_out_between_the_refit_alone_and_alignment_on_top_of_it():
    told = verdict({"naive": 1.8, "aligned": 0.3, "aligned + refit": 0.14, "naive + refit": 0.18})
    assert "1.660 nats are gained over naive: the refit alone (naive + refit) explains 1.620, " in told
    assert "alignment 0.040 on top of it; without a refit, alignment gains 1.500" in told
    assert "The better endpoint, B, loses 0.030 nats less (0.950 accurate, the merged model 0.900)" in told


def test_beside_norms_that_were_reset_the_gain_is_over_those():
    told = verdict(
        {
            "naive": 2.8, "aligned": 2.7, "aligned + reset": 0.9, "naive + reset": 1.9,
            "aligned + refit": 0.5, "naive + refit": 0.8,
        }
    )  # fmt: skip
    assert "1.400 nats are gained over naive + reset: the refit alone (naive + refit) explains 1.100" in told
    assert "alignment 0.300 on top of it; without a refit, alignment gains 1.000" in told


@pytest.mark.parametrize(
    ("control", "than"), [(0.1405, "as good"), (0.12, "better"), (0.1457, "nearly as good")]
)
def test_an_alignment_that_does_not_help_is_told(control, than):
    losses = {"naive": 1.8, "aligned": 0.3, "aligned + refit": 0.14, "naive + refit": control}
    if than == "nearly as good":
        losses |= {"aligned + refit": 0.44, "naive + refit": 0.448}
    assert f"but alignment is not what helps: the refit alone (naive + refit) is {than}" in verdict(losses)


def test_a_repair_alone_that_is_nearly_as_good_is_told_however_sure_the_difference():
    losses = {"naive": 1.8, "aligned": 0.9, "aligned + repair": 0.44, "naive + repair": 0.448}
    told = verdict(losses, shipped="aligned + repair")
    assert "Alignment is not what helps: repair alone (naive + repair) is nearly as good, +0.008" in told
    told = verdict(losses | {"naive + repair": 0.46}, shipped="aligned + repair")
    assert "Alignment is not what helps" not in told


def test_an_interval_that_begins_at_nothing_is_no_gain():
    assert [_Step(0.1, its).sign for its in ((0.0, 0.2), (-0.2, 0.0), (0.01, 0.2), (-0.2, -0.01))] == [
        0,
        0,
        1,
        -1,
    ]


@pytest.mark.parametrize(
    ("losses", "wanted"), [((0.0, 30.0), False), ((0.1, 30.0), True), ((0.1, 3.0), False)]
)
def test_only_a_loss_without_zeros_gets_a_logarithmic_axis(losses, wanted):
    curve = Curve((0.0, 0.25, 0.5, 1.0), (0.2, *losses, 0.2), {"accuracy": (0.9,) * 4}, 100)
    its = Row("naive", {"test": curve}, {"test": Barrier(1, 1, {"accuracy": Heights(0.0, 0.0)})})
    assert logarithmic(Report("0", "barrier", 0, (), {}, {}, {}, {}, endpoints=(), rows=(its,))) == wanted


def test_a_distillation_is_called_by_its_name():
    losses = {"naive": 1.8, "aligned": 0.3, "aligned + distill": 0.12, "naive + distill": 0.14}
    told = verdict(losses, shipped="aligned + distill")
    assert "the distillation alone (naive + distill) explains 1.660, " in told
    assert "without a distillation, alignment gains 1.500" in told


def test_a_refit_without_an_alignment_and_one_that_harms():
    told = verdict({"naive": 0.5, "naive + refit": 0.3}, shipped="naive + refit")
    assert told.startswith("The refit gains 0.200 nats over naive; nothing was aligned. The better")
    told = verdict({"naive": 0.2, "aligned": 0.2, "aligned + refit": 0.3, "naive + refit": 0.3})
    assert told.startswith("Worse than naive: aligned + refit loses 0.100 nats more")
    told = verdict({"naive": 0.3, "aligned": 0.2, "aligned + refit": 0.3, "naive + refit": 0.3})
    assert told.startswith("Nothing is gained over naive")


def recorded(name, command="train", *made_of, method="wm", **more):
    facts = {"rebasin.command": command, "rebasin.method": method, "rebasin.inputs": json.dumps(made_of)}
    return {"file": f"{name}.safetensors", "sha256": f"digest of {name}", "recorded": facts | more}


REFERENCE = recorded("a")
ALIGNED = recorded("b", "align", "digest of a", "digest of x")


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ((REFERENCE, ALIGNED), "Already aligned: b.safetensors to a.safetensors, by wm, as the file records"),
        ((ALIGNED, REFERENCE), "Already aligned: b.safetensors to a.safetensors, by wm, as the file records"),
        ((ALIGNED, recorded("c", "align", "digest of a")), "Already aligned: both to one other model, by wm"),
        ((recorded("z"), ALIGNED), "Nothing was aligned here; b.safetensors was before, by wm, to another"),
        ((REFERENCE, recorded("c", "apply")), "Already permuted: c.safetensors, by a permutation that was"),
        ((REFERENCE, recorded("c", "align")), "Nothing was aligned, and"),
        ((REFERENCE, recorded("c", "align", **{"rebasin.inputs": "[[1"})), "Nothing was aligned, and"),
        ((REFERENCE, recorded("c", "align", **{"rebasin.inputs": "3", "x": 3})), "Nothing was aligned, and"),
        ((REFERENCE, {"file": "c", "sha256": "digest of a", "recorded": None}), "Nothing was aligned, and"),
        ((REFERENCE, recorded("c", 3, method=[])), "Nothing was aligned, and"),
        ((REFERENCE,), "Nothing was aligned, and"),
        ((), "Nothing was aligned, and"),
    ],
)
def test_a_pair_that_was_aligned_before_is_not_called_unaligned(inputs, says):
    """As recipes do it: align, then merge and measure with `method: none`."""
    report = Report("0", "", 0, inputs, {}, {}, {}, {}, (), (row("naive", 0.3, shipped=True),))
    assert conclude(report).startswith(says) and "nothing is repaired" in conclude(report)
    repaired = (row("naive", 0.5), row("naive + repair", 0.3, shipped=True))
    told = conclude(Report("0", "", 0, inputs, {}, {}, {}, {}, (), repaired))
    assert told.startswith(
        f"Repair gains 0.200 nats over naive; {says[0].lower()}{says[1:].split(', and')[0]}"
    )
