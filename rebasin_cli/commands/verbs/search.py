"""A search by the method that was asked for: what is refused of it, what it runs on, where it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import matchers
from ...errors import DataError, NetworkError, UsageError
from ...matchers import State
from ...matchers.portfolio import align
from ...repair.options import SAMPLES
from ...reports import accounts
from ...runtime import devices
from ...session import given as given_elements
from ...session import method_options, samples
from ...session.listener import SILENT
from ...session.method_options import check_method
from ...session.network import origin
from ...session.request import Search
from ...session.session import Session
from ...symmetry import elements as acts
from ...symmetry.elements import Elements
from ...symmetry.form import canonical
from . import needs, provenance, resume, symmetries
from .outputs import Output
from .proof import Proof
from .ranks import check_measured
from .resume import Resumable


def check(
    session: Session, output: Output | None = None, *, or_none: bool = False, steps: bool = False
) -> None:
    """Raise UsageError for a method, its options or a log that make no sense, before anything is read.

    With `steps` the command itself trains something, whatever the method.
    """
    search = session.asked.search
    session.ranks.each(check_method, search, or_none=or_none)
    session.ranks.each(lambda: session.held_out)
    session.ranks.each(lambda: session.options)
    if output is not None:
        steps = steps or method_options.trains(search.method)
        session.ranks.first(resume.check_kept, search, output, session.reads, steps=steps)


def check_needs(session: Session) -> None:
    """Raise UsageError for a --limit that limits nothing, or that names all that the search lacks."""
    session.ranks.each(_check_limit, session)
    session.ranks.each(_check_needs, session)


def _check_needs(session: Session) -> None:
    """Of the repair of the merge to come with it, too."""
    search = session.asked.search
    if not runs_network(session) or goes_without(session.asked.search):
        return
    repaired = session.command == "merge" and session.asked.repair.repair != "none"
    align.check_needs(
        search.method,
        network=session.network is not None,
        data=session.has_data,
        polish=search.polish is not None,
        statistics=repaired and bool(session.fitted.statistics),
    )


def _check_limit(session: Session) -> None:
    search, repair = session.asked.search, session.asked.repair.repair
    if (limit := session.asked.data.limit) is None or (search.method == "none" and repair not in SAMPLES):
        return
    why = "the permutation is given" if session.perm else f"--method {search.method} goes by weights alone"
    why = "nothing is aligned" if search.method == "none" else why
    then = "choose a method that looks at samples, such as am or auto"
    if runs_network(session):
        if not goes_without(session.asked.search) or not (why := nothing_to_run(session)):
            return
        then = "name what is missing: --data NAME, --net file.py:factory"
    if session.command == "merge":
        measures = repair not in ("none", "bias") and session.has_data
        why += f", and repairs measure on {samples.RESET_SAMPLES:,} samples always" * measures
        then += f", or --repair-samples {limit}, which --repair refit or distill fit on"
    raise UsageError(f"--limit {limit} limits nothing: {why}", hint=f"Leave it out, or {then}")


def inputs(session: Session) -> dict[str, Any]:
    """The network and the training samples that a method matches by; {} where weights are enough.

    Raises UsageError that says what is missing, DataError.
    """
    if not runs_network(session):
        return {}
    if found := session.ranks.each(_inputs, session):
        check_measured(session, {"match": found["data"]})
    return found


def _inputs(session: Session) -> dict[str, Any]:
    name, asked = session.asked.search.method, session.asked.data
    if goes_without(session.asked.search) and (why := nothing_to_run(session)):
        session.say(f"method: {name} goes by weights alone: {why}")
        return {}
    _check_needs(session)
    network = session.network
    count = getattr(matchers.registry.get(name), "SAMPLES", samples.MATCH_SAMPLES)
    say = SILENT.say if session.splits else session.say  # which data it is was told already
    opened = samples.open_splits(session.models, asked, session.seed, say, wanted=["match"], match=count)
    opened = session.with_own_loss(opened)
    session.look_at_inputs(opened, network)
    found = {"network": network, "data": opened["match"], "prove": False} | session.outputs
    if session.held_out is not None:
        held = samples.open_splits(session.models, asked, session.seed, SILENT.say, wanted=["held"])
        session.splits |= session.with_own_loss(held)
        found["held"] = session.splits["held"]
    found |= {"metric": samples.metrics_of(asked) or None, "choose": session.chosen_by}
    return found | ({} if session.loss is None else {"loss": session.loss})


def resumable(
    session: Session, output: Output, more: Mapping[str, Any] | None = None
) -> AbstractContextManager[Resumable]:
    """The state of this very search is kept beside the output when it is interrupted.

    `more` are options that are not the method's, and make another search of it.
    """
    search = session.asked.search
    identity = session.ranks.first(
        provenance.describe,
        session.command,
        session.models,
        session.fitted,
        method=search.method,
        seed=session.seed,
        options=method_options.identity(search, session.asked.data, session.asked.network) | dict(more or {}),
    )
    return resume.resumable(
        output.path,
        identity,
        session.fitted.words,
        within=session.fitted.within,
        resume=output.resume,
        say=session.say,
        ranks=session.ranks,
        every=search.checkpoint_every,
        log=search.log,
        force=output.force,
    )


def first_state(session: Session) -> State | None:
    """Where a permutation file lets the search start (`--init FILE`); None where none is named.

    Raises UsageError for more than two models, and what `session.given.read` does.
    """
    search = session.asked.search
    file, option = method_options.start_file(search), method_options.start_option(search.method)
    if file is None or option is None:
        return None
    if len(session.models) != 2:
        raise UsageError(
            f"{option.flag} {file} is for the second of two models, not of {len(session.models)}",
            hint=f"Choose one of {', '.join(option.choices)}",
        )
    return State((_start(session, file),))


def _start(session: Session, file: Path) -> Elements:
    """The element of a file as it acts on the second model in canonical form."""
    fitted, folds = session.fitted, session.folds
    found = given_elements.read(file, fitted).elements
    if not found.maps:  # a balance moves with the order
        return found
    form = canonical(session.models[1], fitted, folds)
    return acts.compose(acts.invert(form.balance, fitted), found, fitted)


def find(
    session: Session,
    state: Resumable | None = None,
    *,
    given: Mapping[str, Any] | None = None,
    wider: Callable[[Callable[[], None], float], matchers.Wider | None] | None = None,
) -> align.Alignment | None:
    """Find the permutations with the method that was asked for, from where `state` says.

    None where there is nothing to search: the method is "none", or a permutation is given. `given` are
    the `inputs` of the method, where they were found before; what `wider` gives lets units take more than
    orders.
    """
    if session.method in ("none", "given"):
        return None
    state = state or Resumable()
    show = shown(session.listener.step, state.start)

    def progress(reached: State) -> None:
        if "polishing" not in reached.notes and "trying" not in reached.notes:  # these begin anew
            state.reached(reached)
        show(reached)

    found = align.align(
        session.models,
        session.fitted,
        method=session.asked.search.method,
        seed=session.seed,
        options=options_within(session),
        start=state.start or first_state(session),
        progress=progress,
        polish=session.asked.search.polish,
        folds=session.folds,
        **(inputs(session) if given is None else given),
        device=devices.own(session.device),
        ranks=session.ranks,
        wider=wider,
        room=needs.room(session),
    )
    if found.computed and session.asked.search.prove and wider is None:
        symmetries.check_moved(session, found.elements)
    for path, left in zip(session.paths, found.left, strict=True):
        for what, why in left:
            session.say(f"not balanced: {what} of {path}: {why}")
    for told in accounts.search_in_words(found.result):
        session.say(told)
    return found


def options_within(session: Session) -> Any:
    """The method's options, with no more similarities kept than a bound on memory leaves room for."""
    kept = needs.kept_similarities(session)
    return session.options if kept is None else replace(session.options, memory=kept)


