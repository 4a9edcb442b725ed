"""How good a network is: its mean loss, its metrics and its calibration over batches.

Sums are float64, so how the samples are batched hardly matters. Every module is in evaluation mode
meanwhile and leaves in the mode it came in.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..datasets.batches import checked, part_of, size_of, to_device
from ..errors import NetworkError
from ..runtime.ranks import ALONE, Ranks
from ..runtime.seeds import begin, undrawn
from ..runtime.text import clean, some
from ..types import ACCURACY, CROSS_ENTROPY, Batches, Quantity
from .calibration import BINS, calibration, fill
from .classes import by_class, fit_classes, logits_of, widened, without_ignored
from .folding import folded
from .forward import evaluating, fed
from .given import own_loss
from .layout import in_parts
from .losses import OWN, Loss, Metric, check_distinct, metrics_of
from .pairing import check_parts

log = logging.getLogger("rebasin")
TOGETHER = 1 << 16  # logits of several batches that are scored as one


@dataclass(frozen=True)
class Scores:
    """`loss` is the mean over samples (inf where the network's outputs are no numbers), `metrics` by name.

    `quantities` say what these are of: the loss first, then every metric in its order. Without others they
    are cross-entropy in nats and accuracy 0–1. `ece` is the expected calibration error over bins of equal
    width, 0–1 (Guo et al. 2017, eq. 3, arXiv:1706.04599), of all targets; NaN where the loss is no
    cross-entropy of class numbers. `bins` are those bins: how many targets, their mean confidence, their
    accuracy, each as long as there are bins, NaN in empty ones; () where there is no `ece`.
    `each` holds, where asked for, every sample's figures by name ("loss", and the metrics'), float32
    (samples,) in the data's order; of a loss or a metric that gives means alone every batch's (batches,), of
    as many samples as `sizes` says; these are `batched`. A metric over the whole set is in neither.
    `classes` are, where accuracy is measured, the targets of every class and how many of these were right;
    `numbers`, where each sample has one, and with `each`, the class of every sample, int64 (samples,).
    """

    loss: float
    metrics: Mapping[str, float]
    samples: int
    ece: float = math.nan
    bins: tuple[tuple[float, ...], ...] = field(default=(), repr=False, compare=False)
    each: Mapping[str, Tensor] | None = field(default=None, repr=False, compare=False)
    sizes: tuple[int, ...] = field(default=(), repr=False, compare=False)
    quantities: tuple[Quantity, ...] = field(default=(CROSS_ENTROPY, ACCURACY), repr=False)
    classes: tuple[tuple[int, int], ...] = field(default=(), repr=False, compare=False)
    batched: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    numbers: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def accuracy(self) -> float:
        """0–1; NaN where it was not measured."""
        return self.metrics.get(ACCURACY.key, math.nan)

    @property
    def figures(self) -> dict[str, float]:
        """The loss, and every metric by its name."""
        return {"loss": self.loss, **self.metrics}

    def by_name(self, names: Collection[str]) -> dict[str, float]:
        """These `figures`, in this order. Raises NetworkError where a metric computed others."""
        found = self.figures
        if alone := sorted({*names} ^ {*found}):
            raise NetworkError(
                f"a metric computes {some(map(clean, alone), 5)} of one model, and not of another",
                hint="Let compute() give the same figures of every model, NaN where one means nothing",
            )
        return {name: found[name] for name in names}

    @property
    def finite(self) -> dict[str, float]:
        """The metrics that are numbers: what may be written as JSON."""
        return {key: value for key, value in self.metrics.items() if math.isfinite(value)}

    def sampled(self, name: str) -> Tensor | None:
        """The figure of every sample (samples,); None where single samples are not known."""
        found = (self.each or {}).get(name)
        known = found is not None and len(found) == self.samples and name not in self.batched
        return found if known else None


@dataclass
class _Sum:
    """A figure by the numbers of batches: what it adds up to, of how much, on each sample or each batch."""

    parts: dict[int, tuple[float, int, Tensor]] = field(default_factory=dict)
    batched: bool = False

    def add(self, number: int, values: Tensor, size: int) -> None:
        self.batched |= not values.ndim
        total = values.sum().item() if values.ndim else size * values.item()
        if values.ndim:
            if math.isnan(total):
                values = values[~values.isnan()]  # a sample whose targets do not count
                total = values.sum().item()
            size = len(values)
        self.parts[number] = total, size, values.reshape(-1)

    def join(self, other: _Sum) -> None:
        self.parts |= other.parts
        self.batched |= other.batched

    @property
    def mean(self) -> float:
        total, weight = 0.0, 0
        for number in sorted(self.parts):  # whoever measured them
            total, weight = total + self.parts[number][0], weight + self.parts[number][1]
        return total / weight if weight else math.nan

    @property
    def each(self) -> Tensor:
        return torch.cat([self.parts[number][2] for number in sorted(self.parts)]).float()


@dataclass
class _Part:
    """What some of the batches gave: every figure's sums, samples by the numbers of batches, counts."""

    sums: dict[str, _Sum]
    filled: Tensor  # samples, sums of confidence and of right answers (3, bins) float64
    sizes: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, Tensor] = field(default_factory=dict)
    counted: Tensor = field(default_factory=lambda: torch.zeros(2, 0, dtype=torch.int64))  # of every class
    left_out: set[int] = field(default_factory=set)  # numbers of no class, in accuracy that nobody named
    classes: bool = True  # whether that accuracy means something

    def add(self, key: str, values: Tensor, sizes: Mapping[int, int]) -> None:
        """A figure of batches, by their numbers, in a row; of one alone it may be a mean."""
        split = values.split([*sizes.values()]) if values.ndim else (values,)
        for (number, size), its in zip(sizes.items(), split, strict=True):
            self.sums[key].add(number, its, size)

    def without_classes(self) -> None:
        """Without what was counted of classes by a metric that nobody named."""
        self.sums.pop(ACCURACY.key, None)
        self.numbers, self.counted, self.classes = {}, self.counted[:, :0], False

    def join(self, other: _Part) -> None:
        for key in [*self.sums]:
            if key in other.sums:
                self.sums[key].join(other.sums[key])
            else:  # a metric that nobody named, and that means nothing there
                del self.sums[key]
        self.filled += other.filled
        self.sizes |= other.sizes
        self.numbers |= other.numbers
        if other.counted.shape[1]:
            self.counted = other.counted + widened(self.counted, other.counted.shape[1])
        self.left_out |= other.left_out
        if not (self.classes and other.classes) or len(self.left_out) > 1:
            self.without_classes()


