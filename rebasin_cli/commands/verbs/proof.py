"""The proof of a spec on the network of a command, as results and provenance record it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...matchers.portfolio.align import prove_spec
from ...reports import accounts
from ...session.network import origin, proof_inputs
from ...session.session import Session


@dataclass(frozen=True)
class Proof:
    """The `account` of a proof, as results and provenance record it, and the seconds of one that holds."""

    account: Mapping[str, Any]
    times: Mapping[str, float] = field(default_factory=dict)


def prove(session: Session) -> Proof:
    """Prove the spec of a session's models; of several ranks, the first one does.

    Raises NotProven, and NetworkError where the network fails.
    """
    began = time.perf_counter()
    _ = session.fitted, session.named  # which all look for together
    account = session.ranks.first(_account, session)
    proven = account["status"] == "proven"
    return Proof(account, {"proof": time.perf_counter() - began} if proven else {})


def _account(session: Session) -> dict[str, Any]:
    if not session.asked.search.prove:
        return {"status": "skipped", "reason": "--no-prove"}
    if not session.moved:
        return {"status": "skipped", "reason": "nothing was permuted"}
    made = session.fitted.spec.proof
    if made and session.asked.network.net is None and not session.asked.search.real:
        return dict(made)
    if (network := session.network) is None:
        return accounts.describe_proof(None, unproven=session.fitted.spec.unproven)
    inputs = proof_inputs(network, session.asked.network, session.asked.data, session.splits)
    proof = prove_spec(network, session.fitted, inputs=inputs, seed=session.seed, **session.outputs)
    account = accounts.describe_proof(
        proof, "the network does not say its input: give --input SHAPE or --data"
    )
    whose = origin(network, session.fitted, session.named, session.asked.network)
    return account if proof is None else account | whose