def summary(
    session: Session, found: align.Alignment | None, proof: Proof, *, written: Sequence[str]
) -> dict[str, Any]:
    """What a command did, as values for --json and for a person."""
    return {
        "written": list(written),
        "spec": accounts.describe_spec(session.fitted),
        "match": accounts.describe_match(found, given=session.perm is not None),
        "proof": proof.account,
        "times": accounts.times(found, **proof.times),
    }


def shown(
    step: Callable[[str, int, int | None, str], None], start: State | None = None, *, what: str = "matching"
) -> Callable[[State], None]:
    """What tells a person how a search goes, with the seconds left of all models' where steps are counted."""
    began, first = time.monotonic(), steps(start)[0] if start else 0

    def show(state: State) -> None:
        done, total = steps(state)
        seconds = (time.monotonic() - began) / max(1, done - first)
        step(what, done, total, in_words(state, seconds * ((total or 0) - done)))

    return show


def steps(state: State) -> tuple[int, int | None]:
    """Steps that are done, of how many: over all models, where it is known how many one takes."""
    each = int(state.notes.get("steps", 0))
    before, models = state.notes.get("model", 2) - 2, state.notes.get("models", 2) - 1
    return int(before * each) + state.sweep, int(models * each) or None


def in_words(state: State, left: float = 0.0) -> str:
    """How a search goes; `left` is in seconds."""
    notes = state.notes
    place = f"model {notes['model']:.0f} of {notes['models']:.0f}  " if "model" in notes else ""
    if "seconds" in notes:
        return f"about {notes['seconds']:.0f} s at this machine's speed now, or less"
    if "polishing" in notes:
        return f"{place}swaps, held-out loss {notes['held_out_loss']:.4f}"
    if "loss" not in notes:
        return f"{place}objective {state.objective:.6g}"
    words = [f"{place}loss {notes['loss']:.4f}"]
    if "held_out_loss" in notes:
        right = f", accuracy {notes['held_out_accuracy']:.4f}" if "held_out_accuracy" in notes else ""
        words.append(f"held-out loss {notes['held_out_loss']:.4f}{right}")
    if "changed" in notes:
        words.append(f"{100 * notes['changed']:.1f}% of units moved")
    return "  ".join([*words, *[f"{left:.0f} s left"] * (left > 0)])


