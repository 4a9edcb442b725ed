"""Options that several commands share: each is written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..registry import Registry

# From the folders' files and other packages' entry points; nothing is imported.
METHODS = ", ".join(Registry("matchers", "method").names())
DATA_SETS = ", ".join(Registry("datasets", "data set").names())


def option(*names: str, panel: str = "Options", **kwargs: Any) -> Any:
    """An option, with its default shown only where asked."""
    return typer.Option(
        *names, rich_help_panel=panel, show_default=kwargs.pop("show_default", False), **kwargs
    )


def report(*names: str, **kwargs: Any) -> Any:
    """An option about the files of a report."""
    return option(*names, panel="Report", **kwargs)


MOST = 2**31 - 1  # of what is counted
MODELS, DATA, SEARCH, OUT = "Models", "Data and network", "Search", "Output"

Spec = Annotated[
    str | None,
    option(
        "--spec",
        metavar="NAME|FILE|infer",
        panel=MODELS,
        help="Built-in spec, YAML file, or infer (from --net); if left out, found from the tensors, "
        "or else inferred.",
    ),
]
Key = Annotated[
    str | None,
    option(
        "--key",
        panel=MODELS,
        help="Which weights of a torch file with several, such as ema.shadow, or generator,critic for two.",
    ),
]
UnsafeLoad = Annotated[
    bool,
    option(
        "--unsafe-load", panel=MODELS, help="Unpickle torch files that need it. This runs code from the file."
    ),
]
Net = Annotated[
    str | None,
    option(
        "--net",
        metavar="REF",
        panel=DATA,
        help="Network: file.py:factory, package.module:factory or a built-in name.",
    ),
]
TrustCode = Annotated[
    bool,
    option("--trust-code", panel=DATA, help="Let a spec's own `net:` import code from outside rebasin."),
]
Input = Annotated[
    str | None,
    option(
        "--input",
        metavar="[NAME=]SHAPE[:KIND],…",
        panel=DATA,
        help="Inputs for the proof, batch first: 1x3x224x224, or ids=2x16:int99,mask=2x16:bool.",
    ),
]
Data = Annotated[
    str | None,
    option(
        "--data",
        metavar="REF",
        panel=DATA,
        help=f"{DATA_SETS} (npz:FILE, imagefolder:DIR, text:FILE), or your file.py:loader; "
        "the one that the checkpoints record if left out.",
    ),
]
DataRoot = Annotated[
    Path | None,
    option("--data-root", metavar="DIR", panel=DATA, help="Where data files are; else REBASIN_DATA."),
]
Attacks = Annotated[
    list[str] | None,
    option(
        "--attack",
        metavar="EPS",
        panel=DATA,
        help="Measure curves and lines under this attack (PGD), too: 8/255, or eps=0.1,step=0.025,"
        "steps=20,restarts=2; repeatable.",
    ),
]
Normalize = Annotated[
    str | None,
    option(
        "--normalize",
        metavar="HOW",
        panel=DATA,
        help="unit (0–1), half (−1…1), raw (0–255), imagenet, dataset (its own mean and deviation) or "
        "MEAN,…/STD,…; else as the checkpoints record, else what rebasin list data says.",
    ),
]
Limit = Annotated[
    int | None,
    option(
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
    option(
        "--held-out",
        metavar="FRACTION|SPLIT|REF",
        panel=DATA,
        help="Choose by these samples, which no endpoint was trained on: a fraction of the test split, such "
        "as 0.1 (no figure is measured on it), a split, or another data set; else by training samples.",
    ),
]
BatchSize = Annotated[
    int, option("--batch-size", min=1, max=MOST, panel=DATA, help="Samples a batch.", show_default=True)
]
Loss = Annotated[
    str | None,
    option("--loss", metavar="REF", panel=DATA, help="loss(outputs, targets); default cross-entropy."),
]
Metric = Annotated[
    str | None,
    option(
        "--metric",
        metavar="REF",
        panel=DATA,
        help="metric(outputs, targets), larger is better; default accuracy.",
    ),
]
Bins = Annotated[
    int,
    option(
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
    option(
        "--output", metavar="KEY|INDEX", panel=DATA, help="Which of several outputs is measured: the logits."
    ),
]
NotKept = Annotated[
    list[str] | None,
    option(
        "--not-kept",
        metavar="NAME",
        panel=DATA,
        help="An output that is no part of the network's function and may change, as caches, hidden_states "
        "and attentions may: key, attribute, index or dotted way; repeatable.",
    ),
]
SkipChecks = Annotated[
    bool,
    option(
        "--skip-checks", panel=DATA, help="Measure endpoints at chance, or far below their recorded accuracy."
    ),
]
Device = Annotated[
    str, option("--device", panel=DATA, help="auto, cpu, cuda, cuda:1 … or mps.", show_default=True)
]
BestMethod = Annotated[
    str | None,
    option(
        "--method",
        "-m",
        panel=SEARCH,
        help=f"{METHODS} (`rebasin list methods`), or none. Left out: auto where data and network are known, "
        "else wm.",
    ),
]
Method = Annotated[
    str,
    option(
        "--method",
        "-m",
        panel=SEARCH,
        help=f"{METHODS} (`rebasin list methods`).",
        show_default=True,
    ),
]
Seed = Annotated[
    int,
    option(
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
    option(
        "--interpolation",
        metavar="HOW",
        help="linear; for two models also slerp (one angle a tensor, norms go straight) or slerp-whole (one "
        "angle for all).",
        show_default=True,
    ),
]
NoProve = Annotated[
    bool,
    option("--no-prove", panel=SEARCH, help="Do not test that the spec preserves the network's function."),
]
Groups = Annotated[
    str,
    option(
        "--groups",
        metavar="permutations|all",
        panel=SEARCH,
        help="What units may take: an order (permutations), or all that their spec or network allows: signs, "
        "scales, rotations (all; needs the network).",
    ),
]
Polish = Annotated[
    str | None,
    option(
        "--polish",
        metavar="TIME|STEPS|WORK",
        panel=SEARCH,
        help="In the end, try swaps of units on the loss of the merge for so long (25s, 5m), or for so many "
        "steps (300steps) or multiplications (500G, 2T), which gives the same result again. Needs data.",
    ),
]
CheckpointEvery = Annotated[
    int | None,
    option(
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
    option("--log", metavar="FILE", panel=SEARCH, help="Append every step's figures, a line of JSON each."),
]
Repair = Annotated[
    str,
    option(
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
    option(
        "--bake-temperature",
        panel=SEARCH,
        help="Divide the last layer by the temperature that suits held-out training samples best.",
    ),
]
Out = Annotated[
    Path, option("--out", "-o", metavar="FILE", panel=OUT, help="Where to write, as safetensors.")
]
OutModel = Annotated[
    str | None,
    option(
        "--out",
        "-o",
        metavar="FILE|DIR/",
        panel=OUT,
        help="Where to write: safetensors; NAME.pt, .pth, .bin or .ckpt as the first file is, with new "
        "weights; or a folder, under the names of the model's own files.",
    ),
]
Force = Annotated[bool, option("--force", panel=OUT, help="Overwrite outputs that exist.")]
Attest = Annotated[
    Path | None,
    option(
        "--attest",
        metavar="FILE",
        panel=OUT,
        help="Write where the weights come from, as an in-toto statement (SLSA provenance), unsigned.",
    ),
]
OutDtype = Annotated[
    str | None,
    option("--out-dtype", panel=OUT, help="float32, float16, bfloat16, …; else as the reference."),
]
OutShardSize = Annotated[
    str | None,
    option("--out-shard-size", metavar="SIZE", panel=OUT, help="Split the output into shards, such as 2GB."),
]
Resume = Annotated[bool, option("--resume", panel=OUT, help="Go on with a search that was interrupted.")]
DryRun = Annotated[bool, option("--dry-run", panel=OUT, help="Print the plan and stop.")]
Json = Annotated[bool, option("--json", panel=OUT, help="Print the result as JSON.")]
Quiet = Annotated[bool, option("--quiet", "-q", panel=OUT, help="Only results and errors.")]
Verbose = Annotated[bool, option("--verbose", "-v", panel=OUT, help="A line for every step.")]
Html = Annotated[Path | None, report("--html", metavar="FILE", help="Write it as one HTML file.")]
JsonFile = Annotated[Path | None, report("--json-file", metavar="FILE", help="Write the figures as JSON.")]


def gate(*names: str, **kwargs: Any) -> Any:
    """An option that asks for a gate."""
    return option(*names, panel=GATES, **kwargs)


GATES = "Gates (exit code 1 where one is not met)"

MaxBarrier = Annotated[
    float | None,
    gate("--max-barrier", metavar="NATS", help="The same as --gate 'test barrier <= NATS'."),
]
Gates = Annotated[
    list[str] | None,
    gate(
        "--gate",
        metavar="'[ROW] [SPLIT] FIGURE <= X'",
        help="Such as 'test accuracy >= 0.9', 'test accuracy drop <= 0.01' or 'naive train barrier <= 1'; "
        "repeatable.",
    ),
]
Baseline = Annotated[
    Path | None, gate("--baseline", metavar="FILE", help="A report.json that must not get worse.")
]
MissingBaseline = Annotated[
    str,
    gate(
        "--missing-baseline",
        metavar="refuse|accept",
        help="A baseline that is not there is an error (refuse), or passes with a warning (accept): on a "
        "first run.",
    ),
]
BaselineTolerance = Annotated[
    float, gate("--baseline-tolerance", metavar="NATS", help="How much worse is still as good (0.01).")
]
StepSummary = Annotated[
    Path | None,
    report(
        "--step-summary",
        metavar="FILE",
        help="Add gates and figures as Markdown to this file; by itself in GitHub Actions.",
    ),
]
