"""rebasin signature."""

import pytest


@pytest.fixture
def models(trained):
    return [str(path) for path in trained]


def test_a_line_a_word(models, done):
    out = done("signature", *models).out
    assert " wm, 1,437 samples of digits\n" in out and "Correlation of matched units" in out
    (line,) = (line.split() for line in out.splitlines() if line.split()[:1] == ["h0"])
    assert line[1] == "16" and float(line[5]) > float(line[3]) + 0.2


def test_json_and_the_ways_to_align(models, done):
    def after(*options):
        outcome = done("signature", *models, "--json", *options).json()
        assert outcome["written"] is outcome["stability"] is None
        return outcome["match"]["method"], outcome["signature"][0]["after"]["mean"], outcome

    method, by_weights, outcome = after()
    (row,) = outcome["signature"]
    assert method == "wm" and row["word"] == "h0" and row["units"] == 16
    assert row["before"]["mean"] < by_weights and outcome["samples"] == 1437
    method, by_activations, _ = after("--method", "am")
    assert method == "am" and by_activations >= by_weights
    assert after("--method", "none")[:2] == ("none", pytest.approx(row["before"]["mean"]))
    done("align", *models, "-o", "b.safetensors")
    assert after("--perm", "b.perm.safetensors")[:2] == ("given permutations", pytest.approx(by_weights))
    few = after("--limit", "100")
    assert few[2]["samples"] == 100 and few[1] != by_weights


def test_a_picture(models, done, tmp_path, refused):
    outcome = done("signature", *models, "--plot", "s.png")
    assert " written  s.png" in outcome.out
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    refused(2, "signature", *models, "--plot", "s.png", says="s.png exists")
    done("signature", *models, "--plot", "s.png", "--force")


def test_stability(models, done):
    options = ("--method", "am", "--stability", "60,240,1400")
    outcome = done("signature", *models, *options, "--json").json()
    stable = outcome["stability"]
    assert stable["samples"] == [60, 240, 1400] and outcome["samples"] == 1400
    assert len(stable["words"]["h0"]) == 3 and stable["words"]["h0"][2] == stable["overall"][2] == 1
    assert 0.2 < stable["overall"][0] <= 1
    out = done("signature", *models, *options).out
    assert "as on" in out and "all" in out and f"{stable['overall'][0]:.1%}" in out


def test_what_is_refused(models, refused):
    signature = ("signature", *models)
    refused(2, *signature, "--stability", "10,20", says="--method am, without --perm")
    am = (*signature, "--method", "am")
    refused(2, *am, "--stability", "10,20", "--limit", "5", says="both say how many samples")
    refused(2, *am, "--stability", "10", says="--stability '10' is not two counts")
    refused(2, *am, "--stability", "0,10", says="is not two counts")
    refused(
        6, *am, "--stability", "100,9999", says=("the data has 1437 samples", "Ask for counts up to 1437")
    )
    refused(2, *signature, "--method", "wn", says="Did you mean wm")
    refused(2, *signature, "--data", "digitz", says="Did you mean digits?")
    refused(2, *signature, "--cost", "inner", says="the method wm has no such option")
    refused(3, "signature", models[0], "nowhere.safetensors", says="nowhere.safetensors")


def test_a_network_is_needed(done, refused, tmp_path):
    import torch

    from rebasin_cli.checkpoints.writer import write_safetensors

    for name in "ab":
        write_safetensors(
            f"{name}.safetensors", {"in.weight": torch.randn(8, 64), "out.weight": torch.randn(3, 8)}
        )
    (tmp_path / "own.yaml").write_text('tensors:\n  in.weight: "h ."\n  out.weight: ". h"\n')
    refused(
        2, "signature", "a.safetensors", "b.safetensors", "--spec", "own.yaml", "--data", "digits",
        says=("names no network", "--net"),
    )  # fmt: skip


def test_an_unknown_method_is_told_before_what_it_would_need(pair, refused):
    for more in (("--limit", 1), ("--stability", "20,50")):
        refused(
            2, "signature", *pair, "--method", "amm", *more, says=("unknown method 'amm'", "Did you mean am")
        )


def test_a_page(models, done, tmp_path, refused):
    outcome = done("signature", *models, "--html", "deep/page.html", "--plot", "deep/s.png", "--json")
    assert outcome.json()["written"] == ["deep/s.png", "deep/page.html"]
    page = (tmp_path / "deep" / "page.html").read_text()
    assert "<h1>Signature of " in page and "h0 after alignment: " in page
    assert "rebasin signature " in page and "--html deep/page.html" in page
    refused(2, "signature", *models, "--html", "deep/page.html", says="--force")
    done("signature", *models, "--html", "deep/page.html", "--force", "-q")
    done("signature", *models, "-m", "am", "--stability", "50,100", "--html", "stable.html", "-q")
    assert "as on 50" in (tmp_path / "stable.html").read_text()


def test_a_curves_middle_is_compared_with_its_first_end(models, done, refused, tmp_path):
    done("curve", *models, "--epochs", 2, "--limit", 256, "-o", "ab.curve.safetensors")
    line = ("signature", *models, "--curve", "ab.curve.safetensors")
    found = done(*line, "--html", "page.html", "--json").json()
    (row,) = found["signature"]
    assert found["curve"]["aligned"] and {"before", "after", "line", "ends"} <= row.keys()
    assert row["ends"]["mean"] < row["before"]["mean"] <= 1
    ends = done("signature", *models, "--json").json()["signature"][0]["after"]["mean"]
    assert row["ends"]["mean"] == pytest.approx(ends)
    out = done(*line, "-q").out
    assert "A and the curve at t = ½, as it is and once its units are matched" in out and "line ½" in out
    assert "line ½" in (tmp_path / "page.html").read_text()
    refused(2, *line, "-m", "wm", says="--method wm: a curve has its own permutation of B")
    refused(2, "signature", *models[::-1], "--curve", "ab.curve.safetensors", says="the other way round")


def test_bounds_are_lower_aligned_and_hold(models, done, refused, resnets):
    line = ("signature", *models, "--method", "am", "--cost", "l2", "--at", "pre", "--bounds")
    found = done(*line, "--json").json()["bounds"]
    plain, aligned = found["unaligned"], found["aligned"]
    assert aligned["loss"] < aligned["bound"] < plain["bound"] and aligned["integral"] < plain["integral"]
    (layer,) = aligned["layers"]
    assert layer["actual"] <= layer["bound"] * (1 + 1e-9) < plain["layers"][0]["bound"]
    assert found["samples"] == 1000 and all(row["change"] <= row["bound"] for row in found["huber"])
    assert "Bounds at t = ½, 1,000 samples" in done(*line, "-q").out
    stable = ("signature", *models, "-m", "am", "--stability", "20,40", "--bounds")
    refused(2, *stable, says="--stability: bounds are of the straight line")
    norms = ("signature", *resnets, "--data", "npz:pictures.npz", "--bounds", "-m", "none")
    refused(6, *norms, says="plain feed-forward networks with ReLU")
