"""rebasin doctor."""

import html
import shlex
from pathlib import Path

import pytest
import torch

from rebasin_cli import nets
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands.doctor import next_command
from rebasin_cli.measure.diagnosis import Diagnosis
from rebasin_cli.measure.diagnosis.facts import VERDICTS
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.symmetry import permutation

from .conftest import fresh, tensors


@pytest.fixture
def models(trained):
    return [str(path) for path in trained]


def written(path, values):
    write_safetensors(path, values)
    return path


def noise(values, share=0.01):
    rng = torch.Generator().manual_seed(0)
    return {n: t + share * t.std() * torch.randn(t.shape, generator=rng) for n, t in values.items()}


def shuffled(values):
    fitted = fit(library.load("mlp"), {name: tuple(tensor.shape) for name, tensor in values.items()})
    perms = permutation.random(fitted.words, torch.Generator().manual_seed(5))
    return dict(permutation.permuted(values, fitted, perms))


def test_two_small_seeds(models, done):
    outcome = done("doctor", *models)
    assert "\n verdict  doubtful" in outcome.out and "layers of 16 units are narrow" in outcome.out
    assert " ! The narrowest layer" in outcome.out and "h0" in outcome.out and "½ aligned" in outcome.out
    (line,) = (line for line in outcome.out.splitlines() if line.startswith(" next "))
    assert line.split(maxsplit=1)[1] == shlex.join(
        ["rebasin", "barrier", *models, "--method", "auto", "--report", "report", "--limit", "1000"]
    )


def test_json(models, done):
    found = done("doctor", *models, "--json").json()
    assert found["verdict"] in VERDICTS and found["unseen"] == [] and found["files"] == models
    assert [row["method"] for row in found["tries"]] == ["wm", "dual", "am", "ste", "polish"]
    assert {"cosine", "in_place", "over_chance", "norm_ratio", "midpoint_aligned", "dead"} <= set(
        found["facts"]
    )
    assert all(set(fact) == {"value", "says", "warns"} for fact in found["facts"].values())
    assert [row["word"] for row in found["words"]] == ["h0"]
    assert {row["tensor"] for row in found["tensors"]} == {"layers.0.weight", "head.weight"}


@pytest.mark.sweep
def test_every_next_command_runs(trained, done, run, tmp_path):
    """In a folder and with names that a shell would take apart."""
    a = written("my a.safetensors", tensors(trained[0]))
    pairs = {
        "identical": a,
        "average": written("fine tune.safetensors", noise(tensors(a))),
        "relabelled": written("it's b.safetensors", noise(shuffled(tensors(a)))),
        "doubtful": written("seed 2.safetensors", tensors(trained[1])),
        "nothing-in-common": fresh(tmp_path / "new.safetensors", width=16, depth=1),
    }
    for verdict, b in pairs.items():
        options = ["--data", "digits"] if verdict != "relabelled" else []
        found = done("doctor", a, b, *options, "--json").json()
        assert found["verdict"] == verdict
        words = shlex.split(found["next"])
        assert words[0] == "rebasin" and str(a) in words
        outcome = run(*words[1:], "--skip-checks") if words[1] == "barrier" else run(*words[1:])
        assert outcome.code == 0, (words, outcome.err)
        if "-o" in words:
            (tmp_path / "merged.safetensors").unlink()


def test_without_spec_and_network_the_tensors_alone_tell(done, run, tmp_path):
    """Of names that no built-in spec has; next is a command that runs, or that wants the network's file."""

    def own(seed):
        rng = torch.Generator().manual_seed(seed)
        return {f"part{k}.w": torch.randn(24, 30, generator=rng) for k in range(4)}

    a = written("a b.safetensors", own(1))
    pairs = {
        "identical": (a, "inspect"),
        "kin": (written("kin.safetensors", noise(own(1), 0.1)), "merge"),
        "strangers": (written("other.safetensors", own(2)), "align"),
        "relabelled": (written("moved.safetensors", {n: t.flip(0) for n, t in own(1).items()}), "verify"),
        "undecided": (written("far.safetensors", noise(own(1), 4.0)), "doctor"),
    }
    for verdict, (b, command) in pairs.items():
        found = done("doctor", a, b, "--html", f"{verdict}.html", "--json").json()
        assert found["verdict"] == verdict and found["spec"] is None and found["unseen"]
        words = shlex.split(found["next"])
        assert words[:2] == ["rebasin", command] and str(a) in words
        if "--net" not in words:
            assert run(*words[1:]).code == 0
        assert f"verdict  {verdict}" in done("doctor", a, b).out and Path(f"{verdict}.html").exists()
    assert "file.py:factory" in done("doctor", a, pairs["strangers"][0]).out


def test_what_is_averaged_as_it_is_and_looks_like_strangers_is_told(trained, pair, done):
    said = "look like strangers."
    plain = ["--method", "none", "--repair", "none", "--force"]
    assert said in done("merge", *pair, *plain, "-o", "m.safetensors").err
    kin = written("kin.safetensors", noise(tensors(pair[0])))
    assert said not in done("merge", pair[0], kin, *plain, "-o", "m.safetensors").err
    done("align", *pair, "-o", "aligned.safetensors")
    assert said not in done("merge", pair[0], "aligned.safetensors", *plain, "-o", "m.safetensors").err
    told = done("merge", pair[0], kin, pair[1], *plain, "-o", "m.safetensors").err
    assert f"warning: {pair[1]} and {pair[0]} look like strangers." in told
    assert "rebasin merge, by any --method but none" in told  # also where rebasin average says it
    short = ["--data", "digits", "--limit", "100", "--points", "3", "--repair", "none", "--skip-checks"]
    assert said in done("barrier", *pair, "--method", "none", *short).err
    assert said not in done("barrier", *pair, "--method", "wm", *short).err


