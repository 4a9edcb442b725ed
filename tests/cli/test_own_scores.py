"""A loss and metrics of the user's own: by their own names and units in everything that is told of them."""

import itertools
import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from rebasin_cli.registry import operations

MINE = '''
import torch
from torch.nn import functional as F


def regret(outputs, targets):
    """Per sample, in cents."""
    return 100 * (1 - outputs.softmax(1).gather(1, targets[:, None]).squeeze(1))


regret.unit = "cents"


def cross(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


class Worst:
    """The worst class's share of right answers: over the whole set alone."""

    name, range = "worst class", (0, 1)

    def __init__(self):
        self.reset()

    def reset(self):
        self.right, self.all = torch.zeros(10), torch.zeros(10)

    def update(self, outputs, targets):
        for k in range(10):
            self.all[k] += (targets == k).sum()
            self.right[k] += ((outputs.argmax(1) == k) & (targets == k)).sum()

    def compute(self):
        return (self.right / self.all.clamp(min=1)).min()


class Both(Worst):
    """It computes another figure, too, which it does not say before."""

    name = "both"

    def compute(self):
        return {"both": super().compute(), "best class": (self.right / self.all.clamp(min=1)).max()}


def misses(outputs, targets):
    return (outputs.argmax(1) != targets).double()


misses.larger_is_better, misses.range = False, (0, 1)


def endless(outputs, targets):
    return outputs[:, 0] * 0 + float("inf")


def unknown(outputs, targets):
    return outputs[:, 0] * 0 + float("nan")
'''
RECORDED = re.compile(r"\brebasin\.(train|test)_accuracy")
FOREIGN = re.compile(r"\bnats\b|\baccura|\bece\b|calibration", re.IGNORECASE)


@pytest.fixture
def own(tmp_path):
    """The options of a loss and two metrics, on few points."""
    (tmp_path / "mine.py").write_text(MINE)
    metrics = ("--metric", "mine.py:Worst", "--metric", "mine.py:misses")
    return ("--data", "digits", "--limit", 200, "--loss", "mine.py:regret", *metrics)


def foreign(text):
    """Lines that speak of nats, accuracy or calibration; what files record of their training is theirs."""
    lines = (line for line in text.splitlines() if not RECORDED.search(line))
    return [line for line in lines if FOREIGN.search(line)]


def test_no_format_of_a_report_speaks_of_nats_accuracy_or_ece(trained, done, own, tmp_path):
    gates = (
        "--gate",
        "worst_class drop <= 1",
        "--gate",
        "test misses rise <= 100%",
        "--gate",
        "barrier <= 90 cents",
    )
    files = ("--report", "report", "--step-summary", "summary.md")
    told = done("barrier", *trained, *own, *gates, *files, "--points", 5, "--method", "ste", "--epochs", 1)
    texts = {
        path.name: path.read_text(errors="replace")
        for path in (tmp_path / "report").iterdir()
        if path.suffix != ".png"
    }
    texts |= {"summary.md": (tmp_path / "summary.md").read_text(), "stdout": told.out, "stderr": told.err}
    assert {name: found for name, text in texts.items() if (found := foreign(text))} == {}
    report = json.loads(texts["report.json"])
    row = report["rows"][0]
    assert report["loss"]["unit"] == "cents" and [m["name"] for m in report["metrics"]] == [
        "worst class",
        "misses",
    ]
    assert len(row["curves"]["test"]["worst_class"]) == 5 and "misses_chord" in row["barriers"]["test"]
    assert row["middle"]["test"]["intervals"].keys() == {"loss", "misses", "chord"}
    assert "cents" in texts["report.html"] and "worst class" in texts["report.md"]


MEASURING = {
    "align": ("align", "{a}", "{b}", "--method", "ste", "--epochs", 1, "-o", "n.safetensors"),
    "eval": ("eval", "{a}"),
    "compare": ("compare", "{a}", "{b}", "--points", 1, "--method", "wm"),
    "plane": ("plane", "{a}", "{b}", "--points", 3, "--method", "wm"),
    "curve": ("curve", "{a}", "{b}", "--epochs", 1, "--method", "wm", "-o", "c.curve.safetensors"),
    "merge": ("merge", "{a}", "{b}", "--method", "auto", "--budget", "5G", "-o", "m.safetensors"),
    "average": ("average", "{a}", "{b}", "--soup", "greedy", "-o", "s.safetensors"),
    "repair": ("repair", "{m}", "--endpoints", "{a}", "{n}", "--repair", "auto", "-o", "r.safetensors"),
    "doctor": ("doctor", "{a}", "{b}"),
    "barrier": ("barrier", "{a}", "{b}", "--points", 3, "--method", "auto", "--budget", "5G"),
}


def flags(command):
    return {option.flag for option in operations.of(command)[0].options}


def test_every_command_that_takes_a_loss_or_a_metric_is_among_them():
    every = (one.name for name in operations.every() for one in operations.of(name))
    assert {name for name in every if {"--loss", "--metric"} & flags(name)} == {*MEASURING}


