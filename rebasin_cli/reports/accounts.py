"""What was found, as plain values: for reports, for `--json`, for provenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..runtime.text import clean, many, some
from ..types import ACCURACY, CROSS_ENTROPY, Quantity, aside
from .format import fixed

if TYPE_CHECKING:  # they bring torch, and what a run says of itself has to be told without it
    from ..matchers import MatchResult
    from ..matchers.accounts import Certificate, Chosen, Mixed, Setting
    from ..matchers.portfolio.align import Alignment
    from ..proof.prove import Proof
    from ..repair import Repaired
    from ..repair.choices import Choice
    from ..spec.spec import FittedSpec

SHOWN = 12  # names of outputs, or of tensors, in one line

OWN_INPUTS = "the loader's own"  # in place of a normalization


def describe_spec(fitted: FittedSpec) -> dict[str, Any]:
    return {
        "name": fitted.spec.name,
        "sha256": fitted.spec.digest,
        "words": len(fitted.words),
        "log10_symmetries": fitted.log10_symmetries(),
        "moved_share": fitted.moved_share(),
    }


def describe_quantities(quantities: Sequence[Quantity]) -> dict[str, Any]:
    """What figures are of: of the loss, and of every metric."""
    loss, *metrics = map(asdict, quantities)
    return {"loss": loss, "metrics": metrics}


def describe_match(alignment: Alignment | None, *, given: bool = False) -> dict[str, Any]:
    if alignment is None:
        return {"method": "given permutations" if given else "none"}
    from ..matchers.accounts import Begun, Constrained, Learned, Mixed, Relaxed

    result = alignment.result
    own, found = result.account, dict[str, Any]()
    if result.upper_bound is not None and result.objective_after > 0:
        gap = max(0.0, result.upper_bound / result.objective_after - 1)
        found = {"upper_bound": result.upper_bound, "gap": gap}
        if any(element.maps for element in result.elements):
            found["bounded"] = "elements"  # and not permutations alone
    found |= {
        "method": alignment.method,
        "sweeps": result.sweeps,
        "solves": result.solves,
        "objective_before": result.objective_before,
        "objective_after": result.objective_after,
    }
    if isinstance(own, Begun) and own.init:
        found["init"] = own.init
    if result.chosen is not None:
        found |= _chosen(result.chosen)
    if result.polished is not None:
        found["polished"] = result.polished.plain()
    if isinstance(own, Relaxed) and own.rounding is not None:
        found["rounded"] = own.rounding.plain()
    if isinstance(own, Mixed):
        found["mixed"] = own.plain()
    if isinstance(own, Constrained):
        found["constrained"] = [one.plain() for one in own.certificates]
    if isinstance(own, Learned) and own.history:  # it ended with its last step, whatever was left to gain
        published = {"as_published": [one.plain() for one in own.published]} if own.published else {}
        return found | published | {"history": [dict(row) for row in own.history]}
    return found | {"converged": result.converged}


def search_in_words(result: MatchResult) -> Iterator[str]:
    """What a search decided by itself, in sentences."""
    from ..matchers.accounts import Constrained, Learned, Mixed, Relaxed

    own, chosen = result.account, result.chosen
    if chosen is not None:
        repair = f" with the repair {chosen.repair}" if chosen.repair else ""
        yield f"method: auto chose {chosen.method}{repair}: {tried_in_words(_chosen(chosen))}"
    elif result.polished is not None:
        yield f"polish: {polished_in_words(result.polished.plain())}"
    if isinstance(own, Relaxed) and own.rounding is not None:
        yield f"rounding: {rounded_in_words(own.rounding.plain())}"
    if isinstance(own, Learned) and own.published:
        yield f"as published: {published_in_words(own.published)}"
    if isinstance(own, Mixed):
        yield f"mix: {mixed_in_words(own)}"
    if isinstance(own, Constrained):
        for one in own.certificates:
            yield f"constrained: {constrained_in_words(one)}"


def _chosen(chosen: Chosen) -> dict[str, Any]:
    """What was taken, and what was measured for it where that is not cross-entropy and accuracy."""
    usual = chosen.quantities == (CROSS_ENTROPY, ACCURACY)
    return chosen.plain() | ({} if usual else {"measured": describe_quantities(chosen.quantities)})


def tried_in_words(match: Mapping[str, Any]) -> str:
    """A method after the other: its held-out losses with every repair, or why it was not tried.

    `match` names the loss, where that is one of the user's own, and the figure that was chosen by.
    """
    rows: Iterable[Mapping[str, Any]] = match.get("tried", ())
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        methods.setdefault(row["method"], []).append(row)
    told: dict[str, list[str]] = {}  # methods of which the same is to be said
    for method, own in methods.items():
        told.setdefault(", ".join(_told(own)), []).append(method)
    losses = any("held_out_loss" in row for own in methods.values() for row in own)
    said = "; ".join(f"{', '.join(methods)} {text}" for text, methods in told.items())
    loss = match.get("measured", {}).get("loss", {})
    named = aside(clean(loss["name"])) if loss else ""
    by = f"by {clean(match['by'])}; " if "by" in match else ""
    apart = any("distance" in row for row in rows)
    how = "; taken is the least of the loss and the distance to the endpoints' mean answer (apart) together"
    return (f"{by}held-out loss{named} at the mean " if losses else by) + said + how * apart


def _told(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Of one method: losses by repair, and then why there are no others."""
    whys: dict[str, list[str]] = {}
    for row in rows:
        repair = row["repair"] if row.get("repair", "none") != "none" else ""
        if "why" in row:
            whys.setdefault(row["why"], []).append(repair)
        else:
            beside = [f"{fixed(row['distance'])} apart"] if "distance" in row else []
            beside += [f"{clean(key)} {fixed(value)}" for key, value in row.get("metrics", {}).items()]
            more = f" ({', '.join(beside)})" if beside else ""
            yield f"{repair} {fixed(row.get('held_out_loss', math.inf))}{more}".strip()
    for why, repairs in whys.items():
        yield f"{', '.join(repairs)} {why}".strip()


