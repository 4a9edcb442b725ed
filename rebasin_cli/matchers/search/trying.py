"""Several methods tried on the same models within a time, and compared by the held-out loss of their mean."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...datasets import Data
from ...datasets._batches import checked, head, size_of
from ...datasets._held_out import held_out
from ...errors import CheckpointError, DataError, NetworkError, SpecError
from ...permutations.permutation import Permutations, permuted
from ...runtime.seeds import derive
from .. import MatchResult, Problem, State, registry
from ..polishing.length import Length
from ..polishing.midpoint import Midpoint
from ..polishing.search import polish
from . import in_turn
from .candidates import Candidate

HELD, COMPARABLE = 2_000, 100  # samples to compare by, as many as LOOKING lets be; with fewer it means little
LOOKING, LOOKS = 0.25, 6  # share of the time that comparing may take, and how often
TIMED = 1e10  # multiplications of the batch that is timed
FEWEST = 200  # samples to look at units on
LOOKED = 10_000  # samples that units are looked at on, where there is time
STEP = 6.0  # forward passes that a step of learning takes, with the matching in it
LEAST = 1_000  # samples, below which nothing is learnt
SURE = 1e-9  # by so much a loss has to be less: of equal ones the cheaper method is taken


class _OutOfTime(Exception):
    """A candidate's time is over; what it had found is `state`."""

    def __init__(self, state: State):
        super().__init__()
        self.state = state


@dataclass
class Trial:
    """What one candidate did: its held-out `loss` in nats at the models' mean, or `why` it was not tried."""

    method: str
    loss: float = math.nan
    seconds: float = 0.0
    why: str = ""
    result: MatchResult | None = field(default=None, repr=False)

    def account(self) -> dict[str, Any]:
        told: dict[str, Any] = {"method": self.method, "seconds": round(self.seconds, 2)}
        if math.isfinite(self.loss):
            told["held_out_loss"] = self.loss
        return told | ({"why": self.why} if self.why else {})