def evaluate(
    network: nn.Module,
    batches: Batches,
    *,
    loss: Loss | Callable[[Any, Any], Any] | None = None,
    metric: Any = None,
    output: str | int | None = None,
    device: str | torch.device = "cpu",
    each: bool = False,
    bins: int = BINS,
    ranks: Ranks = ALONE,
) -> Scores:
    """Measure `network`, already on `device`, on `(inputs, targets)` batches.

    `loss(outputs, targets)` gives a batch's mean or one number a sample (default: cross-entropy); so does
    `metric(outputs, targets)`, or it is an object over the whole set, or several of both (default: accuracy,
    where outputs are logits). They see all that the network returns, or what `output` picks by key or index.
    `each` keeps the figures of every sample or batch. Calibration is over so many `bins`.
    Several `ranks`, who have the same network and batches, take turns with these; all get the same figures.
    An object over the whole set sees all batches, so that each rank goes through all of them.
    What any of these draws is drawn alike for every model, and randomness is as it was afterwards.
    Raises DataError for what is wrong with the batches, NetworkError for what is wrong with the network.
    """
    lost, metrics = Loss.of(loss), metrics_of(metric)
    if any(m.whole is not None for m in metrics):
        ranks = ALONE
    for m in metrics:
        m.begin()
    parts = ranks.shared(_part, network, batches, lost, metrics, output, device, each, bins, ranks)
    found, *others = [part for part in parts if part.sizes] or parts[:1]
    for other in others:
        found.join(other)
    sums, total = found.sums, sum(found.sizes.values())
    figures: list[tuple[Quantity, float]] = []
    for m in metrics:
        if m.whole is not None:
            figures += m.end().items()
        elif m.quantity.key in sums:
            figures.append((m.quantity, sums[m.quantity.key].mean))
    quantities = [quantity for quantity, _ in figures]
    check_distinct(quantities)
    numbers = [found.numbers[number] for number in sorted(found.numbers)]
    binned = {} if lost.own else calibration(found.filled)
    return Scores(
        sums["loss"].mean,
        {quantity.key: value for quantity, value in figures},
        total,
        binned.pop("ece", math.nan),
        tuple(map(tuple, binned.values())),
        {key: its.each for key, its in sums.items()} if each else None,
        tuple(found.sizes[number] for number in sorted(found.sizes)) if each else (),
        (lost.quantity, *quantities),
        tuple((right[0], right[1]) for right in found.counted.T.tolist()),
        frozenset(key for key, its in sums.items() if its.batched),
        torch.cat(numbers) if numbers and sum(map(len, numbers)) == total else None,
    )


