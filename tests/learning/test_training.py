"""Training: the same seed gives the same tensors, interrupted or not."""

import math

import pytest
import torch
from torch import nn

from rebasin_cli import nets
from rebasin_cli.datasets import Data, Normalization, Samples, open_data
from rebasin_cli.datasets.sets._cifar import crop_and_flip
from rebasin_cli.errors import DataError, NetworkError, ResourceError, UsageError
from rebasin_cli.learning.initial import initialize
from rebasin_cli.learning.recipe import Recipe, default_recipe, learning_rate_at
from rebasin_cli.learning.training import Keep, train
from rebasin_cli.networks.evaluation import evaluate
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


@pytest.mark.sweep
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


def test_each_epoch_draws_its_dropout_from_a_seed_of_its_own(monkeypatch):
    begun, forward = [], WithEverything.forward

    def noting(self, x):
        if self.training:
            begun.append(torch.random.get_rng_state().numpy().tobytes())
        return forward(self, x)

    monkeypatch.setattr(WithEverything, "forward", noting)
    everything(epochs=3, batch_size=48)  # a step each
    assert len(begun) == len({*begun}) == 3


def test_seeds_are_derived_from_seed_and_purpose():
    assert derive(0, "a") == 58385795686298062
    assert len({derive(0, "a"), derive(1, "a"), derive(0, "b")}) == 3


class Interrupt(Exception):
    pass


@pytest.mark.parametrize("stop", [Interrupt, KeyboardInterrupt])
@pytest.mark.parametrize(
    "options", [{}, {"optimizer": "adam"}, {"optimizer": "adamw"}, {"precision": "bfloat16"}]
)
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
    assert default_recipe(mlp, 60_000, optimizer="adamw") == Recipe(10, 128, "adamw", 1e-3, weight_decay=0.01)


def test_the_decay_of_adamw_shrinks_the_weights_themselves_and_that_of_adam_is_a_gradient():
    """At a rate that leaves float32 as it is, only what is taken from the weights themselves is seen."""
    first = quick(optimizer="adamw", weight_decay=0.0, learning_rate=1e-30, schedule="constant").tensors
    decayed = quick(optimizer="adamw", weight_decay=1e28, learning_rate=1e-30, schedule="constant").tensors
    steps = 2 * 3
    for name, tensor in first.items():
        torch.testing.assert_close(decayed[name], tensor * (1 - 0.01) ** steps)
    drawn = quick(optimizer="adam", weight_decay=1e28, learning_rate=1e-30, schedule="constant").tensors
    assert same(drawn, first)


def test_a_training_records_augmentation_only_where_the_data_has_any():
    shape = {"width": 8, "depth": 1, "heads": 1, "patch": 4}
    trained = train("vit", "digits", epochs=1, limit=8, batch_size=8, **shape)
    assert trained.metadata["rebasin.augment"] == "False"


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


def test_a_halving_rate_is_halved_twelve_times():
    recipe = Recipe(1, 1, "sgd", 2.0, "halving")
    rates = [learning_rate_at(recipe, step, 120) for step in range(120)]
    assert rates[::10] == [2.0 * 0.5**k for k in range(12)] and len(set(rates)) == 12


def test_a_triangle_rises_from_nothing_for_five_epochs_and_falls_to_the_end_by_the_epoch():
    recipe = Recipe(20, 1, "sgd", 2.0, "triangle", warmup=0.0)
    rates = [learning_rate_at(recipe, step, 200) for step in range(200)]
    assert all(len(set(rates[first : first + 10])) == 1 for first in range(0, 200, 10))
    assert rates[::10][:7] == pytest.approx([0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.0 * 14 / 15])
    assert rates[-1] == pytest.approx(2.0 / 15)
    assert learning_rate_at(Recipe(2, 1, "sgd", 2.0, "triangle"), 1, 2) == 2.0


def test_plain_sgd_takes_the_steps_of_plain_sgd():
    """One batch, so that its order does not matter."""
    how = {"optimizer": "sgd", "schedule": "constant", "warmup": 0.0, "weight_decay": 0.0, "batch_size": 400}
    made = quick(epochs=3, momentum=0.0, learning_rate=0.1, init="kaiming", **how)
    start = []
    quick(epochs=1, init="kaiming", keep=Keep(1, lambda epoch, tensors, meta: start.append(tensors)), **how)
    network = nets.build("mlp", input_shape=(1, 8, 8), classes=10, width=16, depth=1)
    network.load_state_dict(start[0])
    data = open_data("digits", "train", limit=300)
    ((inputs, targets),) = data.with_batch_size(300)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
    for name, tensor in network.state_dict().items():
        assert torch.allclose(made.tensors[name], tensor, atol=1e-6), name
    assert made.metadata["rebasin.momentum"] == "0.0" and made.metadata["rebasin.nesterov"] == "False"
    assert not same(
        made.tensors, quick(epochs=3, momentum=0.9, learning_rate=0.1, init="kaiming", **how).tensors
    )
    pushed = {"momentum": 0.9, "learning_rate": 0.1, "init": "kaiming", "epochs": 3} | how
    assert not same(quick(nesterov=False, **pushed).tensors, quick(nesterov=True, **pushed).tensors)


