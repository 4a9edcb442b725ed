"""--method auto and --polish as a user types them: plans, what is told, provenance, bad input."""

import json

import pytest
import torch

from rebasin_cli import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands.verbs import symmetries
from rebasin_cli.datasets import open_data
from rebasin_cli.errors import NotProven
from rebasin_cli.matchers import auto, wm
from rebasin_cli.matchers.portfolio import worth
from rebasin_cli.matchers.portfolio.candidates import Candidate
from rebasin_cli.matchers.portfolio.contest import Trials
from rebasin_cli.repair import options as repair_options
from rebasin_cli.repair import repair_steps
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit

from .conftest import tensors


def recorded(path):
    return json.loads(open_checkpoint(path).metadata["rebasin.options"])


def test_auto_says_and_records_every_candidate(trained, done):
    outcome = done("merge", *trained, "--method", "auto", "--budget", "2s", "--held-out", "0.3", "--json")
    match = outcome.json()["match"]
    methods = list(dict.fromkeys(row["method"].split(" + ")[-1] for row in match["tried"]))
    assert methods == ["wm", "dual", "am", "ste", "polish"]
    assert all("held_out_loss" in row or "why" in row for row in match["tried"])
    repair = f" with the repair {match['repair']}" if "repair" in match else ""
    assert f"auto chose {match['chosen']}{repair}: held-out loss at the mean wm " in outcome.err
    options = recorded("merged.safetensors")
    assert options["chosen"] == match["chosen"] and len(options["tried"]) == len(match["tried"])
    assert options["repair"] == outcome.json()["repair"] == match.get("repair", options["repair"])
    assert "seconds" not in json.dumps([options["tried"], match["tried"]])
    assert outcome.json()["times"]["match by wm"] > 0


@pytest.mark.parametrize(("given", "count"), [((), None), (("--held-out", "0.5"), 180)])
def test_a_search_compares_by_the_samples_that_were_held_out(trained, done, monkeypatch, given, count):
    seen = []

    def match(problem, options):
        seen.append(None if problem.held is None else sum(len(targets) for _, targets in problem.held))
        return wm.match(problem)

    monkeypatch.setattr(auto, "match", match)
    done("merge", *trained, "--method", "auto", *given)
    assert seen == [count]


def test_a_repair_that_is_named_stays_beside_auto(trained, done):
    given = ("--method", "auto", "--budget", "1s", "--json", "-o")
    for how in ("refit", "none"):
        match = done("merge", *trained, "--repair", how, *given, f"{how}.safetensors").json()["match"]
        assert match.get("repair", "none") == recorded(f"{how}.safetensors")["repair"] == how
        assert {row.get("repair", "none") for row in match["tried"] if "held_out_loss" in row} == {how}


def test_a_merge_is_repaired_as_auto_chose_and_in_no_other_way(trained, done, monkeypatch):
    """Whatever is found, the weights are those of the same permutations with that repair by its name."""
    monkeypatch.setattr(Trials, "best", property(lambda self: (self.done[0], "refit")))
    monkeypatch.setattr(auto, "candidates", lambda *given, **how: (Candidate("wm", ""),))  # quickly done
    tried = done("merge", *trained, "--method", "auto", "--budget", "60s", "-o", "auto.safetensors")
    assert "auto chose wm with the repair refit" in tried.err and "fitted to the mean" in tried.err
    done("merge", *trained, "--repair", "refit", "-o", "refit.safetensors")
    one, two = (open_checkpoint(name) for name in ("auto.safetensors", "refit.safetensors"))
    assert all(one[name].equal(two[name]) for name in two)
    report = done(
        "barrier",
        *trained,
        "--method",
        "auto",
        "--budget",
        "60s",
        "--limit",
        100,
        "--points",
        3,
        "--json",
        "-q",
    ).json()
    assert report["match"]["repair"] == "refit"
    assert [row["name"] for row in report["rows"] if row["shipped"]] == ["aligned + refit"]
    assert any(note.startswith("refit: every layer fitted on ") for note in report["notes"])


