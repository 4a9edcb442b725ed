"""Options of what is trained, searched and repaired, by subject; `subjects` has those of what is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..registry.options import PLAIN, READS, TRUSTS, WRITES, gathered, option
from .subjects import MOST, OUT, SAMPLES, SEARCH

TWIN, REAL = "twin", "real"  # what a spec is proven on


@dataclass(frozen=True, kw_only=True)
class Training:
    """How something is trained; None is what suits the network and the data."""

    PANEL = "Training"

    epochs: int | None = option(None, "Passes over the samples.", min=1, max=1_000_000)
    batch_size: int | None = option(None, "Samples a batch.", min=1, max=MOST)
    learning_rate: float | None = option(None, "At its largest; else what suits the network.", also=("--lr",))
    weight_decay: float | None = option(None, "On the weights that are used.", min=0.0)
    augment: bool | None = option(
        None,
        "As the data set does it; by default where it does (of curves: with convolutions).",
        role=PLAIN,
    )
    rotate: float | None = option(
        None,
        "Also turn every training image by a random angle, up to so many degrees.",
        metavar="DEGREES",
        min=0.0,
        max=180.0,
    )
    attack: str | None = option(
        None,
        "Train on attacked images (PGD): ε of pixels, such as 8/255, or eps=0.1,step=0.025,steps=5.",
        metavar="EPS",
        kind="attack",
        panel=SAMPLES,
        role=PLAIN,
    )
    limit: int | None = option(None, "Train on this many samples.", min=1, max=MOST)


@dataclass(frozen=True, kw_only=True)
class Method:
    """The method of a search, or what is taken in its place.

    Where no method is named: `asked.method`, and `verbs.method` for what is merged.
    """

    method: str | None = option(
        None,
        "{methods} (`rebasin list methods`), or none. Left out: auto where a merge is made or measured and "
        "data and network are known, else wm.",
        kind="method",
        also=("-m",),
        panel=SEARCH,
        role=PLAIN,
    )
    perm: Path | None = option(None, "Use this permutation of B.", metavar="FILE", role=READS)


@dataclass(frozen=True, kw_only=True)
class Methods:
    """The options of methods, as far as they were set."""

    options: Mapping[str, Any] = gathered("methods")


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """What units may take."""

    PANEL = SEARCH

    groups: str = option(
        "auto",
        "What units may take: an order (permutations), or all that their spec or network allows: signs, "
        "scales, rotations (all; needs the network). auto: an order, and where the method auto merges, "
        "whichever is better.",
        metavar="auto|permutations|all",
        role=PLAIN,
        shown=False,
    )


@dataclass(frozen=True, kw_only=True)
class Polishing:
    """The last stage of a search."""

    PANEL = SEARCH

    polish: str | None = option(
        None,
        "In the end, try swaps of units on the loss of the merge for so long (25s, 5m), or for so many "
        "steps (300steps) or multiplications (500G, 2T), which gives the same result again. Needs data.",
        metavar="TIME|STEPS|WORK",
        role=PLAIN,
    )


@dataclass(frozen=True, kw_only=True)
class Proving:
    """Whether the spec is proven, and on what."""

    prove: str = option(
        TWIN,
        "Where a configuration names the network: believe the proof on a small twin, or prove the spec on "
        "the network as large as it is (real).",
        choices=(TWIN, REAL),
        panel=SEARCH,
        everywhere=True,
        shown=False,
    )

    no_prove: bool = option(
        False, "Do not test that the spec preserves the network's function.", panel=SEARCH, role=TRUSTS
    )


@dataclass(frozen=True, kw_only=True)
class Interruptible:
    """What is kept of a search meanwhile, and whether it goes on."""

    PANEL = SEARCH

    checkpoint_every: int | None = option(
        None,
        "Keep the search's state for --resume after so many steps; else every minute.",
        metavar="STEPS",
        min=1,
        max=MOST,
        everywhere=True,
    )
    log: Path | None = option(
        None,
        "Append every step's figures, a line of JSON each.",
        metavar="FILE",
        role=WRITES,
        everywhere=True,
    )
    resume: bool = option(False, "Go on with a search that was interrupted.", panel=OUT, role=TRUSTS)


@dataclass(frozen=True, kw_only=True)
class Repairing:
    """How a repair works."""

    PANEL = SEARCH

    new_bias: bool = option(
        False,
        "Let repair and reshift give layers a bias that have none; the output then has more tensors.",
        flag="--allow-new-bias",
        role=PLAIN,
        everywhere=True,
    )
    ridge: float | None = option(
        None,
        "Keep a refit this close to the averaged weights: a share of the mean square of a layer's inputs "
        "(0.01).",
        min=0,
        max=1e6,
        everywhere=True,
    )
    repair_samples: int | None = option(
        None,
        "Fit a refit (1,000) or a distillation (10,000) on this many training samples.",
        min=1,
        max=MOST,
        everywhere=True,
    )


@dataclass(frozen=True, kw_only=True)
class Repair(Repairing):
    """What mends a merged model: "auto", or one of `repair.REPAIRS`."""

    PANEL = SEARCH

    repair: str = option(
        "auto",
        "auto (reset; without BatchNorm repair, where held-out loss falls by it), none, reset "
        "(re-estimate BatchNorm statistics), repair, rescale or reshift (match channels to the endpoints'), "
        "refit (fit every layer to them), distill (and train towards their outputs, without labels), "
        "or bias (needs no data).",
        kind="repair",
        role=PLAIN,
    )
    bake_temperature: bool = option(
        False,
        "Divide the last layer by the temperature that suits held-out training samples best.",
        role=PLAIN,
    )