@pytest.fixture
def filled(trained, done):
    """The words of a command, with the files that it takes."""

    def words(name):
        if name == "repair":
            wm = ("--method", "wm", "--force")
            done("merge", *trained, *wm, "--repair", "none", "-o", "m0.safetensors")
            done("align", *trained, *wm, "-o", "aligned.safetensors")
        of = {"a": trained[0], "b": trained[1], "m": "m0.safetensors", "n": "aligned.safetensors"}
        return [str(word).format(**of) for word in MEASURING[name]]

    return words


@pytest.mark.sweep
@pytest.mark.parametrize("name", MEASURING)
def test_no_other_command_does_either(filled, done, own, tmp_path, name):
    """In what it says, in JSON, on a page, and in what files record of how they came about."""
    words = filled(name)
    takes = flags(name)
    files = {
        "--html": "page.html",
        "--markdown": "page.md",
        "--junit": "page.xml",
        "--json-file": "page.json",
    }
    written = {flag: file for flag, file in files.items() if flag in takes}
    limited = own[:2] + own[4:] if name == "repair" else own
    limited = [w for pair in zip(limited[::2], limited[1::2], strict=True) if pair[0] in takes for w in pair]
    for form in [(), ("--json", *itertools.chain(*written.items()))]:
        force = ("--force",) if "--force" in takes else ()
        told = done(*words, *limited, *form, *force)
        assert foreign(told.out + told.err) == []
    for file in written.values():
        assert (text := Path(file).read_text()) and foreign(text) == []
    for path in map(
        Path, ("m.safetensors", "r.safetensors", "s.safetensors", "c.curve.safetensors", "n.safetensors")
    ):
        if path.exists():
            assert foreign(done("inspect", path).out) == []
            with safe_open(path, "pt") as file:
                recorded = "\n".join(f"{key}: {text}" for key, text in file.metadata().items())
            assert foreign(recorded) == []


@pytest.mark.sweep
def test_what_is_made_of_measured_models_and_reports_does_not(trained, done, own, tmp_path):
    """Model cards, statements of how a file came about; reports that are judged, and kept, later."""
    few, whole = ("--force", "--json"), (*own[:2], *own[4:])
    worse = ("--gate", "test misses rise <= 100%")
    said = [
        done(*map(str, words), *more)
        for words, more in (
            (("merge", *trained, *whole, "--method", "wm", "-o", "m.safetensors", "--attest", "m.json"), few),
            (("barrier", *trained, *own, *worse, "--method", "wm", "--points", 3, "--report", "r"), ()),
            (("card", "m.safetensors", "--barrier", "r/report.json", "-o", "card.md"), few),
            (("gate", "r/report.json", "--gate", "worst_class drop <= 1", "--step-summary", "later.md"), ()),
            (("promote", "r/report.json", "base.json"), ("--json",)),
            (("barrier", *trained, *own, "--method", "wm", "--points", 3, "--baseline", "base.json"), ()),
            (("inspect", "m.safetensors"), ()),
        )
    ]
    texts = {number: told.out + told.err for number, told in enumerate(said)}
    texts |= {name: Path(name).read_text() for name in ("m.json", "card.md", "later.md", "base.json")}
    assert {name: found for name, text in texts.items() if (found := foreign(text))} == {}
    assert "misses" in texts["card.md"] and "cents" in texts["card.md"]


@pytest.mark.parametrize("kind", ["methods", "specs", "nets", "data", "reports"])
def test_the_lists_say_nothing_of_how_models_are_measured(done, kind):
    assert foreign(done("list", kind).out) == []


def numbers(value, path=""):
    """All numbers in JSON, but for times, by their places."""
    if isinstance(value, dict):
        inner = ((f"{path}.{key}", item) for key, item in value.items() if key not in ("times", "command"))
    elif isinstance(value, list):
        inner = ((f"{path}[{place}]", item) for place, item in enumerate(value))
    else:
        return {path: value} if isinstance(value, (int, float)) else {}
    return {place: found for key, item in inner for place, found in numbers(item, key).items()}


@pytest.mark.parametrize("name", sorted(MEASURING.keys() - {"doctor"}))
def test_a_cross_entropy_of_ones_own_has_the_figures_of_the_default(filled, done, own, name):
    """To the bit, whatever both have: a loss of one's own has no calibration, temperatures or ensemble."""
    few, force = ("--data", "digits"), ("--force",) if "-o" in MEASURING[name] else ()
    few += ("--limit", 100) * (name != "repair")
    words = [*filled(name), *few, "--json", *force]
    if name == "barrier":
        words[words.index("auto")] = "wm"
        del words[words.index("--budget") : words.index("--budget") + 2]
    one, other = (done(*words, *more).json() for more in ((), ("--loss", "mine.py:cross")))
    if name == "barrier":  # rows by name: those that need logits are not there
        rows = [{row["name"]: row for row in each["rows"]} for each in (one, other)]
        same = rows[0].keys() & rows[1].keys()
        one, other = ({key: its[key]["curves"] for key in same} for its in rows)
        assert len(one) > 4
    a, b = numbers(one), numbers(other)
    shared = [key for key in a.keys() & b.keys() if "tried" not in key and "held_out" not in key]
    off = {key: (a[key], b[key]) for key in shared if a[key] != b[key]}
    assert len(shared) > 1 and off == {}


