"""Where a permutation's activations are: the values of the executed graph that show a word's units.

From everything that reads a word (the operation that sums over its units), the graph, whose values show
words as `places` says, is followed back to where the units were last worked on:

    an activation    after it (post), and what it reads (pre): past a norm; a gate a·σ(b) reads a and b
    a sum            x + f(x), both sides the word's units: itself, and every sum before it
    neither          the value as it is read, before moving about and pooling: heads, linear maps

Norms, pools, depthwise convolutions, reshapes and concatenations are passed through; an activation before
a depthwise convolution that is followed by another is not the last one, and no site.

Tatro et al. 2020, section 2.2 and appendix D, arXiv:2009.02439.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from ...errors import NetworkError, SpecError
from ...graph.nodes import name_of, operand, operation
from ...graph.program import Program
from ...graph.tracing import export
from ...inference.rules.flow import follow
from ...networks.forward import check_runs, inputs_of
from ...networks.returned import Kept
from ...spec.spec import FittedSpec
from ...symmetry.lists import without_lists
from .places import Graph, Place

# Entry by entry, and yet no activation: they let a unit through as it is, or scaled, or hidden at some places
PLAIN = ("plain", "adding", "scaling", "same", "cast", "dropout")


@dataclass(frozen=True)
class Site:
    """Where a word's units are once: after the activation and before; the same places where there is none."""

    post: tuple[Place, ...]
    pre: tuple[Place, ...]


@dataclass(frozen=True)
class Sites:
    """The graph for inputs of one shape, and every word's sites in the order of the graph.

    A word that starred words lie within may have none: its units are seen as theirs.
    """

    program: Program
    of: dict[str, tuple[Site, ...]]


def find(
    network: nn.Module,
    fitted: FittedSpec,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    kept: Kept = Kept(),  # noqa: B008 (frozen)
) -> Sites:
    """The sites of all words of a spec on a network, for inputs of this shape.

    Raises NetworkError where the network cannot be traced, SpecError that names every word without a
    site, and for lists.
    """
    without_lists(fitted, "what looks at activations")
    try:
        program = export(network, args, kwargs)
    except NetworkError as error:
        check_runs(network, inputs_of(args, kwargs))
        raise NetworkError(
            "the network cannot be traced, so nobody knows where its units' activations are",
            problems=error.problems,
            hint="Match by weights alone: --method wm",
        ) from error
    fitted = fitted.ordered
    graph = _Graph(fitted, program, follow(network, program, kept))
    found = {word: tuple(graph.sites(word)) for word, size in fitted.words.items() if size > 1}
    seen = {fitted.within[word].word for word in found if word in fitted.within and found[word]}
    lost = [word for word, its in found.items() if not its and word not in seen]
    if lost:
        raise SpecError(
            f"{fitted.spec.source} has words whose activations are nowhere in the network's graph",
            problems=[f'"{word}"  {graph.lost(word)}' for word in lost],
            hint="Compare it with what the graph allows: rebasin spec explain --net REF --spec FILE; "
            "or match by weights alone: --method wm",
        )
    return Sites(program, found)


@dataclass(frozen=True)
class _Graph(Graph):
    """Followed back from what reads a word."""

    def sites(self, word: str) -> Iterator[Site]:
        """The sites of one word, in the order of the graph."""
        order = {node: k for k, node in enumerate(self.program.graph.nodes)}
        reads = [x for node in order if self._reads(node, word) for x in self.sources(node, word)]
        if not reads:  # nothing sums over products with its units: then whatever loses them
            reads = [
                x
                for node in order
                if node in self.walk.values and word not in self.shown[node]
                for x in self.sources(node, word)
            ]
        found: dict[fx.Node, Site] = {}
        for post, pre in self._ends(reads, word):
            if post in found:
                continue
            after = tuple(self.places(post, word))
            before = tuple(place for node in pre for place in self.places(node, word))
            if after:
                found[post] = Site(after, before or after)
        for node in sorted(found, key=order.__getitem__):
            yield found[node]

    def _reads(self, node: fx.Node, word: str) -> bool:
        """Whether an operation multiplies with the units: its weights, or other data, have them too."""
        if not operation(node).reads_units or _depthwise(node) or not self.sources(node, word):
            return False
        return sum(word in self.shown.get(n, ()) for n in node.all_input_nodes) > 1

    def _ends(self, reads: list[fx.Node], word: str) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
        """Nodes after the last work on the units, each with those before it, back from what is read."""
        left: list[tuple[fx.Node, tuple[fx.Node, ...], bool]]
        left = [(node, (), False) for node in reversed(reads)]
        seen: set[tuple[fx.Node, bool]] = set()
        while left:
            node, path, quiet = left.pop()  # quiet: beyond a sum, where only sums count
            if (node, quiet) in seen:
                continue
            seen.add((node, quiet))
            path, sources = (*path, node), self.sources(node, word)
            if self._adds(node, word):
                yield self._near(path, word), [node]
                left += [(source, (), True) for source in sources]
            elif self._bends(node, word):
                if not quiet:
                    yield self._near(path, word), self._before(node, word)
            elif sources and not self._reads(node, word):
                left += [(source, path, quiet) for source in sources]
            elif not quiet:
                moved = next((k for k, past in enumerate(path) if not _moves(past)), len(path) - 1)
                near = self._near(path[: moved + 1], word)
                yield near, [near]

    def _near(self, path: tuple[fx.Node, ...], word: str) -> fx.Node:
        """The last node of a path, or the nearest to it that shows all units of the word on one axis."""
        return next((node for node in reversed(path) if self.place(node, word) is not None), path[-1])

    def _before(self, node: fx.Node, word: str) -> list[fx.Node]:
        """What an activation reads: of a gate, what its sides were made from, point by point."""
        gate, found, left = operation(node).kind in PLAIN, [], list(reversed(self.sources(node, word)))
        while left:
            source = left.pop()
            inner = self.sources(source, word)
            plain = operation(source).kind in PLAIN and name_of(source) != "clone"
            onwards = self._bends(source, word) or (gate and plain)
            if onwards and inner and not self._adds(source, word):
                left += reversed(inner)
            elif source not in found:
                found.append(source)
        return found

    def _adds(self, node: fx.Node, word: str) -> bool:
        return operation(node).kind == "adding" and len(self.sources(node, word)) > 1

    def _bends(self, node: fx.Node, word: str) -> bool:
        """Whether it is an activation: a curve, point by point, or a product of two values of one unit."""
        kind, sources = operation(node).kind, self.sources(node, word)
        if kind == "scaling":
            return len(sources) > 1 or (bool(sources) and list(node.args[:2]) == sources * 2)
        return kind == "activation" and bool(sources)


def _depthwise(node: fx.Node) -> bool:
    """Whether every channel is convolved by itself."""
    if operation(node).kind != "convolution":
        return False
    values, weight = (operand(node, k).meta["val"].shape for k in (0, 1))
    return bool(weight[1] == 1 and weight[0] == values[-len(weight) + 1] > 1)


def _moves(node: fx.Node) -> bool:
    return operation(node).moves or node.target is operator.getitem
