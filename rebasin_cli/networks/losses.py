"""The loss and the metrics that outputs are scored by: rebasin's own, and what a user brings.

Both are decided once, where the option that names them is opened, and say of themselves what they are
(`quantity`). A loss gives one number a batch, its mean, or a tensor (N,), one number a sample. A metric gives
the same, or is an object over the whole set with `update`, `compute` and `reset`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..datasets.batches import describe, part_of, tensors_in
from ..errors import NetworkError, UsageError
from ..registry import user_code
from ..runtime.seeds import undrawn
from ..runtime.text import many
from ..types import ACCURACY, CROSS_ENTROPY, TAKEN, Quantity
from .classes import IGNORED, accuracies, any_counts, counted, cross_entropies, logits_of, summed, turned
from .given import finite, is_number, kind_of, number_of, own_loss, reading, sound, tensors_of
from .pairing import check_number, muted_if_refused

log = logging.getLogger("rebasin")
OBJECT = ("update", "compute", "reset")
OWN = Quantity("the network's own loss", larger_is_better=False)


@dataclass(frozen=True)
class Loss:
    """How wrong outputs are: cross-entropy, or a user's `function(outputs, targets)`.

    `carried`: targets went into the network with the inputs, and what it returns carries its loss. `alone`:
    the function is asked one sample at a time, since it gives nothing but a mean. `judged`: of which kinds of
    outputs and targets it was seen to give what it should.
    """

    quantity: Quantity = CROSS_ENTROPY
    function: Callable[[Any, Any], Any] | None = None
    carried: bool = False
    alone: bool = False
    judged: set[tuple[Any, ...]] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def of(cls, given: Loss | Callable[[Any, Any], Any] | None, *, alone: bool = False) -> Loss:
        """A user's own, None for cross-entropy. Raises UsageError for what says no sense of itself."""
        if isinstance(given, Loss):
            return given
        if given is None:
            return cls()
        function = made(given)
        return cls(quantity_of(function, larger=False), function, alone=alone)

    @property
    def own(self) -> bool:
        """Whether it is another one than rebasin's cross-entropy of class numbers."""
        return self.function is not None or self.carried

    @property
    def of_logits(self) -> bool:
        """Whether outputs may be logits of classes: of cross-entropy, rebasin's or PyTorch's, alone."""
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return not self.own or function is F.cross_entropy or isinstance(function, nn.CrossEntropyLoss)

    @property
    def ignored(self) -> int | None:
        """The class number that it says it leaves out, as PyTorch's losses do (`ignore_index`)."""
        its: Any = self.function
        said = its.keywords if isinstance(its, functools.partial) else getattr(its, "__dict__", {})
        found = said.get("ignore_index")
        return found if isinstance(found, int) else None

    def __call__(self, outputs: Any, targets: Any, number: int = 0, *, checked: bool = False) -> Tensor:
        """The mean of a batch, (), with a gradient: what is learnt by; cross-entropy in nats.

        Raises NetworkError; DataError for targets that are no class numbers, where no loss was given.

        `checked`: class numbers were looked at before (under `vmap` nobody can).
        """
        if not self.own:
            logits = turned(outputs, targets) if checked else logits_of(outputs, targets, number)
            wider = summed(logits)
            if not checked and not any_counts(targets):  # the mean of nothing is NaN, and nothing is learnt
                return wider.sum() * 0
            each = F.cross_entropy(wider, targets, reduction="none")  # as a user's: to the same bits
            mean: Tensor = each.sum() / (targets != IGNORED).sum()
            return mean
        value = self._asked(outputs, targets, number)
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise NetworkError(
                f"batch {number}: {self.quantity.name} is {describe(value)}; expected a tensor with one "
                "number, or one a sample"
            )
        return value.sum() / torch.tensor(value.numel(), device=value.device)

    def counted(self, targets: Any, count: int) -> int:
        """What the mean of a batch of so many samples is over: its samples, or targets that count.

        0 where nobody knows: a loss of the user's own may leave out targets of −100.
        """
        if self.own:
            return 0 if any(bool((each == IGNORED).any()) for each in tensors_in(targets)) else count
        return counted(targets)

    def values(self, outputs: Any, targets: Any, number: int, count: int) -> Tensor:
        """Of every sample, float64 (N,), or their mean, float64 (); cross-entropy in nats.

        `count` is N. Raises NetworkError for other shapes, and for NaN where all outputs are numbers.
        """
        if not self.own:
            return cross_entropies(outputs, targets)
        if self.alone:
            parts = ((part_of(outputs, k, k + 1), part_of(targets, k, k + 1)) for k in range(count))
            each = [number_of(self._asked(*part, number), self.quantity, 1, number) for part in parts]
            value = torch.stack([one.reshape(()) for one in each])
        else:
            value = _judged(self, outputs, targets, number, count)
        if value.isnan().any() and finite(outputs):
            place = int(value.isnan().nonzero()[0]) if value.ndim else None
            whose = f"sample {place} of batch {number}" if place is not None else f"batch {number}"
            raise NetworkError(
                f"{self.quantity.name} is NaN on {whose}, where all outputs are numbers",
                hint="Let the function give a number for every batch: look for a logarithm or division of 0",
            )
        return value

    def _asked(self, outputs: Any, targets: Any, number: int) -> Any:
        if self.function is None:
            return own_loss(outputs, number)
        with reading(self.quantity.name, number, outputs, targets):
            return self.function(outputs, targets)


