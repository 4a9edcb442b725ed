"""`rebasin doctor` on files: what to expect of merging two models, before hours are spent."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from ..analysis import diagnosis
from ..analysis.diagnosis import Diagnosis, by_tensors
from ..analysis.diagnosis.facts import Fact
from ..checkpoints.checkpoint import Checkpoint
from ..errors import DataError, NetworkError, NoSpecFits, UsageError
from ..matchers.search.candidates import candidates
from ..repair import open_to_choice
from ..reports import _accounts as accounts
from ..reports import doctor as told
from ..reports.formats import html
from ..session.listener import SILENT, Listener
from ..session.models import naming
from ..session.network import begin_alike
from ..session.session import Session
from ..session.subjects import Asked, Data, ForLook
from ..spec.spec import FittedSpec
from .verbs import outputs

LOOK = 2_560  # samples that the doctor runs four networks on
FEW = 1_000  # samples of a first measurement of what is not promising


@dataclass(frozen=True)
class Page:
    """The HTML file that is written, an existing one only by `force`, and the command line on it."""

    path: Path
    force: bool = False
    command: str = "rebasin doctor"


def doctor(
    a: Path,
    b: Path,
    listener: Listener = SILENT,
    *,
    page: Page | None = None,
    **subjects: Unpack[ForLook],
) -> dict[str, Any]:
    """Facts about a pair, a verdict and the command to run next, as values for --json.

    What lacks a network or data is left out and named; what the user named has to work. Where no spec is
    named and none is found, the tensors alone tell whether the models are kin.
    """
    asked = subjects.get("data", Data())
    limited = dataclasses.replace(asked, limit=asked.limit or LOOK)
    session = Session("doctor", [a, b], listener, **subjects | {"data": limited})
    if page is not None:
        outputs.check_files([("html", page.path)], session.reads, force=page.force)
    models = session.models
    try:
        fitted = session.fitted
    except NoSpecFits:
        if session.asked.loading.spec is not None or session.asked.network.net is not None:
            raise
        return _paged(_by_tensors(session.models, session.asked, a, b), page)
    network, no_network = _if_there(session.asked.network.net, lambda: session.network)
    data, no_data = None, ""
    if session.has_data:
        data, no_data = _if_there(asked.data, lambda: session.open_splits("match")["match"])
    with naming([a, b]):
        one, other = models
        found = diagnosis.doctor(
            one,
            other,
            fitted,
            network=network,
            data=data,
            limit=limited.limit or LOOK,
            output=session.output,
            not_kept=session.asked.network.not_kept,
            seed=session.seed,
            device=session.device,
            begin_alike=frozenset() if network is None else begin_alike(fitted, session.asked.network),
        )
    unseen = [*found.unseen, *filter(None, (no_network, no_data))]
    if network is None:
        unseen.append("Give the network with --net file.py:factory")
    if data is None:
        unseen.append("Name data with --data NAME")
    able = network is not None and data is not None
    made = {
        "files": [str(a), str(b)],
        "spec": accounts.describe_spec(fitted),
        "verdict": found.verdict,
        "advice": found.advice,
        "next": next_command(found, a, b, fitted, given_options(session.asked), able=able),
        "tries": [
            {"method": one.method, "why": one.why} for one in candidates(fitted, len(models), able=able)
        ],
        "repairs_tried": list(open_to_choice("auto", statistics=bool(fitted.statistics))) if able else [],
        "facts": _told(found.facts),
        "words": list(found.words),
        "tensors": list(found.tensors),
        "unseen": unseen,
    }
    return _paged(made, page)


def _paged(made: dict[str, Any], page: Page | None) -> dict[str, Any]:
    """What was found, written as a page where one is asked for."""
    if page is not None:
        outputs.write_files([(page.path, html.page(told.document(made, page.command)))], force=page.force)
    return made


def _by_tensors(models: Sequence[Checkpoint], asked: Asked, a: Path, b: Path) -> dict[str, Any]:
    """What the tensors alone tell, where no spec is known."""
    found = by_tensors(*models)
    statistics = any(name.endswith("running_var") for name in models[0].shapes)
    net = ["--net", "file.py:factory"]
    words = {
        "identical": ["inspect", str(a)],
        "relabelled": ["verify", str(a), str(b), *net],
        "kin": ["merge", str(a), str(b), "--method", "none", "-o", "merged.safetensors"]
        + ["--repair", "none"] * statistics,
        "strangers": ["align", str(a), str(b), *net],
        "undecided": ["doctor", str(a), str(b), *net],
    }[found.verdict]
    return {
        "files": [str(a), str(b)],
        "spec": None,
        "verdict": found.verdict,
        "advice": found.advice,
        "next": _line(words, given_options(asked), WEIGHTS[1:]),
        "tries": [],
        "repairs_tried": [],
        "facts": _told(found.facts),
        "words": [],
        "tensors": list(found.tensors),
        "unseen": list(found.unseen),
    }


def _told(facts: Sequence[Fact]) -> dict[str, dict[str, Any]]:
    return {fact.name: {"value": fact.value, "says": fact.says, "warns": fact.warns} for fact in facts}


def _if_there(named: str | None, get: Callable[[], Any]) -> tuple[Any, str]:
    """What `get` gives; or None and why, where it fails on what nobody named."""
    try:
        return get(), ""
    except (NetworkError, DataError, UsageError) as error:
        if named:
            raise
        return None, error.message


WEIGHTS = ("spec", "key", "unsafe_load")
RUN = ("net", "trust_code", "data", "data_root", "normalize", "output", "not_kept")


def next_command(
    found: Diagnosis, a: Path, b: Path, fitted: FittedSpec, given: Mapping[str, Any], *, able: bool
) -> str:
    """The command that a verdict leads to. `able`: there are a network and data to measure on."""
    both, reset = [str(a), str(b)], bool(fitted.statistics)
    # Which method and whether to repair is measured by what decides it anywhere: auto (search.candidates)
    measure = ["barrier", *both, "--method", "auto", "--report", "report"]
    merge = ["merge", *both, "-o", "merged.safetensors"]
    unmended = ["--repair", "none"] if reset and not able else []  # what lies so near has near statistics too
    align = ["align", *both]
    if found.verdict == "identical" or (found.verdict == "relabelled" and found.exact):
        return _line(["verify", *both], given, WEIGHTS)
    words = {
        "average": [*merge, "--method", "none", *unmended],
        "relabelled": align if unmended else merge,
        "related": measure if able else align,
        "align": measure if able else align,
        "align-and-repair": measure if able else align,
        "doubtful": [*measure, "--limit", str(FEW)] if able else align,
        "nothing-in-common": ["eval", str(a)] if able else ["inspect", str(a)],
    }[found.verdict]
    carried = {"inspect": WEIGHTS[1:], "eval": (*WEIGHTS, *RUN[:-1])}.get(words[0], (*WEIGHTS, *RUN, "input"))
    return _line(words, given, carried)


def given_options(asked: Asked) -> dict[str, Any]:
    """The options by name that the next command may take over."""
    return {**vars(asked.loading), **vars(asked.network), **vars(asked.data)}


def _line(words: Sequence[str], given: Mapping[str, Any], carried: Sequence[str]) -> str:
    """The command with those of the user's own options that it takes too."""
    options = []
    for name in carried:
        option, value = f"--{name.replace('_', '-')}", given.get(name)
        if value is True:
            options.append(option)
        elif isinstance(value, tuple):
            options += [word for one in value for word in (option, str(one))]
        elif value:
            options += [option, str(value)]
    return shlex.join(["rebasin", *words, *options])