@pytest.mark.sweep
def test_a_distillation_that_auto_tried_is_what_is_written(trained, done, monkeypatch):
    """It would take as long again, beyond the budget."""
    distill, states = repair_steps.distill, []

    def watched(network, *given, **how):
        account = distill(network, *given, **how)
        states.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
        return account

    monkeypatch.setattr(repair_steps, "distill", watched)
    monkeypatch.setattr(Trials, "best", property(lambda self: (self.done[0], "distill")))
    monkeypatch.setattr(auto, "candidates", lambda *given, **how: (Candidate("wm", ""),))  # quickly done
    asked = ("merge", *trained, "--method", "auto", "--budget", "60s")
    outcome = done(*asked)
    assert "auto chose wm with the repair distill" in outcome.err
    options = recorded("merged.safetensors")
    assert options["repair"] == "distill" and 1_000 < options["repair_data"]["samples"] < 1_437
    assert f"trained towards their outputs, on {options['repair_data']['samples']:,} samples" in outcome.err
    (state,) = states
    merged = open_checkpoint("merged.safetensors")
    assert all(merged[name].equal(state[name].to(merged[name].dtype)) for name in merged)
    done(*asked, "--bake-temperature", "-o", "baked.safetensors")
    assert len(states) == 3  # once more, without the samples that the temperature is fitted on


def test_auto_without_data_is_wm_and_writes_the_same_tensors(pair, done):
    outcome = done("merge", *pair, "--method", "auto", "-o", "auto.safetensors")
    assert "goes by weights alone: no data set is known" in outcome.err
    done("merge", *pair, "-o", "wm.safetensors")
    one, two = (open_checkpoint(name) for name in ("auto.safetensors", "wm.safetensors"))
    assert all(one[name].equal(two[name]) for name in two)
    assert recorded("auto.safetensors")["chosen"] == "wm"


def test_auto_says_that_it_begins_anew_when_it_is_interrupted_and_when_it_is_to_go_on(
    trained, interrupted, refused
):
    line = ("merge", *trained, "--method", "auto", "--budget", "0.001T", "-o", "out.safetensors")
    assert (
        interrupted(*line, task="matching", says="what auto tries is not kept, and it begins anew") == set()
    )
    says = ("--resume: there is no", "what auto tries is not kept, and it begins anew: leave --resume out")
    refused(2, *line, "--resume", says=says)
    wm = ("merge", *trained, "--method", "wm", "-o", "out.safetensors", "--resume")
    refused(2, *wm, says="interrupted once it had begun leaves one; start anew")


def test_the_plan_of_auto_says_what_is_tried_and_for_how_long(trained, pair, done):
    plan = done("merge", *trained, "--method", "auto", "--budget", "5m", "--dry-run", "--json").json()
    assert plan["budget_seconds"] == 300
    named = ["wm", "wm + groups", "dual", "am", "ste", "polish"]
    assert [row["method"] for row in plan["candidates"]] == named
    orders = done("merge", *trained, "--method", "auto", "--groups", "permutations", "--dry-run", "--json")
    assert [row["method"] for row in orders.json()["candidates"]] == [named[0], *named[2:]]
    assert all(0 < row["seconds_at_most"] <= 300 and row["why"] for row in plan["candidates"])
    assert plan["repairs_tried"] == ["none", "repair", "refit", "distill"]
    bare = done("merge", *pair, "--method", "auto", "--dry-run", "--json").json()
    assert [row["method"] for row in bare["candidates"]] == ["wm"] and "repairs_tried" not in bare
    told = done("merge", *trained, "--method", "auto", "--budget", "5m", "--dry-run").out
    assert "budget seconds       5.0 minutes" in told and "; dual, 1.2 minutes at most (weights and" in told


def test_the_plan_of_a_budget_of_work_says_what_is_tried_for_how_much(trained, done):
    plan = done("merge", *trained, "--method", "auto", "--dry-run", "--json").json()
    assert plan["budget_multiplications"] == 1e12
    assert [row["multiplications_at_most"] for row in plan["candidates"]] == [
        1e12,
        1e12,
        2.5e11,
        2.5e11,
        7e11,
        1e12,
    ]
    told = done("merge", *trained, "--method", "auto", "--budget", "30G", "--dry-run").out
    assert "30G\n" in told and "; dual, 7.5G at most (weights and" in told


def test_a_budget_of_work_gives_the_same_file_again(trained, done):
    files = []
    for name in ("one", "two"):
        asked = ("merge", *trained, "--method", "auto", "--budget", "10G", "-o", f"{name}.safetensors")
        assert "method: auto chose" in done(*asked).err
        with open(f"{name}.safetensors", "rb") as file:
            files.append(file.read())
    assert files[0] == files[1] and recorded("one.safetensors")["budget"] == "10G"


