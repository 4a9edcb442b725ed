"""Tensors of a list (experts): seen as one for those who search, permuted one by one for those who write.

`FittedSpec.stacks` says which tensors are one; `FittedSpec.stacked` speaks of them so.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..checkpoints.tensors import LazyTensors, held, plan_of, room_of, rows, source_of
from ..errors import CheckpointError, SpecError
from ..spec.notation import Axis, Word, rewrite
from ..spec.spec import Block, FittedSpec
from ..types import Tensors


def without_lists(fitted: FittedSpec, what: str) -> None:
    """Raise SpecError where a spec has lists, which what runs the network's graph cannot follow."""
    if fitted.stacks:
        raise SpecError(
            f"{what} cannot follow lists of tensors, and {fitted.spec.source} has some",
            problems=[f'{name}  in the order of "{its.word}"' for name, its in fitted.stacks.items()],
            hint="Match by weights alone: --method wm",
        )


def check_lists(dtypes: Mapping[str, torch.dtype], fitted: FittedSpec) -> None:
    """Raise CheckpointError where the tensors of a list have several dtypes."""
    problems = []
    for name, its in fitted.stacks.items():
        found: dict[torch.dtype, str] = {}
        for member in its.members:
            if member in dtypes:  # one rank of several has some of them
                found.setdefault(dtypes[member], member)
        if len(found) > 1:
            problems += [f"{member}  is {str(d).removeprefix('torch.')}" for d, member in found.items()]
            problems.append(f'  these should be equal: "{name}" lets them change places')
    if problems:
        raise CheckpointError(
            "tensors of a list have several dtypes",
            problems=problems,
            hint="Save them all in one dtype, or leave this list out of the spec",
        )


def stacked(tensors: Tensors, fitted: FittedSpec) -> Tensors:
    """A model as `fitted.stacked` speaks of it: each list one tensor, made when it is asked for.

    Raises CheckpointError for lists of several dtypes.
    """
    if not fitted.stacks:
        return tensors
    plan = plan_of(tensors)
    check_lists({name: dtype for name, (dtype, _) in plan.items()}, fitted)
    shapes = {name: shape for name, shape in fitted.stacked.shapes.items() if name not in fitted.stacks}
    shapes |= {name: fitted.stacked.shapes[name] for name in fitted.stacks}
    dtypes = {name: plan[name][0] for name in shapes if name in plan}
    dtypes |= {name: plan[its.members[0]][0] for name, its in fitted.stacks.items()}

    def part(name: str, start: int, stop: int) -> torch.Tensor:
        if name not in fitted.stacks:
            return rows(tensors, name, start, stop)
        return torch.stack([tensors[member] for member in fitted.stacks[name].members[start:stop]])

    def get(name: str) -> torch.Tensor:
        return part(name, 0, len(fitted.stacks[name].members)) if name in fitted.stacks else tensors[name]

    return LazyTensors(shapes, dtypes, get, part)


def held_stacked(tensors: Tensors, fitted: FittedSpec) -> Tensors:
    """`stacked` for those who ask again and again: each tensor is read, and each list stacked, once.

    Of what `tensors` itself would keep, nothing is kept twice.
    """
    if type(tensors) is dict:
        return dict(stacked(tensors, fitted))
    return held(stacked(source_of(tensors), fitted), computed=True, room=room_of(tensors))


def listed(
    name: str, fitted: FittedSpec, permutations: Mapping[str, torch.Tensor]
) -> tuple[str, tuple[Axis, ...], Mapping[str, torch.Tensor], Mapping[str, Block]]:
    """Which tensor comes to lie at `name`, and what permutes it: axes, permutations, what words lie within.

    In a list, words within its order have at each place an order of their own, and lie within nothing more.
    """
    axes, within = fitted.tensors.get(name, ()), fitted.within
    if name not in fitted.places:
        return name, axes, permutations, within
    stack, k = fitted.places[name]
    its = fitted.stacks[stack]
    own = {word: block for word, block in within.items() if block.word == its.word}
    here = {word: permutations[word].view(b.count, b.size)[k] % b.size for word, b in own.items()}

    def leaf(axis: Axis) -> Axis:
        return Word(axis.name, side=axis.side) if isinstance(axis, Word) and axis.name in own else axis

    axes = tuple(rewrite(axis, leaf) for axis in axes)
    rest = {word: block for word, block in within.items() if word not in own}
    return its.members[int(permutations[its.word][k])], axes, {**permutations, **here}, rest
