"""What groups add to a straight-through search: where models start, what turns them, the best elements.

The loss at a mixture has a gradient with respect to rotations, invertible maps and scales, so these are
learned by it as they are (`learned`); orders and signs follow their dummies as ever. It is enough to
turn one side: all of a group acts on both models alike without a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ...runtime import optimizers
from ...symmetry import elements as acts
from ...symmetry.elements import Elements
from ...types import Permutations
from .. import Problem, State
from .learned import Learned
from .mixture import Flat
from .projection import Projection
from .settings import RATES, Training
from .start import matched

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what Adam keeps
TURNING = 10.0  # the rate of numbers, in rates of weights


class Turning:
    """The elements of all models but the reference, in canonical form.

    `rows` are the models' own numbers, `followers` what their orders and signs follow.
    """

    def __init__(
        self,
        problem: Problem,
        options: Training,
        flat: Flat,
        rows: Sequence[torch.Tensor],
        followers: Sequence[Projection],
    ):
        self.followers = followers
        self.problem, self.options, self.flat, self.rows = problem, options, flat, rows
        self.fitted = problem.fitted
        self.begun: list[Elements] = []
        self.learned: list[Learned] = []
        self.optimizer: torch.optim.Optimizer | None = None  # none where nothing is learned
        self.best: tuple[Elements, ...] = ()

    @property
    def rate(self) -> float:
        given = self.options.learning_rate if self.options.optimizer == "adam" else None
        return TURNING * (given or RATES["adam"])

    def start(self, init: str | None, data: Iterable[Any]) -> str:
        """Let every model stand where a match puts it; the name of that."""
        init, found = matched(self.problem, init, data)
        self.stand([part.elements[0] for part in found])
        return init

    def stand(self, elements: Sequence[Elements]) -> None:
        """Let every model stand as its element makes it; learning begins there."""
        self.begun = [*elements]
        for row, model, element in zip(self.rows, self.problem.models[1:], elements, strict=True):
            row.copy_(self.flat.row(acts.acted(model, self.fitted, element)))
            base = {n: t.clone() for n, t in self._views(row).items()}
            self.learned.append(Learned(base, self.fitted))
        numbers = [each for learned in self.learned for each in learned.numbers.values()]
        self.optimizer = optimizers.make(torch.optim.Adam, numbers, lr=self.rate) if numbers else None

    def _views(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every parameter once, by its first name."""
        views = self.flat.views(row)
        return {name: views[name] for name in self.flat.shapes}

    def step(self, gradient: torch.Tensor, share: torch.Tensor, left: float) -> None:
        """Move the numbers by the gradient at the mixture, and let the models stand so.

        `left` is the part of the search that is to come: the rate falls with it.
        """
        if self.optimizer is None:
            return
        views = self._views(gradient)
        self.optimizer.zero_grad()
        for learned, weight, follower in zip(self.learned, share[1:], self.followers, strict=True):
            scaled = {name: views[name] * weight.item() for name in learned.touched}
            learned.pull(scaled, follower.element)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * left
        self.optimizer.step()
        self.write()

    def write(self) -> None:
        for learned, row, follower in zip(self.learned, self.rows, self.followers, strict=True):
            learned.write(self._views(row), follower.element)

    def take(self) -> tuple[Permutations, ...]:
        """How the models stand is the best that was found; its orders."""
        parts = zip(self.begun, self.learned, self.followers, strict=True)
        self.best = tuple(
            acts.compose(begun, learned.element(follower.element), self.fitted)
            for begun, learned, follower in parts
        )
        return tuple(element.permutations for element in self.best)

    # ---------------------------------------------------------------------------------------- what is kept

    def kept(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        parts = zip(self.begun, self.best, self.learned, self.followers, strict=True)
        for k, (begun, best, learned, follower) in enumerate(parts):
            tensors |= {f"begun.{k}.{name}": tensor for name, tensor in acts.tensors_of(begun).items()}
            tensors |= {f"best map.{k}.{word}": map_ for word, map_ in best.maps.items()}
            tensors |= {f"signs.{k}.{word}": signs for word, signs in follower.signs.items()}
            for word, numbers in learned.numbers.items():
                tensors[f"numbers.{k}.{word}"] = numbers.detach()
                moments = {} if self.optimizer is None else self.optimizer.state.get(numbers, {})
                for name, value in moments.items():
                    tensors[f"moment {name}.{k}.{word}"] = value
        return tensors

    def resume(self, start: State) -> None:
        """Stand as a search began, with its numbers. Raises KeyError for what it lacks."""
        kept, every = start.tensors, range(len(self.problem.models) - 1)
        begun = [acts.of_tensors(start.named(f"begun.{k}.")) for k in every]
        for k, element in enumerate(begun):
            if lacking := self.fitted.words.keys() - element.permutations.keys():
                raise KeyError(f"begun.{k}.{min(lacking)}")
        self.stand(begun)
        best = enumerate(start.permutations)
        self.best = tuple(Elements(dict(perms), start.named(f"best map.{k}.")) for k, perms in best)
        for k, learned in enumerate(self.learned):
            for word, numbers in learned.numbers.items():
                with torch.no_grad():
                    numbers.copy_(kept[f"numbers.{k}.{word}"])
                names = {name: f"moment {name}.{k}.{word}" for name in MOMENTS}
                if self.optimizer is not None and kept.keys() >= {*names.values()}:
                    self.optimizer.state[numbers] = {n: kept[name].clone() for n, name in names.items()}

    def resume_signs(self, start: State) -> None:
        """Stand as the search stood, whose orders are there already."""
        for k, follower in enumerate(self.followers):
            follower.place_signs({word: start.tensors[f"signs.{k}.{word}"] for word in follower.signs})
        self.write()
