"""`rebasin average`: models as they are, tensor by tensor, without a spec and without a search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..registry.options import READS, again, argument
from ..registry.results import Plan
from ..runtime.ranks import ALONE, Ranks
from ..session.asked import of, subjects_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, Screen, Weights
from ..session.request import Search
from ..session.search_options import Repair
from ..session.subjects import Bounded, DataSet, Loading, Running, Samples, Scoring
from .merge import Merge, MergeResult, merged
from .merging.average import AsTheyAre, Mean

PANEL = "Align and merge"
TOGETHER = True


@dataclass(frozen=True, kw_only=True)
class Average(AsTheyAre, Loading, Bounded, Running, DataSet, Samples, Weights, Screen):
    """Average models as they are, tensor by tensor: fine-tunes of one model, checkpoints of one run.

    Needs no spec, no network and no data; models of independent seeds have to be aligned, by rebasin merge.
    With a network and data, --soup greedy takes only models that lower the loss. Running statistics
    (BatchNorm) are re-estimated on data, or averaged, too, by --repair none.

    Example: rebasin average run/checkpoint-1000 run/checkpoint-2000 -o merged/ --copy-files
    """

    COMMON = (
        "out",
        "weights",
        "ignore",
        "heads",
        "extra",
        "soup",
        "data",
        "net",
        "repair",
        "force",
    )

    models: tuple[Path, ...] = argument(
        "A B …",
        "Two models or more; what is not averaged is copied from the first. One is written as it is.",
        role=READS,
    )
    out: str = Merge.out
    reference: Path | None = again(Mean.reference, None, help="Which of the models comes first.")
    repair: str = Repair.repair
    loss: str | None = Scoring.loss
    metric: tuple[str, ...] = Scoring.metric
    skip_checks: bool = Scoring.skip_checks
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json


def run(asked: Average, listener: Listener = SILENT, ranks: Ranks = ALONE) -> MergeResult | Plan:
    """Average models and write one; what `merge` writes by the method "none"."""
    subjects = replace(subjects_of(asked), search=of(asked, Search, method="none"))
    return merged(asked.models, asked, listener, subjects, ranks)
