"""One batch through all models: what their units show is added up, place by place.

They run through one graph, node by node beside each other. Where units are looked at, sums over samples are
added up, and the values are let go: memory depends neither on the number of samples nor on the
network's depth, only on a batch and on (n, n) a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx

from ...datasets.batches import tensors_in
from ...errors import NetworkError
from ...graph.interpreter import Folded, given
from ...graph.program import Program, placeholders
from ...graph.tracing import needed_for
from ...runtime.threads import ALONE, Beside
from ...types import Tensors
from .places import Place
from .sites import Sites


def watch(
    sites: Sites,
    models: tuple[Tensors, ...],
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    places: Iterable[tuple[Place, Any]],
    device: str | torch.device,
    threads: Beside = ALONE,
) -> None:
    """Run all models on one batch of the shape that `sites` are for; add what the places show.

    A place comes with `Moments` of two models, or anything whose `add` takes the units of as many. Models run
    beside each other on the `threads`, and so does what is added up.
    """
    wanted: dict[fx.Node, list[tuple[Place, Any]]] = {}
    for place, moments in places:
        wanted.setdefault(place.node, []).append((place, moments))
    needed = needed_for(list(wanted))
    own = [node for node in sites.program.graph.nodes if node in needed]
    runs = [
        Folded(sites.program, _given(sites.program, model, inputs, needed, device), own, wanted)
        for model in models
    ]
    nodes: list[fx.Node] = []
    for node in own:
        nodes.append(node)
        if node in wanted:
            shown = threads.each(partial(_advanced, nodes), runs)
            held = sum(value.nbytes for value in tensors_in(shown))
            for place, moments in wanted[node]:
                threads.later(_added, place, moments, shown, held=held)
            nodes = []
    threads.settle()


def _advanced(nodes: Iterable[fx.Node], run: Folded) -> Any:
    """The value of the last of these nodes."""
    with torch.no_grad():
        return run.compute(nodes)


def _added(place: Place, moments: Any, shown: Iterable[Any]) -> None:
    moments.add(*(place.units(value) for value in shown))


def _given(
    program: Program,
    model: Tensors,
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    needed: set[fx.Node],
    device: str | torch.device,
) -> Iterator[tuple[fx.Node, Any]]:
    """The values of the graph's placeholders, tensors in the types that the network has."""
    own = {node: spec.target for node, spec in zip(placeholders(program), program.inputs, strict=True)}
    for node, value in given(program, model, inputs, needed):
        if (name := own[node]) is None:
            yield node, value
            continue
        if name not in model and name not in program.constants:
            raise NetworkError(
                f"the network needs {name}, which no checkpoint has",
                hint="Give a network whose tensors are those of the files: --net file.py:factory",
            )
        yield node, value.to(device=device, dtype=node.meta["val"].dtype)
