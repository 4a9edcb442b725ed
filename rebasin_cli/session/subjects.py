"""The options that several commands share, by subject: each is written once, here; None is "find out".

An operation (`commands/NAME.py`) is made of those that it takes, as base classes; one field of another
subject it takes over by its name: `loss: str | None = Scoring.loss`. What a session is asked for, by whole
subjects: `request`. Of what is trained, searched and repaired: `search_options`. What a command leaves:
`outcomes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..registry.options import DATA, MAY_READ, MAY_RUN, PLAIN, READS, TRUSTS, option
from ..runtime.sizes import parse_size

MOST = 2_147_483_647  # of what is counted
LARGEST_SEED = 9_223_372_036_854_775_807
# Where help shows them.
MODELS = "Models"
SAMPLES = "Data and network"
SEARCH = "Search"
OUT = "Output"


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How checkpoints are read, and the spec that says what may be permuted in them."""

    PANEL = MODELS

    spec: str | None = option(
        None,
        "Built-in spec, YAML file, infer (from --net), or chain (plain layers in a row); if left out, found, "
        "else inferred.",
        metavar="NAME|FILE",
        kind="spec",
        role=MAY_READ,
    )
    config: Path | None = option(
        None,
        "Configuration that names the network, as hubs hold it (config.json of transformers, diffusers, "
        "timm); else the one beside the first model.",
        metavar="FILE",
        role=READS,
        everywhere=True,
    )
    key: str | None = option(
        None,
        "Which weights of a torch file with several, such as ema.shadow, or generator,critic for two.",
        role=PLAIN,
        everywhere=True,
    )
    unsafe_load: bool = option(
        False,
        "Unpickle torch files that need it. This runs code from the file.",
        role=TRUSTS,
        everywhere=True,
    )


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """How much memory a command plans to hold."""

    PANEL = MODELS

    max_memory: str | None = option(
        None,
        "Hold at most so much, such as 8GB: tensors are read again where they do not all fit, and what "
        "cannot fit is refused before files are read.",
        metavar="SIZE",
        kind="bytes",
        role=PLAIN,
        everywhere=True,
        shown=False,
    )

    @property
    def bytes(self) -> int | None:
        """`max_memory` in bytes. Raises UsageError for what is no size."""
        return None if self.max_memory is None else parse_size(self.max_memory, "--max-memory")


@dataclass(frozen=True, kw_only=True)
class Running:
    """The network to run: whose, on what inputs, where, from which seed; of its outputs one is measured."""

    PANEL = SAMPLES

    net: str | None = option(
        None,
        "Network: file.py:factory, package.module:factory or a built-in name.",
        metavar="REF",
        kind="code",
        role=MAY_RUN,
    )
    trust_code: bool = option(
        False, "Let a spec's own `net:` import code from outside rebasin.", role=TRUSTS, everywhere=True
    )
    input: str | None = option(
        None,
        "Inputs for the proof, batch first: 1x3x224x224, or ids=2x16:int99,mask=2x16:bool.",
        metavar="[NAME=]SHAPE[:KIND],…",
        kind="input",
        role=PLAIN,
        everywhere=True,
    )
    output: str | None = option(
        None,
        "Which of several outputs is measured: the logits.",
        metavar="KEY|INDEX",
        role=PLAIN,
        everywhere=True,
    )
    device: str = option("auto", "auto, cpu, cuda, cuda:1 … or mps.", role=PLAIN, everywhere=True)
    seed: int = option(
        0, "Orders the layers and draws subsets.", metavar="N", min=0, max=LARGEST_SEED, panel=SEARCH
    )


