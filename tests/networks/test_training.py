"""Training: the same seed gives the same tensors, interrupted or not."""

import math

import pytest
import torch
from torch import nn

from rebasin_cli import nets
from rebasin_cli.datasets import Data, Normalization, Samples, open_data
from rebasin_cli.datasets._cifar import crop_and_flip
from rebasin_cli.errors import DataError, NetworkError, ResourceError, UsageError
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.networks.training import learning_rate_at, train
from rebasin_cli.networks.training_setup import Recipe, default_recipe
from rebasin_cli.runtime.seeds import derive, seeded


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Networks this small are slower on two threads, and much slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def same(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def quick(**options):
    return train("mlp", "digits", **{"width": 16, "depth": 1, "epochs": 2, "limit": 300, **options})


def colours(n=48):
    """A tiny data set of 12×12 colour images in which the brightest channel is the class."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(n) % 3
    inputs = torch.randint(0, 150, (n, 3, 12, 12), dtype=torch.uint8, generator=generator)
    inputs[torch.arange(n), targets] += 100
    normalization = Normalization((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return Data("colours", "train", Samples(inputs, targets), normalization, 3, 500, crop_and_flip)


class WithEverything(nn.Module):
    """Convolution, running statistics and dropout: all that a resumed run must get right."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.bn(self.conv(x))).mean((2, 3))
        return self.fc(nn.functional.dropout(x, 0.3, self.training))


def everything(**options):
    with seeded(0, "test"):
        network = WithEverything()
    options = {"epochs": 4, "batch_size": 10, "learning_rate": 0.05, **options}
    return train(network, (colours(), colours(12)), **options)


def test_the_default_recipe_learns_the_digits():
    result = train("mlp", "digits", seed=1, width=64)
    assert float(result.metadata["rebasin.test_accuracy"]) >= 0.95
    assert result.history[-1]["loss"] < result.history[0]["loss"] / 10


def test_the_tensors_are_those_of_the_network_and_score_what_is_recorded():
    result = quick()
    network = nets.mlp.from_shapes({name: tuple(tensor.shape) for name, tensor in result.tensors.items()})
    network.load_state_dict(result.tensors)
    for split, limit in (("train", 300), ("test", None)):
        accuracy = evaluate(network, open_data("digits", split, limit=limit)).accuracy
        assert result.metadata[f"rebasin.{split}_accuracy"] == f"{accuracy:.4f}"


def test_the_metadata_says_how_to_repeat_it():
    metadata = quick(seed=3, learning_rate=0.002).metadata
    expected = {
        "rebasin.command": "train",
        "rebasin.net": "mlp",
        "rebasin.data": "digits",
        "rebasin.seed": "3",
        "rebasin.normalization": "0.0/1.0",
        "rebasin.samples": "300",
        "rebasin.width": "16",
        "rebasin.epochs": "2",
        "rebasin.batch_size": "128",
        "rebasin.optimizer": "adam",
        "rebasin.learning_rate": "0.002",
    }
    assert expected.items() <= metadata.items()
    assert "rebasin.version" in metadata
    assert all(isinstance(text, str) for text in metadata.values())


def test_the_seed_decides_everything_and_the_callers_randomness_nothing():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = quick(seed=5).tensors
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(one, quick(seed=5).tensors)
    assert not same(one, quick(seed=6).tensors)


def test_seeds_are_derived_from_seed_and_purpose():
    assert derive(0, "a") == 58385795686298062
    assert len({derive(0, "a"), derive(1, "a"), derive(0, "b")}) == 3


class Interrupt(Exception):
    pass


@pytest.mark.parametrize("stop", [Interrupt, KeyboardInterrupt])
@pytest.mark.parametrize("options", [{}, {"optimizer": "adam"}, {"precision": "bfloat16"}])
def test_a_resumed_run_ends_bit_for_bit_where_an_uninterrupted_one_does(tmp_path, options, stop):
    whole = everything(**options)
    state = tmp_path / "state"

    def interrupt(progress):
        if progress.epoch == 3:
            raise stop

    with pytest.raises(stop):
        everything(**options, state_path=state, progress=interrupt)
    assert state.exists()
    epochs = []
    resumed = everything(**options, state_path=state, progress=lambda progress: epochs.append(progress.epoch))
    assert set(epochs) in ({4}, {3, 4})
    assert same(whole.tensors, resumed.tensors)
    assert whole.history == resumed.history
    assert whole.metadata == resumed.metadata


def test_an_epoch_that_was_cut_short_leaves_the_state_of_the_epoch_before(tmp_path, monkeypatch):
    whole, state, steps = everything(), tmp_path / "state", []
    forward = WithEverything.forward

    def interrupted(self, x):
        steps.append(self.training)
        if sum(steps) == 13:  # in the third epoch of five steps
            raise KeyboardInterrupt
        return forward(self, x)

    monkeypatch.setattr(WithEverything, "forward", interrupted)
    with pytest.raises(KeyboardInterrupt):
        everything(state_path=state)
    monkeypatch.setattr(WithEverything, "forward", forward)
    epochs = []
    resumed = everything(state_path=state, progress=lambda progress: epochs.append(progress.epoch))
    assert epochs == [3, 4]
    assert same(whole.tensors, resumed.tensors)


def test_a_finished_state_gives_the_result_without_training(tmp_path):
    first = everything(state_path=tmp_path / "state")
    shown = []
    again = everything(state_path=tmp_path / "state", progress=shown.append)
    assert not shown
    assert same(first.tensors, again.tensors) and first.metadata == again.metadata


def test_the_state_of_another_training_is_refused_with_what_differs(tmp_path):
    quick(state_path=tmp_path / "state")
    with pytest.raises(UsageError) as error:
        quick(state_path=tmp_path / "state", seed=1, epochs=3)
    assert error.value.problems == ("rebasin.epochs: 2 there, 3 here", "rebasin.seed: 0 there, 1 here")


@pytest.mark.parametrize("content", [b"", b"not a state", None])
def test_a_file_that_is_no_state_is_refused(tmp_path, content):
    if content is None:
        torch.save({"something": 1}, tmp_path / "state")
    else:
        (tmp_path / "state").write_bytes(content)
    with pytest.raises(UsageError, match="not the state of a training"):
        quick(state_path=tmp_path / "state")


def test_a_state_that_cannot_be_written_is_a_resource_error(tmp_path):
    with pytest.raises(ResourceError, match="no such folder"):
        quick(state_path=tmp_path / "absent" / "state")


def test_progress_counts_steps_and_ends_each_epoch_with_an_accuracy():
    shown = []
    result = quick(limit=600, batch_size=5, progress=shown.append)
    assert [(p.epoch, p.step) for p in shown] == [(e, s) for e in (1, 2) for s in (50, 100, 120)]
    assert {(p.epochs, p.steps) for p in shown} == {(2, 120)}
    ends = [p for p in shown if p.test_accuracy is not None]
    assert [p.test_accuracy for p in ends] == [row["test_accuracy"] for row in result.history]
    assert [p.loss for p in ends] == [row["loss"] for row in result.history]
    assert [p.step for p in ends] == [120, 120]


def test_a_loss_that_is_no_number_stops_the_training_and_saves_nothing(tmp_path):
    with pytest.raises(NetworkError, match="diverged") as error:
        quick(optimizer="sgd", learning_rate=1e20, state_path=tmp_path / "state")
    assert "1e+19" in error.value.hint
    assert not (tmp_path / "state").exists()


def test_augmentation_is_used_in_training_only():
    calls = []

    def count(inputs, generator):
        calls.append(len(inputs))
        return inputs

    data = Data(**{**vars(colours()), "augmentation": count})
    train(WithEverything(), (data, data), epochs=1, batch_size=16)
    assert calls == [16, 16, 16]
    train(WithEverything(), (data, data), epochs=1, batch_size=16, augment=False)
    assert len(calls) == 3


def test_networks_without_convolutions_train_with_adam_and_small_sets_for_longer():
    mlp = nets.build("mlp", input_shape=(1, 8, 8), classes=10)
    assert default_recipe(mlp, 60_000) == Recipe(10, 128, "adam", 1e-3)
    assert default_recipe(mlp, 1437).epochs == 84
    assert default_recipe(mlp, 10).epochs == 100
    assert default_recipe(mlp, 60_000, optimizer="sgd").learning_rate == 0.1 / 10
    conv = default_recipe(WithEverything(), 50_000)
    assert (conv.optimizer, conv.learning_rate, conv.weight_decay, conv.augment) == ("sgd", 0.1, 5e-4, True)
    assert default_recipe(nn.Conv2d(3, 3, 1), 50_000).learning_rate == 0.01
    vit = default_recipe(nets.build("vit", input_shape=(3, 32, 32), classes=10), 50_000)
    assert vit == Recipe(10, 128, "adam", 1e-3, warmup=0.1, augment=True)


def repeated(path, text="one two three four five, six seven eight nine ten. "):
    path.write_text(text * 40, encoding="utf-8")
    return f"text:{path}"


def test_a_language_model_learns_a_text_that_repeats_itself_and_records_its_characters(tmp_path):
    options = {"width": 16, "depth": 1, "epochs": 30, "batch_size": 8, "learning_rate": 0.02}
    result = train("gpt", repeated(tmp_path / "a.txt"), **options, heads=2, positions="rope")
    assert float(result.metadata["rebasin.test_accuracy"]) > 0.8
    assert result.metadata["rebasin.vocabulary"] == " ,.efghinorstuvwx"
    assert result.metadata["rebasin.heads"] == "2" and result.metadata["rebasin.positions"] == "rope"
    assert "rebasin.patch" not in result.metadata


@pytest.mark.parametrize(
    ("net", "data", "says"),
    [
        ("mlp", "alice", "mlp reads images, and alice is text"),
        ("vit", "alice", "vit reads images, and alice is text"),
        ("gpt", "digits", "gpt reads text, and digits is images"),
    ],
)
def test_text_is_for_nets_that_read_it_and_images_for_the_others(net, data, says):
    with pytest.raises(UsageError, match=says):
        train(net, data)


def test_the_learning_rate_rises_and_falls_to_nothing_or_stays():
    cosine = Recipe(1, 1, "sgd", 2.0, "cosine", warmup=0.1)
    rates = [learning_rate_at(cosine, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert rates[10] == 2.0 and rates[55] == pytest.approx(1.0) and 0 < rates[99] < 0.001
    constant = Recipe(1, 1, "sgd", 2.0, "constant")
    assert {learning_rate_at(constant, step, 100) for step in range(100)} == {2.0}


@pytest.mark.parametrize(
    "option, value",
    [
        ("optimizer", "lion"),
        ("schedule", "linear"),
        ("precision", "float16"),
        ("epochs", 0),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("weight_decay", -1.0),
    ],
)
def test_options_that_make_no_training_are_refused(option, value):
    with pytest.raises(UsageError, match=f"{option}|unknown"):
        quick(**{option: value})


def test_unknown_nets_and_data_offer_the_nearest():
    with pytest.raises(UsageError, match="Did you mean mlp"):
        train("mpl", "digits")
    with pytest.raises(UsageError, match="Did you mean digits"):
        train("mlp", "digit")


def test_a_loader_of_batches_cannot_be_trained_on(tmp_path):
    (tmp_path / "mine.py").write_text("loader = lambda split: []\n")
    with pytest.raises(UsageError, match="not the batches of a loader"):
        train("mlp", f"{tmp_path}/mine.py:loader")


def test_a_class_that_training_never_saw_is_an_error_before_training():
    other = Data(**{**vars(colours()), "source": Samples(colours().source.inputs, torch.arange(48) % 4)})
    with pytest.raises(DataError, match="knows 3 classes"):
        train(WithEverything(), (colours(), other), epochs=1)


@pytest.mark.parametrize("name, shape", [("tinyten", (3, 16, 16)), ("resnet20", (1, 8, 8))])
def test_the_convolutional_nets_train(name, shape):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 255, (8, *shape), dtype=torch.uint8, generator=generator)
    data = Data("noise", "train", Samples(inputs, torch.arange(8) % 2), Normalization(), 2)
    result = train(name, (data, data), epochs=1, batch_size=4, width=0.25)
    assert result.tensors["conv1.weight"].shape == (4, shape[0], 3, 3)
    assert result.tensors["conv1.weight"].is_contiguous()
    assert result.tensors["bn1.num_batches_tracked"] == 2
