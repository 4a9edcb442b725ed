"""Greedy soups on files: which models to average is measured on test samples, which none was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ... import networks
from ...averages.means import Soup, greedy
from ...averages.parts import parts_of
from ...averages.tensors import combined
from ...checkpoints.tensors import LazyTensors, replaced
from ...errors import NoSpecFits, no_number
from ...networks.evaluation import Scores
from ...repair import reset
from ...reports.accounts import describe_quantities
from ...session.models import naming, open_beside
from ...session.samples import Splits
from ...session.session import Session
from ...types import aside
from ..verbs import endpoints, provenance, repairs, search
from ..verbs.outputs import Output, write_as_planned
from ..verbs.proof import prove
from . import configs, declared
from .average import Average


def merge(session: Session, output: Output, mean: Average) -> dict[str, Any]:
    """Align the models where a method is named, average those that lower the loss, write one model.

    Raises UsageError where no network or no data is known, and for repairs that it cannot measure.
    """
    mean.check_nothing_kept(output)
    paths = session.paths
    with naming(paths):
        first, copied = session.models[0], mean.copy_from
        source = None if copied is None else open_beside(first, copied, session.asked.loading, session.say)
        parts = parts_of(session.models, ignore=mean.ignore, learnt=mean.learnt, source=source)
    if not session.asked.data.skip_checks:
        declared.check(session.models, parts.averaged, session.say)
    network = _network(session)
    resets = repairs.resets(session.asked.repair, network)
    if output.dry_run:
        return {
            "models": len(paths),
            "method": session.method,
            "soup": mean.soup,
            "repair": "reset" if resets else "none",
        }
    if not session.moved:
        endpoints.tell(session.models, session.say)
    splits = session.open_splits("test", *["reset"] * resets)
    session.look_at_inputs(splits, network)
    inputs, proof = search.inputs(session), prove(session)
    found = search.find(session, given=inputs)
    models = found.models if found else session.models
    if found:  # what was alike in all models need not be in their new order
        parts = parts_of(models, ignore=mean.ignore, learnt=mean.learnt, source=source)
    network.to(session.device)

    def made(chosen: Sequence[int]) -> LazyTensors:
        """Their mean; the best one's integers, so that it alone is that very model."""
        copied = models[chosen[0]] if source is None else source
        called = [str(paths[k]) for k in chosen]
        return combined([models[k] for k in chosen], parts, source=copied, dtype=output.dtype, called=called)

    def load(chosen: Sequence[int]) -> None:
        networks.load(network, made(chosen))
        if resets and len(chosen) > 1:
            reset(network, splits["reset"], device=session.device)

    def measure(chosen: Sequence[int]) -> Scores:
        load(chosen)
        scores = session.scores(network, splits["test"])
        session.say(f"{' + '.join(paths[k].name for k in chosen)}: loss {scores.loss:.4f}")
        return scores

    soup = greedy(len(models), measure)
    if not math.isfinite(soup.scores.loss):
        raise no_number(f"the loss{aside(soup.scores.quantities[0].name)} of every model alone")
    best, test = soup.kept[0], splits["test"]
    better = [one.option for one in session.better or () if one.model is session.models[best]]
    check = endpoints.check_of([session.models[best]], test, session.asked.data, better=better)
    check({"test": [soup.scores]})
    tensors = made(soup.kept)
    if resets and len(soup.kept) > 1:
        load(soup.kept)
        state = network.state_dict()
        tensors = replaced(tensors, {name: state[name].cpu() for name in parts.statistics})
    account = _account(paths, soup, splits)
    about = {"soup": mean.soup, "kept": [session.models[k].digest() for k in soup.kept]}
    about |= {"samples": account["samples"], "repair": "reset" if resets else "none"}
    fitted = session.fitted if session.moved else None
    meta = provenance.describe(
        "merge",
        session.models,
        fitted,
        method=session.method,
        seed=session.seed,
        options=about,
        like=session.models,
        proof=proof.account if session.moved else None,
    )
    looked = tensors.keys() - {*parts.statistics}
    around = session.models[0]
    output = configs.fitted(
        output, [session.models[k] for k in soup.kept], tensors.shapes, session.say, source=source
    )
    written = write_as_planned(output, tensors, meta, around=around, looked=looked, say=session.say)
    return {"written": written} | account


def _network(session: Session) -> nn.Module:
    """The network of `--net` without asking for a spec, else that of the spec."""
    if session.asked.network.net is not None and not session.moved:
        return networks.from_reference(session.asked.network.net, session.models[0].shapes).float()
    try:
        return session.need_network()
    except NoSpecFits as error:
        if session.moved:
            raise
        hint = "Every mean is measured: give the network and data, --net file.py:factory --data NAME"
        raise NoSpecFits(f"--soup greedy: {error.message}", hint=hint) from None


def _account(paths: Sequence[Path], soup: Soup[Scores], splits: Splits) -> dict[str, Any]:
    return {
        "models": len(paths),
        "soup": [str(paths[k]) for k in soup.kept],
        "loss": soup.scores.loss,
        "best_single": str(paths[soup.kept[0]]),
        "best_single_loss": soup.singles[soup.kept[0]].loss,
        "samples": splits["test"].samples,
        "tries": [
            {
                "model": str(paths[tried.model]),
                "alone": soup.singles[tried.model].loss,
                "loss": tried.scores.loss,
                **tried.scores.metrics,
                "kept": tried.kept,
            }
            for tried in soup.tries
        ],
        "measured": describe_quantities(soup.scores.quantities),
    }