def test_a_report_says_what_auto_chose(trained, done):
    report = done(
        "barrier",
        *trained,
        "--method",
        "auto",
        "--budget",
        "1s",
        "--limit",
        100,
        "--points",
        3,
        "--json",
        "-q",
    ).json()
    match = report["match"]
    assert match["chosen"] and match["tried"]
    (shipped,) = (row["name"] for row in report["rows"] if row["shipped"])
    chosen = match["repair"]  # in a time the search chooses it
    assert shipped == ("aligned" if chosen == "none" else f"aligned + {chosen}")


def test_swaps_are_told_recorded_and_done_again_by_their_number(trained, done):
    outcome = done("merge", *trained, "--polish", "4steps", "--repair", "none", "-o", "one.safetensors")
    assert "polish: " in outcome.err and "(the same again: --polish 4steps)" in outcome.err
    assert "polished by" in outcome.out
    options = recorded("one.safetensors")
    assert options["polish"] == "4steps" and options["polished"]["steps"] == 4
    done("merge", *trained, "--polish", "4steps", "--repair", "none", "-o", "two.safetensors")
    with open("one.safetensors", "rb") as one, open("two.safetensors", "rb") as two:
        assert one.read() == two.read()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--method", "auto", "--budget", "soon"), ("--budget 'soon' is no length", "60s")),
        (("--method", "auto", "--budget", "0"), "--budget '0' is no length"),
        (("--method", "am", "--budget", "1s"), "--budget: the method am has no such option"),
        (("--polish", "fast"), ("--polish 'fast' is no length", "300steps")),
        (("--polish", "5s", "--method", "none"), "--polish refines what a method found"),
        (("--polish", "5s", "--method", "auto"), ("no place beside --method auto", "a larger --budget")),
    ],
)
def test_bad_times_are_refused_before_any_work(trained, refused, options, says):
    refused(2, "merge", *trained, *options, says=says)


def test_swaps_need_data(pair, refused):
    refused(2, "merge", *pair, "--polish", "5s", says=("--polish runs the network on data", "--data NAME"))


def test_where_nobody_names_a_method_it_is_auto_with_data_and_a_known_network(trained, pair, done):
    outcome = done("merge", *trained, "--dry-run", "--json")
    assert outcome.json()["method"] == "auto" and "by weights alone, in seconds: --method wm" in outcome.err
    plan = done("barrier", *trained, "--dry-run", "--json")
    assert plan.json()["method"] == "auto" and plan.json()["not_estimated"].startswith("what auto tries (1T)")
    for given in (
        pair,
        (*trained, "--effort", "fast"),
        (*trained, "--groups", "all"),
        (*trained, "-m", "wm"),
    ):
        quiet = done("merge", *given, "--dry-run", "--json")
        assert quiet.json()["method"] == "wm" and "method:" not in quiet.err
    plan = done("merge", *trained, "--budget", "3s", "--dry-run", "--json").json()
    assert plan["method"] == "auto" and plan["budget_seconds"] == 3


def test_a_permutation_that_is_given_and_a_network_only_assumed_leave_no_search_to_auto(trained, done):
    done("align", *trained, "-o", "b.safetensors")
    given = done("merge", *trained, "--perm", "b.perm.safetensors", "--dry-run", "--json")
    assert given.json()["method"] == "given" and "method: auto" not in given.err
    bare = []
    for number, path in enumerate(trained):
        bare.append(f"{number}.safetensors")
        write_safetensors(bare[-1], tensors(path))
    assumed = done("merge", *bare, "--data", "digits", "--dry-run", "--json")
    assert assumed.json()["method"] == "wm"
    named = done("merge", *bare, "--data", "digits", "--net", "mlp", "--dry-run", "--json")
    assert named.json()["method"] == "auto"


@pytest.mark.parametrize("repair", [(), ("--repair", "none")])
def test_the_samples_that_it_chose_by_are_recorded(trained, done, repair):
    done("merge", *trained, "--budget", "5G", "--held-out", "0.5", *repair, "-q")
    assert recorded("merged.safetensors")["held_out"] == {"fraction": 0.5, "samples": 180}