def test_adam_records_no_momentum():
    assert "rebasin.momentum" not in quick(epochs=1).metadata
    assert quick(epochs=1, optimizer="sgd").metadata["rebasin.nesterov"] == "True"


def test_first_weights_follow_the_rule():
    found = {}
    for init in ("kaiming", "lecun", "xavier", "small", "torch"):
        network = nets.build("mlp", input_shape=(1, 20, 20), classes=10, width=200, depth=1)
        with seeded(0, "test"):
            initialize(network, init)
        found[init] = network.layers[0].weight.var().item()
        largest = max(network.layers[0].bias.abs().max().item(), network.head.bias.abs().max().item())
        assert largest == 0 if init != "torch" else 0 < largest < 200**-0.5
    expected = {"kaiming": 2 / 400, "lecun": 1 / 400, "xavier": 2 / 600, "small": 0.0004, "torch": 1 / 1200}
    assert found == pytest.approx(expected, rel=0.03)
    with seeded(0, "test"):  # a network whose own first weights are others
        vit = nets.build("vit", input_shape=(1, 8, 8), classes=10, width=64)
        initialize(vit, "torch")
    widest = max((m for m in vit.modules() if isinstance(m, nn.Linear)), key=lambda m: m.weight.numel())
    assert widest.weight.var().item() == pytest.approx(1 / (3 * widest.in_features), rel=0.03)
    with seeded(0, "test"):
        conv = WithEverything()
        initialize(conv, "kaiming")
    assert conv.conv.weight.var().item() == pytest.approx(2 / 27, rel=0.25) and (conv.bn.weight == 1).all()


def test_what_epochs_leave_is_kept_and_changes_nothing():
    kept = {}
    keep = Keep(2, lambda epoch, tensors, metadata: kept.update({epoch: (tensors, metadata)}))
    made = quick(epochs=4, keep=keep)
    assert list(kept) == [0, 2, 4] == list(keep.epochs(4))
    assert same(kept[4][0], made.tensors) and same(made.tensors, quick(epochs=4).tensors)
    assert kept[2][1]["rebasin.epoch"] == "2" and kept[2][1]["rebasin.epochs"] == "4"
    assert kept[4][1]["rebasin.test_accuracy"] == made.metadata["rebasin.test_accuracy"]
    assert same(
        kept[0][0], quick(epochs=1, keep=Keep(1, lambda e, t, m: kept.update({9 + e: (t, m)}))) and kept[9][0]
    )


def test_what_was_kept_before_an_interruption_is_not_kept_again(tmp_path):
    kept = []
    keep = Keep(1, lambda epoch, tensors, metadata: kept.append(epoch))

    def stop(at):
        if at.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(epochs=3, keep=keep, state_path=tmp_path / "s.pt", progress=stop)
    quick(epochs=3, keep=keep, state_path=tmp_path / "s.pt")
    assert kept == [0, 1, 2, 3]


def test_a_share_is_drawn_by_the_seed():
    one, other = (everything(epochs=1, subset=0.5, seed=seed) for seed in (0, 1))
    assert one.metadata["rebasin.samples"] == "24" and one.metadata["rebasin.subset"] == "0.5"
    assert not same(one.tensors, everything(epochs=1, seed=0).tensors) and not same(
        one.tensors, other.tensors
    )


def test_parts_of_classes_are_recorded():
    made = quick(epochs=1, limit=None, classes_split="5:0.2,0.8", part="b")
    told = {name: made.metadata[f"rebasin.{name}"] for name in ("classes_split", "part", "split_seed")}
    assert told == {"classes_split": "5:0.2,0.8", "part": "b", "split_seed": "0"}


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
        ("warmup", 1.5),
        ("init", "zeros"),
        ("subset", 0.0),
        ("subset", 0.5),  # beside the limit
        ("part", "a"),
        ("split_seed", 1),
        ("momentum", 0.9),  # of Adam
        ("nesterov", True),
    ],
)
def test_options_that_make_no_training_are_refused(option, value):
    with pytest.raises(UsageError, match=f"{option.replace('_', '.')}|unknown"):
        quick(**{option: value})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"momentum": 1.0}, "momentum is 1.0; expected 0 or more, and below 1"),
        ({"momentum": 0.0, "nesterov": True}, "--nesterov changes nothing"),
        ({"schedule": "triangle", "warmup": 0.1}, "rises by itself"),
        ({"schedule": "triangle", "epochs": 1}, "0 in the first epoch"),
    ],
)
def test_options_of_sgd_that_make_no_training_are_refused(options, says):
    with pytest.raises(UsageError) as error:
        quick(optimizer="sgd", **options)
    assert says in str(error.value)


def test_first_weights_are_for_a_network_that_begins():
    with pytest.raises(UsageError, match="begins anew"):
        everything(init="kaiming")


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


@pytest.mark.parametrize(
    ("tiles", "vectors", "expected"),
    [(False, False, "float32"), (True, False, "bfloat16"), (False, True, "bfloat16")],
)
def test_convolutions_are_trained_in_bfloat16_where_the_processor_multiplies_it(
    tiles, vectors, expected, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: vectors)
    recipes = [default_recipe(net, 1000) for net in (nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Linear(3, 4))]
    assert [recipe.precision for recipe in recipes] == [expected, "float32"]
