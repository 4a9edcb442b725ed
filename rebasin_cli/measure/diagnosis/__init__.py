"""What to expect of merging two models, before hours are spent: facts measured, one verdict.

Weights tell whether the models share an ancestor (without a spec: `kinship`), whether one is the other with
its units in another order, and whether a weight matching finds more in common than it finds by chance. On
data, activations tell how well matched units agree and how much the activations of the midpoint fade.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...averages.kinship import equal, kinship, same_values
from ...checkpoints.tensors import held
from ...errors import NetworkError, SpecError
from ...spec.library import resolve_spec
from ...spec.spec import FittedSpec, Spec
from ...types import Tensors
from .facts import BY_TENSORS, VERDICTS, Fact, judge, of_activations, of_kinship, of_weights
from .weights import EXACT, look, weigh


@dataclass(frozen=True)
class Diagnosis:
    """A verdict, one of `judging.VERDICTS`, and what follows from it, with the reason.

    `tensors` has a row a weight matrix: "cosine" as they are, "aligned_cosine" after a weight matching, and
    "norm_ratio" ‖A‖/‖B‖. `words` has a row a word: "units" and, where the network was run, what
    `signatures.signature` gives, "dead_a" and "dead_b", and "midpoint": the standard deviation of the
    midpoint's units over the mean of the endpoints', "naive" and "aligned". `unseen` says what could not be
    looked at. `exact`: a relabelling up to rounding.
    """

    verdict: str
    advice: str
    facts: tuple[Fact, ...]
    tensors: tuple[dict[str, Any], ...]
    words: tuple[dict[str, Any], ...]
    unseen: tuple[str, ...] = ()
    exact: bool = False


def doctor(
    a: Tensors,
    b: Tensors,
    spec: str | Spec | FittedSpec | None = None,
    *,
    network: nn.Module | None = None,
    data: Iterable[Any] | None = None,
    limit: int = 2_560,
    output: str | int | None = None,
    not_kept: Sequence[str] = (),
    seed: int = 0,
    device: str = "cpu",
    begin_alike: Collection[str] = (),
) -> Diagnosis:
    """Look at two models and say what merging them would need. Advice: nothing is written or merged.

    Every tensor is read once; of large ones parts tell how they compare. A quick weight matching, none of
    equal models; where `network` and `data` are given, one pass of four networks over `limit` samples. What
    the network does not show is named in `unseen`. `begin_alike` are tensors that two fresh networks have
    equal, which tell nothing. Raises SpecError, CheckpointError, DataError.
    """
    fitted = resolve_spec(spec, [a, b])
    a, b = held(a), held(b)  # read once, also where networks are run
    weights = weigh(a, b, fitted, seed=seed, begin_alike=begin_alike)
    rows: tuple[dict[str, Any], ...] | None = None
    unseen: tuple[str, ...] = ()
    if network is not None and data is not None:
        try:
            rows = look(
                a,
                b,
                weights.permutations,
                fitted,
                network,
                data,
                limit=limit,
                output=output,
                not_kept=not_kept,
                device=device,
            )
        except (NetworkError, SpecError) as error:  # what weights say is worth saying all the same
            if error.own_code:
                raise
            unseen = (f"activations: {error.message}", *error.problems)
    else:
        lacking = [what for what, it in (("the network", network), ("data", data)) if it is None]
        unseen = (f"activations: {' and '.join(lacking)} {'are' if len(lacking) > 1 else 'is'} missing",)
    verdict, why = judge(weights, rows or (), fitted)
    found = (*of_weights(weights, fitted), *(of_activations(rows, fitted) if rows else ()))
    facts = tuple(fact for fact in found if math.isfinite(fact.value))
    return Diagnosis(
        verdict,
        f"{VERDICTS[verdict]} {why}".rstrip(),
        facts,
        weights.tensors,
        rows or tuple({"word": word, "units": size} for word, size in fitted.words.items()),
        unseen,
        exact=weights.aligned_distance < EXACT,
    )


def by_tensors(a: Tensors, b: Tensors) -> Diagnosis:
    """Are they kin or strangers, where no spec tells what is a unit? `BY_TENSORS` has the verdicts.

    A copy in another order is told where every tensor holds the very same values; a nearly equal one is not.
    """
    found = kinship(a, b)
    verdict = "identical" if equal(a, b) else "relabelled" if same_values(a, b) else found.verdict
    why = found.why if verdict == found.verdict else ""
    return Diagnosis(
        verdict,
        f"{BY_TENSORS[verdict]} {why}".rstrip(),
        tuple(fact for fact in of_kinship(found, a) if math.isfinite(fact.value)),
        found.tensors,
        (),
        ("matched units: no spec is known for these tensors", "Give the network with --net file.py:factory"),
    )
