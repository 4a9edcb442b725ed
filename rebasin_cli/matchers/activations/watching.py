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
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ...datasets.batches import tensors_in
from ...errors import NetworkError
from ...graph.program import Program
from ...graph.tracing import needed_for
from ...runtime.threads import ALONE, Beside
from ...types import Tensors
from .running import Run
from .showing import Place
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
    graph, needed = sites.program.graph, needed_for(list(wanted))
    own = [node for node in graph.nodes if node in needed]
    runs = [Run(sites.program.graph_module, own, wanted) for _ in models]
    for run, model in zip(runs, models, strict=True):
        run.env |= dict(_given(sites.program, model, inputs, needed, device))
    nodes: list[fx.Node] = []
    for node in own:
        nodes.append(node)
        if node in wanted:
            shown = threads.each(partial(_advanced, nodes, needed), runs)
            held = sum(value.nbytes for value in tensors_in(shown))
            for place, moments in wanted[node]:
                threads.later(_added, place, moments, shown, held=held)
            nodes = []
    threads.settle()


def _advanced(nodes: Iterable[fx.Node], needed: set[fx.Node], run: Run) -> Any:
    """The value of the last of these nodes; others are let go when nobody needs them any more."""
    with torch.no_grad():
        for node in nodes:
            if node.op != "placeholder":
                run.env[node] = run.run_node(node)
            value = run.env[node]
            for gone in run.user_to_last_uses.get(node, ()):
                run.env.pop(gone, None)
            if not node.users.keys() & needed:
                run.env.pop(node, None)
    return value


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
    leaves = iter(pytree.tree_leaves(inputs))
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(nodes, program.inputs, strict=True):
        if spec.kind == InputKind.USER_INPUT:
            yield node, next(leaves)
        elif node in needed:
            name = spec.target or ""
            tensor = model[name] if name in model else program.constants.get(name)
            if tensor is None:
                raise NetworkError(f"the network needs {spec.target}, which no checkpoint has")
            yield node, tensor.to(device=device, dtype=node.meta["val"].dtype)