@pytest.mark.parametrize(
    "name",
    ["eval", "merge", "average"]
    + [pytest.param(name, marks=pytest.mark.sweep) for name in ("barrier", "compare", "plane")],
)
def test_a_metric_object_gives_one_figure_however_samples_are_batched(filled, done, own, name):
    """With 1, 7 and 60 samples a batch, of the same models: a search would learn from other batches."""
    few = ("--data", "digits", "--metric", "mine.py:Worst", "--json")
    few += ("--limit", 60) * (name != "merge") + ("--force",) * ("-o" in MEASURING[name])
    words = [*filled(name), *few]
    if "auto" in words:
        words[words.index("auto") : words.index("auto") + 3] = ["wm"]
    if name == "merge":
        words += ["--repair", "auto", "--choose", "worst class", "--normalize", "unit"]
    found = []
    for size in (1, 7, 60) if name == "eval" else (7, 60):  # all are read by one reader
        told = done(*words, "--batch-size", size)
        its = {key: value for key, value in numbers(told.json()).items() if "worst_class" in key}
        found.append((its, re.findall(r"worst_class [\d.]+[^;\n]*", told.err)))
    assert any(found[0]) and all(each == found[0] for each in found)


def test_smaller_is_better_gates_the_right_way(trained, done, run, refused, own):
    done("eval", trained[0], *own, "--gate", "misses <= 90%")
    assert run("eval", trained[0], *own, "--gate", "misses <= 0.01%").code == 1
    refused(2, "eval", trained[0], *own, "--gate", "misses >= 0.5", says="better when smaller")
    refused(
        2, "eval", trained[0], *own, "--gate", "accuracy >= 0.5", says="figures: loss, worst_class, misses"
    )


def test_a_cross_entropy_of_ones_own_has_the_intervals_of_the_default(trained, done, own):
    few = ("barrier", *trained, "--data", "digits", "--limit", 100, "--points", 3, "--method", "wm", "--json")
    one, other = (done(*few, *more).json() for more in ((), ("--loss", "mine.py:cross")))
    for a, b in zip(one["rows"][:2], other["rows"][:2], strict=True):
        assert a["curves"]["test"] == b["curves"]["test"]
        assert a["middle"]["test"]["intervals"] == b["middle"]["test"]["intervals"]
    assert other["loss"] == {"name": "cross", "unit": "", "larger_is_better": False, "range": ["-inf", "inf"]}