def polished_in_words(done: Mapping[str, Any]) -> str:
    return (
        f"{done['swaps']} swaps in {done['steps']} steps, held-out loss {done['before']:.4f} → "
        f"{done['after']:.4f} (the same again: --polish {done['steps']}steps)"
    )


def rounded_in_words(done: Mapping[str, Any]) -> str:
    """What was chosen, and what the other reading of the same equation would have chosen if not that."""
    pull = done["chosen"] == done["by_loss"]
    other = done["by_penalised" if pull else "by_loss"]
    differs = f"; {'with' if pull else 'without'} the pull to the start: {other}"
    return (
        f"mean loss of the line {done['loss_start']:.4f} → {done['loss']:.4f} by {_whose(done)}, nearest "
        f"permutation {done['loss_nearest']:.4f}, "
        f"draws below it: {done['draws_below_nearest']}, {done['units_moved']} of {done['units']} units moved"
        f"{differs if other != done['chosen'] else ''}"
    )


def _whose(done: Mapping[str, Any]) -> str:
    drawn = done["chosen"].startswith("draw ")
    return f"{done['chosen']} of {done['draws']}" if drawn else f"{done['chosen']} ({done['draws']} draws)"


def published_in_words(settings: Sequence[Setting]) -> str:
    """Every setting with its place in the paper, and what the figures beside them are of."""
    told = "; ".join(f"{one.name.replace('_', ' ')} {one.value} ({one.place})" for one in settings)
    return f"{told}. Held-out figures are of training samples, and chose nothing"


def mixed_in_words(done: Mixed) -> str:
    """The share of activations that was taken, and what the mean lacks with every one."""
    each = ", ".join(f"{mix}: {lacks:.4g}" for mix, lacks in done.lacks.items())
    others = f"; with {len(done.words)} words of others {done.joined:.4g}" if done.words else ""
    return (
        f"activations count {done.mix:g}; mean square that the mean lacks of both models' outputs "
        f"{each}{others}"
    )


def constrained_in_words(one: Certificate) -> str:
    """Why a word's assignment is the best within the constraint, or how far it may be from that."""
    words = ", ".join(one.words)
    if one.free:
        return f"{words}: the best after the activation keeps the constraint, so nothing within it is better"
    return (
        f"{words}: the best after the activation breaks the constraint; within it {one.reached:.6g} is "
        f"reached, and {one.bound:.6g} not exceeded"
    )


def times(alignment: Alignment | None, **more: float) -> dict[str, float]:
    """Wall times in seconds: the one part of a result that differs between two identical runs."""
    found: dict[str, float] = {}
    if alignment is not None:
        found["match"] = alignment.seconds
        for row in alignment.result.chosen.tried if alignment.result.chosen is not None else ():
            if row.held_out_loss is not None and row.seconds is not None:  # the last of a method's repairs
                found[f"match by {row.method}"] = row.seconds
    return found | more


def describe_proof(proof: Proof | None, reason: str = "", unproven: str = "") -> dict[str, Any]:
    """`unproven`: what was assumed of a network that nobody gave (`Spec.unproven`)."""
    if proof is None and unproven:
        return {"status": "unproven", "reason": unproven}
    if proof is None:
        return {"status": "unavailable", "reason": reason or "no network to prove the spec on"}
    told = {
        "status": "proven",
        "largest_difference": proof.largest_difference,
        "tolerance": proof.tolerance,
        "trials": proof.trials,
    }
    if proof.precision != "float64":  # an operation of the network knows no more
        told["precision"] = proof.precision
    if proof.without_effect:
        told["without_effect"] = list(proof.without_effect)
    named = describe_kept(proof.kept, proof.not_kept, proof.not_seen, proof.not_in_training)
    return told | named | ({"decided_at": list(proof.decided_at)} if proof.decided_at else {})


