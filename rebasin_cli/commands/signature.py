"""`rebasin signature` on files: how alike are the units that a permutation matches?"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..datasets.batches import checked
from ..errors import DataError, UsageError
from ..learning.curves import stored
from ..measure import bounds, signatures
from ..registry.options import PLAIN, READS, WRITES, again, argument, option
from ..registry.results import ON_SCREEN_ONLY, UNSET, Plan, Result, Unset
from ..reports import accounts
from ..reports import signature as told
from ..reports.document import Document
from ..runtime.ranks import ALONE, Ranks
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.method_options import check_method
from ..session.outcomes import Answer, ReportFiles, Screen, Weights
from ..session.request import Search
from ..session.samples import MATCH_SAMPLES
from ..session.search_options import Method, Methods
from ..session.session import Session
from ..session.subjects import Bounded, Data, DataSet, Loading, Network, Samples
from .verbs import needs, plans, report_files, search
from .verbs import search as method
from .verbs.ranks import check_measured

BOUNDED = 1_000  # samples, on 101 networks between two


PANEL = "Measure"
TOGETHER = True
FIGURES = True


@dataclass(frozen=True, kw_only=True)
class Signature(Loading, Bounded, Network, DataSet, Samples, Methods, Screen):
    """Show how A's units correlate with those of B that they are matched to, before and after alignment.

    Mean and standard deviation over units, a line a permutation; units that are constant on the data are
    counted, and left out.

    Processes that are started together share the batches: torchrun … -m rebasin_cli signature …

    Example: rebasin signature a.pt b.pt --data cifar10 --method am --plot signature.png
    """

    a: Path = argument("A", "The reference.", role=READS)
    b: Path = argument("B", "The model that is aligned to it.", role=READS)
    method: str | None = again(Method.method, None, help="How to align: {methods}, or none (wm).", panel="")
    perm: Path | None = Method.perm
    stability: str | None = option(
        None,
        "With am: the share of units that fewer samples match as the most do, such as 2500,5000,10000.",
        metavar="N,N,…",
        role=PLAIN,
    )
    curve: Path | None = option(
        None,
        "Compare A with the middle of this trained curve (rebasin curve), as it is and once its "
        "units are matched, beside the middle of the straight line and the other end.",
        metavar="FILE",
        role=READS,
    )
    bounds: bool = option(
        False,
        "Also how far networks between A and B can be from both, by Neuron Alignment's Theorem 3.1 "
        "(mlp, ReLU, no norms).",
        role=PLAIN,
    )
    plot: Path | None = option(None, "Draw mean ± std a layer, as PNG.", metavar="FILE", role=WRITES)
    html: Path | None = again(ReportFiles.html, None, panel="")
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json
    force: bool = Weights.force


@dataclass(frozen=True, kw_only=True)
class SignatureResult(Result):
    """How alike matched units are: a row a word in `signature`, with mean and deviation "before" and "after".

    `stability` is of several counts of samples, `curve` and `bounds` where they were asked for.
    """

    files: tuple[Path, ...] = field(default=(), metadata=ON_SCREEN_ONLY)  # the two models, as they were named
    spec: Mapping[str, Any]
    match: Mapping[str, Any]
    data: str
    samples: int
    signature: list[Mapping[str, Any]]
    stability: Mapping[str, Any] | None
    written: list[str] | None
    times: Mapping[str, float]
    curve: Mapping[str, Any] | Unset = UNSET
    bounds: Mapping[str, Any] | Unset = UNSET

    def document(self) -> Document:
        return told.document(self.values(), self.files or ())


def run(asked: Signature, listener: Listener = SILENT, ranks: Ranks = ALONE) -> SignatureResult | Plan:
    """How alike matched units are, before and after alignment.

    B is aligned with the method of the search, or `perm`. With a trained `curve` from A to B, it is A and the
    curve's middle that are compared (`signatures.along`). `bounds` are those of a theorem
    (`measure.bounds`). Counts of samples (`stability`) ask how stable activation matching is, and take the
    place of the limit. Several `ranks` call this alike.
    """
    if asked.method == "auto" and ranks.size > 1:
        listener.say(f"auto goes by the clock: the first of {ranks.size} processes looks, the others wait")
        return ranks.alone(run, asked, listener)
    named = "none" if asked.method is None and asked.curve is not None else asked.method
    subjects = subjects_of(dataclasses.replace(asked, method=named))
    counts, perm, curve, bounded = _counts(asked.stability), asked.perm, asked.curve, asked.bounds
    files = [(name, path) for name, path in (("png", asked.plot), ("html", asked.html)) if path is not None]
    check_method(subjects.search, or_none=True)
    data = _samples(subjects.data, subjects.search, counts, perm)
    subjects = dataclasses.replace(subjects, data=data)
    curves = filter(None, [curve])
    session = Session(
        "signature", [asked.a, asked.b], listener, subjects, perm=perm, curves=curves, ranks=ranks
    )
    ranks.first(report_files.check_files, files, session.reads.and_files([curve]), force=asked.force)
    search.check(session, or_none=True)
    method.tell(session)
    if curve is not None and (session.moved or counts):
        what = "--stability" if counts else "--perm" if perm else f"--method {session.method}"
        raise UsageError(f"{what}: a curve has its own permutation of B", hint="Leave one of the two out")
    if bounded and (curve is not None or counts):
        what = "--stability" if counts else "--curve"
        raise UsageError(f"{what}: bounds are of the straight line from A to B", hint="Leave --bounds out")
    needs.check(session)
    if asked.dry_run:
        return Plan(plans.of_reading(session))
    (first, second), fitted, _ = session.models, session.fitted, session.given
    network = session.need_network()
    statistics = curve is not None and bool(fitted.statistics)
    splits = session.open_splits("match", *["reset"] * statistics)
    samples = splits["match"]
    check_measured(session, splits)
    seen = {"network": network, "data": samples, "device": session.device, "ranks": ranks} | session.outputs
    stable, found = None, None
    more: dict[str, Any] = {}
    limit = session.asked.data.limit or MATCH_SAMPLES
    if curve is not None:
        kept = stored.load(curve)
        rows = signatures.along(
            kept.between(first, second, fitted, session.folds),
            fitted,
            limit=limit,
            reset_batches=splits.get("reset"),
            **seen,
        )
        more = {"curve": {"file": str(curve), "sha256": kept.digest, "aligned": kept.aligned}}
    elif counts:
        seen["data"] = samples.mixed(session.seed)
        stable = signatures.stability(first, second, fitted, counts, options=session.options, **seen)
        rows = stable.table
    else:
        inputs = {"network": network, "data": samples, "prove": False} | session.outputs
        found = search.find(session, given=inputs)
        element = session.element(found)
        if element.maps:
            raise UsageError(
                f"{perm} turns units into one another, and a signature compares one with one",
                hint="Compare what they compute: rebasin barrier A B --perm FILE",
            )
        permutations = element.permutations
        rows = signatures.signature(first, second, fitted, permutations, limit=limit, **seen)
        if bounded:
            others = {"unaligned": second, "aligned": session.standing(found)[1]}
            more = {"bounds": bounds.account(network, first, others, *_some(samples))}
    match = {"method": "am"} if stable else accounts.describe_match(found, given=perm is not None)
    made = SignatureResult(
        files=(asked.a, asked.b),
        spec=accounts.describe_spec(fitted),
        match=match,
        data=samples.name,
        samples=stable.samples[-1] if stable else samples.samples,
        signature=list(rows),
        stability=None if stable is None else _described(stable),
        written=[str(path) for _, path in files] or None,
        times=accounts.times(found),
        **more,
    )
    document = told.document(made.values(), made.files, listener.command or "rebasin signature")
    ranks.last(report_files.write_document, document, files, force=asked.force)
    return made


def _counts(text: str | None) -> list[int]:
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    if len(set(parts)) < 2 or not all(re.fullmatch("0*[1-9][0-9]{0,9}", part) for part in parts):
        raise UsageError(
            f"--stability {text!r} is not two counts of samples or more", hint="Write 2500,5000,10000"
        )
    return [int(part) for part in parts]


def _some(samples: Any) -> tuple[Any, Any]:
    """Inputs and targets of the first samples. Raises DataError for what is no plain tensor."""
    inputs: list[torch.Tensor] = []
    targets: list[torch.Tensor] = []
    for batch, labels in checked(samples):
        if not isinstance(batch, torch.Tensor):
            raise DataError("bounds need inputs that are tensors", hint="Leave --bounds out")
        inputs, targets = [*inputs, batch], [*targets, labels]
        if sum(map(len, inputs)) >= BOUNDED:
            break
    return torch.cat(inputs)[:BOUNDED], torch.cat(targets)[:BOUNDED]


def _samples(data: Data, search: Search, counts: Sequence[int], perm: Path | None) -> Data:
    """The settings of the data, for so many counts of samples where these are given. Raises UsageError."""
    if data.limit == 1:
        raise UsageError("--limit 1: a correlation needs two samples or more", hint="Leave --limit out")
    if not counts:
        return data
    if search.method != "am" or perm is not None:
        raise UsageError(
            "--stability compares matches by activations", hint="Match with --method am, without --perm"
        )
    if data.limit is not None:
        raise UsageError("--stability and --limit both say how many samples", hint="Leave --limit out")
    return dataclasses.replace(data, limit=max(counts))


def _described(stable: signatures.Stability) -> dict[str, Any]:
    words = {word: list(shares) for word, shares in stable.words.items()}
    return {"samples": list(stable.samples), "words": words, "overall": list(stable.overall)}