def test_a_distillation_by_pytorchs_cross_entropy_is_that_of_the_default(trained, done, own):
    """Another function tells nothing of logits, also if it computes the same."""
    few = (
        "merge",
        *trained,
        "--data",
        "digits",
        "--method",
        "wm",
        "--repair",
        "distill",
        "--repair-samples",
        200,
    )
    losses = ((), ("--loss", "torch.nn:CrossEntropyLoss"), ("--loss", "mine.py:cross"))
    found = []
    for number, loss in enumerate(losses):
        done(*few, *loss, "-o", f"d{number}.safetensors")
        with safe_open(f"d{number}.safetensors", "pt") as file:
            found.append({name: file.get_tensor(name) for name in file.keys()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert not all(torch.equal(found[0][name], found[2][name]) for name in found[0])


def test_a_baseline_of_another_loss_metric_or_unit_is_refused(trained, done, refused, own, tmp_path):
    few = ("barrier", *trained, *own, "--points", 3, "--method", "wm")
    done(*few, "--json-file", "base.json")
    done(*few, "--baseline", "base.json")
    other = MINE.replace('"cents"', '"euros"')
    (tmp_path / "mine.py").write_text(other)
    refused(2, *few, "--baseline", "base.json", says="what is measured: regret (cents)")
    done(*few, "--json-file", "euros.json", "--gate", "misses <= 100%")
    kept = (tmp_path / "base.json").read_bytes()
    says = "what is measured: regret (cents)"
    refused(2, "gate", "euros.json", "--baseline", "base.json", says=says)
    refused(2, "promote", "euros.json", "base.json", says=says)
    assert (tmp_path / "base.json").read_bytes() == kept
    plain = ("barrier", *trained, "--data", "digits", "--limit", 200, "--points", 3, "--method", "wm")
    refused(2, *plain, "--baseline", "base.json", says="--loss: mine.py:regret there, None here")


@pytest.mark.parametrize(
    ("more", "metric"),
    [("", "Worst"), ("misses.unit = 'samples'", "misses"), ("misses.larger_is_better = True", "misses")],
)
def test_a_baseline_of_another_metric_alone_is_refused(trained, done, refused, own, tmp_path, more, metric):
    """By its name, its unit or which way is better, of the same loss."""
    few = ("barrier", *trained, *own[:4], "--points", 3, "--method", "wm", "--repair", "none", "--metric")
    done(*few, "mine.py:misses", "--json-file", "base.json")
    (tmp_path / "mine.py").write_text(f"{MINE}\n\n{more}\n")
    refused(
        2, *few, f"mine.py:{metric}", "--baseline", "base.json", says=("misses there", "Write a new baseline")
    )


def test_a_baseline_of_an_object_that_computes_several_figures(trained, done, refused, own):
    few = ("barrier", *trained, *own[:4], "--points", 3, "--method", "wm", "--repair", "none", "--metric")
    done(*few, "mine.py:Both", "--json-file", "base.json")
    told = done(*few, "mine.py:Both", "--baseline", "base.json", "--json").json()
    assert {gate["text"] for gate in told["gates"]} == {
        f"--baseline {k}" for k in ("chord", "both", "best_class")
    }
    refused(2, *few, "mine.py:Worst", "--baseline", "base.json", says="both, best class there")


INSIDE = '''
import types

import torch
from torch import nn


class Net(nn.Module):
    """As Hugging Face's models: given labels, it returns its loss."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, pixels, mask, labels=None):
        logits = self.head(torch.relu(self.inner(pixels.flatten(1) * mask)))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return types.SimpleNamespace(loss=loss, logits=logits)


def data():
    from rebasin_cli.datasets import open_data

    def batches(split):
        some = open_data("digits", split, limit=100, batch_size=20)
        return [{"pixels": x, "mask": torch.ones(len(x), 64), "labels": y} for x, y in some]

    return {split: batches(split) for split in ("train", "test")}


if __name__ == "__main__":
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        torch.save(Net().state_dict(), f"{name}.pt")
'''


def test_a_network_that_returns_its_loss_is_measured_by_it(done, refused, tmp_path, monkeypatch):
    (tmp_path / "inside.py").write_text(INSIDE)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("inside.py", run_name="__main__")
    own = ("--net", "inside.py:Net", "--data", "inside.py:data")
    told = done("eval", "a.pt", *own, "--json")
    assert "loss: the network's own" in told.err and "targets under 'labels'" in told.err
    assert "called without arguments, a dictionary of splits" in told.err
    found = told.json()
    assert found["measured"]["loss"]["name"] == "the network's own loss" and foreign(told.out) == []
    done("merge", "a.pt", "b.pt", *own, "--method", "auto", "--budget", "5G", "-o", "merged.safetensors")
    report = done("barrier", "a.pt", "b.pt", *own, "--method", "wm", "--points", 3, "--json").json()
    assert report["rows"][0]["curves"]["test"]["loss"][0] == pytest.approx(found["loss"])
    logits = done(
        "eval", "a.pt", *own, "--output", "logits", "--loss", "torch.nn.functional:cross_entropy", "--json"
    )
    assert logits.json()["loss"] == pytest.approx(found["loss"], rel=1e-5)


def test_a_data_loader_is_taken_as_it_is_and_the_key_of_the_targets_may_be_named(
    trained, done, refused, tmp_path
):
    (tmp_path / "mine.py").write_text(
        "from torch.utils.data import DataLoader\nfrom rebasin_cli.datasets import open_data\n"
        "source = open_data('digits', 'test', limit=60)\n"
        "pairs = [{'image': x, 'kind': y} for x, y in zip(*next(iter(source)))]\n"
        "loader = DataLoader(pairs, batch_size=16)\n"
    )
    told = done(
        "eval", trained[0], "--data", "mine.py:loader", "--targets", "kind", "--skip-checks", "--json"
    )
    assert told.json()["samples"] == 60 and "taken as it is, the same for every split" in told.err
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.one, self.two = nn.Linear(64, 9), nn.Linear(9, 10)\n"
        "    def forward(self, image):\n"
        "        return self.two(self.one(image.flatten(1)).relu())\n"
    )
    for name, seed in (("one.pt", 1), ("other.pt", 2)):
        torch.manual_seed(seed)
        layers = {"one": torch.nn.Linear(64, 9), "two": torch.nn.Linear(9, 10)}
        torch.save(torch.nn.ModuleDict(layers).state_dict(), name)
    inferred = ("--net", "net.py:Net", "--data", "mine.py:loader", "--targets", "kind")
    told = done("merge", "one.pt", "other.pt", *inferred, "--method", "am", "-o", "merged.pt")
    assert "proven" in told.out  # on a batch of the data, without its targets
    says = "has no 'sort': it has 'image', 'kind'"
    refused(6, "eval", trained[0], "--data", "mine.py:loader", "--targets", "sort", says=says)


def test_the_next_command_of_the_doctor_carries_what_it_was_given(trained, done, own):
    """Whatever of it that command takes: the line can be run as it stands."""
    more = ("--each", "--targets", "y", "--normalize", "unit", "--input", "1x1x8x8")
    given = (*own[:2], *own[4:], *more)
    told = shlex.split(done("doctor", *trained, *given, "--json").json()["next"])
    takes = {one.flag for one in operations.of(told[1])[0].options}
    assert takes > {"--loss", "--metric", "--each", "--targets", "--data", "--normalize"}
    asked = [pair for pair in itertools.pairwise(given) if pair[0] in takes and not pair[1].startswith("--")]
    assert len(asked) == 7 and set(asked) <= set(itertools.pairwise(told))
    assert "--each" in told and told.count("--metric") == 2


def test_a_recipe_may_have_gates_on_metrics_of_its_own(trained, run, own, tmp_path):
    step = f"models: ['{trained[0]}'], data: digits, metric: ['mine.py:misses'], gate: ['misses <= 90%']"
    (tmp_path / "recipe.yaml").write_text(f"rebasin: 1\nsteps:\n- eval: {{{step}}}\n")
    found = run("run", "recipe.yaml")
    assert found.code == 0 and "met  misses <= 90%" in found.out + found.err


def test_the_accuracy_of_every_class_is_told_the_worst_first(trained, done, run):
    told = done("eval", trained[0], "--data", "digits", "--json").json()
    classes = told["classes"]
    assert len(classes) == 10 and sum(one["samples"] for one in classes) == told["samples"]
    right = sum(one["samples"] * one["accuracy"] for one in classes)
    assert right / told["samples"] == pytest.approx(told["accuracy"])
    shares = [one["accuracy"] for one in classes]
    assert shares == sorted(shares) and all(
        lo <= a <= hi for a, (lo, hi) in zip(shares, (c["interval"] for c in classes), strict=True)
    )
    assert len(told["worst_classes"]) == 5
    assert (
        run("eval", trained[0], "--data", "digits", "--gate", f"class accuracy >= {shares[0] - 1e-6}").code
        == 0
    )
    missed = run("eval", trained[0], "--data", "digits", "--gate", "class accuracy >= 100%")
    assert missed.code == 1 and "the accuracy of the worst class is" in missed.err


def test_methods_and_repairs_are_chosen_by_the_figure_that_is_named(trained, done, refused, own, tmp_path):
    """What is tried has all figures by their names, and the best by the one that was named is taken."""
    auto = ("merge", *trained, *own[:2], *own[4:], "--method", "auto", "--budget", "20G", "--held-out", 0.5)
    for name, sign in (("misses", 1), ("worst class", -1)):
        key = name.replace(" ", "_")
        told = done(*auto, "--choose", name, "-o", f"{key}.safetensors", "--json")
        match = told.json()["match"]
        assert match["by"] == key and match["measured"]["loss"]["name"] == "regret"
        found = {(row["method"], row.get("repair")): row for row in match["tried"] if "metrics" in row}
        assert len(found) > 1 and all({"misses", "worst_class"} == {*r["metrics"]} for r in found.values())
        first = next(iter(found.values()))["metrics"][key]
        of = [r["metrics"][key] for (method, how), r in found.items() if method == match["chosen"]]
        assert min(sign * value for value in of) <= sign * first
        assert foreign(told.out + told.err) == []
    refused(2, *auto, "--choose", "accuracy", "-o", "no.safetensors", says=("unknown figure", "misses"))
    wm = ("merge", *trained, *own[:2], "--method", "wm", "--repair", "none", "--choose", "accuracy")
    refused(2, *wm, "-o", "no.safetensors", says="nothing is chosen")
    none = ("merge", *trained, *own[:2], "--method", "none", "--choose", "accuracy")
    refused(2, *none, "--repair", "none", "-o", "no.safetensors", says="as they are")
    refused(2, *none, "--soup", "greedy", "-o", "no.safetensors", says="lowers the loss")


def test_a_repair_is_chosen_by_a_loss_and_a_metric_of_ones_own(trained, done, own):
    done("merge", *trained, "--method", "wm", "--repair", "none", "-o", "merged.safetensors")
    done("align", *trained, "--method", "wm", "-o", "aligned.safetensors")
    ends = ("--endpoints", trained[0], "aligned.safetensors")
    scored = ("--data", "digits", *own[4:], "--repair", "auto", "--choose", "misses", "--force")
    told = done("repair", "merged.safetensors", *ends, *scored)
    said = next(line for line in told.err.splitlines() if "--repair auto chose" in line)
    assert "by misses: the merged model's held-out loss (regret) is" in said and "cents" in said
    assert "misses 0" in said and "worst_class" in said and foreign(told.out + told.err) == []
    assert "held out             by: misses, none: 0." in told.out


NO_NUMBER = ("is no finite number, so that nothing can be chosen by it", "rebasin eval")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("merge", ()),
        ("merge", ("--method", "wm", "--repair", "auto")),
        ("merge", ("--method", "wm", "--repair", "none", "--polish", "2steps")),
        ("merge", ("--choose", "unknown")),
        ("average", ()),
        ("repair", ()),
        ("barrier", ()),
    ],
)
def test_nothing_is_chosen_by_what_is_no_number(filled, refused, own, name, more):
    """Where the held-out loss, or the metric that was named, is infinite or NaN of all that was tried."""
    words = filled(name)
    if "--method" in more:
        del words[words.index("--method") : words.index("--budget") + 2]
    scored = ("--metric", "mine.py:unknown") if "--choose" in more else ("--loss", "mine.py:endless")
    says = ("held-out unknown" if "--choose" in more else "(endless)" if "--polish" not in more else "mean",)
    refused(6, *words, *own[:2], *scored, *more, says=(*says, *NO_NUMBER))
    assert not any(map(Path.exists, map(Path, ("m.safetensors", "s.safetensors", "r.safetensors"))))