@dataclass(frozen=True)
class Metric:
    """How good outputs are: accuracy, a user's `function(outputs, targets)`, an object over the `whole` set.

    One that nobody named (`named`) is left out where it means nothing. `judged` as of a loss.
    """

    quantity: Quantity = ACCURACY
    function: Callable[[Any, Any], Any] | None = None
    whole: Any = None
    named: bool = True
    judged: set[tuple[Any, ...]] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def of(cls, given: Metric | Any | None) -> Metric:
        """A user's own; None for accuracy. Raises UsageError for an object that lacks a method."""
        if isinstance(given, Metric):
            return given
        if given is None:
            return cls(named=False)
        found = made(given)
        if any(callable(getattr(found, name, None)) for name in ("update", "compute")):
            if lacking := [name for name in OBJECT if not callable(getattr(found, name, None))]:
                raise UsageError(
                    f"the metric {name_of(found)} has no {' and no '.join(lacking)}",
                    hint="An object over the whole set has update(outputs, targets), compute() and reset()",
                )
            return cls(quantity_of(found, larger=True), whole=found)
        return cls(quantity_of(found, larger=True), found)

    @property
    def own(self) -> bool:
        return self.function is not None or self.whole is not None

    @property
    def figures(self) -> tuple[Quantity, ...]:
        """What it gives: of an object that computes several, what it lists as `figures`."""
        names = self._listed
        if names is None:
            return (self.quantity,)
        return tuple(checked_name(replace(self.quantity, name=name)) for name in names)

    @property
    def is_open(self) -> bool:
        """Whether it may compute more figures than it says before."""
        return self.whole is not None and self._listed is None

    @property
    def _listed(self) -> Sequence[str] | None:
        names = getattr(self.whole, "figures", None)
        known = isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names)
        return names if known else None

    def values(self, outputs: Any, targets: Any, number: int, count: int) -> Tensor | None:
        """Of every sample, float64 (N,), or their mean, float64 (); None of an object, which keeps them.

        A sample that does not count has NaN; one whose outputs are no numbers is infinitely bad.
        """
        name = self.quantity.name
        if self.whole is not None:
            with reading(f"{name}, in update,", number, outputs, targets):
                self.whole.update(outputs, targets)
            return None
        if self.function is None:
            return accuracies(outputs, targets)
        found = _judged(self, outputs, targets, number, count)
        return found if not found.ndim or not found.isnan().any() else self._counted(found, outputs)

    def _counted(self, values: Tensor, outputs: Any) -> Tensor:
        """One number a sample, some of them NaN."""
        unknown, name = values.isnan(), self.quantity.name
        worst = -math.inf if self.quantity.larger_is_better else math.inf
        values = values.masked_fill(unknown & ~sound(outputs, len(values)), worst)
        if (left := int(values.isnan().sum())) and name not in _uncounted:
            _uncounted.add(name)
            log.info(
                "%s is NaN for %d of %s whose outputs are numbers; what is NaN does not count in it",
                *(name, left, many(len(values), "sample")),
            )
        return values

    def _asked(self, outputs: Any, targets: Any, number: int) -> Any:
        assert self.function is not None  # `values` asks no other
        with reading(self.quantity.name, number, outputs, targets):
            return self.function(outputs, targets)

    def begin(self) -> None:
        if self.whole is not None:
            with user_code(f"{self.quantity.name} fails in reset"):
                self.whole.reset()

    def end(self) -> dict[Quantity, float]:
        """What an object computes over all that it was given: one figure, or several, the metric first."""
        name = self.quantity.name
        hint = "compute() is called once, after all batches: let it give a number whatever these held"
        with user_code(f"{name} fails in compute", hint=hint):
            found = self.whole.compute()
            several = found if isinstance(found, Mapping) else {name: found}
            values = {str(key): float(value) for key, value in several.items() if is_number(value)}
        if len(values) < len(several) or not values:
            raise NetworkError(
                f"{name}: compute gives {describe(found)}",
                hint="Expected a number, or a dictionary of numbers",
            )
        if not isinstance(found, Mapping):
            return {self.quantity: values[name]}
        told = (replace(self.quantity, name=key) for key in values)
        return {checked_name(each): value for each, value in zip(told, values.values(), strict=True)}


