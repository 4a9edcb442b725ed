"""What is taken of a file that holds more than one state dict: all that is weights, or one by its name."""

import time

import pytest
import torch
from torch import nn

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.errors import CheckpointError, NoEnvelope, UsageError

W = torch.arange(6.0).reshape(2, 3)
NET = {"l.weight": W, "l.bias": torch.ones(2)}
MEAN = {name: tensor + 1 for name, tensor in NET.items()}
OTHER = {"weight": torch.ones(4, 2)}
ADAM = {"state": {0: {"exp_avg": W, "step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}


@pytest.fixture
def opened(tmp_path):
    def open_one(content, **options):
        torch.save(content, tmp_path / "a.pt")
        return open_checkpoint(tmp_path / "a.pt", **options)

    return open_one


# The content of a file, and the names that its tensors have.
JOINED = {
    "two networks": (
        {"model": NET, "generator": OTHER, "optim": None},
        ["generator.weight", "model.l.bias", "model.l.weight"],
    ),
    "statistics beside a network": (
        {"network": NET, "obs_mean": torch.zeros(3), "obs_std": torch.ones(3)},
        ["network.l.bias", "network.l.weight", "obs_mean", "obs_std"],
    ),
    "of one value each": (
        {"network": NET, "obs_mean": torch.zeros(1), "log_alpha": torch.tensor(0.1)},
        ["log_alpha", "network.l.bias", "network.l.weight", "obs_mean"],
    ),
    "a parameter of one value": (
        {"model": NET, "z": nn.Parameter(torch.ones(1))},
        ["model.l.bias", "model.l.weight", "z"],
    ),
    "equal networks of different roles": (
        {"model": NET, "critic": MEAN, "critic_opt": ADAM},
        ["critic.l.bias", "critic.l.weight", "model.l.bias", "model.l.weight"],
    ),
    "with moving averages": (
        {"g": NET, "d": OTHER, "g_ema": MEAN},
        ["d.weight", "g.l.bias", "g.l.weight", "g_ema.l.bias", "g_ema.l.weight"],
    ),
    "a list of two": ([NET, OTHER], ["0.l.bias", "0.l.weight", "1.weight"]),
    "a tree": (
        {"encoder": {"l1": {"weight": W}, "l2": {"weight": W}}, "head": {"weight": W}},
        ["encoder.l1.weight", "encoder.l2.weight", "head.weight"],
    ),
    "a thin tree": ({"encoder": {"l1": {"weight": W}}}, ["encoder.l1.weight"]),
    "a tree in an envelope": (
        {"model": {"encoder": OTHER, "layers": {0: {"weight": W}}}, "step": 3},
        ["encoder.weight", "layers.0.weight"],
    ),
    "keys of several words": ({"params": {("enc", "kernel"): W, ("enc", 1): W}}, ["enc.1", "enc.kernel"]),
    "each in wrappers of its own": (
        {"model": {f"module.{name}": tensor for name, tensor in NET.items()}, "head": {"module.w": W}},
        ["head.w", "model.l.bias", "model.l.weight"],
    ),
    "envelopes within": (
        {"model": {"state_dict": NET, "optimizer": ADAM}, "d": OTHER},
        ["d.weight", "model.state_dict.l.bias", "model.state_dict.l.weight"],
    ),
    "a loss with weights": (
        {"model": NET, "loss": OTHER},
        ["loss.weight", "model.l.bias", "model.l.weight"],
    ),
    "one network under two names and another": (
        {"a": OTHER, "b": {"c": OTHER}, "d": NET},
        ["a.weight", "b.c.weight", "d.l.bias", "d.l.weight"],
    ),
}


def test_several_parts_are_joined_under_the_names_that_lead_to_them(opened):
    """And nothing of them is lost, whatever the order in the file."""
    for what, (content, names) in JOINED.items():
        for turned in (False, True):
            if turned and isinstance(content, dict):
                content = dict(reversed(content.items()))
            checkpoint = opened(content)
            assert sorted(checkpoint) == names, what
            for name, place in checkpoint.places.items():
                value = content
                for key in place:
                    value = value[key]
                assert torch.equal(checkpoint[name], value), (what, name)
    checkpoint = opened(JOINED["two networks"][0])
    assert checkpoint.parts == {"model": 8, "generator": 8}
    assert checkpoint.notes[0] == (
        "parts joined under their names: generator (8 values), model (8 values); "
        "--key chooses, such as --key generator"
    )


# The content of a file, the envelope of the one set that is taken, and what is left out.
ALONE = {
    "a run": (
        {
            "state_dict": NET,
            "optimizer": ADAM,
            "lr_sched": {"last_lr": torch.ones(3)},
            "scaler": {"scale": torch.tensor(2.0), "growth_factor": 2.0},
            "best_acc1": torch.tensor([76.1]),
            "train_losses": torch.ones(100),
            "history": {"loss": torch.ones(9), "acc": [torch.tensor(1.0)] * 9},
            "confusion": torch.ones(10, 10),
            "rng": torch.zeros(5056, dtype=torch.uint8),
            "random": {"cuda": [torch.zeros(16, dtype=torch.uint8)]},
            "grads": OTHER,
            "hyper_parameters": {"class_weights": torch.ones(10)},
            "arch": "resnet18",
        },
        "state_dict",
        {
            "optimizer": "an optimizer's state",
            "lr_sched": "a scheduler's state",
            "scaler": "a gradient scaler's state",
            "best_acc1": "a number",
            "train_losses": "a record of training",
            "history": "a record of training",
            "confusion": "a record of training",
            "rng": "a random state",
            "random": "a random state",
            "grads": "gradients",
            "hyper_parameters": "settings",
            "arch": "str",
        },
    ),
    "two optimizers": (
        {"model": NET, "optimizers": [ADAM, ADAM], "optimizerG": ADAM, "other": ADAM},
        "model",
        dict.fromkeys(("optimizers", "optimizerG", "other"), "an optimizer's state"),
    ),
    "a pair": ((NET, ADAM, 3), "0", {"1": "an optimizer's state"}),
    "numbers in a dictionary": ({"net": NET, "best": {"x": torch.tensor(0.5)}}, "net", {"best": "numbers"}),
    "in two envelopes": ({"run": {"model": NET, "epoch": 3}}, "run.model", {"run.epoch": "int"}),
    "masks": ({"model": NET, "m": {"l.weight": W > 2}}, "model", {"m": "numbers"}),
    "a key that is no text": ({"model": NET, None: 3}, "model", {"a NoneType as a key": "an int"}),
}
# The content, and the paths of the copies that are not taken.
COPIES = {
    "a moving average": ({"model": NET, "ema": {"shadow": MEAN, "decay": 0.9}}, ["ema.shadow"]),
    "in a wrapper": ({"model": NET, "e": {f"module.{k}": t for k, t in MEAN.items()}}, ["e"]),
    "behind other names": (
        {
            "model": NET,
            "ema": {f"{m}.{k}": t for k, t in MEAN.items() for m in ("ema_model", "online_model")},
        },
        ["ema"],
    ),
    "without names": ({"model": NET, "ema": {"shadow_params": list(MEAN.values())}}, ["ema.shadow_params"]),
    "of parameters only": ({"model": NET | {"bn.running_mean": W[0]}, "model_ema": MEAN}, ["model_ema"]),
    "the best so far": ({"model": NET, "best_model": MEAN, "teacher": MEAN}, ["best_model", "teacher"]),
    "of the only one": ({"backbone": NET, "swa": MEAN}, ["swa"]),
}


def test_a_set_is_taken_alone_where_all_else_is_no_weights_or_a_copy(opened):
    for what, (content, envelope, left_out) in ALONE.items():
        checkpoint = opened(content)
        assert list(checkpoint) == list(NET) and checkpoint.envelope == envelope, what
        assert left_out.items() <= checkpoint.skipped.items(), (what, checkpoint.skipped)
        assert not checkpoint.alternatives and not checkpoint.parts, what
    for what, (content, copies) in COPIES.items():
        checkpoint = opened(content)
        assert set(checkpoint) >= set(NET) and sorted(checkpoint.alternatives) == copies, what


def test_the_line_of_what_is_left_out_stays_short(opened):
    checkpoint = opened({"model": NET} | {f"option{number}": number for number in range(20)})
    assert checkpoint.notes[-1].endswith("option7 … 12 more") and len(checkpoint.skipped) == 20


def test_key_chooses_one_part_or_several(opened):
    content = {"model": NET, "generator": OTHER, "obs_mean": torch.ones(3), "optimizer": ADAM, "a,b": MEAN}
    for key, names in {
        "generator": ["weight"],
        "model": list(NET),
        "model,generator": [*(f"model.{name}" for name in NET), "generator.weight"],
        " generator , obs_mean ": ["generator.weight", "obs_mean"],
        "obs_mean": ["obs_mean"],
        "a,b": list(MEAN),
    }.items():
        assert list(opened(content, key=key)) == names, key
    with pytest.raises(UsageError, match="unknown key in .*'critic'"):
        opened(content, key="model,critic")
    with pytest.raises(UsageError, match="'optimizer' is a dict without named tensors"):
        opened(content, key="optimizer")
    with pytest.raises(UsageError, match="names nothing"):
        opened(content, key=",")
    with pytest.raises(CheckpointError, match="share a name"):
        opened(content, key="model,model")
    with pytest.raises(NoEnvelope):
        opened({"model": NET}, key="ema")
    with pytest.raises(UsageError, match="unknown key"):
        opened({"encoder": {"a": OTHER}, "head": OTHER}, key="ema")


def test_parts_whose_names_collide_are_refused(opened):
    for content in (
        {"a.b": W, "a": {"b": W}},
        {"a": {"b.c": W}, "a.b": {"c": W}},
        {"p": {"l": {0: W, "0": W}}},
    ):
        with pytest.raises(CheckpointError, match="share a name") as caught:
            opened(content)
        assert "are both" in caught.value.problems[0]


def test_an_optimizers_state_alone_is_no_model(opened):
    for content in ({"optimizer": ADAM}, [ADAM, ADAM], {"exp_avg": NET, "exp_avg_sq": NET}):
        with pytest.raises(CheckpointError, match="holds an optimizer's state, and no weights"):
            opened(content)
    with pytest.raises(CheckpointError) as caught:
        opened({"exp_avg": NET, "exp_avg_sq": NET})
    assert caught.value.hint.endswith("--key exp_avg")


def test_dictionaries_that_hold_themselves_or_lie_deep_end_soon(opened):
    inner = {"w": W}
    inner["self"] = inner
    checkpoint = opened({"model": inner})
    assert list(checkpoint) == ["w"] and checkpoint.skipped == {"model.self": "the same as model"}
    with pytest.raises(UsageError, match="unknown key"):
        opened({"model": inner, "d": OTHER}, key="model" + ".self" * 3000)
    deep = {"w": W}
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(CheckpointError, match="more than 64 dictionaries"):
        opened(deep)
    doubled = {"w": W}
    for _ in range(50):
        doubled = {"a": doubled, "b": doubled}
    started = time.monotonic()
    assert len(opened(doubled))
    assert time.monotonic() - started < 10


def test_many_names_take_time_as_many_and_no_more(opened):
    one = torch.ones(1, 1)
    many = {f"layer{number}.weight": one for number in range(5_000)}
    tree = {f"layer{number}": {"weight": one} for number in range(5_000)}
    started = time.monotonic()
    assert len(opened({"model": many, "ema": dict(many)})) == 5_000
    assert len(opened({"params": tree})) == 5_000
    assert time.monotonic() - started < 20


def test_with_a_key_the_envelope_has_no_half_of_what_was_not_chosen(opened):
    content = {
        "actor": NET,
        "critic": OTHER,
        "rms": {"mean": torch.ones(3), "count": 9},
        "step": 7,
        "opt": ADAM,
    }
    for key, kept in {"actor": {"actor"}, "actor,critic": {"actor", "critic"}}.items():
        checkpoint = opened(content, key=key)
        assert set(checkpoint.around.tree) == {*kept, "step"} and set(checkpoint.around.left_out) >= {
            "rms",
            "opt",
        }
        assert checkpoint.skipped["opt"] == "an optimizer's state" and "rms" in checkpoint.alternatives
        assert "rms.count" not in checkpoint.skipped  # of what is left out whole
    inside = opened({"run": {"net": NET, "gen": OTHER, "optimizer": ADAM, "lr": 3}, "epoch": 2})
    assert set(inside.around.tree["run"]) == {"net", "gen", "lr"} and "run.optimizer" in inside.skipped
    assert "left out: run.optimizer (an optimizer's state)" in inside.notes  # and nothing that is kept
    assert "plain values beside the weights: epoch, run.lr" in inside.notes