def test_a_report_of_no_numbers_has_no_verdict(trained, done, own):
    few = ("--points", 3, "--method", "wm", "--repair", "none", "--loss", "mine.py:endless")
    told = done("barrier", *trained, *own[:4], *few)
    assert "No verdict: the loss at λ=½ of aligned and naive is no finite number" in told.out
    assert "Worse than" not in told.out


def test_a_report_chooses_as_merge_does(trained, done, refused, own):
    """The row that it marks as shipped is what `merge --choose` writes."""
    words = (*own[:2], *own[4:], "--method", "wm", "--repair", "auto", "--choose", "misses")
    report = done("barrier", *trained, *words, "--points", 3, "--json").json()
    assert report["choice"]["by"] == "misses"
    done("merge", *trained, *words, "-o", "chosen.safetensors")
    told = done("eval", "chosen.safetensors", *own[:2], *own[4:], "--json").json()
    shipped = next(row for row in report["rows"] if row["shipped"])["curves"]["test"]
    assert shipped["misses"][1] == pytest.approx(told["misses"])
    few = ("--method", "wm", "--repair", "none", "--points", 3, "--choose", "misses")
    refused(2, "barrier", *trained, *own, *few, says="nothing is chosen")


def test_what_a_curve_was_aligned_by_has_the_metrics_too(trained, done, own):
    words = ("--method", "auto", "--epochs", 1, "--limit", 100)
    told = done("curve", *trained, "--data", "digits", *own[4:], *words, "--json").json()
    assert any("misses" in row.get("metrics", {}) for row in told["match"]["tried"])


