"""Matchers: one file a method, the same promises for all.

A matcher is a module with

    NEEDS: frozenset[str]       # of {"network", "data"}; weights alone is the empty set
    USES: frozenset[str]        # optional: what it takes of these where it is there, and can do without
    MANY: bool                  # takes any number of models at once; otherwise two
    SAMPLES: int | None         # optional: training samples that it looks at by default; None: all
    BYTES_A_PARAMETER: int      # optional: memory beyond the models and one similarity, for the plan …
    memory(models, parameters, options) -> dict[str, int]  # … or its parts, by name
    GROUPS: bool                # optional: it also finds elements of the groups that a spec gives its words
    DECLARES: frozenset[str]    # promises beyond the common ones: see `PROMISES`
    Options                     # a frozen dataclass of its own options, all with defaults
    def match(problem: Problem, options: Options) -> MatchResult

Promised by all: results are bijections, the permuted network computes the same outputs, inputs are
untouched, the same seed gives the same answer in a new process (whatever the number of threads, but for
methods that train, whose history is not empty), progress is reported through `problem.progress` after every
sweep, and once more where more is known of it later, and a search that was interrupted goes on from
`problem.start` to the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..errors import UsageError, unknown
from ..registry import Registry
from ..registry.options import of_class
from ..runtime.ranks import ALONE, Ranks
from ..spec.spec import FittedSpec
from ..symmetry.elements import Elements, element_of
from ..symmetry.form import Forms
from ..symmetry.lists import held_stacked
from ..types import Batches, Permutations, Tensors
from .accounts import Account, Chosen, Polish

registry = Registry("matchers", "method")

PROMISES = {
    "identity": "identical models get the identity, up to units whose weights are equal",
    "planted": "a planted permutation is recovered, up to units whose weights are equal",
    "monotone": "the objective never falls",
}

INITS = ("wm", "am", "identity")  # where permutations that are learnt may start


class Declared:
    """Options of a method, which refuse what their declarations rule out. Raises UsageError."""

    def __post_init__(self) -> None:
        for one in of_class(type(self)):
            value = getattr(self, one.name)
            one.check(value)
            if one.kind == "start" and value not in (None, *one.choices):  # files are read by commands
                raise unknown(one.name, value, one.choices)


@dataclass(frozen=True)
class Found:
    """One element a model that is moved; a bare permutation set is one without maps."""

    elements: tuple[Elements, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "elements", tuple(map(element_of, self.elements)))

    @property
    def permutations(self) -> tuple[Permutations, ...]:
        """The orders alone."""
        return tuple(element.permutations for element in self.elements)


@dataclass(frozen=True)
class State(Found):
    """Where a search stands between two sweeps: enough to go on from.

    `elements` holds one per model that the method moves (merge-many moves the reference too), `sweep` the
    number of finished sweeps, `objective` the method's own, larger is better. `notes` and `tensors` are what
    the method itself needs to go on; the tensors may still be written to by the search, so who keeps a state
    past the call that reports it copies them. Notes of a method that trains: "loss", "changed",
    "held_out_loss", "held_out_accuracy", "held_out_calibrated", "looked" (the step after which those three
    were measured), "steps" (in all, where that is known). Of a search that takes one model after the other:
    "model", which of them is at work, of "models", both from 1 with the reference.
    """

    sweep: int = 0
    objective: float = 0.0
    notes: Mapping[str, float] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def named(self, prefix: str) -> dict[str, torch.Tensor]:
        """The tensors whose names begin so, by what follows."""
        return {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}


@contextmanager
def kept() -> Iterator[None]:
    """While a kept state is read. Raises UsageError for what it lacks, as one of another version may."""
    try:
        yield
    except KeyError as cause:
        raise UsageError(
            f"the search cannot go on: what was kept of it lacks {cause}", hint="Start anew with --force"
        ) from cause


@dataclass(frozen=True)
class Wider:
    """The same models where units may take more than orders: in the canonical `forms` of another spec.

    `check` is given what each model after the first takes, its balance with it, and raises NotProven where a
    model would not compute what it did.
    """

    forms: Forms
    check: Callable[[Sequence[Elements]], None]


@dataclass(frozen=True)
class Problem:
    """What every matcher is given.

    `models[0]` is the reference and keeps the identity; tensors may be lazy mappings. `network` and `data`
    (a re-iterable of batches of inputs and targets) are there for matchers that say so in `NEEDS`; `held`
    are samples to choose by that no model was trained on, where there are some; `repairs` are those of the
    merge that is to come, the least first: a method that tries several methods finds the best of these, too,
    with the `ridge` that they will have (None: the default); () where nothing is merged. `output` says which
    of several outputs of the network is measured, `not_kept` which are no part of its function beside caches,
    hidden states and attentions, `loss(outputs, targets)` is a batch's mean loss with a gradient
    (None: cross-entropy), `metric` what is measured beside it, and `choose` the key of the figure that a
    method which tries several chooses by. `device` is where they compute, `ranks` the processes that search
    together. Models are in canonical form: where the spec gives no groups that is how they are. `wider` gives
    them in one where units may take more, None where they may not, for a method that tries both: what it gets
    it calls between its steps, and it refuses what takes longer than so many seconds. `over` says whether the
    time is: a search by weights then ends with the sweep that it is in.
    """

    fitted: FittedSpec
    models: tuple[Tensors, ...]
    seed: int = 0
    start: State | None = None
    progress: Callable[[State], None] | None = None
    network: torch.nn.Module | None = None
    data: Batches | None = None
    held: Batches | None = None
    repairs: tuple[str, ...] = ()
    ridge: float | None = None
    output: str | int | None = None
    not_kept: tuple[str, ...] = ()
    loss: Callable[[Any, Any], Any] | None = None
    metric: Any = None
    choose: str = "loss"
    device: str = "cpu"
    ranks: Ranks = ALONE
    wider: Callable[[Callable[[], None], float], Wider | None] | None = None
    over: Callable[[], bool] = lambda: False

    @property
    def groups(self) -> bool:
        """Whether some words take more than orders; the models are then in canonical form."""
        return bool(self.fitted.groups)

    @property
    def given_network(self) -> torch.nn.Module:
        """The network, of a matcher that `NEEDS` it; raises LookupError where there is none."""
        if self.network is None:
            raise LookupError("a matcher that runs a network has to say so in NEEDS")
        return self.network

    @property
    def given_data(self) -> Batches:
        """The samples, of a matcher that `NEEDS` them; raises LookupError where there are none."""
        if self.data is None:
            raise LookupError("a matcher that reads data has to say so in NEEDS")
        return self.data

    @property
    def stacked(self) -> Problem:
        """The same with each list one tensor (`FittedSpec.stacked`): for methods that need weights alone."""
        if not self.fitted.stacks:
            return self
        models = tuple(held_stacked(model, self.fitted) for model in self.models)
        return replace(self, fitted=self.fitted.stacked, models=models)

    def report(self, state: State) -> None:
        if self.progress is not None:
            self.progress(state)


def check_evidence(problem: Problem, method: str) -> None:
    """Raise UsageError where there is no network, or no data, for a method that runs the one on the other."""
    if problem.network is None or problem.data is None:
        raise UsageError(f"{method} needs the network and data", hint="Give both: network=…, data=…")


def check_two(problem: Problem, method: str, hint: str | None = None) -> None:
    """Raise UsageError for more models than two, or fewer."""
    if len(problem.models) != 2:
        raise UsageError(f"{method} matches two models, not {len(problem.models)}", hint=hint)


def check_several(problem: Problem, method: str) -> None:
    """Raise UsageError for fewer models than two."""
    if len(problem.models) < 2:
        raise UsageError(f"{method} needs at least two models")


@dataclass(frozen=True)
class MatchResult(Found):
    """One element per model after the first, in their order, and how the search went.

    `elements` act on the models as the method was given them, or in canonical `forms` of its own where it
    took those that `Problem.wider` gives.

    The objective is the method's own, larger is better; for weight matching the inner product Σ ⟨A, πB⟩ over
    all tensors that are evidence. `upper_bound` is what no permutation exceeds, where it was asked for; equal
    to `objective_after`, up to rounding, the result is the best there is. `account` is what the method says
    of its own (`accounts`), `polished` what swaps on the true loss did in the end, `chosen` what was taken of
    several methods.
    """

    objective_before: float
    objective_after: float
    sweeps: int
    solves: int
    converged: bool
    upper_bound: float | None = None
    account: Account | None = None
    polished: Polish | None = None
    chosen: Chosen | None = None
    forms: Forms | None = field(default=None, repr=False, compare=False)
