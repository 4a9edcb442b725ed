"""Options that several commands share: each is written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..registry import Registry

# From the folders' files and other packages' entry points; nothing is imported.
METHODS = ", ".join(Registry("matchers", "method").names())
DATA_SETS = ", ".join(Registry("datasets", "data set").names())


def _option(*names: str, panel: str = "Options", **kwargs: Any) -> Any:
    return typer.Option(
        *names, rich_help_panel=panel, show_default=kwargs.pop("show_default", False), **kwargs
    )


def report(*names: str, **kwargs: Any) -> Any:
    """An option about the files of a report."""
    return _option(*names, panel="Report", **kwargs)


MOST = 2**31 - 1  # of what is counted
MODELS, DATA, SEARCH, TRAINING, OUT = "Models", "Data and network", "Search", "Training", "Output"

Spec = Annotated[
    str | None,
    _option(
        "--spec",
        metavar="NAME|FILE|infer",
        panel=MODELS,
        help="Built-in spec, YAML file, or infer (from --net); if left out, found from the tensors, "
        "or else inferred.",
    ),
]
Key = Annotated[
    str | None,
    _option(
        "--key",
        panel=MODELS,
        help="Which weights of a torch file that has several, such as ema.shadow.",
    ),
]
UnsafeLoad = Annotated[
    bool,
    _option(
        "--unsafe-load", panel=MODELS, help="Unpickle torch files that need it. This runs code from the file."
    ),
]
Net = Annotated[
    str | None,
    _option(
        "--net",
        metavar="REF",
        panel=DATA,
        help="Network: file.py:factory, package.module:factory or a built-in name.",
    ),
]
TrustCode = Annotated[
    bool,
    _option("--trust-code", panel=DATA, help="Let a spec's own `net:` import code from outside rebasin."),
]
Input = Annotated[
    str | None,
    _option(
        "--input",
        metavar="[NAME=]SHAPE[:KIND],…",
        panel=DATA,
        help="Inputs for the proof, batch first: 1x3x224x224, or ids=2x16:int99,mask=2x16:bool.",
    ),
]
Data = Annotated[
    str | None,
    _option(
        "--data",
        metavar="REF",
        panel=DATA,
        help=f"{DATA_SETS} (npz:FILE, imagefolder:DIR, text:FILE), or your file.py:loader; "
        "the one that the checkpoints record if left out.",
    ),
]
DataRoot = Annotated[
    Path | None,
    _option("--data-root", metavar="DIR", panel=DATA, help="Where data files are; else REBASIN_DATA."),
]
Attack = Annotated[
    str | None,
    _option(
        "--attack",
        metavar="EPS",
        panel=DATA,
        help="Train on attacked images (PGD): ε of pixels, such as 8/255, or eps=0.1,step=0.025,steps=5.",
    ),
]
Attacks = Annotated[
    list[str] | None,
    _option(
        "--attack",
        metavar="EPS",
        panel=DATA,
        help="Measure curves and lines under this attack (PGD), too: 8/255, or eps=0.1,step=0.025,"
        "steps=20,restarts=2; repeatable.",
    ),
]
Normalize = Annotated[
    str | None,
    _option(
        "--normalize",
        metavar="HOW",
        panel=DATA,
        help="unit, dataset or MEAN,…/STD,…; else as the checkpoints record.",
    ),
]
Limit = Annotated[
    int | None,
    _option(
        "--limit",
        min=1,
        max=MOST,
        panel=DATA,
        help="Measure (am, dual: look at units; ste: train; refit, distill: fit) on this many samples a "
        "split, drawn by the seed (of a loader: its first).",
    ),
]
HeldOut = Annotated[
    str | None,
    _option(
        "--held-out",
        metavar="FRACTION|SPLIT|REF",
        panel=DATA,
        help="Choose by these samples, which no endpoint was trained on: a fraction of the test split, such "
        "as 0.1 (no figure is measured on it), a split, or another data set; else by training samples.",
    ),
]
BatchSize = Annotated[
    int, _option("--batch-size", min=1, max=MOST, panel=DATA, help="Samples a batch.", show_default=True)
]
Epochs = Annotated[
    int | None,
    _option(
        "--epochs", min=1, max=1_000_000, panel=TRAINING, help="Passes over the samples.", show_default=True
    ),
]
LearningRate = Annotated[
    float | None,
    _option("--learning-rate", "--lr", panel=TRAINING, help="At its largest; else what suits the network."),
]
WeightDecay = Annotated[
    float | None,
    _option(
        "--weight-decay", min=0.0, panel=TRAINING, help="On the weights that are used.", show_default=True
    ),
]
TrainingBatch = Annotated[
    int | None,
    _option("--batch-size", min=1, max=MOST, panel=TRAINING, help="Samples a batch.", show_default=True),
]
Augment = Annotated[
    bool | None,
    _option(
        "--augment/--no-augment",
        panel=TRAINING,
        help="As the data set does it; by default where it does (of curves: with convolutions).",
    ),
]
TrainingLimit = Annotated[
    int | None, _option("--limit", min=1, max=MOST, panel=TRAINING, help="Train on this many samples.")
]
Loss = Annotated[
    str | None,
    _option("--loss", metavar="REF", panel=DATA, help="loss(outputs, targets); default cross-entropy."),
]
Metric = Annotated[
    str | None,
    _option(
        "--metric",
        metavar="REF",
        panel=DATA,
        help="metric(outputs, targets), larger is better; default accuracy.",
    ),
]
Bins = Annotated[
    int,
    _option(
        "--bins",
        metavar="N",
        min=1,
        max=1_000,
        panel=DATA,
        help="Of the expected calibration error: bins of equal width.",
        show_default=True,
    ),
]
OutputKey = Annotated[
    str | None,
    _option("--output", metavar="KEY|INDEX", panel=DATA, help="Which of several outputs counts: the logits."),
]
SkipChecks = Annotated[
    bool,
    _option(
        "--skip-checks", panel=DATA, help="Measure endpoints at chance, or far below their recorded accuracy."
    ),
]
Device = Annotated[
    str, _option("--device", panel=DATA, help="auto, cpu, cuda, cuda:1 … or mps.", show_default=True)
]
Method = Annotated[
    str,
    _option(
        "--method",
        "-m",
        panel=SEARCH,
        help=f"{METHODS} (`rebasin list methods`).",
        show_default=True,
    ),
]
Seed = Annotated[
    int,
    _option(
        "--seed",
        metavar="N",
        min=0,
        max=2**63 - 1,
        panel=SEARCH,
        help="Orders the layers and draws subsets.",
        show_default=True,
    ),
]
Interpolation = Annotated[
    str,
    _option(
        "--interpolation",
        metavar="HOW",
        help="linear; for two models also slerp (one angle a tensor, norms go straight) or slerp-whole (one "
        "angle for all).",
        show_default=True,
    ),
]
NoProve = Annotated[
    bool,
    _option("--no-prove", panel=SEARCH, help="Do not test that the spec preserves the network's function."),
]
Groups = Annotated[
    str,
    _option(
        "--groups",
        metavar="permutations|all",
        panel=SEARCH,
        help="What units may take: an order (permutations), or all that their spec or network allows: signs, "
        "scales, rotations (all; needs the network).",
    ),
]
Polish = Annotated[
    str | None,
    _option(
        "--polish",
        metavar="TIME|STEPS",
        panel=SEARCH,
        help="In the end, try swaps of units on the loss of the merge for so long (25s, 5m), or for so many "
        "steps (300steps), which gives the same result again. Needs data.",
    ),
]
CheckpointEvery = Annotated[
    int | None,
    _option(
        "--checkpoint-every",
        metavar="STEPS",
        min=1,
        max=MOST,
        panel=SEARCH,
        help="Keep the search's state for --resume after so many steps; else every minute.",
    ),
]
Log = Annotated[
    Path | None,
    _option("--log", metavar="FILE", panel=SEARCH, help="Append every step's figures, a line of JSON each."),
]
Repair = Annotated[
    str,
    _option(
        "--repair",
        panel=SEARCH,
        help="auto (reset; without BatchNorm repair, where held-out loss falls by it), none, reset "
        "(re-estimate BatchNorm statistics), repair, rescale or reshift (match channels to the endpoints'), "
        "refit (fit every layer to them), distill (and train towards their outputs, without labels), "
        "or bias (needs no data).",
        show_default=True,
    ),
]
BakeTemperature = Annotated[
    bool,
    _option(
        "--bake-temperature",
        panel=SEARCH,
        help="Divide the last layer by the temperature that suits held-out training samples best.",
    ),
]
Out = Annotated[
    Path, _option("--out", "-o", metavar="FILE", panel=OUT, help="Where to write, as safetensors.")
]
Force = Annotated[bool, _option("--force", panel=OUT, help="Overwrite outputs that exist.")]
Attest = Annotated[
    Path | None,
    _option(
        "--attest",
        metavar="FILE",
        panel=OUT,
        help="Write where the weights come from, as an in-toto statement (SLSA provenance), unsigned.",
    ),
]
OutDtype = Annotated[
    str | None,
    _option("--out-dtype", panel=OUT, help="float32, float16, bfloat16, …; else as the reference."),
]
OutShardSize = Annotated[
    str | None,
    _option("--out-shard-size", metavar="SIZE", panel=OUT, help="Split the output into shards, such as 2GB."),
]
Resume = Annotated[bool, _option("--resume", panel=OUT, help="Go on with a search that was interrupted.")]
DryRun = Annotated[bool, _option("--dry-run", panel=OUT, help="Print the plan and stop.")]
Json = Annotated[bool, _option("--json", panel=OUT, help="Print the result as JSON.")]
Quiet = Annotated[bool, _option("--quiet", "-q", panel=OUT, help="Only results and errors.")]
Verbose = Annotated[bool, _option("--verbose", "-v", panel=OUT, help="A line for every step.")]
Html = Annotated[Path | None, report("--html", metavar="FILE", help="Write it as one HTML file.")]
JsonFile = Annotated[Path | None, report("--json-file", metavar="FILE", help="Write the figures as JSON.")]