def runs_network(session: Session) -> bool:
    """Whether the search runs the network on samples: the method, or the swaps that come last."""
    polish = session.method != "given" and session.asked.search.polish is not None
    return polish or method_options.needs_data(session.method)


def goes_without(search: Search) -> bool:
    """Whether a search that runs the network on samples also finds something where there are none."""
    return search.polish is None and method_options.can_do_without(search.method)


def tell(session: Session) -> None:
    """Say which method it is where nobody named one, of a command that makes and measures no merge.

    `auto` chooses a method together with a repair, by the loss of what is merged; here nothing is.
    """
    if session.asked.search.open and session.moved and session.perm is None:
        session.fitted  # noqa: B018 (what is wrong with the models comes first)
        session.say("method: wm, by weights alone, as --method names no other (rebasin list methods)")


def chosen(session: Session) -> Session:
    """The session by the method `auto`, where nobody named one and network and data are known; else this."""
    search = session.asked.search
    alone = session.perm is None and search.polish is None and not session.grouped
    if not (search.open and alone):
        return session
    if why := nothing_to_run(session):
        if session.has_data:
            session.say(f"method: wm, by weights alone: {why}")
        return session
    found = session.by(replace(search, method="auto", open=False))
    found.say(
        "method: auto, the best by held-out loss within about a minute of one core "
        f"(--budget {found.options.budget}); by weights alone, in seconds: --method wm"
    )
    return found


def nothing_to_run(session: Session) -> str:
    """Why a method that can do without network and data has to, "" where they are there.

    What the user named has to work; of what checkpoints record, and names tell, that is not asked.
    """
    if not session.has_data:
        return "no data set is known"
    try:
        if why := no_network(session):
            return why
        samples.open_splits(session.named, session.asked.data, session.seed, SILENT.say, wanted=["train"])
    except (NetworkError, DataError) as error:
        if session.asked.network.net is not None or session.asked.data.data is not None:
            raise
        return error.message
    return ""


def no_network(session: Session) -> str:
    """Why no choice is made by the network's outputs, "" where it is known whose it is.

    Tensors' names alone do not tell what is computed with them. Raises NetworkError.
    """
    if session.network is None:
        return "no network is known"
    if origin(session.network, session.fitted, session.named, session.asked.network)["assumed"]:
        return "only the tensors' names tell the network (give yours with --net)"
    return ""
