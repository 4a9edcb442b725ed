"""rebasin spec infer and explain, and --spec infer where a spec is wanted."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from tests.networks.test_tied import Language

from .test_main import golden

MODEL = """
import torch
from torch import nn

class Gated(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.norm = nn.LayerNorm(width)
        self.up, self.gate = nn.Linear(width, 8), nn.Linear(width, 8)
        self.down, self.head = nn.Linear(8, width), nn.Linear(width, 3)

    def forward(self, x):
        x = self.stem(x)
        h = self.norm(x)
        return self.head(x + self.down(torch.relu(self.gate(h)) * self.up(h)))

def build():
    return Gated()

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) + self.missing
"""
WORDS = {6, 8}  # the residual stream, and the units between gate and down


def written(folder, module, code):
    """The folder, with a network's code and two models of it."""
    (folder / f"{module}.py").write_text(code)
    namespace: dict = {"__name__": module}
    exec(compile(code, f"{module}.py", "exec"), namespace)
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        write_safetensors(folder / f"{name}.safetensors", namespace["build"]().state_dict())
    return folder


@pytest.fixture
def files(tmp_path):
    """Two models of a network that has no built-in spec."""
    return written(tmp_path, "model", MODEL)


def test_a_spec_is_printed_that_reads_back(files, done):
    outcome = done("spec", "infer", "--net", "model.py:build", "--input", "2x4")
    shapes = {name: tuple(t.shape) for name, t in torch_state(files).items()}
    assert set(fit(parse(outcome.out, name="printed"), shapes).words.values()) == WORDS
    assert "head.weight axis 0" in outcome.err and "the network's output" in outcome.err


def torch_state(files):
    from rebasin_cli import open_checkpoint

    return dict(open_checkpoint(files / "a.safetensors"))


def test_a_spec_is_written_and_serves_as_one(files, done, run):
    told = done("spec", "infer", "--net", "model.py:build", "--input", "2x4", "-o", "own.yaml").out
    assert "written              own.yaml" in told and "proven" in told
    assert done("spec", "check", "own.yaml", "a.safetensors").out
    assert done("align", "a.safetensors", "b.safetensors", "--spec", "own.yaml", "-o", "one.safetensors").out
    again = run("spec", "infer", "--net", "model.py:build", "--input", "2x4", "-o", "own.yaml")
    assert again.code == 2 and "exists" in again.err
    assert done("spec", "infer", "--net", "model.py:build", "--input", "2x4", "-o", "own.yaml", "--force").out


def test_no_yaml_is_needed_to_align(files, done):
    options = ["--net", "model.py:build", "--input", "2x4"]
    out = done("align", "a.safetensors", "b.safetensors", "--spec", "infer", *options).out
    assert "spec                 inferred, 2 permutations" in out and "proven" in out
    assert (files / "b_aligned.safetensors").exists()


LOADER = """
import torch

def loader(split):
    inputs = torch.rand(12, 4, generator=torch.Generator().manual_seed(len(split)))
    return [(inputs, torch.arange(12) % 3)]
"""


@pytest.fixture
def samples(files):
    (files / "data.py").write_text(LOADER)
    return ["--net", "model.py:build", "--data", "data.py:loader"]


@pytest.mark.parametrize("command", ["align", "barrier", "doctor"])
def test_the_network_is_enough_where_no_built_in_spec_fits(samples, done, command):
    quick = {"barrier": ("--method", "wm", "--points", 3)}.get(command, ())
    outcome = done(command, "a.safetensors", "b.safetensors", *samples, *quick)
    assert "no built-in spec fits, so it is inferred from model.py:build (2 permutations)" in outcome.err
    if command == "align":
        assert "spec                 inferred, 2 permutations" in outcome.out and "proven" in outcome.out


def test_nothing_is_inferred_to_measure_one_model(samples, done, monkeypatch):
    monkeypatch.setattr("rebasin_cli.inference.infer", None)
    outcome = done("eval", "a.safetensors", *samples, "--json")
    assert outcome.json()["samples"] == 12 and "spec" not in outcome.err


@pytest.mark.sweep
def test_what_was_merged_by_an_inferred_spec_is_a_model_like_others(samples, done):
    done("merge", "a.safetensors", "b.safetensors", *samples, "-o", "ab.safetensors")
    recorded = open_checkpoint("ab.safetensors").metadata
    done("eval", "ab.safetensors", *samples)
    again = done("merge", "ab.safetensors", "a.safetensors", *samples, "-o", "aba.safetensors")
    assert "spec                 inferred, 2 permutations" in again.out
    assert (
        open_checkpoint("aba.safetensors").metadata["rebasin.spec_sha256"] == recorded["rebasin.spec_sha256"]
    )
    repair = ["repair", "ab.safetensors", "--endpoints", "a.safetensors", "b_aligned.safetensors"]
    done("align", "a.safetensors", "b.safetensors", *samples)
    assert "spec                 inferred" in done(*repair, *samples, "-o", "fixed.safetensors").out


