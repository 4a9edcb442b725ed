"""Options about what a command leaves, by subject: weights, reports, gates, and what stands on the screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..checkpoints.pieces import DCP
from ..registry.options import PLAIN, TRUSTS, WRITES, gathered, option
from ..reports import TOLERANCE
from .subjects import OUT

REPORT = "Report"
GATES = "Gates (exit code 1 where one is not met)"
# What may be said of a baseline that is not there.
REFUSE = "refuse"
ACCEPT = "accept"


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where weights are written."""

    out: Path | None = option(
        None,
        "Where to write, as safetensors.",
        also=("-o",),
        metavar="FILE",
        panel=OUT,
        role=WRITES,
        ending=".safetensors",
    )


@dataclass(frozen=True, kw_only=True)
class OutModel:
    """Where weights are written, in more forms than one."""

    out: str | None = option(
        None,
        "Where to write: safetensors; NAME.pt, .pth, .bin or .ckpt as the first file is, with new "
        "weights; or a folder, under the names of the model's own files.",
        also=("-o",),
        metavar="FILE|DIR/",
        panel=OUT,
        role=WRITES,
        ending=".safetensors",
    )


@dataclass(frozen=True, kw_only=True)
class Weights:
    """How weights are written."""

    PANEL = OUT

    force: bool = option(False, "Overwrite outputs that exist.", role=TRUSTS)
    out_dtype: str | None = option(
        None,
        "float32, float16, bfloat16, …; else as the reference.",
        kind="dtype",
        role=PLAIN,
        everywhere=True,
    )
    out_shard_size: str | None = option(
        None,
        "Split the output into shards, such as 2GB.",
        metavar="SIZE",
        kind="bytes",
        role=PLAIN,
        everywhere=True,
    )
    out_format: str | None = option(
        None,
        "Write a folder of torch.distributed.checkpoint (dcp); else by the output's name.",
        choices=(DCP,),
        role=PLAIN,
        everywhere=True,
        shown=False,
    )
    attest: Path | None = option(
        None,
        "Write where the weights come from, as an in-toto statement (SLSA provenance), unsigned.",
        metavar="FILE",
        role=WRITES,
        everywhere=True,
    )


@dataclass(frozen=True, kw_only=True)
class Screen:
    """What is told meanwhile, and how the result is shown."""

    PANEL = OUT

    quiet: bool = option(False, "Only results and errors.", also=("-q",), role=PLAIN, everywhere=True)
    verbose: bool = option(False, "A line for every step.", also=("-v",), role=PLAIN, everywhere=True)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How the result is shown, or the plan."""

    PANEL = OUT

    dry_run: bool = option(False, "Print the plan and stop.", role=PLAIN, everywhere=True)
    json: bool = option(False, "Print the result as JSON.", role=PLAIN)


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Files of a report, by their formats."""

    files: Mapping[str, str] = gathered("formats")


@dataclass(frozen=True, kw_only=True)
class ReportFiles:
    """Files of a report whose formats are the command's own."""

    PANEL = REPORT

    html: Path | None = option(None, "Write it as one HTML file.", metavar="FILE", role=WRITES)
    json_file: Path | None = option(None, "Write the figures as JSON.", metavar="FILE", role=WRITES)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary of a step of a CI server's."""

    step_summary: Path | None = option(
        None,
        "Add gates and figures as Markdown to this file; by itself in GitHub Actions.",
        metavar="FILE",
        panel=REPORT,
        role=WRITES,
    )


@dataclass(frozen=True, kw_only=True)
class Gates:
    """What is asked of a report's figures."""

    PANEL = GATES

    max_barrier: float | None = option(
        None, "The same as --gate 'test barrier <= X'.", metavar="X", gate=True
    )
    gate: tuple[str, ...] = option(
        (),
        "Such as 'test accuracy >= 0.9', 'test accuracy drop <= 0.01' or 'naive train barrier <= 1'; "
        "repeatable.",
        metavar="'[ROW] [SPLIT] FIGURE <= X'",
        kind="gate",
        gate=True,
        role=PLAIN,
    )
    baseline: Path | None = option(None, "A report.json that must not get worse.", metavar="FILE", gate=True)
    missing_baseline: str = option(
        REFUSE,
        "A baseline that is not there is an error (refuse), or passes with a warning (accept): on a "
        "first run.",
        choices=(REFUSE, ACCEPT),
        gate=True,
        role=PLAIN,
        shown=False,
    )
    baseline_tolerance: float = option(
        TOLERANCE, "How much worse is still as good (0.01).", metavar="X", gate=True, shown=False
    )
