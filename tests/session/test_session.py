"""What is refused before any work, and whose word is taken for what."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.errors import CheckpointError, NetworkError, SpecError, UsageError
from rebasin_cli.matchers import am
from rebasin_cli.nets.mlp import MLP
from rebasin_cli.runtime.ranks import Ranks
from rebasin_cli.session import asked, method_options, samples, specs
from rebasin_cli.session import given as giving
from rebasin_cli.session import models as intake
from rebasin_cli.session import network as running
from rebasin_cli.session import session as session_file
from rebasin_cli.session.listener import Listener
from rebasin_cli.session.request import Search, Subjects
from rebasin_cli.session.session import Session
from rebasin_cli.session.subjects import Data, Loading, Network
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.symmetry.folds import NONE


def quiet(text):
    pass


def test_the_users_data_beats_what_the_models_record(record):
    models = [record(data="mnist"), record(data="mnist")]
    assert samples.data_reference(models, Data()) == "mnist"
    assert samples.data_reference(models, Data(data="cifar10")) == "cifar10"
    assert samples.data_reference([*models, record()], Data()) is None


@pytest.mark.parametrize(
    "reference",
    ["os:system", "evil.py:loader", "package.module:loader", "npz:/any/path.npz", "imagefolder:/any"],
)
def test_code_and_paths_that_a_checkpoint_records_are_not_taken(record, reference):
    models = [record(data=reference)]
    assert samples.data_reference(models, Data()) is None
    with pytest.raises(UsageError, match=f"records {reference}") as caught:
        samples.open_splits(models, Data(), 0, quiet, wanted=["test"])
    assert "say so with --data" in caught.value.hint
    assert samples.data_reference(models, Data(data=reference)) == reference


def test_recorded_normalisation_is_used_and_must_agree(record):
    a, b = (record(data="digits", normalization=text) for text in ("0.5/0.5", "0.0/1.0"))
    said = []
    splits = samples.open_splits([a], Data(), 0, said.append, wanted=["train", "test"])
    assert str(splits["test"].normalization) == "0.5/0.5" and said == [
        "data: digits, inputs normalised 0.5/0.5"
    ]
    with pytest.raises(UsageError, match="differently normalised"):
        samples.open_splits([a, b], Data(), 0, quiet, wanted=["test"])
    chosen = samples.open_splits([a, b], Data(normalize="unit"), 0, quiet, wanted=["test"])
    assert str(chosen["test"].normalization) == "0.0/1.0"


def test_training_samples_are_few_unless_full(record, monkeypatch):
    monkeypatch.setattr(samples, "TRAIN_SAMPLES", 100)
    monkeypatch.setattr(samples, "RESET_SAMPLES", 50)
    model, wanted = [record(data="digits")], ["train", "test", "reset"]

    def counts(**options):
        return {
            s: d.samples
            for s, d in samples.open_splits(model, Data(**options), 0, quiet, wanted=wanted).items()
        }

    assert counts() == {"train": 100, "reset": 50, "test": 360}
    assert counts(full=True) == {"train": 1437, "reset": 1437, "test": 360}
    assert counts(limit=20) == {"train": 20, "reset": 50, "test": 20}


def test_batches_of_a_reset_have_every_class(record, tmp_path):
    images, targets = np.zeros((1200, 1, 2, 2), dtype=np.uint8), np.repeat([0, 1], 600)
    file = tmp_path / "sorted.npz"
    np.savez(file, x_train=images, y_train=targets, x_test=images, y_test=targets)
    settings = Data(data=f"npz:{file}", full=True)
    reset = samples.open_splits([record()], settings, 0, quiet, wanted=["reset"])["reset"]
    shares = [batch.double().mean().item() for _, batch in reset]
    assert len(shares) == 5 and all(0.3 < share < 0.7 for share in shares)
    assert shares == [batch.double().mean().item() for _, batch in reset]  # the same every time


def test_other_data_than_recorded_is_remarked(record):
    said = []
    samples.open_splits([record(data="mnist")], Data(data="digits"), 0, said.append, wanted=["test"])
    assert said[0].startswith("data: digits (the checkpoints record mnist), ")


def test_names_of_files_stand_in_for_numbers_of_models(record, tmp_path):
    paths = [tmp_path / f"{name}.pt" for name in "abcdefghijk"]
    with pytest.raises(SpecError) as caught, intake.naming(paths):
        raise SpecError("models differ", problems=["w  is 1 in model 1, 2 in model 11"])
    assert caught.value.problems == (f"w  is 1 in {paths[0]}, 2 in {paths[10]}",)


def test_tied_tensors_that_the_spec_does_not_tie_are_refused(tmp_path):
    weight = torch.randn(4, 4)
    state = {"layers.0.weight": weight, "layers.1.weight": weight, "head.weight": torch.randn(2, 4)}
    torch.save(state, tmp_path / "tied.pt")
    models = [open_checkpoint(tmp_path / "tied.pt")]
    with pytest.raises(SpecError) as caught:
        specs.fit_spec(models, Loading(), Network(), Data(), quiet)
    assert "tied.pt" in str(caught.value) and "layers.0.weight = layers.1.weight share storage" in str(
        caught.value
    )


def test_tied_tensors_of_a_list_would_part(tmp_path):
    weight = torch.randn(3, 4)
    state = {"gate": torch.randn(2, 4), "experts.0.up": weight, "experts.1.up": weight}
    torch.save(state, tmp_path / "tied.pt")
    (tmp_path / "list.yaml").write_text('tensors:\n  gate: "expert ."\n  experts.{}.up: "expert . ."\n')
    models = [open_checkpoint(tmp_path / "tied.pt")]
    with pytest.raises(SpecError) as caught:
        specs.fit_spec(models, Loading(spec=str(tmp_path / "list.yaml")), Network(), Data(), quiet)
    assert "experts.0.up = experts.1.up share storage" in str(caught.value)
    assert "at 0 of experts.{}.up, " in str(caught.value) and "at 1 of experts.{}.up" in str(caught.value)


def test_shapes_are_read_and_checked():
    assert running.parse_shape("1x3×224X224") == (1, 3, 224, 224)
    for text in ("", "x", "1x0", "3,4", "1x-2"):
        with pytest.raises(UsageError, match="is not a shape"):
            running.parse_shape(text)


def test_a_batch_of_inputs_has_one_size_more_than_an_input():
    assert running.parse_shape("2x3x8x8", like=(3, 32, 32)) == (2, 3, 8, 8)
    assert running.parse_shape("1x1x28x28", like=(784,)) == (1, 1, 28, 28)  # a vector: anything flattened
    for text, like in (("8", None), ("784", (784,)), ("3x224x224", (3, 224, 224)), ("2x12", (3, 8, 8))):
        with pytest.raises(UsageError, match="is no batch of inputs") as caught:
            running.parse_shape(text, like=like)
        assert "batch first" in caught.value.hint


def test_max_sweeps_for_a_method_without_sweeps_is_refused():
    assert method_options.make(Search("am"), Data()) == am.Options()
    with pytest.raises(UsageError, match="--max-sweeps: the method am has no such") as caught:
        method_options.make(Search("am", {"max_sweeps": 3}), Data())
    assert caught.value.hint == "It is for dual, merge-many, universe, wm"


def test_a_found_spec_whose_network_is_another_says_what_to_give():
    """As by a spec of another package: these have Tiny-10's names, and are not it."""
    shapes = {"conv1.weight": (4, 3, 3, 3), "conv2.weight": (5, 4, 3, 3), "fc.weight": (10, 5)}
    fitted = fit(library.load("tinyten"), shapes)
    with pytest.raises(NetworkError, match=r"no tinyten; tinyten.yaml was found from their names") as caught:
        running.find_network(fitted, Network(), quiet)
    assert "--net" in caught.value.hint and "--spec" in caught.value.hint
    with pytest.raises(NetworkError) as caught:
        running.find_network(fitted, Network(), quiet, named=True)
    assert caught.value.message == "these tensors are no tinyten"