def test_no_class_may_lose_more_than_a_gate_says(trained, done, run, refused, own):
    """The five that lose most stand in every form of the report; a gate holds the first against its limit."""
    words = ("barrier", *trained, *own[:4], "--method", "wm", "--points", 3, "--repair", "none", "--force")
    told = done(*words, "--report", "report", "--json").json()
    shipped = next(row for row in told["rows"] if row["shipped"])
    classes = shipped["middle"]["test"]["classes"]
    drops = [one["ends"] - one["accuracy"] for one in classes]
    assert len(classes) == 5 and drops == sorted(drops, reverse=True) and drops[0] > 0
    assert all(low <= one["accuracy"] <= high for one in classes for low, high in [one["interval"]])
    split = done("eval", trained[0], *own[:4], "--json").json()["classes"]
    other = done("eval", trained[1], *own[:4], "--json").json()["classes"]
    ends = [next(c["accuracy"] for c in one if c["class"] == classes[0]["number"]) for one in (split, other)]
    assert sum(ends) / 2 == pytest.approx(classes[0]["ends"])
    for form, says in (("md", "class** lost most"), ("html", "Classes that lose most")):
        path = next(Path("report").glob(f"*.{form}"))
        assert says in path.read_text(encoding="utf-8")
    report = next(Path("report").glob("*.json"))
    for gate, code in ((f"test class accuracy drop <= {drops[0]}", 0), ("class accuracy drop <= 0.0001", 1)):
        assert run("gate", report, "--gate", gate).code == code
    says = "the largest fall of a class's accuracy"
    assert says in run("gate", report, "--gate", "class accuracy drop <= 0").err
    mine = ("barrier", *trained, *own, "--gate", "class accuracy drop <= 0.1")
    refused(2, *mine, says="class")


def test_two_classes_are_told_as_more_are(trained, done, tmp_path):
    """One of them may be rare, and the first that a merge forgets."""
    (tmp_path / "mine.py").write_text(
        "from rebasin_cli.datasets import open_data\n"
        "def loader(split):\n"
        "    return [(x[y < 2], y[y < 2]) for x, y in open_data('digits', split, limit=200)]\n"
    )
    given = ("--data", "mine.py:loader")
    told = done("eval", trained[0], *given, "--json")
    assert {*told.json()["worst_classes"]} == {"0", "1"} and "called with the name of a split" in told.err
    few = ("--points", 3, "--method", "wm", "--repair", "none", "--markdown", "page.md")
    done("barrier", *trained, *given, *few)
    rows = Path("page.md").read_text(encoding="utf-8").partition("lost most")[2].splitlines()
    assert {line.split("|")[1].strip() for line in rows[2:6] if line.startswith("|")} >= {"0", "1"}


def test_one_sample_has_no_intervals_and_the_report_says_so(trained, done):
    words = ("--data", "digits", "--limit", 1, "--method", "wm", "--points", 3, "--repair", "none")
    told = done("barrier", *trained, *words, "--skip-checks", "--json").json()
    assert any("one was measured" in note for note in told["notes"])
    assert not any(row["middle"]["test"]["intervals"] for row in told["rows"] if "test" in row["middle"])


