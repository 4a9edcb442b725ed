"""Networks of stacks, permuted: each to another one, all to the first, or all together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...matchers import MatchResult, Problem, registry, wm
from ...spec import library
from ...spec.fits import fit
from ...spec.parser import parse
from ...spec.spec import FittedSpec
from ...symmetry.permutation import permuted
from ...types import Permutations
from .samples import Samples
from .stacks import Stack, heights, path, stacked, tensors

Match = Callable[[Problem], MatchResult]

CONVOLUTIONAL = """
schema: 1
tensors:
  layers.{i}.weight: "c{i} c{i-1|.} ..."
  layers.{i}.bias: "c{i}"
  head.weight: ". (c{last} _)"
  head.bias: "."
"""


def by(method: str, passes: int = 1) -> Match:
    """A method by its name; those that train (ste, ste-mm) take so many passes over the data.

    Those for many models that compare weights kick nothing, as in the papers: of 32 models of width
    64 they take seconds, kicks of them had not ended after minutes.
    """
    module = registry.get(method)
    if method in ("merge-many", "universe"):
        return functools.partial(module.match, options=module.Options(effort="fast"))
    if not method.startswith("ste"):
        match: Match = module.match
        return match
    return functools.partial(module.match, options=module.Options(epochs=passes))


def fitted(stack: Stack) -> FittedSpec:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors(stack, 0).items()}
    convolutional = stack[0][0].dim() > 3
    spec = parse(CONVOLUTIONAL, name="convolutional") if convolutional else library.load("mlp")
    return fit(spec, shapes)


def aligned(ones: Stack, others: Stack, *, seed: int = 0) -> Stack:
    """Every network of `others`, permuted to that of `ones` with its number by weight matching."""
    return moved(others, permutations(ones, others, seed=seed))


def permutations(ones: Stack, others: Stack, *, seed: int = 0) -> list[Permutations]:
    """Those of `aligned`, one set a pair."""
    spec, found = fitted(ones), []
    for number in range(len(ones[0][0])):
        pair = tensors(ones, number), tensors(others, number)
        found.append(wm.match(Problem(spec, pair, seed=seed)).permutations[0])
    return found


def moved(others: Stack, found: Sequence[Permutations]) -> Stack:
    """Every network with its units in the order of its set, which may be that of other weights."""
    spec, models = fitted(others), range(len(others[0][0]))
    return stacked(
        [dict(permuted(tensors(others, k), spec, perms)) for k, perms in zip(models, found, strict=True)]
    )


def barriers(ones: Stack, others: Stack, splits: Iterable[Samples], points: int, *, seed: int = 0) -> Tensor:
    """The naive barrier, that after `aligned` and the ends' mean loss, of every pair for each split.

    Nats, float64 (pairs, 3·splits); barriers are over the mean of the ends, at `points` of the path.
    """
    moved, found = aligned(ones, others, seed=seed), []
    for split in splits:
        for b in (others, moved):
            losses = path(ones, b, *split, points).loss
            found.append(heights(losses)[0])
        found.append((losses[:, 0] + losses[:, -1]) / 2)
    return torch.stack(found, 1)


def to_first(stack: Stack, match: Match = wm.match, *, seed: int = 0, **evidence: Any) -> Stack:
    """All networks, each permuted to the first by itself; `evidence` is the network and data of a method."""
    spec, first = fitted(stack), tensors(stack, 0)
    found = [first]
    for number in range(1, len(stack[0][0])):
        pair = first, tensors(stack, number)
        found.append(_moved(spec, pair, match(Problem(spec, pair, seed=seed, **evidence)))[1])
    return stacked(found)


def together(stack: Stack, match: Match, *, seed: int = 0, **evidence: Any) -> Stack:
    """All networks, permuted at once by a method for many models."""
    spec = fitted(stack)
    models = tuple(tensors(stack, number) for number in range(len(stack[0][0])))
    return stacked(_moved(spec, models, match(Problem(spec, models, seed=seed, **evidence))))


def _moved(spec: FittedSpec, models: tuple[Any, ...], found: MatchResult) -> list[Any]:
    """The first model, and the others with their units in the order that was found."""
    others = zip(models[1:], found.permutations, strict=True)
    return [models[0], *(dict(permuted(model, spec, perm)) for model, perm in others)]
