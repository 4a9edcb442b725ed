"""Two looks at a pair of files before they are merged: `rebasin signature` and `rebasin doctor`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..analysis import diagnosis, signatures
from ..analysis.diagnosis import Diagnosis
from ..checkpoints import writing
from ..checkpoints.checkpoint import Checkpoint
from ..errors import DataError, NetworkError, UsageError
from ..permutations.permutation import identity
from ..reports import _accounts as accounts
from ..reports import _signature
from ..runtime import devices
from ..spec.spec import FittedSpec
from . import deciding, intake, running, sampling, searching
from .searching import Kept
from .settings import Settings
from .shared import Listener

LOOK = 2_560  # samples that the doctor runs four networks on
FEW = 1_000  # samples of a first measurement of what is not promising


def signature(
    a: Path,
    b: Path,
    settings: Settings,
    listener: Listener,
    *,
    perm: Path | None = None,
    counts: Sequence[int] = (),
    plot: Path | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """How alike matched units are, before and after alignment, as values for --json; a picture into `plot`.

    B is aligned with the settings' method, or `perm`. `counts` of samples ask how stable activation matching
    is, and take the place of the limit.
    """
    if plot is not None:
        writing.check_output(plot, force=force, text=True)
    deciding.check_method(settings, or_none=True)
    if settings.limit == 1:
        raise UsageError("--limit 1: a correlation needs two samples or more", hint="Leave --limit out")
    if counts:
        settings = _for_counts(settings, counts, given=perm is not None)
    options = searching.matcher_options(settings, measuring=True)
    device = devices.choose(settings.device)
    models = intake.read_models([a, b], settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    given = intake.read_permutation(perm, fitted)[0] if perm else None
    network = running.need_network(fitted, settings, listener.say)
    data = sampling.open_splits(models, settings, listener.say, wanted=["match"])["match"]
    shared = {"network": network, "output": settings.output, "device": device}
    stable, found = None, None
    if counts:
        shuffled = data.mixed(settings.seed)
        stable = signatures.stability(*models, fitted, counts, data=shuffled, options=options, **shared)
        rows = stable.table
    else:
        if given is None and settings.method != "none":
            found = searching.search(
                models,
                fitted,
                dataclasses.replace(settings, limit=getattr(options, "limit", None)),
                Kept(),
                listener.step,
                evidence={"network": network, "data": data, "output": settings.output, "prove": False},
                device=device,
            )
            given = found.permutations[0]
        permutations = identity(fitted.words) if given is None else given
        limit = settings.limit or sampling.MATCH_SAMPLES
        rows = signatures.signature(*models, fitted, permutations, data=data, limit=limit, **shared)
    if plot is not None:
        writing.write_text_atomic(plot, _signature.render(rows, f"{a.name} and {b.name}"), force=force)
    match = {"method": "am"} if stable else accounts.describe_match(found, given=perm is not None)
    return {
        "spec": accounts.describe_spec(fitted),
        "match": match,
        "data": data.name,
        "samples": stable.samples[-1] if stable else data.samples,
        "signature": list(rows),
        "stability": None if stable is None else _told(stable),
        "written": [str(plot)] if plot else None,
    }


def _for_counts(settings: Settings, counts: Sequence[int], *, given: bool) -> Settings:
    if settings.method != "am" or given:
        raise UsageError(
            "--stability compares matches by activations", hint="Match with --method am, without --perm"
        )
    if settings.limit is not None:
        raise UsageError("--stability and --limit both say how many samples", hint="Leave --limit out")
    return dataclasses.replace(settings, limit=max(counts))


def _told(stable: signatures.Stability) -> dict[str, Any]:
    words = {word: list(shares) for word, shares in stable.words.items()}
    return {"samples": list(stable.samples), "words": words, "overall": list(stable.overall)}


# ----------------------------------------------------------------------------------------------- doctor


def doctor(a: Path, b: Path, settings: Settings, listener: Listener) -> dict[str, Any]:
    """Facts about a pair, a verdict and the command to run next, as values for --json.

    What lacks a network or data is left out and named; what the user named has to work.
    """
    device = devices.choose(settings.device)
    models = intake.read_models([a, b], settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    network, no_network = _if_there(settings.net, running.find_network, fitted, settings, listener.say)
    known = sampling.data_reference(models, settings) is not None
    data, no_data = _if_there(settings.data, _open, models, settings, listener.say) if known else (None, "")
    with intake.naming([a, b]):
        found = diagnosis.doctor(
            *models,
            fitted,
            network=network,
            data=data,
            limit=settings.limit or LOOK,
            output=settings.output,
            seed=settings.seed,
            device=device,
        )
    unseen = [*found.unseen, *filter(None, (no_network, no_data))]
    if network is None:
        unseen.append("Give the network with --net file.py:factory")
    if data is None:
        unseen.append("Name data with --data NAME")
    able = network is not None and data is not None
    return {
        "files": [str(a), str(b)],
        "spec": accounts.describe_spec(fitted),
        "verdict": found.verdict,
        "advice": found.advice,
        "next": next_command(found, a, b, fitted, settings, able=able),
        "facts": {
            fact.name: {"value": fact.value, "says": fact.says, "warns": fact.warns} for fact in found.facts
        },
        "words": list(found.words),
        "tensors": list(found.tensors),
        "unseen": unseen,
    }


def _if_there(named: str | None, get: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """What `get` gives; or None and why, where it fails on what nobody named."""
    try:
        return get(*arguments), ""
    except (NetworkError, DataError, UsageError) as error:
        if named:
            raise
        return None, error.message


def _open(models: Sequence[Checkpoint], settings: Settings, say: Callable[[str], None]) -> Any:
    limited = dataclasses.replace(settings, limit=settings.limit or LOOK)
    return sampling.open_splits(models, limited, say, wanted=["match"])["match"]


WEIGHTS = ("spec", "key", "unsafe_load")
RUN = ("net", "trust_code", "data", "data_root", "normalize", "output")


def next_command(
    found: Diagnosis, a: Path, b: Path, fitted: FittedSpec, settings: Settings, *, able: bool
) -> str:
    """The command that a verdict leads to. `able`: there are a network and data to measure on."""
    both, reset = [str(a), str(b)], bool(fitted.statistics)
    # With BatchNorm activations match far better than weights: 4 and 24 points on CIFAR-10 (docs/doctor.md)
    mend = ["--method", "am"] if reset else ["--repair", "repair"]
    measure = ["barrier", *both, "--report", "report"]
    merge = ["merge", *both, "-o", "merged.safetensors"]
    unmended = ["--repair", "none"] if reset and not able else []  # what lies so near has near statistics too
    align = ["align", *both]
    if found.verdict == "identical" or (found.verdict == "relabelled" and found.exact):
        return _line(["verify", *both], settings, WEIGHTS)
    words = {
        "average": [*merge, "--method", "none", *unmended],
        "relabelled": align if unmended else merge,
        "related": measure if able else align,
        "align": measure if able else align,
        "align-and-repair": [*measure, *mend] if able else align,
        "doubtful": [*measure, *mend, "--limit", str(FEW)] if able else align,
        "nothing-in-common": ["eval", str(a)] if able else ["inspect", str(a)],
    }[found.verdict]
    carried = {"inspect": WEIGHTS[1:], "eval": (*WEIGHTS, *RUN)}.get(words[0], (*WEIGHTS, *RUN, "input"))
    return _line(words, settings, carried)


def _line(words: Sequence[str], settings: Settings, carried: Sequence[str]) -> str:
    """The command with those of the user's own options that it takes too."""
    given = []
    for name in carried:
        option, value = f"--{name.replace('_', '-')}", getattr(settings, name)
        if value is True:
            given.append(option)
        elif value:
            given += [option, str(value)]
    return shlex.join(["rebasin", *words, *given])