class Trials:
    """Candidates on one problem, until `seconds` are over."""

    def __init__(self, problem: Problem, seconds: float):
        self.began, self.seconds = time.monotonic(), seconds
        self.midpoint = Midpoint(problem)
        if problem.held is not None:
            self.train, held = problem.data, problem.held
        else:
            self.train, held = held_out(problem.data, derive(problem.seed, "held out to choose by"))
        self.problem = replace(problem, data=self.train, start=None)
        self.a_sample = self._timed(held)
        affordable = int(seconds * LOOKING / LOOKS / max(self.a_sample, 1e-9))
        self.comparable = affordable >= COMPARABLE
        self.held = list(self._batches(held, min(HELD, affordable))) if self.comparable else []
        self.done: list[Trial] = []

    @property
    def left(self) -> float:
        return self.began + self.seconds - time.monotonic()

    @property
    def best(self) -> Trial:
        """The first of those with the least loss. The first candidate is always tried."""
        tried = [trial for trial in self.done if trial.result is not None]
        found = tried[0]
        for trial in tried[1:]:
            if trial.loss < found.loss - SURE or (math.isnan(found.loss) and not math.isnan(trial.loss)):
                found = trial
        return found

    def _timed(self, data: Iterable[Any]) -> float:
        """Seconds of a forward pass of one sample."""
        batch = next(self._batches(data, 2), None)
        if batch is not None:
            most = int(min(100, max(2, TIMED / self.midpoint.work(batch[0]))))
            batch = next(self._batches(data, most))
        if batch is None:
            raise DataError(
                "the data holds no samples", hint="Is the loader a generator that was read before?"
            )
        own = self._tensors(self.problem.models[0])
        self.midpoint.losses(own, [{}], batch)
        began = time.perf_counter()
        self.midpoint.losses(own, [{}], batch)
        return (time.perf_counter() - began) / size_of(batch[1])

    def _batches(self, data: Iterable[Any], most: int) -> Any:
        for number, (inputs, targets) in enumerate(checked(data)):
            if most <= 0:
                return
            yield self.midpoint.batch(head(inputs, most), head(targets, most), number)
            most -= size_of(targets)

    def _tensors(self, model: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {n: model[n].detach().to(self.midpoint.device, torch.float32) for n in self.midpoint.names}

    def loss(self, permutations: Sequence[Permutations]) -> float:
        """The held-out loss at the mean of the models so permuted."""
        reference, *others = self.problem.models
        mean, share = self._tensors(reference), 1 / len(self.problem.models)
        mean = {name: share * tensor for name, tensor in mean.items()}
        for model, perms in zip(others, permutations, strict=True):
            own = self._tensors(permuted(model, self.problem.fitted, perms))
            mean = {name: tensor + share * own[name] for name, tensor in mean.items()}
        total = samples = 0.0
        for batch in self.held:
            size = size_of(batch[1])
            total += size * self.midpoint.losses(mean, [{}], batch)[0]
            samples += size
        return total / samples

    # ------------------------------------------------------------------------------------------ candidates

    def try_(self, candidate: Candidate) -> Trial:
        """Try it in its share of the time that is left; the very first one whatever it takes."""
        began, first = time.monotonic(), not self.done
        trial = Trial(candidate.method)
        room = max(0.0, self.left) * candidate.share
        try:
            found = (
                self._polished(room)
                if candidate.method == "polish"
                else self._searched(candidate, room, first)
            )
            if isinstance(found, str):
                trial.why = found
            else:
                trial.result, trial.loss = found, self.loss(found.permutations)
        except (NetworkError, SpecError, CheckpointError) as error:
            if first or getattr(error, "place", None) is not None:  # the user's own code fails
                raise
            trial.why = error.message
        trial.seconds = time.monotonic() - began
        self.done.append(trial)
        return trial

    def _searched(self, candidate: Candidate, room: float, first: bool) -> MatchResult | str:
        module = registry.get(candidate.method)
        options, why = self._options(module, candidate.method, room)
        if why:
            return why
        learns = hasattr(module.Options, "learning_rate")
        ends = time.monotonic() + room

        def progress(state: State) -> None:
            self.problem.report(replace(state, tensors={}, notes={**state.notes, "trying": len(self.done)}))
            if not first and time.monotonic() > ends:
                raise _OutOfTime(state)

        problem = replace(self.problem, progress=progress)
        start = State(tuple(self.best.result.permutations)) if learns else None
        try:
            return in_turn.search(module, problem, options, start)
        except _OutOfTime as over:
            sets = over.state.permutations
            if len(sets) != len(self.problem.models) - 1:  # it was at the second of several models
                return "its time was over before all models were matched"
            loss = -over.state.objective if learns else math.nan
            return MatchResult(tuple(map(dict, sets)), loss, loss, over.state.sweep, 0, False)

    def _options(self, module: Any, method: str, room: float) -> tuple[Any, str]:
        """As much of the data as there is time for; or why there is too little."""
        if not module.NEEDS:
            return module.Options(), ""
        pairs = 1 if module.MANY else len(self.problem.models) - 1
        if not hasattr(module.Options, "learning_rate"):
            samples = int(min(LOOKED, room / (3 * pairs * self.a_sample)))
            if samples < FEWEST:
                return None, f"{room:.1f} s are too little to look at {FEWEST} samples"
            return module.Options(limit=samples), ""
        samples = int(room / (STEP * self.a_sample))
        if samples < LEAST:
            return None, f"{room:.1f} s are too little to learn from {LEAST:,} samples"
        there = self.train.samples if isinstance(self.train, Data) else samples
        epochs = max(1, min(module.Options().epochs, samples // max(1, there)))
        return module.Options(epochs=epochs, limit=samples if samples < there else None), ""

    def _polished(self, room: float) -> MatchResult | str:
        best = self.best.result
        if room < 40 * self.a_sample * FEWEST:
            return f"{room:.1f} s are too little"
        done = polish(self.problem, best.permutations, Length(seconds=room))
        return replace(best, permutations=done.permutations, polished=done.account())
