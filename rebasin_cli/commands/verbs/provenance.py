"""What an output file says of its making, the same for the same inputs and options; the statement on it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...checkpoints import declared
from ...checkpoints.checkpoint import Checkpoint, open_checkpoint
from ...checkpoints.saved import words
from ...datasets.loaders import LoaderData
from ...registry import references
from ...repair.options import SAMPLES
from ...reports import accounts
from ...runtime.text import many
from ...session import asked as inputs
from ...session import method_options
from ...session.samples import HeldOut
from ...session.session import Session
from ...spec.spec import FittedSpec
from ...version import version
from . import attestation
from .outputs import Output
from .report_files import write_files

if TYPE_CHECKING:
    from ...measure.compared import Comparison
    from ...reports import Report

T = TypeVar("T", "Report", "Comparison")
# Shared by models of one training.
TRAINING = ("rebasin.data", "rebasin.normalization", "rebasin.vocabulary", "rebasin.net")
BESIDE = 1 << 14  # characters
SECRET = frozenset(
    "secret secrets token tokens password passwd pwd passphrase credential credentials key apikey auth "
    "cookie bearer".split()
)
# What is one whatever it is called: tokens of known forms, and a password in an address.
SECRETIVE = re.compile(
    r"\b(hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{12,}|://[^/\s:@]{0,99}:[^/\s@]{1,999}@"
)
RESULTS = ("rebasin.train_accuracy", "rebasin.test_accuracy")  # a relabelled model keeps them


def describe(
    command: str,
    models: Sequence[Checkpoint],
    fitted: FittedSpec | None,
    *,
    method: str,
    seed: int,
    options: Mapping[str, Any] | None = None,
    like: Sequence[Checkpoint] = (),
    results: bool = False,
    proof: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Version, method, options, seed, digests of inputs and spec; no paths and no times.

    Without a spec nothing was permuted. What all of `like` record alike on their training is carried over,
    and the plain values `beside` their weights; with `results` their accuracies too. Of the `proof`, its
    status, whether for an assumed network, and which outputs it is of.
    """
    keys = (*TRAINING, declared.BESIDE) + RESULTS * results
    spec = None if fitted is None else fitted.spec
    of_spec = {} if spec is None else {"rebasin.spec": spec.name, "rebasin.spec_sha256": spec.digest}
    proven = {} if proof is None else {"rebasin.proof": status(proof)} | _outputs(proof)
    return (
        proven
        | {
            "rebasin.version": version(),
            "rebasin.command": command,
            "rebasin.method": method,
            "rebasin.options": json.dumps(dict(options or {}), sort_keys=True),
            "rebasin.seed": str(seed),
            "rebasin.inputs": json.dumps([model.digest() for model in models]),
        }
        | of_spec
        | beside(like or models)
        | {key: value for key in keys if (value := _alike(like, key)) is not None}
    )


def of_session(
    session: Session,
    *,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    searches: bool = True,
    **more: Any,
) -> dict[str, str]:
    """The same of a session: of its search, if its command `searches`, and of `options` beside that."""
    own = method_options.recorded(session.asked.search, session.asked.data) if searches else {}
    return describe(
        session.command,
        session.models,
        session.fitted,
        method=method or session.method,
        seed=session.seed,
        options=own | dict(options or {}),
        **more,
    )


def beside(models: Sequence[Checkpoint]) -> dict[str, str]:
    """The plain values that lie beside the weights of torch files, alike in all models, as JSON by name.

    A program may need them to load its own weights: settings, sizes, names of classes. Together they have at
    most `BESIDE` characters; text that may be a secret, by its name, is left out.
    """
    first, *others = [
        {name: _as_json(name, value) for name, value in model.beside.items()} for model in models
    ]
    kept, size = [], 0
    for name, text in sorted(first.items()):
        size += 0 if text is None else len(text) + len(name)
        if text is not None and size <= BESIDE and all(other.get(name) == text for other in others):
            kept.append(f"{json.dumps(name)}: {text}")
    return {declared.BESIDE: f"{{{', '.join(kept)}}}"} if kept else {}


