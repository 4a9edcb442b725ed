"""The part of a proof beyond permutations: random elements of the groups that a spec gives its words.

Rotations hold of a network in canonical form, whose norms' gains are all alike: what the spec marks `|h|` of
a word that is rotated is made so before.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import NotProven
from ..groups import find
from ..runtime.seeds import generator
from ..spec.notation import Word, leaves_of
from ..spec.spec import FittedSpec
from ..symmetry import action, permutation
from ..symmetry import elements as acts
from .distance import difference, own_sizes
from .runs import Runs
from .trials import Answers, alive, answers_to, sizes_by_rounding

ALL = ""  # the key of the difference that all words make together
ROUNDING = 10  # how much more a product with a matrix rounds than a permutation, which does not


def prove(
    runs: Runs,
    fitted: FittedSpec,
    inputs: Any,
    seed: int,
    allowed: float,
    *,
    each_word: bool = False,
) -> dict[str, float]:
    """How much outputs differ by random elements of all words, under `ALL`, and of one word at a time.

    The latter where they are asked for. Raises NotProven, with the words whose groups do not hold.
    """
    allowed *= ROUNDING
    network = runs.network

    def answered() -> Answers:
        _even(network, fitted)
        return answers_to(runs, inputs, seed)

    found = alive(runs, seed, "prove groups", answered)
    batch, before, scale = found.batch, found.outputs, own_sizes(found.outputs)
    kept = {name: tensor.clone() for name, tensor in network.state_dict().items()}

    def changed(drawn: acts.Elements) -> float:
        _act(network, fitted, drawn, kept)
        try:
            return difference(before, runs.outputs(batch), scale)
        finally:
            for name, tensor in network.state_dict().items():
                tensor.copy_(kept[name])

    everything = acts.random(fitted, generator(seed, "prove all groups"))
    sizes = {ALL: changed(everything)}
    if not sizes[ALL] <= allowed:  # it may be rounding
        scale = sizes_by_rounding(runs, batch, before)
        sizes[ALL] = changed(everything)
    if each_word or not sizes[ALL] <= allowed:
        for word, kind in sorted(fitted.groups.items()):
            drawn = acts.random(fitted, generator(seed, f"prove group {word}"), of={word: kind})
            sizes[word] = changed(drawn)
    if all(size <= allowed for size in sizes.values()):
        return sizes
    wrong = [word for word in sizes if word and not sizes[word] <= allowed]
    wrong.sort(key=sizes.__getitem__, reverse=True)
    told = [_told(word, fitted.groups[word], sizes[word]) for word in wrong]
    refused = NotProven(
        f"{fitted.spec.source} does not preserve the network's function: outputs differ by "
        f"{sizes[ALL]:.2g} relative under the groups that it gives, allowed is {allowed:.0e}",
        problems=told,
        hint="Take these words out of `groups:`, or see what holds with: rebasin spec explain --groups all",
    )
    refused.words, refused.grouped = tuple(wrong), True
    raise refused


def _told(word: str, kind: str, size: float) -> str:
    return f'"{word}" is {kind} ({find(kind).told}): a random element of it alone changes them by {size:.2g}'


def _even(network: torch.nn.Module, fitted: FittedSpec) -> None:
    """Make tensors alike along the axes that a rotated word only orders."""
    for name, tensor in network.state_dict().items():
        for dim, axis in enumerate(fitted.tensors.get(name, ())):
            if tensor.is_floating_point() and any(
                isinstance(leaf, Word) and leaf.side == "|" and fitted.group(leaf.name).matrix
                for leaf in leaves_of(axis)
            ):
                tensor.copy_(tensor.mean(dim, keepdim=True).expand_as(tensor))


def _act(
    network: torch.nn.Module, fitted: FittedSpec, drawn: acts.Elements, kept: dict[str, torch.Tensor]
) -> None:
    maps = acts.maps_of(drawn)
    ordered = permutation.permuted(kept, fitted, drawn.permutations)
    done: dict[int, torch.Tensor] = {}  # tied tensors are one
    for name, tensor in network.state_dict().items():
        axes = fitted.tensors.get(name, ())
        moved = action.act(ordered[name], axes, fitted, maps)
        tensor.copy_(moved)
        place = tensor.data_ptr() if tensor.numel() else id(tensor)
        if not torch.allclose(done.setdefault(place, moved), moved):
            raise NotProven(
                f"{fitted.spec.source} would tear tied tensors apart",
                problems=[f'{name}  is "{" ".join(map(str, axes))}"'],
                hint="They share their values, so give them the same words and sides",
            )
