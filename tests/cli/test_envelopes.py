"""`-o NAME.pth`: the first file's envelope with new weights, and what lies beside weights in the metadata."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rebasin_cli.checkpoints.checkpoint import open_checkpoint


class Net(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)


def saved(name, seed, **more):
    """As a training script saves: names behind `module.`, an optimizer, an average, arguments, a record."""
    state = {f"module.{key}": value for key, value in Net(seed).state_dict().items()}
    run = {"optimizer": {"state": {0: {"exp_avg": torch.ones(4, 3)}}, "param_groups": [{"lr": 0.1}]}}
    run |= {"ema": Net(9).state_dict(), "best_acc1": 76.1, "args": Namespace(arch="small", api_key="hunter2")}
    torch.save({"epoch": 3, "config": {"width": (4, 3)}, "state_dict": state, **run, **more}, name)


def mean_of(*seeds):
    states = [Net(seed).state_dict() for seed in seeds]
    return {n: (sum(s[n].double() for s in states) / len(seeds)).float() for n in states[0]}


MERGE = ("merge", "a.pt", "b.pt", "--method", "none", "-o")
AVERAGE = ("average", "a.pt", "b.pt", "-o")


def test_an_output_called_pth_is_the_first_file_with_new_weights(done):
    saved("a.pt", 1)
    saved("b.pt", 2, epoch=5)
    done(*MERGE, "m.pth")
    found = torch.load("m.pth", weights_only=True)
    state = found.pop("state_dict")
    args = {"arch": "small", "api_key": "hunter2"}  # in a file of his own
    assert found == {"epoch": 3, "config": {"width": (4, 3)}, "args": args}  # no moments, averages, records
    assert all(torch.equal(state[f"module.{name}"], value) for name, value in mean_of(1, 2).items())
    Net(0).load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    again = Path("m.pth").read_bytes()
    done(*MERGE, "m.pth", "--force")
    assert Path("m.pth").read_bytes() == again


def test_what_was_done_is_told_beside_and_only_of_these_weights(done):
    saved("a.pt", 1)
    saved("b.pt", 2)
    done(*MERGE, "m.pth")
    assert open_checkpoint("m.pth").metadata["rebasin.command"] == "merge"
    assert "rebasin.inputs" in done("inspect", "m.pth").out
    Path("m.pth").write_bytes(Path("a.pt").read_bytes())
    other = open_checkpoint("m.pth")
    assert not other.metadata and "m.pth.rebasin.json lies beside other weights" in other.notes[-1]
    for odd in ("", "[1]", '{"records": 1}', '{"records": "x", "metadata": {"a": 1}}', "[" * 9999):
        Path("m.pth.rebasin.json").write_text(odd)
        assert open_checkpoint("m.pth").metadata == {}, odd


def test_parts_are_written_back_where_they_were_and_bare_files_stay_bare(done):
    for name, seed in (("a.pt", 1), ("b.pt", 2)):
        torch.save(
            {"gan": [Net(seed).state_dict(), {"critic": {"w": torch.full((2, 2), float(seed))}}]}, name
        )
    done(*MERGE, "m.ckpt")
    first, second = torch.load("m.ckpt")["gan"]
    assert torch.equal(second["critic"]["w"], torch.full((2, 2), 1.5))
    assert all(torch.equal(first[name], value) for name, value in mean_of(1, 2).items())
    for name, seed in (("a.pt", 1), ("b.pt", 2)):
        save_file(Net(seed).state_dict(), name.replace("pt", "safetensors"))
    done("merge", "a.safetensors", "b.safetensors", "--method", "none", "-o", "m.bin", "--out-dtype", "bf16")
    bare = torch.load("m.bin", weights_only=True)
    assert {t.dtype for t in bare.values()} == {torch.bfloat16} and set(bare) == set(Net(0).state_dict())


def test_an_aligned_model_keeps_its_own_envelope(done, pair):
    weights = [load_file(path) for path in pair]
    torch.save({"epoch": 1, "model": weights[0]}, "a.pt")
    torch.save({"epoch": 2, "model": {f"module.{n}": t for n, t in weights[1].items()}}, "b.pt")
    done("align", "a.pt", "b.pt", "-o", "moved.pt")
    done("align", *pair, "-o", "plain.safetensors")
    found = torch.load("moved.pt", weights_only=True)
    assert found["epoch"] == 2
    moved = load_file("plain.safetensors")
    assert all(torch.equal(found["model"][f"module.{name}"], value) for name, value in moved.items())
    assert Path("moved.perm.safetensors").exists()


def test_plain_values_that_all_have_go_into_the_metadata_without_secrets(done):
    saved("a.pt", 1)
    saved("b.pt", 2, epoch=5, loss=float("nan"))
    done(*MERGE, "m.safetensors")
    beside = json.loads(open_checkpoint("m.safetensors").metadata["rebasin.beside"])
    assert beside == {"args": {"arch": "small", "api_key": "…"}, "config": {"width": [4, 3]}}
    done("merge", "m.safetensors", "m.safetensors", "--method", "none", "-o", "again.safetensors")
    assert json.loads(open_checkpoint("again.safetensors").metadata["rebasin.beside"]) == beside


def test_what_cannot_be_such_a_file_is_refused(refused, pair):
    saved("a.pt", 1)
    saved("b.pt", 2)
    refused(2, *MERGE, "m.pth", "--out-shard-size", "1KB", says="shards are safetensors")
    refused(2, *MERGE, "a.pt", "--force", says="is read by this very command")
    refused(2, "train", "mlp", "--data", "digits", "-o", "t.pth", says="written as safetensors")
    refused(2, "verify", *pair, "-o", "v.pth", says="written as safetensors")


@pytest.mark.parametrize("kind", ["m.pth", "m.pth.rebasin.json"])
def test_what_is_there_is_not_replaced_by_itself(kind, refused):
    saved("a.pt", 1)
    saved("b.pt", 2)
    Path(kind).write_text("mine")
    refused(2, *MERGE, "m.pth", says=f"{kind} exists")


def test_a_file_of_torch_holds_names_that_safetensors_cannot(done, refused):
    names = ("half \udc80", "__metadata__")
    for name, seed in (("a.pt", 1), ("b.pt", 2)):
        torch.save({"model": {own: torch.full((2,), float(seed)) for own in names}, "epoch": 3}, name)
    done(*MERGE, "m.pth")
    found = torch.load("m.pth", weights_only=True)
    assert found["epoch"] == 3 and {*found["model"]} == {*names}
    assert all(torch.equal(open_checkpoint("m.pth")[name], torch.full((2,), 1.5)) for name in names)
    said = refused(2, *MERGE, "m.safetensors", says="a safetensors file cannot hold these tensors").err
    assert "-o NAME.pth" in said and "reserved" in said and "surrogate" in said


def test_where_an_envelope_has_no_place_for_a_tensor_all_are_bare_and_it_is_told(done):
    one = {"gen": {"w": torch.ones(2, 2)}, "critic": {"v": torch.ones(2, 3)}, "epoch": 3}
    torch.save(one, "a.pt")
    torch.save(one | {"third": {"w": torch.zeros(2, 2)}}, "b.pt")
    told = done(*AVERAGE, "m.pth", "--extra", "keep").err
    assert "m.pth holds tensors under their names alone" in told and "no place for third.w" in told
    assert {*torch.load("m.pth", weights_only=True)} == {"gen.w", "critic.v", "third.w"}
    assert "alone" not in done(*AVERAGE, "n.pth", "--extra", "drop").err


def test_no_number_that_was_measured_of_other_weights_is_in_the_envelope(done):
    false = {
        "best_prec1": 7.5,
        "top1": 91.0,
        "f1": 0.9,
        "results": {"bleu": 1.0},
        "log": {"loss": [1.0, 2.0]},
    }
    kept = {"config": {"loss": {"weight": 2.0, "margin": 0.5}}, "lr": 0.1, "best_epoch": 3, "loss": "mse"}
    saved("a.pt", 1, **false, **kept, criterion={"loss": {"proxies": torch.ones(2, 2)}})
    saved("b.pt", 2, criterion={"loss": {"proxies": torch.zeros(2, 2)}})
    done(*MERGE, "m.pth")
    found = torch.load("m.pth", weights_only=True)
    assert not {*found} & {*false} - {"log"} and not found.get("log")
    assert {name: found[name] for name in kept} == kept
    assert torch.equal(found["criterion"]["loss"]["proxies"], torch.full((2, 2), 0.5))  # no number, weights


def test_what_cannot_be_kept_in_an_envelope_costs_nothing_else_in_it(done):
    odd = {"log": list(range(40_000)), 1.5: "a", (1.5,): 2, "size": 4}
    for name, seed in (("a.pt", 1), ("b.pt", 2)):
        saved(name, seed, **{"names": [*"abc"]})
        torch.save(torch.load(name, weights_only=False) | odd, name)
    done(*MERGE, "m.pth")
    found = torch.load("m.pth", weights_only=True)
    assert {*found} == {"epoch", "config", "args", "names", "size", "state_dict"}


def test_tensors_that_only_one_model_has_get_their_place_in_the_envelope(done, pair):
    for name, seed, more in (("a.pt", 1, {}), ("b.pt", 2, {"module.head.w": torch.ones(2)})):
        saved(name, seed)
        state = torch.load(name, weights_only=False)
        state["state_dict"] |= more
        torch.save(state, name)
    done(*AVERAGE, "m.pth", "--extra", "keep")
    found = torch.load("m.pth", weights_only=True)
    assert found["epoch"] == 3 and torch.equal(found["state_dict"]["module.head.w"], torch.ones(2))
    a, b = map(load_file, pair)
    last = next(name for name in b if name.endswith("bias") and len(b[name]) == 10).removesuffix(".bias")
    b |= {f"{last}.{kind}": torch.cat([b[f"{last}.{kind}"]] * 2) for kind in ("weight", "bias")}
    torch.save({"epoch": 1, "model": a}, "a.pt")
    torch.save({"epoch": 2, "model": b}, "b.pt")
    done("merge", "a.pt", "b.pt", "--heads", "keep-b", "-o", "heads.pth")
    found = torch.load("heads.pth", weights_only=True)
    assert found["epoch"] == 1 and len(found["model"][f"{last}.bias"]) == 20


def test_a_secret_is_one_wherever_it_lies(done):
    hidden = {
        "auth": {"user": "x", "of": ["y"]},
        "token": ["z"],
        "url": "https://me:pass@host/",
        "n": ["hf_" + "a" * 20],
    }
    saved("a.pt", 1, run=hidden, tokens=["w"])
    saved("b.pt", 2, run=hidden, tokens=["w"])
    done(*MERGE, "m.safetensors")
    beside = json.loads(open_checkpoint("m.safetensors").metadata["rebasin.beside"])
    assert beside["run"] == {"auth": {"user": "…", "of": ["…"]}, "token": ["…"], "url": "…", "n": ["…"]}
    assert beside["tokens"] == ["…"]


def test_the_provenance_beside_an_input_is_no_output(done, refused):
    saved("a.pt", 1)
    saved("b.pt", 2)
    done(*MERGE, "m.pth")
    before = Path("m.pth.rebasin.json").read_bytes()
    again = ("merge", "m.pth", "a.pt", "--method", "none", "-o", "n.pth")
    refused(2, *again, "--attest", "m.pth.rebasin.json", "--force", says="is read by this very command")
    assert Path("m.pth.rebasin.json").read_bytes() == before


def test_files_of_old_tutorials_are_read_by_name_and_named(done, refused, tmp_path):
    (tmp_path / "run").mkdir()
    for name, seed in (("a", 1), ("b", 2)):
        torch.save({"whatever it is": {"net": Net(seed).state_dict()}}, f"run/{name}.pth.tar")
    refused(3, "inspect", "run", says=("Did you mean", "run/a.pth.tar", "run/b.pth.tar"))
    refused(3, "inspect", "run/a.pth", says="Did you mean run/a.pth.tar")
    done("merge", "run/a.pth.tar", "run/b.pth.tar", "--method", "none", "-o", "m.pth")
    (envelope,) = torch.load(
        "m.pth", weights_only=True
    ).values()  # one key around one, whatever they are called
    assert {*envelope} == {"net"}
    assert all(torch.equal(envelope["net"][name], value) for name, value in mean_of(1, 2).items())


class Versioned(nn.Module):
    """Refuses a state dict of another version, as torchvision's MNASNet does."""

    _version = 7

    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def _load_from_state_dict(self, state, prefix, versions, *rest):
        assert versions.get("version") == self._version
        super()._load_from_state_dict(state, prefix, versions, *rest)


@pytest.mark.parametrize("around", [lambda state: state, lambda state: {"epoch": 3, "model": state}])
def test_the_versions_of_layers_stay_with_a_state_dict(done, around):
    for k in range(2):
        torch.save(around(Versioned().state_dict()), f"{k}.pt")
    done("average", "0.pt", "1.pt", "--repair", "none", "-o", "out.pt")
    found = torch.load("out.pt", weights_only=True)
    Versioned().load_state_dict(found.get("model", found))
    state = Versioned().state_dict()
    state._metadata["fc"] = {"version": "code"}
    torch.save(around(state), "0.pt")
    done("average", "0.pt", "1.pt", "--repair", "none", "-o", "out.pt", "--force")
    found = torch.load("out.pt", weights_only=True)
    assert found.get("model", found)._metadata.keys() == {"", "norm"}