def test_without_a_network_the_hint_is_to_give_one(samples, done, refused):
    says = ("no built-in spec fits these", "--net file.py:factory", "--spec FILE.yaml")
    refused(4, "eval", "a.safetensors", *samples[2:], says=says)
    done("merge", "a.safetensors", "b.safetensors", *samples, "--method", "wm", "-o", "ab.safetensors")
    refused(4, "merge", "ab.safetensors", "ab.safetensors", says="They record a spec named inferred")


def test_what_a_network_takes_is_asked_for_where_a_spec_has_to_be_inferred(files, refused):
    pair = ["a.safetensors", "b.safetensors", "--net", "model.py:build"]
    says = ("does not say what it takes", "no built-in spec fits", "--input 1x3x224x224", "--data NAME")
    refused(2, "align", *pair, says=says)
    outcome = refused(2, "spec", "infer", "--net", "model.py:build", says="--input 1x3x224x224")
    assert "--data" not in outcome.err  # it takes none


def test_a_file_is_named_with_what_is_meant_in_it(files, refused):
    pair = ["a.safetensors", "b.safetensors"]
    says = (
        "--net model.py names a file, and no factory in it",
        "it defines Gated, build",
        "model.py:FACTORY",
    )
    refused(2, "align", *pair, "--net", "model.py", "--input", "2x4", says=says)
    refused(2, "align", *pair, "--net", "absent.py", says=("absent.py: no such file", "file.py:factory"))
    (files / "data.py").write_text(LOADER)
    loads = ["--net", "model.py:build", "--data", "data.py"]
    refused(2, "eval", pair[0], *loads, says=("data.py names a file", "Write --data data.py:loader"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["align", "a.safetensors", "b.safetensors", "--spec", "infer"], "--net file.py:factory"),
        (["spec", "infer", "--net", "model.py:build"], "Give a shape with --input"),
        (["spec", "infer", "--net", "mlp"], "Give a checkpoint"),
        (["spec", "show", "infer"], "rebasin spec infer"),
    ],
)
def test_what_is_missing_is_said(files, run, arguments, said):
    outcome = run(*arguments)
    assert outcome.code == 2 and said in outcome.err and "Traceback" not in outcome.err


def test_a_network_that_cannot_be_traced_is_an_error_of_its_code(files, run):
    outcome = run("spec", "infer", "--net", "model.py:Broken", "--input", "2x4", "-o", "own.yaml")
    assert outcome.code == 6 and "Traceback" not in outcome.err
    assert not (files / "own.yaml").exists()


# explain ---------------------------------------------------------------------------------------------------

OWN = """
tensors:
  stem.weight: "stream ."
  stem.bias: "stream"
  norm.weight: "stream"
  norm.bias: "stream"
  up.weight: "hidden stream"
  up.bias: "hidden"
  gate.weight: "gates stream"
  gate.bias: "gates"
  down.weight: "stream . "
  down.bias: "stream"
  head.weight: ". stream"
  head.bias: "classes"
"""


def test_explain_tells_what_moves_and_why_the_rest_stays(files, done):
    golden(
        "explain.txt", done("spec", "explain", "--net", "model.py:build", "--input", "2x4", "--tensors").out
    )


def test_explain_names_the_operation_and_the_line(files, done):
    (files / "flipped.py").write_text(MODEL.replace("h = self.norm(x)", "h = self.norm(x).flip(1)"))
    out = done("spec", "explain", "--net", "flipped.py:build", "--input", "2x4").out
    assert "flipped.py:15: h = self.norm(x).flip(1)" in out and "stem.weight axis 0" in out


def test_explain_compares_a_spec_with_what_the_network_allows(files, done):
    (files / "own.yaml").write_text(OWN)
    options = ["--net", "model.py:build", "--input", "2x4", "--spec", "own.yaml"]
    golden("explain_spec.txt", done("spec", "explain", *options).out)
    told = done("spec", "explain", *options, "--json").json()
    assert told["same"] == 11 and told["split"] == {"gate": ["gates", "hidden"]} and told["tied"] == {}
    assert [at["axis"] for at in told["keeps"]] == ["down.weight axis 1"]
    assert [at["axis"] for at in told["moves"]] == ["head.bias axis 0"]
    assert told["moves"][0]["why"] == ["it is the network's output"]
    done("spec", "infer", "--net", "model.py:build", "--input", "2x4", "-o", "same.yaml")
    told = done("spec", "explain", *options[:-1], "same.yaml", "--json").json()
    assert told["same"] == 17 and not any(told[key] for key in ("keeps", "moves", "unlike", "tied", "split"))


