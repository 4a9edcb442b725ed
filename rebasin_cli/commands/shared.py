"""What commands on files share: to whom they tell it, how they keep a search, what they write down of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.tensors import replaced
from ..repair import baking
from ..repair.producers import Site
from ..reports import _accounts as accounts
from ..runtime.ranks import ALONE, Ranks
from ..spec.spec import FittedSpec
from . import provenance, resume, running, searching
from .outputs import Output
from .settings import Settings


@dataclass(frozen=True)
class Listener:
    """Where a command tells what it does: sentences, and steps done of a total (None: unknown)."""

    say: Callable[[str], None] = lambda text: None
    step: Callable[[str, int, int | None, str], None] = lambda task, done, total, detail: None


def find_and_prove(
    fitted: FittedSpec, models: Sequence[Checkpoint], settings: Settings, listener: Listener
) -> dict[str, Any]:
    """The account of the proof. The network is gone afterwards: the search needs its memory."""
    network = running.find_network(fitted, settings, listener.say) if settings.prove else None
    return searching.prove(network, fitted, models, settings)


def keep_search(
    command: str,
    models: Sequence[Checkpoint],
    fitted: FittedSpec,
    output: Output,
    settings: Settings,
    listener: Listener,
    ranks: Ranks = ALONE,
) -> AbstractContextManager[resume.Kept]:
    """The state of this very search is kept beside the output when it is interrupted."""
    identity = ranks.first(
        provenance.describe,
        command,
        models,
        fitted,
        method=settings.method,
        seed=settings.seed,
        options=searching.identity(settings),
    )
    return resume.keeping(
        output.path,
        identity,
        fitted.words,
        within=fitted.within,
        resume=output.resume,
        say=listener.say,
        ranks=ranks,
        every=settings.checkpoint_every,
        log=settings.log,
        force=output.force,
    )


def bake(
    network: nn.Module | None,
    tensors: Mapping[str, Tensor],
    layer: Site | None,
    held: Any,
    settings: Settings,
    listener: Listener,
    *,
    device: str,
) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
    """The tensors with a temperature in the `layer` of the logits, and its account; as they are without one.

    `held` are the samples that it is fitted on. Raises as `baking.bake` does.
    """
    if layer is None:
        return tensors, {}
    done = baking.bake(network, tensors, layer, held, output=settings.output, device=device)
    listener.say(f"temperature: {done.in_words()}")
    return replaced(tensors, done.tensors), {"temperature": done.account()}


def describe(
    command: str, models: Sequence[Checkpoint], fitted: FittedSpec, settings: Settings, **kwargs: Any
) -> dict[str, str]:
    """Provenance of an output."""
    options = {"max_sweeps": settings.max_sweeps, "effort": settings.effort, **searching.told(settings)}
    options |= kwargs.pop("options", {})
    method = kwargs.pop("method", settings.method)
    return provenance.describe(
        command, models, fitted, method=method, seed=settings.seed, options=options, **kwargs
    )


def summary(
    fitted: FittedSpec, match: dict[str, Any], proof: dict[str, Any], *, written: Sequence[str]
) -> dict[str, Any]:
    """What a command did, as values for --json and for a person."""
    return {"written": list(written), "spec": accounts.describe_spec(fitted), "match": match, "proof": proof}
