"""Straight-through estimation: permutations of n models that make the loss at their mean small.

Every model but the reference has a dummy: weights that start at the reference and follow the gradient. A
model stands permuted as near to its dummy as it can; the loss is taken at a mixture Σ λ_k π_k(θ_k) of the
models as they stand, and its gradient with respect to each of them, λ_k ∂L/∂m, moves the dummy as if there
were no projection in between. One forward and one backward pass a step serve all models.

Ainsworth et al. 2022, section 3.3 and Algorithm 2, arXiv:2209.04836; Ito, Yamada and Kumagai 2025, section
4.1, Algorithm 1 (ICML, PMLR 267).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from .. import networks, permutation
from ..datasets import Data
from ..datasets._batches import checked, describe, head, size_of, to_device
from ..datasets._held import MOST, held_out
from ..errors import DataError, NetworkError, UsageError, unknown
from ..evaluation import accuracy, call, check_logits
from ..interrupts import held_back
from ..permutation import Permutations
from ..randomness import derive, generator
from . import INITS, MatchResult, Problem, State, am, wm
from ._flat import Flat, prepared
from ._projection import Projection, Queue

OPTIMIZERS = ("adam", "sgd")
PRECISIONS = ("fp32", "bf16")
RATES = {"adam": 1e-3, "sgd": 1e-2}
MATCHING = (
    0.4  # multiplications of matching for one of a forward and backward pass, where nothing else is said
)
LOOKS = 2  # an epoch, at the held-out samples

Weights = Callable[[torch.Generator, int], torch.Tensor]  # of the models (n,), which add up to 1


@dataclass(frozen=True)
class Training:
    """`optimizer` (adam, or sgd with momentum 0.9) and `learning_rate` (1e-3, or 1e-2) move the dummies.

    `share` of all permutations are solved anew in each step: 1 is all of them, and None as many as take
    less than half of a step. `init` is where permutations start: wm, am, identity. `precision` is that of
    the products in forward and backward passes. `limit`: samples an epoch.
    """

    epochs: int = 8
    optimizer: str = "adam"
    learning_rate: float | None = None
    share: float | None = None
    init: str = "wm"
    precision: str = "fp32"
    limit: int | None = None

    def __post_init__(self) -> None:
        named = (("optimizer", OPTIMIZERS), ("init", INITS), ("precision", PRECISIONS))
        for name, known in named:
            if getattr(self, name) not in known:
                raise unknown(name, getattr(self, name), known)
        if self.epochs < 1:
            raise UsageError(f"{self.epochs} epochs leave nothing to do", hint="Give 1 or more.")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"a limit of {self.limit} samples leaves nothing", hint="Give 1 or more.")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise UsageError(f"a learning rate of {self.learning_rate:g} makes no sense", hint="Try 1e-3.")
        if self.share is not None and not 0 < self.share <= 1:
            raise UsageError(f"{self.share:g} is no share of the permutations", hint="Give one in 0–1.")


def memory(models: int, parameters: int, options: Training) -> dict[str, int]:
    """Bytes that a search holds beside the files: every model, the dummies, their optimizers, one network."""
    row, moments = 4 * parameters, 2 if options.optimizer == "adam" else 1
    network = 4 * row  # as it was given, the copy that is trained, its gradient, a dummy's share of that
    return {
        "models": models * row,
        "dummies": (models - 1) * row,
        "optimizers": (models - 1) * moments * row,
        "network": network,
    }


def search(problem: Problem, options: Training, weights: Weights, *, scale: float = 1.0) -> MatchResult:
    """The best permutations by the held-out loss at the models' mean.

    That is looked at twice an epoch, once where a loader does not say how long an epoch is. The objective is
    the loss in nats, negative. `weights` draws each step's mixture, reference first;
    `scale` multiplies what the optimizer does. Raises UsageError without a network or data, DataError and
    NetworkError for what is wrong with them.
    """
    if problem.network is None or problem.data is None:
        raise UsageError(
            "straight-through estimation needs the network and data", hint="Give both: network=…, data=…"
        )
    run = Run(problem, options, weights, scale)
    try:
        run.begin(problem.start)
        for inputs, targets, look in run.batches():
            run.step(inputs, targets)
            if look:
                run.look()
        return run.result()
    finally:
        run.close()


class Run:
    """One search: what it holds is n models in one row of numbers each, n − 1 dummies and their optimizers.

    All that `state` shows is enough to go on from, bit for bit.
    """

    def __init__(self, problem: Problem, options: Training, weights: Weights, scale: float):
        self.problem, self.options, self.weights, self.seed = problem, options, weights, problem.seed
        self.device = torch.device(problem.device)
        self.network = prepared(problem.network, self.device)
        self.flat = Flat(self.network)
        self.reference = self.flat.row(problem.models[0])
        self.models = [self.flat.row(model) for model in problem.models[1:]]
        self.dummies = [self.reference.clone().requires_grad_() for _ in self.models]
        rate = scale * (options.learning_rate or RATES[options.optimizer])
        self.optimizers = [_optimizer(options.optimizer, dummy, rate) for dummy in self.dummies]
        self.point, self.gradient = (torch.zeros_like(self.reference) for _ in range(2))
        self.flat.install(self.network, self.point, self.gradient)
        rest = problem.models[0]
        self.projections = [
            Projection(
                self.flat.views(dummy.detach(), rest),
                self.flat.views(row, model),
                problem.fitted,
                device=problem.device,
            )
            for dummy, row, model in zip(self.dummies, self.models, problem.models[1:], strict=True)
        ]
        self.queue = Queue(self.projections, self.seed)
        data = problem.data
        if options.limit is not None and isinstance(data, Data):
            data = data.subset(options.limit, self.seed)
        self.train, self.held = held_out(data, derive(self.seed, "held out"))
        self.length = len(self.train) if isinstance(self.train, Data) else None  # batches an epoch
        self.normed = int(networks.has_running_statistics(self.network))  # samples that say nothing
        self.threads = torch.get_num_threads()
        many = len(self.models) > 1 and self.threads > 1 and self.device.type == "cpu"
        self.pool = _threads(min(self.threads, len(self.models))) if many else None
        self.done = self.looked = 0  # steps
        self.notes: dict[str, float] = {}
        self.best: tuple[Permutations, ...] = ()
        self.objective = self.before = -math.inf
        self.history: list[tuple[float, ...]] = []
        self.quota: float | None = None if options.share is None else options.share * self.queue.work

    # --------------------------------------------------------------------------------------------- start

    def begin(self, start: State | None) -> None:
        """From where a search stood, from given permutations, or from those of `init`."""
        self._stand([projection.permutations for projection in self.projections])
        loss, _ = self._held_out()
        self.before = -loss
        if start is not None and start.tensors:
            self._resume(start)
            return
        found = (
            start.permutations if start is not None else _initial(self.problem, self.options.init, self.train)
        )
        self._stand(found)
        self.look()

    def _stand(self, permutations: Iterable[Permutations]) -> None:
        for projection, perms in zip(self.projections, permutations, strict=True):
            projection.place(perms)

    def _resume(self, start: State) -> None:
        kept, self.done, self.objective = start.tensors, start.sweep, start.objective
        self.best = tuple(dict(perms) for perms in start.permutations)
        words = self.problem.fitted.words
        self._stand([{word: kept[f"at.{k}.{word}"] for word in words} for k in range(len(self.models))])
        for k, (dummy, optimizer) in enumerate(zip(self.dummies, self.optimizers, strict=True)):
            with torch.no_grad():
                dummy.copy_(kept[f"dummy.{k}"])
            prefix = f"optimizer.{k}."
            saved = {
                name.removeprefix(prefix): t.clone() for name, t in kept.items() if name.startswith(prefix)
            }
            optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: saved} if saved else {}})
        self.history = [tuple(row) for row in kept["history"].tolist()]
        self.queue.position, self.queue.credit = int(start.notes["position"]), start.notes["credit"]
        self.quota = start.notes["quota"]
        self.looked = int(start.notes["looked"])
        self.notes = {name: start.notes[name] for name in ("loss", "changed")}

    # --------------------------------------------------------------------------------------------- steps

    def batches(self) -> Iterator[tuple[Any, Any, bool]]:
        """The batches that are still to come, and after which of them to look at the held-out samples."""
        number = 0
        for epoch in range(self.options.epochs):
            if self.length and number + self.length < self.done:  # nothing of it is left
                number += self.length
                continue
            first, half = number, (self.length or 0) // LOOKS
            for batch, last in _with_last(self._epoch(epoch)):
                number += 1
                look = last or number - first == half
                if number > self.done:
                    yield *batch, look
                elif look and number == self.done > self.looked:  # it was interrupted just then
                    self.look()
            if number == first:
                raise DataError(
                    "the data holds no samples", hint="Is the loader a generator that was read before?"
                )

    def _epoch(self, epoch: int) -> Iterator[tuple[Any, Any]]:
        """One pass; a single sample is left out where norms need several."""
        rng, left = generator(self.seed, f"order of epoch {epoch}"), self.options.limit
        for inputs, targets in self.train.shuffled(rng) if self.length else checked(self.train):
            size = size_of(targets)
            if left is not None and size > left:
                inputs, targets, size = head(inputs, left), head(targets, left), left
            if size > self.normed:
                yield inputs, targets
            left = None if left is None else left - size
            if left is not None and left <= 0:
                return

    def step(self, inputs: Any, targets: Any) -> None:
        """One mixture, its gradient, the dummies moved, and the models brought near to them again."""
        share = self.weights(generator(self.seed, f"mixture {self.done}"), len(self.models) + 1)
        self._mix(share)
        inputs, targets = to_device(inputs, self.device), to_device(targets, self.device)
        if self.quota is None:  # one permutation a step at least: what is counted may be next to nothing
            least = self.queue.work / max(1, len(self.queue.turns))
            self.quota = max(MATCHING * self._passes(inputs), least)
        self.gradient.zero_()
        loss = self._loss(inputs, targets)
        if not math.isfinite(value := loss.item()):
            raise NetworkError(
                f"the loss is {value} at step {self.done + 1}", hint="Try a smaller --lr, or look at --loss"
            )
        loss.backward()
        with held_back():  # nothing may be left half-done
            for dummy, optimizer, weight in zip(self.dummies, self.optimizers, share[1:], strict=True):
                dummy.grad = self.gradient * weight.item()
                optimizer.step()
                dummy.grad = None
            moved, units = self._project()
            self.done += 1
            self.notes = {"loss": value, "changed": moved / max(1, units)}
            self._report()

    def _mix(self, share: torch.Tensor) -> None:
        """Let the network hold Σ λ_k π_k(θ_k)."""
        with torch.no_grad():
            torch.mul(self.reference, share[0].item(), out=self.point)
            for row, weight in zip(self.models, share[1:], strict=True):
                self.point.add_(row, alpha=weight.item())

    def _loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        kind, half = self.device.type, self.options.precision == "bf16"
        with torch.autocast(kind, torch.bfloat16) if half else nullcontext():
            outputs = call(self.network, inputs, output=self.problem.output)
        self.outputs = outputs.detach()
        if self.problem.loss is not None:
            value = self.problem.loss(outputs, targets)
            if not isinstance(value, torch.Tensor) or value.ndim:
                raise NetworkError(f"the loss is {describe(value)}; expected a tensor with one number")
            return value
        check_logits(outputs, targets, self.done)
        return F.cross_entropy(outputs.float(), targets)

    def _project(self) -> tuple[int, int]:
        """Solve the permutations whose turn it is, models side by side; units that moved, of how many."""
        turns: dict[int, list[str]] = {}
        for k, name in self.queue.take(self.quota):
            turns.setdefault(k, []).append(name)

        def solve(k: int) -> int:
            return sum(self.projections[k].solve(name) for name in turns[k])

        if len(turns) > 1 and self.pool is not None:
            torch.set_num_threads(1)
            try:
                moved = sum(self.pool.map(solve, turns))
            finally:
                torch.set_num_threads(self.threads)
        else:
            moved = 0
            for k in turns:
                with self.projections[k].pair.computing():
                    moved += solve(k)
        sizes = self.problem.fitted.words
        units = sum(sizes[w] for k in turns for name in turns[k] for w in self.projections[k].members[name])
        return moved, units

    def _passes(self, inputs: Any) -> float:
        """Multiplications of a forward and a backward pass on such a batch."""
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            call(self.network, inputs, output=self.problem.output)
        return 3 * counter.get_total_flops() / 2

    # ---------------------------------------------------------------------------------------- what is kept

    def look(self) -> None:
        """The held-out loss at the mean; the permutations are kept where none were better."""
        loss, right = self._held_out()
        self.looked = self.done
        self.history.append((float(self.done), self.notes.get("loss", math.nan), loss, right))
        if not self.best or -loss > self.objective:
            self.objective, self.best = -loss, self._here()
        if self.done:
            self._report()

    def _held_out(self) -> tuple[float, float]:
        """Loss in nats (inf where it is no number) and accuracy of the mean, norms on batch statistics.

        Accuracy is NaN for a loss of the user's own, whose outputs may be no logits.
        """
        count = len(self.models) + 1
        self._mix(torch.full((count,), 1 / count))
        loss = right = 0.0
        samples = 0
        with torch.no_grad():
            for inputs, targets in checked(self.held):
                size = size_of(targets)
                if not size or (size <= self.normed and samples):
                    continue
                targets = to_device(targets, self.device)
                loss += size * self._loss(to_device(inputs, self.device), targets).item()
                samples += size
                if self.problem.loss is None:
                    right += size * accuracy(self.outputs, targets)
                if samples >= MOST:
                    break
        if not samples:
            raise DataError(
                "the data holds no samples", hint="Is the loader a generator that was read before?"
            )
        known = self.problem.loss is None
        return (math.inf if math.isnan(loss) else loss / samples), right / samples if known else math.nan

    def _here(self) -> tuple[Permutations, ...]:
        return tuple(dict(projection.permutations) for projection in self.projections)

    def _report(self) -> None:
        if self.problem.progress is None:
            return
        last = zip(HISTORY[2:], self.history[-1][2:], strict=True)
        found = {name: value for name, value in last if not math.isnan(value)}
        total = {"steps": float(self.length * self.options.epochs)} if self.length else {}
        place = {
            "position": float(self.queue.position),
            "credit": self.queue.credit,
            "quota": self.quota,
            "looked": float(self.looked),
        }
        tensors = {
            f"at.{k}.{word}": perm
            for k, projection in enumerate(self.projections)
            for word, perm in projection.permutations.items()
        }
        for k, (dummy, optimizer) in enumerate(zip(self.dummies, self.optimizers, strict=True)):
            tensors[f"dummy.{k}"] = dummy.detach()
            for name, value in optimizer.state_dict()["state"].get(0, {}).items():
                if value is not None:
                    tensors[f"optimizer.{k}.{name}"] = value
        tensors["history"] = torch.tensor(self.history, dtype=torch.float64)
        notes = {**self.notes, **found, **total, **place}
        self.problem.report(State(self.best, self.done, self.objective, notes, tensors))

    def result(self) -> MatchResult:
        solves = sum(projection.solves for projection in self.projections)
        rows = (zip(HISTORY, row, strict=True) for row in self.history)
        rows = tuple({name: value for name, value in row if not math.isnan(value)} for row in rows)
        return MatchResult(self.best, self.before, self.objective, self.done, solves, True, history=rows)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()


HISTORY = ("step", "loss", "held_out_loss", "held_out_accuracy")


def _optimizer(kind: str, dummy: torch.Tensor, rate: float) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam([dummy], lr=rate)
    return torch.optim.SGD([dummy], lr=rate, momentum=0.9)


def _initial(problem: Problem, init: str, data: Iterable[Any]) -> list[Permutations]:
    """Where the other models start, each matched to the reference by itself, on `data` where it needs any."""
    if init == "identity":
        return [permutation.identity(problem.fitted.words)] * (len(problem.models) - 1)
    matcher = {"wm": wm, "am": am}[init]
    pairs = (
        replace(problem, models=(problem.models[0], model), data=data, start=None, progress=None)
        for model in problem.models[1:]
    )
    return [matcher.match(pair).permutations[0] for pair in pairs]


def _threads(count: int) -> ThreadPoolExecutor:
    """Threads that compute, each alone."""
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))


def _with_last(items: Iterator[Any]) -> Iterator[tuple[Any, bool]]:
    """Each item, and whether it is the last."""
    for item in items:
        for following in items:
            yield item, False
            item = following
        yield item, True