def test_explain_knows_one_word_that_could_be_two(files, done):
    (files / "two.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))\n"
    )
    (files / "tied.yaml").write_text(
        'tensors:\n  "0.weight": "u ."\n  "0.bias": "u"\n  "2.weight": "u u"\n  "2.bias": "u"\n'
        '  "4.weight": ". u"\n  "4.bias": "."\n'
    )
    options = ["--net", "two.py:build", "--input", "2x3", "--spec", "tied.yaml"]
    assert '"u" could be 2 words: h0, h2' in done("spec", "explain", *options).out


@pytest.mark.parametrize(
    ("code", "arguments", "says"),
    [
        (2, ["--spec", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (2, ["--spec", "resnet21"], "Did you mean resnet"),
        (4, ["--spec", "mlp"], ("mlp.yaml does not fit model.py:build", "stem.weight  ")),
        (3, ["--checkpoint", "nowhere.safetensors"], "nowhere.safetensors: no such file"),
    ],
)
def test_what_cannot_be_explained(files, refused, code, arguments, says):
    refused(code, "spec", "explain", "--net", "model.py:build", "--input", "2x4", *arguments, says=says)


def test_layers_that_repeat_are_families(tmp_path, done):
    (tmp_path / "deep.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    layers = [m for k in range(4) for m in (nn.Linear(5, 5), nn.ReLU())]\n"
        "    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), *layers, nn.Linear(5, 2))\n"
    )
    out = done("spec", "infer", "--net", "deep.py:build", "--input", "2x3").out
    assert '"{i}.weight": "h{i} h{i-1|.}"' in out and '"10.weight": ". h8"' in out
    assert len(out.splitlines()) == 7


# several inputs and outputs --------------------------------------------------------------------------------

TEXT = """
import torch
from torch import nn

class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(9, 6), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, ids, mask):
        states = self.embed(ids)
        hidden = torch.relu(self.hidden(states)) * mask[..., None]
        return {"logits": self.head(hidden.sum(1)), "states": states}

def build():
    return Text()
"""
WANTED = ["--net", "text.py:build", "--input", "ids=2x5:int9,mask=2x5:bool"]


@pytest.fixture
def texts(tmp_path):
    """A network of words that returns its embeddings, too, and two models of it."""
    return written(tmp_path, "text", TEXT)


LEFT = ("--not-kept", "states")


def test_what_is_no_part_of_the_function_is_named_everywhere(texts, done, refused):
    for measured in ((), ("--output", "logits")):
        assert 'embed.weight: ". ."' in done("spec", "infer", *WANTED, *measured).out
    done("spec", "infer", *WANTED, *LEFT, "-o", "own.yaml")
    told = done("spec", "explain", *WANTED, *LEFT, "--spec", "own.yaml", "--json").json()
    assert told["same"] == 8 and not told["keeps"] and not told["moves"]
    assert told["outputs"] == "kept: logits; not kept: states"
    why = done("spec", "explain", *WANTED, "--json").json()["tensors"]["embed.weight"][1]["stays"]
    assert why == ["it is the network's output"]
    prove = ["spec", "prove", "own.yaml", "a.safetensors", *WANTED]
    proof = done(*prove, *LEFT, "--json").json()["proof"]
    assert (proof["status"], proof["kept"], proof["not_kept"]) == ("proven", ["logits"], ["states"])
    refused(4, *prove, says=("does not preserve", "these change: states", "--not-kept states"))
    refused(4, *prove, "--output", "logits", says="does not preserve")
    refused(6, *prove, "--output", "0", says="which has no '0'")
    refused(6, "spec", "infer", *WANTED, "--output", "absent", says="which has no 'absent'")
    says = ("--not-kept absent: the network returns nothing of that name", "it returns logits, states")
    refused(2, "spec", "infer", *WANTED, *LEFT, "--not-kept", "absent", says=says)
    refused(2, *prove, "--output", "states", *LEFT, says="what --output states measures")


def test_a_barrier_proves_all_outputs_whatever_it_measures(texts, done, refused):
    (texts / "data.py").write_text(
        "import torch\n"
        "def loader(split):\n"
        "    ids = torch.arange(40).view(8, 5) % 9\n"
        "    return [({'ids': ids, 'mask': ids > 0}, torch.arange(8) % 3)]\n"
    )
    done("spec", "infer", *WANTED, *LEFT, "-o", "own.yaml")
    models = ["a.safetensors", "b.safetensors"]
    options = ["--net", "text.py:build", "--data", "data.py:loader", "--skip-checks", "--output", "logits"]
    for spec in ("own.yaml", "infer"):
        told = done("barrier", *models, *options, *LEFT, "--spec", spec, "--method", "am", "--json").json()
        assert told["proof"]["not_kept"] == ["states"] and told["signature"]
    refused(4, "barrier", *models, *options, "--spec", "own.yaml", says="does not preserve")


def test_inputs_of_all_kinds_serve_to_align_and_merge(texts, done):
    models = ["a.safetensors", "b.safetensors", "--spec", "infer"]
    out = done("align", *models, *WANTED).out
    assert "inferred, 1 permutation" in out and "proven" in out
    out = done("merge", *models, *WANTED[:3], "2x5:int9,2x5:int", "-o", "merged.safetensors").out
    assert "proven" in out


@pytest.mark.parametrize(
    ("code", "given", "says"),
    [
        (2, "2x5:int9,mask", ("cannot be read", "'mask'  is no tensor", "input_ids=2x16:int30522")),
        (2, "mask=2x5:bool,2x5:int9", "comes after one that has"),
        (6, "ids=2x5:int9,masks=2x5:bool", "masks"),
        (6, "2x5:int9,masks=2x5:bool", "do not fit the network's forward"),
    ],
)
def test_inputs_that_are_none(texts, refused, code, given, says):
    refused(code, "spec", "infer", "--net", "text.py:build", "--input", given, says=says)


def test_spec_show_takes_one_plain_shape(refused):
    refused(2, "spec", "show", "vgg16", "--input", "ids=2x5:int9", says=("is not a shape", "1x3x224x224"))


GROUPED = """
from torch import nn

def build():
    two = nn.Conv2d(6, 8, 3, groups=2)
    return nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), two, nn.ReLU(), nn.Conv2d(8, 5, 2), nn.Flatten())
"""


def test_a_kept_search_whose_groups_are_torn_is_refused(tmp_path, done, refused, interrupted):
    (tmp_path / "grouped.py").write_text(GROUPED)
    namespace: dict = {}
    exec(GROUPED, namespace)
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        write_safetensors(tmp_path / f"{name}.safetensors", namespace["build"]().state_dict())
    done("spec", "infer", "--net", "grouped.py:build", "--input", "2x3x4x4", "-o", "own.yaml")
    command = ["align", "a.safetensors", "b.safetensors", "--spec", "own.yaml", "-o", "out.safetensors"]
    interrupted(*command)
    path = tmp_path / "out.search.safetensors"
    kept = open_checkpoint(path)
    metadata, state = dict(kept.metadata), {name: kept[name].clone() for name in kept}
    done(*command, "--resume")
    starred = next(name for name, perm in state.items() if len(perm) == 8)
    torn = state | {starred: state[starred].roll(1)}
    write_safetensors(path, torn, metadata=metadata)
    refused(3, *command, "--resume", "--force", says="out.search.safetensors is damaged")


TIED = ("--net", "tests.networks.test_tied:Language", "--input", "2x3:int9")


def test_files_with_other_names_of_it_are_one_kind_where_the_network_is_named(tmp_path, done, refused):
    """Each name alone, both as one piece of memory, both as two: each against each."""
    state = Language().state_dict()
    copies = {name: tensor.clone() for name, tensor in state.items()}
    alone = [{n: t for n, t in state.items() if n != name} for name in ("head.weight", "embed.weight")]
    forms = [*alone, state, copies]
    for k, form in enumerate(forms):
        torch.save(form, tmp_path / f"{k}.pt")
    for a, b in ((0, 1), (1, 0), (0, 3), (3, 0), (1, 2), (3, 1)):
        out = tmp_path / f"{a}{b}.safetensors"
        told = done("align", tmp_path / f"{a}.pt", tmp_path / f"{b}.pt", *TIED, "-o", out).err
        assert told.count("embed.weight is ") + told.count("head.weight is ") == 1
        found = load_file(out)
        assert found.keys() == forms[a].keys()
        assert all(torch.equal(tensor, forms[a][name]) for name, tensor in found.items())
    forms[3]["head.weight"] += 1
    torch.save(forms[3], tmp_path / "3.pt")
    for pair in ("03", "30"):
        files = [tmp_path / f"{k}.pt" for k in pair]
        refused(4, "align", *files, *TIED, "-o", tmp_path / "no.pt", says=["head.weight"])


def test_tensors_that_the_network_has_as_one_may_not_differ(refused, done, tmp_path):
    """In no model, whatever the first one holds: their mean would be of two tensors."""
    for name, apart in (("a", 0), ("b", 0), ("apart", 1)):
        state = {key: tensor.clone() for key, tensor in Language().state_dict().items()}
        save_file(state | {"head.weight": state["embed.weight"] + apart}, tmp_path / f"{name}.safetensors")
    line = ("merge", "a.safetensors", *TIED, "-o", "m.safetensors", "--method", "wm", "--repair", "none")
    says = ("apart.safetensors: embed.weight and head.weight are one tensor in the network", "that has both")
    refused(3, *line, "apart.safetensors", says=says)
    assert not (tmp_path / "m.safetensors").exists()
    done(*line, "b.safetensors")
