"""Images that trained models imagine: something to look at where no data are to be had.

An image begins as noise with the spectrum of photographs and climbs, in a few steps of Adam, to where all
models see the class that was drawn for it. It keeps the mean and the deviation that are told of the inputs,
and every step sees it shifted by up to a pixel, so that no single pixel decides. Steps are taken in the
coordinates of the noise, where coarse structures weigh more than fine ones. Networks with BatchNorm remember
the mean and variance of every channel in training: what is far from them costs.

Yin et al. 2020, Dreaming to distill (DeepInversion), section 3, arXiv:1912.08795; the coordinates are those
of Olah, Mordvintsev and Schubert 2017, Feature visualization, Distill, section "Preconditioning and
parameterization", https://doi.org/10.23915/distill.00007.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..datasets import UNIT, Normalization, Samples
from ..errors import NetworkError, UsageError
from ..runtime import optimizers
from ..runtime.seeds import generator
from . import running_norms
from .forward import call, evaluating

SAMPLES, STEPS = 1_000, 30
FEWEST, MOST, NUMBERS = 16, 250, 1 << 22  # images of a batch: so many, and so many pixels unless they are few
FALL = 1.5  # amplitudes fall with the frequency to this power; photographs' with 1 to 1.5
COLOURS = 0.9  # correlation of the channels of photographs, about
PACE = 0.1  # of Adam
MEMORY = 1.0  # what the distance from the statistics that BatchNorm remembers counts beside the classes


def dream(
    networks: Sequence[nn.Module],
    shape: Sequence[int],
    *,
    samples: int = SAMPLES,
    steps: int = STEPS,
    seed: int = 0,
    pixels: Normalization = UNIT,
    output: str | int | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Samples:
    """`samples` images of `shape` (C, H, W), or vectors of (features,), with the classes drawn for them.

    With 0 `steps` they are noise with the spectrum of photographs, whatever the class.

    `pixels` is the mean and the deviation, per channel, of what the networks get. They agree on the number of
    classes, and stay as they are. `progress` is told, after each batch, how many samples there are and their
    mean loss (nats), of a network. Raises UsageError for a shape of other ranks and for pixels of other
    channels, NetworkError where outputs are no logits (N, classes), without a gradient, or not finite.
    """
    shape = tuple(shape)
    if len(shape) not in (1, 3):
        raise UsageError(
            f"inputs of shape {shape} are neither images (C, H, W) nor vectors",
            hint="Give a shape with --input, the batch first: 1x3x32x32 or 1x64",
        )
    if len(pixels.mean) not in (1, shape[0]):
        raise UsageError(
            f"pixels {pixels} have {len(pixels.mean)} channels, the images {shape}",
            hint="Give one mean and one deviation, or one of each a channel",
        )
    rng = generator(seed, "dreams")
    place = next(networks[0].parameters()).device
    mean, std = (
        torch.tensor(v).to(place).view(-1, *[1] * (len(shape) - 1)) for v in (pixels.mean, pixels.std)
    )
    inputs, targets = [], []

    def shown(point: Tensor) -> Tensor:
        return mean + std * _images(point)

    size = max(FEWEST, min(MOST, NUMBERS // math.prod(shape)))
    with ExitStack() as whole:
        watched = [(network, whole.enter_context(_still(network))) for network in networks]
        classes = _classes(networks, shown(torch.zeros(2, *shape, device=place)), output)
        for begun in range(0, samples, size):
            start = torch.randn(min(size, samples - begun), *shape, generator=rng).to(place)
            wanted = (torch.arange(begun, begun + len(start)) % classes).to(place)
            point, loss = start.requires_grad_(), math.nan
            adam = optimizers.make(torch.optim.Adam, [point], lr=PACE)
            for _ in range(steps):
                image = _shifted(shown(point), rng)
                losses, slopes = zip(*(_uphill(*one, image, wanted, output) for one in watched), strict=True)
                loss = sum(losses) / len(losses)
                (point.grad,) = torch.autograd.grad(image, point, sum(slopes))
                adam.step()
            inputs.append(shown(point.detach()).cpu())
            targets.append(wanted.cpu())
            if progress is not None:
                progress(begun + len(start), loss)
    return Samples(torch.cat(inputs), torch.cat(targets))


def _uphill(
    network: nn.Module, far: list[Tensor], image: Tensor, wanted: Tensor, output: str | int | None
) -> tuple[float, Tensor]:
    """The mean loss of one network, and the slope of what it finds wrong with all images."""
    far.clear()
    seen = image.detach().requires_grad_()
    logits = call(network, seen.clone(), output=output).float()  # it may write into what it gets
    if not logits.requires_grad:
        raise NetworkError(
            "the outputs have no gradient with respect to the images, which dreams follow",
            hint="Does forward run without gradients (no_grad, detach), or round?",
        )
    loss = F.cross_entropy(logits, wanted)
    value = loss.item()  # once: an accelerator is waited for
    if not math.isfinite(value):
        raise NetworkError(
            f"the loss on noise is {value}",
            hint="Are these pixels what the models get? Their mean and deviation are --pixels MEAN/STD",
        )
    (slope,) = torch.autograd.grad(len(wanted) * (loss + MEMORY * sum(far)), seen)
    return value, slope


def _images(point: Tensor) -> Tensor:
    """Noise (N, C, H, W) to images with the spectrum of photographs, each of mean 0 and variance 1."""
    image = point
    if point.ndim == 4:
        channels, height, width = point.shape[1:]
        if channels > 1:
            shared = point.sum(1, keepdim=True) / math.sqrt(channels)
            image = math.sqrt(1 - COLOURS) * point + math.sqrt(COLOURS) * shared
        rows, columns = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)
        frequency = (rows**2 + columns**2).sqrt().clamp(min=1 / max(height, width)).to(point.device)
        image = torch.fft.irfft2(torch.fft.rfft2(image) * frequency**-FALL, s=(height, width))
    axes = tuple(range(1, image.ndim))
    spread = image.std(axes, keepdim=True, correction=0).clamp(min=1e-6)
    return (image - image.mean(axes, keepdim=True)) / spread


def _shifted(image: Tensor, rng: torch.Generator) -> Tensor:
    """All images moved by up to one pixel down and right, what leaves on one side comes in on the other."""
    if image.ndim != 4:
        return image
    down, right = torch.randint(-1, 2, (2,), generator=rng).tolist()
    return image.roll((down, right), (2, 3))


def _classes(networks: Sequence[nn.Module], image: Tensor, output: str | int | None) -> int:
    """Of what all networks tell apart. Raises NetworkError."""
    with torch.no_grad():
        found = [tuple(call(network, image, output=output).shape) for network in networks]
    if any(len(shape) != 2 or shape != found[0] or shape[1] < 2 for shape in found):
        told = " and ".join(dict.fromkeys(map(str, found)))
        raise NetworkError(
            f"dreams are of classes, and the outputs for two images have the shape {told}",
            hint="Expected logits (N, classes); choose one of several outputs with --output KEY or INDEX",
        )
    return found[0][1]


@contextmanager
def _still(network: nn.Module) -> Iterator[list[Tensor]]:
    """A network that only images are changed by; how far each of its BatchNorms' inputs, as of the last pass,
    are from what it remembers, relative to its variance."""
    far: list[Tensor] = []

    def watch(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        norm: Any = module  # any with running statistics
        values = args[0].float()
        axes = (0, *range(2, values.ndim))
        mean, variance = values.mean(axes), values.var(axes, correction=0)
        known = norm.running_var.float() + norm.eps
        moved = (mean - norm.running_mean).square() / known
        far.append(moved.mean() + (variance / known - 1).square().mean())

    asked = {name: parameter.requires_grad for name, parameter in network.named_parameters()}
    hooks = [norm.register_forward_pre_hook(watch) for norm in running_norms(network).values()]
    with evaluating(network):
        network.requires_grad_(False)
        try:
            yield far
        finally:
            for hook in hooks:
                hook.remove()
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(asked[name])
