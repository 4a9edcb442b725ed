"""What was found, as plain values: for reports, for `--json`, for provenance."""

from __future__ import annotations

from typing import Any

from .api import Alignment
from .spec.prove import Proof
from .spec.spec import FittedSpec


def describe_spec(fitted: FittedSpec) -> dict[str, Any]:
    return {
        "name": fitted.spec.name,
        "sha256": fitted.spec.digest,
        "words": len(fitted.words),
        "log10_symmetries": fitted.log10_symmetries(),
        "moved_share": fitted.moved_share(),
    }


def describe_match(alignment: Alignment | None, *, given: bool = False) -> dict[str, Any]:
    if alignment is None:
        return {"method": "given permutations" if given else "none"}
    result = alignment.result
    bounded = {}
    if result.upper_bound is not None and result.objective_after > 0:
        gap = max(0.0, result.upper_bound / result.objective_after - 1)
        bounded = {"upper_bound": result.upper_bound, "gap": gap}
    return bounded | {
        "method": alignment.method,
        "sweeps": result.sweeps,
        "solves": result.solves,
        "converged": result.converged,
        "objective_before": result.objective_before,
        "objective_after": result.objective_after,
        "seconds": alignment.seconds,
    }


def describe_proof(proof: Proof | None, reason: str = "") -> dict[str, Any]:
    if proof is None:
        return {"status": "unavailable", "reason": reason or "no network to prove the spec on"}
    return {
        "status": "proven",
        "largest_difference": proof.largest_difference,
        "tolerance": proof.tolerance,
        "trials": proof.trials,
    }