def _as_json(name: str, value: Any) -> str | None:
    try:
        return json.dumps(_open({name: value})[name], sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # keys of several kinds, NaN, too deep
        return None


def _open(value: Any, hidden: bool = False) -> Any:
    """The value without text that may be a secret, by the name of what it lies in or by itself."""
    if isinstance(value, Mapping):
        return {key: _open(inner, hidden or bool(SECRET & words(key))) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_open(inner, hidden) for inner in value]
    return "…" if isinstance(value, str) and (hidden or SECRETIVE.search(value)) else value


def _outputs(proof: Mapping[str, Any]) -> dict[str, str]:
    """Which outputs were kept, of a network with more than one, and tensors that none of them shows."""
    told = accounts.outputs_in_words(proof)
    return {"rebasin.outputs": told} if told else {}


def status(proof: Mapping[str, Any]) -> str:
    if proof["status"] == "unproven":
        return f"unproven: {proof['reason']}"
    if proof.get("made_before"):
        return f"{proof['status']} on {proof['network']}"
    return str(proof["status"]) + " (assumed network)" * bool(proof.get("assumed"))


def _alike(models: Sequence[Checkpoint], key: str) -> str | None:
    """What all of these models record under this key; None where they do not, or differ."""
    values = {model.metadata.get(key) for model in models}
    return values.pop() if len(values) == 1 else None


def describe_input(model: Checkpoint) -> dict[str, Any]:
    """What a report says of a model."""
    return {"file": str(model.path), "sha256": model.digest(), "recorded": model.provenance}


def describe_data(data: Any, *, full: bool) -> dict[str, Any]:
    """What a report says of the data that was measured on; of text also what a sample is."""
    if data.vocabulary is not None:
        window = data.source.inputs.shape[1]
        unit = f"windows of {window} characters"
        return {"name": data.name, "normalization": None, "unit": unit, "full": full}
    shown = accounts.OWN_INPUTS if data.normalization is None else str(data.normalization)
    return {"name": data.name, "normalization": shown, "full": full}


def signed(
    found: T,
    models: Sequence[Checkpoint],
    data: Any,
    *,
    proof: Mapping[str, Any],
    command: str,
    full: bool,
    notes: Sequence[str],
) -> T:
    """A `Report` or `Comparison` with what it was made of: files, data, proof, command; `notes` are added."""
    return dataclasses.replace(
        found,
        proof=dict(proof),
        command=command,
        inputs=tuple(describe_input(model) for model in models),
        data=found.data | describe_data(data, full=full),
        notes=(*found.notes, *notes),
    )


def notes(
    splits: Mapping[str, Any],
    proof: Mapping[str, Any],
    *,
    repair: str = "reset",
    held_out: HeldOut | None = None,
) -> list[str]:
    """What a reader of a report should know before believing it."""
    found = []
    texts = [data for data in splits.values() if data.vocabulary]
    if texts:
        window = texts[0].source.inputs.shape[1]
        found.append(
            f"a sample is a window of {window} characters, its loss their mean, in nats a character; "
            "intervals draw windows, not characters"
        )
    held = splits.get("held")
    # all that is left
    rest = isinstance(held, LoaderData) and held.skip and held.samples < (held.limit or 0)
    first = [
        f"{split} {data.limit}"
        for split, data in splits.items()
        if not (rest and split == "reset") and isinstance(data, LoaderData) and data.limit == data.samples
    ]
    if first:
        found.append(
            f"of the loader's data the first samples were taken, in its own order: {', '.join(first)}"
        )
    if "reset" in splits and repair in SAMPLES:
        does = "every layer fitted" if repair == "refit" else "a refit, and all weights trained"
        found.append(
            f"{repair}: {does} on {many(splits['reset'].samples, 'training sample')}, without their labels, "
            "at every inner point; the ends are the models as given"
        )
    elif "reset" in splits and repair != "reset":
        found.append(
            f"{repair}: channels matched to the endpoints' on "
            f"{many(splits['reset'].samples, 'training sample')} at every inner point; "
            "the ends are the models as given"
        )
    elif "reset" in splits:
        found.append(
            "reset: BatchNorm statistics re-estimated on "
            f"{many(splits['reset'].samples, 'training sample')} at every inner point; "
            "the ends are the models as given"
        )
        found.append("a permutation-only figure of a BatchNorm network means nothing by itself")
    if held_out is not None:
        kept = ", which no figure is measured on" if held_out.fraction else ""
        found.append(
            f"choices and temperatures are by {many(splits['held'].samples, 'sample')} of "
            f"--held-out {held_out.text}{kept}"
        )
    if proof.get("reason") == "--no-prove":
        found.append("the spec was not proven (--no-prove)")
    return found


def attested(
    session: Session, output: Output, done: dict[str, Any], *, copied: Path | None = None
) -> dict[str, Any]:
    """What a command did, and the statement on it where one is asked for: written last, of what is there."""
    if output.attest is None or output.dry_run:
        return done
    index = (name for name in done["written"] if name.endswith(".index.json"))
    made = open_checkpoint(Path(next(index, done["written"][0]))).metadata
    content = attestation.statement(
        [Path(name) for name in done["written"]],
        parents(session, output, copied),
        asked=attestation.of_metadata(made, keys=attestation.ASKED),
        resolved=attestation.of_metadata(made, keys=attestation.RESOLVED),
    )
    write_files([(output.attest, attestation.text(content))], force=output.force)
    return done | {"written": [*done["written"], str(output.attest)]}


def parents(session: Session, output: Output, source: Path | None = None) -> list[Path]:
    """Models, permutations, the spec, code and data that were named as files, and what was copied from.

    Not in it: folders of data, files of a named data set, and what the user's own code imports or opens.
    """
    asked = session.asked
    models = [*session.paths, *([source] if source else [])]
    found = [file for model in models for file in ([model] if model.is_dir() else inputs.of_model(model))]
    copied = models[-1 if source else 0]
    found += [(copied if copied.is_dir() else copied.parent) / name for name in output.copies]
    starts = (session.perm, method_options.start_file(asked.search))
    found += [path for path in starts if path is not None]
    found += inputs.of_spec(asked.loading.spec) + inputs.of_code(asked)
    if asked.network.net is None and asked.network.trust_code:
        found += [file for net in sorted(session.nets) for file in references.files_of(net)]
    data = references.named_in(asked.data.data or "")
    return [*found, *([data] if data is not None and data.is_file() else [])]
