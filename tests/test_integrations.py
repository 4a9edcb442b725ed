"""The examples for Flower, Lightning and Hugging Face's Trainer, against the packages or stubs of them."""

import importlib.util
import runpy
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rebasin_cli.datasets import open_data

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


class FedAvg:
    """As Flower's: the mean of the clients' arrays, weighted by their samples."""

    def __init__(self, **options):
        self.options = options

    def aggregate_fit(self, server_round, results, failures):
        total = sum(fit.num_examples for _, fit in results)
        parts = [[fit.num_examples / total * array for array in fit.parameters] for _, fit in results]
        return [sum(arrays) for arrays in zip(*parts, strict=True)], {}


STUBS = {
    "flwr.common": {"ndarrays_to_parameters": list, "parameters_to_ndarrays": list},
    "flwr.server.strategy": {"FedAvg": FedAvg},
    "lightning.pytorch": {"Callback": object},
    "transformers": {"TrainerCallback": object},
}


@pytest.fixture
def example(monkeypatch):
    """What is in an example's file; packages that are not installed are stubs."""
    tops = {name: name.partition(".")[0] for name in STUBS}
    there = {top for top in tops.values() if importlib.util.find_spec(top) is not None}
    for name, holds in STUBS.items():
        if tops[name] in there:
            continue
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            part = ".".join(parts[:end])
            if part not in sys.modules:
                monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
        vars(sys.modules[name]).update(holds)
    return lambda name: types.SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py")))


@pytest.fixture
def twins():
    """A network, and its weights with their units in another order."""
    torch.manual_seed(0)
    layers = (torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
    network = torch.nn.Sequential(*layers)
    own = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    order = torch.randperm(8)
    other = {"1.weight": own["1.weight"][order], "1.bias": own["1.bias"][order]}
    other |= {"3.weight": own["3.weight"][:, order], "3.bias": own["3.bias"]}
    return network, own, {name: tensor.contiguous() for name, tensor in other.items()}


SPEC = """tensors:
  1.weight: "h ."
  1.bias: "h"
  3.weight: ". h"
  3.bias: "."
"""


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "two.yaml").write_text(SPEC)
    return tmp_path / "two.yaml"


def test_the_strategy_of_flower_averages_clients_that_are_aligned(example, twins, spec):
    network, own, other = twins
    strategy = example("flower_strategy").FedAligned(network, spec)
    turn = sys.modules["flwr.common"]
    arrays = [[tensor.numpy() for tensor in model.values()] for model in (own, other)]
    results = getattr(turn, "FitRes", None)  # the real package's

    def fit(each):
        told = {"parameters": turn.ndarrays_to_parameters(each), "num_examples": 5, "metrics": {}}
        return results(status=None, **told) if results else types.SimpleNamespace(**told)

    fits = [fit(each) for each in arrays]
    mean, _ = strategy.aggregate_fit(1, [(None, fit) for fit in fits], [])
    for array, tensor in zip(turn.parameters_to_ndarrays(mean), own.values(), strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), atol=1e-6)


def test_the_callback_of_lightning_merges_with_a_model_of_before(example, twins, spec, tmp_path):
    network, own, other = twins
    torch.save(other, tmp_path / "other.pt")
    module = types.SimpleNamespace(network=network)
    trainer = types.SimpleNamespace(train_dataloader=open_data("digits", "train", limit=64))
    example("lightning_callback").MergeWith(tmp_path / "other.pt", spec).on_fit_end(trainer, module)
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(tensor, own[name], atol=1e-6, rtol=0)


def test_the_callback_of_the_trainer_merges_with_other_runs(example, twins, spec, tmp_path):
    network, own, other = twins
    save_file(other, tmp_path / "other.safetensors")
    callback = example("trainer_callback").MergeWith([tmp_path / "other.safetensors"], spec)
    assert callback.on_train_end(None, None, "control", model=network) == "control"
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(tensor, own[name], atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore")
def test_a_real_lightning_trainer_calls_it_when_training_ends(example, twins, spec, tmp_path):
    """Of a module that has not learnt (its rate is 0), the merge with a twin is the module itself."""
    if not importlib.util.find_spec("torchmetrics"):  # it comes with Lightning, which may be a stub here
        pytest.skip("Lightning is not installed")
    import lightning.pytorch as lightning

    network, own, other = twins
    torch.save(other, tmp_path / "other.pt")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network

        def training_step(self, batch, number):
            return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    inputs, targets = next(iter(open_data("digits", "train", limit=64, batch_size=64)))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, targets), batch_size=16, shuffle=True
    )
    merging = example("lightning_callback").MergeWith(tmp_path / "other.pt", spec)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[merging], default_root_dir=tmp_path, **quiet
    )
    trainer.fit(Module(), loader)
    assert merging.merged is not None
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(tensor, own[name], atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore")
def test_a_real_trainer_calls_it_when_training_ends(example, tmp_path):
    """Trained for a step at rate 0, and averaged with a twin whose units stand in another order."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    order, inner = torch.randperm(24), "bert.encoder.layer.0.intermediate.dense"
    outer = "bert.encoder.layer.0.output.dense.weight"
    other = own | {f"{inner}.{part}": own[f"{inner}.{part}"][order] for part in ("weight", "bias")}
    save_file(
        {n: t.contiguous() for n, t in (other | {outer: own[outer][:, order]}).items()},
        tmp_path / "o.safetensors",
    )
    moved = {name: [".", "."][: tensor.ndim] for name, tensor in own.items()}
    moved |= {f"{inner}.weight": ["h", "."], f"{inner}.bias": ["h"], outer: [".", "h"]}
    lines = "".join(f'  {name}: "{" ".join(axes)}"\n' for name, axes in moved.items())
    (tmp_path / "bert.yaml").write_text("tensors:\n" + lines)
    rows = [{"input_ids": list(range(1, 9)), "labels": k % 2} for k in range(4)]
    merging = example("trainer_callback").MergeWith([tmp_path / "o.safetensors"], tmp_path / "bert.yaml")
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=1, learning_rate=0.0, report_to=[], use_cpu=True, disable_tqdm=True
    )
    transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[merging]).train()
    assert merging.merged is not None
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, own[name], atol=1e-6, rtol=0)
