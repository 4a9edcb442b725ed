"""rebasin verify."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rebasin_cli.checkpoints.safetensors_format import SafetensorsFile
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.symmetry import stored

from .conftest import same, tensors

AXES = {"layers.0.weight": "h .", "layers.0.bias": "h", "layers.1.weight": "g h", "layers.1.bias": "g"}
AXES |= {"layers.2.weight": "k g", "layers.2.bias": "k", "head.weight": ". k", "head.bias": "."}


def test_a_relabelling_is_found_and_its_permutation_works(pair, relabelled, done):
    outcome = done("verify", pair[1], relabelled, "-o", "back.perm.safetensors")
    assert "answer               yes" in outcome.out and "units                36" in outcome.out
    assert stored.load(Path("back.perm.safetensors")).metadata["rebasin.method"] == "fingerprints"
    done("apply", "back.perm.safetensors", relabelled, "-o", "back.safetensors")
    assert same("back.safetensors", pair[1])


def test_align_relabels(pair, done):
    done("align", *pair, "-o", "aligned.safetensors")
    told = done("verify", pair[1], "aligned.safetensors", "--json").json()
    assert told["answer"] == "yes" and told["units_moved"] > 0 and told["written"] is None


def test_another_model_is_none(pair, run, tmp_path):
    outcome = run("verify", *pair, "--json", "-o", "out.perm.safetensors")
    assert outcome.code == 1 and outcome.json()["answer"] == "no"
    assert "layers.0.weight" in outcome.json()["tensors"]
    assert not (tmp_path / "out.perm.safetensors").exists()


def test_one_weight_more_is_enough(pair, relabelled, run):
    changed = tensors(relabelled)
    changed["layers.1.weight"][0, 0] += 0.1
    write_safetensors(relabelled, changed, force=True)
    outcome = run("verify", pair[1], relabelled)
    assert outcome.code == 1 and "answer               no" in outcome.out
    assert "tensors              layers.1.weight\n" in outcome.out


def test_the_same_values_elsewhere_are_undecided(pair, run, tmp_path):
    """Shuffled within a matrix: no permutation of units does that."""
    shuffled = tensors(pair[0])
    weight = shuffled["layers.1.weight"].flatten()
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(0))
    shuffled["layers.1.weight"] = weight[order].view(12, 12)
    write_safetensors(tmp_path / "shuffled.safetensors", shuffled)
    outcome = run("verify", pair[0], "shuffled.safetensors")
    assert outcome.code == 1 and "undecided" in outcome.out and "5 searches" in outcome.out


@pytest.mark.parametrize("name", ["head.bias", "head.weight"])
def test_what_stays_is_compared_where_it_is(pair, relabelled, run, name):
    changed = tensors(relabelled)
    changed[name] = changed[name].flip(0).contiguous()  # the same values: outputs in another order
    write_safetensors(relabelled, changed, force=True)
    told = run("verify", pair[1], relabelled, "--json")
    assert told.code == 1 and told.json()["answer"] == "no" and told.json()["tensors"] == [name]


def test_counters_are_not_compared(resnets, done, run):
    changed = tensors(resnets[0])
    counters = [name for name in changed if name.endswith("num_batches_tracked")]
    write_safetensors("other.safetensors", changed | {name: torch.tensor(999) for name in counters})
    assert counters and done("verify", resnets[0], "other.safetensors", "--json").json()["answer"] == "yes"


@pytest.mark.parametrize("name", ["layers.1.weight", "more"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_the_same_bits_that_are_no_numbers_are_refused(pair, refused, name, value):
    """Also in a tensor without units, which no fingerprint tells of: infinities alone are values."""
    made = tensors(pair[0]) | {"more": torch.ones(5)}
    made[name].view(-1)[3] = value
    for path in ("a.safetensors", "b.safetensors"):
        save_file(made, path)
    lines = [f'  {its}: "{axes}"' for its, axes in AXES.items()]
    Path("spec.yaml").write_text("\n".join(["tensors:", *lines, '  more: "..."', ""]))
    refused(3, "verify", "a.safetensors", "b.safetensors", "--spec", "spec.yaml", says=(name, "3"))


def test_a_switch_is_no_counter(pair, done, run):
    made = tensors(pair[0])
    for path, on in (("a.safetensors", True), ("b.safetensors", False)):
        save_file(made | {"switch": torch.tensor(on), "seen": torch.tensor(int(on))}, path)
    lines = [f'  {its}: "{axes}"' for its, axes in AXES.items()]
    Path("spec.yaml").write_text("\n".join(["tensors:", *lines, '  switch: ""', '  seen: ""', ""]))
    told = run("verify", "a.safetensors", "b.safetensors", "--spec", "spec.yaml", "--json").json()
    assert (told["answer"], told["tensors"]) == ("no", ["switch"])


def test_values_are_read_twice_at_most_where_one_is_the_other(pair, relabelled, done, monkeypatch):
    """For fingerprints, and to compare."""
    read = []
    for how in ("tensor", "rows"):
        original = getattr(SafetensorsFile, how)

        def counted(self, name, *part, original=original):
            made = original(self, name, *part)
            read.append(made.numel())
            return made

        monkeypatch.setattr(SafetensorsFile, how, counted)
    assert done("verify", pair[1], relabelled, "--json").json()["answer"] == "yes"
    found = sum(read)
    whole = sum(tensor.numel() for tensor in tensors(pair[1]).values())
    assert 3.9 * whole < found <= 4 * whole


def test_refusals(pair, resnets, refused, tmp_path):
    refused(4, "verify", pair[0], resnets[0], says="the same architecture")
    refused(3, "verify", pair[0], "c.safetensors", says=("no such file", "Did you mean"))
    refused(2, "verify", *pair, "-o", pair[0], says="is read by this very command")


BIG, FINE = torch.tensor([1e7, 0.5, -0.25, 1e-3]), torch.tensor([1e7, 0.5, -0.25, 1e-3]).bfloat16()


def test_each_value_is_held_to_its_own_size_and_type(pair, run):
    """A large value hides no other, and one coarse tensor does not make the others coarse."""
    layer = tensors(pair[0])
    lines = [f'  {name}: "..."' for name in (*layer, "more")]
    Path("spec.yaml").write_text("\n".join(["tensors:", *lines, ""]))
    for a, b, answer in [
        (BIG, BIG, "yes"),
        (BIG, BIG + torch.tensor([0, 0, 0, 1.0]), "no"),
        (BIG, BIG + torch.tensor([0, 0, 0, 1e-8]), "no"),
        (BIG, BIG * torch.tensor([1, 1, -1.0, 1]), "no"),  # up to signs
        (BIG, torch.tensor([1e7, 0.5, -0.25, torch.nextafter(BIG[3], BIG[0])]), "no"),
        (torch.tensor([0.0, 1e7, 0, 1]), torch.tensor([-0.0, 1e7, 0, 1]), "yes"),
        (torch.tensor([0.0, 1e7, 0, 1]), torch.tensor([1e-40, 1e7, 0, 1]), "no"),
        (torch.tensor([1e-40, 2e-40, 0, 1]), torch.tensor([1e-40, 3e-40, 0, 1]), "no"),
        (BIG, FINE, "yes"),
        (BIG.double(), BIG, "yes"),
        (BIG, FINE + torch.tensor([0, 0, 0, 5e-5]).bfloat16(), "no"),  # 5 %, of which bfloat16 has 0.8
        (FINE, torch.cat([FINE[:3], FINE[3:] * 1.01]), "no"),
        (BIG[1:].half(), FINE[1:], "yes"),
        (torch.tensor([1e-12, 1.0]), torch.tensor([0.0, 1.0]).half(), "yes"),  # float16 begins at 6e-8
        (torch.tensor([1e-12, 1.0]), torch.tensor([0.0, 1.0]), "no"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "no"),
        (torch.tensor([1, 2]), torch.tensor([1, 2]).int(), "no"),
        (torch.tensor(3), torch.tensor(3.0), "no"),
        (torch.tensor([3, 1], dtype=torch.uint16), torch.tensor([3, 1], dtype=torch.uint16), "yes"),
        (BIG[1:].to(torch.float8_e4m3fn), BIG[1:].to(torch.float8_e4m3fn), "yes"),
        (torch.empty(0), torch.empty(0), "yes"),
    ]:  # fmt: skip
        write_safetensors("a.safetensors", layer | {"more": a}, force=True)
        write_safetensors("b.safetensors", layer | {"more": b}, force=True)
        outcome = run("verify", "a.safetensors", "b.safetensors", "--spec", "spec.yaml", "--json")
        assert outcome.code == (answer != "yes"), (a, b, outcome.err)
        assert outcome.json()["answer"] == answer, (a, b, outcome.out)