@dataclass(frozen=True, kw_only=True)
class Network(Running):
    """The network to run, and which of its outputs are no part of its function (`not_kept`)."""

    PANEL = SAMPLES

    not_kept: tuple[str, ...] = option(
        (),
        "An output that is no part of the network's function and may change, as caches, hidden_states "
        "and attentions may: key, attribute, index or dotted way; repeatable.",
        metavar="NAME",
        role=PLAIN,
        everywhere=True,
    )

    @property
    def outputs(self) -> dict[str, Any]:
        """The two settings of its outputs, as inference, proof and search take them."""
        return {"output": self.output, "not_kept": self.not_kept}


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """The data set, where its files are, and how its inputs are normalised."""

    PANEL = SAMPLES

    data: str | None = option(
        None,
        "{data sets} (npz:FILE, imagefolder:DIR, text:FILE), or your file.py:loader; "
        "the one that the checkpoints record if left out.",
        metavar="REF",
        kind="data",
        role=MAY_RUN,
    )
    targets: str | None = option(
        None,
        "Key of the targets in batches that are dictionaries; else labels, label, targets, target or y.",
        metavar="KEY",
        role=PLAIN,
        everywhere=True,
    )
    data_root: Path | None = option(
        None, "Where data files are; else REBASIN_DATA.", metavar="DIR", role=DATA, everywhere=True
    )
    normalize: str | None = option(
        None,
        "unit (0–1), half (−1…1), raw (0–255), imagenet, dataset (its own mean and deviation) or "
        "MEAN,…/STD,…; else as the checkpoints record, else what rebasin list data says.",
        metavar="HOW",
        kind="normalize",
        role=PLAIN,
        everywhere=True,
    )


@dataclass(frozen=True, kw_only=True)
class Samples:
    """How many samples, and how many at once."""

    PANEL = SAMPLES

    limit: int | None = option(
        None,
        "Measure (am, dual: look at units; ste: train) on this many samples a split, drawn by the seed (of "
        "a loader: its first).",
        min=1,
        max=MOST,
    )
    batch_size: int = option(500, "Samples a batch.", min=1, max=MOST, everywhere=True)


@dataclass(frozen=True, kw_only=True)
class Choosing:
    """The samples to choose by."""

    PANEL = SAMPLES

    held_out: str | None = option(
        None,
        "Choose by these samples, which no endpoint was trained on: a fraction of the test split, such "
        "as 0.1 (no figure is measured on it; auto: a fifth, 2,000 at most), a split, or another data set; "
        "else by training samples.",
        metavar="FRACTION|auto|SPLIT|REF",
        role=MAY_RUN,
    )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The figure to choose by."""

    PANEL = SAMPLES

    choose: str = option(
        "loss",
        "Held-out figure that methods and repairs are chosen by: loss, or a metric's name; what learns, "
        "learns by the loss.",
        metavar="loss|NAME",
        role=PLAIN,
        everywhere=True,
    )


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How outputs are scored, and whether endpoints have to be any good."""

    PANEL = SAMPLES

    loss: str | None = option(
        None,
        "loss(outputs, targets), a mean or one number a sample (N,); default cross-entropy.",
        metavar="REF",
        kind="code",
        role=MAY_RUN,
    )
    metric: tuple[str, ...] = option(
        (),
        "metric(outputs, targets), or an object with update, compute, reset; repeatable; default accuracy.",
        metavar="REF",
        kind="code",
        role=MAY_RUN,
    )
    each: bool = option(
        False,
        "Ask a --loss that gives a mean one sample at a time: then there are intervals.",
        role=PLAIN,
        everywhere=True,
    )
    skip_checks: bool = option(
        False,
        "Measure endpoints at chance, or far below their recorded accuracy; average models that say "
        "that they compute otherwise, or number their classes or words so.",
        role=TRUSTS,
        everywhere=True,
    )


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Of the expected calibration error."""

    PANEL = SAMPLES

    bins: int = option(
        15,
        "Of the expected calibration error: bins of equal width.",
        metavar="N",
        min=1,
        max=1_000,
        everywhere=True,
    )


@dataclass(frozen=True, kw_only=True)
class Data(DataSet, Samples, Choosing, Choice, Scoring, Calibration):
    """The samples to run a network on, and how its outputs are scored."""

    full: bool = option(False, "All training samples.", role=PLAIN)
