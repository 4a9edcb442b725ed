"""Is B derived from A? Exact tests by what units and training cannot know, an effect, and a verdict.

orders    units of both where they stand, against all orders that they could have: copies in their own order
columns   units matched, then weights that the data never moved: copies in any order; needs the data
likely    how units are matched for that
effect    ρ, how alike is what no matching looked at; words only, and a rank among models known to be apart
sampled   what is read of two models, of any size

What is found is a common ancestor, one initialisation among them, and never who copied whom.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...averages.kinship import equal, same_values
from ...checkpoints.tensors import overlaid
from ...errors import UsageError
from ...spec.library import resolve_words
from ...spec.spec import FittedSpec, Spec
from ...symmetry.permutation import permuted
from ...types import Tensors
from . import columns, effect, likely, orders, sampled
from .columns import Relabelled
from .orders import InPlace
from .sampled import Sample

DERIVED_IN_PLACE, DERIVED_RELABELLED = "derived in place", "derived relabelled"
NO_EVIDENCE, UNDECIDED = "no evidence", "undecided"
DERIVED = (DERIVED_IN_PLACE, DERIVED_RELABELLED)
# What units share where they stand, of what a matching finds: 0.8–1 of strangers that were aligned, 0.2–0.7
# of a tenth or a quarter of a merge, and in noise of 10 σ (benchmarks/results.md)
AS_MATCHED = 0.7
OPPOSITE = -6.0  # z of signs that were turned; of strangers |z| is about 1
FEW = 4  # rows or columns of a matrix, of which a quarter is nothing


@dataclass(frozen=True)
class Kin:
    """`verdict` is "derived in place", "derived relabelled", "no evidence" or "undecided", `why` a sentence.

    `in_place` and `relabelled` are the tests, None where there was none. `effect` is ρ, NaN where it was not
    measured, and `as_what` its word; `references` are those of models known to be apart, in their order, and
    `rank` is (1 + how many of them reach it) / (1 + how many were measured). `rotated` is ρ of copies whose
    units were rotated, where units stand tells nothing. `left_out` says of tensors why.
    `read` are the bytes of both models that the first test and the effect read.
    """

    verdict: str
    why: str
    in_place: InPlace | None = None
    relabelled: Relabelled | None = None
    effect: float = math.nan
    as_what: str = ""
    references: tuple[float, ...] = ()
    rank: float = math.nan
    left_out: Mapping[str, str] = ()  # type: ignore[assignment]
    read: int = 0
    notes: tuple[str, ...] = ()
    rotated: float = math.nan

    @property
    def derived(self) -> bool:
        return self.verdict in DERIVED


def kin(
    a: Tensors,
    b: Tensors,
    spec: str | Spec | FittedSpec | None = None,
    *,
    data: Iterable[tuple[Any, Any]] | None = None,
    references: Sequence[Tensors] = (),
    aligned: str = "",
    alpha: float = 0.001,
    draws: int = 999,
    seed: int = 0,
) -> Kin:
    """Is B derived from A? Each test is held against `alpha`; the spec is fitted to A.

    `data` are batches of the training samples as the models saw them: with them copies in another order are
    told. `references` are models known to be apart from A. `aligned` says where it is recorded that units
    were put in order by looking at the other model: then the test in place says nothing.

    Raises UsageError for an alpha that so many draws cannot reach, SpecError where nothing can be compared,
    CheckpointError for quantised weights and what is no number, DataError.

    >>> import torch, rebasin_cli
    >>> model = lambda seed: {
    ...     name: torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    ...     for name, shape in {"fc1.weight": (32, 20), "fc2.weight": (5, 32)}.items()
    ... }
    >>> a, other = model(0), model(1)
    >>> copy = {name: tensor + 2 * other[name] for name, tensor in a.items()}  # drowned in noise
    >>> rebasin_cli.kin(a, copy, "two_layer").verdict, rebasin_cli.kin(a, other, "two_layer").verdict
    ('derived in place', 'no evidence')
    """
    check_alpha(alpha, draws)
    fitted = resolve_words(spec, [a])
    sampled.comparable(a, b, fitted)
    for k, reference in enumerate(references, start=1):
        sampled.comparable(a, reference, fitted, other=f"reference {k}")
    if equal(a, b):
        return Kin(DERIVED_IN_PLACE, "Every tensor is equal, bit for bit.", effect=1.0, as_what=word_of(1.0))
    if same_values(a, b):
        why = "Every tensor holds the same values in another order, bit for bit."
        return Kin(DERIVED_RELABELLED, why, effect=1.0, as_what=word_of(1.0))
    found = sampled.sample(a, b, fitted)
    place = orders.in_place(found, draws=draws, seed=seed)
    notes = []
    rotated = math.nan
    standing = bool(place.tensors) and place.p <= alpha
    if standing and not aligned:
        rho, share = _effect(found, match=False, seed=seed), math.nan
        if rho < effect.COPIES:
            share = _share(a, b, fitted, found, seed)
    else:
        whole = _whole(a, b, fitted, found)
        share = math.nan
        rho = math.nan if whole is None else _effect(whole, match=True, seed=seed)
        rotated = math.nan if whole is None else effect.rotated(whole.a, whole.b, whole.fitted)
    again = _relabelled(a, b, fitted, found, data, draws, seed) if data is not None else None
    more = tuple(_matched_effect(a, c, fitted, sampled.sample(a, c, fitted), seed) for c in references)
    known = [each for each in more if not math.isnan(each)]
    rank = (
        (1 + sum(each >= rho for each in known)) / (1 + len(known))
        if known and not math.isnan(rho)
        else math.nan
    )
    verdict, why = _judged(place, again, rho, share, aligned, alpha)
    if verdict == NO_EVIDENCE and rotated >= effect.COPIES:
        alike = f"inner products that no rotation of units changes correlate by {rotated:.2f}"
        verdict, why = UNDECIDED, f"Where units stand tells nothing, but {alike}. {_next(again)}"
    if math.isnan(rho):
        none = "no tensor of it can be matched" if place.tensors else "no tensor is left to compare"
        notes.append(f"ρ is not measured: {none}.")
    if again is not None and again.quiet:
        quiet = f"the last {columns.QUIET:,} of which moved no further column"
        notes.append(f"{again.samples:,} samples were read, {quiet}.")
    if place.held:
        some = [f"{word}: {reason}" for word, reason in place.held.items()]
        are = "word is" if len(some) == 1 else "words are"
        notes.append(f"{len(some)} {are} held in place, {'; '.join(some[:3])}{' …' * (len(some) > 3)}.")
    return Kin(
        verdict,
        why,
        place,
        again,
        rho,
        word_of(rho),
        more,
        rank,
        {**found.left_out, **place.left_out},
        found.read,
        tuple(notes),
        rotated,
    )


def check_alpha(alpha: float, draws: int) -> None:
    """Raise UsageError for an alpha that no p of so many draws can reach."""
    if not 0 < alpha < 1:
        raise UsageError(f"--alpha {alpha:g}: expected a probability between 0 and 1")
    if 1 > alpha * (1 + draws) * (1 + 1e-9):
        least = math.ceil(1 / alpha) - 1
        raise UsageError(
            f"--alpha {alpha:g}: of {draws} draws p is at least {1 / (1 + draws):.2g}",
            hint=f"Draw more: --draws {least}",
        )


def word_of(rho: float) -> str:
    """What an effect is like."""
    if math.isnan(rho):
        return "not measured"
    if rho >= effect.COPIES:
        return "as derived copies"
    return "as strangers" if rho <= effect.STRANGERS else "undecided"


def _judged(
    place: InPlace, again: Relabelled | None, rho: float, share: float, aligned: str, alpha: float
) -> tuple[str, str]:
    """The verdict and the reason in a sentence."""
    stand = bool(place.tensors) and place.p <= alpha
    exact = again is not None and not again.why
    at = f"p = {place.p:.2g}, z {place.z:.1f}"
    by = f"p = {again.p:.2g}, z {again.z:.1f}" if again is not None and exact else ""
    if again is not None and again.p <= alpha:
        alike = f"what the data never moved is alike once units are matched ({by})"
        if stand and not aligned:
            return DERIVED_IN_PLACE, f"Units that stand at one place belong together ({at}), and {alike}."
        return DERIVED_RELABELLED, f"Where units stand tells nothing, but {alike}."
    if stand and aligned:
        return UNDECIDED, f"{aligned}: so where units stand ({at}) proves nothing. {_next(again)}"
    if stand and share >= AS_MATCHED:
        return UNDECIDED, (
            f"Units that stand at one place belong together ({at}), but as aligned strangers do: a matching "
            f"finds little more, and beyond the directions that strangers share ρ is {rho:.2f}. Either one "
            f"was aligned to the other, or B is a faint copy. {_next(again)}"
        )
    if stand and math.isnan(share) and rho < effect.COPIES:
        return UNDECIDED, (
            f"Units that stand at one place belong together ({at}), but the models are too large to tell a "
            f"faint copy from strangers that were aligned: ρ is {rho:.2f}. {_next(again)}"
        )
    if stand:
        return DERIVED_IN_PLACE, f"Units that stand at one place belong together ({at})."
    if place.tensors and place.z <= OPPOSITE and place.p >= 1 - alpha:
        return UNDECIDED, (
            f"Units that stand at one place are each other's opposite, far beyond chance ({at}), as those of "
            f"a copy whose signs were turned are. {_next(again)}"
        )
    if rho >= effect.COPIES:
        return UNDECIDED, (
            f"Where units stand tells nothing, but once they are matched ρ is {rho:.2f}, {word_of(rho)}. "
            f"{_next(again)}"
        )
    few = place.orders * alpha < 1 - 1e-9
    if not place.tensors and not exact:
        return UNDECIDED, f"No unit's place tells anything here. {_next(again)}"
    if few and not exact:
        least = 1 / place.orders
        return UNDECIDED, (
            f"The few units have {place.orders:.0f} orders, so p is at least {least:.2g}. {_next(again)}"
        )
    tests = [f"where units stand {at}"] * bool(place.tensors) + [f"what the data never moved {by}"] * exact
    return NO_EVIDENCE, f"Nothing beyond chance: {'; '.join(tests)}."


def _next(again: Relabelled | None) -> str:
    if again is None:
        return "With --data of the training samples more may be told."
    return f"No exact test by data: {again.why}." if again.why else "By data nothing is found."


def _effect(found: Sample, *, match: bool, seed: int) -> float:
    shapes = found.fitted.shapes
    names = [n for n in found.matrices if min(shapes[n][0], math.prod(shapes[n][1:])) >= FEW]
    return effect.correlation(found.a, found.b, names, found.fitted, match=match, seed=seed)


def _matched_effect(a: Tensors, b: Tensors, fitted: FittedSpec, found: Sample, seed: int) -> float:
    """ρ with units matched, of large models of what can be matched; NaN where that is nothing."""
    whole = _whole(a, b, fitted, found)
    return math.nan if whole is None else _effect(whole, match=True, seed=seed)


def _whole(
    a: Tensors, b: Tensors, fitted: FittedSpec, found: Sample, still: Sequence[columns.Still] = ()
) -> Sample | None:
    """All units of both, as far as they can be matched, and what is `still`."""
    if found.whole:
        return found
    return sampled.matchable(a, b, fitted, {(its.tensor, its.dim): its.positions for its in still})


def _share(a: Tensors, b: Tensors, fitted: FittedSpec, found: Sample, seed: int) -> float:
    """What units share where they stand, of what they share once all weights are matched, begun anew.

    NaN of models that are too large to be matched whole.
    """
    whole = None if not found.whole and sampled.is_large(a, b, fitted) else _whole(a, b, fitted, found)
    if whole is None:
        return math.nan
    perms = effect.matched(whole.a, whole.b, whole.fitted, seed=seed)
    moved = dict(permuted(whole.b, whole.fitted, perms))
    stand, again = (orders.in_place(one, draws=1, seed=seed) for one in (whole, replace(whole, b=moved)))
    return stand.statistic / again.statistic if again.statistic > 0 else math.inf


def _relabelled(
    a: Tensors,
    b: Tensors,
    fitted: FittedSpec,
    found: Sample,
    data: Iterable[tuple[Any, Any]],
    draws: int,
    seed: int,
) -> Relabelled:
    inputs = columns.read(data)
    still = columns.still(inputs, a, sampled.plain_of(fitted))
    whole = _whole(a, b, fitted, found, still)
    there = columns.within(still, {} if whole is None else whole.indices)
    count = sum(len(its.positions) for its in there)
    if still and not there:
        why = "what reads the data is too large to be matched, or is in one of both alone"
        again = Relabelled(why=why)
    elif whole is None or count < columns.LEAST:
        again = Relabelled(columns=count, why=columns.too_few(there, count))
    else:
        again = by_columns(whole.a, whole.b, whole.fitted, there, draws=draws, seed=seed)
    return replace(again, samples=inputs.samples, quiet=inputs.quiet)


def by_columns(
    a: Tensors,
    b: Tensors,
    fitted: FittedSpec,
    still: Sequence[columns.Still],
    *,
    draws: int = 999,
    seed: int = 0,
) -> Relabelled:
    """The test by columns: units are matched without them, softly where a word is alone with what stays."""
    one, other = (overlaid(model, columns.without(model, still)) for model in (a, b))
    words = {its.tensor: likely.word_alone(fitted, its.tensor) for its in still}
    if None in words.values():
        ours, theirs = ({n: effect.white(t) for n, t in m.items()} for m in (one, other))
        b = permuted(b, fitted, effect.matched(ours, theirs, fitted, seed=seed))
        return columns.relabelled(a, b, still, draws=draws, seed=seed)
    soft = likely.units(one, other, fitted, {word for word in words.values() if word is not None})
    stands = {name: soft[word] for name, word in words.items() if word is not None}
    return columns.relabelled(a, b, still, stands, draws=draws, seed=seed)
