"""`rebasin doctor`: what to expect of merging two models, before hours are spent."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..averages.parts import running_statistics
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.tensors import Room, held
from ..checkpoints.validation import validate
from ..errors import DataError, NetworkError, NoSpecFits, UsageError
from ..matchers.portfolio.candidates import candidates
from ..measure import diagnosis
from ..measure.diagnosis import Diagnosis, by_tensors
from ..measure.diagnosis.facts import Fact, narrowest
from ..registry import operations
from ..registry.options import READS, again, argument
from ..registry.results import Plan, Result
from ..repair import open_to_choice
from ..reports import accounts
from ..reports import doctor as told
from ..reports.document import Document
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.models import naming
from ..session.network import begin_alike, need_inputs
from ..session.outcomes import Answer, ReportFiles, Screen, Weights
from ..session.request import Subjects
from ..session.session import Session
from ..session.subjects import Bounded, DataSet, Loading, Network, Samples, Scoring
from ..spec.spec import FittedSpec
from ..types import Tensors
from .verbs import needs, plans, report_files

PANEL = "Measure"
FIGURES = True
ONLY_LOOKS = True
LOOK = 2_560  # samples that the doctor runs four networks on
REFITTED = 128  # units: refits on noise gained at 64 and 128, and lost at 512
ALIGNED = ("align", "doubtful")  # how verdicts begin that lead to a merge of aligned models
FEW = 1_000  # samples of a first measurement of what is not promising


@dataclass(frozen=True, kw_only=True)
class Doctor(Loading, Bounded, Network, DataSet, Samples, Scoring, Screen):
    """Look at two models before hours are spent: kin or strangers, and what a merge will need.

    Ends with a verdict and the command to run next. It is advice: the exit code is 0 whatever it says.
    Without data, or a network to run, it says what it could not look at.

    Example: rebasin doctor a.pt b.pt --data cifar10
    """

    a: Path = argument("A", role=READS)
    b: Path = argument("B", role=READS)
    html: Path | None = again(ReportFiles.html, None, panel="")
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json
    force: bool = Weights.force


@dataclass(frozen=True)
class DoctorResult(Result):
    """The `verdict` on two files, `advice` in a sentence, and the command to run `next`.

    `tries` are the methods that `--method auto` would try, each with "why", and `repairs_tried` its repairs.
    `facts` stand by their names, each with its "value", what it "says" and whether it "warns". `words` and
    `tensors` have what was measured of each, `unseen` what was not looked at.
    """

    files: list[str]
    spec: Mapping[str, Any] | None
    verdict: str
    advice: str
    next: str
    tries: list[dict[str, str]]
    repairs_tried: list[str]
    facts: Mapping[str, Mapping[str, Any]]
    words: list[Mapping[str, Any]]
    tensors: list[Mapping[str, Any]]
    unseen: list[str]

    def document(self) -> Document:
        return told.document(self.values())


def run(asked: Doctor, listener: Listener = SILENT) -> DoctorResult | Plan:
    """Facts about a pair, a verdict and the command to run next; a page where one is asked for."""
    subjects, page = subjects_of(asked), asked.html
    data = dataclasses.replace(subjects.data, limit=asked.limit or LOOK)
    session = Session("doctor", [asked.a, asked.b], listener, dataclasses.replace(subjects, data=data))
    if page is not None:
        report_files.check_files([("html", page)], session.reads, force=asked.force)
    found = _found(session, asked.a, asked.b, dry_run=asked.dry_run)
    if page is not None and isinstance(found, DoctorResult):
        shown = told.document(found.values(), listener.command or "rebasin doctor")
        report_files.write_document(shown, [("html", page)], force=asked.force)
    return found


def _found(session: Session, a: Path, b: Path, *, dry_run: bool) -> DoctorResult | Plan:
    """What is found of the pair, or what that would take.

    What lacks a network or data is left out and named; what the user named has to work. Where no spec is
    named and none is found, the tensors alone tell whether the models are kin.
    """
    try:
        fitted = session.fitted
    except NoSpecFits:
        if session.asked.loading.spec is not None or session.asked.network.net is not None:
            raise
        compared = needs.check_compared(session)
        if dry_run:
            return Plan({"models": 2, "tensors": len(session.named[0]), **compared.facts()})
        return _by_tensors(session.models, session.asked, a, b)
    needs.check(session, searching=True)
    if dry_run:
        return Plan(plans.of_reading(session, searching=True))
    models = _looked_at(session)
    network, no_network = _if_there(session.asked.network.net, lambda: session.network)
    data, no_data = None, ""
    if session.has_data:
        data, no_data = _if_there(session.asked.data.data, lambda: session.open_splits("match")["match"])
    with naming([a, b]):
        one, other = models
        found = diagnosis.doctor(
            one,
            other,
            fitted,
            network=network,
            data=data,
            limit=session.asked.data.limit or LOOK,
            seed=session.seed,
            device=session.device,
            begin_alike=frozenset() if network is None else begin_alike(fitted, session.asked.network),
            **session.outputs,
        )
    unseen = [*found.unseen, *filter(None, (no_network, no_data))]
    if network is None:
        unseen.append("Give the network with --net file.py:factory")
    if data is None:
        unseen.append("Name data with --data NAME")
    if data is None and network is not None and _gains_by_noise(session, network, found.verdict, fitted):
        unseen.append(
            f"Without data, a refit on noise helps networks as narrow as these. Make it with rebasin dream "
            f"{shlex.join([str(a), str(b)])} --steps 0 -o noise.npz, and merge with --data npz:noise.npz "
            "--repair refit"
        )
    able = network is not None and data is not None
    return DoctorResult(
        files=[str(a), str(b)],
        spec=accounts.describe_spec(fitted),
        verdict=found.verdict,
        advice=found.advice,
        next=next_command(found, a, b, fitted, given_options(session.asked), able=able),
        tries=[{"method": one.method, "why": one.why} for one in candidates(fitted, len(models), able=able)],
        repairs_tried=list(open_to_choice("auto", statistics=bool(fitted.statistics))) if able else [],
        facts=_told(found.facts),
        words=list(found.words),
        tensors=list(found.tensors),
        unseen=unseen,
    )


def _looked_at(session: Session) -> list[Tensors]:
    """The models, their values checked; what is read for that is kept to compare, within the bound."""
    most = needs.room(session)
    room = Room() if most is None else Room(most)
    found = [held(model, room=room) for model in session.named]
    for path, model in zip(session.paths, found, strict=True):
        validate(model, name=str(path))
    return found


def _gains_by_noise(session: Session, network: nn.Module, verdict: str, fitted: FittedSpec) -> bool:
    """Whether a refit on noise was measured to help networks like this one (docs/dreams.md)."""
    word = narrowest(fitted)
    if not verdict.startswith(ALIGNED) or word is None or fitted.words[word] > REFITTED or fitted.statistics:
        return False
    inputs, _ = _if_there(None, lambda: need_inputs(network, session.asked.network))
    return isinstance(inputs, torch.Tensor) and inputs.is_floating_point() and inputs.ndim in (2, 4)


def _by_tensors(models: Sequence[Checkpoint], asked: Subjects, a: Path, b: Path) -> DoctorResult:
    """What the tensors alone tell, where no spec is known."""
    found = by_tensors(*models)
    statistics = bool(running_statistics(models[0].shapes))
    net = ["--net", "file.py:factory"]
    words = {
        "identical": ["inspect", str(a)],
        "relabelled": ["verify", str(a), str(b), *net],
        "kin": ["merge", str(a), str(b), "--method", "none", "-o", "merged.safetensors"]
        + ["--repair", "none"] * statistics,
        "strangers": ["align", str(a), str(b), *net],
        "undecided": ["doctor", str(a), str(b), *net],
    }[found.verdict]
    return DoctorResult(
        files=[str(a), str(b)],
        spec=None,
        verdict=found.verdict,
        advice=found.advice,
        next=_line(words, given_options(asked), WEIGHTS[1:]),
        tries=[],
        repairs_tried=[],
        facts=_told(found.facts),
        words=[],
        tensors=list(found.tensors),
        unseen=list(found.unseen),
    )


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
RUN = (
    "net",
    "trust_code",
    "data",
    "targets",
    "data_root",
    "normalize",
    "output",
    "loss",
    "metric",
    "each",
    "not_kept",
)


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


def given_options(asked: Subjects) -> dict[str, Any]:
    """The options by name that the next command may take over."""
    return {**vars(asked.loading), **vars(asked.network), **vars(asked.data)}


def _line(words: Sequence[str], given: Mapping[str, Any], carried: Sequence[str]) -> str:
    """The command with those of the user's own options that it takes too."""
    known = {one.name: one for one in operations.of(words[0])[0].options}
    options = (known[name].typed(given[name]) for name in carried if name in known and given.get(name))
    return shlex.join(["rebasin", *words, *(word for each in options for word in each)])
