"""`rebasin dream`: images that models imagine, as a data set for all that would look at data."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .. import networks
from ..checkpoints.validation import Wrong, refused
from ..datasets import UNIT, Normalization, Samples, form
from ..datasets.batches import describe
from ..errors import UsageError
from ..networks import dream_images
from ..networks.dream_images import SAMPLES, STEPS
from ..networks.forward import call, evaluating
from ..networks.state import duplicate
from ..registry.options import PLAIN, READS, WRITES, argument, option
from ..registry.results import Result
from ..runtime.memory import check_memory
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.network import need_inputs
from ..session.outcomes import Answer, Screen, Weights
from ..session.samples import data_reference, recorded_normalization
from ..session.session import Session
from ..session.subjects import Loading, Running
from ..version import version
from .verbs.report_files import check_files, write_files

PANEL = "Align and merge"
SUFFIX = ".npz"
TESTED = 10  # of so many images one is a test image
COPIES = 3  # of all images, in float32: in parts, joined, and as they are written
FEW = 0.8  # of images that all models see as their class


@dataclass(frozen=True, kw_only=True)
class Dream(Loading, Running, Screen):
    """Make images that all models see as a class, for methods that look at data where there are none.

    What is made is a data set for every command: --data npz:FILE. It shows how units work together; what a
    model is worth is told by real data alone.

    Example: rebasin dream a.safetensors b.safetensors -o dreams.npz
    """

    models: tuple[Path, ...] = argument("MODEL…", "Of one architecture; all see each image.", role=READS)
    out: Path = option(
        Path("dreams.npz"), "The images.", also=("-o",), metavar="FILE", role=WRITES, ending=SUFFIX
    )
    images: int = option(SAMPLES, "A tenth as many more are for testing.", min=1)
    steps: int = option(
        STEPS,
        "Of each image towards its class; with 0 it is noise with the spectrum of photographs.",
        min=0,
    )
    pixels: str | None = option(
        None,
        "Of the inputs as the models get them, one each or one a channel; else those of the data "
        "set that the models record, or 0/1.",
        metavar="MEAN/STD",
        role=PLAIN,
    )
    force: bool = Weights.force
    json: bool = Answer.json


@dataclass(frozen=True)
class DreamResult(Result):
    """The file that was `written`, its images for training and for testing, and of how many `classes`.

    `seen_as_their_class` is the share of images (0–1) that all models see so, by chance alone where they are
    noise; `use` the option to read them.
    """

    written: list[str]
    images: int
    test_images: int
    classes: int
    seen_as_their_class: float
    use: str


def run(asked: Dream, listener: Listener = SILENT) -> DreamResult:
    """Write training `images` that all models see as the class drawn for them, and a tenth as many test
    images, as an .npz file that `--data npz:FILE` reads; what was done, with shares in 0–1.

    `pixels` (MEAN/STD) are those of what the models get; else, and so is the shape, what the data set that
    they record has, which is not read. With 0 steps the images are noise, and their classes mean nothing.
    Raises UsageError where no network is named, and for one that does not read images, OutputExists,
    ResourceError for more images than memory holds, and what `dream_images.dream` does.
    """
    out, count = asked.out, asked.images
    if out.suffix != SUFFIX:
        wanted = out.with_suffix(SUFFIX)
        raise UsageError(f"{out}: images are written as {SUFFIX}", hint=f"Name it {wanted}")
    session = Session("dream", asked.models, listener, subjects_of(asked))
    check_files([("images", out)], session.reads, force=asked.force)
    network = session.network_alone
    shape, like = _form(session, network, asked.pixels)
    own = [networks.load(duplicate(network), model).to(session.device) for model in session.models]
    tested = -(-count // TESTED)
    check_memory("so many images take", COPIES * 4 * (count + tested) * math.prod(shape))

    def progress(done: int, loss: float) -> None:
        listener.step("dreaming", done, count + tested, f"loss {loss:.3f}" if asked.steps else "")

    found = dream_images.dream(
        own,
        shape,
        samples=count + tested,
        steps=asked.steps,
        seed=session.seed,
        pixels=like,
        output=session.output,
        progress=progress,
    )
    share, classes = _agreed(own, found, session.output)
    if not asked.steps:
        session.say("the images are noise with the spectrum of photographs: their classes mean nothing")
    elif share < FEW:
        session.say(
            f"warning: only {share:.0%} of the images are seen as their class by all: try more --steps"
        )
    about = {
        "made_by": f"rebasin {version()} dream",
        "pixels": str(like),
        "inputs": [model.digest() for model in session.models],
        "steps": asked.steps,
        "seed": session.seed,
    }
    wrong = Wrong(tuple(found.inputs.shape))
    wrong.look(found.inputs)
    if told := str(wrong):
        raise refused("the images", told)
    write_files([(out, _packed(found, count, about))], force=asked.force)
    return DreamResult(
        written=[str(out)],
        images=count,
        test_images=tested,
        classes=classes,
        seen_as_their_class=share,
        use=f"--data npz:{out}",
    )


def _form(session: Session, network: nn.Module, pixels: str | None) -> tuple[tuple[int, ...], Normalization]:
    """The shape of one image, and mean and deviation of its pixels. Raises UsageError where nobody tells."""
    shape, like, source = None, UNIT, "as the network says"
    recorded = data_reference(session.models, session.asked.data)
    if recorded and (known := form(recorded, recorded_normalization(session.models, recorded))):
        (shape, like), source = known, f"as {recorded} has them, which the models record"
    if session.asked.network.input is not None or shape is None:
        batch = need_inputs(network, session.asked.network)
        if not isinstance(batch, torch.Tensor) or not batch.is_floating_point():
            raise UsageError(
                f"the network gets {describe(batch)}, and dreams are images or vectors of floats",
                hint="Give their shape with --input, the batch first: 1x3x32x32",
            )
        shape = tuple(batch.shape[1:])
        source = source if session.asked.network.input is None else "as --input says"
    like = like if pixels is None else _pixels(pixels)
    told = "/".join(",".join(f"{value:.4g}" for value in values) for values in (like.mean, like.std))
    session.say(f"images: {'×'.join(map(str, shape))}, {source}; pixels of mean/deviation {told}")
    return shape, like


def _pixels(text: str) -> Normalization:
    """Raises UsageError."""
    try:
        return Normalization.parse(text if "/" in text else "", None)
    except UsageError:
        raise UsageError(
            f"--pixels {text!r}: expected MEAN/STD as the models get them, deviations above 0",
            hint="0.13/0.31 for all channels, 0.49,0.48,0.45/0.25,0.24,0.26 for each",
        ) from None


def _agreed(own: Sequence[nn.Module], found: Samples, output: str | int | None) -> tuple[float, int]:
    """The share of images that all models see as their class, and how many classes there are."""
    right, classes = torch.ones(len(found), dtype=torch.bool), 0
    for network in own:
        device = next(network.parameters()).device
        with evaluating(network), torch.inference_mode():
            parts = found.inputs.clone().to(device).split(dream_images.MOST)  # it may write into what it gets
            seen = torch.cat([call(network, part, output=output).cpu() for part in parts])
        right &= seen.argmax(1) == found.targets
        classes = seen.shape[1]
    return float(right.float().mean()), classes


def _packed(found: Samples, count: int, about: dict[str, Any]) -> bytes:
    """The bytes of an .npz file, the same each time."""
    images, classes = found.inputs.numpy(), found.targets.numpy()
    packed = io.BytesIO()
    np.savez(
        packed,
        x_train=images[:count],
        y_train=classes[:count],
        x_test=images[count:],
        y_test=classes[count:],
        about=np.array(json.dumps(about)),
    )
    return packed.getvalue()