@dataclass(frozen=True)
class Scorer:
    """`measure`, which is `evaluate` with some of its options, shared by `ranks`; `now` are more of them."""

    measure: Callable[..., Scores]
    ranks: Ranks = ALONE
    now: Callable[[], dict[str, Any]] = dict

    def __call__(self, network: nn.Module, batches: Any, **more: Any) -> Scores:
        return self.measure(network, batches, **self.now() | {"ranks": self.ranks} | more)


def _part(
    network: nn.Module,
    batches: Batches,
    lost: Loss,
    metrics: Sequence[Metric],
    output: str | int | None,
    device: str | torch.device,
    each: bool,
    bins: int,
    ranks: Ranks,
) -> _Part:
    """What the batches of this rank give: every so many one."""
    given = {"--loss": lost.own, "--metric": all(m.named for m in metrics)}
    lacking = [option for option, own in given.items() if not own]
    unnamed = any(not m.named for m in metrics)
    part = _Part({"loss": _Sum()}, torch.zeros(3, bins, dtype=torch.float64))
    with ExitStack() as stack:
        stack.enter_context(evaluating(network))
        stack.enter_context(torch.inference_mode(False))  # there no tensor says whether it was written to
        stack.enter_context(torch.no_grad())
        stack.enter_context(undrawn(device))  # a network or a loss may draw: for every model the same
        for number, (inputs, targets) in enumerate(checked(batches)):
            if number % ranks.size != ranks.rank:
                continue
            size = size_of(targets, inputs)
            targets = to_device(targets, device)
            inputs = fed(network, inputs, device)
            if not part.sizes:
                stack.enter_context(folded(network, inputs, output))
            begin(number, "a batch that is measured", device)
            outputs = in_parts(network, inputs, output)
            known = targets
            if lost.own and unnamed:
                known = without_ignored(outputs, targets, lost.ignored, part.left_out)
            if lost.own and unnamed and (len(part.left_out) > 1 or not fit_classes(outputs, known)):
                if part.sizes:
                    log.info("accuracy is left out: outputs and targets of batch %d tell no classes", number)
                metrics, unnamed = tuple(m for m in metrics if m.named), False
                part.without_classes()
            if not part.sizes:
                part.sums |= {m.quantity.key: _Sum() for m in metrics if m.whole is None}
                waiting = _Waiting(partial(_score, part, lost, metrics, each))
            part.sizes[number] = size
            classes = not lost.own or any(not m.own for m in metrics)
            logits = _classes(outputs, known, number, lacking) if classes else None
            if logits is not None and not (lost.own or any(m.own for m in metrics)):
                waiting.add(number, logits, targets)
                continue
            of_classes = None if logits is None else (logits, known)
            values = _score(part, lost, metrics, each, {number: size}, (outputs, targets), of_classes)
            if lost.carried and number == 0 and type(network) not in _asked_in_parts:
                _asked_in_parts.add(type(network))
                check_parts(OWN.name, values, size, partial(_own_loss, network, inputs, output))
        if part.sizes:
            waiting.score()
    return part