def test_a_permutation_of_another_size_names_its_file(record, tmp_path):
    from rebasin_cli.symmetry import stored
    from rebasin_cli.symmetry.elements import Elements

    path = tmp_path / "p.perm.safetensors"
    stored.save(path, Elements({"h0": torch.arange(5)}), metadata={})
    fitted = library.find(record().shapes)
    with pytest.raises(CheckpointError, match="p.perm.safetensors: these permutations do not fit"):
        giving.read(path, fitted)


def test_provenance_records_what_changes_the_result_and_how_long_to_search():
    given = {"effort": "high", "max_sweeps": 3, "memory": 10**6, "bound": True}
    assert method_options.recorded(Search("wm", given), Data()) == {"effort": "high", "max_sweeps": 3}
    assert method_options.recorded(Search("wm"), Data(data="mnist", limit=5)) == {
        "effort": None,
        "max_sweeps": None,
    }  # wm looks at no data; the two names are in every file of ours
    looking = method_options.recorded(Search("am", {"cost": "l2"}), Data(data="npz:/home/me/x.npz", limit=5))
    assert looking == {"effort": None, "max_sweeps": None, "cost": "l2", "data": "npz", "limit": 5}
    training = method_options.recorded(Search("ste", {"epochs": 2}), Data(batch_size=7))
    assert training["batch_size"] == 7 and training["epochs"] == 2


