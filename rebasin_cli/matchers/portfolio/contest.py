"""Several methods tried on the same models within a time, and compared by the held-out loss of their mean.

Each is compared with every repair that is open, and the best is taken as `repair.choices` says. Where what
is left to gain is little, no more is tried.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from ...datasets import Data
from ...datasets.batches import size_of
from ...datasets.held_out import held_out
from ...errors import CheckpointError, DataError, NetworkError, SpecError, UsageError
from ...repair.choices import better
from ...repair.costs import TRACING
from ...runtime.seeds import derive
from ...runtime.text import many
from ...symmetry.elements import Elements
from .. import MatchResult, Problem, State, Wider, registry
from ..polish.midpoint import Midpoint
from ..polish.search import polish
from . import gains, in_turn
from .candidates import Candidate
from .clock import SPEED, Clock, OverTime
from .gains import LONGER
from .sizes import FEWEST, Reading, learns, sized, watched
from .trial import Trial
from .worth import BASES, DEFAULTS, LAST, SHORTENED, Mending

HELD, COMPARABLE = 2_000, 100  # samples to compare by, as many as LOOKING lets be; with fewer it means little
LOOKING, LOOKS = 0.25, 6  # share of the time that comparing may take, and how often
TIMED = 1e10  # multiplications of the batch that is timed
SWAPS = 40  # forward passes of FEWEST samples, without the time of which swaps are not begun
REPAIR = 0.3  # share of the time that is left, which a repair may take that is not the last one
SPARE = 1.3  # times as long as the last time a repair may take
LITTLE = 0.005  # nats that the endpoints' mean answer loses less than the best so far: then nothing is left
ENOUGH = f"not tried: less than {LITTLE:g} nats are left to gain"
FINDING = 0.7  # share of what is left beside a distillation, which other repairs may take at most


def ended(found: MatchResult) -> str:
    """Why a search by weights did not come to its end; "" where it did."""
    swept = many(found.sweeps, "sweep")
    return "" if found.converged else f"ended after {swept}, when the time was over"


class Trials:
    """Candidates on one problem, until the time of the clock is over."""

    def __init__(self, problem: Problem, clock: Clock):
        self.clock = clock
        self.midpoint = Midpoint(problem)
        if problem.held is not None:
            self.train, held = problem.given_data, problem.held
        else:
            self.train, held = held_out(problem.given_data, derive(problem.seed, "held out to choose by"))
        if isinstance(self.train, Data):
            self.train = watched(self.train, clock.look)
        else:
            self.train = Reading(self.train, clock.look)
        self.problem = replace(problem, data=self.train, start=None)
        self.a_sample = self._timed(held)
        once = max(1, len(problem.repairs)) * max(self.a_sample, 1e-9)  # one candidate, on one sample
        affordable = int(clock.seconds * LOOKING / once / LOOKS)
        self.comparable = COMPARABLE * once <= clock.seconds * LOOKING  # the first one's repairs at least
        most = min(HELD, max(COMPARABLE, affordable))
        self.held = list(self.midpoint.batches(held, most)) if self.comparable else []
        self.mending = Mending(
            self.problem, self.train, self.held, clock, self.a_sample, most=max(FEWEST, affordable)
        )
        self.done: list[Trial] = []
        self.never: dict[tuple[str, bool], str] = {}  # repairs that this network, in a form, does not admit
        self.reserved = 0.0  # seconds, for the distillation that ends it

    @property
    def best(self) -> tuple[Trial, str]:
        """The trial, and the repair, that is taken: the first of those that cost least."""
        return self._best_of(self.done)

    def _best_of(self, trials: Iterable[Trial]) -> tuple[Trial, str]:
        found, *others = [(trial, how) for trial in trials for how in trial.merges]
        for trial, how in others:
            if better(found[0].merges[found[1]][0], trial.merges[how][0]):
                found = trial, how
        return found

    @property
    def start(self) -> Trial:
        """Where learning begins: the mean that loses least before a repair fits its weights."""
        return self._by_loss(self.done)[0]

    def _by_loss(self, trials: Iterable[Trial]) -> list[Trial]:
        """Those that found something; first whose mean loses least before a repair fits its weights."""
        base = self.mending.open[0]
        begun = [trial for trial in trials if base in trial.merges]
        return sorted(begun, key=lambda trial: trial.merges[base][0].plain.loss)

    @cached_property
    def wider(self) -> Wider:
        """The models where units may take more than orders. Raises LookupError where they take no more."""
        room = math.inf if self.clock.counts else self._room()
        with self.clock.within(room):
            found = None if self.problem.wider is None else self.problem.wider(self.clock.look, room)
        if found is None:
            raise LookupError("units take orders only")
        return found

    @cached_property
    def _wide(self) -> Problem:
        """The problem in their canonical forms."""
        forms = self.wider.forms
        return replace(self.problem, fitted=forms.fitted, models=forms.held(computed=True))

    def _takes(self, method: str) -> bool:
        """Whether a method finds more than orders, of so many models."""
        module = None if method == "polish" else registry.get(method)
        together = len(self.problem.models) == 2 or getattr(module, "MANY", False)
        return together and getattr(module, "GROUPS", False)

    def _timed(self, data: Iterable[Any]) -> float:
        """Seconds of a forward pass of one sample."""
        at, model = self.midpoint, self.problem.models[0]
        batch = next(self.midpoint.batches(data, 2))
        work = at.work(batch[0])
        batch = next(self.midpoint.batches(data, int(min(100, max(2, TIMED / work)))))
        own = {name: model[name].detach().to(at.device, torch.float32) for name in at.names}
        self.midpoint.losses(own, [{}], batch)
        began = time.perf_counter()
        self.midpoint.losses(own, [{}], batch)
        took = (time.perf_counter() - began) / size_of(batch[1], batch[0])
        if not self.clock.counts:
            return took
        own_speed = {"trying": 0.0, "seconds": self.clock.seconds * took * SPEED / work}
        self.problem.report(State((), notes=own_speed))
        return work / SPEED

    # ------------------------------------------------------------------------------------------ candidates

    def try_(self, candidate: Candidate) -> Trial:
        """Try it in its share of the time that is left; the very first one at least begins."""
        began, first, swaps = time.monotonic(), not self.done, candidate.method == "polish"
        goes_on = not first and self.start.wider and self._takes(candidate.method)
        candidate = replace(candidate, wider=candidate.wider or goes_on)
        trial = Trial(candidate.name, wider=candidate.wider)
        room = self._room() * candidate.share
        needless = "" if first else self._idle(candidate.method)
        if needless or (room <= 0 and not first):
            trial.why = needless or "not tried: nothing is left of the budget"
            self.done.append(trial)
            return trial
        try:
            found = self._polished(room) if swaps else self._searched(trial, candidate.method, room, first)
            trial.seconds = time.monotonic() - began
            if isinstance(found, str):
                trial.why = found
            else:
                trial.method = f"{self.start.method} + polish" if swaps else trial.method
                trial.result = found
                trial.why = ended(found) if first else ""
                if trial.wider:
                    self.wider.check(self.wider.forms.whole(found.elements))
                self._mend(trial, last=swaps)
        except (NetworkError, SpecError, CheckpointError) as error:
            if first or error.own_code:
                raise
            trial.why, trial.result, trial.merges = error.message, None, {}
        self.done.append(trial)
        if first and LAST in self.mending.open:
            self._reserve()
        if self._idle(LAST):
            self.reserved = 0.0
        return trial

    def _room(self) -> float:
        """Seconds for a search, without those that repairs need."""
        return self.clock.left - self.reserved - self._for_repairs()

    def widens(self, candidate: Candidate) -> bool:
        """Whether units may take more than orders, and something is left to gain by it."""
        if self._settled():
            return False
        try:
            return bool(self.wider)
        except LookupError:
            return False
        except OverTime:
            self.done.append(Trial(candidate.name, why="its time was over"))
            return False
        except (NetworkError, SpecError, CheckpointError, UsageError) as error:
            self.done.append(Trial(candidate.name, why=error.message))
            return False

    def finish(self) -> None:
        """Repair what was not, for want of time, as far as there is some now; the best so far first."""
        for trial in self._by_loss(trial for trial in self.done if trial.lacking):
            self._mend(trial, last=True)
        if LAST in self.mending.open:
            self.mending.longer = not self._idle(LONGER)
            self._mend(self._promising, last=True, dear=True)
            self.reserved = 0.0

    @property
    def _promising(self) -> Trial:
        """Whose mean is worth most when all of it is trained: the best one, as refits tell.

        Where there was no time for all of them, the mean that loses least as it is.
        """
        found = [trial for trial in self.done if trial.merges]
        fitted = all("refit" in trial.merges for trial in found) or ("refit", False) in self.never
        return self.best[0] if fitted else self.start

    def _reserve(self) -> None:
        """Keep back the time of a distillation, of half of it at least; none where that is not there."""
        repaired = SPARE * sum(self.mending.took.values())  # once more, of what is found until then
        for share, more in ((1.0, repaired), (SHORTENED, 0.0)):
            wanted = self.mending.seconds(LAST, 0.0, share)
            if wanted + more < self.clock.left:
                self.reserved = wanted
                return

    def _for_repairs(self) -> float:
        """The time of the repairs of what is found then; none where little would be left to find it."""
        if self.done and self._settled():
            return 0.0
        known = SPARE * sum(self.mending.took[how] for how in self.mending.open if how in self.mending.took)
        return 0.0 if known > FINDING * (self.clock.left - self.reserved) else known

    def _mend(self, trial: Trial, *, last: bool, dear: bool = False) -> None:
        """Measure a trial's mean with every repair that is open and that there is time for.

        One takes so long that it is measured only where what is `dear` is asked for.
        """
        models = self.mending.models(trial.found.elements, self.wider.forms if trial.wider else None)
        base, *others = self.mending.open
        order = (base, *(reversed(others) if last else others))  # in the end what is worth most comes first
        for how in order:
            if how in trial.merges or (how == LAST and not dear):
                continue
            certain = how == base or (how in DEFAULTS and not self.done and self.clock.counts)
            if why := self._needless(trial, how, certain):
                trial.lacking[how] = why
                continue
            left = self.clock.left - (0.0 if how == LAST else self.reserved)
            room = left if how == LAST else left * (1.0 if last else REPAIR) / SPARE
            if not certain and (why := self._too_long(how, room)):
                trial.lacking[how] = why
                continue
            try:
                began, limit = time.monotonic(), math.inf if certain else room
                if how not in BASES and not self.mending.graphs:
                    self.mending.trace()
                    self.clock.spent(began, TRACING)
                    began = time.monotonic()
                reckoned = self.mending.reckoned(how, limit) if self.clock.counts else 0.0
                ends = math.inf if certain or how == LAST else left  # a distillation ends by itself
                with self.clock.within(ends):
                    measured = self.mending.judge(models, how, limit)
            except OverTime:
                trial.lacking[how] = "its time was over"
                continue
            except (NetworkError, UsageError, DataError, CheckpointError) as error:
                if how == base or error.own_code:
                    raise
                trial.lacking[how] = self.never[how, trial.wider] = error.message
                continue
            self.mending.took[how] = self.clock.spent(began, reckoned)
            trial.merges[how] = measured, time.monotonic() - began
            self._keep(trial, how)
            trial.lacking.pop(how, None)

    def _keep(self, trial: Trial, how: str) -> None:
        """What the last repair made: of the best so far alone, since it is as large as the models."""
        best, taken = self._best_of([*self.done, trial])
        if best is trial and taken == how:
            for other in (*self.done, trial):
                other.repaired = {}
            trial.repaired = {how: kept} if (kept := self.mending.kept) is not None else {}

    def _needless(self, trial: Trial, how: str, certain: bool) -> str:
        """Why a repair is not worth trying, "" where it is."""
        if why := self.never.get((how, trial.wider)):
            return why
        if trial.merges and self._settled(trial):
            return ENOUGH
        if certain:
            return ""
        if how == LAST and (why := self._idle(how)):
            return why
        more = self._beaten(how)
        return f"not tried: {more} was better wherever both were" if more else ""

    def _idle(self, step: str) -> str:
        """Why a search, or a distillation, is not worth its time, "" where it is."""
        if self._settled() or (step == LAST and self._left(loss=True) < LITTLE):
            return ENOUGH
        # Gains were measured on pairs, after a refit
        if len(self.problem.models) > 2 or not any("refit" in trial.merges for trial in self.done):
            return ""
        return gains.needless(step, self._left(), distilled=self.reserved > 0)

    def _settled(self, *more: Trial) -> bool:
        """Whether next to nothing is left to gain on what is taken, of these `more`, too."""
        return self._left(*more) < LITTLE

    def _left(self, *more: Trial, loss: bool = False) -> float:
        """Nats that are left to gain on what is taken, of these `more`, too; or of its `loss` alone."""
        best, how = self._best_of([*self.done, *more])
        return self.mending.comparison.left(best.merges[how][0], loss=loss)

    def _beaten(self, how: str) -> str:
        """What changes more of the weights, is tried as often, and won wherever both were; "" for none."""
        order = self.mending.open
        for more in (name for name in order[order.index(how) + 1 :] if name != LAST):
            both = [it.merges for it in self.done if {how, more} <= it.merges.keys()]
            if both and all(better(it[how][0], it[more][0]) for it in both):
                return more
        return ""

    def _too_long(self, how: str, room: float) -> str:
        """Why there is no time for a repair, "" where there is. A distillation takes what there is."""
        seconds = self.mending.seconds(how, room, SHORTENED)
        if seconds == math.inf:
            return "begins with a refit, which was not tried"
        return f"takes about {self.clock.told(seconds)}, too long" if seconds > room else ""

    def _searched(self, trial: Trial, method: str, room: float, first: bool) -> MatchResult | str:
        given = self._wide if trial.wider else self.problem
        module, began, models = registry.get(method), time.monotonic(), given.models
        data = self.train if isinstance(self.train, Data) else Reading(self.train, self.clock.look)
        there = data.samples if isinstance(data, Data) else None
        size = sized(
            module,
            room,
            a_sample=self.a_sample,
            models=len(models),
            there=there,
            counts=self.clock.counts,
        )
        if size.least:
            return f"{self.clock.told(room)} are too little to {size.least}"

        reached: list[State] = []

        def progress(state: State) -> None:
            reached[:] = [state]
            self.problem.report(replace(state, tensors={}, notes={**state.notes, "trying": len(self.done)}))
            self.clock.look()

        problem = replace(given, data=data, progress=progress)
        same = [each for each in self.done if each.wider == trial.wider]  # whose elements act on these models
        start = State(self._by_loss(same)[0].found.elements) if learns(module) else None
        try:
            with self.clock.within(math.inf if first else room):
                return in_turn.search(module, problem, size.options, start)
        except OverTime:
            state = reached[0] if reached else State(())
            if len(state.elements) != len(models) - 1:  # it was at the second of several models
                return "its time was over before all models were matched"
            loss = -state.objective if learns(module) else math.nan
            return MatchResult(state.elements, loss, loss, state.sweep, 0, False)
        finally:
            samples = data.samples if size.samples is None else size.samples
            self.clock.spent(began, size.each * samples)

    def _polished(self, room: float) -> MatchResult | str:
        if self.start.wider:
            return "swaps find orders only"
        best, began = self.start.found, time.monotonic()
        if room < SWAPS * self.a_sample * FEWEST:
            return f"{self.clock.told(room)} are too little"
        done = polish(self.problem, best.permutations, self.clock.length(room))
        self.clock.spent(began, done.work / SPEED)
        return replace(best, elements=tuple(map(Elements, done.permutations)), polished=done.account())