Pair = tuple[Any, Any]  # outputs and targets


class _Waiting:
    """Batches of logits that rebasin's own loss and metric `score` as one, to the same figures.

    Where outputs are small, what that takes is one call after the other, and not their numbers.
    """

    def __init__(self, score: Callable[[dict[int, int], Pair, tuple[Tensor, Tensor]], object]):
        self._score, self.sizes = score, dict[int, int]()
        self.logits, self.targets = list[Tensor](), list[Tensor]()
        self.kind: Any = None

    def add(self, number: int, logits: Tensor, targets: Tensor) -> None:
        """Both may be written to afterwards by whoever made them."""
        kind = logits.dtype, logits.shape[1:], targets.shape[1:]
        if kind != self.kind or logits.numel() >= TOGETHER:
            self.score()
        alone = logits.numel() >= TOGETHER
        self.logits.append(logits if alone else logits.clone())
        self.targets.append(targets if alone else targets.clone())
        self.sizes[number], self.kind = len(targets), kind
        if sum(one.numel() for one in self.logits) >= TOGETHER:
            self.score()

    def score(self) -> None:
        if self.sizes:
            logits, targets = (
                its[0] if len(its) == 1 else torch.cat(its) for its in (self.logits, self.targets)
            )
            self._score(self.sizes, (logits, targets), (logits, targets))
        self.sizes, self.logits, self.targets = {}, [], []


def _score(
    part: _Part,
    lost: Loss,
    metrics: Sequence[Metric],
    each: bool,
    sizes: dict[int, int],
    whole: Pair,
    of_classes: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Add to the part what these batches give, and return the loss's figures; sizes are by their numbers.

    `whole` is outputs and targets, `of_classes` logits of these, and class numbers that count.
    """
    first, size = next(iter(sizes)), sum(sizes.values())
    outputs, targets = whole if lost.own else of_classes or whole
    values = lost.values(outputs, targets, first, size)
    part.add("loss", _nan_as_inf(lost, values), sizes)
    for m in metrics:
        outputs, targets = whole if m.own else of_classes or whole
        if (good := m.values(outputs, targets, first, size)) is not None:
            part.add(m.quantity.key, good, sizes)
    if of_classes is not None:
        logits, targets = of_classes
        part.counted = by_class(logits, targets) + widened(part.counted, logits.shape[1])
        if each and targets.ndim == 1:
            part.numbers |= zip(sizes, targets.cpu().split([*sizes.values()]), strict=True)
        if not lost.own:
            fill(part.filled, logits, targets)
    return values


def _nan_as_inf(loss: Loss, values: Tensor) -> Tensor:
    """Of outputs that are no numbers, the loss is infinite; rebasin's own says so itself."""
    return values.nan_to_num(math.inf, posinf=math.inf) if loss.own else values


_asked_in_parts: set[type] = set()  # networks whose own loss was compared with that of parts of a batch


def _own_loss(network: nn.Module, inputs: Any, output: str | int | None, start: int, stop: int) -> Tensor:
    """The loss that a network gives of some samples of a batch, in a row."""
    return own_loss(in_parts(network, part_of(inputs, start, stop), output), 0)


_told: set[tuple[int, ...]] = set()  # shapes of outputs whose classes were found in the last axis


def _classes(outputs: Any, targets: Any, number: int, lacking: Sequence[str]) -> Tensor:
    """As `logits_of`; where classes are found in the last axis, that is said once."""
    found = logits_of(outputs, targets, number, lacking)
    if found is not outputs and (shape := tuple(outputs.shape[1:])) not in _told:
        _told.add(shape)
        log.info(
            "outputs %s have their %d classes in the last axis, by the targets %s",
            *(tuple(outputs.shape), found.shape[1], tuple(targets.shape)),
        )
    return found