def describe_kept(
    kept: Sequence[str],
    not_kept: Sequence[str],
    not_seen: Sequence[str] = (),
    not_in_training: Sequence[str] = (),
) -> dict[str, Any]:
    """What of the outputs is the function, and what is not.

    And, where there are any, tensors that none of it is computed from, and what stays in evaluation alone.
    """
    told = {"kept": list(kept), "not_kept": list(not_kept)}
    more = {"not_seen": list(not_seen), "not_in_training": list(not_in_training)}
    return told | {name: names for name, names in more.items() if names}


def outputs_in_words(account: Mapping[str, Any]) -> str:
    """One line of the same, which the account of a proof has, too.

    "" of a network with one output that shows all of its tensors, stays in training, and always runs alike.
    """
    names = ("kept", "not_kept", "not_seen", "not_in_training", "decided_at")
    kept, not_kept, not_seen, not_in_training, decided_at = (account.get(name) or () for name in names)
    told = []
    if len(kept) > 1 or not_kept:
        told = [f"kept: {_some(kept)}", f"not kept: {_some(not_kept) or 'none'}"]
    if not_seen:
        told.append(f"not seen by any kept output: {_some(not_seen)}")
    if not_in_training:
        told.append(f"in training mode these do not stay: {_some(not_in_training)}")
    if decided_at:
        told.append(
            f"values decide what runs ({_some(decided_at)}): what they let run in no trial is not proven"
        )
    return "; ".join(told)


def _some(names: Iterable[str]) -> str:
    return some(map(clean, names), SHOWN)


def describe_repair(done: Repaired | None, choice: Choice | None = None) -> dict[str, Any]:
    """For the result of a command. `left` maps layers to why they were not, or only in part, corrected."""
    if choice is not None:
        losses = {name: round(loss, 6) for name, loss in choice.losses.items()}
        told: dict[str, Any] = {"held_out_loss": losses}
        every = choice.metrics.items()
        if by := {name: round(its[choice.by], 6) for name, its in every if choice.by in its}:
            told = {"held_out": {"by": choice.by, **by}} | told
        return describe_repair(done) | told
    if done is None:
        return {"repair": "none"}
    if done.method == "reset":
        return {"repair": "reset", "repaired_norms": len(done.corrected)}
    if done.method == "bias":
        return {"repair": "bias", "repaired_layers": len(done.corrected)}
    if done.method in ("refit", "distill"):
        return {"repair": done.method, "repaired_layers": len(done.corrected), "left": dict(done.left)}
    added = {"added": list(done.added)} if done.added else {}
    return {
        "repair": done.method,
        "repaired_layers": len(done.corrected),
        "dead_channels": done.dead,
        "passes": done.passes,
        "left": dict(done.left),
    } | added


def say_repair(say: Callable[[str], None], done: Repaired, splits: Mapping[str, Any], *, asked: str) -> None:
    """What was repaired, and what was not and why, in sentences."""
    count = len(done.corrected)
    layers = "1 layer" if count == 1 else f"{count} layers"
    if done.method == "bias":
        say(f"repair: biases of {layers} calibrated, without data")
        return
    samples = many(done.samples or splits["reset"].samples, "sample")
    if done.method == "reset":
        instead = (
            " (this network has BatchNorm: reset takes the place of repair)" if asked == "repair" else ""
        )
        say(f"repair: statistics of {count} norms re-estimated on {samples}{instead}")
        return
    if done.method in ("refit", "distill"):
        to = "compute there" if done.method == "refit" else "compute there, and trained towards their outputs"
        say(f"repair: {layers} fitted to the mean of what the models {to}, on {samples}")
        if done.dead:
            dead = "1 input that is" if done.dead == 1 else f"{done.dead} inputs that are"
            say(f"repair: the weights of {dead} always 0 stay as averaged")
        for name, why in done.left:
            say(f"left as averaged: {name}: {why}")
        return
    matched = {
        "repair": "mean and standard deviation",
        "rescale": "standard deviation",
        "reshift": "mean",
    }[done.method]
    say(
        f"repair: {matched} of the channels of {layers} matched to the endpoints' "
        f"on {samples}, {done.passes} passes"
    )
    if done.dead:
        say(f"repair: {done.dead} dead channels left alone")
    for name, why in done.left:
        say(f"not repaired: {name}: {why}")
    if done.added:
        say(f"repair: new tensors, which the network did not have: {', '.join(done.added)}")