@pytest.mark.sweep
def test_samples_that_both_models_had_right_and_the_merge_has_not(trained, done, run, refused, own):
    """`barrier` and `eval --against` count the same negative flips; gates hold them, by any metric."""
    words = ("barrier", *trained, "--data", "digits", "--method", "wm", "--points", 3, "--repair", "none")
    report = done(*words, "--report", "report", "--json").json()
    row = next(row for row in report["rows"] if row["shipped"])
    flips = row["middle"]["test"]["flips"]
    done("merge", *trained, "--method", "wm", "--repair", "none", "-o", "merged.safetensors")
    ends = ("--against", trained[0], "--against", trained[1])
    alone = done("eval", "merged.safetensors", "--data", "digits", *ends, "--json").json()
    assert {key: alone["flips"][key] for key in flips} == flips
    one, other, merged = (
        torch.tensor(_right(path), dtype=torch.bool) for path in (*trained, "merged.safetensors")
    )
    lost = one & other & ~merged
    assert lost.sum() == flips["lost"] > 0 and (one & other).sum() == flips["both"]
    assert lost.nonzero().flatten().tolist() == flips["which"]
    assert flips["interval"][0] < flips["lost"] / flips["samples"] < flips["interval"][1]
    assert flips["gained"] == (merged & ~one & ~other).sum()
    assert sum(one["lost"] for one in flips["classes"]) <= flips["lost"]
    share = flips["lost"] / flips["samples"]
    for gate, code in ((f"test negative flips <= {share}", 0), ("forgotten <= 0.01%", 1)):
        assert run("gate", "report/report.json", "--gate", gate).code == code
        assert run("eval", "merged.safetensors", "--data", "digits", *ends, "--gate", gate).code == code
    assert "negative flips" in Path("report/report.md").read_text() and "egative flips" in done(*words).out
    refused(
        2, "eval", "merged.safetensors", "--data", "digits", "--gate", "forgotten <= 1%", says="--against"
    )
    mine = ("--metric", "mine.py:misses", "--json")
    by = done("eval", "merged.safetensors", "--data", "digits", *ends, *mine).json()["flips"]
    assert by["metric"] == "misses" and by["which"] == flips["which"]
    needs = "a --metric that gives 0 or 1 for every sample"
    few = ("--limit", 50, "--gate", "negative flips <= 100%", "--metric", "mine.py:Worst")
    missed = run(*words, *few)
    assert (
        missed.code == 1
        and f"was not measured or is not a number, wanted at most 1; it needs {needs}" in missed.err
    )
    mine = ("--metric", "mine.py:Worst", "--loss", "mine.py:regret")
    refused(2, "eval", "merged.safetensors", "--data", "digits", *ends, *mine, says="which samples are right")


def _right(path):
    """Of every test sample whether a plain loop has it right."""
    from safetensors.torch import load_file

    from rebasin_cli.datasets import open_data

    tensors = load_file(path) if str(path).endswith(".safetensors") else torch.load(path)
    layers = sorted({name.rpartition(".")[0] for name in tensors}, key=lambda name: (name == "head", name))
    found = []
    for x, y in open_data("digits", "test"):
        x = x.flatten(1)
        for layer in layers:
            x = torch.nn.functional.linear(x, tensors[f"{layer}.weight"], tensors[f"{layer}.bias"])
            x = x.relu() if layer != layers[-1] else x
        found += (x.argmax(1) == y).tolist()
    return found


def test_every_pair_counts_in_what_must_not_be_forgotten(trained, done, run):
    """The largest drop of a class, and the largest share of negative flips, of any pair."""
    few = ("--data", "digits", "--limit", 200, "--method", "wm", "--points", 3, "--repair", "none")
    copy = f"{trained[0]},{trained[0]}"  # loses nothing
    first = done("barrier", trained[0], trained[0], "--pair", f"{trained[0]},{trained[1]}", *few, "--json")
    other = done("barrier", *trained, "--pair", copy, *few, "--json").json()
    Path("first.json").write_text(first.out)
    drops = [pair["class_drop"]["aligned"]["test"] for pair in other["pairs"]]
    shares = [pair["flips"]["aligned"]["test"] for pair in other["pairs"]]
    assert drops[0] > drops[1] == 0 and shares[0] > shares[1] == 0
    for words, figure in (("class accuracy drop", drops[0]), ("negative flips", shares[0])):
        for limit, code in ((figure, 0), (figure * 0.9, 1)):
            told = run("gate", "first.json", "--gate", f"{words} <= {limit}")
            assert told.code == code and "the worst of 2 pairs" in told.out + told.err


FEW = """
import torch
from rebasin_cli.datasets import open_data


def loader(split):
    batches = list(open_data("digits", split, limit=48, batch_size=4))
    return [(x, torch.where(torch.arange(4) == k % 4, y, -100)) for k, (x, y) in enumerate(batches)]


def masked(split):
    some = loader(split)
    return [*((x, torch.full_like(y, -100)) for x, y in some[:5]), *some[5:]]
"""