def test_an_exact_relabelling_is_to_be_verified(pair, relabelled, done, run):
    found = done("doctor", pair[1], relabelled, "--json").json()
    assert found["verdict"] == "relabelled" and found["next"].startswith("rebasin verify ")
    assert "answer               yes" in run(*shlex.split(found["next"])[1:]).out


def test_what_lacks_data_or_a_network_is_named(pair, done, tmp_path):
    found = done("doctor", *pair)
    assert "not looked at: activations: data is missing" in found.out and "--data NAME" in found.out
    assert "½" not in found.out
    (tmp_path / "own.yaml").write_text('tensors:\n  in.weight: "h ."\n  out.weight: ". h"\n')
    for seed, name in enumerate("xy"):
        torch.manual_seed(seed)
        written(f"{name}.safetensors", {"in.weight": torch.randn(8, 64), "out.weight": torch.randn(3, 8)})
    own = ["doctor", "x.safetensors", "y.safetensors", "--spec", "own.yaml"]
    found = done(*own, "--data", "digits", "--json").json()
    assert found["unseen"] == [
        "activations: the network is missing",
        "Give the network with --net file.py:factory",
    ]
    assert found["next"] == "rebasin inspect x.safetensors"


def test_the_users_own_options_come_along(trained, done):
    b = written("b c.safetensors", noise(tensors(trained[0])))
    found = done(
        "doctor", trained[0], b, "--spec", "mlp", "--data", "digits", "--normalize", "unit", "--json"
    )
    words = shlex.split(found.json()["next"])
    assert words[:2] == ["rebasin", "merge"] and words[words.index("--method") + 1] == "none"
    for option, value in (("--spec", "mlp"), ("--data", "digits"), ("--normalize", "unit")):
        assert words[words.index(option) + 1] == value


def test_recorded_data_that_are_gone_are_no_error(trained, done, monkeypatch):
    from rebasin_cli.errors import DataError

    def gone(*args, **kwargs):
        raise DataError("digits is not here")

    monkeypatch.setattr("rebasin_cli.session.samples.open_data", gone)
    found = done("doctor", *trained, "--json").json()
    assert "digits is not here" in found["unseen"] and found["next"].startswith("rebasin align ")
    assert any("a refit on noise" in text for text in found["unseen"])  # narrow, and nothing to look at
    monkeypatch.setattr("rebasin_cli.commands.doctor.REFITTED", 8)
    assert not any("noise" in text for text in done("doctor", *trained, "--json").json()["unseen"])


def test_batchnorm(resnets, done):
    found = done("doctor", *resnets, "--data", "npz:pictures.npz", "--json").json()
    assert found["verdict"] == "nothing-in-common" and found["facts"]["running_statistics"]["warns"]
    near = written(
        "near.safetensors",
        {n: t * 1.01 if t.is_floating_point() else t for n, t in tensors(resnets[0]).items()},
    )
    found = done("doctor", resnets[0], near, "--json").json()
    assert found["verdict"] == "average" and found["next"].endswith("--method none --repair none")
    done(*shlex.split(found["next"])[1:])


@pytest.mark.parametrize("net", ["tinyten", "mlp"])
def test_what_is_measured_next_is_what_auto_chooses(net):
    """Before, a pair was sent to a repair by which it lost."""
    network = nets.build(net, input_shape=(3, 32, 32), classes=10)
    fitted = fit(library.load(net), {name: tuple(t.shape) for name, t in network.state_dict().items()})
    found = Diagnosis("doubtful", "", (), (), ())
    words = shlex.split(next_command(found, Path("a"), Path("b"), fitted, {}, able=True))
    assert words[words.index("--method") + 1] == "auto" and "--repair" not in words
    alone = next_command(found, Path("a"), Path("b"), fitted, {}, able=False)
    assert alone == "rebasin align a b"  # nothing to look at activations with


def test_what_is_refused(models, pair, refused):
    refused(3, "doctor", models[0], "nowhere.safetensors", says="nowhere.safetensors")
    refused(4, "doctor", models[0], pair[0], says="do not have the same architecture")
    refused(2, "doctor", *models, "--data", "digitz", says="Did you mean digits?")
    refused(2, "doctor", *models, "--net", "nowhere.py:net", says="nowhere.py")
    refused(2, "doctor", *models, "--device", "gpu", says="unknown device")


def test_a_page(models, done, tmp_path, refused):
    done("doctor", *models, "--html", "page.html")
    page, found = (tmp_path / "page.html").read_text(), done("doctor", *models, "--json").json()
    assert found["verdict"] in page and "rebasin doctor " in page and "Tensor by tensor" in page
    assert found["next"] in html.unescape(page) and found["advice"] in html.unescape(page)
    assert all(fact["says"] in html.unescape(page) for fact in found["facts"].values())
    refused(2, "doctor", *models, "--html", "page.html", says="--force")
    done("doctor", *models, "--html", "page.html", "--force")


def test_a_page_without_data_and_of_a_name_that_is_markup(pair, done, tmp_path):
    odd = pair[0].rename(tmp_path / "<script>1<&.safetensors")
    done("doctor", odd, pair[1], "--html", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;1&lt;&amp;" in page
    assert "What was not looked at" in page


def test_of_several_processes_only_the_first_writes_the_page(models, done, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    done("doctor", *models, "--html", "page.html")
    assert not (tmp_path / "page.html").exists()
    monkeypatch.setenv("RANK", "0")
    done("doctor", *models, "--html", "page.html")
    assert (tmp_path / "page.html").exists()