def test_a_search_that_goes_on_must_agree_on_what_it_finds_and_not_on_how_long_it_takes():
    asked = Search("wm", {"effort": "high", "max_sweeps": 3, "memory": 10**6})
    assert method_options.identity(asked, Data(), Network()) == {"effort": "high"}
    assert method_options.identity(Search(), Data(), Network()) == {"effort": None}
    feeding = method_options.identity(
        Search("am"), Data(data="mnist", batch_size=7), Network(net="file.py:net")
    )
    assert feeding["net"] == "file.py:net" and feeding["data"] == "mnist" and feeding["batch_size"] == 7
    assert feeding.keys() == {*"data normalize limit batch_size loss output net effort".split()}


def test_options_of_several_methods_go_to_those_that_have_them():
    each = method_options.for_those_that_have_them(Search(options={"epochs": 2, "cost": "l2"}), ["am", "ste"])
    assert each["am"].options == {"cost": "l2"} and each["ste"].options == {"epochs": 2}
    assert each["am"].method == "am"
    with pytest.raises(UsageError, match="--mix: the method am has no such option"):
        method_options.for_those_that_have_them(Search(options={"mix": 0.5}), ["am", "ste"])


def test_what_was_not_asked_for_opens_nothing(tmp_path):
    """Several processes open files together: one that asks alone would wait for the others."""
    session = Session("align", [tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    assert session.folds == NONE and not session.unseen
    with pytest.raises(CheckpointError):
        session.fitted  # noqa: B018


def test_options_of_methods_come_in_the_types_that_the_chosen_method_means():
    read = asked.meant({"memory": "2GB", "effort": "high", "max_sweeps": "3"}, "wm")
    assert read == {"memory": 2 * 10**9, "effort": "high", "max_sweeps": 3}
    assert asked.meant({"max_sweeps": "3"}, None) == {"max_sweeps": 3}  # of wm, which may be meant
    assert asked.meant({"max_sweeps": 3}, ["am", "wm"]) == {"max_sweeps": 3}
    assert asked.meant({"epochs": "3"}, "ste") == asked.meant({"epochs": "3"}, ["ste"]) == {"epochs": 3}
    assert asked.meant({"epochs": "3"}, "wm") == {"epochs": "3"}  # which wm refuses by its name
    with pytest.raises(UsageError, match="--max-sweeps 'x' is not of type int"):
        asked.meant({"max_sweeps": "x"}, "wm")


def test_a_subject_has_what_the_operation_takes_and_else_its_defaults():
    from rebasin_cli.commands.align import Align
    from rebasin_cli.commands.eval import Eval

    align = Align(reference=Path("a"), model=Path("b"), no_prove=True, seed=3, options={"max_sweeps": "2"})
    of = asked.subjects_of(align)
    assert of.search == Search(method="wm", options={"max_sweeps": 2}, prove=False)
    assert asked.subjects_of(Align(reference=Path("a"), model=Path("b"))).search == Search(
        "wm", prove=True, open=True
    )
    assert of.network.seed == 3 and of.data == Data() and of.loading == Loading()
    one = asked.subjects_of(Eval(model=Path("a"), data="digits"))
    assert one.data.data == "digits" and one.search == Search()
    assert asked.of(align, Network, seed=5).seed == 5


def test_another_search_or_other_tensors_share_what_was_opened_and_no_more(tmp_path):
    """What was opened of the models stays as they are; what is found of tensors is theirs alone."""
    paths = [tmp_path / f"{width}.safetensors" for width in (8, 5)]
    for path, width in zip(paths, (8, 5), strict=True):
        write_safetensors(path, MLP([64, width, 10]).state_dict(), metadata={"rebasin.data": "digits"})
    session = Session(
        "merge", [paths[0]] * 2, asked=Subjects(search=Search("wm"), network=Network(net="mlp"))
    )
    assert session.options is not None and session.has_data
    opened = {name: getattr(session, name) for name in ("models", "fitted", "network")}
    other = session.by(Search("am"))
    assert other.method == "am" and other.options == am.Options() and session.method == "wm"
    assert all(getattr(other, name) is one for name, one in opened.items())
    models = [open_checkpoint(paths[1])] * 2
    again = session.over(models, session.asked)
    assert again.models == models and session.models is opened["models"]
    assert again.network.state_dict()["head.bias"].shape == (10,) and again.network is not session.network
    assert again.fitted.sizes != session.fitted.sizes
    session.forget_network()
    assert session.network is not opened["network"] and session.network is session.network


def test_a_device_that_is_not_there_is_told_before_any_file_is_read(tmp_path):
    session = Session("align", [tmp_path / "gone"] * 2, asked=Subjects(network=Network(device="cuda:99")))
    with pytest.raises(UsageError, match="cuda"):
        session.models  # noqa: B018


def test_samples_are_told_once_and_looked_at_once_with_a_network_that_somebody_asked_for(
    tmp_path, monkeypatch
):
    path, said, looked = tmp_path / "model.safetensors", [], []
    write_safetensors(path, MLP([64, 8, 10]).state_dict(), metadata={"rebasin.data": "digits"})
    monkeypatch.setattr(session_file.doubts, "look", lambda *given: looked.append(given) or ())
    session = Session("barrier", [path], Listener(say=said.append), asked=Subjects(data=Data(limit=20)))
    assert session.open_splits("test").keys() == {"test"} and looked == []
    assert "network" not in vars(session)  # nobody asked for it
    assert session.network is not None and session.by(Search("am")).network is session.network
    for _ in range(2):
        assert session.open_splits("test", "train").keys() == {"test", "train"}
    assert len(looked) == 1 and session.better == () and session.splits.keys() == {"test", "train"}
    assert [text.partition(",")[0] for text in said if text.startswith("data: ")] == ["data: digits"]
    other = Session("eval", [path], ranks=Ranks(rank=1, size=2))
    other.look_at_inputs(session.splits, session.network)
    assert len(looked) == 1 and other.better == ()  # the first of several processes says it


def test_the_network_that_is_named_needs_no_spec_unless_one_is_named_too(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, MLP([64, 8, 10]).state_dict())
    alone = Session("eval", [path], asked=Subjects(network=Network(net="mlp")))
    assert alone.network_alone.state_dict().keys() == alone.models[0].shapes.keys()
    assert not {"symmetries", "network"} & {*vars(alone)}
    both = Session("eval", [path], asked=Subjects(network=Network(net="mlp"), loading=Loading(spec="mlp")))
    assert both.network_alone is both.network and both.fitted.spec.source