@pytest.mark.parametrize(
    "how, more",
    [
        ("refit", ()),
        pytest.param("refit", ("--seed", 3), marks=pytest.mark.sweep),
        pytest.param("distill", (), marks=pytest.mark.sweep),
        pytest.param("distill", ("--interpolation", "slerp"), marks=pytest.mark.sweep),
    ],
)
def test_the_row_that_is_shipped_is_what_a_merge_with_the_same_options_writes(
    trained, done, monkeypatch, how, more
):
    """Also where a repair is fitted on some of the samples: on the same ones. Training enlarges rounding."""
    monkeypatch.setitem(repair_options.SAMPLES, how, 100)
    monkeypatch.setattr(worth, "DISTILL_SAMPLES", 100)
    monkeypatch.setattr(Trials, "best", property(lambda self: (self.done[0], how)))
    monkeypatch.setattr(auto, "candidates", lambda *given, **how: (Candidate("wm", ""),))  # quickly done
    report = done(
        "barrier", *trained, *more, "--budget", "1T", "--points", 3, "--json", "-q", "--skip-checks"
    )
    (row,) = (row for row in report.json()["rows"] if row["shipped"])
    done("merge", *trained, *more, "--budget", "1T", "-q")
    written = done("eval", "merged.safetensors", "--json").json()
    loss = row["curves"]["test"]["loss"]
    assert loss[len(loss) // 2] == pytest.approx(written["loss"], rel=1e-3 if "slerp" in more else 1e-6)


@pytest.mark.sweep  # of merges: matchers/test_clock.py, test_auto.py
@pytest.mark.parametrize("share", [2.0, 0.6])
def test_a_report_distils_for_as_long_as_the_search_and_on_as_many_samples(trained, done, monkeypatch, share):
    """Both more and less than is usual, as there was time."""
    seen, distill = [], repair_steps.distill

    def watched(network, endpoints, batches, **how):
        seen.append((sum(len(targets) for _, targets in batches), how["share"]))
        return distill(network, endpoints, batches, **how)

    monkeypatch.setattr(repair_steps, "distill", watched)
    monkeypatch.setitem(repair_options.SAMPLES, "distill", 60)
    monkeypatch.setattr(worth, "DISTILL_SAMPLES", 60)
    monkeypatch.setattr(worth.Mending, "_share", lambda self, room: share)
    monkeypatch.setattr(Trials, "best", property(lambda self: (self.done[0], "distill")))
    monkeypatch.setattr(auto, "candidates", lambda *given, **how: (Candidate("wm", ""),))  # quickly done
    done("barrier", *trained, "--budget", "1T", "--points", 5, "--limit", 200, "--skip-checks", "-q")
    assert len(seen) > 3
    expected = pytest.approx((120, 1.0) if share > 1 else (60, 0.6), rel=0.01)  # whole steps
    assert all(each == expected for each in seen), seen


def test_a_distillation_that_a_search_chose_is_measured_at_the_middle_as_it_was_trained(
    trained, done, monkeypatch
):
    """The report and its gate say that it is one point; plain rows stay. `--points` asks for more."""
    seen, distill = [], repair_steps.distill

    def watched(network, *given, **how):
        account = distill(network, *given, **how)
        seen.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
        return account

    monkeypatch.setattr(repair_steps, "distill", watched)
    monkeypatch.setattr(worth, "DISTILL_SAMPLES", 60)
    monkeypatch.setattr(worth.Mending, "_share", lambda self, room: 1.0)
    monkeypatch.setattr(Trials, "best", property(lambda self: (self.done[0], "distill")))
    monkeypatch.setattr(auto, "candidates", lambda *given, **how: (Candidate("wm", ""),))  # quickly done
    how = ("--budget", "1T", "--limit", 200, "--skip-checks", "-q", "--max-barrier", 9, "--json")
    report = done("barrier", *trained, *how).json()
    assert len(seen) == 2  # the search's, and the control
    points = report["data"]["points"]
    assert points["aligned + distill"] == 3 and points["aligned"] == points["naive"] == 25
    assert points["naive + distill"] == 3 and "endpoint fine-tuned" not in points
    assert "random permutation" in points and "logit ensemble" in points
    (gate,) = report["gates"]
    assert gate["met"] and "aligned + distill, test, at λ=½ alone: " in gate["detail"]
    assert any("--repair distill measures 5 points" in note for note in report["notes"])
    for more, trainings in ((("--points", 5), 5), (("--attack", "1/255"), 5)):  # ¼ and ¾, and the control
        seen.clear()
        points = done("barrier", *trained, *how, *more).json()["data"]["points"]
        assert points["aligned + distill"] == 5 and "naive + distill" in points
        assert len(seen) == trainings - 1


@pytest.mark.parametrize("gate", ["aligned", "aligned + repair"])
def test_all_pairs_of_a_report_are_matched_by_one_method(trained, done, monkeypatch, gate):
    """A gate names a row that a search might leave out: then none of them is left to `auto`."""
    seen = []

    def match(problem, options):
        seen.append(options)
        return wm.match(problem)

    monkeypatch.setattr(auto, "match", match)
    more = ("--pair", f"{trained[1]},{trained[0]}", "--gate", f"{gate}:test:loss<=9", "--limit", 50)
    outcome = done("barrier", *trained, *more, "--repair", "repair", "--points", 3, "--skip-checks")
    assert len(seen) == (2 if gate == "aligned" else 0)
    told = "method: wm, as a gate names 'aligned + repair'"
    assert (told in outcome.err) is (gate != "aligned")


def test_where_the_recorded_data_are_gone_it_is_told_that_it_goes_by_weights(trained, done, monkeypatch):
    monkeypatch.setenv("REBASIN_DATA", "gone")
    for number, path in enumerate(trained):
        told = open_checkpoint(path).metadata | {"rebasin.data": "mnist"}
        write_safetensors(f"{number}.safetensors", tensors(path), metadata=told)
    outcome = done("merge", "0.safetensors", "1.safetensors")
    assert "method: wm, by weights alone: gone: no such folder" in outcome.err
    assert open_checkpoint("merged.safetensors").metadata["rebasin.method"] == "wm"


def test_options_of_both_methods_that_may_be_meant_are_refused_by_their_names(trained, refused):
    says = ("--effort for wm, --budget for auto", "Leave those of one of them out")
    refused(2, "merge", *trained, "--budget", "3s", "--effort", "fast", says=says)


@pytest.mark.parametrize(
    "given",
    [(), *(pytest.param(("--repair", how), marks=pytest.mark.sweep) for how in ("refit", "none"))],
)
def test_a_report_leaves_the_same_repairs_open_as_a_merge(resnets, done, monkeypatch, given):
    seen = []

    def match(problem, options):
        seen.append(problem.repairs)
        return wm.match(problem)

    monkeypatch.setattr(auto, "match", match)
    asked = (*resnets, "--net", "resnet20", "--method", "auto", "--data", "npz:pictures.npz", *given)
    asked += ("--limit", 8, "--no-prove")
    done("merge", *asked)
    done("barrier", *asked, "--skip-checks", "--points", 3, "-q")
    assert seen[0] == seen[1] and seen[0] == {
        (): ("reset", "refit", "distill"), ("--repair", "refit"): ("refit",), ("--repair", "none"): ()
    }[given]  # fmt: skip


def test_gates_on_rows_that_a_search_decides_leave_the_method_at_wm(trained, done):
    """Else the row that a gate names may not be there."""
    for row, method in (("naive", "auto"), ("aligned", "auto"), ("aligned + repair", "wm")):
        gate = ("--gate", f"{row}:test:loss<=9")
        assert done("barrier", *trained, *gate, "--dry-run", "--json").json()["method"] == method
    gate = ("--gate", "aligned + repair:test:loss<=9", "--max-barrier", 9)
    assert (
        done("barrier", *trained, *gate, "--limit", 50, "--points", 3, "--json").json()["match"]["method"]
        == "wm"
    )


@pytest.mark.sweep
def test_every_point_of_a_distilled_row_is_trained_on_as_many_samples_as_the_search_took(
    trained, done, monkeypatch
):
    distill, samples = repair_steps.distill, []

    def watched(network, endpoints, batches, **how):
        account = distill(network, endpoints, batches, **how)
        samples.append(sum(len(targets) for _, targets in batches))
        return account

    monkeypatch.setattr(repair_steps, "distill", watched)
    monkeypatch.setattr(Trials, "best", property(lambda self: (self.done[0], "distill")))
    monkeypatch.setattr(auto, "candidates", lambda *given, **how: (Candidate("wm", ""),))  # quickly done
    report = done("barrier", *trained, "--points", 5, "--json", "-q").json()
    found = report["match"]["repair_samples"]
    assert samples == [found] * 4  # in the search, at λ = ¼ and ¾, and without alignment
    (row,) = (row for row in report["rows"] if row["shipped"])
    assert row["name"] == "aligned + distill" and row["curves"]["test"]["lambdas"] == [0, 0.25, 0.5, 0.75, 1]
    assert any(f"trained on {found:,} training samples" in note for note in report["notes"])


TANH = """
import torch
from torch import nn


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
"""


@pytest.fixture
def turned(tmp_path):
    """A network of tanh on digits, and the same one with its units in another order and with other signs."""
    (tmp_path / "tanh.py").write_text(TANH)
    names: dict = {}
    exec(TANH, names)
    torch.manual_seed(0)
    network, data = names["make"](), open_data("digits", "train")
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for inputs, targets in data.with_batch_size(200):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
    a = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    order, signs = torch.randperm(24), torch.randint(0, 2, (24,)) * 2.0 - 1
    b = dict(a)
    for name in ("1.weight", "1.bias", "3.weight"):
        dim = int(name == "3.weight")
        b[name] = a[name].index_select(dim, order) * (
            signs if dim else signs.view(-1, *[1] * (a[name].ndim - 1))
        )
    for name, state in (("a", a), ("b", b)):
        write_safetensors(tmp_path / f"{name}.safetensors", state)
    return "a.safetensors", "b.safetensors", "--net", "tanh.py:make", "--spec", "infer", "--data", "digits"


def test_auto_takes_signs_where_the_network_allows_them_and_orders_alone_if_told(turned, done):
    short = ("--repair", "none", "--budget", "20G")
    outcome = done("merge", *turned, *short, "--json", "-o", "all.safetensors")
    match = outcome.json()["match"]
    assert match["chosen"] == "wm + groups" and "canonical form" in outcome.err
    assert recorded("all.safetensors")["groups"] == "all" and outcome.json()["proof"]["status"] == "proven"
    a, merged = tensors("a.safetensors"), tensors("all.safetensors")
    assert all(torch.allclose(a[name].abs(), merged[name].abs(), atol=1e-5) for name in a)
    alone = done("merge", *turned, *short, "--groups", "permutations", "--json", "--force")
    assert {row["method"] for row in alone.json()["match"]["tried"]} & {"wm + groups", "am + groups"} == set()
    assert alone.json()["match"]["tried"][0]["held_out_loss"] > match["tried"][1]["held_out_loss"] + 0.05


def test_auto_leaves_out_groups_that_would_change_what_is_computed_and_says_why(turned, done, monkeypatch):
    def fails(session, elements):
        raise NotProven("the outputs change")

    monkeypatch.setattr(symmetries, "check_moved", fails)
    outcome = done("merge", *turned, "--repair", "none", "--budget", "5G", "--json")
    match = outcome.json()["match"]
    assert {"method": "wm + groups", "why": "the outputs change"} in match["tried"]
    assert "groups" not in match["chosen"] and "groups" not in recorded("merged.safetensors")


def test_auto_looks_for_no_groups_of_a_large_network(turned, done, monkeypatch):
    monkeypatch.setattr("rebasin_cli.commands.verbs.symmetries.LARGEST", 100)
    tried = done("merge", *turned, "--repair", "none", "--budget", "5G", "--json").json()["match"]["tried"]
    (why,) = [one["why"] for one in tried if one["method"] == "wm + groups"]
    assert "up to 100 (--groups all looks)" in why


ORDERS = "schema: 1\ntensors:\n  1.weight: h .\n  1.bias: h\n  3.weight: . h\n"


@pytest.mark.parametrize("own, packaged", [("  3.bias: .\n", False), ("ignore: [3.bias]\n", True)])
def test_auto_takes_no_groups_beyond_a_spec_that_was_named_or_that_ignores_tensors(
    turned, done, tmp_path, monkeypatch, own, packaged
):
    (tmp_path / "own.yaml").write_text(ORDERS + own)
    b = tensors("b.safetensors")
    write_safetensors(tmp_path / "b.safetensors", b | {"3.bias": b["3.bias"] + 1}, force=True)
    named = ("--spec", "own.yaml")
    if packaged:  # a spec of another package, which is found by its tensors
        monkeypatch.setattr(library, "find", lambda shapes, _: fit(library.load("own.yaml"), shapes))
        named = ()
    models = (*turned[:4], *turned[6:], *named)
    outcome = done("merge", *models, "--repair", "none", "--json", "-o", "m.safetensors").json()
    assert outcome["spec"]["name"] == "own" and "groups" not in outcome["match"]["chosen"]
    plan = done("merge", *models, "--repair", "none", "--json", "--dry-run").json()
    assert "wm + groups" not in {row["method"] for row in plan["candidates"]}
    why = "the spec own gives orders alone, and may say what else has to stay"
    assert {"method": "wm + groups", "why": why} in outcome["match"]["tried"]
    kept = tensors("m.safetensors")["3.bias"]
    assert torch.equal(kept, tensors("a.safetensors")["3.bias"]) == packaged
