"""What of a network's tensors can be folded away without a change of its function, read off its graph.

A norm's gain and bias go into the linear layers that read it; a key's bias does nothing to a softmax; a
value's bias goes through the output matrix; what writes to a stream that only LayerNorms read may lose its
mean. Where one of these does not hold, `left` says why. What the steps do to numbers is `canonical`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from ...graph.nodes import name_of
from ...graph.program import Program
from ...graph.tracing import line_of
from ...symmetry.folds import Folds, Norm, Part, Reader, ValueBias
from ..axes.axes import Expr, Var, variables
from .largest import Classes, Leaf, segment
from .sides import ONES, Linear, Relation

READ = "it is read by more than linear layers"
STREAM = "its output is itself the stream"
OUTPUT = "its output is the network's"
TIED = "{} shares its memory, or is used twice"
NO_BIAS = "{} has no bias that could take it up"
NOT_PLAIN = "a linear layer reads it whose weight is computed"
MEAN_READ = "more than LayerNorms read the stream"
CONVOLVED = "{} is a convolution, whose padding no bias reaches"
SHAPE = "its units are grouped differently where they are read"


def folds_of(classes: Classes, module: nn.Module, program: Program) -> Folds:
    return _Reading(classes, module, program).read()


class _Reading:
    def __init__(self, classes: Classes, module: nn.Module, program: Program):
        self.classes, self.walk = classes, classes.walk
        state = module.state_dict(keep_vars=True)
        places = Counter(tensor.untyped_storage().data_ptr() for tensor in state.values() if tensor.numel())
        self.shared = {
            n for n, t in state.items() if t.numel() and places[t.untyped_storage().data_ptr()] > 1
        }
        users = {node.name: len(node.users) for node in program.graph.nodes}
        self.uses = Counter({target: users.get(name, 0) for name, target in self.walk.named.items()})
        self.shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        self.biases = {layer.bias for layer in self.walk.layers if layer.bias}

    def read(self) -> Folds:
        norms: list[Norm] = []
        left: dict[str, str] = {}
        for relation, why, readers in self._norms():
            if why:
                for name in relation.parameters:
                    left.setdefault(name, f"{why} ({line_of(relation.node) or relation.node.name})")
            elif relation.parameters:
                free = any(self._unfit(layer, True) for layer in readers)
                norms.append(Norm(relation.weight, relation.bias, readers, free and bool(relation.bias)))
        values: list[ValueBias] = []
        keys: list[Part] = []
        for call in self.walk.attentions:
            for var, leaf in self._biases(call.value):
                value = self._value(var, leaf)
                if isinstance(value, str):
                    left[leaf.tensor] = value
                else:
                    values.append(value)
            for var, leaf in self._biases(call.key):
                key = self._key(var, leaf)
                if isinstance(key, str):
                    left[leaf.tensor] = key
                else:
                    keys.append(key)
        means, others = self._means()
        left |= others
        return Folds(tuple(norms), tuple(values), tuple(keys), tuple(means), tuple(left.items()))

    def _biases(self, axis: Expr) -> Iterator[tuple[Var, Leaf]]:
        """Where the units of attention's own within this axis have a bias."""
        for var in self.classes.of(axis)[-1:]:
            yield from ((var, leaf) for leaf in self.classes.at.get(var, ()) if leaf.tensor in self.biases)

    # ------------------------------------------------------------------------------------------------- norms

    def _norms(self) -> Iterator[tuple[Relation, str, tuple[Reader, ...]]]:
        for relation in self.walk.relations:
            if relation.kind in ("norm", "gain") and (relation.weight or relation.bias):
                after = self.walk.units.resolve(relation.parts[1])
                if not isinstance(after, Var):
                    if list(variables(after)) or relation.kind == "norm":
                        yield relation, SHAPE if list(variables(after)) else OUTPUT, ()
                    continue
                why, readers = self._readers(relation, after)
                yield relation, why, readers

    def _readers(self, norm: Relation, after: Var) -> tuple[str, tuple[Reader, ...]]:
        """Why what comes out of a norm cannot be folded, or else who reads it."""
        if any(leaf.tensor != norm.bias for leaf in self.classes.at.get(after, ())):
            return STREAM, ()
        if self.classes.flags.get(after):
            return READ, ()
        others = [relation for relation, _ in self.classes.touching(after) if relation is not norm]
        layers = self._layers(after)
        if any(relation.kind != "contract" for relation in others) or len(others) != len(layers):
            return (STREAM if any(r.kind == "norm" for r in others) else READ), ()
        for name in (norm.weight, norm.bias):
            if name and (why := self._twice(name)):
                return why, ()
            if name and self.shapes.get(name) != (after.size,):
                return SHAPE, ()
        readers = []
        for layer in layers:
            if layer.weight is None:
                return NOT_PLAIN, ()
            if why := self._unfit(layer, False):
                return why, ()
            readers.append(Reader(layer.weight, layer.bias, layer.axis))
        return ("", tuple(readers)) if readers else (READ, ())

    def _layers(self, var: Var) -> list[Linear]:
        return [layer for layer in self.walk.layers if self.walk.units.resolve(layer.reads) == var]

    def _unfit(self, layer: Linear | Reader, needs_bias: bool) -> str:
        if layer.weight is None:
            return NOT_PLAIN
        if why := self._twice(layer.weight):
            return why
        if needs_bias and len(self.shapes[layer.weight]) > 2:
            return CONVOLVED.format(layer.weight)
        if needs_bias:
            return NO_BIAS.format(layer.weight) if layer.bias is None else self._twice(layer.bias)
        return ""

    def _twice(self, name: str) -> str:
        return TIED.format(name) if name in self.shared or self.uses[name] > 1 else ""

    # --------------------------------------------------------------------------------------------- attention

    def _part(self, leaf: Leaf) -> Part | None:
        place = segment(self.classes, leaf)
        return None if place is None else Part(leaf.tensor, *place)

    def _key(self, var: Var, leaf: Leaf) -> Part | str:
        """Nothing but one product with queries may read keys."""
        if self.classes.flags.get(var) or len(self.classes.touching(var)) != 1:
            return "keys are changed before they meet the queries"
        return self._twice(leaf.tensor) or self._part(leaf) or SHAPE

    def _value(self, var: Var, leaf: Leaf) -> ValueBias | str:
        touching = self.classes.touching(var)
        if self.classes.flags.get(var) or [r.kind for r, _ in touching] != ["contract"]:
            return READ
        node = touching[0][0].node
        layer = next((layer for layer in self.walk.layers if layer.node is node), None)
        if layer is None:
            return READ
        if layer.weight is None:
            return NOT_PLAIN
        if why := self._unfit(layer, True) or self._twice(leaf.tensor):
            return why
        if (part := self._part(leaf)) is None:
            return SHAPE
        size, length = var.size, self.shapes[layer.weight][layer.axis]
        times, rest = divmod(length, part.length)
        read = [v.size for v in self.classes.of(layer.reads)]
        grouped = [n for n in (part.length // size, times, size) if n > 1]
        if rest or length != layer.reads.size or [n for n in read if n > 1] != grouped:
            return SHAPE
        return ValueBias(part, Reader(layer.weight, layer.bias, layer.axis), size, times)

    # ------------------------------------------------------------------------------------------------- means

    def _means(self) -> tuple[list[tuple[str, int]], dict[str, str]]:
        """Writers of streams that only LayerNorms read."""
        found: list[tuple[str, int]] = []
        why: dict[str, str] = {}
        streams = {
            parts[0]
            for relation, parts in self.classes.relations
            if name_of(relation.node) == "layer_norm" and ONES in self.classes.flags.get(parts[0], {})
        }
        for stream in streams:
            touching = self.classes.touching(stream)
            ok = all(relation.kind == "norm" and parts[1] != stream for relation, parts in touching)
            ok = ok and self.classes.flags[stream].keys() == {ONES}
            leaves = self.classes.at.get(stream, [])
            for leaf in leaves:
                whole = self.walk.units.resolve(self.walk.tensors[leaf.tensor][leaf.axis]) == stream
                if ok and whole and leaf.tensor not in self.shared:
                    found.append((leaf.tensor, leaf.axis))
                else:
                    why[leaf.tensor] = MEAN_READ if whole else SHAPE
        return found, why