def test_targets_that_do_not_count_leave_samples_to_draw_from(tmp_path, trained, done, refused):
    """As many samples that count as there are batches are samples; some batches may have none."""
    (tmp_path / "mine.py").write_text(FEW)
    words = ("barrier", *trained, "--method", "wm", "--points", 3, "--repair", "none", "--skip-checks")
    report = done(*words, "--data", "mine.py:loader", "--json").json()
    assert not any("drawn over" in note or "mean of a batch" in note for note in report["notes"])
    low, high = report["rows"][0]["middle"]["test"]["intervals"]["loss"]
    assert low < high
    words = ("merge", *trained, "--data", "mine.py:masked", "--method", "ste", "--epochs", 1, "--json")
    match = done(*words, "-o", "s.safetensors").json()["match"]
    assert all(isinstance(row["held_out_loss"], float) for row in match["history"])
    (tmp_path / "mine.py").write_text(FEW.replace("some[:5]", "some[:12]"))
    refused(6, *words, "-o", "t.safetensors", says="no target of the held-out samples counts")


WRONG = '''
import torch
from torch import nn


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.n, self.b = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10)

    def forward(self, x):
        return self.b(self.n(self.a(x.flatten(1))).relu())


def loader(split):
    from rebasin_cli.datasets import open_data

    return list(open_data("digits", split, limit=30, batch_size=1))


def fifteen(split):
    from rebasin_cli.datasets import open_data

    return list(open_data("digits", split, limit=30, batch_size=15))


def none(split):
    return [(x, None) for x, _ in loader(split)]


def three(split):
    return [(x, y, "from a camera") for x, y in loader(split)]


def log(outputs, targets):
    return (outputs[:, 0] * 0 - 1).log()


def longer(outputs, targets):
    return torch.zeros(len(outputs) + 1)


class Share:
    """Fails where all is added up."""

    def update(self, outputs, targets):
        self.right = (outputs.argmax(1) == targets).sum()

    def compute(self):
        return float(self.right) / 0

    def reset(self):
        pass


class Endless:
    def update(self, outputs, targets):
        pass

    def compute(self):
        return 1.0


class Fickle:
    """It computes other figures after its first model."""

    def __init__(self):
        self.known = 0

    def update(self, outputs, targets):
        pass

    def compute(self):
        self.known += 1
        return {"first": 1.0} if self.known == 1 else {"then": 1.0}

    def reset(self):
        pass


if __name__ == "__main__":
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        torch.save(Normed().state_dict(), f"{name}.pt")
'''


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    """Two networks with norms, and the options of such batches of one sample."""
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("wrong.py", run_name="__main__")
    return ("--net", "wrong.py:Normed", "--skip-checks", "--data")


FICKLE = ("--metric wrong.py:Fickle", ("computes first, then of one model",))
ONE = ("a batch is one sample, of which the network's norms have no variance", "--batch-size")


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (
            "eval a.pt {} wrong.py:loader --loss wrong.py:log",
            6,
            ("log is NaN on sample 0 of batch 0", "logarithm"),
        ),
        (
            "eval a.pt {} wrong.py:loader --loss wrong.py:longer",
            6,
            ("longer is float32 (2,)", "has 1 sample", "(N,)"),
        ),
        (
            "eval a.pt {} wrong.py:loader --metric wrong.py:Share",
            6,
            ("Share fails in compute", "in wrong.py:", "called once, after all batches"),
        ),
        (
            "eval a.pt {} wrong.py:loader --metric wrong.py:Endless",
            2,
            ("the metric Endless has no reset", "update("),
        ),
        ("eval a.pt {} wrong.py:none", 6, ("targets are NoneType", "--loss module:function")),
        ("eval a.pt {} wrong.py:three", 6, ("is tuple of 3", "left out")),
        ("eval a.pt {} wrong.py:loader --each", 2, ("--each asks a --loss", "Leave it out")),
        (
            f"barrier a.pt b.pt {{}} wrong.py:loader --points 3 --method none --repair none {FICKLE[0]}",
            6,
            FICKLE[1],
        ),
        (f"plane a.pt b.pt {{}} wrong.py:fifteen --points 3 {FICKLE[0]}", 6, FICKLE[1]),
        ("barrier a.pt b.pt {} wrong.py:loader --points 3 --method wm", 6, ONE),
        ("merge a.pt b.pt {} wrong.py:loader --method wm --repair reset -o m.pt", 6, ONE),
        pytest.param(
            "merge a.pt b.pt {} wrong.py:loader --method wm --repair distill -o m.pt",
            6,
            ONE,
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            "merge a.pt b.pt {} wrong.py:loader --method ste --repair none -o m.pt",
            6,
            ONE,
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            "merge a.pt b.pt {} wrong.py:loader --method pam --repair none -o m.pt",
            6,
            ONE,
            marks=pytest.mark.sweep,
        ),
        ("merge a.pt b.pt {} wrong.py:loader --method auto --budget 5G -o m.pt", 6, ONE),
    ],
)
def test_what_is_wrong_with_a_users_own_is_one_message_with_the_next_step(
    wrong, refused, command, code, says
):
    words = [w for word in command.split() for w in (wrong if word == "{}" else (word,))]
    refused(code, *words, says=says)
    assert not Path("m.pt").exists()
