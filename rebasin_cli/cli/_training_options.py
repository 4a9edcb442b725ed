"""Options of commands that train."""

from __future__ import annotations

from typing import Annotated

from ._options import DATA, MOST, option

TRAINING = "Training"

Attack = Annotated[
    str | None,
    option(
        "--attack",
        metavar="EPS",
        panel=DATA,
        help="Train on attacked images (PGD): ε of pixels, such as 8/255, or eps=0.1,step=0.025,steps=5.",
    ),
]
Epochs = Annotated[
    int | None,
    option(
        "--epochs", min=1, max=1_000_000, panel=TRAINING, help="Passes over the samples.", show_default=True
    ),
]
LearningRate = Annotated[
    float | None,
    option("--learning-rate", "--lr", panel=TRAINING, help="At its largest; else what suits the network."),
]
WeightDecay = Annotated[
    float | None,
    option(
        "--weight-decay", min=0.0, panel=TRAINING, help="On the weights that are used.", show_default=True
    ),
]
TrainingBatch = Annotated[
    int | None,
    option("--batch-size", min=1, max=MOST, panel=TRAINING, help="Samples a batch.", show_default=True),
]
Augment = Annotated[
    bool | None,
    option(
        "--augment/--no-augment",
        panel=TRAINING,
        help="As the data set does it; by default where it does (of curves: with convolutions).",
    ),
]
TrainingLimit = Annotated[
    int | None, option("--limit", min=1, max=MOST, panel=TRAINING, help="Train on this many samples.")
]