def metrics_of(given: Any) -> tuple[Metric, ...]:
    """One metric or several, by different names; accuracy, where it means something, where none is given."""
    several = given if isinstance(given, Sequence) else () if given is None else (given,)
    found = tuple(map(Metric.of, several)) or (Metric.of(None),)
    check_distinct(metric.quantity for metric in found)
    return found


def check_distinct(metrics: Iterable[Quantity]) -> None:
    """Raise UsageError where reports would have one name for two of them."""
    keys = Counter(metric.key for metric in metrics)
    if doubled := [key for key, count in keys.items() if count > 1]:
        raise UsageError(
            f"two metrics are called {doubled[0]}",
            hint="Give one another `name`, or what compute gives other keys: only letters and digits count",
        )


def made(given: Any) -> Any:
    """What a user's reference stands for: of a class, or a function without arguments, what it gives."""
    if not callable(given):
        return given
    try:
        needed = [
            parameter
            for parameter in inspect.signature(given).parameters.values()
            if parameter.default is parameter.empty and parameter.kind not in (_REST, _KEYWORDS)
        ]
    except (TypeError, ValueError):  # it does not say
        return given
    if isinstance(given, type) or (not needed and inspect.isfunction(given) and not _takes_any(given)):
        with user_code(f"{name_of(given)} fails", UsageError):
            return given()
    return given


_REST, _KEYWORDS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


def _takes_any(given: Callable[..., Any]) -> bool:
    return any(
        p.kind in (_REST, p.POSITIONAL_OR_KEYWORD) for p in inspect.signature(given).parameters.values()
    )


def quantity_of(given: Any, *, larger: bool) -> Quantity:
    """What a user's loss or metric says of itself. Raises UsageError for what cannot be meant."""
    name, unit, limits = (getattr(given, key, None) for key in ("name", "unit", "range"))
    better = next(
        (
            found
            for key in ("larger_is_better", "higher_is_better")
            if isinstance(found := getattr(given, key, None), bool)
        ),
        larger,
    )
    if larger is False and better:
        raise UsageError(
            f"the loss {name_of(given)} says that larger is better",
            hint="A loss is smaller where outputs are better",
        )
    known = limits if isinstance(limits, (tuple, list)) and len(limits) == 2 else (-math.inf, math.inf)
    try:
        low, high = map(float, known)
    except (TypeError, ValueError):
        low, high = -math.inf, math.inf
    told = name if isinstance(name, str) and name.strip() else name_of(given)
    found = Quantity(told.strip(), unit if isinstance(unit, str) else "", better, (low, high))
    return checked_name(found) if larger else found


def checked_name(quantity: Quantity) -> Quantity:
    """Raise UsageError for a metric whose name means something else in gates and reports."""
    if not quantity.key or quantity.key in TAKEN or quantity.key[0].isdigit():
        raise UsageError(
            f"a metric cannot be called {quantity.name!r}, which means something else in reports",
            hint="Give the function or object a `name` of its own, such as metric.name = 'iou', "
            "or what compute gives another key",
        )
    return quantity


def name_of(function: Any) -> str:
    """What a user's loss or metric is called, for messages."""
    if isinstance(function, (Loss, Metric)):
        return function.quantity.name
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


_uncounted: set[str] = set()  # metrics of which it was told that some samples do not count


def _judged(of: Loss | Metric, outputs: Any, targets: Any, number: int, count: int) -> Tensor:
    """What a loss or a metric gives, as `number_of` has it.

    A user's function is judged by the first batch that tells: it is asked a few times for that, which costs
    it nothing that it draws.
    """
    with nullcontext() if number else muted_if_refused():
        value = number_of(of._asked(outputs, targets, number), of.quantity, count, number)
        if number == 0 and of.function is not None and (kind := kind_of(outputs, targets)) not in of.judged:
            device = next((tensor.device for tensor in tensors_of(outputs)), "cpu")
            with undrawn(device), reading(of.quantity.name, number, outputs, targets):
                if check_number(of.quantity.name, of.function, outputs, targets, value, count):
                    of.judged.add(kind)
    return value
