"""`rebasin signature` on files: how alike are the units that a permutation matches?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch

from ..analysis import bounds, signatures
from ..curves import stored
from ..datasets._batches import checked
from ..errors import DataError, UsageError
from ..permutations.permutation import identity, permuted
from ..reports import _accounts as accounts
from ..reports import pictures
from ..reports import signature as told
from ..reports.formats import html
from ..session.listener import SILENT, Listener
from ..session.method_options import check_method
from ..session.samples import MATCH_SAMPLES
from ..session.session import Session
from ..session.subjects import Data, ForSearch, Search
from .verbs import outputs, search

BOUNDED = 1_000  # samples, on 101 networks between two


@dataclass(frozen=True)
class Drawn:
    """The picture and the page that are written; existing ones only by `force`. `command` is on the page."""

    plot: Path | None = None
    page: Path | None = None
    force: bool = False
    command: str = "rebasin signature"


def signature(
    a: Path,
    b: Path,
    listener: Listener = SILENT,
    *,
    perm: Path | None = None,
    counts: Sequence[int] = (),
    curve: Path | None = None,
    bounded: bool = False,
    drawn: Drawn = Drawn(),  # noqa: B008 (frozen)
    **subjects: Unpack[ForSearch],
) -> dict[str, Any]:
    """How alike matched units are, before and after alignment, as values for --json.

    B is aligned with the method of the search, or `perm`. With a trained `curve` from A to B, it is A and the
    curve's middle that are compared (`signatures.along`). `bounded` adds the bounds of a theorem
    (`analysis.bounds`). `counts` of samples ask how stable activation matching is, and take the place of the
    limit.
    """
    asked = [(name, path) for name, path in (("png", drawn.plot), ("html", drawn.page)) if path is not None]
    asked_of, data = subjects.get("search", Search()), subjects.get("data", Data())
    check_method(asked_of, or_none=True)
    session = Session(
        "signature",
        [a, b],
        listener,
        **subjects | {"data": _samples(data, asked_of, counts, perm)},
        perm=perm,
    )
    outputs.check_files(asked, session.reads.and_files([curve]), force=drawn.force)
    search.check(session, or_none=True)
    if curve is not None and (session.moved or counts):
        what = "--stability" if counts else "--perm" if perm else f"--method {session.method}"
        raise UsageError(f"{what}: a curve has its own permutation of B", hint="Leave one of the two out")
    if bounded and (curve is not None or counts):
        what = "--stability" if counts else "--curve"
        raise UsageError(f"{what}: bounds are of the straight line from A to B", hint="Leave --bounds out")
    (first, second), fitted, (given, _) = session.models, session.fitted, session.given
    network = session.need_network()
    statistics = curve is not None and bool(fitted.statistics)
    splits = session.open_splits("match", *["reset"] * statistics)
    samples = splits["match"]
    output, not_kept = session.output, session.asked.network.not_kept
    stable, found = None, None
    more: dict[str, Any] = {}
    limit = session.asked.data.limit or MATCH_SAMPLES
    if curve is not None:
        kept = stored.load(curve)
        rows = signatures.along(
            kept.between(first, second, fitted),
            fitted,
            network=network,
            data=samples,
            limit=limit,
            reset_batches=splits.get("reset"),
            output=output,
            not_kept=not_kept,
            device=session.device,
        )
        more = {"curve": {"file": str(curve), "sha256": kept.digest, "aligned": kept.aligned}}
    elif counts:
        shuffled = samples.mixed(session.seed)
        stable = signatures.stability(
            first,
            second,
            fitted,
            counts,
            network=network,
            data=shuffled,
            options=session.options,
            output=output,
            not_kept=not_kept,
            device=session.device,
        )
        rows = stable.table
    else:
        inputs = {"network": network, "data": samples, "prove": False} | session.outputs
        found = search.find(session, given=inputs)
        permutations = found.permutations[0] if found else given or identity(fitted.words)
        rows = signatures.signature(
            first,
            second,
            fitted,
            permutations,
            network=network,
            data=samples,
            limit=limit,
            output=output,
            not_kept=not_kept,
            device=session.device,
        )
        if bounded:
            others = {"unaligned": second, "aligned": permuted(second, fitted, permutations)}
            more = {"bounds": bounds.account(network, first, others, *_some(samples))}
    match = {"method": "am"} if stable else accounts.describe_match(found, given=perm is not None)
    made = {
        "spec": accounts.describe_spec(fitted),
        "match": match,
        "data": samples.name,
        "samples": stable.samples[-1] if stable else samples.samples,
        "signature": list(rows),
        "stability": None if stable is None else _described(stable),
        "written": [str(path) for _, path in asked] or None,
        "times": accounts.times(found),
    } | more
    document = told.document(made, (a, b), drawn.command)
    render: dict[str, Callable[[], str | bytes]] = {
        "png": lambda: pictures.png(document),
        "html": lambda: html.page(document),
    }
    outputs.write_files([(path, render[name]()) for name, path in asked], force=drawn.force)
    return made


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
